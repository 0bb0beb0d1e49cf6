//! Chunks of a stream until their containers are recorded, in the order of the stream.
//!
//! The stream log has its records in the order of the stream, and each names a container. A chunk whose container is not known
//! yet keeps those after it in memory. Their number has a limit. At the limit the older half of the waiting chunks is left out
//! of the log, so that nothing ever waits for this queue: a new chunk that is left out is entered with its position in the arrival
//! log when it is recorded. Chunks of trees and recipes are always left out.

use std::collections::VecDeque;

use crate::identify::segmenting::{Segmenter, Segmenting};
use crate::kv::Ordinal;
use crate::types::{Chunk, Sequence};

/// Whether a chunk's entry gets its position in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) enum Entering {
    /// If it is sampled.
    IfSampled,
    /// Yes: its entry led to no segment.
    Again,
    /// Yes: it is new, and has no entry yet.
    New,
}

/// A chunk whose container is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct StreamChunk {
    pub(crate) chunk: Chunk,
    pub(crate) ordinal: Ordinal,
    pub(crate) entering: Entering,
    /// Whether a segment begins with it.
    pub(crate) begins_segment: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Undecided,
    /// New, in no recorded container.
    Unique,
    /// Equal to a chunk that is in no recorded container.
    SameAs,
    Recorded {
        ordinal: Ordinal,
        entering: Entering,
    },
    LeftOut,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    chunk: Chunk,
    state: State,
    begins_segment: bool,
    /// The next of the chunks that are equal to a unique one; 0 after the last.
    equal: u64,
}

/// Memory of each chunk of the queue.
pub(in crate::identify) const WAITING_BYTES: usize = size_of::<Waiting>();

/// Chunks that may come while the oldest one, which is recorded, is not taken.
const QUEUE_EXTRA: usize = 64;

/// Fewest chunks of a queue.
pub(in crate::identify) const QUEUE_MIN: usize = 256;

/// The queue.
#[derive(Debug)]
pub(in crate::identify) struct StreamQueue {
    /// Position of the first chunk in the stream.
    first: u64,
    chunks: VecDeque<Waiting>,
    max: usize,
    is_cut: bool,
    /// Whether the log takes nothing more.
    is_stopped: bool,
    segmenter: Segmenter,
    /// Whether a chunk that was left out began a segment, which begins with the next one.
    begins_segment: bool,
    /// Chunks of bins that follow a chunk in the log, by its position.
    following: VecDeque<(u64, Vec<(Chunk, Ordinal)>)>,
    /// Those of the chunk that was taken last.
    due: VecDeque<(Chunk, Ordinal)>,
}

impl StreamQueue {
    /// Makes a queue of at most `max` chunks, but at least [`QUEUE_MIN`].
    pub(crate) fn new(max: usize, segmenting: Segmenting) -> Self {
        Self {
            first: 0,
            chunks: VecDeque::new(),
            max: max.max(QUEUE_MIN),
            is_cut: false,
            is_stopped: false,
            segmenter: Segmenter::new(segmenting),
            begins_segment: false,
            following: VecDeque::new(),
            due: VecDeque::new(),
        }
    }

    /// Takes note of the end of a file; returns true if a segment ends with it.
    pub(in crate::identify) fn end_file(&mut self) -> bool {
        self.segmenter.end_file()
    }

    /// Ends the segment before the next chunk.
    pub(in crate::identify) fn end_segment(&mut self) {
        self.segmenter.cut();
    }

    /// Lets chunks of recorded containers follow the chunk that arrived last.
    pub(in crate::identify) fn follow(&mut self, chunks: Vec<(Chunk, Ordinal)>) {
        if let Some(last) = (self.first + self.chunks.len() as u64).checked_sub(1).filter(|_| !self.chunks.is_empty()) {
            self.following.push_back((last, chunks));
        }
    }

    /// Takes nothing from now on.
    pub(in crate::identify) fn stop(&mut self) {
        (self.chunks, self.is_stopped) = (VecDeque::new(), true);
    }

    /// Returns true if chunks were left out since it was last asked.
    pub(in crate::identify) fn take_cut(&mut self) -> bool {
        std::mem::take(&mut self.is_cut)
    }

    /// Returns true if a unique chunk waits here for its container.
    pub(in crate::identify) fn awaits(&self, Sequence(sequence): Sequence) -> bool {
        let index = sequence.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| self.chunks.get(index)).is_some_and(|waiting| waiting.state == State::Unique)
    }

    /// Leaves out all chunks whose containers are not recorded: none will be.
    pub(in crate::identify) fn end(&mut self) {
        for waiting in &mut self.chunks {
            if !matches!(waiting.state, State::Recorded { .. }) {
                waiting.state = State::LeftOut;
            }
        }
    }

    /// Takes the next chunk of the stream; one that is no data is left out.
    pub(in crate::identify) fn arrive(&mut self, Sequence(sequence): Sequence, chunk: Chunk, is_data: bool) {
        if self.is_stopped {
            return;
        }
        if self.chunks.capacity() == 0 {
            // It hardly grows, so it does not exist twice.
            self.chunks.reserve_exact(self.max + QUEUE_EXTRA);
        }
        // One that is recorded is soon taken, and so are those after it: until then there may be a few more.
        let is_waiting = |oldest: &Waiting| !matches!(oldest.state, State::Recorded { .. });
        if self.max <= self.chunks.len() && self.chunks.front().is_some_and(is_waiting) {
            self.leave_out();
        }
        if self.chunks.is_empty() {
            self.first = sequence;
        }
        let state = if is_data { State::Undecided } else { State::LeftOut };
        let begins_segment = is_data && self.segmenter.push(&chunk.fingerprint);
        self.chunks.push_back(Waiting { chunk, state, begins_segment, equal: 0 });
    }

    /// Makes space: leaves out the waiting chunks of the older half.
    fn leave_out(&mut self) {
        self.is_cut = true;
        for index in 0..self.max / 2 {
            if !matches!(self.chunks[index].state, State::Recorded { .. }) {
                self.set_with_equals(self.first + index as u64, State::LeftOut, State::LeftOut);
            }
        }
        while self.chunks.front().is_some_and(|oldest| oldest.state == State::LeftOut) {
            self.take_first();
        }
    }

    fn take_first(&mut self) -> Option<Waiting> {
        let taken = self.chunks.pop_front()?;
        self.begins_segment |= taken.begins_segment;
        if let Some((_, chunks)) = self.following.pop_front_if(|(after, _)| *after == self.first) {
            self.due.extend(chunks);
        }
        self.first += 1;
        Some(taken)
    }

    fn get_mut(&mut self, sequence: u64) -> Option<&mut Waiting> {
        self.chunks.get_mut(usize::try_from(sequence.checked_sub(self.first)?).ok()?)
    }

    /// Sets the state of a chunk, and of those that are equal to it.
    fn set_with_equals(&mut self, sequence: u64, state: State, of_equals: State) {
        let Some(waiting) = self.get_mut(sequence) else { return };
        waiting.state = state;
        let mut next = std::mem::take(&mut waiting.equal);
        while next != 0 {
            let Some(waiting) = self.get_mut(next) else { return };
            waiting.state = of_equals;
            next = std::mem::take(&mut waiting.equal);
        }
    }

    /// Notes that a chunk is unique.
    pub(in crate::identify) fn set_unique(&mut self, Sequence(sequence): Sequence) {
        if let Some(waiting) = self.get_mut(sequence).filter(|waiting| waiting.state == State::Undecided) {
            waiting.state = State::Unique;
        }
    }

    /// Notes that a chunk that was stored is stored again.
    pub(in crate::identify) fn set_superseded(&mut self, Sequence(sequence): Sequence) {
        if let Some(waiting) = self.get_mut(sequence).filter(|waiting| waiting.state != State::LeftOut) {
            waiting.state = State::Unique;
        }
    }

    /// Notes that a chunk is stored in a container.
    pub(in crate::identify) fn set_stored(
        &mut self,
        Sequence(sequence): Sequence,
        ordinal: Ordinal,
        entering: Entering,
    ) {
        if let Some(waiting) = self.get_mut(sequence).filter(|waiting| waiting.state != State::LeftOut) {
            waiting.state = State::Recorded { ordinal, entering };
        }
    }

    /// Notes that a chunk is equal to an earlier unique one.
    pub(in crate::identify) fn set_same(&mut self, Sequence(sequence): Sequence, Sequence(first): Sequence) {
        let of_first = self.get_mut(first).map(|first| (first.state, first.equal));
        let (state, equal) = match of_first {
            Some((State::Unique, equal)) => (State::SameAs, equal),
            Some((State::Recorded { ordinal, .. }, _)) => {
                (State::Recorded { ordinal, entering: Entering::IfSampled }, 0)
            }
            _ => (State::LeftOut, 0),
        };
        let Some(waiting) = self.get_mut(sequence).filter(|waiting| waiting.state != State::LeftOut) else { return };
        (waiting.state, waiting.equal) = (state, equal);
        if state == State::SameAs
            && let Some(first) = self.get_mut(first)
        {
            first.equal = sequence;
        }
    }

    /// Notes that the container of a unique chunk is recorded.
    pub(in crate::identify) fn set_recorded(&mut self, Sequence(sequence): Sequence, ordinal: Ordinal) {
        if self.get_mut(sequence).is_some_and(|waiting| waiting.state == State::Unique) {
            let recorded = |entering| State::Recorded { ordinal, entering };
            self.set_with_equals(sequence, recorded(Entering::New), recorded(Entering::IfSampled));
        }
    }

    /// Takes the oldest chunk if its container is recorded. Passes over those that were left out.
    pub(in crate::identify) fn pop(&mut self) -> Option<StreamChunk> {
        loop {
            if let Some((chunk, ordinal)) = self.due.pop_front() {
                return Some(StreamChunk { chunk, ordinal, entering: Entering::IfSampled, begins_segment: false });
            }
            let &Waiting { chunk, state, .. } = self.chunks.front()?;
            match state {
                State::Undecided | State::Unique | State::SameAs => return None,
                State::Recorded { .. } | State::LeftOut => self.take_first(),
            };
            if let State::Recorded { ordinal, entering } = state {
                let begins_segment = std::mem::take(&mut self.begins_segment);
                return Some(StreamChunk { chunk, ordinal, entering, begins_segment });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use crate::testing::fingerprint;

    fn chunk(number: u64) -> Chunk {
        Chunk { fingerprint: fingerprint(number), len: 8192 }
    }

    fn queue(max: usize) -> StreamQueue {
        StreamQueue::new(max, Segmenting::Fixed { chunks: 4 })
    }

    fn pop_all(queue: &mut StreamQueue) -> Vec<(Chunk, u32, bool)> {
        std::iter::from_fn(|| queue.pop())
            .map(|it| (it.chunk, it.ordinal.0, it.entering != Entering::IfSampled))
            .collect()
    }

    #[test]
    fn chunks_leave_in_the_order_of_the_stream_once_their_containers_are_recorded() {
        let mut queue = queue(0);
        for number in 0..7 {
            queue.arrive(Sequence(number), chunk(number % 5), true);
        }
        queue.set_stored(Sequence(1), Ordinal(4), Entering::Again);
        queue.set_unique(Sequence(0));
        queue.set_same(Sequence(5), Sequence(0));
        assert_eq!(pop_all(&mut queue), []);
        queue.set_recorded(Sequence(0), Ordinal(9));
        assert_eq!(pop_all(&mut queue), [(chunk(0), 9, true), (chunk(1), 4, true)]);
        queue.set_stored(Sequence(3), Ordinal(2), Entering::IfSampled);
        queue.set_unique(Sequence(2));
        queue.set_unique(Sequence(4));
        queue.set_recorded(Sequence(4), Ordinal(1));
        // It is the same as one that has left, or that is recorded.
        queue.set_same(Sequence(6), Sequence(1));
        queue.set_recorded(Sequence(2), Ordinal(1));
        let rest = [(chunk(2), 1, true), (chunk(3), 2, false), (chunk(4), 1, true), (chunk(0), 9, false)];
        assert_eq!(pop_all(&mut queue), rest);
        assert!(!queue.take_cut());
    }

    #[test]
    fn at_the_limit_the_older_chunks_that_wait_are_left_out_and_no_other() {
        let mut queue = queue(QUEUE_MIN);
        let max = QUEUE_MIN as u64;
        for number in 0..max {
            queue.arrive(Sequence(number), chunk(number), true);
            match number % 4 {
                0 => queue.set_unique(Sequence(number)),
                1 => queue.set_same(Sequence(number), Sequence(number - 1)),
                2 => queue.set_stored(Sequence(number), Ordinal(1), Entering::IfSampled),
                _ => {}
            }
        }
        queue.arrive(Sequence(max), chunk(max), true);
        assert!(queue.take_cut() && !queue.take_cut());
        let left: Vec<_> = pop_all(&mut queue).into_iter().map(|(chunk, ..)| chunk).collect();
        assert_eq!(left, (2..max / 2).step_by(4).map(chunk).collect::<Vec<_>>());
        // Verdicts on chunks that were left out change nothing, also if their equals wait.
        queue.set_recorded(Sequence(0), Ordinal(3));
        queue.set_unique(Sequence(3));
        queue.set_same(Sequence(max), Sequence(3));
        for number in (max / 2..max).step_by(4) {
            queue.set_recorded(Sequence(number), Ordinal(3));
            queue.set_stored(Sequence(number + 3), Ordinal(2), Entering::IfSampled);
        }
        assert_eq!(pop_all(&mut queue).len() as u64, max / 2);
        queue.arrive(Sequence(max + 1), chunk(7), true);
        queue.stop();
        queue.arrive(Sequence(max + 2), chunk(7), true);
        queue.set_stored(Sequence(max + 1), Ordinal(1), Entering::Again);
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn every_chunk_leaves_once_or_is_left_out_whatever_the_order_of_verdicts() {
        for seed in 0..200 {
            let mut random = SplitMix64::new(seed);
            let mut queue = queue(QUEUE_MIN);
            let (mut undecided, mut unique, mut left): (Vec<u64>, Vec<u64>, Vec<u64>) = Default::default();
            let mut cuts = 0;
            for number in 0..1_500 {
                queue.arrive(Sequence(number), chunk(number), true);
                undecided.push(number);
                while random.below(50) != 0 && !undecided.is_empty() && random.below(3) != 0 {
                    let sequence = undecided.swap_remove(random.index(undecided.len()));
                    match random.below(3) {
                        0 => {
                            queue.set_unique(Sequence(sequence));
                            unique.push(sequence);
                        }
                        1 if unique.iter().any(|first| *first < sequence) => {
                            let first = unique.iter().copied().find(|first| *first < sequence).unwrap();
                            queue.set_same(Sequence(sequence), Sequence(first));
                        }
                        _ => queue.set_stored(Sequence(sequence), Ordinal(1), Entering::IfSampled),
                    }
                }
                if random.below(100 + 400 * (seed % 2)) == 0 {
                    unique.drain(..).for_each(|sequence| queue.set_recorded(Sequence(sequence), Ordinal(2)));
                }
                left.extend(
                    std::iter::from_fn(|| queue.pop())
                        .map(|taken| (0..=number).find(|other| chunk(*other) == taken.chunk).unwrap()),
                );
                cuts += u32::from(queue.take_cut());
                assert!(queue.chunks.len() <= QUEUE_MIN + QUEUE_EXTRA);
            }
            undecided
                .drain(..)
                .for_each(|sequence| queue.set_stored(Sequence(sequence), Ordinal(1), Entering::IfSampled));
            unique.drain(..).for_each(|sequence| queue.set_recorded(Sequence(sequence), Ordinal(2)));
            left.extend(
                std::iter::from_fn(|| queue.pop())
                    .map(|taken| (0..1_500).find(|other| chunk(*other) == taken.chunk).unwrap()),
            );
            assert!(queue.chunks.is_empty(), "seed {seed}: a chunk waits for nothing");
            assert!(left.is_sorted_by(|a, b| a < b));
            assert_eq!(left.len() == 1_500, cuts == 0, "seed {seed}: {} left, {cuts} cuts", left.len());
        }
    }
}
