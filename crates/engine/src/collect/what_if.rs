//! The space that forgetting some snapshots would free: a prune that writes nothing.
//!
//! It marks, plans and copies as a prune without these snapshots does, but new containers are counted instead of written. What
//! is compressed again has the length that a prune would store. The exception is hints that name new containers: the ids of
//! these are drawn, and random bytes differ by a few bytes once they are compressed. A container's length is rounded up, so
//! that this is seen rarely, as one step of the rounding.

use std::collections::BTreeSet;

use crate::collect::copy::{Copied, copy_refreshed};
use crate::collect::ledger::{HeldBySet, LedgerRequest};
use crate::collect::lifetime::LifetimeClasses;
use crate::collect::moved::Hinted;
use crate::collect::plan::PlanTotals;
use crate::collect::request::{PruneReport, PruneRequest};
use crate::collect::survey::{Planned, Survey, read_roots};
use crate::collect::wait::StoreClock;
use crate::error::Result;
use crate::monitor::Monitor;
use crate::store::Store;
use crate::store::base_reader::BaseReader;
use crate::store::container_set::ContainerNumber;
use crate::types::SessionId;

/// What a prune would do if some snapshots were forgotten.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WhatIf {
    /// Snapshots that would be forgotten.
    pub forgotten: u64,
    /// Snapshots that would stay.
    pub kept: u64,
    /// What only the forgotten ones hold, what they share, and what no snapshot holds.
    pub held: HeldBySet,
    /// The plan of the prune.
    pub plan: PlanTotals,
    /// Containers that would be deleted, those among them whose needed chunks are copied first.
    pub deleted_containers: u64,
    /// Bytes of them.
    pub deleted_bytes: u64,
    /// Containers that copies would be written to.
    pub written_containers: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// Containers that an earlier prune has decided to delete and that still exist.
    pub decided_containers: u64,
    /// Bytes of them.
    pub decided_bytes: u64,
    /// Objects that cannot be read, in sentences. The space of containers among them would not be freed.
    pub findings: Vec<String>,
}

impl WhatIf {
    /// Returns the bytes by which the containers would shrink; less than 0 if they would grow.
    pub fn freed_bytes(&self) -> i64 {
        let removed = i64::try_from(self.deleted_bytes + self.decided_bytes).unwrap_or(i64::MAX);
        removed.saturating_sub(i64::try_from(self.written_bytes).unwrap_or(i64::MAX))
    }
}

/// Counts what a prune would free if `forgotten` were forgotten. Writes nothing, and reads what that prune would read.
pub fn what_if(
    store: &Store,
    request: &PruneRequest,
    forgotten: &BTreeSet<SessionId>,
    monitor: &dyn Monitor,
) -> Result<WhatIf> {
    let mut report = PruneReport::default();
    let commits = read_roots(store, &mut report)?;
    let absent = store.read_absent()?;
    let all = store.list_sized_containers(&request.scratch)?;
    let listed = all.without(&absent.containers);
    let survey = Survey { store, request, monitor, session: None };
    let candidates = survey.candidates(&listed, &commits, &StoreClock::of_host(&*store.host))?;
    let snapshots = commits.snapshots();
    let kept: BTreeSet<SessionId> =
        snapshots.iter().map(|(session, _)| *session).filter(|session| !forgotten.contains(session)).collect();
    let mut hinted = Hinted::new(store, &request.scratch, survey.memory() / 16)?;
    let (reached, hints) = survey.mark_with_hints(&listed, &commits, forgotten, &mut hinted)?;
    let held = {
        let of_forgotten = survey.mark(&listed, &commits, &kept, &mut |_| Ok(()))?;
        let ledger = LedgerRequest { scratch: &request.scratch, memory_bytes: request.memory_bytes, monitor };
        ledger.held_by_marked(store, &of_forgotten, &reached)?
    };
    let planned =
        survey.plan(&candidates, &absent, (&listed, &commits), (reached, &hints, &mut hinted), &mut report)?;
    let Planned { usage, plan, mut found } = planned;
    let classes = LifetimeClasses::of_times(
        snapshots.iter().rev().filter(|(session, _)| kept.contains(session)).map(|(_, snapshot)| snapshot.time),
    );
    let bases = BaseReader::new(store, &listed, survey.memory() / 16);
    let copy = survey.copy_request(&candidates, &bases, &plan.copy, &classes);
    let copied = if plan.copy.is_empty() {
        Copied::default()
    } else {
        let mut refresher = survey.refresher(&listed, plan.given_up(), found.as_mut(), &mut hinted)?;
        copy_refreshed(&copy, usage.live_chunks()?, &mut 0, Some(&mut refresher))?
    };
    for error in copied.not_copied.values() {
        report.find(error);
    }
    let mut found = WhatIf {
        forgotten: (snapshots.len() - kept.len()) as u64,
        kept: kept.len() as u64,
        held,
        plan: plan.totals,
        written_containers: copied.written_containers,
        written_bytes: copied.written_bytes,
        ..WhatIf::default()
    };
    let copied = plan.copy.iter().filter(|number| !copied.not_copied.contains_key(number));
    for number in plan.remove.iter().chain(copied) {
        found.deleted_containers += 1;
        found.deleted_bytes += candidates.sized(ContainerNumber(*number))?.1;
    }
    let mut cursor = absent.containers.cursor();
    let decided = all.retain(|_, id| cursor.contains(id));
    for number in decided.numbers() {
        found.decided_containers += 1;
        found.decided_bytes += decided.sized(number)?.1;
    }
    found.findings = report.findings;
    Ok(found)
}
