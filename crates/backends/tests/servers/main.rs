//! Stores on real servers, which the tests start and kill.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests start real servers in real directories"
)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "tests that tell what they measure"
)]

mod containers;
mod mariadb;
mod presets;
mod redis_cluster;
mod redis_index;
mod redis_store;
mod source;
mod sql_index;
mod sql_store;
