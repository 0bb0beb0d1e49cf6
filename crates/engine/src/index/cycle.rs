//! Buffer cycles and ranks: which pending chunks arrived near each other.
//!
//! Chunks that wait form cycles in order of arrival. A chunk's rank is how many arrivals, unique ones included, lie
//! between it and the first of its cycle. When one is found in the log, the window to read starts so many records
//! before it, and what it brings in most likely answers the others of the cycle (Ma et al., section 3.3, algorithm 1).
//!
//! Deviations: the first chunk of a cycle has rank 0, as the paper's text says; its algorithm can start higher, with
//! what was counted after the last cycle was closed. A chunk answered at arrival is in no cycle but counts in
//! the rank, since ranks are distances.

use crate::index::slot::Slot;
use crate::types::Sequence;

/// When cycles end and chunks leave them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CycleRule {
    /// More unique chunks than this in a row close the cycle. Ma et al. take 200.
    pub unique_run_max: u32,
    /// Largest rank in a cycle. Ma et al. take 2,048, the length of a window.
    pub rank_max: u32,
    /// Windows read for its cycle that leave a chunk unanswered until it leaves the cycle. Ma et al. take 10.
    pub tries_max: u32,
}

impl Default for CycleRule {
    fn default() -> Self {
        Self { unique_run_max: 200, rank_max: 2048, tries_max: 10 }
    }
}

/// Names a cycle while one of its chunks waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CycleId(u32);

/// A chunk's place in a cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The cycle.
    pub cycle: CycleId,
    /// Arrivals since the cycle's first chunk.
    pub rank: u32,
    /// Windows that had been read for the cycle when the chunk joined.
    joined_at: u32,
}

#[derive(Clone, Debug, Default)]
struct Cycle {
    waiting: u32,
    windows: u32,
    /// Filled only if members are walked.
    members: Vec<(Slot, Sequence)>,
}

/// The cycles of all chunks that wait.
#[derive(Debug)]
pub struct Cycles {
    rule: CycleRule,
    keeps_members: bool,
    slots: Vec<Cycle>,
    free: Vec<u32>,
    open: Option<(u32, Sequence)>,
    unique_run: u32,
    opened: u64,
}

impl Cycles {
    /// Starts without any. `keeps_members`: [`Cycles::members`] will be asked for.
    pub fn new(rule: CycleRule, keeps_members: bool) -> Self {
        Self { rule, keeps_members, slots: Vec::new(), free: Vec::new(), open: None, unique_run: 0, opened: 0 }
    }

    /// Returns how many cycles were opened.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// Notes a unique chunk.
    pub fn pass_unique(&mut self) {
        self.unique_run += 1;
        if self.rule.unique_run_max < self.unique_run {
            self.unique_run = 0;
            self.close();
        }
    }

    /// Notes a chunk that may be a duplicate, whether it will wait or was answered at once.
    pub fn pass_candidate(&mut self) {
        self.unique_run = 0;
    }

    /// Gives the place of a chunk that is going to wait.
    pub fn assign(&mut self, sequence: Sequence) -> Membership {
        if let Some((_, base)) = self.open
            && u64::from(self.rule.rank_max) < sequence.0 - base.0
        {
            self.close();
        }
        let (index, base) = *self.open.get_or_insert_with(|| {
            self.opened += 1;
            let index = self.free.pop().unwrap_or_else(|| {
                self.slots.push(Cycle::default());
                u32::try_from(self.slots.len() - 1).expect("fewer cycles than chunks that wait")
            });
            (index, sequence)
        });
        let rank = u32::try_from(sequence.0 - base.0).expect("a rank is at most the rule's");
        Membership { cycle: CycleId(index), rank, joined_at: self.slots[index as usize].windows }
    }

    /// Adds a chunk at the place that [`Cycles::assign`] has just given.
    pub fn join(&mut self, membership: Membership, slot: Slot, sequence: Sequence) {
        let cycle = &mut self.slots[membership.cycle.0 as usize];
        cycle.waiting += 1;
        if self.keeps_members {
            cycle.members.push((slot, sequence));
        }
    }

    /// Notes that a chunk waits no more.
    pub fn leave(&mut self, membership: Membership) {
        let CycleId(index) = membership.cycle;
        let cycle = &mut self.slots[index as usize];
        cycle.waiting -= 1;
        if cycle.waiting == 0 && self.open.is_none_or(|(open, _)| open != index) {
            self.recycle(index);
        }
    }

    /// Says whether others of the cycle of a chunk, which has left, wait: alone it is no reason to read a window.
    pub fn has_mates(&self, membership: Membership) -> bool {
        self.slots[membership.cycle.0 as usize].waiting != 0
    }

    /// Says whether so many windows were read for a chunk's cycle in vain that it counts as having left the cycle.
    pub fn is_exhausted(&self, membership: Membership) -> bool {
        self.is_exhausted_after(membership, 0)
    }

    /// The same, not counting the last so many windows.
    pub fn is_exhausted_after(&self, membership: Membership, uncounted: u32) -> bool {
        let windows = self.slots[membership.cycle.0 as usize].windows.saturating_sub(uncounted);
        self.rule.tries_max <= windows.saturating_sub(membership.joined_at)
    }

    /// Notes that a window was read for a cycle.
    pub fn note_window(&mut self, cycle: CycleId) {
        self.slots[cycle.0 as usize].windows += 1;
    }

    /// Appends those who joined a cycle; some may wait no more.
    pub fn members(&self, cycle: CycleId, out: &mut Vec<(Slot, Sequence)>) {
        out.extend_from_slice(&self.slots[cycle.0 as usize].members);
    }

    /// Ends the open cycle: the next chunk that waits starts another.
    fn close(&mut self) {
        if let Some((index, _)) = self.open.take()
            && self.slots[index as usize].waiting == 0
        {
            self.recycle(index);
        }
    }

    fn recycle(&mut self, index: u32) {
        let cycle = &mut self.slots[index as usize];
        // The count of windows goes on: a membership of the cycle's former life must not look fresh.
        cycle.members.clear();
        cycle.members.shrink_to(64);
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::slot::Slot;

    const RULE: CycleRule = CycleRule { unique_run_max: 3, rank_max: 10, tries_max: 2 };

    fn wait(cycles: &mut Cycles, sequence: u64) -> Membership {
        cycles.pass_candidate();
        let membership = cycles.assign(Sequence(sequence));
        cycles.join(membership, Slot::numbered(u32::try_from(sequence).unwrap()), Sequence(sequence));
        membership
    }

    #[test]
    fn ranks_are_distances_to_the_first_of_the_cycle_uniques_included() {
        let mut cycles = Cycles::new(RULE, false);
        assert_eq!(wait(&mut cycles, 100).rank, 0);
        cycles.pass_unique();
        cycles.pass_candidate(); // answered at arrival
        assert_eq!(wait(&mut cycles, 103).rank, 3);
    }

    #[test]
    fn a_cycle_ends_after_more_uniques_than_allowed_and_beyond_its_largest_rank() {
        let mut cycles = Cycles::new(RULE, false);
        let first = wait(&mut cycles, 0);
        for _ in 0..3 {
            cycles.pass_unique();
        }
        assert_eq!(wait(&mut cycles, 4).cycle, first.cycle, "three in a row are allowed");
        for _ in 0..4 {
            cycles.pass_unique();
        }
        let second = wait(&mut cycles, 9);
        assert_ne!(second.cycle, first.cycle);
        assert_eq!(second.rank, 0);
        assert_eq!(wait(&mut cycles, 19).cycle, second.cycle, "rank 10 is allowed");
        assert_ne!(wait(&mut cycles, 20).cycle, second.cycle);
        assert_eq!(cycles.opened(), 3);
    }

    #[test]
    fn mates_are_those_that_wait_and_every_window_wears_out_those_it_did_not_answer() {
        let mut cycles = Cycles::new(RULE, true);
        let [first, second] = [0, 1].map(|sequence| wait(&mut cycles, sequence));
        cycles.leave(first);
        assert!(cycles.has_mates(first));
        cycles.note_window(first.cycle);
        cycles.note_window(first.cycle);
        let late = wait(&mut cycles, 2);
        assert!(cycles.is_exhausted(second));
        assert!(!cycles.is_exhausted(late));
        cycles.leave(late);
        assert!(cycles.has_mates(late), "the second waits");
        cycles.leave(second);
        assert!(!cycles.has_mates(second));
        let mut members = Vec::new();
        cycles.members(second.cycle, &mut members);
        assert_eq!(members.iter().map(|(_, sequence)| sequence.0).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
