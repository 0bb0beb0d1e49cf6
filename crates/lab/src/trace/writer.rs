//! Writing a trace.

use std::io::{self, Write};

use anyhow::{Context, Result, ensure};

use crate::trace::block::{BlockHeader, BlockKind, DESCRIPTION_LEN_MAX, Gathered, NAME_LEN_MAX, Totals, encode_header};
use crate::trace::{Event, Events};

/// Level of compression: names hardly shrink, and what does (lengths, names of streams) does at any level.
const LEVEL: i32 = 3;

/// Writes a trace from its first event to its last, one block in memory.
pub struct TraceWriter<W: Write> {
    out: W,
    gathered: Gathered,
    plain: Vec<u8>,
    compressor: zstd::bulk::Compressor<'static>,
    totals: Totals,
    is_open: bool,
    version: u32,
}

impl<W: Write> std::fmt::Debug for TraceWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceWriter").field("totals", &self.totals).finish_non_exhaustive()
    }
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace. The description names the source for people; at most [`DESCRIPTION_LEN_MAX`] bytes.
    pub fn new(mut out: W, description: &str) -> Result<Self> {
        ensure!(description.len() <= DESCRIPTION_LEN_MAX, "a description of more than {DESCRIPTION_LEN_MAX} bytes");
        out.write_all(&encode_header(description))?;
        Ok(Self {
            out,
            gathered: Gathered::default(),
            plain: Vec::new(),
            compressor: zstd::bulk::Compressor::new(LEVEL)?,
            totals: Totals::default(),
            is_open: false,
            version: 0,
        })
    }

    /// Appends an event.
    pub fn push(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Begin { name, version } => {
                ensure!(!self.is_open, "a stream begins inside another");
                ensure!(name.len() <= NAME_LEN_MAX, "a stream's name of more than {NAME_LEN_MAX} bytes");
                ensure!(self.version <= *version, "version {version} follows version {}", self.version);
                (self.is_open, self.version) = (true, *version);
            }
            Event::Chunk(_) => ensure!(self.is_open, "a chunk outside of a stream"),
            Event::End => {
                ensure!(self.is_open, "the end of a stream that had not begun");
                self.is_open = false;
            }
        }
        self.totals.count(event);
        self.gathered.push(event);
        if self.gathered.is_full() {
            self.gathered.take(&mut self.plain);
            self.write_block(BlockKind::Events)?;
        }
        Ok(())
    }

    /// Appends all events of a source.
    pub fn push_all(&mut self, events: &mut dyn Events) -> Result<()> {
        while let Some(event) = events.next_event()? {
            self.push(&event)?;
        }
        Ok(())
    }

    /// Writes the last blocks. Returns the counts and the file.
    pub fn finish(mut self) -> Result<(Totals, W)> {
        ensure!(!self.is_open, "the trace ends inside a stream");
        if !self.gathered.is_empty() {
            self.gathered.take(&mut self.plain);
            self.write_block(BlockKind::Events)?;
        }
        self.plain = self.totals.encode();
        self.write_block(BlockKind::End)?;
        self.out.flush()?;
        Ok((self.totals, self.out))
    }

    fn write_block(&mut self, kind: BlockKind) -> Result<()> {
        let stored = self.compressor.compress(&self.plain).context("compress a block of a trace")?;
        let header = BlockHeader::of(kind, &stored, self.plain.len());
        write(&mut self.out, &[&header.encode(), &stored]).context("write a block of a trace")
    }
}

fn write(out: &mut impl Write, parts: &[&[u8]]) -> io::Result<()> {
    parts.iter().try_for_each(|part| out.write_all(part))
}
