//! Tests of the crash model itself: what must be lost is lost, what must survive survives.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::io::{AlignedBuffer, DIRECT_ALIGN};

fn path(path: &str) -> &Path {
    Path::new(path)
}

fn write(disk: &SimDisk, name: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.create(path(name)).unwrap();
    file.write_at(0, bytes).unwrap();
    file
}

/// Reads a whole file; `None` if the name does not exist.
fn read(disk: &SimDisk, name: &str) -> Option<Vec<u8>> {
    if !disk.exists(path(name)).unwrap() {
        return None;
    }
    let file = disk.open(path(name), Access::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    Some(bytes)
}

fn durable(disk: &SimDisk, name: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = write(disk, name, bytes);
    file.sync().unwrap();
    disk.sync_dir(path(name).parent().unwrap()).unwrap();
    file
}

/// Everything that stands in a world, to compare two.
fn everything(disk: &SimDisk, directory: &str, out: &mut Vec<(String, Option<Vec<u8>>)>) {
    for entry in disk.list(path(directory)).unwrap() {
        let name = format!("{directory}{}", entry.name);
        if entry.is_dir {
            everything(disk, &format!("{name}/"), out);
            out.push((name, None));
        } else {
            let bytes = read(disk, &name);
            out.push((name, bytes));
        }
    }
}

fn fingerprint(disk: &SimDisk) -> Vec<(String, Option<Vec<u8>>)> {
    let mut out = Vec::new();
    everything(disk, "", &mut out);
    out
}

#[test]
fn what_is_synced_with_its_name_survives_every_crash() {
    let disk = SimDisk::new();
    disk.create_dir(path("d")).unwrap();
    disk.sync_dir(path("")).unwrap();
    durable(&disk, "d/a", &[9; 5000]);
    write(&disk, "d/b", b"noise");
    let mut modes = vec![CrashMode::LoseUnsynced, CrashMode::KeepAll];
    modes.extend((0..50).flat_map(|seed| [CrashMode::Subset(seed), CrashMode::Torn(seed)]));
    for mode in modes {
        assert_eq!(read(&disk.crash(mode), "d/a"), Some(vec![9; 5000]), "{mode:?}");
    }
}

#[test]
fn an_unsynced_write_is_lost_and_an_unsynced_cut_too() {
    let disk = SimDisk::new();
    let file = durable(&disk, "a", b"old bytes");
    file.write_at(0, b"new").unwrap();
    file.set_len(5).unwrap();
    assert_eq!(read(&disk.crash(CrashMode::LoseUnsynced), "a").unwrap(), b"old bytes");
    assert_eq!(read(&disk.crash(CrashMode::KeepAll), "a").unwrap(), b"new b");
    assert_eq!(read(&disk, "a").unwrap(), b"new b", "the world that crashed stays as it was");
}

#[test]
fn a_name_is_lost_though_its_data_was_synced() {
    let disk = SimDisk::new();
    write(&disk, "a", b"bytes").sync().unwrap();
    assert_eq!(read(&disk.crash(CrashMode::LoseUnsynced), "a"), None);
    disk.sync_dir(path("")).unwrap();
    assert_eq!(read(&disk.crash(CrashMode::LoseUnsynced), "a").unwrap(), b"bytes");
}

#[test]
fn data_is_lost_though_its_name_was_synced() {
    let disk = SimDisk::new();
    write(&disk, "a", b"bytes");
    disk.sync_dir(path("")).unwrap();
    assert_eq!(read(&disk.crash(CrashMode::LoseUnsynced), "a").unwrap(), b"");
}

#[test]
fn a_synced_directory_is_lost_with_its_own_name() {
    let disk = SimDisk::new();
    disk.create_dir(path("d")).unwrap();
    durable(&disk, "d/a", b"bytes");
    assert!(!disk.crash(CrashMode::LoseUnsynced).exists(path("d")).unwrap());
    disk.sync_dir(path("")).unwrap();
    assert_eq!(read(&disk.crash(CrashMode::LoseUnsynced), "d/a").unwrap(), b"bytes");
}

#[test]
fn renames_removals_and_links_are_undone_until_the_directory_is_synced() {
    let disk = SimDisk::new();
    durable(&disk, "a", b"a");
    durable(&disk, "b", b"b");
    durable(&disk, "c", b"c");
    disk.rename(path("a"), path("b")).unwrap();
    disk.remove(path("c")).unwrap();
    assert_eq!(disk.link(path("b"), path("d")).unwrap(), Linked::Created);
    let before = disk.crash(CrashMode::LoseUnsynced);
    let stand = |disk: &SimDisk| ["a", "b", "c", "d"].map(|name| read(disk, name).map(|bytes| bytes[0]));
    assert_eq!(stand(&before), [Some(b'a'), Some(b'b'), Some(b'c'), None]);
    disk.sync_dir(path("")).unwrap();
    assert_eq!(stand(&disk.crash(CrashMode::LoseUnsynced)), [None, Some(b'a'), None, Some(b'a')]);
}

#[test]
fn a_rename_within_a_directory_is_never_torn() {
    let disk = SimDisk::new();
    durable(&disk, "current", b"old");
    durable(&disk, "next", b"new");
    disk.rename(path("next"), path("current")).unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let left = disk.crash(CrashMode::Subset(seed));
        seen.insert((read(&left, "current"), read(&left, "next")));
    }
    let (old, new) = (Some(b"old".to_vec()), Some(b"new".to_vec()));
    assert_eq!(seen, BTreeSet::from([(old, new.clone()), (new, None)]));
}

#[test]
fn a_failed_sync_loses_the_data_whatever_later_syncs_say() {
    let disk = SimDisk::new();
    let file = durable(&disk, "a", b"old");
    file.write_at(0, b"new bytes").unwrap();
    disk.fail_at(disk.calls() + 1, Fault::Error(ErrorKind::Other));
    assert!(file.sync().is_err());
    file.sync().unwrap();
    assert_eq!(read(&disk, "a").unwrap(), b"new bytes", "readers still see it");
    for mode in [CrashMode::LoseUnsynced, CrashMode::KeepAll, CrashMode::Subset(1), CrashMode::Torn(1)] {
        assert_eq!(read(&disk.crash(mode), "a").unwrap(), b"old\0\0\0\0\0\0", "{mode:?}");
    }
    file.write_at(0, b"NEW").unwrap();
    file.sync().unwrap();
    assert_eq!(read(&disk.crash(CrashMode::LoseUnsynced), "a").unwrap(), b"NEW\0\0\0\0\0\0");
}

#[test]
fn a_directory_sync_that_failed_loses_the_names_even_if_a_later_one_succeeds() {
    let disk = SimDisk::new();
    write(&disk, "a", b"bytes").sync().unwrap();
    disk.fail_at(disk.calls() + 1, Fault::Error(ErrorKind::Other));
    assert!(disk.sync_dir(path("")).is_err());
    write(&disk, "b", b"bytes").sync().unwrap();
    disk.sync_dir(path("")).unwrap();
    let lost = disk.crash(CrashMode::LoseUnsynced);
    assert_eq!([lost.exists(path("a")).unwrap(), lost.exists(path("b")).unwrap()], [false, true]);
    assert!(disk.crash(CrashMode::KeepAll).exists(path("a")).unwrap());
    // A name that is given again is another change.
    write(&disk, "c", b"again").sync().unwrap();
    disk.rename(path("c"), path("a")).unwrap();
    disk.sync_dir(path("")).unwrap();
    assert_eq!(read(&disk.crash(CrashMode::LoseUnsynced), "a").unwrap(), b"again");
}

#[test]
fn a_call_that_took_effect_can_answer_with_an_error() {
    let disk = SimDisk::new();
    write(&disk, "a", b"bytes");
    disk.fail_at(disk.calls() + 1, Fault::ErrorAfter(ErrorKind::AlreadyExists));
    assert_eq!(disk.link(path("a"), path("b")).unwrap(), Linked::Existed);
    assert_eq!(read(&disk, "b").unwrap(), b"bytes");
    disk.fail_at(disk.calls() + 1, Fault::ErrorAfter(ErrorKind::Other));
    assert!(disk.rename(path("b"), path("c")).is_err());
    assert_eq!(read(&disk, "c").unwrap(), b"bytes");
}

/// A world with unsynced changes of every kind.
fn unsettled() -> SimDisk {
    let disk = SimDisk::new();
    let file = durable(&disk, "index", &vec![1; 20_000]);
    durable(&disk, "old", b"old");
    for page in 0..4_u8 {
        file.write_at(u64::from(page) * 4096, &[10 + page; 4096]).unwrap();
    }
    for name in ["x", "y", "z"] {
        write(&disk, name, &[b'n'; 3000]).write_at(3000, &[b'm'; 3000]).unwrap();
    }
    disk.remove(path("old")).unwrap();
    disk
}

#[test]
fn crashes_repeat_with_their_seed_and_differ_between_seeds() {
    let disk = unsettled();
    for mode in [CrashMode::Subset, CrashMode::Torn] {
        let worlds: Vec<_> = (0..40).map(|seed| fingerprint(&disk.crash(mode(seed)))).collect();
        let again: Vec<_> = (0..40).map(|seed| fingerprint(&unsettled().crash(mode(seed)))).collect();
        assert!(worlds == again);
        let different: BTreeSet<_> = worlds.into_iter().collect();
        assert!(20 < different.len(), "{}", different.len());
    }
}

#[test]
fn subsets_reach_every_kind_of_loss_and_invent_no_bytes() {
    let disk = SimDisk::new();
    let file = durable(&disk, "a", &[1; 1000]);
    file.write_at(500, &[2; 1000]).unwrap();
    file.write_at(500, &[3; 500]).unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let bytes = read(&disk.crash(CrashMode::Subset(seed)), "a").unwrap();
        assert_eq!(bytes[..500], [1; 500], "seed {seed}");
        seen.insert((bytes[500], bytes.get(1000).copied()));
    }
    let nothing = (1, None);
    let (whole, reordered) = ((3, Some(2)), (2, Some(2)));
    let (length_only, bytes_only, first_lost) = ((1, Some(0)), (2, None), (3, None));
    let length_only_then_second = (3, Some(0));
    let all = [nothing, whole, reordered, length_only, bytes_only, first_lost, length_only_then_second];
    assert_eq!(seen, BTreeSet::from(all));
}

#[test]
fn torn_writes_keep_durable_sectors_whole_and_may_leave_garbage_after_them() {
    let disk = SimDisk::new();
    let file = durable(&disk, "a", &[1; 4096]);
    file.write_at(0, &[2; 8192]).unwrap();
    let (mut mixed, mut garbage) = (0, 0);
    for seed in 0..200 {
        let bytes = read(&disk.crash(CrashMode::Torn(seed)), "a").unwrap();
        let (old, new) = bytes.split_at(4096);
        for sector in old.chunks(512) {
            assert!(sector == [1; 512] || sector == [2; 512], "seed {seed}");
        }
        mixed += usize::from(old.contains(&1) && old.contains(&2));
        garbage += usize::from(new.iter().any(|byte| ![0, 2].contains(byte)));
    }
    assert!(20 < mixed, "{mixed}");
    assert!(10 < garbage, "{garbage}");
}

#[test]
fn a_lost_sync_may_have_reached_the_disk_in_part() {
    let disk = SimDisk::new();
    let file = durable(&disk, "a", b"old");
    file.write_at(0, b"new").unwrap();
    disk.fail_at(disk.calls() + 1, Fault::Error(ErrorKind::Other));
    assert!(file.sync().is_err());
    let seen: BTreeSet<_> = (0..50).map(|seed| read(&disk.crash(CrashMode::Subset(seed)), "a").unwrap()).collect();
    assert_eq!(seen, BTreeSet::from([b"old".to_vec(), b"new".to_vec()]));
    assert_eq!(read(&disk.crash(CrashMode::LoseUnsynced), "a").unwrap(), b"old");
    assert_eq!(read(&disk.crash(CrashMode::KeepAll), "a").unwrap(), b"old");
}

#[test]
fn every_call_counts_also_those_that_fail_and_each_of_a_batch() {
    let disk = SimDisk::new();
    disk.record_trace();
    let sub = disk.subdir("repo");
    let file = sub.create(path("a")).unwrap();
    assert!(sub.create(path("a")).is_err());
    let read =
        |offset| BatchRead { file: Arc::clone(&file), offset, buffer: AlignedBuffer::new_zeroed(1), outcome: Ok(()) };
    sub.read_batch(&mut [read(0), read(1)]);
    let write =
        |offset| BatchWrite { file: Arc::clone(&file), offset, buffer: AlignedBuffer::new_zeroed(1), outcome: Ok(()) };
    sub.write_batch(&mut [write(0), write(1)]);
    assert!(file.try_lock().unwrap());
    file.set_len(1).unwrap();
    assert_eq!(file.len().unwrap(), 1);
    let trace: Vec<_> = disk.trace().into_iter().map(|entry| (entry.number, entry.operation)).collect();
    let wanted = ["create", "create", "read", "read", "write", "write", "lock", "resize", "look up"];
    assert_eq!(trace, (1..).zip(wanted).collect::<Vec<_>>());
    assert_eq!((disk.calls(), sub.calls()), (9, 9));
    assert_eq!(disk.trace()[0].path, path("repo/a"));
}

#[test]
fn faults_strike_one_write_of_a_batch_and_a_power_cut_keeps_any_of_them() {
    let disk = SimDisk::new();
    let file = durable(&disk, "a", b"....");
    let write = |offset: u64| {
        let buffer = AlignedBuffer::from(&[b'0' + (offset % 10) as u8][..]);
        BatchWrite { file: Arc::clone(&file), offset, buffer, outcome: Ok(()) }
    };
    disk.fail_at(disk.calls() + 2, Fault::Error(ErrorKind::Other));
    let mut writes = [write(0), write(1), write(2), write(3)];
    disk.write_batch(&mut writes);
    assert_eq!(writes.each_ref().map(|write| write.outcome.is_ok()), [true, false, true, true]);
    assert_eq!(read(&disk, "a").unwrap(), b"0.23");
    let seen: BTreeSet<_> = (0..80).map(|seed| read(&disk.crash(CrashMode::Subset(seed)), "a").unwrap()).collect();
    assert_eq!(seen.len(), 8, "{seen:?}");
    let dying = disk.fork();
    let file = dying.open(path("a"), Access::Direct).unwrap();
    let page = |offset| {
        let buffer = AlignedBuffer::new_zeroed(DIRECT_ALIGN);
        BatchWrite { file: Arc::clone(&file), offset, buffer, outcome: Ok(()) }
    };
    dying.fail_at(dying.calls() + 2, Fault::Die);
    let mut writes = [page(0), page(4096), page(8192)];
    dying.write_batch(&mut writes);
    assert_eq!(writes.map(|write| write.outcome.is_ok()), [true, false, false]);
    assert_eq!(read(&dying.reopen(), "a").unwrap().len(), 4096);
}

#[test]
fn an_injected_error_strikes_its_call_only_and_without_effect() {
    let disk = SimDisk::new();
    disk.fail_at(1, Fault::Error(ErrorKind::ReadOnlyFilesystem));
    disk.fail_at(3, Fault::ShortWrite(ErrorKind::Other));
    disk.fail_at(4, Fault::ShortWrite(ErrorKind::Other));
    let error = disk.create(path("a")).unwrap_err();
    assert_eq!(error.io_kind(), Some(ErrorKind::ReadOnlyFilesystem));
    assert!(!SimDisk::is_crash(&error));
    let file = disk.create(path("a")).unwrap();
    assert!(file.write_at(0, b"12345678").is_err());
    assert!(disk.rename(path("a"), path("b")).is_err());
    assert_eq!(read(&disk, "a").unwrap(), b"1234");
}

#[test]
fn a_full_disk_refuses_growth_until_it_is_freed_and_nothing_else() {
    let disk = SimDisk::new();
    let file = write(&disk, "a", b"12345678");
    disk.fail_at(disk.calls() + 1, Fault::DiskFull);
    let kind = |result: Result<()>| result.unwrap_err().io_kind();
    assert_eq!(kind(file.write_at(4, b"56789")), Some(ErrorKind::StorageFull));
    assert_eq!(kind(disk.create_dir(path("d"))), Some(ErrorKind::StorageFull));
    assert_eq!(kind(disk.create(path("b")).map(drop)), Some(ErrorKind::StorageFull));
    assert_eq!(kind(disk.link(path("a"), path("b")).map(drop)), Some(ErrorKind::StorageFull));
    assert_eq!(disk.link(path("a"), path("a")).unwrap(), Linked::Existed);
    assert_eq!(kind(disk.create(path("a")).map(drop)), Some(ErrorKind::AlreadyExists));
    assert_eq!(kind(file.set_len(100)), Some(ErrorKind::StorageFull));
    file.write_at(0, b"abc").unwrap();
    file.sync().unwrap();
    file.set_len(7).unwrap();
    disk.rename(path("a"), path("b")).unwrap();
    disk.clear_faults();
    file.write_at(7, b"890").unwrap();
    assert_eq!(read(&disk, "b").unwrap(), b"abc4567890");
}

#[test]
fn after_death_every_call_fails_without_effect_and_reopening_revives() {
    for (fault, wanted) in [(Fault::Die, &b"old"[..]), (Fault::DieAfter, &b"new"[..])] {
        let disk = SimDisk::new();
        let file = write(&disk, "a", b"old");
        assert!(file.try_lock().unwrap());
        let calls = disk.calls();
        disk.fail_at(calls + 1, fault);
        let error = file.write_at(0, b"new").unwrap_err();
        assert!(SimDisk::is_crash(&error) && error.to_string().contains("simulated crash"), "{error}");
        assert!(disk.is_dead());
        assert!(SimDisk::is_crash(&file.write_at(0, b"xxx").unwrap_err()));
        assert!(SimDisk::is_crash(&disk.exists(path("a")).unwrap_err()));
        assert!(SimDisk::is_crash(&disk.remove(path("a")).unwrap_err()));
        assert_eq!(disk.calls(), calls + 4);

        let alive = disk.reopen();
        assert_eq!((alive.calls(), alive.is_dead()), (0, false));
        assert_eq!(read(&alive, "a").unwrap(), wanted);
        assert!(alive.open(path("a"), Access::Read).unwrap().try_lock().unwrap(), "the dead hold no lock");
        assert!(!alive.crash(CrashMode::LoseUnsynced).exists(path("a")).unwrap(), "living on makes nothing durable");
        assert_eq!(read(&disk.crash(CrashMode::KeepAll), "a").unwrap(), wanted);
    }
}

#[test]
fn forks_do_not_see_each_other() {
    let disk = SimDisk::new();
    let file = write(&disk, "a", b"before");
    let fork = disk.fork();
    file.write_at(0, b"AFTER!").unwrap();
    fork.remove(path("a")).unwrap();
    durable(&fork, "b", b"b");
    assert_eq!((read(&disk, "a"), read(&disk, "b")), (Some(b"AFTER!".to_vec()), None));
    assert_eq!((read(&fork, "a"), read(&fork, "b")), (None, Some(b"b".to_vec())));
}

#[test]
fn subdirectories_share_the_world_and_its_crash() {
    let world = SimDisk::new();
    let (repository, cache) = (world.subdir("repository"), world.subdir("cache"));
    durable(&repository, "a", b"a");
    write(&cache, "b", b"b");
    world.fail_at(world.calls() + 1, Fault::Die);
    assert!(cache.list(path("")).is_err());
    assert!(repository.list(path("")).is_err());
    let left = world.crash(CrashMode::LoseUnsynced);
    assert_eq!(fingerprint(&left.subdir("cache")), []);
    assert_eq!(fingerprint(&repository.crash(CrashMode::LoseUnsynced)), fingerprint(&left.subdir("repository")));
    assert_eq!(read(&left, "repository/a").unwrap(), b"a");
}

#[test]
fn paths_out_of_the_disk_are_refused() {
    let disk = SimDisk::new().subdir("repository");
    disk.create_dir(path("d")).unwrap();
    for name in ["/a", "../a", "d/../../b"] {
        assert_eq!(disk.create(path(name)).unwrap_err().io_kind(), Some(ErrorKind::InvalidInput), "{name}");
    }
}

#[test]
fn a_directory_that_was_removed_comes_back_until_its_parent_is_synced() {
    let disk = SimDisk::new();
    disk.create_dir(path("d")).unwrap();
    durable(&disk, "d/a", b"bytes");
    disk.sync_dir(path("")).unwrap();
    disk.remove(path("d/a")).unwrap();
    assert!(disk.remove_dir(path("d")).unwrap());
    // Neither removal is durable: both come back.
    assert_eq!(read(&disk.crash(CrashMode::LoseUnsynced), "d/a"), Some(b"bytes".to_vec()));
    disk.sync_dir(path("")).unwrap();
    assert!(!disk.crash(CrashMode::LoseUnsynced).exists(path("d")).unwrap());
}
