//! Chunks that wait for their verdicts.

use std::collections::HashMap;

use onefold_engine::types::Sequence;

use crate::replay::Drawn;

/// Chunks that have no verdict yet, by number. Most have theirs before the next are drawn; the few that wait are kept by
/// themselves, so that memory does not depend on how long one waits.
#[derive(Default, Debug)]
pub(super) struct Due {
    /// Number of the first chunk that was drawn last.
    first: u64,
    drawn: Vec<Option<Drawn>>,
    /// Of those before.
    waiting: HashMap<u64, Drawn>,
}

impl Due {
    /// Takes the next chunks, numbered on from the last.
    pub(super) fn draw(&mut self, chunks: &[Drawn]) {
        let numbers = self.first..;
        self.waiting.extend(numbers.zip(&self.drawn).filter_map(|(number, chunk)| Some((number, (*chunk)?))));
        self.first += self.drawn.len() as u64;
        self.drawn.clear();
        self.drawn.extend(chunks.iter().map(|chunk| Some(*chunk)));
    }

    /// Returns a chunk that has no verdict, which it has from now on.
    pub(super) fn resolve(&mut self, Sequence(number): Sequence) -> Option<Drawn> {
        match number.checked_sub(self.first) {
            Some(at) => self.drawn.get_mut(usize::try_from(at).ok()?)?.take(),
            None => self.waiting.remove(&number),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.waiting.len() + self.drawn.iter().flatten().count()
    }
}
