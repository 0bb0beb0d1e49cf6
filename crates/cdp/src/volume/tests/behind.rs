//! Extents that are behind: how they are recorded again, and what the history says meanwhile.

use std::collections::BTreeMap;

use super::*;
use crate::history::{Change, GapTracker, HistoryEntry};
use crate::journal::Entry;

/// Lets a tracker follow a record.
fn track(tracker: &mut GapTracker, entry: &Entry<'_>) {
    let change = match entry.record.op {
        Op::Gap => Change::Gap,
        Op::ResyncBegin => Change::ResyncBegin,
        Op::ResyncEnd => Change::ResyncEnd,
        _ => return,
    };
    let (block, count) = (entry.record.offset / 4096, entry.record.len.div_ceil(4096));
    let volume = entry.record.volume;
    tracker.push(&HistoryEntry { lsn: entry.lsn, time: entry.time, volume, change, block, count });
}

/// Records of a journal, and the gaps that are open after each.
pub(super) fn gaps(group: &Group) -> (Vec<(Lsn, Op)>, GapTracker) {
    let (mut records, mut tracker) = (Vec::new(), GapTracker::default());
    let mut frames = group.journal().frames(group.journal().status().first);
    while frames
        .next_frame(&mut |entry| {
            records.push((entry.lsn, entry.record.op));
            track(&mut tracker, &entry);
            Ok(())
        })
        .unwrap()
    {}
    (records, tracker)
}

/// Records everything that is behind; returns the steps.
pub(super) fn resync(group: &Group) -> u32 {
    for step in 0..10_000 {
        match group.resync_step().unwrap() {
            Resync::Done => return step,
            Resync::Waiting => panic!("the journal has space"),
            Resync::Stepped => {}
        }
    }
    panic!("it does not end");
}

#[test]
fn volumes_that_are_not_stored_enter_the_history_behind_a_gap() {
    let disk = SimDisk::new();
    let _ = disk.subdir(DIR);
    for (name, byte) in ORIGINS.into_iter().zip(1..) {
        let file = disk.create(Path::new(name)).unwrap();
        file.set_len(SIZE).unwrap();
        file.write_at(USED.start + 100, &[byte; 9_000]).unwrap();
        file.sync().unwrap();
    }
    Group::create_unstored(&disk, Path::new(DIR), &[SIZE; 2]).unwrap();
    let (group, _) = open(&disk, 1, Durability::Both).unwrap();
    assert_eq!(group.behind().bytes(), 2 * SIZE);
    assert!(group.mark("early").unwrap_err().to_string().contains("changes are missing"));
    let volume = ProtectedVolume::new(Arc::clone(&group), 1);
    volume.write(USED.start, &[7; 50], Fua::Yes).unwrap();
    assert_eq!(group.resync_step().unwrap(), Resync::Stepped);
    volume.write(USED.start + 9_000, &[8; 5_000], Fua::No).unwrap();
    assert!(8 < resync(&group));
    let (records, tracker) = gaps(&group);
    assert_eq!(tracker.open().count(), 0);
    assert_eq!(records[0].1, Op::Gap);
    assert!(records.iter().any(|(_, op)| *op == Op::Zero) && records.iter().any(|(_, op)| *op == Op::Write));
    let found = contents(&disk);
    assert_eq!(differences(&history(&group), &found), []);
    assert_eq!((found[1][0], found[1][9_000], found[0][150]), (7, 8, 1));
    group.mark("late").unwrap();
    group.close().unwrap();
    let (group, _) = open(&disk, 2, Durability::Both).unwrap();
    assert!(group.behind().is_empty());
}

/// Contents of a repository for a group: the state and the gaps after its last checkpoint.
#[derive(Clone)]
struct Stored {
    next: Lsn,
    state: Bytes,
    gaps: GapTracker,
    /// Moments outside of gaps.
    moments: BTreeMap<Lsn, Bytes>,
}

impl Stored {
    fn new() -> Self {
        Self { next: Lsn(1), state: empty(), gaps: GapTracker::default(), moments: BTreeMap::new() }
    }

    /// Takes the records of the journal.
    fn take(&mut self, group: &Group, keep_moments: bool) -> Result<(), Errno> {
        let mut frames = group.journal().frames(self.next);
        let mut each = |entry: Entry<'_>| {
            apply(&mut self.state, &entry.record);
            track(&mut self.gaps, &entry);
            self.next = Lsn(entry.lsn.0 + 1);
            if keep_moments && self.gaps.open().next().is_none() {
                self.moments.insert(entry.lsn, self.state.clone());
            }
            Ok(())
        };
        while frames.next_frame(&mut each).map_err(|_| Errno::Io)? {}
        Ok(())
    }

    /// Makes a checkpoint, as a server does: what is durable is stored, and the journal gives its space back.
    fn checkpoint(&mut self, group: &Group) -> Result<(), Errno> {
        group.sync()?;
        self.take(group, true)?;
        group.release(self.next);
        Ok(())
    }
}

const SMALL: GroupOptions = GroupOptions {
    size: JournalSize { segment_bytes: 32 << 10, segments_max: 5 },
    durability: Durability::Both,
    when_behind: WhenBehind::Bitmap,
};

/// Knowledge of a client of a run, and contents of the repository.
struct Outcome {
    flushed: Bytes,
    answered: Bytes,
    stored: Stored,
    /// States when a record was the last one for the first time.
    moments: BTreeMap<Lsn, Bytes>,
    was_behind: bool,
}

impl Outcome {
    fn new() -> Self {
        Self { flushed: empty(), answered: empty(), stored: Stored::new(), moments: BTreeMap::new(), was_behind: false }
    }
}

/// Changes volumes until their journal is full and beyond, makes checkpoints, and records again what is behind.
fn run_behind(group: &Arc<Group>, seed: u64, outcome: &mut Outcome) -> Result<(), Errno> {
    let volumes = [0, 1].map(|number| ProtectedVolume::new(Arc::clone(group), number));
    let mut random = SplitMix64::new(seed);
    for turn in 0..64_u8 {
        let number = random.index(2);
        let start = USED.start + random.index(12_000) as u64;
        let len = 1 + random.index(4_000);
        let range = start..start + len as u64;
        match random.index(9) {
            0 => {
                let before = outcome.answered.clone();
                volumes[number].flush()?;
                outcome.flushed[number] = before[number].clone();
            }
            1 => {
                volumes[number].write_zeroes(range.clone(), ZEROS_NO)?;
                outcome.answered[number][bytes(range)].fill(0);
            }
            kind => {
                let fua = if kind == 2 { Fua::Yes } else { Fua::No };
                let data = vec![turn + 1; len];
                volumes[number].write(start, &data, fua)?;
                outcome.answered[number][bytes(range)].copy_from_slice(&data);
                if fua == Fua::Yes {
                    outcome.flushed[number] = outcome.answered[number].clone();
                }
            }
        }
        outcome.was_behind |= !group.behind().is_empty();
        let last = Lsn(group.journal().next().0 - 1);
        outcome.moments.entry(last).or_insert_with(|| outcome.answered.clone());
        // Twice, the space of the journal comes back.
        if turn == 34 || turn == 60 {
            outcome.stored.checkpoint(group)?;
            outcome.flushed = outcome.answered.clone();
        }
        if 34 < turn && turn % 2 == 0 {
            group.resync_step().map_err(|_| Errno::Io)?;
        }
    }
    heal(group, &mut outcome.stored)
}

/// Records all that is behind.
fn heal(group: &Group, stored: &mut Stored) -> Result<(), Errno> {
    for _ in 0..1_000 {
        match group.resync_step().map_err(|_| Errno::Io)? {
            Resync::Done => return Ok(()),
            Resync::Waiting => stored.checkpoint(group)?,
            Resync::Stepped => {}
        }
    }
    panic!("it does not end");
}

/// Returns the blocks in which two states differ.
fn differing(a: &Bytes, b: &Bytes) -> Vec<(u16, u64)> {
    let mut found = Vec::new();
    for volume in 0..2_u16 {
        let mut blocks = Vec::new();
        differing_blocks(&a[usize::from(volume)], &b[usize::from(volume)], &mut blocks);
        found.extend(blocks.into_iter().map(|block| (volume, USED.start + 4096 * block as u64)));
    }
    found
}

fn check_no_open_gap(stored: &Stored, found: &Bytes, what: &str) {
    assert_eq!(stored.gaps.open().count(), 0, "{what}");
    assert_eq!(differing(&stored.state, found), [], "{what}");
}

#[test]
fn a_group_that_got_behind_has_every_moment_outside_of_the_gap_as_it_was() {
    for (seed, durability) in [(5, Durability::Both), (6, Durability::Journal), (7, Durability::Both)] {
        let disk = world();
        let (group, _) = open_with(&disk, 1, GroupOptions { durability, ..SMALL }).unwrap();
        let mut outcome = Outcome::new();
        run_behind(&group, seed, &mut outcome).unwrap();
        assert!(outcome.was_behind && group.behind().is_empty());
        let mut stored = outcome.stored;
        stored.take(&group, true).unwrap();
        check_no_open_gap(&stored, &outcome.answered, &format!("{seed}"));
        assert_eq!(contents(&disk), outcome.answered);
        let mut compared = 0;
        for (lsn, state) in &stored.moments {
            if let Some(was) = outcome.moments.get(lsn) {
                assert_eq!(differing(state, was), [], "{seed}: after record {lsn}");
                compared += 1;
            }
        }
        assert!(20 < compared && compared < outcome.moments.len(), "{compared} of {}", outcome.moments.len());
        group.close().unwrap();
    }
}

#[test]
fn no_fault_at_any_call_of_a_run_that_gets_behind_loses_or_hides_a_change() {
    let start = world();
    let (mut images, mut behind, mut suspect) = (0, 0, 0);
    for durability in [Durability::Both, Durability::Journal] {
        let options = GroupOptions { durability, ..SMALL };
        let whole = start.fork();
        run_behind(&open_with(&whole, 1, options).unwrap().0, 5, &mut Outcome::new()).unwrap();
        let calls = whole.calls();
        for call in 1..=calls {
            let faults = [Fault::Error(std::io::ErrorKind::Other), Fault::Die, Fault::DieAfter];
            for fault in faults.into_iter().skip(if durability == Durability::Journal { 2 } else { 0 }) {
                let disk = start.fork();
                disk.fail_at(call, fault);
                let mut outcome = Outcome::new();
                let ended = open_with(&disk, 1, options).map(|(group, _)| run_behind(&group, 5, &mut outcome));
                let what = format!("{fault:?} at {call}, {durability:?}: {ended:?}");
                // The process has ended, the system lives on.
                let image = disk.reopen();
                if fault != Fault::Error(std::io::ErrorKind::Other) {
                    check_kept(&outcome.answered, &contents(&image), &what);
                }
                behind += check_healing(&image, 1, options, &outcome, &what);
                for mode in [CrashMode::LoseUnsynced, CrashMode::KeepAll, CrashMode::Torn(call)] {
                    let image = disk.crash(mode);
                    let what = format!("{what}, {mode:?}");
                    let (group, opened) =
                        open_with(&image, 2, options).unwrap_or_else(|error| panic!("{what}: {error}"));
                    check_kept(&outcome.flushed, &contents(&image), &what);
                    let mut stored = outcome.stored.clone();
                    stored.take(&group, false).unwrap();
                    for (volume, offset) in differing(&stored.state, &contents(&image)) {
                        let named = Extent { volume, number: offset / EXTENT_BYTES };
                        let is_named = opened.suspect.contains(&named);
                        let is_behind = group.behind().holds(volume, &(offset..offset + 1));
                        assert!(is_named || is_behind, "{what}: volume {volume}, {offset}");
                        (behind, suspect) = (behind + usize::from(is_behind), suspect + usize::from(is_named));
                    }
                    drop(group);
                    images += 1;
                    // Comparing reads whole extents, which takes long.
                    if call % 24 == 0 {
                        check_healing(&image, 2, options, &outcome, &what);
                    }
                }
            }
        }
    }
    println!("{images} images after power cuts: {behind} differing blocks were behind, {suspect} suspect");
    assert!(0 < behind && 0 < suspect);
}

/// Opens an image, lets it record something, and records all that is behind. Returns how many blocks differed before.
fn check_healing(image: &SimDisk, boot: u64, options: GroupOptions, outcome: &Outcome, what: &str) -> usize {
    let (group, opened) = open_with(image, boot, options).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut stored = outcome.stored.clone();
    stored.take(&group, false).unwrap();
    if opened.last == LastUse::PowerCut {
        let state = stored.state.clone();
        let mut find = |volume: u16, offset: u64, found: &[u8], differing: &mut Vec<usize>| {
            differing_blocks(found, &expected_of(&state, volume, offset, found.len()), differing);
            Ok(())
        };
        group.compare(&opened.suspect, &mut find).unwrap();
        stored.take(&group, false).unwrap();
    } else {
        assert_eq!(opened.suspect, [], "{what}");
    }
    let differing = differing(&stored.state, &contents(image));
    for (volume, offset) in &differing {
        assert!(group.behind().holds(*volume, &(*offset..offset + 1)), "{what}: volume {volume}, {offset}");
    }
    stored.checkpoint(&group).unwrap();
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    volume.write(USED.start, &[255], Fua::Yes).unwrap_or_else(|errno| panic!("{what}: {errno:?}"));
    stored.take(&group, false).unwrap();
    for (volume, offset) in &differing {
        let block = offset / 4096;
        let covers = |gap: &crate::history::OpenGap| gap.volume == *volume && gap.blocks.contains(&block);
        assert!(stored.gaps.open().any(covers), "{what}: volume {volume}, {offset} is in no gap");
    }
    heal(&group, &mut stored).unwrap_or_else(|errno| panic!("{what}: {errno:?}"));
    stored.take(&group, false).unwrap();
    check_no_open_gap(&stored, &contents(image), what);
    differing.len()
}

/// Writes to a volume until the group is behind, each time another byte.
fn fill(group: &Arc<Group>, volume: u16, first: u8) {
    let volume = ProtectedVolume::new(Arc::clone(group), volume);
    let before = group.journal().next();
    for byte in first..first + 100 {
        volume.write(USED.start, &[byte; 4_000], Fua::No).unwrap();
        if group.requests.lock().mode == requests::Mode::Behind {
            return;
        }
    }
    panic!("records from {before} on fit into the journal");
}

#[test]
fn extents_that_change_without_a_record_after_they_were_recorded_again_stay_behind() {
    let disk = world();
    let (group, _) = open_with(&disk, 1, SMALL).unwrap();
    let mut stored = Stored::new();
    fill(&group, 0, 1);
    ProtectedVolume::new(Arc::clone(&group), 1).write(USED.start, &[2; 4_000], Fua::No).unwrap();
    stored.checkpoint(&group).unwrap();
    assert_eq!(group.resync_step().unwrap(), Resync::Stepped);
    assert!(matches!(&group.requests.lock().resynced[..], [range] if range.volume == 0));
    fill(&group, 0, 101);
    stored.checkpoint(&group).unwrap();
    heal(&group, &mut stored).unwrap();
    stored.take(&group, true).unwrap();
    check_no_open_gap(&stored, &contents(&disk), "recorded twice");
}

#[test]
fn threads_get_behind_and_recover_together() {
    let disk = world();
    let (group, _) = open_with(&disk, 1, SMALL).unwrap();
    let mut stored = Stored::new();
    let writers = std::sync::atomic::AtomicU32::new(3);
    let mut was_behind = false;
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (group, writers) = (&group, &writers);
            scope.spawn(move || {
                let volume = ProtectedVolume::new(Arc::clone(group), u16::try_from(thread % 2).unwrap());
                let mut random = SplitMix64::new(thread);
                for turn in 0..200_u8 {
                    let start = USED.start + random.index(12_000) as u64;
                    let fua = if random.index(20) == 0 { Fua::Yes } else { Fua::No };
                    volume.write(start, &vec![turn + 1; 1 + random.index(4_000)], fua).unwrap();
                }
                writers.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            });
        }
        while writers.load(std::sync::atomic::Ordering::SeqCst) != 0 {
            if group.requests.lock().mode == requests::Mode::Behind {
                was_behind = true;
                stored.checkpoint(&group).unwrap();
            }
            group.resync_step().unwrap();
        }
    });
    was_behind |= !group.behind().is_empty();
    heal(&group, &mut stored).unwrap();
    stored.take(&group, false).unwrap();
    check_no_open_gap(&stored, &contents(&disk), "threads");
    assert!(was_behind);
    group.close().unwrap();
}

#[test]
fn holes_enter_the_history_without_being_read() {
    let disk = SimDisk::new();
    let _ = disk.subdir(DIR);
    for name in ORIGINS {
        let file = disk.create(Path::new(name)).unwrap();
        file.set_len(SIZE).unwrap();
        file.write_at(USED.start, &[7; 9_000]).unwrap();
        file.sync().unwrap();
    }
    Group::create_unstored(&disk, Path::new(DIR), &[SIZE; 2]).unwrap();
    let holes = |name: &&str| -> Arc<dyn Export> {
        let file = disk.open(Path::new(name), Access::ReadWrite).unwrap();
        Arc::new(SimOrigin { file, size: SIZE, knows_holes: true })
    };
    let origins = ORIGINS.iter().map(holes).collect();
    let (group, _) = open_on(&disk, Arc::new(SimHost::new(1)), OPTIONS, origins).unwrap();
    // A hole, an extent or two with data, and a hole, of each volume; and the end.
    assert!((6..=9).contains(&resync(&group)));
    let (_, tracker) = gaps(&group);
    assert_eq!(tracker.open().count(), 0);
    assert_eq!(differences(&history(&group), &contents(&disk)), []);
    assert!(group.journal().status().used < 512 << 10);
}

#[test]
fn differences_after_a_power_cut_are_behind_while_the_journal_is_full() {
    let options = GroupOptions { when_behind: WhenBehind::Fail, ..SMALL };
    let disk = world();
    let (group, _) = open_with(&disk, 1, options).unwrap();
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    let mut byte = 1;
    while volume.write(USED.start, &[byte; 4_000], Fua::Yes).is_ok() {
        byte += 1;
    }
    drop(volume);
    // The volume has kept a write that the journal has lost.
    let disk = disk.crash(CrashMode::KeepAll);
    let file = disk.open(Path::new(ORIGINS[0]), Access::ReadWrite).unwrap();
    file.write_at(USED.start + 5_000, &[99; 100]).unwrap();
    let (group, opened) = open_with(&disk, 2, options).unwrap();
    let mut stored = Stored::new();
    stored.take(&group, true).unwrap();
    let state = stored.state.clone();
    let mut find = |volume: u16, offset: u64, found: &[u8], differing: &mut Vec<usize>| {
        differing_blocks(found, &expected_of(&state, volume, offset, found.len()), differing);
        Ok(())
    };
    assert_eq!(group.compare(&opened.suspect, &mut find).unwrap(), 1);
    assert_eq!(group.behind().bytes(), BEHIND_BYTES);
    let volume = ProtectedVolume::new(Arc::clone(&group), 1);
    assert_eq!(volume.write(USED.start, &[1; 10], Fua::No), Err(Errno::NoSpace));
    let before = group.journal().next();
    stored.checkpoint(&group).unwrap();
    volume.write(USED.start, &[1; 10], Fua::No).unwrap();
    stored.take(&group, true).unwrap();
    assert!(before < group.journal().next() && stored.gaps.open().count() != 0);
    heal(&group, &mut stored).unwrap();
    stored.take(&group, true).unwrap();
    check_no_open_gap(&stored, &contents(&disk), "compared");
}

#[test]
fn a_group_is_closed_and_opened_while_it_is_behind() {
    let disk = world();
    let mut stored = Stored::new();
    let (mut records, mut answered) = (Lsn(0), 0);
    for opening in 0..6_u8 {
        let (group, opened) = open_with(&disk, u64::from(opening) + 1, SMALL).unwrap();
        assert_eq!(opened.last, LastUse::Closed);
        assert_eq!(opened.journal.next == records, 0 < opening);
        if opening == 0 {
            fill(&group, 0, 1);
        }
        answered = 150 + opening;
        ProtectedVolume::new(Arc::clone(&group), 1).write(USED.start, &[answered; 10], Fua::No).unwrap();
        assert!(!group.status().is_recording && group.behind().bytes() != 0);
        group.close().unwrap();
        records = group.journal().next();
    }
    let (group, _) = open_with(&disk, 9, SMALL).unwrap();
    stored.checkpoint(&group).unwrap();
    heal(&group, &mut stored).unwrap();
    stored.take(&group, false).unwrap();
    check_no_open_gap(&stored, &contents(&disk), "closed");
    assert_eq!(contents(&disk)[1][0], answered);
}
