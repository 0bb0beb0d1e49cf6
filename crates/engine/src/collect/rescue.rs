//! The look before a deletion (step C9 of docs/protocol.md).
//!
//! C8 has found a sound copy of each needed chunk. Damage may hit that copy before the condemned container is deleted, which may be
//! weeks later. So nothing is deleted without another look at the copies, and a container that holds a needed chunk and no other one
//! does is copied first.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::collect::collector::Collector;
use crate::collect::last_look::is_marking;
use crate::collect::request::{PruneReport, PruneRequest};
use crate::collect::steps::{self, Named};
use crate::collect::whole::is_gone;
use crate::error::Result;
use crate::monitor::Monitor;
use crate::object::names::CollectionStep;
use crate::snapshot::SessionKind;
use crate::store::base_reader::BaseReader;
use crate::store::container_ids::ContainerIds;
use crate::store::container_set::Containers;
use crate::store::{Session, Store};

/// Copies what is whole in the containers whose deletion is pending, if snapshots need something of them that no other container
/// holds whole, and deletes nothing. Returns the number of chunks copied.
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
    fn rescue_of(&mut self, number: u32, report: &mut PruneReport) -> Result<()> {
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

    /// Copies the containers that a collection deletes and of which snapshots need a chunk that no other container holds whole. The
    /// copies are durable when this returns. If what snapshots need cannot be read, everything counts as needed for a repair
    /// (`takes_all`), and it is an error otherwise.
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
        let seen = self.look(number, named, takes_all, report)?;
        if seen.condemned.is_empty() {
            return Ok(ContainerIds::default());
        }
        // The only whole copy of a node may stand in a condemned container, and snapshots in containers that are newer than the look.
        let readable = self.store.list_containers(&self.request.scratch)?;
        let mut mark = || self.survey.mark(&readable, &seen.commits, &BTreeSet::new(), &mut |_| Ok(()));
        let (reached, quarantined) = match is_marking(&seen.condemned, named).then(&mut mark).transpose() {
            Ok(reached) => (reached, &named.quarantined),
            Err(error) if takes_all && error.is_loss() => (None, &named.containers),
            Err(error) => return Err(error),
        };
        let reached: Vec<_> = reached.iter().collect();
        let bases = BaseReader::new(self.store, &readable, self.survey.memory() / 16);
        let settled = self.settle(&seen, &bases, (&reached, quarantined), (false, takes_all), report)?;
        let (copied, damaged) = self.copy_whole(&seen.condemned, &settled.rescued, &bases, report)?;
        report.rescued_chunks += copied.chunks;
        // Another collector carries out the same decision, and has looked, too. Everything else was whole a while ago.
        let failed = copied.not_copied.into_values().find(|error| !is_gone(error));
        failed.map_or(Ok(damaged), Err)
    }
}
