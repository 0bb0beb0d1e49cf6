//! The seam of a stage: inputs in, results out, in the same order.

use crate::pipeline::task_queue::{Task, TaskQueue};

/// A stage whose results come in the order of its inputs, wherever they are computed.
pub(crate) trait Ordered: std::fmt::Debug + Send {
    /// Input of a task.
    type In;
    /// Result of a task.
    type Out;

    /// Adds an input. If the stage is full, waits for the oldest result and returns it.
    #[must_use]
    fn push(&mut self, input: Self::In) -> Option<Self::Out>;

    /// Waits for the oldest result and takes it; `None` if there are no inputs left.
    fn pop(&mut self) -> Option<Self::Out>;
}

impl<W: Task> Ordered for TaskQueue<W> {
    type In = W::In;
    type Out = W::Out;

    fn push(&mut self, input: W::In) -> Option<W::Out> {
        Self::push(self, input)
    }

    fn pop(&mut self) -> Option<W::Out> {
        Self::pop(self)
    }
}
