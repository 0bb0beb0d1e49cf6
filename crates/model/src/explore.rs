//! Exploration of all states of a world, breadth first, so that a counterexample is a shortest one.
//!
//! Of a visited state only a fingerprint of 64 bits is kept. Two states with one fingerprint would hide a part of the
//! space: among 3 x 10^8 states the odds of that are 1 in 400.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::state::State;
use crate::step::{Step, Successors};
use crate::world::{Omission, Sights, Violation, World};
use crate::{collector, reader, storage, writer};

/// States in a block of the frontier.
const BLOCK_STATES: usize = 4096;
/// The next depth may have one in eight of all states.
const FRONTIER_SHARE: usize = 8;

/// The limits of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of states after which it stops.
    pub states: usize,
    /// Whether it remembers how each state was reached. This doubles the memory, and a counterexample needs it.
    pub traces: bool,
}

/// The outcome of an exploration.
#[derive(Debug)]
pub struct Explored {
    /// Number of different states.
    pub states: usize,
    /// Number of steps to the farthest state.
    pub depth: usize,
    /// Every state that can be reached was reached.
    pub is_complete: bool,
    /// Everything that was seen to happen.
    pub sights: Sights,
    /// The first state that breaks an invariant.
    pub counterexample: Option<Counterexample>,
}

/// A run that ends in a state that breaks an invariant.
#[derive(Debug)]
pub struct Counterexample {
    /// The broken invariant.
    pub violation: Violation,
    /// The steps, if the exploration remembers how states were reached.
    pub steps: Vec<Step>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} after {} steps", self.violation, self.steps.len())?;
        self.steps.iter().enumerate().try_for_each(|(number, step)| write!(formatter, "\n{:4} {step}", number + 1))
    }
}

/// Explores the world until it is exhausted, an invariant is broken, or the limit is reached.
pub fn explore(world: &World, limits: Limits) -> Explored {
    let initial = first_state(world);
    let first = initial.representative(world.writers, world.collectors);
    let mut visited = Visited::new(limits);
    visited.insert(hash(&first), hash(&first));
    let mut explored = Explored { states: 1, depth: 0, is_complete: false, sights: Sights::NONE, counterexample: None };
    let mut successors = Successors { world, found: Vec::new() };
    let (mut level, mut next_level) = (Frontier::default(), Frontier::default());
    next_level.push(first);
    while next_level.count > 0 {
        std::mem::swap(&mut level, &mut next_level);
        next_level = Frontier::default();
        for state in level.blocks.drain(..).flatten() {
            let from = hash(&state);
            fill(&mut successors, &state);
            for (step, next) in &successors.found {
                explored.sights = explored.sights.or(step.sights);
                let next = next.representative(world.writers, world.collectors);
                let to = hash(&next);
                if !visited.insert(to, from) {
                    continue;
                }
                if let Some(violation) = world.violation(&next) {
                    let steps = if limits.traces { trace(world, &visited, initial, to) } else { Vec::new() };
                    explored.depth += 1;
                    explored.states = visited.count;
                    explored.counterexample = Some(Counterexample { violation, steps });
                    return explored;
                }
                next_level.push(next);
            }
            if visited.count >= limits.states || next_level.count > limits.states / FRONTIER_SHARE {
                explored.states = visited.count;
                return explored;
            }
        }
        explored.depth += usize::from(next_level.count > 0);
    }
    explored.states = visited.count;
    explored.is_complete = true;
    explored
}

/// The states of one depth, in blocks, so that memory is returned while they are expanded.
#[derive(Default)]
struct Frontier {
    blocks: Vec<Vec<State>>,
    count: usize,
}

impl Frontier {
    fn push(&mut self, state: State) {
        if self.count.is_multiple_of(BLOCK_STATES) {
            self.blocks.push(Vec::with_capacity(BLOCK_STATES));
        }
        self.blocks.last_mut().expect("a block was pushed").push(state);
        self.count += 1;
    }
}

/// Replaces the list by all steps that the state allows.
fn fill(successors: &mut Successors<'_>, state: &State) {
    successors.found.clear();
    writer::steps(successors, state);
    collector::steps(successors, state);
    reader::steps(successors, state);
    storage::steps(successors, state);
}

/// Returns the state after the prologue.
fn first_state(world: &World) -> State {
    let whole = World { omission: Omission::Nothing, prologue: &[], ..*world };
    let mut successors = Successors { world: &whole, found: Vec::new() };
    let mut state = State::initial(world.chunks);
    for &wanted in world.prologue {
        fill(&mut successors, &state);
        let found = successors.found.iter().find(|(step, _)| step.to_string() == wanted);
        let (_, next) = found.unwrap_or_else(|| panic!("the state allows no step `{wanted}`"));
        state = *next;
    }
    state
}

/// Returns the steps that lead from the initial state to the state with the fingerprint `last`.
///
/// The stored states are representatives, in which processes may have changed their numbers from one step to the next.
/// So the run is done once more, in which every process keeps its number.
fn trace(world: &World, visited: &Visited, initial: State, last: u64) -> Vec<Step> {
    let mut path = vec![last];
    let first = fingerprint(&initial, world);
    while path.last() != Some(&first) {
        path.push(visited.parent(path[path.len() - 1]));
    }
    let mut state = initial;
    let mut successors = Successors { world, found: Vec::new() };
    let mut steps = Vec::new();
    for &wanted in path.iter().rev().skip(1) {
        fill(&mut successors, &state);
        let found = successors.found.iter().find(|(_, next)| fingerprint(next, world) == wanted);
        let (step, next) = found.expect("a step of a representative is a step of each state that it stands for");
        steps.push(*step);
        state = *next;
    }
    steps
}

fn fingerprint(state: &State, world: &World) -> u64 {
    hash(&state.representative(world.writers, world.collectors))
}

fn hash(state: &State) -> u64 {
    let mut hasher = Folding { folded: 0x9e37_79b9_7f4a_7c15, pending: 0, bits: 0 };
    state.hash(&mut hasher);
    hasher.finish().max(1)
}

/// A hash function that multiplies to 128 bits and folds the halves, after wyhash by Wang Yi.
///
/// It collects small values to words first: a state always hashes the same sequence of widths.
struct Folding {
    folded: u64,
    pending: u64,
    bits: u32,
}

impl Folding {
    fn push(&mut self, value: u64, bits: u32) {
        if self.bits + bits > u64::BITS {
            self.folded = mix(self.folded, self.pending);
            (self.pending, self.bits) = (0, 0);
        }
        self.pending |= value << self.bits;
        self.bits += bits;
    }
}

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.push(u64::from(byte), 8);
        }
    }

    fn write_u16(&mut self, value: u16) {
        self.push(u64::from(value), 16);
    }

    /// The number of a variant of an enumeration, all of which are small.
    fn write_isize(&mut self, value: isize) {
        self.push(value.unsigned_abs() as u64 & 0xff, 8);
    }

    /// The length of an array, which is always the same.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        mix(mix(self.folded, self.pending), 0x9fb2_1c65_1e98_df25)
    }
}

fn mix(folded: u64, value: u64) -> u64 {
    fold(u128::from(folded ^ 0xa076_1d64_78bd_642f) * u128::from(value ^ 0xe703_7ed1_a0b4_28db))
        ^ folded.rotate_left(31)
}

fn fold(product: u128) -> u64 {
    #[expect(clippy::cast_possible_truncation, reason = "takes the two halves")]
    let halves = (product as u64, (product >> 64) as u64);
    halves.0 ^ halves.1
}

/// The fingerprints of visited states: an open hash table of a fixed size.
struct Visited {
    slots: Vec<u64>,
    /// For each slot, the fingerprint of the state before; empty if traces are not wanted.
    parents: Vec<u64>,
    count: usize,
}

impl Visited {
    fn new(limits: Limits) -> Self {
        // Seven eighths full at most; the last state that is expanded may add some more.
        let slots = limits.states / 7 * 8 + 4096;
        Self { slots: vec![0; slots], parents: vec![0; if limits.traces { slots } else { 0 }], count: 0 }
    }

    /// Adds the fingerprint and returns true if it is new.
    fn insert(&mut self, fingerprint: u64, parent: u64) -> bool {
        let slot = self.slot(fingerprint);
        if self.slots[slot] == fingerprint {
            return false;
        }
        self.slots[slot] = fingerprint;
        self.count += 1;
        if let Some(entry) = self.parents.get_mut(slot) {
            *entry = parent;
        }
        true
    }

    fn parent(&self, fingerprint: u64) -> u64 {
        self.parents[self.slot(fingerprint)]
    }

    /// Returns the slot that has the fingerprint, or the free one that is to have it.
    fn slot(&self, fingerprint: u64) -> usize {
        let scaled = (u128::from(fingerprint) * self.slots.len() as u128) >> 64;
        let mut slot = usize::try_from(scaled).expect("below the number of slots");
        while self.slots[slot] != 0 && self.slots[slot] != fingerprint {
            slot += 1;
            if slot == self.slots.len() {
                slot = 0;
            }
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::set::Set;
    use crate::world::{Feature, Features};

    #[test]
    fn every_state_has_its_representative_explored() {
        let features = Features::NONE.with(Feature::Copying).with(Feature::PowerCut);
        for (writers, collectors) in [(3, 1), (1, 2)] {
            let world = World {
                writers,
                attempts: 1,
                collectors,
                rounds: 1,
                collections: 1,
                chunks: 1,
                features,
                forgettable: Set::one(0),
                omission: Omission::NoSecondMark,
                prologue: &[],
            };
            // The first states are enough: no invariant is broken yet.
            let depth = 9;
            let mut successors = Successors { world: &world, found: Vec::new() };
            let mut all = HashSet::from([State::initial(1)]);
            let mut reduced = HashSet::from([State::initial(1).representative(writers, collectors)]);
            let (mut level, mut reduced_level) = (all.clone(), reduced.clone());
            for _ in 0..depth {
                let mut expand = |level: &HashSet<State>| {
                    let mut next = HashSet::new();
                    for state in level {
                        fill(&mut successors, state);
                        next.extend(successors.found.iter().map(|(_, state)| *state));
                    }
                    next
                };
                level = &expand(&level) - &all;
                all.extend(&level);
                let found = expand(&reduced_level);
                reduced_level = found.iter().map(|state| state.representative(writers, collectors)).collect();
                reduced_level = &reduced_level - &reduced;
                reduced.extend(&reduced_level);
            }
            let expected: HashSet<State> = all.iter().map(|state| state.representative(writers, collectors)).collect();
            assert!(reduced == expected, "{} states instead of {}", reduced.len(), expected.len());
            assert!(reduced.len() < all.len());
        }
    }
}
