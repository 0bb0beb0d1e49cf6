//! Records that are read because of a hit: logs of arrivals and of duplicate runs, and the units of the former.

pub(in crate::identify) mod arrival_log;
pub(in crate::identify) mod duplicate_runs;
pub(in crate::identify) mod frame;
pub(in crate::identify) mod successor;
pub(in crate::identify) mod units;
