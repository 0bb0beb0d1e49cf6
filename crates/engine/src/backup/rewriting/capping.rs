//! Capping: few containers for each segment (Lillibridge et al., FAST 2013).

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use crate::backup::rewriting::{Decision, Place, Placed, Rewriting, decision};
use crate::types::ContainerId;

/// Lets each segment of the stream refer to the containers that have most of its bytes, and stores again what is in others.
#[derive(Debug)]
pub struct Capping {
    chunks: usize,
    containers: usize,
    segment: Vec<Placed>,
}

impl Capping {
    /// Makes segments of so many chunks, each of which refers to at most so many containers. 0 counts as 1.
    pub fn new(chunks: usize, containers: usize) -> Self {
        Self { chunks: chunks.max(1), containers: containers.max(1), segment: Vec::new() }
    }

    fn decide(&mut self, decided: &mut Vec<Decision>) {
        let mut bytes: HashMap<ContainerId, u64> = HashMap::new();
        for placed in &self.segment {
            if let Place::Stored(container) = placed.place {
                *bytes.entry(container).or_default() += u64::from(placed.len);
            }
        }
        let mut ranked: Vec<_> = bytes.into_iter().collect();
        ranked.sort_unstable_by_key(|&(container, bytes)| (Reverse(bytes), container));
        let kept: HashSet<_> = ranked.into_iter().take(self.containers).map(|(container, _)| container).collect();
        decided.extend(self.segment.drain(..).map(|placed| {
            let is_fragmented = matches!(placed.place, Place::Stored(container) if !kept.contains(&container));
            decision(placed.sequence, is_fragmented)
        }));
    }
}

impl Rewriting for Capping {
    fn push(&mut self, reference: &Placed, decided: &mut Vec<Decision>) {
        self.segment.push(*reference);
        if self.chunks <= self.segment.len() {
            self.decide(decided);
        }
    }

    fn finish(&mut self, decided: &mut Vec<Decision>) {
        self.decide(decided);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::rewriting::tests::{decided, random_stream, stream};
    use crate::random::SplitMix64;

    #[test]
    fn a_segment_refers_to_the_containers_that_have_most_of_it() {
        // The first segment has three chunks in 1, two in 2 and two in 3: the lower number wins. The rest is a segment, too.
        assert_eq!(decided(Capping::new(9, 2), &stream("113n22s3145n54"), &[]), "..!....!......");
        assert_eq!(decided(Capping::new(9, 1), &stream("113n22s3145n54"), &[]), "..!.!!.!..!.!.");
        assert_eq!(decided(Capping::new(9, 1), &stream("nnssn"), &[]), ".....");
        assert_eq!(decided(Capping::new(0, 0), &stream("1234"), &[]), "....");
    }

    #[test]
    fn random_segments_are_decided_by_bytes() {
        let mut random = SplitMix64::new(4);
        for _ in 0..200 {
            let stream = random_stream(&mut random, 130);
            let mut expected = String::new();
            for segment in stream.chunks(40) {
                let bytes = |container| -> u32 {
                    let in_it = |placed: &&Placed| placed.place == Place::Stored(container);
                    segment.iter().filter(in_it).map(|placed| placed.len).sum()
                };
                for placed in segment {
                    let Place::Stored(own) = placed.place else {
                        expected.push('.');
                        continue;
                    };
                    let is_ahead = |&&other: &&ContainerId| (Reverse(bytes(other)), other) < (Reverse(bytes(own)), own);
                    let stored = segment.iter().filter_map(|placed| match placed.place {
                        Place::Stored(container) => Some(container),
                        _ => None,
                    });
                    let ahead = { stored }.collect::<HashSet<_>>().iter().filter(is_ahead).count();
                    expected.push(if ahead < 3 { '.' } else { '!' });
                }
            }
            assert_eq!(decided(Capping::new(40, 3), &stream, &[]), expected);
        }
    }
}
