//! What flows from the source to the sequencer: blocks of bytes with the events around them, in order.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use onefold_accel::device;

use crate::backup::part::{LongFile, Part, Stop};
use crate::backup::unread::{Change, Unread};
use crate::error::Error;
use crate::io::tree::{EntryKind, Metadata};
use crate::pipeline::BufferPool;
use crate::store::cursor::HintedEntry;
use crate::tree::EntryNotes;
use crate::tree::{Content, Entry, Link};
use crate::types::Fingerprint;

/// Bytes of a block: enough that handing one over costs nothing, little enough that several fit a cache.
pub(crate) const BLOCK_BYTES: usize = 512 << 10;
/// Most events in a block, so that a tree of empty files comes in blocks too.
pub(crate) const BLOCK_EVENTS_MAX: usize = 1024;

/// Buffers of dropped blocks, which later blocks use without another allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    heap: Arc<BufferPool<Vec<u8>>>,
    /// Buffers that a device reads, as long as some are free.
    device: Option<device::Pool>,
}

impl Buffers {
    /// Returns the same buffers, which are those of a device while it has some.
    pub(crate) fn with_device(self, pool: device::Pool) -> Self {
        Self { device: Some(pool), ..self }
    }

    /// Returns the same buffers without those of a device.
    pub(crate) fn of_heap(&self) -> Self {
        Self { heap: Arc::clone(&self.heap), device: None }
    }

    /// Returns an empty buffer for one block.
    pub(crate) fn take(&self) -> BlockBytes {
        let memory = self.device.as_ref().and_then(device::Pool::take).map_or_else(
            || {
                let mut buffer = self.heap.take();
                buffer.resize(BLOCK_BYTES, 0);
                Memory::Heap(buffer)
            },
            Memory::Device,
        );
        BlockBytes { memory, filled: 0, reserved: 0, sent: None, heap: Arc::clone(&self.heap) }
    }
}

/// Memory of a block.
#[derive(Debug)]
enum Memory {
    /// Of length [`BLOCK_BYTES`], or longer where a file has grown; what follows the filled part is left over from an earlier block.
    Heap(Vec<u8>),
    /// The same, and a device can read it once it is filled.
    Device(device::Buffer),
    /// Filled.
    Frozen(Arc<device::Frozen>),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(buffer) => buffer,
            Self::Device(buffer) => buffer,
            Self::Frozen(frozen) => frozen,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(buffer) => buffer,
            Self::Device(buffer) => buffer,
            Self::Frozen(_) => &mut [],
        }
    }
}

/// A block's position in a batch on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    /// The batch.
    pub(crate) batch: device::Batch,
    /// Number of the block in it.
    pub(crate) number: usize,
    /// Blocks of the batch.
    pub(crate) count: usize,
}

/// The bytes of a block. Dropping them returns the buffer to its [`Buffers`].
#[derive(Debug)]
pub(crate) struct BlockBytes {
    memory: Memory,
    filled: usize,
    /// Kept free for files that are read later.
    reserved: usize,
    /// The batch of a device that has these bytes, too.
    pub(crate) sent: Option<Sent>,
    heap: Arc<BufferPool<Vec<u8>>>,
}

impl BlockBytes {
    /// Ends the filling. Returns the bytes for a device if it can read them.
    pub(crate) fn freeze(&mut self) -> Option<Arc<device::Frozen>> {
        if let Memory::Device(_) = self.memory {
            let empty = Memory::Heap(Vec::new());
            if let Memory::Device(buffer) = std::mem::replace(&mut self.memory, empty) {
                self.memory = Memory::Frozen(buffer.freeze(self.filled));
            }
        }
        match &self.memory {
            Memory::Frozen(frozen) => Some(Arc::clone(frozen)),
            Memory::Heap(_) | Memory::Device(_) => None,
        }
    }

    /// Returns the free bytes that are not reserved.
    pub(crate) fn free(&self) -> usize {
        self.memory.bytes().len() - self.filled - self.reserved
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

    /// Grows the buffer until `len` bytes are free. Only a file that has grown makes a block grow. A device cannot read it then.
    pub(crate) fn make_free(&mut self, len: usize) {
        let lacking = len.saturating_sub(self.free());
        if lacking == 0 {
            return;
        }
        let all = self.memory.bytes().len() + lacking;
        if let Memory::Heap(buffer) = &mut self.memory {
            buffer.resize(all, 0);
        } else {
            let mut buffer = self.heap.take();
            buffer.resize(all, 0);
            buffer.get_mut(..self.filled).expect("the new buffer is longer").copy_from_slice(self);
            self.memory = Memory::Heap(buffer);
        }
    }

    /// Drops all but the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.filled = self.filled.min(len);
    }

    /// Appends bytes, which must fit.
    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        let end = self.filled + bytes.len();
        self.memory.bytes_mut().get_mut(self.filled..end).expect("no more than fit").copy_from_slice(bytes);
        self.filled = end;
    }

    /// Lets `fill` write into the next `len` bytes and appends as many as it reports.
    pub(crate) fn fill<E>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<usize, E> {
        let next = self.memory.bytes_mut().get_mut(self.filled..self.filled + len).expect("no more than fit");
        let count = fill(next)?;
        assert!(count <= len, "a read fills no more than its buffer");
        self.filled += count;
        Ok(count)
    }
}

impl Deref for BlockBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.bytes().get(..self.filled).expect("the filled part lies in the buffer")
    }
}

impl Drop for BlockBytes {
    fn drop(&mut self) {
        if let Memory::Heap(buffer) = &mut self.memory {
            buffer.truncate(BLOCK_BYTES);
            buffer.shrink_to(BLOCK_BYTES);
            self.heap.put(std::mem::take(buffer));
        }
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
    /// Reading of the open file, a long one, has stopped before its end.
    Stop(Stop),
    /// All parts of the open file, a long one, came before.
    LongEnd(Arc<LongFile>),
}

impl<B> Event<B> {
    /// Replaces what is known of bytes.
    pub(crate) fn map<C>(self, act: &mut impl FnMut(B) -> C) -> Event<C> {
        match self {
            Self::Step(step) => Event::Step(step),
            Self::Bytes(bytes) => Event::Bytes(act(bytes)),
            Self::Stop(stop) => Event::Stop(stop),
            Self::LongEnd(file) => Event::LongEnd(file),
        }
    }
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
    /// A part of a long file, which one of several readers reads.
    Part(Part),
}

impl From<ByteRange> for Input {
    fn from(range: ByteRange) -> Self {
        Self::Read(range)
    }
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
        notes: EntryNotes { atime: Some(metadata.atime.0), is_incomplete: false },
    }
}
