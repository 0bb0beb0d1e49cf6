//! Containers and entries of stores that no index uses.

use std::sync::Arc;
use std::time::Instant;

use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::kv::{
    Containers, Entry, Key, Live, Lookup, OpenStore, Ordinal, Position, Surroundings, SyncContainers,
};
use onefold_engine::types::{ContainerId, SessionId};

/// Containers that are all live and durable.
pub(crate) struct All;

impl Containers for All {
    fn container(&self, ordinal: Ordinal) -> Option<ContainerId> {
        Some(ContainerId { session: SessionId([9; 16]), ordinal: ordinal.0 })
    }

    fn live_ordinal(&self, container: ContainerId) -> Option<Ordinal> {
        Some(Ordinal(container.ordinal))
    }

    fn len_of(&self, _container: ContainerId) -> Option<u64> {
        Some(1)
    }

    fn is_live(&self, _container: Ordinal) -> bool {
        true
    }

    fn live(&self) -> Live {
        Arc::new(|_| true)
    }

    fn begin_sync(&mut self) -> onefold_engine::Result<SyncContainers> {
        Ok(Arc::new(|| Ok(())))
    }
}

/// Returns the n-th entry.
pub(crate) fn entry(number: u64) -> Entry {
    let hash = blake3::hash(&number.to_le_bytes());
    Entry { key: Key(*hash.as_bytes().first_chunk().unwrap()), ordinal: Ordinal(1), position: Position(number) }
}

/// Fills a store with 200,000 entries, and looks them up one by one and in batches of 2,048. Prints how many lookups there are in a
/// second and in a second of the servers' processors; returns the ratio of the latter.
pub(crate) fn compare_batches(kind: &dyn OpenStore, processor_seconds: &dyn Fn() -> f64) -> f64 {
    let directory = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(directory.path().to_path_buf()));
    let host: Arc<dyn Host> = Arc::new(OsHost::new());
    let surroundings = Surroundings { disk: &disk, host: &host, file: &|_| unreachable!("entries are on servers") };
    let mut store = kind.create(surroundings, 1).unwrap();
    let entries: Vec<Entry> = (0..200_000).map(entry).collect();
    let mut rest = &entries[..];
    while !rest.is_empty() {
        rest = &rest[store.insert(rest)..];
        store.make_space(&mut All).unwrap();
    }
    let mut measure = |batch: usize, lookups: usize| {
        let (start, begin, mut found) = (processor_seconds(), Instant::now(), 0);
        for number in 0..lookups / batch {
            let key = |index: usize| entries[(number * batch + index) * 7919 % entries.len()].key;
            let keys: Vec<Key> = (0..batch).map(key).collect();
            let answers = store.look_up(&keys, &All);
            found += answers.into_iter().filter(|answer| matches!(answer, Lookup::OnDisk(_))).count();
        }
        assert!(lookups * 9 / 10 < found, "{found} of {lookups}");
        let each = |seconds: f64| lookups as f64 / seconds;
        (each(begin.elapsed().as_secs_f64()), each(processor_seconds() - start))
    };
    let (single, batched) = (measure(1, 20_000), measure(2_048, 400 * 2_048));
    for (unit, single, batched) in
        [("second", single.0, batched.0), ("second of the servers' processors", single.1, batched.1)]
    {
        let ratio = batched / single;
        println!(
            "{single:.0} lookups one by one, {batched:.0} in batches of 2,048 each {unit}: {ratio:.1} times as many"
        );
    }
    batched.1 / single.1
}
