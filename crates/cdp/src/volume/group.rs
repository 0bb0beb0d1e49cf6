//! A consistency group in use: its journal, its activity log, and the volumes themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Disk, Host};

use crate::journal::{AppendError, Journal, JournalIdentity, JournalSize, Lsn, Op, Record, Recovered};
use crate::nbd::export::{Export, Fua, ZeroOptions};
use crate::nbd::wire::Errno;
use crate::volume::activity::{ActivityLog, EXTENT_BYTES, Extent, LastUse};

/// Name of the activity log in the group's directory, and of the directory of its journal.
const ACTIVITY: &str = "activity";
const JOURNAL: &str = "journal";
/// Bytes that are compared at a time, and the unit of differences.
const COMPARED_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 4096;
/// How long a write that found the journal full waits before it looks again.
const FULL_WAIT: Duration = Duration::from_millis(20);
/// Active extents from which a flush ends the activity of those that it has synced.
const ACTIVE_AT_FLUSH: usize = 512;

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

#[derive(Debug)]
struct Activity {
    log: ActivityLog,
    /// Extents of writes that go on, and the next record when each began, with their numbers.
    writing: BTreeMap<Extent, u32>,
    starts: BTreeMap<Lsn, u32>,
    /// Extents that were written since the last syncs began.
    recent: BTreeSet<Extent>,
    is_cleaning: bool,
    /// False until the extents that may differ after a power cut were compared, after the group was closed, and once a volume differs from
    /// its history: the next opening writes the records again.
    is_usable: bool,
}

/// Compares bytes that a volume holds, given by its number and an offset, with those that it had after the last record of the journal.
/// Appends the blocks that differ, as numbers from the offset on, in ascending order.
pub type FindDifferences<'a> = dyn FnMut(u16, u64, &[u8], &mut Vec<usize>) -> Result<()> + 'a;

/// Appends the blocks of two ranges of equal length that differ.
pub fn differing_blocks(found: &[u8], expected: &[u8], differing: &mut Vec<usize>) {
    let blocks = found.chunks(BLOCK_BYTES).zip(expected.chunks(BLOCK_BYTES)).enumerate();
    differing.extend(blocks.filter(|(_, (found, expected))| found != expected).map(|(number, _)| number));
}

/// A consistency group in use.
#[derive(Debug)]
pub struct Group {
    journal: Journal,
    host: Arc<dyn Host>,
    options: GroupOptions,
    origins: Vec<Arc<dyn Export>>,
    activity: Mutex<Activity>,
    cleaned: Condvar,
}

impl Group {
    /// Creates the files of a group in an existing, empty directory.
    pub fn create(disk: &dyn Disk, dir: &Path) -> Result<()> {
        disk.create_dir(&dir.join(JOURNAL))?;
        ActivityLog::create(disk, &dir.join(ACTIVITY))?;
        disk.sync_dir(dir)
    }

    /// Opens the journal of a group that nobody has open, to read what is in no checkpoint. The volumes are not needed, and stay as
    /// they are.
    ///
    /// The caller excludes other processes.
    pub fn open_journal(
        disk: &Arc<dyn Disk>,
        host: Arc<dyn Host>,
        dir: &Path,
        identity: JournalIdentity,
        size: JournalSize,
    ) -> Result<Journal> {
        Journal::open(Arc::clone(disk), host, &dir.join(JOURNAL), identity, size).map(|(journal, _)| journal)
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
        let (journal, recovered) =
            Journal::open(Arc::clone(disk), Arc::clone(&host), &dir.join(JOURNAL), identity, options.size)?;
        let boot = host.process().map_or([0; 16], |process| process.boot);
        let (log, last) = ActivityLog::open(&**disk, &dir.join(ACTIVITY), boot)?;
        let synced = log.synced();
        if recovered.next < synced || synced < recovered.first && last != LastUse::Closed {
            let records = format!("its records are {} to before {}", recovered.first, recovered.next);
            let reason = format!("the volumes hold the records before {synced}, and {records}");
            return Err(Error::damaged(format!("journal {}", disk.display(dir)), reason));
        }
        let activity = Activity {
            log,
            writing: BTreeMap::new(),
            starts: BTreeMap::new(),
            recent: BTreeSet::new(),
            is_cleaning: false,
            is_usable: last != LastUse::PowerCut,
        };
        let group = Self { journal, host, options, origins, activity: Mutex::new(activity), cleaned: Condvar::new() };
        let applied = if last == LastUse::Closed { 0 } else { group.apply_from(synced)? };
        let suspect = if last == LastUse::PowerCut { group.lock().log.active().collect() } else { Vec::new() };
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

    fn lock(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares extents with the history after a power cut, and records what differs: the volume holds writes that the journal has lost.
    /// Returns the number of blocks that differed. Until this was done, no write
    /// is possible.
    pub fn compare(&self, suspect: &[Extent], find: &mut FindDifferences<'_>) -> Result<u64> {
        let failed = |error: AppendError| Error::invalid(error.to_string());
        let (mut found, mut blocks) = (vec![0; COMPARED_BYTES], Vec::new());
        let mut differing = 0;
        for &Extent { volume, number } in suspect {
            let end = ((number + 1) * EXTENT_BYTES).min(self.origin(volume).size());
            let mut offset = number * EXTENT_BYTES;
            while offset < end {
                let len = usize::try_from(end - offset).unwrap_or(COMPARED_BYTES).min(COMPARED_BYTES);
                let found = &mut found[..len];
                let unreadable =
                    |errno| Error::invalid(format!("volume {volume}: cannot be read at {offset}: {errno:?}"));
                self.origin(volume).read(offset, found).map_err(unreadable)?;
                blocks.clear();
                find(volume, offset, found, &mut blocks)?;
                if !blocks.is_empty() {
                    self.record_blocks(volume, offset, found, &blocks).map_err(failed)?;
                    differing += blocks.len() as u64;
                }
                offset += len as u64;
            }
        }
        let unsynced = |errno| Error::invalid(format!("the volumes cannot be synced: {errno:?}"));
        self.sync().map_err(unsynced)?;
        let mut activity = self.lock();
        activity.log.begin_use(self.host.process().map_or([0; 16], |process| process.boot))?;
        activity.is_usable = true;
        Ok(differing)
    }

    /// Records blocks of a range, as they are in the volume now.
    fn record_blocks(&self, volume: u16, offset: u64, found: &[u8], blocks: &[usize]) -> Result<(), AppendError> {
        let len = found.len() as u64;
        let mut last = self.append(&Record::range(Op::ResyncBegin, volume, offset, len))?;
        for number in blocks {
            let start = number * BLOCK_BYTES;
            let end = found.len().min(start + BLOCK_BYTES);
            last = self.append(&Record::write(volume, offset + start as u64, &found[start..end]))?;
        }
        last = self.append(&Record::range(Op::ResyncEnd, volume, offset, len))?.max(last);
        self.journal.commit(last)
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

    /// Returns how many volumes the group has.
    pub fn volumes(&self) -> usize {
        self.origins.len()
    }

    /// Returns the record before which all are durable in the volumes.
    pub fn synced(&self) -> Lsn {
        self.lock().log.synced()
    }

    /// Names the present moment; returns its record, which is durable.
    pub fn mark(&self, name: &str) -> Result<Lsn, AppendError> {
        let lsn = self.append(&Record::mark(name))?;
        self.journal.commit(lsn)?;
        self.journal.sync()?;
        Ok(lsn)
    }

    /// Gives records back that nobody needs any more, apart from those that the volumes may lack.
    pub fn release(&self, before: Lsn) {
        let synced = self.lock().log.synced();
        self.journal.release(before.min(synced));
    }

    /// Appends a record, and waits for space if that is how the group works.
    pub(super) fn append(&self, record: &Record<'_>) -> Result<Lsn, AppendError> {
        loop {
            match self.journal.append(record) {
                Err(AppendError::Full) if self.options.when_behind == WhenBehind::Block => {
                    self.host.sleep(FULL_WAIT);
                }
                outcome => return outcome,
            }
        }
    }

    /// Notes that extents are about to be written; returns what [`Group::end_write`] takes.
    pub(super) fn begin_write(&self, extents: impl Iterator<Item = Extent> + Clone) -> Result<Lsn, Errno> {
        let mut activity = self.lock();
        if !activity.is_usable {
            return Err(Errno::Io);
        }
        while !activity.log.activate(extents.clone()).map_err(|_| Errno::Io)? {
            activity = self.clean(activity)?;
        }
        for extent in extents {
            add(&mut activity.writing, extent);
            activity.recent.insert(extent);
        }
        let start = self.journal.next();
        add(&mut activity.starts, start);
        Ok(start)
    }

    /// Refuses writes from now on: a volume lacks a change that its history has. The next opening mends that.
    pub(super) fn give_up(&self) {
        self.lock().is_usable = false;
    }

    /// Notes that extents were written.
    pub(super) fn end_write(&self, extents: impl Iterator<Item = Extent>, start: Lsn) {
        let mut activity = self.lock();
        extents.for_each(|extent| subtract(&mut activity.writing, extent));
        subtract(&mut activity.starts, start);
    }

    /// Makes journal and volumes durable, so that records before the present moment can be released.
    pub fn sync(&self) -> Result<(), Errno> {
        self.clean(self.lock()).map(drop)
    }

    /// Makes what clients have written durable.
    pub(super) fn flush(&self, volume: u16) -> Result<(), Errno> {
        let lsn = self.append(&Record::range(Op::Flush, volume, 0, 0)).map_err(|error| errno_of(&error))?;
        self.journal.commit(lsn).map_err(|error| errno_of(&error))?;
        match self.options.durability {
            Durability::Journal => self.journal.sync().map_err(|error| errno_of(&error))?,
            Durability::Both => self.sync_both(std::slice::from_ref(&self.origins[usize::from(volume)]))?,
        }
        let activity = self.lock();
        if self.options.durability == Durability::Both && ACTIVE_AT_FLUSH < activity.log.active().len() {
            drop(self.clean(activity)?);
        }
        Ok(())
    }

    /// Syncs the journal and volumes at the same time.
    fn sync_both(&self, origins: &[Arc<dyn Export>]) -> Result<(), Errno> {
        std::thread::scope(|scope| {
            let volumes = scope.spawn(|| origins.iter().try_for_each(|origin| origin.flush()));
            let journal = self.journal.sync().map_err(|error| errno_of(&error));
            let volumes = volumes.join().unwrap_or(Err(Errno::Io));
            journal.and(volumes)
        })
    }

    /// Syncs the journal and all volumes, and ends the activity of what was not written meanwhile.
    fn clean<'a>(&'a self, mut activity: MutexGuard<'a, Activity>) -> Result<MutexGuard<'a, Activity>, Errno> {
        if activity.is_cleaning {
            return Ok(self.cleaned.wait(activity).unwrap_or_else(PoisonError::into_inner));
        }
        activity.is_cleaning = true;
        let writing: BTreeSet<Extent> = activity.writing.keys().copied().collect();
        activity.recent.clear();
        // Records of writes that go on may not be in the volumes yet.
        let synced = activity.starts.keys().next().copied().unwrap_or_else(|| self.journal.next());
        drop(activity);
        let outcome = self.sync_both(&self.origins);
        let mut activity = self.lock();
        activity.is_cleaning = false;
        let outcome = outcome.and_then(|()| {
            let kept = activity.recent.union(&writing).copied().collect();
            activity.log.retain(kept, synced).map_err(|_| Errno::Io)
        });
        self.cleaned.notify_all();
        outcome.map(|()| activity)
    }

    /// Closes the group: journal and volumes are durable and agree. Later writes are refused.
    ///
    /// Fails if a request is in progress, or if a volume lacks a change that its history has: then the next opening writes the records again.
    pub fn close(&self) -> Result<()> {
        let failed = |errno: Errno| Error::invalid(format!("the volumes cannot be synced: {errno:?}"));
        let mut activity = self.lock();
        let agrees = std::mem::replace(&mut activity.is_usable, false) && activity.starts.is_empty();
        drop(activity);
        if !agrees {
            return Err(Error::invalid(
                "the volumes may lack records of the journal, which the next server writes again",
            ));
        }
        self.journal.close().map_err(|error| Error::invalid(error.to_string()))?;
        self.origins.iter().try_for_each(|origin| origin.flush()).map_err(failed)?;
        let next = self.journal.status().next;
        self.lock().log.close(next)
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

/// How discarded ranges and zeros reach a volume.
pub(super) const ZEROS: ZeroOptions = ZeroOptions { fua: Fua::No, allocate: false, fast: false };

/// Returns the reason for the client.
pub(super) fn errno_of(error: &AppendError) -> Errno {
    match error {
        AppendError::Full => Errno::NoSpace,
        AppendError::Failed(_) => Errno::Io,
    }
}
