//! An index whose entries are on a real server of MariaDB.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use crate::mariadb::MariaDb;
use onefold_backends::sql::SqlSpec;
use onefold_engine::identify::{
    GivenStore, Identifier, Index, IndexOptions, IndexState, Resolved, Schedule, SequencedChunk, StoreKind, Unit,
    Verdict,
};
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::types::{Chunk, ContainerId, Fingerprint, RepositoryId, Sequence, SessionId};

const CONTAINER_CHUNKS: usize = 400;
const BATCH_CHUNKS: usize = 150;

fn fingerprint(number: u64) -> Fingerprint {
    Fingerprint(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

/// Numbers of chunks: in each session new ones, and runs of those of the sessions before.
fn stream(session: u64) -> Vec<u64> {
    let new = session * 10_000..session * 10_000 + 6_000;
    let old = (0..session).flat_map(|before| (0..30).map(move |run| before * 10_000 + run * 150 + session));
    let runs = old.flat_map(|start| start..start + 60);
    new.clone().chain(runs).chain(new.step_by(7)).collect()
}

/// A source that backs up, in several sessions.
struct Source {
    directory: tempfile::TempDir,
    options: IndexOptions,
    containers: HashMap<ContainerId, Vec<Chunk>>,
    stored: HashSet<Fingerprint>,
    /// Chunks that were stored a second time.
    twice: usize,
}

impl Source {
    fn new(kind: SqlSpec, schedule: Schedule) -> Self {
        let memory_bytes = kind.memory_bytes();
        let store = StoreKind::Given(GivenStore { kind: Arc::new(kind), memory_bytes });
        Self {
            directory: tempfile::tempdir().unwrap(),
            options: IndexOptions { store, schedule, ..IndexOptions::for_memory(16 << 20) },
            containers: HashMap::new(),
            stored: HashSet::new(),
            twice: 0,
        }
    }

    fn open(&self) -> onefold_engine::Result<(Index, IndexState)> {
        let disk = Arc::new(OsDisk::new(self.directory.path().to_path_buf()));
        Index::open(disk, Arc::new(OsHost::new()), Path::new("index"), RepositoryId([1; 16]), &self.options)
    }

    /// Records the containers that the index lacks; returns their number.
    fn attach(&self, index: &mut Index) -> usize {
        let mut live: Vec<ContainerId> = self.containers.keys().copied().collect();
        live.sort_unstable();
        let missing = index.attach(&live).unwrap();
        for container in &missing {
            index.record(Unit { container: *container, len: 0, chunks: &self.containers[container] }).unwrap();
        }
        missing.len()
    }

    /// Passes a stream to an index and stores what is unique. `after` is called after each batch.
    fn back_up(&mut self, index: &mut Index, session: u8, numbers: &[u64], mut after: impl FnMut(usize)) {
        let chunks: Vec<Chunk> =
            numbers.iter().map(|number| Chunk { fingerprint: fingerprint(*number), len: 4096 }).collect();
        let (mut resolved, mut packing, mut ordinal) = (Vec::new(), Vec::new(), 0);
        for (batch, sequences) in chunks.chunks(BATCH_CHUNKS).zip((0..).step_by(BATCH_CHUNKS)) {
            let sequenced: Vec<SequencedChunk> = (sequences..)
                .zip(batch)
                .map(|(sequence, chunk)| SequencedChunk { sequence: Sequence(sequence), chunk: *chunk })
                .collect();
            index.submit(&sequenced, &mut resolved).unwrap();
            self.take(&chunks, &mut resolved, &mut packing);
            while CONTAINER_CHUNKS <= packing.len() {
                let unit: Vec<Chunk> = packing.drain(..CONTAINER_CHUNKS).collect();
                self.store(index, ContainerId { session: SessionId([session; 16]), ordinal }, unit);
                ordinal += 1;
            }
            after(usize::try_from(sequences).unwrap());
        }
        index.drain(&mut resolved).unwrap();
        self.take(&chunks, &mut resolved, &mut packing);
        self.store(index, ContainerId { session: SessionId([session; 16]), ordinal }, packing);
    }

    fn take(&self, chunks: &[Chunk], resolved: &mut Vec<Resolved>, packing: &mut Vec<Chunk>) {
        for Resolved { sequence, verdict } in resolved.drain(..) {
            let chunk = chunks[usize::try_from(sequence.0).unwrap()];
            match verdict {
                Verdict::Unique => packing.push(chunk),
                Verdict::SameAs(first) => assert_eq!(chunks[usize::try_from(first.0).unwrap()], chunk),
                Verdict::Stored(container) => assert!(self.containers[&container].contains(&chunk), "{container}"),
            }
        }
    }

    fn store(&mut self, index: &mut Index, container: ContainerId, chunks: Vec<Chunk>) {
        self.twice += chunks.iter().filter(|chunk| !self.stored.insert(chunk.fingerprint)).count();
        index.record(Unit { container, len: 0, chunks: &chunks }).unwrap();
        self.containers.insert(container, chunks);
    }
}

#[test]
fn every_schedule_stores_each_chunk_once_with_its_entries_on_a_server() {
    let server = MariaDb::start();
    let schedules = [
        ("eager", Schedule::Eager),
        ("lazy", Schedule::Lazy { threshold: 16 }),
        ("pool", Schedule::Pool { candidates: 256 }),
        ("exhaustive", Schedule::Exhaustive { threshold: 16 }),
        ("adaptive", Schedule::Adaptive),
    ];
    for (name, schedule) in schedules {
        let mut source = Source::new(SqlSpec::new(&server.url(), name, 0).unwrap(), schedule);
        for session in 0..3 {
            let (mut index, state) = source.open().unwrap();
            assert_eq!(state, if session == 0 { IndexState::New } else { IndexState::Clean }, "{name}");
            assert_eq!(source.attach(&mut index), 0);
            source.back_up(&mut index, session, &stream(session.into()), |_| {});
            assert_eq!(index.degraded(), None);
            index.close().unwrap();
        }
        let expected: HashSet<_> = (0..3).flat_map(stream).map(fingerprint).collect();
        assert_eq!((source.stored, source.twice), (expected, 0), "{name}");
    }
}

#[test]
fn a_server_that_is_killed_costs_duplicates_and_a_sentence_and_comes_back_exact() {
    let mut server = MariaDb::start();
    let url = server.url();
    let mut source = Source::new(SqlSpec::new(&url, "killed", 0).unwrap(), Schedule::Adaptive);
    let (mut index, _) = source.open().unwrap();
    source.attach(&mut index);
    source.back_up(&mut index, 0, &stream(0), |_| {});
    index.close().unwrap();
    let (mut index, _) = source.open().unwrap();
    assert_eq!(source.attach(&mut index), 0);
    source.back_up(&mut index, 1, &stream(1), |sequence| {
        if sequence == 20 * BATCH_CHUNKS {
            server.kill();
        }
    });
    let reason = index.degraded().unwrap();
    assert!(reason.contains("database fingerprints") && !reason.contains("root"), "{reason}");
    drop(index);
    // While it is away, nothing of the index is given up.
    let error = source.open().map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("database fingerprints"), "{error}");
    server.restart();
    let (mut index, state) = source.open().unwrap();
    assert_eq!(state, IndexState::Unclean);
    assert!(0 < source.attach(&mut index));
    let twice = source.twice;
    source.back_up(&mut index, 2, &[stream(0), stream(1)].concat(), |_| {});
    assert_eq!((source.twice, index.degraded()), (twice, None));
    index.close().unwrap();
    let expected: HashSet<_> = (0..2).flat_map(stream).map(fingerprint).collect();
    assert_eq!(source.stored, expected);
}

#[test]
fn a_store_that_another_index_holds_or_that_has_another_state_is_not_taken() {
    let server = MariaDb::start();
    let kind = SqlSpec::new(&server.url(), "shared", 0).unwrap();
    let (first, second) = (Source::new(kind.clone(), Schedule::Eager), Source::new(kind, Schedule::Eager));
    let (index, _) = first.open().unwrap();
    let error = second.open().map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("in use by another index"), "{error}");
    index.close().unwrap();
    let (index, _) = second.open().unwrap();
    index.close().unwrap();
    // The other one has taken its name.
    let (_index, state) = first.open().unwrap();
    assert!(matches!(&state, IndexState::Rebuilt(reason) if reason.contains("another state")), "{state:?}");
}

#[test]
fn addresses_and_names_that_cannot_be_are_refused_and_passwords_are_not_repeated() {
    for (url, name, sentence) in [
        ("mysql://root@localhost/db", "A", "letters a to z"),
        ("mysql://root@localhost/db", "", "1 to 40"),
        ("mysql://root:secret@localhost", "plain", "names no database"),
        ("redis://root:secret@localhost/db", "plain", "address of a server"),
    ] {
        let error = SqlSpec::new(url, name, 0).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(sentence) && !error.contains("secret"), "{url}: {error}");
    }
}
