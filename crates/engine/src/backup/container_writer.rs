//! Writing containers: sealing, temporary files, and publication at barriers.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use crate::backup::Budget;
use crate::container::{ContainerBuilder, SealedContainer, Sealer};
use crate::error::Result;
use crate::io::AlignedBuffer;
use crate::object::names::{ContainerKind, ContainerName};
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{BufferPool, Task, TaskQueue};
use crate::store::{ObjectWriter, Session, Store};
use crate::types::{Chunk, ContainerId};

/// A durable container whose chunks are to be recorded.
#[derive(Debug)]
pub(super) struct StoredUnit {
    /// The container.
    pub(super) container: ContainerId,
    /// Bytes of its file.
    pub(super) len: u64,
    /// Its chunks in order.
    pub(super) chunks: Vec<Chunk>,
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
        let unit = StoredUnit { container: name.id, len: bytes.len() as u64, chunks };
        self.buffers.put(bytes.into_buffer());
        Ok(Written { temporary, name, unit })
    }
}

/// A container whose bytes are durable in a temporary file.
#[derive(Debug)]
struct Written {
    temporary: PathBuf,
    name: ContainerName,
    unit: StoredUnit,
}

/// Seals and writes the containers of a session, and makes them durable in groups.
pub(super) struct ContainerWriter {
    store: Store,
    session: Arc<Session>,
    seal: TaskQueue<Seal>,
    write: TaskQueue<WriteTemporary>,
    written: VecDeque<Written>,
    /// Containers closed so far.
    closed: usize,
    /// Containers durable under their names.
    durable: usize,
    barrier_containers: usize,
    /// Units that became durable since they were last taken.
    stored: Vec<StoredUnit>,
    /// Bytes of all durable containers.
    stored_bytes: u64,
}

impl Drop for ContainerWriter {
    /// Removes the temporary files that were not published, which exist only after the session failed.
    fn drop(&mut self) {
        let unpublished: Vec<Written> = self.write.drain().flatten().collect();
        for written in unpublished.iter().chain(&self.written) {
            self.session.writer().discard(&written.temporary);
        }
    }
}

impl ContainerWriter {
    /// Starts without containers.
    pub(crate) fn new(store: &Store, session: &Arc<Session>, driver: &Driver, budget: &Budget) -> Self {
        let buffers = Arc::default();
        let seal = Seal { store: store.clone(), sealers: Arc::default(), buffers: Arc::clone(&buffers) };
        let write = WriteTemporary { writer: Arc::clone(session.writer()), buffers };
        Self {
            store: store.clone(),
            session: Arc::clone(session),
            seal: driver.queue(seal, Pool::Compute, budget.containers_sealing),
            write: driver.queue(write, Pool::Wait, budget.containers_writing),
            written: VecDeque::new(),
            closed: 0,
            durable: 0,
            barrier_containers: budget.barrier_containers,
            stored: Vec::new(),
            stored_bytes: 0,
        }
    }

    /// Takes a container that is full, or the last of its kind.
    pub(super) fn close(&mut self, builder: ContainerBuilder) -> Result<()> {
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
        Ok(())
    }

    /// Makes all containers durable.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.make_durable(self.closed)
    }

    /// Takes the units that became durable.
    pub(super) fn take_stored(&mut self) -> Vec<StoredUnit> {
        std::mem::take(&mut self.stored)
    }

    /// Returns the bytes of all durable containers.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    fn write(&mut self, sealed: SealedContainer) -> Result<()> {
        if let Some(written) = self.write.push(sealed) {
            self.written.push_back(written?);
        }
        Ok(())
    }

    /// Publishes containers under their names: data first, so that a metadata container never outlives the data closed
    /// before it.
    fn publish(&self, ready: &[Written]) -> Result<()> {
        self.session.create_container_dir()?;
        for kind in [ContainerKind::Data, ContainerKind::Metadata] {
            let mut any = false;
            for written in ready.iter().filter(|written| written.name.kind == kind) {
                self.session.writer().publish(&written.temporary, &written.name.path())?;
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
            if let Some(written) = self.write.pop() {
                self.written.push_back(written?);
            } else {
                let sealed = self.seal.pop().expect("a closed container is being sealed or written");
                self.write(sealed?)?;
            }
        }
        let Some(ready) = count.checked_sub(self.durable).filter(|&ready| ready > 0) else { return Ok(()) };
        let ready: Vec<Written> = self.written.drain(..ready).collect();
        self.publish(&ready)
            .inspect_err(|_| ready.iter().for_each(|written| self.session.writer().discard(&written.temporary)))?;
        self.durable += ready.len();
        self.stored_bytes += ready.iter().map(|written| written.unit.len).sum::<u64>();
        self.stored.extend(ready.into_iter().map(|written| written.unit));
        Ok(())
    }
}
