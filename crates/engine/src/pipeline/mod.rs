//! How stages run: work that can be done aside goes through lanes, in order.
//!
//! A stage is a plain function of its input; it knows neither threads nor queues. A [`Lane`] hands jobs to workers and
//! gives the results back in the order the jobs went in, at most `depth` of them under way. What is done with results
//! happens on one thread, at points that the input alone decides, so that every driver writes the same bytes.

pub mod driver;
pub mod lane;
pub mod spare;

pub use driver::{Driver, Feed};
pub use lane::{Lane, Work};
pub use spare::Spare;
