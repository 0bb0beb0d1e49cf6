//! Indexes that read whole units of the log around a hit.

use super::caller::*;
use super::*;
use crate::identify::options::{PrefetchUnit, WindowRule};
use crate::kv::RunOrder;
use crate::testing::fingerprint;
use crate::testing::sim::SimDisk;
use crate::types::SessionId;

/// Chunks of each container of these tests.
const CONTAINER_CHUNKS: u64 = 150;

fn with_containers(schedule: Schedule) -> IndexOptions {
    IndexOptions { unit: PrefetchUnit::Container, window: WindowRule::Adaptive(1_000), ..tiny(schedule) }
}

/// Stores so many containers, of consecutive chunks each.
fn store(caller: &mut Caller, containers: u32) {
    for ordinal in 0..containers {
        let first = u64::from(ordinal) * CONTAINER_CHUNKS;
        let chunks: Vec<_> = (first..first + CONTAINER_CHUNKS).map(fingerprint).collect();
        caller.submit(&chunks);
        caller.drain();
        caller.packing.clear();
        let container = ContainerId { session: SessionId([caller.session; 16]), ordinal };
        caller.stored.extend(&chunks);
        caller.containers.insert(container, chunks.clone());
        caller.record_unit(container, &chunks);
    }
}

/// Submits a chunk in the middle of a container, then all chunks of it from the last to the first; returns the number of
/// lookups.
fn read_backward(caller: &mut Caller, container: u64) -> u64 {
    let before = caller.index.counters().lookups;
    let (first, middle) = (container * CONTAINER_CHUNKS, (container * 2 + 1) * CONTAINER_CHUNKS / 2);
    caller.submit(&[fingerprint(middle)]);
    caller.drain();
    let all: Vec<_> = (first..first + CONTAINER_CHUNKS).rev().map(fingerprint).collect();
    caller.submit(&all);
    caller.drain();
    caller.index.counters().lookups - before
}

#[test]
fn a_hit_resolves_every_chunk_of_its_container_also_those_before_it() {
    let disk = SimDisk::default();
    let options = with_containers(Schedule::Eager);
    let (mut caller, _) = Caller::open(&disk, &options, 1);
    store(&mut caller, 40);
    for container in [3, 17, 39, 0] {
        assert_eq!(read_backward(&mut caller, container), 1, "container {container}");
    }
    // The next opening finds where the containers are, also those of the last session.
    close(&mut caller);
    let (mut caller, state, recorded) = caller.again(&disk, &options);
    assert_eq!((state, recorded), (IndexState::Clean, 0));
    for container in [39, 5, 0] {
        assert_eq!(read_backward(&mut caller, container), 1, "container {container}");
    }
    // Windows of fixed length begin at the hit, and the chunks before it need lookups of their own.
    let window = WindowRule::Fixed(u32::try_from(CONTAINER_CHUNKS).unwrap());
    let (mut caller, _) =
        Caller::open(&SimDisk::default(), &IndexOptions { unit: PrefetchUnit::Window, window, ..options }, 1);
    store(&mut caller, 40);
    let lookups = read_backward(&mut caller, 3);
    assert!(10 < lookups, "{lookups} lookups with windows");
}

#[test]
fn an_index_made_for_another_unit_is_made_again_and_stays_exact() {
    for (seed, mut random) in seeds(900..912) {
        let disk = SimDisk::default();
        let (window, container) = (tiny(schedule_of(seed)), with_containers(schedule_of(seed)));
        let (mut caller, _) = Caller::open(&disk, &window, 1);
        let mut next_chunk = 0;
        caller.run(&mut random, 40, &mut next_chunk);
        let mut before = &window;
        for options in [&container, &container, &window, &container] {
            close(&mut caller);
            let total = caller.containers.len();
            let (again, state, recorded) = caller.again(&disk, options);
            caller = again;
            if options.unit == before.unit {
                assert_eq!((state, recorded), (IndexState::Clean, 0));
            } else {
                assert!(matches!(&state, IndexState::Rebuilt(why) if why.contains("other units")), "{state:?}");
                assert_eq!(recorded, total);
            }
            caller.run(&mut random, 30, &mut next_chunk);
            before = options;
        }
    }
}

#[test]
fn the_cache_gives_up_the_memory_of_the_units() {
    let options = IndexOptions { cache_bytes: 128 << 10, ..with_containers(Schedule::Eager) };
    let (mut caller, _) = Caller::open(&SimDisk::default(), &options, 1);
    for ordinal in 0..4_000 {
        let container = ContainerId { session: SessionId([9; 16]), ordinal };
        caller.record_unit(container, &[fingerprint(ordinal.into())]);
    }
    let units = caller.index.store.units_bytes();
    assert!(32_000 <= units);
    let cached = caller.index.cache.bytes();
    assert!(cached + units <= options.cache_bytes, "{cached} and {units}");
}

#[test]
fn the_newest_live_copy_is_found_if_lookups_search_the_newest_run_first() {
    for run_order in [RunOrder::LargestFirst, RunOrder::NewestFirst] {
        let options = IndexOptions { run_order, window: WindowRule::Fixed(0), runs_max: 20, ..tiny(Schedule::Eager) };
        let (mut caller, _) = Caller::open(&SimDisk::default(), &options, 1);
        let container = |ordinal| ContainerId { session: SessionId([7; 16]), ordinal };
        // The first container makes the largest runs; each further one has the same chunk, and is written to a run of its own.
        for (ordinal, others) in [(0, 4_000), (1, 400), (2, 400), (3, 400)] {
            let first = 10_000 * u64::from(ordinal) + 1;
            let chunks: Vec<_> = [0].into_iter().chain(first..first + others).map(fingerprint).collect();
            caller.record_unit(container(ordinal), &chunks);
            caller.containers.insert(container(ordinal), chunks);
        }
        let find = |caller: &mut Caller| {
            caller.submit(&[fingerprint(0)]);
            caller.verdicts[&Sequence(caller.next_sequence - 1)]
        };
        let newest = find(&mut caller);
        assert_eq!(newest == Verdict::Stored(container(3)), run_order == RunOrder::NewestFirst, "{newest:?}");
        // Copies whose containers have gone do not count.
        caller.index.forget(&[container(3), container(2)]).unwrap();
        let left = find(&mut caller);
        let expected = if run_order == RunOrder::NewestFirst { container(1) } else { container(0) };
        assert_eq!(left, Verdict::Stored(expected), "{run_order:?}");
    }
}
