//! Stores on a real server of MariaDB.

use std::sync::Arc;

use onefold_backends::sql::SqlSpec;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::testing::store_conformance::{Directory, Subject, check_store};

use crate::containers::compare_batches;
use crate::mariadb::MariaDb;

#[test]
fn a_batch_takes_a_fraction_of_the_servers_time_of_single_lookups() {
    let server = MariaDb::start();
    let kind = SqlSpec::new(&server.url(), "batches", 1 << 20).unwrap();
    let ratio = compare_batches(&kind, &|| server.processor_seconds());
    assert!(2.0 < ratio, "{ratio}");
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
