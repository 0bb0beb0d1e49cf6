//! Long files: several readers read their parts at the same time, and the order of the parts decides how a file ends.
//!
//! Parts are as long as the rest of a block. A file that changed meanwhile is read again by one reader, up to
//! [`READ_AGAIN_BYTES_MAX`]: its end is the last event of a block, so that the second reading takes its place before later files.

use std::sync::{Arc, Mutex, PoisonError};

use crate::backup::block::{Block, ByteRange, Event, Input, Step};
use crate::backup::part::{LongFile, Part, Stop};
use crate::backup::source_file::{Stability, next_data, stability};
use crate::backup::streamed::{READ_AGAIN_BYTES_MAX, Verdict, verdict};
use crate::backup::unread::Unread;
use crate::chunk::WINDOW;
use crate::error::Result;
use crate::io::tree::SourceFile;

/// Divides a long file into parts.
#[derive(Debug)]
pub(crate) struct LongReader {
    file: Arc<LongFile>,
    /// Offset of the next part.
    offset: u64,
    /// End of the data that is known to follow.
    data_end: u64,
    /// Bytes of data before the next part, as many as warm up the hash.
    halo: usize,
    /// Whether there was no data yet.
    is_first: bool,
}

impl LongReader {
    /// Starts at the beginning of a file that was begun. `open` is held as long as the file is open.
    pub(crate) fn new(file: Box<dyn SourceFile>, unread: Unread, open: Arc<()>) -> Self {
        let end = file.opened().size;
        let file = Arc::new(LongFile { file, unread, end, _open: open, ends: Mutex::default() });
        Self { file, offset: 0, data_end: 0, halo: 0, is_first: true }
    }

    /// Returns true if the file is read again where it changes meanwhile.
    pub(crate) fn may_be_read_again(&self) -> bool {
        self.file.end <= READ_AGAIN_BYTES_MAX
    }

    /// Reserves the rest of the block for the next part, or ends the file. Returns what is left to do.
    pub(crate) fn plan(mut self, block: &mut Block<Input>) -> Option<Self> {
        if self.offset == self.data_end
            && let Err(error) = self.find_data(block)
        {
            block.events.push(Event::Stop(Stop::Failed(error)));
            self.offset = self.file.end;
        }
        if self.offset == self.file.end {
            block.events.push(Event::LongEnd(self.file));
            return None;
        }
        let left = usize::try_from(self.data_end - self.offset).unwrap_or(usize::MAX);
        let (halo, len) = (self.halo, left.min(block.bytes.free() - self.halo));
        block.bytes.reserve(halo + len);
        let (file, offset, is_first) = (Arc::clone(&self.file), self.offset, self.is_first);
        block.events.push(Event::Bytes(Input::Part(Part { file, offset, len, halo, is_first })));
        self.offset += len as u64;
        self.halo = (halo + len).min(WINDOW - 1);
        self.is_first = false;
        Some(self)
    }

    /// Finds the next data and reports the hole before it.
    fn find_data(&mut self, block: &mut Block<Input>) -> Result<()> {
        let data = next_data(&*self.file.file, self.offset, self.file.end)?;
        if self.offset < data.start {
            block.push(Step::Hole(data.start - self.offset));
            self.halo = 0;
            self.offset = data.start;
        }
        self.data_end = data.end;
        Ok(())
    }
}

/// Reads a part into the bytes of its block that were reserved for it.
pub(crate) fn read_part(part: Part, block: &mut Block<ByteRange>) {
    let Part { file, offset, len, halo, is_first } = part;
    let wanted = halo + len;
    block.bytes.release(wanted);
    let start = block.bytes.len() + halo;
    let read = match block.bytes.fill(wanted, |next| file.file.read_at(offset - halo as u64, next)) {
        Ok(read) => read,
        Err(error) => return block.events.push(Event::Stop(Stop::Failed(error))),
    };
    if halo < read {
        let number = |bytes: usize| u32::try_from(bytes).expect("a block is far below 4 GiB");
        block.events.push(Event::Bytes(ByteRange { start, len: number(read - halo), halo: number(halo) }));
        file.keep_ends(offset, is_first, block.bytes.get(start..).unwrap_or_default());
    }
    if read < wanted {
        block.events.push(Event::Stop(Stop::Short));
    }
}

/// Compares a file, all of whose parts were read, with itself before.
fn stability_of(long: &LongFile) -> Result<Stability> {
    let ends = long.ends.lock().unwrap_or_else(PoisonError::into_inner);
    let both = [&ends.head, &ends.tail].into_iter().flatten();
    stability(&*long.file, both.map(|(offset, bytes)| (*offset, bytes.as_slice())))
}

/// Ends long files in their order.
#[derive(Debug, Default)]
pub(crate) struct LongEnds {
    /// The first stop of the open file.
    stop: Option<Stop>,
}

impl LongEnds {
    /// Returns true if the rest of the open file is left out.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// Leaves out the rest of the open file.
    pub(crate) fn stop(&mut self, stop: Stop) {
        self.stop.get_or_insert(stop);
    }

    /// Decides about the open file after its parts.
    pub(super) fn end(&mut self, file: &LongFile) -> Verdict {
        let stability = match self.stop.take() {
            Some(Stop::Failed(error)) => Err(error),
            Some(Stop::Short) => Ok(Stability::Changed("it became shorter")),
            None => stability_of(file),
        };
        verdict(stability, file.end, &file.unread, 1)
    }
}
