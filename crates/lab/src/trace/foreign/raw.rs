//! Hashes of 20 bytes, one after the other, as the authors of "Lazy Exact Deduplication" keep them; or each with the length of its
//! chunk behind it, as a 32-bit little-endian integer.

use std::io::BufRead;

use anyhow::Result;

use crate::trace::input::Input;
use crate::trace::{Event, Events, HASH_LEN, TraceChunk};

/// Lengths of chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lengths {
    /// The file has none; all chunks get this one.
    Equal(u32),
    /// Each is behind its hash.
    Recorded,
}

/// Reads such a file as one stream.
#[derive(Debug)]
pub struct RawTrace<R> {
    input: Input<R>,
    begin: Option<Event>,
    lengths: Lengths,
    has_ended: bool,
}

impl<R: BufRead> RawTrace<R> {
    /// Starts at the first byte. `name`, `version`: of the stream.
    pub fn new(input: R, name: &[u8], version: u32, lengths: Lengths) -> Self {
        let begin = Some(Event::Begin { name: name.to_vec(), version });
        Self { input: Input::new(input), begin, lengths, has_ended: false }
    }
}

impl<R: BufRead> Events for RawTrace<R> {
    fn next_event(&mut self) -> Result<Option<Event>> {
        if let Some(begin) = self.begin.take() {
            return Ok(Some(begin));
        }
        if self.has_ended {
            return Ok(None);
        }
        if self.input.is_at_end()? {
            self.has_ended = true;
            return Ok(Some(Event::End));
        }
        let hash = self.input.array::<HASH_LEN>()?;
        let len = match self.lengths {
            Lengths::Equal(len) => len,
            Lengths::Recorded => u32::from_le_bytes(self.input.array()?),
        };
        Ok(Some(Event::Chunk(TraceChunk { hash, len })))
    }
}
