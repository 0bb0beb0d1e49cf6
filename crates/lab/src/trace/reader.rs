//! Reading a trace.

use std::io::Read;

use anyhow::Result;

use crate::trace::block::{
    BLOCK_HEADER_LEN, BlockHeader, BlockKind, DESCRIPTION_LEN_MAX, HEADER_LEN, MAGIC, Totals, VERSION, decode_events,
};
use crate::trace::input::Input;
use crate::trace::{Damaged, Event, Events};

/// Reads a trace from its first event to its last, one block in memory. Whatever the bytes are, the answer is events or
/// an error that names an offset.
pub struct TraceReader<R: Read> {
    input: Input<R>,
    description: String,
    stored: Vec<u8>,
    /// Events of the present block, the next one last.
    events: Vec<Event>,
    decompressor: zstd::bulk::Decompressor<'static>,
    totals: Totals,
    is_open: bool,
    version: u32,
    has_ended: bool,
}

impl<R: Read> std::fmt::Debug for TraceReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceReader").field("offset", &self.input.offset()).finish_non_exhaustive()
    }
}

impl<R: Read> TraceReader<R> {
    /// Reads the header. Reads from `input` are large and few: it needs no buffer.
    pub fn new(input: R) -> Result<Self> {
        let mut input = Input::new(input);
        let header = input.bytes(HEADER_LEN)?;
        let (magic, fields) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Damaged::new(0, "not a trace of Onefold").into());
        }
        let (version, len) = fields.split_at(2);
        let version = u16::from_le_bytes(version.try_into().unwrap_or_default());
        if version != VERSION {
            let reason = format!("a trace of version {version}; this program reads version {VERSION}");
            return Err(Damaged::new(8, reason).into());
        }
        let len = u32::from_le_bytes(len.try_into().unwrap_or_default()) as usize;
        if DESCRIPTION_LEN_MAX < len {
            return Err(Damaged::new(10, format!("a description of {len} bytes")).into());
        }
        let rest = input.bytes(len + 4)?;
        let (description, checksum) = rest.split_at(len);
        if crc32c::crc32c_append(crc32c::crc32c(&header), description).to_le_bytes() != checksum {
            return Err(Damaged::new(0, "the header does not have its checksum").into());
        }
        let description = String::from_utf8(description.to_vec())
            .map_err(|_| Damaged::new(HEADER_LEN as u64, "a description that is not UTF-8"))?;
        Ok(Self {
            input,
            description,
            stored: Vec::new(),
            events: Vec::new(),
            decompressor: zstd::bulk::Decompressor::new()?,
            totals: Totals::default(),
            is_open: false,
            version: 0,
            has_ended: false,
        })
    }

    /// Returns its description.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Reads the next block. False: it was the last.
    fn read_block(&mut self) -> Result<bool> {
        let start = self.input.offset();
        let header = self.input.array::<BLOCK_HEADER_LEN>()?;
        let header =
            BlockHeader::decode(&header).map_err(|error| Damaged::new(start + error.offset as u64, error.reason))?;
        self.stored.resize(header.stored_len as usize, 0);
        self.input.fill(&mut self.stored)?;
        let damaged = |reason: &str| Damaged::new(start, format!("block: {reason}"));
        if !header.is_intact(&self.stored) {
            return Err(damaged("it does not have its checksum").into());
        }
        let plain_len = header.plain_len as usize;
        let plain = self.decompressor.decompress(&self.stored, plain_len).ok().filter(|plain| plain.len() == plain_len);
        let plain = plain.ok_or_else(|| damaged("it does not decompress"))?;
        match header.kind {
            BlockKind::Events => {
                decode_events(&plain, &mut self.events).map_err(|error| damaged(&error.to_string()))?;
                self.check_order().map_err(damaged)?;
                self.events.reverse();
                Ok(true)
            }
            BlockKind::End => {
                let totals = Totals::decode(&plain).map_err(|error| damaged(&error.to_string()))?;
                if totals != self.totals || self.is_open {
                    return Err(damaged("the trace does not hold what its end says").into());
                }
                if !self.input.has_ended()? {
                    return Err(Damaged::new(self.input.offset(), "bytes after the end").into());
                }
                Ok(false)
            }
        }
    }

    /// Checks that streams follow each other, and counts.
    fn check_order(&mut self) -> Result<(), &'static str> {
        for event in &self.events {
            let is_in_order = match event {
                Event::Begin { version, .. } => {
                    let is_next = !self.is_open && self.version <= *version;
                    (self.is_open, self.version) = (true, *version);
                    is_next
                }
                Event::Chunk(_) => self.is_open,
                Event::End => std::mem::replace(&mut self.is_open, false),
            };
            if !is_in_order {
                return Err("its streams do not follow each other");
            }
            self.totals.count(event);
        }
        Ok(())
    }
}

impl<R: Read> Events for TraceReader<R> {
    fn next_event(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.events.pop() {
                return Ok(Some(event));
            }
            if self.has_ended || !self.read_block().inspect_err(|_| self.has_ended = true)? {
                self.has_ended = true;
                return Ok(None);
            }
        }
    }
}
