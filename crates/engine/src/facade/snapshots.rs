//! Listing snapshots.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::check::{LostHeads, read_commits_compared};
use crate::error::Result;
use crate::facade::Repository;
use crate::snapshot::Snapshot;
use crate::types::{SessionId, Timestamp};

/// A snapshot of a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its id.
    pub id: SessionId,
    /// When its backup began.
    pub time: Timestamp,
    /// The host that was backed up.
    pub host: String,
    /// The paths that were backed up, absolute.
    pub paths: Vec<PathBuf>,
    /// Its labels.
    pub tags: Vec<String>,
    /// Regular files in it.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
}

impl SnapshotInfo {
    fn of(id: SessionId, snapshot: &Snapshot) -> Self {
        let path = |bytes: &Vec<u8>| PathBuf::from(OsString::from_vec(bytes.clone()));
        Self {
            id,
            time: snapshot.time,
            host: snapshot.hostname.clone(),
            paths: snapshot.paths.iter().map(path).collect(),
            tags: snapshot.tags.clone(),
            files: snapshot.summary.files_processed,
            bytes: snapshot.summary.bytes_processed,
        }
    }
}

impl Repository {
    /// Lists the snapshots, oldest first.
    ///
    /// # Errors
    ///
    /// Fails if any snapshot cannot be read, naming it: a list without it would be a wrong answer.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let commits = self.store.read_commits()?;
        let unread = commits.findings.iter().map(|(_, error)| error).chain(&commits.not_forgotten).next();
        if let Some(error) = unread {
            return Err(error.clone().context("not every snapshot can be read"));
        }
        Ok(commits.snapshots().into_iter().map(|(id, snapshot)| SnapshotInfo::of(id, snapshot)).collect())
    }

    /// Returns the newest snapshots that this host has seen and that are gone: somebody has removed them, or an older copy of the
    /// repository stands here. They are returned each time until [`accept_lost_snapshots`](Self::accept_lost_snapshots).
    ///
    /// # Errors
    ///
    /// Fails if what this host has seen cannot be read or written.
    pub fn lost_snapshots(&self) -> Result<Vec<SessionId>> {
        self.compare(LostHeads::Report)
    }

    /// Remembers the present snapshots instead of those that are gone, which it returns.
    ///
    /// # Errors
    ///
    /// As [`lost_snapshots`](Self::lost_snapshots).
    pub fn accept_lost_snapshots(&self) -> Result<Vec<SessionId>> {
        self.compare(LostHeads::Accept)
    }

    fn compare(&self, lost: LostHeads) -> Result<Vec<SessionId>> {
        let compared = read_commits_compared(&self.store, &self.cache.heads(lost))?;
        match compared.problems.into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(compared.heads.lost.into_iter().map(|head| head.session).collect()),
        }
    }
}
