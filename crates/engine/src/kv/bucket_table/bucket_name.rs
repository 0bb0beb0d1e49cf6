//! Names of buckets: prefixes of keys.

use std::ops::RangeInclusive;

#[cfg(test)]
use crate::kv::Key;

/// Longest prefix of a bucket in bits. With longer ones, the runs of any sensible memtable are shorter than a page.
pub(in crate::kv) const DEPTH_MAX: u8 = 20;

/// Name of a bucket: it holds the keys whose first `depth` bits are `prefix`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct BucketName {
    prefix: u32,
    depth: u8,
}

impl BucketName {
    /// All keys.
    #[cfg(test)]
    pub(crate) const WHOLE: Self = Self { prefix: 0, depth: 0 };

    /// Names a bucket; `None` if the prefix has more than `depth` bits, or `depth` exceeds `DEPTH_MAX`.
    pub(crate) fn new(prefix: u32, depth: u8) -> Option<Self> {
        (depth <= DEPTH_MAX && u64::from(prefix) < 1 << depth).then_some(Self { prefix, depth })
    }

    /// Returns the bits that all keys begin with.
    pub(crate) fn prefix(self) -> u32 {
        self.prefix
    }

    /// Returns the length of the prefix in bits.
    pub(crate) fn depth(self) -> u8 {
        self.depth
    }

    /// Returns true if a key belongs to the bucket.
    #[cfg(test)]
    pub(crate) fn holds(self, key: &Key) -> bool {
        first_bits(key.head(), self.depth) == self.prefix
    }

    /// Returns the fraction of the bucket before a key, in units of 1/65,536: the 16 bits after the prefix of its head.
    pub(crate) fn fraction(self, head: u64) -> u16 {
        let [high, low, ..] = (head << self.depth).to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    /// Returns the smallest head of a key of the bucket.
    pub(crate) fn first_head(self) -> u64 {
        u64::from(self.prefix).checked_shl(64 - u32::from(self.depth)).unwrap_or(0)
    }

    /// Returns the largest head of a key of the bucket.
    pub(crate) fn last_head(self) -> u64 {
        self.first_head() | u64::MAX.checked_shr(u32::from(self.depth)).unwrap_or(0)
    }

    /// Returns the heads of the keys of the bucket.
    pub(crate) fn heads(self) -> RangeInclusive<u64> {
        self.first_head()..=self.last_head()
    }

    /// Returns the two halves of the bucket, in order; `None` at the largest depth.
    pub(crate) fn halves(self) -> Option<[Self; 2]> {
        let depth = self.depth + 1;
        (depth <= DEPTH_MAX).then(|| [self.prefix << 1, self.prefix << 1 | 1].map(|prefix| Self { prefix, depth }))
    }

    /// Returns the bucket that this one is a half of; `None` for [`BucketName::WHOLE`].
    pub(crate) fn parent(self) -> Option<Self> {
        Some(Self { prefix: self.prefix >> 1, depth: self.depth.checked_sub(1)? })
    }
}

/// Returns the first `bits` bits of a head, at most [`DEPTH_MAX`].
pub(in crate::kv) fn first_bits(head: u64, bits: u8) -> u32 {
    // A shift by 64 overflows: the empty prefix is 0.
    let bits = head.checked_shr(64 - u32::from(bits)).unwrap_or(0);
    u32::try_from(bits).expect("a prefix has at most DEPTH_MAX bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_grow_with_the_key_and_names_are_checked() {
        let name = BucketName::new(5, 3).unwrap();
        assert_eq!(name.fraction(name.first_head()), 0);
        assert_eq!(name.fraction(name.first_head() + (u64::MAX >> 3)), u16::MAX);
        assert_eq!(BucketName::WHOLE.fraction(0x1234_5678 << 32), 0x1234);
        assert!(BucketName::new(8, 3).is_none());
        assert!(BucketName::new(0, DEPTH_MAX + 1).is_none());
        assert!(BucketName::new(1, 0).is_none());
    }
}
