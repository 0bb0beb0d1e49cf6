//! Stores on a real cluster of Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use onefold_backends::redis::RedisSpec;
use onefold_engine::error::Result;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::kv::{EntryStore, Key, Lookup, OpenStore, SealedReader, Surroundings};
use onefold_engine::testing::store_conformance::{Directory, Subject, check_store};
use onefold_engine::types::RepositoryId;

use crate::containers::{All, entry};
use crate::redis_cluster::RedisCluster;

/// Makes each new store for another repository: the suite expects them empty.
#[derive(Debug)]
struct Fresh {
    url: String,
    repository: AtomicU8,
}

impl Fresh {
    fn spec(&self) -> RedisSpec {
        RedisSpec::new(&self.url, RepositoryId([self.repository.load(Ordering::SeqCst); 16]), 1 << 20).unwrap()
    }
}

impl OpenStore for Fresh {
    fn parts(&self) -> &'static [&'static str] {
        self.spec().parts()
    }

    fn create(&self, surroundings: Surroundings<'_>, epoch: u64) -> Result<Box<dyn EntryStore>> {
        self.repository.fetch_add(1, Ordering::SeqCst);
        self.spec().create(surroundings, epoch)
    }

    fn open(
        &self,
        surroundings: Surroundings<'_>,
        generation: u64,
        parts: Vec<SealedReader>,
    ) -> Result<(Box<dyn EntryStore>, u64)> {
        self.spec().open(surroundings, generation, parts)
    }
}

#[test]
fn a_store_on_a_cluster_conforms() {
    let cluster = RedisCluster::start();
    let kind = Fresh { url: cluster.url(), repository: AtomicU8::new(0) };
    let directory = || Directory {
        disk: Arc::new(OsDisk::new(tempfile::tempdir().unwrap().keep())),
        host: Arc::new(OsHost::new()),
    };
    check_store(&Subject { kind: &kind, memory_bytes_max: |_| 4 << 20, directory, is_shared: true });
}

#[test]
fn a_batch_takes_a_fraction_of_the_nodes_time_of_single_lookups() {
    let cluster = RedisCluster::start();
    let directory = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(directory.path().to_path_buf()));
    let host: Arc<dyn Host> = Arc::new(OsHost::new());
    let spec = RedisSpec::new(&cluster.url(), RepositoryId([1; 16]), 1 << 20).unwrap();
    let surroundings = Surroundings { disk: &disk, host: &host, file: &|_| unreachable!("entries are in the cluster") };
    let mut store = spec.create(surroundings, 1).unwrap();
    let entries: Vec<_> = (0..200_000).map(entry).collect();
    let mut rest = &entries[..];
    while !rest.is_empty() {
        rest = &rest[store.insert(rest)..];
        store.make_space(&mut All).unwrap();
    }
    let mut measure = |batch: usize, lookups: usize| {
        let (start, begin, mut found) = (cluster.processor_seconds(), Instant::now(), 0);
        for number in 0..lookups / batch {
            let keys: Vec<Key> =
                (0..batch).map(|index| entries[(number * batch + index) * 7919 % entries.len()].key).collect();
            found +=
                store.look_up(&keys, &All).into_iter().filter(|answer| matches!(answer, Lookup::OnDisk(_))).count();
        }
        assert!(lookups * 9 / 10 < found, "{found} of {lookups}");
        let each = |seconds: f64| lookups as f64 / seconds;
        (each(begin.elapsed().as_secs_f64()), each(cluster.processor_seconds() - start))
    };
    let (single, batched) = (measure(1, 20_000), measure(2_048, 400 * 2_048));
    for (unit, single, batched) in
        [("second", single.0, batched.0), ("processor second of the nodes", single.1, batched.1)]
    {
        println!(
            "{single:.0} single lookups, and {batched:.0} in batches of 2048, each {unit}: {:.1} times as many",
            batched / single
        );
    }
    assert!(5.0 * single.1 < batched.1, "{single:?} and {batched:?}");
}
