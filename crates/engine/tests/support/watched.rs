//! Repositories of which an [`Oracle`] watches every removal.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::Result;
use onefold_engine::io::{Access, BatchRead, BatchWrite, Disk, DiskEntry, DiskFile, Linked, ReadStream, SizedEntry};
use onefold_engine::object::ObjectStore;
use onefold_engine::object::bytes::ObjectBytes;
use onefold_engine::object::names::{ContainerName, ObjectName, Prefix};
use onefold_engine::object::store::{
    Abilities, Created, CreationLock, Detail, Handshake, Leftovers, Listed, PendingPut, RangeRead,
};
use onefold_engine::store::Store;
use onefold_engine::testing::object_sim::SimObjectStore;
use onefold_engine::testing::sim::SimDisk;
use onefold_engine::types::SessionId;

use super::oracle::{Bytes, Image, Oracle, Removal};

/// The directory of a repository on a simulated disk, watched by an oracle.
#[derive(Debug)]
pub(in crate::integration) struct WatchedDisk {
    repository: SimDisk,
    oracle: Arc<Oracle>,
    open: fn(SimDisk) -> Store,
}

impl WatchedDisk {
    /// Watches a repository. `open` opens it on a fork of the disk, which counts no calls and has no faults.
    pub(in crate::integration) fn watch(
        repository: SimDisk,
        oracle: Arc<Oracle>,
        open: fn(SimDisk) -> Store,
    ) -> Arc<dyn Disk> {
        Arc::new(Self { repository, oracle, open })
    }

    fn images(&self) -> (Image, Image) {
        (Image::of_files(self.repository.files()), Image::of_files(self.repository.durable_files()))
    }

    fn assert_unneeded(&self, path: &Path, removal: Removal) {
        if let Some(name) = path.to_str().and_then(ObjectName::parse) {
            let (now, after_power_cut) = self.images();
            let open = || (self.open)(self.repository.fork());
            self.oracle.assert_unneeded((&now, &after_power_cut), (name, removal), &open);
        }
    }
}

impl Disk for WatchedDisk {
    fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>> {
        self.repository.create(path)
    }
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn DiskFile>> {
        self.repository.open(path, access)
    }
    fn create_dir(&self, path: &Path) -> Result<()> {
        self.repository.create_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let [source, target] = [from, to].map(|path| path.to_str().and_then(ObjectName::parse));
        match (source, target) {
            (Some(ObjectName::Container(name)), _) => {
                assert_eq!(target, Some(ObjectName::Quarantined(name)), "{} is renamed", from.display());
                self.assert_unneeded(from, Removal::SetAside);
            }
            (_, Some(ObjectName::Container(_))) => {
                let (now, _) = self.images();
                assert!(target.is_some_and(|name| now.get(&name).is_none()), "{} is replaced", to.display());
            }
            _ => {}
        }
        self.repository.rename(from, to)
    }
    fn exchange(&self, from: &Path, to: &Path) -> Result<()> {
        let fork = self.repository.fork();
        // A prune may have removed the temporary file of a session that it has fenced; the exchange fails then.
        if let Some(name) = to.to_str().and_then(ObjectName::parse)
            && let Some(bytes) = self.images().0.get(&name)
            && fork.exists(from)?
        {
            assert!(fork.bytes(from) == bytes, "{} gets other bytes", to.display());
        }
        self.repository.exchange(from, to)
    }
    fn link(&self, existing: &Path, new: &Path) -> Result<Linked> {
        self.repository.link(existing, new)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.assert_unneeded(path, Removal::Deleted);
        self.repository.remove(path)
    }
    fn remove_dir(&self, path: &Path) -> Result<bool> {
        self.repository.remove_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.repository.sync_dir(path)
    }
    fn list(&self, path: &Path) -> Result<Vec<DiskEntry>> {
        self.repository.list(path)
    }
    fn list_sized(&self, path: &Path) -> Result<Vec<SizedEntry>> {
        self.repository.list_sized(path)
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        self.repository.exists(path)
    }
    fn read_batch(&self, reads: &mut [BatchRead]) {
        self.repository.read_batch(reads);
    }
    fn read_stream(&self, file: &Arc<dyn DiskFile>, reads: &mut dyn ReadStream) {
        self.repository.read_stream(file, reads);
    }
    fn write_batch(&self, writes: &mut [BatchWrite]) {
        self.repository.write_batch(writes);
    }
    fn display(&self, path: &Path) -> String {
        self.repository.display(path)
    }
}

/// A simulated object store, watched by an oracle.
#[derive(Debug)]
pub(in crate::integration) struct WatchedObjects {
    objects: Arc<SimObjectStore>,
    oracle: Arc<Oracle>,
    open: fn(SimObjectStore) -> Store,
}

impl WatchedObjects {
    /// Watches a repository. `open` opens it on a fork of the store, which counts no requests and has no faults.
    pub(in crate::integration) fn watch(
        objects: Arc<SimObjectStore>,
        oracle: Arc<Oracle>,
        open: fn(SimObjectStore) -> Store,
    ) -> Arc<dyn ObjectStore> {
        Arc::new(Self { objects, oracle, open })
    }

    /// Asserts that objects may go, one after the other.
    fn assert_unneeded(&self, names: &[ObjectName], removal: Removal) {
        let objects = self.objects.contents().into_iter();
        let mut image = Image::new(objects.map(|(name, bytes)| (name, Bytes::Object(bytes))));
        for name in names {
            let open = || (self.open)(self.objects.fork());
            // What is listed is durable.
            self.oracle.assert_unneeded((&image, &image), (*name, removal), &open);
            image.remove(name);
        }
    }
}

impl ObjectStore for WatchedObjects {
    fn create(&self, session: SessionId, name: ObjectName, bytes: &[u8]) -> Result<Created> {
        self.objects.create(session, name, bytes)
    }
    fn put(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut> {
        self.objects.put(session, name, bytes)
    }
    fn put_again(&self, session: SessionId, name: ObjectName, bytes: &ObjectBytes) -> Result<PendingPut> {
        self.objects.put_again(session, name, bytes)
    }
    fn confirm(&self, names: &[ObjectName]) -> Result<()> {
        self.objects.confirm(names)
    }
    fn barrier(&self, puts: Vec<PendingPut>) -> Result<()> {
        self.objects.barrier(puts)
    }
    fn discard(&self, puts: Vec<PendingPut>) {
        self.objects.discard(puts);
    }
    fn read(&self, reads: &mut [RangeRead]) {
        self.objects.read(reads);
    }
    fn read_exact(&self, name: ObjectName, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.objects.read_exact(name, offset, buffer)
    }
    fn will_read(&self, name: ObjectName, range: Range<u64>) {
        self.objects.will_read(name, range);
    }
    fn len(&self, name: ObjectName) -> Result<Option<u64>> {
        self.objects.len(name)
    }
    fn list(&self, prefix: Prefix, detail: Detail, page: &mut dyn FnMut(Vec<Listed>) -> Result<()>) -> Result<()> {
        self.objects.list(prefix, detail, page)
    }
    fn delete(&self, names: &[ObjectName]) -> Result<()> {
        self.assert_unneeded(names, Removal::Deleted);
        self.objects.delete(names)
    }
    fn quarantine(&self, names: &[ContainerName]) -> Result<()> {
        let objects: Vec<ObjectName> = names.iter().copied().map(ObjectName::from).collect();
        self.assert_unneeded(&objects, Removal::SetAside);
        self.objects.quarantine(names)
    }
    fn quarantine_object(&self, session: SessionId, name: ObjectName, replacement: Option<&[u8]>) -> Result<()> {
        self.objects.quarantine_object(session, name, replacement)
    }
    fn refresh_collections(&self, session: SessionId) -> Result<()> {
        self.objects.refresh_collections(session)
    }
    fn refresh_sessions(&self, session: SessionId) -> Result<()> {
        self.objects.refresh_sessions(session)
    }
    fn refresh_containers(&self, session: SessionId) -> Result<()> {
        self.objects.refresh_containers(session)
    }
    fn try_handshake(&self, session: SessionId) -> Result<Handshake> {
        self.objects.try_handshake(session)
    }
    fn abilities(&self) -> Abilities {
        self.objects.abilities()
    }
    fn leftovers(&self, removes: &dyn Fn(Option<SessionId>) -> bool) -> Result<Leftovers> {
        self.objects.leftovers(removes)
    }
    fn begin_creation(&self, session: SessionId) -> Result<CreationLock> {
        self.objects.begin_creation(session)
    }
    fn end_creation(&self, lock: CreationLock) {
        self.objects.end_creation(lock);
    }
    fn complete(&self) -> Result<Vec<&'static str>> {
        self.objects.complete()
    }
    fn display(&self, key: &str) -> String {
        self.objects.display(key)
    }
}
