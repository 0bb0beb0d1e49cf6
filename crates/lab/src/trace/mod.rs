//! Traces: which chunks a source has, in order, without their bytes.
//!
//! A trace is streams one after the other, each of chunks. A stream is a file, an image, a volume; it belongs to a version,
//! one of the successive states of a source, as successive backups see them. Whatever made it, a chunk has 20 uniform bytes
//! for a name: longer hashes are cut, others are hashed again by their reader. Nothing here keeps a trace in memory.

pub mod block;
pub mod describe;
pub mod export;
pub mod file;
pub mod foreign;
pub mod input;
pub mod reader;
pub mod synth;
#[cfg(test)]
mod trace_tests;
pub mod writer;

use std::fmt;

use onefold_engine::random::mix64;
use onefold_engine::types::{Chunk, Fingerprint};

/// Bytes of a chunk's name in a trace: those that identify it in the engine's table.
pub const HASH_LEN: usize = 20;

/// One chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceChunk {
    /// Its name: uniform bytes.
    pub hash: [u8; HASH_LEN],
    /// Its length in bytes.
    pub len: u32,
}

impl TraceChunk {
    /// Returns the chunk as the engine knows it. Its fingerprint is its name and uniform bytes that follow from the name.
    pub fn chunk(&self) -> Chunk {
        let (words, rest) = self.hash.as_chunks::<8>();
        let word = |index: usize| words.get(index).map_or(0, |word| u64::from_le_bytes(*word));
        let tail = rest.iter().fold(0, |tail, byte| tail << 8 | u64::from(*byte));
        let mut bytes = [0; 32];
        bytes[..HASH_LEN].copy_from_slice(&self.hash);
        bytes[20..28].copy_from_slice(&mix64(word(0) ^ word(1).rotate_left(32)).to_le_bytes());
        bytes[28..].copy_from_slice(&mix64(word(1) ^ tail).to_le_bytes()[..4]);
        Chunk { fingerprint: Fingerprint(bytes), len: self.len }
    }
}

/// An event of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A stream begins. Streams do not nest.
    Begin {
        /// Name in the source: bytes, at most [`block::NAME_LEN_MAX`].
        name: Vec<u8>,
        /// The state of the source that it belongs to, counted from 0; never less than that of the stream before.
        version: u32,
    },
    /// The next chunk of the stream.
    Chunk(TraceChunk),
    /// The stream ends.
    End,
}

/// A source of events: a file of one of the formats, or a generator.
pub trait Events {
    /// Returns the next event, `None` after the last. After an error there is no next.
    fn next_event(&mut self) -> anyhow::Result<Option<Event>>;
}

/// A trace that cannot be read any further.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damaged {
    /// Offset of the damage in the file.
    pub offset: u64,
    /// Kind of the damage.
    pub reason: String,
}

impl Damaged {
    /// Describes damage at an offset.
    pub fn new(offset: u64, reason: impl Into<String>) -> Self {
        Self { offset, reason: reason.into() }
    }
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.offset, self.reason)
    }
}

impl std::error::Error for Damaged {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_begin_with_the_name_and_go_on_differently_for_each() {
        let chunk = |first: u8, last: u8| {
            let mut hash = [7; HASH_LEN];
            (hash[0], hash[HASH_LEN - 1]) = (first, last);
            TraceChunk { hash, len: 1 }
        };
        let one = chunk(1, 1).chunk().fingerprint;
        assert_eq!(one.0[..HASH_LEN], chunk(1, 1).hash);
        assert_ne!(one.0[20..28], chunk(2, 1).chunk().fingerprint.0[20..28]);
        assert_ne!(one.0[28..], chunk(1, 2).chunk().fingerprint.0[28..]);
    }
}
