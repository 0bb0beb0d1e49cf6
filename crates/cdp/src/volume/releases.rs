//! Records of the journal that may be released, and readers that need them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::journal::Lsn;

#[derive(Debug, Default)]
struct State {
    /// Records before this one may be released.
    before: Lsn,
    readers: u32,
}

/// Records that may be released once nobody reads the journal.
#[derive(Debug, Default)]
pub(super) struct Releases(Mutex<State>);

impl Releases {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allows records before one to be released. Returns up to where that can be done now.
    pub(super) fn allow(&self, before: Lsn) -> Option<Lsn> {
        let mut state = self.lock();
        state.before = state.before.max(before);
        (state.readers == 0).then_some(state.before)
    }

    pub(super) fn begin_reader(&self) {
        self.lock().readers += 1;
    }

    /// Ends a reader. Returns up to where records can be released now.
    pub(super) fn end_reader(&self) -> Option<Lsn> {
        let mut state = self.lock();
        state.readers -= 1;
        (state.readers == 0).then_some(state.before)
    }
}
