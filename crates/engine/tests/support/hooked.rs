//! A disk on which something happens before each call.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use onefold_engine::Result;
use onefold_engine::io::{Access, BatchRead, Disk, DiskEntry, DiskFile, Linked};

/// Something that happens before a call, by the call's number.
pub(in crate::integration) type Hook = Box<dyn FnMut(u64) + Send>;

/// A disk on which something happens before each call.
pub(in crate::integration) struct Hooked {
    disk: Arc<dyn Disk>,
    calls: AtomicU64,
    hook: Mutex<Hook>,
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooked").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Hooked {
    /// Lets something happen before each call.
    pub(in crate::integration) fn new(disk: Arc<dyn Disk>, hook: Hook) -> Arc<Self> {
        Arc::new(Self { disk, calls: AtomicU64::new(0), hook: Mutex::new(hook) })
    }

    /// Counts calls from 0 again, and lets something else happen.
    pub(in crate::integration) fn restart(&self, hook: Hook) {
        self.calls.store(0, Ordering::Relaxed);
        *self.hook.lock().unwrap() = hook;
    }

    /// Returns the number of calls.
    pub(in crate::integration) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn call(&self) -> &dyn Disk {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        (self.hook.lock().unwrap())(call);
        &*self.disk
    }
}

impl Disk for Hooked {
    fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>> {
        self.call().create(path)
    }
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn DiskFile>> {
        self.call().open(path, access)
    }
    fn create_dir(&self, path: &Path) -> Result<()> {
        self.call().create_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.call().rename(from, to)
    }
    fn exchange(&self, from: &Path, to: &Path) -> Result<()> {
        self.call().exchange(from, to)
    }
    fn link(&self, existing: &Path, new: &Path) -> Result<Linked> {
        self.call().link(existing, new)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.call().remove(path)
    }
    fn remove_dir(&self, path: &Path) -> Result<bool> {
        self.call().remove_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.call().sync_dir(path)
    }
    fn list(&self, path: &Path) -> Result<Vec<DiskEntry>> {
        self.call().list(path)
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        self.call().exists(path)
    }
    fn read_batch(&self, reads: &mut [BatchRead]) {
        self.call().read_batch(reads);
    }
    fn display(&self, path: &Path) -> String {
        self.disk.display(path)
    }
}
