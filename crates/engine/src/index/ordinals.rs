//! Sets of container ordinals, one bit for each container.

use crate::kv::Ordinal;

/// A set of ordinals.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct OrdinalSet {
    bytes: Vec<u8>,
}

impl OrdinalSet {
    /// Makes a set from the bytes of [`OrdinalSet::as_bytes`].
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Returns the set as bytes: ordinal `8 b + i` is bit i of byte b.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns true if the set contains the ordinal.
    pub(super) fn contains(&self, Ordinal(ordinal): Ordinal) -> bool {
        self.bytes.get((ordinal / 8) as usize).is_some_and(|byte| byte >> (ordinal % 8) & 1 == 1)
    }

    /// Adds an ordinal.
    pub(crate) fn insert(&mut self, Ordinal(ordinal): Ordinal) {
        let index = (ordinal / 8) as usize;
        if self.bytes.len() <= index {
            self.bytes.resize(index + 1, 0);
        }
        self.bytes[index] |= 1 << (ordinal % 8);
    }

    /// Removes an ordinal.
    pub(super) fn remove(&mut self, Ordinal(ordinal): Ordinal) {
        if let Some(byte) = self.bytes.get_mut((ordinal / 8) as usize) {
            *byte &= !(1 << (ordinal % 8));
        }
    }

    /// Removes the ordinals that `other` does not contain.
    pub(super) fn intersect(&mut self, other: &Self) {
        self.bytes.truncate(other.bytes.len());
        self.bytes.iter_mut().zip(&other.bytes).for_each(|(byte, other)| *byte &= other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in_and_not_taken_out() {
        let set = |ordinals: &[u32]| {
            let mut set = OrdinalSet::default();
            for &ordinal in ordinals {
                set.insert(Ordinal(ordinal));
            }
            set
        };
        let mut some = set(&[0, 7, 8, 40]);
        some.remove(Ordinal(8));
        some.remove(Ordinal(1000));
        let held: Vec<_> = (0..100).filter(|&ordinal| some.contains(Ordinal(ordinal))).collect();
        assert_eq!(held, [0, 7, 40]);
        some.intersect(&set(&[7, 9]));
        assert!(some.contains(Ordinal(7)));
        assert!(!some.contains(Ordinal(0)));
        assert!(!some.contains(Ordinal(40)));
    }
}
