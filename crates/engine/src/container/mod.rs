//! Containers: immutable stores of chunks.
//!
//! Header, sealed front directory, regions (each compressed and sealed as one message), padding, sealed back directory,
//! trailer. Data and metadata are kept in containers of their own. See `docs/format.md`.

pub mod buffer;
pub mod builder;
pub mod directory;
pub mod reader;
pub mod seal;
pub mod trailer;

pub use buffer::ContainerBytes;
pub use builder::{ContainerBuilder, Packed, Packer, Region, RegionChunk};
pub use directory::{Directory, DirectoryChunk, RegionEntry};
pub use reader::ContainerReader;
pub use seal::{SealedContainer, Sealer};
