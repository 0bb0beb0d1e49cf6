//! What flushes cost, and what becomes durable without them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use super::*;
use crate::nbd::export::{Context, StatusExtents};

#[test]
fn records_become_durable_without_a_flush() {
    let disk = world();
    let host = Arc::new(SimHost::new(1));
    let group = open_on(&disk, Arc::clone(&host) as Arc<dyn Host>, OPTIONS, origins(&disk).unwrap()).unwrap().0;
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    volume.write(USED.start, &[1; 100], Fua::No).unwrap();
    group.maintain().unwrap();
    assert_eq!(group.journal().status().durable, Lsn(1));
    host.sleep(UNSYNCED_AGE);
    group.maintain().unwrap();
    assert_eq!(group.journal().status().durable, Lsn(2));
    let calls = disk.calls();
    host.sleep(UNSYNCED_AGE);
    group.maintain().unwrap();
    assert_eq!(disk.calls(), calls, "there is nothing to sync");
    let image = disk.crash(CrashMode::LoseUnsynced);
    assert_eq!(open(&image, 2, Durability::Both).unwrap().1.journal.next, Lsn(2));
}

/// A volume whose writes and syncs wait until a gate is open.
#[derive(Debug)]
struct Gated {
    origin: Arc<dyn Export>,
    is_closed: Mutex<bool>,
    opened: Condvar,
    writes: AtomicU32,
    syncs: AtomicU32,
    fails: AtomicBool,
}

impl Gated {
    fn new(origin: Arc<dyn Export>) -> Arc<Self> {
        let (writes, syncs) = (AtomicU32::new(0), AtomicU32::new(0));
        let (is_closed, opened, fails) = (Mutex::new(false), Condvar::new(), AtomicBool::new(false));
        Arc::new(Self { origin, is_closed, opened, writes, syncs, fails })
    }

    fn set_closed(&self, is_closed: bool) {
        *self.is_closed.lock().unwrap() = is_closed;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        while *is_closed {
            is_closed = self.opened.wait(is_closed).unwrap();
        }
    }
}

impl Export for Gated {
    fn size(&self) -> u64 {
        self.origin.size()
    }

    fn flags(&self) -> u16 {
        self.origin.flags()
    }

    fn has_context(&self, _: Context) -> bool {
        false
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.origin.read(offset, into)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), Errno> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.pass();
        self.origin.write(offset, data, fua)
    }

    fn write_zeroes(&self, range: Range<u64>, options: ZeroOptions) -> Result<(), Errno> {
        self.origin.write_zeroes(range, options)
    }

    fn trim(&self, range: Range<u64>, fua: Fua) -> Result<(), Errno> {
        self.origin.trim(range, fua)
    }

    fn flush(&self) -> Result<(), Errno> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        self.pass();
        if self.fails.load(Ordering::SeqCst) { Err(Errno::Io) } else { self.origin.flush() }
    }

    fn cache(&self, _: Range<u64>) -> Result<(), Errno> {
        Ok(())
    }

    fn block_status(&self, _: Range<u64>, _: Context, _: &mut StatusExtents) -> Result<(), Errno> {
        Err(Errno::NotSupported)
    }
}

fn gated(disk: &SimDisk) -> (Arc<Group>, Arc<Gated>) {
    let mut origins = origins(disk).unwrap();
    let gate = Gated::new(Arc::clone(&origins[0]));
    origins[0] = Arc::clone(&gate) as Arc<dyn Export>;
    (open_on(disk, Arc::new(SimHost::new(1)), OPTIONS, origins).unwrap().0, gate)
}

/// Waits until something is true that other threads bring about.
fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("it does not happen");
}

#[test]
fn flushes_of_many_clients_share_syncs_of_the_volume() {
    let disk = world();
    let (group, gate) = gated(&disk);
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    volume.write(USED.start, &[1; 100], Fua::Yes).unwrap();
    let before = gate.syncs.load(Ordering::SeqCst);
    let next = group.journal().next();
    gate.set_closed(true);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| volume.flush().unwrap());
        }
        // The first has begun its sync, and all have recorded themselves.
        wait_until(|| {
            before < gate.syncs.load(Ordering::SeqCst) && group.journal().status().durable == Lsn(next.0 + 8)
        });
        gate.set_closed(false);
    });
    let syncs = gate.syncs.load(Ordering::SeqCst) - before;
    // One that was in progress, one for those that came meanwhile, and one for a thread that was late.
    assert!((2..=3).contains(&syncs), "{syncs} syncs");
}

#[test]
fn a_sync_of_a_volume_that_failed_is_not_tried_again() {
    let disk = world();
    let (group, gate) = gated(&disk);
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    volume.write(USED.start, &[1; 100], Fua::No).unwrap();
    gate.fails.store(true, Ordering::SeqCst);
    assert_eq!(volume.flush(), Err(Errno::Io));
    gate.fails.store(false, Ordering::SeqCst);
    assert_eq!((volume.flush(), group.sync()), (Err(Errno::Io), Err(Errno::Io)));
    assert_eq!(gate.syncs.load(Ordering::SeqCst), 1);
    assert!(group.close().is_err());
}

#[test]
fn a_group_is_not_closed_while_a_request_is_in_progress() {
    let disk = world();
    let (group, gate) = gated(&disk);
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    gate.set_closed(true);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| volume.write(USED.start, &[5; 100], Fua::No));
        wait_until(|| gate.writes.load(Ordering::SeqCst) == 1);
        let refused = group.close().unwrap_err().to_string();
        assert!(refused.contains("may lack records"), "{refused}");
        gate.set_closed(false);
        assert_eq!(write.join().unwrap(), Ok(()));
    });
    assert_eq!(volume.write(USED.start, &[6; 100], Fua::No), Err(Errno::Io));
    let opened = open(&disk.reopen(), 1, Durability::Both).unwrap().1;
    assert_eq!((opened.last, opened.applied), (LastUse::Stopped, 1));
}
