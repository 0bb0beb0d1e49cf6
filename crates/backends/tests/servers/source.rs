//! A source that backs up with an index, without bytes.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use onefold_engine::identify::{
    GivenStore, Identifier, Index, IndexOptions, IndexState, Resolved, Schedule, SequencedChunk, StoreKind, Unit,
    Verdict,
};
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::kv::OpenStore;
use onefold_engine::types::{Chunk, ContainerId, Fingerprint, RepositoryId, Sequence, SessionId};

const CONTAINER_CHUNKS: usize = 400;
pub(crate) const BATCH_CHUNKS: usize = 150;

pub(crate) fn fingerprint(number: u64) -> Fingerprint {
    Fingerprint(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

/// Numbers of chunks: in each session new ones, and runs of those of the sessions before.
pub(crate) fn stream(session: u64) -> Vec<u64> {
    let new = session * 10_000..session * 10_000 + 6_000;
    let old = (0..session).flat_map(|before| (0..30).map(move |run| before * 10_000 + run * 150 + session));
    let runs = old.flat_map(|start| start..start + 60);
    new.clone().chain(runs).chain(new.step_by(7)).collect()
}

/// A source that backs up, in several sessions.
pub(crate) struct Source {
    directory: tempfile::TempDir,
    pub(crate) options: IndexOptions,
    pub(crate) containers: HashMap<ContainerId, Vec<Chunk>>,
    pub(crate) stored: HashSet<Fingerprint>,
    /// Chunks that were stored a second time.
    pub(crate) twice: usize,
}

impl Source {
    pub(crate) fn new(kind: impl OpenStore + 'static, memory_bytes: usize, schedule: Schedule) -> Self {
        let store = StoreKind::Given(GivenStore { kind: Arc::new(kind), memory_bytes });
        Self {
            directory: tempfile::tempdir().unwrap(),
            options: IndexOptions { store, schedule, ..IndexOptions::for_memory(16 << 20) },
            containers: HashMap::new(),
            stored: HashSet::new(),
            twice: 0,
        }
    }

    pub(crate) fn open(&self) -> onefold_engine::Result<(Index, IndexState)> {
        let disk = Arc::new(OsDisk::new(self.directory.path().to_path_buf()));
        Index::open(disk, Arc::new(OsHost::new()), Path::new("index"), RepositoryId([1; 16]), &self.options)
    }

    /// Records the containers that the index lacks; returns their number.
    pub(crate) fn attach(&self, index: &mut Index) -> usize {
        let mut live: Vec<ContainerId> = self.containers.keys().copied().collect();
        live.sort_unstable();
        let missing = index.attach(&live).unwrap();
        for container in &missing {
            index.record(Unit { container: *container, len: 1, chunks: &self.containers[container] }).unwrap();
        }
        missing.len()
    }

    /// Passes a stream to an index and stores what is unique. `after` is called after each batch.
    pub(crate) fn back_up(&mut self, index: &mut Index, session: u8, numbers: &[u64], mut after: impl FnMut(usize)) {
        let chunks: Vec<Chunk> =
            numbers.iter().map(|number| Chunk { fingerprint: fingerprint(*number), len: 4096 }).collect();
        let (mut resolved, mut packing, mut ordinal) = (Vec::new(), Vec::new(), 0);
        for (batch, sequences) in chunks.chunks(BATCH_CHUNKS).zip((0..).step_by(BATCH_CHUNKS)) {
            let sequenced: Vec<SequencedChunk> = (sequences..)
                .zip(batch)
                .map(|(sequence, chunk)| SequencedChunk::data(Sequence(sequence), *chunk))
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
        if chunks.is_empty() {
            return;
        }
        self.twice += chunks.iter().filter(|chunk| !self.stored.insert(chunk.fingerprint)).count();
        index.record(Unit { container, len: 1, chunks: &chunks }).unwrap();
        self.containers.insert(container, chunks);
    }
}
