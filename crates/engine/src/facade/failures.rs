//! Failures of an operation, kept for its summary.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::monitor::{Action, Monitor};
use crate::types::SessionId;

/// Failures that are kept; those beyond are counted.
const FAILURES_MAX: usize = 100;

/// Something that could not be read or written, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The path: in the source of a backup, in the snapshot of a restore; or an object of the repository.
    pub path: PathBuf,
    /// Reason, as a clause without period. It may name the path.
    pub reason: String,
}

impl fmt::Display for Failure {
    /// Writes the reason, after the path unless the reason names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        if self.reason.contains(&*path) { f.write_str(&self.reason) } else { write!(f, "{path}: {}", self.reason) }
    }
}

/// Hands everything on to the caller's monitor and keeps the failures.
#[derive(Debug)]
pub(super) struct Recorder {
    monitor: Arc<dyn Monitor>,
    failures: Mutex<Failures>,
}

/// Failures.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures {
    /// Number of all.
    pub(super) count: u64,
    /// The first [`FAILURES_MAX`].
    pub(super) first: Vec<Failure>,
}

impl Recorder {
    pub(crate) fn new(monitor: Arc<dyn Monitor>) -> Arc<Self> {
        Arc::new(Self { monitor, failures: Mutex::default() })
    }

    pub(super) fn take(&self) -> Failures {
        std::mem::take(&mut *self.failures.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Failures {
    /// Fails if anything failed that the caller has not accepted. `counted` is what the operation itself has counted.
    pub(super) fn judge(&self, counted: u64, operation: Operation, made: Option<SessionId>) -> Result<()> {
        let failures = self.count.max(counted);
        if failures == 0 {
            return Ok(());
        }
        let first = self.first.first().map(Failure::to_string);
        let operation = match operation {
            Operation::Backup => "backup",
            Operation::Restore => "restore",
        };
        Err(Error::Incomplete { operation, snapshot: made, failures, first: first.unwrap_or_default() })
    }
}

/// What was not done in full.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Backup,
    Restore,
}

impl Monitor for Recorder {
    fn begin(&self, path: &Path) {
        self.monitor.begin(path);
    }

    fn advance(&self, bytes: u64, files: u64) {
        self.monitor.advance(bytes, files);
    }

    fn added(&self, bytes: u64) {
        self.monitor.added(bytes);
    }

    fn entry(&self, path: &Path, action: Action) {
        self.monitor.entry(path, action);
    }

    fn directory(&self, path: &Path, action: Action) {
        self.monitor.directory(path, action);
    }

    fn deleted(&self, path: &Path) {
        self.monitor.deleted(path);
    }

    fn failure(&self, path: &Path, error: &Error) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.count += 1;
        if failures.first.len() < FAILURES_MAX {
            failures.first.push(Failure { path: path.to_path_buf(), reason: error.to_string() });
        }
        drop(failures);
        self.monitor.failure(path, error);
    }

    fn note(&self, text: &str) {
        self.monitor.note(text);
    }

    fn is_interrupted(&self) -> bool {
        self.monitor.is_interrupted()
    }
}
