//! A session: from its start, over barriers, to its commit.
//!
//! The order of durable effects is that of `docs/durability.md`.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::object::bytes::ObjectBytes;
use crate::object::names::{ContainerName, ObjectName};
use crate::object::store::{Created, PendingPut};
use crate::object::{ObjectType, seal_small};
use crate::snapshot::{CommitBody, CommitKind, SessionBody, SessionKind};
use crate::store::Store;
use crate::store::containers::Listing;
use crate::types::{ContainerId, SessionId};

/// Containers that are made durable together.
const PUTS_MAX: usize = 64;

/// A session that has begun.
#[derive(Debug)]
pub struct Session {
    /// Its name, also that of the snapshot it will commit.
    pub(crate) id: SessionId,
    /// Containers that it may refer to: listed and not condemned. Those of `unended` are not known to be durable.
    pub(crate) live: Arc<Listing>,
    /// The lengths of their files, in the order in which `live` listed them when the session began.
    pub(crate) lengths: Vec<u64>,
    /// Sessions of containers that have not ended.
    pub(crate) unended: BTreeSet<SessionId>,
    store: Store,
}

impl Session {
    /// Begins a session. (Rule 13: what collections have condemned is read, the session is made known, and what they
    /// have condemned is read again; a collection does it the other way round, so that one of the two sees the other.)
    pub(crate) fn begin(store: &Store, kind: SessionKind, hostname: &str) -> Result<Self> {
        store.objects.complete()?;
        let (collections_seen, _) = store.read_condemned()?;
        let mut id = [0; 16];
        store.host.random(&mut id)?;
        let id = SessionId(id);
        let body = SessionBody { kind, collections_seen, time: store.host.now(), hostname: hostname.to_owned() };
        let identity = (store.config.repository, id, 0);
        let bytes = seal_small(&store.keys, &*store.host, ObjectType::Session, identity, &body.encode())?;
        let name = ObjectName::Session(id);
        if store.objects.create(id, name, &bytes)? == Created::Existed {
            return Err(Error::damaged(store.display(name), "stands already under a name just drawn"));
        }
        let (_, condemned) = store.read_condemned()?;
        let (live, lengths, unended) = Self::live(store, &condemned)?;
        Ok(Self { id, live: Arc::new(live), lengths, unended, store: store.clone() })
    }

    /// Lists what may be referred to, and which sessions have not ended: their containers may have names that a power cut
    /// would take back.
    fn live(store: &Store, condemned: &BTreeSet<ContainerId>) -> Result<(Listing, Vec<u64>, BTreeSet<SessionId>)> {
        let mut found = store.list_sized_containers()?;
        found.retain(|container| !condemned.contains(&container.name.id));
        let (containers, lengths) = found.into_iter().map(|container| (container.name, container.len)).unzip();
        let listing = Listing { containers, unknown_files: Vec::new() };
        let ended = store.list_ended()?;
        let sessions = listing.containers.iter().map(|name| name.id.session);
        let unended = sessions.filter(|session| !ended.contains(session)).collect();
        Ok((listing, lengths, unended))
    }

    /// Makes containers durable that stand under their names and are not known to be: a sync of their directory may have
    /// failed in the session that wrote them, and the kernel reports that once. So each is written again, then the
    /// directories are synced. Returns those that cannot be read, with the reason.
    pub(crate) fn make_durable(
        &self,
        containers: &[ContainerName],
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<Vec<(ContainerName, Error)>> {
        let (mut unreadable, mut puts) = (Vec::new(), Vec::new());
        for name in containers {
            if is_interrupted() {
                self.store.objects.discard(puts);
                return Err(Error::Interrupted);
            }
            match self.store.read_verified(name) {
                Ok(bytes) => puts.push(self.put(*name, &ObjectBytes::copy_of(&bytes))?),
                Err(error) => unreadable.push((*name, error)),
            }
            if PUTS_MAX <= puts.len() {
                self.store.objects.barrier(std::mem::take(&mut puts))?;
            }
        }
        self.store.objects.barrier(puts)?;
        Ok(unreadable)
    }

    /// Starts to store a container.
    pub(crate) fn put(&self, name: ContainerName, bytes: &ObjectBytes) -> Result<PendingPut> {
        self.store.objects.put(self.id, name.into(), bytes)
    }

    /// Ends the session. Everything the commit refers to must be durable. Returns the commit's checksum once it is
    /// durable too.
    ///
    /// The linearization point is the creation of `commits/<session>`: a collection that has given up on this session
    /// creates a fence under the same name, and whoever comes first wins.
    pub(crate) fn commit(&self, body: &CommitBody) -> Result<[u8; 32]> {
        let identity = (self.store.config.repository, self.id, 0);
        let bytes = seal_small(&self.store.keys, &*self.store.host, ObjectType::Commit, identity, &body.encode())?;
        let name = ObjectName::Commit(self.id);
        match self.store.objects.create(self.id, name, &bytes) {
            Ok(Created::New) => {}
            Ok(Created::Existed) => {
                return match self.store.read_commit(self.id)?.body.kind {
                    CommitKind::Fence => Err(Error::Fenced { session: self.id }),
                    CommitKind::Snapshot | CommitKind::Done => {
                        Err(Error::damaged(self.store.display(name), "stands already and is not this session's"))
                    }
                };
            }
            // The object may have been created all the same: an error then no longer means that the snapshot does not exist.
            Err(error) if self.store.objects.len(name).map_or(true, |len| len.is_some()) => {
                return Err(Error::UnknownState { session: self.id, reason: error.to_string() });
            }
            Err(error) => return Err(error),
        }
        Ok(*blake3::hash(&bytes).as_bytes())
    }
}
