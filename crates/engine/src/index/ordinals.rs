//! Sets of container ordinals: one bit per container.

use crate::kv::Ordinal;

/// A set of ordinals.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OrdinalSet {
    bytes: Vec<u8>,
}

impl OrdinalSet {
    /// Takes a set as [`OrdinalSet::as_bytes`] gave it.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Returns the set as bytes: ordinal `8 b + i` is bit i of byte b.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Says whether the ordinal is in the set.
    pub fn contains(&self, Ordinal(ordinal): Ordinal) -> bool {
        self.bytes.get((ordinal / 8) as usize).is_some_and(|byte| byte >> (ordinal % 8) & 1 == 1)
    }

    /// Puts an ordinal in.
    pub fn insert(&mut self, Ordinal(ordinal): Ordinal) {
        let index = (ordinal / 8) as usize;
        if self.bytes.len() <= index {
            self.bytes.resize(index + 1, 0);
        }
        self.bytes[index] |= 1 << (ordinal % 8);
    }

    /// Takes an ordinal out.
    pub fn remove(&mut self, Ordinal(ordinal): Ordinal) {
        if let Some(byte) = self.bytes.get_mut((ordinal / 8) as usize) {
            *byte &= !(1 << (ordinal % 8));
        }
    }

    /// Takes out what `other` does not hold.
    pub fn intersect(&mut self, other: &Self) {
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
