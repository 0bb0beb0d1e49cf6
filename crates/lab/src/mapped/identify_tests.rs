//! The identifier on mapped memory against a caller that knows the truth.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use onefold_engine::identify::{Identifier, Resolved, SequencedChunk, Unit, Verdict};
use onefold_engine::types::{Chunk, ContainerId, Fingerprint, Sequence, SessionId};

use crate::mapped::medium::{Durability, MappedMemory, Medium};
use crate::mapped::recorder::Recorder;
use crate::mapped::{CacheShape, FilterShape, Geometry, MappedIndex, MappedOptions, MappedState, Order};
use crate::stream::{Lags, Random, Runs, Shape, Stream, name};

/// Everything so small that it grows, overflows and errs all the time.
pub(super) fn tiny(seed: u64) -> MappedOptions {
    let pick = |shift: u32, count: u64| seed >> shift & (count - 1);
    let bytes = 700;
    MappedOptions {
        order: [Order::FilterFirst, Order::CacheFirst, Order::None, Order::Auto][usize::try_from(pick(0, 4)).unwrap()],
        filter: match pick(2, 2) {
            0 => FilterShape::Blocked { bytes, hashes: 2 },
            _ => FilterShape::Scattered { bytes, hashes: 3 },
        },
        cache: match pick(3, 2) {
            0 => CacheShape::Fifo { bytes: 4_000, neighbors: 9 },
            _ => CacheShape::Lru { bytes: 6_000, neighbors: 9 },
        },
        injected: Duration::ZERO,
        prefetches: pick(4, 2) == 0,
        load_max: if pick(5, 2) == 0 { 1.0 } else { 0.9 },
        geometry: Geometry { log_bits: 4, containers_bits: 1, checkpoint_bits: 5, table_bits: 1 },
    }
}

/// A caller that knows which container holds which chunk.
#[derive(Debug)]
pub(super) struct Caller<M> {
    pub(super) index: MappedIndex<M>,
    session: u8,
    next_container: u32,
    stream: Vec<Fingerprint>,
    verdicts: Vec<Verdict>,
    /// Declared unique and not recorded yet, in order.
    pub(super) packing: Vec<Fingerprint>,
    pub(super) containers: HashMap<ContainerId, Vec<Fingerprint>>,
    pub(super) stored: HashMap<Fingerprint, ContainerId>,
}

impl<M: Medium> Caller<M> {
    pub(super) fn open(medium: M, options: &MappedOptions, session: u8) -> (Self, MappedState) {
        let (index, state) = MappedIndex::open(medium, options).unwrap();
        let caller = Self {
            index,
            session,
            next_container: 0,
            stream: Vec::new(),
            verdicts: Vec::new(),
            packing: Vec::new(),
            containers: HashMap::new(),
            stored: HashMap::new(),
        };
        (caller, state)
    }

    /// Tells the index which containers there are, and records those that it misses; returns these.
    pub(super) fn attach(&mut self, containers: HashMap<ContainerId, Vec<Fingerprint>>) -> Vec<ContainerId> {
        self.session += 1;
        self.next_container = 0;
        (self.stream, self.verdicts, self.packing) = (Vec::new(), Vec::new(), Vec::new());
        let chunks = containers.iter().flat_map(|(id, chunks)| chunks.iter().map(|chunk| (*chunk, *id)));
        self.stored = chunks.collect();
        self.containers = containers;
        let live: Vec<_> = self.containers.keys().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let missing = self.index.attach(&live).unwrap();
        for container in &missing {
            self.record(*container, &self.containers[container].clone());
        }
        missing
    }

    fn record(&mut self, container: ContainerId, fingerprints: &[Fingerprint]) {
        let chunk = |&fingerprint| Chunk { fingerprint, len: 8192 };
        let chunks: Vec<_> = fingerprints.iter().map(chunk).collect();
        self.index.record(Unit { container, len: 0, chunks: &chunks }).unwrap();
    }

    pub(super) fn submit(&mut self, fingerprints: &[Fingerprint]) {
        let chunks: Vec<_> = (self.stream.len() as u64..)
            .zip(fingerprints)
            .map(|(number, &fingerprint)| SequencedChunk::data(Sequence(number), Chunk { fingerprint, len: 8192 }))
            .collect();
        self.stream.extend(fingerprints);
        let mut resolved = Vec::new();
        self.index.submit(&chunks, &mut resolved).unwrap();
        assert_eq!((resolved.len(), self.index.pending()), (chunks.len(), 0));
        for (arrival, Resolved { sequence, verdict }) in chunks.iter().zip(resolved) {
            assert_eq!(sequence, arrival.sequence);
            let fingerprint = arrival.chunk.fingerprint;
            match verdict {
                Verdict::Unique => {
                    assert!(!self.stored.contains_key(&fingerprint), "{sequence:?} is stored");
                    assert!(!self.packing.contains(&fingerprint), "{sequence:?} was unique before");
                    self.packing.push(fingerprint);
                }
                Verdict::SameAs(first) => {
                    let index = usize::try_from(first.0).unwrap();
                    assert_eq!((self.stream[index], self.verdicts[index]), (fingerprint, Verdict::Unique));
                    assert!(self.packing.contains(&fingerprint), "{sequence:?} was recorded since");
                }
                Verdict::Stored(container) => assert_eq!(self.stored.get(&fingerprint), Some(&container)),
            }
            self.verdicts.push(verdict);
        }
    }

    /// Stores and records the first so many of what is to be packed.
    pub(super) fn pack(&mut self, count: usize) {
        let chunks: Vec<_> = self.packing.drain(..count.min(self.packing.len())).collect();
        if chunks.is_empty() {
            return;
        }
        let container = ContainerId { session: SessionId([self.session; 16]), ordinal: self.next_container };
        self.next_container += 1;
        self.stored.extend(chunks.iter().map(|chunk| (*chunk, container)));
        self.containers.insert(container, chunks.clone());
        self.record(container, &chunks);
    }

    pub(super) fn forget(&mut self, container: ContainerId) {
        self.index.forget(&[container]).unwrap();
        for chunk in self.containers.remove(&container).unwrap() {
            self.stored.remove(&chunk);
        }
    }

    /// Feeds new chunks, runs of old ones, repetitions and zeros, and records, forgets and begins sessions in between.
    fn run(&mut self, random: &mut Random, steps: u64, next_chunk: &mut u64) {
        for _ in 0..steps {
            let start = random.below(*next_chunk + 1);
            let len = random.below(100) + 1;
            let numbers: Vec<u64> = match random.below(8) {
                0..=2 => {
                    *next_chunk += len;
                    (*next_chunk - len..*next_chunk).collect()
                }
                3 | 4 => (start..start + len).collect(),
                5 => (0..len).map(|_| random.below(*next_chunk + 1)).collect(),
                6 => (start..start + len / 4).flat_map(|number| [number, number]).collect(),
                _ => vec![0; usize::try_from(len / 4).unwrap()],
            };
            *next_chunk = (*next_chunk).max(numbers.iter().max().map_or(0, |last| last + 1));
            self.submit(&numbers.into_iter().map(name).collect::<Vec<_>>());
            match random.below(16) {
                0..=5 => self.pack(usize::try_from(random.below(150)).unwrap()),
                6 => {
                    // Out of order, as parallel packing has it.
                    self.packing.reverse();
                    self.pack(50);
                }
                7 => {
                    let all: BTreeSet<_> = self.containers.keys().copied().collect();
                    let choice = usize::try_from(random.below(all.len() as u64 + 1)).unwrap();
                    if let Some(&container) = all.iter().nth(choice) {
                        self.forget(container);
                    }
                }
                8 => {
                    let containers = std::mem::take(&mut self.containers);
                    assert!(self.attach(containers).is_empty());
                }
                _ => {}
            }
        }
        let drained = &mut Vec::new();
        self.index.drain(drained).unwrap();
        assert!(drained.is_empty());
    }
}

#[expect(clippy::print_stderr, reason = "a random test names its seed")]
pub(super) fn seeds(seeds: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Random)> {
    seeds.map(|seed| {
        eprintln!("seed {seed}");
        (seed, Random::new(seed))
    })
}

#[test]
fn every_order_filter_and_cache_is_exact_while_everything_grows_and_opens_again() {
    let mut totals = HashMap::new();
    for (seed, mut random) in seeds(0..128) {
        let options = tiny(seed);
        let recorder = Recorder::default();
        let (mut caller, state) = Caller::open(recorder.clone(), &options, 0);
        assert_eq!(state, MappedState::New);
        let mut next_chunk = 1;
        for _ in 0..3 {
            caller.run(&mut random, 40, &mut next_chunk);
            let counters = caller.index.counters();
            let asked = counters.filter_probes - counters.filter_negatives;
            assert!(
                counters.filter_negatives + counters.prelookup_hits + counters.lookups
                    <= counters.submitted + counters.dead_hits
            );
            assert!(counters.filter_false_positives <= asked);
            let work = caller.index.table_work();
            let mut add = |name: &'static str, count: u64| *totals.entry(name).or_insert(0) += count;
            add("growths", work.growths);
            add("displacements", work.displacements);
            add("false positives", counters.filter_false_positives);
            add("cache hits", counters.prelookup_hits);
            add("takeovers", caller.index.takeovers());
            add("in flight", counters.in_flight_hits);
            add("evictions", counters.evictions);
            if options.order == Order::None {
                assert_eq!((counters.filter_probes, counters.prelookup_hits), (0, 0));
            }
            let Caller { index, containers, packing, session, .. } = caller;
            drop(index.close().unwrap());
            let state;
            (caller, state) = Caller::open(recorder.clone(), &options, session);
            let MappedState::Opened(recovery) = state else { panic!("{state:?}") };
            assert_eq!((recovery.torn, recovery.damaged, recovery.slots_cleared), (0, 0, 0));
            assert!(packing.len() as u64 <= recovery.unrecorded);
            assert_eq!(recovery.entries, caller.index.entries());
            assert!(caller.attach(containers).is_empty(), "what was recorded is covered");
            let stored: Vec<_> = caller.stored.keys().copied().collect();
            caller.submit(&stored);
            assert!(caller.packing.is_empty());
        }
    }
    assert_eq!(totals.len(), 7);
    assert!(totals.values().all(|count| 0 < *count), "{totals:?}");
}

#[test]
fn the_order_may_change_while_running_and_stays_exact() {
    let options = MappedOptions {
        order: Order::Auto,
        filter: FilterShape::Scattered { bytes: 1 << 22, hashes: 12 },
        cache: CacheShape::Fifo { bytes: 1 << 20, neighbors: 50 },
        prefetches: false,
        ..MappedOptions::default()
    };
    let (mut caller, _) = Caller::open(MappedMemory::anonymous(0).unwrap(), &options, 0);
    let mut known = 0;
    // Streams of duplicates and of new chunks take turns, so that one order pays and then the other.
    for round in 0..40 {
        for step in 0..40 {
            let numbers: Vec<_> = if round % 2 == 0 {
                known += 64;
                (known - 64..known).collect()
            } else {
                (step * 64..(step + 1) * 64).collect()
            };
            caller.submit(&numbers.into_iter().map(name).collect::<Vec<_>>());
        }
        caller.pack(usize::MAX);
    }
    let report = caller.index.order_report();
    assert!(report.samples.iter().all(|samples| 0 < *samples), "{report:?}");
    let threshold = report.threshold.unwrap();
    assert!((0.0..=1.0).contains(&threshold), "{report:?}");
    assert!(report.predicted().is_some() && report.filter_first.per_chunk().is_some());
    assert!((report.shares.duplicate - 0.5).abs() < 0.01, "{report:?}");
}

#[test]
fn chunks_of_containers_that_are_not_live_are_unique_again_and_take_their_entries_over() {
    for seed in 0..64 {
        let (mut caller, _) = Caller::open(Recorder::default(), &tiny(seed), 0);
        let chunks: Vec<_> = (0..40).map(name).collect();
        caller.submit(&chunks);
        caller.pack(20);
        caller.pack(20);
        caller.submit(&chunks);
        let first = ContainerId { session: SessionId([0; 16]), ordinal: 0 };
        let kept = caller.containers.clone();
        caller.forget(first);
        caller.submit(&chunks);
        assert_eq!((caller.packing.len(), caller.index.takeovers()), (20, 20));
        caller.submit(&chunks[..20]);
        assert_eq!(caller.index.entries(), 40, "no entry is made twice");
        // The session ends before they are recorded, but the container exists: it is recorded again.
        assert_eq!(caller.attach(kept), [first]);
        caller.submit(&chunks);
        assert!(caller.packing.is_empty());
    }
}

#[test]
fn containers_can_be_recorded_without_having_been_submitted() {
    for seed in 0..64 {
        let (mut caller, _) = Caller::open(Recorder::default(), &tiny(seed), 0);
        let chunks: Vec<_> = (0..300).map(name).collect();
        let container = |ordinal: u32| ContainerId { session: SessionId([9; 16]), ordinal };
        let containers: HashMap<_, _> =
            (0..).zip(chunks.chunks(100)).map(|(ordinal, chunks)| (container(ordinal), chunks.to_vec())).collect();
        assert_eq!(caller.attach(containers.clone()).len(), 3);
        caller.submit(&chunks);
        assert!(caller.packing.is_empty());
        // One chunk in two containers: the first stays.
        caller.record(container(7), &chunks[..5]);
        caller.submit(&chunks[..5]);
    }
}

#[test]
fn a_mapped_file_serves_from_one_process_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fingerprints");
    let open = || -> MappedMemory { MappedMemory::of_file(&path, Durability::Memory).unwrap() };
    let options = MappedOptions { geometry: tiny(0).geometry, ..MappedOptions::default() };
    let (mut caller, state) = Caller::open(open(), &options, 0);
    assert_eq!(state, MappedState::New);
    let chunks: Vec<_> = (0..20_000).map(name).collect();
    for batch in chunks.chunks(1000) {
        caller.submit(batch);
        caller.pack(1000);
    }
    caller.submit(&(20_000..20_100).map(name).collect::<Vec<_>>());
    let containers = caller.containers.clone();
    // As when the process is killed: nothing is closed.
    drop(caller);
    let (mut caller, state) = Caller::open(open(), &options, 0);
    let MappedState::Opened(recovery) = state else { panic!("{state:?}") };
    assert_eq!((recovery.entries, recovery.unrecorded), (20_100, 100));
    assert!(caller.attach(containers).is_empty());
    caller.submit(&chunks);
    assert!(caller.packing.is_empty());
    let traffic = caller.index.traffic();
    assert!(0 < traffic.misses && 0 < traffic.bytes_copied, "{traffic:?}");
}

#[test]
fn without_prefetching_every_chunk_that_the_table_answers_waits_for_two_misses_or_more() {
    for (prefetches, misses) in [(false, 2_000..2_700), (true, 1_000..1_700)] {
        let options = MappedOptions { order: Order::None, prefetches, ..MappedOptions::default() };
        let (mut caller, _) = Caller::open(MappedMemory::anonymous(0).unwrap(), &options, 0);
        let chunks: Vec<_> = (0..1_000).map(name).collect();
        caller.submit(&chunks);
        caller.pack(1_000);
        let before = caller.index.traffic();
        caller.submit(&chunks);
        let traffic = caller.index.traffic().since(&before);
        assert!(
            misses.contains(&traffic.misses),
            "bucket, entry of the log, and now and then a second bucket: {traffic:?}"
        );
        assert_eq!(traffic.rounds, if prefetches { 16 } else { 0 });
        assert_eq!((traffic.lines_flushed, traffic.fences, traffic.copies), (0, 0, 0));
    }
}

#[test]
fn one_copy_brings_in_what_a_stream_goes_on_with() {
    for cache in [CacheShape::Fifo { bytes: 1 << 20, neighbors: 50 }, CacheShape::Lru { bytes: 1 << 20, neighbors: 50 }]
    {
        for order in [Order::FilterFirst, Order::CacheFirst] {
            let options = MappedOptions { order, cache, ..MappedOptions::default() };
            let (mut caller, _) = Caller::open(MappedMemory::anonymous(0).unwrap(), &options, 0);
            let chunks: Vec<_> = (0..5_100).map(name).collect();
            caller.submit(&chunks);
            caller.pack(5_100);
            let before = caller.index.counters();
            caller.submit(&chunks);
            let counters = caller.index.counters().since(&before);
            assert_eq!((counters.lookups, counters.prefetches, counters.prelookup_hits), (100, 100, 5_000));
            let probes = if order == Order::CacheFirst { 100 } else { 5_100 };
            assert_eq!(counters.filter_probes, probes, "{order}");
        }
    }
}

#[test]
fn streams_of_many_shapes_have_the_same_unique_chunks_in_every_order() {
    let shapes = [(0.2, Runs::Geometric(3.0), Lags::Uniform), (0.9, Runs::Uniform(100, 400), Lags::Passes)];
    for (duplicates, runs, lags) in shapes {
        let mut uniques = HashSet::new();
        for seed in 0..8 {
            let mut stream = Stream::new(5, Shape { duplicates, runs, lags }, 0);
            let (mut caller, _) = Caller::open(MappedMemory::anonymous(0).unwrap(), &tiny(seed), 0);
            for _ in 0..30 {
                let chunks: Vec<_> = (0..200).map(|_| name(stream.draw().0)).collect();
                caller.submit(&chunks);
                caller.pack(1_000);
            }
            let mut unique: Vec<_> = caller.stored.keys().copied().collect();
            unique.sort_unstable();
            uniques.insert(unique);
        }
        assert_eq!(uniques.len(), 1);
    }
}
