//! Manifests: the containers that each snapshot refers to, written before its commit, which vouches for them.
//!
//! A manifest lists containers so that every chunk that its snapshot refers to stands in one of them. If collections have
//! deleted some of them since, its chunks stand where `final` says that they have moved.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::object::ObjectType;
use crate::object::names::{ObjectName, Prefix};
use crate::object::sealed::{SMALL_LEN_MAX, open_small, seal_buffer};
use crate::object::store::{Created, Detail, Leftovers};
use crate::snapshot::{CommitKind, ManifestEncoder, decode_manifest};
use crate::store::container_set::{ContainerNumber, Containers, RunCursor};
use crate::store::{Session, Store};
use crate::types::{ContainerId, SessionId};

/// Bytes that a file, or a node, refers to in each container. Grows with the containers that it refers to.
#[derive(Debug, Default)]
pub(crate) struct UsedBytes {
    last: Option<(ContainerId, u64)>,
    others: BTreeMap<ContainerId, u64>,
}

impl UsedBytes {
    /// Adds a reference to a chunk of `len` bytes.
    pub(crate) fn add(&mut self, container: ContainerId, len: u32) {
        match &mut self.last {
            Some((last, bytes)) if *last == container => *bytes += u64::from(len),
            last => {
                if let Some((before, bytes)) = last.replace((container, len.into())) {
                    *self.others.entry(before).or_default() += bytes;
                }
            }
        }
    }

    fn drain(&mut self) -> impl Iterator<Item = (ContainerId, u64)> {
        take(&mut self.others).into_iter().chain(self.last.take())
    }
}

/// Collects what a new snapshot refers to, from several threads. Takes [`ManifestBuilder::BYTES_EACH`] bytes for each listed
/// container, and twice as many for each container of the session.
#[derive(Debug)]
pub(crate) struct ManifestBuilder {
    session: SessionId,
    containers: Containers,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes that are referred to in each listed container, by its number.
    listed: Vec<u32>,
    /// The same of each container of the session, by its ordinal, and the bytes of its chunks.
    own: Vec<(u32, u32)>,
    near: RunCursor,
    /// False if a container is referred to that is neither listed nor the session's.
    is_complete: bool,
}

impl ManifestBuilder {
    /// Memory for each listed container in bytes.
    pub(crate) const BYTES_EACH: usize = size_of::<u32>();

    /// Starts for a session that may refer to listed containers, and to its own.
    pub(crate) fn new(session: SessionId, containers: &Containers) -> Self {
        let state = State {
            listed: vec![0; containers.numbers_end() as usize],
            own: Vec::new(),
            near: RunCursor::default(),
            is_complete: true,
        };
        Self { session, containers: containers.clone(), state: Mutex::new(state) }
    }

    /// Adds a reference to a chunk of `len` bytes.
    pub(crate) fn add(&self, container: ContainerId, len: u32) {
        self.with(|state| self.refer(state, container, len.into()));
    }

    /// Adds the references of a file, and empties them.
    pub(crate) fn add_all(&self, used: &mut UsedBytes) {
        self.with(|state| used.drain().for_each(|(container, bytes)| self.refer(state, container, bytes)));
    }

    /// Adds a chunk that the session stores in a container of its own. It may not be referred to.
    pub(crate) fn store(&self, container: ContainerId, len: u32) {
        self.with(|state| {
            let (_, stored) = own_of(&mut state.own, container.ordinal);
            *stored = stored.saturating_add(len);
        });
    }

    /// Returns the manifest of what was added; `None` if it would not list all containers.
    pub(crate) fn finish(&self) -> Result<Option<ManifestEncoder>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_complete {
            return Ok(None);
        }
        let mut manifest = ManifestEncoder::new();
        let own = state.own.iter().zip(0..).filter(|((used, _), _)| 0 < *used);
        let mut own = own.map(|((used, stored), ordinal)| (ordinal, share_of(*used, u64::from(*stored)))).peekable();
        let mut push_own = |manifest: &mut ManifestEncoder| {
            for (ordinal, share) in own.by_ref() {
                manifest.push(ContainerId { session: self.session, ordinal }, share);
            }
        };
        for (number, id) in self.containers.iter() {
            if self.session < id.session {
                push_own(&mut manifest);
            }
            let used = state.listed.get(number.0 as usize).copied().unwrap_or(0);
            if 0 < used {
                manifest.push(id, share_of(used, self.containers.sized(number)?.1));
            }
        }
        push_own(&mut manifest);
        Ok(Some(manifest))
    }

    fn with(&self, act: impl FnOnce(&mut State)) {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn refer(&self, state: &mut State, container: ContainerId, bytes: u64) {
        let bytes = u32::try_from(bytes.max(1)).unwrap_or(u32::MAX);
        let used = match self.containers.find_near(container, &mut state.near) {
            Some(ContainerNumber(number)) => state.listed.get_mut(number as usize),
            None if container.session == self.session => Some(&mut own_of(&mut state.own, container.ordinal).0),
            None => None,
        };
        match used {
            Some(used) => *used = used.saturating_add(bytes),
            None => state.is_complete = false,
        }
    }
}

fn own_of(own: &mut Vec<(u32, u32)>, ordinal: u32) -> &mut (u32, u32) {
    let at = ordinal as usize;
    if own.len() <= at {
        own.resize(at + 1, (0, 0));
    }
    own.get_mut(at).expect("the list is as long as that")
}

/// Returns a share in 1/255, rounded up, at least 1.
fn share_of(used: u32, all: u64) -> u8 {
    let share = (u64::from(used) * 255).div_ceil(all.max(1));
    u8::try_from(share).unwrap_or(u8::MAX).max(1)
}

impl Session {
    /// Creates the manifest of the snapshot that the session is about to commit; everything that it lists is durable. Returns
    /// the checksum for the commit; `None` if there is no manifest, or it is longer than an object can be.
    pub(crate) fn put_manifest(&self, store: &Store, manifest: Option<ManifestEncoder>) -> Result<Option<[u8; 32]>> {
        let Some(body) = manifest.and_then(ManifestEncoder::finish) else { return Ok(None) };
        let identity = (store.config.repository, self.id, 0);
        let bytes =
            seal_buffer(&store.keys, &*store.host, ObjectType::Manifest.of(store.config.format), identity, body)?;
        let name = ObjectName::Manifest(self.id);
        match store.objects.create(self.id, name, &bytes)? {
            Created::New => Ok(Some(*blake3::hash(&bytes).as_bytes())),
            Created::Existed => Err(Error::damaged(store.display(name), "stands already and is not this session's")),
        }
    }
}

impl Store {
    /// Reads the manifest that a commit vouches for by its checksum. Passes on the containers with their shares in the order
    /// of their ids. After an error some were passed on.
    pub(crate) fn read_manifest(
        &self,
        session: SessionId,
        checksum: &[u8; 32],
        each: &mut dyn FnMut(ContainerId, u8) -> Result<()>,
    ) -> Result<()> {
        let name = ObjectName::Manifest(session);
        let object = self.display(name);
        let bytes = self.read(name, SMALL_LEN_MAX)?;
        if blake3::hash(&bytes) != *checksum {
            return Err(Error::damaged(object, "is not the manifest that the commit names"));
        }
        let identity = (self.config.repository, Some(session));
        let (_, body) = open_small(&self.keys, &object, ObjectType::Manifest, identity, bytes)?;
        let mut outcome = Ok(());
        let mut take = |id: ContainerId, share: u8| {
            if outcome.is_ok() {
                outcome = each(id, share);
            }
        };
        decode_manifest(&body, &mut take).map_err(|error| error.of(object))?;
        outcome
    }

    /// Returns a manifest that lists what that of another snapshot does.
    pub(crate) fn copy_manifest(&self, session: SessionId, checksum: &[u8; 32]) -> Result<ManifestEncoder> {
        let mut copy = ManifestEncoder::new();
        self.read_manifest(session, checksum, &mut |id, share| {
            copy.push(id, share);
            Ok(())
        })?;
        Ok(copy)
    }

    /// Removes the manifests of sessions that have ended and whose snapshot does not count: it was forgotten, or there is none.
    /// Returns what was removed, and keeps those of sessions that have not ended. `own` is the session that removes them.
    pub(crate) fn remove_manifests(&self, own: SessionId) -> Result<Leftovers> {
        let mut removed = Leftovers::default();
        let mut listed: BTreeMap<SessionId, u64> = BTreeMap::new();
        self.objects.list(Prefix::Manifests, Detail::Lengths, &mut |page| {
            for manifest in page {
                if let Ok(ObjectName::Manifest(session)) = manifest.name {
                    listed.insert(session, manifest.len);
                }
            }
            Ok(())
        })?;
        if listed.is_empty() {
            return Ok(removed);
        }
        let commits = self.read_commits()?;
        let is_ended = |session: &&SessionId| {
            let commit = commits.commit_of(**session);
            commits.forgotten.contains(*session)
                || commit.is_some_and(|commit| commit.body.kind != CommitKind::Snapshot)
        };
        let needless: BTreeSet<SessionId> = listed.keys().filter(is_ended).copied().collect();
        if needless.is_empty() {
            return Ok(removed);
        }
        // A power cut must not give back a snapshot without its manifest.
        self.objects.confirm(&[ObjectName::Forget(own), ObjectName::Commit(own)])?;
        let names: Vec<ObjectName> = needless.iter().copied().map(ObjectName::Manifest).collect();
        self.objects.delete(&names)?;
        removed.removed = needless.len() as u64;
        removed.removed_bytes = needless.iter().filter_map(|session| listed.get(session)).sum();
        Ok(removed)
    }
}
