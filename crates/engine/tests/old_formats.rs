//! Repositories of every format stay readable.
//!
//! What they must hold is compared by the independent restorer's test, which has their sources' attributes; here they are
//! checked whole and restored by this version of the engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::check::{CheckRequest, CheckedSnapshots, ReadData, check};
use onefold_engine::container::RegionEntry;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::monitor::Silent;
use onefold_engine::object::FormatVersion;
use onefold_engine::object::names::ContainerKind;
use onefold_engine::pipeline::Driver;
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::{Store, Unlock, open};
use onefold_engine::testing::mem_tree::MemTree;

use crate::integration::support::{container_names, directory_store, restore_to};

/// Formats that a repository can have; `testdata/formats` has one of each.
const FORMATS: [&str; 2] = ["v1", "v2"];

fn formats() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats")
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test looks at its own data")]
fn every_format_has_a_repository_and_a_test() {
    let mut kept: Vec<String> =
        std::fs::read_dir(formats()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    kept.sort();
    assert_eq!(kept, FORMATS);
}

#[test]
fn repositories_of_every_format_are_sound_and_restore() {
    for format in FORMATS {
        let store = open_kept(format);
        let cache = tempfile::tempdir().unwrap();
        let cache: Arc<dyn Disk> = Arc::new(OsDisk::new(cache.path().to_path_buf()));
        let request = CheckRequest {
            snapshots: CheckedSnapshots::All,
            read: ReadData::All,
            scratch: Scratch { disk: Some(Arc::clone(&cache)), dir: PathBuf::new() },
            memory_bytes: 16 << 20,
            driver: Driver::threads(2),
            seed: None,
            heads: None,
            accelerator: None,
        };
        let report = check(&store, &request, &Silent).unwrap();
        assert!(report.findings.is_empty(), "{format}: {:?}", report.findings);
        let commits = store.read_commits().unwrap();
        let snapshots = commits.snapshots();
        assert_eq!(snapshots.len(), count_expected(format), "{format}");
        for (_, snapshot) in snapshots {
            let target = MemTree::new();
            let report = restore_to(&store, &cache, snapshot, Path::new("/"), Arc::new(target)).unwrap();
            assert_eq!(report.failures, 0, "{format}");
            // Further names of an inode count as links.
            assert!(report.files <= snapshot.summary.files_processed, "{format}");
            assert!(snapshot.summary.files_processed <= report.files + report.others, "{format}");
        }
    }
}

#[test]
fn the_repository_of_format_2_has_all_that_only_format_2_has() {
    let store = open_kept("v2");
    assert_eq!(store.config.format, FormatVersion::V2);
    let data = container_names(&store).into_iter().filter(|name| name.kind == ContainerKind::Data);
    let opened: Vec<_> = data.map(|name| store.open_container(&name).unwrap()).collect();
    assert!(opened.iter().any(|container| !container.directory.samples.is_empty()), "samples of anchors");
    let regions = || opened.iter().flat_map(|container| &container.directory.regions);
    assert!(regions().any(|region| whole_bases(region) == 2), "a region with two whole bases");
    assert!(regions().any(|region| whole_bases(region) < region.bases.len()), "a region with chunks as bases");
    assert!(regions().any(|region| region.bases.depth() == 2), "a region whose base has one");
    let metadata = container_names(&store).into_iter().filter(|name| name.kind == ContainerKind::Metadata);
    let mut of_metadata = metadata.flat_map(|name| store.open_container(&name).unwrap().directory.regions);
    assert!(of_metadata.any(|region| !region.bases.is_empty()), "a region of metadata with bases");
    // A prune has copied or kept what the forgotten snapshot shares with others.
    assert_eq!(store.list_collections().unwrap().len(), 1);
}

fn whole_bases(region: &RegionEntry) -> usize {
    region.bases.bases().iter().filter(|base| base.runs.is_empty()).count()
}

/// Returns the number of snapshots in the list of what a repository holds.
#[expect(clippy::disallowed_methods, reason = "the test reads its own data")]
fn count_expected(format: &str) -> usize {
    let expected = std::fs::read_to_string(formats().join(format).join("expected.json")).unwrap();
    expected.matches("\"id\": ").count()
}

#[expect(clippy::disallowed_methods, reason = "the test reads its own data")]
fn open_kept(format: &str) -> Store {
    let directory = formats().join(format);
    let password = std::fs::read(directory.join("password")).unwrap();
    let repo: Arc<dyn Disk> = Arc::new(OsDisk::new(directory.join("repo")));
    let host: Arc<dyn Host> = Arc::new(OsHost::new());
    open(&directory_store(repo), &host, Unlock::Password(password.trim_ascii_end())).unwrap()
}
