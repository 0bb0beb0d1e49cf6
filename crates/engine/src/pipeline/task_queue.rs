//! Ordered work queues: tasks in, results out, in the same order.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};

use crate::pipeline::driver::{Driver, Kind, Pool};

/// A stage that runs on workers: a function of its input.
pub(crate) trait Task: Send + Sync + 'static {
    /// Input of a task.
    type In: Send + 'static;
    /// Result of a task.
    type Out: Send + 'static;
    /// Runs one task.
    fn run(&self, input: Self::In) -> Self::Out;
}

/// Tasks of one kind, at most `depth` at a time.
pub(crate) struct TaskQueue<W: Task> {
    driver: Driver,
    task: Arc<W>,
    pool: Pool,
    depth: usize,
    jobs: VecDeque<Slot<W>>,
}

enum Slot<W: Task> {
    Running(Receiver<W::Out>),
    Waiting(W::In),
    Done(W::Out),
}

impl<W: Task> fmt::Debug for TaskQueue<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskQueue").field("depth", &self.depth).field("jobs", &self.jobs.len()).finish_non_exhaustive()
    }
}

impl Driver {
    /// Creates a queue for one kind of task.
    pub(crate) fn queue<W: Task>(&self, task: W, pool: Pool, depth: usize) -> TaskQueue<W> {
        TaskQueue::new(self.clone(), task, pool, depth)
    }
}

impl<W: Task> TaskQueue<W> {
    fn new(driver: Driver, task: W, pool: Pool, depth: usize) -> Self {
        Self { driver, task: Arc::new(task), pool, depth, jobs: VecDeque::with_capacity(depth) }
    }

    /// Adds a task. If the queue is full, waits for the oldest task and returns its result.
    #[must_use]
    pub(crate) fn push(&mut self, input: W::In) -> Option<W::Out> {
        let oldest = if self.depth <= self.jobs.len() { self.pop() } else { None };
        let slot = match self.driver.kind() {
            Kind::Inline { .. } => Slot::Waiting(input),
            Kind::Threads { compute, read, wait } => {
                let (sender, receiver) = bounded(1);
                let task = Arc::clone(&self.task);
                let workers = match self.pool {
                    Pool::Compute => compute,
                    Pool::Read => read,
                    Pool::Wait => wait,
                };
                workers.submit(Box::new(move || {
                    // After an error of the operation, nothing receives the result.
                    let _abandoned = sender.send(task.run(input));
                }));
                Slot::Running(receiver)
            }
        };
        self.jobs.push_back(slot);
        if let Kind::Inline { .. } = self.driver.kind()
            && self.driver.draw(2) == 0
        {
            let at = self.driver.draw(self.jobs.len());
            self.run_inline(at);
        }
        oldest
    }

    /// Takes the result of the oldest task if it is done.
    pub(crate) fn pop_done(&mut self) -> Option<W::Out> {
        match self.jobs.front()? {
            Slot::Running(receiver) if receiver.is_empty() => None,
            Slot::Waiting(_) => None,
            Slot::Running(_) | Slot::Done(_) => self.pop(),
        }
    }

    /// Takes the results of all tasks, oldest first, and waits for each.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = W::Out> {
        std::iter::from_fn(|| self.pop())
    }

    /// Waits for the oldest task and takes its result; `None` if the queue is empty.
    pub(crate) fn pop(&mut self) -> Option<W::Out> {
        while let Some(Slot::Waiting(_)) = self.jobs.front() {
            let at = self.driver.draw(self.jobs.len());
            self.run_inline(at);
        }
        match self.jobs.pop_front()? {
            Slot::Running(receiver) => Some(receiver.recv().expect("a worker panicked; its message stands above")),
            Slot::Done(result) => Some(result),
            Slot::Waiting(_) => unreachable!("the oldest job has run"),
        }
    }

    fn run_inline(&mut self, at: usize) {
        let Some(slot) = self.jobs.remove(at) else { return };
        let slot = match slot {
            Slot::Waiting(input) => Slot::Done(self.task.run(input)),
            Slot::Done(_) | Slot::Running(_) => slot,
        };
        self.jobs.insert(at, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Square;

    impl Task for Square {
        type In = u64;
        type Out = u64;
        fn run(&self, input: u64) -> u64 {
            input * input
        }
    }

    #[test]
    fn results_come_in_the_order_of_jobs_with_every_driver() {
        for driver in [Driver::threads(3), Driver::inline(1), Driver::inline(2)] {
            let mut queue = driver.queue(Square, Pool::Compute, 4);
            let mut results = Vec::new();
            for number in 0..100 {
                results.extend(queue.push(number));
                results.extend(queue.pop_done());
            }
            results.extend(queue.drain());
            assert_eq!(results, (0..100).map(|number| number * number).collect::<Vec<_>>());
            let mut numbers = 0..10;
            assert_eq!(
                driver.prefetch("numbers", move || numbers.next(), 2).collect::<Vec<_>>(),
                (0..10).collect::<Vec<_>>()
            );
        }
    }
}
