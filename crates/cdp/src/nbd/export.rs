//! Interface between the server and a volume.

use std::fmt;
use std::ops::Range;

use super::wire::reply::StatusExtent;
use super::wire::{Errno, PAYLOAD_BYTES_MAX};

/// Most extents of one metadata context in a reply. The client asks again for the rest.
pub const STATUS_EXTENTS_MAX: usize = 4096;

/// Lengths of requests that an export announces ("Block sizes").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSizes {
    /// The unit of offsets and lengths. The server does not enforce it.
    pub minimum: u32,
    /// The length that is served best.
    pub preferred: u32,
    /// The longest payload, [`PAYLOAD_BYTES_MAX`] at most.
    pub maximum: u32,
}

impl Default for BlockSizes {
    fn default() -> Self {
        Self { minimum: 1, preferred: 4096, maximum: PAYLOAD_BYTES_MAX }
    }
}

/// A demand that a change is durable before it is answered (`FUA`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fua {
    /// The change becomes durable with a later flush.
    No,
    /// The change is durable when the call returns.
    Yes,
}

/// How zeros are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZeroOptions {
    /// The demand for durability.
    pub fua: Fua,
    /// The range must be allocated afterwards (`NO_HOLE`).
    pub allocate: bool,
    /// If zeroing is as slow as writing, fail with [`Errno::NotSupported`] immediately (`FAST_ZERO`).
    pub fast: bool,
}

/// A kind of information about the bytes of an export ("Metadata contexts").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// `base:allocation`, with [`super::wire::allocation_flag`]s.
    Allocation,
    /// `onefold:dirty`, with [`super::wire::dirty_flag`]s.
    Dirty,
}

impl Context {
    /// All contexts; the position in this list is the index of a context.
    pub const ALL: [Self; 2] = [Self::Allocation, Self::Dirty];

    /// The name on the wire: namespace, colon, name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocation => "base:allocation",
            Self::Dirty => "onefold:dirty",
        }
    }

    /// The number on the wire.
    pub const fn id(self) -> u32 {
        match self {
            Self::Allocation => 1,
            Self::Dirty => 2,
        }
    }
}

/// Extents of one metadata context, in the order of their offsets.
#[derive(Debug, Default)]
pub struct StatusExtents {
    extents: Vec<StatusExtent>,
    /// Bytes that are not described yet.
    missing: u32,
    limit: usize,
}

impl StatusExtents {
    /// Begins the description of a range, with at most so many extents.
    pub fn begin(&mut self, len: u32, limit: usize) {
        self.extents.clear();
        self.missing = len;
        self.limit = limit.min(STATUS_EXTENTS_MAX);
    }

    /// Adds the next bytes of the range, and returns true if more are wanted. Adjacent extents with equal flags become one.
    pub fn push(&mut self, len: u64, flags: u32) -> bool {
        let len = u32::try_from(len).unwrap_or(u32::MAX).min(self.missing);
        let is_full = self.extents.len() == self.limit;
        match self.extents.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.flags == flags => last.len += len,
            _ if is_full => return false,
            _ => self.extents.push(StatusExtent { len, flags }),
        }
        self.missing -= len;
        self.missing != 0
    }

    /// The extents so far.
    pub fn as_slice(&self) -> &[StatusExtent] {
        &self.extents
    }
}

/// A volume as the server needs it.
///
/// Any thread may call any method at any time. The server has checked that ranges lie within [`Export::size`], are not empty,
/// and that the export announced the command. A method returns the reason that the client gets.
///
/// # Durability
///
/// [`Export::flush`] returns when every change **that was answered before the flush arrived, on any connection,** is durable.
/// A change counts as answered when its method has returned, because the server replies only then. So it suffices that
/// `flush` covers each call that returned before `flush` was called. This is why [`super::wire::export_flag::CAN_MULTI_CONN`]
/// may be announced.
pub trait Export: fmt::Debug + Send + Sync {
    /// Bytes of the volume; does not change.
    fn size(&self) -> u64;

    /// Properties, from [`super::wire::export_flag`]. The server adds `HAS_FLAGS` and `SEND_DF`.
    fn flags(&self) -> u16;

    /// Lengths of requests.
    fn block_sizes(&self) -> BlockSizes {
        BlockSizes::default()
    }

    /// Returns true if the volume describes its bytes in this context.
    fn has_context(&self, context: Context) -> bool;

    /// Returns true if reads and writes do not wait for anything slow at present. A connection that has one request in
    /// flight then executes it on the thread that received it, which saves a switch of threads; the connection receives
    /// nothing in the meantime.
    fn is_prompt(&self) -> bool {
        true
    }

    /// Returns true if [`Export::block_status`] takes microseconds, so that the server asks for holes before each long read
    /// and does not send them. A search for the end of data in a file may read the map of the whole file.
    fn finds_holes_quickly(&self) -> bool {
        false
    }

    /// Fills the buffer from an offset.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Writes at an offset.
    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), Errno>;

    /// Writes zeros.
    fn write_zeroes(&self, range: Range<u64>, options: ZeroOptions) -> Result<(), Errno>;

    /// Allows the volume to forget the range, which may read as anything afterwards.
    fn trim(&self, range: Range<u64>, fua: Fua) -> Result<(), Errno>;

    /// Makes changes durable; see above.
    fn flush(&self) -> Result<(), Errno>;

    /// Announces that the range will be read.
    fn cache(&self, range: Range<u64>) -> Result<(), Errno>;

    /// Describes the range, or a part from its start, which has one extent at least.
    fn block_status(&self, range: Range<u64>, context: Context, extents: &mut StatusExtents) -> Result<(), Errno>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_joined_cut_at_the_end_of_the_range_and_limited() {
        let extent = |len, flags| StatusExtent { len, flags };
        let mut extents = StatusExtents::default();
        extents.begin(100, 2);
        assert!(extents.push(10, 3) && extents.push(20, 3) && extents.push(0, 1) && extents.push(5, 0));
        assert!(!extents.push(1, 3), "a third extent");
        assert_eq!(extents.as_slice(), [extent(30, 3), extent(5, 0)]);
        extents.begin(100, 9);
        assert!(extents.push(99, 0));
        assert!(!extents.push(u64::MAX, 1));
        assert_eq!(extents.as_slice(), [extent(99, 0), extent(1, 1)]);
    }
}
