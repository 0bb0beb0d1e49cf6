//! The stage that stores the nodes of a derived snapshot that are not stored yet.

use std::sync::Arc;

use crate::backup::BaseChoices;
use crate::backup::bases::NoNeighbors;
use crate::backup::pack::PackStage;
use crate::container::RegionChunk;
use crate::derive::{DeriveOptions, StoreOptions};
use crate::error::Result;
use crate::object::names::ContainerKind;
use crate::recipe::MetadataSink;
use crate::snapshot::Summary;
use crate::spill::SpillMap;
use crate::store::{MetadataReader, Session, Store};
use crate::types::{Chunk, ChunkKind, Fingerprint, Sequence};

/// Stores each node once, and refers to those that are stored.
#[derive(Debug)]
pub(crate) struct NodeStage {
    session: Arc<Session>,
    pack: PackStage,
    /// Nodes that this session stores.
    stored: SpillMap,
    chunks: u64,
    bytes_added: u64,
}

impl NodeStage {
    /// Starts without nodes.
    pub(crate) fn new(
        store: &Store,
        session: &Arc<Session>,
        options: &DeriveOptions,
        storing: &StoreOptions,
    ) -> Result<Self> {
        let stored = options.scratch.map(&store.host, "nodes stored", options.budget.index_bytes / 4)?;
        let none = BaseChoices::default();
        let pack = PackStage::new(store, session, &storing.driver, storing.compression, &options.budget, &none);
        Ok(Self { session: Arc::clone(session), pack, stored, chunks: 0, bytes_added: 0 })
    }

    /// Stores a node unless a live container holds it that is known to be durable. `reader` reads the live containers.
    fn push(
        &mut self,
        fingerprint: Fingerprint,
        kind: ChunkKind,
        (contents, hints): (&[u8], &[u8]),
        reader: &mut MetadataReader,
    ) -> Result<()> {
        // The session may refer to what `reader` reads, but not all of it is known to be durable.
        if reader.copies_of(&fingerprint)?.iter().any(|copy| !self.session.in_doubt.contains(&copy.session)) {
            return Ok(());
        }
        if !self.stored.insert_new(fingerprint.0, &[])? {
            return Ok(());
        }
        self.session.beat();
        let bytes = [contents, hints].concat();
        let hints_len = u32::try_from(hints.len()).expect("metadata chunks are far below 4 GiB");
        let len = u32::try_from(bytes.len()).expect("metadata chunks are far below 4 GiB");
        let chunk = RegionChunk { chunk: Chunk { fingerprint, len }, kind, hints_len, sequence: Sequence(self.chunks) };
        self.pack.push(ContainerKind::Metadata, chunk, &bytes, &NoNeighbors)?;
        self.chunks += 1;
        self.bytes_added += u64::from(len);
        self.take_packed();
        Ok(())
    }

    /// Makes everything durable. Returns what the session has stored, in a summary that counts nothing else.
    pub(crate) fn finish(mut self) -> Result<Summary> {
        self.pack.finish(&NoNeighbors)?;
        self.take_packed();
        Ok(Summary {
            metadata_chunks: self.chunks,
            data_added: self.bytes_added,
            data_added_packed: self.pack.stored_bytes(),
            ..Summary::default()
        })
    }

    /// Drops what an index would record.
    fn take_packed(&mut self) {
        let _assigned = self.pack.take_assigned();
        let _stored = self.pack.take_stored();
    }
}

/// Sink of a tree builder: stores nodes, or in a dry run only names them.
#[derive(Debug)]
pub(crate) struct NodeSink<'a> {
    /// Reader of the nodes that are stored.
    pub(crate) reader: &'a mut MetadataReader,
    /// The stage; `None`: nothing is stored.
    pub(crate) stage: Option<&'a mut NodeStage>,
}

impl MetadataSink for NodeSink<'_> {
    fn store(&mut self, kind: ChunkKind, contents: &[u8], hints: &[u8]) -> Result<Fingerprint> {
        let fingerprint = self.reader.store().keys.fingerprint(kind, contents);
        if let Some(stage) = &mut self.stage {
            stage.push(fingerprint, kind, (contents, hints), self.reader)?;
        }
        Ok(fingerprint)
    }
}
