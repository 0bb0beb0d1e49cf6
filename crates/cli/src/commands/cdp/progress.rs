//! Results of the thread that makes checkpoints, for `cdp status`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use onefold_cdp::checkpoint::MadeCheckpoint;
use onefold_cdp::journal::Lsn;
use onefold_cdp::stored::Checkpoint;
use onefold_engine::io::Host as _;
use onefold_engine::io::os::OsHost;
use onefold_engine::types::{SessionId, Timestamp};

/// The newest checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    pub(super) snapshot: SessionId,
    pub(super) last: Lsn,
    pub(super) time: Timestamp,
}

#[derive(Clone, Debug, Default)]
struct State {
    newest: Option<Newest>,
    error: Option<String>,
}

/// Results of checkpoints.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<State>);

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the newest checkpoint of the repository.
    pub(super) fn note_stored(&self, newest: Option<&Checkpoint>) {
        let of = |newest: &Checkpoint| Newest { snapshot: newest.snapshot, last: newest.last(), time: newest.time };
        self.lock().newest = newest.map(of);
    }

    /// Notes the outcome of a checkpoint.
    pub(super) fn note(&self, outcome: &Result<Option<MadeCheckpoint>>) {
        let mut state = self.lock();
        match outcome {
            Ok(made) => {
                let time = OsHost::new().now();
                let of = |made: &MadeCheckpoint| Newest { snapshot: made.snapshot, last: made.last, time };
                state.newest = made.as_ref().map(of).or(state.newest);
                state.error = None;
            }
            Err(error) => state.error = Some(format!("{error:#}")),
        }
    }

    /// Returns the newest checkpoint, and the error of the last attempt if it has failed.
    pub(super) fn state(&self) -> (Option<Newest>, Option<String>) {
        let State { newest, error } = self.lock().clone();
        (newest, error)
    }
}
