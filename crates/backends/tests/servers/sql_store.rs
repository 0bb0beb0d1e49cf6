//! Stores on a real server of MariaDB.

use std::sync::Arc;

use crate::containers::{All, entry};
use crate::mariadb::MariaDb;
use onefold_backends::sql::SqlSpec;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::kv::{Key, Lookup, OpenStore, Surroundings};
use onefold_engine::testing::store_conformance::{Directory, Subject, check_store};

#[test]
fn a_batch_takes_a_fraction_of_the_servers_time_of_single_lookups() {
    let server = MariaDb::start();
    let directory = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(directory.path().to_path_buf()));
    let host: Arc<dyn Host> = Arc::new(OsHost::new());
    let spec = SqlSpec::new(&server.url(), "batches", 1 << 20).unwrap();
    let surroundings = Surroundings { disk: &disk, host: &host, file: &|_| unreachable!("entries are on the server") };
    let mut store = spec.create(surroundings, 1).unwrap();
    let entries: Vec<_> = (0..200_000).map(entry).collect();
    let mut rest = &entries[..];
    while !rest.is_empty() {
        rest = &rest[store.insert(rest)..];
        store.make_space(&mut All).unwrap();
    }
    let mut lookups_per_second = |batch: usize, lookups: usize| {
        let (start, begin, mut found) = (server.processor_seconds(), std::time::Instant::now(), 0);
        for number in 0..lookups / batch {
            let keys: Vec<Key> =
                (0..batch).map(|index| entries[(number * batch + index) * 7919 % entries.len()].key).collect();
            found +=
                store.look_up(&keys, &All).into_iter().filter(|answer| matches!(answer, Lookup::OnDisk(_))).count();
        }
        assert!(lookups * 9 / 10 < found, "{found} of {lookups}");
        let each = |seconds: f64| lookups as f64 / seconds;
        (each(begin.elapsed().as_secs_f64()), each(server.processor_seconds() - start))
    };
    let (single, batched) = (lookups_per_second(1, 20_000), lookups_per_second(2_048, 400 * 2_048));
    for (unit, single, batched) in
        [("second", single.0, batched.0), ("processor second of the server", single.1, batched.1)]
    {
        println!(
            "{single:.0} single lookups, and {batched:.0} in batches of 2048, each {unit}: {:.1} times as many",
            batched / single
        );
    }
    assert!(2.0 * single.1 < batched.1, "{single:?} and {batched:?}");
}

#[test]
fn a_store_on_a_server_conforms() {
    let server = MariaDb::start();
    let kind = SqlSpec::new(&server.url(), "conformance", 1 << 20).unwrap();
    let directory = || Directory {
        disk: Arc::new(OsDisk::new(tempfile::tempdir().unwrap().keep())),
        host: Arc::new(OsHost::new()),
    };
    check_store(&Subject { kind: &kind, memory_bytes_max: |_| 2 << 20, directory, is_shared: false });
}
