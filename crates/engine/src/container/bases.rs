//! The bases of a region: earlier regions that it was compressed against, whole or some of their chunks (format 2).

use std::sync::Arc;

use crate::codec::{Decoded, Reader, put_container_id};
use crate::types::RegionId;

/// Most bases of a region that are whole regions.
pub const BASES_MAX: usize = 2;
/// Most bases of a region.
pub const BASE_REGIONS_MAX: usize = 12;
/// Most runs of chunks of one base.
pub const RUNS_MAX: usize = 64;
/// Most steps from a region over bases of bases to one without any.
pub const DEPTH_MAX: u8 = 4;
/// Most regions that one region may depend on, over all of its bases and theirs. So much plaintext is held while a chain is
/// read: 8 MiB with regions of 512 KiB.
pub(crate) const CHAIN_REGIONS_MAX: usize = 16;
/// Bytes of one base in a directory, without its runs.
pub(crate) const BASE_LEN: usize = 25;
/// Bytes of a run.
pub(crate) const RUN_LEN: usize = 4;

/// Consecutive chunks of a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ChunkRun {
    /// Number of the first in its region.
    pub first: u16,
    /// How many there are.
    pub count: u16,
}

/// One base: a region, or some of its chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Base {
    /// The region.
    pub region: RegionId,
    /// Its chunks that count, ascending, at least one between two runs left out; none: the whole region.
    pub runs: Vec<ChunkRun>,
}

impl Base {
    /// Returns a region as a whole.
    pub fn whole(region: RegionId) -> Self {
        Self { region, runs: Vec::new() }
    }

    /// Returns some chunks of a region by their numbers, which ascend; `None` if they are none, or make more than [`RUNS_MAX`] runs.
    pub fn of_chunks(region: RegionId, chunks: impl IntoIterator<Item = u16>) -> Option<Self> {
        let mut runs: Vec<ChunkRun> = Vec::new();
        for chunk in chunks {
            match runs.last_mut() {
                Some(last) if last.first.checked_add(last.count) == Some(chunk) => last.count += 1,
                _ => runs.push(ChunkRun { first: chunk, count: 1 }),
            }
        }
        let base = Self { region, runs };
        (!base.runs.is_empty() && base.is_possible()).then_some(base)
    }

    fn is_possible(&self) -> bool {
        let mut end = None;
        let ascend = self.runs.iter().all(|run| {
            let is_next = end.is_none_or(|end| end < run.first) && 0 < run.count;
            end = run.first.checked_add(run.count);
            is_next && end.is_some()
        });
        ascend && self.runs.len() <= RUNS_MAX
    }
}

/// The bases of a region, in the order of their plaintexts, and its depth: 0 without bases, else at least one more than that
/// of each base. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bases {
    depth: u8,
    bases: Option<Arc<[Base]>>,
}

impl Bases {
    /// Makes a list of whole regions; see [`Bases::of`].
    pub fn new(regions: &[RegionId], depth: u8) -> Option<Self> {
        Self::of(regions.iter().copied().map(Base::whole).collect(), depth)
    }

    /// Makes a list; `None` if it has more than [`BASE_REGIONS_MAX`] regions or more than [`BASES_MAX`] whole ones, one of them twice,
    /// impossible runs, or no possible depth.
    pub fn of(bases: Vec<Base>, depth: u8) -> Option<Self> {
        if bases.is_empty() {
            return (depth == 0).then(Self::default);
        }
        let whole = bases.iter().filter(|base| base.runs.is_empty()).count();
        let is_once = |(at, base): (usize, &Base)| bases.iter().skip(at + 1).all(|other| other.region != base.region);
        let is_possible = (1..=DEPTH_MAX).contains(&depth)
            && bases.len() <= BASE_REGIONS_MAX
            && whole <= BASES_MAX
            && bases.iter().all(Base::is_possible)
            && bases.iter().enumerate().all(is_once);
        is_possible.then(|| Self { depth, bases: Some(bases.into()) })
    }

    /// Returns the number of steps to a region without bases.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// Returns true if the region stands by itself.
    pub fn is_empty(&self) -> bool {
        self.depth == 0
    }

    /// Returns the bases in order.
    pub fn bases(&self) -> &[Base] {
        self.bases.as_deref().unwrap_or_default()
    }

    /// Returns the regions of the bases in order.
    pub fn iter(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.bases().iter().map(|base| base.region)
    }

    /// Returns the number of bases.
    pub fn len(&self) -> usize {
        self.bases().len()
    }

    /// Returns the number of runs of all bases.
    pub(crate) fn run_count(&self) -> usize {
        self.bases().iter().map(|base| base.runs.len()).sum()
    }

    /// Appends the stored form: depth, number of bases, and each base.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.depth);
        out.push(u8::try_from(self.len()).unwrap_or(u8::MAX));
        for Base { region: RegionId { container, region }, runs } in self.bases() {
            put_container_id(out, *container);
            out.extend_from_slice(&region.to_le_bytes());
            out.push(u8::try_from(runs.len()).unwrap_or(u8::MAX));
            for ChunkRun { first, count } in runs {
                out.extend_from_slice(&first.to_le_bytes());
                out.extend_from_slice(&count.to_le_bytes());
            }
        }
    }

    /// Reads the stored form.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        let (depth, count) = (reader.u8()?, reader.u8()?);
        if BASE_REGIONS_MAX < usize::from(count) {
            return Err(reader.error("more bases than a region can have"));
        }
        let mut bases = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let region = RegionId { container: reader.container_id()?, region: reader.u32()? };
            let run_count = reader.u8()?;
            if RUNS_MAX < usize::from(run_count) {
                return Err(reader.error("more runs than a base can have"));
            }
            let mut runs = Vec::with_capacity(usize::from(run_count));
            for _ in 0..run_count {
                runs.push(ChunkRun { first: reader.u16()?, count: reader.u16()? });
            }
            bases.push(Base { region, runs });
        }
        if DEPTH_MAX < depth {
            return Err(reader.error("region deeper than regions can be"));
        }
        Self::of(bases, depth).ok_or_else(|| reader.error("bases that no region can have"))
    }
}
