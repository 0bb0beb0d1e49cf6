//! A server for network block devices (NBD).
//!
//! The protocol is that of the public document "The NBD protocol" (`doc/proto.md` of the reference implementation). Comments
//! in this module name its sections in quotes. The server speaks the fixed newstyle negotiation, with structured replies
//! and metadata contexts.

pub mod export;
pub mod file;
pub mod wire;
