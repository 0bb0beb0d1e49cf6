//! Writing the bytes of files: each into a partial file, which gets the file's own name once every byte is right.
//!
//! The worker that opened a region writes its chunks. It creates the partial file with the first chunk, and sets the metadata
//! and renames the file after the last. So one worker opens and closes a small file, once.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Identity, Renamed, TargetFile, TargetTree, Trust, Unset};
use crate::monitor::Monitor;
use crate::restore::links::SharedInode;
use crate::restore::omissions::Omissions;
use crate::restore::partial::{make_locked_file, make_partial, onto};
use crate::restore::pending::{Handle, PartialFile, PendingFile};
use crate::restore::removal::Clearing;
use crate::restore::sink::{Failures, Sink};

/// Attempts at a call that finds no free handle, each after others have been closed.
const OPEN_TRIES_MAX: u32 = 8;

/// Target of one chunk.
pub(super) struct Target {
    pub(super) file: Arc<PendingFile>,
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// Something that went wrong with a file.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) path: PathBuf,
    pub(super) error: Error,
    /// True if it ends the restore.
    pub(super) is_fatal: bool,
    /// True if the file did not get its own name.
    pub(super) is_incomplete: bool,
    /// The inode that other names share with it.
    pub(super) link: Option<SharedInode>,
}

/// State that all writers of files share.
#[derive(Debug)]
pub(super) struct Writing {
    target: Arc<dyn TargetTree>,
    clearing: Arc<Clearing>,
    trust: Trust,
    monitor: Arc<dyn Monitor>,
    /// Files that are kept open, and the most of them.
    open: AtomicUsize,
    open_max: AtomicUsize,
    /// Files that were kept open between two of their regions; some of them have been closed since.
    idle: Mutex<Vec<Weak<PendingFile>>>,
    /// Partial files in the target.
    partials: AtomicU64,
    /// Files that are whole and have their names, and the bytes of these.
    files: AtomicU64,
    bytes: AtomicU64,
    outcomes: Mutex<Outcomes>,
}

/// Outcomes that the restoring thread reports.
#[derive(Debug, Default)]
struct Outcomes {
    failed: Vec<Failed>,
    omissions: Omissions,
}

impl Writing {
    pub(crate) fn new(
        target: Arc<dyn TargetTree>,
        clearing: Arc<Clearing>,
        trust: Trust,
        monitor: Arc<dyn Monitor>,
    ) -> Self {
        let open_max = AtomicUsize::new(target.open_files_max());
        Self {
            target,
            clearing,
            trust,
            monitor,
            open: AtomicUsize::new(0),
            open_max,
            idle: Mutex::default(),
            partials: AtomicU64::new(0),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            outcomes: Mutex::default(),
        }
    }

    /// Returns the failures since the last call.
    pub(super) fn take_failed(&self) -> Vec<Failed> {
        std::mem::take(&mut self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).failed)
    }

    /// Returns the counts of metadata that the target cannot hold.
    pub(super) fn omissions(&self) -> Omissions {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).omissions.clone()
    }

    /// Returns how many files are whole, and their bytes.
    pub(super) fn restored(&self) -> (u64, u64) {
        (self.files.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Returns how many partial files are in the target.
    pub(super) fn partials(&self) -> u64 {
        self.partials.load(Ordering::Relaxed)
    }

    fn is_fatal(&self, pending: &PendingFile, error: &Error) -> bool {
        is_fatal_at(&*self.target, &pending.plan.path, error)
    }

    fn fail(&self, pending: &PendingFile, error: Error, is_incomplete: bool) {
        let (path, link) = (pending.plan.path.clone(), pending.plan.link);
        let is_fatal = self.is_fatal(pending, &error);
        let failed = Failed { path, error, is_fatal, is_incomplete, link };
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).failed.push(failed);
    }

    /// Runs an action that takes a handle. If no handle is left, closes others and tries again.
    fn with_handle<T>(&self, mut action: impl FnMut() -> Result<T>) -> Result<T> {
        let mut tries = 0;
        loop {
            match action() {
                Err(error) if error.is_out_of_handles() && tries < OPEN_TRIES_MAX => {
                    tries += 1;
                    self.open_max.fetch_min((self.open.load(Ordering::Relaxed) / 2).max(1), Ordering::Relaxed);
                    self.close_idle();
                    std::thread::yield_now();
                }
                outcome => return outcome,
            }
        }
    }

    /// Returns the partial file, created or opened again if it is not open.
    fn open(&self, pending: &PendingFile) -> Result<Arc<dyn TargetFile>> {
        self.with_handle(|| self.try_open(pending))
    }

    fn try_open(&self, pending: &PendingFile) -> Result<Arc<dyn TargetFile>> {
        let mut handle = pending.lock();
        if let Some(file) = &handle.file {
            return Ok(Arc::clone(file));
        }
        let file = match &handle.partial {
            PartialFile::NotMade => {
                let make = |path: &Path| make_locked_file(&*self.target, path);
                let (file, path) = make_partial(&*self.target, &pending.plan.path, pending.plan.partial, make)?;
                handle.partial = PartialFile::Made(path, None);
                self.partials.fetch_add(1, Ordering::Relaxed);
                file
            }
            PartialFile::Made(path, identity) => match self.open_again(path, *identity)? {
                Some(file) => file,
                None => return Err(self.lose_partial(&mut handle)),
            },
            PartialFile::Gone(path) => return Err(self.partial_is_gone(path)),
        };
        let file: Arc<dyn TargetFile> = Arc::from(file);
        handle.file = Some(Arc::clone(&file));
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(file)
    }

    /// Opens a partial file that was closed. Returns nothing if it is another file now, or if another restore has locked it:
    /// the owner of the directory could put a file of theirs there and read the bytes written into it.
    fn open_again(&self, path: &Path, identity: Option<Identity>) -> Result<Option<Box<dyn TargetFile>>> {
        match self.target.open_file(path) {
            Ok(file) if Some(file.identity()?) == identity && file.try_lock()? => Ok(Some(file)),
            Ok(_) => Ok(None),
            Err(error) if error.io_kind() == Some(ErrorKind::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Records that somebody else has taken the partial file away, and returns the error.
    fn lose_partial(&self, handle: &mut Handle) -> Error {
        let PartialFile::Made(path, _) = std::mem::take(&mut handle.partial) else {
            unreachable!("only what was made gets lost")
        };
        self.partials.fetch_sub(1, Ordering::Relaxed);
        let error = self.partial_is_gone(&path);
        handle.partial = PartialFile::Gone(path);
        error
    }

    fn partial_is_gone(&self, path: &Path) -> Error {
        Error::PartialReplaced { partial: self.shown(path) }
    }

    /// Closes every file that is kept open and that nobody writes to at the moment.
    pub(super) fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        for pending in idle {
            let Some(pending) = pending.upgrade() else { continue };
            // One whose handle somebody has right now is not idle.
            let Ok(mut handle) = pending.handle.try_lock() else { continue };
            handle.is_listed = false;
            if handle.file.as_ref().is_some_and(|file| Arc::strong_count(file) == 1) {
                self.close(&pending, &mut handle);
            }
        }
    }

    /// Closes an incomplete file if too many are open, else lists it as idle.
    fn set_idle(&self, pending: &Arc<PendingFile>) {
        if self.open_max.load(Ordering::Relaxed) < self.open.load(Ordering::Relaxed) {
            self.close(pending, &mut pending.lock());
            return;
        }
        let mut handle = pending.lock();
        if handle.file.is_some() && !handle.is_listed {
            handle.is_listed = true;
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(pending));
        }
    }

    /// Closes the file if it is open. An error of closing is a loss. The handle stays locked meanwhile, so that the worker that
    /// completes the file sees the loss.
    fn close(&self, pending: &PendingFile, handle: &mut Handle) {
        if let Some(file) = handle.file.take() {
            self.open.fetch_sub(1, Ordering::Relaxed);
            if let PartialFile::Made(_, identity) = &mut handle.partial {
                // One that cannot be recognized is not opened again.
                *identity = file.identity().ok();
            }
            self.report_close(pending, &*file);
        }
    }

    fn report_close(&self, pending: &PendingFile, file: &dyn TargetFile) {
        let Err(error) = file.report_close() else { return };
        pending.lack(|losses| losses.unusable = losses.unusable.take().or_else(|| Some(error.to_string())));
        if self.is_fatal(pending, &error) {
            self.fail(pending, error, true);
        }
    }

    /// Counts chunks that are done with, or the end of the file's references; finishes the file after the last.
    pub(super) fn finish_chunks(&self, pending: &Arc<PendingFile>, count: usize) {
        if pending.left.fetch_sub(count, Ordering::AcqRel) != count {
            self.set_idle(pending);
            return;
        }
        if pending.has_losses.load(Ordering::Acquire) {
            self.give_up(pending);
        } else {
            match self.complete(pending) {
                Ok(None) => self.give_up(pending),
                Ok(Some(unset)) => {
                    for reason in unset.failures {
                        self.fail(pending, Error::MetadataUnset { reason }, false);
                    }
                    let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                    unset.omissions.into_iter().for_each(|kind| outcomes.omissions.add(kind, &pending.plan.path));
                    drop(outcomes);
                    self.files.fetch_add(1, Ordering::Relaxed);
                    self.bytes.fetch_add(pending.plan.metadata.size, Ordering::Relaxed);
                }
                Err(error) if self.is_fatal(pending, &error) => self.fail(pending, error, true),
                Err(error) => {
                    let error = self.with_partial(pending, error);
                    self.fail(pending, error, true);
                }
            }
        }
        // Whatever closing it could report has been asked for, or the file is given up.
        if pending.lock().file.take().is_some() {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
        self.monitor.advance(0, 1);
    }

    /// Gives a completely written file its metadata and then its name. The existing entry at its path was not touched until
    /// now. Returns nothing if a file system that reports late has reported a loss.
    fn complete(&self, pending: &PendingFile) -> Result<Option<Unset>> {
        let plan = &pending.plan;
        let file = self.open(pending)?;
        if pending.is_sparse.load(Ordering::Acquire) {
            file.set_len(plan.metadata.size)?;
        }
        let unset = file.set_metadata(&plan.metadata, &plan.xattrs, self.trust)?;
        {
            let _handle = pending.lock();
            self.report_close(pending, &*file);
        }
        if pending.has_losses.load(Ordering::Acquire) {
            return Ok(None);
        }
        if plan.replaced == Some(EntryKind::Directory) {
            self.clearing.clear(&plan.path)?;
        }
        self.publish(pending, file.identity()?)?;
        Ok(Some(unset))
    }

    /// Gives the partial file, if it is still the one that was written, the file's own name.
    fn publish(&self, pending: &PendingFile, identity: Identity) -> Result<()> {
        let path = match &pending.lock().partial {
            PartialFile::Made(path, _) => path.clone(),
            PartialFile::NotMade => unreachable!("a file is made before it is complete"),
            PartialFile::Gone(path) => return Err(self.partial_is_gone(path)),
        };
        // Without its lock, which may be needed to close others.
        let plan = &pending.plan;
        match self.with_handle(|| self.target.rename(&path, &plan.path, Some(identity), onto(plan.replaced)))? {
            Renamed::Taken => Err(Error::NameTaken),
            Renamed::Done => {
                self.partials.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
            Renamed::Unexpected => Err(self.lose_partial(&mut pending.lock())),
        }
    }

    /// Adds the location of the file's bytes to an error.
    fn with_partial(&self, pending: &PendingFile, error: Error) -> Error {
        match &pending.lock().partial {
            PartialFile::Made(path, _) => Error::Unnamed { partial: self.shown(path), source: Box::new(error) },
            PartialFile::Gone(_) => Error::Unrestored { source: Box::new(error) },
            PartialFile::NotMade => error,
        }
    }

    /// Reports a file that is not whole, once. Its own name is not touched. Keeps the partial file if it has anything.
    fn give_up(&self, pending: &PendingFile) {
        let (partial, written) = {
            let handle = pending.lock();
            (handle.partial.clone(), handle.bytes_written)
        };
        let rest = match partial {
            PartialFile::NotMade | PartialFile::Gone(_) => "nothing of it was restored".to_owned(),
            PartialFile::Made(path, _) if written != 0 => format!("what could be read is in {}", self.shown(&path)),
            PartialFile::Made(path, _) => match self.target.remove(&path) {
                Ok(()) => {
                    self.partials.fetch_sub(1, Ordering::Relaxed);
                    "nothing of it was restored".to_owned()
                }
                Err(error) => format!("nothing of it was restored, and its partial file stays: {error}"),
            },
        };
        let all = pending.chunks.load(Ordering::Relaxed);
        let losses = pending.losses.lock().unwrap_or_else(PoisonError::into_inner).describe(all);
        let path = Path::new("/").join(&pending.plan.path);
        self.fail(pending, Error::FileIncomplete { path, losses, rest }, true);
    }

    fn shown(&self, path: &Path) -> String {
        self.target.display(path)
    }

    /// Writes chunks of one file, those that follow each other in the file and in the region together.
    fn write(&self, file: &dyn TargetFile, plain: &[u8], chunks: &[(u64, Range<usize>)]) -> Result<u64> {
        let mut written = 0;
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
            written += bytes.len() as u64;
            self.monitor.advance(bytes.len() as u64, 0);
        }
        Ok(written)
    }
}

/// Targets of the chunks of one window.
pub(super) struct WindowSink {
    pub(super) writing: Arc<Writing>,
    pub(super) targets: Vec<Target>,
}

impl WindowSink {
    /// Writes chunks of one file.
    fn write(&self, file: &Arc<PendingFile>, plain: &[u8], chunks: &[(usize, Range<usize>)]) -> Result<(), Error> {
        let target = |number: usize| self.targets.get(number);
        let positioned: Vec<(u64, Range<usize>)> =
            chunks.iter().filter_map(|(number, range)| Some((target(*number)?.offset, range.clone()))).collect();
        let opened = match self.writing.open(file) {
            Ok(opened) => opened,
            Err(error) if self.writing.is_fatal(file, &error) => return Err(error),
            Err(error) => {
                // Reported once, however many chunks the file has.
                let bytes: u64 = chunks.iter().map(|(_, range)| range.len() as u64).sum();
                file.lack(|losses| {
                    losses.bytes += bytes;
                    losses.unusable.get_or_insert_with(|| error.to_string());
                });
                return Ok(());
            }
        };
        let written = self.writing.write(&*opened, plain, &positioned)?;
        drop(opened);
        file.lock().bytes_written += written;
        Ok(())
    }
}

impl Sink for WindowSink {
    fn take(&self, plain: &[u8], chunks: &[(usize, Range<usize>)]) -> Failures {
        let file_of = |number: usize| self.targets.get(number).map(|target| Arc::as_ptr(&target.file));
        let mut failed = Vec::new();
        for of_file in chunks.chunk_by(|(before, _), (after, _)| file_of(*before) == file_of(*after)) {
            let Some(Target { file, .. }) = of_file.first().and_then(|(number, _)| self.targets.get(*number)) else {
                continue;
            };
            match self.write(file, plain, of_file) {
                Ok(()) => self.writing.finish_chunks(file, of_file.len()),
                Err(error) => {
                    failed.extend(of_file.iter().map(|(number, _)| (*number, error.clone())));
                }
            }
        }
        failed
    }

    fn lose(&self, number: usize, error: Error) {
        let Some(Target { file, len, .. }) = self.targets.get(number) else { return };
        file.lack(|losses| {
            losses.chunks += 1;
            losses.bytes += u64::from(*len);
            losses.first.get_or_insert_with(|| error.to_string());
        });
        if self.writing.is_fatal(file, &error) {
            self.writing.fail(file, error, true);
        }
        self.writing.finish_chunks(file, 1);
    }

    fn relieve(&self) {
        self.writing.close_idle();
    }

    fn is_interrupted(&self) -> bool {
        self.writing.monitor.is_interrupted()
    }
}

/// Returns true if an error at a path of the target ends the restore. A full file system does so only if it is that of the
/// target's root: another one may be mounted at the path.
pub(super) fn is_fatal_at(target: &dyn TargetTree, path: &Path, error: &Error) -> bool {
    match error.io_kind() {
        Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            let device = |path: &Path| target.metadata(path).ok().flatten().map(|metadata| metadata.device);
            // Its directory, or the one above that stands.
            let of_path = path.ancestors().skip(1).find_map(device);
            of_path.is_none() || of_path == device(Path::new(""))
        }
        _ => matches!(error, Error::Interrupted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::tree::{AccessTime, Metadata};
    use crate::monitor::Silent;
    use crate::restore::partial::{Leftovers, Partial};
    use crate::restore::pending::FilePlan;
    use crate::restore::policy::Effect;
    use crate::restore::policy::FullDirectories;
    use crate::restore::select::Filter;
    use crate::testing::mem_tree::MemTree;
    use crate::types::{Fingerprint, Timestamp};

    const MTIME: Timestamp = Timestamp { seconds: 77, nanoseconds: 1 };
    const OPEN_MAX: usize = 7;

    fn pending(path: &str, size: u64, chunks: usize) -> Arc<PendingFile> {
        let metadata = Metadata {
            kind: EntryKind::File,
            mode: 0o640,
            uid: 1,
            gid: 2,
            mtime: MTIME,
            atime: AccessTime::default(),
            ctime: MTIME,
            size,
            device: 0,
            inode: 0,
            links: 1,
            rdev: 0,
        };
        let path = PathBuf::from(path);
        let partial = Partial { number: 0, leftovers: Leftovers::Removed };
        let plan = FilePlan { path, partial, replaced: None, metadata, xattrs: Vec::new(), link: None };
        let file = PendingFile::new(plan);
        (0..chunks).for_each(|_| file.expect());
        Arc::new(file)
    }

    fn sink(tree: &MemTree, targets: Vec<Target>) -> WindowSink {
        let (target, monitor) = (Arc::new(tree.clone()), Arc::new(Silent));
        let clearing = Clearing::new(
            Arc::clone(&target) as Arc<dyn TargetTree>,
            Effect::Write,
            FullDirectories::Keep,
            Filter::default(),
            Arc::clone(&monitor) as Arc<dyn Monitor>,
        );
        let writing = Writing::new(target, Arc::new(clearing), Trust::Full, monitor);
        writing.open_max.store(OPEN_MAX, Ordering::Relaxed);
        WindowSink { writing: Arc::new(writing), targets }
    }

    fn halves(file: &Arc<PendingFile>) -> Vec<Target> {
        [0, 3].map(|offset| Target { file: Arc::clone(file), offset, len: 3 }).into()
    }

    fn read(tree: &MemTree, path: &str) -> (Vec<u8>, u32, Timestamp) {
        let target: &dyn TargetTree = tree;
        let mut bytes = vec![0; 100];
        let len = target.open_file(Path::new(path)).unwrap().read_at(0, &mut bytes).unwrap();
        bytes.truncate(len);
        let metadata = target.metadata(Path::new(path)).unwrap().unwrap();
        (bytes, metadata.mode, metadata.mtime)
    }

    fn names(tree: &MemTree) -> Vec<std::ffi::OsString> {
        TargetTree::list(tree, Path::new("")).unwrap()
    }

    #[test]
    fn files_that_one_region_leaves_incomplete_are_finished_though_few_stay_open() {
        let tree = MemTree::new();
        let count = OPEN_MAX + 50;
        let files: Vec<_> = (0..count).map(|number| pending(&format!("f{number}"), 6, 2)).collect();
        let part = |offset: u64| files.iter().map(move |file| Target { file: Arc::clone(file), offset, len: 3 });
        let sink = sink(&tree, part(0).chain(part(3)).collect());
        for number in 0..count {
            assert!(sink.take(b"abc", &[(number, 0..3)]).is_empty());
        }
        assert_eq!(sink.writing.open.load(Ordering::Relaxed), OPEN_MAX);
        sink.relieve();
        assert_eq!(sink.writing.open.load(Ordering::Relaxed), 0);
        for number in count..2 * count {
            assert!(sink.take(b"def", &[(number, 0..3)]).is_empty());
        }
        for file in &files {
            sink.writing.finish_chunks(file, 1);
        }
        assert_eq!(sink.writing.open.load(Ordering::Relaxed), 0);
        assert!((0..count).all(|number| read(&tree, &format!("f{number}")) == (b"abcdef".to_vec(), 0o640, MTIME)));
        assert_eq!(names(&tree).len(), count);
        assert!(sink.writing.take_failed().is_empty());
        assert_eq!((sink.writing.restored(), sink.writing.partials()), ((count as u64, 6 * count as u64), 0));
    }

    #[test]
    fn a_file_that_lacks_bytes_never_gets_its_name_nor_its_mode_or_time() {
        let tree = MemTree::new();
        tree.put_file(Path::new("/f"), b"precious");
        let before = read(&tree, "f");
        let file = pending("f", 6, 2);
        let sink = sink(&tree, halves(&file));
        assert!(sink.take(b"abc", &[(0, 0..3)]).is_empty());
        sink.lose(1, Error::MissingChunk { fingerprint: Fingerprint([1; 32]).to_string() });
        sink.writing.finish_chunks(&file, 1);
        assert_eq!(read(&tree, "f"), before);
        let (bytes, mode, time) = read(&tree, "f.onefold-partial");
        assert_eq!((bytes.as_slice(), mode), (b"abc".as_slice(), 0o600));
        assert_ne!(time, MTIME);
        let failed = sink.writing.take_failed();
        let [Failed { path, error, is_fatal: false, is_incomplete: true, link: None }] = failed.as_slice() else {
            panic!("{failed:?}")
        };
        assert_eq!(path, Path::new("f"));
        let missing = Fingerprint([1; 32]);
        let text = format!(
            "/f: 1 of 2 chunks lost (first: chunk {missing}: in no readable container); 3 bytes are missing; what could be \
             read is in /f.onefold-partial"
        );
        assert_eq!(error.to_string(), text);
        assert_eq!((sink.writing.restored(), sink.writing.partials()), ((0, 0), 1));
    }

    #[test]
    fn a_file_of_which_nothing_can_be_written_leaves_nothing_and_is_reported_once() {
        let tree = MemTree::new();
        // The directory of the first one is gone.
        let [blocked, lost] = ["gone/f", "g"].map(|name| pending(name, 6, 2));
        let sink = sink(&tree, halves(&blocked).into_iter().chain(halves(&lost)).collect());
        assert!(sink.take(b"abc", &[(0, 0..3)]).is_empty());
        assert!(sink.take(b"def", &[(1, 0..3)]).is_empty());
        sink.lose(2, Error::invalid("unreadable"));
        sink.lose(3, Error::invalid("unreadable as well"));
        for file in [&blocked, &lost] {
            sink.writing.finish_chunks(file, 1);
        }
        assert!(names(&tree).is_empty());
        let failed = sink.writing.take_failed();
        let failed: Vec<String> = failed.into_iter().map(|failed| failed.error.to_string()).collect();
        assert_eq!(failed.len(), 2);
        assert!(failed[0].ends_with("6 bytes are missing; nothing of it was restored"), "{failed:?}");
        let text = "/g: 2 of 2 chunks lost (first: unreadable); 6 bytes are missing; nothing of it was restored";
        assert_eq!(failed[1], text);
    }

    /// Only the end of its name and its kind were looked at: the second restore took the file that the first one was writing
    /// for a leftover, and the first one's rename gave the second one's half file the name.
    #[test]
    fn two_restores_of_one_file_never_give_half_a_file_its_name() {
        let tree = MemTree::new();
        let files = [pending("f", 6, 2), pending("f", 6, 2)];
        let [first, second] = [0, 1].map(|at: usize| sink(&tree, halves(&files[at])));
        assert!(first.take(b"abc", &[(0, 0..3)]).is_empty());
        assert!(second.take(b"ABC", &[(0, 0..3)]).is_empty());
        assert_eq!(names(&tree), ["f.onefold-partial", "f.onefold-partial-1"]);
        assert!(first.take(b"def", &[(1, 0..3)]).is_empty());
        first.writing.finish_chunks(&files[0], 1);
        assert_eq!((read(&tree, "f").0, names(&tree).len()), (b"abcdef".to_vec(), 2));
        assert!(second.take(b"DEF", &[(1, 0..3)]).is_empty());
        assert!(first.writing.take_failed().is_empty());
        assert_eq!((first.writing.restored(), first.writing.partials()), ((1, 6), 0));
        drop((second, files));
        // Nobody writes it any more.
        let third = pending("f", 6, 2);
        let sink = sink(&tree, halves(&third));
        assert!(sink.take(b"ghi", &[(0, 0..3)]).is_empty());
        assert_eq!(names(&tree), ["f", "f.onefold-partial", "f.onefold-partial-1"]);
        assert_eq!(read(&tree, "f.onefold-partial").0, b"ghi");
    }

    /// A file that a user made after the decision was replaced, with `--overwrite never` too.
    #[test]
    fn what_was_put_under_the_name_after_the_decision_stays() {
        let tree = MemTree::new();
        let file = pending("f", 6, 2);
        let sink = sink(&tree, halves(&file));
        assert!(sink.take(b"abc", &[(0, 0..3)]).is_empty());
        tree.put_file(Path::new("/f"), b"mine");
        assert!(sink.take(b"def", &[(1, 0..3)]).is_empty());
        sink.writing.finish_chunks(&file, 1);
        assert_eq!((read(&tree, "f").0, read(&tree, "f.onefold-partial").0), (b"mine".to_vec(), b"abcdef".to_vec()));
        let failed = sink.writing.take_failed();
        let [Failed { error, is_incomplete: true, .. }] = failed.as_slice() else { panic!("{failed:?}") };
        let text = error.to_string();
        assert!(text.contains("something was put there meanwhile"), "{text}");
        assert!(text.ends_with("all bytes are in /f.onefold-partial"), "{text}");
    }

    /// The owner of the directory could put a file of theirs there, and read the bytes written into it.
    #[test]
    fn a_partial_file_that_was_exchanged_is_neither_written_nor_renamed() {
        for is_closed in [true, false] {
            let tree = MemTree::new();
            let file = pending("f", 6, 2);
            let sink = sink(&tree, halves(&file));
            assert!(sink.take(b"abc", &[(0, 0..3)]).is_empty());
            if is_closed {
                sink.relieve();
            }
            tree.rename(Path::new("/f.onefold-partial"), Path::new("/away"));
            tree.put_file(Path::new("/f.onefold-partial"), b"planted");
            assert!(sink.take(b"def", &[(1, 0..3)]).is_empty());
            sink.writing.finish_chunks(&file, 1);
            assert_eq!(names(&tree), ["away", "f.onefold-partial"]);
            let (planted, mode, _) = read(&tree, "f.onefold-partial");
            assert_eq!((planted.as_slice(), mode), (b"planted".as_slice(), 0o600));
            let failed = sink.writing.take_failed();
            let [Failed { error, is_incomplete: true, .. }] = failed.as_slice() else { panic!("{failed:?}") };
            let text = error.to_string();
            assert!(text.contains("another program removed or replaced /f.onefold-partial"), "{text}");
            assert!(text.ends_with("nothing of it was restored"), "{text}");
            assert_eq!((sink.writing.restored(), sink.writing.partials()), ((0, 0), 0));
        }
    }

    #[test]
    fn a_partial_file_that_was_removed_while_it_was_closed_is_not_made_again() {
        let tree = MemTree::new();
        let file = pending("f", 6, 2);
        let sink = sink(&tree, halves(&file));
        assert!(sink.take(b"abc", &[(0, 0..3)]).is_empty());
        sink.relieve();
        tree.remove(Path::new("f.onefold-partial")).unwrap();
        assert!(sink.take(b"def", &[(1, 0..3)]).is_empty());
        sink.writing.finish_chunks(&file, 1);
        assert!(names(&tree).is_empty());
        assert_eq!(sink.writing.take_failed().len(), 1);
    }

    /// A mounted file system that was read-only or full ended the restore of everything else.
    #[test]
    fn only_what_holds_for_the_whole_target_ends_a_restore() {
        let tree = MemTree::new();
        tree.put_dir(Path::new("/mounted"));
        tree.edit(Path::new("/mounted"), |metadata| metadata.device += 1);
        let is_fatal = |path: &str, kind: ErrorKind| {
            is_fatal_at(&tree, Path::new(path), &Error::io("write", Path::new(path), kind.into()))
        };
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            assert!(is_fatal("f", kind) && is_fatal("gone/f", kind) && is_fatal("mounted", kind));
            assert!(!is_fatal("mounted/f", kind) && !is_fatal("mounted/gone/f", kind));
        }
        assert!(!is_fatal("f", ErrorKind::ReadOnlyFilesystem) && !is_fatal("f", ErrorKind::PermissionDenied));
        assert!(is_fatal_at(&tree, Path::new("mounted/f"), &Error::Interrupted));
    }
}
