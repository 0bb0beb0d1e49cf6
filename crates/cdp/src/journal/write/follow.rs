//! Copies of a journal: what the sender of one needs, and what its receiver writes.

use std::sync::PoisonError;
use std::time::Duration;

use crate::journal::codec::{FRAME_BODY_MAX, Records};
use crate::journal::reader::Frames;
use crate::journal::write::Journal;
use crate::journal::{AppendError, Lsn};

impl Journal {
    /// Appends the records of a frame of another journal, with their numbers and their time, in nanoseconds since 1970-01-01 00:00:00
    /// UTC; returns when they are in their file. Nobody else may append.
    ///
    /// # Panics
    ///
    /// If the body does not hold so many sound records, or if the first one is not the next of this journal.
    pub fn append_frame(&self, first: Lsn, time: u64, records: u32, body: &[u8]) -> Result<(), AppendError> {
        assert!(body.len() <= FRAME_BODY_MAX && records != 0, "{records} records, {} bytes", body.len());
        assert!(Records::of(body, records).is_some(), "{records} records that are not sound");
        let mut state = self.lock();
        if let Some(error) = &state.failed {
            return Err(AppendError::Failed(error.clone()));
        }
        assert!(state.next == first && state.open.records == 0, "record {first} after {}", state.next);
        if !self.has_space(&state, body.len(), 0) {
            return Err(AppendError::Full);
        }
        state.open.bytes.extend_from_slice(body);
        state.open.records = records;
        state.open.time = Some(time);
        state.next = Lsn(first.0 + u64::from(records));
        let last = Lsn(state.next.0 - 1);
        drop(state);
        self.commit(last)
    }

    /// Waits until a record is durable, at most for a time; returns the record after the last that is.
    pub fn wait_durable(&self, lsn: Lsn, patience: Duration) -> Lsn {
        let is_missing = |state: &mut super::State| state.synced <= lsn && state.failed.is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), patience, is_missing);
        waited.unwrap_or_else(PoisonError::into_inner).0.synced
    }

    /// Lets a reader go on to the last record that is durable now. [`Journal::release`] must not have released what it has not read.
    pub fn follow(&self, frames: &mut Frames) {
        let state = self.lock();
        let end = state.synced;
        frames.extend(state.segments.iter().map(|(number, _)| *number), end);
    }
}
