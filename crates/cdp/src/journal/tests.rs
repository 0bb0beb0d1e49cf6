#![expect(clippy::print_stdout, reason = "a sweep says what it covered")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onefold_engine::crypto::{Keys, MasterKey};
use onefold_engine::error::Error;
use onefold_engine::io::{Disk, Host};
use onefold_engine::random::SplitMix64;
use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk, SimHost};
use onefold_engine::types::RepositoryId;

use super::*;

const DIR: &str = "journal";
/// Segments of a few frames, so that a short run begins, releases and uses again many.
const SIZE: JournalSize = JournalSize { segment_bytes: 48 << 10, segments_max: 5 };

fn identity() -> JournalIdentity {
    let repository = RepositoryId([1; 16]);
    JournalIdentity { keys: Keys::derive(&MasterKey([7; 32]), repository), repository, group: GroupId([2; 16]) }
}

/// A disk with an empty directory that is durable.
fn empty() -> SimDisk {
    let disk = SimDisk::new();
    Journal::create(&disk, Path::new(DIR)).unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    disk.crash(CrashMode::LoseUnsynced)
}

/// Opens the journal on another boot of the system each time.
fn open(disk: &SimDisk) -> Result<(Journal, Recovered), Error> {
    static BOOTS: AtomicU64 = AtomicU64::new(1);
    open_on(disk, BOOTS.fetch_add(1, Ordering::Relaxed))
}

fn open_on(disk: &SimDisk, boot: u64) -> Result<(Journal, Recovered), Error> {
    Journal::open(Arc::new(disk.clone()), Arc::new(SimHost::new(boot)), Path::new(DIR), identity(), SIZE)
}

/// Bytes of the record with a number: they depend on it alone.
fn payload(lsn: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(lsn);
    let len = 1 + random.index(3_000);
    (0..len).map(|_| u8::try_from(random.index(256)).unwrap()).collect()
}

fn append(journal: &Journal, lsn: u64) -> Result<Lsn, AppendError> {
    let bytes = payload(lsn);
    let taken = match lsn % 5 {
        0 => journal.append(&Record::range(Op::Zero, 1, lsn << 12, 4096)),
        1 => journal.append(&Record::mark(&format!("moment {lsn}"))),
        _ => journal.append(&Record::write(2, lsn << 12, &bytes)),
    };
    taken.inspect(|taken| assert_eq!(taken.0, lsn))
}

/// Reads all records from one on, and compares them with what was appended; returns the record after the last.
fn check_from(journal: &Journal, from: Lsn) -> Result<Lsn, Error> {
    let mut next = from;
    let mut frames = journal.frames(from);
    while frames.next_frame(&mut |Entry { lsn, record, time }| {
        assert_eq!(lsn, next);
        assert!(0 < time);
        let bytes = payload(lsn.0);
        let name = format!("moment {lsn}");
        let expected = match lsn.0 % 5 {
            _ if record.op == Op::Flush => record,
            0 => Record::range(Op::Zero, 1, lsn.0 << 12, 4096),
            1 => Record::mark(&name),
            _ => Record::write(2, lsn.0 << 12, &bytes),
        };
        assert_eq!(record, expected);
        next = Lsn(next.0 + 1);
        Ok(())
    })? {}
    Ok(next)
}

/// Records that a run was told about.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    committed: u64,
    synced: u64,
    released: u64,
}

/// Appends, commits, syncs and releases by a seed.
fn run(journal: &Journal, first: u64, records: u64, seed: u64, told: &mut Told) -> Result<(), AppendError> {
    let mut random = SplitMix64::new(seed);
    for lsn in first..first + records {
        match append(journal, lsn) {
            Err(AppendError::Full) => {
                let status = journal.status();
                assert_eq!(status.segments, SIZE.segments_max);
                // Half of what is there is not needed any more.
                let released = u64::midpoint(status.first.0, lsn);
                told.released = told.released.max(released);
                journal.release(Lsn(released));
                append(journal, lsn)?;
            }
            other => {
                other?;
            }
        }
        if random.index(3) == 0 {
            journal.commit(Lsn(lsn))?;
            told.committed = lsn;
        }
        if random.index(9) == 0 {
            journal.commit(Lsn(lsn))?;
            told.committed = lsn;
            journal.sync()?;
            told.synced = lsn;
        }
    }
    Ok(())
}

#[test]
fn records_are_read_back_over_many_segments_and_openings() {
    let disk = empty();
    let mut next = 1;
    for opening in 0..6 {
        let (journal, recovered) = open(&disk).unwrap();
        assert_eq!((recovered.next, recovered.end), (Lsn(next), End::Whole));
        let mut told = Told::default();
        run(&journal, next, 60, opening, &mut told).unwrap();
        journal.commit(Lsn(next + 59)).unwrap();
        assert_eq!(check_from(&journal, journal.status().first).unwrap(), Lsn(next + 60));
        let middle = Lsn(journal.status().next.0 - 7);
        assert_eq!(check_from(&journal, middle).unwrap(), Lsn(next + 60));
        assert_eq!(check_from(&journal, Lsn(next + 60)).unwrap(), Lsn(next + 60));
        journal.close(0).unwrap();
        next += 61;
    }
    assert!(disk.list(Path::new(DIR)).unwrap().len() <= SIZE.segments_max as usize, "files are used again");
}

#[test]
fn a_full_journal_takes_no_record_and_loses_none() {
    let disk = empty();
    let (journal, _) = open(&disk).unwrap();
    let mut taken = 0;
    loop {
        match append(&journal, taken + 1) {
            Ok(_) => taken += 1,
            Err(AppendError::Full) => break,
            Err(other) => panic!("{other}"),
        }
        journal.commit(Lsn(taken)).unwrap();
    }
    assert_eq!(check_from(&journal, Lsn(1)).unwrap(), Lsn(taken + 1));
    assert_eq!(journal.status().segments, SIZE.segments_max);
    journal.release(Lsn(taken));
    append(&journal, taken + 1).unwrap();
    journal.commit(Lsn(taken + 1)).unwrap();
    assert_eq!(check_from(&journal, journal.status().first).unwrap(), Lsn(taken + 2));
}

/// Opens what a fault has left, checks what the run was told about, goes on, and checks that.
fn check_image(image: &SimDisk, must_hold: u64, told: &Told, what: &str) {
    let (journal, recovered) = open(image).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(must_hold < recovered.next.0, "{what}: {recovered:?}, {told:?}");
    assert!(recovered.first.0 <= told.released.max(1), "{what}: {recovered:?}, {told:?}");
    assert_eq!(check_from(&journal, recovered.first).unwrap(), recovered.next, "{what}");
    let next = recovered.next.0;
    for lsn in next..next + 4 {
        match append(&journal, lsn) {
            Ok(_) => journal.commit(Lsn(lsn)).unwrap(),
            Err(AppendError::Full) => return,
            Err(error) => panic!("{what}: {error}"),
        }
    }
    journal.sync().unwrap();
    drop(journal);
    let (journal, again) =
        open(&image.crash(CrashMode::LoseUnsynced)).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(again.next.0, next + 4, "{what}");
    assert_eq!(check_from(&journal, again.first).unwrap(), again.next, "{what}");
}

#[test]
fn no_fault_at_any_call_loses_a_record_that_somebody_was_told_about() {
    let records = 330;
    let whole = empty();
    let (journal, _) = open(&whole).unwrap();
    run(&journal, 1, records, 3, &mut Told::default()).unwrap();
    let calls = whole.calls();
    let mut images = 0;
    for call in 1..=calls {
        for fault in [
            Fault::Error(std::io::ErrorKind::Other),
            Fault::ShortWrite(std::io::ErrorKind::Other),
            Fault::Die,
            Fault::DieAfter,
        ] {
            let disk = empty();
            disk.fail_at(call, fault);
            let mut told = Told::default();
            if let Ok((journal, _)) = open(&disk) {
                let _ = run(&journal, 1, records, 3, &mut told);
            }
            // The process has ended, and the system lives on.
            check_image(&disk.reopen(), told.committed, &told, &format!("{fault:?} at {call}, reopened"));
            let modes = [CrashMode::LoseUnsynced, CrashMode::KeepAll, CrashMode::Subset(call), CrashMode::Torn(call)];
            for mode in modes {
                check_image(&disk.crash(mode), told.synced, &told, &format!("{fault:?} at {call}, {mode:?}"));
                images += 1;
            }
        }
    }
    println!("faults at {calls} calls of a journal, {images} images: nothing lost");
    assert!(100 < calls);
}

#[test]
fn no_fault_at_any_call_of_an_opening_loses_a_record() {
    let mut told = Told::default();
    let disk = empty();
    let (journal, _) = open(&disk).unwrap();
    run(&journal, 1, 330, 8, &mut told).unwrap();
    drop(journal);
    for mode in [CrashMode::KeepAll, CrashMode::Torn(5), CrashMode::Subset(9)] {
        let start = disk.crash(mode);
        let whole = start.fork();
        let before = whole.calls();
        open(&whole).unwrap();
        for call in 1..=whole.calls() - before {
            for fault in [Fault::Error(std::io::ErrorKind::Other), Fault::Die, Fault::DieAfter] {
                let disk = start.fork();
                disk.fail_at(disk.calls() + call, fault);
                let _ = open(&disk);
                check_image(&disk.reopen(), told.synced, &told, &format!("{fault:?} at {call} of an opening"));
                check_image(
                    &disk.crash(CrashMode::Torn(call)),
                    told.synced,
                    &told,
                    &format!("{fault:?} at {call} of an opening"),
                );
            }
        }
    }
}

#[test]
fn damage_before_the_end_is_refused_with_the_last_good_record() {
    let disk = empty();
    let (journal, _) = open(&disk).unwrap();
    let mut told = Told::default();
    run(&journal, 1, 60, 5, &mut told).unwrap();
    journal.commit(Lsn(60)).unwrap();
    let first = journal.status().first;
    journal.close(0).unwrap();
    drop(journal);
    let (mut refused, mut whole) = (0, 0);
    for entry in disk.list(Path::new(DIR)).unwrap() {
        let path = Path::new(DIR).join(&entry.name);
        for block in 0..SIZE.segment_bytes / 4096 {
            for at in [0, 70, 4_000] {
                let damaged = disk.fork();
                damaged.damage(&path, |bytes| bytes[usize::try_from(block * 4096).unwrap() + at] ^= 4);
                match open(&damaged) {
                    Ok((journal, recovered)) => {
                        // The record that the closing appended is the only one that may go unnoticed.
                        assert!(61 <= recovered.next.0, "{path:?}, block {block}: {recovered:?}");
                        match check_from(&journal, first) {
                            Ok(next) => assert!(61 <= next.0),
                            Err(error) => assert!(is_damage(&error), "{error}"),
                        }
                        whole += 1;
                    }
                    Err(error) => {
                        assert!(is_damage(&error), "{path:?}, block {block}: {error}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(20 < refused && 20 < whole, "{refused} refused, {whole} whole");
    let lost = disk.fork();
    let numbers: Vec<_> =
        disk.list(Path::new(DIR)).unwrap().into_iter().filter(|entry| entry.name.starts_with("segment")).collect();
    lost.remove(&Path::new(DIR).join(&numbers[1].name)).unwrap();
    let error = open(&lost).unwrap_err();
    assert!(is_damage(&error) && error.to_string().contains(&numbers[1].name), "{error}");
}

#[test]
fn records_that_were_not_synced_are_missed_too_as_long_as_the_system_runs() {
    let disk = empty();
    let (journal, _) = open_on(&disk, 1).unwrap();
    for lsn in 1..=40 {
        append(&journal, lsn).unwrap();
        journal.commit(Lsn(lsn)).unwrap();
    }
    drop(journal);
    let segments: Vec<_> =
        disk.list(Path::new(DIR)).unwrap().into_iter().filter(|entry| entry.name.starts_with("segment")).collect();
    assert!(2 < segments.len());
    let mut missed = 0;
    for entry in &segments {
        let path = Path::new(DIR).join(&entry.name);
        let gone = disk.fork();
        gone.remove(&path).unwrap();
        let short = disk.fork();
        short.damage(&path, |bytes| bytes.truncate(20_000));
        for (damaged, boot) in [(&gone, 1), (&gone, 2), (&short, 1), (&short, 2)] {
            // The checkpoint tells of the first ones.
            let opened = open_on(&damaged.fork(), boot).map(|(journal, _)| journal.check_continues(Lsn(0)).err());
            assert!(matches!(opened, Err(Error::Damaged { .. }) | Ok(Some(Error::Damaged { .. }))), "{path:?}");
        }
        for block in 0..SIZE.segment_bytes / 4096 {
            let damaged = disk.fork();
            damaged.damage(&path, |bytes| bytes[usize::try_from(block * 4096).unwrap() + 70] ^= 4);
            match open_on(&damaged, 1) {
                // The very last frame may be one that was being written.
                Ok((journal, recovered)) => assert!(40 <= recovered.next.0 && check_from(&journal, Lsn(1)).is_ok()),
                Err(error) => {
                    assert!(is_damage(&error), "{error}");
                    missed += 1;
                }
            }
        }
    }
    assert!(20 < missed, "{missed}");
    // The head: its loss is one, too.
    let head = Path::new("journal.head");
    for is_removed in [true, false] {
        let damaged = disk.fork();
        if is_removed {
            damaged.remove(head).unwrap();
        } else {
            damaged.damage(head, |bytes| bytes.fill(1));
        }
        assert!(open_on(&damaged, 1).is_err_and(|error| is_damage(&error)));
    }
}

fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. })
}

#[test]
fn a_journal_of_another_group_or_repository_is_refused() {
    let disk = empty();
    let (journal, _) = open(&disk).unwrap();
    append(&journal, 1).unwrap();
    journal.commit(Lsn(1)).unwrap();
    drop(journal);
    let open_as = |identity: JournalIdentity| {
        Journal::open(Arc::new(disk.clone()), Arc::new(SimHost::new(1)), Path::new(DIR), identity, SIZE)
            .unwrap_err()
            .to_string()
    };
    let group = open_as(JournalIdentity { group: GroupId([3; 16]), ..identity() });
    assert!(group.contains("another consistency group"), "{group}");
    let repository = open_as(JournalIdentity { repository: RepositoryId([9; 16]), ..identity() });
    assert!(repository.contains("belongs to repository"), "{repository}");
    let keys = Keys::derive(&MasterKey([8; 32]), RepositoryId([1; 16]));
    let key = open_as(JournalIdentity { keys, ..identity() });
    assert!(key.contains("the key of this repository does not open it"), "{key}");
}

#[test]
fn threads_that_commit_at_the_same_time_share_frames_and_each_finds_its_record() {
    let disk = empty();
    let size = JournalSize { segment_bytes: 4 << 20, segments_max: 4 };
    let host = Arc::new(SimHost::new(1));
    let (journal, _) = Journal::open(Arc::new(disk.clone()), host, Path::new(DIR), identity(), size).unwrap();
    let journal = Arc::new(journal);
    std::thread::scope(|scope| {
        for thread in 0..4_u16 {
            let journal = Arc::clone(&journal);
            scope.spawn(move || {
                for number in 0..200_u64 {
                    let lsn = journal.append(&Record::write(thread, number << 12, &number.to_le_bytes())).unwrap();
                    journal.commit(lsn).unwrap();
                    if number % 50 == 0 {
                        journal.sync().unwrap();
                    }
                }
            });
        }
    });
    let mut next = [0_u64; 4];
    let mut frames = journal.frames(Lsn(1));
    while frames
        .next_frame(&mut |Entry { record, .. }| {
            let number = &mut next[usize::from(record.volume)];
            assert_eq!((record.offset, record.payload), (*number << 12, &number.to_le_bytes()[..]));
            *number += 1;
            Ok(())
        })
        .unwrap()
    {}
    assert_eq!(next, [200; 4]);
}

#[test]
fn the_age_of_what_is_not_durable_is_that_of_its_oldest_record() {
    let disk = empty();
    let host = Arc::new(SimHost::new(1));
    let shared: Arc<dyn Host> = host.clone();
    let journal = Journal::open(Arc::new(disk), shared, Path::new(DIR), identity(), SIZE).unwrap().0;
    let seconds = |count| host.sleep(Duration::from_secs(count));
    let age = || journal.unsynced_age().map(|age| age.as_secs());
    assert_eq!(age(), None);
    append(&journal, 1).unwrap();
    seconds(2);
    append(&journal, 2).unwrap();
    journal.commit(Lsn(2)).unwrap();
    seconds(3);
    append(&journal, 3).unwrap();
    seconds(4);
    assert_eq!(age(), Some(9));
    // A sync covers what is in its file: the third record is not.
    journal.sync().unwrap();
    assert_eq!(age(), Some(4));
    journal.commit(Lsn(3)).unwrap();
    journal.sync().unwrap();
    assert_eq!(age(), None);
}

#[test]
fn the_lag_is_that_of_the_records_from_one_on() {
    let disk = empty();
    let journal = open(&disk).unwrap().0;
    let mut ends = Vec::new();
    for lsn in 1..=30 {
        append(&journal, lsn).unwrap();
        journal.commit(Lsn(lsn)).unwrap();
        ends.push(journal.status().used);
    }
    assert!(1 < journal.status().segments);
    let used = journal.status().used;
    let mut time = 0;
    for lsn in 2..=30 {
        let lag = journal.lag(Lsn(lsn));
        assert_eq!(lag.records, 31 - lsn);
        let before = ends[usize::try_from(lsn).unwrap() - 2];
        // The first frame of a segment follows a header, and what was left of the segment before.
        assert!(lag.bytes <= used - before && used - before <= lag.bytes + (16 << 10), "{lsn}: {lag:?}");
        assert!(time < lag.time.unwrap());
        time = lag.time.unwrap();
    }
    append(&journal, 31).unwrap();
    assert_eq!(journal.lag(Lsn(31)), Lag { records: 1, bytes: 0, time: None });
    assert_eq!(journal.lag(Lsn(32)), Lag::default());
}
