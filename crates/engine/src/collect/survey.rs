//! The knowledge of a collector before it decides: which containers may go, what snapshots reach, and what is worth copying
//! (steps C2 to C5 of docs/protocol.md). Nothing here changes a repository.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::bitmap::Bitmap;
use crate::collect::bases_graph::BaseGraph;
use crate::collect::copy::{CopyBudget, CopyRequest, HintRefresher};
use crate::collect::depending::{dependents_of, known_needed};
use crate::collect::lifetime::LifetimeClasses;
use crate::collect::mark::{DirectoryChunks, Hint, Marker};
use crate::collect::moved::Hinted;
use crate::collect::plan::{ContainerUsage, PruneOptions, PrunePlan};
use crate::collect::request::{PruneReport, PruneRequest};
use crate::collect::stale::{FilledHintRuns, HintRuns};
use crate::collect::usage::{Reached, Usage};
use crate::collect::wait::StoreClock;
use crate::collect::whole::is_gone;
use crate::error::{Error, Result};
use crate::monitor::{Items, Monitor};
use crate::object::names::{ContainerKind, ObjectName, Prefix};
use crate::snapshot::CommitKind;
use crate::spill::SpillMap;
use crate::store::base_reader::BaseReader;
use crate::store::collections::Absent;
use crate::store::commits::Commits;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::store::metadata::MetadataMemory;
use crate::store::{MetadataReader, Session, Store};
use crate::types::{ContainerId, SessionId};

/// Reads the commits of a repository. All of them can be read or are forgotten, and none is gone that another one names. A snapshot
/// whose forgetting cannot be read counts as not forgotten, and is reported.
pub(super) fn read_roots(store: &Store, report: &mut PruneReport) -> Result<Commits> {
    let commits = store.read_commits()?;
    for error in &commits.not_forgotten {
        report.find(error);
    }
    let unknown = |session: SessionId, error: Error| Error::Context {
        context: format!(
            "what snapshot {session} needs is not known, so nothing is deleted; bring the object back from a copy of the repository, \
             or forget the snapshot"
        ),
        source: Box::new(error),
    };
    if let Some((session, error)) = commits.findings.iter().find(|(session, _)| !commits.forgotten.contains(session)) {
        return Err(unknown(*session, error.clone()));
    }
    if let Some((head, seen_by)) = commits.gone().next() {
        let object = store.display(ObjectName::Commit(head.session));
        let gone = Error::damaged(object, format!("is gone, or is not the snapshot that snapshot {seen_by} has seen"));
        return Err(unknown(head.session, gone));
    }
    Ok(commits)
}

/// Returns the ids of which there are two containers, which is damage. No collection touches them.
pub(super) fn listed_twice(listed: &Containers) -> BTreeSet<ContainerId> {
    let (mut twice, mut before) = (BTreeSet::new(), None);
    for (_, id) in listed.iter() {
        if before.replace(id) == Some(id) {
            twice.insert(id);
        }
    }
    twice
}

/// A look at a repository that deletes nothing.
#[derive(Debug)]
pub(super) struct Survey<'a> {
    pub(super) store: &'a Store,
    pub(super) request: &'a PruneRequest,
    pub(super) monitor: &'a dyn Monitor,
    pub(super) session: Option<Arc<Session>>,
}

/// Shows a sign of life wherever an operation asks whether it is interrupted.
#[derive(Debug)]
pub(super) struct Beating<'a>(pub(super) &'a Survey<'a>);

impl Monitor for Beating<'_> {
    fn is_interrupted(&self) -> bool {
        if let Some(session) = &self.0.session {
            session.beat();
        }
        self.0.monitor.is_interrupted()
    }
}

impl Survey<'_> {
    pub(super) fn is_interrupted(&self) -> bool {
        Beating(self).is_interrupted()
    }

    pub(super) fn memory(&self) -> usize {
        self.request.memory_bytes.max(super::MEMORY_BYTES_MIN)
    }

    /// Reports what cannot be read of a container, unless a collection has deleted it meanwhile.
    pub(super) fn find(&self, container: ContainerId, error: &Error, report: &mut PruneReport) -> Result<()> {
        if !(is_gone(error) && self.store.read_absent()?.containers.contains(container)) {
            report.find(error);
        }
        Ok(())
    }

    /// Returns a request to copy containers. Without a session, they are only packed and counted.
    pub(super) fn copy_request<'a>(
        &'a self,
        containers: &'a Containers,
        bases: &'a BaseReader,
        copy: &'a [u32],
        classes: &'a LifetimeClasses,
    ) -> CopyRequest<'a> {
        let &Survey { store, request, monitor, ref session } = self;
        let bytes = (self.memory() / 16 * 11).max(CopyBudget::BYTES_MIN);
        CopyRequest {
            store,
            session: session.as_ref(),
            containers,
            bases,
            copy,
            classes,
            leaves_dead: request.options.max_unused.is_nothing(),
            copies: request.copies,
            budget: CopyBudget::of(bytes, request.driver.compute_count(), request.copies),
            scratch: &request.scratch,
            driver: &request.driver,
            monitor,
        }
    }

    /// Returns what gives the metadata that is copied today's hints. `given_up` are the numbers of the containers that go.
    pub(super) fn refresher<'a>(
        &self,
        listed: &Containers,
        given_up: Bitmap,
        found: Option<&'a mut SpillMap>,
        hinted: &'a mut Hinted,
    ) -> Result<HintRefresher<'a>> {
        let owner = if let Some(session) = &self.session {
            session.id
        } else {
            // Hints with another id have another length once they are compressed, so it is drawn as a session's is.
            let mut id = [0; 16];
            self.store.host.random(&mut id)?;
            SessionId(id)
        };
        let memory_bytes = (self.memory() / 16).max(HintRefresher::BYTES_MIN);
        HintRefresher::new((self.store, &self.request.scratch, owner), listed, given_up, found, hinted, memory_bytes)
    }

    /// Returns the containers that may be condemned (step C3): of sessions that had ended when `commits` was read.
    pub(super) fn candidates(&self, listed: &Containers, commits: &Commits, clock: &StoreClock) -> Result<Containers> {
        let spared = self.unfinished(commits, clock)?;
        let ended: BTreeSet<SessionId> = commits.commits.iter().map(|commit| commit.session).collect();
        let unread = commits.findings.iter().map(|(session, _)| *session);
        let ended: BTreeSet<SessionId> = ended.into_iter().chain(unread).collect();
        let twice = listed_twice(listed);
        let mut of_session = (None, false);
        Ok(listed.retain(|_, id| {
            if of_session.0 != Some(id.session) {
                of_session = (Some(id.session), ended.contains(&id.session) && !spared.contains(&id.session));
            }
            of_session.1 && !twice.contains(&id)
        }))
    }

    /// Returns sessions that ended without a snapshot a short while ago.
    fn unfinished(&self, commits: &Commits, clock: &StoreClock) -> Result<BTreeSet<SessionId>> {
        if self.request.keep_unfinished.is_zero() {
            return Ok(BTreeSet::new());
        }
        let ended = self.store.session_times(Prefix::Commits, ObjectName::session)?;
        let is_recent = |session: &SessionId| {
            let age = clock.age(&*self.store.host, ended.get(session).copied().flatten());
            age.is_some_and(|age| age < self.request.keep_unfinished)
        };
        let unfinished =
            commits.commits.iter().filter(|commit| matches!(commit.body.kind, CommitKind::Done | CommitKind::Fence));
        Ok(unfinished.map(|commit| commit.session).filter(is_recent).collect())
    }

    /// Returns what snapshots reach, without those of `but`, and the hints of their metadata (steps C2 and C4).
    pub(super) fn mark_with_hints(
        &self,
        listed: &Containers,
        commits: &Commits,
        but: &BTreeSet<SessionId>,
        hinted: &mut Hinted,
    ) -> Result<(Reached, FilledHintRuns)> {
        hinted.start(listed);
        let mut hints = HintRuns::new(self.store, listed, &self.request.scratch, self.memory() / 8)?;
        let reached = self.mark(listed, commits, but, &mut |hint| hints.push(hint, hinted))?;
        Ok((reached, hints.finish()?))
    }

    /// Returns what snapshots reach, without those of `but` (steps C2, C4 and C8). The newest come first.
    /// `hint` takes the hint of each reference to a data chunk.
    pub(super) fn mark(
        &self,
        containers: &Containers,
        commits: &Commits,
        but: &BTreeSet<SessionId>,
        hint: &mut dyn FnMut(Hint) -> Result<()>,
    ) -> Result<Reached> {
        let memory = MetadataMemory::left_by(containers, self.memory() / 4);
        let mut reader = MetadataReader::open(self.store, containers, &self.request.scratch, memory)?;
        let mut marker = Marker::new(&mut reader, &self.request.scratch, self.memory() / 2)?;
        let mut snapshots = commits.snapshots();
        snapshots.retain(|(session, _)| !but.contains(session));
        self.monitor.stage(Items::Snapshots, snapshots.len() as u64);
        for (session, snapshot) in snapshots.iter().rev() {
            let marked = marker.mark(snapshot.tree, hint, &Beating(self));
            marked.map_err(|error| cannot_mark(*session, error))?;
            self.monitor.advance(0, 1);
        }
        marker.finish()
    }

    /// Plans what is removed and copied (steps C4 and C5). Containers that cannot be read stay, and are reported. What a
    /// collection with a damaged `final` has condemned is given up in any case.
    pub(super) fn plan(
        &self,
        candidates: &Containers,
        absent: &Absent,
        (listed, commits): (&Containers, &Commits),
        (reached, hints, hinted): (Reached, &FilledHintRuns, &mut Hinted),
        report: &mut PruneReport,
    ) -> Result<Planned> {
        let beating = Beating(self);
        let (store, driver) = (self.store, &self.request.driver);
        let lack_bases = self.lacking_bases((listed, candidates), commits)?;
        let counted = candidates.retain(|number, _| !lack_bases.contains(number.0));
        let (containers, unreadable) = (&counted, Vec::new());
        let mut chunks = DirectoryChunks { store, containers, driver, monitor: &beating, unreadable };
        let (scratch, host) = (&self.request.scratch, &self.store.host);
        let usage = Usage::count(scratch, host, self.memory() / 2, candidates.numbers_end(), reached, &mut chunks)?;
        for (container, error) in &chunks.unreadable {
            self.find(*container, error, report)?;
        }
        let usage_of = |number: u32, kind: ContainerKind, len: u32| {
            if lack_bases.contains(number) { usage_of_dead(number, kind, len) } else { usage.of(number, kind, len) }
        };
        let mut error = None;
        let of_container = |number: ContainerNumber| match candidates.sized(number) {
            Ok((name, len)) => usage_of(number.0, name.kind, u32::try_from(len).unwrap_or(u32::MAX)),
            Err(failed) => {
                error = Some(failed);
                None
            }
        };
        let mut of_container = of_container;
        let mut plan = PrunePlan::new(candidates.numbers().filter_map(&mut of_container), &self.request.options);
        let mut fixed = lack_bases.clone();
        if !absent.undecided.is_empty() {
            let is_undecided = |(_, id): &(ContainerNumber, ContainerId)| absent.is_undecided(*id);
            candidates.iter().filter(is_undecided).for_each(|(number, _)| fixed.insert(number.0));
            // What depends on them would keep them, and the collection would never end.
            let dependents = dependents_of(self.store, candidates, &fixed, (driver, &beating))?;
            candidates
                .numbers()
                .filter(|number| dependents.contains(number.0))
                .for_each(|number| fixed.insert(number.0));
            plan.give_up(candidates.numbers().filter(|number| fixed.contains(number.0)).filter_map(&mut of_container));
        }
        let graph = if commits.may_have_bases(self.store.config.format) {
            self.weigh_bases((listed, candidates), &mut plan, (&usage_of, &fixed), report)?
        } else {
            Refreshable::All
        };
        let given_up = plan.given_up();
        let stale = hints.stale(&usage, &given_up, hinted, (store, scratch), self.memory() / 16)?;
        let stale_usage = stale.containers.iter().filter_map(|number| of_container(ContainerNumber(*number)));
        graph.refresh(&mut plan, stale_usage, &self.request.options);
        error.map_or(Ok(Planned { usage, plan, found: stale.found }), Err)
    }
}

impl Survey<'_> {
    /// Returns the numbers of candidates that lack a base. Nobody reads them: copies of their chunks stay instead, and they go.
    /// Those whose directories cannot be read are left out, since nobody knows their bases.
    fn lacking_bases(&self, (listed, candidates): (&Containers, &Containers), commits: &Commits) -> Result<Bitmap> {
        let mut numbers = Bitmap::default();
        if commits.may_have_bases(self.store.config.format) {
            let mut beat = || {
                let _goes_on = self.is_interrupted();
            };
            let lacking = self.store.lacking_bases(listed, commits, &mut beat)?;
            let lacking = candidates.retain(|_, id| lacking.contains(id));
            for (number, opened) in lacking.numbers().zip(self.store.open_containers(&lacking, lacking.numbers())) {
                if opened?.1.is_ok() {
                    numbers.insert(number.0);
                }
            }
        }
        Ok(numbers)
    }

    /// Weighs whether bases stay or what depends on them is taken apart. If there is no memory for that, they stay.
    fn weigh_bases(
        &self,
        (listed, candidates): (&Containers, &Containers),
        plan: &mut PrunePlan,
        (usage, fixed): (&UsageOf<'_>, &Bitmap),
        report: &mut PruneReport,
    ) -> Result<Refreshable> {
        let beating = Beating(self);
        let parties: (_, &dyn Monitor) = (&self.request.driver, &beating);
        let mut is_known = true;
        let mut unreadable = |error: &Error| {
            is_known = false;
            report.find(error);
        };
        let graph = BaseGraph::read(self.store, listed, self.memory() / 4, parties, &mut unreadable)?;
        let Some(graph) = graph else {
            self.monitor
                .note("bases stay with all that depends on them: weighing them takes more than a quarter of --memory");
            self.keep_found(listed, (plan, usage), report)?;
            return Ok(Refreshable::None);
        };
        let mut may_go = Bitmap::default();
        candidates.numbers().for_each(|number| may_go.insert(number.0));
        let mut failed = None;
        let mut of_candidate = |number: u32| {
            if !may_go.contains(number) {
                return None;
            }
            match candidates.sized(ContainerNumber(number)) {
                Ok((name, len)) => usage(number, name.kind, u32::try_from(len).unwrap_or(u32::MAX)),
                Err(error) => {
                    failed = Some(error);
                    None
                }
            }
        };
        plan.weigh_bases(&graph, &mut of_candidate, fixed, &self.request.options);
        if let Some(error) = failed {
            return Err(error);
        }
        if is_known {
            return Ok(Refreshable::Free(graph));
        }
        // Where a directory cannot be read, nobody knows what depends on what.
        self.keep_found(listed, (plan, usage), report)?;
        Ok(Refreshable::None)
    }

    /// Takes the containers out of a plan that containers which stay depend on. `usage` is that of a container of the plan.
    pub(super) fn keep_bases(
        &self,
        listed: &Containers,
        commits: &Commits,
        (plan, usage): (&mut PrunePlan, &UsageOf<'_>),
        report: &mut PruneReport,
    ) -> Result<()> {
        if !commits.may_have_bases(self.store.config.format) {
            return Ok(());
        }
        self.keep_found(listed, (plan, usage), report)
    }

    fn keep_found(
        &self,
        listed: &Containers,
        (plan, usage): (&mut PrunePlan, &UsageOf<'_>),
        report: &mut PruneReport,
    ) -> Result<()> {
        let (given_up, beating) = (plan.given_up(), Beating(self));
        let parties: (_, &dyn Monitor) = (&self.request.driver, &beating);
        let needed = known_needed(self.store, listed, &given_up, parties, report)?;
        let mut kept = Vec::new();
        for number in listed.numbers().filter(|number| needed.contains(number.0)) {
            let (name, len) = listed.sized(number)?;
            kept.extend(usage(number.0, name.kind, u32::try_from(len).unwrap_or(u32::MAX)));
        }
        plan.keep(kept);
        Ok(())
    }
}

/// Containers of metadata that may be copied for their hints alone.
enum Refreshable {
    /// All.
    All,
    /// Those in which no container that stays has a base. A copy of another one would stand next to it.
    Free(BaseGraph),
    /// None, since it is not known what depends on them.
    None,
}

impl Refreshable {
    /// Adds those of some containers to a plan that may be copied.
    fn refresh(&self, plan: &mut PrunePlan, stale: impl Iterator<Item = ContainerUsage>, options: &PruneOptions) {
        match self {
            Self::All => plan.refresh(stale, options),
            Self::Free(graph) => plan.refresh_free(stale, graph, options),
            Self::None => {}
        }
    }
}

/// Returns the usage of a container by its number, kind and length.
pub(super) type UsageOf<'a> = dyn Fn(u32, ContainerKind, u32) -> Option<ContainerUsage> + 'a;

/// Returns the usage of a container of which nothing is needed.
#[expect(clippy::unnecessary_wraps, reason = "the form of `UsageOf`")]
pub(super) fn usage_of_dead(number: u32, kind: ContainerKind, stored_bytes: u32) -> Option<ContainerUsage> {
    Some(ContainerUsage {
        number,
        kind,
        stored_bytes,
        live_bytes: 0,
        dead_bytes: 0,
        live_chunks: 0,
        dead_chunks: 0,
        rank: 0,
    })
}

/// A plan with what it was made from.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) usage: Usage,
    pub(super) plan: PrunePlan,
    /// The containers of chunks that hints do not find.
    pub(super) found: Option<SpillMap>,
}

fn cannot_mark(session: SessionId, error: Error) -> Error {
    match error {
        Error::Interrupted => error,
        error => Error::Context {
            context: format!(
                "what snapshot {session} needs cannot be read, so nothing is deleted; `onefold repair snapshots` mends it"
            ),
            source: Box::new(error),
        },
    }
}
