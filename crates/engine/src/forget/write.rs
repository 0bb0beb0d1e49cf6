//! Forgetting snapshots in the repository.

use crate::error::Result;
use crate::object::names::ObjectName;
use crate::object::store::Created;
use crate::object::{ObjectType, seal_small};
use crate::snapshot::ForgetBody;
use crate::store::Store;
use crate::types::SessionId;

/// Outcomes of forgetting a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forgotten {
    /// It is forgotten now.
    Now,
    /// It was forgotten before.
    Before,
}

/// Forgets snapshots, each durably. Forgets are never removed.
#[derive(Debug)]
pub struct Forgetting<'a> {
    store: &'a Store,
    /// Random id of this run, which names its temporary files.
    run: SessionId,
    note: Vec<u8>,
}

impl<'a> Forgetting<'a> {
    /// Prepares a repository. `note` is stored with each snapshot that is forgotten.
    pub fn begin(store: &'a Store, note: &ForgetBody) -> Result<Self> {
        store.objects.complete()?;
        let mut run = [0; 16];
        store.host.random(&mut run)?;
        Ok(Self { store, run: SessionId(run), note: note.encode() })
    }

    /// Forgets a snapshot. It is durable when this returns. After an error, the snapshot may be forgotten.
    pub fn forget(&self, snapshot: SessionId) -> Result<Forgotten> {
        let store = self.store;
        let identity = (store.config.repository, snapshot, 0);
        let bytes =
            seal_small(&store.keys, &*store.host, ObjectType::Forget.of(store.config.format), identity, &self.note)?;
        match store.objects.create(self.run, ObjectName::Forget(snapshot), &bytes)? {
            Created::New => Ok(Forgotten::Now),
            // An object that does not open forgets nothing: the name could be anybody's.
            Created::Existed => store.read_forget(snapshot).map(|()| Forgotten::Before),
        }
    }
}
