//! Two machines in one process: the sender and the receiver on simulated disks, TLS on loopback, and a proxy that cuts.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "tests run programs and say what they covered")]

mod cuts;
mod peers;
mod world;
