//! Reading commits: which snapshots there are, and where the log of commits ends.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::object::names::{ObjectName, Prefix};
use crate::object::sealed::{SMALL_LEN_MAX, open_small};
use crate::object::store::{Detail, Listed};
use crate::object::{FormatVersion, ObjectType};
use crate::snapshot::{CommitBody, CommitKind, Head, SessionBody, Snapshot, decode_commit};
use crate::store::Store;
use crate::store::container_set::Containers;
use crate::types::{SessionId, Timestamp};

/// A commit that was read and checked.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Version of its format.
    pub(crate) format: FormatVersion,
    /// Its session, which is also the snapshot's id.
    pub(crate) session: SessionId,
    /// BLAKE3-256 of its stored bytes.
    pub(crate) checksum: [u8; 32],
    /// Its snapshot.
    pub(crate) body: CommitBody,
}

/// All snapshots by their ids, forgotten ones too.
#[derive(Debug)]
pub(crate) struct Originals<'a>(BTreeMap<SessionId, &'a Snapshot>);

impl<'a> Originals<'a> {
    /// Returns the snapshot that one was derived from, then the one that this was derived from, and so on.
    pub(crate) fn of(&self, snapshot: &'a Snapshot) -> impl Iterator<Item = (SessionId, &'a Snapshot)> {
        let original = |snapshot: &'a Snapshot| {
            let id = snapshot.original?;
            Some((id, *self.0.get(&id)?))
        };
        // Forged commits may be derived from each other.
        std::iter::successors(original(snapshot), move |(_, next)| original(next)).take(self.0.len())
    }
}

/// All commits of a repository.
#[derive(Debug, Default)]
pub struct Commits {
    /// Those that can be read, in the order of their sessions.
    pub commits: Vec<Commit>,
    /// Damage of the others.
    pub findings: Vec<(SessionId, Error)>,
    /// Snapshots that were forgotten.
    pub(crate) forgotten: BTreeSet<SessionId>,
    /// Damage of objects under `commits/` that are no commits: nothing else shows that their sessions ever began. They mean nothing.
    pub(crate) unknown: Vec<(SessionId, Error)>,
    /// Reasons for which others count although a name marks them as forgotten.
    pub not_forgotten: Vec<Error>,
}

impl Store {
    /// Lists the sessions that have ended, one way or the other.
    pub(crate) fn list_ended(&self) -> Result<BTreeSet<SessionId>> {
        self.list_sessions(Prefix::Commits)
    }

    /// Lists the sessions that have an object under a prefix.
    pub(crate) fn list_sessions(&self, prefix: Prefix) -> Result<BTreeSet<SessionId>> {
        Ok(self.list(prefix)?.iter().filter_map(ObjectName::session).collect())
    }

    /// Returns when the newest object of each session under a prefix was created, as far as the store reports it. `of` chooses
    /// the objects.
    pub(crate) fn session_times(
        &self,
        prefix: Prefix,
        of: impl Fn(&ObjectName) -> Option<SessionId>,
    ) -> Result<BTreeMap<SessionId, Option<Timestamp>>> {
        let mut times: BTreeMap<SessionId, Option<Timestamp>> = BTreeMap::new();
        self.objects.list(prefix, Detail::Lengths, &mut |page| {
            for listed in page {
                if let Some(session) = listed.name.ok().as_ref().and_then(&of) {
                    let newest = times.entry(session).or_default();
                    *newest = (*newest).max(listed.changed);
                }
            }
            Ok(())
        })?;
        Ok(times)
    }

    /// Reads a commit.
    pub(crate) fn read_commit(&self, session: SessionId) -> Result<Commit> {
        let bytes = self.read(ObjectName::Commit(session), SMALL_LEN_MAX)?;
        self.parse_commit(session, bytes)
    }

    /// Reads a commit's bytes.
    pub(crate) fn parse_commit(&self, session: SessionId, bytes: Vec<u8>) -> Result<Commit> {
        let object = self.display(ObjectName::Commit(session));
        let checksum = *blake3::hash(&bytes).as_bytes();
        let identity = (self.config.repository, Some(session));
        let (header, body) = open_small(&self.keys, &object, ObjectType::Commit, identity, bytes)?;
        let body = decode_commit(&body).map_err(|error| error.of(object))?;
        Ok(Commit { format: header.format, session, checksum, body })
    }

    /// Reads the start of a session.
    pub(crate) fn read_session(&self, session: SessionId) -> Result<SessionBody> {
        let name = ObjectName::Session(session);
        let object = self.display(name);
        let bytes = self.read(name, SMALL_LEN_MAX)?;
        let identity = (self.config.repository, Some(session));
        let (_, body) = open_small(&self.keys, &object, ObjectType::Session, identity, bytes)?;
        SessionBody::decode(&body).map_err(|error| error.of(object))
    }

    /// Reads all commits. One that cannot be read does not hide the others.
    pub fn read_commits(&self) -> Result<Commits> {
        let mut all = Commits::default();
        for session in self.list_ended()? {
            match self.read_commit(session) {
                Ok(commit) => all.commits.push(commit),
                Err(error) => all.findings.push((session, error)),
            }
        }
        let findings = std::mem::take(&mut all.findings);
        let seen: BTreeSet<SessionId> =
            all.commits.iter().flat_map(|commit| &commit.body.heads).map(|head| head.session).collect();
        (all.unknown, all.findings) =
            findings.into_iter().partition(|(session, _)| !seen.contains(session) && self.never_began(*session));
        for session in self.list_sessions(Prefix::Forget)? {
            match self.read_forget(session) {
                Ok(()) => {
                    all.forgotten.insert(session);
                }
                Err(error) => all.not_forgotten.push(error),
            }
        }
        Ok(all)
    }

    /// Returns true if a session has neither an object nor a manifest nor containers: it never began, since its object comes first and is
    /// never removed. A name alone would let anybody stop prunes. A commit that another one has seen is none of such a session.
    pub(crate) fn never_began(&self, session: SessionId) -> bool {
        let names = [ObjectName::Session(session), ObjectName::Manifest(session)];
        let mut is_unknown = names.into_iter().all(|name| matches!(self.objects.len(name), Ok(None)));
        let listed = self.objects.list(Prefix::Containers, Detail::Names, &mut |page| {
            let is_of = |listed: &Listed| listed.name.as_ref().is_ok_and(|name| name.session() == Some(session));
            is_unknown &= !page.iter().any(is_of);
            Ok(())
        });
        is_unknown && listed.is_ok()
    }

    /// Checks that a snapshot's forgetting is this repository's. A name alone would let anybody hide a snapshot.
    pub(crate) fn read_forget(&self, session: SessionId) -> Result<()> {
        let name = ObjectName::Forget(session);
        let bytes = self.read(name, SMALL_LEN_MAX)?;
        let identity = (self.config.repository, Some(session));
        open_small(&self.keys, &self.display(name), ObjectType::Forget, identity, bytes).map(|_| ())
    }
}

impl Commits {
    /// Returns true if a region may have bases: if the config or a commit is not of the first version. A commit that cannot be read
    /// may be of any.
    pub(crate) fn may_have_bases(&self, config: FormatVersion) -> bool {
        let is_newer = |commit: &Commit| commit.format != FormatVersion::V1;
        config != FormatVersion::V1 || !self.findings.is_empty() || self.commits.iter().any(is_newer)
    }

    /// Returns the commit of a session, if it can be read.
    pub(crate) fn commit_of(&self, session: SessionId) -> Option<&Commit> {
        let found = self.commits.binary_search_by_key(&session, |commit| commit.session);
        found.ok().and_then(|at| self.commits.get(at))
    }

    /// Returns the sessions of containers whose end does not prove that the containers are durable. A session that was fenced
    /// may have died between the publication of a container and the sync of its directory. A commit that cannot be read
    /// proves nothing.
    pub(crate) fn in_doubt(&self, containers: &Containers) -> BTreeSet<SessionId> {
        let proves = |commit: &&Commit| matches!(commit.body.kind, CommitKind::Snapshot | CommitKind::Durable);
        let durable: BTreeSet<SessionId> = self.commits.iter().filter(proves).map(|commit| commit.session).collect();
        containers.sessions().filter(|session| !durable.contains(session)).collect()
    }

    /// Returns true if a commit that was seen is gone, or stands for another one, without having been forgotten. One that cannot
    /// be read is gone, too.
    pub(crate) fn is_gone(&self, head: &Head) -> bool {
        let stands = self.commit_of(head.session).is_some_and(|commit| commit.checksum == head.checksum);
        !stands && !self.forgotten.contains(&head.session)
    }

    /// Returns the heads that commits have seen and that are gone, each with a session that has seen it. Those that cannot be read
    /// are not among them.
    pub fn gone(&self) -> impl Iterator<Item = (Head, SessionId)> {
        let seen = self.commits.iter().flat_map(|commit| commit.body.heads.iter().map(|head| (*head, commit.session)));
        let is_unread = |head: &Head| self.findings.iter().any(|(session, _)| *session == head.session);
        seen.filter(move |(head, _)| self.is_gone(head) && !is_unread(head))
    }

    /// Returns true if a session has ended.
    pub(crate) fn has_ended(&self, session: SessionId) -> bool {
        self.commits.iter().any(|commit| commit.session == session)
            || self.findings.iter().any(|(ended, _)| *ended == session)
    }

    /// Returns the snapshots that were not forgotten, oldest first.
    pub fn snapshots(&self) -> Vec<(SessionId, &Snapshot)> {
        let mut snapshots: Vec<_> = self
            .commits
            .iter()
            .filter(|commit| !self.forgotten.contains(&commit.session))
            .filter_map(|commit| Some((commit.session, commit.body.snapshot.as_ref()?)))
            .collect();
        snapshots.sort_by_key(|(session, snapshot)| (snapshot.time, *session));
        snapshots
    }

    /// Returns the relation of snapshots to those that they were derived from.
    pub(crate) fn originals(&self) -> Originals<'_> {
        let snapshots = self.commits.iter().filter_map(|commit| Some((commit.session, commit.body.snapshot.as_ref()?)));
        Originals(snapshots.collect())
    }

    /// Returns a commit that cannot be read and is not known to be older than a snapshot of this time: no commit up to
    /// then has seen it. Without a time, any that cannot be read.
    pub(crate) fn unread_after(&self, time: Option<Timestamp>) -> Option<&(SessionId, Error)> {
        let older: BTreeSet<SessionId> = self
            .commits
            .iter()
            .filter(|commit| commit.body.snapshot.as_ref().is_some_and(|snapshot| Some(snapshot.time) <= time))
            .flat_map(|commit| &commit.body.heads)
            .map(|head| head.session)
            .collect();
        self.findings.iter().find(|(session, _)| !older.contains(session) && !self.forgotten.contains(session))
    }

    /// Returns the commits that no other commit has seen.
    pub(crate) fn heads(&self) -> Vec<Head> {
        let seen: BTreeSet<SessionId> =
            self.commits.iter().flat_map(|commit| &commit.body.heads).map(|head| head.session).collect();
        self.commits
            .iter()
            .filter(|commit| commit.body.kind == CommitKind::Snapshot && !seen.contains(&commit.session))
            .map(|commit| Head { session: commit.session, checksum: commit.checksum })
            .collect()
    }
}
