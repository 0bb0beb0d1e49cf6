//! A session: from its start, over barriers, to its commit.
//!
//! The order of durable effects is that of `docs/durability.md`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::object::bytes::ObjectBytes;
use crate::object::header::FormatVersion;
use crate::object::names::{ContainerName, ObjectName};
use crate::object::sealed::SMALL_LEN_MAX;
use crate::object::store::{Created, PendingPut};
use crate::object::{ObjectType, seal_small};
use crate::snapshot::{CommitBody, CommitKind, Head, SessionBody, SessionKind};
use crate::store::Store;
use crate::store::container_set::Containers;
use crate::store::presence::{self, Presence};
use crate::store::scratch::Scratch;
use crate::types::SessionId;

/// Containers that are made durable together.
pub(crate) const PUTS_MAX: usize = 64;

/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_mins(5);

/// A session that has begun.
#[derive(Debug)]
pub struct Session {
    /// Its name, also that of the snapshot it will commit.
    pub(crate) id: SessionId,
    /// Containers that it may refer to: listed, not absent by a collection, and with all of their bases. Those of `in_doubt` are not known
    /// to be durable.
    pub(crate) live: Containers,
    /// All containers that exist.
    pub(crate) listed: Containers,
    /// True if regions may have bases.
    pub(crate) may_have_bases: bool,
    /// Sessions of those of `live` whose end does not prove that they are durable.
    pub(crate) in_doubt: BTreeSet<SessionId>,
    /// Commits that no other commit has seen when the session began.
    pub(crate) heads: Vec<Head>,
    /// True if a collection had condemned containers and not chosen the final ones when the session began. Then no reference
    /// may be taken over without a look at its container.
    pub(crate) is_condemning: bool,
    store: Store,
    heartbeat: Mutex<Heartbeat>,
    /// True if containers of this session may have names that are not durable, and never will be.
    has_failed_barrier: AtomicBool,
    _presence: Option<Presence>,
}

/// The last heartbeat.
#[derive(Debug)]
struct Heartbeat {
    /// Its number; 0 if there was none yet.
    count: u32,
    /// Time of it, or of the session's start, by the monotonic clock.
    at: Duration,
}

impl Session {
    /// Begins a session (steps W1 to W3 of `docs/protocol.md`): creates its object, reads what collections have condemned,
    /// lists containers. A collection does the opposite, so that one of the two sees the other.
    pub(crate) fn begin(store: &Store, scratch: &Scratch, kind: SessionKind, hostname: &str) -> Result<Self> {
        let mut session = Self::create(store, scratch, kind, hostname)?;
        match session.list(scratch) {
            Ok(()) => Ok(session),
            Err(error) => Err(session.abandon(error)),
        }
    }

    /// Begins a session that refers to nothing (step C0 of `docs/protocol.md`).
    pub(crate) fn create(store: &Store, scratch: &Scratch, kind: SessionKind, hostname: &str) -> Result<Self> {
        store.objects.complete()?;
        let collections_seen = store.list_collections()?.into_keys().next_back().unwrap_or(0);
        let mut id = [0; 16];
        store.host.random(&mut id)?;
        let id = SessionId(id);
        let presence = Presence::announce(scratch, id);
        let body = SessionBody {
            kind,
            collections_seen,
            time: store.host.now(),
            hostname: hostname.to_owned(),
            process: store.host.process(),
        };
        let identity = (store.config.repository, id, 0);
        let bytes = seal_small(
            &store.keys,
            &*store.host,
            ObjectType::Session.of(store.config.format),
            identity,
            &body.encode(),
        )?;
        let name = ObjectName::Session(id);
        if store.objects.create(id, name, &bytes)? == Created::Existed {
            return Err(Error::damaged(store.display(name), "stands already under a name just drawn"));
        }
        let heartbeat = Mutex::new(Heartbeat { count: 0, at: store.host.monotonic() });
        Ok(Self {
            id,
            live: Containers::default(),
            listed: Containers::default(),
            may_have_bases: false,
            in_doubt: BTreeSet::new(),
            heads: Vec::new(),
            is_condemning: false,
            store: store.clone(),
            heartbeat,
            has_failed_barrier: AtomicBool::new(false),
            _presence: presence,
        })
    }

    /// Lists what the session may refer to.
    fn list(&mut self, scratch: &Scratch) -> Result<()> {
        self.store.objects.refresh_collections(self.id)?;
        let absent = self.store.read_absent()?;
        self.is_condemning = absent.is_condemning;
        self.listed = self.store.list_sized_containers(scratch)?;
        self.live = absent.live(&self.listed);
        let commits = self.store.read_commits()?;
        presence::remove_left(scratch, |session| commits.has_ended(session));
        self.may_have_bases = commits.may_have_bases(self.store.config.format);
        self.in_doubt = commits.in_doubt(&self.live);
        self.live = self.store.without_lacking(std::mem::take(&mut self.live), &commits, &mut || self.beat())?;
        self.heads = commits.heads();
        Ok(())
    }

    /// Makes containers durable that exist and are not known to be durable. A sync of their directory may have failed in the
    /// session that wrote them, and the kernel reports that once. So each is written again, then the directories are synced.
    /// Returns those for which that was not possible, with the reason.
    pub(crate) fn make_durable(
        &self,
        containers: &[ContainerName],
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<Vec<(ContainerName, Error)>> {
        if self.store.objects.abilities().listed_is_durable {
            return Ok(Vec::new());
        }
        let mut unusable = Vec::new();
        for group in containers.chunks(PUTS_MAX) {
            if is_interrupted() {
                return Err(Error::Interrupted);
            }
            let (mut names, mut puts) = (Vec::new(), Vec::new());
            for name in group {
                match self.store.read_verified(name) {
                    Ok(bytes) => {
                        puts.push(self.store.objects.put_again(
                            self.id,
                            (*name).into(),
                            &ObjectBytes::copy_of(&bytes),
                        )?);
                        names.push(*name);
                    }
                    Err(error) => unusable.push((*name, error)),
                }
            }
            match self.store.objects.barrier(puts) {
                Err(error) if error.io_kind() == Some(std::io::ErrorKind::Unsupported) => {
                    unusable.extend(names.into_iter().map(|name| (name, error.clone())));
                }
                outcome => outcome?,
            }
        }
        Ok(unusable)
    }

    /// Makes a commit durable that another session has created. A sync of its directory may have failed there, so that it is
    /// written again, as containers are.
    pub(crate) fn make_commit_durable(&self, commit: SessionId) -> Result<()> {
        let objects = &self.store.objects;
        if objects.abilities().listed_is_durable {
            return Ok(());
        }
        let name = ObjectName::Commit(commit);
        let bytes = self.store.read(name, SMALL_LEN_MAX)?;
        self.store.parse_commit(commit, bytes.clone())?;
        let put = objects.put_again(self.id, name, &ObjectBytes::copy_of(&bytes))?;
        objects.barrier(vec![put])
    }

    /// Creates a heartbeat if the last one is older than [`HEARTBEAT_INTERVAL`]. A collection fences sessions that
    /// show none for long. One that cannot be written is no error: a fenced session begins again.
    pub(crate) fn beat(&self) {
        let now = self.store.host.monotonic();
        let Ok(mut last) = self.heartbeat.try_lock() else { return };
        if now.saturating_sub(last.at) < HEARTBEAT_INTERVAL {
            return;
        }
        last.at = now;
        let objects = &self.store.objects;
        if objects.create(self.id, ObjectName::Heartbeat(self.id, last.count + 1), &[]).is_ok() {
            let _superseded = objects.delete(&[ObjectName::Heartbeat(self.id, last.count)]);
            last.count += 1;
        }
    }

    /// Ends a session that has failed, so that no collection waits for it. Returns the reason: `error`, or [`Error::Fenced`] if a
    /// collection has ended the session, which then explains objects that are gone.
    pub(crate) fn abandon(&self, error: Error) -> Error {
        if matches!(error, Error::UnknownState { .. } | Error::Fenced { .. }) {
            return error;
        }
        match self.end() {
            Ok(Some(CommitKind::Fence)) => Error::Fenced { session: self.id },
            // A session that cannot be ended is fenced by a collection later.
            Ok(_) | Err(_) => error,
        }
    }

    /// Ends the session without a snapshot. Returns the kind of the end that stood already, if one did.
    pub(crate) fn end(&self) -> Result<Option<CommitKind>> {
        self.end_with(CommitKind::Done)
    }

    /// Ends the session without a snapshot, after its containers became durable; others may then rely on them. After a barrier
    /// that failed the end does not say so.
    pub(crate) fn end_durable(&self) -> Result<Option<CommitKind>> {
        self.end_with(if self.is_in_doubt() { CommitKind::Done } else { CommitKind::Durable })
    }

    fn end_with(&self, kind: CommitKind) -> Result<Option<CommitKind>> {
        let body = CommitBody::without_snapshot(kind);
        match self.create_commit(&body)?.0 {
            Created::New => Ok(None),
            Created::Existed => self.store.read_commit(self.id).map(|commit| Some(commit.body.kind)),
        }
    }

    /// Returns true if a collection is known to have ended the session.
    pub(crate) fn is_fenced(&self) -> bool {
        self.store.read_commit(self.id).is_ok_and(|commit| commit.body.kind == CommitKind::Fence)
    }

    /// Seals the end of the session in another version of the format.
    pub(crate) fn seal_as(&mut self, version: FormatVersion) {
        Arc::make_mut(&mut self.store.config).format = version;
    }

    fn create_commit(&self, body: &CommitBody) -> Result<(Created, [u8; 32])> {
        let identity = (self.store.config.repository, self.id, 0);
        let bytes = seal_small(
            &self.store.keys,
            &*self.store.host,
            ObjectType::Commit.of(self.store.config.format),
            identity,
            &body.encode(),
        )?;
        let created = self.store.objects.create(self.id, ObjectName::Commit(self.id), &bytes)?;
        self.remove_heartbeat();
        Ok((created, *blake3::hash(&bytes).as_bytes()))
    }

    fn remove_heartbeat(&self) {
        let count = self.heartbeat.lock().map_or(0, |last| last.count);
        if 0 < count {
            let _needless = self.store.objects.delete(&[ObjectName::Heartbeat(self.id, count)]);
        }
    }

    /// Starts to store a container.
    pub(crate) fn put(&self, name: ContainerName, bytes: &ObjectBytes) -> Result<PendingPut> {
        self.store.objects.put(self.id, name.into(), bytes)
    }

    /// Makes containers of this session visible and durable. An error ends the session, or its containers are in doubt from then on:
    /// some may have their names, which no later sync makes durable.
    pub(crate) fn barrier(&self, puts: Vec<PendingPut>) -> Result<()> {
        let outcome = self.store.objects.barrier(puts);
        if outcome.is_err() {
            self.has_failed_barrier.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// Returns true if containers of this session may not be durable although their barriers have ended.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.has_failed_barrier.load(Ordering::Relaxed)
    }

    /// Ends the session. Everything the commit refers to must be durable. Returns the commit's checksum once it is
    /// durable too.
    ///
    /// The linearization point is the creation of `commits/<session>`: a collection that has given up on this session
    /// creates a fence under the same name, and whoever comes first wins.
    pub(crate) fn commit(&self, body: &CommitBody) -> Result<[u8; 32]> {
        let name = ObjectName::Commit(self.id);
        match self.create_commit(body) {
            Ok((Created::New, checksum)) => Ok(checksum),
            Ok((Created::Existed, _)) => match self.store.read_commit(self.id)?.body.kind {
                CommitKind::Fence => Err(Error::Fenced { session: self.id }),
                CommitKind::Snapshot | CommitKind::Done | CommitKind::Durable => {
                    Err(Error::damaged(self.store.display(name), "stands already and is not this session's"))
                }
            },
            // The collection that has fenced the session may have removed its temporary files.
            Err(_) if self.is_fenced() => Err(Error::Fenced { session: self.id }),
            // The object may have been created all the same: an error then no longer means that the snapshot does not exist.
            Err(error) if self.store.objects.len(name).map_or(true, |len| len.is_some()) => {
                Err(Error::UnknownState { session: self.id, reason: error.to_string() })
            }
            Err(error) => Err(error),
        }
    }
}
