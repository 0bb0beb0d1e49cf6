//! From a source to fingerprinted chunks in stream order. Only cutting is serial; the other stages run on workers.

use std::sync::Arc;

use crate::backup::block::{Block, Input};
use crate::backup::cut::{CutBlock, CutStage, Cuts, FindCandidates, FingerprintChunks, StreamCutter};
use crate::backup::read::{FileReader, SourceReader};
use crate::chunk::{Chunking, Cutter, GearTable};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprinter;
use crate::monitor::Monitor;
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{Prefetcher, TaskQueue};

/// How a source becomes chunks.
#[derive(Debug)]
pub struct ChunkRule {
    cutter: Cuts,
    /// The hash that finds candidates; `None` where cuts do not depend on any.
    table: Option<GearTable>,
    fingerprinter: Arc<dyn Fingerprinter>,
}

impl ChunkRule {
    /// Cuts as a repository with this chunking does; `key` keys the hash that finds cut points.
    pub fn new(chunking: Chunking, key: &[u8; 32], fingerprinter: Arc<dyn Fingerprinter>) -> Self {
        let table = match chunking {
            Chunking::Gear(sizes) => Some(GearTable::expand(key, sizes)),
            Chunking::Fixed { .. } => None,
        };
        Self { cutter: Cuts::OfCandidates(Cutter::new(chunking)), table, fingerprinter }
    }

    /// Cuts with a cutter that no repository has.
    pub fn with_cutter(cutter: Box<dyn StreamCutter>, fingerprinter: Arc<dyn Fingerprinter>) -> Self {
        Self { cutter: Cuts::OfBytes(cutter), table: None, fingerprinter }
    }
}

/// The stages before identification.
#[derive(Debug)]
pub(crate) struct Ingest {
    prefetcher: Prefetcher<Block<Input>>,
    search: TaskQueue<FindCandidates>,
    cutter: CutStage,
    name: TaskQueue<FingerprintChunks>,
}

impl Ingest {
    /// Starts to read. `files` reads the small files that `reader` found; each stage has up to `depth` blocks in flight.
    pub(crate) fn new(
        driver: &Driver,
        mut reader: SourceReader,
        files: FileReader,
        rule: ChunkRule,
        depth: usize,
    ) -> Self {
        let ChunkRule { cutter, table, fingerprinter } = rule;
        let search = driver.queue(FindCandidates { files, table }, Pool::Read, depth);
        let name = driver.queue(FingerprintChunks { fingerprinter }, Pool::Compute, depth);
        let prefetcher = driver.prefetch(move || reader.next_block(), depth);
        Self { prefetcher, search, cutter: CutStage::new(cutter), name }
    }

    /// Hands every block over, in stream order.
    pub(crate) fn run(self, monitor: &dyn Monitor, each: &mut dyn FnMut(CutBlock) -> Result<()>) -> Result<()> {
        let Self { prefetcher, mut search, mut cutter, mut name } = self;
        let mut take = |searched| name.push(cutter.cut(searched)).map_or(Ok(()), &mut *each);
        for block in prefetcher {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            search.push(block).map_or(Ok(()), &mut take)?;
        }
        search.drain().try_for_each(&mut take)?;
        name.drain().try_for_each(each)
    }
}
