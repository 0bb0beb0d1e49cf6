//! The filter before the table: the engine's own, whose bits of a chunk lie in one cache line, or the classic one, whose bits
//! lie anywhere, as in the paper.

use onefold_accel::memory::will_need;
use onefold_engine::kv::{Key, filter};
use onefold_engine::random::mix64;

use crate::mapped::log::Name;

/// Most bits that the classic filter sets for a fingerprint.
pub const SCATTERED_HASHES_MAX: u32 = 16;

/// Words of a page of memory.
const PAGE_WORDS: usize = 512;

/// Kind of filter, its size, and the bits set for a fingerprint.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FilterShape {
    /// None: every chunk may be known.
    None,
    /// The engine's: one cache line for a fingerprint (`onefold_engine::kv::filter`).
    Blocked {
        /// Memory in bytes.
        bytes: usize,
        /// Bits for a fingerprint.
        hashes: u32,
    },
    /// The classic one: each bit anywhere. The paper's has 6 and, unless it is swept, 1 GiB.
    Scattered {
        /// Memory in bytes.
        bytes: usize,
        /// Bits for a fingerprint.
        hashes: u32,
    },
}

/// A classic Bloom filter, `hashes` bits of a fingerprint anywhere in the memory.
#[derive(Debug)]
pub struct Scattered {
    words: Vec<u64>,
    hashes: u32,
}

impl Scattered {
    fn new(bytes: usize, hashes: u32) -> Self {
        let mut words = vec![0; (bytes / 8).max(1)];
        // The first access to a page of new memory is slow, and would count as latency of the filter.
        for page in words.chunks_mut(PAGE_WORDS) {
            page.fill(std::hint::black_box(0));
        }
        Self { words, hashes: hashes.clamp(1, SCATTERED_HASHES_MAX) }
    }

    /// Returns the bits of a fingerprint: two hashes out of its own bits, and sums of them (Kirsch and Mitzenmacher, "Less
    /// Hashing, Same Performance", ESA 2006). The paper takes six overlapping words of the fingerprint.
    fn bits_of(&self, name: &Name) -> impl Iterator<Item = (usize, u64)> + use<> {
        let bits = self.words.len() as u128 * 64;
        let (mut at, step) = (name.head, mix64(name.middle ^ u64::from(name.tail)) | 1);
        (0..self.hashes).map(move |_| {
            let bit = (u128::from(at) * bits) >> 64;
            at = at.wrapping_add(step);
            let word = usize::try_from(bit / 64).expect("below the number of words");
            (word, 1 << (bit % 64))
        })
    }

    fn prefetch(&self, name: &Name) {
        self.bits_of(name).for_each(|(word, _)| will_need(&self.words[word]));
    }

    fn test_and_set(&mut self, name: &Name) -> bool {
        let mut was_set = true;
        for (word, bit) in self.bits_of(name) {
            was_set &= self.words[word] & bit != 0;
            self.words[word] |= bit;
        }
        was_set
    }
}

/// The filter.
#[derive(Debug)]
pub enum Filter {
    /// Lets everything pass.
    None,
    /// The engine's.
    Blocked(filter::Filter),
    /// The classic one.
    Scattered(Scattered),
}

impl Filter {
    /// Makes an empty filter.
    pub fn new(shape: FilterShape) -> Self {
        match shape {
            FilterShape::None => Self::None,
            FilterShape::Blocked { bytes, hashes } => Self::Blocked(filter::Filter::new(bytes, hashes)),
            FilterShape::Scattered { bytes, hashes } => Self::Scattered(Scattered::new(bytes, hashes)),
        }
    }

    /// Returns its memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Blocked(filter) => filter.bytes(),
            Self::Scattered(filter) => filter.words.len() * 8,
        }
    }

    /// Returns true if there is no filter.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Prefetches the memory of a probe.
    #[inline]
    pub fn prefetch(&self, key: &Key, name: &Name) {
        match self {
            Self::None => {}
            Self::Blocked(filter) => filter.prefetch(key),
            Self::Scattered(filter) => filter.prefetch(name),
        }
    }

    /// Sets the bits of a fingerprint; returns true if all were set already: it may have been set before.
    #[inline]
    pub fn test_and_set(&mut self, key: &Key, name: &Name) -> bool {
        match self {
            Self::None => true,
            Self::Blocked(filter) => filter.test_and_set(key),
            Self::Scattered(filter) => filter.test_and_set(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::float;
    use crate::stream::name;

    /// Returns the rate of false positives to expect of a filter that holds so many fingerprints. Of the classic one
    /// `(1 - e^(-k n / m))^k`, of the engine's [`filter::false_positive_rate`].
    fn false_positive_rate(shape: FilterShape, fingerprints: u64) -> f64 {
        match shape {
            FilterShape::None => 1.0,
            FilterShape::Blocked { bytes, hashes } => filter::false_positive_rate(bytes, hashes, fingerprints),
            FilterShape::Scattered { bytes, hashes } => {
                let hashes = f64::from(hashes.clamp(1, SCATTERED_HASHES_MAX));
                let bits = float((bytes / 8).max(1) as u64) * 64.0;
                (1.0 - f64::exp(-hashes * float(fingerprints) / bits)).powf(hashes)
            }
        }
    }

    #[test]
    fn what_was_set_is_found_and_false_positives_are_as_rare_as_the_formula_says() {
        let (bytes, hashes) = (16 << 10, 6);
        for shape in [FilterShape::Scattered { bytes, hashes }, FilterShape::Blocked { bytes, hashes }] {
            let mut filter = Filter::new(shape);
            assert_eq!(filter.bytes(), bytes);
            let mut test_and_set = |number: u64| {
                let key = Key::from(&name(number));
                filter.prefetch(&key, &Name::from(&key));
                filter.test_and_set(&key, &Name::from(&key))
            };
            assert!(!test_and_set(0));
            assert!((1..16_000).filter(|number| test_and_set(*number)).count() < 8_000);
            assert!((0..16_000).all(&mut test_and_set));
            let count = u32::try_from((16_000..17_000).filter(|number| test_and_set(*number)).count()).unwrap();
            let (rate, expected) = (f64::from(count) / 1_000.0, false_positive_rate(shape, 16_500));
            assert!((rate - expected).abs() < 0.05, "{shape:?}: {rate}, not {expected}");
        }
    }

    #[test]
    fn no_filter_lets_everything_pass() {
        let key = Key::from(&name(1));
        assert!(Filter::new(FilterShape::None).test_and_set(&key, &Name::from(&key)));
    }
}
