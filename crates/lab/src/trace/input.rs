//! Bytes of a trace, with their offsets.

use std::io::{BufRead, ErrorKind, Read};

use anyhow::{Context, Result};

use crate::trace::Damaged;

/// A file that is read from its beginning to its end.
#[derive(Debug)]
pub struct Input<R> {
    inner: R,
    offset: u64,
}

impl<R: Read> Input<R> {
    /// Starts at the first byte.
    pub fn new(inner: R) -> Self {
        Self { inner, offset: 0 }
    }

    /// Returns how many bytes were taken.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the error for damaged bytes from `start` on.
    pub fn damaged(start: u64, reason: impl Into<String>) -> anyhow::Error {
        Damaged::new(start, reason).into()
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.inner.read(rest) {
                Ok(0) => return Err(Damaged::new(self.offset, "the trace ends too early").into()),
                Ok(count) => {
                    filled += count;
                    self.offset += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("read a trace"),
            }
        }
        Ok(())
    }

    /// Takes an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Takes `len` bytes; the caller has checked the limit.
    pub fn bytes(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads one more byte; returns true if there is none.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.inner.read(&mut [0]).context("read a trace")? == 0)
    }
}

impl<R: BufRead> Input<R> {
    /// Returns true at the end.
    pub fn is_at_end(&mut self) -> Result<bool> {
        loop {
            match self.inner.fill_buf() {
                Ok(bytes) => return Ok(bytes.is_empty()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("read a trace"),
            }
        }
    }

    /// Takes a line of at most `len_max` bytes without its end (`\n` or `\r\n`); `None` if nothing is left. The last line
    /// may lack its end.
    pub fn line(&mut self, len_max: usize) -> Result<Option<Vec<u8>>> {
        let start = self.offset;
        let mut line = Vec::new();
        let limit = len_max as u64 + 2;
        let taken = self.inner.by_ref().take(limit).read_until(b'\n', &mut line).context("read a trace")?;
        self.offset += taken as u64;
        if taken == 0 {
            return Ok(None);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
            line.pop_if(|byte| *byte == b'\r');
        }
        if len_max < line.len() {
            return Err(Self::damaged(start, format!("a line of more than {len_max} bytes")));
        }
        Ok(Some(line))
    }
}
