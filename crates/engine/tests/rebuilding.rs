//! Rebuilding a host's index: an error and a crash at each call cost time, and success is not reported over an index that lacks
//! something.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::Result;
use onefold_engine::identify::{IndexOptions, IndexState};
use onefold_engine::monitor::Silent;
use onefold_engine::repo::{Cache, RebuildRequest, RebuiltIndex, rebuild_index};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault};

use crate::integration::forgetting::{FAULTS, WAYS};
use crate::integration::pruning::{back_up_all, each_or_one, versions};
use crate::integration::support::{Ask, SMALL, World, containers, hash_directory, tell};

/// Memory of index entries that are not written out: so little that the table is written while the index is rebuilt.
const MEMTABLE_BYTES: usize = 2 << 10;

/// Does what `repair index` does.
pub(super) fn rebuild(world: &World) -> Result<RebuiltIndex> {
    let store = world.open()?;
    let mut index = IndexOptions::for_memory(8 << 20);
    (index.filter_bytes, index.log_tail_pages, index.memtable_bytes) = (64 << 10, 1, MEMTABLE_BYTES);
    let request = RebuildRequest {
        cache: &Cache { disk: world.cache(), dir: PathBuf::new() },
        index,
        scratch: world.scratch(),
        monitor: Arc::new(Silent),
    };
    rebuild_index(&store, &request)
}

/// A repository of three snapshots, and the last source.
struct Indexed {
    world: World,
    source: MemTree,
    repository: blake3::Hash,
}

fn hash(world: &World, directory: &str) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hash_directory(&world.disk.fork(), Path::new(directory), &mut hasher);
    hasher.finalize()
}

impl Indexed {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let mut versions = versions();
        back_up_all(&world, &store, &versions);
        // All of it is durable.
        let world = world.on(world.disk.crash(CrashMode::KeepAll));
        let repository = hash(&world, "repo");
        Self { world, source: versions.pop().unwrap(), repository }
    }

    /// The next backup finds everything, in the index or in the directories of the containers. Returns the state of the index.
    fn assert_exact(&self, world: &World, case: &str) -> IndexState {
        assert_eq!(hash(world, "repo"), self.repository, "{case}: the repository was written to");
        let store = world.open().unwrap();
        let outcome = world.backup(&store, &self.source, &Ask::default());
        let outcome = outcome.unwrap_or_else(|error| panic!("{case}: the next backup: {error}"));
        let chunks = &outcome.report.chunks;
        assert_eq!((chunks.data_unique, chunks.metadata_unique), (0, 0), "{case}");
        outcome.index_state
    }
}

#[test]
fn an_error_or_a_crash_at_any_call_of_rebuilding_an_index_costs_time_and_is_reported() {
    let indexed = Indexed::new(1);
    let start = || indexed.world.on(indexed.world.disk.fork());
    let calm = start();
    let rebuilt = rebuild(&calm).unwrap();
    let calls = calm.disk.calls();
    let all = containers(&calm.open().unwrap());
    let chunks: usize = all.iter().map(|container| container.chunks.len()).sum();
    assert_eq!((rebuilt.containers, rebuilt.chunks), (all.len() as u64, chunks as u64));
    assert_eq!((rebuilt.unreadable, rebuilt.in_doubt), (0, 0));
    assert_eq!(indexed.assert_exact(&calm, "undisturbed"), IndexState::Clean);
    let (mut images, mut examined, mut failed) = (0, HashSet::new(), 0);
    for call in 1..=calls {
        for fault in each_or_one(&FAULTS, call) {
            let run = start();
            run.disk.fail_at(call, fault);
            let outcome = rebuild(&run);
            run.disk.clear_faults();
            images += 1;
            failed += u64::from(outcome.is_err());
            let case = format!("{fault:?} at call {call}: {outcome:?}");
            let state = indexed.assert_exact(&run, &case);
            if outcome.is_ok_and(|rebuilt| rebuilt.unreadable == 0) {
                assert_eq!(state, IndexState::Clean, "{case}: success, and the index lacks something");
            }
        }
        let run = start();
        run.disk.fail_at(call, if call % 2 == 0 { Fault::Die } else { Fault::DieAfter });
        let outcome = rebuild(&run);
        for way in each_or_one(&WAYS, call) {
            let after = run.on(way.map_or_else(|| run.disk.reopen(), |mode| run.disk.crash(mode)));
            images += 1;
            if examined.insert(hash(&after, "cache")) {
                indexed.assert_exact(&after, &format!("a crash at call {call}, {way:?}: {outcome:?}"));
            }
        }
    }
    tell(&format!("rebuilding an index: {calls} calls, {images} images, {failed} runs failed, nothing stored twice"));
    assert!(calls / 4 < failed, "{failed} of {calls}");
}
