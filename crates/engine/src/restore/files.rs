//! Filling files: windows of references, each region of a window read once, whatever files it belongs to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::{Metadata, TargetFile, TargetTree, Trust, Xattr};
use crate::monitor::Monitor;
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{Lane, Work};
use crate::restore::fetch::{Fetcher, Sink, Wanted};

/// References of a window; about 100 bytes each.
const WINDOW_CHUNKS: usize = 1 << 16;
/// Files that a window holds open.
const WINDOW_FILES: usize = 512;
/// Files whose metadata is being set.
const FINISHING: usize = 64;

/// A file being restored.
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: Arc<dyn TargetFile>,
    metadata: Metadata,
    xattrs: Vec<Xattr>,
}

/// One chunk of a file.
struct Target {
    file: Arc<OpenFile>,
    offset: u64,
    wanted: Wanted,
}

struct WriteChunks {
    targets: Vec<(Arc<OpenFile>, u64)>,
    monitor: Arc<dyn Monitor>,
}

impl Sink for WriteChunks {
    fn take(&self, number: usize, bytes: &[u8]) -> Result<()> {
        if let Some((file, offset)) = self.targets.get(number) {
            file.file.write_at(*offset, bytes)?;
            self.monitor.advance(bytes.len() as u64, 0);
        }
        Ok(())
    }
}

/// Sets what is set when a file's bytes are in place.
struct FinishFile {
    target: Arc<dyn TargetTree>,
    trust: Trust,
}

impl Work for FinishFile {
    type In = (PathBuf, Metadata, Vec<Xattr>);
    type Out = (PathBuf, Result<Vec<String>>);

    fn run(&self, (path, metadata, xattrs): Self::In) -> Self::Out {
        let set = self.target.set_metadata(&path, &metadata, &xattrs, self.trust);
        (path, set)
    }
}

/// Writes the contents of files, then their metadata.
pub struct FileWriter {
    fetcher: Fetcher,
    finish: Lane<FinishFile>,
    monitor: Arc<dyn Monitor>,
    /// The file whose references come now.
    current: Option<Arc<OpenFile>>,
    /// Files that have all their references in the window or before.
    complete: Vec<Arc<OpenFile>>,
    window: Vec<Target>,
    /// Things that went wrong.
    pub failures: u64,
}

impl std::fmt::Debug for FileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileWriter").field("window", &self.window.len()).finish_non_exhaustive()
    }
}

impl FileWriter {
    /// Writes into the target what the fetcher fetches.
    pub fn new(
        fetcher: Fetcher,
        target: Arc<dyn TargetTree>,
        trust: Trust,
        driver: &Driver,
        monitor: Arc<dyn Monitor>,
    ) -> Self {
        let finish = driver.lane(FinishFile { target, trust }, Pool::Compute, FINISHING);
        Self { fetcher, finish, monitor, current: None, complete: Vec::new(), window: Vec::new(), failures: 0 }
    }

    /// Returns how many regions were read.
    pub fn regions_read(&self) -> u64 {
        self.fetcher.regions_read
    }

    /// Begins a file, created already at its full length.
    pub fn begin(&mut self, path: PathBuf, file: Box<dyn TargetFile>, metadata: Metadata, xattrs: Vec<Xattr>) {
        self.monitor.begin(&path);
        self.current = Some(Arc::new(OpenFile { path, file: Arc::from(file), metadata, xattrs }));
    }

    /// Appends a chunk of the open file.
    pub fn chunk(&mut self, offset: u64, wanted: Wanted) -> Result<()> {
        if let Some(file) = &self.current {
            self.window.push(Target { file: Arc::clone(file), offset, wanted });
        }
        if WINDOW_CHUNKS <= self.window.len() { self.flush() } else { Ok(()) }
    }

    /// Ends the open file.
    pub fn end(&mut self) -> Result<()> {
        self.complete.extend(self.current.take());
        if WINDOW_FILES <= self.complete.len() { self.flush() } else { Ok(()) }
    }

    /// Writes everything that was begun.
    pub fn flush(&mut self) -> Result<()> {
        let window = std::mem::take(&mut self.window);
        let wanted: Vec<Wanted> = window.iter().map(|target| target.wanted).collect();
        let targets: Vec<_> = window.into_iter().map(|target| (target.file, target.offset)).collect();
        let writer = Arc::new(WriteChunks { targets, monitor: Arc::clone(&self.monitor) });
        let sink: Arc<dyn Sink> = Arc::clone(&writer) as Arc<dyn Sink>;
        for (number, error) in self.fetcher.fetch(&wanted, &sink)? {
            if let Some((file, offset)) = writer.targets.get(number) {
                let reason = format!("the {} bytes at {offset} are left empty: {error}", len_of(&wanted, number));
                self.fail(&file.path.clone(), &Error::invalid(reason));
            }
        }
        for file in std::mem::take(&mut self.complete) {
            if self.finish.is_full() {
                self.take_finished();
            }
            self.monitor.advance(0, 1);
            self.finish.push((file.path.clone(), file.metadata.clone(), file.xattrs.clone()));
        }
        while !self.finish.is_empty() {
            self.take_finished();
        }
        Ok(())
    }

    fn take_finished(&mut self) {
        let Some((path, set)) = self.finish.pop() else { return };
        match set {
            Ok(refused) => refused.iter().for_each(|reason| self.fail(&path, &Error::invalid(reason))),
            Err(error) => self.fail(&path, &error),
        }
    }

    fn fail(&mut self, path: &Path, error: &Error) {
        self.failures += 1;
        self.monitor.failure(path, error);
    }
}

fn len_of(wanted: &[Wanted], number: usize) -> u32 {
    wanted.get(number).map_or(0, |wanted| wanted.len)
}
