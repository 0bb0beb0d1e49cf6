//! The activity log: which extents of the volumes may have been written since they were synced last.
//!
//! The volume is written after the journal, but neither is synced before a client asks for it. A power cut may therefore keep a write
//! to the volume and lose its record. The extents that this log names are compared then; without it, whole volumes would have to be.
//! (DRBD has the same: its activity log.)
//!
//! The file has two slots, which are written in turn, so that a torn write leaves the other. A slot is one list of extents under a
//! checksum, with a number that ascends.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Access, Disk, DiskFile};

use crate::journal::Lsn;

/// Bytes of an extent.
pub const EXTENT_BYTES: u64 = 4 << 20;
/// Most extents that may be active: so many are compared at most after a power cut, 4 GiB.
pub const EXTENTS_MAX: usize = 1_024;

const MAGIC: [u8; 8] = *b"onefolda";
/// Magic, number of the slot, synced record, boot, count, state, checksum.
const HEADER_BYTES: usize = 52;
/// Offset of the checksum, which ends the header.
const SUM_OFFSET: usize = HEADER_BYTES - 4;
const ENTRY_BYTES: usize = 8;
const SLOT_BYTES: usize = (HEADER_BYTES + EXTENTS_MAX * ENTRY_BYTES).next_multiple_of(4096);

/// Boots that are none: nobody has the volumes open, and one whose boot is not known.
const CLOSED: [u8; 16] = [0; 16];
const UNKNOWN: [u8; 16] = [0xff; 16];

/// An extent of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Extent {
    /// Number of the volume in its group.
    pub volume: u16,
    /// Number of the extent in the volume; below 2^48.
    pub number: u64,
}

/// How the last user of the volumes ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LastUse {
    /// It closed the group: journal and volumes agree.
    Closed,
    /// It was stopped, and the system has run since: records may be missing in the volumes, but no writes in the journal.
    Stopped,
    /// The system has been started again since: either may be missing.
    PowerCut,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Slot {
    number: u64,
    /// All records before this one are durable in the volumes.
    synced: Lsn,
    /// Boot of the system that has the volumes open; zeros if nobody has.
    boot: [u8; 16],
    active: BTreeSet<Extent>,
}

/// The log.
#[derive(Debug)]
pub struct ActivityLog {
    file: Arc<dyn DiskFile>,
    /// The list that is durable.
    slot: Slot,
    /// The first failure of a write or sync. None is tried again.
    failed: Option<Error>,
}

fn encode(slot: &Slot) -> Vec<u8> {
    let mut out = Vec::with_capacity(SLOT_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&slot.number.to_le_bytes());
    out.extend_from_slice(&slot.synced.0.to_le_bytes());
    out.extend_from_slice(&slot.boot);
    out.extend_from_slice(&u32::try_from(slot.active.len()).expect("extents are few").to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    for Extent { volume, number } in &slot.active {
        out.extend_from_slice(&(u64::from(*volume) << 48 | number).to_le_bytes());
    }
    out.resize(SLOT_BYTES, 0);
    let sum = crc32c::crc32c(&out);
    if let Some(place) = out.get_mut(SUM_OFFSET..HEADER_BYTES) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
    out
}

fn decode(bytes: &mut [u8]) -> Option<Slot> {
    let sum = bytes.get_mut(SUM_OFFSET..HEADER_BYTES)?;
    let stored = u32::from_le_bytes(sum.try_into().ok()?);
    sum.fill(0);
    if crc32c::crc32c(bytes) != stored || bytes.get(..8)? != MAGIC {
        return None;
    }
    let integer = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let count = u32::from_le_bytes(bytes.get(40..44)?.try_into().ok()?) as usize;
    let entries = bytes.get(HEADER_BYTES..)?.as_chunks::<ENTRY_BYTES>().0.get(..count)?;
    let extent = |entry: &[u8; ENTRY_BYTES]| {
        let entry = u64::from_le_bytes(*entry);
        Extent { volume: u16::try_from(entry >> 48).expect("16 bits"), number: entry & ((1 << 48) - 1) }
    };
    Some(Slot {
        number: integer(8)?,
        synced: Lsn(integer(16)?),
        boot: bytes.get(24..40)?.try_into().ok()?,
        active: entries.iter().map(extent).collect(),
    })
}

impl ActivityLog {
    /// Memory of a log: its extents, and a slot on its way to the file.
    pub const MEMORY_BYTES: usize = EXTENTS_MAX * 4 * size_of::<Extent>() + SLOT_BYTES;

    /// Creates the log of a new group.
    pub fn create(disk: &dyn Disk, path: &Path) -> Result<Self> {
        let file = disk.create(path)?;
        let slot = Slot { number: 1, synced: Lsn(1), ..Slot::default() };
        for number in 0..2 {
            file.write_at(number * SLOT_BYTES as u64, &encode(&Slot { number, ..slot.clone() }))?;
        }
        file.sync()?;
        Ok(Self { file, slot, failed: None })
    }

    /// Opens the log for a user on a boot of the system; zeros if it is not known. Returns how the last use ended. After a power cut,
    /// [`ActivityLog::begin_use`] must follow.
    pub fn open(disk: &dyn Disk, path: &Path, boot: [u8; 16]) -> Result<(Self, LastUse)> {
        let file = disk.open(path, Access::ReadWrite)?;
        let slot = Self::newest(disk, path, &*file)?;
        let last = match slot.boot {
            closed if closed == CLOSED => LastUse::Closed,
            last if last == boot && last != UNKNOWN => LastUse::Stopped,
            _ => LastUse::PowerCut,
        };
        let mut log = Self { file, slot, failed: None };
        if last == LastUse::PowerCut {
            // A list that was read may be in the page cache only.
            log.write(log.slot.clone())?;
        } else {
            log.begin_use(boot)?;
        }
        Ok((log, last))
    }

    /// Returns the record before which all are durable in the volumes, as a log says that stays as it is.
    pub fn synced_in(disk: &dyn Disk, path: &Path) -> Result<Lsn> {
        Ok(Self::newest(disk, path, &*disk.open(path, Access::Read)?)?.synced)
    }

    fn newest(disk: &dyn Disk, path: &Path, file: &dyn DiskFile) -> Result<Slot> {
        let mut newest = None;
        for slot in 0..2 {
            let mut bytes = vec![0; SLOT_BYTES];
            file.read_at(slot * SLOT_BYTES as u64, &mut bytes)?;
            newest = newest.max(decode(&mut bytes));
        }
        newest.ok_or_else(|| Error::damaged(disk.display(path), "neither of its two lists of extents is whole"))
    }

    /// Notes that the volumes are in use on a boot of the system. After a power cut, the caller compares the active extents first: a
    /// process that ends before this is followed by one that finds the power cut again.
    pub fn begin_use(&mut self, boot: [u8; 16]) -> Result<()> {
        let boot = if boot == CLOSED { UNKNOWN } else { boot };
        self.write(Slot { boot, ..self.slot.clone() })
    }

    /// Returns the active extents.
    pub fn active(&self) -> impl ExactSizeIterator<Item = Extent> {
        self.slot.active.iter().copied().collect::<Vec<_>>().into_iter()
    }

    /// Returns the record before which all are durable in the volumes.
    pub fn synced(&self) -> Lsn {
        self.slot.synced
    }

    /// Returns true if all extents of a range are active.
    pub fn holds(&self, mut extents: impl Iterator<Item = Extent>) -> bool {
        extents.all(|extent| self.slot.active.contains(&extent))
    }

    /// Makes extents active, durably. Returns false, and does nothing, if there would be too many: the volumes must be synced first.
    pub fn activate(&mut self, extents: impl Iterator<Item = Extent>) -> Result<bool> {
        let new: BTreeSet<Extent> = extents.filter(|extent| !self.slot.active.contains(extent)).collect();
        if EXTENTS_MAX < self.slot.active.len() + new.len() {
            return Ok(false);
        }
        if !new.is_empty() {
            let mut slot = self.slot.clone();
            slot.active.extend(new);
            self.write(slot)?;
        }
        Ok(true)
    }

    /// Notes that journal and volumes were synced: all records before one are durable in the volumes, and only `kept` was written since
    /// the syncs began.
    pub fn retain(&mut self, kept: BTreeSet<Extent>, synced: Lsn) -> Result<()> {
        self.write(Slot { active: kept, synced, ..self.slot.clone() })
    }

    /// Notes that the group is closed: journal and volumes agree, and both are durable.
    pub fn close(&mut self, synced: Lsn) -> Result<()> {
        self.write(Slot { boot: CLOSED, active: BTreeSet::new(), synced, ..self.slot.clone() })
    }

    /// Returns the first failure of a write or sync, if there was one: nothing becomes active any more.
    pub fn failure(&self) -> Option<Error> {
        self.failed.clone()
    }

    /// Makes a list the durable one. After a failure the file may hold this list, the one before, or neither, so no other is written.
    fn write(&mut self, mut slot: Slot) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        slot.number += 1;
        let at = slot.number % 2 * SLOT_BYTES as u64;
        let outcome = self.file.write_at(at, &encode(&slot)).and_then(|()| self.file.sync_data());
        match outcome {
            Ok(()) => self.slot = slot,
            Err(error) => {
                self.failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Returns the extents of a range of a volume.
pub fn extents_of(volume: u16, range: std::ops::Range<u64>) -> impl Iterator<Item = Extent> + Clone {
    let end = range.end.div_ceil(EXTENT_BYTES);
    (range.start / EXTENT_BYTES..end).map(move |number| Extent { volume, number })
}

#[cfg(test)]
mod tests {
    use onefold_engine::random::SplitMix64;
    use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk};

    use super::*;

    const FILE: &str = "activity";

    #[test]
    fn an_extent_that_was_activated_is_there_after_any_fault_at_any_call() {
        let run = |disk: &SimDisk, told: &mut Vec<Extent>| -> Result<()> {
            let mut log = ActivityLog::open(disk, Path::new(FILE), [1; 16])?.0;
            let mut random = SplitMix64::new(4);
            for _ in 0..12 {
                let extents: Vec<Extent> =
                    (0..3).map(|_| Extent { volume: 1, number: random.index(40) as u64 }).collect();
                assert!(log.activate(extents.iter().copied())?);
                told.extend(extents);
            }
            Ok(())
        };
        let start = SimDisk::new();
        ActivityLog::create(&start, Path::new(FILE)).unwrap();
        start.sync_dir(Path::new("")).unwrap();
        let start = start.crash(CrashMode::LoseUnsynced);
        let whole = start.fork();
        run(&whole, &mut Vec::new()).unwrap();
        let calls = whole.calls();
        for call in 1..=calls {
            for fault in
                [Fault::Error(std::io::ErrorKind::Other), Fault::ShortWrite(std::io::ErrorKind::Other), Fault::DieAfter]
            {
                let disk = start.fork();
                disk.fail_at(call, fault);
                let mut told = Vec::new();
                let _ = run(&disk, &mut told);
                for mode in [CrashMode::LoseUnsynced, CrashMode::KeepAll, CrashMode::Torn(call)] {
                    let log = ActivityLog::open(&disk.crash(mode), Path::new(FILE), [2; 16]).unwrap().0;
                    assert!(log.holds(told.iter().copied()), "{fault:?} at {call}, {mode:?}");
                }
            }
        }
        assert!(12 < calls);
    }

    #[test]
    fn an_extent_that_could_not_be_activated_is_not_taken_for_active() {
        let disk = SimDisk::new();
        ActivityLog::create(&disk, Path::new(FILE)).unwrap();
        let (mut log, _) = ActivityLog::open(&disk, Path::new(FILE), [1; 16]).unwrap();
        let extent = || std::iter::once(Extent { volume: 0, number: 3 });
        disk.fail_at(disk.calls() + 1, Fault::Error(std::io::ErrorKind::Other));
        assert!(log.activate(extent()).is_err() && log.failure().is_some());
        assert!(log.activate(extent()).is_err() && !log.holds(extent()), "the client tries again");
        assert!(log.retain(BTreeSet::new(), Lsn(9)).is_err() && log.synced() == Lsn(1));
    }

    #[test]
    fn there_are_never_more_extents_than_the_log_has_space_for() {
        let disk = SimDisk::new();
        let mut log = ActivityLog::create(&disk, Path::new(FILE)).unwrap();
        let extents = |from: u64, to: u64| (from..to).map(|number| Extent { volume: u16::MAX, number });
        assert!(log.activate(extents(0, 1_000)).unwrap());
        assert!(!log.activate(extents(999, 1_025)).unwrap());
        assert!(log.activate(extents(0, 1_024)).unwrap());
        let (mut log, last) = ActivityLog::open(&disk, Path::new(FILE), [1; 16]).unwrap();
        assert_eq!(last, LastUse::Closed);
        assert_eq!(log.active().collect::<Vec<_>>(), extents(0, 1_024).collect::<Vec<_>>());
        let open = |boot| ActivityLog::open(&disk.fork(), Path::new(FILE), [boot; 16]).unwrap().1;
        assert_eq!((open(1), open(2), open(0)), (LastUse::Stopped, LastUse::PowerCut, LastUse::PowerCut));
        log.close(Lsn(7)).unwrap();
        assert_eq!(open(2), LastUse::Closed);
        disk.damage(FILE, |bytes| bytes[100] ^= 1);
        disk.damage(FILE, |bytes| bytes[SLOT_BYTES + 100] ^= 1);
        assert!(ActivityLog::open(&disk, Path::new(FILE), [1; 16]).is_err());
    }

    #[test]
    fn a_range_has_the_extents_that_it_touches() {
        let numbers = |range| extents_of(3, range).map(|extent| extent.number).collect::<Vec<_>>();
        assert_eq!(numbers(0..1), [0]);
        assert_eq!(numbers(EXTENT_BYTES - 1..EXTENT_BYTES + 1), [0, 1]);
        assert_eq!(numbers(EXTENT_BYTES..2 * EXTENT_BYTES), [1]);
        assert!(numbers(5..5).len() <= 1);
    }
}
