//! Parts of the table that damaged pages left incomplete, until every container is recorded again.

use std::ops::RangeInclusive;

use crate::identify::exact::checkpoint::INCOMPLETE_MAX;
use crate::kv::Key;

/// The incomplete parts, as ranges of key heads.
#[derive(Debug, Default)]
pub(in crate::identify) struct Incomplete {
    /// Parts that this session completes, sorted and disjoint.
    parts: Vec<RangeInclusive<u64>>,
    /// Parts found since the session began.
    found: Vec<RangeInclusive<u64>>,
    /// Covered containers that have yet to be recorded again.
    containers_left: usize,
}

impl Incomplete {
    pub(crate) fn new(parts: Vec<RangeInclusive<u64>>) -> Self {
        Self { parts: disjoint(parts), ..Self::default() }
    }

    /// Returns the number of incomplete parts.
    pub(in crate::identify) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Starts a session over `covered` covered containers. Returns true if all of them must be recorded again.
    pub(crate) fn begin(&mut self, covered: usize) -> bool {
        self.parts = disjoint([&self.parts[..], &self.found].concat());
        self.found.clear();
        if !self.parts.is_empty() {
            self.containers_left = covered;
        }
        !self.parts.is_empty()
    }

    /// Adds parts that lost entries to damage.
    pub(in crate::identify) fn add(&mut self, parts: Vec<RangeInclusive<u64>>) {
        self.found.extend(parts);
    }

    /// Returns true while covered containers must be recorded again.
    pub(in crate::identify) fn is_completing(&self) -> bool {
        self.containers_left != 0
    }

    /// Returns true if the entry of a key may be missing.
    pub(in crate::identify) fn may_lack(&self, key: &Key) -> bool {
        let head = key.head();
        let index = self.parts.partition_point(|heads| *heads.end() < head);
        self.parts.get(index).is_some_and(|heads| heads.contains(&head))
    }

    /// Notes that a covered container was recorded again.
    pub(in crate::identify) fn complete_container(&mut self) {
        self.containers_left -= 1;
        if self.containers_left == 0 {
            // The next session completes the parts found meanwhile.
            self.parts = std::mem::take(&mut self.found);
        }
    }

    /// Returns all parts for a checkpoint, and those that are damaged now.
    pub(in crate::identify) fn with(&self, damaged: Vec<RangeInclusive<u64>>) -> Vec<RangeInclusive<u64>> {
        let mut parts = [&self.parts[..], &self.found].concat();
        for heads in damaged {
            if !parts.contains(&heads) {
                parts.push(heads);
            }
        }
        if INCOMPLETE_MAX < parts.len() { vec![0..=u64::MAX] } else { disjoint(parts) }
    }
}

/// Sorts parts and joins those that overlap, so that one binary search finds the part of a key.
fn disjoint(mut parts: Vec<RangeInclusive<u64>>) -> Vec<RangeInclusive<u64>> {
    parts.retain(|part| !part.is_empty());
    parts.sort_unstable_by_key(|part| *part.start());
    let mut out: Vec<RangeInclusive<u64>> = Vec::with_capacity(parts.len());
    for part in parts {
        match out.last_mut().filter(|last| part.start() <= last.end()) {
            Some(last) => *last = *last.start()..=*last.end().max(part.end()),
            None => out.push(part),
        }
    }
    out
}
