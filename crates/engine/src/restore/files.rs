//! Filling files: windows gather references of many files, so that each region of a window is read once.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::{TargetTree, Trust};
use crate::monitor::Monitor;
use crate::restore::fetch::Fetcher;
use crate::restore::links::SharedInode;
use crate::restore::pending::{FilePlan, PendingFile};
use crate::restore::removal::Clearing;
use crate::restore::request::RestoreReport;
use crate::restore::writing::{Failed, Target, WindowSink, Writing};
use crate::store::recipe_cursor::HintedChunk;

/// References of the first window.
const WINDOW_CHUNKS_FIRST: usize = 1 << 12;
/// Files of a window.
const WINDOW_FILES: usize = 2048;

/// Writes the contents of files, then their metadata.
pub(super) struct FileWriter {
    fetcher: Fetcher,
    writing: Arc<Writing>,
    monitor: Arc<dyn Monitor>,
    /// File of the current references.
    current: Option<Arc<PendingFile>>,
    /// Files that the window has references of.
    files: usize,
    /// Chunks of the window, and the target of each.
    wanted: Vec<HintedChunk>,
    targets: Vec<Target>,
    /// References of a window: few at first, so that workers have something to do soon.
    window_chunks: usize,
    window_chunks_max: usize,
    /// Things that went wrong.
    failures: u64,
    /// Files that are not whole and have not got their names.
    files_incomplete: u64,
    /// Inodes of those that other names share.
    incomplete_links: Vec<SharedInode>,
}

impl std::fmt::Debug for FileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileWriter").field("window", &self.wanted.len()).finish_non_exhaustive()
    }
}

impl FileWriter {
    /// Writes the fetched chunks into the target. Gathers at most `window_chunks_max` references, which take about
    /// [`REFERENCE_BYTES`] each.
    pub(crate) fn new(
        fetcher: Fetcher,
        target: Arc<dyn TargetTree>,
        clearing: Arc<Clearing>,
        trust: Trust,
        window_chunks_max: usize,
        monitor: Arc<dyn Monitor>,
    ) -> Self {
        let writing = Arc::new(Writing::new(target, clearing, trust, Arc::clone(&monitor)));
        Self {
            fetcher,
            writing,
            monitor,
            current: None,
            files: 0,
            wanted: Vec::new(),
            targets: Vec::new(),
            window_chunks: WINDOW_CHUNKS_FIRST.min(window_chunks_max),
            window_chunks_max,
            failures: 0,
            files_incomplete: 0,
            incomplete_links: Vec::new(),
        }
    }

    /// Adds the counts of files to a report.
    pub(super) fn add_to(&self, report: &mut RestoreReport) {
        let (files, bytes) = self.writing.restored();
        report.files += files;
        report.bytes += bytes;
        report.files_incomplete += self.files_incomplete;
        report.failures += self.failures;
        report.regions_read = self.fetcher.regions_read();
        report.directories_read = self.fetcher.directories_read();
        report.chunks_recovered = self.fetcher.chunks_recovered;
        report.omissions.merge(&self.writing.omissions());
    }

    /// Returns how many partial files are in the target.
    pub(super) fn partials(&self) -> u64 {
        self.writing.partials()
    }

    /// Returns the shared inodes of files that were found to be incomplete since the last call.
    pub(super) fn take_incomplete_links(&mut self) -> Vec<SharedInode> {
        std::mem::take(&mut self.incomplete_links)
    }

    /// Begins a file.
    pub(crate) fn begin(&mut self, plan: FilePlan) {
        self.monitor.begin(&plan.path);
        self.current = Some(Arc::new(PendingFile::new(plan)));
    }

    /// Appends a chunk of the open file.
    pub(super) fn chunk(&mut self, offset: u64, wanted: HintedChunk) -> Result<()> {
        if let Some(file) = &self.current {
            file.expect();
            self.wanted.push(wanted);
            self.targets.push(Target { file: Arc::clone(file), offset, len: wanted.chunk.len });
        }
        if self.window_chunks <= self.wanted.len() { self.submit() } else { Ok(()) }
    }

    /// Marks the open file as one with unwritten bytes.
    pub(super) fn skip(&mut self) {
        if let Some(file) = &self.current {
            file.skip();
        }
    }

    /// Marks the open file as one whose list of chunks cannot be read from this byte on.
    pub(crate) fn cut(&mut self, offset: u64, error: &Error) {
        if let Some(file) = &self.current {
            file.cut(offset, error);
        }
    }

    /// Ends the open file.
    pub(super) fn end(&mut self) -> Result<()> {
        let Some(file) = self.current.take() else { return Ok(()) };
        self.writing.finish_chunks(&file, 1);
        self.files += 1;
        if WINDOW_FILES <= self.files { self.submit() } else { Ok(()) }
    }

    /// Writes all files that were begun.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.submit()?;
        self.fetcher.finish();
        self.report()
    }

    /// Submits the window, which workers write.
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

    /// Waits for all workers, and reports the failures that do not end the restore.
    pub(super) fn abandon(&mut self) {
        self.fetcher.finish();
        // The error that ends the restore is reported already.
        let _ = self.report();
    }

    /// Reports what went wrong so far.
    fn report(&mut self) -> Result<()> {
        let mut fatal = None;
        for Failed { path, error, is_fatal, is_incomplete, link } in self.writing.take_failed() {
            if is_fatal {
                fatal.get_or_insert(error);
                continue;
            }
            self.failures += 1;
            if is_incomplete {
                self.files_incomplete += 1;
                self.incomplete_links.extend(link);
            }
            self.monitor.failure(&Path::new("/").join(path), &error);
        }
        fatal.map_or(Ok(()), Err)
    }
}

/// Memory of a reference: its target, its chunk and its position in a region, in the submitted window and in the next.
pub(super) const REFERENCE_BYTES: usize = 256;
