//! What a collector does with manifests: condemns what none lists, keeps in `moved` what they list, and removes them.

use std::collections::BTreeSet;

use crate::collect::collector::{Collector, Marked};
use crate::collect::plan::PrunePlan;
use crate::collect::quick::QUICK_MAX;
use crate::collect::request::PruneReport;
use crate::collect::steps;
use crate::error::Result;
use crate::object::names::CollectionStep;
use crate::snapshot::CollectionEncoder;
use crate::store::commits::Commits;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::types::SessionId;

impl Collector<'_> {
    /// Returns the number of quick collections since the last full one, for the `final` of this collection. One that deletes what
    /// another process has condemned, or what is damaged, counts for nothing.
    pub(super) fn count_quick(&self, marked: &Marked) -> Result<u32> {
        let before = || Ok(self.store.count_quick()?.unwrap_or(QUICK_MAX));
        match &marked.reached {
            Some(_) => Ok(0),
            None if marked.is_quick => before().map(|count| count.saturating_add(1)),
            None => before(),
        }
    }

    /// Condemns what no manifest lists. Returns `None` if there is nothing to do.
    pub(super) fn condemn_unlisted(
        &mut self,
        number: u32,
        commits: &Commits,
        (candidates, plan): (&Containers, &PrunePlan),
        report: &mut PruneReport,
    ) -> Result<Option<Marked>> {
        report.plan = plan.totals;
        let roots: BTreeSet<SessionId> = commits.snapshots().iter().map(|(session, _)| *session).collect();
        report.snapshots = roots.len() as u64;
        // Manifests tell nothing of what another collector has condemned, since it may have copied that: trees decide.
        let joined = || Ok(Some(Marked { has_joined: true, ..Marked::default() }));
        if plan.remove.is_empty() {
            if self.has_condemned(number)? {
                return joined();
            }
            let count = self.store.count_quick()?.unwrap_or(QUICK_MAX);
            steps::give_up(self.store, self.session.id, number, count.saturating_add(1))?;
            return Ok(None);
        }
        if !self.publish_condemned(number, candidates, &plan.remove, &roots)? {
            return joined();
        }
        // Hints are not read, so that the whole map of moved chunks stays.
        self.hinted.set_unknown();
        Ok(Some(Marked { roots, is_quick: true, is_partial: plan.totals.is_cut, ..Marked::default() }))
    }

    /// Takes the containers that the manifests of snapshots list. A manifest that is lost lists none: no quick
    /// collection follows while its snapshot is kept.
    pub(super) fn hint_manifests(&mut self, commits: &Commits) -> Result<()> {
        for (session, _) in commits.snapshots() {
            let checksum = commits.commit_of(session).and_then(|commit| commit.body.manifest);
            let Some(checksum) = checksum else { continue };
            let hinted = &mut self.hinted;
            match self.store.read_manifest(session, &checksum, &mut |id, _| hinted.insert(id)) {
                Err(error) if !error.is_loss() => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Removes the manifests of sessions that have ended and have no snapshot, or a forgotten one. These ends are durable first.
    pub(super) fn remove_manifests(&self, report: &mut PruneReport) -> Result<()> {
        let removed = self.store.remove_manifests(self.session.id)?;
        report.leftovers.0 += removed.removed;
        report.leftovers.1 += removed.removed_bytes;
        Ok(())
    }

    /// Creates `condemn` (step C6). Returns false if another collector has created it.
    pub(super) fn publish_condemned(
        &self,
        number: u32,
        candidates: &Containers,
        condemned: &[u32],
        roots: &BTreeSet<SessionId>,
    ) -> Result<bool> {
        let mut step = CollectionEncoder::new(CollectionStep::Condemn);
        for number in condemned {
            step.container(candidates.name(ContainerNumber(*number))?.id);
        }
        for root in roots {
            step.marked(*root);
        }
        steps::create(self.store, self.session.id, number, CollectionStep::Condemn, step)
    }

    pub(super) fn has_condemned(&self, number: u32) -> Result<bool> {
        let collections = self.store.list_collections()?;
        Ok(collections.get(&number).is_some_and(|steps| steps.contains(&CollectionStep::Condemn)))
    }
}
