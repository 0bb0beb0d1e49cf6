//! Files that one reader reads in order: those that show no length, and those that changed while several readers read them.

use std::path::Path;

use crate::backup::block::{Block, Buffers, ByteRange, Event, FileEnd, Step};
use crate::backup::entry::EntryRule;
use crate::backup::source_file::{Advance, OpenFile, Stability};
use crate::backup::unread::Unread;
use crate::chunk::WINDOW;
use crate::error::{Error, Result};
use crate::io::tree::SourceFile;

/// Times that a file is read which changes meanwhile.
const READS_MAX: u32 = 3;
/// A file that changes while it is read is read again up to this length. A longer one is a database or the disk of a virtual
/// machine, mostly, which changes all the time.
pub(super) const READ_AGAIN_BYTES_MAX: u64 = 64 << 20;

/// Outcome for a file that was read as far as possible.
pub(super) enum Verdict {
    /// It ends.
    End(End),
    /// It is read once more: this is it, opened.
    Again(Box<dyn SourceFile>),
}

/// End of a file.
pub(super) struct End {
    end: FileEnd,
    /// Report about a file that is stored all the same.
    report: Option<Error>,
}

impl End {
    /// Returns the steps that end the file.
    pub(super) fn steps(self, path: &Path) -> impl Iterator<Item = Step> {
        let reported = self.report.map(|error| Step::Failed(path.to_path_buf(), error));
        std::iter::once(Step::FileEnd(self.end)).chain(reported)
    }
}

/// Decides about a file that was read `reads` times, the last time up to `offset`. `stability` compares it with itself when it was opened; an
/// error is that of the last reading.
pub(super) fn verdict(stability: Result<Stability>, offset: u64, unread: &Unread, reads: u32) -> Verdict {
    let whole = Verdict::End(End { end: FileEnd::Whole, report: None });
    let change = match stability {
        Ok(Stability::Same) => return whole,
        // A log grows all the time.
        Ok(Stability::Appended) if unread.len == 0 => return whole,
        Ok(Stability::Appended) => "it was appended to",
        Ok(Stability::Touched) => "it was touched",
        Ok(Stability::Changed(change)) => change,
        Err(error) => return Verdict::End(End { end: FileEnd::Failed(error), report: None }),
    };
    if reads < READS_MAX && offset <= READ_AGAIN_BYTES_MAX {
        match unread.location.open() {
            Ok(again) => return Verdict::Again(again),
            // It was removed or renamed after it was read whole.
            Err(_) if matches!(stability, Ok(Stability::Touched)) => return whole,
            Err(_) => {}
        }
    }
    if matches!(stability, Ok(Stability::Appended)) {
        return whole;
    }
    Verdict::End(End { end: FileEnd::Whole, report: Some(Error::SourceChanged { change, reads }) })
}

/// A file that is read block by block.
#[derive(Debug)]
pub(super) struct Streamed {
    open: OpenFile,
    unread: Unread,
    /// Times that its reading began.
    reads: u32,
}

impl Streamed {
    /// Starts at the beginning of a file that was begun.
    pub(super) fn new(file: Box<dyn SourceFile>, unread: Unread) -> Self {
        Self { open: OpenFile::new(file), unread, reads: 1 }
    }

    /// Reads into the rest of the block. Returns the file if it has not ended.
    pub(super) fn advance<B: From<ByteRange>>(mut self, entries: EntryRule, block: &mut Block<B>) -> Option<Self> {
        let stability = match self.open.advance(block) {
            Ok(Advance::More) => return Some(self),
            Ok(Advance::End) => self.open.stability(),
            Err(error) => Err(error),
        };
        match verdict(stability, self.open.offset(), &self.unread, self.reads) {
            Verdict::Again(file) => {
                block.push(Step::FileEnd(FileEnd::Changed));
                self.open = OpenFile::new(entries.begin(file, &self.unread, block));
                self.reads += 1;
                Some(self)
            }
            Verdict::End(end) => {
                block.events.extend(end.steps(&self.unread.path).map(Event::Step));
                None
            }
        }
    }
}

/// A file that is read once more, opened.
#[derive(Debug)]
pub(crate) struct Again {
    /// Its handle.
    pub(super) file: Box<dyn SourceFile>,
    /// The file as it was found.
    pub(super) unread: Unread,
}

/// Reads a file again that changed while several readers read its parts.
#[derive(Debug)]
pub(crate) struct Rereader {
    entries: EntryRule,
    buffers: Buffers,
    /// A file that has not begun.
    again: Option<Again>,
    /// A file that has begun.
    streamed: Option<Streamed>,
}

impl Rereader {
    /// Has no file yet. Its blocks take the buffers of others that are not in use: while a file is read again, nothing else is read.
    pub(crate) fn new(entries: EntryRule, buffers: Buffers) -> Self {
        Self { entries, buffers, again: None, streamed: None }
    }

    /// Starts to read a file, after the one before has ended.
    pub(crate) fn start(&mut self, again: Again) {
        self.again = Some(again);
    }

    /// Returns the next block of the file; `None` if there is no file, or at its end.
    pub(crate) fn next_block(&mut self) -> Option<Block<ByteRange>> {
        if self.again.is_none() && self.streamed.is_none() {
            return None;
        }
        let mut block = Block { bytes: self.buffers.take(), events: Vec::new() };
        if let Some(Again { file, unread }) = self.again.take() {
            let file = self.entries.begin(file, &unread, &mut block);
            self.streamed = Some(Streamed { reads: 2, ..Streamed::new(file, unread) });
        }
        while WINDOW < block.bytes.free()
            && let Some(streamed) = self.streamed.take()
        {
            self.streamed = streamed.advance(self.entries, &mut block);
        }
        Some(block)
    }
}
