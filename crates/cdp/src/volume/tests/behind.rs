//! Extents that are behind: how they are recorded again, and what the history says meanwhile.

use super::*;
use crate::history::{Change, GapTracker, HistoryEntry};

/// Records of a journal, and the gaps that are open after each.
pub(super) fn gaps(group: &Group) -> (Vec<(Lsn, Op)>, GapTracker) {
    let (mut records, mut tracker) = (Vec::new(), GapTracker::default());
    let mut frames = group.journal().frames(group.journal().status().first);
    while frames
        .next_frame(&mut |entry| {
            records.push((entry.lsn, entry.record.op));
            let change = match entry.record.op {
                Op::Gap => Change::Gap,
                Op::ResyncBegin => Change::ResyncBegin,
                Op::ResyncEnd => Change::ResyncEnd,
                _ => return Ok(()),
            };
            let (block, count) = (entry.record.offset / 4096, entry.record.len.div_ceil(4096));
            let volume = entry.record.volume;
            tracker.push(&HistoryEntry { lsn: entry.lsn, time: entry.time, volume, change, block, count });
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
