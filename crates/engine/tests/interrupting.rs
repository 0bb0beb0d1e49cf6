//! A restore that is interrupted ends soon, in the middle of a file, too.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onefold_engine::Error;
use onefold_engine::io::tree::{TargetTree, Trust};
use onefold_engine::monitor::Monitor;
use onefold_engine::pipeline::Driver;
use onefold_engine::restore::{Effect, Filter, FullDirectories, Overwrite, RestoreRequest, restore};
use onefold_engine::testing::mem_tree::MemTree;

use crate::integration::support::{Ask, SMALL, World, newest, noise};

/// Interrupts at the numbered question, and counts them.
#[derive(Debug)]
pub(super) struct Interrupting {
    asked: AtomicU64,
    at: u64,
}

impl Interrupting {
    pub(super) fn at(at: u64) -> Self {
        Self { asked: AtomicU64::new(0), at }
    }
}

impl Monitor for Interrupting {
    fn is_interrupted(&self) -> bool {
        self.at <= self.asked.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Only between two entries was it looked whether a restore was interrupted: a file of a terabyte was restored, and verified,
/// to its end.
#[test]
fn a_restore_can_be_interrupted_at_every_region_and_every_chunk_of_a_file() {
    let world = World::new(7);
    let store = world.create(SMALL).unwrap();
    let source = MemTree::new();
    source.put_file(Path::new("/file"), &noise(1, 300_000));
    world.backup(&store, &source, &Ask::default()).unwrap();
    let snapshot = newest(&store).unwrap().unwrap().1;
    let run = |at: u64, verify: bool| {
        let monitor = Arc::new(Interrupting::at(at));
        let target = MemTree::new();
        let request = RestoreRequest {
            tree: snapshot.tree,
            path: Path::new("/"),
            filter: Filter::default(),
            target: Arc::new(target.clone()),
            effect: Effect::Write,
            overwrite: Overwrite::Refuse,
            full_directories: FullDirectories::Keep,
            verify,
            trust: Trust::Full,
            scratch: world.scratch(),
            memory_bytes: 16 << 20,
            driver: Driver::inline(1),
            monitor: Arc::clone(&monitor) as Arc<dyn Monitor>,
        };
        let outcome = restore(&store, &request);
        let is_whole = TargetTree::metadata(&target, Path::new("file")).unwrap().is_some();
        (outcome, monitor.asked.load(Ordering::Relaxed), is_whole)
    };
    let (outcome, written, is_whole) = run(u64::MAX, false);
    assert!(outcome.is_ok() && is_whole);
    let (outcome, verified, _) = run(u64::MAX, true);
    let report = outcome.unwrap();
    assert!(report.regions_read <= written, "{written} questions for {} regions", report.regions_read);
    assert!(1 < report.regions_read && written + 20 < verified, "{written} and {verified} questions");
    let mut halves = 0;
    for at in 1..=verified {
        let (outcome, _, is_whole) = run(at, true);
        assert!(matches!(outcome, Err(Error::Interrupted)), "question {at}: {outcome:?}");
        halves += u64::from(!is_whole);
    }
    assert!(report.regions_read <= halves, "{halves} of {verified} questions come before the file is whole");
}
