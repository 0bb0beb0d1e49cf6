//! Stores on a real cluster of Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use onefold_backends::redis::RedisSpec;
use onefold_engine::error::Result;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::kv::{EntryStore, OpenStore, SealedReader, Surroundings};
use onefold_engine::testing::store_conformance::{Directory, Subject, check_store};
use onefold_engine::types::RepositoryId;

use crate::containers::compare_batches;
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
    let kind = RedisSpec::new(&cluster.url(), RepositoryId([1; 16]), 1 << 20).unwrap();
    let ratio = compare_batches(&kind, &|| cluster.processor_seconds());
    assert!(5.0 < ratio, "{ratio}");
}
