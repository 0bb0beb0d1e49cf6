//! A caller of the index that knows the truth, for tests.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use super::*;
pub(in crate::identify) use crate::identify::Verdict;
use crate::identify::options::{CycleRule, PrefetchUnit, Prelookup, StoreKind, WindowRule};
use crate::identify::{Completeness, Sampling, Segmenting, Selection};
use crate::kv::RunOrder;
use crate::kv::bucket_table::memtable::MEMTABLE_ENTRY_BYTES;
use crate::random::SplitMix64;
use crate::testing::fingerprint;
use crate::testing::sim::SimDisk;
use crate::testing::sim::SimHost;
pub(in crate::identify) use crate::types::Fingerprint;
use crate::types::{Chunk, SessionId};

pub(in crate::identify) const REPOSITORY: RepositoryId = RepositoryId([1; 16]);

pub(in crate::identify) fn dir() -> &'static Path {
    Path::new("index")
}

/// Returns a host whose background jobs overlap with what the index does; each host of a test draws otherwise.
pub(in crate::identify) fn host() -> Arc<dyn Host> {
    thread_local! {
        static HOSTS: Cell<u64> = const { Cell::new(0) };
    }
    Arc::new(SimHost::deferring(HOSTS.replace(HOSTS.get() + 1)))
}

/// Each kind of store, with space for all chunks of a test.
pub(in crate::identify) const STORES: [StoreKind; 2] = [StoreKind::Table, StoreKind::Memory { bytes: 1 << 20 }];

pub(in crate::identify) fn tiny(schedule: Schedule) -> IndexOptions {
    IndexOptions {
        schedule,
        order: Order::FilterFirst,
        prelookup: Prelookup::Always,
        unit: PrefetchUnit::Window,
        window: WindowRule::Adaptive(64),
        follows_successors: true,
        cycles: CycleRule::default(),
        filter_bytes: 1 << 10,
        filter_bytes_max: 1 << 10,
        filter_hashes: 4,
        store: StoreKind::Table,
        memtable_bytes: 300 * MEMTABLE_ENTRY_BYTES,
        merge_buffer_bytes: 300 * MEMTABLE_ENTRY_BYTES,
        cache_bytes: 20_000,
        cache_units: None,
        reads: None,
        run_order: RunOrder::LargestFirst,
        runs_max: 3,
        pending_buckets: 3,
        pending_max: 400,
        pending_bytes_max: 1 << 20,
        pending_age_max: 700,
        log_tail_pages: 2,
        duplicate_run_bytes_per_chunk: 1,
        duplicate_run_pages_min: 1,
        completeness: Completeness::Exact,
        selection: Selection::Base,
        mapping: 1,
        segmenting: Segmenting::ContentDefined { min: 5, average: 30, max: 100 },
        sampling: Sampling::Random { ratio: 8 },
        stream_waiting_max: 700,
        stream_bytes_per_chunk: 40,
        stream_pages_min: 1,
    }
}

/// Options of a seed: each schedule, with each unit.
pub(in crate::identify) fn tiny_of(seed: u64) -> IndexOptions {
    let segment = PrefetchUnit::Segment { following: u32::from(seed.is_multiple_of(2)) };
    let units = [PrefetchUnit::Window, PrefetchUnit::Container, segment];
    let unit = units[usize::try_from(seed / 6 % 3).unwrap()];
    IndexOptions { unit, ..tiny(schedule_of(seed)) }
}

/// A caller of the index that knows the truth: which container holds which chunk.
#[derive(Debug)]
pub(in crate::identify) struct Caller {
    pub(in crate::identify) index: Index,
    host: Arc<dyn Host>,
    pub(in crate::identify) session: u8,
    pub(in crate::identify) next_container: u32,
    pub(in crate::identify) next_sequence: u64,
    pub(in crate::identify) stream: Vec<Fingerprint>,
    /// Verdicts by sequence.
    pub(in crate::identify) verdicts: HashMap<Sequence, Verdict>,
    /// Chunks in the order in which their verdicts came.
    pub(in crate::identify) order: Vec<Sequence>,
    /// Declared unique in this session and not recorded yet, in order.
    pub(in crate::identify) packing: Vec<Fingerprint>,
    pub(in crate::identify) containers: HashMap<ContainerId, Vec<Fingerprint>>,
    pub(in crate::identify) stored: HashSet<Fingerprint>,
}

impl Caller {
    pub(crate) fn open(disk: &SimDisk, options: &IndexOptions, session: u8) -> (Self, IndexState) {
        Self::open_on(host(), disk, options, session)
    }

    pub(in crate::identify) fn open_on(
        host: Arc<dyn Host>,
        disk: &SimDisk,
        options: &IndexOptions,
        session: u8,
    ) -> (Self, IndexState) {
        let (index, state) =
            Index::open(Arc::new(disk.clone()), Arc::clone(&host), dir(), REPOSITORY, options).unwrap();
        let caller = Self {
            index,
            host,
            session,
            next_container: 0,
            next_sequence: 0,
            stream: Vec::new(),
            verdicts: HashMap::new(),
            order: Vec::new(),
            packing: Vec::new(),
            containers: HashMap::new(),
            stored: HashSet::new(),
        };
        (caller, state)
    }

    /// Opens the index again for what an earlier caller has stored; returns how many containers were recorded again.
    pub(in crate::identify) fn again(self, disk: &SimDisk, options: &IndexOptions) -> (Self, IndexState, usize) {
        let Self { session, containers, index, host, .. } = self;
        drop(index);
        // The process goes on, with whatever it has put off.
        let (mut caller, state) = Self::open_on(host, disk, options, session + 1);
        caller.stored = containers.values().flatten().copied().collect();
        caller.containers = containers;
        let recorded = caller.attach();
        (caller, state, recorded)
    }

    pub(in crate::identify) fn attach(&mut self) -> usize {
        let live: Vec<_> = self.containers.keys().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let missing = self.index.attach(&live).unwrap();
        for container in &missing {
            let chunks = self.containers[container].clone();
            self.record_unit(*container, &chunks);
        }
        missing.len()
    }

    /// Goes on with the same index in another session, whose chunks are numbered from 0 again.
    pub(in crate::identify) fn begin_session(&mut self) {
        self.verdicts.clear();
        self.stream.clear();
        self.packing.clear();
        self.next_sequence = 0;
        assert_eq!(self.attach(), 0, "containers are covered");
    }

    pub(in crate::identify) fn record_unit(&mut self, container: ContainerId, fingerprints: &[Fingerprint]) {
        let chunk = |&fingerprint| Chunk { fingerprint, len: 8192 };
        let chunks: Vec<_> = fingerprints.iter().map(chunk).collect();
        self.index.record(Unit { container, len: 0, chunks: &chunks }).unwrap();
    }

    pub(in crate::identify) fn submit(&mut self, fingerprints: &[Fingerprint]) {
        let chunks: Vec<_> = (self.next_sequence..)
            .zip(fingerprints)
            .map(|(number, &fingerprint)| SequencedChunk::data(Sequence(number), Chunk { fingerprint, len: 8192 }))
            .collect();
        self.next_sequence += chunks.len() as u64;
        self.stream.extend(fingerprints);
        let mut resolved = Vec::new();
        self.index.submit(&chunks, &mut resolved).unwrap();
        self.take(&resolved);
    }

    pub(in crate::identify) fn drain(&mut self) {
        let mut resolved = Vec::new();
        self.index.drain(&mut resolved).unwrap();
        self.take(&resolved);
        assert_eq!(self.index.pending(), 0);
        assert_eq!(self.verdicts.len() as u64, self.next_sequence);
    }

    pub(in crate::identify) fn name(&self, sequence: Sequence) -> Fingerprint {
        self.stream[usize::try_from(sequence.0).unwrap()]
    }

    pub(in crate::identify) fn take(&mut self, resolved: &[Resolved]) {
        for &Resolved { sequence, verdict } in resolved {
            let fingerprint = self.name(sequence);
            self.order.push(sequence);
            assert!(self.verdicts.insert(sequence, verdict).is_none(), "{sequence:?} was resolved twice");
            match verdict {
                Verdict::Unique => self.packing.push(fingerprint),
                Verdict::SameAs(first) => {
                    assert_eq!(self.name(first), fingerprint);
                    assert_eq!(self.verdicts.get(&first), Some(&Verdict::Unique));
                    assert!(self.packing.contains(&fingerprint), "{sequence:?} is the same as a recorded chunk");
                }
                Verdict::Stored(container) => {
                    assert!(self.containers[&container].contains(&fingerprint), "{container} does not hold it");
                }
            }
        }
        assert_eq!(self.verdicts.len() + self.index.pending(), self.stream.len());
    }

    /// Stores and records some of what is to be packed, in containers of random sizes.
    pub(in crate::identify) fn barrier(&mut self, random: &mut SplitMix64) {
        while !self.packing.is_empty() {
            let count = usize::try_from(random.below(200) + 1).unwrap().min(self.packing.len());
            let container = ContainerId { session: SessionId([self.session; 16]), ordinal: self.next_container };
            self.next_container += 1;
            let chunks: Vec<_> = self.packing.drain(..count).collect();
            for fingerprint in &chunks {
                assert!(self.stored.insert(*fingerprint), "{fingerprint:?} was declared unique a second time");
            }
            self.containers.insert(container, chunks.clone());
            self.record_unit(container, &chunks);
            if random.below(4) == 0 {
                return;
            }
        }
    }

    /// Feeds a stream of new chunks, runs of old ones, repetitions and zeros, with barriers and drains in between.
    pub(crate) fn run(&mut self, random: &mut SplitMix64, rounds: u64, next_chunk: &mut u64) {
        for _ in 0..rounds {
            let start = random.below(*next_chunk + 1);
            let len = random.below(120) + 1;
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
            self.submit(&numbers.into_iter().map(fingerprint).collect::<Vec<_>>());
            match random.below(12) {
                0..=2 => self.barrier(random),
                3 => self.drain(),
                _ => {}
            }
        }
        self.drain();
        self.check_exact_of_stream();
        self.barrier_all(random);
    }

    pub(in crate::identify) fn barrier_all(&mut self, random: &mut SplitMix64) {
        while !self.packing.is_empty() {
            self.barrier(random);
        }
    }

    pub(in crate::identify) fn check_exact_of_stream(&self) {
        let unique = self.verdicts.iter().filter(|(_, verdict)| **verdict == Verdict::Unique);
        let names: Vec<_> = unique.map(|(&sequence, _)| self.name(sequence)).collect();
        assert_eq!(names.len(), names.iter().collect::<HashSet<_>>().len());
        for fingerprint in &self.stream {
            assert!(self.stored.contains(fingerprint) || self.packing.contains(fingerprint));
        }
    }
}

/// Checks that the counters add up once nothing is pending.
pub(in crate::identify) fn check_counters(index: &Index) {
    let counters = index.counters();
    let Counters { submitted, in_flight_hits, filter_probes, filter_negatives, prelookup_hits, .. } = counters;
    let unfiltered = match index.options.order {
        Order::FilterFirst => 0,
        // Hits of the cache, which chunks on their way to the filter were not.
        Order::CacheFirst => prelookup_hits,
        Order::Unfiltered => submitted - in_flight_hits,
    };
    assert_eq!(submitted, in_flight_hits + filter_probes + unfiltered);
    let waited = submitted - in_flight_hits - filter_negatives - prelookup_hits;
    assert_eq!(waited, counters.lookups + counters.postlookup_hits);
    let Counters { lookups, memtable_hits, disk_hits, filter_false_positives, .. } = counters;
    assert!(memtable_hits + disk_hits + filter_false_positives <= lookups);
    assert!(counters.lookup_batches <= lookups);
    assert!(counters.joined <= in_flight_hits);
}

#[expect(clippy::print_stderr, reason = "a random test names its seed")]
pub(in crate::identify) fn seeds(seeds: std::ops::Range<u64>) -> impl Iterator<Item = (u64, SplitMix64)> {
    seeds.map(|seed| {
        eprintln!("seed {seed}");
        (seed, SplitMix64::new(seed))
    })
}

pub(in crate::identify) fn schedule_of(seed: u64) -> Schedule {
    match seed % 6 {
        0 => Schedule::Eager,
        1 => Schedule::Lazy { threshold: 1 },
        2 => Schedule::Lazy { threshold: 32 },
        3 => Schedule::Exhaustive { threshold: 5 },
        4 => Schedule::Pool { candidates: 100 },
        _ => Schedule::Adaptive,
    }
}

/// Stands in where an index is taken out of its caller.
pub(in crate::identify) fn other_index(disk: &SimDisk) -> Index {
    Index::open(Arc::new(disk.clone()), host(), dir(), REPOSITORY, &tiny(Schedule::Eager)).unwrap().0
}

pub(in crate::identify) fn close(caller: &mut Caller) {
    std::mem::replace(&mut caller.index, other_index(&SimDisk::default())).close().unwrap();
}
