//! Context-based rewriting (Kaczmarczyk et al., SYSTOR 2012).

use std::collections::{HashMap, VecDeque};

use crate::backup::rewriting::{Decision, Place, Placed, Rewriting, decision};
use crate::types::ContainerId;

/// Buckets of utilities.
const BUCKETS: usize = 10_000;
/// Chunks after which the histogram of utilities decides.
const CHUNKS_MIN: u64 = 100;
/// Share of the chunks that may be stored again: 5%, as in the paper.
const LIMIT: (u64, u64) = (1, 20);
/// Least utility of a chunk that is stored again, in buckets: one half, as in destor's sample configuration.
const UTILITY_MIN: usize = BUCKETS / 2;

/// A container that the window refers to.
#[derive(Clone, Copy, Debug)]
struct Context {
    chunks: usize,
    bytes: u64,
    /// Whether a chunk of it was kept. Then its neighbors in the window stay, too.
    is_kept: bool,
}

/// Stores a chunk again if the chunks that follow it use little of its container, and only the chunks of which that is most true.
#[derive(Debug)]
pub struct ContextBased {
    chunks: usize,
    container_bytes: u64,
    window: VecDeque<Placed>,
    contexts: HashMap<ContainerId, Context>,
    utilities: Utilities,
}

impl ContextBased {
    /// Decides on a chunk when so many chunks are known, itself among them; 0 counts as 1. Containers have so many bytes.
    pub fn new(chunks: usize, container_bytes: u64) -> Self {
        let utilities = Utilities { chunks: 0, buckets: vec![0; BUCKETS], threshold: BUCKETS, above: 0 };
        let (window, contexts) = (VecDeque::new(), HashMap::new());
        Self { chunks: chunks.max(1), container_bytes: container_bytes.max(1), window, contexts, utilities }
    }

    fn decide(&mut self, placed: &Placed) -> Decision {
        let mut utility = 0;
        let mut is_fragmented = false;
        if let Place::Stored(container) = placed.place
            && let Some(context) = self.contexts.get_mut(&container)
            && !context.is_kept
        {
            let unused = self.container_bytes.saturating_sub(context.bytes);
            let share = u128::from(unused) * BUCKETS as u128 / u128::from(self.container_bytes);
            utility = usize::try_from(share).expect("a part of the buckets").min(BUCKETS - 1);
            is_fragmented = self.utilities.threshold() <= utility;
            context.is_kept = !is_fragmented;
        }
        self.utilities.add(utility);
        decision(placed.sequence, is_fragmented)
    }

    fn leave(&mut self, placed: &Placed) {
        if let Place::Stored(container) = placed.place
            && let Some(context) = self.contexts.get_mut(&container)
        {
            context.chunks -= 1;
            context.bytes -= u64::from(placed.len);
            if context.chunks == 0 {
                self.contexts.remove(&container);
            }
        }
    }
}

impl Rewriting for ContextBased {
    fn push(&mut self, reference: &Placed, decided: &mut Vec<Decision>) {
        if let Place::Stored(container) = reference.place {
            let new = Context { chunks: 0, bytes: 0, is_kept: false };
            let context = self.contexts.entry(container).or_insert(new);
            context.chunks += 1;
            context.bytes += u64::from(reference.len);
        }
        self.window.push_back(*reference);
        if self.chunks <= self.window.len()
            && let Some(oldest) = self.window.pop_front()
        {
            decided.push(self.decide(&oldest));
            self.leave(&oldest);
        }
    }

    /// Decides the last window by all of it, since nothing follows.
    fn finish(&mut self, decided: &mut Vec<Decision>) {
        for placed in std::mem::take(&mut self.window) {
            decided.push(self.decide(&placed));
        }
        self.contexts.clear();
    }
}

/// Utilities of the chunks so far, and the utility that only so many exceed as may be stored again.
#[derive(Debug)]
struct Utilities {
    chunks: u64,
    buckets: Vec<u64>,
    /// The lowest bucket of which and above which there are fewer chunks than may be stored again.
    threshold: usize,
    /// Chunks in these buckets.
    above: u64,
}

impl Utilities {
    fn add(&mut self, utility: usize) {
        self.chunks += 1;
        self.buckets[utility] += 1;
        self.above += u64::from(self.threshold <= utility);
        let may = self.chunks * LIMIT.0 / LIMIT.1;
        while self.threshold < BUCKETS && may <= self.above {
            self.above -= self.buckets[self.threshold];
            self.threshold += 1;
        }
        while UTILITY_MIN < self.threshold && self.above + self.buckets[self.threshold - 1] < may {
            self.threshold -= 1;
            self.above += self.buckets[self.threshold];
        }
    }

    fn threshold(&self) -> usize {
        if self.chunks < CHUNKS_MIN { UTILITY_MIN } else { self.threshold }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::rewriting::tests::{decided, random_stream, stream};
    use crate::random::SplitMix64;

    #[test]
    fn a_chunk_is_stored_again_if_what_follows_uses_little_of_its_container() {
        // Of 100 bytes, the three chunks of 1 use 30: utility 70%. The six of 2 use 60: 40%, and all of these stay once one does.
        assert_eq!(decided(ContextBased::new(20, 100), &stream("111n222222s"), &[]), "!!!........");
        // The window of two never sees more than 20 bytes of a container.
        assert_eq!(decided(ContextBased::new(2, 100), &stream("n2222221"), &[]), ".!!!!!!!");
        assert_eq!(decided(ContextBased::new(2, 30), &stream("n2222221"), &[]), ".......!");
    }

    #[test]
    fn no_more_are_stored_again_than_the_limit() {
        let mut text = "n".repeat(2000);
        // All have a utility of 90%: 100 of 2,000 may be stored again, and the first of each hundred before them.
        text.push_str(&"1234567890".repeat(100));
        let decided = decided(ContextBased::new(2, 100), &stream(&text), &[]);
        let again = decided.matches('!').count();
        assert!((100..=160).contains(&again), "{again}");
    }

    #[test]
    fn random_streams_are_decided_as_a_naive_model_does() {
        let mut random = SplitMix64::new(9);
        for _ in 0..20 {
            let stream = random_stream(&mut random, 900);
            let window = 30;
            let mut utilities: Vec<usize> = Vec::new();
            let mut kept: Vec<(ContainerId, usize)> = Vec::new();
            let mut expected = String::new();
            for (at, placed) in stream.iter().enumerate() {
                let mut utility = 0;
                let mut letter = '.';
                let end = (at + window).min(stream.len());
                let start = at.min(stream.len() - window);
                if let Place::Stored(container) = placed.place {
                    let in_it = |placed: &&Placed| placed.place == Place::Stored(container);
                    // Kept once, a container is kept until the window has none of it.
                    if let Some((_, since)) = kept.iter().find(|(other, _)| *other == container)
                        && (since + 1..=at).any(|at| {
                            at + window <= stream.len() && stream[at..at + window - 1].iter().filter(in_it).count() == 0
                        })
                    {
                        kept.retain(|(other, _)| *other != container);
                    }
                    if !kept.iter().any(|(other, _)| *other == container) {
                        let used: u32 = stream[start..end].iter().filter(in_it).map(|placed| placed.len).sum();
                        utility = (1000 - used as usize).min(999) * 10;
                        let may = utilities.len() / 20;
                        let threshold = (UTILITY_MIN..=BUCKETS)
                            .find(|at| utilities.iter().filter(|utility| at <= *utility).count() < may)
                            .unwrap_or(BUCKETS);
                        let threshold = if utilities.len() < 100 { UTILITY_MIN } else { threshold };
                        if threshold <= utility {
                            letter = '!';
                        } else {
                            kept.push((container, at));
                        }
                    }
                }
                utilities.push(utility);
                expected.push(letter);
            }
            assert_eq!(decided(ContextBased::new(window, 1000), &stream, &[]), expected);
        }
    }
}
