//! Filling files: windows of references, each region of a window read once, whatever files it belongs to.
//!
//! Whoever has opened a region writes what files take from it: creates the file if it is not there yet, and sets its
//! metadata once its last chunk is in place. A small file is thus opened once and closed by the same worker.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::io::tree::{Metadata, TargetFile, TargetTree, Trust, Xattr};
use crate::monitor::Monitor;
use crate::restore::fetch::{Failures, Fetcher, Sink, Wanted};

/// References of the first window.
const WINDOW_CHUNKS_FIRST: usize = 1 << 12;
/// Files of a window.
const WINDOW_FILES: usize = 2048;
/// Files that are kept open between two of their regions. The others are opened again.
const OPEN_FILES_MAX: usize = 256;

/// A file to be restored.
#[derive(Debug)]
pub struct FilePlan {
    /// Where, relative to the target.
    pub path: PathBuf,
    /// What is set when its bytes are in place.
    pub metadata: Metadata,
    /// Extended attributes likewise.
    pub xattrs: Vec<Xattr>,
    /// The file, if it was created or opened already, at its full length. `None`: it is created when its first bytes
    /// come.
    pub file: Option<Box<dyn TargetFile>>,
}

/// A file being restored.
#[derive(Debug)]
struct PendingFile {
    path: PathBuf,
    metadata: Metadata,
    xattrs: Vec<Xattr>,
    handle: Mutex<Handle>,
    /// Chunks that are not in place, and one more until all chunks are known.
    left: AtomicUsize,
    /// Whether the length must be set since not every byte up to the end is written.
    is_sparse: AtomicBool,
    /// Whether it could not be created or opened, which has been told.
    is_broken: AtomicBool,
}

#[derive(Debug)]
struct Handle {
    file: Option<Arc<dyn TargetFile>>,
    is_created: bool,
}

/// Where one chunk of a file goes.
struct Target {
    file: Arc<PendingFile>,
    offset: u64,
    len: u32,
}

/// What writing files takes, whoever does it.
#[derive(Debug)]
struct Writing {
    target: Arc<dyn TargetTree>,
    trust: Trust,
    monitor: Arc<dyn Monitor>,
    /// Files that are kept open.
    open: AtomicUsize,
    /// What went wrong, to be told by the thread that restores.
    failed: Mutex<Vec<(PathBuf, Error)>>,
}

impl Writing {
    fn fail(&self, path: &Path, error: Error) {
        if let Ok(mut failed) = self.failed.lock() {
            failed.push((path.to_path_buf(), error));
        }
    }

    /// Returns the file, created or opened again if it is not open.
    fn open(&self, pending: &PendingFile) -> Result<Arc<dyn TargetFile>> {
        let mut handle = pending.handle.lock().map_err(|_| Error::invalid("a worker panicked"))?;
        if let Some(file) = &handle.file {
            return Ok(Arc::clone(file));
        }
        let file = if handle.is_created {
            self.target.open_file(&pending.path)?
        } else {
            self.target.create_file(&pending.path, 0)?
        };
        let file: Arc<dyn TargetFile> = Arc::from(file);
        handle.is_created = true;
        handle.file = Some(Arc::clone(&file));
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(file)
    }

    /// Lets go of a file that is not complete, unless few are kept open.
    fn set_aside(&self, pending: &PendingFile) {
        if OPEN_FILES_MAX < self.open.load(Ordering::Relaxed) {
            self.close(pending);
        }
    }

    fn close(&self, pending: &PendingFile) {
        let file = pending.handle.lock().ok().and_then(|mut handle| handle.file.take());
        if file.is_some() {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts chunks that are done with, or the end of the file's references; finishes the file after the last.
    fn settle(&self, pending: &PendingFile, count: usize) {
        if pending.left.fetch_sub(count, Ordering::AcqRel) == count {
            match self.finish(pending) {
                Ok(refused) => refused.iter().for_each(|reason| self.fail(&pending.path, Error::invalid(reason))),
                Err(error) => self.fail(&pending.path, error),
            }
            self.close(pending);
            self.monitor.advance(0, 1);
        } else {
            self.set_aside(pending);
        }
    }

    fn finish(&self, pending: &PendingFile) -> Result<Vec<String>> {
        if pending.is_broken.load(Ordering::Acquire) {
            return Ok(Vec::new());
        }
        let file = self.open(pending)?;
        if pending.is_sparse.load(Ordering::Acquire) {
            file.set_len(pending.metadata.size)?;
        }
        file.set_metadata(&pending.metadata, &pending.xattrs, self.trust)
    }

    /// Writes chunks of one file, those that follow each other in the file and in the region together.
    fn write(&self, file: &dyn TargetFile, plain: &[u8], chunks: &[(u64, Range<usize>)]) -> Result<()> {
        let mut chunks = chunks.iter().cloned().peekable();
        while let Some((offset, mut range)) = chunks.next() {
            let follows = |range: &Range<usize>, next: &(u64, Range<usize>)| {
                next.0 == offset + range.len() as u64 && next.1.start == range.end
            };
            while let Some((_, more)) = chunks.next_if(|next| follows(&range, next)) {
                range.end = more.end;
            }
            let bytes = plain.get(range).unwrap_or_default();
            file.write_at(offset, bytes)?;
            self.monitor.advance(bytes.len() as u64, 0);
        }
        Ok(())
    }
}

/// Where the chunks of one window go.
struct WindowSink {
    writing: Arc<Writing>,
    targets: Vec<Target>,
}

impl Sink for WindowSink {
    fn take(&self, plain: &[u8], chunks: &[(usize, Range<usize>)]) -> Failures {
        let file_of = |number: usize| self.targets.get(number).map(|target| Arc::as_ptr(&target.file));
        let mut failed = Vec::new();
        for of_file in chunks.chunk_by(|(before, _), (after, _)| file_of(*before) == file_of(*after)) {
            let Some(Target { file, .. }) = of_file.first().and_then(|(number, _)| self.targets.get(*number)) else {
                continue;
            };
            let placed: Vec<(u64, Range<usize>)> = of_file
                .iter()
                .filter_map(|(number, range)| Some((self.targets.get(*number)?.offset, range.clone())))
                .collect();
            let count = of_file.len();
            let opened = match self.writing.open(file) {
                Ok(opened) => opened,
                Err(error) => {
                    // Told once, however many chunks the file has.
                    if !file.is_broken.swap(true, Ordering::AcqRel) {
                        self.writing.fail(&file.path, error);
                    }
                    self.writing.settle(file, count);
                    continue;
                }
            };
            match self.writing.write(&*opened, plain, &placed) {
                Ok(()) => self.writing.settle(file, count),
                Err(error) => {
                    let text = error.to_string();
                    let (first, rest) = of_file.split_at(1);
                    failed.extend(first.iter().map(|(number, _)| *number).zip([error]));
                    failed.extend(rest.iter().map(|(number, _)| (*number, Error::invalid(&text))));
                }
            }
        }
        failed
    }

    fn lose(&self, number: usize, error: Error) {
        let Some(Target { file, offset, len }) = self.targets.get(number) else { return };
        file.is_sparse.store(true, Ordering::Release);
        let reason = format!("the {len} bytes at {offset} are left empty: {error}");
        self.writing.fail(&file.path, if is_fatal(&error) { error } else { Error::invalid(reason) });
        self.writing.settle(file, 1);
    }
}

/// Writes the contents of files, then their metadata.
pub struct FileWriter {
    fetcher: Fetcher,
    writing: Arc<Writing>,
    /// The file whose references come now.
    current: Option<Arc<PendingFile>>,
    /// Files that the window has references of.
    files: usize,
    /// What the window wants, and where each chunk of it goes.
    wanted: Vec<Wanted>,
    targets: Vec<Target>,
    /// References of a window: few at first, so that workers have something to do soon.
    window_chunks: usize,
    window_chunks_max: usize,
    /// Things that went wrong.
    pub failures: u64,
}

impl std::fmt::Debug for FileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileWriter").field("window", &self.wanted.len()).finish_non_exhaustive()
    }
}

impl FileWriter {
    /// Writes into the target what the fetcher fetches, gathering at most `window_chunks_max` references; each takes
    /// about [`REFERENCE_BYTES`].
    pub fn new(
        fetcher: Fetcher,
        target: Arc<dyn TargetTree>,
        trust: Trust,
        window_chunks_max: usize,
        monitor: Arc<dyn Monitor>,
    ) -> Self {
        let (open, failed) = (AtomicUsize::new(0), Mutex::default());
        let writing = Arc::new(Writing { target, trust, monitor, open, failed });
        Self {
            fetcher,
            writing,
            current: None,
            files: 0,
            wanted: Vec::new(),
            targets: Vec::new(),
            window_chunks: WINDOW_CHUNKS_FIRST.min(window_chunks_max),
            window_chunks_max,
            failures: 0,
        }
    }

    /// Returns how many regions were read.
    pub fn regions_read(&self) -> u64 {
        self.fetcher.regions_read
    }

    /// Returns how many chunks were read from another copy than the first.
    pub fn chunks_recovered(&self) -> u64 {
        self.fetcher.chunks_recovered
    }

    /// Begins a file.
    pub fn begin(&mut self, plan: FilePlan) {
        let FilePlan { path, metadata, xattrs, file } = plan;
        self.writing.monitor.begin(&path);
        let is_created = file.is_some();
        if is_created {
            self.writing.open.fetch_add(1, Ordering::Relaxed);
        }
        let handle = Mutex::new(Handle { file: file.map(Arc::from), is_created });
        let (left, is_sparse, is_broken) = (AtomicUsize::new(1), AtomicBool::new(false), AtomicBool::new(false));
        self.current = Some(Arc::new(PendingFile { path, metadata, xattrs, handle, left, is_sparse, is_broken }));
    }

    /// Appends a chunk of the open file.
    pub fn chunk(&mut self, offset: u64, wanted: Wanted) -> Result<()> {
        if let Some(file) = &self.current {
            file.left.fetch_add(1, Ordering::AcqRel);
            self.wanted.push(wanted);
            self.targets.push(Target { file: Arc::clone(file), offset, len: wanted.len });
        }
        if self.window_chunks <= self.wanted.len() { self.submit() } else { Ok(()) }
    }

    /// Says that not every byte of the open file is written.
    pub fn skip(&mut self) {
        if let Some(file) = &self.current {
            file.is_sparse.store(true, Ordering::Release);
        }
    }

    /// Ends the open file.
    pub fn end(&mut self) -> Result<()> {
        let Some(file) = self.current.take() else { return Ok(()) };
        self.writing.settle(&file, 1);
        self.files += 1;
        if WINDOW_FILES <= self.files { self.submit() } else { Ok(()) }
    }

    /// Writes everything that was begun.
    pub fn flush(&mut self) -> Result<()> {
        self.submit()?;
        self.fetcher.finish();
        self.report()
    }

    /// Has the window written, now or later.
    fn submit(&mut self) -> Result<()> {
        self.files = 0;
        if self.window_chunks <= self.wanted.len() {
            self.window_chunks = (2 * self.window_chunks).min(self.window_chunks_max);
        }
        let (wanted, targets) = (std::mem::take(&mut self.wanted), std::mem::take(&mut self.targets));
        let sink = Arc::new(WindowSink { writing: Arc::clone(&self.writing), targets });
        self.fetcher.fetch(wanted, sink)?;
        self.report()
    }

    /// Tells what went wrong so far.
    fn report(&mut self) -> Result<()> {
        let failed = self.writing.failed.lock().map(|mut failed| std::mem::take(&mut *failed)).unwrap_or_default();
        for (path, error) in failed {
            if is_fatal(&error) {
                return Err(error);
            }
            self.failures += 1;
            self.writing.monitor.failure(&path, &error);
        }
        Ok(())
    }
}

/// Memory of a reference as a target, as what is wanted and as a place in a region, in the window under way and in the
/// one that is gathered.
pub const REFERENCE_BYTES: usize = 256;

/// Says whether an error makes going on pointless.
pub(super) fn is_fatal(error: &Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error, Error::Interrupted)
        || matches!(error.io_kind(), Some(StorageFull | ReadOnlyFilesystem | QuotaExceeded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::mem_tree::MemTree;
    use crate::io::tree::EntryKind;
    use crate::monitor::Silent;
    use crate::types::{Fingerprint, Timestamp};

    const MTIME: Timestamp = Timestamp { seconds: 77, nanoseconds: 1 };

    fn pending(path: &str, size: u64, chunks: usize) -> Arc<PendingFile> {
        let metadata = Metadata {
            kind: EntryKind::File,
            mode: 0o640,
            uid: 1,
            gid: 2,
            mtime: MTIME,
            ctime: MTIME,
            size,
            device: 0,
            inode: 0,
            links: 1,
            rdev: 0,
        };
        Arc::new(PendingFile {
            path: PathBuf::from(path),
            metadata,
            xattrs: Vec::new(),
            handle: Mutex::new(Handle { file: None, is_created: false }),
            left: AtomicUsize::new(chunks),
            is_sparse: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        })
    }

    fn sink(tree: &MemTree, targets: Vec<Target>) -> WindowSink {
        let target: Arc<dyn TargetTree> = Arc::new(tree.clone());
        let (open, failed) = (AtomicUsize::new(0), Mutex::default());
        let writing = Writing { target, trust: Trust::Full, monitor: Arc::new(Silent), open, failed };
        WindowSink { writing: Arc::new(writing), targets }
    }

    fn halves(file: &Arc<PendingFile>) -> Vec<Target> {
        [0, 3].map(|offset| Target { file: Arc::clone(file), offset, len: 3 }).into()
    }

    fn read(tree: &MemTree, path: &str) -> (Vec<u8>, Timestamp) {
        let target: &dyn TargetTree = tree;
        let mut bytes = vec![0; 100];
        let len = target.open_file(Path::new(path)).unwrap().read_at(0, &mut bytes).unwrap();
        bytes.truncate(len);
        (bytes, target.metadata(Path::new(path)).unwrap().unwrap().mtime)
    }

    #[test]
    fn files_that_one_region_leaves_incomplete_are_finished_though_few_stay_open() {
        let tree = MemTree::new();
        let count = OPEN_FILES_MAX + 50;
        let files: Vec<_> = (0..count).map(|number| pending(&format!("f{number}"), 6, 2)).collect();
        let part = |offset: u64| files.iter().map(move |file| Target { file: Arc::clone(file), offset, len: 3 });
        let sink = sink(&tree, part(0).chain(part(3)).collect());
        for number in 0..count {
            assert!(sink.take(b"abc", &[(number, 0..3)]).is_empty());
        }
        assert_eq!(sink.writing.open.load(Ordering::Relaxed), OPEN_FILES_MAX);
        for number in count..2 * count {
            assert!(sink.take(b"def", &[(number, 0..3)]).is_empty());
        }
        assert_eq!(sink.writing.open.load(Ordering::Relaxed), 0);
        assert!((0..count).all(|number| read(&tree, &format!("f{number}")) == (b"abcdef".to_vec(), MTIME)));
        assert!(sink.writing.failed.lock().unwrap().is_empty());
    }

    #[test]
    fn bytes_that_are_lost_are_told_and_leave_the_length_as_it_was() {
        let tree = MemTree::new();
        let file = pending("f", 6, 2);
        let sink = sink(&tree, halves(&file));
        assert!(sink.take(b"abc", &[(0, 0..3)]).is_empty());
        sink.lose(1, Error::MissingChunk { fingerprint: Fingerprint([1; 32]).to_string() });
        assert_eq!(read(&tree, "f"), (b"abc\0\0\0".to_vec(), MTIME));
        let failed = sink.writing.failed.lock().unwrap();
        let [(path, error)] = failed.as_slice() else { panic!("{failed:?}") };
        assert_eq!(path, Path::new("f"));
        assert!(error.to_string().contains("the 3 bytes at 3 are left empty"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_created_is_told_once_however_many_chunks_it_has() {
        let tree = MemTree::new();
        TargetTree::create_dir(&tree, Path::new("f")).unwrap();
        let file = pending("f", 6, 3);
        let sink = sink(&tree, halves(&file));
        assert!(sink.take(b"abc", &[(0, 0..3)]).is_empty());
        assert!(sink.take(b"def", &[(1, 0..3)]).is_empty());
        sink.writing.settle(&file, 1);
        assert_eq!(sink.writing.failed.lock().unwrap().len(), 1);
    }
}
