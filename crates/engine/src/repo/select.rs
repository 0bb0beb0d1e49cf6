//! Which snapshot a name means.

use crate::error::{Error, Result};
use crate::forget::is_earlier;
use crate::repo::long_id::SnapshotId;
use crate::snapshot::Snapshot;
use crate::store::commits::Commits;
use crate::types::{SessionId, Timestamp};

/// Shortest prefix of an id that is taken for one.
const PREFIX_LEN_MIN: usize = 1;

/// A snapshot as a user names it: an id or a prefix of one, `latest`, or `latest~N` for the N-th before it; with
/// `:path` behind it, a place in its tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotName {
    /// The part before the colon.
    pub name: String,
    /// The part behind it.
    pub path: Option<String>,
}

impl SnapshotName {
    /// Splits a name as typed.
    pub fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((name, path)) => Self { name: name.to_owned(), path: Some(path.to_owned()) },
            None => Self { name: text.to_owned(), path: None },
        }
    }
}

/// Which snapshots count when `latest` is asked for. Empty lists let all pass.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only of these hosts.
    pub hosts: Vec<String>,
    /// Only with all tags of one of these sets. The empty tag stands for no tags at all.
    pub tags: Vec<Vec<String>>,
    /// Only with all of these paths.
    pub paths: Vec<Vec<u8>>,
}

impl Selection {
    /// Returns true if a snapshot counts.
    pub fn admits(&self, snapshot: &Snapshot) -> bool {
        let host = self.hosts.is_empty() || self.hosts.contains(&snapshot.hostname);
        let has = |tag: &String| if tag.is_empty() { snapshot.tags.is_empty() } else { snapshot.tags.contains(tag) };
        let has_all = |set: &Vec<String>| set.iter().all(has);
        let tags = self.tags.is_empty() || self.tags.iter().any(has_all);
        let paths = self.paths.iter().all(|path| snapshot.paths.contains(path));
        host && tags && paths
    }

    /// Finds the snapshot that a name means, at a time. `doubt` takes reasons for which the latest may be another one than the user expects.
    pub fn find<'a>(
        &self,
        commits: &'a Commits,
        name: &str,
        now: Timestamp,
        doubt: &mut dyn FnMut(LatestDoubt),
    ) -> Result<(SessionId, &'a Snapshot)> {
        if let Some(back) = steps_back(name)? {
            let (admitted, future) = commits.by_time(now, |snapshot| self.admits(snapshot));
            let index = admitted.len().checked_sub(1).and_then(|newest| newest.checked_sub(back));
            let found = index.and_then(|index| admitted.get(index).copied());
            future.into_iter().for_each(&mut *doubt);
            if let Some((id, error)) = commits.unread_after(found.map(|(_, snapshot)| snapshot.time)) {
                return Err(Error::invalid(format!(
                    "snapshot `{name}` is not certain: {} cannot be read and may be newer ({error}); name a snapshot by its id, or \
                     mend that with `onefold repair objects`",
                    SnapshotId(*id)
                )));
            }
            return found.ok_or_else(|| {
                let matching = if admitted.is_empty() { "no snapshot matches" } else { "there are not that many" };
                Error::invalid(format!("snapshot `{name}` not found: {matching}"))
            });
        }
        let named = |session: &SessionId| name.len() >= PREFIX_LEN_MIN && SnapshotId(*session).starts_with(name);
        let all = commits.snapshots();
        let mut found = all.iter().filter(|(session, _)| named(session));
        match (found.next(), found.next()) {
            (Some(only), None) => Ok(*only),
            (Some(_), Some(_)) => {
                Err(Error::invalid(format!("snapshot `{name}`: several ids begin like that; use a longer prefix")))
            }
            (None, _) => {
                // A damaged commit is a better explanation than an unknown name.
                let damaged = commits.findings.iter().find(|(session, _)| named(session));
                Err(match damaged {
                    Some((_, error)) => error.clone().context(format!("snapshot `{name}` cannot be read")),
                    None => Error::invalid(format!("snapshot `{name}` not found")),
                })
            }
        }
    }
}

/// Reasons for which the latest snapshot may be another one than a user expects.
#[derive(Clone, Debug)]
pub enum LatestDoubt {
    /// This snapshot is dated later than now, and does not count as the latest.
    Future(SessionId, Timestamp),
    /// All snapshots are dated later than now, this one the latest.
    AllFuture(SessionId, Timestamp),
}

impl Commits {
    /// Returns the admitted snapshots that are not forgotten, oldest first. Those dated later than now by more than clocks differ come before
    /// all others, if there are others: none of them is taken for the latest. Returns also the last of them.
    pub fn by_time(
        &self,
        now: Timestamp,
        admits: impl Fn(&Snapshot) -> bool,
    ) -> (Vec<(SessionId, &Snapshot)>, Option<LatestDoubt>) {
        let mut snapshots = self.snapshots();
        snapshots.retain(|(_, snapshot)| admits(snapshot));
        let is_future = |(_, snapshot): &(SessionId, &Snapshot)| is_earlier(now, snapshot.time);
        let latest = snapshots.last().filter(|latest| is_future(latest)).map(|(id, snapshot)| (*id, snapshot.time));
        let are_all = snapshots.iter().all(is_future);
        snapshots.sort_by_key(|snapshot| !is_future(snapshot));
        let doubt = latest.map(
            |(id, time)| {
                if are_all { LatestDoubt::AllFuture(id, time) } else { LatestDoubt::Future(id, time) }
            },
        );
        (snapshots, doubt)
    }

    /// Returns the only forgotten snapshot whose id begins with `name`.
    pub fn find_forgotten(&self, name: &str) -> Option<SessionId> {
        let mut named = self
            .forgotten
            .iter()
            .filter(|session| PREFIX_LEN_MIN <= name.len() && SnapshotId(**session).starts_with(name));
        let found = named.next().copied();
        found.filter(|_| named.next().is_none())
    }

    /// Returns the snapshot with this id, all of it, whose commit cannot be read, or is gone although another commit names it.
    pub fn find_unreadable(&self, id: &str) -> Option<SessionId> {
        let unread = self.findings.iter().map(|(session, _)| *session);
        let mut all = unread.chain(self.gone().map(|(head, _)| head.session));
        all.find(|session| session.to_string() == id || SnapshotId(*session).to_string() == id)
    }

    /// Returns the snapshots that were forgotten, oldest first.
    pub fn forgotten_snapshots(&self) -> Vec<(SessionId, &Snapshot)> {
        let forgotten = self.commits.iter().filter(|commit| self.forgotten.contains(&commit.session));
        let mut snapshots: Vec<_> =
            forgotten.filter_map(|commit| Some((commit.session, commit.body.snapshot.as_ref()?))).collect();
        snapshots.sort_by_key(|(session, snapshot)| (snapshot.time, *session));
        snapshots
    }

    /// Finds the forgotten snapshot that an id, or a prefix of one, means.
    pub fn resolve_forgotten(&self, name: &str) -> Result<SessionId> {
        let is_named = |session: SessionId| PREFIX_LEN_MIN <= name.len() && SnapshotId(session).starts_with(name);
        let mut named = self.forgotten.iter().copied().filter(|session| is_named(*session));
        match (named.next(), named.next()) {
            (Some(only), None) => Ok(only),
            (Some(_), Some(_)) => {
                Err(Error::invalid(format!("snapshot `{name}`: several ids begin like that; use a longer prefix")))
            }
            (None, _) if self.snapshots().iter().any(|(session, _)| is_named(*session)) => {
                Err(Error::invalid(format!("snapshot `{name}` is not forgotten")))
            }
            (None, _) => Err(Error::invalid(format!("forgotten snapshot `{name}` not found"))),
        }
    }
}

/// Returns N of `latest~N`, 0 for `latest`, `None` for anything that is not about the latest.
fn steps_back(name: &str) -> Result<Option<usize>> {
    match name.strip_prefix("latest") {
        Some("") => Ok(Some(0)),
        Some(rest) => match rest.strip_prefix('~').and_then(|count| count.parse().ok()) {
            Some(count) => Ok(Some(count)),
            None => Err(Error::invalid(format!("`{name}` is not the name of a snapshot: write latest~N"))),
        },
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_counts_back_and_nonsense_is_refused() {
        assert_eq!(steps_back("latest").unwrap(), Some(0));
        assert_eq!(steps_back("latest~12").unwrap(), Some(12));
        assert_eq!(steps_back("abc").unwrap(), None);
        assert!(steps_back("latest~").is_err());
        assert!(steps_back("latest~x").is_err());
        assert_eq!(SnapshotName::parse("latest:/etc").path.as_deref(), Some("/etc"));
    }
}
