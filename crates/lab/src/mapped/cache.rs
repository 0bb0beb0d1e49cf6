//! The part of the log in memory: the paper's read buffer, or the traditional cache that it replaces.

use crate::mapped::buffer::{BUFFERED_BYTES, ReadBuffer};
use crate::mapped::log::{Cached, Name};
use crate::mapped::lru::Lru;

/// Entries that follow a hit and are copied with it: 50, as in section 5a of the paper.
pub const NEIGHBORS: usize = 50;

/// Which cache, and how large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheShape {
    /// None.
    None,
    /// The read buffer: the oldest entries are overwritten.
    Fifo {
        /// Memory in bytes.
        bytes: usize,
        /// Entries that are copied after a hit.
        neighbors: usize,
    },
    /// Windows; the least recently used is evicted.
    Lru {
        /// Memory in bytes.
        bytes: usize,
        /// Entries that are copied after a hit.
        neighbors: usize,
    },
}

/// The cache.
#[derive(Debug)]
pub enum Cache {
    /// Holds nothing.
    None,
    /// The read buffer.
    Fifo(ReadBuffer, usize),
    /// The traditional cache.
    Lru(Lru, usize),
}

impl Cache {
    /// Makes a cache; none if its memory does not hold one window.
    pub fn new(shape: CacheShape) -> Self {
        // The hit itself is copied with what follows it.
        match shape {
            CacheShape::Fifo { bytes, neighbors } if (neighbors + 1) * BUFFERED_BYTES <= bytes => {
                Self::Fifo(ReadBuffer::new(bytes), neighbors + 1)
            }
            CacheShape::Lru { bytes, neighbors } if (neighbors + 1) * 4 * BUFFERED_BYTES <= bytes => {
                Self::Lru(Lru::new(bytes, neighbors + 1), neighbors + 1)
            }
            CacheShape::None | CacheShape::Fifo { .. } | CacheShape::Lru { .. } => Self::None,
        }
    }

    /// Returns its memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Fifo(buffer, _) => buffer.bytes(),
            Self::Lru(lru, _) => lru.bytes(),
        }
    }

    /// Returns the number of evicted windows; for the read buffer, the overwritten entries divided by the length of a window.
    pub fn evictions(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Fifo(buffer, window) => buffer.overwritten() / *window as u64,
            Self::Lru(lru, _) => lru.evictions(),
        }
    }

    /// Prefetches the first access of a lookup.
    #[inline]
    pub fn prefetch(&self, name: &Name) {
        if let Self::Fifo(buffer, _) = self {
            buffer.prefetch(name);
        }
    }

    /// Finds a chunk.
    #[inline]
    pub fn get(&mut self, name: &Name) -> Option<Cached> {
        match self {
            Self::None => None,
            Self::Fifo(buffer, _) => buffer.get(name),
            Self::Lru(lru, _) => lru.get(name),
        }
    }

    /// Replaces the state of an entry that was just found.
    pub fn refresh(&mut self, location: usize, state: u64) {
        match self {
            Self::None => {}
            Self::Fifo(buffer, _) => buffer.refresh(location, state),
            Self::Lru(lru, _) => lru.refresh(location, state),
        }
    }

    /// Takes the entries from a hit on. `copy` writes them and returns their number. Returns true if there is a cache.
    pub fn fill(&mut self, position: u64, copy: impl FnOnce(&mut [u64]) -> usize) -> bool {
        match self {
            Self::None => return false,
            Self::Fifo(buffer, window) => buffer.fill(position, *window, copy),
            Self::Lru(lru, window) => lru.fill(position, *window, copy),
        }
        true
    }
}
