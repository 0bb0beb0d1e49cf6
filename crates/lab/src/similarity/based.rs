//! Regions of new chunks: they are filled in stream order, get bases, are compressed and stored.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use onefold_engine::similarity::choose::{BaseChunk, Choice};
use onefold_engine::similarity::features::RegionFeatures;
use onefold_engine::similarity::index::{AnchorIndex, Sampling};
use onefold_engine::similarity::regions::{RegionNumber, Regions};
use onefold_engine::similarity::search::BaseSearch;
use onefold_engine::types::{ContainerId, RegionId, SessionId};

use super::extract::Extract;
use super::point::{Feature, Point};
use super::stored::Stored;
use crate::processor::{processor_time, processor_time_since};

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

/// Counts over all regions.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RegionCounts {
    /// Regions.
    pub(crate) regions: u64,
    /// Those with bases.
    pub(crate) with_bases: u64,
    /// Those with chunks in front.
    pub(crate) with_chunks: u64,
    /// Bases of all regions, and runs of chunks in these.
    pub(crate) bases: (u64, u64),
    /// Time for all new chunks, of one thread.
    pub(crate) times: Times,
}

/// A region that was stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredRegion {
    /// Its number.
    pub(crate) number: RegionNumber,
    /// Number of its chunks.
    pub(crate) chunks: usize,
    /// Bytes of them.
    pub(crate) plain_len: u32,
    /// Bytes after compression.
    pub(crate) stored_len: u32,
}

/// The region that is being filled.
#[derive(Debug, Default)]
struct Open {
    lens: Vec<u32>,
    plain: Vec<u8>,
    /// Regions of stored chunks next to new ones.
    neighbors: Vec<RegionNumber>,
}

/// A region that later ones cannot have as base yet.
#[derive(Debug)]
struct Waiting {
    id: RegionId,
    plain_len: u32,
    bases: Vec<RegionNumber>,
    depth: u8,
    /// Sample of its features that the index keeps.
    sample: Vec<u64>,
    /// Stored bytes of the session at its end.
    stored_end: u64,
}

/// Regions of new chunks, in sessions.
#[derive(Debug)]
pub(crate) struct BasedRegions {
    point: Point,
    pub(super) search: BaseSearch,
    extract: Extract,
    pub(super) stored: Stored,
    open: Open,
    /// Region of the last stored chunk, and whether the last chunk was new.
    last: Option<RegionNumber>,
    was_new: bool,
    sessions: u32,
    /// Stored bytes of the session.
    session_bytes: u64,
    /// Bytes of a barrier, behind which what was stored before the one before can be a base; 0: at once.
    barrier_bytes: u64,
    waiting: VecDeque<Waiting>,
    pub(super) counts: RegionCounts,
}

impl BasedRegions {
    /// Starts without any. Every region can be a base of the next one.
    pub(crate) fn new(point: Point, level: i32, index_bytes: usize, scratch: &Path) -> Result<Self> {
        let index = AnchorIndex::new(Sampling::one_in(point.sample), index_bytes);
        Ok(Self {
            point,
            search: BaseSearch::new(Regions::default(), index, point.limits()),
            extract: Extract::new(point.feature),
            stored: Stored::new(level, scratch)?,
            open: Open::default(),
            last: None,
            was_new: false,
            sessions: 0,
            session_bytes: 0,
            barrier_bytes: 0,
            waiting: VecDeque::new(),
            counts: RegionCounts::default(),
        })
    }

    /// Lets a region be a base only when it is durable, as in a backup: at the barrier behind the next one, or when the session ends.
    pub(crate) fn with_barriers(self, barrier_bytes: u64) -> Self {
        Self { barrier_bytes, ..self }
    }

    /// Starts the next session. The open region must have ended.
    pub(crate) fn begin_session(&mut self) {
        self.sessions += 1;
        self.search.begin_session();
        (self.session_bytes, self.last, self.was_new) = (0, None, false);
    }

    /// Returns the number of chunks in the open region.
    pub(crate) fn open_chunks(&self) -> usize {
        self.open.lens.len()
    }

    /// Appends a new chunk. Returns the region before, if the chunk ends it.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> Result<Option<StoredRegion>> {
        let is_full = (self.point.region_bytes as usize) < self.open.plain.len() + chunk.len();
        let ended = if is_full { self.end_region()? } else { None };
        if !self.was_new {
            self.open.neighbors.extend(self.last);
        }
        self.was_new = true;
        self.open.plain.extend_from_slice(chunk);
        self.open.lens.push(u32::try_from(chunk.len())?);
        Ok(ended)
    }

    /// Takes note of a chunk that was stored before, in a region that is known or not.
    pub(crate) fn refer(&mut self, region: Option<RegionNumber>) {
        let is_entered = |region: &RegionNumber| (region.0 as usize) < self.search.regions.count();
        if let Some(region) = region.filter(is_entered) {
            self.search.refer(region);
            if self.was_new {
                self.open.neighbors.push(region);
            }
            self.last = Some(region);
        }
        self.was_new = false;
    }

    /// Ends the open region and the session.
    pub(crate) fn end(&mut self) -> Result<Option<StoredRegion>> {
        let ended = self.end_region()?;
        self.make_durable(u64::MAX)?;
        Ok(ended)
    }

    /// Returns the counts so far.
    pub(crate) fn counts(&self) -> RegionCounts {
        self.counts
    }

    fn end_region(&mut self) -> Result<Option<StoredRegion>> {
        let open = std::mem::take(&mut self.open);
        if open.lens.is_empty() {
            return Ok(None);
        }
        let plain_len = u32::try_from(open.plain.len())?;
        let start = processor_time();
        let features = self.extract.features(&open.plain, &open.lens);
        self.counts.times.features += processor_time_since(start);
        let start = processor_time();
        let mut choice = Choice::None;
        let mut prefix = Vec::new();
        if self.point.feature != Feature::None {
            self.stored.extract_with(&self.extract);
            choice = self.search.find(&features, plain_len, &open.neighbors, &mut self.stored)?;
            self.stored.prefix(&choice, &mut prefix)?;
        }
        self.counts.times.search += processor_time_since(start);
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
        self.counts.times.compress += processor_time_since(start);
        self.keep(open, &frame, choice, features).map(Some)
    }

    fn keep(&mut self, open: Open, frame: &[u8], choice: Choice, features: RegionFeatures) -> Result<StoredRegion> {
        let number = self.stored.count();
        let mut session = [0; 16];
        session[..4].copy_from_slice(&self.sessions.to_le_bytes());
        let container = ContainerId { session: SessionId(session), ordinal: number };
        let (plain_len, stored_len) = (u32::try_from(open.plain.len())?, u32::try_from(frame.len())?);
        self.counts.regions += 1;
        self.counts.with_bases += u64::from(choice != Choice::None);
        self.counts.with_chunks += u64::from(matches!(choice, Choice::Chunks(_)));
        self.session_bytes += u64::from(stored_len);
        let bases = choice.regions();
        self.counts.bases.0 += bases.len() as u64;
        self.counts.bases.1 += runs_of(&choice);
        let depth_of = |base: &RegionNumber| self.search.regions.depth(*base).map_or(u8::MAX, |depth| depth + 1);
        let sampling = Sampling::one_in(self.point.sample);
        self.waiting.push_back(Waiting {
            id: RegionId { container, region: 0 },
            plain_len,
            depth: bases.iter().map(depth_of).max().unwrap_or(0),
            bases,
            sample: features.hashes().iter().copied().filter(|hash| sampling.takes(*hash)).collect(),
            stored_end: self.session_bytes,
        });
        let chunks = open.lens.len();
        self.stored.push(frame, choice, open.lens, &open.plain, features)?;
        let durable = match self.session_bytes.checked_div(self.barrier_bytes) {
            None => u64::MAX,
            Some(barriers) => barriers.saturating_sub(1) * self.barrier_bytes,
        };
        self.make_durable(durable)?;
        Ok(StoredRegion { number: RegionNumber(number), chunks, plain_len, stored_len })
    }

    /// Enters the regions that end within so many stored bytes of the session.
    fn make_durable(&mut self, stored_end: u64) -> Result<()> {
        while let Some(region) = self.waiting.pop_front_if(|region| region.stored_end <= stored_end) {
            let number = region.id.container.ordinal;
            let based = (region.bases.as_slice(), region.depth);
            let entered = self.search.stored_at(region.id, region.plain_len, based, &region.sample);
            ensure!(entered == Some(RegionNumber(number)), "a region that could not be entered");
        }
        Ok(())
    }
}

/// Returns the number of runs of consecutive chunks in front.
fn runs_of(choice: &Choice) -> u64 {
    let Choice::Chunks(chunks) = choice else { return 0 };
    let follows = |pair: &&[BaseChunk]| match pair {
        [one, next] => one.region == next.region && u32::from(one.chunk) + 1 == u32::from(next.chunk),
        _ => false,
    };
    (chunks.len() - chunks.windows(2).filter(follows).count()) as u64
}
