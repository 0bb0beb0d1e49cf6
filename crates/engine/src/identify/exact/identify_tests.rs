//! The index as its callers see it, against a set in memory.

use std::collections::HashSet;

use super::caller::*;
use super::*;
use crate::Error;
use crate::identify::Selection;
use crate::identify::exact::cache::BLOCK_BYTES;
use crate::identify::options::{CycleRule, PrefetchUnit, Prelookup, StoreKind, WindowRule};
use crate::identify::schedule::plan::{Plan, Stride};
use crate::identify::schedule::planner::LastPlan;
use crate::identify::{Sampling, Segmenting};
use crate::io::os::OsHost;
use crate::kv::RunOrder;
use crate::kv::bucket_table::memtable::MEMTABLE_ENTRY_BYTES;
use crate::random::SplitMix64;
use crate::testing::fingerprint;
use crate::testing::sim::SimDisk;

#[test]
fn every_schedule_over_every_store_declares_each_chunk_unique_once_and_names_containers_that_hold_it() {
    let mut sum = Counters::default();
    for ((seed, mut random), store) in seeds(0..24).flat_map(|run| STORES.map(|store| (run.clone(), store))) {
        let is_immediate = matches!(schedule_of(seed), Schedule::Eager | Schedule::Lazy { threshold: 1 });
        let is_on_disk = u64::from(store == StoreKind::Table);
        let plans_in_memory = schedule_of(seed).plans() && store != StoreKind::Table;
        let reads_no_window = plans_in_memory || schedule_of(seed) == Schedule::Lazy { threshold: 1 };
        let disk = SimDisk::default();
        let options = IndexOptions { store: store.clone(), ..tiny(schedule_of(seed)) };
        let (mut caller, state) = Caller::open(&disk, &options, 1);
        assert_eq!(state, IndexState::New);
        let mut next_chunk = 0;
        caller.run(&mut random, 150, &mut next_chunk);
        let distinct: HashSet<_> = caller.stream.iter().copied().collect();
        assert_eq!(caller.stored, distinct);
        let counters = caller.index.counters();
        check_counters(&caller.index);
        assert_eq!(counters.dead_hits + counters.damaged_pages, 0);
        assert_eq!(counters.updates, distinct.len() as u64);
        assert_eq!(caller.index.degraded(), None);
        for (seed_of, met) in [
            ("disk hit", counters.disk_hits + 1 - is_on_disk),
            ("memtable hit", counters.memtable_hits),
            ("false positive", counters.filter_false_positives),
            ("filter negative", counters.filter_negatives),
            // A chunk looked up alone has nobody to read a window for, and plans save no lookups that cost no read.
            ("cache hit", counters.prelookup_hits + u64::from(reads_no_window)),
            ("drain", counters.drains + u64::from(is_immediate)),
            ("write", counters.bytes_written),
        ] {
            assert!(0 < met, "seed {seed} met no {seed_of} with {store:?}");
        }
        assert_eq!(counters.disk_hits * (1 - is_on_disk), 0);
        sum.joined += counters.joined;
        sum.postlookup_hits += counters.postlookup_hits;
        sum.drains += counters.drains;
    }
    assert!(0 < sum.joined);
    assert!(0 < sum.postlookup_hits);
    assert!(0 < sum.drains);
}

#[test]
fn the_order_decides_what_is_asked_and_not_what_is_found() {
    for (seed, _) in seeds(30..48).filter(|(seed, _)| schedule_of(*seed) != Schedule::Lazy { threshold: 1 }) {
        for order in [Order::FilterFirst, Order::CacheFirst, Order::Unfiltered] {
            let options = IndexOptions { order, ..tiny(schedule_of(seed)) };
            let (mut caller, _) = Caller::open(&SimDisk::default(), &options, 1);
            caller.run(&mut SplitMix64::new(seed), 100, &mut 0);
            check_counters(&caller.index);
            let Counters { filter_probes, prelookup_hits, .. } = caller.index.counters();
            match order {
                Order::FilterFirst => assert!(prelookup_hits < filter_probes),
                Order::CacheFirst => assert!(0 < prelookup_hits && 0 < filter_probes),
                Order::Unfiltered => assert_eq!(filter_probes, 0),
            }
            assert_eq!(caller.stored, caller.stream.iter().copied().collect());
        }
    }
}

#[test]
fn an_index_that_was_closed_knows_everything_when_it_is_opened_again() {
    for ((seed, mut random), store) in seeds(100..108).flat_map(|run| STORES.map(|store| (run.clone(), store))) {
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &IndexOptions { store: store.clone(), ..tiny(schedule_of(seed)) }, 1);
        let mut next_chunk = 0;
        for round in 0..4 {
            caller.run(&mut random, 40, &mut next_chunk);
            let empty = SimDisk::default();
            let index = std::mem::replace(&mut caller.index, other_index(&empty));
            index.close().unwrap();
            // The next run has other parameters: a smaller memtable, another filter, another schedule.
            let mut options = IndexOptions { store: store.clone(), ..tiny(schedule_of(seed + round)) };
            options.memtable_bytes = 100 * MEMTABLE_ENTRY_BYTES * (1 + usize::try_from(round).unwrap());
            options.filter_bytes <<= round % 2;
            let after_cut = disk.power_cut(seed);
            let (again, state, recorded) = caller.again(if round == 2 { &after_cut } else { &disk }, &options);
            assert_eq!((state, recorded), (IndexState::Clean, 0), "seed {seed}");
            caller = again;
            if round == 2 {
                break;
            }
        }
        caller.run(&mut random, 40, &mut next_chunk);
    }
}

#[test]
fn after_a_power_cut_what_is_not_covered_is_recorded_again_and_all_is_exact() {
    let mut recorded_again = 0;
    let mut covered = 0;
    for (seed, mut random) in seeds(200..230) {
        let options = tiny_of(seed);
        let mut disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        let mut next_chunk = 0;
        let closes = random.below(2) == 0;
        caller.run(&mut random, 40, &mut next_chunk);
        if closes {
            close(&mut caller);
            (caller, _, _) = caller.again(&disk, &options);
            caller.run(&mut random, 30, &mut next_chunk);
        }
        for _ in 0..3 {
            disk = disk.power_cut(random.next_u64());
            let total = caller.containers.len();
            let (again, state, recorded) = caller.again(&disk, &options);
            match state {
                IndexState::Unclean => assert!(closes),
                IndexState::Rebuilt(_) | IndexState::New => assert_eq!(recorded, total),
                IndexState::Clean | IndexState::Incomplete(_) => panic!("seed {seed}: the index was not closed"),
            }
            recorded_again += recorded;
            covered += total - recorded;
            caller = again;
            caller.run(&mut random, 30, &mut next_chunk);
            assert_eq!(caller.index.counters().damaged_pages, 0);
        }
    }
    assert!(0 < recorded_again);
    assert!(0 < covered);
}

#[test]
fn damage_to_any_file_costs_duplicates_at_most() {
    let files = ["checkpoint", "containers", "log", "table", "manifest.1", "staged.1", "filter.1", "repeats.0"];
    let mut damaged_pages = 0;
    for (seed, mut random) in seeds(300..346) {
        let file = if seed < 340 { files[usize::try_from(seed % 8).unwrap()] } else { "units.1" };
        let unit = match file {
            "units.1" => PrefetchUnit::Container,
            // Only windows are followed.
            "repeats.0" => PrefetchUnit::Window,
            _ => tiny_of(seed).unit,
        };
        let options = IndexOptions { unit, ..tiny(schedule_of(seed)) };
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        let mut next_chunk = 0;
        caller.run(&mut random, 60, &mut next_chunk);
        close(&mut caller);
        let cut = random.below(3) == 0;
        disk.damage(dir().join(file), |bytes| {
            let location = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            if cut {
                bytes.truncate(location);
            } else {
                bytes.iter_mut().skip(location).step_by(3000).for_each(|byte| *byte ^= 1 << (location % 8));
            }
        });
        let total = caller.containers.len();
        let (mut caller, state, recorded) = caller.again(&disk, &options);
        match (file, cut, &state) {
            ("log" | "table" | "repeats.0", false, IndexState::Clean) | ("filter.1", _, IndexState::Clean) => {
                assert_eq!(recorded, 0);
            }
            ("log" | "table" | "repeats.0", true, _) | (_, _, IndexState::Rebuilt(_)) => {
                assert!(recorded == total || state == IndexState::Clean);
            }
            _ => panic!("{file} was damaged (cut: {cut}), but the index was found {state:?}"),
        }
        if file == "table" && !cut {
            // Duplicates are allowed: what is stored is what the index says.
            let old: Vec<_> = (0..next_chunk).map(fingerprint).collect();
            old.chunks(50).for_each(|part| caller.submit(part));
            caller.drain();
            let pages = caller.index.counters().damaged_pages;
            assert!(0 < pages);
            assert!(caller.index.degraded().is_some());
            damaged_pages += pages;
            close(&mut caller);
            let (mut caller, state, recorded) = caller.again(&disk, &options);
            assert!(matches!(state, IndexState::Incomplete(_)), "{state:?}");
            assert_eq!(recorded, caller.containers.len());
            // The lost entries are recorded again.
            let before = caller.packing.len();
            old.chunks(50).for_each(|part| caller.submit(part));
            caller.drain();
            assert_eq!(caller.packing.len(), before);
            assert_eq!(caller.index.degraded(), None);
            caller.run(&mut random, 30, &mut next_chunk);
            close(&mut caller);
            let (_, state, recorded) = caller.again(&disk, &options);
            assert_eq!((state, recorded), (IndexState::Clean, 0));
        } else {
            caller.run(&mut random, 30, &mut next_chunk);
        }
    }
    assert!(0 < damaged_pages);
}

#[test]
fn an_index_of_another_repository_or_in_use_is_not_touched_or_started_anew() {
    let disk = SimDisk::default();
    let options = tiny(Schedule::Eager);
    let (mut caller, _) = Caller::open(&disk, &options, 1);
    let mut random = SplitMix64::new(1);
    caller.run(&mut random, 20, &mut 0);
    let busy = Index::open(Arc::new(disk.clone()), host(), dir(), REPOSITORY, &options);
    assert!(matches!(busy, Err(Error::IndexBusy { .. })), "{busy:?}");
    close(&mut caller);
    let (other, state) = Index::open(Arc::new(disk.clone()), host(), dir(), RepositoryId([2; 16]), &options).unwrap();
    assert!(matches!(&state, IndexState::Rebuilt(why) if why.contains("repository 0101")), "{state:?}");
    other.close().unwrap();
    let (_, state, recorded) = caller.again(&disk, &options);
    assert!(matches!(state, IndexState::Rebuilt(_)));
    assert!(0 < recorded);
}

#[test]
fn a_full_disk_degrades_the_index_and_the_next_opening_makes_it_whole() {
    let mut degraded = 0;
    for (seed, mut random) in seeds(400..420) {
        let options = tiny_of(seed);
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        let mut next_chunk = 0;
        caller.run(&mut random, 30, &mut next_chunk);
        close(&mut caller);
        (caller, _, _) = caller.again(&disk, &options);
        disk.limit_space(Some(random.below(60_000)));
        // From here on a chunk may be declared unique again: nothing can be written.
        for _ in 0..20 {
            let start = next_chunk;
            next_chunk += 60;
            let chunks: Vec<_> = (start - start.min(40)..next_chunk).map(fingerprint).collect();
            caller.submit(&chunks);
            caller.drain();
            caller.stored.retain(|fingerprint| !caller.packing.contains(fingerprint));
            let packed: HashSet<_> = caller.packing.drain(..).collect();
            caller.packing.extend(packed);
            while !caller.packing.is_empty() {
                caller.barrier(&mut random);
            }
        }
        degraded += u64::from(caller.index.degraded().is_some());
        disk.limit_space(None);
        close_quietly(&mut caller);
        let (mut again, state, _) = caller.again(&disk, &options);
        assert!(matches!(state, IndexState::Clean | IndexState::Unclean), "{state:?}");
        again.run(&mut random, 30, &mut next_chunk);
        assert_eq!(again.index.degraded(), None);
    }
    assert!(10 < degraded, "{degraded}");
}

#[test]
fn a_checkpoint_that_is_cut_off_leaves_the_one_before() {
    let mut kept = 0;
    let mut lost = 0;
    for (seed, mut random) in seeds(600..660) {
        let options = tiny_of(seed);
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        let mut next_chunk = 0;
        caller.run(&mut random, 20, &mut next_chunk);
        close(&mut caller);
        let covered = caller.containers.len();
        (caller, _, _) = caller.again(&disk, &options);
        caller.run(&mut random, 20, &mut next_chunk);
        disk.limit_space(Some(random.below(60_000)));
        if random.below(2) == 0 {
            caller.index.checkpoint();
            lost += u64::from(caller.index.degraded().is_some());
        }
        close_quietly(&mut caller);
        let cut = disk.power_cut(random.next_u64());
        let total = caller.containers.len();
        let (mut again, state, recorded) = caller.again(&cut, &options);
        assert!(matches!(state, IndexState::Clean | IndexState::Unclean), "{state:?}");
        // A checkpoint within a session does not cover containers whose chunks wait for their position in the stream.
        let is_deferring = matches!(options.unit, PrefetchUnit::Segment { .. });
        let least = if is_deferring { 1 } else { total - covered };
        assert!(
            recorded == 0 || (least..=total - covered).contains(&recorded),
            "{recorded} of {total}, {covered} were covered"
        );
        kept += u64::from(recorded == 0);
        again.run(&mut random, 30, &mut next_chunk);
        assert_eq!(again.index.counters().damaged_pages, 0);
        close(&mut again);
        let (_, state, recorded) = again.again(&cut, &options);
        assert_eq!((state, recorded), (IndexState::Clean, 0));
    }
    assert!(0 < kept);
    assert!(kept < 60);
    assert!(0 < lost);
}

fn close_quietly(caller: &mut Caller) {
    drop(std::mem::replace(&mut caller.index, other_index(&SimDisk::default())).close());
}

#[test]
fn an_index_with_another_kind_of_store_is_made_again_and_stays_exact() {
    let [table, memory] = STORES;
    for (seed, mut random) in seeds(650..656) {
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &tiny(schedule_of(seed)), 1);
        let mut next_chunk = 0;
        caller.run(&mut random, 40, &mut next_chunk);
        let mut before = table.clone();
        for store in [&memory, &memory, &table, &table, &memory] {
            close(&mut caller);
            let total = caller.containers.len();
            let options = IndexOptions { store: store.clone(), ..tiny(schedule_of(seed)) };
            let (again, state, recorded) = caller.again(&disk, &options);
            caller = again;
            if *store == before {
                assert_eq!((state, recorded), (IndexState::Clean, 0));
            } else {
                assert!(matches!(&state, IndexState::Rebuilt(why) if why.contains("another kind")), "{state:?}");
                assert_eq!(recorded, total);
                // Nothing of the other store takes space on.
                let is_table = *store == table;
                let names: Vec<_> = disk.list(dir()).unwrap().into_iter().map(|entry| entry.name).collect();
                assert_eq!(names.iter().any(|name| name == "table"), is_table, "{names:?}");
            }
            caller.run(&mut random, 30, &mut next_chunk);
            before = store.clone();
        }
    }
}

#[test]
fn an_index_whose_memory_is_used_up_says_so_keeps_what_it_has_and_takes_the_rest_with_more_memory() {
    for (seed, mut random) in seeds(660..672) {
        let disk = SimDisk::default();
        let options = IndexOptions { store: StoreKind::Memory { bytes: 60_000 }, ..tiny(schedule_of(seed)) };
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        let mut next_chunk = 0;
        while caller.index.degraded().is_none() {
            next_chunk += 60;
            caller.submit(&(next_chunk - 60..next_chunk).map(fingerprint).collect::<Vec<_>>());
            caller.drain();
            caller.barrier_all(&mut random);
        }
        let reason = caller.index.degraded().unwrap();
        assert!(reason.starts_with("the index holds 1") && reason.ends_with("its memory is used up"), "{reason}");
        // What it holds it finds, in this session and the next one; later chunks may be stored again.
        let total = caller.containers.len();
        close_quietly(&mut caller);
        let (mut caller, state, recorded) = caller.again(&disk, &options);
        assert_eq!(state, IndexState::Clean);
        assert!(0 < recorded && recorded < 5 && 10 < total, "{recorded} of {total}");
        let old: Vec<_> = (0..next_chunk - 400).map(fingerprint).collect();
        old.chunks(50).for_each(|part| caller.submit(part));
        caller.drain();
        assert_eq!(caller.packing, []);
        close_quietly(&mut caller);
        let options = IndexOptions { store: STORES[1].clone(), ..options };
        let (mut caller, state, recorded) = caller.again(&disk, &options);
        assert_eq!(state, IndexState::Clean);
        assert!(0 < recorded);
        assert_eq!(caller.index.degraded(), None);
        caller.run(&mut random, 30, &mut next_chunk);
        assert_eq!(caller.index.degraded(), None);
    }
}

#[test]
fn chunks_of_forgotten_containers_are_unique_again() {
    for (seed, mut random) in seeds(500..512) {
        let options =
            IndexOptions { store: STORES[usize::try_from(seed / 6 % 2).unwrap()].clone(), ..tiny(schedule_of(seed)) };
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        let mut next_chunk = 0;
        for _ in 0..4 {
            caller.run(&mut random, 40, &mut next_chunk);
            let gone: Vec<_> = caller.containers.keys().copied().filter(|id| id.ordinal % 3 == 0).collect();
            caller.index.forget(&gone).unwrap();
            for container in gone {
                for fingerprint in caller.containers.remove(&container).unwrap() {
                    caller.stored.remove(&fingerprint);
                }
            }
            caller.begin_session();
        }
        caller.run(&mut random, 40, &mut next_chunk);
        assert!(0 < caller.index.counters().dead_hits);
        close(&mut caller);
        let (mut caller, state, recorded) = caller.again(&disk, &options);
        assert_eq!((state, recorded), (IndexState::Clean, 0));
        caller.run(&mut random, 40, &mut next_chunk);
    }
}

fn drawn_options(random: &mut SplitMix64) -> IndexOptions {
    let count = |random: &mut SplitMix64, end| u32::try_from(random.below(end) + 1).unwrap();
    let threshold = count(random, 64);
    let schedule = match random.below(5) {
        0 => Schedule::Eager,
        1 => Schedule::Lazy { threshold },
        2 => Schedule::Exhaustive { threshold },
        3 => Schedule::Pool { candidates: 4 * threshold },
        _ => Schedule::Adaptive,
    };
    let prelookup = [Prelookup::Always, Prelookup::Never, Prelookup::Adaptive];
    let window = count(random, 300);
    let filter_bytes = 1 << random.below(14);
    let unit_drawn = random.below(4);
    let following = count(random, 4) - 1;
    let segmenting = match random.below(2) {
        0 => Segmenting::Fixed { chunks: count(random, 200) },
        _ => {
            Segmenting::ContentDefined { min: count(random, 40), average: count(random, 100), max: count(random, 300) }
        }
    };
    let ratio = count(random, 40);
    let sampling = [Sampling::All, Sampling::Uniform { ratio }, Sampling::Random { ratio }];
    IndexOptions {
        schedule,
        // An index with another unit starts empty.
        unit: match unit_drawn {
            0 => PrefetchUnit::Container,
            1 => PrefetchUnit::Segment { following },
            _ => PrefetchUnit::Window,
        },
        completeness: Completeness::Exact,
        selection: Selection::Base,
        mapping: 1,
        segmenting,
        sampling: sampling[random.index(3)],
        cache_units: (random.below(3) == 0).then(|| count(random, 9)),
        order: [Order::FilterFirst, Order::CacheFirst, Order::Unfiltered][usize::try_from(random.below(3)).unwrap()],
        prelookup: prelookup[usize::try_from(random.below(3)).unwrap()],
        window: if random.below(2) == 0 { WindowRule::Fixed(window) } else { WindowRule::Adaptive(window) },
        follows_successors: random.below(4) != 0,
        cycles: CycleRule {
            unique_run_max: count(random, 300) - 1,
            rank_max: count(random, 3_000),
            tries_max: count(random, 12) - 1,
        },
        filter_bytes,
        filter_bytes_max: filter_bytes << random.below(7),
        filter_hashes: count(random, 10),
        // A store of another kind starts empty, one of another size takes all entries.
        store: [StoreKind::Table, StoreKind::Table, STORES[1].clone(), StoreKind::Memory { bytes: 3 << 19 }]
            [usize::try_from(random.below(4)).unwrap()]
        .clone(),
        memtable_bytes: usize::try_from(random.below(1_000) + 20).unwrap() * MEMTABLE_ENTRY_BYTES,
        merge_buffer_bytes: [10_000, 100_000, 1 << 20][usize::try_from(random.below(3)).unwrap()],
        cache_bytes: usize::try_from(random.below(40_000)).unwrap(),
        reads: [None, None, Some(BucketReads::Whole), Some(BucketReads::Entire)]
            [usize::try_from(random.below(4)).unwrap()],
        run_order: if ratio.is_multiple_of(2) { RunOrder::NewestFirst } else { RunOrder::LargestFirst },
        runs_max: count(random, 5),
        pending_buckets: count(random, 40),
        pending_max: usize::try_from(random.below(600)).unwrap(),
        pending_bytes_max: usize::try_from(random.below(600)).unwrap() * 8192,
        pending_age_max: random.below(1_000),
        log_tail_pages: 2,
        duplicate_run_bytes_per_chunk: count(random, 3) - 1,
        duplicate_run_pages_min: random.below(3),
        stream_waiting_max: usize::try_from(random.below(1_000)).unwrap(),
        stream_bytes_per_chunk: count(random, 60) - 1,
        stream_pages_min: random.below(3),
    }
}

#[test]
fn any_options_and_any_interleaving_of_crashes_are_exact_and_lose_no_chunk() {
    let mut met = Counters::default();
    let seeds_of_size = if cfg!(feature = "slow") { 1_000..1_600 } else { 1_000..1_060 };
    for (seed, mut random) in seeds(seeds_of_size) {
        let mut disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &drawn_options(&mut random), 1);
        let mut next_chunk = 0;
        for _ in 0..5 {
            caller.run(&mut random, 60, &mut next_chunk);
            if random.below(2) == 0 {
                // The same source again, in long runs.
                for _ in 0..3 {
                    let all: Vec<_> = (0..next_chunk).map(fingerprint).collect();
                    all.chunks(100).for_each(|part| caller.submit(part));
                    caller.drain();
                }
                caller.barrier_all(&mut random);
            }
            let counters = caller.index.counters();
            check_counters(&caller.index);
            assert_eq!(counters.damaged_pages, 0, "seed {seed}");
            assert_eq!(caller.index.degraded(), None, "seed {seed}");
            met.add(&counters);
            let options = drawn_options(&mut random);
            match random.below(4) {
                0 => {
                    close(&mut caller);
                    (caller, _, _) = caller.again(&disk, &options);
                }
                1 => {
                    disk = disk.power_cut(random.next_u64());
                    (caller, _, _) = caller.again(&disk, &options);
                }
                2 => (caller, _, _) = caller.again(&disk, &options),
                _ => {
                    caller.index.checkpoint();
                    caller.begin_session();
                }
            }
        }
    }
    for (name, count) in [
        ("disk hit", met.disk_hits),
        ("false positive", met.filter_false_positives),
        ("merge", met.runs_merged),
        ("growth of the filter", met.filter_growths),
        ("follower", met.joined),
        ("eviction", met.evictions),
        ("compaction", met.compactions),
        ("successor prefetch", met.successor_prefetches),
        ("read ahead", met.read_aheads),
        ("change of schedule", met.schedule_changes),
        ("chunk resolved by a window", met.postlookup_hits),
    ] {
        assert!(0 < count, "no {name} occurred");
    }
}

#[test]
fn a_stream_that_comes_again_is_followed_from_new_chunks_to_the_old_ones_that_came_after_them() {
    const RUN: u64 = 100;
    const RUNS: u64 = 300;
    const NEW: u64 = 10;
    for schedule in [Schedule::Eager, Schedule::Pool { candidates: 1_000 }, Schedule::Adaptive] {
        let options = IndexOptions {
            filter_bytes: 1 << 20,
            cache_bytes: 400_000,
            memtable_bytes: 4_000 * MEMTABLE_ENTRY_BYTES,
            pending_max: 4_096,
            pending_age_max: 1 << 20,
            window: WindowRule::Adaptive(2_048),
            ..tiny(schedule)
        };
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        let mut random = SplitMix64::new(5);
        let mut store = |numbers: &[u64]| {
            let before = caller.index.counters();
            for part in numbers.chunks(100) {
                caller.submit(&part.iter().copied().map(fingerprint).collect::<Vec<_>>());
            }
            caller.drain();
            caller.barrier_all(&mut random);
            caller.index.checkpoint();
            caller.index.counters().since(&before)
        };
        store(&(0..RUN * RUNS).collect::<Vec<_>>());
        // The old runs backward, so that none follows the one before in the log.
        let old = |run: u64| (0..RUN).map(move |chunk| (RUNS - 1 - run) * RUN + chunk);
        let new = |run: u64| (0..NEW).map(move |chunk| 1_000_000 + run * NEW + chunk);
        let stream: Vec<u64> = (0..RUNS).flat_map(|run| old(run).chain(new(run))).collect();
        let [first, again, third] = [0; 3].map(|_| store(&stream));
        assert_eq!(first.successor_prefetches, 0);
        // A plan may also find that the runs come in reverse, and read what is before a hit.
        let plans = schedule.plans();
        assert!(plans || RUNS <= first.lookups, "{schedule:?}: nothing leads to an old run the first time");
        for counters in [again, third] {
            assert!(plans || 0 < counters.successor_prefetches);
            assert!(counters.lookups < RUNS / 2, "{schedule:?}: {} lookups", counters.lookups);
        }
        assert!(third.bytes_written < 100_000, "{schedule:?}: {} bytes", third.bytes_written);
    }
}

#[test]
fn verdicts_and_their_order_are_the_same_whether_jobs_are_deferred_or_immediate() {
    for (seed, _) in seeds(900..912) {
        let mut orders: Vec<Vec<u64>> = Vec::new();
        for host in [host(), Arc::new(OsHost::new()), Arc::new(OsHost::new())] {
            let disk = SimDisk::default();
            let options = drawn_options(&mut SplitMix64::new(seed));
            let (mut caller, _) = Caller::open_on(host, &disk, &options, 1);
            let mut next_chunk = 0;
            caller.run(&mut SplitMix64::new(seed), 80, &mut next_chunk);
            let distinct: HashSet<_> = caller.stream.iter().copied().collect();
            assert_eq!(caller.stored, distinct);
            check_counters(&caller.index);
            orders.push(caller.order.iter().map(|sequence| sequence.0).collect());
            close(&mut caller);
            let (_, state, recorded) = caller.again(&disk, &options);
            assert_eq!((state, recorded), (IndexState::Clean, 0));
        }
        assert!(orders.iter().all(|order| *order == orders[0]), "seed {seed}: the order depends on threads");
    }
}

#[test]
fn a_session_that_was_given_up_leaves_nothing_that_the_next_one_would_refer_to() {
    for (seed, mut random) in seeds(800..812) {
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &tiny(schedule_of(seed)), 1);
        let mut next_chunk = 0;
        caller.run(&mut random, 30, &mut next_chunk);
        // New chunks without a verdict, or declared unique and never stored.
        for _ in 0..5 {
            caller.submit(&(next_chunk..next_chunk + 50).map(fingerprint).collect::<Vec<_>>());
        }
        caller.begin_session();
        caller.submit(&(next_chunk..next_chunk + 50).map(fingerprint).collect::<Vec<_>>());
        caller.drain();
        assert_eq!(caller.packing.len(), 50);
        caller.run(&mut random, 30, &mut next_chunk);
    }
}

#[test]
fn a_session_starts_with_the_last_plan_of_the_session_before() {
    let (disk, options) = (SimDisk::default(), tiny(Schedule::Adaptive));
    let (caller, _) = Caller::open(&disk, &options, 1);
    let initial = caller.index.schedule.plan();
    let plan = Plan { pool: 8, stride: Stride::Chunks(8), back: 4, forward: 4 };
    assert_ne!(initial, Some(plan));
    // The session is not closed, so it keeps no plan of its own.
    last_plan::write(&caller.index.store.directory, Some(LastPlan { plan, chunks: 1_000 }));
    let (caller, ..) = caller.again(&disk, &options);
    assert_eq!(caller.index.schedule.plan(), Some(plan));
    let path = caller.index.store.directory.path.join("plan");
    disk.damage(&path, |bytes| bytes[20] ^= 1);
    let (caller, ..) = caller.again(&disk, &options);
    assert_eq!(caller.index.schedule.plan(), initial);
    disk.damage(&path, |bytes| bytes[20] ^= 1);
    let (mut caller, ..) = caller.again(&disk, &options);
    assert_eq!(caller.index.schedule.plan(), Some(plan));
    // A plan that was not confirmed is not kept.
    close(&mut caller);
    let (caller, ..) = caller.again(&disk, &options);
    assert_eq!(caller.index.schedule.plan(), initial);
}

#[test]
fn an_index_that_was_dropped_falls_back_to_what_its_checkpoint_covers() {
    for (seed, mut random) in seeds(700..706) {
        let options = tiny(schedule_of(seed));
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        let mut next_chunk = 0;
        caller.run(&mut random, 30, &mut next_chunk);
        caller.index.checkpoint();
        let covered = caller.containers.len();
        caller.run(&mut random, 30, &mut next_chunk);
        let total = caller.containers.len();
        let (mut again, state, recorded) = caller.again(&disk, &options);
        assert_eq!((state, recorded), (IndexState::Unclean, total - covered), "seed {seed}");
        again.run(&mut random, 30, &mut next_chunk);
    }
}

#[test]
fn long_runs_cost_a_lookup_per_window_and_scattered_duplicates_a_page_of_the_log_each() {
    let count = 40_000;
    let options = IndexOptions {
        filter_bytes: 1 << 20,
        cache_bytes: 400_000,
        memtable_bytes: 4_000 * MEMTABLE_ENTRY_BYTES,
        pending_max: 4_096,
        pending_age_max: 1 << 20,
        window: WindowRule::Adaptive(2_048),
        ..tiny(Schedule::Eager)
    };
    let lazy = [Schedule::Lazy { threshold: 32 }, Schedule::Exhaustive { threshold: 32 }];
    let pooled = [Schedule::Pool { candidates: 1_000 }, Schedule::Adaptive];
    for schedule in [Schedule::Eager].into_iter().chain(lazy).chain(pooled) {
        let disk = SimDisk::default();
        let options = IndexOptions { schedule, ..options.clone() };
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        for start in (0..count).step_by(100) {
            caller.submit(&(start..start + 100).map(fingerprint).collect::<Vec<_>>());
            caller.barrier(&mut SplitMix64::new(1));
        }
        let before = caller.index.counters();
        caller.submit(&(0..count).map(fingerprint).collect::<Vec<_>>());
        caller.drain();
        let after = caller.index.counters();
        let lookups = after.lookups - before.lookups;
        assert!(lookups < count / 20, "{schedule:?}: {lookups} lookups for {count} chunks in one run");
        assert!(after.prefetches - before.prefetches < 100, "{schedule:?}: {after:?}");
        let mut random = SplitMix64::new(4);
        for _ in 0..40 {
            caller.submit(&(0..100).map(|_| fingerprint(random.below(count))).collect::<Vec<_>>());
        }
        let middle = caller.index.counters();
        for _ in 0..40 {
            caller.submit(&(0..100).map(|_| fingerprint(random.below(count))).collect::<Vec<_>>());
        }
        let end = caller.index.counters();
        let pages = end.prefetches - middle.prefetches + end.pages_read - middle.pages_read;
        // A plan reads as much as has paid.
        assert!(schedule.plans() || end.bytes_read - middle.bytes_read == pages * 4096, "{schedule:?}");
        assert!(0 < pages);
    }
}

#[test]
fn the_cache_has_what_the_filter_has_not_grown_to_and_gives_it_back() {
    for seed in 0..4 {
        let options = IndexOptions {
            filter_bytes: 4 << 10,
            filter_bytes_max: 128 << 10,
            cache_bytes: 2_000,
            ..tiny(schedule_of(seed))
        };
        let shared = options.filter_bytes_max + options.cache_bytes;
        let mut random = SplitMix64::new(seed);
        let (mut caller, _) = Caller::open(&SimDisk::default(), &options, 1);
        let initial = caller.index.cache.bytes();
        assert!(shared - options.filter_bytes - BLOCK_BYTES < initial, "{initial}");
        let mut next_chunk = 0;
        let mut sizes = vec![initial];
        for _ in 0..200 {
            caller.run(&mut random, 20, &mut next_chunk);
            let (filter, cache) = (caller.index.filter_state().bytes, caller.index.cache.bytes());
            assert!(filter + cache <= shared, "filter {filter}, cache {cache}");
            if sizes.last() != Some(&cache) {
                sizes.push(cache);
            }
        }
        assert!(sizes.is_sorted_by(|before, after| after < before) && 2 < sizes.len(), "{sizes:?}");
        assert_eq!(caller.index.filter_state().bytes, options.filter_bytes_max);
        assert!(*sizes.last().unwrap() <= options.cache_bytes);
    }
}
