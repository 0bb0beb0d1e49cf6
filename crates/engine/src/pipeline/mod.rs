//! How stages run: work that can be done aside goes through lanes, in order.
//!
//! A stage is a plain function of its input; it knows neither threads nor queues. A [`TaskQueue`] hands jobs to workers and
//! gives the results back in the order the jobs went in, at most `depth` of them under way. What is done with results
//! happens on one thread, at points that the input alone decides, so that every driver writes the same bytes.

pub mod buffer_pool;
pub mod driver;
pub mod task_queue;

pub use buffer_pool::BufferPool;
pub use driver::{Driver, Prefetcher};
pub use task_queue::{Task, TaskQueue};
