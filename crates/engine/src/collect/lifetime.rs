//! Lifetime classes of chunks: chunks that will die together are copied together.
//!
//! The newest snapshot that reaches a chunk predicts how long it lives. What only old snapshots reach dies with them, as a
//! whole container, without being copied once more. (Zou et al., "The Dilemma between Deduplication and Locality", FAST 2021,
//! section 3, lay chunks out by the versions that use them.)

use std::time::Duration;

use crate::types::Timestamp;

/// Number of classes.
pub const CLASSES: usize = 5;

const DAY: Duration = Duration::from_hours(24);

/// Lifetime class of a chunk, by the newest snapshot that reaches it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LifetimeClass {
    /// The newest snapshot.
    Newest,
    /// A snapshot of the last day.
    Day,
    /// A snapshot of the last week.
    Week,
    /// A snapshot of the last month, which has 31 days.
    Month,
    /// An older snapshot.
    Older,
}

impl LifetimeClass {
    /// Returns the class of a snapshot that is not the newest, `age` older than the newest.
    pub fn of_age(age: Duration) -> Self {
        match age {
            _ if age <= DAY => Self::Day,
            _ if age <= 7 * DAY => Self::Week,
            _ if age <= 31 * DAY => Self::Month,
            _ => Self::Older,
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// The class of each rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LifetimeClasses {
    by_rank: Vec<LifetimeClass>,
}

impl LifetimeClasses {
    /// Returns the classes of snapshots by their times, in the order of their ranks. The first is the newest.
    pub fn of_times(times: impl IntoIterator<Item = Timestamp>) -> Self {
        let mut newest = None;
        let class = |time: Timestamp| match newest {
            None => {
                newest = Some(time);
                LifetimeClass::Newest
            }
            Some(newest) => {
                let seconds = newest.seconds.saturating_sub(time.seconds);
                LifetimeClass::of_age(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
            }
        };
        times.into_iter().map(class).collect()
    }

    /// Returns the class of a rank. Ranks without a snapshot are old.
    pub fn of(&self, rank: u16) -> LifetimeClass {
        self.by_rank.get(usize::from(rank)).copied().unwrap_or(LifetimeClass::Older)
    }
}

impl FromIterator<LifetimeClass> for LifetimeClasses {
    /// Takes the class of each rank, from 0 on.
    fn from_iter<I: IntoIterator<Item = LifetimeClass>>(classes: I) -> Self {
        Self { by_rank: classes.into_iter().take(usize::from(u16::MAX)).collect() }
    }
}

/// Bytes of live chunks in each class.
pub(super) type ClassBytes = [u64; CLASSES];

/// Classes that share containers: the number of the group of each class, ascending from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Grouping {
    groups: [usize; CLASSES],
}

impl Grouping {
    /// Divides classes into at most `groups_max` groups of neighbors, at least one. A group that would hold less than
    /// `bytes_min` shares with older ones, the last with newer ones.
    pub(super) fn new(bytes: &ClassBytes, bytes_min: u64, groups_max: usize) -> Self {
        let mut starts: Vec<usize> = Vec::with_capacity(CLASSES);
        let mut filled = bytes_min;
        for (class, bytes) in bytes.iter().enumerate() {
            if bytes_min <= filled {
                starts.push(class);
                filled = 0;
            }
            filled = filled.saturating_add(*bytes);
        }
        if 1 < starts.len() && filled < bytes_min {
            starts.pop();
        }
        let sum = |from: usize, to: usize| -> u64 {
            let classes = bytes.get(from..to).unwrap_or_default();
            classes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
        };
        while groups_max.max(1) < starts.len() {
            // Joins the two neighbors that hold the least together.
            let end = |index: usize| starts.get(index).copied().unwrap_or(CLASSES);
            let joined = (1..starts.len()).min_by_key(|&index| sum(end(index - 1), end(index + 1)));
            starts.remove(joined.expect("there are two groups or more"));
        }
        let mut groups = [0; CLASSES];
        for (class, group) in groups.iter_mut().enumerate() {
            *group = starts.iter().filter(|&&start| start <= class).count() - 1;
        }
        Self { groups }
    }

    /// Returns the number of groups.
    pub(super) fn len(&self) -> usize {
        self.groups.last().map_or(0, |group| group + 1)
    }

    /// Returns the number of a class's group.
    pub(super) fn of(&self, class: LifetimeClass) -> usize {
        self.groups.get(class.index()).copied().expect("a group for each class")
    }
}

/// Adds bytes to a class.
pub(super) fn add(bytes: &mut ClassBytes, class: LifetimeClass, len: u32) {
    let sum = bytes.get_mut(class.index()).expect("a sum for each class");
    *sum = sum.saturating_add(len.into());
}

/// Returns the class that holds most bytes, the newest of several.
pub(super) fn largest(bytes: &ClassBytes) -> LifetimeClass {
    use LifetimeClass::{Day, Month, Newest, Older, Week};
    let classes = bytes.iter().zip([Newest, Day, Week, Month, Older]).rev();
    classes.max_by_key(|(bytes, _)| **bytes).map_or(Older, |(_, class)| class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    use LifetimeClass::{Day, Month, Newest, Older, Week};

    const ALL: [LifetimeClass; CLASSES] = [Newest, Day, Week, Month, Older];

    #[test]
    fn snapshots_are_classed_by_their_age_relative_to_the_newest() {
        let day = 86_400;
        let ages = [0, 0, day, day + 1, 7 * day, 7 * day + 1, 31 * day, 31 * day + 1, -5];
        let times = ages.map(|age| Timestamp { seconds: 1_000_000_000 - age, nanoseconds: 0 });
        let classes = LifetimeClasses::of_times(times);
        let found: Vec<LifetimeClass> = (0..ages.len()).map(|rank| classes.of(u16::try_from(rank).unwrap())).collect();
        assert_eq!(found, [Newest, Day, Day, Week, Week, Month, Month, Older, Day]);
        assert_eq!((classes.of(9), classes.of(u16::MAX)), (Older, Older));
    }

    #[test]
    fn groups_are_neighbors_and_each_holds_enough_or_all() {
        let mut random = SplitMix64::new(1);
        for _ in 0..2000 {
            let bytes: ClassBytes = std::array::from_fn(|_| random.below(4) * random.below(60));
            let groups_max = random.index(6);
            let grouping = Grouping::new(&bytes, 50, groups_max);
            let groups = ALL.map(|class| grouping.of(class));
            assert_eq!(groups[0], 0);
            assert!(groups.windows(2).all(|pair| pair[0] <= pair[1] && pair[1] <= pair[0] + 1), "{groups:?}");
            assert!(grouping.len() <= groups_max.max(1));
            for group in 0..grouping.len() {
                let sum: u64 = bytes.iter().zip(groups).filter(|(_, g)| *g == group).map(|(bytes, _)| bytes).sum();
                assert!(50 <= sum || grouping.len() == 1, "{bytes:?}: {groups:?}");
            }
        }
        assert_eq!(Grouping::new(&[60, 60, 60, 60, 60], 50, 9).groups, [0, 1, 2, 3, 4]);
        assert_eq!(Grouping::new(&[60, 90, 90, 50, 50], 50, 4).groups, [0, 1, 2, 3, 3]);
        assert_eq!(Grouping::new(&[60, 40, 9, 1, 0], 50, 9).groups, [0, 1, 1, 1, 1]);
        assert_eq!(Grouping::new(&[60, 40, 9, 0, 0], 50, 9).groups, [0; CLASSES]);
    }

    #[test]
    fn the_largest_class_is_the_newest_of_equal_ones() {
        assert_eq!(largest(&[1, 3, 3, 2, 0]), LifetimeClass::Day);
        assert_eq!(largest(&[0; CLASSES]), LifetimeClass::Newest);
    }
}
