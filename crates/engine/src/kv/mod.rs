//! The key-value stores under the exact index: from fingerprint to container and log position, in bounded memory.
//!
//! A [`filter::Filter`] in memory answers for most fingerprints that are not stored; an [`EntryStore`] answers for the rest.
//! The bucket table is the store on disk, and `memory` a store in memory. Fingerprints are keyed and therefore uniform: their own bits choose buckets and
//! filter bits, without a hash. Only the first [`KEY_LEN`] bytes count, so that the filter can be rebuilt from the store.

use crate::types::Fingerprint;

pub(crate) mod bucket_table;
mod fields;
pub mod filter;
mod memory;
pub(crate) mod sealed;
pub mod store;

pub use bucket_table::counters::TableCounters;
pub use bucket_table::flush::{FlushDone, FlushJob};
pub(crate) use bucket_table::page::PAGE_BYTES;
pub use bucket_table::search::RunOrder;
pub(crate) use bucket_table::spec::BATCH_PAGES_MAX;
pub use bucket_table::spec::{BucketReads, TableSpec, merge_buffer_bytes};
pub use bucket_table::table::Table;
pub(crate) use fields::Fields;
pub use memory::MemorySpec;
pub use sealed::{Seal, SealedReader, SealedWriter};
pub use store::{Containers, EntryStore, Live, Lookup, OpenStore, StoreCounters, Surroundings, SyncContainers};

/// Bytes of a fingerprint that the table keeps: 160 keyed bits identify a chunk.
pub const KEY_LEN: usize = 20;

/// The first bytes of a fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub [u8; KEY_LEN]);

impl From<&Fingerprint> for Key {
    fn from(fingerprint: &Fingerprint) -> Self {
        let mut key = [0; KEY_LEN];
        key.copy_from_slice(&fingerprint.0[..KEY_LEN]);
        Self(key)
    }
}

impl Key {
    /// Returns the first eight bytes, big-endian, so that integers are ordered as keys are.
    pub fn head(&self) -> u64 {
        u64::from_be_bytes(*self.0.first_chunk().expect("a key has 20 bytes"))
    }

    /// Returns the bytes that neither [`Key::head`] nor [`Key::tail`] holds.
    pub fn middle(&self) -> u64 {
        let bytes = self.0[8..].first_chunk().expect("a key has 20 bytes");
        u64::from_le_bytes(*bytes)
    }

    /// Returns one of several keys that stand for this one; number 0 is the key itself. Their heads are equal.
    pub(crate) fn nth(mut self, number: u8) -> Self {
        self.0[8] ^= number;
        self
    }

    /// Returns the last four bytes.
    pub fn tail(&self) -> u32 {
        u32::from_le_bytes(*self.0.last_chunk().expect("a key has 20 bytes"))
    }
}

/// Returns the index of a number's part if all 64-bit numbers are divided into `count` equal parts; 0 for no parts.
pub(crate) fn part_of(bits: u64, count: usize) -> usize {
    let product = u128::from(bits) * count as u128;
    usize::try_from(product >> 64).expect("the index is below the number of parts")
}

/// Host-local number of a container.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ordinal(pub u32);

/// Number of a record in the arrival log, or in the stream log: the highest bit shows which.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position(pub u64);

impl Position {
    /// A position that no log reaches: a hit on the entry prefetches nothing.
    pub const NONE: Self = Self(u64::MAX);

    /// The bit of positions in the stream log.
    const STREAM: u64 = 1 << 63;

    /// Returns the position of a record of the stream log, given by its number.
    pub(crate) fn in_stream(number: u64) -> Self {
        Self(number | Self::STREAM)
    }

    /// Returns true if it is a position in the stream log.
    pub(crate) fn is_in_stream(self) -> bool {
        self != Self::NONE && self.0 & Self::STREAM != 0
    }

    /// Returns the number of the record in its log.
    pub(crate) fn number(self) -> u64 {
        self.0 & !Self::STREAM
    }
}

/// Entry of a chunk in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Key of the chunk.
    pub key: Key,
    /// Container of the chunk.
    pub ordinal: Ordinal,
    /// Position of the chunk in one of the logs. A store keeps all of its bits.
    pub position: Position,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_with_the_number_and_are_all_used() {
        let parts: Vec<usize> = (0..=255_u64).map(|step| part_of(step << 56 | step, 7)).collect();
        assert!(parts.is_sorted());
        assert_eq!((parts[0], parts[255], part_of(u64::MAX, 7)), (0, 6, 6));
        assert_eq!((0..7).filter(|part| parts.contains(part)).count(), 7);
        assert_eq!(part_of(u64::MAX, 0), 0);
    }
}
