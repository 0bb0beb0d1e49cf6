//! One point on all versions: regions are formed, get bases, are compressed and stored; then the last version is restored.

use std::time::Duration;

use anyhow::{Result, ensure};
use onefold_engine::similarity::choose::Choice;
use onefold_engine::similarity::features::RegionFeatures;
use onefold_engine::similarity::index::{AnchorIndex, Sampling};
use onefold_engine::similarity::regions::{RegionNumber, Regions};
use onefold_engine::similarity::search::BaseSearch;
use onefold_engine::types::{ContainerId, RegionId, SessionId};

use super::corpus::{Corpus, Version};
use super::extract::Extract;
use super::point::{Feature, Point};
use super::stored::Stored;
use crate::processor::{processor_time, processor_time_since};

/// Memory of the index that is looked up: more than any data that fit the budget of chunks need.
const INDEX_BYTES: usize = 256 << 20;
/// Part of a region's features that its bases need at least, so that it is not compressed without them, too: it saves a twentieth
/// whatever it holds.
const SURE_PART: usize = 8;
/// A region keeps its bases if they save at least one in so many bytes.
const SAVED_PART: usize = 20;

/// Processor time by purpose.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Times {
    /// Finding features.
    pub features: Duration,
    /// Choosing bases and opening them.
    pub search: Duration,
    /// Compressing.
    pub compress: Duration,
}

impl Times {
    /// Returns the sum.
    pub fn sum(&self) -> Duration {
        self.features + self.search + self.compress
    }
}

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

/// The region that is being filled.
#[derive(Debug, Default)]
pub(super) struct Open {
    pub(super) chunks: Vec<u32>,
    pub(super) plain: Vec<u8>,
    /// Regions of stored chunks next to new ones.
    neighbors: Vec<RegionNumber>,
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
    for (number, version) in (0u32..).zip(&corpus.versions) {
        run.version(number, version)?;
    }
    if verify {
        run.verify()?;
    }
    run.finish()
}

struct Run<'a> {
    corpus: &'a Corpus,
    point: Point,
    search: BaseSearch,
    extract: Extract,
    stored: Stored,
    /// Region of each chunk.
    region_of: Vec<RegionNumber>,
    open: Open,
    session: SessionId,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(corpus: &'a Corpus, point: Point, level: i32, scratch: &std::path::Path) -> Result<Self> {
        let index = AnchorIndex::new(Sampling::one_in(point.sample), INDEX_BYTES);
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
        Ok(Self {
            corpus,
            point,
            search: BaseSearch::new(Regions::default(), index, point.limits()),
            extract: Extract::new(point.feature),
            stored: Stored::new(level, scratch)?,
            region_of: Vec::new(),
            open: Open::default(),
            session: SessionId([0; 16]),
            outcome,
        })
    }

    fn version(&mut self, number: u32, version: &Version) -> Result<()> {
        let mut session = [0; 16];
        session[..4].copy_from_slice(&number.to_le_bytes());
        self.session = SessionId(session);
        self.search.begin_session();
        self.outcome.stored.push(0);
        let mut last = None;
        let mut was_new = false;
        for chunk in &version.chunks {
            // Chunks are numbered in the order in which they first come.
            let is_new = self.region_of.len() + self.open.chunks.len() == *chunk as usize;
            if is_new {
                let len = self.corpus.extent(*chunk).len as usize;
                if !self.open.chunks.is_empty() && (self.point.region_bytes as usize) < self.open.plain.len() + len {
                    self.end_region()?;
                }
                if !was_new {
                    self.open.neighbors.extend(last);
                }
                self.corpus.append(*chunk, &mut self.open.plain)?;
                self.open.chunks.push(*chunk);
            } else if let Some(region) = self.region_of.get(*chunk as usize) {
                self.search.refer(*region);
                if was_new {
                    self.open.neighbors.push(*region);
                }
                last = Some(*region);
            }
            was_new = is_new;
        }
        self.end_region()
    }

    fn end_region(&mut self) -> Result<()> {
        let open = std::mem::take(&mut self.open);
        if open.chunks.is_empty() {
            return Ok(());
        }
        let lens: Vec<u32> = open.chunks.iter().map(|chunk| self.corpus.extent(*chunk).len).collect();
        let plain_len = u32::try_from(open.plain.len())?;
        let start = processor_time();
        let features = self.extract.features(&open.plain, &lens);
        self.outcome.times.features += processor_time_since(start);
        let start = processor_time();
        let mut choice = Choice::None;
        let mut prefix = Vec::new();
        if self.point.feature != Feature::None {
            self.stored.extract_with(&self.extract);
            choice = self.search.find(&features, plain_len, &open.neighbors, &mut self.stored)?;
            self.stored.prefix(&choice, &mut prefix)?;
        }
        self.outcome.times.search += processor_time_since(start);
        let start = processor_time();
        let frame = self.stored.compress(&prefix, &open.plain)?;
        let covered = self.stored.covered(&choice, &features);
        let is_sure = features.hashes().len() <= SURE_PART * covered;
        let (frame, choice) = if choice == Choice::None || is_sure {
            (frame, choice)
        } else {
            let alone = self.stored.compress(&[], &open.plain)?;
            let saves = frame.len() + alone.len() / SAVED_PART <= alone.len();
            if saves { (frame, choice) } else { (alone, Choice::None) }
        };
        self.outcome.times.compress += processor_time_since(start);
        self.keep(&open, lens, &frame, choice, features)
    }

    fn keep(
        &mut self,
        open: &Open,
        lens: Vec<u32>,
        frame: &[u8],
        choice: Choice,
        features: RegionFeatures,
    ) -> Result<()> {
        let number = self.stored.count();
        let id = RegionId { container: ContainerId { session: self.session, ordinal: number }, region: 0 };
        let plain_len = u32::try_from(open.plain.len())?;
        if let Some(stored) = self.outcome.stored.last_mut() {
            *stored += frame.len() as u64;
        }
        self.outcome.regions += 1;
        self.outcome.with_bases += u64::from(choice != Choice::None);
        self.outcome.with_chunks += u64::from(matches!(choice, Choice::Chunks(_)));
        let bases = choice.regions();
        let entered = self.search.stored(id, plain_len, &bases, &features);
        ensure!(entered == Some(RegionNumber(number)), "a region that could not be entered");
        self.region_of.resize(self.region_of.len() + open.chunks.len(), RegionNumber(number));
        self.stored.push(frame, choice, lens, &open.plain, features)
    }

    fn verify(&mut self) -> Result<()> {
        for number in 0..self.stored.count() {
            self.stored.verify(RegionNumber(number))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Outcome> {
        self.outcome.loads = self.stored.begin_restore()?;
        let start = processor_time();
        let mut last = None;
        for chunk in self.corpus.versions.last().iter().flat_map(|version| &version.chunks) {
            let region = self.region_of.get(*chunk as usize).copied();
            if let Some(region) = region.filter(|_| region != last) {
                self.stored.verify(region)?;
            }
            last = region;
        }
        self.outcome.restore = processor_time_since(start);
        self.outcome.decoded_bytes = self.stored.decoded_bytes();
        self.outcome.own_bytes = self.search.reading.own_bytes();
        self.outcome.extra_bytes = self.search.reading.extra_bytes();
        self.outcome.memory_bytes = (self.search.index.memory_bytes() + self.search.regions.memory_bytes()) as u64;
        Ok(self.outcome)
    }
}
