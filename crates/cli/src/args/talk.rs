//! Level of detail that `-v` and `--verbose=N` choose.

use std::num::ParseIntError;
use std::str::FromStr;

/// One `-v`, or the level that `--verbose=N` gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Talk {
    /// One level more.
    More,
    /// This level.
    Level(u8),
}

impl FromStr for Talk {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "more" { Ok(Self::More) } else { Ok(Self::Level(text.parse()?)) }
    }
}

impl Talk {
    /// Returns the level that all of them together choose: each counts from the one before.
    pub(crate) fn level(all: &[Self]) -> u8 {
        all.iter().fold(0, |level, talk| match talk {
            Self::More => level.saturating_add(1),
            Self::Level(level) => *level,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_one_counts_from_the_one_before() {
        assert_eq!(Talk::level(&[]), 0);
        assert_eq!(Talk::level(&[Talk::More, Talk::More]), 2);
        assert_eq!(Talk::level(&[Talk::Level(2), Talk::More, Talk::Level(1)]), 1);
        assert_eq!("2".parse(), Ok(Talk::Level(2)));
        assert!("much".parse::<Talk>().is_err());
    }
}
