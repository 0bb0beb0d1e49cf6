//! Ordered work queues, and the drivers that run their tasks.
//!
//! A stage is a function of its input and knows neither threads nor queues. A `TaskQueue` hands at most `depth` tasks to
//! workers and returns their results in order: one result from `TaskQueue::push` when the queue is full, the others from
//! `TaskQueue::drain`. One thread takes the results, at points that the input alone decides, so that every driver writes
//! the same bytes.
//!
//! `Ordered` is the seam of a stage. A `TaskQueue` is one implementation; a stage that gives batches to a device is the other, with a
//! `Lineup` for what the processor does meanwhile.
//!
//! There are two job systems. A `TaskQueue` serves the stages of an operation: many short tasks whose results are needed in
//! order. [`Host::background`](crate::io::Host::background) serves state that outlives the operation's loop, such as the
//! flush of a table: one long job that owns its inputs, and whose result is taken when it is due.

pub(crate) mod buffer_pool;
pub(crate) mod driver;
pub(crate) mod lineup;
pub(crate) mod ordered;
pub(crate) mod permits;
pub(crate) mod task_queue;

pub(crate) use buffer_pool::BufferPool;
pub use driver::Driver;
pub(crate) use driver::Prefetcher;
pub(crate) use lineup::{Lineup, Oldest};
pub(crate) use ordered::Ordered;
pub(crate) use permits::Permits;
pub(crate) use task_queue::{Task, TaskQueue};
