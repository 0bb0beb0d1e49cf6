//! Records on their way into the journal, which may be full.

use std::sync::atomic::Ordering;

use crate::journal::{AppendError, Lsn, Record};
use crate::volume::group::{Group, WhenBehind};
use crate::volume::pressure::FULL_WAIT;

impl Group {
    /// Appends a record, and waits for space if that is how the group works.
    pub(super) fn append(&self, record: &Record<'_>) -> Result<Lsn, AppendError> {
        self.append_waiting(std::slice::from_ref(record))
    }

    /// Appends records that a crash keeps all or none of; waits for space if that is how the group works.
    pub(super) fn append_waiting(&self, records: &[Record<'_>]) -> Result<Lsn, AppendError> {
        loop {
            match self.append_now(records) {
                Err(AppendError::Full) if self.waits_for_space() => {}
                outcome => return outcome,
            }
        }
    }

    /// Lets writes that wait for space of the journal fail from now on, so that a server can stop.
    pub fn end_waits(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// Waits a while for space of the journal; returns false if the group does not wait for it.
    pub(super) fn waits_for_space(&self) -> bool {
        let waits = self.options.when_behind == WhenBehind::Block && !self.is_ending.load(Ordering::Acquire);
        if waits {
            self.host.sleep(FULL_WAIT);
        }
        waits
    }

    /// Appends records that a crash keeps all or none of, without waiting for space.
    pub(super) fn append_now(&self, records: &[Record<'_>]) -> Result<Lsn, AppendError> {
        self.journal.append_together(records, self.reserve())
    }
}
