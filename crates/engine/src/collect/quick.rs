//! The quick way: a plan that removes the containers that no snapshot's manifest lists, and that reads no tree.
//!
//! A manifest lists containers so that each chunk of its snapshot stood in one of them when the snapshot was committed. Of those
//! that collections have deleted since, `moved` of the newest `final` tells where the chunks are. So the containers of all
//! manifests, after this translation, hold everything that snapshots need. Where that is not known, the collection is a full one.

use crate::bitmap::Bitmap;
use crate::collect::mark::reached_of;
use crate::collect::plan::PrunePlan;
use crate::collect::survey::Survey;
use crate::collect::usage::Reached;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::collections::Absent;
use crate::store::commits::Commits;
use crate::store::container_ids::CONDEMNED_MAX;
use crate::store::container_set::{Containers, RunCursor};
use crate::store::view::{View, ViewMemory};
use crate::types::ContainerId;

/// Most quick collections after one another. The next one reads trees.
pub(super) const QUICK_MAX: u32 = 9;

/// Returns the plan of a quick collection, if one was asked for and is possible. A note says why it is not. `listed` are all
/// containers that snapshots may be in; they were listed after the commits were read.
pub(super) fn plan(
    survey: &Survey<'_>,
    absent: &Absent,
    commits: &Commits,
    (listed, candidates): (&Containers, &Containers),
) -> Result<Option<PrunePlan>> {
    if !survey.request.quick {
        return Ok(None);
    }
    let used = match obstacle(survey.store, absent)? {
        Some(reason) => Err(reason),
        None => listed_by_manifests(survey, commits, listed)?,
    };
    match used {
        Ok(used) => plan_unlisted(&used, candidates).map(Some),
        Err(reason) => {
            survey.monitor.note(&format!("--quick is not possible, so this prune is a full one: {reason}"));
            Ok(None)
        }
    }
}

/// Returns why the state of the collections does not let the next one be quick.
fn obstacle(store: &Store, absent: &Absent) -> Result<Option<String>> {
    Ok(match store.count_quick()? {
        _ if !absent.undecided.is_empty() => Some("the decision of an earlier one is damaged".to_owned()),
        Some(count) if count < QUICK_MAX => None,
        Some(_) => Some(format!("{QUICK_MAX} quick ones have run since the last full one")),
        None => Some("how many quick ones have run cannot be read".to_owned()),
    })
}

/// Plans to remove the candidates that no manifest lists.
fn plan_unlisted(used: &Bitmap, candidates: &Containers) -> Result<PrunePlan> {
    let mut plan = PrunePlan::default();
    let totals = &mut plan.totals;
    for number in candidates.numbers() {
        let (_, len) = candidates.sized(number)?;
        totals.containers += 1;
        totals.stored_bytes += len;
        if used.contains(number.0) {
            continue;
        }
        totals.unused_bytes += len;
        if plan.remove.len() == CONDEMNED_MAX {
            totals.is_cut = true;
            totals.left_unused_bytes += len;
            continue;
        }
        totals.removed_containers += 1;
        totals.removed_bytes += len;
        plan.remove.push(number.0);
    }
    Ok(plan)
}

/// Returns the numbers of the containers that the manifests of all snapshots list, with those that have taken the place of deleted
/// ones; or why these are not known.
fn listed_by_manifests(
    survey: &Survey<'_>,
    commits: &Commits,
    listed: &Containers,
) -> Result<std::result::Result<Bitmap, String>> {
    let (store, scratch) = (survey.store, &survey.request.scratch);
    let memory = ViewMemory { directories: 0, moved: survey.memory() / 4 };
    let mut view = View::new(store, listed, scratch, memory).fixed();
    let mut used = Bitmap::default();
    let mut knows_moved = None;
    for (session, _) in commits.snapshots() {
        if survey.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let Some(checksum) = commits.commit_of(session).and_then(|commit| commit.body.manifest) else {
            return Ok(Err(format!("snapshot {session} has no manifest")));
        };
        let (mut near, mut lost) = (RunCursor::default(), None);
        let mut find = |id: ContainerId| listed.find_near(id, &mut near).map(|number| used.insert(number.0)).is_some();
        let read = store.read_manifest(session, &checksum, &mut |id, _| {
            if lost.is_none() && !find(id) {
                // No target: the chunks may be anywhere.
                let targets = view.moved(id)?;
                let knows_moved = match knows_moved {
                    Some(known) => known,
                    None => *knows_moved.insert(!store.has_quarantined()?),
                };
                if !knows_moved || targets.is_empty() || !targets.into_iter().all(&mut find) {
                    lost = Some(id);
                }
            }
            Ok(())
        });
        match (read, lost) {
            (Ok(()), None) => {}
            (Ok(()), Some(id)) => {
                return Ok(Err(format!(
                    "the manifest of snapshot {session} lists container {id}, which is gone, and no collection has noted where \
                     all of its chunks are"
                )));
            }
            (Err(error), _) if error.is_loss() => {
                return Ok(Err(format!("the manifest of snapshot {session} cannot be read: {error}")));
            }
            (Err(error), _) => return Err(error),
        }
    }
    Ok(Ok(used))
}

/// Returns the root nodes of all snapshots. Whatever manifests list, no container with one of them is deleted.
pub(super) fn root_nodes(survey: &Survey<'_>, commits: &Commits) -> Result<Reached> {
    let roots = commits.snapshots().into_iter().map(|(_, snapshot)| snapshot.tree);
    reached_of(roots, survey.store, &survey.request.scratch, survey.memory() / 16)
}
