//! Indexes with entries for features, and with segments that wait for their end.

use std::collections::HashSet;

use super::caller::*;
use super::*;
use crate::identify::options::{Order, StoreKind, WindowRule};
use crate::identify::{Sampling, Segmenting, Selection};
use crate::random::SplitMix64;
use crate::testing::fingerprint;
use crate::testing::sim::SimDisk;
use crate::types::SessionId;

const CONTENT: Segmenting = Segmenting::ContentDefined { min: 16, average: 64, max: 640 };
const RANDOM: Sampling = Sampling::Random { ratio: 16 };

fn near_exact(unit: PrefetchUnit, sampling: Sampling, selection: Selection) -> IndexOptions {
    IndexOptions {
        completeness: Completeness::NearExact,
        selection,
        unit,
        segmenting: CONTENT,
        sampling,
        order: Order::Unfiltered,
        window: WindowRule::Adaptive(2_000),
        store: StoreKind::Memory { bytes: 1 << 19 },
        cache_bytes: 400_000,
        cache_units: Some(24),
        stream_waiting_max: 10_000,
        stream_pages_min: 1_000,
        ..tiny(Schedule::Eager)
    }
}

const SEGMENT: PrefetchUnit = PrefetchUnit::Segment { following: 0 };

/// A trial of an index over versions of a stream, with an empty cache for each.
struct Trial {
    disk: SimDisk,
    options: IndexOptions,
    session: u8,
    containers: std::collections::BTreeMap<ContainerId, Vec<Fingerprint>>,
    /// Chunks stored, each as often as it is.
    stored: usize,
    counters: Counters,
}

impl Trial {
    fn new(options: IndexOptions) -> Self {
        let containers = std::collections::BTreeMap::new();
        Self { disk: SimDisk::default(), options, session: 0, containers, stored: 0, counters: Counters::default() }
    }

    /// Backs up files in a session. Checks that whatever is said to be stored is.
    fn back_up(&mut self, files: &[Vec<u64>]) {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let (mut index, state) = Index::open(disk, host(), dir(), REPOSITORY, &self.options).unwrap();
        assert!(matches!(state, IndexState::Clean | IndexState::New), "{state:?}");
        let live: Vec<_> = self.containers.keys().copied().collect();
        assert_eq!(index.attach(&live).unwrap(), [], "all containers are covered");
        self.session += 1;
        let (mut sequence, mut arrived, mut packing) = (0, Vec::new(), Vec::new());
        let mut unique = std::collections::HashMap::new();
        let mut number = 0;
        let mut resolved = Vec::new();
        for (at, file) in files.iter().enumerate() {
            for chunk in file {
                let chunk = Chunk { fingerprint: fingerprint(*chunk), len: 8_192 };
                index.submit(&[SequencedChunk::data(Sequence(sequence), chunk)], &mut resolved).unwrap();
                arrived.push(chunk);
                sequence += 1;
            }
            index.mark(Mark::FileEnd, &mut resolved).unwrap();
            if at + 1 == files.len() {
                index.drain(&mut resolved).unwrap();
            }
            for Resolved { sequence: Sequence(sequence), verdict } in resolved.drain(..) {
                let chunk = arrived[usize::try_from(sequence).unwrap()];
                match verdict {
                    Verdict::Unique => {
                        unique.insert(sequence, chunk.fingerprint);
                        packing.push(chunk);
                    }
                    Verdict::SameAs(Sequence(first)) => assert_eq!(unique.get(&first), Some(&chunk.fingerprint)),
                    Verdict::Stored(container) => {
                        assert!(self.containers[&container].contains(&chunk.fingerprint), "it is not stored there");
                    }
                }
            }
            while 70 <= packing.len() || (at + 1 == files.len() && !packing.is_empty()) {
                let chunks: Vec<_> = packing.drain(..packing.len().min(70)).collect();
                let container = ContainerId { session: SessionId([self.session; 16]), ordinal: number };
                number += 1;
                index.record(Unit { container, len: 0, chunks: &chunks }).unwrap();
                self.stored += chunks.len();
                self.containers.insert(container, chunks.iter().map(|chunk| chunk.fingerprint).collect());
            }
        }
        assert_eq!((sequence, index.pending()), (arrived.len() as u64, 0));
        index.end_stream();
        self.counters.add(&index.counters());
        index.close().unwrap();
    }
}

/// Returns versions of a tree of files, in which runs of chunks change, and files that come again under other names.
fn versions(count: u64) -> Vec<Vec<Vec<u64>>> {
    let mut random = SplitMix64::new(9);
    let mut files: Vec<Vec<u64>> = Vec::new();
    for file in 0..120 {
        let len = 1 + random.below(80);
        files.push((0..len).map(|chunk| file * 1_000 + chunk).collect());
    }
    let mut versions = Vec::new();
    for version in 1..=count {
        for change in 0..12 {
            let at = random.index(files.len());
            let start = random.index(files[at].len());
            let len = (1 + random.index(20)).min(files[at].len() - start);
            let first = 1_000_000 * version + 1_000 * change;
            files[at].splice(start..start + len, first..first + 12);
        }
        let copied = files[random.index(files.len())].clone();
        files.insert(random.index(files.len()), copied);
        versions.push(files.clone());
    }
    versions
}

/// Runs all versions; returns the trial, and the ratio of deduplication as a part of that of an exact index.
fn run(options: IndexOptions) -> (Trial, f64) {
    let versions = versions(12);
    let mut trial = Trial::new(options);
    for files in &versions {
        trial.back_up(files);
    }
    let distinct: HashSet<_> = versions.iter().flatten().flatten().collect();
    assert!(distinct.len() <= trial.stored, "a chunk is missing");
    #[expect(clippy::cast_precision_loss, reason = "few chunks")]
    let part = distinct.len() as f64 / trial.stored as f64;
    (trial, part)
}

#[test]
fn near_exact_indexes_store_little_again_and_never_say_stored_of_what_is_not() {
    let top = |segments| Selection::Top { segments };
    let four = PrefetchUnit::Segment { following: 3 };
    let uniform = Sampling::Uniform { ratio: 16 };
    let points = [
        ("ndpl", near_exact(PrefetchUnit::Container, uniform, Selection::Base), 0.85),
        ("ndpl-random", near_exact(PrefetchUnit::Container, RANDOM, Selection::Base), 0.55),
        ("ndpl-minimum", near_exact(PrefetchUnit::Container, Sampling::Minimum { ratio: 16 }, Selection::Base), 0.55),
        ("ndll-base", near_exact(SEGMENT, RANDOM, Selection::Base), 0.8),
        ("ndll-base-4", near_exact(four, RANDOM, Selection::Base), 0.8),
        ("ndll-top-1", near_exact(SEGMENT, RANDOM, top(1)), 0.6),
        ("ndll-top-4", near_exact(SEGMENT, RANDOM, top(4)), 0.8),
        ("ndll-top-4-4", near_exact(four, RANDOM, top(4)), 0.8),
        ("ndll-mix", near_exact(SEGMENT, RANDOM, Selection::Mix { segments: 1 }), 0.8),
        ("minimum", near_exact(SEGMENT, Sampling::Minimum { ratio: 16 }, top(4)), 0.75),
        ("independent", near_exact(SEGMENT, Sampling::Independent { ratio: 16 }, top(4)), 0.7),
    ];
    let mut parts = Vec::new();
    for (what, options, least) in points {
        let (trial, part) = run(options);
        let entries = trial.counters.updates;
        assert!(part <= 1.0 && entries < trial.stored as u64, "{what}: {entries} entries");
        parts.push((what, part, least));
    }
    assert!(parts.iter().all(|(_, part, least)| least < part), "parts of the ratio of an exact index: {parts:?}");
}

#[test]
fn more_similar_segments_and_more_segments_of_a_feature_find_more() {
    let of = |selection, mapping, following| {
        let unit = PrefetchUnit::Segment { following };
        run(IndexOptions { mapping, ..near_exact(unit, RANDOM, selection) })
    };
    let (one, of_one) = of(Selection::Top { segments: 1 }, 1, 0);
    let (four, of_four) = of(Selection::Top { segments: 4 }, 1, 0);
    let (_, of_two_values) = of(Selection::Top { segments: 4 }, 2, 0);
    let (following, of_following) = of(Selection::Top { segments: 4 }, 1, 3);
    assert!(of_one < of_four, "{of_one} {of_four}");
    assert!(of_four <= of_two_values + 0.01, "{of_four} {of_two_values}");
    assert!(of_four <= of_following + 0.01, "{of_four} {of_following}");
    assert_eq!(one.counters.lookups, four.counters.lookups, "one for each feature");
    assert!(one.counters.champions < four.counters.champions);
    assert!(following.counters.units_read < four.counters.units_read);
}

#[test]
fn bins_of_files_find_all_of_a_file_that_changes_and_hold_each_of_its_chunks_once() {
    let segmenting = Segmenting::FileDefined { min: 1, max: 2_000 };
    let minimum = Sampling::Minimum { ratio: 1 << 20 };
    let options = IndexOptions { segmenting, ..near_exact(SEGMENT, minimum, Selection::All) };
    let (trial, part) = run(options);
    assert!(0.8 < part, "{part:.3} of exact");
    // One feature for each file of each version.
    let files: usize = versions(12).iter().map(Vec::len).sum();
    assert_eq!(trial.counters.lookups, files as u64);
    // A chunk that is missing in one version is found in the next: the bin has it still.
    let file = |range: std::ops::Range<u64>| vec![range.collect::<Vec<_>>()];
    let options = trial.options;
    let mut trial = Trial::new(options);
    let least = (0..50).min_by_key(|number| fingerprint(*number)).unwrap();
    let without: Vec<u64> = (0..50).filter(|number| *number == least || 25 <= *number).collect();
    trial.back_up(&file(0..50));
    trial.back_up(&[without]);
    trial.back_up(&file(0..50));
    assert_eq!(trial.stored, 50);
}

#[test]
fn small_files_are_grouped_into_segments() {
    let of = |min| {
        let segmenting = Segmenting::FileDefined { min, max: 2_000 };
        let trial = run(IndexOptions {
            segmenting,
            ..near_exact(SEGMENT, Sampling::Minimum { ratio: 64 }, Selection::Top { segments: 1 })
        });
        trial.0.counters.segments
    };
    let files: usize = versions(12).iter().map(Vec::len).sum();
    assert_eq!(of(1), files as u64);
    assert!(of(100) < of(1) / 2);
}

#[test]
fn an_exact_index_stays_exact_whatever_is_selected_and_sampled() {
    let stores = [StoreKind::Table, StoreKind::Memory { bytes: 1 << 20 }];
    let selections = [Selection::Base, Selection::Top { segments: 2 }, Selection::Mix { segments: 1 }, Selection::All];
    for (store, selection) in stores.into_iter().flat_map(|store| selections.map(|it| (store.clone(), it))) {
        for sampling in [RANDOM, Sampling::Minimum { ratio: 30 }, Sampling::Uniform { ratio: 16 }] {
            for schedule in [Schedule::Eager, Schedule::Lazy { threshold: 4 }, Schedule::Pool { candidates: 40 }] {
                let (trial, part) = run(IndexOptions {
                    completeness: Completeness::Exact,
                    schedule,
                    store: store.clone(),
                    order: Order::FilterFirst,
                    filter_bytes: 1 << 14,
                    filter_bytes_max: 1 << 14,
                    ..near_exact(SEGMENT, sampling, selection)
                });
                assert!((part - 1.0).abs() < 1e-9, "{selection:?} {sampling:?} {schedule:?}: {part}");
                assert_eq!(selection.waits(), 0 < trial.counters.champions);
            }
        }
    }
}

#[test]
fn an_index_of_features_is_made_again_for_one_of_all_chunks() {
    let ndll = near_exact(SEGMENT, RANDOM, Selection::Base);
    let mut trial = Trial::new(ndll.clone());
    trial.back_up(&versions(1)[0]);
    let exact = IndexOptions { completeness: Completeness::Exact, ..ndll };
    let disk: Arc<dyn Disk> = Arc::new(trial.disk.clone());
    let (_, state) = Index::open(disk, host(), dir(), REPOSITORY, &exact).unwrap();
    assert!(matches!(state, IndexState::Rebuilt(_)), "{state:?}");
}

/// Lets each tenth chunk of a stream be stored again, as a rewriting does, and backs the stream up a second time.
#[test]
fn chunks_that_are_stored_again_are_found_where_they_are_now() {
    let exact = tiny(Schedule::Eager);
    for options in [exact.clone(), IndexOptions { unit: SEGMENT, run_order: crate::kv::RunOrder::NewestFirst, ..exact }]
    {
        let disk = SimDisk::default();
        let (mut index, _) = Index::open(Arc::new(disk), host(), dir(), REPOSITORY, &options).unwrap();
        let container = |ordinal| ContainerId { session: SessionId([1; 16]), ordinal };
        let chunks: Vec<_> = (0..200).map(|number| Chunk { fingerprint: fingerprint(number), len: 4_096 }).collect();
        index.attach(&[]).unwrap();
        index.record(Unit { container: container(0), len: 0, chunks: &chunks }).unwrap();
        index.attach(&[container(0)]).unwrap();
        let mut resolved = Vec::new();
        let arrivals: Vec<_> = (0..).map(Sequence).zip(&chunks).map(|(at, it)| SequencedChunk::data(at, *it)).collect();
        index.submit(&arrivals, &mut resolved).unwrap();
        index.drain(&mut resolved).unwrap();
        assert!(resolved.iter().all(|it| it.verdict == Verdict::Stored(container(0))), "{resolved:?}");
        let again: Vec<_> = arrivals.iter().step_by(10).copied().collect();
        for chunk in &again {
            index.supersede(chunk).unwrap();
        }
        // Equal chunks are the same as the one that is stored again, then in its container.
        resolved.clear();
        let equal = SequencedChunk::data(Sequence(200), chunks[10]);
        index.submit(&[equal], &mut resolved).unwrap();
        assert_eq!(resolved, [Resolved { sequence: Sequence(200), verdict: Verdict::SameAs(Sequence(10)) }]);
        let rewritten: Vec<_> = again.iter().map(|chunk| chunk.chunk).collect();
        index.record(Unit { container: container(1), len: 0, chunks: &rewritten }).unwrap();
        resolved.clear();
        index.submit(&[SequencedChunk::data(Sequence(201), chunks[10])], &mut resolved).unwrap();
        index.drain(&mut resolved).unwrap();
        assert!(resolved.iter().all(|it| matches!(it.verdict, Verdict::Stored(_))), "{resolved:?}");
        // The old copies are gone.
        index.attach(&[container(1)]).unwrap();
        resolved.clear();
        index.submit(&arrivals, &mut resolved).unwrap();
        index.drain(&mut resolved).unwrap();
        let stored = resolved.iter().filter(|it| it.verdict == Verdict::Stored(container(1))).count();
        assert_eq!((stored, resolved.len()), (20, 200));
    }
}

#[test]
fn shunned_containers_give_no_verdicts_and_keep_their_entries() {
    for schedule in [Schedule::Eager, Schedule::Lazy { threshold: 4 }, Schedule::Pool { candidates: 40 }] {
        let options = IndexOptions { filter_bytes: 1 << 14, filter_bytes_max: 1 << 14, ..tiny(schedule) };
        let (mut index, _) = Index::open(Arc::new(SimDisk::default()), host(), dir(), REPOSITORY, &options).unwrap();
        let container = |ordinal| ContainerId { session: SessionId([1; 16]), ordinal };
        index.attach(&[]).unwrap();
        for ordinal in 0..4 {
            let first = u64::from(ordinal) * 100;
            let chunks: Vec<_> =
                (first..first + 100).map(|number| Chunk { fingerprint: fingerprint(number), len: 4_096 }).collect();
            index.record(Unit { container: container(ordinal), len: 0, chunks: &chunks }).unwrap();
        }
        let all: Vec<_> = (0..4).map(container).collect();
        let mut verdicts = |shunned: &[ContainerId]| {
            assert_eq!(index.attach(&all).unwrap(), []);
            index.shun(shunned).unwrap();
            let arrivals: Vec<_> = (0..400)
                .map(|at| SequencedChunk::data(Sequence(at), Chunk { fingerprint: fingerprint(at), len: 4_096 }))
                .collect();
            let mut resolved = Vec::new();
            index.submit(&arrivals, &mut resolved).unwrap();
            index.drain(&mut resolved).unwrap();
            let unique = resolved.iter().filter(|it| it.verdict == Verdict::Unique).map(|it| it.sequence.0 / 100);
            let unique: std::collections::BTreeMap<u64, usize> =
                unique.fold(std::collections::BTreeMap::default(), |mut of, it| {
                    *of.entry(it).or_default() += 1;
                    of
                });
            unique.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(verdicts(&[]), []);
        assert_eq!(verdicts(&[container(1), container(3)]), [(1, 100), (3, 100)], "{schedule:?}");
        // The session ends: they are found again.
        assert_eq!(verdicts(&[]), []);
    }
}
