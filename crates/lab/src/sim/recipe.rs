//! The recipe of a version: verdicts, which come late and in any order, in the order of the stream, and decisions of rewriting.

use std::collections::{HashMap, VecDeque};

use anyhow::{Context, Result};
use onefold_engine::backup::rewriting::{Decision, Location, Placed, Rewriting};
use onefold_engine::types::{Chunk, Sequence};

use crate::sim::{brief, container};

/// A chunk on its way to the recipe.
#[derive(Clone, Copy, Debug)]
struct Slot {
    chunk: Chunk,
    begins_file: bool,
    /// Its container, and whether this session stores it.
    location: Option<(u32, bool)>,
}

/// A reference of the recipe, in the order of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A reference to a chunk in a container.
    Refer(Chunk, u32),
    /// The chunk is stored again: say where by [`Recipe::stored_again`].
    StoreAgain(Sequence, Chunk),
}

/// Chunks of a session whose references wait.
#[derive(Debug, Default)]
pub struct Recipe {
    /// Number of the first chunk that has no verdict, or waits behind one.
    first: u64,
    slots: VecDeque<Slot>,
    /// Containers of the chunks that the session stores, until no verdict can name these by their number.
    located: HashMap<u64, u32>,
    /// Numbers of the chunks in the open container.
    open: Vec<u64>,
    /// Numbers of chunks whose container was recorded since the last verdicts.
    recorded: Vec<u64>,
    policy: Option<Box<dyn Rewriting>>,
    /// Chunks of the policy's window.
    window: VecDeque<(Sequence, Chunk, u32)>,
    decisions: VecDeque<Decision>,
    /// The new containers of chunks that were stored again.
    rewritten: HashMap<u64, u32>,
}

impl Recipe {
    /// Starts before the first chunk.
    pub fn new(policy: Option<Box<dyn Rewriting>>) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Takes the next chunk.
    pub fn push(&mut self, chunk: Chunk, begins_file: bool) {
        self.slots.push_back(Slot { chunk, begins_file, location: None });
    }

    /// Notes that a chunk is in a container that was recorded before.
    pub fn set_stored(&mut self, sequence: Sequence, container: u32) -> Result<()> {
        self.set(sequence, container, false)
    }

    /// Notes that a chunk is stored in the open container.
    pub fn set_new(&mut self, sequence: Sequence, container: u32) -> Result<()> {
        self.locate(sequence, container);
        self.set(sequence, container, true)
    }

    /// Notes that a chunk is the same as one that the session stores. False: that one has no verdict yet.
    pub fn set_same(&mut self, sequence: Sequence, first: Sequence) -> Result<bool> {
        let Some(container) = self.located.get(&first.0).copied() else { return Ok(false) };
        self.set(sequence, container, true)?;
        Ok(true)
    }

    fn set(&mut self, Sequence(sequence): Sequence, container: u32, is_own: bool) -> Result<()> {
        let at = sequence.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let slot = at.and_then(|at| self.slots.get_mut(at)).context("a verdict on a chunk that has one")?;
        slot.location = Some((container, is_own));
        Ok(())
    }

    fn locate(&mut self, Sequence(sequence): Sequence, container: u32) {
        self.located.insert(sequence, container);
        self.open.push(sequence);
    }

    /// Notes that the open container is recorded.
    pub fn set_recorded(&mut self) {
        self.recorded.append(&mut self.open);
    }

    /// Notes that all verdicts were taken: later ones name recorded chunks by their container.
    pub fn end_verdicts(&mut self) {
        for sequence in self.recorded.drain(..) {
            self.located.remove(&sequence);
        }
    }

    /// Notes the end of the stream. All chunks have verdicts.
    pub fn finish(&mut self) {
        self.advance();
        if let Some(policy) = &mut self.policy {
            let mut decided = Vec::new();
            policy.finish(&mut decided);
            self.decisions.extend(decided);
        }
    }

    /// Hands the policy the chunks whose turn has come.
    fn advance(&mut self) {
        let Some(policy) = &mut self.policy else { return };
        let mut decided = Vec::new();
        while let Some(Slot { chunk, begins_file, location: Some((number, is_own)) }) = self.slots.front().copied() {
            let sequence = Sequence(self.first);
            if begins_file {
                policy.mark(&mut decided);
            }
            let location = if is_own { Location::New } else { Location::Stored(container(number)) };
            policy.push(&Placed { sequence, len: chunk.len, location }, &mut decided);
            self.window.push_back((sequence, chunk, number));
            self.slots.pop_front();
            self.first += 1;
        }
        self.decisions.extend(decided);
    }

    /// Returns the next step, if its turn has come.
    pub fn next_step(&mut self) -> Result<Option<Step>> {
        if self.policy.is_none() {
            let Some(Slot { chunk, location: Some((container, _)), .. }) = self.slots.front().copied() else {
                return Ok(None);
            };
            self.slots.pop_front();
            self.first += 1;
            return Ok(Some(Step::Refer(chunk, container)));
        }
        if self.decisions.is_empty() {
            self.advance();
        }
        let Some(decision) = self.decisions.pop_front() else { return Ok(None) };
        let (sequence, chunk, container) = self.window.pop_front().context("a decision on no chunk")?;
        // An equal chunk of the window was stored again: one more copy is useless, and the old one is not needed.
        let again = self.rewritten.get(&brief(&chunk.fingerprint)).copied();
        Ok(Some(match (decision, again) {
            (Decision::StoreAgain(_), None) => Step::StoreAgain(sequence, chunk),
            (_, again) => Step::Refer(chunk, again.unwrap_or(container)),
        }))
    }

    /// Notes that a chunk was stored again, in the open container.
    pub fn stored_again(&mut self, sequence: Sequence, chunk: &Chunk, container: u32) {
        self.locate(sequence, container);
        self.rewritten.insert(brief(&chunk.fingerprint), container);
    }
}
