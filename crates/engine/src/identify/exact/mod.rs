//! The exact identifier: the mechanism that carries out what a schedule decides.

pub(in crate::identify) mod arrivals;
pub(in crate::identify) mod cache;
pub(in crate::identify) mod checkpoint;
pub(in crate::identify) mod device;
pub(in crate::identify) mod directory;
pub(in crate::identify) mod growing_filter;
pub(in crate::identify) mod identify;
pub(in crate::identify) mod incomplete;
pub(in crate::identify) mod last_plan;
pub(in crate::identify) mod lookup;
pub(in crate::identify) mod opening;
pub(in crate::identify) mod pending;
pub(in crate::identify) mod plan_limits;
pub(in crate::identify) mod planning;
pub(in crate::identify) mod prelookup;
pub(in crate::identify) mod registry;
pub(in crate::identify) mod round_lookups;
pub(in crate::identify) mod session;
pub(in crate::identify) mod similar;
pub(in crate::identify) mod store;
pub(in crate::identify) mod stream;
pub(in crate::identify) mod stream_log;
pub(in crate::identify) mod stream_queue;
pub(in crate::identify) mod timer;
pub(in crate::identify) mod unit_log;
pub(in crate::identify) mod windows;
