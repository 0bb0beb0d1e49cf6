//! The segment of the stream whose chunks wait for its end.

use crate::identify::SequencedChunk;
use crate::identify::segmenting::{Segmenter, Segmenting};
use crate::types::ChunkKind;

/// The open segment of the stream, whose chunks wait.
#[derive(Debug)]
pub(in crate::identify) struct WaitingSegment {
    segmenter: Segmenter,
    /// Its chunks, with those of trees and recipes that came between them.
    chunks: Vec<SequencedChunk>,
    bytes: usize,
}

impl WaitingSegment {
    /// Starts before the first chunk of a stream.
    pub(in crate::identify) fn new(segmenting: Segmenting) -> Self {
        Self { segmenter: Segmenter::new(segmenting), chunks: Vec::new(), bytes: 0 }
    }

    /// Returns how many chunks wait.
    pub(in crate::identify) fn waiting(&self) -> usize {
        self.chunks.len()
    }

    /// Takes note of the end of a file; returns true if the segment ends with it.
    pub(in crate::identify) fn end_file(&mut self) -> bool {
        self.segmenter.end_file()
    }

    /// Returns whether the segment ends before a chunk: `Some(true)` if the chunks would be more than `bytes_max`, `Some(false)` if the
    /// chunk begins another one.
    pub(in crate::identify) fn ends_before(&self, chunk: &SequencedChunk, bytes_max: usize) -> Option<bool> {
        let is_cut = bytes_max < self.bytes + chunk.chunk.len as usize;
        let is_open = chunk.kind == ChunkKind::Data && self.segmenter.chunks() != 0;
        (is_open && (is_cut || self.segmenter.begins(&chunk.chunk.fingerprint))).then_some(is_cut)
    }

    /// Takes the next chunk.
    pub(in crate::identify) fn push(&mut self, chunk: &SequencedChunk) {
        if chunk.kind == ChunkKind::Data {
            self.segmenter.push(&chunk.chunk.fingerprint);
        }
        self.bytes += chunk.chunk.len as usize;
        self.chunks.push(*chunk);
    }

    /// Ends the segment; returns its chunks.
    pub(in crate::identify) fn take(&mut self) -> Vec<SequencedChunk> {
        self.bytes = 0;
        self.segmenter.cut();
        std::mem::take(&mut self.chunks)
    }
}
