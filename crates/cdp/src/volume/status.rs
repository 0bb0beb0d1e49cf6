//! State of a group, for people and programs.

use std::time::Duration;

use onefold_engine::error::Error;

use crate::journal::JournalStatus;
use crate::volume::group::Group;
use crate::volume::requests::Mode;

/// State of a group.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// Its journal.
    pub journal: JournalStatus,
    /// Age of the oldest record that is not durable; `None` if all are.
    pub unsynced_age: Option<Duration>,
    /// Extents of the activity log.
    pub active_extents: usize,
    /// Bytes whose changes the history lacks. While there are any, it has a gap.
    pub behind_bytes: u64,
    /// False while changes are made without a record, or wait for one.
    pub is_recording: bool,
    /// The reason for which writes fail until the group is opened again.
    pub failure: Option<Error>,
}

impl Group {
    /// Returns the state.
    pub fn status(&self) -> GroupStatus {
        let state = self.requests.lock();
        let (active_extents, is_recording) = (state.log.active().len(), state.mode == Mode::Recording);
        let is_usable = state.is_usable;
        drop(state);
        let lacking =
            || Error::invalid("a volume lacks a change that its history has, which the next server writes again");
        let failure =
            self.journal.failure().or_else(|| self.behind.failure()).or_else(|| self.requests.lock().log.failure());
        GroupStatus {
            journal: self.journal.status(),
            unsynced_age: self.journal.unsynced_age(),
            active_extents,
            behind_bytes: self.behind.bytes(),
            is_recording,
            failure: failure.or_else(|| (!is_usable).then(lacking)),
        }
    }
}
