//! Moments of a history, and how people name them.

use crate::journal::Lsn;

/// How a time becomes a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TimeRule {
    /// The last flush that is not after it: a state that a file system can use after a power cut.
    #[default]
    LastFlush,
    /// The last record that is not after it.
    Exact,
}

/// A moment as a user names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum At {
    /// After the last record that is known.
    Latest,
    /// After a record.
    Lsn(Lsn),
    /// A time, in nanoseconds since 1970-01-01 00:00:00 UTC.
    Time(u64, TimeRule),
    /// The newest mark with this name.
    Mark(String),
    /// The N-th flush before the last one.
    FlushBack(u64),
}

impl At {
    /// Understands `latest`, `lsn:N` and `flush~N`; anything else is the name of a mark. Times are the caller's.
    pub fn parse(text: &str) -> Self {
        if text == "latest" {
            return Self::Latest;
        }
        if let Some(lsn) = text.strip_prefix("lsn:").and_then(|digits| digits.parse().ok()) {
            return Self::Lsn(Lsn(lsn));
        }
        match text.strip_prefix("flush~").and_then(|digits| digits.parse().ok()) {
            Some(back) => Self::FlushBack(back),
            None => Self::Mark(text.to_owned()),
        }
    }
}

/// A moment: the state after a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// The record.
    pub lsn: Lsn,
    /// Its wall clock in nanoseconds since 1970-01-01 00:00:00 UTC, if it was looked for.
    pub time: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_named_by_records_flushes_and_marks() {
        assert_eq!(At::parse("latest"), At::Latest);
        assert_eq!(At::parse("lsn:70"), At::Lsn(Lsn(70)));
        assert_eq!(At::parse("flush~0"), At::FlushBack(0));
        for name in ["before upgrade", "lsn:x", "flush~", "70"] {
            assert_eq!(At::parse(name), At::Mark(name.into()));
        }
    }
}
