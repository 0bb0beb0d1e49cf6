//! A store of objects that does something else first when it is called for the n-th time.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use onefold_engine::error::Result;
use onefold_engine::object::ObjectBytes;
use onefold_engine::object::names::{ContainerName, ObjectName, Prefix};
use onefold_engine::object::store::{
    Abilities, Created, CreationLock, Detail, Handshake, Leftovers, Listed, ObjectStore, PendingPut, RangeRead,
};
use onefold_engine::types::SessionId;

/// Something that is done once.
type Act = Box<dyn FnOnce() + Send>;

/// Counts the calls that store something, and acts before one of them.
pub(super) struct Hooked {
    inner: Arc<dyn ObjectStore>,
    calls: AtomicU64,
    act: Mutex<Option<(u64, Act)>>,
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooked").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Hooked {
    pub(super) fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { inner, calls: AtomicU64::new(0), act: Mutex::new(None) })
    }

    /// Acts before a call, counted from the next one on, which is 1.
    pub(super) fn before(&self, call: u64, act: impl FnOnce() + Send + 'static) {
        *self.act.lock().unwrap() = Some((self.calls() + call, Box::new(act)));
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn called(&self) -> &dyn ObjectStore {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let act = self.act.lock().unwrap().take_if(|(wanted, _)| *wanted == call);
        if let Some((_, act)) = act {
            act();
        }
        &*self.inner
    }
}

impl ObjectStore for Hooked {
    fn create(&self, session: SessionId, name: ObjectName, bytes: &[u8]) -> Result<Created> {
        self.called().create(session, name, bytes)
    }

    fn put(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut> {
        self.called().put(session, name, bytes)
    }

    fn put_again(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut> {
        self.called().put_again(session, name, bytes)
    }

    fn confirm(&self, names: &[ObjectName]) -> Result<()> {
        self.called().confirm(names)
    }

    fn barrier(&self, puts: Vec<PendingPut>) -> Result<()> {
        self.called().barrier(puts)
    }

    fn discard(&self, puts: Vec<PendingPut>) {
        self.inner.discard(puts);
    }

    fn read(&self, reads: &mut [RangeRead]) {
        self.inner.read(reads);
    }

    fn read_exact(&self, name: ObjectName, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.inner.read_exact(name, offset, buffer)
    }

    fn len(&self, name: ObjectName) -> Result<Option<u64>> {
        self.inner.len(name)
    }

    fn list(&self, prefix: Prefix, detail: Detail, page: &mut dyn FnMut(Vec<Listed>) -> Result<()>) -> Result<()> {
        self.called().list(prefix, detail, page)
    }

    fn delete(&self, names: &[ObjectName]) -> Result<()> {
        self.called().delete(names)
    }

    fn quarantine(&self, names: &[ContainerName]) -> Result<()> {
        self.called().quarantine(names)
    }

    fn quarantine_object(&self, session: SessionId, name: ObjectName, replacement: Option<&[u8]>) -> Result<()> {
        self.called().quarantine_object(session, name, replacement)
    }

    fn will_read(&self, name: ObjectName, range: Range<u64>) {
        self.inner.will_read(name, range);
    }

    fn refresh_collections(&self, session: SessionId) -> Result<()> {
        self.called().refresh_collections(session)
    }

    fn refresh_sessions(&self, session: SessionId) -> Result<()> {
        self.called().refresh_sessions(session)
    }

    fn refresh_containers(&self, session: SessionId) -> Result<()> {
        self.called().refresh_containers(session)
    }

    fn try_handshake(&self, session: SessionId) -> Result<Handshake> {
        self.inner.try_handshake(session)
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn leftovers(&self, removes: &dyn Fn(Option<SessionId>) -> bool) -> Result<Leftovers> {
        self.inner.leftovers(removes)
    }

    fn begin_creation(&self, session: SessionId) -> Result<CreationLock> {
        self.inner.begin_creation(session)
    }

    fn end_creation(&self, lock: CreationLock) {
        self.inner.end_creation(lock);
    }

    fn complete(&self) -> Result<Vec<&'static str>> {
        self.inner.complete()
    }

    fn display(&self, key: &str) -> String {
        self.inner.display(key)
    }
}
