//! A consistency group in use: its journal, its requests, and the volumes themselves.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Disk, Host};

use crate::journal::codec::{BLOCK_BYTES, RECORD_HEADER_BYTES, frame_bytes};
use crate::journal::{AppendError, Journal, JournalIdentity, JournalSize, Lsn, Op, Record, Recovered};
use crate::nbd::export::{Export, Fua, ZeroOptions};
use crate::nbd::wire::Errno;
use crate::volume::activity::{ActivityLog, Extent, LastUse, extents_of};
use crate::volume::behind::BehindMap;
use crate::volume::group_files::{ACTIVITY, BEHIND, JOURNAL, open_journal};
use crate::volume::pressure::{FULL_WAIT, JournalFill, Pacer};
use crate::volume::range_lock::{HeldRange, RangeLock};
use crate::volume::releases::Releases;
use crate::volume::requests::{Mode, Request, Requests, State};
use crate::volume::syncs::{Syncs, Wanted};

/// Most volumes of a group: records that begin a gap in all of them fit into one frame.
pub const VOLUMES_MAX: usize = 1024;
/// Active extents from which a flush ends the activity of those that it has synced.
const ACTIVE_AT_FLUSH: usize = 512;

/// Age from which changes that no client has flushed are made durable. With [`Group::maintain`] called every 200 ms, and syncs that
/// take 300 ms, a power cut takes at most the writes of one second.
pub const UNSYNCED_AGE: Duration = Duration::from_millis(500);

/// Parts that a flush makes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Journal and volume.
    Both,
    /// The journal. Records that the volume lost in a power cut are written to it again at the next opening.
    Journal,
}

/// Outcome of a write when the journal is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenBehind {
    /// It waits until a checkpoint has given space back.
    Block,
    /// It fails with ENOSPC.
    Fail,
    /// It is not recorded. Its extents are marked as behind, the history gets a gap, and their bytes are recorded when there is space again.
    Bitmap,
}

/// How a group works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupOptions {
    /// Size of the journal.
    pub size: JournalSize,
    /// Parts that a flush makes durable.
    pub durability: Durability,
    /// Outcome of a write when the journal is full.
    pub when_behind: WhenBehind,
}

/// State of a group at its opening.
#[derive(Debug)]
pub struct Opened {
    /// The journal.
    pub journal: Recovered,
    /// How the last use ended.
    pub last: LastUse,
    /// Records that were written to the volumes again.
    pub applied: u64,
    /// Extents in which the volume may hold writes that the journal has lost. [`Group::compare`] must follow if the last use ended with a
    /// power cut, even without any.
    pub suspect: Vec<Extent>,
}

/// A consistency group in use.
#[derive(Debug)]
pub struct Group {
    pub(super) journal: Journal,
    pub(super) host: Arc<dyn Host>,
    pub(super) options: GroupOptions,
    pub(super) origins: Vec<Arc<dyn Export>>,
    /// One for each volume.
    locks: Vec<RangeLock>,
    pub(super) behind: BehindMap,
    /// Position of the thread that records extents that are behind.
    pub(super) cursor: Mutex<u64>,
    pub(super) requests: Requests,
    pacer: Pacer,
    pub(super) syncs: Syncs,
    /// Held by a scan.
    pub(super) scanning: Mutex<()>,
    releases: Releases,
    /// True if no write waits for space of the journal any more.
    pub(super) is_ending: AtomicBool,
}

/// Keeps all records of a journal until this is dropped.
#[derive(Debug)]
pub struct HeldRecords<'a>(&'a Group);

impl Drop for HeldRecords<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.0.releases.end_reader() {
            self.0.release_now(before);
        }
    }
}

impl Group {
    /// Creates the files of a group in an existing, empty directory. `sizes` are those of its volumes.
    pub fn create(disk: &dyn Disk, dir: &Path, sizes: &[u64]) -> Result<()> {
        Self::create_files(disk, dir, sizes, false)
    }

    /// Like [`Group::create`], for volumes whose present bytes are to enter the history as records: all their extents are behind.
    pub fn create_unstored(disk: &dyn Disk, dir: &Path, sizes: &[u64]) -> Result<()> {
        Self::create_files(disk, dir, sizes, true)
    }

    fn create_files(disk: &dyn Disk, dir: &Path, sizes: &[u64], is_behind: bool) -> Result<()> {
        Journal::create(disk, &dir.join(JOURNAL))?;
        ActivityLog::create(disk, &dir.join(ACTIVITY))?;
        BehindMap::create(disk, &dir.join(BEHIND), sizes, is_behind)?;
        disk.sync_dir(dir)
    }

    /// Opens a group over its volumes, in the order of their numbers, and writes records again that they may lack.
    ///
    /// The caller excludes other processes.
    pub fn open(
        disk: &Arc<dyn Disk>,
        host: Arc<dyn Host>,
        dir: &Path,
        identity: JournalIdentity,
        origins: Vec<Arc<dyn Export>>,
        options: GroupOptions,
    ) -> Result<(Self, Opened)> {
        if VOLUMES_MAX < origins.len() {
            return Err(Error::invalid(format!("a group has at most {VOLUMES_MAX} volumes")));
        }
        let (journal, recovered) = open_journal(disk, Arc::clone(&host), dir, identity, options.size)?;
        let boot = host.process().map_or([0; 16], |process| process.boot);
        let (log, last) = ActivityLog::open(&**disk, &dir.join(ACTIVITY), boot)?;
        let synced = log.synced();
        if synced < recovered.first && last != LastUse::Closed {
            let reason = format!("the volumes hold the records before {synced}, and its first is {}", recovered.first);
            return Err(Error::damaged(format!("journal {}", disk.display(dir)), reason));
        }
        let sizes: Vec<u64> = origins.iter().map(|origin| origin.size()).collect();
        let behind = BehindMap::open(&**disk, &dir.join(BEHIND), &sizes)?;
        let suspect = if last == LastUse::PowerCut { log.active().collect() } else { Vec::new() };
        // Extents that are behind may have no gap in the history yet.
        let mode = if behind.is_empty() { Mode::Recording } else { Mode::Behind };
        let requests = Requests::new(log, mode, last != LastUse::PowerCut);
        let locks = origins.iter().map(|_| RangeLock::default()).collect();
        let cursor = Mutex::new(0);
        let (pacer, syncs) = (Pacer::new(host.monotonic()), Syncs::new(&origins)?);
        let (scanning, releases, is_ending) = (Mutex::new(()), Releases::default(), AtomicBool::new(false));
        let group = Self {
            journal,
            host,
            options,
            origins,
            locks,
            behind,
            cursor,
            requests,
            pacer,
            syncs,
            scanning,
            releases,
            is_ending,
        };
        let applied = if last == LastUse::Closed { 0 } else { group.apply_from(synced)? };
        if last != LastUse::PowerCut {
            group.continue_behind()?;
        }
        Ok((group, Opened { journal: recovered, last, applied, suspect }))
    }

    /// Writes records again, in order, from one on.
    fn apply_from(&self, from: Lsn) -> Result<u64> {
        let mut applied = 0;
        let mut frames = self.journal.frames(from);
        while frames.next_frame(&mut |entry| {
            applied += 1;
            self.apply(&entry.record)
        })? {}
        Ok(applied)
    }

    fn apply(&self, record: &Record<'_>) -> Result<()> {
        let Some(origin) = self.origins.get(usize::from(record.volume)) else {
            return Err(Error::damaged("journal", format!("volume {} is not in the group", record.volume)));
        };
        let outcome = match record.op {
            Op::Write => origin.write(record.offset, record.payload, Fua::No),
            Op::Zero | Op::Trim => origin.write_zeroes(record.offset..record.offset + record.len, ZEROS),
            Op::Mark | Op::Gap | Op::ResyncBegin | Op::ResyncEnd | Op::Resize | Op::Flush => Ok(()),
        };
        outcome.map_err(|errno| {
            let end = record.offset + record.len;
            Error::invalid(format!(
                "volume {}: bytes {} to {end} cannot be written: {errno:?}",
                record.volume, record.offset
            ))
        })
    }

    /// Returns the journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Returns a volume itself.
    pub(super) fn origin(&self, volume: u16) -> &dyn Export {
        let origin = self.origins.get(usize::from(volume)).expect("volumes of a group have numbers");
        &**origin
    }

    /// Waits until nobody changes a part of a range of a volume, and keeps others from changing it.
    pub(super) fn hold(&self, volume: u16, range: Range<u64>) -> HeldRange<'_> {
        self.locks.get(usize::from(volume)).expect("volumes of a group have numbers").hold(range)
    }

    /// Returns how many volumes the group has.
    pub fn volumes(&self) -> usize {
        self.origins.len()
    }

    /// Returns the extents whose bytes in the volume may differ from those in the history.
    pub fn behind(&self) -> &BehindMap {
        &self.behind
    }

    /// Returns the record before which all are durable in the volumes.
    pub fn synced(&self) -> Lsn {
        self.requests.lock().log.synced()
    }

    /// Names the present moment; returns its record, which is durable.
    ///
    /// Fails while changes are missing in the history: the moment could not be brought back.
    pub fn mark(&self, name: &str) -> Result<Lsn> {
        let failed = |error: AppendError| Error::invalid(error.to_string());
        let request = self.begin(0, 0..0, true).map_err(|_| Error::invalid("the group takes no records any more"))?;
        if !request.is_recorded() || !self.behind.is_empty() {
            let reason =
                "changes are missing in the history until their extents are recorded again: this moment has no name";
            return Err(Error::invalid(reason));
        }
        let lsn = self.append(&Record::mark(name)).map_err(failed)?;
        self.journal.commit(lsn).and_then(|()| self.journal.sync()).map_err(failed)?;
        Ok(lsn)
    }

    /// Keeps all records of the journal, for somebody who reads them. Space that is released meanwhile comes back afterwards.
    pub fn hold_records(&self) -> HeldRecords<'_> {
        self.releases.begin_reader();
        HeldRecords(self)
    }

    /// Gives records back that nobody needs any more, apart from those that the volumes may lack.
    pub fn release(&self, before: Lsn) {
        if let Some(before) = self.releases.allow(before) {
            self.release_now(before);
        }
    }

    fn release_now(&self, before: Lsn) {
        let synced = self.requests.lock().log.synced();
        let used = self.journal.status().used;
        self.journal.release(before.min(synced));
        let bytes = used.saturating_sub(self.journal.status().used);
        if bytes != 0 {
            self.pacer.note_returned(bytes, self.host.monotonic());
        }
    }

    fn fill(&self) -> JournalFill {
        let status = self.journal.status();
        let returned = self.pacer.returned(status.bytes_max);
        JournalFill { used: status.used, bytes_max: status.bytes_max, returned }
    }

    /// Delays a change by the fill of the journal, if changes wait for its space.
    pub(super) fn pace(&self, len: u64) {
        if self.options.when_behind != WhenBehind::Block {
            return;
        }
        let fill = self.fill();
        if fill.is_tight() {
            let now = self.host.monotonic();
            self.host.sleep(self.pacer.wait(fill.delay(len), now));
        }
    }

    /// Returns false if changes may wait for something slow: space of the journal, or marks of extents that are behind.
    pub(super) fn is_prompt(&self) -> bool {
        !self.fill().is_tight() && self.requests.lock().mode == Mode::Recording
    }

    /// Bytes of the journal that are left for the records which begin a gap. Where changes may go on without records, it is a segment: the next
    /// opening continues none.
    pub(super) fn reserve(&self) -> u64 {
        if self.options.when_behind == WhenBehind::Bitmap {
            return self.options.size.segment_bytes - BLOCK_BYTES as u64;
        }
        frame_bytes(self.origins.len() * RECORD_HEADER_BYTES) as u64
    }

    /// Begins a request for a range, which may be empty. While nothing can be recorded, the request is not recorded if that is allowed;
    /// else it waits or fails, as the group works.
    pub(super) fn begin(&self, volume: u16, range: Range<u64>, may_be_unrecorded: bool) -> Result<Request<'_>, Errno> {
        let mut state = self.requests.lock();
        loop {
            if !state.is_usable {
                return Err(Errno::Io);
            }
            match state.mode {
                Mode::Changing => state = self.requests.wait(state),
                Mode::Recording => {
                    let extents = extents_of(volume, range.clone());
                    if state.log.activate(extents).map_err(|_| Errno::Io)? {
                        let next = self.journal.next();
                        return Ok(self.requests.begin(state, (volume, range), Some(next)));
                    }
                    let before = state.log.active().len();
                    state = self.clean(state)?;
                    if before <= state.log.active().len() {
                        // Requests that go on have all of them.
                        drop(state);
                        self.host.sleep(FULL_WAIT);
                        state = self.requests.lock();
                    }
                }
                Mode::Behind => {
                    drop(state);
                    let is_recording = self.record_again_if_possible().map_err(|error| errno_of(&error))?;
                    state = self.requests.lock();
                    if is_recording || state.mode != Mode::Behind {
                        continue;
                    }
                    if may_be_unrecorded {
                        return Ok(self.requests.begin(state, (volume, range), None));
                    }
                    drop(state);
                    if !self.waits_for_space() {
                        return Err(Errno::NoSpace);
                    }
                    state = self.requests.lock();
                }
            }
        }
    }

    /// Makes changes durable that are older than [`UNSYNCED_AGE`], if there are any. Whoever uses a group calls this often.
    pub fn maintain(&self) -> Result<()> {
        if self.journal.unsynced_age().is_some_and(|age| UNSYNCED_AGE <= age) {
            self.journal.sync().map_err(|error| Error::invalid(error.to_string()))?;
        }
        let mut state = self.requests.lock();
        let due = self.host.monotonic().saturating_sub(UNSYNCED_AGE);
        if state.unrecorded_since.take_if(|since| *since <= due).is_none() {
            return Ok(());
        }
        drop(state);
        // What was made without a record is in the volumes alone.
        let failed = |errno| Error::invalid(format!("the volumes cannot be synced: {errno:?}"));
        self.sync_both(0..self.origins.len()).map_err(failed)
    }

    /// Makes journal and volumes durable, so that records before the present moment can be released.
    pub fn sync(&self) -> Result<(), Errno> {
        let mut state = self.requests.lock();
        while state.is_cleaning {
            state = self.requests.wait(state);
        }
        self.clean(state).map(drop)
    }

    /// Makes what clients have written durable.
    pub(super) fn flush(&self, volume: u16) -> Result<(), Errno> {
        let request = self.begin(volume, 0..0, true)?;
        // What is in the volume alone is durable there alone.
        let needs_volume = self.options.durability == Durability::Both || !self.behind.is_empty();
        // Answered writes are in the volume, so its sync does not wait for the record.
        let begun = needs_volume.then(|| self.syncs.begin(volume.into()));
        if request.is_recorded() {
            match self.append(&Record::range(Op::Flush, volume, 0, 0)) {
                Ok(lsn) => self.journal.commit(lsn).map_err(|error| errno_of(&error))?,
                // The moment is none that can be asked for, and what was written is durable all the same.
                Err(AppendError::Full) if self.options.when_behind == WhenBehind::Bitmap => {}
                Err(error) => return Err(errno_of(&error)),
            }
        }
        drop(request);
        self.sync_journal_and(begun)?;
        let state = self.requests.lock();
        if self.options.durability == Durability::Both && ACTIVE_AT_FLUSH < state.log.active().len() {
            drop(self.clean(state)?);
        }
        Ok(())
    }

    /// Syncs the journal and volumes at the same time.
    fn sync_both(&self, volumes: Range<usize>) -> Result<(), Errno> {
        let begun: Vec<Wanted> = volumes.map(|volume| self.syncs.begin(volume)).collect();
        self.sync_journal_and(begun)
    }

    /// Syncs the journal while syncs of volumes go on; returns when all have ended.
    fn sync_journal_and(&self, begun: impl IntoIterator<Item = Wanted>) -> Result<(), Errno> {
        let journal = self.journal.sync().map_err(|error| errno_of(&error));
        let synced = begun.into_iter().map(|wanted| self.syncs.finish(wanted)).fold(Ok(()), Result::and);
        journal.and(synced)
    }

    /// Syncs the journal and all volumes, and ends the activity of what was not written meanwhile. If another thread is at it, waits for
    /// that one.
    fn clean<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>, Errno> {
        if state.is_cleaning {
            while state.is_cleaning {
                state = self.requests.wait(state);
            }
            return Ok(state);
        }
        state.is_cleaning = true;
        let writing: BTreeSet<Extent> = state.writing.keys().copied().collect();
        state.recent.clear();
        // Records of writes that go on may not be in the volumes yet.
        let synced = state.starts.keys().next().copied().unwrap_or_else(|| self.journal.next());
        drop(state);
        let outcome = self.sync_both(0..self.origins.len());
        let mut state = self.requests.lock();
        state.is_cleaning = false;
        let outcome = outcome.and_then(|()| {
            let kept = state.recent.union(&writing).copied().collect();
            state.log.retain(kept, synced).map_err(|_| Errno::Io)
        });
        self.requests.notify();
        outcome.map(|()| state)
    }

    /// Closes the group: journal and volumes are durable and agree, apart from extents that are behind. Later writes are refused.
    ///
    /// Fails if a request is in progress, or if a volume lacks a change that its history has: then the next opening writes the records again.
    pub fn close(&self) -> Result<()> {
        let failed = |errno: Errno| Error::invalid(format!("the volumes cannot be synced: {errno:?}"));
        let mut state = self.requests.lock();
        let agrees = std::mem::replace(&mut state.is_usable, false) && state.in_progress == 0;
        drop(state);
        if !agrees {
            return Err(Error::invalid(
                "the volumes may lack records of the journal, which the next server writes again",
            ));
        }
        self.journal.close(self.reserve()).map_err(|error| Error::invalid(error.to_string()))?;
        self.sync_both(0..self.origins.len()).map_err(failed)?;
        self.behind.persist()?;
        let next = self.journal.status().next;
        self.requests.lock().log.close(next)
    }
}

/// How discarded ranges and zeros reach a volume.
pub(super) const ZEROS: ZeroOptions = ZeroOptions { fua: Fua::No, allocate: false, fast: false };

/// Returns the reason for the client.
pub(super) fn errno_of(error: &AppendError) -> Errno {
    match error {
        AppendError::Full => Errno::NoSpace,
        AppendError::Failed(_) => Errno::Io,
    }
}
