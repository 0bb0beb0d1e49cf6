//! The snapshots of a repository, with the times at which it received them.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::forget::candidate::{Candidate, HeadTime, Received};
use crate::object::names::{ObjectName, Prefix};
use crate::object::store::Detail;
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::store::commits::{Commit, Commits, Originals};
use crate::types::{SessionId, Timestamp};

/// Returns the snapshots that are not forgotten, with what their times are compared with.
///
/// A snapshot that is older than the change time of the config was received before the repository was copied, or its owner changed:
/// times of receipt say nothing about it then, and only the log does.
///
/// A snapshot that was derived from another one has the time of that one. So it has its receipt and heads, too.
pub fn candidates<'a>(store: &Store, commits: &'a Commits) -> Result<Vec<Candidate<'a>>> {
    let begun = store.session_times(Prefix::Sessions, ObjectName::session)?;
    let ended = store.session_times(Prefix::Commits, ObjectName::session)?;
    let mut moved: Option<Timestamp> = None;
    store.objects.list(Prefix::Root, Detail::Lengths, &mut |page| {
        let changed = page.iter().filter(|listed| listed.name.is_ok()).filter_map(|listed| listed.changed);
        moved = moved.into_iter().chain(changed).min();
        Ok(())
    })?;
    let received = |session: SessionId, time: Timestamp| {
        let end = ended.get(&session).copied().flatten().filter(|_| moved.is_none_or(|moved| moved <= time))?;
        // The object of a session may have been written again.
        Some(Received { begin: begun.get(&session).copied().flatten().unwrap_or(end).min(end), end })
    };
    let by_session: BTreeMap<SessionId, &Commit> =
        commits.commits.iter().map(|commit| (commit.session, commit)).collect();
    let originals = commits.originals();
    let candidates = commits.snapshots().into_iter().map(|(id, snapshot)| {
        let first = origin(&originals, id, snapshot);
        let heads = by_session.get(&first).into_iter().flat_map(|commit| &commit.body.heads);
        let heads = heads.filter_map(|head| {
            let time = by_session.get(&head.session)?.body.snapshot.as_ref()?.time;
            Some(HeadTime { time, received: received(head.session, time) })
        });
        Candidate { id, snapshot, received: received(first, snapshot.time), heads: heads.collect() }
    });
    Ok(candidates.collect())
}

/// Returns the first snapshot of the same host and time that one was derived from, or its own id.
fn origin(originals: &Originals<'_>, id: SessionId, snapshot: &Snapshot) -> SessionId {
    let is_same = |original: &Snapshot| (original.time, &original.hostname) == (snapshot.time, &snapshot.hostname);
    let same = originals.of(snapshot).take_while(|(_, original)| is_same(original));
    same.last().map_or(id, |(first, _)| first)
}
