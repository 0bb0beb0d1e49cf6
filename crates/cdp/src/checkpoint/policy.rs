//! When a checkpoint is due, and how it proves what it takes over.

use std::time::Duration;

use onefold_engine::backup::Proof;

/// Bytes of new recipe segments for a block that is changed alone, in a repository for volumes.
const PATH_BYTES: u64 = 10 << 10;
/// Bytes of a reference in a recipe.
const REFERENCE_BYTES: u64 = 40;
/// Recipes may take one part in so many of the data.
const RECIPE_SHARE: u64 = 4;

/// Bytes of volumes up to which each chunk of their images is looked for after a checkpoint was forgotten: 4 million references, of which a
/// walk takes seconds. The manifest is exact then, so that a quick prune gives the space of what was forgotten back. Manifests of larger
/// volumes list what their parents' list, until a full prune.
const EXACT_BYTES_MAX: u64 = 16 << 30;

/// Returns how a snapshot of a group proves that the images of its parent, of so many bytes, may be used again. `is_forgotten` is true if a
/// checkpoint was forgotten since the last snapshot, or takes the place of one.
pub fn proof(is_forgotten: bool, bytes: u64) -> Proof {
    if is_forgotten && bytes <= EXACT_BYTES_MAX { Proof::EveryChunk } else { Proof::Rule }
}

/// When checkpoints are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointPolicy {
    /// Usual time between two checkpoints.
    pub interval: Duration,
    /// Longest time between two checkpoints.
    pub longest: Duration,
    /// Bytes of the journal that make a checkpoint due.
    pub journal_bytes: u64,
}

impl CheckpointPolicy {
    /// Every 15 minutes, after an hour at the latest, or when the journal has 4 GiB.
    pub const DEFAULT: Self =
        Self { interval: Duration::from_mins(15), longest: Duration::from_hours(1), journal_bytes: 4 << 30 };
}

/// Records of the journal that are in no checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JournalLoad {
    /// Time since the last checkpoint.
    pub age: Duration,
    /// Records.
    pub records: u64,
    /// Bytes of the journal with these records.
    pub bytes: u64,
    /// Bytes that the journal may take.
    pub bytes_max: u64,
}

/// Why a checkpoint is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// The journal holds many bytes.
    JournalBytes,
    /// The interval has passed, and the recipes are small compared with the data.
    Interval,
    /// The longest time has passed.
    Longest,
}

impl JournalLoad {
    /// Estimates the bytes of recipe segments that a checkpoint would store: a path for each record, unless records are so long that
    /// their references take more.
    pub fn recipe_bytes(&self) -> u64 {
        let paths = self.records.saturating_mul(PATH_BYTES);
        let references = self.bytes / crate::history::BLOCK_BYTES * REFERENCE_BYTES;
        // Paths of many records are shared: half of the data is the most that was seen.
        paths.min(self.bytes / 2).max(references)
    }
}

impl CheckpointPolicy {
    /// Returns why a checkpoint is due; `None` if it is not.
    pub fn due(&self, load: &JournalLoad) -> Option<Due> {
        if load.records == 0 {
            return None;
        }
        // A checkpoint must end before the journal is full.
        let most = self.journal_bytes.min(load.bytes_max / 2).max(1);
        if most <= load.bytes {
            return Some(Due::JournalBytes);
        }
        if self.longest <= load.age {
            return Some(Due::Longest);
        }
        let is_cheap = load.recipe_bytes() <= load.bytes / RECIPE_SHARE;
        (self.interval <= load.age && is_cheap).then_some(Due::Interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn due(minutes: u64, records: u64, bytes: u64) -> Option<Due> {
        let load = JournalLoad { age: Duration::from_mins(minutes), records, bytes, bytes_max: 16 << 30 };
        CheckpointPolicy::DEFAULT.due(&load)
    }

    #[test]
    fn nothing_is_due_without_records() {
        assert_eq!(due(10_000, 0, 64 * MIB), None);
    }

    #[test]
    fn long_records_are_due_after_the_interval() {
        assert_eq!(due(14, 100, 100 * MIB), None);
        assert_eq!(due(15, 100, 100 * MIB), Some(Due::Interval));
    }

    #[test]
    fn short_records_whose_recipes_cost_much_wait_for_the_longest_time() {
        let records = 100 * MIB / 4096;
        assert_eq!(due(15, records, 100 * MIB), None);
        assert_eq!(due(59, records, 100 * MIB), None);
        assert_eq!(due(60, records, 100 * MIB), Some(Due::Longest));
    }

    #[test]
    fn a_full_journal_is_due_whatever_it_costs() {
        assert_eq!(due(0, 1 << 20, (4 << 30) - 1), None);
        assert_eq!(due(0, 1 << 20, 4 << 30), Some(Due::JournalBytes));
        let small = JournalLoad { age: Duration::ZERO, records: 9, bytes: 32 * MIB, bytes_max: 64 * MIB };
        assert_eq!(CheckpointPolicy::DEFAULT.due(&small), Some(Due::JournalBytes));
    }
}
