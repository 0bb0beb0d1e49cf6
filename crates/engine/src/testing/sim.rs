//! A disk in memory for crash tests: it counts calls, fails or dies at a chosen one, and forgets what was not synced.
//!
//! A workload is run once to count its calls, then once per call with a fault there. What a power cut leaves is a new world, made
//! by [`SimDisk::crash`]; recovery runs on that. Where real file systems differ, this one is as harsh as any: a name is durable only
//! after its directory was synced, and a sync that failed loses the changes even if a later one succeeds.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::io::{
    Access, BatchRead, BatchWrite, DeviceProfile, Disk, DiskEntry, DiskFile, Linked, ReadStream, SizedEntry,
};

mod contents;
mod crash;
mod fault;
mod file;
mod host;
#[cfg(test)]
mod tests;
mod world;

pub use contents::Contents;
pub use crash::CrashMode;
pub use fault::{Fault, TraceEntry, crash_error};
pub use host::{JobCounts, SimHost};

use fault::{CallOutcome, Faults, Injected, WriteLanding};
use world::{Inode, World};

/// How simulated paths begin in messages.
const DISPLAY_ROOT: &str = "sim:";

/// A simulated disk: a handle to a directory of a simulated world. Clones and subdirectories share the world, its
/// call counter and its faults.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
    /// The directory, from the world's root.
    root: PathBuf,
}

/// What all handles and open files of a world share.
struct Shared {
    state: Mutex<State>,
}

struct State {
    world: World,
    faults: Faults,
    /// The handle that holds the lock, by file.
    locks: HashMap<Inode, u64>,
    handles: u64,
    /// Bytes that may still be written; `None` for no limit.
    free_bytes: Option<u64>,
}

impl SimDisk {
    /// Makes an empty world and returns a handle to its root.
    pub fn new() -> Self {
        Self::with_world(World::new(), PathBuf::new())
    }

    fn with_world(world: World, root: PathBuf) -> Self {
        let state = State { world, faults: Faults::default(), locks: HashMap::new(), handles: 0, free_bytes: None };
        Self { shared: Arc::new(Shared { state: Mutex::new(state) }), root }
    }

    /// Returns a handle to a directory below this one. Where it does not exist, it is created, durably and without
    /// counting a call. Panics if a file stands there: a test that is wrong.
    #[must_use]
    pub fn subdir(&self, path: &str) -> Self {
        let root = self.root.join(path);
        self.shared
            .state()
            .world
            .create_durable_dir(&root)
            .expect("the parent is a directory and no file is in the way");
        Self { shared: Arc::clone(&self.shared), root }
    }

    /// Returns how many calls were made in this world so far: every call of a method of [`Disk`] and [`DiskFile`],
    /// and every read and write of a batch.
    pub fn calls(&self) -> u64 {
        self.shared.state().faults.calls()
    }

    /// Starts to record every call; see [`SimDisk::trace`].
    pub fn record_trace(&self) {
        self.shared.state().faults.record_trace();
    }

    /// Returns the calls since recording started, in order; empty if it never did.
    pub fn trace(&self) -> Vec<TraceEntry> {
        self.shared.state().faults.trace()
    }

    /// Plans a fault at a call, counted from 1: after `n` calls, the next is `n + 1`. Several calls may have one each.
    pub fn fail_at(&self, call_number: u64, fault: Fault) {
        self.shared.state().faults.plan(call_number, fault);
    }

    /// Forgets all planned faults and frees a full disk. A world whose process died stays dead: see
    /// [`SimDisk::reopen`].
    pub fn clear_faults(&self) {
        self.shared.state().faults.clear();
    }

    /// Says whether [`Fault::Die`] or [`Fault::DieAfter`] has struck.
    pub fn is_dead(&self) -> bool {
        self.shared.state().faults.is_dead()
    }

    /// Lets only so many more bytes be written, beside those of files that are removed; `None` for no limit.
    pub fn limit_space(&self, bytes: Option<u64>) {
        self.shared.state().free_bytes = bytes;
    }

    /// Changes the durable bytes of a file.
    pub fn damage(&self, path: impl AsRef<Path>, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.bytes(&path);
        change(&mut bytes);
        let file = self.open(path.as_ref(), Access::ReadWrite).expect("the file exists");
        file.set_len(bytes.len() as u64)
            .and_then(|()| file.write_at(0, &bytes))
            .and_then(|()| file.sync())
            .expect("no fault");
    }

    /// Returns the bytes of a file.
    pub fn bytes(&self, path: impl AsRef<Path>) -> Vec<u8> {
        crate::store::read_file(self, path.as_ref(), usize::MAX).expect("the file exists")
    }

    /// Returns how many planned faults have struck.
    fn faults_struck(&self) -> u64 {
        self.shared.state().faults.struck()
    }

    /// Says whether the error is the one that a dead world answers with.
    pub fn is_crash(error: &Error) -> bool {
        matches!(error, Error::Io { source, .. } if fault::is_crash(source))
    }

    /// Cuts the power: returns a handle, rooted as this one, to the world that is left. There, no lock is held, no
    /// fault planned and no call counted, and all that survived is durable. This world stays as it is, so that one
    /// moment can be crashed in many ways.
    #[must_use]
    pub fn crash(&self, mode: CrashMode) -> Self {
        let state = self.shared.state();
        let world = crash::crash(&state.world, mode).expect("changes that fitted once fit again");
        Self::with_world(world, self.root.clone())
    }

    /// Kills the process and starts another, the kernel living on: as [`SimDisk::fork`]. Nothing is lost, and what was
    /// not synced is still not durable.
    #[must_use]
    pub fn reopen(&self) -> Self {
        self.fork()
    }

    /// Returns a handle, rooted as this one, to an independent copy of the world as it stands: what is not synced is
    /// not synced there either. No lock is held, no fault planned and no call counted. Costs a pointer per node.
    #[must_use]
    pub fn fork(&self) -> Self {
        let state = self.shared.state();
        Self::with_world(state.world.clone(), self.root.clone())
    }

    fn full(&self, path: &Path) -> PathBuf {
        // Joining an empty path would leave a trailing slash in every message.
        if path.as_os_str().is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    /// Carries out a call on a path: counts it, lets a planned fault strike, else takes the effect.
    fn call<T>(
        &self,
        operation: &'static str,
        path: &Path,
        effect: impl FnOnce(&mut State, &Path) -> io::Result<T>,
    ) -> Result<T> {
        let path = self.full(path);
        self.shared.plain_call(operation, &path, |state| effect(state, &path))
    }

    fn file(&self, inode: Inode, handle: u64, path: &Path, access: Access) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { shared: Arc::clone(&self.shared), inode, handle, path: self.full(path), access })
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A test's thread that panicked cannot have left the state between two values: each change is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call and carries out what the faults leave of it. The effect must end as an error injected says.
    fn call<T>(
        &self,
        operation: &'static str,
        path: &Path,
        effect: impl FnOnce(&mut State, Option<Injected>) -> io::Result<T>,
    ) -> Result<T> {
        let mut state = self.state();
        let result = match state.faults.next_call(operation, path) {
            CallOutcome::Proceed => effect(&mut state, None),
            CallOutcome::Fail(injected) => effect(&mut state, Some(injected)),
            CallOutcome::ProceedThenFail(kind) => effect(&mut state, None).and_then(|_| Err(kind.into())),
            CallOutcome::Dead => Err(fault::crash_error()),
            CallOutcome::ProceedThenDie => {
                // How the call ended is of no interest to the dead.
                let _ = effect(&mut state, None);
                state.faults.die();
                Err(fault::crash_error())
            }
        };
        result.map_err(|error| Error::io(operation, &display(path), error))
    }

    /// As `call`, of an operation that takes no effect when an error is injected.
    fn plain_call<T>(
        &self,
        operation: &'static str,
        path: &Path,
        effect: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> Result<T> {
        self.call(operation, path, |state, injected| match injected {
            Some(Injected { kind, .. }) => Err(kind.into()),
            None => effect(state),
        })
    }
}

impl State {
    /// Fails if the name is new and the disk is full.
    fn space_for_name(&self, path: &Path) -> io::Result<()> {
        if self.world.exists(path)? { Ok(()) } else { self.faults.free_space() }
    }

    fn next_handle(&mut self) -> u64 {
        self.handles += 1;
        self.handles
    }
}

fn display(path: &Path) -> PathBuf {
    let root = Path::new(DISPLAY_ROOT);
    if path.as_os_str().is_empty() { root.to_path_buf() } else { root.join(path) }
}

impl Disk for SimDisk {
    fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>> {
        let (inode, handle) = self.call("create", path, |state, path| {
            state.space_for_name(path)?;
            Ok((state.world.create_file(path)?, state.next_handle()))
        })?;
        Ok(self.file(inode, handle, path, Access::ReadWrite))
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn DiskFile>> {
        let (inode, handle) =
            self.call("open", path, |state, path| Ok((state.world.open_file(path)?, state.next_handle())))?;
        Ok(self.file(inode, handle, path, access))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        let created = self.call("create directory", path, |state, path| {
            state.space_for_name(path)?;
            state.world.create_dir(path)
        });
        match created {
            // As on a real disk, where a directory that exists is fine.
            Err(error) if error.io_kind() == Some(ErrorKind::AlreadyExists) && self.list(path).is_ok() => Ok(()),
            created => created,
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let to = self.full(to);
        self.call("rename", from, |state, from| state.world.rename(from, &to))
    }

    fn exchange(&self, from: &Path, to: &Path) -> Result<()> {
        let to = self.full(to);
        self.call("exchange", from, |state, from| state.world.exchange(from, &to))
    }

    fn link(&self, existing: &Path, new: &Path) -> Result<Linked> {
        let existing = self.full(existing);
        let linked = self.call("link", new, |state, new| {
            state.space_for_name(new)?;
            state.world.link(&existing, new)
        });
        match linked {
            Err(error) if error.io_kind() == Some(ErrorKind::AlreadyExists) => Ok(Linked::Existed),
            linked => linked,
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.call("remove", path, |state, path| state.world.remove(path, &mut state.free_bytes))
    }

    fn remove_dir(&self, path: &Path) -> Result<bool> {
        self.call("remove directory", path, |state, path| state.world.remove_dir(path))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let path = self.full(path);
        self.shared.call("sync directory", &path, |state, injected| match injected {
            None => state.world.sync_dir(&path),
            Some(Injected { kind, .. }) => {
                state.world.fail_sync_dir(&path)?;
                Err(kind.into())
            }
        })
    }

    fn list(&self, path: &Path) -> Result<Vec<DiskEntry>> {
        self.call("list", path, |state, path| state.world.list(path))
    }

    fn list_sized(&self, path: &Path) -> Result<Vec<SizedEntry>> {
        self.call("list", path, |state, path| state.world.list_sized(path))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.call("look up", path, |state, path| state.world.exists(path))
    }

    /// In the order of the batch, so that the n-th call is the same in every run.
    fn read_batch(&self, reads: &mut [BatchRead]) {
        for read in reads {
            read.outcome = read.file.read_at(read.offset, &mut read.buffer);
        }
    }

    /// Ends reads in another order than they came, each while others wait.
    fn read_stream(&self, file: &Arc<dyn DiskFile>, reads: &mut dyn ReadStream) {
        let (mut waiting, mut next) = (Vec::new(), 0);
        loop {
            waiting.extend(std::iter::from_fn(|| reads.next()).take(16 - waiting.len()));
            if waiting.is_empty() {
                return;
            }
            next += 7;
            let mut read = waiting.swap_remove(next % waiting.len());
            let outcome = file.read_at(read.offset, &mut read.buffer);
            reads.end(read, outcome);
        }
    }

    /// In the order of the batch too. What a power cut leaves of the writes is as independent as if they had been in
    /// flight together: none was synced.
    fn write_batch(&self, writes: &mut [BatchWrite]) {
        for write in writes {
            write.outcome = write.file.write_at(write.offset, &write.buffer);
        }
    }

    fn measure(&self, path: &Path) -> Result<Option<DeviceProfile>> {
        self.call("measure", path, |state, path| state.world.open_file(path).map(|_| None))
    }

    fn display(&self, path: &Path) -> String {
        display(&self.full(path)).display().to_string()
    }
}

/// A file of a [`SimDisk`], open.
struct SimFile {
    shared: Arc<Shared>,
    inode: Inode,
    /// Unique among the handles of the world, to tell who holds a lock.
    handle: u64,
    path: PathBuf,
    access: Access,
}

impl SimFile {
    fn call<T>(&self, operation: &'static str, effect: impl FnOnce(&mut State) -> io::Result<T>) -> Result<T> {
        self.shared.plain_call(operation, &self.path, effect)
    }

    fn writable(&self) -> io::Result<()> {
        if self.access.writes() { Ok(()) } else { Err(ErrorKind::PermissionDenied.into()) }
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile").field("path", &self.path).field("access", &self.access).finish_non_exhaustive()
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if state.locks.get(&self.inode) == Some(&self.handle) {
            state.locks.remove(&self.inode);
        }
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> Result<u64> {
        self.call("look up", |state| Ok(state.world.file(self.inode)?.live().len()))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.access.check_aligned("read", &display(&self.path), offset, buffer)?;
        self.call("read", |state| {
            let contents = state.world.file(self.inode)?.live();
            let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= contents.len());
            if end.is_none() && !buffer.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            contents.read(offset, buffer);
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.access.check_aligned("write", &display(&self.path), offset, bytes)?;
        self.shared.call("write", &self.path, |state, injected| {
            self.writable()?;
            let (landing, outcome) = match injected {
                None => (bytes, Ok(())),
                Some(Injected { kind, landing: WriteLanding::Nothing }) => (&[][..], Err(kind.into())),
                Some(Injected { kind, landing: WriteLanding::FirstHalf }) => {
                    (bytes.get(..bytes.len() / 2).unwrap_or_default(), Err(kind.into()))
                }
            };
            if state.world.file(self.inode)?.live().grows(offset, landing.len())? {
                state.faults.free_space()?;
            }
            if let Some(free) = &mut state.free_bytes {
                *free = free.checked_sub(landing.len() as u64).ok_or(ErrorKind::StorageFull)?;
            }
            state.world.file_mut(self.inode)?.write(offset, landing)?;
            outcome
        })
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.call("resize", |state| {
            self.writable()?;
            if state.world.file(self.inode)?.live().len() < len {
                state.faults.free_space()?;
            }
            state.world.file_mut(self.inode)?.set_len(len);
            Ok(())
        })
    }

    fn sync(&self) -> Result<()> {
        self.shared.call("sync", &self.path, |state, injected| {
            let file = state.world.file_mut(self.inode)?;
            match injected {
                None => file.sync(),
                Some(Injected { kind, .. }) => {
                    file.fail_sync();
                    Err(kind.into())
                }
            }
        })
    }

    fn try_lock(&self) -> Result<bool> {
        self.call("lock", |state| {
            let holder = *state.locks.entry(self.inode).or_insert(self.handle);
            Ok(holder == self.handle)
        })
    }

    fn is_direct(&self) -> bool {
        self.access == Access::Direct
    }
}
