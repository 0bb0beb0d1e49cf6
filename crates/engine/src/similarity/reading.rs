//! Regions that a restore of the snapshot that is being made reads: its own, and bases.

use std::collections::HashMap;

use crate::bitmap::Bitmap;
use crate::types::Chunk;

use super::regions::{RegionNumber, Regions};

/// Bases that a small snapshot may read whatever it has of its own, in bytes: 16 regions of 512 KiB, a few percent of a second on any disk.
/// Without it nothing at the beginning of a stream would have a base.
pub const ALLOWANCE_BYTES: u64 = 8 << 20;

/// Most stored chunks whose names are kept while a session refers to them: 1.1 MiB.
pub const REFERRED_MAX: usize = 1 << 15;

/// Most chunks of bases that are waited for: those of nine hundred bases, 1.1 MiB.
pub const WATCHED_MAX: usize = 7 << 13;

/// A sample of the stored chunks that a snapshot refers to, chosen by name. When it is full, half of it goes.
#[derive(Clone, Debug)]
struct ReferredChunks {
    /// Most of them.
    max: usize,
    /// Length of each by a part of its name.
    lens: HashMap<u64, u32>,
    bytes: u64,
    /// One chunk in 2^shift is in the sample.
    shift: u32,
}

impl ReferredChunks {
    fn takes(&self, name: u64) -> bool {
        name.trailing_zeros() >= self.shift
    }

    fn insert(&mut self, name: u64, len: u32) {
        if !self.takes(name) || self.lens.insert(name, len).is_some() {
            return;
        }
        self.bytes += u64::from(len);
        while self.max < self.lens.len() {
            self.shift += 1;
            let shift = self.shift;
            self.lens.retain(|name, _| name.trailing_zeros() >= shift);
            self.bytes = self.lens.values().copied().map(u64::from).sum();
        }
    }

    fn contains_any(&self, names: &[u64]) -> bool {
        names.iter().any(|name| self.takes(*name) && self.lens.contains_key(name))
    }

    /// Estimates the bytes of all, each counted once.
    fn distinct_bytes(&self) -> u64 {
        self.bytes << self.shift
    }
}

/// Returns the part of a chunk's name by which it is kept and looked for.
pub fn name_of(chunk: &Chunk) -> u64 {
    chunk.fingerprint.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Regions that a snapshot refers to so far, and those that they are based on.
///
/// The regions of new chunks are known. Of stored chunks a sample is kept, and a region that was opened counts as read if a chunk
/// of the sample is in it. A base that counts as read besides stops to do so once the snapshot refers to one of its chunks.
///
/// Takes two bits for each region of the repository: a megabyte for two terabytes.
#[derive(Clone, Debug)]
pub struct Reading {
    own: Bitmap,
    extra: Bitmap,
    own_bytes: u64,
    extra_bytes: u64,
    referred: ReferredChunks,
    /// Chunks of bases that are read besides so far, by a part of their names.
    watched: HashMap<u64, u32>,
    watched_max: usize,
}

impl Default for Reading {
    fn default() -> Self {
        Self::with_part(1)
    }
}

impl Reading {
    /// Starts with nothing, and keeps one in `part` of the names that another one keeps at most.
    pub fn with_part(part: usize) -> Self {
        let referred = ReferredChunks { max: REFERRED_MAX / part, lens: HashMap::new(), bytes: 0, shift: 0 };
        Self {
            own: Bitmap::default(),
            extra: Bitmap::default(),
            own_bytes: 0,
            extra_bytes: 0,
            referred,
            watched: HashMap::new(),
            watched_max: WATCHED_MAX / part,
        }
    }

    /// Takes note that the snapshot refers to a chunk in a region.
    pub fn refer(&mut self, regions: &Regions, region: RegionNumber) {
        if self.own.contains(region.0) {
            return;
        }
        self.own_bytes += u64::from(regions.plain_len(region));
        self.read_anyway(regions, region);
    }

    /// Takes note that the snapshot refers to a stored chunk, whose region need not be known.
    pub fn refer_to_chunk(&mut self, regions: &Regions, chunk: &Chunk) {
        let name = name_of(chunk);
        self.referred.insert(name, chunk.len);
        if let Some(base) = self.watched.remove(&name) {
            self.refer_to_part(regions, RegionNumber(base));
        }
    }

    /// Takes note that the snapshot refers to some chunk of a stored region, the bytes of which are counted with its chunks.
    pub fn refer_to_part(&mut self, regions: &Regions, region: RegionNumber) {
        if !self.own.contains(region.0) {
            self.read_anyway(regions, region);
        }
    }

    /// Waits for references to these chunks of a region that was chosen as a base.
    pub fn watch(&mut self, base: RegionNumber, names: &[u64]) {
        if !self.extra.contains(base.0) {
            return;
        }
        if self.watched_max < self.watched.len() + names.len() {
            self.watched.clear();
        }
        self.watched.extend(names.iter().take(self.watched_max).map(|name| (*name, base.0)));
    }

    /// Takes note that a region is read if the snapshot refers to one of these chunks in it.
    pub fn opened(&mut self, regions: &Regions, region: RegionNumber, names: &[u64]) {
        if self.referred.contains_any(names) {
            self.refer_to_part(regions, region);
        }
    }

    /// Takes note that a region was chosen as a base.
    pub fn read_as_base(&mut self, regions: &Regions, base: RegionNumber) {
        let mut chain = Vec::new();
        regions.chain(base, &mut chain);
        for base in chain {
            self.add_extra(regions, base);
        }
    }

    fn add_extra(&mut self, regions: &Regions, base: RegionNumber) {
        if self.lacks(base) {
            self.extra.insert(base.0);
            self.extra_bytes += u64::from(regions.plain_len(base));
        }
    }

    fn read_anyway(&mut self, regions: &Regions, region: RegionNumber) {
        let len = u64::from(regions.plain_len(region));
        self.own.insert(region.0);
        if self.extra.contains(region.0) {
            self.extra.remove(region.0);
            self.extra_bytes -= len;
        }
        self.read_as_base(regions, region);
    }

    fn lacks(&self, region: RegionNumber) -> bool {
        !self.own.contains(region.0) && !self.extra.contains(region.0)
    }

    /// Returns the bytes that a restore decodes besides if it needs a region as base: the region and its bases, as far as they are
    /// not read anyway.
    pub fn cost(&self, regions: &Regions, base: RegionNumber) -> u64 {
        let mut chain = Vec::new();
        regions.chain(base, &mut chain);
        chain.into_iter().filter(|base| self.lacks(*base)).map(|base| u64::from(regions.plain_len(base))).sum()
    }

    /// Returns how many more bytes of bases a restore may read: as much as half of what it reads without, for a new region of
    /// `new_len` bytes more.
    pub fn headroom(&self, new_len: u32) -> u64 {
        let read = self.own_bytes + self.referred.distinct_bytes() + u64::from(new_len);
        (read / 2).max(ALLOWANCE_BYTES).saturating_sub(self.extra_bytes)
    }

    /// Returns the bytes of the regions that the snapshot is known to refer to.
    pub fn own_bytes(&self) -> u64 {
        self.own_bytes
    }

    /// Returns the bytes of bases that a restore decodes besides.
    pub fn extra_bytes(&self) -> u64 {
        self.extra_bytes
    }

    /// Returns the memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        // A map has a byte more for each entry, and fills up to 7/8.
        let names = (self.referred.lens.capacity() + self.watched.capacity()) * (size_of::<(u64, u32)>() + 1) * 8 / 7;
        self.own.memory_bytes() + self.extra.memory_bytes() + names
    }
}
