//! A server for network block devices (NBD).
//!
//! The protocol is that of the public document "The NBD protocol" (`doc/proto.md` of the reference implementation). Comments
//! in this module name its sections in quotes. The server speaks the fixed newstyle negotiation, with structured replies
//! and metadata contexts.
//!
//! A volume implements [`export::Export`]; [`serve::Server`] offers volumes to clients.

mod admit;
mod buffers;
mod catalog;
mod connection;
pub mod export;
pub mod file;
#[cfg(feature = "testing")]
pub mod fuzzing;
pub(crate) mod input;
mod negotiate;
mod respond;
pub mod serve;
pub mod tls;
pub(crate) mod transport;
pub mod wire;

pub use catalog::NamedExport;
pub use negotiate::{NEGOTIATION_TIME_MAX, OPTIONS_MAX};
