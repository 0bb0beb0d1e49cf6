//! The last look of a collector, and its decision (step C8 of docs/protocol.md).

use std::cell::RefCell;

use crate::collect::collector::{Collector, Marked};
use crate::collect::decide::Decision;
use crate::collect::depending::known_needed;
use crate::collect::moved;
use crate::collect::plan::numbers;
use crate::collect::quick;
use crate::collect::request::PruneReport;
use crate::collect::settle::Settled;
use crate::collect::steps::{self, Named};
use crate::collect::survey::{Beating, read_roots};
use crate::collect::usage::{Reached, Usage};
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::object::FormatVersion;
use crate::object::names::{CollectionStep, ObjectName};
use crate::snapshot::{CollectionEncoder, Snapshot};
use crate::store::base_reader::BaseReader;
use crate::store::collections::Absent;
use crate::store::commits::Commits;
use crate::store::container_ids::ContainerIds;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::types::SessionId;

/// A repository as the last look of a collection shows it.
pub(super) struct Seen {
    /// What other collections delete.
    absent: Absent,
    /// Containers that none of them deletes for certain.
    all: Containers,
    /// Those of them that may be relied upon, and those that this collection has condemned.
    listed: Containers,
    pub(super) condemned: Containers,
    pub(super) commits: Commits,
}

/// Returns true if snapshots decide on a condemned container.
pub(super) fn is_marking(condemned: &Containers, named: &Named) -> bool {
    condemned.iter().any(|(_, id)| !named.quarantined.contains(id))
}

impl Collector<'_> {
    /// Decides what is deleted, and publishes it (step C8). Returns the containers whose copies it relies on; `None` if another
    /// collector has decided.
    pub(super) fn decide(
        &mut self,
        number: u32,
        named: &Named,
        marked: &Marked,
        report: &mut PruneReport,
    ) -> Result<Option<Containers>> {
        let seen = self.look(number, named, false, report)?;
        let Seen { absent, condemned, commits, .. } = &seen;
        let is_marking = is_marking(condemned, named);
        let is_new = |(session, _): &(SessionId, &Snapshot)| !marked.roots.contains(session);
        let later = if !is_marking {
            self.hinted.set_unknown();
            None
        } else if marked.knows_nothing() || commits.snapshots().iter().any(is_new) {
            // Snapshots may be in containers that did not exist when the others were listed.
            let readable = self.store.list_containers(&self.request.scratch)?.without(&absent.containers);
            if marked.knows_nothing() {
                self.hinted.start(&readable);
            }
            let hinted = &mut self.hinted;
            Some(self.survey.mark(&readable, commits, &marked.roots, &mut |hint| hinted.insert_hint(&hint))?)
        } else {
            None
        };
        // Before anything is published: `moved` keeps what manifests list.
        self.hint_manifests(commits)?;
        let root_nodes = if marked.is_quick { Some(quick::root_nodes(&self.survey, commits)?) } else { None };
        let marks = later.iter().chain(&root_nodes);
        let reached: Vec<&Reached> = marked.reached.iter().map(Usage::reached).chain(marks).collect();
        let bases = BaseReader::new(self.store, &seen.listed, self.survey.memory() / 16);
        let trusts_copies = self.request.trust_copies;
        let mut settled = self.settle(&seen, &bases, (&reached, &named.quarantined), (trusts_copies, false), report)?;
        let Seen { absent: _, all, listed, condemned: _, commits } = seen;
        if commits.may_have_bases(self.store.config.format) {
            // A container that this one does not delete stays, whatever another has condemned, and needs its bases.
            self.rescue_bases(&all, &mut settled, named, report)?;
        }
        let mut step = CollectionEncoder::new(CollectionStep::Final);
        step.quick(self.count_quick(marked)?);
        for number in &settled.deleted {
            let id = listed.name(ContainerNumber(*number))?.id;
            step.container(id);
            if named.quarantined.contains(id) {
                step.quarantined(id);
            }
        }
        let moved = moved::merge(self.store, number, &listed, &settled, &mut self.hinted, &mut step)?;
        if !steps::create(self.store, self.session.id, number, CollectionStep::Final, step)? {
            return Ok(None);
        }
        report.rescued_containers += settled.rescued.len() as u64;
        report.moved = moved;
        Ok(Some(listed.retain(|number, _| settled.relied_upon.contains(number.0))))
    }

    /// Decides by what was seen, whatever bases the containers that are deleted have to be for others. `trusts_copies` relies on copies
    /// without a look at their bytes. A repair (`is_repair`) knows what is damaged.
    pub(super) fn settle(
        &self,
        seen: &Seen,
        bases: &BaseReader,
        (reached, quarantined): (&[&Reached], &ContainerIds),
        (trusts_copies, is_repair): (bool, bool),
        report: &mut PruneReport,
    ) -> Result<Settled> {
        let reporting = RefCell::new(report);
        let decision = Decision {
            store: self.store,
            session: &self.session,
            scratch: &self.request.scratch,
            memory_bytes: self.survey.memory() / 2,
            containers: &seen.listed,
            bases,
            condemned: &seen.condemned,
            quarantined,
            in_doubt: &seen.commits.in_doubt(&seen.listed),
            reached,
            trusts_copies,
            driver: &self.request.driver,
            monitor: &Beating(&self.survey),
            unreadable: &|id, error| {
                if is_repair && error.is_loss() {
                    return Ok(());
                }
                self.survey.find(id, error, &mut reporting.borrow_mut())
            },
        };
        decision.settle()
    }

    /// Reads what other collections delete, then lists containers, then reads commits and forgets. Where regions may have bases, the
    /// listing shows every container that was durable before: one that an old listing hides would lose its bases.
    pub(super) fn look(&self, number: u32, named: &Named, is_repair: bool, report: &mut PruneReport) -> Result<Seen> {
        let (store, format) = (self.store, self.store.config.format);
        let mut may_have_bases = format != FormatVersion::V1;
        store.objects.refresh_collections(self.session.id)?;
        loop {
            let absent = store.read_absent_but(number)?;
            if may_have_bases {
                store.objects.refresh_containers(self.session.id)?;
            }
            let all = store.list_sized_containers(&self.request.scratch)?.without(&absent.containers);
            // Nobody relies on what a collection with a damaged `final` has condemned. This one deletes it if it has condemned it, too.
            let listed = all.retain(|_, id| !absent.is_undecided(id) || named.containers.contains(id));
            let mut cursor = named.containers.cursor();
            let condemned = listed.retain(|_, id| cursor.contains(id));
            // What snapshots need does not matter to a container that is quarantined.
            let reads_roots = !is_repair && is_marking(&condemned, named);
            let commits = if reads_roots { read_roots(store, report)? } else { store.read_commits()? };
            store.objects.confirm(&[ObjectName::Forget(self.session.id)])?;
            if may_have_bases || !commits.may_have_bases(format) {
                return Ok(Seen { absent, all, listed, condemned, commits });
            }
            may_have_bases = true;
        }
    }

    /// Keeps the containers that others depend on. If it is not known what a container depends on, all of its kind stay.
    fn rescue_bases(
        &self,
        listed: &Containers,
        settled: &mut Settled,
        named: &Named,
        report: &mut PruneReport,
    ) -> Result<()> {
        let (deleted, beating) = (numbers(&settled.deleted), Beating(&self.survey));
        let parties: (_, &dyn Monitor) = (&self.request.driver, &beating);
        let needed = known_needed(self.store, listed, &deleted, parties, report)?;
        settled.rescue(&needed);
        for number in settled.rescued.iter().filter(|number| needed.contains(**number)) {
            let name = listed.name(ContainerNumber(*number))?;
            if named.quarantined.contains(name.id) {
                report.find(&Error::damaged(
                    name,
                    "stays as it is: regions in other containers are compressed against it",
                ));
            }
        }
        Ok(())
    }
}
