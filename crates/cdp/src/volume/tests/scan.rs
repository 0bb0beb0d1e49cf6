//! Comparing volumes with their history while clients go on.

use super::*;
use crate::volume::compare::COMPARED_BYTES;

/// Compares with the history of the journal. `at_opening` is called when that is known.
fn scan(group: &Group, differing: Differing, at_opening: &dyn Fn()) -> onefold_engine::error::Result<Scanned> {
    let open = || {
        let state = history(group);
        at_opening();
        state
    };
    scan_with(group, differing, &open, &|_, _| {})
}

/// Compares with the history that `open` returns. `at_comparing` is called with the volume and offset before each comparison.
fn scan_with(
    group: &Group,
    differing: Differing,
    open: &dyn Fn() -> Bytes,
    at_comparing: &dyn Fn(u16, u64),
) -> onefold_engine::error::Result<Scanned> {
    group.scan(differing, &mut || {
        let state = open();
        let find: Box<FindDifferences<'_>> = Box::new(move |volume, offset, found, differing| {
            at_comparing(volume, offset);
            differing_blocks(found, &expected_of(&state, volume, offset, found.len()), differing);
            Ok(())
        });
        Ok(find)
    })
}

/// Changes a volume behind the back of its group.
fn flip(disk: &SimDisk, volume: usize, offset: u64) {
    let file = disk.open(Path::new(ORIGINS[volume]), Access::ReadWrite).unwrap();
    let mut byte = [0];
    file.read_at(offset, &mut byte).unwrap();
    file.write_at(offset, &[byte[0] ^ 1]).unwrap();
}

#[test]
fn blocks_that_were_changed_behind_the_back_are_found_and_recorded() {
    let disk = world();
    let (group, _) = open(&disk, 1, Durability::Both).unwrap();
    run(&group, 3, &mut [empty(), empty()]).unwrap();
    let nothing = scan(&group, Differing::List, &|| {}).unwrap();
    assert_eq!((nothing.compared, nothing.differing.bytes, nothing.left.bytes), (2 * SIZE, 0, 0));
    for offset in [USED.start + 10, USED.start + 4096, EXTENT_BYTES + 5_000] {
        flip(&disk, 1, offset);
    }
    let found = scan(&group, Differing::List, &|| {}).unwrap();
    let range = |start: u64, blocks: u64| VolumeRange { volume: 1, bytes: start..start + 4096 * blocks };
    assert_eq!(found.differing.listed, [range(USED.start, 2), range(EXTENT_BYTES + 4096, 1)]);
    assert_eq!(found.differing.bytes, 3 * 4096);
    assert!(!differences(&history(&group), &contents(&disk)).is_empty());
    assert_eq!(scan(&group, Differing::Record, &|| {}).unwrap(), found);
    assert_eq!(differences(&history(&group), &contents(&disk)), []);
    assert_eq!(scan(&group, Differing::List, &|| {}).unwrap(), nothing);
    group.close().unwrap();
    assert!(
        scan(&group, Differing::List, &|| flip(&disk, 0, USED.start)).is_ok_and(|found| found.differing.bytes == 4096)
    );
    assert!(scan(&group, Differing::Record, &|| {}).is_err(), "closed");
}

#[test]
fn extents_that_are_written_after_the_moment_are_left_for_the_next_round() {
    let disk = world();
    let (group, _) = open(&disk, 1, Durability::Both).unwrap();
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    let rounds = std::cell::Cell::new(0);
    let write_until = |round: usize| {
        rounds.set(rounds.get() + 1);
        if rounds.get() <= round {
            volume.write(USED.start, &[u8::try_from(rounds.get()).unwrap(); 100], Fua::No).unwrap();
        }
    };
    for (until, left, expected) in [(2, 0, 3), (9, EXTENT_BYTES, ROUNDS)] {
        rounds.set(0);
        let scanned = scan(&group, Differing::List, &|| write_until(until)).unwrap();
        assert_eq!((scanned.compared, scanned.left.bytes), (2 * SIZE - left, left));
        assert_eq!((scanned.differing.bytes, rounds.get()), (0, expected));
    }
    let of_itself = || assert!(scan(&group, Differing::List, &|| {}).unwrap_err().to_string().contains("another scan"));
    scan(&group, Differing::List, &of_itself).unwrap();
}

#[test]
fn blocks_of_extents_that_are_written_meanwhile_are_reported_once_if_recorded_or_listed() {
    let rewritten = VolumeRange { volume: 1, bytes: EXTENT_BYTES..EXTENT_BYTES + 4096 };
    for differing in [Differing::List, Differing::Record] {
        for writes in [1, ROUNDS] {
            let disk = world();
            let (group, _) = open(&disk, 1, Durability::Both).unwrap();
            run(&group, 3, &mut [empty(), empty()]).unwrap();
            flip(&disk, 1, EXTENT_BYTES + 10);
            let volume = ProtectedVolume::new(Arc::clone(&group), 1);
            let left = std::cell::Cell::new(writes);
            // The first part of the extent is compared, and a client writes to the third one.
            let at_comparing = |number, offset| {
                if (number, offset) == (1, EXTENT_BYTES + COMPARED_BYTES as u64) && left.get() != 0 {
                    left.set(left.get() - 1);
                    volume.write(offset + COMPARED_BYTES as u64, &[0; 100], Fua::No).unwrap();
                }
            };
            let scanned = scan_with(&group, differing, &|| history(&group), &at_comparing).unwrap();
            let what = format!("{differing:?}, {writes} writes");
            let is_left = writes == ROUNDS;
            let left_bytes = if is_left { EXTENT_BYTES } else { 0 };
            assert_eq!((scanned.compared, scanned.left.bytes), (2 * SIZE - left_bytes, left_bytes), "{what}");
            let is_recorded = differing == Differing::Record;
            if is_recorded || !is_left {
                assert_eq!(scanned.differing.listed, std::slice::from_ref(&rewritten), "{what}");
                assert_eq!(scanned.differing.bytes, 4096, "{what}");
            }
            assert_eq!(differences(&history(&group), &contents(&disk)).is_empty(), is_recorded, "{what}");
        }
    }
}

#[test]
fn recording_into_a_full_journal_without_waits_fails_and_keeps_what_was_recorded() {
    let disk = world();
    let size = JournalSize { segment_bytes: 32 << 10, segments_max: 4 };
    let (group, _) = open_with(&disk, 1, GroupOptions { size, when_behind: WhenBehind::Block, ..OPTIONS }).unwrap();
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    while group.journal().status().used + (28 << 10) < group.journal().status().bytes_max {
        volume.write(USED.start, &[1; 1_000], Fua::No).unwrap();
    }
    for number in 0..2 {
        for offset in (USED.start..USED.end).step_by(4096) {
            flip(&disk, number, offset);
        }
    }
    assert_eq!(differences(&history(&group), &contents(&disk)).len(), 4);
    group.end_waits();
    let error = scan(&group, Differing::Record, &|| {}).unwrap_err().to_string();
    assert!(error.contains("the journal is full; serve the group") && error.contains("scan again"), "{error}");
    assert_eq!(super::behind::gaps(&group).1.open().count(), 0);
    let left = differences(&history(&group), &contents(&disk)).len();
    assert!((1..4).contains(&left), "{left} extents are left");
    group.close().unwrap();

    // A checkpoint makes space.
    let (group, opened) = open_with(&disk, 1, GroupOptions { size, ..OPTIONS }).unwrap();
    assert_eq!(opened.last, LastUse::Closed);
    let (state, next) = (std::cell::RefCell::new(history(&group)), group.journal().next());
    assert_eq!(differences(&state.borrow(), &contents(&disk)).len(), left, "reopened");
    group.sync().unwrap();
    group.release(next);
    let scanned = scan_with(&group, Differing::Record, &|| state.borrow().clone(), &|_, _| {}).unwrap();
    assert_eq!(scanned.differing.bytes, left as u64 * 8192);
    let mut frames = group.journal().frames(next);
    let mut each = |entry: crate::journal::Entry<'_>| {
        apply(&mut state.borrow_mut(), &entry.record);
        Ok(())
    };
    while frames.next_frame(&mut each).unwrap() {}
    assert_eq!(differences(&state.borrow(), &contents(&disk)), []);
}

#[test]
fn records_stay_in_the_journal_while_they_are_read() {
    let disk = world();
    let (group, _) = open(&disk, 1, Durability::Both).unwrap();
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    for _ in 0..100 {
        volume.write(USED.start, &[1; 12_000], Fua::No).unwrap();
    }
    group.sync().unwrap();
    let next = group.journal().next();
    let (held, other) = (group.hold_records(), group.hold_records());
    group.release(next);
    drop(held);
    assert_eq!(group.journal().status().first, Lsn(1));
    drop(other);
    assert!(Lsn(1) < group.journal().status().first);
}
