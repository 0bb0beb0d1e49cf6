//! Continuous data protection with real sockets and real clients.
#![expect(clippy::disallowed_methods, reason = "tests start real programs in real directories")]
#![expect(clippy::cast_possible_truncation, reason = "lengths of tests are short")]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests that report their seeds")]

mod client;
mod fixture;
mod fuzzing;
mod memory;
mod model;
mod nbd;
mod power_cut;
mod programs;
mod tls;
