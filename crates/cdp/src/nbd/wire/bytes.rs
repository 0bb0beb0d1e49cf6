//! Reading numbers from the front of a slice.

/// The part of a message that is not decoded yet.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Takes bytes from the front; none if there are fewer.
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(front)
    }

    /// Takes a length of four bytes, and so many bytes.
    pub(super) fn counted(&mut self) -> Option<&'a [u8]> {
        let count = self.u32()?;
        self.take(usize::try_from(count).ok()?)
    }

    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*front)
    }
}
