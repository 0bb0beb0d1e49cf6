//! Restores of names that share an inode, and into targets that hold entries already.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::io::tree::{EntryKind, Metadata, Omission, TargetTree, Trust, Xattr};
use onefold_engine::object::names::ContainerKind;
use onefold_engine::pipeline::Driver;
use onefold_engine::restore::{Effect, Filter, FullDirectories, Overwrite, RestoreReport, RestoreRequest, restore};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::Store;
use onefold_engine::testing::mem_tree::MemTree;

use crate::integration::support::faulty_target::FaultyTarget;
use crate::integration::support::{Ask, Notes, SMALL, World, container_names, copy, newest, noise};

/// A repository with a snapshot of `/d`.
struct Made {
    world: World,
    store: Store,
    snapshot: Snapshot,
}

impl Made {
    fn of(source: &MemTree) -> Self {
        let world = World::new(1);
        let store = world.create(SMALL).unwrap();
        let report = world.backup(&store, source, &Ask::default()).unwrap().report;
        assert_eq!(report.failures, 0);
        let snapshot = newest(&store).unwrap().unwrap().1;
        Self { world, store, snapshot }
    }

    fn run(&self, target: &MemTree, overwrite: Overwrite, effect: Effect, trust: Trust) -> (RestoreReport, String) {
        self.run_into(Arc::new(target.clone()), overwrite, effect, trust)
    }

    fn run_into(
        &self,
        target: Arc<dyn TargetTree>,
        overwrite: Overwrite,
        effect: Effect,
        trust: Trust,
    ) -> (RestoreReport, String) {
        let notes = Arc::new(Notes::default());
        let request = RestoreRequest {
            tree: self.snapshot.tree,
            path: Path::new("/d"),
            filter: Filter::default(),
            target,
            effect,
            overwrite,
            full_directories: FullDirectories::Keep,
            verify: overwrite == Overwrite::Refuse,
            trust,
            scratch: self.world.scratch(),
            memory_bytes: 16 << 20,
            driver: Driver::inline(1),
            monitor: Arc::clone(&notes) as Arc<dyn onefold_engine::monitor::Monitor>,
        };
        // One that ends early has reported nothing.
        let report = restore(&self.store, &request).unwrap_or_default();
        let failures = notes.failures.lock().unwrap().join("\n");
        (report, failures)
    }

    /// Restores without a failure, after a dry run that reports the same.
    #[track_caller]
    fn restore(&self, target: &MemTree, overwrite: Overwrite) -> RestoreReport {
        let (dry, _) = self.run(target, overwrite, Effect::DryRun, Trust::Full);
        let (report, failures) = self.run(target, overwrite, Effect::Write, Trust::Full);
        assert_eq!((report.failures, failures.as_str()), (0, ""));
        let counts = |report| RestoreReport { regions_read: 0, directories_read: 0, files_verified: 0, ..report };
        assert_eq!(counts(dry), counts(report.clone()));
        report
    }
}

fn metadata(tree: &MemTree, name: &str) -> Metadata {
    TargetTree::metadata(tree, Path::new(name)).unwrap().unwrap_or_else(|| panic!("{name} is missing"))
}

fn read(tree: &MemTree, name: &str) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(metadata(tree, name).size).unwrap()];
    TargetTree::open_file(tree, Path::new(name)).unwrap().read_at(0, &mut bytes).unwrap();
    bytes
}

/// Returns true if all names are names of one entry.
fn are_one(tree: &MemTree, names: &[&str]) -> bool {
    names.iter().all(|name| metadata(tree, name).inode == metadata(tree, names[0]).inode)
}

/// Makes `/d` with a file of several names.
fn linked(bytes: &[u8], names: &[&str]) -> MemTree {
    let tree = MemTree::new();
    let path = |name: &str| Path::new("d").join(name);
    tree.put_file(&Path::new("/").join(path(names[0])), bytes);
    for name in &names[1..] {
        tree.hard_link(&path(names[0]), &path(name)).unwrap();
    }
    tree
}

/// A file is removed while a backup runs, and its number goes to the next file that is created. The names of the second were
/// made links to the first, with its bytes, and the restore ended with success.
#[test]
fn a_number_that_went_to_another_file_links_nothing_to_the_one_that_had_it() {
    let source = linked(&noise(1, 3000), &["a", "m"]);
    let path = Path::new;
    source.put_file(path("/d/b"), &noise(2, 3000));
    source.hard_link(path("d/b"), path("d/n")).unwrap();
    source.create_special(path("d/c"), EntryKind::Fifo, 0).unwrap();
    source.hard_link(path("d/c"), path("d/o")).unwrap();
    for (name, rdev) in [("d/e", 259), ("d/f", 260)] {
        source.create_special(path(name), EntryKind::CharDevice, rdev).unwrap();
        source.edit(&path("/").join(name), |metadata| metadata.links = 2);
    }
    for name in ["/d/a", "/d/b", "/d/c", "/d/e", "/d/f"] {
        source.edit(path(name), |metadata| (metadata.inode, metadata.mtime.seconds) = (77, 5));
    }
    let made = Made::of(&source);
    let target = MemTree::new();
    let report = made.restore(&target, Overwrite::Refuse);
    assert_eq!((report.files, report.others, report.files_verified), (2, 6, 4));
    for (names, seed) in [(["a", "m"], 1), (["b", "n"], 2)] {
        assert!(are_one(&target, &names), "{names:?}");
        assert_eq!(read(&target, names[1]), noise(seed, 3000));
    }
    assert!(are_one(&target, &["c", "o"]));
    assert_eq!(metadata(&target, "c").kind, EntryKind::Fifo);
    assert_eq!(["e", "f"].map(|name| metadata(&target, name).rdev), [259, 260]);
    // Nothing of it is changed by a repetition.
    let before = metadata(&target, "n").inode;
    assert_eq!(made.restore(&target, Overwrite::IfChanged).files_skipped, 4);
    assert_eq!(metadata(&target, "n").inode, before);
}

/// A snapshot holds a name as it was when that name was read.
#[test]
fn names_between_whose_readings_a_file_changes_get_what_each_entry_says() {
    let source = linked(b"old", &["a", "b", "c"]);
    source.mutate_on_read(Path::new("/d/b"), 1, |tree| tree.put_file(Path::new("/d/a"), b"newer"));
    let target = MemTree::new();
    Made::of(&source).restore(&target, Overwrite::Refuse);
    let found = ["a", "b", "c"].map(|name| read(&target, name));
    assert_eq!(found, [b"old".to_vec(), b"newer".to_vec(), b"newer".to_vec()]);
    assert!(are_one(&target, &["b", "c"]));
    assert_eq!(metadata(&target, "a").links, 1);
}

/// The user deletes one of three names and restores with `if-changed`: two files without a common inode stood there.
#[test]
fn names_that_stand_become_links_of_the_one_that_is_restored() {
    let made = Made::of(&linked(&noise(1, 3000), &["a", "b", "c"]));
    let target = MemTree::new();
    made.restore(&target, Overwrite::Refuse);
    for gone in ["a", "b", "c"] {
        target.remove(Path::new(gone)).unwrap();
        let report = made.restore(&target, Overwrite::IfChanged);
        assert!(are_one(&target, &["a", "b", "c"]), "{gone}");
        assert_eq!(read(&target, gone), noise(1, 3000));
        let restored = if gone == "a" { (1, 2, 0) } else { (0, 1, 2) };
        assert_eq!((report.files, report.others, report.files_skipped), restored, "{gone}");
    }
    assert_eq!(made.restore(&target, Overwrite::IfChanged).files_skipped, 3);
}

/// The name that stands is all that is left of the file.
#[test]
fn a_name_that_stands_is_kept_if_the_first_cannot_be_restored() {
    let made = Made::of(&linked(&noise(1, 3000), &["a", "b"]));
    let target = MemTree::new();
    made.restore(&target, Overwrite::Refuse);
    target.remove(Path::new("a")).unwrap();
    for name in container_names(&made.store) {
        if name.kind == ContainerKind::Data {
            made.world.repo().remove(&name.path()).unwrap();
        }
    }
    let (report, failures) = made.run(&target, Overwrite::IfChanged, Effect::Write, Trust::Full);
    assert_eq!((report.failures, report.files_incomplete, report.files_skipped), (1, 1, 1), "{failures}");
    assert_eq!(read(&target, "b"), noise(1, 3000));
}

const KEEPING: [Overwrite; 3] = [Overwrite::Never, Overwrite::IfNewer, Overwrite::IfChanged];

/// A file of the same size and time stood under the first name. The names that were missing became links to it, and had
/// neither the bytes of before nor those of the snapshot.
#[test]
fn names_that_are_missing_get_the_bytes_of_the_snapshot_whatever_stands_under_the_first() {
    let made = Made::of(&linked(b"right", &["a", "b", "c"]));
    for overwrite in KEEPING {
        for equal in [&b"right"[..], b"wrong"] {
            let target = MemTree::new();
            made.restore(&target, Overwrite::Refuse);
            let before = metadata(&target, "a");
            target.remove(Path::new("b")).unwrap();
            target.remove(Path::new("c")).unwrap();
            target.put_file(Path::new("/a"), equal);
            target.edit(Path::new("/a"), |metadata| metadata.mtime = before.mtime);
            let report = made.restore(&target, overwrite);
            let restored = if equal == b"right" { (0, 2, 1) } else { (1, 1, 1) };
            assert_eq!((report.files, report.others, report.files_skipped), restored, "{overwrite:?}");
            assert_eq!(["a", "b", "c"].map(|name| read(&target, name)), [equal, b"right", b"right"], "{overwrite:?}");
            assert!(are_one(&target, &["b", "c"]) && metadata(&target, "a").inode == before.inode, "{overwrite:?}");
            assert_eq!(are_one(&target, &["a", "b"]), equal == b"right", "{overwrite:?}");
        }
    }
}

/// Two names stand as files of their own, both with the size and time of the snapshot.
#[test]
fn a_name_that_stands_is_not_replaced_by_bytes_that_differ_from_the_snapshot() {
    let made = Made::of(&linked(b"right", &["a", "b", "c"]));
    let target = MemTree::new();
    made.restore(&target, Overwrite::Refuse);
    let mtime = metadata(&target, "a").mtime;
    for (name, bytes) in [("a", b"wrong"), ("b", b"right")] {
        target.remove(Path::new(name)).unwrap();
        target.put_file(&Path::new("/").join(name), bytes);
        target.edit(&Path::new("/").join(name), |metadata| metadata.mtime = mtime);
    }
    target.remove(Path::new("c")).unwrap();
    let report = made.restore(&target, Overwrite::IfChanged);
    assert_eq!((report.others, report.files_skipped), (1, 2));
    assert_eq!(["a", "b", "c"].map(|name| read(&target, name)), [b"wrong", b"right", b"right"]);
    assert!(are_one(&target, &["b", "c"]));
}

/// Its owner could change what the names hold once they are restored.
#[test]
fn names_that_are_missing_are_not_linked_to_a_file_of_another_user_that_stays() {
    let source = linked(b"right", &["a", "b"]);
    source.edit(Path::new("/d/a"), |metadata| metadata.uid = 5);
    let made = Made::of(&source);
    for overwrite in [Overwrite::Never, Overwrite::IfNewer] {
        // The snapshot's, the user's who restores, and another.
        for (uid, is_linked) in [(5, true), (0, true), (7, false)] {
            let target = MemTree::new();
            made.restore(&target, Overwrite::Refuse);
            target.remove(Path::new("b")).unwrap();
            target.edit(Path::new("/a"), |metadata| metadata.uid = uid);
            made.restore(&target, overwrite);
            assert_eq!(are_one(&target, &["a", "b"]), is_linked, "{overwrite:?}, {uid}");
            assert_eq!((read(&target, "b"), metadata(&target, "a").uid), (b"right".to_vec(), uid));
        }
    }
}

#[test]
fn a_name_of_a_device_is_not_linked_to_another_device() {
    let source = MemTree::new();
    source.put_dir(Path::new("/d"));
    source.create_special(Path::new("d/a"), EntryKind::CharDevice, 259).unwrap();
    source.hard_link(Path::new("d/a"), Path::new("d/b")).unwrap();
    let made = Made::of(&source);
    let target = MemTree::new();
    target.create_special(Path::new("a"), EntryKind::CharDevice, 260).unwrap();
    let mtime = metadata(&source, "d/a").mtime;
    target.edit(Path::new("/a"), |metadata| metadata.mtime = mtime);
    made.restore(&target, Overwrite::Never);
    assert_eq!(["a", "b"].map(|name| metadata(&target, name).rdev), [260, 259]);
}

/// A file that cannot be compared is restored, and the restore does not end with success.
#[test]
fn a_first_name_that_cannot_be_read_is_reported_and_the_others_are_restored() {
    let made = Made::of(&linked(b"right", &["a", "b"]));
    let target = MemTree::new();
    made.restore(&target, Overwrite::Refuse);
    target.remove(Path::new("b")).unwrap();
    let counting = FaultyTarget::new(Arc::new(copy(&target)), None);
    made.run_into(Arc::new(counting.clone()), Overwrite::Never, Effect::Write, Trust::Full);
    let mut unread = 0;
    for number in 1..=counting.calls() {
        let after = copy(&target);
        let faulty = FaultyTarget::new(Arc::new(after.clone()), Some((number, 5)));
        let (report, failures) = made.run_into(Arc::new(faulty), Overwrite::Never, Effect::Write, Trust::Full);
        if failures.contains("/a: cannot be compared with the snapshot") {
            unread += 1;
            assert_eq!((report.failures, report.files, read(&after, "b").as_slice()), (1, 1, &b"right"[..]));
        }
    }
    // Opening it, its length and its bytes.
    assert_eq!(unread, 3);
}

/// Someone who may write the directory puts a file of theirs there, with the size and time of a program that runs with its
/// owner's rights. The restore took it for the program and gave it owner and rights.
#[test]
fn bytes_of_another_owner_get_no_privileges() {
    let source = MemTree::new();
    for name in ["set-id", "set-group-id", "capable", "plain"] {
        source.put_file(&Path::new("/d").join(name), b"right");
        source.edit(&Path::new("/d").join(name), |metadata| metadata.mode = 0o755);
    }
    source.edit(Path::new("/d/set-id"), |metadata| metadata.mode = 0o4755);
    source.edit(Path::new("/d/set-group-id"), |metadata| metadata.mode = 0o2755);
    let capability = Xattr { name: "security.capability".into(), value: vec![1; 20] };
    source.set_xattrs(Path::new("/d/capable"), &[capability]);
    let made = Made::of(&source);
    let names = ["set-id", "set-group-id", "capable", "plain"];
    let plant = |change: &dyn Fn(&mut Metadata)| {
        let target = MemTree::new();
        made.restore(&target, Overwrite::Refuse);
        for name in names {
            let mtime = metadata(&target, name).mtime;
            target.put_file(&Path::new("/").join(name), b"wrong");
            target.edit(&Path::new("/").join(name), |metadata| {
                (metadata.mtime, metadata.mode) = (mtime, 0o755);
                change(metadata);
            });
        }
        target
    };
    for change in
        [&(|metadata: &mut Metadata| metadata.uid = 7) as &dyn Fn(&mut Metadata), &|metadata| metadata.gid = 7]
    {
        let target = plant(change);
        made.restore(&target, Overwrite::IfChanged);
        assert_eq!(names.map(|name| read(&target, name)), [&b"right"[..], b"right", b"right", b"wrong"]);
        assert!(names.iter().all(|name| (metadata(&target, name).uid, metadata(&target, name).gid) == (0, 0)));
        // From a repository that is not trusted, none of them gets privileges.
        let target = plant(change);
        made.run(&target, Overwrite::IfChanged, Effect::Write, Trust::Untrusted);
        assert!(names.iter().all(|name| read(&target, name) == b"wrong" && metadata(&target, name).mode == 0o755));
    }
    let target = plant(&|_| ());
    assert_eq!(made.restore(&target, Overwrite::IfChanged).files_skipped, 4, "files of the owner are left as they are");
}

/// A restore gave the owner and mode of a file to names that the snapshot does not have.
#[test]
fn other_names_of_a_file_that_stands_keep_their_metadata() {
    let source = MemTree::new();
    source.put_file(Path::new("/d/a"), b"right");
    let made = Made::of(&source);
    let target = MemTree::new();
    made.restore(&target, Overwrite::Refuse);
    target.hard_link(Path::new("a"), Path::new("mine")).unwrap();
    target.edit(Path::new("/mine"), |metadata| (metadata.uid, metadata.mode) = (7, 0o666));
    let before = metadata(&target, "mine");
    made.restore(&target, Overwrite::IfChanged);
    let after = metadata(&target, "mine");
    assert_eq!((after.uid, after.mode, after.inode), (before.uid, before.mode, before.inode));
    assert_eq!((metadata(&target, "a").uid, metadata(&target, "a").mode), (0, 0o600));
    // The other name is replaced by something else right before: a dry run, which replaces nothing, decides alike.
    let source = MemTree::new();
    source.put_symlink(Path::new("/d/a"), "b".as_ref());
    source.put_file(Path::new("/d/b"), b"right");
    let made = Made::of(&source);
    let target = MemTree::new();
    made.restore(&target, Overwrite::Refuse);
    target.remove(Path::new("a")).unwrap();
    target.hard_link(Path::new("b"), Path::new("a")).unwrap();
    assert_eq!(made.restore(&target, Overwrite::IfChanged).files, 1);
    // A file of which the snapshot has several names is left.
    let made = Made::of(&linked(b"right", &["a", "b"]));
    let target = MemTree::new();
    made.restore(&target, Overwrite::Refuse);
    assert_eq!(made.restore(&target, Overwrite::IfChanged).files_skipped, 2);
}

/// Each was a failure, with a line of its own, and further names of files were not restored.
#[test]
fn what_a_target_cannot_hold_is_counted_by_kind_and_further_names_become_copies() {
    let source = linked(&noise(1, 3000), &["a", "b", "z"]);
    source.put_symlink(Path::new("/d/link"), OsStr::new("a"));
    for fifo in ["d/fifo", "d/fifo-2"] {
        TargetTree::create_special(&source, Path::new(fifo), EntryKind::Fifo, 0).unwrap();
    }
    let made = Made::of(&source);
    for overwrite in [Overwrite::Refuse, Overwrite::Always, Overwrite::IfChanged] {
        let target = MemTree::new();
        target.set_plain();
        for overwrite in [overwrite, Overwrite::Always, Overwrite::IfChanged] {
            let (report, failures) = made.run(&target, overwrite, Effect::Write, Trust::Full);
            assert_eq!((report.failures, failures.as_str()), (0, ""), "{overwrite:?}");
            let omissions: Vec<_> = report.omissions.iter().collect();
            let expected = [
                (Omission::Special, 2, Path::new("fifo")),
                (Omission::Symlink, 1, Path::new("link")),
                (Omission::HardLink, 2, Path::new("b")),
            ];
            assert_eq!(omissions, expected, "{overwrite:?}");
            for name in ["a", "b", "z"] {
                assert_eq!(read(&target, name), noise(1, 3000), "{overwrite:?} {name}");
            }
            assert_eq!(TargetTree::list(&target, Path::new("")).unwrap().len(), 3);
        }
    }
    // A file stays under the name of a link: that is not what the snapshot has.
    let target = MemTree::new();
    target.put_file(Path::new("/link"), b"other");
    target.set_plain();
    let (report, failures) = made.run(&target, Overwrite::Always, Effect::Write, Trust::Full);
    assert_eq!(report.failures, 1);
    assert!(failures.contains("link"), "{failures}");
}
