//! What every object of a repository has in common: its name and its header.

pub(crate) mod bytes;
pub mod config;
pub mod directory;
pub(crate) mod handshake;
pub mod header;
pub mod names;
pub(crate) mod sealed;
pub mod slot;
pub mod store;

pub use bytes::ObjectBytes;
pub use config::Config;
pub use header::{FormatVersion, HEADER_LEN, Header, ObjectType};
pub use sealed::open_small;
pub(crate) use sealed::seal_small;
pub use store::ObjectStore;
