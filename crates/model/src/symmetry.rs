//! Symmetry: writers are interchangeable, and so are collectors.
//!
//! Two states that differ by the numbers of processes alone have the same futures. The explorer keeps one of them: the
//! smallest of all renumberings. Processes are sorted first by what no renumbering changes (their step, and the state of
//! their own sessions and containers); only those that are equal in this are tried in every order.

use crate::set::Set;
use crate::state::{ATTEMPTS, COLLECTORS, COLLECTORS_FROM, Collector, ROUNDS, State, WRITERS, WRITERS_FROM, Writer};

/// A renumbering: the new number `i` was `writers[i]` or `collectors[i]`.
#[derive(Clone, Copy)]
struct Renumbering {
    writers: [usize; WRITERS],
    collectors: [usize; COLLECTORS],
}

/// Every order of three writers.
const WRITER_ORDERS: [[usize; WRITERS]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
/// Every order of two collectors.
const COLLECTOR_ORDERS: [[usize; COLLECTORS]; 2] = [[0, 1], [1, 0]];

impl State {
    /// Returns the representative of all states that differ from this one by the numbers of processes alone.
    ///
    /// Writers and collectors that a configuration does not have are idle and sorted last, so they need no care: their
    /// steps never begin.
    pub(crate) fn representative(&self, writers: usize, collectors: usize) -> Self {
        let mut writer_keys = [0; WRITERS];
        let mut collector_keys = [0; COLLECTORS];
        for (number, key) in writer_keys.iter_mut().enumerate().take(writers) {
            *key = self.key(WRITERS_FROM + number * ATTEMPTS, self.writers[number].step as u64);
        }
        for (number, key) in collector_keys.iter_mut().enumerate().take(collectors) {
            *key = self.key(COLLECTORS_FROM + number * ROUNDS, self.collectors[number].step as u64);
        }
        let mut best: Option<Self> = None;
        for order in WRITER_ORDERS.iter().filter(|order| is_sorted(*order, &writer_keys, writers)) {
            for &collectors in COLLECTOR_ORDERS.iter().filter(|order| is_sorted(*order, &collector_keys, collectors)) {
                let state = self.renumbered(Renumbering { writers: *order, collectors });
                if best.as_ref().is_none_or(|best| state < *best) {
                    best = Some(state);
                }
            }
        }
        best.expect("some order is sorted")
    }

    /// Packs what no renumbering changes about the process that owns the sessions from `first` on.
    fn key(&self, first: usize, step: u64) -> u64 {
        let own = |key: u64, set: &Set| key << 2 | u64::from(set.bits() >> first & 3);
        let (sessions, containers) = (&self.sessions, &self.containers);
        let key = [
            sessions.open,
            sessions.committed,
            sessions.commit_unsynced,
            sessions.ended,
            sessions.fence_unsynced,
            sessions.forgotten,
            sessions.forget_unsynced,
            containers.visible,
            containers.unsynced,
            containers.removed,
        ]
        .iter()
        .fold(step, own);
        self.collections.iter().fold(key, |key, one| own(own(own(key, &one.condemned), &one.marked), &one.last))
    }

    fn renumbered(&self, numbers: Renumbering) -> Self {
        let mut state = *self;
        if numbers.writers == WRITER_ORDERS[0] && numbers.collectors == COLLECTOR_ORDERS[0] {
            return state;
        }
        let map = |set: &mut Set| *set = numbers.apply(*set);
        let sessions = &mut state.sessions;
        map(&mut sessions.open);
        map(&mut sessions.committed);
        map(&mut sessions.commit_unsynced);
        map(&mut sessions.acknowledged);
        map(&mut sessions.ended);
        map(&mut sessions.fence_unsynced);
        map(&mut sessions.forgotten);
        map(&mut sessions.forget_unsynced);
        sessions.refs.iter_mut().for_each(map);
        map(&mut state.containers.visible);
        map(&mut state.containers.unsynced);
        map(&mut state.containers.removed);
        state.containers.holders.iter_mut().for_each(map);
        for collection in &mut state.collections {
            map(&mut collection.condemned);
            map(&mut collection.marked);
            map(&mut collection.last);
        }
        state.writers = numbers.writers.map(|was| {
            let writer = self.writers[was];
            Writer { absent: numbers.apply(writer.absent), ..writer }
        });
        state.collectors = numbers.collectors.map(|was| {
            let one = self.collectors[was];
            Collector {
                marked: numbers.apply(one.marked),
                chosen: numbers.apply(one.chosen),
                seen: numbers.apply(one.seen),
                ..one
            }
        });
        map(&mut state.reader.view);
        map(&mut state.reader.listing);
        state
    }
}

impl Renumbering {
    fn apply(&self, set: Set) -> Set {
        const OLD: u16 = (1 << WRITERS_FROM) - 1;
        let bits = set.bits();
        if bits & !OLD == 0 {
            return set;
        }
        let mut moved = bits & OLD;
        for (now, was) in self.writers.iter().enumerate() {
            moved |= (bits >> (WRITERS_FROM + was * ATTEMPTS) & 3) << (WRITERS_FROM + now * ATTEMPTS);
        }
        for (now, was) in self.collectors.iter().enumerate() {
            moved |= (bits >> (COLLECTORS_FROM + was * ROUNDS) & 3) << (COLLECTORS_FROM + now * ROUNDS);
        }
        Set::from_bits(moved)
    }
}

/// Returns true if the order sorts the keys of the processes that exist, and leaves all others where they are.
fn is_sorted(order: &[usize], keys: &[u64], count: usize) -> bool {
    let (used, unused) = order.split_at(count);
    unused.iter().zip(count..).all(|(&was, now)| was == now) && used.is_sorted_by_key(|&was| keys[was])
}

const _: () = assert!(ATTEMPTS == 2 && ROUNDS == 2 && WRITERS == 3 && COLLECTORS == 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renumbered_states_have_one_representative() {
        let mut state = State::initial(1);
        state.sessions.open = Set::of(&[2, 4, 6, 8, 10]);
        state.containers.visible = Set::of(&[0, 1, 2, 6, 10]);
        state.writers[0].absent = Set::of(&[0, 6]);
        state.writers[1].absent = Set::of(&[0, 2]);
        state.collectors[1].seen = Set::of(&[1, 4]);
        let expected = state.representative(WRITERS, COLLECTORS);
        for writers in WRITER_ORDERS {
            for collectors in COLLECTOR_ORDERS {
                let other = state.renumbered(Renumbering { writers, collectors });
                assert_eq!(other.representative(WRITERS, COLLECTORS), expected);
            }
        }
        assert_ne!(expected, State::initial(1).representative(WRITERS, COLLECTORS));
    }
}
