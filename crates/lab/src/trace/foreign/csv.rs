//! Lines of `hash,size`, as `DedupBench` writes them: the hash in hexadecimal digits, the size in bytes.

use std::io::BufRead;

use anyhow::Result;

use crate::trace::foreign::{FOREIGN_HASH_LEN_MAX, chunk_of, hash_of_hex, len_of_decimal};
use crate::trace::input::Input;
use crate::trace::{Event, Events};

const LINE_LEN_MAX: usize = 2 * FOREIGN_HASH_LEN_MAX + 64;

/// Reads such a file as one stream. Empty lines are passed over, and a first line without a number in its second column.
#[derive(Debug)]
pub struct CsvTrace<R> {
    input: Input<R>,
    begin: Option<Event>,
    has_ended: bool,
}

impl<R: BufRead> CsvTrace<R> {
    /// Starts at the first byte. `name`, `version`: of the stream.
    pub fn new(input: R, name: &[u8], version: u32) -> Self {
        let begin = Some(Event::Begin { name: name.to_vec(), version });
        Self { input: Input::new(input), begin, has_ended: false }
    }
}

impl<R: BufRead> Events for CsvTrace<R> {
    fn next_event(&mut self) -> Result<Option<Event>> {
        if let Some(begin) = self.begin.take() {
            return Ok(Some(begin));
        }
        while !self.has_ended {
            let start = self.input.offset();
            let Some(line) = self.input.line(LINE_LEN_MAX)? else {
                self.has_ended = true;
                return Ok(Some(Event::End));
            };
            let mut columns = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            let (hash, size) = (columns.next().unwrap_or_default(), columns.next().unwrap_or_default());
            let is_heading = start == 0 && !size.iter().any(u8::is_ascii_digit);
            if is_heading || line.trim_ascii().is_empty() {
                continue;
            }
            let (Some(hash), Some(len), None) = (hash_of_hex(hash), len_of_decimal(size), columns.next()) else {
                return Err(Input::<R>::damaged(
                    start,
                    "a line that is not a hash in hexadecimal digits, a comma and a size",
                ));
            };
            return Ok(Some(Event::Chunk(chunk_of(&hash, len))));
        }
        Ok(None)
    }
}
