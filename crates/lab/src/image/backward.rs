//! Backward referencing: for each block, the first block that is equal to it, by comparing names.
//!
//! The paper's algorithm (sections 2.2 and 3.1) takes each block in turn and compares all blocks behind it. [`as_in_paper`] does so and
//! counts its steps, and [`in_rounds`] divides each turn among tasks. [`sequential`] and [`by_threads`] find the same references
//! faster: each block looks for the first equal one, in ascending order, and stops there. References are positions of blocks;
//! [`renumber`] makes them numbers of unique blocks, and [`renumber_as_in_paper`] does so by visiting all pairs.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::image::block::{NAME_BYTES, Name};
use crate::image::parallel::for_all;

/// Names that are compared before the result is looked at: their first words are a few lines of the cache.
const GROUP: usize = 64;
/// Blocks that a thread takes at a time. Those at the end have the most to compare, so they are taken first.
const BLOCKS_OF_PART: usize = 256;

/// Names in four planes of words: word w of name j is `planes[w][j]`.
#[derive(Clone, Debug)]
pub struct Planes([Vec<u32>; NAME_BYTES / 4]);

impl Planes {
    /// Makes planes of names.
    pub fn of(names: &[Name]) -> Self {
        let word = |w: usize| names.iter().map(|name| u32::from_le_bytes(name.as_chunks().0[w])).collect();
        Self(std::array::from_fn(word))
    }

    /// Returns the words of all planes, one plane after the other.
    pub fn words(&self) -> Vec<u32> {
        self.0.concat()
    }

    fn len(&self) -> usize {
        self.0[0].len()
    }

    fn are_equal(&self, i: usize, j: usize) -> bool {
        self.0.iter().all(|plane| plane[i] == plane[j])
    }

    /// Returns the first position of a name equal to name j.
    fn first(&self, j: usize) -> usize {
        let words = &self.0[0];
        let mine = words[j];
        for (group, words) in words[..j].chunks(GROUP).enumerate() {
            // Without an early end the comparisons are done in vectors.
            if words.iter().fold(0, |any, word| any | u32::from(*word == mine)) == 0 {
                continue;
            }
            let start = group * GROUP;
            if let Some(i) = (start..start + words.len()).find(|i| self.are_equal(*i, j)) {
                return i;
            }
        }
        j
    }
}

/// Steps of an algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Steps {
    /// Comparisons of names.
    pub indexing: u64,
    /// Visits of references.
    pub reindexing: u64,
}

fn number(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// Finds the reference of each block as in the paper: compares each block with all behind it. Adds the comparisons to `steps`.
pub fn as_in_paper(names: &[Name], steps: &mut Steps) -> Vec<u32> {
    let mut back: Vec<u32> = (0..number(names.len())).collect();
    for (i, name) in names.iter().enumerate() {
        for (j, other) in names.iter().enumerate().skip(i + 1) {
            steps.indexing += 1;
            if name == other {
                back[j] = back[j].min(number(i));
            }
        }
    }
    back
}

/// Finds the references with tasks that divide the blocks behind each block among themselves. Adds the comparisons of that task
/// which has the most in each round.
pub fn in_rounds(names: &[Name], tasks: usize, steps: &mut Steps) -> Vec<u32> {
    let tasks = tasks.max(1);
    let back: Vec<AtomicU32> = (0..number(names.len())).map(AtomicU32::new).collect();
    // The most comparisons of a task, in each round.
    let most: Vec<AtomicU32> = names.iter().map(|_| AtomicU32::new(0)).collect();
    for_all(0..tasks, tasks, |task| {
        for (i, name) in names.iter().enumerate() {
            let share = (names.len() - i - 1).div_ceil(tasks);
            let begin = i + 1 + task * share;
            let mut compared = 0;
            for (j, other) in names.iter().enumerate().skip(begin).take(share) {
                compared += 1;
                if name == other {
                    back[j].fetch_min(number(i), Ordering::Relaxed);
                }
            }
            most[i].fetch_max(compared, Ordering::Relaxed);
        }
    });
    steps.indexing += most.into_iter().map(|most| u64::from(most.into_inner())).sum::<u64>();
    back.into_iter().map(AtomicU32::into_inner).collect()
}

/// Finds the reference of each block: its own position if it is the first one of its name.
pub fn sequential(planes: &Planes) -> Vec<u32> {
    (0..planes.len()).map(|j| number(planes.first(j))).collect()
}

/// As [`sequential`], on threads that divide the blocks among themselves.
pub fn by_threads(planes: &Planes, threads: usize) -> Vec<u32> {
    let mut back = vec![0; planes.len()];
    let parts: Vec<_> = back.chunks_mut(BLOCKS_OF_PART).enumerate().collect();
    for_all(parts.into_iter().rev(), threads, |(part, back)| {
        for (at, back) in back.iter_mut().enumerate() {
            *back = number(planes.first(part * BLOCKS_OF_PART + at));
        }
    });
    back
}

/// Replaces references to positions by numbers of unique blocks, in one pass: a block that refers to itself is unique.
pub fn renumber(back: &[u32]) -> Vec<u32> {
    let mut unique = 0;
    let mut numbers: Vec<u32> = Vec::with_capacity(back.len());
    for (position, first) in back.iter().enumerate() {
        if number(position) == *first {
            numbers.push(unique);
            unique += 1;
        } else {
            // The first block of a name comes before the others and has its number.
            let known = numbers.get(*first as usize).copied();
            numbers.push(known.unwrap_or(u32::MAX));
        }
    }
    numbers
}

/// Replaces references to positions by numbers of unique blocks as in the paper: behind each duplicate, counts all references down
/// that point behind it. Adds the visits to `steps`.
pub fn renumber_as_in_paper(back: &[u32], steps: &mut Steps) -> Vec<u32> {
    let mut numbers = back.to_vec();
    for (i, first) in back.iter().enumerate() {
        let is_duplicate = *first != number(i);
        for (number_of, reference) in numbers.iter_mut().zip(back).skip(i + 1) {
            steps.reindexing += 1;
            *number_of -= u32::from(is_duplicate && number(i) < *reference);
        }
    }
    numbers
}

/// As [`renumber_as_in_paper`], with tasks that divide the references behind each block among themselves. Adds the visits of that
/// task which has the most in each round.
pub fn renumber_in_rounds(back: &[u32], tasks: usize, steps: &mut Steps) -> Vec<u32> {
    let tasks = tasks.max(1);
    let numbers: Vec<AtomicU32> = back.iter().copied().map(AtomicU32::new).collect();
    let most: Vec<AtomicU32> = back.iter().map(|_| AtomicU32::new(0)).collect();
    for_all(0..tasks, tasks, |task| {
        for (i, first) in back.iter().enumerate() {
            let is_duplicate = *first != number(i);
            let share = (back.len() - i - 1).div_ceil(tasks);
            let begin = i + 1 + task * share;
            let mut visited = 0;
            for (number_of, reference) in numbers.iter().zip(back).skip(begin).take(share) {
                visited += 1;
                if is_duplicate && number(i) < *reference {
                    number_of.fetch_sub(1, Ordering::Relaxed);
                }
            }
            most[i].fetch_max(visited, Ordering::Relaxed);
        }
    });
    steps.reindexing += most.into_iter().map(|most| u64::from(most.into_inner())).sum::<u64>();
    numbers.into_iter().map(AtomicU32::into_inner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::first::tests::{expected, few_names};

    #[test]
    fn every_way_finds_the_same_references_and_numbers() {
        for (count, kinds) in [(0, 1), (1, 1), (2, 1), (65, 1), (700, 4), (700, 60_000)] {
            let names = few_names(count, kinds, count as u64);
            let all: Vec<u32> = (0..number(count)).collect();
            let wanted: Vec<u32> = expected(&names, &all).iter().map(|found| found.first).collect();
            let planes = Planes::of(&names);
            assert_eq!(as_in_paper(&names, &mut Steps::default()), wanted);
            assert_eq!(sequential(&planes), wanted);
            // Numbers by their definition: unique blocks before the first of the name.
            let is_unique = |position: u32| wanted[position as usize] == position;
            let numbers: Vec<u32> =
                wanted.iter().map(|first| number((0..*first).filter(|at| is_unique(*at)).count())).collect();
            assert_eq!(renumber(&wanted), numbers);
            assert_eq!(renumber_as_in_paper(&wanted, &mut Steps::default()), numbers);
            for threads in 1..=64 {
                assert_eq!(by_threads(&planes, threads), wanted, "{threads}");
            }
            for tasks in [1, 2, 3, 4, 64] {
                assert_eq!(in_rounds(&names, tasks, &mut Steps::default()), wanted, "{tasks}");
                assert_eq!(renumber_in_rounds(&wanted, tasks, &mut Steps::default()), numbers, "{tasks}");
            }
        }
    }

    #[test]
    fn steps_are_those_of_all_pairs_whatever_is_equal() {
        for (count, kinds) in [(0, 1), (1, 1), (2, 1), (100, 2), (100, 60_000)] {
            let (names, mut steps) = (few_names(count, kinds, 1), Steps::default());
            let back = as_in_paper(&names, &mut steps);
            renumber_as_in_paper(&back, &mut steps);
            let pairs = (count * count.saturating_sub(1) / 2) as u64;
            assert_eq!(steps, Steps { indexing: pairs, reindexing: pairs });
            for tasks in 1..=5 {
                let mut steps = Steps::default();
                let back = in_rounds(&names, tasks, &mut steps);
                renumber_in_rounds(&back, tasks, &mut steps);
                let rounds = (0..count).map(|behind| behind.div_ceil(tasks) as u64).sum();
                assert_eq!(steps, Steps { indexing: rounds, reindexing: rounds }, "{tasks}");
            }
        }
    }
}
