//! Containers: immutable stores of chunks.
//!
//! Header, sealed front directory, regions (each compressed and sealed as one message), padding, sealed back directory,
//! trailer. Data and metadata are kept in containers of their own. See `docs/format.md`.

pub mod bases;
pub(crate) mod builder;
pub(crate) mod compress_region;
pub mod directory;
pub(crate) mod reader;
pub(crate) mod seal;
pub mod trailer;

pub use bases::{Base, Bases, ChunkRun};
pub(crate) use builder::{Assigned, LendChunks};
pub use builder::{ChosenBases, ChunkSample, ContainerBuilder, Region, RegionChunk};
pub(crate) use builder::{CompressedRegion, Packer};
pub use compress_region::compressor_of;
pub use directory::{Directory, DirectoryChunk, Form, RegionEntry, RegionSample};
pub(crate) use reader::ContainerReader;
pub(crate) use seal::SealedContainer;
pub use seal::Sealer;
