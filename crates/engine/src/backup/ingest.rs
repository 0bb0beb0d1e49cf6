//! From a source to fingerprinted chunks in stream order. Only cutting is serial; the other stages run on workers.

use std::sync::Arc;

use onefold_accel::device::{self, Limits, Rule};

use crate::accelerator::{Accelerator, DeviceWork};
use crate::backup::Budget;
use crate::backup::block::{BLOCK_BYTES, Block, Input};
use crate::backup::cut::{
    CutBlock, CutStage, Cuts, FindCandidates, FingerprintChunks, ReadSmall, SearchBlock, Searched, StreamCutter,
};
use crate::backup::device::{DeviceNames, DeviceSearch};
use crate::backup::read::{FileReader, SourceReader};
use crate::backup::streamed::Rereader;
use crate::chunk::{Chunking, Cutter, GearTable};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprinter;
use crate::monitor::Monitor;
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{Ordered, Prefetcher, Task};

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

impl ChunkRule {
    /// Returns what of it a device does. Where chunks may be longer than a block, most lie in several: the processor names them.
    fn on_device(&self) -> Rule {
        let hash = match &self.cutter {
            Cuts::OfCandidates(cutter) if cutter.chunk_bytes_max() as usize <= BLOCK_BYTES => {
                self.fingerprinter.on_device()
            }
            Cuts::OfCandidates(_) | Cuts::OfBytes(_) => None,
        };
        Rule { search: self.table.as_ref().map(GearTable::search), hash }
    }
}

/// The stages before identification.
#[derive(Debug)]
pub(crate) struct Ingest {
    blocks: Prefetcher<CutBlock>,
    accelerator: Option<Accelerator>,
}

impl Ingest {
    /// Starts to read. `files` reads the small files that `reader` found, and parts of long ones. An accelerator takes as many blocks as its share of the budget has.
    pub(crate) fn new(
        driver: &Driver,
        mut reader: SourceReader,
        files: FileReader,
        rule: ChunkRule,
        (budget, accelerator): (&Budget, Option<&Accelerator>),
    ) -> Self {
        let depth = budget.blocks_in_flight;
        let buffers = reader.heap_buffers();
        reader.look_ahead(driver, budget.walk_shares);
        let limits = budget.device_limits().map(|limits| (limits, budget.device_buffers()));
        let opened = accelerator.zip(limits).and_then(|(accelerator, limits)| Self::open(accelerator, &rule, limits));
        let ChunkRule { cutter, table, fingerprinter } = rule;
        let again = SearchBlock { table: table.clone() };
        let queue = driver.queue(FingerprintChunks { fingerprinter: Arc::clone(&fingerprinter) }, Pool::Compute, depth);
        let (search, name): (Stage<Block<Input>, Block<Searched>>, Stage<CutBlock, CutBlock>) =
            if let Some((work, pool)) = opened {
                reader.read_for_device(pool);
                let again = again.clone();
                let read = driver.queue(ReadSmall { files }, Pool::Read, depth);
                let searched = driver.queue(SearchBlock { table }, Pool::Compute, depth);
                let search = DeviceSearch::new(read, searched, again, work.clone(), depth);
                (Box::new(search), Box::new(DeviceNames::new(queue, fingerprinter, work, depth)))
            } else {
                let find = FindCandidates { read: ReadSmall { files }, search: SearchBlock { table } };
                (Box::new(driver.queue(find, Pool::Read, depth)), Box::new(queue))
            };
        let read = driver.prefetch("read", move || reader.next_block(), depth);
        let (cutter, rereader) = (CutStage::new(cutter), Rereader::new(files.entries, buffers));
        let mut cutting =
            Cutting { read: Some(read), search: Some(search), rereader, search_again: again, cutter, name };
        let blocks = driver.prefetch("cut", move || cutting.next(), budget.cut_ahead);
        Self { blocks, accelerator: accelerator.cloned() }
    }

    fn open(
        accelerator: &Accelerator,
        rule: &ChunkRule,
        limits: (Limits, usize),
    ) -> Option<(DeviceWork, device::Pool)> {
        accelerator.open(&rule.on_device(), &rule.fingerprinter, limits)
    }

    /// Hands every block over, in stream order.
    pub(crate) fn run(self, monitor: &dyn Monitor, each: &mut dyn FnMut(CutBlock) -> Result<()>) -> Result<()> {
        let Self { blocks, accelerator } = self;
        for block in blocks {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            each(block)?;
            report(accelerator.as_ref(), monitor);
        }
        report(accelerator.as_ref(), monitor);
        Ok(())
    }
}

type Stage<I, O> = Box<dyn Ordered<In = I, Out = O>>;

/// The stages from reading to names. One thread cuts and keeps the order.
#[derive(Debug)]
struct Cutting {
    /// `None` after the last block.
    read: Option<Prefetcher<Block<Input>>>,
    /// `None` after the last block.
    search: Option<Stage<Block<Input>, Block<Searched>>>,
    /// Reads files again that changed while several readers read them.
    rereader: Rereader,
    /// Finds the candidates of these.
    search_again: SearchBlock,
    cutter: CutStage,
    name: Stage<CutBlock, CutBlock>,
}

impl Cutting {
    /// Returns the next block, in stream order.
    fn next(&mut self) -> Option<CutBlock> {
        while let Some(searched) = self.searched() {
            let cut = self.cutter.cut(searched);
            if let Some(again) = self.cutter.take_again() {
                self.rereader.start(again);
            }
            if let Some(named) = self.name.push(cut) {
                return Some(named);
            }
        }
        self.name.pop()
    }

    fn searched(&mut self) -> Option<Block<Searched>> {
        if let Some(block) = self.rereader.next_block() {
            return Some(self.search_again.run(block));
        }
        let search = self.search.as_mut()?;
        while let Some(read) = &mut self.read {
            match read.next() {
                Some(block) => {
                    if let Some(searched) = search.push(block) {
                        return Some(searched);
                    }
                }
                None => self.read = None,
            }
        }
        let searched = search.pop();
        if searched.is_none() {
            self.search = None;
        }
        searched
    }
}

/// Reports a fault of the accelerator.
fn report(accelerator: Option<&Accelerator>, monitor: &dyn Monitor) {
    if let Some(accelerator) = accelerator {
        accelerator.report(monitor);
    }
}
