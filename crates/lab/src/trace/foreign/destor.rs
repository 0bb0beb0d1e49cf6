//! Traces in text, as destor reads and writes them.
//!
//! `file start <length of name>`, the name on a line of its own, for each chunk its SHA-1 in hexadecimal digits and its size,
//! `file end`; at last `stream end`.

use std::io::BufRead;

use anyhow::Result;

use crate::trace::block::NAME_LEN_MAX;
use crate::trace::foreign::{FOREIGN_HASH_LEN_MAX, chunk_of, hash_of_hex, len_of_decimal};
use crate::trace::input::Input;
use crate::trace::{Event, Events};

const LINE_LEN_MAX: usize = 2 * FOREIGN_HASH_LEN_MAX + 64;

/// Reads such a file: each of its files is a stream.
#[derive(Debug)]
pub struct DestorTrace<R> {
    input: Input<R>,
    version: u32,
    in_file: bool,
    has_ended: bool,
}

impl<R: BufRead> DestorTrace<R> {
    /// Starts at the first byte. `version`: of all streams.
    pub fn new(input: R, version: u32) -> Self {
        Self { input: Input::new(input), version, in_file: false, has_ended: false }
    }

    fn begin(&mut self, start: u64, len: &[u8]) -> Result<Event> {
        let len = len_of_decimal(len).map(|len| len as usize).filter(|len| *len <= NAME_LEN_MAX);
        let len = len.ok_or_else(|| Input::<R>::damaged(start, "a length of a name that cannot be"))?;
        let name = self.input.bytes(len)?;
        let end = self.input.offset();
        if self.input.line(1)?.is_none_or(|rest| !rest.is_empty()) {
            return Err(Input::<R>::damaged(end, "a name longer than it says"));
        }
        self.in_file = true;
        Ok(Event::Begin { name, version: self.version })
    }
}

impl<R: BufRead> Events for DestorTrace<R> {
    fn next_event(&mut self) -> Result<Option<Event>> {
        if self.has_ended {
            return Ok(None);
        }
        let start = self.input.offset();
        let line = self.input.line(LINE_LEN_MAX)?;
        let line = line.ok_or_else(|| Input::<R>::damaged(start, "the trace ends without `stream end`"))?;
        if let Some(len) = line.strip_prefix(b"file start ").filter(|_| !self.in_file) {
            return self.begin(start, len).map(Some);
        }
        match (line.as_slice(), self.in_file) {
            (b"file end", true) => {
                self.in_file = false;
                Ok(Some(Event::End))
            }
            (b"stream end", false) => {
                if !self.input.is_at_end()? {
                    return Err(Input::<R>::damaged(self.input.offset(), "bytes after the end"));
                }
                self.has_ended = true;
                Ok(None)
            }
            (chunk, true) => {
                let mut words = chunk.split(|byte| *byte == b' ');
                let hash = words.next().and_then(hash_of_hex);
                let len = words.next().and_then(len_of_decimal);
                let (Some(hash), Some(len), None) = (hash, len, words.next()) else {
                    return Err(Input::<R>::damaged(start, "a line that is neither a hash and a size nor `file end`"));
                };
                Ok(Some(Event::Chunk(chunk_of(&hash, len))))
            }
            (_, false) => Err(Input::<R>::damaged(start, "a line that is neither `file start` nor `stream end`")),
        }
    }
}
