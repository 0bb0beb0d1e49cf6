//! The key-value store under the exact index: fingerprint to place, on disk, in bounded memory.
//!
//! A [`filter::Filter`] in memory answers for most fingerprints that were never seen; a [`table::Table`] of buckets on
//! disk answers for the rest. Fingerprints are keyed and therefore uniform: everything here places them by their own
//! bits and hashes nothing. Only the first [`KEY_LEN`] bytes are used, so that the filter can be rebuilt from the table.

use crate::types::Fingerprint;

mod bucket;
mod bucket_name;
mod change;
mod counters;
mod damage;
mod disk_runs;
mod extent;
mod fields;
mod file;
pub mod filter;
mod flush;
mod flush_state;
mod lookup;
mod manifest;
mod memtable;
mod merge;
mod page;
mod pool;
mod recent;
mod run;
mod run_source;
mod run_writer;
mod sealed;
mod search;
mod spans;
mod spec;
mod table;

pub use bucket_name::BucketName;
pub use counters::TableCounters;
pub(crate) use fields::Fields;
pub use flush::{FlushDone, FlushJob, Live};
pub use lookup::{LookupDone, LookupJob};
pub use memtable::STAGED_BYTES;
pub use page::PAGE_BYTES;
pub use sealed::{Seal, SealedReader, SealedWriter};
pub use search::Lookup;
pub use spec::{BATCH_PAGES_MAX, BucketReads, TableSpec, merge_buffer_bytes};
pub use table::Table;

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

    /// Returns the last four bytes.
    pub fn tail(&self) -> u32 {
        u32::from_le_bytes(*self.0.last_chunk().expect("a key has 20 bytes"))
    }

    /// Returns the bucket out of `buckets` that holds the key, and where in the bucket it falls, in units of 1/65,536.
    /// Both grow with the key.
    pub fn spread(&self, buckets: u32) -> (u32, u16) {
        let product = u128::from(self.head()) * u128::from(buckets);
        let bucket = u32::try_from(product >> 64).expect("the bucket is below the number of buckets");
        let [.., high, low] = u64::try_from(product >> 48 & 0xffff).expect("16 bits").to_be_bytes();
        (bucket, u16::from_be_bytes([high, low]))
    }
}

/// Returns which of `count` equal parts of all 64-bit numbers a number falls into; 0 if there are none.
pub(crate) fn part_of(bits: u64, count: usize) -> usize {
    let product = u128::from(bits) * count as u128;
    usize::try_from(product >> 64).expect("a part is below their number")
}

/// Host-local number of a container.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ordinal(pub u32);

/// Number of a record in the arrival log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position(pub u64);

/// What the table holds of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Which chunk.
    pub key: Key,
    /// The container that holds it.
    pub ordinal: Ordinal,
    /// Where it stands in the arrival log.
    pub position: Position,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_and_fences_grow_with_the_key() {
        let mut last = (0, 0);
        for step in 0..=255_u8 {
            let mut key = [0xff; KEY_LEN];
            key[0] = step;
            let place = Key(key).spread(7);
            assert!(last <= place);
            last = place;
        }
        assert_eq!(last, (6, 0xffff));
        assert_eq!(Key([0; KEY_LEN]).spread(7), (0, 0));
    }
}
