//! A dry run reports what the restore then does, entry by entry, and changes nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use onefold_engine::io::tree::{EntryKind, TargetTree, Trust};
use onefold_engine::monitor::{Action, Monitor};
use onefold_engine::pipeline::Driver;
use onefold_engine::restore::{Effect, Filter, FullDirectories, Overwrite, RestoreReport, RestoreRequest, restore};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::source::exclude::{Case, Patterns};
use onefold_engine::store::Store;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::Timestamp;
use onefold_engine::{Error, Result};

use crate::integration::support::{Ask, Draw, SMALL, World, copy, newest};

const SEEDS: u64 = if cfg!(feature = "slow") { 2000 } else { 60 };

/// Everything that a restore reports.
#[derive(Debug, Default)]
struct Reported(Mutex<Vec<String>>);

impl Reported {
    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }
}

impl Monitor for Reported {
    fn entry(&self, path: &Path, action: Action) {
        self.add(format!("{} {action:?}", path.display()));
    }

    fn directory(&self, path: &Path, action: Action) {
        self.add(format!("{} directory {action:?}", path.display()));
    }

    fn failure(&self, path: &Path, error: &Error) {
        self.add(format!("{} failed: {error}", path.display()));
    }
}

/// Grows a tree of few names, so that two of them collide in every way.
fn tree(draw: &mut Draw) -> MemTree {
    let tree = MemTree::new();
    let mut directories = vec![PathBuf::from("d")];
    let mut linkable: Vec<PathBuf> = Vec::new();
    tree.create_dir(Path::new("d")).unwrap();
    for _ in 0..draw.below(25) {
        let path = draw.one_of(&directories).join(draw.one_of(&["a", "A", "b", "b.onefold-partial", "c"]));
        if TargetTree::metadata(&tree, &path).unwrap().is_some() {
            continue;
        }
        let target: &dyn TargetTree = &tree;
        match draw.below(8) {
            0..=2 => {
                target.create_dir(&path).unwrap();
                directories.push(path);
                continue;
            }
            3 | 4 => {
                let len = draw.below(3);
                target.create_file(&path).unwrap().write_at(0, &vec![b'x'; len]).unwrap();
                linkable.push(path.clone());
            }
            5 => target.create_symlink(&path, "x".as_ref()).unwrap(),
            6 => {
                let kind = *draw.one_of(&[EntryKind::Fifo, EntryKind::CharDevice]);
                target.create_special(&path, kind, 259).unwrap();
                linkable.push(path.clone());
            }
            _ if linkable.is_empty() => {}
            _ => {
                let existing = draw.one_of(&linkable).clone();
                target.hard_link(&existing, &path).unwrap();
            }
        }
        if target.metadata(&path).unwrap().is_some() {
            let seconds = i64::try_from(draw.below(3)).unwrap();
            tree.edit(&Path::new("/").join(&path), |metadata| metadata.mtime = Timestamp { seconds, nanoseconds: 0 });
        }
    }
    tree
}

fn filter(draw: &mut Draw) -> Filter {
    let patterns = |text: &str| vec![Patterns::parse([text.as_bytes()], Case::Sensitive).unwrap()];
    match draw.below(4) {
        0 => Filter { include: patterns("b"), ..Filter::default() },
        1 => Filter { exclude: patterns("a"), ..Filter::default() },
        _ => Filter::default(),
    }
}

struct Asked {
    filter: Filter,
    overwrite: Overwrite,
    full_directories: FullDirectories,
    trust: Trust,
    path: &'static Path,
}

fn run(
    world: &World,
    store: &Store,
    snapshot: &Snapshot,
    target: &MemTree,
    asked: &Asked,
    effect: Effect,
) -> (Result<RestoreReport>, Vec<String>) {
    let reported = Arc::new(Reported::default());
    let request = RestoreRequest {
        tree: snapshot.tree,
        path: asked.path,
        filter: asked.filter.clone(),
        target: Arc::new(target.clone()),
        effect,
        overwrite: asked.overwrite,
        full_directories: asked.full_directories.clone(),
        verify: false,
        trust: asked.trust,
        scratch: world.scratch(),
        memory_bytes: 16 << 20,
        driver: Driver::inline(1),
        monitor: Arc::clone(&reported) as Arc<dyn Monitor>,
    };
    let report = restore(store, &request);
    let lines = std::mem::take(&mut *reported.0.lock().unwrap());
    (report, lines)
}

#[test]
fn a_dry_run_reports_what_the_restore_then_does_and_changes_nothing() {
    let policies = [Overwrite::Refuse, Overwrite::Always, Overwrite::IfChanged, Overwrite::IfNewer, Overwrite::Never];
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let mut draw = Draw::new(seed);
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        world.backup(&store, &tree(&mut draw), &Ask::default()).unwrap();
        let snapshot = newest(&store).unwrap().unwrap().1;
        for overwrite in policies {
            let asked = Asked {
                filter: filter(&mut draw),
                overwrite,
                full_directories: if draw.once_in(2) {
                    FullDirectories::Keep
                } else {
                    FullDirectories::Delete { keep: Arc::default() }
                },
                trust: *draw.one_of(&[Trust::Full, Trust::Untrusted]),
                path: Path::new(*draw.one_of(&["/", "/d"])),
            };
            let grown = tree(&mut draw);
            let standing = if draw.once_in(4) { MemTree::new() } else { grown };
            standing.set_folds_case(draw.once_in(4));
            let before = copy(&standing);
            let (dry, dry_lines) = run(&world, &store, &snapshot, &standing, &asked, Effect::DryRun);
            let case = format!("seed {seed}, {overwrite:?}, {:?}, {:?}", asked.filter, asked.trust);
            assert_eq!(before.diff(&standing), Vec::<String>::new(), "{case}: a dry run changed something");
            let (real, real_lines) = run(&world, &store, &snapshot, &standing, &asked, Effect::Write);
            assert_eq!(dry_lines, real_lines, "{case}");
            match (dry, real) {
                (Ok(dry), Ok(real)) => {
                    let counts =
                        |report: RestoreReport| RestoreReport { regions_read: 0, directories_read: 0, ..report };
                    assert_eq!(counts(dry), counts(real), "{case}");
                }
                (Err(dry), Err(real)) => assert_eq!(dry.to_string(), real.to_string(), "{case}"),
                (dry, real) => panic!("{case}: {dry:?}, but then {real:?}"),
            }
            seen.extend(real_lines.iter().filter_map(|line| line.split_once(' ')).map(|(_, action)| action.to_owned()));
        }
    }
    for action in ["New", "Changed", "Unchanged", "directory Other"] {
        assert!(seen.contains(action), "{action} never happened: {seen:?}");
    }
    assert!(seen.iter().any(|action| action.contains("a device is not restored")), "{seen:?}");
    assert!(seen.iter().any(|action| action.contains("cannot tell this name")), "{seen:?}");
}
