//! Continuous data protection of volumes.
//!
//! [`nbd`] serves volumes over the protocol of network block devices (NBD). The crate is safe, blocking Rust: it uses
//! threads and no async runtime, and prints nothing. Whoever uses it gives it a function for messages.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod history;
pub mod journal;
pub mod link;
pub mod log;
pub mod nbd;
pub mod retention;
pub mod stored;
pub mod view;
pub mod volume;

#[cfg(any(test, feature = "testing"))]
pub mod sim_origin;
