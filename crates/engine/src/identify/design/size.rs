//! A size in bytes, as text.

use std::fmt;

use crate::error::Result;
use crate::source::exclude::parse_size;

/// Bytes; as text a number, or one with a unit, such as `256M`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

/// Units of text, the largest first.
const UNITS: [(u32, &str, &str); 4] = [(40, "T", "TiB"), (30, "G", "GiB"), (20, "M", "MiB"), (10, "k", "KiB")];

impl Size {
    /// Reads text.
    pub fn parse(text: &str) -> Result<Self> {
        parse_size(text).map(Self)
    }

    /// Returns the shortest text that [`Size::parse`] reads as this size.
    pub fn text(self) -> String {
        let unit = UNITS.into_iter().find(|(shift, ..)| self.0 != 0 && self.0.trailing_zeros() >= *shift);
        unit.map_or_else(|| self.0.to_string(), |(shift, unit, _)| format!("{}{unit}", self.0 >> shift))
    }
}

/// For people: in the largest unit of which it is a multiple, or a multiple of a 16th.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |shift: u32| 1 << shift <= self.0 && shift <= self.0.trailing_zeros() + 4;
        let Some((shift, _, unit)) = UNITS.into_iter().find(|(shift, ..)| fits(*shift)) else {
            return write!(f, "{} bytes", self.0);
        };
        let (whole, sixteenths) = (self.0 >> shift, (self.0 >> (shift - 4)) % 16);
        // A 16th is 0.0625.
        let fraction = format!("{:04}", sixteenths * 625);
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{whole} {unit}"),
            fraction => write!(f, "{whole}.{fraction} {unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn sizes_are_shown() {
        for (bytes, shown) in [
            (1 << 30, "1 GiB"),
            (3 << 19, "1.5 MiB"),
            (10 << 20, "10 MiB"),
            (1000, "1000 bytes"),
            ((4 << 20) + (1 << 16), "4.0625 MiB"),
            (0, "0 bytes"),
        ] {
            assert_eq!(Size(bytes).to_string(), shown);
        }
    }

    #[test]
    fn text_of_a_size_is_read_as_the_same_size() {
        let mut random = SplitMix64::new(5);
        let drawn = (0..2_000).map(|_| random.below(u64::MAX) >> random.below(64) << random.below(50));
        for bytes in drawn.chain([0, 1, 1023, 1024, 1 << 40, u64::MAX]) {
            assert_eq!(Size::parse(&Size(bytes).text()).unwrap(), Size(bytes));
        }
        assert_eq!([Size(4096), Size(3 << 20), Size(1000)].map(Size::text), ["4k", "3M", "1000"]);
    }
}
