//! Waiting for sessions that began before containers were condemned (step C7 of docs/protocol.md).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Result;
use crate::io::Host;
use crate::object::names::{ObjectName, Prefix};
use crate::object::store::Created;
use crate::object::{ObjectType, seal_small};
use crate::snapshot::{CommitBody, CommitKind, SessionKind};
use crate::store::metadata::Scratch;
use crate::store::{Session, Store, presence};
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
    /// True if it was a process of this host, and that has died.
    pub(crate) is_dead: bool,
    /// Its kind, as far as its object says so.
    pub(crate) kind: Option<SessionKind>,
}

/// The clock of a store: times of its objects are compared with each other only.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreClock {
    /// A time of the store, if it has a clock.
    time: Option<Timestamp>,
    /// The same by the monotonic clock of this host.
    at: Duration,
}

impl StoreClock {
    /// Takes the time at which the object of a session was created, which was just now.
    pub(super) fn read(store: &Store, session: SessionId) -> Result<Self> {
        let at = store.host.monotonic();
        Ok(Self { time: session_times(store)?.remove(&session).flatten(), at })
    }

    /// Takes the time of this host instead, for those who create nothing.
    pub(super) fn of_host(host: &dyn Host) -> Self {
        Self { time: Some(host.now()), at: host.monotonic() }
    }

    /// Returns how long ago an object was created, in whole seconds; none if that is later than now.
    pub(super) fn age(&self, host: &dyn Host, changed: Option<Timestamp>) -> Option<Duration> {
        let since = i64::try_from(host.monotonic().saturating_sub(self.at).as_secs()).unwrap_or(i64::MAX);
        let age = self.time?.seconds.saturating_add(since).saturating_sub(changed?.seconds);
        Some(Duration::from_secs(u64::try_from(age).unwrap_or(0)))
    }
}

/// Lists the sessions that have not ended. Sessions are listed first: one that ends meanwhile counts as ended.
pub(super) fn unended(store: &Store, scratch: &Scratch, clock: &StoreClock) -> Result<Vec<UnendedSession>> {
    let begun = session_times(store)?;
    let ended = store.list_ended()?;
    let unended = begun.into_iter().filter(|(session, _)| !ended.contains(session));
    Ok(unended
        .map(|(id, changed)| {
            let body = store.read_session(id).ok();
            UnendedSession {
                id,
                hostname: body.as_ref().map_or_else(String::new, |body| body.hostname.clone()),
                began: body.as_ref().map(|body| body.time),
                is_dead: body.as_ref().is_some_and(|body| presence::is_dead(scratch, &*store.host, id, body)),
                silent: clock.age(&*store.host, changed),
                kind: body.map(|body| body.kind),
            }
        })
        .collect())
}

/// Ends another session, which can then not commit. Returns false if it had ended.
pub(super) fn fence(store: &Store, own: &Session, session: SessionId) -> Result<bool> {
    let body = CommitBody::without_snapshot(CommitKind::Fence);
    let identity = (store.config.repository, session, 0);
    let bytes =
        seal_small(&store.keys, &*store.host, ObjectType::Commit.of(store.config.format), identity, &body.encode())?;
    Ok(store.objects.create(own.id, ObjectName::Commit(session), &bytes)? == Created::New)
}

/// Returns when each session began, or when its newest heartbeat was created.
fn session_times(store: &Store) -> Result<BTreeMap<SessionId, Option<Timestamp>>> {
    store.session_times(Prefix::Sessions, |name| match name {
        ObjectName::Session(session) | ObjectName::Heartbeat(session, _) => Some(*session),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sim::SimHost;

    #[test]
    fn an_object_is_as_old_as_the_time_since_it_was_created_also_if_the_clock_was_read_before() {
        let host = SimHost::new(1);
        let clock = StoreClock::of_host(&host);
        let at = |hours: i64| clock.time.map(|time| Timestamp { seconds: time.seconds + hours * 3600, ..time });
        host.sleep(Duration::from_hours(3));
        let hours = |age: Option<Duration>| age.map(|age| age.as_secs() / 3600);
        assert_eq!([-1, 0, 2, 5].map(|created| hours(clock.age(&host, at(created)))), [4, 3, 1, 0].map(Some));
        assert_eq!(clock.age(&host, None), None);
    }
}
