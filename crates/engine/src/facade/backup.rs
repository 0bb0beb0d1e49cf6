//! Backing up.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backup::AccessTimes;
use crate::backup::{BackupOptions, BaseChoices, Comparison, Unchanged};
use crate::check::LostHeads;
use crate::error::{Error, Result};
use crate::facade::failures::{Failure, Failures, Operation, Recorder};
use crate::facade::{Repository, bytes_of, monitor_or_silent};
use crate::identify::IndexPreset;
use crate::io::os_identity;
use crate::io::os_source::OsSource;
use crate::io::tree::SourceTree;
use crate::monitor::Monitor;
use crate::repo::{self, BackupOutcome, BackupRequest, Selection};
use crate::similarity::choose::Limits;
use crate::snapshot::Snapshot;
use crate::source;
use crate::source::exclude::{Case, Excludes, Patterns, Tag};
use crate::source::stream::StreamTree;
use crate::types::SessionId;

/// The program that is written into snapshots.
const PROGRAM: &str = concat!("onefold-engine ", env!("CARGO_PKG_VERSION"));

/// A backup that is described and then run.
#[derive(Debug)]
#[must_use = "nothing is backed up before `run`"]
pub struct Backup<'a> {
    repository: &'a Repository,
    from: From,
    patterns: Vec<Vec<u8>>,
    excludes: Excludes,
    tags: Vec<String>,
    host: Option<String>,
    reads_everything: bool,
    accepts_incomplete: bool,
    preset: Option<IndexPreset>,
    monitor: Option<Arc<dyn Monitor>>,
}

enum From {
    Paths(Vec<PathBuf>),
    Stream { name: PathBuf, reader: Box<dyn Read + Send> },
}

impl std::fmt::Debug for From {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Paths(paths) => f.debug_tuple("Paths").field(paths).finish(),
            Self::Stream { name, .. } => f.debug_tuple("Stream").field(name).finish(),
        }
    }
}

/// A snapshot that a backup has made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BackupSummary {
    /// The snapshot.
    pub snapshot: SessionId,
    /// Files that the parent did not have.
    pub files_new: u64,
    /// Files that differ from the parent's.
    pub files_changed: u64,
    /// Files that are the parent's.
    pub files_unmodified: u64,
    /// Bytes of all files.
    pub bytes_processed: u64,
    /// Bytes of the chunks that the repository did not have.
    pub bytes_added: u64,
    /// Bytes that these take in the repository.
    pub bytes_stored: u64,
    /// Entries that could not be read and are not in the snapshot. 0 unless
    /// [`accept_incomplete`](Backup::accept_incomplete) was given.
    pub failures: u64,
    /// The first hundred of them.
    pub failed: Vec<Failure>,
}

impl<'a> Backup<'a> {
    pub(super) fn of_paths(repository: &'a Repository, paths: Vec<PathBuf>) -> Self {
        Self::new(repository, From::Paths(paths))
    }

    pub(super) fn of_stream(repository: &'a Repository, name: PathBuf, reader: Box<dyn Read + Send>) -> Self {
        Self::new(repository, From::Stream { name, reader })
    }

    fn new(repository: &'a Repository, from: From) -> Self {
        Self {
            repository,
            from,
            patterns: Vec::new(),
            excludes: Excludes::default(),
            tags: Vec::new(),
            host: None,
            reads_everything: false,
            accepts_incomplete: false,
            preset: None,
            monitor: None,
        }
    }

    /// Leaves out what matches a pattern, as `--exclude` of the command does.
    pub fn exclude(mut self, pattern: impl Into<PathBuf>) -> Self {
        self.patterns.push(bytes_of(pattern));
        self
    }

    /// Leaves out what is in directories that a `CACHEDIR.TAG` marks as caches.
    pub fn exclude_caches(mut self) -> Self {
        self.excludes.tags.push(Tag::cache_directory());
        self
    }

    /// Leaves out what is on other file systems than the paths.
    pub fn one_file_system(mut self) -> Self {
        self.excludes.one_file_system = true;
        self
    }

    /// Labels the snapshot. May be given several times.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Sets the host that the snapshot is of: by default this one.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Reads every file again, also those that have not changed since the newest snapshot of the same host and paths.
    pub fn force(mut self) -> Self {
        self.reads_everything = true;
        self
    }

    /// Makes [`run`](Self::run) return a summary also if entries could not be read.
    pub fn accept_incomplete(mut self) -> Self {
        self.accepts_incomplete = true;
        self
    }

    /// Chooses how duplicates are found, now and in later backups of this host to the repository. By default a backup
    /// takes what was chosen last. An index that was made in another way may have to be made again.
    pub fn index(mut self, preset: IndexPreset) -> Self {
        self.preset = Some(preset);
        self
    }

    /// Sets who listens, and may interrupt.
    pub fn monitor(mut self, monitor: Arc<dyn Monitor>) -> Self {
        self.monitor = Some(monitor);
        self
    }

    /// Backs up and commits a snapshot. It survives a power cut once this has returned.
    ///
    /// # Errors
    ///
    /// [`Error::Incomplete`] if entries could not be read: the snapshot, which it names, was made without them.
    /// [`Error::IndexBusy`] if another backup of this host is at work. After any other error no snapshot was made, with
    /// the exception that [`Error::UnknownState`] explains.
    pub fn run(self) -> Result<BackupSummary> {
        let recorder = Recorder::new(monitor_or_silent(self.monitor.as_ref()));
        let (repository, accepts) = (self.repository, self.accepts_incomplete);
        let request = self.plan(&(Arc::clone(&recorder) as Arc<dyn Monitor>))?;
        let outcome = repo::backup(&repository.store, &request)?;
        let failures = recorder.take();
        if !accepts {
            failures.judge(outcome.report.failures, Operation::Backup, Some(outcome.report.session))?;
        }
        Ok(summary_of(&outcome, failures))
    }

    fn plan(mut self, monitor: &Arc<dyn Monitor>) -> Result<BackupRequest<'a>> {
        let repository = self.repository;
        if !self.patterns.is_empty() {
            let patterns = Patterns::parse(self.patterns.iter().map(Vec::as_slice), Case::Sensitive)?;
            self.excludes.patterns.push(patterns);
        }
        for own in [&repository.directory, &repository.cache.directory] {
            self.excludes.skip.insert(source::identity(&OsSource::new(), own)?);
        }
        let exclude_texts = self.patterns.iter().map(|pattern| String::from_utf8_lossy(pattern).into_owned()).collect();
        let hostname = self.host.unwrap_or_else(os_identity::host_name);
        let is_stream = matches!(self.from, From::Stream { .. });
        let (source, roots, paths) = open_source(self.from, repository)?;
        // A stream has nothing that could show that it is the same.
        let parent = if self.reads_everything || is_stream { None } else { parent(repository, &hostname, &paths)? };
        let (uid, gid) = os_identity::user_ids();
        let budget = repository.resources.budget();
        let budget = if repository.store.uses_similarity() {
            budget.with_bases(repository.resources.memory_bytes)
        } else {
            budget
        };
        let preset = self.preset.unwrap_or_else(|| repository.cache.cache.index_preset());
        let options = BackupOptions {
            roots,
            paths,
            excludes: Arc::new(self.excludes),
            exclude_texts,
            tags: self.tags,
            hostname,
            username: os_identity::user_name(),
            uid,
            gid,
            time: None,
            parent,
            comparison: Comparison::Full,
            unchanged: Unchanged::Make,
            compression: repository.resources.compression,
            program: PROGRAM.to_owned(),
            preset,
            budget,
            accelerator: None,
            scratch: repository.cache.scratch(),
            similarity: Some(Limits::default()),
            access_times: AccessTimes::LeftOut,
            bases: BaseChoices::default(),
            rewriting: None,
        };
        Ok(BackupRequest {
            cache: &repository.cache.cache,
            index: repository.resources.index(preset),
            source,
            options,
            driver: repository.driver(),
            monitor: Arc::clone(monitor),
            heads: Some(repository.cache.heads(LostHeads::Report)),
        })
    }
}

/// A tree to read, the paths in it as the caller named them, and the same as they are written into the snapshot.
type Source = (Arc<dyn SourceTree>, Vec<PathBuf>, Vec<Vec<u8>>);

fn open_source(from: From, repository: &Repository) -> Result<Source> {
    match from {
        From::Paths(roots) if roots.is_empty() => Err(Error::invalid("nothing to back up: name at least one path")),
        From::Paths(roots) => {
            let tree = OsSource::new();
            let working_directory = tree.canonical(Path::new("."))?;
            let mut paths: Vec<Vec<u8>> =
                roots.iter().map(|root| bytes_of(source::absolute(&working_directory, root))).collect();
            paths.sort_unstable();
            paths.dedup();
            Ok((Arc::new(tree), roots, paths))
        }
        From::Stream { name, reader } => {
            let path = source::absolute(Path::new("/"), &name);
            if path == Path::new("/") {
                return Err(Error::invalid(format!("{}: not the name of a file", name.display())));
            }
            let tree = StreamTree::new(path.clone(), reader, repository.store.host.now());
            Ok((Arc::new(tree), vec![path.clone()], vec![bytes_of(path)]))
        }
    }
}

/// Finds the newest snapshot of the same host and paths.
fn parent(repository: &Repository, hostname: &str, paths: &[Vec<u8>]) -> Result<Option<(SessionId, Snapshot)>> {
    let commits = repository.store.read_commits()?;
    let paths: BTreeSet<&Vec<u8>> = paths.iter().collect();
    let of_host = Selection { hosts: vec![hostname.to_owned()], ..Selection::default() };
    let newest = commits
        .snapshots()
        .into_iter()
        .rev()
        .find(|(_, snapshot)| of_host.admits(snapshot) && snapshot.paths.iter().collect::<BTreeSet<_>>() == paths);
    Ok(newest.map(|(session, snapshot)| (session, snapshot.clone())))
}

fn summary_of(outcome: &BackupOutcome, failures: Failures) -> BackupSummary {
    let counted = &outcome.report.snapshot.summary;
    BackupSummary {
        snapshot: outcome.report.session,
        files_new: counted.files_new,
        files_changed: counted.files_changed,
        files_unmodified: counted.files_unmodified,
        bytes_processed: counted.bytes_processed,
        bytes_added: counted.data_added,
        bytes_stored: counted.data_added_packed,
        failures: failures.count.max(outcome.report.failures),
        failed: failures.first,
    }
}
