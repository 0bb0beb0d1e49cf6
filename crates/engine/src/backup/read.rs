//! Reading the source: a walk and the files it comes across, as blocks.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backup::block::{
    BLOCK_PIECES_MAX, Block, Buffers, Change, DirectoryStart, FileStart, ParentDirectory, Piece, Unread, entry_of,
};
use crate::backup::parent::Parent;
use crate::chunk::WINDOW;
use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Metadata, SourceFile, SourceTree, Xattr};
use crate::recipe::Recipe;
use crate::source::walk::{Event, Item, Walk};
use crate::store::cursor::HintedEntry;
use crate::tree::{Content, Entry};
use crate::types::Fingerprint;

/// A file that says it is empty is still read, up to this length: files of /proc and /sys say so.
const UNSIZED_BYTES_MAX: u64 = 64 << 20;
/// Files up to this length are left to several readers: what they take is opening and closing, not reading.
const SMALL_BYTES_MAX: u64 = 128 << 10;
/// What becomes of a file that is read: its beginning, its bytes, its end.
const PIECES_OF_SMALL_FILE: usize = 3;

/// Opens and reads files.
#[derive(Clone, Debug)]
pub struct FileReader {
    source: Arc<dyn SourceTree>,
    entry_bytes_max: usize,
}

impl FileReader {
    /// Reads files of this source. Entries take at most so many bytes.
    pub fn new(source: Arc<dyn SourceTree>, entry_bytes_max: u32) -> Self {
        Self { source, entry_bytes_max: entry_bytes_max as usize }
    }

    /// Reads the files of a block that are not read yet, each up to the length that it was found with.
    pub fn read_small(&self, block: &mut Block) {
        if !block.pieces.iter().any(|piece| matches!(piece, Piece::Unread(_))) {
            return;
        }
        let room = block.pieces.len() * PIECES_OF_SMALL_FILE;
        for piece in std::mem::replace(&mut block.pieces, Vec::with_capacity(room)) {
            let Piece::Unread(unread) = piece else {
                block.pieces.push(piece);
                continue;
            };
            let len = unread.len;
            block.bytes.release(len);
            let Some(mut open) = self.open(*unread, block) else { continue };
            open.end = open.end.min(len as u64);
            while 0 < open.end && open.read_some(block) {}
            if open.end == 0 {
                block.pieces.push(Piece::FileEnd);
            }
        }
    }

    /// Opens a file and tells that it begins, or that it cannot be opened.
    fn open(&self, unread: Unread, block: &mut Block) -> Option<OpenFile> {
        let Unread { path, name, xattrs, change, .. } = unread;
        let opened = self.source.open(&path).and_then(|file| Ok((file.metadata()?, file)));
        let (metadata, file) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                block.pieces.push(Piece::Failed(path, error));
                return None;
            }
        };
        let end = metadata.size;
        let content = Content::File { ctime: metadata.ctime, inode: metadata.inode, recipe: Recipe::default() };
        let mut entry = entry_of(name, &Metadata { kind: EntryKind::File, ..metadata }, content);
        self.attach(&mut entry, xattrs, &path, block);
        block.pieces.push(Piece::File(Box::new(FileStart { path, entry, change })));
        Some(OpenFile { file, offset: 0, data_end: 0, end, halo: Vec::new() })
    }

    /// Gives an entry its attributes, or none if they are more than an entry can hold, which is told.
    fn attach(&self, entry: &mut Entry, xattrs: Vec<Xattr>, path: &Path, block: &mut Block) {
        let bytes: usize = xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len() + 8).sum();
        // Half for the attributes leaves the other half for name, link target and references.
        if self.entry_bytes_max / 2 < bytes {
            let reason =
                format!("its extended attributes, {bytes} bytes, are more than can be stored and are left out");
            block.pieces.push(Piece::Failed(path.to_path_buf(), Error::invalid(reason)));
        } else {
            entry.xattrs = xattrs;
        }
    }
}

/// Turns a source into blocks.
#[derive(Debug)]
pub struct SourceReader {
    files: FileReader,
    walk: Walk,
    parent: Option<Parent>,
    roots: Vec<PathBuf>,
    open: Option<OpenFile>,
    buffers: Buffers,
    is_finished: bool,
}

impl SourceReader {
    /// Reads what `walk` finds. `roots` are the paths that the user named: a block device among them is read like a
    /// file. `parent` spares what has not changed.
    pub fn new(files: FileReader, walk: Walk, parent: Option<Parent>, roots: Vec<PathBuf>) -> Self {
        Self { files, walk, parent, roots, open: None, buffers: Buffers::default(), is_finished: false }
    }

    /// Returns the next block, small files not read yet; `None` at the end.
    pub fn next_block(&mut self) -> Option<Block> {
        let mut block = Block { bytes: self.buffers.take(), pieces: Vec::new() };
        while WINDOW < block.bytes.free() && block.pieces.len() < BLOCK_PIECES_MAX / PIECES_OF_SMALL_FILE {
            if self.open.is_some() {
                self.read_some(&mut block);
            } else if self.is_finished {
                break;
            } else {
                match self.walk.next() {
                    Some(event) => self.take(event, &mut block),
                    None => self.is_finished = true,
                }
            }
        }
        if block.pieces.is_empty() { None } else { Some(block) }
    }

    fn take(&mut self, event: Event, block: &mut Block) {
        match event {
            Event::Error { path, error } => block.pieces.push(Piece::Failed(path, error)),
            Event::LeaveDirectory => {
                if let Some(parent) = &mut self.parent {
                    parent.leave();
                }
                block.pieces.push(Piece::Leave);
            }
            Event::EnterDirectory(item) => self.enter(item, block),
            Event::Entry(item) => {
                let is_stream = match item.metadata.kind {
                    EntryKind::File => true,
                    EntryKind::BlockDevice => self.roots.contains(&item.path),
                    _ => false,
                };
                if is_stream {
                    self.take_file(item, block);
                } else {
                    self.take_other(item, block);
                }
            }
        }
    }

    fn enter(&mut self, item: Item, block: &mut Block) {
        let found = self.parent.as_mut().and_then(|parent| parent.find(item.name.as_bytes()));
        if let Some(parent) = &mut self.parent {
            parent.enter(found.as_ref().map(|found| &found.entry));
        }
        let Item { path, name, metadata, xattrs, .. } = item;
        let content = Content::Directory { node: Fingerprint([0; 32]) };
        let mut entry = entry_of(name.into_vec(), &metadata, content);
        self.files.attach(&mut entry, xattrs, &path, block);
        let parent = found.and_then(|found| match found.entry.content {
            Content::Directory { node } => {
                let same_metadata = Entry { content: entry.content.clone(), ..found.entry } == entry;
                Some(ParentDirectory { node, same_metadata })
            }
            Content::File { .. } | Content::Symlink { .. } | Content::Special { .. } => None,
        });
        block.pieces.push(Piece::Enter(Box::new(DirectoryStart { path, entry, parent })));
    }

    fn take_other(&mut self, item: Item, block: &mut Block) {
        let Item { path, name, metadata, xattrs, link_target } = item;
        let content = match link_target {
            Some(target) => Content::Symlink { target: target.into_os_string().into_vec() },
            None => Content::Special { rdev: metadata.rdev },
        };
        let mut entry = entry_of(name.into_vec(), &metadata, content);
        self.files.attach(&mut entry, xattrs, &path, block);
        block.pieces.push(Piece::Entry(path, Box::new(entry)));
    }

    fn take_file(&mut self, item: Item, block: &mut Block) {
        let Item { path, name, metadata, xattrs, .. } = item;
        let name = name.into_vec();
        let found = self.parent.as_mut().and_then(|parent| parent.find(&name));
        if let (Some(parent), Some(found)) = (&mut self.parent, &found)
            && parent.is_unchanged(&metadata, found)
        {
            let HintedEntry { entry: old, hints } = found.clone();
            // What does not show in the contents is taken from now.
            let mut entry = entry_of(name, &metadata, old.content);
            if let Content::File { inode, .. } = &mut entry.content {
                *inode = metadata.inode;
            }
            self.files.attach(&mut entry, xattrs, &path, block);
            block.pieces.push(Piece::Reused(path, Box::new(HintedEntry { entry, hints })));
            return;
        }
        let change = if found.is_some() { Change::Changed } else { Change::New };
        let is_small = 0 < metadata.size && metadata.size <= SMALL_BYTES_MAX.min(block.bytes.free() as u64);
        let len = if is_small { usize::try_from(metadata.size).unwrap_or(usize::MAX) } else { 0 };
        let unread = Unread { path, name, xattrs, change, len };
        if is_small {
            block.bytes.reserve(len);
            block.pieces.push(Piece::Unread(Box::new(unread)));
        } else {
            self.open = self.files.open(unread, block);
        }
    }

    /// Reads into the rest of the block, up to the end of the open file.
    fn read_some(&mut self, block: &mut Block) {
        self.open = self.open.take().and_then(|mut open| open.read_some(block).then_some(open));
    }
}

#[derive(Debug)]
struct OpenFile {
    file: Box<dyn SourceFile>,
    /// Where the next byte is read.
    offset: u64,
    /// Where the data ends that is known to follow.
    data_end: u64,
    /// Where the file ended when it was opened.
    end: u64,
    /// The last bytes read, to warm up the hash in the next block.
    halo: Vec<u8>,
}

enum Advance {
    More,
    End,
}

impl OpenFile {
    /// Reads into the rest of the block. False: the file has ended, which was told.
    fn read_some(&mut self, block: &mut Block) -> bool {
        let end = match self.advance(block) {
            Ok(Advance::More) => return true,
            Ok(Advance::End) => Piece::FileEnd,
            Err(error) => Piece::FileFailed(error),
        };
        block.pieces.push(end);
        false
    }

    fn advance(&mut self, block: &mut Block) -> Result<Advance> {
        if self.offset == self.data_end
            && let Advance::End = self.find_data(block)?
        {
            return Ok(Advance::End);
        }
        let room = block.bytes.free().saturating_sub(self.halo.len());
        // A small file whose hole is filled while it is read needs more halos than room was reserved for: it is kept as
        // far as it went. Blocks of other files end before this.
        if room == 0 {
            return Ok(Advance::End);
        }
        let wanted = usize::try_from(self.data_end - self.offset).unwrap_or(usize::MAX).min(room);
        let halo = u32::try_from(self.halo.len()).expect("a halo is shorter than a window");
        block.bytes.extend_from_slice(&self.halo);
        let start = block.bytes.len();
        let read = block.bytes.fill(wanted, |next| self.file.read_at(self.offset, next))?;
        self.offset += read as u64;
        if read > 0 {
            let len = u32::try_from(read).expect("a block is far below 4 GiB");
            block.pieces.push(Piece::Bytes { start, len, halo });
            let tail = block.bytes.len() - (read + self.halo.len()).min(WINDOW - 1);
            self.halo.clear();
            self.halo.extend_from_slice(block.bytes.get(tail..).unwrap_or_default());
        }
        // The file has become shorter since it was opened: what there is, is what is kept.
        if read < wanted { Ok(Advance::End) } else { Ok(Advance::More) }
    }

    /// Finds the next data, and tells of the hole before it.
    fn find_data(&mut self, block: &mut Block) -> Result<Advance> {
        if self.end == 0 {
            if 0 < self.offset {
                return Ok(Advance::End);
            }
            self.data_end = self.file.next_data(0)?.map_or(UNSIZED_BYTES_MAX, |range| range.end);
            return Ok(Advance::More);
        }
        // A file that grows while it is read is kept as long as it was.
        if self.end <= self.offset {
            return Ok(Advance::End);
        }
        let range = self.file.next_data(self.offset)?;
        let next = range.as_ref().map_or(self.end, |range| range.start.clamp(self.offset, self.end));
        if self.offset < next {
            block.pieces.push(Piece::Hole(next - self.offset));
            self.halo.clear();
            self.offset = next;
        }
        self.data_end = range.map_or(next, |range| range.end.clamp(next, self.end));
        if self.offset == self.end { Ok(Advance::End) } else { Ok(Advance::More) }
    }
}
