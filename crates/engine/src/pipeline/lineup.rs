//! Tasks in order, of which a queue of the processor does some and somebody else the others.

use std::collections::VecDeque;

use crate::pipeline::task_queue::{Task, TaskQueue};

/// A queue of the processor, with entries between its tasks that it does not do. Entries have numbers, which count on.
#[derive(Debug)]
pub(crate) struct Lineup<W: Task, E> {
    queue: TaskQueue<W>,
    /// Number of the oldest entry.
    first: u64,
    entries: VecDeque<Entry<W::Out, E>>,
    /// Numbers of the entries in the queue, in its order.
    in_queue: VecDeque<u64>,
    /// Entries elsewhere.
    elsewhere: usize,
}

#[derive(Debug)]
enum Entry<O, E> {
    Elsewhere(E),
    InQueue,
    Done(O),
}

/// The oldest entry.
#[derive(Debug)]
pub(crate) enum Oldest<O, E> {
    /// The processor's result.
    Done(O),
    /// An entry that somebody else does.
    Elsewhere(E),
}

impl<W: Task, E> Lineup<W, E> {
    /// Starts without an entry.
    pub(crate) fn new(queue: TaskQueue<W>) -> Self {
        let (entries, in_queue) = (VecDeque::new(), VecDeque::new());
        Self { queue, first: 0, entries, in_queue, elsewhere: 0 }
    }

    /// Returns how many entries the processor has, done or not.
    pub(crate) fn processor_count(&self) -> usize {
        self.entries.len() - self.elsewhere
    }

    /// Returns how many entries are elsewhere.
    pub(crate) fn elsewhere_count(&self) -> usize {
        self.elsewhere
    }

    /// Adds an entry that the processor does.
    pub(crate) fn push(&mut self, input: W::In) {
        let number = self.first + self.entries.len() as u64;
        self.entries.push_back(Entry::InQueue);
        self.submit(number, input);
    }

    /// Adds an entry that somebody else does, and returns its number.
    pub(crate) fn push_elsewhere(&mut self, entry: E) -> u64 {
        self.elsewhere += 1;
        self.entries.push_back(Entry::Elsewhere(entry));
        self.first + self.entries.len() as u64 - 1
    }

    /// Hands an entry over to the processor after all.
    pub(crate) fn take_over(&mut self, number: u64, input: impl FnOnce(E) -> W::In) {
        let Some(entry) = self.entry(number) else { return };
        match std::mem::replace(entry, Entry::InQueue) {
            Entry::Elsewhere(taken) => {
                self.elsewhere -= 1;
                self.submit(number, input(taken));
            }
            other => {
                if let Some(entry) = self.entry(number) {
                    *entry = other;
                }
            }
        }
    }

    /// Returns an entry that somebody else does.
    pub(crate) fn elsewhere_mut(&mut self, number: u64) -> Option<&mut E> {
        match self.entry(number) {
            Some(Entry::Elsewhere(entry)) => Some(entry),
            Some(Entry::InQueue | Entry::Done(_)) | None => None,
        }
    }

    /// Returns the entries that somebody else does, oldest first.
    pub(crate) fn all_elsewhere(&mut self) -> impl Iterator<Item = &mut E> {
        self.entries.iter_mut().filter_map(|entry| match entry {
            Entry::Elsewhere(entry) => Some(entry),
            Entry::InQueue | Entry::Done(_) => None,
        })
    }

    /// Returns the number of the oldest entry.
    pub(crate) fn oldest(&self) -> Option<u64> {
        (!self.entries.is_empty()).then_some(self.first)
    }

    /// Takes the oldest entry, and waits if the processor does it.
    pub(crate) fn pop(&mut self) -> Option<Oldest<W::Out, E>> {
        while let Some(Entry::InQueue) = self.entries.front() {
            let done = self.queue.pop().expect("the queue has the entries that it was given");
            self.finish(done);
        }
        let oldest = self.entries.pop_front()?;
        self.first += 1;
        match oldest {
            Entry::Done(done) => Some(Oldest::Done(done)),
            Entry::Elsewhere(entry) => {
                self.elsewhere -= 1;
                Some(Oldest::Elsewhere(entry))
            }
            Entry::InQueue => unreachable!("it was waited for"),
        }
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry<W::Out, E>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.entries.get_mut(at)
    }

    fn submit(&mut self, number: u64, input: W::In) {
        if let Some(done) = self.queue.push(input) {
            self.finish(done);
        }
        self.in_queue.push_back(number);
    }

    /// Takes the result of the oldest task.
    fn finish(&mut self, done: W::Out) {
        let number = self.in_queue.pop_front().expect("the queue has the entries that it was given");
        if let Some(entry) = self.entry(number) {
            *entry = Entry::Done(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::driver::{Driver, Pool};

    #[derive(Debug)]
    struct Square;

    impl Task for Square {
        type In = u64;
        type Out = u64;
        fn run(&self, input: u64) -> u64 {
            input * input
        }
    }

    #[test]
    fn entries_come_in_order_whoever_does_them() {
        for driver in [Driver::threads(2), Driver::inline(1), Driver::inline(2)] {
            let mut lineup: Lineup<Square, u64> = Lineup::new(driver.queue(Square, Pool::Compute, 3));
            let mut numbers = Vec::new();
            for number in 0..20 {
                if number % 3 == 0 {
                    numbers.push(lineup.push_elsewhere(number));
                } else {
                    lineup.push(number);
                }
            }
            assert_eq!((lineup.elsewhere_count(), lineup.processor_count()), (7, 13));
            for number in numbers.iter().step_by(2) {
                lineup.take_over(*number, |number| number);
            }
            assert_eq!((lineup.elsewhere_count(), lineup.oldest()), (3, Some(0)));
            assert_eq!(lineup.elsewhere_mut(0), None);
            let results = std::iter::from_fn(|| lineup.pop()).map(|oldest| match oldest {
                Oldest::Done(square) => square,
                Oldest::Elsewhere(number) => number * number,
            });
            assert_eq!(results.collect::<Vec<_>>(), (0..20).map(|number| number * number).collect::<Vec<_>>());
        }
    }
}
