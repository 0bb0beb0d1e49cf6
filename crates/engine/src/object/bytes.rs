//! The bytes of a container on their way to a disk.

use std::ops::Deref;

use crate::io::{AlignedBuffer, DIRECT_ALIGN};

/// All bytes of a container, where direct I/O takes them from: they begin at a multiple of [`DIRECT_ALIGN`], and zeros follow
/// them up to the next one.
#[derive(Debug)]
pub struct ObjectBytes {
    buffer: AlignedBuffer,
    len: usize,
}

impl ObjectBytes {
    /// Takes `len` bytes of a buffer, which may have held another container. Their values are arbitrary.
    pub(crate) fn within(mut buffer: AlignedBuffer, len: usize) -> Self {
        buffer.resize(len.next_multiple_of(DIRECT_ALIGN));
        buffer.get_mut(len..).unwrap_or_default().fill(0);
        Self { buffer, len }
    }

    /// Copies bytes into a buffer of their own.
    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let mut copy = Self::within(AlignedBuffer::default(), bytes.len());
        copy.bytes_mut().copy_from_slice(bytes);
        copy
    }

    /// Returns the bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.get_mut(..self.len).expect("the bytes lie in the room")
    }

    /// Returns the bytes and the zeros that follow.
    pub(crate) fn padded(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns the buffer.
    pub(crate) fn into_buffer(self) -> AlignedBuffer {
        self.buffer
    }
}

impl Deref for ObjectBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.get(..self.len).expect("the bytes lie in the room")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_was_used_is_padded_with_zeros() {
        let mut bytes = ObjectBytes::within(AlignedBuffer::default(), 3 * DIRECT_ALIGN);
        bytes.bytes_mut().fill(7);
        for len in [0, 1, DIRECT_ALIGN - 1, DIRECT_ALIGN, DIRECT_ALIGN + 1, 2 * DIRECT_ALIGN] {
            bytes = ObjectBytes::within(bytes.into_buffer(), len);
            assert_eq!((bytes.len(), bytes.padded().len()), (len, len.next_multiple_of(DIRECT_ALIGN)));
            assert!(bytes.padded()[len..].iter().all(|byte| *byte == 0), "{len}");
            bytes.bytes_mut().fill(7);
        }
    }
}
