//! Waiting for sessions that began before containers were condemned (step C7 of docs/protocol.md).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Result;
use crate::object::names::{ObjectName, Prefix};
use crate::object::store::{Created, Detail};
use crate::object::{ObjectType, seal_small};
use crate::snapshot::{CommitBody, CommitKind, SessionKind};
use crate::store::{Session, Store};
use crate::types::{SessionId, Timestamp};

/// A session that has not ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnendedSession {
    /// Its id.
    pub id: SessionId,
    /// Its host; empty if its object cannot be read.
    pub hostname: String,
    /// When it began, by the clock of its host.
    pub began: Option<Timestamp>,
    /// Time since its object or its last heartbeat was created, by the clock of the store; `None` if the store has none.
    pub silent: Option<Duration>,
    /// What it does, as far as its object says so.
    pub(crate) kind: Option<SessionKind>,
}

/// The clock of a store: times of its objects are compared with each other only.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreClock {
    /// When the collector's session object was created, by the store's clock.
    created: Option<Timestamp>,
    /// The same by the monotonic clock of this host.
    at: Duration,
}

impl StoreClock {
    /// Reads when the object of a session, which was created just now, was created.
    pub(super) fn read(store: &Store, session: SessionId) -> Result<Self> {
        let at = store.host.monotonic();
        let created = times(store, Prefix::Sessions)?.remove(&session).flatten();
        Ok(Self { created, at })
    }

    /// Returns how long ago an object was created.
    pub(super) fn age(&self, store: &Store, changed: Option<Timestamp>) -> Option<Duration> {
        let (created, changed) = (self.created?, changed?);
        let since = store.host.monotonic().saturating_sub(self.at);
        Some(created.seconds_since(changed) + since)
    }
}

/// Lists the sessions that have not ended. Sessions are listed first: one that ends meanwhile counts as ended.
pub(super) fn unended(store: &Store, clock: &StoreClock) -> Result<Vec<UnendedSession>> {
    let begun = times(store, Prefix::Sessions)?;
    let ended = store.list_ended()?;
    let unended = begun.into_iter().filter(|(session, _)| !ended.contains(session));
    Ok(unended
        .map(|(id, changed)| {
            let body = store.read_session(id).ok();
            UnendedSession {
                id,
                hostname: body.as_ref().map_or_else(String::new, |body| body.hostname.clone()),
                began: body.as_ref().map(|body| body.time),
                silent: clock.age(store, changed),
                kind: body.map(|body| body.kind),
            }
        })
        .collect())
}

/// Ends another session, which can then not commit. Returns false if it had ended.
pub(super) fn fence(store: &Store, own: &Session, session: SessionId) -> Result<bool> {
    let body = CommitBody { kind: CommitKind::Fence, snapshot: None, heads: Vec::new() };
    let identity = (store.config.repository, session, 0);
    let bytes = seal_small(&store.keys, &*store.host, ObjectType::Commit, identity, &body.encode())?;
    Ok(store.objects.create(own.id, ObjectName::Commit(session), &bytes)? == Created::New)
}

/// Returns when the newest object of each session under a prefix was created.
fn times(store: &Store, prefix: Prefix) -> Result<BTreeMap<SessionId, Option<Timestamp>>> {
    let mut times: BTreeMap<SessionId, Option<Timestamp>> = BTreeMap::new();
    store.objects.list(prefix, Detail::Lengths, &mut |page| {
        for listed in page {
            if let Ok(ObjectName::Session(session) | ObjectName::Heartbeat(session, _) | ObjectName::Commit(session)) =
                listed.name
            {
                let newest = times.entry(session).or_default();
                *newest = (*newest).max(listed.changed);
            }
        }
        Ok(())
    })?;
    Ok(times)
}
