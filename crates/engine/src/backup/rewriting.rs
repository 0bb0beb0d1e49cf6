//! Rewriting: which duplicates are stored again, so that a restore reads fewer containers.
//!
//! Policies over a window of the stream, after the verdicts and before the recipe. Pure: no I/O, no clock, no randomness. The caller
//! keeps the bytes of a chunk until its decision, stores it again if so decided, and refers equal chunks to the new copy.

mod capping;
mod context;
mod history;
mod selective;

use std::fmt::Debug;

pub use capping::Capping;
pub use context::ContextBased;
pub use history::History;
pub use selective::Selective;

use crate::types::{ContainerId, Sequence};

/// The location of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// It is new: this session stores it.
    New,
    /// Equal to an earlier chunk that this session stores.
    Same(Sequence),
    /// In a container that was there before.
    Stored(ContainerId),
}

/// A chunk of the stream and its location.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The chunk.
    pub sequence: Sequence,
    /// Its bytes.
    pub len: u32,
    /// Its location.
    pub location: Location,
}

/// The decision on a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The reference stays.
    Keep(Sequence),
    /// The chunk, which is stored, is stored again.
    StoreAgain(Sequence),
}

/// Decides which duplicates are stored again.
pub trait Rewriting: Debug + Send {
    /// Takes the next chunk of the stream. Appends the decisions that are final now, in stream order.
    fn push(&mut self, reference: &Placed, decided: &mut Vec<Decision>);
    /// Notes that a file begins or ends. Appends the decisions that are final now.
    fn mark(&mut self, _decided: &mut Vec<Decision>) {}
    /// Appends the decisions on the rest of the stream.
    fn finish(&mut self, decided: &mut Vec<Decision>);
}

/// Returns the decision on a chunk.
fn decision(sequence: Sequence, is_fragmented: bool) -> Decision {
    if is_fragmented { Decision::StoreAgain(sequence) } else { Decision::Keep(sequence) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use crate::types::SessionId;

    /// The container with this number.
    pub(super) fn container(ordinal: u32) -> ContainerId {
        ContainerId { session: SessionId([1; 16]), ordinal }
    }

    /// Chunks of 10 bytes: `n` is new, `s` the same as the first, a digit is in the container of that number.
    pub(super) fn stream(text: &str) -> Vec<Placed> {
        let location = |letter: char| match letter {
            'n' => Location::New,
            's' => Location::Same(Sequence(0)),
            digit => Location::Stored(container(digit.to_digit(10).unwrap())),
        };
        let chunks = (0..).zip(text.chars());
        chunks
            .map(|(number, letter)| Placed { sequence: Sequence(number), len: 10, location: location(letter) })
            .collect()
    }

    /// Returns what is decided, `.` for what stays and `!` for what is stored again. Marks stand before the chunks of these numbers.
    pub(super) fn decided(mut policy: impl Rewriting, stream: &[Placed], marks: &[u64]) -> String {
        let mut decided = Vec::new();
        for placed in stream {
            if marks.contains(&placed.sequence.0) {
                policy.mark(&mut decided);
            }
            policy.push(placed, &mut decided);
        }
        policy.finish(&mut decided);
        let mut next = 0;
        let mut letter = |decision| {
            let (Sequence(sequence), letter) = match decision {
                Decision::Keep(sequence) => (sequence, '.'),
                Decision::StoreAgain(sequence) => (sequence, '!'),
            };
            assert_eq!(sequence, next, "in stream order");
            next += 1;
            letter
        };
        let letters = decided.into_iter().map(&mut letter).collect();
        assert_eq!(next, stream.len() as u64, "one decision on each chunk");
        letters
    }

    /// Returns a stream of runs in containers, of chunks of several lengths.
    pub(super) fn random_stream(random: &mut SplitMix64, len: u64) -> Vec<Placed> {
        let mut location = Location::New;
        let mut next = |number| {
            if random.below(4) == 0 {
                location = match random.below(8) {
                    0 => Location::New,
                    1 => Location::Same(Sequence(0)),
                    _ => Location::Stored(container(u32::try_from(random.below(9)).unwrap())),
                };
            }
            Placed { sequence: Sequence(number), len: 1 + u32::try_from(random.below(40)).unwrap(), location }
        };
        (0..len).map(&mut next).collect()
    }

    #[test]
    fn only_stored_chunks_are_stored_again() {
        let mut random = SplitMix64::new(10);
        for _ in 0..100 {
            let stream = random_stream(&mut random, 300);
            let all = [
                decided(Capping::new(20, 2), &stream, &[]),
                decided(ContextBased::new(20, 1000), &stream, &[]),
                decided(Selective::new(1000), &stream, &[30, 31]),
            ];
            for decided in all {
                let is_stored = |placed: &Placed| matches!(placed.location, Location::Stored(_));
                assert!(decided.chars().zip(&stream).all(|(letter, placed)| letter == '.' || is_stored(placed)));
            }
        }
    }
}
