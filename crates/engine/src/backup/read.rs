//! Reading the source: a walk and its files, as blocks.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use onefold_accel::device;

use crate::backup::block::{
    BLOCK_BYTES, BLOCK_EVENTS_MAX, Block, Buffers, ByteRange, DirectoryStart, Event, Input, ParentDirectory, Step,
    entry_of,
};
use crate::backup::entry::AccessTimes;
use crate::backup::entry::EntryRule;
use crate::backup::long_file::{LongReader, read_part};
use crate::backup::parent::Parent;
use crate::backup::source_file::{Advance, OpenFile};
use crate::backup::streamed::{Streamed, Verdict, verdict};
use crate::backup::unread::{Change, Unread};
use crate::chunk::WINDOW;
use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, SourceFile};
use crate::pipeline::Driver;
use crate::source::walk::{Contents, Event as WalkEvent, Item, Walk};
use crate::store::cursor::HintedEntry;
use crate::tree::{Content, Entry};
use crate::types::Fingerprint;

/// Several readers open and read files up to this length, each a whole one. They read longer files in parts. A block ends early if the next file does not fit, and
/// behind a long file: with files that fit a block it is half full at least.
const SMALL_BYTES_MAX: u64 = BLOCK_BYTES as u64 / 2;
/// A file that was small when it was found, and is longer when it is opened, is read among the small ones up to this length.
const GROWN_BYTES_MAX: u64 = 1 << 20;
/// What becomes of a file that is read: its beginning, its bytes, its end.
const EVENTS_OF_SMALL_FILE: usize = 3;

/// Long files that are open at the same time, at most: each is open until its last part was cut. One more is read by one reader, which opens no other meanwhile.
const LONG_FILES_MAX: usize = 64;

/// Opens and reads files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileReader {
    /// Makes their entries.
    pub(super) entries: EntryRule,
}

impl FileReader {
    /// Entries take at most so many bytes.
    pub(crate) fn new(entry_bytes_max: u32, access_times: AccessTimes) -> Self {
        Self { entries: EntryRule::new(entry_bytes_max, access_times) }
    }

    /// Reads the unread files of a block, each as it is when it is opened.
    pub(crate) fn read_small(self, Block { bytes, events }: Block<Input>) -> Block<ByteRange> {
        let mut block = Block { bytes, events: Vec::with_capacity(events.len() * EVENTS_OF_SMALL_FILE) };
        for event in events {
            match event {
                Event::Step(step) => block.push(step),
                Event::Stop(stop) => block.events.push(Event::Stop(stop)),
                Event::LongEnd(file) => block.events.push(Event::LongEnd(file)),
                Event::Bytes(Input::Read(range)) => block.events.push(Event::Bytes(range)),
                Event::Bytes(Input::Part(part)) => read_part(part, &mut block),
                Event::Bytes(Input::Unread(unread)) => {
                    block.bytes.release(unread.len);
                    match open(&unread) {
                        Ok(file) => self.read_whole(file, &unread, &mut block),
                        Err(error) => block.push(Step::Failed(unread.path, error)),
                    }
                }
            }
        }
        block
    }

    /// Reads a small file, from its beginning if it changes meanwhile.
    fn read_whole(self, mut file: Box<dyn SourceFile>, unread: &Unread, block: &mut Block<ByteRange>) {
        let (bytes, events) = (block.bytes.len(), block.events.len());
        for reads in 1.. {
            let size = file.opened().size;
            if GROWN_BYTES_MAX < size && (unread.len as u64) < size {
                block.push(Step::Failed(unread.path.clone(), Error::SourceGrew { found: unread.len, size }));
                return;
            }
            block.bytes.make_free(usize::try_from(size).expect("at most what is checked above"));
            let mut open = OpenFile::new(self.entries.begin(file, unread, block));
            let stability = loop {
                match open.advance(block) {
                    Ok(Advance::More) => {}
                    Ok(Advance::End) => break open.stability(),
                    Err(error) => break Err(error),
                }
            };
            match verdict(stability, open.offset(), unread, reads) {
                Verdict::Again(again) => {
                    block.bytes.truncate(bytes);
                    block.events.truncate(events);
                    file = again;
                }
                Verdict::End(end) => return block.events.extend(end.steps(&unread.path).map(Event::Step)),
            }
        }
    }
}

/// Opens a file.
fn open(unread: &Unread) -> Result<Box<dyn SourceFile>> {
    unread.location.open().map_err(|error| match unread.location.metadata() {
        Ok(now) if !matches!(now.kind, EntryKind::File | EntryKind::BlockDevice | EntryKind::Fifo) => {
            Error::SourceReplaced
        }
        _ => error,
    })
}

/// Turns a source into blocks.
#[derive(Debug)]
pub(crate) struct SourceReader {
    files: FileReader,
    walk: Walk,
    parent: Option<Parent>,
    open: Option<Open>,
    /// Held by each long file that is open.
    long_files: Arc<()>,
    /// A small file that did not fit into the last block.
    waiting: Option<Unread>,
    buffers: Buffers,
    is_finished: bool,
}

impl SourceReader {
    /// Reads what `walk` finds. `parent` spares what has not changed.
    pub(crate) fn new(files: FileReader, walk: Walk, parent: Option<Parent>) -> Self {
        // Files that have not changed are not opened.
        let walk = if parent.is_some() { walk.with_file_xattrs() } else { walk };
        Self {
            files,
            walk,
            parent,
            open: None,
            long_files: Arc::new(()),
            waiting: None,
            buffers: Buffers::default(),
            is_finished: false,
        }
    }

    /// Looks at directories ahead on the driver's workers, within `shares` shares of memory.
    pub(crate) fn look_ahead(&mut self, driver: &Driver, shares: usize) {
        self.walk.look_ahead(driver, shares);
    }

    /// Returns the buffers for blocks that no device reads.
    pub(crate) fn heap_buffers(&self) -> Buffers {
        self.buffers.of_heap()
    }

    /// Reads into buffers of a device while some are free.
    pub(crate) fn read_for_device(&mut self, pool: device::Pool) {
        self.buffers = self.buffers.clone().with_device(pool);
    }

    /// Returns the next block, small files not read yet; `None` at the end.
    pub(crate) fn next_block(&mut self) -> Option<Block<Input>> {
        let mut block = Block { bytes: self.buffers.take(), events: Vec::new() };
        if let Some(unread) = self.waiting.take() {
            reserve(unread, &mut block);
        }
        while WINDOW < block.bytes.free() && block.events.len() < BLOCK_EVENTS_MAX / EVENTS_OF_SMALL_FILE {
            if self.open.is_some() {
                if let BlockIs::Complete = self.read_some(&mut block) {
                    break;
                }
            } else if self.is_finished || self.waiting.is_some() {
                break;
            } else {
                match self.walk.next() {
                    Some(event) => self.take(event, &mut block),
                    None => self.is_finished = true,
                }
            }
        }
        if block.events.is_empty() { None } else { Some(block) }
    }

    fn take(&mut self, event: WalkEvent, block: &mut Block<Input>) {
        match event {
            WalkEvent::Error { path, error } => block.push(Step::Failed(path, error)),
            WalkEvent::LeaveDirectory => {
                if let Some(parent) = &mut self.parent {
                    parent.leave();
                }
                block.push(Step::Leave);
            }
            WalkEvent::EnterDirectory(item) => self.enter(item, block),
            WalkEvent::Entry(item) => {
                if item.contents == Contents::None {
                    self.take_other(item, block);
                } else {
                    self.take_file(item, block);
                }
            }
        }
    }

    fn enter(&mut self, item: Item, block: &mut Block<Input>) {
        let found = self.parent.as_mut().and_then(|parent| parent.find(item.name.as_bytes()));
        if let Some(parent) = &mut self.parent {
            parent.enter(found.as_ref().map(|found| &found.entry));
        }
        let Item { path, name, metadata, xattrs, .. } = item;
        let content = Content::Directory { node: Fingerprint([0; 32]) };
        let mut entry = entry_of(name.into_vec(), &metadata, content);
        self.files.entries.attach(&mut entry, xattrs, &path, block);
        let parent = found.and_then(|found| match found.entry.content {
            Content::Directory { node } => {
                let same_metadata = Entry { content: entry.content.clone(), ..found.entry } == entry;
                Some(ParentDirectory { node, same_metadata })
            }
            Content::File { .. } | Content::Symlink { .. } | Content::Special { .. } => None,
        });
        block.push(Step::Enter(Box::new(DirectoryStart { path, entry, parent })));
    }

    fn take_other(&mut self, item: Item, block: &mut Block<Input>) {
        let Item { path, name, metadata, xattrs, link_target, .. } = item;
        let content = match link_target {
            Some(target) => Content::Symlink { target: target.into_os_string().into_vec() },
            None => Content::Special { rdev: metadata.rdev },
        };
        let mut entry = entry_of(name.into_vec(), &metadata, content);
        self.files.entries.attach(&mut entry, xattrs, &path, block);
        block.push(Step::Entry(path, Box::new(entry)));
    }

    fn take_file(&mut self, item: Item, block: &mut Block<Input>) {
        let found = self.parent.as_mut().and_then(|parent| parent.find(item.name.as_bytes()));
        let change = if found.is_some() { Change::Changed } else { Change::New };
        let hints = found.as_ref().and_then(|found| self.parent.as_mut()?.unchanged(&item.metadata, found));
        let item = match (found, hints) {
            (Some(HintedEntry { entry, .. }), Some(hints)) => self.reuse(item, HintedEntry { entry, hints }, block),
            _ => Some(item),
        };
        let Some(Item { path, name, location, metadata, .. }) = item else { return };
        let is_small = 0 < metadata.size && metadata.size <= SMALL_BYTES_MAX;
        let len = if is_small { usize::try_from(metadata.size).unwrap_or(usize::MAX) } else { 0 };
        let unread = Unread { path, name: name.into_vec(), location, change, len };
        if is_small && len <= block.bytes.free() {
            return reserve(unread, block);
        }
        if is_small {
            self.waiting = Some(unread);
            return;
        }
        match open(&unread) {
            Ok(file) => {
                let file = self.files.entries.begin(file, &unread, block);
                let has_parts = file.opened().size != 0 && Arc::strong_count(&self.long_files) <= LONG_FILES_MAX;
                self.open = Some(if has_parts {
                    Open::Long(LongReader::new(file, unread, Arc::clone(&self.long_files)))
                } else {
                    Open::Streamed(Streamed::new(file, unread))
                });
            }
            Err(error) => block.push(Step::Failed(unread.path, error)),
        }
    }

    /// Takes a file as the parent has it, with newer hints. Returns the item if it was replaced since it was looked at.
    fn reuse(&self, item: Item, old: HintedEntry, block: &mut Block<Input>) -> Option<Item> {
        let HintedEntry { entry: Entry { name, content, xattrs: expected, .. }, hints } = old;
        let read = || {
            // They change with the change time, so that these are mostly those of another file.
            let xattrs = item.location.xattrs()?;
            Ok(item.location.metadata().is_ok_and(|now| now == item.metadata).then_some(xattrs))
        };
        let is_same = item.file_xattrs.as_ref() == Some(&expected);
        let xattrs = match if is_same { Ok(Some(expected)) } else { read() } {
            Ok(Some(xattrs)) => xattrs,
            Ok(None) => return Some(item),
            Err(error) => {
                block.push(Step::Failed(item.path.clone(), error));
                Vec::new()
            }
        };
        // What does not show in the contents is taken from now.
        let mut entry = entry_of(name, &item.metadata, content);
        if let Content::File { inode, .. } = &mut entry.content {
            *inode = item.metadata.inode;
        }
        self.files.entries.attach(&mut entry, xattrs, &item.path, block);
        block.push(Step::Reused(item.path, Box::new(HintedEntry { entry, hints })));
        None
    }

    /// Reads into the rest of the block, up to the end of the open file, or leaves that to several readers.
    fn read_some(&mut self, block: &mut Block<Input>) -> BlockIs {
        let mut is = BlockIs::Open;
        self.open = match self.open.take() {
            None => None,
            Some(Open::Long(long)) => {
                let may_be_read_again = long.may_be_read_again();
                let rest = long.plan(block);
                if rest.is_none() && may_be_read_again {
                    is = BlockIs::Complete;
                }
                rest.map(Open::Long)
            }
            Some(Open::Streamed(streamed)) => streamed.advance(self.files.entries, block).map(Open::Streamed),
        };
        is
    }
}

/// Whether more may follow in a block.
enum BlockIs {
    /// More may follow.
    Open,
    /// Its last event is the end of a file that may be read again: the second reading comes before what follows.
    Complete,
}

/// Reserves the bytes of a small file, which one of several readers opens.
fn reserve(unread: Unread, block: &mut Block<Input>) {
    block.bytes.reserve(unread.len);
    block.events.push(Event::Bytes(Input::Unread(Box::new(unread))));
}

/// A file whose bytes follow.
#[derive(Debug)]
enum Open {
    /// It is read block by block, in order.
    Streamed(Streamed),
    /// Several readers read its parts.
    Long(LongReader),
}
