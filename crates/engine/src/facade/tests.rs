//! The library as a program uses it, on real directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::io::tree::TargetTree;
use crate::io::{Access, Disk, os::OsDisk, os_target::OsTarget};
use crate::{Error, Monitor, Overwrite, ReadData};

struct Home {
    _directory: tempfile::TempDir,
    root: PathBuf,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_path_buf();
        let home = Self { _directory: directory, root };
        home.disk().create_dir(Path::new("source")).unwrap();
        home.write("source/a", b"first");
        home.write("source/b", &vec![7; 100_000]);
        home
    }

    fn disk(&self) -> OsDisk {
        OsDisk::new(self.root.clone())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        self.disk().create(Path::new(name)).unwrap().write_at(0, bytes).unwrap();
    }

    fn read(name: &Path) -> Vec<u8> {
        let file = OsDisk::new(PathBuf::from("/")).open(name, Access::Read).unwrap();
        let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        bytes
    }

    fn options(&self) -> RepositoryOptions {
        RepositoryOptions::new(self.path("deep/er/repository")).unencrypted().cache_directory(self.path("cache/deep"))
    }

    /// Returns the path of a file of the source in a target.
    fn restored(&self, target: &str, name: &str) -> PathBuf {
        let source = self.path("source").join(name);
        self.path(target).join(source.strip_prefix("/").unwrap())
    }
}

#[test]
fn what_was_backed_up_is_listed_restored_and_checked() {
    let home = Home::new();
    let repository = home.options().create().unwrap();
    let first = repository.backup([home.path("source")]).tag("one").host("here").run().unwrap();
    assert_eq!((first.files_new, first.failures), (2, 0));
    home.write("source/c", b"third");
    let second = repository.backup([home.path("source")]).host("here").exclude("b").run().unwrap();
    assert_eq!((second.files_new, second.files_unmodified), (1, 1), "the parent is found");

    let listed = home.options().open().unwrap().snapshots().unwrap();
    assert_eq!(listed.iter().map(|listed| listed.id).collect::<Vec<_>>(), [first.snapshot, second.snapshot]);
    assert_eq!((listed[0].tags.as_slice(), listed[0].host.as_str()), (&["one".to_owned()][..], "here"));
    assert_eq!(listed[0].paths, [home.path("source")]);

    let summary = repository.restore(first.snapshot, home.path("out")).verify().run().unwrap();
    assert_eq!((summary.files, summary.failures), (2, 0));
    assert_eq!(Home::read(&home.restored("out", "a")), b"first");
    assert_eq!(Home::read(&home.restored("out", "b")), vec![7; 100_000]);
    let summary = repository.restore("latest", home.path("out")).overwrite(Overwrite::Never).run().unwrap();
    assert_eq!((summary.files, summary.files_skipped), (1, 1));
    assert!(repository.check().read_data(ReadData::All).run().unwrap().is_sound());
}

#[test]
fn a_target_that_is_not_empty_is_refused_and_left_alone() {
    let home = Home::new();
    let repository = home.options().create().unwrap();
    repository.backup([home.path("source")]).run().unwrap();
    let error = repository.restore("latest", home.path("source")).run().unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
    assert_eq!(Home::read(&home.path("source/a")), b"first");
}

/// The command refused this, the library restored the user's files between those of the repository.
#[test]
fn a_target_inside_the_repository_or_the_cache_is_refused_before_anything_is_written() {
    let home = Home::new();
    let repository = home.options().create().unwrap();
    repository.backup([home.path("source")]).run().unwrap();
    for inside in ["deep/er/repository", "deep/er/repository/new", "cache/deep", "cache/deep/new/er"] {
        for overwrite in [Overwrite::Refuse, Overwrite::Always] {
            let error = repository.restore("latest", home.path(inside)).overwrite(overwrite).run().unwrap_err();
            assert!(error.to_string().contains("restore to another directory"), "{inside}: {error}");
        }
    }
    assert!(!home.disk().exists(Path::new("deep/er/repository/new")).unwrap());
    assert!(!home.disk().exists(Path::new("cache/deep/new")).unwrap());
    repository.restore("latest", home.path("deep/er/next")).run().unwrap();
    assert!(repository.check().run().unwrap().is_sound());
}

#[test]
fn an_incomplete_backup_or_restore_is_an_error_unless_it_is_accepted() {
    let home = Home::new();
    let repository = home.options().create().unwrap();
    let missing = [home.path("source"), home.path("missing")];
    let error = repository.backup(missing.clone()).run().unwrap_err();
    let Error::Incomplete { snapshot: Some(made), failures: 1, .. } = &error else { panic!("{error:?}") };
    assert!(error.to_string().contains("missing"), "{error}");
    assert_eq!(repository.snapshots().unwrap()[0].id, *made);
    let accepted = repository.backup(missing).accept_incomplete().run().unwrap();
    assert_eq!((accepted.failures, accepted.failed.len()), (1, 1));

    let containers = OsDisk::new(home.path("deep/er/repository/containers"));
    for directory in containers.list(Path::new("")).unwrap() {
        for container in containers.list(Path::new(&directory.name)).unwrap() {
            let path = Path::new(&directory.name).join(&container.name);
            let file = containers.open(&path, Access::ReadWrite).unwrap();
            // In the middle, where the data of the larger ones is.
            let middle = file.len().unwrap() / 2;
            file.write_at(middle, &[0x5a; 64]).unwrap();
        }
    }
    let error = repository.restore("latest", home.path("out")).run().unwrap_err();
    assert!(!matches!(error, Error::Interrupted), "{error}");
}

#[test]
fn a_stream_becomes_one_file() {
    let home = Home::new();
    let repository = home.options().create().unwrap();
    repository.backup_stream("dump.sql", &b"insert"[..]).run().unwrap();
    repository.restore("latest", home.path("out")).run().unwrap();
    assert_eq!(Home::read(&home.path("out/dump.sql")), b"insert");
}

#[test]
fn passwords_open_only_what_is_encrypted_and_requests_that_make_no_sense_are_refused() {
    let home = Home::new();
    let encrypted = || RepositoryOptions::new(home.path("encrypted")).cache_directory(home.path("cache"));
    assert!(encrypted().create().unwrap_err().to_string().contains("needs a password"));
    encrypted().password("right").create().unwrap();
    assert!(matches!(encrypted().password("wrong").open(), Err(Error::WrongPassword)));
    assert!(matches!(encrypted().open(), Err(Error::WrongPassword)));
    encrypted().password("right").open().unwrap();
    assert!(matches!(encrypted().password("right").create(), Err(Error::RepositoryExists { .. })));
    home.options().create().unwrap();
    assert!(home.options().password("any").open().unwrap_err().to_string().contains("not encrypted"));
    assert!(home.options().memory(1).open().unwrap_err().to_string().contains("too small"));
    let nothing: [PathBuf; 0] = [];
    let repository = home.options().open().unwrap();
    assert!(repository.backup(nothing).run().unwrap_err().to_string().contains("nothing to back up"));
    assert!(repository.restore("latest", home.path("out")).run().unwrap_err().to_string().contains("not found"));
    assert!(
        OsTarget::open(&home.path("out")).is_err()
            || OsTarget::open(&home.path("out")).unwrap().list(Path::new("")).unwrap().is_empty()
    );
}

#[derive(Debug)]
struct Stop;

impl Monitor for Stop {
    fn is_interrupted(&self) -> bool {
        true
    }
}

#[test]
fn a_monitor_interrupts_and_the_repository_stays_out_of_its_own_backup() {
    let home = Home::new();
    let repository = home.options().create().unwrap();
    let interrupted = repository.backup([home.path("source")]).monitor(Arc::new(Stop)).run();
    assert!(matches!(interrupted, Err(Error::Interrupted)));
    assert!(repository.snapshots().unwrap().is_empty());
    repository.backup([home.root.clone()]).run().unwrap();
    repository.restore("latest", home.path("out")).run().unwrap();
    let inside = home.path("out").join(home.root.strip_prefix("/").unwrap());
    assert_eq!(OsDisk::new(inside.join("deep/er")).list(Path::new("")).unwrap(), []);
}

#[test]
fn another_repository_at_the_path_is_refused_until_it_is_accepted() {
    let home = Home::new();
    let encrypted =
        RepositoryOptions::new(home.path("repository")).password("secret").cache_directory(home.path("cache"));
    encrypted.create().unwrap();
    home.disk().rename(Path::new("repository"), Path::new("was")).unwrap();
    let other = RepositoryOptions::new(home.path("repository")).unencrypted().cache_directory(home.path("other"));
    other.create().unwrap();
    let here = other.cache_directory(home.path("cache"));
    assert!(matches!(here.open(), Err(Error::Replaced { .. })));
    assert!(matches!(encrypted.open(), Err(Error::Replaced { .. })));
    here.clone().accept_new_repository().open().unwrap();
    here.open().unwrap();
}

#[test]
fn a_newest_snapshot_that_is_gone_is_returned_until_that_is_accepted() {
    let home = Home::new();
    let repository = home.options().create().unwrap();
    let made = repository.backup([home.path("source")]).run().unwrap().snapshot;
    assert_eq!(repository.lost_snapshots().unwrap(), []);
    home.disk().remove(&Path::new("deep/er/repository/commits").join(made.to_string())).unwrap();
    for _ in 0..2 {
        assert_eq!(repository.lost_snapshots().unwrap(), [made]);
    }
    assert_eq!(repository.accept_lost_snapshots().unwrap(), [made]);
    assert_eq!(repository.lost_snapshots().unwrap(), []);
}

#[test]
fn a_repository_for_volumes_has_short_segments_and_blocks_of_one_length() {
    use crate::chunk::Chunking;
    use crate::object::config::CutRule;

    let rule = CutRule { min: 16, target: 48, max: 256 };
    for (container, region) in [(None, 128 << 10), (Some(64 << 10), 16 << 10), (Some(64 << 20), 128 << 10)] {
        let home = Home::new();
        let options = home.options().for_volumes();
        let options = container.map_or(options.clone(), |bytes| options.container_bytes(bytes));
        let config = options.create().unwrap().store.config;
        assert_eq!(config.chunking, Chunking::Fixed { bytes: 4096 });
        assert_eq!((config.recipe_cut, config.region_bytes), (rule, region), "containers of {container:?}");
    }
    let home = Home::new();
    let options = home.options().for_volumes().region_bytes(64 << 10).fixed_chunk_bytes(16 << 10);
    options.create().unwrap();
    let config = options.open().unwrap().store.config;
    assert_eq!((config.chunking, config.region_bytes), (Chunking::Fixed { bytes: 16 << 10 }, 64 << 10));
    assert_eq!(config.recipe_cut, rule);
}
