//! Restoring.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Result;
use crate::facade::failures::{Failure, Operation, Recorder};
use crate::facade::{Repository, bytes_of, monitor_or_silent};
use crate::io::os_source::OsSource;
use crate::io::os_target::OsTarget;
use crate::io::tree::{MetadataChoice, Trust};
use crate::monitor::Monitor;
use crate::repo::{Selection, SnapshotName};
use crate::restore::{self, Effect, Filter, FullDirectories, Overwrite, RestoreRequest};
use crate::source::exclude::{Case, Patterns};

/// A restore that is described and then run.
#[derive(Debug)]
#[must_use = "nothing is restored before `run`"]
pub struct Restore<'a> {
    repository: &'a Repository,
    snapshot: String,
    target: PathBuf,
    include: Vec<Vec<u8>>,
    exclude: Vec<Vec<u8>>,
    overwrite: Overwrite,
    is_verified: bool,
    is_trusted: bool,
    accepts_incomplete: bool,
    monitor: Option<Arc<dyn Monitor>>,
}

/// Summary of a restore.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RestoreSummary {
    /// Regular files written whole.
    pub files: u64,
    /// Regular files that could not be restored whole. Nothing under their names was touched; what could be read is in files
    /// whose names end in `.onefold-partial`.
    pub files_incomplete: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Files left as they were.
    pub files_skipped: u64,
    /// Things that could not be restored. 0 unless [`accept_incomplete`](Restore::accept_incomplete) was given.
    pub failures: u64,
    /// The first hundred of them.
    pub failed: Vec<Failure>,
}

impl<'a> Restore<'a> {
    pub(super) fn new(repository: &'a Repository, snapshot: String, target: PathBuf) -> Self {
        Self {
            repository,
            snapshot,
            target,
            include: Vec::new(),
            exclude: Vec::new(),
            overwrite: Overwrite::Refuse,
            is_verified: false,
            is_trusted: repository.is_encrypted(),
            accepts_incomplete: false,
            monitor: None,
        }
    }

    /// Restores only what matches one of the patterns given.
    pub fn include(mut self, pattern: impl Into<PathBuf>) -> Self {
        self.include.push(bytes_of(pattern));
        self
    }

    /// Leaves out what matches a pattern.
    pub fn exclude(mut self, pattern: impl Into<PathBuf>) -> Self {
        self.exclude.push(bytes_of(pattern));
        self
    }

    /// Sets the treatment of existing entries: by default a target that is not empty is refused.
    pub fn overwrite(mut self, overwrite: Overwrite) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Reads every restored file back and compares it with the snapshot.
    pub fn verify(mut self) -> Self {
        self.is_verified = true;
        self
    }

    /// Restores set-id bits, capabilities and devices from a repository that is not encrypted, too: anybody who can write
    /// to it could have put them there.
    pub fn trusted(mut self) -> Self {
        self.is_trusted = true;
        self
    }

    /// Makes [`run`](Self::run) return a summary also if something could not be restored.
    pub fn accept_incomplete(mut self) -> Self {
        self.accepts_incomplete = true;
        self
    }

    /// Sets who listens, and may interrupt.
    pub fn monitor(mut self, monitor: Arc<dyn Monitor>) -> Self {
        self.monitor = Some(monitor);
        self
    }

    /// Restores. Directories that lead to the target are created.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if the target is inside the repository or the directory of caches,
    /// [`Error::Incomplete`](crate::Error::Incomplete) if something could not be restored; everything else was.
    pub fn run(self) -> Result<RestoreSummary> {
        let store = &self.repository.store;
        let name = SnapshotName::parse(&self.snapshot);
        let commits = store.read_commits()?;
        let (_, snapshot) = Selection::default().find(&commits, &name.name, store.host.now(), &mut |_| {})?;
        let read = [(self.repository.directory(), "repository"), (&*self.repository.cache.directory, "index")];
        restore::ensure_apart(&OsSource::new(), &self.target, &read)?;
        let recorder = Recorder::new(monitor_or_silent(self.monitor.as_ref()));
        let path = name.path.unwrap_or_default();
        let request = RestoreRequest {
            tree: snapshot.tree,
            path: Path::new(&path),
            filter: Filter { include: compile(&self.include)?, exclude: compile(&self.exclude)? },
            target: Arc::new(OsTarget::create(&self.target)?.with_metadata(MetadataChoice::by_name(&snapshot.owners))),
            effect: Effect::Write,
            overwrite: self.overwrite,
            full_directories: FullDirectories::Keep,
            verify: self.is_verified,
            trust: if self.is_trusted { Trust::Full } else { Trust::Untrusted },
            scratch: self.repository.cache.scratch(),
            memory_bytes: self.repository.resources.memory_bytes,
            driver: self.repository.driver(),
            monitor: Arc::clone(&recorder) as Arc<dyn Monitor>,
        };
        let report = restore::restore(store, &request)?;
        let failures = recorder.take();
        if !self.accepts_incomplete {
            failures.judge(report.failures, Operation::Restore, None)?;
        }
        Ok(RestoreSummary {
            files: report.files,
            files_incomplete: report.files_incomplete,
            bytes: report.bytes,
            files_skipped: report.files_skipped,
            failures: failures.count.max(report.failures),
            failed: failures.first,
        })
    }
}

fn compile(patterns: &[Vec<u8>]) -> Result<Vec<Patterns>> {
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![Patterns::parse(patterns.iter().map(Vec::as_slice), Case::Sensitive)?])
}
