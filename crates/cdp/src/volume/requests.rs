//! Requests in progress: which of them are recorded, and which extents they may change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::journal::Lsn;
use crate::volume::activity::{ActivityLog, Extent, extents_of};
use crate::volume::behind::VolumeRange;

/// How changes of a group are treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// They are recorded.
    Recording,
    /// One of the others follows. No request is in progress soon, and none begins.
    Changing,
    /// Extents are behind, and the history does not say so for all of them: nothing is recorded before it does.
    Behind,
}

/// State of the requests of a group.
#[derive(Debug)]
pub(super) struct State {
    pub(super) log: ActivityLog,
    pub(super) mode: Mode,
    /// Requests that have begun and not ended.
    pub(super) in_progress: u32,
    /// Extents of recorded changes that go on, and the next record when each began, with their numbers.
    pub(super) writing: BTreeMap<Extent, u32>,
    pub(super) starts: BTreeMap<Lsn, u32>,
    /// Extents that were written since the last syncs began.
    pub(super) recent: BTreeSet<Extent>,
    pub(super) is_cleaning: bool,
    /// False until the extents that may differ after a power cut were compared, after the group was closed, and once a volume differs from
    /// its history: the next opening writes the records again.
    pub(super) is_usable: bool,
    /// Ranges that were recorded again and are still marked as behind: the journal is not durable up to there.
    pub(super) resynced: Vec<VolumeRange>,
    /// When the first change without a record was made that no sync of the volumes covers, by the host's monotonic clock.
    pub(super) unrecorded_since: Option<Duration>,
    /// Extents that were written since a scan watches.
    pub(super) written: Option<BTreeSet<Extent>>,
}

/// The requests of a group.
#[derive(Debug)]
pub(super) struct Requests {
    state: Mutex<State>,
    changed: Condvar,
}

/// A request in progress; ends when this is dropped.
#[derive(Debug)]
pub(super) struct Request<'a> {
    requests: &'a Requests,
    volume: u16,
    range: Range<u64>,
    /// The next record when it began, if it is recorded.
    start: Option<Lsn>,
    is_unfinished: bool,
}

impl Requests {
    pub(super) fn new(log: ActivityLog, mode: Mode, is_usable: bool) -> Self {
        let state = State {
            log,
            mode,
            in_progress: 0,
            writing: BTreeMap::new(),
            starts: BTreeMap::new(),
            recent: BTreeSet::new(),
            is_cleaning: false,
            is_usable,
            resynced: Vec::new(),
            unrecorded_since: None,
            written: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until [`Requests::notify`] is called.
    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Begins a request for a range, which may be empty. `next` is the next record; `None` if the request is not recorded.
    pub(super) fn begin<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        (volume, range): (u16, Range<u64>),
        next: Option<Lsn>,
    ) -> Request<'a> {
        state.in_progress += 1;
        if let Some(written) = &mut state.written {
            written.extend(extents_of(volume, range.clone()));
        }
        if let Some(start) = next {
            add(&mut state.starts, start);
            for extent in extents_of(volume, range.clone()) {
                add(&mut state.writing, extent);
                state.recent.insert(extent);
            }
        }
        Request { requests: self, volume, range, start: next, is_unfinished: false }
    }

    /// Ends one mode: keeps requests from beginning, and waits for those in progress. Returns false if the group is in another mode; waits
    /// for the end of a change.
    pub(super) fn end_mode(&self, mode: Mode) -> bool {
        let mut state = self.lock();
        while state.mode == Mode::Changing {
            state = self.wait(state);
        }
        if state.mode != mode {
            return false;
        }
        state.mode = Mode::Changing;
        while state.in_progress != 0 {
            state = self.wait(state);
        }
        true
    }

    /// Begins a mode.
    pub(super) fn begin_mode(&self, mode: Mode) {
        self.lock().mode = mode;
        self.notify();
    }
}

impl Request<'_> {
    pub(super) fn is_recorded(&self) -> bool {
        self.start.is_some()
    }

    /// Ends the request although the volume lacks its change: its record stays in the journal, and its extents stay active, so that the
    /// next opening writes the record again. No other change is made until then.
    pub(super) fn leave_unfinished(mut self) {
        self.is_unfinished = true;
        self.requests.lock().is_usable = false;
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut state = self.requests.lock();
        state.in_progress -= 1;
        if let Some(start) = self.start.filter(|_| !self.is_unfinished) {
            subtract(&mut state.starts, start);
            extents_of(self.volume, self.range.clone()).for_each(|extent| subtract(&mut state.writing, extent));
        }
        let is_awaited = state.mode == Mode::Changing && state.in_progress == 0;
        drop(state);
        if is_awaited {
            self.requests.notify();
        }
    }
}

fn add<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    *counts.entry(key).or_default() += 1;
}

fn subtract<K: Ord + Copy>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}
