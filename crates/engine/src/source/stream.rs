//! A stream as a tree: one regular file that can be read once, from its beginning to its end.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::io::tree::AccessTime;
use crate::io::tree::{ClosedEntry, EntryKind, Links, Metadata, SourceDirectory, SourceFile, SourceTree, Xattr};
use crate::types::Timestamp;

/// A tree with one regular file, whose bytes come from a reader. How many they will be is not known: its size is 0 and
/// its data has no end, so that it is read until the reader has no more.
#[derive(Clone)]
pub struct StreamTree {
    path: PathBuf,
    time: Timestamp,
    /// Taken by the first opening.
    reader: Arc<Mutex<Option<Box<dyn Read + Send>>>>,
}

impl std::fmt::Debug for StreamTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamTree").field("path", &self.path).finish_non_exhaustive()
    }
}

impl StreamTree {
    /// Makes a tree of the file at the absolute `path`; it and the directories that lead to it are of the time `now`.
    pub fn new(path: PathBuf, reader: Box<dyn Read + Send>, now: Timestamp) -> Self {
        Self { path, time: now, reader: Arc::new(Mutex::new(Some(reader))) }
    }

    fn not_found(operation: &'static str, path: &Path) -> Error {
        Error::io(operation, path, io::ErrorKind::NotFound.into())
    }
}

fn metadata_of(kind: EntryKind, mode: u32, time: Timestamp) -> Metadata {
    Metadata {
        kind,
        mode,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        mtime: time,
        ctime: time,
        atime: AccessTime(time),
        size: 0,
        device: 0,
        inode: 0,
        links: 1,
        rdev: 0,
    }
}

impl SourceTree for StreamTree {
    fn open_dir(&self, path: &Path) -> Result<Arc<dyn SourceDirectory>> {
        if path != self.path && self.path.starts_with(path) {
            Ok(Arc::new(StreamDirectory { tree: self.clone(), path: path.to_path_buf() }))
        } else {
            Err(Self::not_found("open", path))
        }
    }

    fn canonical(&self, path: &Path) -> Result<PathBuf> {
        self.metadata(path).map(|_| path.to_path_buf())
    }
}

/// A directory that leads to the file.
#[derive(Debug)]
struct StreamDirectory {
    tree: StreamTree,
    path: PathBuf,
}

impl SourceDirectory for StreamDirectory {
    fn metadata(&self) -> Result<Metadata> {
        Ok(metadata_of(EntryKind::Directory, 0o755, self.tree.time))
    }

    fn xattrs(&self) -> Result<Vec<Xattr>> {
        Ok(Vec::new())
    }

    fn list(&self) -> Result<Vec<OsString>> {
        let below = self.tree.path.strip_prefix(&self.path).ok().and_then(|below| below.iter().next());
        Ok(below.map(OsStr::to_os_string).into_iter().collect())
    }

    fn open_dir(&self, name: &OsStr, _: Links) -> Result<Arc<dyn SourceDirectory>> {
        self.tree.open_dir(&self.path.join(name))
    }

    fn open(&self, name: &OsStr) -> Result<Box<dyn SourceFile>> {
        let path = self.path.join(name);
        if path != self.tree.path {
            return Err(StreamTree::not_found("open", &path));
        }
        let reader = self.tree.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        let reader = reader.ok_or_else(|| Error::invalid(format!("{}: a stream is read once", path.display())))?;
        Ok(open(path, &metadata_of(EntryKind::File, 0o644, self.tree.time), reader))
    }

    fn metadata_of(&self, name: &OsStr) -> Result<Metadata> {
        let path = self.path.join(name);
        if path == self.tree.path {
            Ok(metadata_of(EntryKind::File, 0o644, self.tree.time))
        } else {
            self.tree.open_dir(&path)?.metadata()
        }
    }

    fn xattrs_of(&self, _: &OsStr) -> Result<Vec<Xattr>> {
        Ok(Vec::new())
    }

    fn read_entry(&self, name: &OsStr) -> Result<ClosedEntry> {
        Ok(ClosedEntry { metadata: self.metadata_of(name)?, link_target: None, xattrs: Ok(Vec::new()) })
    }
}

/// Makes a file of a stream, with the metadata of what it comes from. It shows no length, and is read until it ends.
pub(super) fn open(path: PathBuf, metadata: &Metadata, reader: Box<dyn Read + Send>) -> Box<dyn SourceFile> {
    let opened = Metadata { size: 0, links: 1, ..*metadata };
    Box::new(StreamFile { path, opened, stream: Mutex::new(Stream { reader, position: 0 }) })
}

struct Stream {
    reader: Box<dyn Read + Send>,
    position: u64,
}

struct StreamFile {
    path: PathBuf,
    opened: Metadata,
    stream: Mutex<Stream>,
}

impl std::fmt::Debug for StreamFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SourceFile for StreamFile {
    fn opened(&self) -> &Metadata {
        &self.opened
    }

    fn metadata(&self) -> Result<Metadata> {
        Ok(self.opened.clone())
    }

    fn xattrs(&self) -> Result<Vec<Xattr>> {
        Ok(Vec::new())
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        Ok(Some(offset..u64::MAX))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.position != offset {
            return Err(Error::invalid(format!("{}: a stream is read in order", self.path.display())));
        }
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match stream.reader.read(rest) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", &self.path, error)),
            }
        }
        stream.position += filled as u64;
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::walk::{Event, Walk};

    /// Gives a byte at a time, as a slow pipe does.
    struct Slow(io::Cursor<Vec<u8>>);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = buffer.len().min(1);
            self.0.read(&mut buffer[..len])
        }
    }

    fn stream(path: &str, bytes: &[u8]) -> StreamTree {
        let reader = Slow(io::Cursor::new(bytes.to_vec()));
        StreamTree::new(path.into(), Box::new(reader), Timestamp { seconds: 7, nanoseconds: 0 })
    }

    #[test]
    fn a_stream_is_read_once_in_order_to_its_end() {
        let tree = stream("/dump", b"0123456789");
        let file = tree.open(Path::new("/dump")).unwrap();
        let mut buffer = [0; 4];
        assert_eq!((file.read_at(0, &mut buffer).unwrap(), &buffer), (4, b"0123"));
        assert!(file.read_at(0, &mut buffer).is_err());
        assert_eq!((file.read_at(4, &mut buffer).unwrap(), &buffer), (4, b"4567"));
        assert_eq!((file.read_at(8, &mut buffer).unwrap(), &buffer[..2]), (2, &b"89"[..]));
        assert!(tree.open(Path::new("/dump")).is_err());
        assert!(tree.open(Path::new("/other")).is_err());
    }

    #[test]
    fn walking_a_stream_finds_the_directories_that_lead_to_it() {
        let tree = Arc::new(stream("/db/all.sql", b""));
        let walk = Walk::new(tree, &["/db/all.sql".into()], Arc::default()).unwrap();
        let found: Vec<String> = walk
            .map(|event| match event {
                Event::EnterDirectory(item) => format!("+{}", item.name.display()),
                Event::Entry(item) => item.name.display().to_string(),
                Event::LeaveDirectory => "-".to_owned(),
                Event::Error { path, error } => format!("{}: {error}", path.display()),
            })
            .collect();
        assert_eq!(found, ["+db", "all.sql", "-"]);
    }
}
