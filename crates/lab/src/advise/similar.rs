//! The new chunks of the default rule, compressed against similar ones as a repository of format 2 does: what that saves.
//!
//! Each path that was given counts as a backup of its own, in the order in which they are read. What is similar in one of them is
//! found only when it is durable.

use std::path::PathBuf;

use anyhow::Result;
use onefold_engine::backup::Budget;
use onefold_engine::compress::Compression;
use onefold_engine::lru::Lru;
use onefold_engine::similarity::regions::RegionNumber;

use super::regions::{Compressed, GROUPS, REGION_BYTES};
use super::rules::CONTAINER_BYTES;
use crate::similarity::based::{BasedRegions, RegionCounts, StoredRegion};
use crate::similarity::point::Point;

/// Regions from which an estimate is made: 16 MiB of new chunks.
pub const REGIONS_LEAST: u64 = 32;
/// Regions after which no more are taken, so that memory is bounded: each takes up to 1 KiB. They are 64 GiB.
const REGIONS_MAX: u64 = 1 << 17;
/// Memory for the regions of known chunks, the last 100,000 or so: a backup knows them from a sample, too.
const KNOWN_BYTES: usize = 8 << 20;
/// Memory of one of these: key, value, the order of use, and a map that is half full.
const KNOWN_ENTRY_BYTES: usize = 80;
/// Memory of everything but the index of similar regions: caches of opened regions and of their features, known chunks, the regions of
/// the sample that is read by default, and a region with its prefix, features and frame.
pub const MEMORY_BYTES: usize = (40 << 20) + KNOWN_BYTES + (16 << 20) + 16 * REGION_BYTES;

/// How similar regions are looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimilarOptions {
    /// Directory of a temporary file, which has all distinct data of the sample after compression.
    pub scratch: PathBuf,
}

/// Memory that a backup has for the index of similar regions; `None` if it looks for none, with so little memory or this compression.
pub fn index_bytes(compression: Compression, memory_bytes: usize, threads: usize) -> Option<usize> {
    let budget = Budget::of(memory_bytes, Budget::threads(memory_bytes, threads)).with_bases(memory_bytes);
    (level_of(compression).is_some() && budget.bases_bytes != 0).then_some(budget.similar_bytes)
}

fn level_of(compression: Compression) -> Option<i32> {
    match compression {
        Compression::Zstd(level) | Compression::PaddedZstd(level) => Some(level),
        Compression::Off | Compression::Lz4 => None,
    }
}

/// Compresses new chunks against similar ones.
#[derive(Debug)]
pub struct Similar {
    regions: BasedRegions,
    groups: [Compressed; GROUPS],
    open_group: usize,
    open_hashes: Vec<u64>,
    known: Lru<u64, u32>,
    root: Option<u16>,
    /// The first error of the temporary file, which ends it.
    failed: Option<anyhow::Error>,
}

impl Similar {
    /// Starts; `None` if a backup with this memory and compression looks for nothing similar.
    pub fn new(
        options: &SimilarOptions,
        compression: Compression,
        (memory_bytes, threads): (usize, usize),
    ) -> Result<Option<Self>> {
        let (Some(level), Some(index_bytes)) = (level_of(compression), index_bytes(compression, memory_bytes, threads))
        else {
            return Ok(None);
        };
        let budget = Budget::of(memory_bytes, Budget::threads(memory_bytes, threads));
        let barrier_bytes = budget.barrier_containers as u64 * u64::from(CONTAINER_BYTES);
        let point = Point { has_chunks: true, ..Point::default() };
        let regions = BasedRegions::new(point, level, index_bytes, &options.scratch)?.with_barriers(barrier_bytes);
        Ok(Some(Self {
            regions,
            groups: [Compressed::default(); GROUPS],
            open_group: 0,
            open_hashes: Vec::new(),
            known: Lru::new(KNOWN_BYTES),
            root: None,
            failed: None,
        }))
    }

    /// Takes a chunk of a group that is below the path `root`, and new or known.
    pub fn push(&mut self, chunk: &[u8], hash: u64, is_new: bool, (root, group): (u16, u8)) {
        if self.failed.is_none() && self.regions.counts().regions < REGIONS_MAX {
            self.failed = self.try_push(chunk, hash, is_new, (root, group)).err();
        }
    }

    fn try_push(&mut self, chunk: &[u8], hash: u64, is_new: bool, (root, group): (u16, u8)) -> Result<()> {
        if self.root != Some(root) {
            self.end_session()?;
            self.regions.begin_session();
            self.root = Some(root);
        }
        if !is_new {
            self.regions.refer(self.known.get(&hash).map(RegionNumber));
            return Ok(());
        }
        let ended = self.regions.push(chunk)?;
        self.take(ended);
        if self.open_hashes.is_empty() {
            self.open_group = usize::from(group);
        }
        self.open_hashes.push(hash);
        Ok(())
    }

    fn end_session(&mut self) -> Result<()> {
        let ended = self.regions.end()?;
        self.take(ended);
        Ok(())
    }

    fn take(&mut self, ended: Option<StoredRegion>) {
        let Some(StoredRegion { number, plain_len, stored_len, .. }) = ended else { return };
        if let Some(group) = self.groups.get_mut(self.open_group) {
            *group = group.plus(Compressed { plain: plain_len.into(), stored: stored_len.into() });
        }
        for hash in self.open_hashes.drain(..) {
            self.known.insert(hash, number.0, KNOWN_ENTRY_BYTES);
        }
    }

    /// Returns the error of the temporary file, if there was one.
    pub fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Ends the last region. Fails if the temporary file cannot be written or read.
    pub fn finish(mut self) -> Result<Measured> {
        self.check()?;
        self.end_session()?;
        let RegionCounts { regions, with_bases, bases, .. } = self.regions.counts();
        Ok(Measured { groups: self.groups, regions, with_bases, bases, is_cut_short: REGIONS_MAX <= regions })
    }
}

/// Result of compressing regions against similar ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measured {
    groups: [Compressed; GROUPS],
    /// Regions.
    pub regions: u64,
    /// Those with bases.
    pub with_bases: u64,
    /// Bases of all regions, and runs of chunks in these.
    pub bases: (u64, u64),
    /// Whether data was left out, since there was too much.
    pub is_cut_short: bool,
}

impl Measured {
    /// Returns true if it is enough to estimate anything from.
    pub fn is_enough(&self) -> bool {
        REGIONS_LEAST <= self.regions
    }

    /// Returns stored bytes for each plain one, without the regions of a group.
    pub fn share(&self, without: Option<usize>) -> f64 {
        let left = self.groups.iter().enumerate().filter(|(group, _)| Some(*group) != without);
        left.fold(Compressed::default(), |sum, (_, group)| sum.plus(*group)).share()
    }
}
