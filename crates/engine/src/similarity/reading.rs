//! Regions that a restore of the snapshot that is being made reads: its own, and bases.

use crate::bitmap::Bitmap;

use super::regions::{RegionNumber, Regions};

/// Bases that a small snapshot may read whatever it has of its own, in bytes: 16 regions of 512 KiB, a few percent of a second on any disk.
/// Without it nothing at the beginning of a stream would have a base.
pub const ALLOWANCE_BYTES: u64 = 8 << 20;

/// Regions that a snapshot refers to so far, and those that they are based on.
///
/// Takes two bits for each region of the repository: a megabyte for two terabytes.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    own: Bitmap,
    extra: Bitmap,
    own_bytes: u64,
    extra_bytes: u64,
}

impl Reading {
    /// Takes note that the snapshot refers to a chunk in a region.
    pub fn refer(&mut self, regions: &Regions, region: RegionNumber) {
        if self.own.contains(region.0) {
            return;
        }
        let len = u64::from(regions.plain_len(region));
        self.own.insert(region.0);
        self.own_bytes += len;
        if self.extra.contains(region.0) {
            self.extra.remove(region.0);
            self.extra_bytes -= len;
        }
        let mut chain = Vec::new();
        regions.chain(region, &mut chain);
        for base in chain {
            if self.lacks(base) {
                self.extra.insert(base.0);
                self.extra_bytes += u64::from(regions.plain_len(base));
            }
        }
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
        let allowed = u64::midpoint(self.own_bytes, u64::from(new_len)).max(ALLOWANCE_BYTES);
        allowed.saturating_sub(self.extra_bytes)
    }

    /// Returns the bytes of regions that the snapshot refers to.
    pub fn own_bytes(&self) -> u64 {
        self.own_bytes
    }

    /// Returns the bytes of bases that a restore decodes besides.
    pub fn extra_bytes(&self) -> u64 {
        self.extra_bytes
    }

    /// Returns the memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.own.memory_bytes() + self.extra.memory_bytes()
    }
}
