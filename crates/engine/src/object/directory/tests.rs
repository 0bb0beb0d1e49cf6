use std::sync::atomic::AtomicUsize;

use super::*;
use crate::object::names::{CollectionStep, ContainerKind, ContainerName};
use crate::testing::sim::{CrashMode, Fault, SimDisk};
use crate::types::ContainerId;

const SESSION: SessionId = SessionId([5; 16]);
const OTHER: SessionId = SessionId([6; 16]);

fn container(session: SessionId, ordinal: u32) -> ObjectName {
    ContainerName { id: ContainerId { session, ordinal }, kind: ContainerKind::Data, checksum: [7; 32] }.into()
}

fn disk() -> SimDisk {
    let disk = SimDisk::new();
    for name in names::DIRECTORIES {
        let _made = disk.subdir(name);
    }
    disk
}

fn store(disk: &SimDisk) -> DirectoryStore {
    DirectoryStore::new(Arc::new(disk.clone()))
}

fn store_durably(objects: &dyn ObjectStore, name: ObjectName) -> Result<()> {
    let put = objects.put(SESSION, name, &ObjectBytes::copy_of(name.to_string().as_bytes()))?;
    objects.barrier(vec![put])
}

fn names_in(disk: &SimDisk, directory: &str) -> Vec<String> {
    disk.list(Path::new(directory)).unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn the_directory_of_a_session_goes_with_its_last_container_and_no_other_directory_goes() {
    let disk = disk();
    let store = store(&disk);
    let (first, second) = (container(SESSION, 1), container(SESSION, 2));
    for name in [first, second, container(OTHER, 1)] {
        store_durably(&store, name).unwrap();
    }
    let steps = CollectionStep::ALL.map(|step| ObjectName::Collection(1, step));
    for name in steps {
        let _new = store.create(SESSION, name, b"step").unwrap();
    }
    store.delete(&[first]).unwrap();
    assert_eq!(names_in(&disk, "containers"), [SESSION.to_string(), OTHER.to_string()]);
    store.delete(&[second]).unwrap();
    store.delete(&steps).unwrap();
    let after = disk.crash(CrashMode::LoseUnsynced);
    assert_eq!(names_in(&after, "containers"), [OTHER.to_string()]);
    assert_eq!(names_in(&after, "gc"), ["00000001"]);
    // Its directory is made again for another container.
    store_durably(&store, second).unwrap();
    let after = disk.crash(CrashMode::LoseUnsynced);
    assert_eq!(self::store(&after).len(second).unwrap(), Some(second.to_string().len() as u64));
}

/// A sync that failed may not be repeated: the second one would succeed and keep nothing.
#[test]
fn a_store_that_failed_at_any_call_is_durable_when_it_succeeds() {
    for fault in [Fault::Error(ErrorKind::StorageFull), Fault::ErrorAfter(ErrorKind::Other)] {
        for is_same in [true, false] {
            let (before, name) = (disk(), container(SESSION, 1));
            let counted = before.fork();
            store_durably(&store(&counted), name).unwrap();
            let mut failed = 0;
            for call in 1..=counted.calls() {
                let disk = before.fork();
                let first = store(&disk);
                disk.fail_at(call, fault);
                if store_durably(&first, name).is_ok() {
                    continue;
                }
                failed += 1;
                let second = store(&disk);
                // A name that exists is put again, as a session does with what another one left.
                let store = if is_same { &first } else { &second };
                if store.len(name).unwrap().is_some() {
                    let put = store.put_again(SESSION, name, &ObjectBytes::copy_of(name.to_string().as_bytes()));
                    store.barrier(vec![put.unwrap()]).unwrap();
                } else {
                    store_durably(store, name).unwrap();
                }
                let after = disk.crash(CrashMode::LoseUnsynced);
                let len = self::store(&after).len(name).unwrap();
                assert_eq!(len, Some(name.to_string().len() as u64), "{fault:?} at {call}");
            }
            assert!(5 < failed, "{failed} calls failed");
        }
    }
}

#[test]
fn a_deletion_that_was_interrupted_at_any_call_is_completed_by_a_repetition() {
    let before = disk();
    let doomed = [container(SESSION, 1), container(SESSION, 2)];
    for name in doomed.into_iter().chain([container(OTHER, 1)]) {
        store_durably(&store(&before), name).unwrap();
    }
    let counted = before.fork();
    store(&counted).delete(&doomed).unwrap();
    assert_eq!(counted.calls(), 5, "two removals, and a sync, a removal and a sync for the directory");
    for call in 1..=counted.calls() {
        for fault in [Fault::Die, Fault::DieAfter, Fault::Error(ErrorKind::Other), Fault::ErrorAfter(ErrorKind::Other)]
        {
            let disk = before.fork();
            disk.fail_at(call, fault);
            store(&disk).delete(&doomed).unwrap_err();
            for mode in [CrashMode::LoseUnsynced, CrashMode::KeepAll, CrashMode::Subset(call), CrashMode::Torn(call)] {
                let after = disk.crash(mode);
                store(&after).delete(&doomed).unwrap();
                let after = after.crash(CrashMode::LoseUnsynced);
                assert_eq!(names_in(&after, "containers"), [OTHER.to_string()], "{fault:?} at {call}, {mode:?}");
                assert!(store(&after).len(container(OTHER, 1)).unwrap().is_some());
            }
        }
    }
}

/// A disk on which another process deletes a container right before the n-th call.
#[derive(Debug)]
struct Deleting {
    disk: SimDisk,
    victim: ObjectName,
    at: AtomicUsize,
    calls: AtomicUsize,
}

impl Deleting {
    fn disk(&self) -> &SimDisk {
        if self.calls.fetch_add(1, Ordering::Relaxed) + 1 == self.at.load(Ordering::Relaxed) {
            store(&self.disk).delete(&[self.victim]).unwrap();
        }
        &self.disk
    }
}

impl Disk for Deleting {
    fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>> {
        self.disk().create(path)
    }
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn DiskFile>> {
        self.disk().open(path, access)
    }
    fn create_dir(&self, path: &Path) -> Result<()> {
        self.disk().create_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.disk().rename(from, to)
    }
    fn link(&self, existing: &Path, new: &Path) -> Result<Linked> {
        self.disk().link(existing, new)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.disk().remove(path)
    }
    fn remove_dir(&self, path: &Path) -> Result<bool> {
        self.disk().remove_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.disk().sync_dir(path)
    }
    fn list(&self, path: &Path) -> Result<Vec<DiskEntry>> {
        self.disk().list(path)
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        self.disk().exists(path)
    }
    fn read_batch(&self, reads: &mut [BatchRead]) {
        self.disk().read_batch(reads);
    }
    fn display(&self, path: &Path) -> String {
        self.disk.display(path)
    }
}

#[test]
fn a_container_that_is_stored_while_the_last_other_one_of_its_session_is_deleted_is_durable() {
    let (victim, name) = (container(SESSION, 1), container(SESSION, 2));
    for knows_directory in [false, true] {
        for at in 1.. {
            let disk = disk();
            let deleting = Arc::new(Deleting {
                disk: disk.clone(),
                victim,
                at: AtomicUsize::default(),
                calls: AtomicUsize::default(),
            });
            let writer = DirectoryStore::new(Arc::clone(&deleting) as Arc<dyn Disk>);
            if knows_directory {
                store_durably(&writer, victim).unwrap();
            } else {
                store_durably(&store(&disk), victim).unwrap();
            }
            deleting.calls.store(0, Ordering::Relaxed);
            deleting.at.store(at, Ordering::Relaxed);
            store_durably(&writer, name).unwrap();
            if deleting.calls.load(Ordering::Relaxed) < at {
                assert!(3 < at, "the writer made calls");
                break;
            }
            let after = store(&disk.crash(CrashMode::LoseUnsynced));
            let len = name.to_string().len() as u64;
            assert_eq!((after.len(victim).unwrap(), after.len(name).unwrap()), (None, Some(len)), "call {at}");
        }
    }
}

#[test]
fn a_container_whose_directory_was_removed_is_not_written_again() {
    let disk = disk();
    let name = container(SESSION, 1);
    store_durably(&store(&disk), name).unwrap();
    let store = store(&disk);
    let again = store.put_again(SESSION, name, &ObjectBytes::copy_of(name.to_string().as_bytes())).unwrap();
    self::store(&disk).delete(&[name]).unwrap();
    let error = store.barrier(vec![again]).unwrap_err();
    assert_eq!(error.io_kind(), Some(ErrorKind::NotFound));
    assert_eq!((names_in(&disk, "containers"), names_in(&disk, "tmp")), (vec![], vec![]));
}
