//! One stream through one identifier, timed and checked.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use onefold_engine::index::{
    Counters, Identifier, Index, IndexOptions, IndexState, Resolved, SequencedChunk, Unit, UnitChunk, Verdict,
};
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::types::{ChunkKind, ContainerId, RepositoryId, Sequence, SessionId};

use crate::stream::{Stream, name};

/// Chunks of a container: 4 MiB of 4 KiB chunks.
const UNIT_CHUNKS: usize = 1024;
/// Chunks that are generated before the clock runs.
const BATCH_CHUNKS: usize = 1 << 14;
/// Length that chunks are said to have.
const CHUNK_BYTES: u32 = 4096;

const SESSION: SessionId = SessionId([7; 16]);
const REPOSITORY: RepositoryId = RepositoryId([9; 16]);

/// An index under test, and what the test knows.
#[derive(Debug)]
pub struct Bench {
    index: Index,
    next_sequence: u64,
    containers: u32,
    /// Chunks whose verdict is due, from the oldest on: number, whether it is new, whether it was resolved.
    due: VecDeque<(u64, bool, bool)>,
    first_due: u64,
    packing: Vec<UnitChunk>,
    /// Chunks declared unique that were known: exactness would be broken.
    pub stored_again: u64,
}

/// What a stretch of stream took.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Chunks.
    pub chunks: u64,
    /// Time in the identifier.
    pub time: Duration,
    /// Longest time that one batch of 64 chunks took.
    pub longest: Duration,
    /// What it counted.
    pub counters: Counters,
}

impl Outcome {
    /// Returns millions of chunks per second.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub fn millions_per_second(&self) -> f64 {
        self.chunks as f64 / self.time.as_secs_f64() / 1e6
    }
}

impl Bench {
    /// Opens the index in a directory, which holds one of `containers` containers or none.
    pub fn open(dir: &Path, options: &IndexOptions, containers: u32) -> Result<Self> {
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(dir.to_path_buf()));
        let host: Arc<dyn Host> = Arc::new(OsHost::new());
        disk.create_dir(Path::new(""))?;
        let (mut index, state) = Index::open(disk, host, Path::new("index"), REPOSITORY, options)?;
        let fits = match state {
            IndexState::New => containers == 0,
            IndexState::Clean | IndexState::Unclean => containers != 0,
            IndexState::Incomplete(_) | IndexState::Rebuilt(_) => false,
        };
        ensure!(fits, "the index in {} was found {state:?}", dir.display());
        let live: Vec<_> = (0..containers).map(|ordinal| ContainerId { session: SESSION, ordinal }).collect();
        ensure!(index.attach(&live)?.is_empty(), "the index in {} misses containers", dir.display());
        Ok(Self {
            index,
            next_sequence: 0,
            containers,
            due: VecDeque::new(),
            first_due: 0,
            packing: Vec::with_capacity(UNIT_CHUNKS),
            stored_again: 0,
        })
    }

    /// Feeds so many chunks of a stream; with `drains`, until nothing waits.
    pub fn feed(&mut self, stream: &mut Stream, chunks: u64, drains: bool) -> Result<Outcome> {
        let before = self.index.counters();
        let (mut time, mut longest) = (Duration::ZERO, Duration::ZERO);
        let mut resolved = Vec::new();
        let mut batch = Vec::with_capacity(BATCH_CHUNKS);
        let mut left = chunks;
        while left != 0 {
            let count = left.min(BATCH_CHUNKS as u64);
            left -= count;
            batch.clear();
            for _ in 0..count {
                let (number, is_new) = stream.draw();
                self.due.push_back((number, is_new, false));
                let sequence = Sequence(self.next_sequence);
                batch.push(SequencedChunk { sequence, fingerprint: name(number), len: CHUNK_BYTES });
                self.next_sequence += 1;
            }
            for piece in batch.chunks(64) {
                let start = Instant::now();
                self.index.submit(piece, &mut resolved)?;
                let mut taken = start.elapsed();
                self.settle(&mut resolved, &mut taken)?;
                time += taken;
                longest = longest.max(taken);
            }
        }
        if drains {
            let start = Instant::now();
            self.index.drain(&mut resolved)?;
            let mut taken = start.elapsed();
            self.settle(&mut resolved, &mut taken)?;
            time += taken;
            ensure!(self.due.is_empty(), "{} chunks have no verdict", self.due.len());
        }
        ensure!(self.index.degraded().is_none(), "the index is degraded: {:?}", self.index.degraded());
        Ok(Outcome { chunks, time, longest, counters: self.index.counters().since(&before) })
    }

    /// Compares verdicts with the truth, and records what was declared unique. `time`: grows by the time of recording.
    fn settle(&mut self, resolved: &mut Vec<Resolved>, time: &mut Duration) -> Result<()> {
        for Resolved { sequence, verdict } in resolved.drain(..) {
            let index = usize::try_from(sequence.0 - self.first_due)?;
            let due = self.due.get_mut(index).context("a verdict on a chunk that has one")?;
            ensure!(!due.2, "two verdicts on a chunk");
            due.2 = true;
            match verdict {
                Verdict::Unique => {
                    self.stored_again += u64::from(!due.1);
                    self.packing.push(UnitChunk { fingerprint: name(due.0), len: CHUNK_BYTES, kind: ChunkKind::Data });
                }
                Verdict::SameAs(_) => {}
                Verdict::Stored(_) => ensure!(!due.1, "a new chunk was said to be stored"),
            }
        }
        while self.due.front().is_some_and(|due| due.2) {
            self.due.pop_front();
            self.first_due += 1;
        }
        while UNIT_CHUNKS <= self.packing.len() {
            let start = Instant::now();
            self.record(UNIT_CHUNKS)?;
            *time += start.elapsed();
        }
        Ok(())
    }

    fn record(&mut self, count: usize) -> Result<()> {
        let container = ContainerId { session: SESSION, ordinal: self.containers };
        self.containers += 1;
        let rest = self.packing.split_off(count);
        self.index.record(Unit { container, chunks: &self.packing })?;
        self.packing = rest;
        Ok(())
    }

    /// Returns what the index has counted.
    pub fn index_counters(&self) -> Counters {
        self.index.counters()
    }

    /// Returns the index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Records the rest and closes the index; returns how many containers there are.
    pub fn close(mut self) -> Result<u32> {
        if !self.packing.is_empty() {
            self.record(self.packing.len())?;
        }
        self.index.close()?;
        Ok(self.containers)
    }
}
