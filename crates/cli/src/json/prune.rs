//! JSON messages of `prune`.

use onefold_engine::collect::{PruneReport, PruneState, UnendedSession, UnfinishedBackup};
use onefold_engine::io::os::process_peak_rss_bytes;
use onefold_engine::store::QuarantinedContainer;

use crate::json::{Object, object};

/// The end of `prune`.
pub(crate) fn pruned(
    dry_run: bool,
    report: &PruneReport,
    (quarantined, unfinished): (&[QuarantinedContainer], &[UnfinishedBackup]),
) -> Object {
    let (plan, moved) = (&report.plan, &report.moved);
    object! {
        message_type: "summary",
        dry_run,
        quick: report.is_quick,
        report { snapshots },
        plan { containers, stored_bytes, unused_bytes },
        planned_removed_containers: plan.removed_containers,
        planned_removed_bytes: plan.removed_bytes,
        planned_copied_containers: plan.copied_containers,
        planned_refreshed_containers: plan.refreshed_containers,
        planned_copied_bytes: plan.copied_bytes,
        planned_freed_bytes: plan.freed_bytes(),
        planned_left_unused_bytes: plan.left_unused_bytes,
        planned_apart_containers: plan.apart_containers,
        planned_grown_bytes: plan.grown_bytes,
        plan { bases_containers, bases_bytes },
        report { deleted_containers, deleted_bytes },
        quarantined_now_containers: report.quarantined_containers,
        quarantined_now_bytes: report.quarantined_bytes,
        quarantined_containers: quarantined.len(),
        quarantined_bytes: quarantined.iter().map(|container| container.len).sum::<u64>(),
        report { rescued_containers, rescued_chunks, written_containers, written_bytes },
        report { copied_regions_bytes, written_regions_bytes, recompressed_regions },
        moved_containers: moved.containers,
        moved_anywhere_containers: moved.anywhere,
        fenced: report.fenced.iter().map(ToString::to_string).collect::<Vec<_>>(),
        report { lacks_space },
        waiting_for: waiting_for(&report.state),
        kept_seconds?: if let PruneState::Kept(left) = &report.state { Some(left.as_secs()) } else { None },
        leftovers_removed: report.leftovers.0,
        unfinished_backups: unfinished.len(),
        unfinished_bytes: unfinished.iter().map(|backup| backup.bytes).sum::<u64>(),
        peak_rss_bytes?: process_peak_rss_bytes(),
    }
}

/// The sessions that a collection waits for in a state.
pub(crate) fn waiting_for(state: &PruneState) -> Vec<Object> {
    let session = |session: &UnendedSession| {
        object! {
            session: session.id.to_string(),
            hostname: &*session.hostname,
            began?: session.began,
            silent_seconds?: session.silent.map(|silent| silent.as_secs()),
        }
    };
    if let PruneState::Waiting(sessions) = state { sessions.iter().map(session).collect() } else { Vec::new() }
}
