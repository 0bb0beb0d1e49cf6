//! One suite of what an index must do with every preset and schedule, over any key-value store.
//!
//! [`check_presets`] compares what an index declares unique with a set in memory: over several sessions, with containers that
//! are deleted in between, sessions that are interrupted, files that are damaged, and changes of the preset. A crate that
//! implements [`OpenStore`](crate::kv::OpenStore) calls it in its tests, with the feature `testing` of this crate.

#![expect(clippy::unwrap_used, reason = "a suite for tests: a failure is a panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::identify::{
    Identifier, Index, IndexOptions, IndexPreset, IndexState, Resolved, Schedule, SequencedChunk, StoreKind, Unit,
    Verdict,
};
use crate::io::Access;
use crate::random::SplitMix64;
use crate::testing::store_conformance::Directory;
use crate::types::{Chunk, ContainerId, Fingerprint, RepositoryId, Sequence, SessionId};

/// Directory of the index.
const INDEX: &str = "index";
/// Pause before an index that is busy is opened again.
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// Most such pauses.
const BUSY_PAUSES_MAX: usize = 2_000;
/// Sessions of each combination.
const SESSIONS: u8 = 6;
/// Chunks of a container, at most.
const CONTAINER_CHUNKS: usize = 150;
/// Chunks submitted together.
const BATCH_CHUNKS: usize = 70;
/// Memory of an index.
const MEMORY_BYTES: usize = 12 << 20;
/// Memory of the memtable, so little that a table is written in every session.
const MEMTABLE_BYTES: usize = 16 << 10;
/// Files whose damage must cost no duplicate: what they hold is not needed, or made again.
const FILES: [&str; 14] = [
    "checkpoint",
    "containers",
    "log",
    "filter.0",
    "filter.1",
    "units.0",
    "units.1",
    "repeats.0",
    "repeats.1",
    "plan",
    "stream.0",
    "stream.1",
    "segments.0",
    "segments.1",
];

/// A store under test.
#[expect(missing_debug_implementations, reason = "it holds a closure")]
pub struct Subject<'a> {
    /// Returns the store of an index in a directory that is empty. It must have space for 20,000 entries.
    pub store: &'a dyn Fn() -> StoreKind,
    /// Returns an empty directory, and a host.
    pub directory: fn() -> Directory,
}

/// The schedules of the suite.
const SCHEDULES: [Schedule; 5] = [
    Schedule::Eager,
    Schedule::Lazy { threshold: 8 },
    Schedule::Pool { candidates: 64 },
    Schedule::Exhaustive { threshold: 8 },
    Schedule::Adaptive,
];

/// Runs the suite; panics where an index is not exact.
pub fn check_presets(subject: &Subject<'_>) {
    for (seed, schedule) in (0..).zip(SCHEDULES) {
        for preset in IndexPreset::all() {
            let mut source = Source::new(subject, seed);
            for session in 0..SESSIONS {
                let is_disturbed = source.is_disturbed;
                let state = source.back_up(session, preset, schedule);
                let is_whole = matches!(state, IndexState::New | IndexState::Clean | IndexState::Unclean);
                assert!(is_whole || is_disturbed, "{preset:?}, {schedule:?}, session {session}: {state:?}");
                source.disturb(session);
            }
            assert!(0 < source.deleted, "no container was deleted");
        }
        presets_that_change_stay_exact(subject, seed, schedule);
    }
}

/// Each session has the next preset. An index that was made for other units is made again, and others are kept.
fn presets_that_change_stay_exact(subject: &Subject<'_>, seed: u64, schedule: Schedule) {
    let mut source = Source::new(subject, 100 + seed);
    let mut before: Option<IndexOptions> = None;
    let presets: Vec<_> = IndexPreset::all().chain(IndexPreset::all()).collect();
    for (session, preset) in (0..).zip(presets) {
        let options = source.options(preset, schedule);
        let is_disturbed = source.is_disturbed;
        let state = source.back_up(session, preset, schedule);
        let expects_new = before.is_none();
        // How many segments follow changes what is read, and not what is kept.
        let kind = |options: &IndexOptions| std::mem::discriminant(&options.unit);
        let is_other = before.is_some_and(|before| kind(&before) != kind(&options));
        // An index that was interrupted before its first checkpoint is made again, too.
        let is_rebuilt = matches!(state, IndexState::Rebuilt(_));
        assert!(is_rebuilt == is_other || is_disturbed, "{preset:?}: {state:?}");
        assert_eq!(state == IndexState::New, expects_new, "{preset:?}: {state:?}");
        before = Some(options);
    }
}

/// A source that is backed up in sessions, and what is true of its repository.
struct Source {
    directory: Directory,
    /// Options with the store under test.
    base: IndexOptions,
    random: SplitMix64,
    /// Chunks of the containers that exist.
    containers: BTreeMap<ContainerId, Vec<u64>>,
    next_chunk: u64,
    /// Containers that were deleted so far.
    deleted: usize,
    /// Whether the last session was interrupted, or a file was damaged since.
    is_disturbed: bool,
}

/// State of a session.
struct Running {
    session: u8,
    index: Index,
    stream: Vec<u64>,
    /// Chunks that were declared unique and are not recorded, in order.
    packing: Vec<u64>,
    unique: BTreeSet<u64>,
    verdicts: usize,
    containers: u32,
}

fn chunk(number: u64) -> Chunk {
    Chunk { fingerprint: Fingerprint(blake3::hash(&number.to_le_bytes()).into()), len: 4096 }
}

impl Source {
    fn new(subject: &Subject<'_>, seed: u64) -> Self {
        Self {
            directory: (subject.directory)(),
            base: IndexOptions { store: (subject.store)(), ..IndexOptions::for_memory(MEMORY_BYTES) },
            random: SplitMix64::new(seed),
            containers: BTreeMap::new(),
            next_chunk: 0,
            deleted: 0,
            is_disturbed: false,
        }
    }

    fn options(&self, preset: IndexPreset, schedule: Schedule) -> IndexOptions {
        let mut options = preset.options(MEMORY_BYTES);
        (options.schedule, options.store) = (schedule, self.base.clone().store);
        (options.memtable_bytes, options.filter_bytes) = (MEMTABLE_BYTES, 4 << 10);
        options
    }

    /// Returns the chunks of a session: new ones, runs of old ones, some of these in another order or twice.
    fn stream(&mut self) -> Vec<u64> {
        let mut stream = Vec::new();
        for _ in 0..20 {
            let (start, len) = (self.random.below(self.next_chunk + 1), self.random.below(120) + 1);
            match self.random.below(6) {
                0 | 1 => {
                    stream.extend(self.next_chunk..self.next_chunk + len);
                    self.next_chunk += len;
                }
                2 | 3 => stream.extend(start..start + len),
                4 => stream.extend((start..start + len).rev()),
                _ => stream.extend((start..start + len / 4).flat_map(|number| [number, 3, number])),
            }
            self.next_chunk = self.next_chunk.max(stream.iter().max().map_or(0, |last| last + 1));
        }
        stream
    }

    /// Backs up; returns in what state the index was found.
    fn back_up(&mut self, session: u8, preset: IndexPreset, schedule: Schedule) -> IndexState {
        let options = self.options(preset, schedule);
        let Directory { disk, host } = &self.directory;
        let mut pauses = 0..BUSY_PAUSES_MAX;
        let (mut index, state) = loop {
            match Index::open(Arc::clone(disk), Arc::clone(host), Path::new(INDEX), RepositoryId([1; 16]), &options) {
                // Another test starts a server: its process has the lock of the index before this from `fork` to `exec`.
                Err(Error::IndexBusy { .. }) if pauses.next().is_some() => host.sleep(BUSY_PAUSE),
                opened => break opened.unwrap(),
            }
        };
        let live: Vec<ContainerId> = self.containers.keys().copied().collect();
        for container in index.attach(&live).unwrap() {
            let chunks: Vec<Chunk> = self.containers[&container].iter().map(|number| chunk(*number)).collect();
            index.record(Unit { container, len: 0, chunks: &chunks }).unwrap();
        }
        let stored: BTreeSet<u64> = self.containers.values().flatten().copied().collect();
        let stream = self.stream();
        let expected: BTreeSet<u64> = stream.iter().copied().filter(|number| !stored.contains(number)).collect();
        let mut running = Running {
            session,
            index,
            stream,
            packing: Vec::new(),
            unique: BTreeSet::new(),
            verdicts: 0,
            containers: 0,
        };
        self.pass(&mut running);
        let what = format!("{preset:?}, {schedule:?}, session {session}");
        assert_eq!(running.verdicts, running.stream.len(), "{what}: one verdict on each chunk");
        assert!(running.unique == expected, "{what}: the unique chunks are not those of a set");
        assert_eq!(running.index.degraded(), None, "{what}");
        if self.random.below(4) == 0 {
            // The process ends without closing the index.
            self.is_disturbed = true;
        } else {
            running.index.close().unwrap();
            self.is_disturbed = false;
        }
        state
    }

    /// Passes the stream to the index and stores what is unique.
    fn pass(&mut self, running: &mut Running) {
        let mut resolved = Vec::new();
        let stream = running.stream.clone();
        for (batch, first) in stream.chunks(BATCH_CHUNKS).zip((0..).step_by(BATCH_CHUNKS)) {
            let sequenced: Vec<SequencedChunk> = (first..)
                .zip(batch)
                .map(|(sequence, number)| SequencedChunk::data(Sequence(sequence), chunk(*number)))
                .collect();
            running.index.submit(&sequenced, &mut resolved).unwrap();
            self.take(running, &mut resolved);
            match self.random.below(8) {
                0 | 1 => self.store(running),
                2 => {
                    running.index.drain(&mut resolved).unwrap();
                    self.take(running, &mut resolved);
                }
                _ => {}
            }
        }
        running.index.drain(&mut resolved).unwrap();
        self.take(running, &mut resolved);
        self.store(running);
    }

    fn take(&self, running: &mut Running, resolved: &mut Vec<Resolved>) {
        let name = |stream: &[u64], Sequence(sequence)| stream[usize::try_from(sequence).unwrap()];
        for Resolved { sequence, verdict } in resolved.drain(..) {
            let number = name(&running.stream, sequence);
            running.verdicts += 1;
            match verdict {
                Verdict::Unique => {
                    assert!(running.unique.insert(number), "chunk {number} is unique twice");
                    running.packing.push(number);
                }
                Verdict::SameAs(first) => assert_eq!(name(&running.stream, first), number),
                Verdict::Stored(container) => {
                    let chunks = self.containers.get(&container).expect("a chunk is stored in a container that exists");
                    assert!(chunks.contains(&number), "{container} does not hold chunk {number}");
                }
            }
        }
    }

    /// Stores what waits for a container.
    fn store(&mut self, running: &mut Running) {
        while !running.packing.is_empty() {
            let count = (self.random.index(CONTAINER_CHUNKS) + 1).min(running.packing.len());
            let numbers: Vec<u64> = running.packing.drain(..count).collect();
            let container = ContainerId { session: SessionId([running.session; 16]), ordinal: running.containers };
            running.containers += 1;
            let chunks: Vec<Chunk> = numbers.iter().map(|number| chunk(*number)).collect();
            self.containers.insert(container, numbers);
            running.index.record(Unit { container, len: 0, chunks: &chunks }).unwrap();
        }
    }

    /// Deletes containers, and damages a file of the index.
    fn disturb(&mut self, session: u8) {
        let before = self.containers.len();
        let random = &mut self.random;
        self.containers.retain(|_, _| random.below(5) != 0);
        self.deleted += before - self.containers.len();
        let existing: Vec<_> = FILES.iter().map(|file| Path::new(INDEX).join(file)).collect();
        let disk = &self.directory.disk;
        let existing: Vec<_> = existing.iter().filter(|path| disk.exists(path).unwrap()).collect();
        if session % 2 == 1 {
            return;
        }
        let file = disk.open(existing[self.random.index(existing.len())], Access::ReadWrite).unwrap();
        let len = file.len().unwrap();
        if len != 0 {
            let (at, mut byte) = (self.random.below(len), [0]);
            file.read_at(at, &mut byte).unwrap();
            file.write_at(at, &[byte[0] ^ 0x10]).unwrap();
            self.is_disturbed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sim::{SimDisk, SimHost};

    fn simulated() -> Directory {
        Directory { disk: Arc::new(SimDisk::new()), host: Arc::new(SimHost::deferring(3)) }
    }

    #[test]
    fn every_preset_and_schedule_over_the_bucket_table_is_exact() {
        check_presets(&Subject { store: &|| StoreKind::Table, directory: simulated });
    }

    #[test]
    fn every_preset_and_schedule_over_the_store_in_memory_is_exact() {
        check_presets(&Subject { store: &|| StoreKind::Memory { bytes: 1 << 20 }, directory: simulated });
    }
}
