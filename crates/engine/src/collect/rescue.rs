//! The look before a deletion (step C9 of docs/protocol.md).
//!
//! C8 has found a sound copy of each needed chunk. Damage may hit that copy before the condemned container is deleted, which may be
//! weeks later. So nothing is deleted without another look at the copies, and a chunk that is whole only in condemned containers is
//! copied first.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::collect::collector::Collector;
use crate::collect::copy::{CopyRequest, copy_forward};
use crate::collect::decide::Decision;
use crate::collect::lifetime::LifetimeClasses;
use crate::collect::request::{PruneReport, PruneRequest};
use crate::collect::steps::{self, Named};
use crate::collect::survey::{Beating, read_roots};
use crate::collect::usage::{REACHED_LEN, Reached, StoredChunk, StoredChunks, Usage, reached_record};
use crate::collect::whole::{is_gone, whole_chunks};
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::object::FormatVersion;
use crate::object::names::{CollectionStep, ObjectName};
use crate::snapshot::SessionKind;
use crate::spill::partition::Partitions;
use crate::store::base_reader::BaseReader;
use crate::store::container_ids::ContainerIds;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::store::{Session, Store};

/// Copies what snapshots need of the containers whose deletion is pending and that no other container holds whole, and deletes
/// nothing. Returns the number of chunks copied.
pub fn rescue_pending(store: &Store, request: &PruneRequest, monitor: &dyn Monitor) -> Result<u64> {
    if steps::pending(store)?.is_empty() {
        return Ok(0);
    }
    let session = Arc::new(Session::create(store, &request.scratch, SessionKind::Collection, &request.hostname)?);
    let mut report = PruneReport::default();
    let collector = Collector::new(store, request, monitor, Arc::clone(&session));
    let rescued = collector.and_then(|mut collector| {
        for number in steps::pending(store)? {
            collector.rescue_of(number, &mut report)?;
        }
        Ok(())
    });
    match rescued.and_then(|()| session.end_durable()) {
        Ok(_) => Ok(report.rescued_chunks),
        Err(error) => Err(session.abandon(error)),
    }
}

impl Collector<'_> {
    /// Rescues from what a collection has decided to delete, if its decision can be read.
    pub(super) fn rescue_of(&mut self, number: u32, report: &mut PruneReport) -> Result<()> {
        match steps::adopt(self.store, number, CollectionStep::Final) {
            Ok(named) => self.rescue(number, &named, true, report).map(|_| ()),
            Err(error) if error.is_loss() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns true if some containers are all there, with directories, padding and trailers as they were written.
    pub(super) fn are_standing(&self, containers: &Containers) -> Result<bool> {
        for number in containers.numbers() {
            let inspected = self.store.inspect_container(&containers.name(number)?);
            if !inspected.is_ok_and(|whole| whole.findings.is_empty()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copies what snapshots need of the containers that a collection deletes and that no other container holds whole. The copies
    /// are durable when this returns. If what snapshots need cannot be read, everything counts as needed, or it is an error.
    ///
    /// Returns those of the containers that are damaged and may have held what is whole nowhere: they are to be set aside instead. All
    /// that is whole in them was copied.
    pub(super) fn rescue(
        &mut self,
        number: u32,
        named: &Named,
        takes_all: bool,
        report: &mut PruneReport,
    ) -> Result<ContainerIds> {
        let (store, scratch) = (self.store, &self.request.scratch);
        let absent = store.read_absent_but(number)?;
        if store.config.format != FormatVersion::V1 {
            store.objects.refresh_containers(self.session.id)?;
        }
        let readable = store.list_sized_containers(scratch)?;
        let listed = readable.without(&absent.containers);
        let listed = listed.retain(|_, id| !absent.is_undecided(id) || named.containers.contains(id));
        let mut cursor = named.containers.cursor();
        let doomed = listed.retain(|_, id| cursor.contains(id));
        if doomed.is_empty() {
            return Ok(ContainerIds::default());
        }
        let commits = if takes_all { store.read_commits()? } else { read_roots(store, report)? };
        store.objects.confirm(&[ObjectName::Forget(self.session.id)])?;
        // The only whole copy of a node may stand in a condemned container.
        let reached = match self.survey.mark(&readable, &commits, &BTreeSet::new(), &mut |_| Ok(())) {
            Ok(reached) => Some(reached),
            Err(error) if takes_all && error.is_loss() => None,
            Err(error) => return Err(error),
        };
        let quarantined = match &reached {
            Some(_) => named.quarantined.clone(),
            None => ids_of(&doomed),
        };
        let bases = BaseReader::new(store, &readable, self.survey.memory() / 16);
        let beating = Beating(&self.survey);
        let reporting = RefCell::new(report);
        let settled = Decision {
            store,
            session: &self.session,
            scratch,
            memory_bytes: self.survey.memory() / 2,
            containers: &listed,
            bases: &bases,
            condemned: &doomed,
            quarantined: &quarantined,
            in_doubt: &commits.in_doubt(&listed),
            reached: &reached.iter().collect::<Vec<_>>(),
            trusts_copies: false,
            driver: &self.request.driver,
            monitor: &beating,
            unreadable: &|id, error| {
                // A repair knows what is damaged.
                if takes_all && error.is_loss() {
                    return Ok(());
                }
                self.survey.find(id, error, &mut reporting.borrow_mut())
            },
        }
        .settle()?;
        let report = reporting.into_inner();
        let needed: BTreeSet<u32> = settled.rescued.into_iter().collect();
        let sources = doomed.retain(|number, _| needed.contains(&number.0));
        let damaged = self.damaged_of(&sources, &bases)?;
        self.copy_whole(&sources.without(&damaged), &bases, reached, report)?;
        self.copy_whole(&sources.retain(|_, id| damaged.contains(id)), &bases, None, report)?;
        Ok(damaged)
    }

    /// Returns the containers in which not every chunk is whole.
    fn damaged_of(&self, containers: &Containers, bases: &BaseReader) -> Result<ContainerIds> {
        let mut damaged = ContainerIds::default();
        for name in containers.names() {
            let name = name?;
            let opened = self.store.open_container(&name);
            let whole = match whole_chunks(self.store, &name, bases) {
                Err(error) if is_gone(&error) => continue,
                whole => whole?,
            };
            if !opened.is_ok_and(|container| container.directory.chunks.len() == whole.len()) {
                damaged.push(name.id);
            }
        }
        damaged.sort();
        Ok(damaged)
    }

    /// Copies what is whole in some containers and that snapshots need; everything, if that is not known.
    fn copy_whole(
        &mut self,
        sources: &Containers,
        bases: &BaseReader,
        reached: Option<Reached>,
        report: &mut PruneReport,
    ) -> Result<()> {
        if sources.is_empty() {
            return Ok(());
        }
        let (store, request) = (self.store, self.request);
        let mut whole = WholeChunks { store, containers: sources, bases, monitor: &Beating(&self.survey) };
        let memory = self.survey.memory() / 4;
        let reached = if let Some(reached) = reached {
            reached
        } else {
            let mut all: Partitions<REACHED_LEN> =
                request.scratch.partitions(&store.host, "whole chunks of condemned containers", memory)?;
            whole.each(&mut |chunk| all.push(&reached_record(&chunk.fingerprint, 0)))?;
            all.finish()?
        };
        let usage = Usage::count(&request.scratch, &store.host, memory, sources.numbers_end(), reached, &mut whole)?;
        let copy: Vec<u32> = sources.numbers().map(|number| number.0).collect();
        let copied = copy_forward(
            &CopyRequest {
                store,
                session: Some(&self.session),
                containers: sources,
                bases,
                copy: &copy,
                classes: &LifetimeClasses::of_times([]),
                leaves_dead: true,
                copies: request.copies,
                budget: self.survey.copy_budget(),
                scratch: &request.scratch,
                driver: &request.driver,
                monitor: self.survey.monitor,
            },
            usage.live_chunks()?,
            &mut self.ordinals,
        )?;
        report.count_copies(&copied);
        report.rescued_chunks += copied.chunks;
        // Whole a while ago, and not to be read now: they stay where they are.
        copied.not_copied.into_values().next().map_or(Ok(()), Err)
    }
}

fn ids_of(containers: &Containers) -> ContainerIds {
    let mut ids = ContainerIds::default();
    containers.iter().for_each(|(_, id)| ids.push(id));
    ids.sort();
    ids
}

/// The chunks of containers that match their fingerprints.
struct WholeChunks<'a> {
    store: &'a Store,
    containers: &'a Containers,
    bases: &'a BaseReader,
    monitor: &'a dyn Monitor,
}

impl StoredChunks for WholeChunks<'_> {
    fn each(&mut self, each: &mut dyn FnMut(StoredChunk) -> Result<()>) -> Result<()> {
        for number in self.containers.numbers() {
            if self.monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let whole = match whole_chunks(self.store, &self.containers.name(number)?, self.bases) {
                // Another collector carries out the same decision, and has looked, too.
                Err(error) if is_gone(&error) => continue,
                whole => whole?,
            };
            let ContainerNumber(container) = number;
            whole.into_iter().try_for_each(|chunk| {
                each(StoredChunk { fingerprint: chunk.fingerprint, container, slot: chunk.slot, len: chunk.len })
            })?;
        }
        Ok(())
    }
}
