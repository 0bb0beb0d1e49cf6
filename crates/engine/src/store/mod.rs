//! An open repository: its objects, written in the order that makes them safe and checked when they are read.

mod base_chain;
pub(crate) mod base_reader;
pub(crate) mod collections;
pub mod commits;
pub(crate) mod container_ids;
mod container_runs;
pub mod container_set;
pub(crate) mod container_writer;
pub(crate) mod containers;
pub mod create;
pub mod cursor;
pub(crate) mod directories;
pub(crate) mod host_file;
mod leftovers;
pub(crate) mod locations;
pub(crate) mod manifests;
pub mod metadata;
pub(crate) mod node_walk;
pub mod pin;
pub(crate) mod presence;
mod quarantined;
pub mod recipe_cursor;
pub(crate) mod references;
mod scratch;
pub(crate) mod session;
pub mod slots;
pub mod upgrade;
pub(crate) mod view;
mod vouching;
pub mod walk;

use std::fmt::Display;
use std::sync::Arc;

use crate::chunk::{ChunkSizes, Chunking, GearTable};
use crate::crypto::Keys;
use crate::error::{Error, Result};
use crate::io::Host;
use crate::object::names::{ObjectName, Prefix};
use crate::object::store::{Detail, ObjectStore, RangeRead};
use crate::object::{Config, FormatVersion};

use crate::similarity::anchors::{ANCHOR_DISTANCE, AnchorFinder};
use crate::store::container_set::Containers;

pub use create::{CreateOptions, Unlock, create, create_and_try, open};
pub(crate) use host_file::read_file;
pub use metadata::MetadataReader;
pub use quarantined::QuarantinedContainer;
pub(crate) use session::Session;
pub use upgrade::upgrade;

/// An open repository. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    /// Its objects.
    pub objects: Arc<dyn ObjectStore>,
    /// Clock and randomness.
    pub host: Arc<dyn Host>,
    /// Its parameters.
    pub config: Arc<Config>,
    /// Its keys.
    pub keys: Arc<Keys>,
    /// Containers that are read although they are quarantined.
    pub(crate) quarantined: Option<Arc<Containers>>,
}

/// Average length of chunks for which the table of the hash is drawn, where chunks have a fixed length: anchors are found by the hash
/// whatever cuts the chunks.
const TABLE_CHUNK_BYTES: u32 = 8192;

impl Store {
    /// Returns what finds the anchors of this repository.
    pub(crate) fn anchor_finder(&self) -> AnchorFinder {
        let sizes = match self.config.chunking {
            Chunking::Gear(sizes) => sizes,
            Chunking::Fixed { .. } => ChunkSizes::for_average(TABLE_CHUNK_BYTES),
        };
        let key = self.keys.chunk();
        AnchorFinder::new(&GearTable::expand(key, sizes), key, ANCHOR_DISTANCE)
    }

    /// Returns true if new regions may be compressed against similar ones.
    pub fn uses_similarity(&self) -> bool {
        self.config.format != FormatVersion::V1 && self.config.similarity
    }

    /// Returns the name of an object, or of a prefix, as the user knows it.
    pub fn display(&self, name: impl Display) -> String {
        self.objects.display(&name.to_string())
    }

    /// Reads an object whole, refusing one that is longer than `len_max` before anything is allocated.
    pub(crate) fn read(&self, name: impl Into<ObjectName>, len_max: usize) -> Result<Vec<u8>> {
        read_whole(&*self.objects, name.into(), len_max)
    }

    /// Lists the objects under a prefix. Names that are no object's are left out.
    pub(crate) fn list(&self, prefix: Prefix) -> Result<Vec<ObjectName>> {
        list_names(&*self.objects, prefix)
    }
}

/// Lists the objects under a prefix. Names that are no object's are left out.
pub(crate) fn list_names(objects: &dyn ObjectStore, prefix: Prefix) -> Result<Vec<ObjectName>> {
    let mut names = Vec::new();
    objects.list(prefix, Detail::Names, &mut |page| {
        names.extend(page.into_iter().filter_map(|listed| listed.name.ok()));
        Ok(())
    })?;
    Ok(names)
}

/// Bytes of an object that are read before its length is known.
const FIRST_READ_LEN: usize = 64 << 10;

/// Reads an object whole, refusing one that is longer than `len_max` before anything is allocated.
pub(crate) fn read_whole(objects: &dyn ObjectStore, name: ObjectName, len_max: usize) -> Result<Vec<u8>> {
    let mut reads = [RangeRead::new(name, 0, len_max.min(FIRST_READ_LEN))];
    objects.read(&mut reads);
    let [RangeRead { buffer, outcome, .. }] = reads;
    let len = usize::try_from(outcome?).unwrap_or(usize::MAX);
    if len_max < len {
        return Err(Error::damaged(objects.display(&name.to_string()), "longer than such an object can be"));
    }
    let mut bytes = buffer.to_vec();
    let start = bytes.len();
    if start < len {
        bytes.resize(len, 0);
        objects.read_exact(name, start as u64, bytes.get_mut(start..).unwrap_or_default())?;
    }
    Ok(bytes)
}
