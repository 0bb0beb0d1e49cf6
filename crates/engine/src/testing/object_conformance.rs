//! Requirements of every object store, run over each of them.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;

use crate::error::Error;
use crate::io::Disk;
use crate::io::os::OsDisk;
use crate::object::ObjectStore;
use crate::object::bytes::ObjectBytes;
use crate::object::directory::DirectoryStore;
use crate::object::names::{CollectionStep, ContainerKind, ContainerName, ObjectCopy, ObjectName, Prefix};
use crate::object::store::{Created, Detail, Handshake, RangeRead};
use crate::testing::object_sim::SimObjectStore;
use crate::testing::sim::SimDisk;
use crate::types::{ContainerId, SessionId};

const SESSION: SessionId = SessionId([5; 16]);
const OTHER: SessionId = SessionId([6; 16]);

/// Two handles to a store in which a repository is about to be created.
struct Handles<'a> {
    store: &'a dyn ObjectStore,
    other: &'a dyn ObjectStore,
    /// Stores bytes under any name, as another program does.
    plant: &'a dyn Fn(&str, &[u8]),
}

fn begin(store: &dyn ObjectStore) {
    let lock = store.begin_creation(SESSION).unwrap();
    store.end_creation(lock);
}

fn on_disk(disk: &Arc<dyn Disk>, property: impl Fn(&Handles<'_>)) {
    disk.create_dir("".as_ref()).unwrap();
    let (store, other) = (DirectoryStore::new(Arc::clone(disk)), DirectoryStore::new(Arc::clone(disk)));
    begin(&store);
    let plant = |name: &str, bytes: &[u8]| {
        let file = disk.create(name.as_ref()).unwrap();
        file.write_at(0, bytes).unwrap();
    };
    property(&Handles { store: &store, other: &other, plant: &plant });
}

/// Runs a property over every store there is.
fn on_every_store(property: impl Fn(&Handles<'_>)) {
    let directory = tempfile::tempdir().unwrap();
    on_disk(&(Arc::new(OsDisk::new(directory.path().join("repo"))) as Arc<dyn Disk>), &property);
    on_disk(&(Arc::new(SimDisk::new()) as Arc<dyn Disk>), &property);
    for seed in 0..20 {
        let store = SimObjectStore::new(seed);
        if 0 < seed {
            store.disturb(8, 8);
        }
        begin(&store);
        let plant = |name: &str, bytes: &[u8]| store.plant(name, bytes);
        property(&Handles { store: &store, other: &store.another_client(), plant: &plant });
    }
}

fn container(session: SessionId, ordinal: u32) -> ObjectName {
    container_name(session, ordinal).into()
}

fn container_name(session: SessionId, ordinal: u32) -> ContainerName {
    ContainerName { id: ContainerId { session, ordinal }, kind: ContainerKind::Data, checksum: [7; 32] }
}

fn bytes_of(name: ObjectName) -> Vec<u8> {
    name.to_string().repeat(100).into_bytes()
}

fn put_all(store: &dyn ObjectStore, names: &[ObjectName]) {
    let put = |name: &ObjectName| store.put(SESSION, *name, &ObjectBytes::copy_of(&bytes_of(*name))).unwrap();
    store.barrier(names.iter().map(put).collect()).unwrap();
}

fn read(store: &dyn ObjectStore, name: ObjectName) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(store.len(name).unwrap()?).unwrap()];
    store.read_exact(name, 0, &mut bytes).unwrap();
    Some(bytes)
}

fn list(store: &dyn ObjectStore, prefix: Prefix) -> Vec<Result<ObjectName, String>> {
    let mut all = Vec::new();
    store
        .list(prefix, Detail::Names, &mut |page| {
            all.extend(page.into_iter().map(|listed| listed.name));
            Ok(())
        })
        .unwrap();
    all
}

#[test]
fn a_name_is_created_once_and_its_own_bytes_count_as_new() {
    on_every_store(|Handles { store, other, .. }| {
        let names = [
            ObjectName::Config(ObjectCopy::First),
            ObjectName::Session(SESSION),
            ObjectName::Heartbeat(SESSION, 1),
            ObjectName::Commit(SESSION),
            ObjectName::Manifest(SESSION),
            ObjectName::Forget(SESSION),
            ObjectName::Collection(1, CollectionStep::Condemn),
        ];
        for name in names {
            assert_eq!(store.create(SESSION, name, b"first").unwrap(), Created::New);
            assert_eq!(other.create(OTHER, name, b"other").unwrap(), Created::Existed);
            assert_eq!(other.create(OTHER, name, b"firs").unwrap(), Created::Existed);
            assert_eq!(store.create(SESSION, name, b"first").unwrap(), Created::New);
            for handle in [store, other] {
                assert_eq!(read(*handle, name), Some(b"first".to_vec()));
            }
        }
    });
}

#[test]
fn of_many_that_create_a_name_at_a_time_one_succeeds() {
    on_every_store(|Handles { store, other, .. }| {
        let name = ObjectName::Commit(SESSION);
        let created: Vec<Created> = std::thread::scope(|scope| {
            let create = |number: u8| {
                let handle: &dyn ObjectStore = if number.is_multiple_of(2) { *store } else { *other };
                scope.spawn(move || handle.create(SessionId([number; 16]), name, &[number; 9]).unwrap())
            };
            let threads: Vec<_> = (0..8).map(create).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winners: Vec<usize> = (0..8).filter(|at| created[*at] == Created::New).collect();
        let [winner] = winners[..] else { panic!("{created:?}") };
        assert_eq!(read(*other, name), Some(vec![u8::try_from(winner).unwrap(); 9]));
    });
}

#[test]
fn puts_are_visible_to_all_after_the_barrier() {
    on_every_store(|Handles { store, other, .. }| {
        let names: Vec<ObjectName> = (1..40).map(|ordinal| container(SESSION, ordinal)).collect();
        put_all(*store, &names);
        store.confirm(&names).unwrap();
        assert_eq!(list(*other, Prefix::Containers), names.iter().copied().map(Ok).collect::<Vec<_>>());
        for name in names {
            assert_eq!(read(*other, name), Some(bytes_of(name)));
        }
    });
}

#[test]
fn a_put_that_is_discarded_is_absent_or_whole_and_stays_if_it_was_visible() {
    on_every_store(|Handles { store, other, .. }| {
        for ordinal in 1..20 {
            let name = container(SESSION, ordinal);
            let put = store.put(SESSION, name, &ObjectBytes::copy_of(&bytes_of(name))).unwrap();
            let seen = read(*other, name);
            store.discard(vec![put]);
            let left = read(*other, name);
            assert!(left.as_ref().is_none_or(|bytes| *bytes == bytes_of(name)));
            assert!(seen.is_none() || seen == left);
        }
    });
}

#[test]
fn a_put_again_keeps_an_object_and_brings_none_back() {
    on_every_store(|Handles { store, other, .. }| {
        let (kept, deleted) = (container(SESSION, 1), container(SESSION, 2));
        put_all(*store, &[kept, deleted]);
        let again = |name: ObjectName| store.put_again(SESSION, name, &ObjectBytes::copy_of(&bytes_of(name))).unwrap();
        match store.barrier(vec![again(kept)]) {
            Err(error) if error.io_kind() == Some(ErrorKind::Unsupported) => return,
            done => done.unwrap(),
        }
        other.delete(&[deleted]).unwrap();
        let error = store.barrier(vec![again(deleted)]).unwrap_err();
        assert_eq!(error.io_kind(), Some(ErrorKind::NotFound));
        assert_eq!((read(*other, kept), read(*other, deleted)), (Some(bytes_of(kept)), None));
    });
}

#[test]
fn reads_of_a_batch_have_an_outcome_each() {
    on_every_store(|Handles { store, other, .. }| {
        let (name, absent) = (container(SESSION, 1), container(SESSION, 2));
        put_all(*store, &[name]);
        let whole = bytes_of(name);
        let len = whole.len();
        let mut reads = [
            RangeRead::new(name, 0, 10),
            RangeRead::new(absent, 0, 10),
            RangeRead::new(name, len as u64 - 3, 10),
            RangeRead::new(name, len as u64 + 5, 10),
            RangeRead::new(name, 7, len),
        ];
        other.read(&mut reads);
        let [first, missing, end, after, rest] = reads;
        assert!(matches!(missing.outcome, Err(Error::Missing { .. })));
        for (read, wanted) in [(first, &whole[..10]), (end, &whole[len - 3..]), (after, &[]), (rest, &whole[7..])] {
            assert_eq!((read.outcome.unwrap(), &read.buffer[..]), (len as u64, wanted));
        }
        let mut bytes = [0; 4];
        let error = other.read_exact(name, len as u64 - 3, &mut bytes).unwrap_err();
        assert_eq!(error.io_kind(), Some(ErrorKind::UnexpectedEof));
        assert!(matches!(other.read_exact(absent, 0, &mut bytes), Err(Error::Missing { .. })));
        assert_eq!(other.len(absent).unwrap(), None);
    });
}

#[test]
fn listings_are_in_order_with_lengths_and_names_that_are_no_objects() {
    on_every_store(|Handles { store, other, plant }| {
        let mut sessions: Vec<ObjectName> = (0..23).map(|n| ObjectName::Session(SessionId([n; 16]))).collect();
        sessions.extend((1..4).map(|n| ObjectName::Heartbeat(SESSION, n)));
        for name in &sessions {
            let _new = store.create(SESSION, *name, b"body").unwrap();
        }
        sessions.sort_by_key(ToString::to_string);
        plant("sessions/zzz", b"unknown");
        plant("sessions/left.probe", b"probe");
        plant("unknown", b"bytes");
        let mut listed = Vec::new();
        other
            .list(Prefix::Sessions, Detail::Lengths, &mut |page| {
                listed.extend(page.into_iter().map(|listed| (listed.name, listed.len)));
                Ok(())
            })
            .unwrap();
        let mut wanted: Vec<_> = sessions.into_iter().map(|name| (Ok(name), 4)).collect();
        wanted.push((Err("sessions/zzz".to_owned()), 7));
        assert_eq!(listed, wanted);
        assert_eq!(list(*other, Prefix::Root), [Err("unknown".to_owned())]);
        assert_eq!(list(*other, Prefix::Commits), []);
        // An error of the receiver ends the listing.
        let stopped = other.list(Prefix::Sessions, Detail::Names, &mut |_| Err(Error::Interrupted));
        assert!(matches!(stopped, Err(Error::Interrupted)));
    });
}

#[test]
fn deletions_are_seen_by_all_and_may_be_repeated() {
    on_every_store(|Handles { store, other, .. }| {
        let names: Vec<ObjectName> = (1..9).map(|n| container(if n < 5 { SESSION } else { OTHER }, n)).collect();
        put_all(*store, &names);
        assert_eq!(read(*other, names[0]), Some(bytes_of(names[0])));
        for _ in 0..2 {
            store.delete(&names[..6]).unwrap();
            assert_eq!(list(*other, Prefix::Containers), names[6..].iter().copied().map(Ok).collect::<Vec<_>>());
        }
        assert_eq!(read(*store, names[0]), None);
        assert_eq!(read(*other, names[0]), None);
        store.delete(&[ObjectName::Commit(SESSION)]).unwrap();
    });
}

#[test]
fn quarantined_containers_have_another_name_and_the_same_bytes_and_it_may_be_repeated() {
    on_every_store(|Handles { store, other, plant }| {
        let containers: Vec<ContainerName> =
            (1..9).map(|n| container_name(if n < 5 { SESSION } else { OTHER }, n)).collect();
        let names: Vec<ObjectName> = containers.iter().map(|name| (*name).into()).collect();
        put_all(*store, &names);
        plant(&ObjectName::Quarantined(containers[5]).to_string(), b"older");
        assert_eq!(read(*other, names[0]), Some(bytes_of(names[0])));
        for handle in [store, other] {
            handle.quarantine(&containers[..6]).unwrap();
            for (container, name) in containers.iter().zip(&names).take(6) {
                let quarantined = ObjectName::Quarantined(*container);
                assert_eq!((read(*store, *name), read(*other, *name)), (None, None));
                assert_eq!(read(*other, quarantined), Some(bytes_of(*name)));
            }
            let mut listed: Vec<ObjectName> =
                containers[..6].iter().map(|name| ObjectName::Quarantined(*name)).collect();
            listed.extend(&names[6..]);
            let as_listed: BTreeSet<_> = list(*other, Prefix::Containers).into_iter().collect();
            assert_eq!(as_listed, listed.into_iter().map(Ok).collect());
        }
        // A container of another session that nobody has stored.
        store.quarantine(&[container_name(SessionId([9; 16]), 1)]).unwrap();
        store.delete(&[ObjectName::Quarantined(containers[0])]).unwrap();
        assert_eq!(read(*other, ObjectName::Quarantined(containers[0])), None);
    });
}

#[test]
fn collections_are_listed_after_a_refresh_and_the_handshake_leaves_no_name() {
    on_every_store(|Handles { store, other, .. }| {
        let steps = [1, 2].map(|number| CollectionStep::ALL.map(|step| ObjectName::Collection(number, step)));
        for (at, name) in steps.into_iter().flatten().enumerate() {
            let _new = store.create(SESSION, name, b"step").unwrap();
            other.refresh_collections(OTHER).unwrap();
            assert_eq!(list(*other, Prefix::Collections).len(), at + 1);
        }
        let _new = store.create(SESSION, ObjectName::Session(SESSION), b"body").unwrap();
        other.refresh_sessions(OTHER).unwrap();
        assert_eq!(list(*other, Prefix::Sessions), [Ok(ObjectName::Session(SESSION))]);
        assert_eq!(store.try_handshake(SESSION).unwrap(), Handshake::Passed);
        assert_eq!(store.leftovers(&|_| true).unwrap().removed, 0);
        assert_eq!(list(*other, Prefix::Collections).len(), 8);
    });
}

#[test]
fn one_process_at_a_time_creates_a_repository() {
    on_every_store(|Handles { store, other, .. }| {
        let lock = store.begin_creation(SESSION).unwrap();
        assert!(matches!(other.begin_creation(OTHER), Err(Error::CreationBusy { .. })));
        store.end_creation(lock);
        drop(other.begin_creation(OTHER).unwrap());
        let lock = store.begin_creation(SESSION).unwrap();
        store.end_creation(lock);
        let texts: BTreeSet<String> = ["", "config", "keys"].map(|key| store.display(key)).into();
        assert_eq!(texts.len(), 3);
    });
}
