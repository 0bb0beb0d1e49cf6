//! A collector: carries out a collection, step by step, as docs/protocol.md names them.
//!
//! Everything before step C8 proposes. `settle` decides, with all that snapshots reach and copies that were looked at, and
//! nothing is deleted that it has not released. So a collector that joins a collection trusts nothing that another process
//! has marked or copied.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::collect::moved::Hinted;
use crate::collect::plan::numbers;
use crate::collect::quick;
use crate::collect::request::{PruneReport, PruneRequest, PruneState};
use crate::collect::steps::{self, Named, Open};
use crate::collect::survey::{Beating, Planned, Survey, read_roots, usage_of_dead};
use crate::collect::usage::Usage;
use crate::collect::wait::{self, StoreClock, UnendedSession};
use crate::error::{Error, Result};
use crate::monitor::{Items, Monitor};
use crate::object::names::{CollectionStep, ObjectName, Prefix};
use crate::object::store::Detail;
use crate::snapshot::SessionKind;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::store::{Session, Store};
use crate::types::{ContainerId, SessionId};

/// Time between two looks at sessions that have not ended.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Containers that are deleted in one call.
const DELETION_BATCH: usize = 256;
/// Most times that a prune starts again after another one has fenced it.
const FENCES_MAX: usize = 8;

/// Prunes: removes what no snapshot needs, and copies what stands among it.
///
/// Joins a collection that was interrupted. Returns when everything is deleted, or with a state that says what a later prune
/// waits for. After an error a later prune goes on; nothing that a snapshot needs was deleted.
pub fn prune(store: &Store, request: &PruneRequest, monitor: &dyn Monitor) -> Result<PruneReport> {
    carry_out(store, request, Task::Prune, monitor)
}

/// Quarantines damaged containers: copies what is whole in them, and sets them aside in a collection.
///
/// Joins a collection that was interrupted first. Containers whose deletion is pending stay, and what is whole only in them is
/// copied. It needs no snapshot: every chunk that is whole counts as needed. A container stays
/// if it cannot be read for another reason than damage.
pub fn quarantine(
    store: &Store,
    request: &PruneRequest,
    damaged: &BTreeSet<ContainerId>,
    monitor: &dyn Monitor,
) -> Result<PruneReport> {
    carry_out(store, request, Task::Quarantine(damaged), monitor)
}

/// The work of a collector in a collection that it begins.
#[derive(Clone, Copy, Debug)]
enum Task<'a> {
    /// Removes what no snapshot needs.
    Prune,
    /// Quarantines these containers.
    Quarantine(&'a BTreeSet<ContainerId>),
}

fn carry_out(store: &Store, request: &PruneRequest, task: Task<'_>, monitor: &dyn Monitor) -> Result<PruneReport> {
    let (mut report, mut fences) = (PruneReport::default(), 0);
    loop {
        let session = Arc::new(Session::create(store, &request.scratch, SessionKind::Collection, &request.hostname)?);
        let collector = Collector::new(store, request, monitor, Arc::clone(&session));
        match collector.and_then(|mut collector| collector.run(task, &mut report)) {
            Ok(next) => {
                // A fence of another collector changes nothing: what was deleted was decided before.
                if let Err(error) = session.end_durable()
                    && !session.is_fenced()
                {
                    return Err(error);
                }
                if next == Next::End {
                    break;
                }
            }
            Err(error) => {
                let error = session.abandon(error);
                // The other collector may have removed the temporary files of this one.
                if !matches!(error, Error::Fenced { .. }) || fences == FENCES_MAX {
                    return Err(error);
                }
                fences += 1;
                monitor.note("another prune has fenced this one; starting again");
            }
        }
    }
    let leftovers = store.remove_leftovers()?;
    report.leftovers.0 += leftovers.removed;
    report.leftovers.1 += leftovers.removed_bytes;
    Ok(report)
}

/// Plans a prune, and writes nothing.
pub fn plan_prune(store: &Store, request: &PruneRequest, monitor: &dyn Monitor) -> Result<PruneReport> {
    let mut report = PruneReport::default();
    let commits = read_roots(store, &mut report)?;
    let absent = store.read_absent()?;
    let listed = store.list_sized_containers(&request.scratch)?.without(&absent.containers);
    let survey = Survey { store, request, monitor, session: None };
    let candidates = survey.candidates(&listed, &commits, &StoreClock::of_host(&*store.host))?;
    report.snapshots = commits.snapshots().len() as u64;
    if let Some(mut plan) = quick::plan(&survey, &absent, &commits, (&listed, &candidates))? {
        survey.keep_bases(&listed, &commits, (&mut plan, &usage_of_dead), &mut report)?;
        report.is_quick = true;
        report.plan = plan.totals;
        return Ok(report);
    }
    let mut hinted = Hinted::new(store, &request.scratch, survey.memory() / 16)?;
    let (reached, hints) = survey.mark_with_hints(&listed, &commits, &BTreeSet::new(), &mut hinted)?;
    let planned =
        survey.plan(&candidates, &absent, (&listed, &commits), (reached, &hints, &mut hinted), &mut report)?;
    report.plan = planned.plan.totals;
    Ok(report)
}

/// Returns true if a collection deletes nothing: all that it names is quarantined.
fn is_quarantine(named: &Named) -> bool {
    named.containers.iter().all(|id| named.quarantined.contains(id))
}

/// The next step after a collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Nothing.
    End,
    /// Another collection.
    Another,
}

/// A collector with its session.
pub(super) struct Collector<'a> {
    pub(super) survey: Survey<'a>,
    pub(super) store: &'a Store,
    pub(super) request: &'a PruneRequest,
    pub(super) session: Arc<Session>,
    clock: StoreClock,
    pub(super) hinted: Hinted,
    /// Number of the next container of the session.
    pub(super) ordinals: u32,
}

/// Knowledge of a collector from its own mark and plan: none if it joins a collection.
#[derive(Debug, Default)]
pub(super) struct Marked {
    pub(super) reached: Option<Usage>,
    pub(super) roots: BTreeSet<SessionId>,
    /// True if the plan was not carried out whole.
    pub(super) is_partial: bool,
    /// True if the containers that are condemned are another collector's choice.
    pub(super) has_joined: bool,
    /// True if the manifests of `roots` tell that these reach nothing of what is condemned.
    pub(super) is_quick: bool,
}

impl Marked {
    /// Returns true if nothing is known of what any snapshot reaches.
    pub(super) fn knows_nothing(&self) -> bool {
        self.reached.is_none() && !self.is_quick
    }
}

impl<'a> Collector<'a> {
    pub(super) fn new(
        store: &'a Store,
        request: &'a PruneRequest,
        monitor: &'a dyn Monitor,
        session: Arc<Session>,
    ) -> Result<Self> {
        let clock = StoreClock::read(store, session.id)?;
        let survey = Survey { store, request, monitor, session: Some(Arc::clone(&session)) };
        let hinted = Hinted::new(store, &request.scratch, survey.memory() / 16)?;
        Ok(Self { survey, store, request, session, clock, hinted, ordinals: 0 })
    }

    /// Carries out one collection, or goes on with one. Then ends collections whose `final` is damaged, if that is possible.
    fn run(&mut self, task: Task<'_>, report: &mut PruneReport) -> Result<Next> {
        let next = self.collect(task, report)?;
        if report.state == PruneState::Done {
            self.remove_manifests(report)?;
        }
        for undecided in steps::end_undecided(self.store, self.session.id, &self.request.scratch)? {
            match undecided {
                Ok(number) => {
                    self.survey.monitor.note(&format!("prune {number}, of which a part is damaged, has ended"));
                }
                Err(error) => report.find(&error),
            }
        }
        Ok(next)
    }

    fn collect(&mut self, task: Task<'_>, report: &mut PruneReport) -> Result<Next> {
        report.state = PruneState::Done;
        self.store.objects.try_handshake(self.session.id)?.require(&*self.store.objects)?;
        for number in steps::pending(self.store)? {
            self.delete(number, task, None, report)?;
        }
        let (number, marked) = match steps::open(self.store, self.session.id)? {
            Open::Condemned(number) => (number, Marked { has_joined: true, ..Marked::default() }),
            Open::Begun(number) => {
                let condemned = match task {
                    Task::Prune => self.condemn(number, report)?,
                    Task::Quarantine(damaged) => self.condemn_damaged(number, damaged, report)?,
                };
                match condemned {
                    Some(marked) => (number, marked),
                    None => return Ok(Next::End),
                }
            }
        };
        let condemned = steps::adopt(self.store, number, CollectionStep::Condemn).map_err(|error| Error::Context {
            context: format!("prune {number} cannot go on; `onefold prune --give-up` gives it up"),
            source: Box::new(error),
        })?;
        let waited = self.wait(report)?;
        if !waited.is_empty() {
            report.state = PruneState::Waiting(waited);
            return Ok(Next::End);
        }
        let relied_upon = self.decide(number, &condemned, &marked, report)?;
        let Marked { is_partial, has_joined, .. } = marked;
        let removed = |report: &PruneReport| report.deleted_containers + report.quarantined_containers;
        let removed_before = removed(report);
        self.delete(number, task, relied_upon, report)?;
        // A collection that deletes nothing makes no space for the next one.
        let goes_on = has_joined || is_partial && removed_before < removed(report);
        Ok(if goes_on { Next::Another } else { Next::End })
    }

    /// Marks, plans, copies and condemns (steps C2 to C6). Returns `None` if there is nothing to do.
    fn condemn(&mut self, number: u32, report: &mut PruneReport) -> Result<Option<Marked>> {
        let commits = read_roots(self.store, report)?;
        self.store.objects.refresh_collections(self.session.id)?;
        let absent = self.store.read_absent()?;
        // What a collection with a damaged `final` has condemned may be needed; it is condemned once more.
        let listed = self.store.list_sized_containers(&self.request.scratch)?.without(&absent.containers);
        let candidates = self.survey.candidates(&listed, &commits, &self.clock)?;
        let plan = quick::plan(&self.survey, &absent, &commits, (&listed, &candidates))?;
        report.is_quick = plan.is_some();
        if let Some(mut plan) = plan {
            self.survey.keep_bases(&listed, &commits, (&mut plan, &usage_of_dead), report)?;
            return self.condemn_unlisted(number, &commits, (&candidates, &plan), report);
        }
        let none = BTreeSet::new();
        let (reached, hints) = self.survey.mark_with_hints(&listed, &commits, &none, &mut self.hinted)?;
        let mut planned =
            self.survey.plan(&candidates, &absent, (&listed, &commits), (reached, &hints, &mut self.hinted), report)?;
        report.plan = planned.plan.totals;
        report.snapshots = commits.snapshots().len() as u64;
        let roots: BTreeSet<SessionId> = commits.snapshots().iter().map(|(session, _)| *session).collect();
        let (copied, lacks_space) = self.copy((&listed, &candidates), &mut planned, &commits, report)?;
        hints.name_kept(&numbers(&copied), &mut self.hinted)?;
        let Planned { usage, plan, .. } = planned;
        let mut condemned: Vec<u32> = plan.remove.iter().chain(&copied).copied().collect();
        condemned.sort_unstable();
        if condemned.is_empty() {
            // Another collector may work on this collection, and may have condemned some by now.
            if self.has_condemned(number)? {
                return Ok(Some(Marked { reached: Some(usage), roots, ..Marked::default() }));
            }
            steps::give_up(self.store, self.session.id, number, 0)?;
            return Ok(None);
        }
        self.publish_condemned(number, &candidates, &condemned, &roots)?;
        let is_partial = plan.totals.is_cut || lacks_space;
        Ok(Some(Marked { reached: Some(usage), roots, is_partial, ..Marked::default() }))
    }

    /// Waits until no session is left that may have begun before containers were condemned (step C7). Returns those that are.
    fn wait(&self, report: &mut PruneReport) -> Result<Vec<UnendedSession>> {
        let start = self.store.host.monotonic();
        loop {
            self.store.objects.refresh_sessions(self.session.id)?;
            let waited_for = self.store.host.monotonic().saturating_sub(start);
            let mut waited = Vec::new();
            for unended in wait::unended(self.store, &self.request.scratch, &self.clock)? {
                if unended.id == self.session.id {
                    continue;
                }
                if unended.is_dead || self.request.fence_after <= unended.silent.unwrap_or(waited_for) {
                    if wait::fence(self.store, &self.session, unended.id)? {
                        report.fenced.push(unended.id);
                    }
                } else if unended.kind != Some(SessionKind::Collection) {
                    waited.push(unended);
                }
            }
            if waited.is_empty() {
                // A fence of another collector need not be durable.
                self.store.objects.confirm(&[ObjectName::Commit(self.session.id)])?;
                return Ok(waited);
            }
            if self.request.wait <= waited_for {
                return Ok(waited);
            }
            if Beating(&self.survey).is_interrupted() {
                return Err(Error::Interrupted);
            }
            self.store.host.sleep(POLL_INTERVAL.min(self.request.wait.saturating_sub(waited_for)));
        }
    }

    /// Deletes what a collection has decided to delete (steps C9 and C10), unless it is kept for some time. If the decision is
    /// damaged, later collections delete what this one has condemned.
    ///
    /// Before that it looks again at the copies that the decision relies on: at the frames of `relied_upon` if this process has just
    /// decided, otherwise, or if one of them is damaged, at the contents of all copies.
    fn delete(
        &mut self,
        number: u32,
        task: Task<'_>,
        relied_upon: Option<Containers>,
        report: &mut PruneReport,
    ) -> Result<()> {
        let named = match steps::adopt(self.store, number, CollectionStep::Final) {
            Ok(named) => named,
            Err(error) if error.is_loss() => return Ok(()),
            Err(error) => return Err(error),
        };
        // A repair deletes nothing that may still be a source of what is damaged elsewhere.
        let is_repair = matches!(task, Task::Quarantine(_)) && !is_quarantine(&named);
        if is_repair {
            return self.rescue(number, &named, true, report).map(|_| ());
        }
        if let Some(left) = self.kept_for(number)? {
            report.state = PruneState::Kept(left);
            return Ok(());
        }
        let stands = relied_upon.map_or(Ok(false), |relied_upon| self.are_standing(&relied_upon))?;
        let set_aside = if stands {
            named.quarantined
        } else {
            let mut set_aside = self.rescue(number, &named, matches!(task, Task::Quarantine(_)), report)?;
            set_aside.append(named.quarantined);
            set_aside.sort();
            set_aside
        };
        let listed = self.store.list_sized_containers(&self.request.scratch)?;
        let mut cursor = named.containers.cursor();
        let doomed = listed.retain(|_, id| cursor.contains(id));
        self.survey.monitor.stage(Items::Containers, doomed.len() as u64);
        let numbers: Vec<ContainerNumber> = doomed.numbers().collect();
        for group in numbers.chunks(DELETION_BATCH) {
            if Beating(&self.survey).is_interrupted() {
                return Err(Error::Interrupted);
            }
            let (mut names, mut bytes) = (Vec::with_capacity(group.len()), 0);
            let (mut damaged, mut damaged_bytes) = (Vec::new(), 0);
            for number in group {
                let (name, len) = doomed.sized(*number)?;
                if set_aside.contains(name.id) {
                    damaged.push(name);
                    damaged_bytes += len;
                } else {
                    names.push(ObjectName::from(name));
                    bytes += len;
                }
            }
            self.store.objects.quarantine(&damaged)?;
            report.quarantined_containers += damaged.len() as u64;
            report.quarantined_bytes += damaged_bytes;
            self.store.objects.delete(&names)?;
            report.deleted_containers += names.len() as u64;
            report.deleted_bytes += bytes;
            self.survey.monitor.advance(bytes + damaged_bytes, group.len() as u64);
        }
        steps::create_empty(self.store, self.session.id, number, CollectionStep::Done).map(|_| ())
    }

    /// Returns how long deleted containers are still kept.
    fn kept_for(&self, number: u32) -> Result<Option<Duration>> {
        if self.request.keep_deleted.is_zero() {
            return Ok(None);
        }
        let mut decided = None;
        self.store.objects.list(Prefix::Collections, Detail::Lengths, &mut |page| {
            for listed in page {
                if listed.name == Ok(ObjectName::Collection(number, CollectionStep::Final)) {
                    decided = listed.changed;
                }
            }
            Ok(())
        })?;
        let age = self.clock.age(&*self.store.host, decided).unwrap_or(Duration::MAX);
        Ok(self.request.keep_deleted.checked_sub(age).filter(|left| !left.is_zero()))
    }
}
