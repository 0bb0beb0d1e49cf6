//! Writing containers: sealing, temporary files, and publication at barriers.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::container::seal::BasePlaintexts;
use crate::container::{ContainerBuilder, SealedContainer, Sealer};
use crate::error::Result;
use crate::io::AlignedBuffer;
use crate::object::names::{ContainerKind, ContainerName};
use crate::object::store::PendingPut;
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{BufferPool, Task, TaskQueue};
use crate::store::{Session, Store};
use crate::types::{Chunk, ContainerId};

/// Chunks of a container, of the default sizes, where its contents compress to a third. Of the smallest files it has 40 times as many.
pub(crate) const CONTAINER_CHUNKS: usize = 1536;

/// Limits of a writer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriterLimits {
    /// Containers being sealed.
    pub(crate) sealing: usize,
    /// Containers being written.
    pub(crate) writing: usize,
    /// Containers between two barriers. What is not durable is at most twice that, and a container if it has more than
    /// [`CONTAINER_CHUNKS`] for each.
    pub(crate) barrier: usize,
}

/// A durable container whose chunks are to be recorded.
#[derive(Debug)]
pub(crate) struct StoredUnit {
    /// Its name.
    pub(crate) name: ContainerName,
    /// The container.
    pub(crate) container: ContainerId,
    /// Bytes of its file.
    pub(crate) len: u64,
    /// Its chunks in order.
    pub(crate) chunks: Vec<Chunk>,
}

struct Seal {
    store: Store,
    sealers: Arc<BufferPool<Sealer>>,
    buffers: Arc<BufferPool<AlignedBuffer>>,
    bases: Option<Arc<dyn BasePlaintexts>>,
}

impl Task for Seal {
    type In = (ContainerBuilder, [u8; 32]);
    type Out = Result<SealedContainer>;

    fn run(&self, (builder, random): Self::In) -> Self::Out {
        let (keys, repository) = (&self.store.keys, self.store.config.repository);
        let mut sealer = self.sealers.take().with_bases(self.bases.clone());
        let sealed = sealer.seal(keys, repository, &builder, &random, self.buffers.take());
        self.sealers.put(sealer);
        sealed
    }
}

struct Put {
    session: Arc<Session>,
    buffers: Arc<BufferPool<AlignedBuffer>>,
}

impl Task for Put {
    type In = SealedContainer;
    type Out = Result<Written>;

    fn run(&self, container: SealedContainer) -> Self::Out {
        let SealedContainer { name, bytes, chunks } = container;
        let put = self.session.put(name, &bytes)?;
        let unit = StoredUnit { name, container: name.id, len: bytes.len() as u64, chunks };
        self.buffers.put(bytes.into_buffer());
        Ok(Written { put, kind: name.kind, unit })
    }
}

/// A container that is not known to be durable.
#[derive(Debug)]
struct Written {
    put: PendingPut,
    kind: ContainerKind,
    unit: StoredUnit,
}

/// Seals and writes the containers of a session, and makes them durable in groups.
pub(crate) struct ContainerWriter {
    store: Store,
    session: Arc<Session>,
    seal: TaskQueue<Seal>,
    write: TaskQueue<Put>,
    written: VecDeque<Written>,
    /// Containers closed so far.
    closed: usize,
    /// Containers durable under their names.
    durable: usize,
    barrier_containers: usize,
    /// Chunks of the containers that are closed and not durable.
    chunks: usize,
    /// Units that became durable since they were last taken.
    stored: Vec<StoredUnit>,
    /// Bytes of all durable containers.
    stored_bytes: u64,
}

impl Drop for ContainerWriter {
    /// Gives up the containers that were not made durable, of which there are some only after the session failed.
    fn drop(&mut self) {
        let pending = self.write.drain().flatten().chain(self.written.drain(..));
        self.store.objects.discard(pending.map(|written| written.put).collect());
    }
}

impl ContainerWriter {
    /// Starts without containers. `bases` reads those of regions that have some.
    pub(crate) fn new(
        store: &Store,
        session: &Arc<Session>,
        driver: &Driver,
        limits: WriterLimits,
        bases: Option<Arc<dyn BasePlaintexts>>,
    ) -> Self {
        let buffers = Arc::default();
        let seal = Seal { store: store.clone(), sealers: Arc::default(), buffers: Arc::clone(&buffers), bases };
        let write = Put { session: Arc::clone(session), buffers };
        Self {
            store: store.clone(),
            session: Arc::clone(session),
            seal: driver.queue(seal, Pool::Compute, limits.sealing),
            write: driver.queue(write, Pool::Wait, limits.writing),
            written: VecDeque::new(),
            closed: 0,
            durable: 0,
            barrier_containers: limits.barrier,
            chunks: 0,
            stored: Vec::new(),
            stored_bytes: 0,
        }
    }

    /// Takes a container that is full, or the last of its kind.
    pub(crate) fn close(&mut self, builder: ContainerBuilder) -> Result<()> {
        let chunks = builder.regions.iter().map(|region| region.chunks.len());
        self.chunks += chunks.sum::<usize>();
        let mut random = [0; 32];
        self.store.host.random(&mut random)?;
        if let Some(sealed) = self.seal.push((builder, random)) {
            self.write(sealed?)?;
        }
        self.closed += 1;
        // A barrier: all containers closed before the last group become durable, so that the map of in-flight chunks stays
        // small and a later backup finds what this one stored. The last group is sealed and written meanwhile.
        if self.closed.is_multiple_of(self.barrier_containers) {
            self.make_durable(self.closed - self.barrier_containers)?;
        }
        // Each chunk that is not durable takes memory of the identifier: those of the smallest files do not wait for the next barrier.
        if 2 * self.barrier_containers * CONTAINER_CHUNKS < self.chunks { self.finish() } else { Ok(()) }
    }

    /// Makes all containers durable.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.make_durable(self.closed)
    }

    /// Takes the units that became durable.
    pub(crate) fn take_stored(&mut self) -> Vec<StoredUnit> {
        std::mem::take(&mut self.stored)
    }

    /// Returns the bytes of all durable containers.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    fn write(&mut self, sealed: SealedContainer) -> Result<()> {
        if let Some(written) = self.write.push(sealed) {
            self.written.push_back(written?);
        }
        Ok(())
    }

    /// Makes the first `count` containers durable under their names (steps D2 and D3).
    fn make_durable(&mut self, count: usize) -> Result<()> {
        while self.durable + self.written.len() < count {
            if let Some(written) = self.write.pop() {
                self.written.push_back(written?);
            } else {
                let sealed = self.seal.pop().expect("a closed container is being sealed or written");
                self.write(sealed?)?;
            }
        }
        let Some(ready) = count.checked_sub(self.durable).filter(|&ready| ready > 0) else { return Ok(()) };
        let (mut data, mut metadata, mut units) = (Vec::new(), Vec::new(), Vec::with_capacity(ready));
        for Written { put, kind, unit } in self.written.drain(..ready) {
            match kind {
                ContainerKind::Data => data.push(put),
                ContainerKind::Metadata => metadata.push(put),
            }
            units.push(unit);
        }
        // Data first, so that a metadata container never outlives the data closed before it.
        if let Err(error) = self.session.barrier(data) {
            self.store.objects.discard(metadata);
            return Err(error);
        }
        self.session.barrier(metadata)?;
        self.durable += units.len();
        self.chunks -= units.iter().map(|unit| unit.chunks.len()).sum::<usize>();
        self.stored_bytes += units.iter().map(|unit| unit.len).sum::<u64>();
        self.stored.extend(units);
        Ok(())
    }
}
