//! Deleting what a restored directory holds and the snapshot does not: what goes, and what never may.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use onefold_engine::io::tree::{
    EntryKind, Identity, Metadata, Onto, Renamed, TargetFile, TargetTree, Trust, Unset, Xattr,
};
use onefold_engine::monitor::Monitor;
use onefold_engine::object::names::ContainerKind;
use onefold_engine::restore::{DeleteReport, DeleteRequest, Filter, PartialFiles, delete};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::source::exclude::{Case, Patterns};
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::{MetadataReader, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::Timestamp;
use onefold_engine::{Error, Result};

use crate::integration::support::{Ask, Notes, SMALL, World, container_names, newest};

/// A repository with a snapshot of a small tree, and that tree restored.
struct Restored {
    world: World,
    store: Store,
    snapshot: Snapshot,
    target: MemTree,
    /// Directories that stay.
    keep: BTreeSet<(u64, u64)>,
}

impl Restored {
    fn new() -> Self {
        Self::of(&["a", "m", "z", "sub/b", "sub/deep/c"])
    }

    /// Backs up files, and directories whose names end in a slash.
    fn of(paths: &[&str]) -> Self {
        let source = MemTree::new();
        for path in paths {
            match path.strip_suffix('/') {
                Some(directory) => source.put_dir(&Path::new("/d").join(directory)),
                None => source.put_file(&Path::new("/d").join(path), path.as_bytes()),
            }
        }
        if paths.contains(&"sub/b") {
            source.edit(Path::new("/d/sub"), |metadata| metadata.mtime = Timestamp { seconds: 77, nanoseconds: 0 });
        }
        Self::backed_up(&source, 0)
    }

    fn backed_up(source: &MemTree, least_failures: u64) -> Self {
        let world = World::new(1);
        let store = world.create(SMALL).unwrap();
        let report = world.backup(&store, source, &Ask::default()).unwrap().report;
        assert!(least_failures <= report.failures);
        let snapshot = newest(&store).unwrap().unwrap().1;
        let (target, _) = world.restore(&store, &snapshot).unwrap();
        Self { world, store, snapshot, target, keep: BTreeSet::new() }
    }

    fn put(&self, files: &[&str]) {
        for file in files {
            self.target.put_file(Path::new(file), b"not in the snapshot");
        }
    }

    fn delete(&self, filter: &Filter, dry_run: bool) -> (DeleteReport, Vec<String>) {
        self.delete_from(&self.target, filter, dry_run)
    }

    fn delete_from(&self, target: &dyn TargetTree, filter: &Filter, dry_run: bool) -> (DeleteReport, Vec<String>) {
        let containers = self.store.list_containers(&self.world.scratch()).unwrap();
        let memory = MetadataMemory::of(4 << 20);
        let mut reader = MetadataReader::open(&self.store, &containers, &self.world.scratch(), memory).unwrap();
        let notes = Arc::new(Notes::default());
        let monitor: Arc<dyn Monitor> = Arc::clone(&notes) as Arc<dyn Monitor>;
        let request = DeleteRequest {
            snapshot: &self.snapshot,
            path: Path::new(""),
            filter,
            target,
            trust: Trust::Full,
            keep: &self.keep,
            partials: PartialFiles::Delete,
            dry_run,
            monitor: &monitor,
        };
        let report = delete(&mut reader, &request).unwrap();
        let failures = notes.failures.lock().unwrap().clone();
        (report, failures)
    }

    fn stands(&self, path: &str) -> bool {
        TargetTree::metadata(&self.target, Path::new(path.trim_start_matches('/'))).unwrap().is_some()
    }

    #[track_caller]
    fn check(&self, gone: &[&str], kept: &[&str]) {
        for path in gone {
            assert!(!self.stands(path), "{path} still stands");
        }
        let snapshot = ["/d/a", "/d/m", "/d/z", "/d/sub/b", "/d/sub/deep/c"];
        for path in kept.iter().chain(&snapshot) {
            assert!(self.stands(path), "{path} is gone");
        }
    }
}

fn patterns(texts: &[&str]) -> Vec<Patterns> {
    vec![Patterns::parse(texts.iter().map(|text| text.as_bytes()), Case::Sensitive).unwrap()]
}

#[test]
fn what_the_snapshot_does_not_have_goes_and_nothing_else() {
    let restored = Restored::new();
    restored.put(&["/top", "/d/0", "/d/n", "/d/zz", "/d/sub/bb", "/d/sub/new/x/y", "/d/sub/new/z"]);
    let (report, failures) = restored.delete(&Filter::default(), true);
    assert_eq!((report, failures), (DeleteReport { deleted: 9, failures: 0 }, vec![]));
    restored.check(&[], &["/top", "/d/0", "/d/sub/new/x/y"]);
    let (report, failures) = restored.delete(&Filter::default(), false);
    // Seven files and two directories.
    assert_eq!((report, failures), (DeleteReport { deleted: 9, failures: 0 }, vec![]));
    restored.check(&["/top", "/d/0", "/d/n", "/d/zz", "/d/sub/bb", "/d/sub/new"], &[]);
    // The time of the directory is the snapshot's again.
    let metadata = TargetTree::metadata(&restored.target, Path::new("d/sub")).unwrap().unwrap();
    assert_eq!(metadata.mtime.seconds, 77);
    assert_eq!(restored.delete(&Filter::default(), false).0, DeleteReport::default());
}

#[test]
fn what_is_left_out_of_the_restore_is_not_deleted() {
    let restored = Restored::new();
    let extra = ["/d/new.log", "/d/new.txt", "/d/sub/new.log", "/d/more/x.log", "/d/more/y", "/d/whole/y"];
    restored.put(&extra);
    let filter = Filter { exclude: patterns(&["*.log"]), ..Filter::default() };
    let (tried, _) = restored.delete(&filter, true);
    let (report, failures) = restored.delete(&filter, false);
    assert_eq!((tried, failures), (report, vec![]));
    restored.check(&["/d/new.txt", "/d/more/y", "/d/whole"], &["/d/new.log", "/d/sub/new.log", "/d/more/x.log"]);
    // A directory that is left out is not looked into.
    let restored = Restored::new();
    restored.put(&["/d/sub/new", "/d/new"]);
    restored.delete(&Filter { exclude: patterns(&["sub"]), ..Filter::default() }, false);
    restored.check(&["/d/new"], &["/d/sub/new"]);
}

#[test]
fn only_what_is_included_is_deleted() {
    let restored = Restored::new();
    restored.put(&["/d/new.log", "/d/new.txt", "/d/sub/new.log", "/d/more/x.log", "/d/old.log/below"]);
    let filter = Filter { include: patterns(&["*.log"]), ..Filter::default() };
    let (report, failures) = restored.delete(&filter, false);
    // Two files, and a directory with a file. What is in a directory that is not selected stays.
    assert_eq!((report.deleted, failures), (4, vec![]));
    restored.check(&["/d/new.log", "/d/sub/new.log", "/d/old.log"], &["/d/new.txt", "/d/more/x.log"]);
}

#[test]
fn no_link_is_followed() {
    let restored = Restored::new();
    restored.put(&["/outside/precious", "/d/sub/new"]);
    restored.target.put_symlink(Path::new("/d/link"), "../outside".as_ref());
    // A link where the snapshot has a directory.
    restored.target.remove(Path::new("d/sub/deep")).unwrap();
    restored.target.put_symlink(Path::new("/d/sub/deep"), "../../outside".as_ref());
    let filter = Filter { exclude: patterns(&["/outside"]), ..Filter::default() };
    let (report, failures) = restored.delete(&filter, false);
    assert_eq!((report.deleted, failures), (2, vec![]));
    assert!(restored.stands("/outside/precious") && !restored.stands("/d/link") && !restored.stands("/d/sub/new"));
    assert!(restored.stands("/d/sub/deep"), "the snapshot has something of that name");
}

#[test]
fn a_directory_that_cannot_be_read_in_full_keeps_everything() {
    let restored = Restored::new();
    restored.put(&["/d/new", "/d/sub/new"]);
    let names = container_names(&restored.store);
    let metadata = names.iter().filter(|name| name.kind == ContainerKind::Metadata);
    metadata.for_each(|name| restored.world.repo().remove(&name.path()).unwrap());
    let (report, failures) = restored.delete(&Filter::default(), false);
    assert_eq!(report.deleted, 0);
    assert!(failures.iter().any(|failure| failure.contains("nothing in this directory is deleted")), "{failures:?}");
    restored.check(&[], &["/d/new", "/d/sub/new"]);
}

/// A directory, and what happens once it has been listed.
type Trap = (PathBuf, fn(&MemTree));

/// Does something when a directory is listed, and answers for names in other letters, as some file systems do.
#[derive(Debug)]
struct Odd {
    tree: MemTree,
    on_list: Mutex<Option<Trap>>,
    alias: Option<(&'static str, &'static str)>,
}

impl Odd {
    fn around(tree: &MemTree) -> Self {
        Self { tree: tree.clone(), on_list: Mutex::new(None), alias: None }
    }
}

impl TargetTree for Odd {
    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        let other = self.alias.filter(|(name, _)| Path::new(name) == path).map(|(_, stored)| Path::new(stored));
        TargetTree::metadata(&self.tree, other.unwrap_or(path))
    }

    fn list(&self, path: &Path) -> Result<Vec<OsString>> {
        let names = TargetTree::list(&self.tree, path);
        let mut on_list = self.on_list.lock().unwrap();
        if on_list.as_ref().is_some_and(|(at, _)| at == path)
            && let Some((_, action)) = on_list.take()
        {
            action(&self.tree);
        }
        names
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.tree.create_dir(path)
    }

    fn create_file(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        self.tree.create_file(path)
    }

    fn open_file(&self, path: &Path) -> Result<Box<dyn TargetFile>> {
        self.tree.open_file(path)
    }

    fn create_symlink(&self, path: &Path, points_to: &OsStr) -> Result<()> {
        self.tree.create_symlink(path, points_to)
    }

    fn create_special(&self, path: &Path, kind: EntryKind, rdev: u64) -> Result<()> {
        self.tree.create_special(path, kind, rdev)
    }

    fn hard_link(&self, existing: &Path, new: &Path) -> Result<()> {
        self.tree.hard_link(existing, new)
    }

    fn rename(&self, from: &Path, to: &Path, expected: Option<Identity>, onto: Onto) -> Result<Renamed> {
        TargetTree::rename(&self.tree, from, to, expected, onto)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        TargetTree::remove(&self.tree, path)
    }

    fn set_metadata(&self, path: &Path, metadata: &Metadata, xattrs: &[Xattr], trust: Trust) -> Result<Unset> {
        self.tree.set_metadata(path, metadata, xattrs, trust)
    }

    fn folds_case(&self) -> Result<bool> {
        self.tree.folds_case()
    }
}

#[test]
fn a_file_that_the_target_lists_under_other_letters_is_not_taken_for_another() {
    let restored = Restored::new();
    // The snapshot's `m` is there, but listed as `M`.
    restored.target.remove(Path::new("d/m")).unwrap();
    restored.put(&["/d/M", "/d/new", "/d/sub/new"]);
    let odd = Odd { alias: Some(("d/m", "d/M")), ..Odd::around(&restored.target) };
    let (report, failures) = restored.delete_from(&odd, &Filter::default(), false);
    assert_eq!((report.deleted, report.failures), (1, 1));
    assert!(failures.iter().any(|failure| failure.contains("lists this name in another way")), "{failures:?}");
    assert!(restored.stands("/d/M") && restored.stands("/d/new") && !restored.stands("/d/sub/new"));
}

#[test]
fn a_directory_that_is_swapped_for_a_link_meanwhile_leads_nowhere() {
    let restored = Restored::new();
    restored.put(&["/d/precious", "/d/sub/extra/precious"]);
    let odd = Odd::around(&restored.target);
    *odd.on_list.lock().unwrap() = Some((PathBuf::from("d/sub/extra"), |tree| {
        tree.remove(Path::new("d/sub/extra")).unwrap();
        tree.put_symlink(Path::new("/d/sub/extra"), "..".as_ref());
    }));
    let filter = Filter { exclude: patterns(&["/d/precious"]), ..Filter::default() };
    let (_, failures) = restored.delete_from(&odd, &filter, false);
    assert!(!failures.is_empty());
    restored.check(&[], &["/d/precious"]);
}

#[test]
fn what_is_put_into_a_directory_meanwhile_stays() {
    let restored = Restored::new();
    restored.put(&["/d/extra/old"]);
    let odd = Odd::around(&restored.target);
    *odd.on_list.lock().unwrap() =
        Some((PathBuf::from("d/extra"), |tree| tree.put_file(Path::new("/d/extra/young"), b"just written")));
    let (report, failures) = restored.delete_from(&odd, &Filter::default(), false);
    assert_eq!((report.deleted, report.failures), (1, 1));
    assert!(failures[0].contains("something was put there meanwhile"), "{failures:?}");
    restored.check(&["/d/extra/old"], &["/d/extra/young"]);
}

#[test]
fn another_file_system_in_the_target_is_left_alone() {
    let restored = Restored::new();
    restored.put(&["/d/mounted/precious", "/d/new"]);
    restored.target.edit(Path::new("/d/mounted"), |metadata| metadata.device += 1);
    let (report, failures) = restored.delete(&Filter::default(), false);
    assert_eq!((report.deleted, report.failures), (1, 1));
    assert!(failures[0].contains("another file system is mounted there"), "{failures:?}");
    restored.check(&["/d/new"], &["/d/mounted/precious"]);
}

/// A repository inside the tree that it backs up is in no snapshot, and was deleted for that.
#[test]
fn directories_that_are_to_be_kept_stay_with_what_is_in_them() {
    let mut restored = Restored::new();
    restored.put(&["/d/repository/config", "/d/more/cache/index/table", "/d/more/else", "/d/sub/new"]);
    for kept in ["d/repository", "d/more/cache"] {
        let metadata = TargetTree::metadata(&restored.target, Path::new(kept)).unwrap().unwrap();
        restored.keep.insert((metadata.device, metadata.inode));
    }
    let (report, failures) = restored.delete(&Filter::default(), false);
    assert_eq!((report.deleted, report.failures, failures), (2, 0, Vec::new()));
    restored.check(&["/d/more/else", "/d/sub/new"], &["/d/repository/config", "/d/more/cache/index/table", "/d/a"]);
}

/// A backup that stays on one file system stores the directory that another one is mounted on empty.
#[test]
fn where_the_snapshot_has_an_empty_directory_nothing_of_another_file_system_is_deleted() {
    let restored = Restored::of(&["a", "mounted/"]);
    restored.put(&["/d/mounted/precious", "/d/new"]);
    restored.target.edit(Path::new("/d/mounted"), |metadata| metadata.device += 1);
    restored.target.edit(Path::new("/d/mounted/precious"), |metadata| metadata.device += 1);
    let (report, failures) = restored.delete(&Filter::default(), false);
    assert_eq!((report.deleted, failures), (1, vec![]));
    assert!(restored.stands("/d/mounted/precious") && !restored.stands("/d/new"));
}

/// A backup that cannot read something has it not in its snapshot, although it is there.
#[test]
fn where_something_could_not_be_read_nothing_is_deleted() {
    for unread in ["/d/m", "/d/sub", "/d/sub/deep/c"] {
        let source = MemTree::new();
        for file in ["/d/a", "/d/m", "/d/sub/b", "/d/sub/deep/c", "/d/other/x"] {
            source.put_file(Path::new(file), b"x");
        }
        source.fail_open(Path::new(unread), std::io::ErrorKind::PermissionDenied);
        let restored = Restored::backed_up(&source, 1);
        let new = ["/d/new", "/d/sub/new", "/d/sub/deep/new", "/d/other/new"];
        restored.put(&new);
        let (_, failures) = restored.delete(&Filter::default(), false);
        assert_eq!(failures, Vec::<String>::new());
        for path in new {
            // A directory that cannot be listed is empty in the snapshot.
            let is_kept = Path::new(path).parent() == Path::new(unread).parent() || Path::new(path).starts_with(unread);
            assert_eq!(restored.stands(path), is_kept, "{unread} {path}");
        }
    }
    let source = MemTree::new();
    source.put_file(Path::new("/a"), b"x");
    source.put_file(Path::new("/d/x"), b"x");
    source.fail_open(Path::new("/a"), std::io::ErrorKind::PermissionDenied);
    let restored = Restored::backed_up(&source, 1);
    restored.put(&["/a", "/d/new"]);
    restored.delete(&Filter::default(), false);
    assert!(restored.stands("/a") && !restored.stands("/d/new"));
}

#[test]
fn left_by_a_single_file_nothing_is_deleted() {
    let restored = Restored::new();
    let containers = restored.store.list_containers(&restored.world.scratch()).unwrap();
    let memory = MetadataMemory::of(4 << 20);
    let mut reader = MetadataReader::open(&restored.store, &containers, &restored.world.scratch(), memory).unwrap();
    let monitor: Arc<dyn Monitor> = Arc::new(Notes::default());
    let filter = Filter::default();
    let request = DeleteRequest {
        snapshot: &restored.snapshot,
        path: Path::new("/d/a"),
        filter: &filter,
        target: &restored.target,
        trust: Trust::Full,
        keep: &restored.keep,
        partials: PartialFiles::Delete,
        dry_run: false,
        monitor: &monitor,
    };
    let refused = delete(&mut reader, &request);
    assert!(matches!(&refused, Err(Error::Invalid { reason }) if reason.contains("not a directory")), "{refused:?}");
}
