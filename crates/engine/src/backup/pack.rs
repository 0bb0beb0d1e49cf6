//! From unique chunks to durable containers.
//!
//! Chunks gather in regions; regions are compressed aside, packed in order, sealed aside and written aside. Results are
//! taken at points that only the order of chunks decides, so that every driver packs the same containers.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::backup::Budget;
use crate::compress::{Compression, Compressor};
use crate::container::{ContainerBuilder, Packer, Region, RegionChunk, SealedContainer, Sealer};
use crate::error::Result;
use crate::io::AlignedBuffer;
use crate::object::names::{ContainerKind, ContainerName};
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{BufferPool, Task, TaskQueue};
use crate::store::{ObjectWriter, Session, Store};
use crate::types::{Chunk, ContainerId};

/// A container that is durable, its chunks to be recorded.
#[derive(Debug)]
pub struct StoredUnit {
    /// The container.
    pub id: ContainerId,
    /// Bytes of its file.
    pub len: u64,
    /// Its chunks in order.
    pub chunks: Vec<Chunk>,
}

struct Compress {
    compression: Compression,
    compressors: Arc<BufferPool<Compressor>>,
}

impl Task for Compress {
    type In = Region;
    type Out = Region;

    fn run(&self, mut region: Region) -> Region {
        let mut compressor = self.compressors.take();
        region.compress(&mut compressor, self.compression);
        self.compressors.put(compressor);
        region
    }
}

struct Seal {
    store: Store,
    sealers: Arc<BufferPool<Sealer>>,
    buffers: Arc<BufferPool<AlignedBuffer>>,
}

impl Task for Seal {
    type In = (ContainerBuilder, [u8; 32]);
    type Out = Result<SealedContainer>;

    fn run(&self, (builder, random): Self::In) -> Self::Out {
        let (keys, repository) = (&self.store.keys, self.store.config.repository);
        let mut sealer = self.sealers.take();
        let sealed = sealer.seal(keys, repository, &builder, &random, self.buffers.take());
        self.sealers.put(sealer);
        sealed
    }
}

struct WriteTemporary {
    writer: Arc<ObjectWriter>,
    buffers: Arc<BufferPool<AlignedBuffer>>,
}

impl Task for WriteTemporary {
    type In = SealedContainer;
    type Out = Result<Written>;

    fn run(&self, container: SealedContainer) -> Self::Out {
        let SealedContainer { name, bytes, chunks } = container;
        let temporary = self.writer.write_container_temporary(&bytes)?;
        let len = bytes.len() as u64;
        self.buffers.put(bytes.into_buffer());
        Ok(Written { temporary, name, bytes: len, chunks })
    }
}

/// A container whose bytes are durable under a name that does not count yet.
#[derive(Debug)]
struct Written {
    temporary: PathBuf,
    name: ContainerName,
    bytes: u64,
    chunks: Vec<Chunk>,
}

/// One kind of containers on their way.
struct Line {
    region: Region,
    compress: TaskQueue<Compress>,
    packer: Packer,
}

/// Packs, seals and writes the containers of a session.
pub struct ContainerWriter {
    store: Store,
    session: Arc<Session>,
    data: Line,
    metadata: Line,
    ordinals: u32,
    compressor: Compressor,
    seal: TaskQueue<Seal>,
    write: TaskQueue<WriteTemporary>,
    written: VecDeque<Written>,
    /// Containers closed so far, and those among them that are durable under their names.
    closed: usize,
    durable: usize,
    barrier_containers: usize,
    /// Which container took which chunks, since it was asked last.
    placed: Vec<(ContainerId, Vec<RegionChunk>)>,
    /// Units that became durable, since it was asked last.
    stored: Vec<StoredUnit>,
    /// Bytes of all containers made durable.
    pub stored_bytes: u64,
}

impl Drop for ContainerWriter {
    /// Takes away what was written and got no name, which happens only where the session failed.
    fn drop(&mut self) {
        let unnamed = std::iter::from_fn(|| self.write.pop()).flatten();
        for written in unnamed.chain(self.written.drain(..)) {
            self.session.writer().discard(&written.temporary);
        }
    }
}

impl fmt::Debug for ContainerWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (closed, durable) = (self.closed, self.durable);
        f.debug_struct("ContainerWriter").field("closed", &closed).field("durable", &durable).finish_non_exhaustive()
    }
}

impl ContainerWriter {
    /// Starts without containers.
    pub fn new(
        store: &Store,
        session: &Arc<Session>,
        driver: &Driver,
        compression: Compression,
        budget: &Budget,
    ) -> Self {
        let (compressors, buffers) = (Arc::default(), Arc::default());
        let line = |kind| {
            let task = Compress { compression, compressors: Arc::clone(&compressors) };
            let packer = Packer::new(session.id, kind, store.config.container_bytes, compression);
            let compress = driver.queue(task, Pool::Compute, budget.regions_in_flight);
            Line { region: Region::default(), compress, packer }
        };
        let (data, metadata) = (line(ContainerKind::Data), line(ContainerKind::Metadata));
        let seal = Seal { store: store.clone(), sealers: Arc::default(), buffers: Arc::clone(&buffers) };
        let write = WriteTemporary { writer: Arc::clone(session.writer()), buffers };
        Self {
            store: store.clone(),
            session: Arc::clone(session),
            data,
            metadata,
            ordinals: 0,
            compressor: Compressor::default(),
            seal: driver.queue(seal, Pool::Compute, budget.containers_sealing),
            write: driver.queue(write, Pool::Wait, budget.containers_writing),
            written: VecDeque::new(),
            closed: 0,
            durable: 0,
            barrier_containers: budget.barrier_containers,
            placed: Vec::new(),
            stored: Vec::new(),
            stored_bytes: 0,
        }
    }

    /// Appends a unique chunk.
    pub fn push(&mut self, kind: ContainerKind, chunk: RegionChunk, bytes: &[u8]) -> Result<()> {
        let region_bytes = self.store.config.region_bytes;
        let region = &self.line(kind).region;
        if region_bytes < region.plain_len.saturating_add(chunk.chunk.len) && !region.chunks.is_empty() {
            self.end_region(kind)?;
        }
        self.line(kind).region.push(chunk, bytes);
        Ok(())
    }

    /// Takes which container took which chunks.
    pub fn take_placed(&mut self) -> Vec<(ContainerId, Vec<RegionChunk>)> {
        std::mem::take(&mut self.placed)
    }

    /// Takes the units that became durable.
    pub fn take_stored(&mut self) -> Vec<StoredUnit> {
        std::mem::take(&mut self.stored)
    }

    /// Places everything that was pushed, so that every chunk's container is known.
    pub fn place_all(&mut self) -> Result<()> {
        for kind in [ContainerKind::Data, ContainerKind::Metadata] {
            self.end_region(kind)?;
            while let Some(region) = self.line(kind).compress.pop() {
                self.place(kind, region)?;
            }
        }
        Ok(())
    }

    /// Closes all containers and makes them durable.
    pub fn finish(&mut self) -> Result<()> {
        self.place_all()?;
        for kind in [ContainerKind::Data, ContainerKind::Metadata] {
            if let Some(builder) = self.line(kind).packer.finish() {
                self.close(builder)?;
            }
        }
        self.make_durable(self.closed)
    }

    fn line(&mut self, kind: ContainerKind) -> &mut Line {
        match kind {
            ContainerKind::Data => &mut self.data,
            ContainerKind::Metadata => &mut self.metadata,
        }
    }

    fn end_region(&mut self, kind: ContainerKind) -> Result<()> {
        let region_bytes = self.store.config.region_bytes;
        let line = self.line(kind);
        if line.region.chunks.is_empty() {
            return Ok(());
        }
        let next = Region::with_buffer(region_bytes);
        let region = std::mem::replace(&mut line.region, next);
        if line.compress.is_full()
            && let Some(oldest) = line.compress.pop()
        {
            self.place(kind, oldest)?;
        }
        self.line(kind).compress.push(region);
        Ok(())
    }

    fn place(&mut self, kind: ContainerKind, region: Region) -> Result<()> {
        let line = match kind {
            ContainerKind::Data => &mut self.data,
            ContainerKind::Metadata => &mut self.metadata,
        };
        let packed = line.packer.push(region, &mut self.compressor, &mut self.ordinals);
        self.placed.extend(packed.placed);
        packed.full.into_iter().try_for_each(|builder| self.close(builder))
    }

    fn close(&mut self, builder: ContainerBuilder) -> Result<()> {
        let mut random = [0; 32];
        self.store.host.random(&mut random)?;
        if self.seal.is_full() {
            self.advance()?;
        }
        self.seal.push((builder, random));
        self.closed += 1;
        // A barrier: what was closed before the last group must be durable by now, so that the map of chunks in flight
        // stays small and a rerun finds what was done. The last group goes on meanwhile.
        if self.closed.is_multiple_of(self.barrier_containers) {
            self.make_durable(self.closed - self.barrier_containers)?;
        }
        Ok(())
    }

    /// Takes the oldest sealed container and has it written, waiting for the oldest write where the lane is full.
    fn advance(&mut self) -> Result<()> {
        let Some(sealed) = self.seal.pop() else { return Ok(()) };
        if self.write.is_full() {
            self.take_written()?;
        }
        self.write.push(sealed?);
        Ok(())
    }

    fn take_written(&mut self) -> Result<()> {
        if let Some(written) = self.write.pop() {
            self.written.push_back(written?);
        }
        Ok(())
    }

    /// Gives containers their names: data first, so that a metadata container never outlives the data closed before it.
    fn place_written(&self, ready: &[Written]) -> Result<()> {
        self.session.create_container_dir()?;
        for kind in [ContainerKind::Data, ContainerKind::Metadata] {
            let mut any = false;
            for written in ready.iter().filter(|written| written.name.kind == kind) {
                self.session.writer().place(&written.temporary, &written.name.path())?;
                any = true;
            }
            if any {
                self.session.sync_containers()?;
            }
        }
        Ok(())
    }

    /// Makes the first `count` containers durable under their names (steps D2 and D3).
    fn make_durable(&mut self, count: usize) -> Result<()> {
        while self.durable + self.written.len() < count {
            if self.write.is_empty() {
                self.advance()?;
            } else {
                self.take_written()?;
            }
        }
        let Some(ready) = count.checked_sub(self.durable).filter(|&ready| ready > 0) else { return Ok(()) };
        let ready: Vec<Written> = self.written.drain(..ready).collect();
        let placed = self.place_written(&ready);
        placed.inspect_err(|_| ready.iter().for_each(|written| self.session.writer().discard(&written.temporary)))?;
        self.durable += ready.len();
        for written in ready {
            self.stored_bytes += written.bytes;
            self.stored.push(StoredUnit { id: written.name.id, len: written.bytes, chunks: written.chunks });
        }
        Ok(())
    }
}
