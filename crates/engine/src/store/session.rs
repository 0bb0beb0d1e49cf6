//! A session: from its start, over barriers, to its commit.
//!
//! The order of durable effects is that of `docs/durability.md`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::Linked;
use crate::object::names::{self, COMMITS, CONTAINERS, ContainerName, SESSIONS};
use crate::object::{ObjectType, seal_small};
use crate::snapshot::{CommitBody, CommitKind, SessionBody, SessionKind};
use crate::store::containers::Listing;
use crate::store::{ObjectWriter, Store};
use crate::types::{ContainerId, SessionId};

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
    writer: Arc<ObjectWriter>,
    has_directory: std::sync::OnceLock<()>,
}

impl Session {
    /// Begins a session. (Rule 13: what collections have condemned is read, the session is made known, and what they
    /// have condemned is read again; a collection does it the other way round, so that one of the two sees the other.)
    pub(crate) fn begin(store: &Store, kind: SessionKind, hostname: &str) -> Result<Self> {
        store.complete_directories()?;
        let (collections_seen, _) = store.read_condemned()?;
        let mut id = [0; 16];
        store.host.random(&mut id)?;
        let id = SessionId(id);
        let writer = Arc::new(ObjectWriter::new(Arc::clone(&store.disk), id));
        let body = SessionBody { kind, collections_seen, time: store.host.now(), hostname: hostname.to_owned() };
        let identity = (store.config.repository, id, 0);
        let bytes = seal_small(&store.keys, &*store.host, ObjectType::Session, identity, &body.encode())?;
        let path = names::session(id);
        if writer.create(&path, &bytes)? == Linked::Existed {
            return Err(Error::damaged(store.display(&path), "stands already under a name just drawn"));
        }
        writer.sync_dir(Path::new(SESSIONS))?;
        let (_, condemned) = store.read_condemned()?;
        let (live, lengths, unended) = Self::live(store, &condemned)?;
        Ok(Self {
            id,
            live: Arc::new(live),
            lengths,
            unended,
            store: store.clone(),
            writer,
            has_directory: std::sync::OnceLock::new(),
        })
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
        let mut unreadable = Vec::new();
        let mut directories = BTreeSet::new();
        for name in containers {
            if is_interrupted() {
                return Err(Error::Interrupted);
            }
            match self.store.read_verified(name) {
                Ok(bytes) => {
                    self.writer.rewrite(name, &bytes)?;
                    directories.insert(name.id.session);
                }
                Err(error) => unreadable.push((*name, error)),
            }
        }
        for session in directories {
            self.store.disk.sync_dir(&names::container_dir(session))?;
        }
        Ok(unreadable)
    }

    /// Returns what writes this session's objects.
    pub(crate) fn writer(&self) -> &Arc<ObjectWriter> {
        &self.writer
    }

    /// Makes the directory of this session's containers, once.
    pub(crate) fn create_container_dir(&self) -> Result<()> {
        if self.has_directory.get().is_none() {
            self.store.disk.create_dir(&names::container_dir(self.id))?;
            self.store.disk.sync_dir(Path::new(CONTAINERS))?;
            let _set_once = self.has_directory.set(());
        }
        Ok(())
    }

    /// Makes the names of this session's containers durable (step D3).
    pub(crate) fn sync_containers(&self) -> Result<()> {
        self.store.disk.sync_dir(&names::container_dir(self.id))
    }

    /// Ends the session. Everything the commit refers to must be durable. Returns the commit's checksum once it is
    /// durable too.
    ///
    /// The linearization point is `link(2)` onto `commits/<session>`: a collection that has given up on this session
    /// creates a fence under the same name, and whoever comes first wins.
    pub(crate) fn commit(&self, body: &CommitBody) -> Result<[u8; 32]> {
        let identity = (self.store.config.repository, self.id, 0);
        let bytes = seal_small(&self.store.keys, &*self.store.host, ObjectType::Commit, identity, &body.encode())?;
        let path = names::commit(self.id);
        let created = self.writer.create(&path, &bytes);
        // A link that failed may have been made all the same, where the disk is at the other end of a network.
        if let Err(error) = &created
            && self.store.disk.exists(&path).unwrap_or(true)
        {
            return Err(Error::UnknownState { session: self.id, reason: error.to_string() });
        }
        if created? == Linked::Existed {
            let standing = self.store.read_commit(self.id)?;
            return match standing.body.kind {
                CommitKind::Fence => Err(Error::Fenced { session: self.id }),
                CommitKind::Snapshot | CommitKind::Done => {
                    Err(Error::damaged(self.store.display(&path), "stands already and is not this session's"))
                }
            };
        }
        // Past this line the snapshot may survive: an error no longer means that it does not exist.
        self.writer
            .sync_dir(Path::new(COMMITS))
            .map_err(|error| Error::UnknownState { session: self.id, reason: error.to_string() })?;
        Ok(*blake3::hash(&bytes).as_bytes())
    }
}
