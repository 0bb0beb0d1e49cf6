//! Sets of small numbers, one bit for each.

/// A set of numbers. Takes a bit for each number up to its largest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bitmap {
    bytes: Vec<u8>,
}

impl Bitmap {
    /// Makes a set from the bytes of [`Bitmap::as_bytes`].
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Returns the set as bytes: number `8 b + i` is bit i of byte b.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns true if the set contains the number.
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.bytes.get((number / 8) as usize).is_some_and(|byte| byte >> (number % 8) & 1 == 1)
    }

    /// Adds a number.
    pub(crate) fn insert(&mut self, number: u32) {
        let index = (number / 8) as usize;
        if self.bytes.len() <= index {
            self.bytes.resize(index + 1, 0);
        }
        if let Some(byte) = self.bytes.get_mut(index) {
            *byte |= 1 << (number % 8);
        }
    }

    /// Removes a number.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(byte) = self.bytes.get_mut((number / 8) as usize) {
            *byte &= !(1 << (number % 8));
        }
    }

    /// Removes the numbers that `other` does not contain.
    pub(crate) fn intersect(&mut self, other: &Self) {
        self.bytes.truncate(other.bytes.len());
        self.bytes.iter_mut().zip(&other.bytes).for_each(|(byte, other)| *byte &= other);
    }

    /// Returns how many numbers the set contains.
    pub(crate) fn count(&self) -> usize {
        self.bytes.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// Returns the memory of the set, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in_and_not_taken_out() {
        let set = |numbers: &[u32]| {
            let mut set = Bitmap::default();
            for &number in numbers {
                set.insert(number);
            }
            set
        };
        let mut some = set(&[0, 7, 8, 40]);
        assert_eq!(some.count(), 4);
        some.remove(8);
        some.remove(1000);
        let held: Vec<_> = (0..100).filter(|&number| some.contains(number)).collect();
        assert_eq!(held, [0, 7, 40]);
        some.intersect(&set(&[7, 9]));
        assert!(some.contains(7));
        assert!(!some.contains(0));
        assert!(!some.contains(40));
        assert_eq!(some.count(), 1);
    }
}
