//! Salvage: the chunks of quarantined containers that are whole and that no other container has are copied back.
//!
//! A container that a collection has quarantined never comes back under its own name: its `final` counts it as absent for good.
//! Its chunks come back in containers of a new session, as those of a backup do.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::collect::copy::{CopyBudget, CopyRequest, copy_forward};
use crate::collect::lifetime::LifetimeClasses;
use crate::collect::request::PruneRequest;
use crate::collect::usage::LiveChunk;
use crate::collect::whole::whole_chunks;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::object::ObjectStore;
use crate::object::bytes::ObjectBytes;
use crate::object::names::{ContainerName, ObjectName, Prefix};
use crate::object::store::{
    Abilities, Created, CreationLock, Detail, Handshake, Leftovers, Listed, PendingPut, RangeRead,
};
use crate::snapshot::{CommitKind, SessionKind};
use crate::spill::SpillMap;
use crate::store::base_reader::BaseReader;
use crate::store::container_set::{ContainerNumber, ContainerSetBuilder, Containers};
use crate::store::{QuarantinedContainer, Session, Store};
use crate::types::SessionId;

/// Outcome of a salvage.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Salvaged {
    /// Quarantined containers.
    pub containers: u64,
    /// Chunks of them that were copied back.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub plain_bytes: u64,
    /// Containers that copies were written to.
    pub written_containers: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// Quarantined containers that could not be read for another reason than damage, in sentences.
    pub findings: Vec<String>,
}

/// Copies the chunks of quarantined containers back that are whole and that no other container has. The quarantined containers
/// stay.
pub fn salvage(
    store: &Store,
    request: &PruneRequest,
    quarantined: &[QuarantinedContainer],
    monitor: &dyn Monitor,
) -> Result<Salvaged> {
    if quarantined.is_empty() {
        return Ok(Salvaged::default());
    }
    let session = Session::begin(store, &request.scratch, SessionKind::Collection, &request.hostname)?;
    let session = Arc::new(session);
    let salvaged = Salvage { store, request, session: &session, monitor }.run(quarantined);
    match salvaged.and_then(|salvaged| Ok((salvaged, session.end_durable()?))) {
        Ok((_, Some(CommitKind::Fence))) => Err(Error::Fenced { session: session.id }),
        Ok((salvaged, _)) => Ok(salvaged),
        Err(error) => Err(session.abandon(error)),
    }
}

struct Salvage<'a> {
    store: &'a Store,
    request: &'a PruneRequest,
    session: &'a Arc<Session>,
    monitor: &'a dyn Monitor,
}

impl Salvage<'_> {
    fn run(&self, quarantined: &[QuarantinedContainer]) -> Result<Salvaged> {
        let objects = Arc::new(InQuarantine(Arc::clone(&self.store.objects))) as Arc<dyn ObjectStore>;
        let store = Store { objects, ..self.store.clone() };
        let mut builder = ContainerSetBuilder::new(&store.host, &self.request.scratch);
        for container in quarantined {
            builder.push(&container.name, container.len)?;
        }
        let containers: Containers = builder.finish()?.into();
        let mut salvaged = Salvaged { containers: containers.len() as u64, ..Salvaged::default() };
        // Bases stand under their usual names: nothing is quarantined while others depend on it.
        let memory = self.request.memory_bytes.max(super::MEMORY_BYTES_MIN);
        let bases = BaseReader::new(self.store, &self.session.live, memory / 16);
        let (mut missing, readable) = self.missing((&store, &bases), &containers, &mut salvaged)?;
        let live = readable.numbers().flat_map(|number| self.live((&store, &bases), &readable, number, &mut missing));
        let copy: Vec<u32> = containers.numbers().map(|number| number.0).collect();
        let memory = memory / 2;
        let request = CopyRequest {
            store: &store,
            session: Some(self.session),
            containers: &containers,
            bases: &bases,
            copy: &copy,
            classes: &LifetimeClasses::of_times([]),
            leaves_dead: false,
            compression: self.request.compression,
            budget: CopyBudget::of(memory.max(CopyBudget::BYTES_MIN), self.request.driver.compute_count()),
            scratch: &self.request.scratch,
            driver: &self.request.driver,
            monitor: self.monitor,
        };
        let copied = copy_forward(&request, live, &mut 0)?;
        salvaged.findings.extend(copied.not_copied.values().map(ToString::to_string));
        (salvaged.chunks, salvaged.plain_bytes) = (copied.chunks, copied.plain_bytes);
        (salvaged.written_containers, salvaged.written_bytes) = (copied.written_containers, copied.written_bytes);
        Ok(salvaged)
    }

    /// Returns the chunks that are whole in quarantined containers, each with an empty value if no other container has it, and the
    /// containers that can be read.
    fn missing(
        &self,
        (quarantined, bases): (&Store, &BaseReader),
        containers: &Containers,
        salvaged: &mut Salvaged,
    ) -> Result<(SpillMap, Containers)> {
        let memory = self.request.memory_bytes.max(super::MEMORY_BYTES_MIN) / 4;
        let mut missing = self.request.scratch.map(&self.store.host, "chunks of quarantined containers", memory)?;
        let mut unreadable = BTreeSet::new();
        for name in containers.names() {
            self.go_on()?;
            let name = name?;
            match whole_chunks(quarantined, &name, bases) {
                Ok(whole) => whole.iter().try_for_each(|chunk| missing.insert(chunk.fingerprint.0, &[]))?,
                Err(error) => {
                    salvaged.findings.push(error.to_string());
                    unreadable.insert(name.id);
                }
            }
        }
        let live = &self.session.live;
        for opened in self.store.open_containers(live, live.numbers()) {
            self.go_on()?;
            // One that cannot be opened has none of them.
            let (name, Ok(container)) = opened? else { continue };
            let mut is_listed = false;
            for fingerprint in container.directory.chunks.iter().filter_map(|chunk| chunk.fingerprint) {
                is_listed |= missing.contains(&fingerprint.0)?;
            }
            if !is_listed {
                continue;
            }
            // The quarantined containers may be removed next, so that a copy counts only if it is what its name says.
            for chunk in whole_chunks(self.store, &name, bases).unwrap_or_default() {
                if missing.contains(&chunk.fingerprint.0)? {
                    missing.insert(chunk.fingerprint.0, &[1])?;
                }
            }
        }
        Ok((missing, containers.retain(|_, id| !unreadable.contains(&id))))
    }

    /// Returns the chunks of a container that are still missing; they are not missing any more then.
    fn live(
        &self,
        (store, bases): (&Store, &BaseReader),
        containers: &Containers,
        number: ContainerNumber,
        missing: &mut SpillMap,
    ) -> Vec<Result<LiveChunk>> {
        let live = || {
            self.go_on()?;
            let whole = whole_chunks(store, &containers.name(number)?, bases)?;
            let mut live = Vec::new();
            for chunk in whole {
                if missing.get(&chunk.fingerprint.0)?.is_some_and(|value| value.is_empty()) {
                    missing.insert(chunk.fingerprint.0, &[1])?;
                    live.push(LiveChunk { container: number.0, slot: chunk.slot, rank: 0, len: chunk.len });
                }
            }
            Ok(live)
        };
        match { live }() {
            Ok(live) => live.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        }
    }

    fn go_on(&self) -> Result<()> {
        self.session.beat();
        if self.monitor.is_interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// A store whose containers are the quarantined ones. Everything else is as it is, and so is everything that is written.
#[derive(Debug)]
struct InQuarantine(Arc<dyn ObjectStore>);

fn quarantined(name: ObjectName) -> ObjectName {
    match name {
        ObjectName::Container(name) => ObjectName::Quarantined(name),
        name => name,
    }
}

impl ObjectStore for InQuarantine {
    fn create(&self, session: SessionId, name: ObjectName, bytes: &[u8]) -> Result<Created> {
        self.0.create(session, name, bytes)
    }
    fn put(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut> {
        self.0.put(session, name, bytes)
    }
    fn put_again(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut> {
        self.0.put_again(session, name, bytes)
    }
    fn confirm(&self, names: &[ObjectName]) -> Result<()> {
        self.0.confirm(names)
    }
    fn barrier(&self, puts: Vec<PendingPut>) -> Result<()> {
        self.0.barrier(puts)
    }
    fn discard(&self, puts: Vec<PendingPut>) {
        self.0.discard(puts);
    }
    fn read(&self, reads: &mut [RangeRead]) {
        for read in reads.iter_mut() {
            read.name = quarantined(read.name);
        }
        self.0.read(reads);
    }
    fn read_exact(&self, name: ObjectName, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.0.read_exact(quarantined(name), offset, buffer)
    }
    fn will_read(&self, name: ObjectName, range: Range<u64>) {
        self.0.will_read(quarantined(name), range);
    }
    fn len(&self, name: ObjectName) -> Result<Option<u64>> {
        self.0.len(quarantined(name))
    }
    fn list(&self, prefix: Prefix, detail: Detail, page: &mut dyn FnMut(Vec<Listed>) -> Result<()>) -> Result<()> {
        self.0.list(prefix, detail, page)
    }
    fn delete(&self, names: &[ObjectName]) -> Result<()> {
        self.0.delete(names)
    }
    fn quarantine(&self, names: &[ContainerName]) -> Result<()> {
        self.0.quarantine(names)
    }
    fn refresh_collections(&self, session: SessionId) -> Result<()> {
        self.0.refresh_collections(session)
    }
    fn refresh_sessions(&self, session: SessionId) -> Result<()> {
        self.0.refresh_sessions(session)
    }
    fn refresh_containers(&self, session: SessionId) -> Result<()> {
        self.0.refresh_containers(session)
    }
    fn try_handshake(&self, session: SessionId) -> Result<Handshake> {
        self.0.try_handshake(session)
    }
    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }
    fn leftovers(&self, removes: &dyn Fn(Option<SessionId>) -> bool) -> Result<Leftovers> {
        self.0.leftovers(removes)
    }
    fn begin_creation(&self, session: SessionId) -> Result<CreationLock> {
        self.0.begin_creation(session)
    }
    fn end_creation(&self, lock: CreationLock) {
        self.0.end_creation(lock);
    }
    fn complete(&self) -> Result<Vec<&'static str>> {
        self.0.complete()
    }
    fn display(&self, key: &str) -> String {
        self.0.display(key)
    }
}
