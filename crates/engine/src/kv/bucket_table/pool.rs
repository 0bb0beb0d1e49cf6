//! Buffers that are used again.

use std::collections::BTreeMap;

use crate::io::AlignedBuffer;

/// Idle buffers by capacity, up to a number of bytes.
#[derive(Debug, Default)]
pub(in crate::kv) struct BufferPool {
    by_capacity: BTreeMap<usize, Vec<AlignedBuffer>>,
    bytes: usize,
    bytes_max: usize,
}

impl BufferPool {
    /// Makes an empty pool that keeps at most `bytes_max` of idle buffers.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Returns a buffer of a length with at most a quarter more capacity. Its content is not specified.
    pub(in crate::kv) fn take(&mut self, len: usize) -> AlignedBuffer {
        let kept = self.by_capacity.range_mut(len..=len + len / 4).find_map(|(_, buffers)| buffers.pop());
        let mut buffer = kept.unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer.resize(len);
        buffer
    }

    /// Takes a buffer back.
    pub(in crate::kv) fn give(&mut self, buffer: AlignedBuffer) {
        let bytes = buffer.capacity();
        if bytes <= self.bytes_max - self.bytes {
            self.bytes += bytes;
            self.by_capacity.entry(bytes).or_default().push(buffer);
        }
    }
}
