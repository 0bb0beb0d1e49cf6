//! When pending chunks are looked up, and which of them.

pub(in crate::identify) mod cycle;
pub(in crate::identify) mod pool;
pub(in crate::identify) mod rounds;
