//! One point on all versions: regions are formed, get bases, are compressed and stored; then the last version is restored.

use std::time::Duration;

use anyhow::Result;
use onefold_engine::similarity::regions::RegionNumber;

use super::based::{BasedRegions, RegionCounts, StoredRegion, Times};
use super::corpus::{Corpus, Version};
use super::point::Point;
use crate::processor::{processor_time, processor_time_since};

/// Memory of the index that is looked up: more than any data that fit the budget of chunks need.
const INDEX_BYTES: usize = 256 << 20;

/// Outcome of a point.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// The point.
    pub point: Point,
    /// Compressed bytes that each version adds.
    pub stored: Vec<u64>,
    /// Regions.
    pub regions: u64,
    /// Those with bases.
    pub with_bases: u64,
    /// Those with chunks in front.
    pub with_chunks: u64,
    /// Regions that were decompressed to be compared or to be bases.
    pub loads: u64,
    /// Time for all new chunks, of one thread.
    pub times: Times,
    /// Bytes of regions that the last version refers to.
    pub own_bytes: u64,
    /// Bytes of bases that its restore decodes besides.
    pub extra_bytes: u64,
    /// Bytes that the restore decompressed, with its cache.
    pub decoded_bytes: u64,
    /// Time of that.
    pub restore: Duration,
    /// Memory of the index: what the sample takes with what is known of regions.
    pub memory_bytes: u64,
}

impl Outcome {
    /// Returns the stored bytes of all versions.
    pub fn stored_bytes(&self) -> u64 {
        self.stored.iter().sum()
    }
}

/// Runs a point. With `verify`, every region is decompressed and compared.
pub(super) fn run(
    corpus: &Corpus,
    point: Point,
    level: i32,
    verify: bool,
    scratch: &std::path::Path,
) -> Result<Outcome> {
    let mut run = Run::new(corpus, point, level, scratch)?;
    for version in &corpus.versions {
        run.version(version)?;
    }
    if verify {
        run.verify()?;
    }
    run.finish()
}

struct Run<'a> {
    corpus: &'a Corpus,
    regions: BasedRegions,
    /// Region of each chunk.
    region_of: Vec<RegionNumber>,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(corpus: &'a Corpus, point: Point, level: i32, scratch: &std::path::Path) -> Result<Self> {
        let outcome = Outcome {
            point,
            stored: Vec::new(),
            regions: 0,
            with_bases: 0,
            with_chunks: 0,
            loads: 0,
            times: Times::default(),
            own_bytes: 0,
            extra_bytes: 0,
            decoded_bytes: 0,
            restore: Duration::ZERO,
            memory_bytes: 0,
        };
        let regions = BasedRegions::new(point, level, INDEX_BYTES, scratch)?;
        Ok(Self { corpus, regions, region_of: Vec::new(), outcome })
    }

    fn version(&mut self, version: &Version) -> Result<()> {
        self.regions.begin_session();
        self.outcome.stored.push(0);
        let mut bytes = Vec::new();
        for chunk in &version.chunks {
            // Chunks are numbered in the order in which they first come.
            let is_new = self.region_of.len() + self.regions.open_chunks() == *chunk as usize;
            if is_new {
                bytes.clear();
                self.corpus.append(*chunk, &mut bytes)?;
                let ended = self.regions.push(&bytes)?;
                self.take(ended);
            } else {
                self.regions.refer(self.region_of.get(*chunk as usize).copied());
            }
        }
        let ended = self.regions.end()?;
        self.take(ended);
        Ok(())
    }

    /// Notes where the chunks of a region are, and what they take.
    fn take(&mut self, ended: Option<StoredRegion>) {
        let Some(StoredRegion { number, chunks, stored_len, .. }) = ended else { return };
        if let Some(stored) = self.outcome.stored.last_mut() {
            *stored += u64::from(stored_len);
        }
        self.region_of.resize(self.region_of.len() + chunks, number);
    }

    fn verify(&mut self) -> Result<()> {
        let stored = &mut self.regions.stored;
        (0..stored.count()).try_for_each(|number| stored.verify(RegionNumber(number)))
    }

    fn finish(mut self) -> Result<Outcome> {
        let BasedRegions { search, stored, counts, .. } = &mut self.regions;
        let RegionCounts { regions, with_bases, with_chunks, times, .. } = *counts;
        self.outcome.loads = stored.begin_restore()?;
        let start = processor_time();
        let mut last = None;
        for chunk in self.corpus.versions.last().iter().flat_map(|version| &version.chunks) {
            let region = self.region_of.get(*chunk as usize).copied();
            if let Some(region) = region.filter(|_| region != last) {
                stored.verify(region)?;
            }
            last = region;
        }
        let restore = processor_time_since(start);
        Ok(Outcome {
            regions,
            with_bases,
            with_chunks,
            times,
            restore,
            decoded_bytes: stored.decoded_bytes(),
            own_bytes: search.reading.own_bytes(),
            extra_bytes: search.reading.extra_bytes(),
            memory_bytes: (search.index.memory_bytes() + search.regions.memory_bytes()) as u64,
            ..self.outcome
        })
    }
}
