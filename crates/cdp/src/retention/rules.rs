//! Rules that keep moments.

use std::time::Duration;

/// Seconds of a minute, an hour and a day.
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Seconds in which one candidate is enough where no rule keeps minutes: offsets of local time are multiples of it.
const COARSE: u64 = 15 * MINUTE;
const NANOSECONDS: u64 = 1_000_000_000;

/// Rules that keep moments by their age, which counts from the newest checkpoint. What any rule keeps is kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeepMoments {
    /// Age up to which every write is kept.
    pub writes: Duration,
    /// Age up to which the last flush of each minute is kept.
    pub minutes: Duration,
    /// Age up to which the last flush of each hour is kept.
    pub hours: Duration,
    /// Age up to which the last flush of each day is kept.
    pub days: Duration,
    /// Age up to which marks are kept; `None`: the longest of the others.
    pub marks: Option<Duration>,
    /// Names of marks that are kept for ever.
    pub pins: Vec<String>,
    /// Tags: checkpoints that have one of them stay as they are.
    pub tags: Vec<String>,
}

/// A rule that keeps one moment of each period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tier {
    /// Seconds of a period of local time.
    pub(super) period: u64,
    /// Age up to which it keeps moments, in nanoseconds.
    pub(super) age: u64,
}

impl KeepMoments {
    /// Returns true if no rule keeps moments by their age.
    pub fn is_empty(&self) -> bool {
        [self.writes, self.minutes, self.hours, self.days].iter().all(Duration::is_zero)
    }

    /// Returns the rules that keep one moment of each period, the shortest period first.
    pub(super) fn tiers(&self) -> [Tier; 3] {
        let tier = |period, age| Tier { period, age: nanoseconds(age) };
        [tier(MINUTE, self.minutes), tier(HOUR, self.hours), tier(DAY, self.days)]
    }

    /// Returns true if every write of this age is kept. Ages are in nanoseconds.
    pub(super) fn keeps_writes(&self, age: u64) -> bool {
        age < nanoseconds(self.writes)
    }

    /// Returns true if a mark of this age is kept.
    pub(super) fn keeps_mark(&self, name: &str, age: u64) -> bool {
        let longest = self.writes.max(self.minutes).max(self.hours).max(self.days);
        self.pins.iter().any(|pin| pin == name) || age <= nanoseconds(self.marks.unwrap_or(longest))
    }

    /// Returns the seconds of which one flush of this age is enough to know.
    pub(super) fn candidate_period(&self, age: u64) -> u64 {
        if age <= nanoseconds(self.minutes) { MINUTE } else { COARSE }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(NANOSECONDS).saturating_add(duration.subsec_nanos().into())
}

/// Returns the seconds of a time in nanoseconds.
pub(super) fn seconds(time: u64) -> i64 {
    i64::try_from(time / NANOSECONDS).unwrap_or(i64::MAX)
}
