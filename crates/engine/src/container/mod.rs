//! Containers: immutable stores of chunks.
//!
//! Header, sealed front directory, regions (each compressed and sealed as one message), padding, sealed back directory,
//! trailer. Data and metadata are kept in containers of their own. See `docs/format.md`.

pub mod directory;
pub mod draft;
pub mod reader;
pub mod room;
pub mod seal;
pub mod trailer;

pub use directory::{Directory, DirectoryChunk, RegionEntry};
pub use draft::{Draft, Packed, Packer, Region, RegionChunk};
pub use reader::ContainerReader;
pub use room::ContainerBytes;
pub use seal::{SealedContainer, Sealer};
