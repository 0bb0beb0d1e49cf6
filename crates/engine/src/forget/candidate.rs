//! A snapshot as a policy sees it.

use crate::snapshot::Snapshot;
use crate::types::{SessionId, Timestamp};

/// A snapshot that a policy decides on.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its id.
    pub id: SessionId,
    /// The snapshot.
    pub snapshot: &'a Snapshot,
    /// When the repository received it, if that is known.
    pub received: Option<Received>,
    /// Times of the commits that it found in the repository.
    pub heads: Vec<HeadTime>,
}

/// When the repository received a snapshot, by the clock of its file system or server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The start of its session.
    pub begin: Timestamp,
    /// Its commit.
    pub end: Timestamp,
}

/// Time of a commit that a snapshot found in the repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadTime {
    /// Its own time.
    pub time: Timestamp,
    /// When it was received, if that is known.
    pub received: Option<Received>,
}
