//! Every preset and schedule over every store on a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use onefold_backends::redis::RedisSpec;
use onefold_backends::sql::SqlSpec;
use onefold_engine::identify::{GivenStore, StoreKind};
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::kv::OpenStore;
use onefold_engine::testing::preset_conformance::{Subject, check_presets};
use onefold_engine::testing::store_conformance::Directory;
use onefold_engine::types::RepositoryId;

use crate::mariadb::MariaDb;
use crate::redis_cluster::RedisCluster;

fn given(kind: impl OpenStore + 'static, memory_bytes: usize) -> StoreKind {
    StoreKind::Given(GivenStore { kind: Arc::new(kind), memory_bytes })
}

fn directory() -> Directory {
    Directory { disk: Arc::new(OsDisk::new(tempfile::tempdir().unwrap().keep())), host: Arc::new(OsHost::new()) }
}

#[test]
fn every_preset_is_exact_with_every_schedule_in_a_database() {
    let server = MariaDb::start();
    let (url, next) = (server.url(), AtomicU16::new(0));
    let store = || {
        let name = format!("preset{}", next.fetch_add(1, Ordering::SeqCst));
        let spec = SqlSpec::new(&url, &name, 0).unwrap();
        let memory_bytes = spec.memory_bytes();
        given(spec, memory_bytes)
    };
    check_presets(&Subject { store: &store, directory });
}

#[test]
fn every_preset_is_exact_with_every_schedule_in_a_cluster() {
    let cluster = RedisCluster::start();
    let (url, next) = (cluster.url(), AtomicU16::new(0));
    let store = || {
        let mut repository = [0; 16];
        repository[..2].copy_from_slice(&next.fetch_add(1, Ordering::SeqCst).to_le_bytes());
        let spec = RedisSpec::new(&url, RepositoryId(repository), 0).unwrap();
        let memory_bytes = spec.memory_bytes();
        given(spec, memory_bytes)
    };
    check_presets(&Subject { store: &store, directory });
}
