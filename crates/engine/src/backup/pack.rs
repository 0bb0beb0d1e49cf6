//! From unique chunks to containers that are full.
//!
//! Chunks gather in regions. Workers compress the regions; one thread packs them in order, at points that only the order of
//! chunks decides, so that every driver packs the same containers.

use std::fmt;
use std::sync::Arc;

use crate::backup::Budget;
use crate::backup::base_stages::{BaseChoices, BaseStages};
use crate::backup::bases::{Neighbors, NoNeighbors};
use crate::backup::cut::CutBlock;
use crate::compress::{Compression, Compressor};
use crate::container::compress_region::{CompressRegion, tables_of};
use crate::container::{Assigned, Packer, Region, RegionChunk};
use crate::error::Result;
use crate::object::names::ContainerKind;
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{Permits, TaskQueue};
use crate::store::container_writer::{ContainerWriter, StoredUnit};
use crate::store::{Session, Store};
use crate::types::{Chunk, ContainerId};

/// The open region, the regions being compressed and the open container of one kind.
struct Line {
    region: Region,
    compress: TaskQueue<CompressRegion>,
    packer: Packer,
}

/// Packs the unique chunks of a session into regions, and regions into containers.
pub(crate) struct PackStage {
    region_bytes: u32,
    /// Bytes of a buffer for a region of data: none if most chunks are lent.
    data_buffer_bytes: u32,
    data: Line,
    metadata: Line,
    ordinals: u32,
    compressor: Compressor,
    writer: ContainerWriter,
    /// Choose what regions are compressed against.
    bases: BaseStages,
    /// Packed regions and their containers, since they were last taken.
    assigned: Vec<Assigned>,
}

impl fmt::Debug for PackStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackStage").field("ordinals", &self.ordinals).finish_non_exhaustive()
    }
}

impl PackStage {
    /// Starts without containers.
    pub(crate) fn new(
        store: &Store,
        session: &Arc<Session>,
        driver: &Driver,
        compression: Compression,
        budget: &Budget,
        choices: &BaseChoices,
    ) -> Self {
        let bases = BaseStages::new((store, session, driver), choices, compression, budget);
        let tables = tables_of(store.config.format);
        let task = CompressRegion::new(compression).with_tables(tables);
        let permits = Arc::new(Permits::new(budget.base_threads));
        let line = |kind| {
            let form = (store.config.format, kind);
            let packer = Packer::new(session.id, form, store.config.container_bytes, compression);
            let (task, depth) = bases.compressing(task.clone(), kind, (&permits, budget));
            Line { region: Region::default(), compress: driver.queue(task, Pool::Compute, depth), packer }
        };
        Self {
            region_bytes: store.config.region_bytes,
            data_buffer_bytes: if budget.cut_ahead == 0 { store.config.region_bytes } else { 0 },
            data: line(ContainerKind::Data),
            metadata: line(ContainerKind::Metadata),
            ordinals: 0,
            compressor: Compressor::with_tables(tables),
            writer: ContainerWriter::new(store, session, driver, budget.writer_limits(), bases.reader()),
            bases,
            assigned: Vec::new(),
        }
    }

    /// Returns what limits the chains of bases that are read at the same time; `None`: it reads none.
    pub(crate) fn base_chains(&self) -> Option<Arc<Permits>> {
        self.bases.chains()
    }

    /// Appends a unique chunk.
    pub(crate) fn push(
        &mut self,
        kind: ContainerKind,
        chunk: RegionChunk,
        bytes: &[u8],
        neighbors: &dyn Neighbors,
    ) -> Result<()> {
        self.make_space(kind, chunk.chunk.len, neighbors)?;
        self.line(kind).region.push(chunk, bytes);
        Ok(())
    }

    /// Appends a unique chunk of data that stays where it is until a worker copies it.
    pub(crate) fn push_lent(
        &mut self,
        chunk: RegionChunk,
        (lender, number): (&Arc<CutBlock>, usize),
        neighbors: &dyn Neighbors,
    ) -> Result<()> {
        self.make_space(ContainerKind::Data, chunk.chunk.len, neighbors)?;
        self.data.region.push_lent(chunk, Arc::<CutBlock>::clone(lender), number);
        Ok(())
    }

    /// Ends the region if a chunk of this length does not fit.
    fn make_space(&mut self, kind: ContainerKind, len: u32, neighbors: &dyn Neighbors) -> Result<()> {
        let filled = self.line(kind).region.plain_len;
        if self.region_bytes < filled.saturating_add(len) { self.end_region(kind, neighbors) } else { Ok(()) }
    }

    /// Takes note that the snapshot refers to a chunk that was stored before.
    pub(crate) fn refer(&self, kind: ContainerKind, chunk: &Chunk, container: ContainerId) {
        if let Some(bases) = self.bases.stage(kind) {
            bases.refer(chunk, container);
        }
    }

    /// Takes note that the snapshot refers to a chunk of data that was likely stored before.
    pub(crate) fn expect(&self, chunk: &Chunk) {
        if let Some(bases) = self.bases.stage(ContainerKind::Data) {
            bases.expect(chunk);
        }
    }

    /// Takes the containers of packed chunks.
    pub(crate) fn take_assigned(&mut self) -> Vec<Assigned> {
        std::mem::take(&mut self.assigned)
    }

    /// Takes the units that became durable.
    pub(crate) fn take_stored(&mut self) -> Vec<StoredUnit> {
        let stored = self.writer.take_stored();
        self.bases.durable(&stored);
        stored
    }

    /// Returns the bytes of all durable containers.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.writer.stored_bytes()
    }

    /// Assigns a container to every chunk that was pushed.
    pub(super) fn assign_all(&mut self, neighbors: &dyn Neighbors) -> Result<()> {
        for kind in [ContainerKind::Data, ContainerKind::Metadata] {
            self.end_region(kind, neighbors)?;
            while let Some(region) = self.next_chosen(kind, neighbors) {
                self.compress(kind, region)?;
            }
            while let Some(region) = self.line(kind).compress.pop() {
                self.pack(kind, region)?;
            }
        }
        Ok(())
    }

    /// Closes all containers and makes them durable.
    pub(crate) fn finish(&mut self, neighbors: &dyn Neighbors) -> Result<()> {
        self.assign_all(neighbors)?;
        for kind in [ContainerKind::Data, ContainerKind::Metadata] {
            if let Some(builder) = self.line(kind).packer.finish() {
                self.writer.close(builder)?;
            }
        }
        self.writer.finish()
    }

    fn next_chosen(&mut self, kind: ContainerKind, neighbors: &dyn Neighbors) -> Option<Region> {
        self.bases.of(kind)?.pop(neighbors_in(kind, neighbors))
    }

    fn line(&mut self, kind: ContainerKind) -> &mut Line {
        match kind {
            ContainerKind::Data => &mut self.data,
            ContainerKind::Metadata => &mut self.metadata,
        }
    }

    fn end_region(&mut self, kind: ContainerKind, neighbors: &dyn Neighbors) -> Result<()> {
        let buffer_bytes = match kind {
            ContainerKind::Data => self.data_buffer_bytes,
            ContainerKind::Metadata => self.region_bytes,
        };
        let line = self.line(kind);
        if line.region.chunks.is_empty() {
            return Ok(());
        }
        let region = std::mem::replace(&mut line.region, Region::with_buffer(buffer_bytes));
        let ready = match self.bases.of(kind) {
            Some(bases) => bases.push(region, neighbors_in(kind, neighbors)),
            None => Some(region),
        };
        ready.map_or(Ok(()), |region| self.compress(kind, region))
    }

    fn compress(&mut self, kind: ContainerKind, region: Region) -> Result<()> {
        self.line(kind).compress.push(region).map_or(Ok(()), |oldest| self.pack(kind, oldest))
    }

    fn pack(&mut self, kind: ContainerKind, region: Region) -> Result<()> {
        let packer = match kind {
            ContainerKind::Data => &mut self.data.packer,
            ContainerKind::Metadata => &mut self.metadata.packer,
        };
        let packed = packer.push(region, &mut self.compressor, &mut self.ordinals);
        if let Some(bases) = self.bases.of(kind) {
            bases.placed(&packed.assigned);
        }
        self.assigned.extend(packed.assigned);
        packed.full.into_iter().try_for_each(|builder| self.writer.close(builder))
    }
}

/// Returns the neighbors of chunks of a kind: metadata does not come in the order of a stream.
fn neighbors_in(kind: ContainerKind, neighbors: &dyn Neighbors) -> &dyn Neighbors {
    match kind {
        ContainerKind::Data => neighbors,
        ContainerKind::Metadata => &NoNeighbors,
    }
}
