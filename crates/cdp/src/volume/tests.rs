#![expect(clippy::print_stdout, reason = "a sweep says what it covered")]

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::crypto::{Keys, MasterKey};
use onefold_engine::io::{Access, Disk, Host};
use onefold_engine::random::SplitMix64;
use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk, SimHost};
use onefold_engine::types::RepositoryId;

use super::*;

mod behind;
mod flushing;
mod limits;
mod scan;

use crate::journal::{GroupId, JournalIdentity, JournalSize, Lsn, Op, Record};
use crate::nbd::export::{Export, Fua, ZeroOptions};
use crate::nbd::wire::Errno;
use crate::sim_origin::SimOrigin;

const DIR: &str = "group";
const ORIGINS: [&str; 2] = ["first", "second"];
/// Two extents of the activity log each.
const SIZE: u64 = 2 * EXTENT_BYTES;
/// Bytes of the volumes that tests use, around the border of the extents.
const USED: Range<u64> = EXTENT_BYTES - 8192..EXTENT_BYTES + 8192;

fn world() -> SimDisk {
    let disk = SimDisk::new();
    let _ = disk.subdir(DIR);
    for name in ORIGINS {
        let file = disk.create(Path::new(name)).unwrap();
        file.set_len(SIZE).unwrap();
        file.sync().unwrap();
    }
    Group::create(&disk, Path::new(DIR), &[SIZE; 2]).unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    disk.crash(CrashMode::LoseUnsynced)
}

fn open(disk: &SimDisk, boot: u64, durability: Durability) -> onefold_engine::error::Result<(Arc<Group>, Opened)> {
    open_with(disk, boot, GroupOptions { durability, ..OPTIONS })
}

const OPTIONS: GroupOptions = GroupOptions {
    size: JournalSize { segment_bytes: 256 << 10, segments_max: 64 },
    durability: Durability::Both,
    when_behind: WhenBehind::Fail,
};

fn open_with(disk: &SimDisk, boot: u64, options: GroupOptions) -> onefold_engine::error::Result<(Arc<Group>, Opened)> {
    open_on(disk, Arc::new(SimHost::new(boot)), options, origins(disk)?)
}

fn origins(disk: &SimDisk) -> onefold_engine::error::Result<Vec<Arc<dyn Export>>> {
    let mut origins: Vec<Arc<dyn Export>> = Vec::new();
    for name in ORIGINS {
        let file = disk.open(Path::new(name), Access::ReadWrite)?;
        origins.push(Arc::new(SimOrigin { file, size: SIZE, knows_holes: false }));
    }
    Ok(origins)
}

fn open_on(
    disk: &SimDisk,
    host: Arc<dyn Host>,
    options: GroupOptions,
    origins: Vec<Arc<dyn Export>>,
) -> onefold_engine::error::Result<(Arc<Group>, Opened)> {
    let repository = RepositoryId([1; 16]);
    let keys = Keys::derive(&MasterKey([7; 32]), repository);
    let identity = JournalIdentity { keys, repository, group: GroupId([2; 16]) };
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (group, opened) = Group::open(&shared, host, Path::new(DIR), identity, origins, options)?;
    Ok((Arc::new(group), opened))
}

/// The used bytes of both volumes.
type Bytes = [Vec<u8>; 2];

fn empty() -> Bytes {
    let len = usize::try_from(USED.end - USED.start).unwrap();
    [vec![0; len], vec![0; len]]
}

/// Returns a range of the used bytes.
fn bytes(range: Range<u64>) -> Range<usize> {
    usize::try_from(range.start - USED.start).unwrap()..usize::try_from(range.end - USED.start).unwrap()
}

/// Changes volumes by a seed. `told` gets their bytes when they were flushed last, and how many changes were answered after it.
fn run(group: &Arc<Group>, seed: u64, told: &mut [Bytes; 2]) -> Result<(), Errno> {
    let volumes = [0, 1].map(|number| ProtectedVolume::new(Arc::clone(group), number));
    let mut random = SplitMix64::new(seed);
    let [flushed, answered] = told;
    for turn in 0..24_u8 {
        let number = random.index(2);
        let volume = &volumes[number];
        let start = USED.start + random.index(12_000) as u64;
        let len = 1 + random.index(4_000);
        let range = start..start + len as u64;
        match random.index(8) {
            0 => {
                // The bytes that were answered before the flush are durable after it.
                let before = answered.clone();
                volume.flush()?;
                flushed[number] = before[number].clone();
            }
            1 => {
                volume.trim(range.clone(), Fua::No)?;
                answered[number][bytes(range)].fill(0);
            }
            2 => {
                volume.write_zeroes(range.clone(), ZEROS_NO)?;
                answered[number][bytes(range)].fill(0);
            }
            kind => {
                let data = vec![turn + 1; len];
                let fua = if kind == 3 { Fua::Yes } else { Fua::No };
                volume.write(start, &data, fua)?;
                answered[number][bytes(range)].copy_from_slice(&data);
                if fua == Fua::Yes {
                    flushed[number] = answered[number].clone();
                }
            }
        }
        if turn == 11 {
            group.sync()?;
            *flushed = answered.clone();
            group.mark("half").map_err(|_| Errno::Io)?;
        }
    }
    Ok(())
}

const ZEROS_NO: ZeroOptions = ZeroOptions { fua: Fua::No, allocate: false, fast: false };

fn contents(disk: &SimDisk) -> Bytes {
    ORIGINS.map(|name| {
        let mut used = vec![0; usize::try_from(USED.end - USED.start).unwrap()];
        let file = disk.reopen().open(Path::new(name), Access::Read).unwrap();
        file.read_at(USED.start, &mut used).unwrap();
        used
    })
}

/// Applies a record to the used bytes.
fn apply(state: &mut Bytes, record: &Record<'_>) {
    let used = record.offset.max(USED.start)..(record.offset + record.len).min(USED.end);
    if used.is_empty() {
        return;
    }
    let state = &mut state[usize::from(record.volume)][bytes(used.clone())];
    let start = usize::try_from(used.start - record.offset).unwrap();
    match record.op {
        Op::Write => state.copy_from_slice(&record.payload[start..start + state.len()]),
        Op::Zero | Op::Trim => state.fill(0),
        _ => {}
    }
}

/// Returns the bytes that a range of a volume has if the used ones have a state.
fn expected_of(state: &Bytes, volume: u16, offset: u64, len: usize) -> Vec<u8> {
    let mut expected = vec![0; len];
    for (byte, place) in (offset..).zip(&mut expected) {
        if USED.contains(&byte) {
            *place = state[usize::from(volume)][usize::try_from(byte - USED.start).unwrap()];
        }
    }
    expected
}

/// Returns what the journal says the volumes hold.
fn history(group: &Group) -> Bytes {
    let mut state = empty();
    let mut frames = group.journal().frames(Lsn(1));
    while frames
        .next_frame(&mut |entry| {
            apply(&mut state, &entry.record);
            Ok(())
        })
        .unwrap()
    {}
    state
}

/// Returns the extents in which two states of the volumes differ.
fn differences(a: &Bytes, b: &Bytes) -> Vec<Extent> {
    let mut found = Vec::new();
    for volume in 0..2_u16 {
        let at = usize::from(volume);
        for number in 0..SIZE / EXTENT_BYTES {
            let extent = number * EXTENT_BYTES..(number + 1) * EXTENT_BYTES;
            let range = bytes(extent.start.max(USED.start)..extent.end.min(USED.end));
            if a[at][range.clone()] != b[at][range] {
                found.push(Extent { volume, number });
            }
        }
    }
    found
}

#[test]
fn volumes_and_history_agree_after_any_run_and_closing() {
    let disk = world();
    for (opening, durability) in [Durability::Both, Durability::Journal, Durability::Both].into_iter().enumerate() {
        let (group, opened) = open(&disk, 1, durability).unwrap();
        assert_eq!((opened.last, opened.applied), (LastUse::Closed, 0));
        let mut told = [contents(&disk), contents(&disk)];
        run(&group, opening as u64, &mut told).unwrap();
        assert_eq!(contents(&disk), told[1]);
        assert_eq!(differences(&history(&group), &told[1]), []);
        Arc::into_inner(group).unwrap().close().unwrap();
    }
}

#[test]
fn no_fault_at_any_call_loses_what_was_flushed_or_hides_a_difference() {
    let start = world();
    let (mut images, mut applied, mut suspect) = (0, 0, 0);
    for durability in [Durability::Both, Durability::Journal] {
        let whole = start.fork();
        run(&open(&whole, 1, durability).unwrap().0, 5, &mut [empty(), empty()]).unwrap();
        let calls = whole.calls();
        for call in 1..=calls {
            for fault in [Fault::Error(std::io::ErrorKind::Other), Fault::Die, Fault::DieAfter] {
                let disk = start.fork();
                disk.fail_at(call, fault);
                let mut told = [empty(), empty()];
                let outcome = open(&disk, 1, durability).map(|(group, _)| run(&group, 5, &mut told));
                let what = format!("{fault:?} at {call}, {durability:?}: {outcome:?}");
                let [flushed, answered] = told;
                // The process has ended, the system lives on: everything that was answered is there, and the history says the same.
                let image = disk.reopen();
                let (group, opened) = open(&image, 1, durability).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(opened.suspect, [], "{what}");
                assert_eq!(differences(&history(&group), &contents(&image)), [], "{what}, reopened");
                if fault != Fault::Error(std::io::ErrorKind::Other) {
                    check_kept(&answered, &contents(&image), &what);
                }
                for mode in
                    [CrashMode::LoseUnsynced, CrashMode::KeepAll, CrashMode::Subset(call), CrashMode::Torn(call)]
                {
                    let image = disk.crash(mode);
                    let what = format!("{what}, {mode:?}");
                    let (group, opened) = open(&image, 2, durability).unwrap_or_else(|error| panic!("{what}: {error}"));
                    let different = differences(&history(&group), &contents(&image));
                    let is_named = |extent: &Extent| opened.suspect.contains(extent);
                    assert!(different.iter().all(is_named), "{what}: {different:?}, {:?}", opened.suspect);
                    check_kept(&flushed, &contents(&image), &what);
                    // Comparing reads whole extents, which takes long.
                    if opened.last == LastUse::PowerCut && call % 16 == 0 {
                        check_comparison(&image, &group, &opened, &what);
                    }
                    (images, applied) = (images + 1, applied + opened.applied);
                    suspect += different.len();
                }
            }
        }
    }
    println!(
        "{images} images of volumes and their journal: {applied} records written again, {suspect} extents differed and were named"
    );
    assert!(0 < applied && 0 < suspect);
}

/// Compares after a power cut: the first process ends before it, and the second one finds the same.
fn check_comparison(image: &SimDisk, group: &Arc<Group>, opened: &Opened, what: &str) {
    let volume = ProtectedVolume::new(Arc::clone(group), 0);
    assert_eq!(volume.write(USED.start, &[1], Fua::No), Err(Errno::Io), "{what}: not compared yet");
    let image = image.reopen();
    let (group, again) = open(&image, 2, Durability::Both).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!((&again.suspect, again.last), (&opened.suspect, LastUse::PowerCut), "{what}");
    let state = history(&group);
    let mut find = |volume: u16, offset: u64, found: &[u8], differing: &mut Vec<usize>| {
        differing_blocks(found, &expected_of(&state, volume, offset, found.len()), differing);
        Ok(())
    };
    let differed = group.compare(&again.suspect, &mut find).unwrap();
    assert_eq!(differences(&history(&group), &contents(&image)), [], "{what}: {differed} blocks were recorded");
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    volume.write(USED.start, &[1], Fua::Yes).unwrap();
    assert_eq!(open(&image.reopen(), 2, Durability::Both).unwrap().1.last, LastUse::Stopped, "{what}");
}

/// Fails if bytes that were flushed are neither there nor replaced by a later change: runs write each turn's own byte, and zeros.
fn check_kept(flushed: &Bytes, found: &Bytes, what: &str) {
    for (flushed, found) in flushed.iter().zip(found) {
        for at in 0..flushed.len() {
            let (wanted, is) = (flushed[at], found[at]);
            assert!(is == wanted || is == 0 || wanted < is, "{what}: byte {at} is {is}, was flushed as {wanted}");
        }
    }
}

#[test]
fn a_volume_that_refuses_a_write_has_in_its_history_what_it_holds() {
    let disk = world();
    let (group, _) = open(&disk, 1, Durability::Both).unwrap();
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    volume.write(USED.start, &[1; 5_000], Fua::Yes).unwrap();
    // The write of the volume is the second call after this: the first is that of the journal.
    disk.fail_at(disk.calls() + 2, Fault::ShortWrite(std::io::ErrorKind::Other));
    assert_eq!(volume.write(USED.start, &[2; 5_000], Fua::No), Err(Errno::Io));
    let half = contents(&disk);
    assert_eq!((half[0][bytes(USED)][0], half[0][bytes(USED)][4_999]), (2, 1));
    assert_eq!(differences(&history(&group), &half), []);
}

#[test]
fn a_group_is_not_closed_while_a_volume_may_lack_a_record() {
    let disk = world();
    let (group, _) = open(&disk, 1, Durability::Both).unwrap();
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    volume.write(USED.start, &[1; 100], Fua::No).unwrap();
    let request = group.begin(0, USED.start..USED.start + 100, false).unwrap();
    let record = Record::write(0, USED.start, &[3; 100]);
    group.journal().commit(group.journal().append(&record).unwrap()).unwrap();
    request.leave_unfinished();
    // A checkpoint syncs the group.
    group.sync().unwrap();
    assert!(group.synced() <= Lsn(2));
    assert_eq!(volume.write(USED.start, &[2; 100], Fua::No), Err(Errno::Io));
    assert!(group.close().is_err());
    let (group, opened) = open(&disk.reopen(), 1, Durability::Both).unwrap();
    assert_eq!((opened.last, opened.applied), (LastUse::Stopped, 1));
    group.close().unwrap();
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    assert_eq!(volume.write(USED.start, &[2; 100], Fua::No), Err(Errno::Io), "closed");
}

#[test]
fn a_long_write_that_the_journal_takes_in_part_is_in_the_volume_as_far_as_in_the_history() {
    let disk = world();
    let size = JournalSize { segment_bytes: 4 << 20, segments_max: 3 };
    let (group, _) = open_with(&disk, 1, GroupOptions { size, ..OPTIONS }).unwrap();
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    let mut outcomes = Vec::new();
    for number in 1..=4 {
        outcomes.push(volume.write(0, &vec![number; 4 << 20], Fua::No));
    }
    assert_eq!(outcomes[..2], [Ok(()), Ok(())]);
    assert!(outcomes.contains(&Err(Errno::NoSpace)), "{outcomes:?}");
    let mut state = vec![0; usize::try_from(SIZE).unwrap()];
    let mut frames = group.journal().frames(Lsn(1));
    while frames
        .next_frame(&mut |entry| {
            let start = usize::try_from(entry.record.offset).unwrap();
            state[start..start + entry.record.payload.len()].copy_from_slice(entry.record.payload);
            Ok(())
        })
        .unwrap()
    {}
    let found = disk.bytes(ORIGINS[0]);
    assert!(found == state, "the volume and its history differ");
    assert!((1..4).any(|part| found[part << 20] != found[0]), "no write was taken in part");
}
