//! From a source to named chunks in stream order: reading ahead, finding candidates and naming aside, cutting in order.

use std::sync::Arc;

use crate::backup::block::Block;
use crate::backup::cut::{CutBlock, CutStage, Cuts, FindCandidates, NameChunks, StreamCutter};
use crate::backup::read::{FileReader, SourceReader};
use crate::chunk::{Chunking, Cutter, GearTable};
use crate::error::{Error, Result};
use crate::fingerprint::Naming;
use crate::monitor::Monitor;
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{Feed, Lane};

/// How a source becomes chunks.
#[derive(Debug)]
pub struct ChunkRule {
    cutter: Cuts,
    /// The hash that finds candidates; `None` where cuts do not depend on any.
    table: Option<GearTable>,
    naming: Arc<dyn Naming>,
}

impl ChunkRule {
    /// Cuts streams so, with this key where their content says where, and names chunks so.
    pub fn new(chunking: Chunking, key: &[u8; 32], naming: Arc<dyn Naming>) -> Self {
        let table = match chunking {
            Chunking::Gear(sizes) => Some(GearTable::expand(key, sizes)),
            Chunking::Fixed { .. } => None,
        };
        Self { cutter: Cuts::OfCandidates(Cutter::new(chunking)), table, naming }
    }

    /// Cuts streams in a way that no repository has, and names chunks so.
    pub fn with_cutter(cutter: Box<dyn StreamCutter>, naming: Arc<dyn Naming>) -> Self {
        Self { cutter: Cuts::OfBytes(cutter), table: None, naming }
    }
}

/// The stages before identification.
#[derive(Debug)]
pub struct Intake {
    feed: Feed<Block>,
    search: Lane<FindCandidates>,
    cutter: CutStage,
    name: Lane<NameChunks>,
}

impl Intake {
    /// Starts to read. `files` reads the small files that `reader` found; each stage has up to `depth` blocks in flight.
    pub fn new(driver: &Driver, mut reader: SourceReader, files: FileReader, rule: ChunkRule, depth: usize) -> Self {
        let ChunkRule { cutter, table, naming } = rule;
        let search = driver.lane(FindCandidates { files, table }, Pool::Read, depth);
        let name = driver.lane(NameChunks { naming }, Pool::Compute, depth);
        let feed = driver.feed(move || reader.next_block(), depth);
        Self { feed, search, cutter: CutStage::new(cutter), name }
    }

    /// Hands every block over, in stream order.
    pub fn run(self, monitor: &dyn Monitor, each: &mut dyn FnMut(CutBlock) -> Result<()>) -> Result<()> {
        let Self { feed, mut search, mut cutter, mut name } = self;
        for block in feed {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            if search.is_full()
                && let Some(searched) = search.pop()
            {
                if name.is_full()
                    && let Some(named) = name.pop()
                {
                    each(named)?;
                }
                name.push(cutter.cut(searched));
            }
            search.push(block);
        }
        while let Some(searched) = search.pop() {
            if name.is_full()
                && let Some(named) = name.pop()
            {
                each(named)?;
            }
            name.push(cutter.cut(searched));
        }
        while let Some(named) = name.pop() {
            each(named)?;
        }
        Ok(())
    }
}
