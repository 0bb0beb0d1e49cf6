//! Comparing volumes with their history while clients go on.

use super::*;

/// Compares with the history of the journal. `at_opening` is called when that is known.
fn scan(group: &Group, differing: Differing, at_opening: &dyn Fn()) -> onefold_engine::error::Result<Scanned> {
    group.scan(differing, &mut || {
        let state = history(group);
        at_opening();
        let find: Box<FindDifferences<'_>> = Box::new(move |volume, offset, found, differing| {
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
