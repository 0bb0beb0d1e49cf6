//! Indexes whose hits read stream segments.

use super::caller::*;
use super::*;
use crate::identify::exact::stream_queue::QUEUE_MIN;
use crate::identify::options::WindowRule;
use crate::identify::{Sampling, Segmenting};
use crate::kv::RunOrder;
use crate::testing::fingerprint;
use crate::testing::sim::{Fault, SimDisk, SimHost};
use crate::types::SessionId;

/// Memory of a cache for about 1,000 chunks.
const SMALL_CACHE: usize = 60_000;

const FIXED: Segmenting = Segmenting::Fixed { chunks: 100 };

fn with_segments(schedule: Schedule) -> IndexOptions {
    IndexOptions {
        unit: PrefetchUnit::Segment { following: 0 },
        segmenting: FIXED,
        sampling: Sampling::All,
        window: WindowRule::Adaptive(1_000),
        run_order: RunOrder::NewestFirst,
        filter_bytes: 1 << 16,
        filter_bytes_max: 1 << 16,
        cache_bytes: 200_000,
        stream_waiting_max: 10_000,
        stream_pages_min: 1_000,
        ..tiny(schedule)
    }
}

/// Backs up a stream in a session of its own, with an empty cache, and a container for each 70 new chunks. Returns what it counted.
fn back_up(caller: &mut Caller, disk: &SimDisk, options: &IndexOptions, stream: &[u64]) -> Counters {
    close(caller);
    let empty = Caller::open(&SimDisk::default(), options, 0).0;
    let (again, state, recorded) = std::mem::replace(caller, empty).again(disk, options);
    assert!(matches!(state, IndexState::Clean | IndexState::New), "{state:?}");
    assert_eq!(recorded, 0);
    *caller = again;
    for part in stream.chunks(50) {
        caller.submit(&part.iter().copied().map(fingerprint).collect::<Vec<_>>());
        store(caller, 70);
    }
    caller.drain();
    caller.check_exact_of_stream();
    store(caller, 0);
    caller.index.end_stream();
    caller.index.checkpoint();
    caller.index.counters()
}

/// Stores chunks that wait for a container, if there are at least so many.
fn store(caller: &mut Caller, least: usize) {
    if caller.packing.is_empty() || caller.packing.len() < least {
        return;
    }
    let chunks = std::mem::take(&mut caller.packing);
    let container = ContainerId { session: SessionId([caller.session; 16]), ordinal: caller.next_container };
    caller.next_container += 1;
    caller.stored.extend(&chunks);
    caller.containers.insert(container, chunks.clone());
    caller.record_unit(container, &chunks);
}

/// Returns a stream that takes every `step`th chunk of 6,000, and chunks of its own in between.
fn mixed(step: u64) -> Vec<u64> {
    (0..6_000).filter(|number| number % step != 0).chain(6_000 * step..6_000 * step + 50).collect()
}

#[test]
fn a_stream_that_comes_again_takes_a_lookup_for_each_segment_whatever_its_containers() {
    for schedule in [Schedule::Eager, Schedule::Lazy { threshold: 8 }, Schedule::Pool { candidates: 50 }] {
        let lookups_of = |options: &IndexOptions| {
            let disk = SimDisk::default();
            let (mut caller, _) = Caller::open(&disk, options, 1);
            // Each of these stores some chunks of the last one, so that its chunks lie in all their containers in turn.
            for part in 0..20 {
                back_up(&mut caller, &disk, options, &(0..300).map(|number| number * 20 + part).collect::<Vec<_>>());
            }
            let all: Vec<u64> = (0..6_000).collect();
            let counted = [0; 3].map(|_| back_up(&mut caller, &disk, options, &all));
            assert_eq!(caller.stored.len(), 6_000);
            counted
        };
        // 86 containers in turn do not fit in the cache.
        let options = IndexOptions { cache_bytes: SMALL_CACHE, ..with_segments(schedule) };
        let [first, second, third] = lookups_of(&options);
        assert_eq!(third.segments, 60, "{schedule:?}");
        assert_eq!(third.segments_cut_short, 1, "{schedule:?}: the last one");
        assert_eq!((second.stream_updates, second.updates), (6_000, 6_000), "{schedule:?}: all are sampled");
        let containers = IndexOptions { unit: PrefetchUnit::Container, ..options.clone() };
        let [_, of_containers, _] = lookups_of(&containers);
        assert_eq!(of_containers.segments + of_containers.stream_updates, 0);
        if schedule == Schedule::Eager {
            for again in [second, third] {
                // A cache that is full loses some entries.
                assert!((60..65).contains(&again.lookups), "{} lookups", again.lookups);
                assert!((60..65).contains(&again.units_read), "{} segments", again.units_read);
            }
            assert!(1_000 < of_containers.lookups, "{} lookups", of_containers.lookups);
            assert!(1_000 < first.lookups, "the first stream finds segments of others");
        } else {
            assert!(second.lookups <= of_containers.lookups, "{schedule:?}: {} lookups", second.lookups);
        }
    }
}

#[test]
fn segments_after_the_one_of_a_hit_are_read_with_it() {
    for (following, lookups) in [(0, 60), (1, 30), (4, 12), (100, 6)] {
        // Windows have 1,000 records at most.
        // The cache is not full: no entry is lost.
        let unit = PrefetchUnit::Segment { following };
        let options = IndexOptions { unit, cache_bytes: 400_000, ..with_segments(Schedule::Eager) };
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        let all: Vec<u64> = (0..6_000).collect();
        back_up(&mut caller, &disk, &options, &all);
        let counters = back_up(&mut caller, &disk, &options, &all);
        assert_eq!((counters.lookups, counters.units_read), (lookups, lookups), "{following} follow");
    }
}

#[test]
fn sampled_duplicates_and_new_chunks_get_their_position_in_the_stream_and_no_other() {
    let sampling = Sampling::Random { ratio: 16 };
    let options = IndexOptions { sampling, ..with_segments(Schedule::Eager) };
    let disk = SimDisk::default();
    let (mut caller, _) = Caller::open(&disk, &options, 1);
    let all: Vec<u64> = (0..6_000).collect();
    let first = back_up(&mut caller, &disk, &options, &all);
    assert_eq!((first.updates, first.stream_updates), (6_000, 6_000), "each chunk is entered once");
    let sampled = all.iter().filter(|number| sampling.takes(1, &fingerprint(**number))).count() as u64;
    assert!((300..450).contains(&sampled));
    let second = back_up(&mut caller, &disk, &options, &all);
    assert_eq!((second.updates, second.stream_updates), (sampled, sampled));
    // Of others, 50 are new.
    let mixed = mixed(7);
    let third = back_up(&mut caller, &disk, &options, &mixed);
    let is_sampled = |number: &&u64| **number < 6_000 && sampling.takes(1, &fingerprint(**number));
    let sampled = mixed.iter().filter(is_sampled).count() as u64;
    assert_eq!((third.updates, third.stream_updates), (sampled + 50, sampled + 50));
}

#[test]
fn entries_of_a_rebuilt_index_have_positions_in_the_stream_after_the_next_backup() {
    let sampling = Sampling::Random { ratio: 64 };
    let options = IndexOptions { sampling, cache_bytes: SMALL_CACHE, ..with_segments(Schedule::Eager) };
    let disk = SimDisk::default();
    let (mut caller, _) = Caller::open(&disk, &options, 1);
    for part in 0..20 {
        back_up(&mut caller, &disk, &options, &(0..300).map(|number| number * 20 + part).collect::<Vec<_>>());
    }
    let all: Vec<u64> = (0..6_000).collect();
    back_up(&mut caller, &disk, &options, &all);
    // The index is lost. Its entries are made from the directories of containers.
    close(&mut caller);
    let disk = SimDisk::default();
    let total = caller.containers.len();
    let (mut caller, state, recorded) = caller.again(&disk, &options);
    assert_eq!((state, recorded), (IndexState::New, total));
    let first = back_up(&mut caller, &disk, &options, &all);
    let second = back_up(&mut caller, &disk, &options, &all);
    assert!(1_000 < first.lookups, "{} lookups with containers", first.lookups);
    assert!(second.lookups < 150, "{} lookups with segments", second.lookups);
}

/// Returns the pages of the stream log without those of gaps.
fn stream_pages(caller: &Caller) -> u64 {
    let log = &caller.index.store.stream.as_ref().unwrap().log;
    log.log.written_pages - log.log.lost_pages - log.units.gap_pages()
}

#[test]
fn a_stream_log_that_is_too_long_loses_segments_that_no_entry_names() {
    let options = IndexOptions { stream_pages_min: 80, stream_bytes_per_chunk: 1, ..with_segments(Schedule::Eager) };
    for store in STORES {
        let options = IndexOptions { store, run_order: RunOrder::LargestFirst, ..options.clone() };
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        back_up(&mut caller, &disk, &options, &(10_000..11_000).collect::<Vec<_>>());
        let all: Vec<u64> = (0..6_000).collect();
        let (mut compactions, mut pages) = (0, 0);
        for _ in 0..24 {
            let counters = back_up(&mut caller, &disk, &options, &all);
            compactions += counters.compactions;
            let sizes = [0, 1].map(|file| {
                let name = dir().join(format!("stream.{file}"));
                if disk.exists(&name).unwrap() { disk.bytes(name).len() } else { 0 }
            });
            assert!(sizes.contains(&0), "files of {sizes:?} bytes after a checkpoint");
            pages = pages.max(stream_pages(&caller));
        }
        assert!(4 <= compactions, "{options:?}: {compactions}");
        // A table has several entries of a chunk until its runs are merged.
        assert!(pages <= 2 * 80 * 4, "{options:?}: {pages}");
        close(&mut caller);
        let (mut caller, _, _) = caller.again(&disk, &options);
        let old = back_up(&mut caller, &disk, &options, &(10_000..11_000).collect::<Vec<_>>());
        assert_eq!((old.lookups, old.lookups_without_unit), (10, 0), "segments that are named stay");
    }
}

/// Returns a version of a tree of 4,000 chunks: runs of it change, more of them in every eighth version.
fn version(chunks: &mut [u64], number: u64, random: &mut crate::random::SplitMix64) {
    for run in 0..if number.is_multiple_of(8) { 40 } else { 6 } {
        let start = random.index(chunks.len() - 40);
        let first = 100_000 * (number + 1) + 100 * run;
        let len = 1 + random.index(40);
        for (chunk, new) in chunks[start..start + len].iter_mut().zip(first..) {
            *chunk = new;
        }
    }
}

#[test]
fn a_log_that_was_compacted_answers_as_one_that_forgets_nothing() {
    let sampling = Sampling::Random { ratio: 64 };
    let segmenting = Segmenting::ContentDefined { min: 16, average: 64, max: 640 };
    let forgets_nothing = IndexOptions {
        sampling,
        segmenting,
        filter_bytes: 1 << 18,
        filter_bytes_max: 1 << 18,
        cache_units: Some(20),
        ..with_segments(Schedule::Eager)
    };
    let compacts = IndexOptions { stream_pages_min: 20, stream_bytes_per_chunk: 1, ..forgets_nothing.clone() };
    let mut lookups = Vec::new();
    for options in [IndexOptions { stream_pages_min: 1 << 30, ..forgets_nothing }, compacts] {
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        let mut random = crate::random::SplitMix64::new(3);
        let mut chunks: Vec<u64> = (0..4_000).collect();
        let mut compactions = 0;
        let mut of_versions = Vec::new();
        for number in 0..64 {
            version(&mut chunks, number, &mut random);
            let counters = back_up(&mut caller, &disk, &options, &chunks);
            assert_eq!(counters.lookups_without_unit, 0, "version {number}");
            compactions += counters.compactions;
            of_versions.push(counters.lookups);
        }
        let ratio = 64 * 4_000 / caller.stored.len();
        assert!(10 <= ratio, "{ratio}");
        assert_eq!(3 <= compactions, options.stream_pages_min == 20, "{compactions}");
        lookups.push(of_versions);
    }
    let sum = |of: &[u64]| of.iter().sum::<u64>();
    for (all, compacted) in lookups[0].chunks(16).zip(lookups[1].chunks(16)) {
        assert!(sum(compacted) * 10 <= sum(all) * 11, "{all:?} {compacted:?}");
    }
    assert!(sum(&lookups[0][48..]) <= 2 * sum(&lookups[0][16..32]), "lookups grow: {:?}", lookups[0]);
}

#[test]
fn chunks_that_wait_too_long_for_their_containers_are_left_out_and_nothing_waits_for_them() {
    let options = IndexOptions { stream_waiting_max: 0, ..with_segments(Schedule::Eager) };
    let disk = SimDisk::default();
    let (mut caller, _) = Caller::open(&disk, &options, 1);
    caller.submit(&(0..6_000).map(fingerprint).collect::<Vec<_>>());
    assert_eq!(caller.verdicts.len(), 6_000);
    store(&mut caller, 0);
    caller.index.end_stream();
    let counters = caller.index.counters();
    assert!(counters.segments <= 3, "{} segments", counters.segments);
    assert!(counters.stream_updates <= QUEUE_MIN as u64);
    assert_eq!(counters.updates, 6_000);
    assert_eq!(caller.stored.len(), 6_000);
    let all: Vec<u64> = (0..6_000).collect();
    // One container has them all.
    let second = back_up(&mut caller, &disk, &options, &all);
    assert!(second.lookups < 20, "{} lookups", second.lookups);
    assert_eq!(second.segments, 60);
    assert_eq!(back_up(&mut caller, &disk, &options, &all).lookups, 60);
}

#[test]
fn an_entry_of_a_container_that_was_forgotten_meanwhile_takes_no_other_ones_place() {
    let options = IndexOptions { run_order: RunOrder::LargestFirst, runs_max: 20, ..with_segments(Schedule::Eager) };
    let (mut caller, _) = Caller::open(&SimDisk::default(), &options, 1);
    let container = |ordinal| ContainerId { session: SessionId([7; 16]), ordinal };
    // The first container makes the largest run; the second one has the same chunks, and is written to a run of its own.
    for (ordinal, others) in [(0, 4_000), (1, 400)] {
        let first = 10_000 * u64::from(ordinal) + 50;
        let chunks: Vec<_> = (0..50).chain(first..first + others).map(fingerprint).collect();
        caller.record_unit(container(ordinal), &chunks);
        caller.containers.insert(container(ordinal), chunks);
    }
    let chunks: Vec<_> = (0..50).map(fingerprint).collect();
    caller.submit(&chunks);
    assert!(caller.verdicts.values().all(|verdict| *verdict == Verdict::Stored(container(0))), "{:?}", caller.verdicts);
    // It goes before their segment ends.
    caller.index.forget(&[container(0)]).unwrap();
    caller.containers.remove(&container(0));
    caller.begin_session();
    assert_eq!(caller.index.counters().stream_updates, 0);
    caller.submit(&chunks);
    assert!(caller.verdicts.values().all(|verdict| *verdict == Verdict::Stored(container(1))), "{:?}", caller.verdicts);
    caller.begin_session();
    assert_eq!(caller.index.counters().stream_updates, 50);
}

/// Options under which an index with segments writes every file often, and compacts its stream log.
fn swept() -> IndexOptions {
    IndexOptions {
        stream_pages_min: 2,
        stream_bytes_per_chunk: 0,
        filter_bytes: 1 << 10,
        ..with_segments(Schedule::Pool { candidates: 60 })
    }
}

fn is_well(caller: &Caller) -> bool {
    caller.index.degraded().is_none()
}

/// Runs three sessions of an index, with checkpoints; stops once it is degraded, after which it may miss chunks.
fn run_sessions(caller: &mut Caller) {
    for session in 0..3 {
        let stream = (0..900 + 100 * session).chain((0..300).map(|number| 10_000 * (session + 1) + number)).rev();
        for part in stream.map(fingerprint).collect::<Vec<_>>().chunks(90) {
            caller.submit(part);
            if !is_well(caller) {
                return;
            }
            store(caller, 70);
        }
        caller.drain();
        if !is_well(caller) {
            return;
        }
        store(caller, 0);
        caller.index.checkpoint();
        if !is_well(caller) {
            return;
        }
        (caller.next_sequence, caller.stream, caller.verdicts) = (0, Vec::new(), std::collections::HashMap::new());
        // After an error of a read, parts of the table are recorded again.
        caller.attach();
    }
}

/// Backs up all chunks of the sessions and checks that no stored one is declared unique.
fn check_all(caller: &mut Caller, what: &str) {
    let all: Vec<_> = (0..1_100).chain([1, 2, 3].into_iter().flat_map(|it| 10_000 * it..10_000 * it + 300)).collect();
    for part in all.into_iter().map(fingerprint).collect::<Vec<_>>().chunks(100) {
        caller.submit(part);
    }
    caller.drain();
    assert!(caller.packing.iter().all(|chunk| !caller.stored.contains(chunk)), "{what}: a stored chunk is unique");
    store(caller, 0);
    assert_eq!(caller.index.degraded(), None, "{what}");
}

fn open_swept(disk: &SimDisk) -> Caller {
    Caller::open_on(Arc::new(SimHost::deferring(4)), disk, &swept(), 1).0
}

#[test]
fn an_error_or_a_crash_at_any_call_that_writes_an_index_with_segments_loses_no_chunk() {
    let plain = SimDisk::default();
    plain.record_trace();
    let mut caller = open_swept(&plain);
    let opened = plain.calls();
    run_sessions(&mut caller);
    assert!(caller.index.counters().compactions > 1);
    close(&mut caller);
    let files: std::collections::BTreeSet<_> = plain.trace().into_iter().map(|call| call.path).collect();
    for file in ["units.0", "units.1", "segments.0", "segments.1", "stream.0", "stream.1"] {
        assert!(files.contains(&dir().join(file)), "{file} is never written");
    }
    let (mut degraded, mut crashed) = (0, 0);
    let step = if cfg!(feature = "slow") { 1 } else { 3 };
    for call in opened + 1..=plain.calls() {
        let kind = std::io::ErrorKind::Other;
        let faults = [Fault::Error(kind), Fault::ShortWrite(kind), Fault::DiskFull, Fault::Die, Fault::DieAfter];
        for (_, fault) in (call..).zip(faults).filter(|(number, _)| number % step == 0) {
            let what = format!("call {call}, {fault:?}");
            let disk = SimDisk::default();
            let mut caller = open_swept(&disk);
            disk.fail_at(call, fault);
            run_sessions(&mut caller);
            degraded += u64::from(!is_well(&caller));
            crashed += u64::from(disk.is_dead());
            drop(std::mem::replace(&mut caller.index, other_index(&SimDisk::default())).close());
            disk.clear_faults();
            let after = if call % 2 == 0 { disk.power_cut(call) } else { disk.reopen() };
            let (mut caller, _, _) = caller.again(&after, &swept());
            check_all(&mut caller, &what);
        }
    }
    assert!(50 < degraded && 50 < crashed, "{degraded} degraded, {crashed} crashed");
}

#[test]
fn an_error_at_any_call_that_opens_an_index_with_segments_loses_no_chunk() {
    let disk = SimDisk::default();
    let mut caller = open_swept(&disk);
    run_sessions(&mut caller);
    close(&mut caller);
    let Caller { containers, stored, .. } = caller;
    let live: Vec<_> = containers.keys().copied().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let open = |disk: &SimDisk| Index::open(Arc::new(disk.clone()), host(), dir(), REPOSITORY, &swept());
    let traced = disk.fork();
    traced.record_trace();
    drop(open(&traced).unwrap());
    let (mut lost, mut rebuilt) = (0, 0);
    for call in traced.trace() {
        let image = disk.fork();
        image.fail_at(call.number, Fault::Error(std::io::ErrorKind::Other));
        let opened = open(&image);
        image.clear_faults();
        let name = call.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_hint = name.starts_with("stream.") || name.starts_with("segments.");
        let (index, state) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                assert!(!is_hint, "{call:?}: {error}");
                open(&image).unwrap()
            }
        };
        let mut caller = open_swept(&SimDisk::default());
        (caller.index, caller.session) = (index, 9);
        (caller.containers, caller.stored) = (containers.clone(), stored.clone());
        let missing = caller.index.attach(&live).unwrap();
        if is_hint {
            assert_eq!((state.clone(), missing.len()), (IndexState::Clean, 0), "{call:?}");
            lost += 1;
        }
        rebuilt += u64::from(matches!(state, IndexState::Rebuilt(_)));
        for container in missing {
            let chunks = containers[&container].clone();
            caller.record_unit(container, &chunks);
        }
        check_all(&mut caller, &format!("{call:?}"));
        close(&mut caller);
        let (mut caller, state, recorded) = caller.again(&image, &swept());
        assert_eq!((state, recorded), (IndexState::Clean, 0), "{call:?}");
        check_all(&mut caller, &format!("{call:?}"));
    }
    assert!(3 < lost && 3 < rebuilt, "{lost} lost, {rebuilt} rebuilt");
}

#[test]
fn a_damaged_or_missing_stream_log_costs_lookups_and_no_chunk() {
    let options = with_segments(Schedule::Eager);
    let all: Vec<u64> = (0..6_000).collect();
    for (name, is_cut) in [("stream", false), ("stream", true), ("segments", false), ("segments", true)] {
        let disk = SimDisk::default();
        let (mut caller, _) = Caller::open(&disk, &options, 1);
        back_up(&mut caller, &disk, &options, &all);
        back_up(&mut caller, &disk, &options, &all);
        close(&mut caller);
        // The checkpoint names one of two files of segments.
        for file in [format!("{name}.0"), format!("{name}.1")] {
            if !disk.exists(&dir().join(&file)).unwrap() {
                continue;
            }
            disk.damage(dir().join(file), |bytes| {
                if is_cut {
                    bytes.truncate(bytes.len() / 2);
                } else {
                    bytes.iter_mut().skip(100).step_by(3_000).for_each(|byte| *byte ^= 4);
                }
            });
        }
        let (again, state, recorded) = caller.again(&disk, &options);
        caller = again;
        assert_eq!((state, recorded), (IndexState::Clean, 0), "{name}, cut: {is_cut}");
        let after = back_up(&mut caller, &disk, &options, &all);
        let lost = after.lookups_without_unit;
        assert!(0 < lost || 60 < after.lookups, "{name}, cut: {is_cut}: {} lookups, {lost}", after.lookups);
        assert!(caller.packing.is_empty());
        assert_eq!(back_up(&mut caller, &disk, &options, &all).lookups, 60, "{name}, cut: {is_cut}");
    }
}
