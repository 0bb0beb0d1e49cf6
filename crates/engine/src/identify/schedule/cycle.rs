//! Buffer cycles and ranks: which pending chunks arrived near each other.
//!
//! Pending chunks form cycles in order of arrival. A chunk's rank is the number of arrivals, unique ones included,
//! between it and the first chunk of its cycle. If a lookup finds the chunk in the log, the window to read starts
//! before it by its rank. Its records most likely resolve the others of the cycle (Ma et al., section 3.3, algorithm
//! 1).
//!
//! Deviations: the first chunk of a cycle has rank 0, as the paper's text says; its algorithm can start higher, with
//! arrivals counted after the last cycle closed. A chunk resolved at its arrival is in no cycle but counts in ranks,
//! since ranks are distances.

use crate::identify::options::CycleRule;
use crate::identify::slot::Slot;
use crate::types::Sequence;

/// Names a cycle while one of its chunks is pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct CycleId(u32);

/// A chunk's cycle, and its rank in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct Membership {
    /// The cycle.
    pub(crate) cycle: CycleId,
    /// Arrivals since the cycle's first chunk.
    pub(crate) rank: u32,
    /// Windows read for the cycle before the chunk joined it.
    joined_at: u32,
}

#[derive(Clone, Debug, Default)]
struct Cycle {
    pending: u32,
    windows: u32,
    /// Empty unless members are listed.
    members: Vec<(Slot, Sequence)>,
}

/// The cycles of all pending chunks.
#[derive(Debug)]
pub(in crate::identify) struct Cycles {
    rule: CycleRule,
    keeps_members: bool,
    slots: Vec<Cycle>,
    free: Vec<u32>,
    open: Option<(u32, Sequence)>,
    unique_run: u32,
    /// Cycles opened so far.
    pub(crate) opened: u64,
}

impl Cycles {
    /// Starts without cycles. `keeps_members`: the caller uses [`Cycles::members`].
    pub(crate) fn new(rule: CycleRule, keeps_members: bool) -> Self {
        Self { rule, keeps_members, slots: Vec::new(), free: Vec::new(), open: None, unique_run: 0, opened: 0 }
    }

    /// Notes a unique chunk.
    pub(in crate::identify) fn pass_unique(&mut self) {
        self.unique_run += 1;
        if self.rule.unique_run_max < self.unique_run {
            self.unique_run = 0;
            self.close();
        }
    }

    /// Notes a chunk that passed the filter.
    pub(in crate::identify) fn pass_candidate(&mut self) {
        self.unique_run = 0;
    }

    /// Returns the cycle and rank of a chunk that becomes pending.
    pub(in crate::identify) fn assign(&mut self, sequence: Sequence) -> Membership {
        if let Some((_, base)) = self.open
            && u64::from(self.rule.rank_max) < sequence.0 - base.0
        {
            self.close();
        }
        let (index, base) = *self.open.get_or_insert_with(|| {
            self.opened += 1;
            let index = self.free.pop().unwrap_or_else(|| {
                self.slots.push(Cycle::default());
                u32::try_from(self.slots.len() - 1).expect("fewer cycles than pending chunks")
            });
            (index, sequence)
        });
        let rank = u32::try_from(sequence.0 - base.0).expect("a rank is at most the rule's");
        Membership { cycle: CycleId(index), rank, joined_at: self.slots[index as usize].windows }
    }

    /// Adds a chunk with the membership that [`Cycles::assign`] has just returned.
    pub(in crate::identify) fn join(&mut self, membership: Membership, slot: Slot, sequence: Sequence) {
        let cycle = &mut self.slots[membership.cycle.0 as usize];
        cycle.pending += 1;
        if self.keeps_members {
            cycle.members.push((slot, sequence));
        }
    }

    /// Notes that a chunk is no longer pending.
    pub(in crate::identify) fn leave(&mut self, membership: Membership) {
        let CycleId(index) = membership.cycle;
        let cycle = &mut self.slots[index as usize];
        cycle.pending -= 1;
        if cycle.pending == 0 && self.open.is_none_or(|(open, _)| open != index) {
            self.recycle(index);
        }
    }

    /// Returns true if others of a chunk's cycle are pending; without them the chunk, which has left, needs no window.
    pub(in crate::identify) fn has_others_pending(&self, membership: Membership) -> bool {
        self.slots[membership.cycle.0 as usize].pending != 0
    }

    /// Returns true if so many windows were read for a chunk's cycle in vain that the chunk counts as having left it. The
    /// last `uncounted` windows do not count.
    pub(in crate::identify) fn is_exhausted(&self, membership: Membership, uncounted: u32) -> bool {
        let windows = self.slots[membership.cycle.0 as usize].windows.saturating_sub(uncounted);
        self.rule.tries_max <= windows.saturating_sub(membership.joined_at)
    }

    /// Notes that a window was read for a cycle.
    pub(in crate::identify) fn note_window(&mut self, cycle: CycleId) {
        self.slots[cycle.0 as usize].windows += 1;
    }

    /// Returns the chunks that joined a cycle; some may be resolved.
    pub(in crate::identify) fn members(&self, cycle: CycleId) -> &[(Slot, Sequence)] {
        &self.slots[cycle.0 as usize].members
    }

    /// Ends the open cycle: the next pending chunk starts another one.
    fn close(&mut self) {
        if let Some((index, _)) = self.open.take()
            && self.slots[index as usize].pending == 0
        {
            self.recycle(index);
        }
    }

    fn recycle(&mut self, index: u32) {
        let cycle = &mut self.slots[index as usize];
        // The window count continues: a membership of the cycle's former use must not look recent.
        cycle.members.clear();
        cycle.members.shrink_to(64);
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identify::slot::Slot;

    const RULE: CycleRule = CycleRule { unique_run_max: 3, rank_max: 10, tries_max: 2 };

    fn add_pending(cycles: &mut Cycles, sequence: u64) -> Membership {
        cycles.pass_candidate();
        let membership = cycles.assign(Sequence(sequence));
        cycles.join(membership, Slot(u32::try_from(sequence).unwrap()), Sequence(sequence));
        membership
    }

    #[test]
    fn ranks_are_distances_to_the_first_of_the_cycle_uniques_included() {
        let mut cycles = Cycles::new(RULE, false);
        assert_eq!(add_pending(&mut cycles, 100).rank, 0);
        cycles.pass_unique();
        cycles.pass_candidate(); // resolved at arrival
        assert_eq!(add_pending(&mut cycles, 103).rank, 3);
    }

    #[test]
    fn a_cycle_ends_after_more_uniques_than_allowed_and_beyond_its_largest_rank() {
        let mut cycles = Cycles::new(RULE, false);
        let first = add_pending(&mut cycles, 0);
        for _ in 0..3 {
            cycles.pass_unique();
        }
        assert_eq!(add_pending(&mut cycles, 4).cycle, first.cycle, "three in a row are allowed");
        for _ in 0..4 {
            cycles.pass_unique();
        }
        let second = add_pending(&mut cycles, 9);
        assert_ne!(second.cycle, first.cycle);
        assert_eq!(second.rank, 0);
        assert_eq!(add_pending(&mut cycles, 19).cycle, second.cycle, "rank 10 is allowed");
        assert_ne!(add_pending(&mut cycles, 20).cycle, second.cycle);
        assert_eq!(cycles.opened, 3);
    }

    #[test]
    fn a_cycle_knows_its_pending_chunks_and_windows_exhaust_those_that_they_do_not_resolve() {
        let mut cycles = Cycles::new(RULE, true);
        let [first, second] = [0, 1].map(|sequence| add_pending(&mut cycles, sequence));
        cycles.leave(first);
        assert!(cycles.has_others_pending(first));
        cycles.note_window(first.cycle);
        cycles.note_window(first.cycle);
        let late = add_pending(&mut cycles, 2);
        assert!(cycles.is_exhausted(second, 0));
        assert!(!cycles.is_exhausted(late, 0));
        cycles.leave(late);
        assert!(cycles.has_others_pending(late), "the second is pending");
        cycles.leave(second);
        assert!(!cycles.has_others_pending(second));
        assert_eq!(cycles.members(second.cycle).iter().map(|(_, sequence)| sequence.0).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
