//! Hashes of 20 bytes, one after the other, as the authors of "Lazy Exact Deduplication" keep them.

use std::io::BufRead;

use anyhow::Result;

use crate::trace::input::Input;
use crate::trace::{Event, Events, HASH_LEN, TraceChunk};

/// Reads such a file as one stream. The format has no lengths: all chunks get the same.
#[derive(Debug)]
pub struct RawTrace<R> {
    input: Input<R>,
    begin: Option<Event>,
    chunk_len: u32,
    has_ended: bool,
}

impl<R: BufRead> RawTrace<R> {
    /// Starts at the first byte. `name`, `version`: of the stream.
    pub fn new(input: R, name: &[u8], version: u32, chunk_len: u32) -> Self {
        let begin = Some(Event::Begin { name: name.to_vec(), version });
        Self { input: Input::new(input), begin, chunk_len, has_ended: false }
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
        Ok(Some(Event::Chunk(TraceChunk { hash: self.input.array::<HASH_LEN>()?, len: self.chunk_len })))
    }
}
