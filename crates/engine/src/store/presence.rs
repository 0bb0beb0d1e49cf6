//! Locks that tell a host which of its sessions' processes have died.
//!
//! The process of a session holds the lock of the file `sessions/<session>` in the repository's cache directory. The kernel
//! releases it when the process ends, however that happens. The session's object names the process and the boot of its host
//! (tag 133), so that nobody takes the lock of another host, or of another boot, for an answer. A lock decides nothing: a
//! collection fences a session whose process has died without waiting for it, and a fence is always safe.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::{Access, Disk, DiskFile, Host};
use crate::snapshot::SessionBody;
use crate::store::scratch::Scratch;
use crate::types::SessionId;

/// Directory of the locks in the cache directory of a repository.
const SESSIONS: &str = "sessions";

/// The lock of a session. Dropping it removes the file and releases the lock.
#[derive(Debug)]
pub(crate) struct Presence {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    _lock: Arc<dyn DiskFile>,
}

impl Presence {
    /// Takes the lock of a session that is about to begin. Without a cache that can be written there is none.
    pub(crate) fn announce(scratch: &Scratch, session: SessionId) -> Option<Self> {
        let disk = Arc::clone(scratch.disk.as_ref()?);
        let dir = scratch.dir.join(SESSIONS);
        disk.create_dir(&dir).ok()?;
        let path = dir.join(session.to_string());
        let lock = disk.create(&path).ok()?;
        lock.try_lock().ok()?.then_some(Self { disk, path, _lock: lock })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // One that stays is removed by a later session.
        let _left_over = self.disk.remove(&self.path);
    }
}

/// Returns true if the process of a session is known to have died.
pub(crate) fn is_dead(scratch: &Scratch, host: &dyn Host, session: SessionId, body: &SessionBody) -> bool {
    let boots = (body.process.map(|process| process.boot), host.process().map(|process| process.boot));
    let Some(disk) = scratch.disk.as_ref().filter(|_| boots.0.is_some() && boots.0 == boots.1) else { return false };
    is_released(&**disk, &scratch.dir.join(SESSIONS).join(session.to_string())).unwrap_or(false)
}

/// Removes what processes have left that died after their sessions had ended.
pub(crate) fn remove_left(scratch: &Scratch, has_ended: impl Fn(SessionId) -> bool) {
    let Some(disk) = &scratch.disk else { return };
    let dir = scratch.dir.join(SESSIONS);
    for entry in disk.list(&dir).unwrap_or_default() {
        let path = dir.join(&entry.name);
        if SessionId::parse(&entry.name).is_some_and(&has_ended) && is_released(&**disk, &path).unwrap_or(false) {
            // The next session tries again.
            let _left_over = disk.remove(&path);
        }
    }
}

/// Returns true if a file exists and no process holds its lock.
fn is_released(disk: &dyn Disk, path: &Path) -> Result<bool, Error> {
    disk.open(path, Access::ReadWrite)?.try_lock()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::SessionKind;
    use crate::testing::sim::{Fault, SimDisk, SimHost};
    use crate::types::Timestamp;

    fn body(host: &dyn Host) -> SessionBody {
        SessionBody {
            kind: SessionKind::Backup,
            collections_seen: 0,
            time: Timestamp::default(),
            hostname: String::new(),
            process: host.process(),
        }
    }

    fn scratch(disk: &SimDisk) -> Scratch {
        Scratch { disk: Some(Arc::new(disk.clone())), dir: PathBuf::new() }
    }

    #[test]
    fn a_process_is_dead_once_the_kernel_has_released_its_lock_and_only_on_its_own_host() {
        let (disk, host) = (SimDisk::new(), SimHost::new(1));
        let (own, id) = (scratch(&disk), SessionId([7; 16]));
        assert!(!is_dead(&own, &host, id, &body(&host)), "no lock was ever taken");
        let presence = Presence::announce(&own, id).unwrap();
        assert!(!is_dead(&own, &host, id, &body(&host)), "at work");
        remove_left(&own, |_| true);
        assert!(!is_dead(&own, &host, id, &body(&host)), "a lock that is held is left alone");
        disk.fail_at(disk.calls() + 1, Fault::Die);
        drop(presence);
        let disk = disk.reopen();
        let own = scratch(&disk);
        assert!(is_dead(&own, &host, id, &body(&host)), "killed");
        assert!(!is_dead(&own, &SimHost::new(2), id, &body(&host)), "of another boot");
        assert!(!is_dead(&own, &host, id, &SessionBody { process: None, ..body(&host) }), "of an earlier version");
        remove_left(&own, |session| session != id);
        assert!(is_dead(&own, &host, id, &body(&host)), "its session has not ended");
        remove_left(&own, |session| session == id);
        assert!(disk.list(Path::new(SESSIONS)).unwrap().is_empty());
    }

    #[test]
    fn no_error_of_the_cache_stops_a_session() {
        for call in 1..=4 {
            let disk = SimDisk::new();
            disk.fail_at(call, Fault::Error(std::io::ErrorKind::Other));
            drop(Presence::announce(&scratch(&disk), SessionId([7; 16])));
        }
        assert!(Presence::announce(&Scratch::default(), SessionId([7; 16])).is_none());
    }
}
