//! What flows from the source to the sequencer: blocks of bytes with the events around them, in order.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Error;
use crate::io::tree::{EntryKind, Metadata};
use crate::pipeline::BufferPool;
use crate::source::walk::Location;
use crate::store::cursor::HintedEntry;
use crate::tree::{Content, Entry, Link};
use crate::types::Fingerprint;

/// Bytes of a block: enough that handing one over costs nothing, little enough that several fit a cache.
pub(crate) const BLOCK_BYTES: usize = 512 << 10;
/// Most events in a block, so that a tree of empty files comes in blocks too.
pub(crate) const BLOCK_EVENTS_MAX: usize = 1024;

/// Buffers of dropped blocks, which later blocks use without another allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers(Arc<BufferPool<Vec<u8>>>);

impl Buffers {
    /// Returns an empty buffer for one block.
    pub(crate) fn take(&self) -> BlockBytes {
        let mut buffer = self.0.take();
        buffer.resize(BLOCK_BYTES, 0);
        BlockBytes { buffer, filled: 0, reserved: 0, home: self.clone() }
    }
}

/// The bytes of a block. Dropping them returns the buffer to its [`Buffers`].
#[derive(Debug)]
pub(crate) struct BlockBytes {
    /// Of length [`BLOCK_BYTES`], or longer where a file has grown; what follows the filled part is left over from an earlier block.
    buffer: Vec<u8>,
    filled: usize,
    /// Kept free for files that are read later.
    reserved: usize,
    home: Buffers,
}

impl BlockBytes {
    /// Returns the free bytes that are not reserved.
    pub(crate) fn free(&self) -> usize {
        self.buffer.len() - self.filled - self.reserved
    }

    /// Reserves `len` free bytes.
    pub(crate) fn reserve(&mut self, len: usize) {
        assert!(len <= self.free(), "no more than fit");
        self.reserved += len;
    }

    /// Releases reserved bytes.
    pub(crate) fn release(&mut self, len: usize) {
        self.reserved -= len;
    }

    /// Grows the buffer until `len` bytes are free. Only a file that has grown makes a block grow.
    pub(crate) fn make_free(&mut self, len: usize) {
        let lacking = len.saturating_sub(self.free());
        self.buffer.resize(self.buffer.len() + lacking, 0);
    }

    /// Drops all but the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.filled = self.filled.min(len);
    }

    /// Appends bytes, which must fit.
    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        let end = self.filled + bytes.len();
        self.buffer.get_mut(self.filled..end).expect("no more than fit").copy_from_slice(bytes);
        self.filled = end;
    }

    /// Lets `fill` write into the next `len` bytes and appends as many as it reports.
    pub(crate) fn fill<E>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<usize, E> {
        let next = self.buffer.get_mut(self.filled..self.filled + len).expect("no more than fit");
        let count = fill(next)?;
        assert!(count <= len, "a read fills no more than its buffer");
        self.filled += count;
        Ok(count)
    }
}

impl Deref for BlockBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.get(..self.filled).expect("the filled part lies in the buffer")
    }
}

impl Drop for BlockBytes {
    fn drop(&mut self) {
        self.buffer.truncate(BLOCK_BYTES);
        self.buffer.shrink_to(BLOCK_BYTES);
        self.home.0.put(std::mem::take(&mut self.buffer));
    }
}

/// A range of the source: bytes, and the events around them. `B` is what is known of bytes of the open file.
#[derive(Debug)]
pub(crate) struct Block<B> {
    /// Bytes of all streams in the block, one after the other, halos between.
    pub(crate) bytes: BlockBytes,
    /// The events in order.
    pub(crate) events: Vec<Event<B>>,
}

impl<B> Block<B> {
    /// Appends a step of the walk.
    pub(crate) fn push(&mut self, step: Step) {
        self.events.push(Event::Step(step));
    }
}

/// One event of a block.
#[derive(Debug)]
pub(crate) enum Event<B> {
    /// A step of the walk.
    Step(Step),
    /// Bytes of the open file.
    Bytes(B),
}

/// Bytes of the open file that were read into the block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteRange {
    /// First byte in the block.
    pub(crate) start: usize,
    /// Number of bytes.
    pub(crate) len: u32,
    /// Bytes of the stream before `start`, to warm up the hash.
    pub(crate) halo: u32,
}

/// Bytes as the walk leaves them.
#[derive(Debug)]
pub(crate) enum Input {
    /// They were read.
    Read(ByteRange),
    /// A small file, which one of several readers replaces by its steps and bytes.
    Unread(Box<Unread>),
}

impl From<ByteRange> for Input {
    fn from(range: ByteRange) -> Self {
        Self::Read(range)
    }
}

/// How an entry compares with the parent snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The parent does not have it.
    New,
    /// The parent has another one of that name.
    Changed,
}

/// A file whose bytes follow.
#[derive(Clone, Debug)]
pub(crate) struct FileStart {
    /// Where the source has it.
    pub(crate) path: PathBuf,
    /// The entry to be, with an empty recipe.
    pub(crate) entry: Entry,
    /// How it compares.
    pub(crate) change: Change,
}

/// A file that was found and not opened yet.
#[derive(Clone, Debug)]
pub(crate) struct Unread {
    /// Where the source has it.
    pub(crate) path: PathBuf,
    /// Its name in the tree.
    pub(crate) name: Vec<u8>,
    /// What opens it.
    pub(crate) location: Location,
    /// How it compares.
    pub(crate) change: Change,
    /// How many bytes of its block are reserved for it: its length when it was found; 0 if it is read block by block.
    pub(crate) len: usize,
}

/// A directory whose entries follow.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryStart {
    /// Where the source has it.
    pub(crate) path: PathBuf,
    /// The entry to be, its node not known yet.
    pub(crate) entry: Entry,
    /// What the parent has under its name.
    pub(crate) parent: Option<ParentDirectory>,
}

/// A directory of the parent snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParentDirectory {
    /// Root of its list.
    pub(crate) node: Fingerprint,
    /// Whether its metadata is the same.
    pub(crate) same_metadata: bool,
}

/// How the open file ends.
#[derive(Debug)]
pub(crate) enum FileEnd {
    /// It was read to its end.
    Whole,
    /// It changed while it was read. What was read of it is dropped, and it begins again.
    Changed,
    /// It cannot be read any further and is left out.
    Failed(Error),
}

/// One step of a walk.
#[derive(Debug)]
pub(crate) enum Step {
    /// A directory begins.
    Enter(Box<DirectoryStart>),
    /// The directory entered last ends.
    Leave,
    /// An entry without a stream.
    Entry(PathBuf, Box<Entry>),
    /// A file that has not changed since the parent, with the parent's references.
    Reused(PathBuf, Box<HintedEntry>),
    /// A file begins; its bytes and holes follow up to its end.
    File(Box<FileStart>),
    /// Zeros that need not be stored.
    Hole(u64),
    /// The open file ends.
    FileEnd(FileEnd),
    /// Something cannot be read and is left out.
    Failed(PathBuf, Error),
}

/// Returns an entry with what every kind has in common.
pub(crate) fn entry_of(name: Vec<u8>, metadata: &Metadata, content: Content) -> Entry {
    let shared = 1 < metadata.links && metadata.kind != EntryKind::Directory;
    let link = shared.then_some(Link { device: metadata.device, inode: metadata.inode, links: metadata.links });
    Entry {
        name,
        kind: metadata.kind,
        mode: metadata.mode,
        uid: metadata.uid,
        gid: metadata.gid,
        mtime: metadata.mtime,
        xattrs: Vec::new(),
        link,
        content,
    }
}
