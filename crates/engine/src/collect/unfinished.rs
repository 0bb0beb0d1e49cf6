//! Space that backups without a snapshot still hold.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::collect::wait::{StoreClock, unended};
use crate::error::Result;
use crate::object::names::{ObjectName, Prefix};
use crate::snapshot::{CommitKind, SessionKind};
use crate::store::Store;
use crate::store::metadata::Scratch;
use crate::types::SessionId;

/// A backup without a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnfinishedBackup {
    /// Its session.
    pub session: SessionId,
    /// Its host; empty if the session cannot be read.
    pub hostname: String,
    /// Bytes of its containers. Later snapshots may use some of them.
    pub bytes: u64,
    /// True if it has ended: it was interrupted, or fenced.
    pub is_ended: bool,
    /// Time since it ended, or since its last sign of life, by the clock of this host.
    pub age: Option<Duration>,
}

/// Returns the backups that have stored something and made no snapshot.
pub fn unfinished_backups(store: &Store, scratch: &Scratch) -> Result<Vec<UnfinishedBackup>> {
    let clock = StoreClock::of_host(&*store.host);
    let open = unended(store, scratch, &clock)?;
    let open = open.into_iter().filter(|session| session.kind.is_none_or(|kind| kind == SessionKind::Backup));
    let mut found: Vec<UnfinishedBackup> = open
        .map(|session| UnfinishedBackup {
            session: session.id,
            hostname: session.hostname,
            bytes: 0,
            is_ended: false,
            age: session.silent,
        })
        .collect();
    let ended = store.session_times(Prefix::Commits, ObjectName::session)?;
    for commit in store.read_commits()?.commits {
        if !matches!(commit.body.kind, CommitKind::Done | CommitKind::Fence) {
            continue;
        }
        // The containers of a collection are copies that snapshots need.
        let Ok(body) = store.read_session(commit.session) else { continue };
        if body.kind == SessionKind::Backup {
            let age = clock.age(&*store.host, ended.get(&commit.session).copied().flatten());
            let (session, hostname) = (commit.session, body.hostname);
            found.push(UnfinishedBackup { session, hostname, bytes: 0, is_ended: true, age });
        }
    }
    let absent = store.read_absent()?;
    let listed = store.list_sized_containers(scratch)?.without(&absent.containers);
    let mut bytes: BTreeMap<SessionId, u64> = BTreeMap::new();
    for (number, id) in listed.iter() {
        *bytes.entry(id.session).or_default() += listed.sized(number)?.1;
    }
    for backup in &mut found {
        backup.bytes = bytes.get(&backup.session).copied().unwrap_or(0);
    }
    found.retain(|backup| 0 < backup.bytes);
    Ok(found)
}
