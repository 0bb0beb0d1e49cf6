use super::*;
use crate::object::names::{CollectionStep, ContainerKind, ContainerName};
use crate::types::ContainerId;

const SESSION: SessionId = SessionId([5; 16]);

fn container(ordinal: u32) -> ObjectName {
    ContainerName { id: ContainerId { session: SESSION, ordinal }, kind: ContainerKind::Data, checksum: [7; 32] }.into()
}

fn put(store: &SimObjectStore, ordinal: u32) -> PendingPut {
    store.put(SESSION, container(ordinal), &ObjectBytes::copy_of(&[7; 100])).unwrap()
}

fn lists(store: &SimObjectStore, prefix: Prefix) -> usize {
    let mut count = 0;
    store
        .list(prefix, Detail::Names, &mut |page| {
            count += page.len();
            Ok(())
        })
        .unwrap();
    count
}

#[test]
fn uploads_land_in_another_order_than_they_began() {
    let reordered: u64 = (0..5)
        .map(|seed| {
            let store = SimObjectStore::new(seed);
            let puts = (0..40).map(|ordinal| put(&store, ordinal)).collect();
            store.barrier(puts).unwrap();
            assert_eq!(store.keys().len(), 40);
            store.reordered()
        })
        .sum();
    assert!(0 < reordered);
}

#[test]
fn uploads_in_flight_are_lost_or_whole_after_the_process_died() {
    let mut counts = BTreeMap::<usize, u32>::new();
    for seed in 0..40 {
        let store = SimObjectStore::new(seed);
        let _lost = (0..4).map(|ordinal| put(&store, ordinal)).collect::<Vec<_>>();
        let after = store.fork();
        *counts.entry(after.keys().len()).or_default() += 1;
        for ordinal in 0..4 {
            assert!(after.len(container(ordinal)).unwrap().is_none_or(|len| len == 100));
        }
    }
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn requests_are_repeated_a_limited_number_of_times() {
    let name = ObjectName::Commit(SESSION);
    for (fault, kind, is_created) in [
        (RequestFault::Throttled, ErrorKind::ResourceBusy, false),
        (RequestFault::LostReply, ErrorKind::TimedOut, true),
    ] {
        let store = SimObjectStore::new(1);
        store.fail_at(1, fault, TRIES_MAX - 1);
        assert_eq!(store.create(SESSION, name, b"mine").unwrap(), Created::New);
        assert_eq!(store.disturbances(), u64::from(TRIES_MAX) - 1);

        let store = SimObjectStore::new(1);
        store.fail_at(1, fault, TRIES_MAX);
        assert_eq!(store.create(SESSION, name, b"mine").unwrap_err().io_kind(), Some(kind));
        assert_eq!(store.len(name).unwrap().is_some(), is_created);
        let first = store.requests() + 1;
        store.fail_at(first, fault, TRIES_MAX);
        let upload = put(&store, 1);
        assert_eq!(store.barrier(vec![upload]).unwrap_err().io_kind(), Some(kind));
        assert_eq!(store.len(container(1)).unwrap().is_some(), is_created);
    }
}

#[test]
fn another_ones_object_is_not_taken_for_the_own_one_after_a_lost_reply() {
    let store = SimObjectStore::new(1);
    let name = ObjectName::Commit(SESSION);
    let _fence = store.create(SESSION, name, b"fence").unwrap();
    store.fail_each(RequestFault::LostReply, 2);
    assert_eq!(store.create(SESSION, name, b"mine").unwrap(), Created::Existed);
    assert_eq!(store.create(SESSION, name, b"fence").unwrap(), Created::New);
}

#[test]
fn a_server_that_ignores_conditions_is_refused() {
    let store = SimObjectStore::new(1);
    store.ignore_conditions();
    assert!(matches!(store.begin_creation(SESSION), Err(Error::UnfitFileSystem { .. })));
}

#[test]
fn listings_lag_so_many_times_unless_the_client_changes_something() {
    let store = SimObjectStore::new(1);
    store.set_lag(Lag::UntilOwnChange(3));
    let reader = store.another_client();
    assert_eq!(lists(&reader, Prefix::Collections), 0);
    let _new = store.create(SESSION, ObjectName::Collection(1, CollectionStep::Begin), b"").unwrap();
    assert_eq!((0..5).map(|_| lists(&reader, Prefix::Collections)).collect::<Vec<_>>(), [0, 0, 0, 1, 1]);
    let _new = store.create(SESSION, ObjectName::Collection(1, CollectionStep::Condemn), b"").unwrap();
    reader.refresh_collections(SESSION).unwrap();
    assert_eq!(lists(&reader, Prefix::Collections), 2);
}

#[test]
fn the_handshake_fails_only_if_listings_lag_after_the_own_change() {
    for seed in 0..10 {
        let store = SimObjectStore::new(seed);
        store.disturb(8, 8);
        for lag in [Lag::None, Lag::UntilOwnChange(100)] {
            store.set_lag(lag);
            assert_eq!(store.try_handshake(SESSION).unwrap(), Handshake::Passed, "{lag:?}");
        }
        for calls in [1, 3, 100] {
            let store = SimObjectStore::new(seed);
            store.set_lag(Lag::Always(calls));
            let handshake = store.try_handshake(SESSION).unwrap();
            assert_eq!(handshake, Handshake::CreatedMissed(Prefix::Collections), "lag of {calls} calls");
            let error = handshake.require(&store).unwrap_err().to_string();
            assert_eq!(
                error,
                "space cannot be reclaimed: a listing of object-store:gc does not show a name that was created before; \
                 backup and restore do not need this"
            );
            assert_eq!(store.keys(), Vec::<String>::new());
        }
    }
}
