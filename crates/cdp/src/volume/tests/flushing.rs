//! Cost of flushes, and changes that become durable without them.

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

#[test]
fn changes_without_a_record_become_durable_without_a_flush() {
    let disk = world();
    let host = Arc::new(SimHost::new(1));
    let size = JournalSize { segment_bytes: 32 << 10, segments_max: 4 };
    let options = GroupOptions { size, when_behind: WhenBehind::Bitmap, ..OPTIONS };
    let group = open_on(&disk, Arc::clone(&host) as Arc<dyn Host>, options, origins(&disk).unwrap()).unwrap().0;
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    for byte in 1..=60 {
        volume.write(USED.start, &[byte; 4_000], Fua::No).unwrap();
    }
    assert!(!group.status().is_recording);
    let kept = || contents(&disk.crash(CrashMode::LoseUnsynced))[0][0];
    assert_ne!(kept(), 60);
    host.sleep(UNSYNCED_AGE);
    group.maintain().unwrap();
    assert_eq!(kept(), 60);
    let calls = disk.calls();
    host.sleep(UNSYNCED_AGE);
    group.maintain().unwrap();
    assert_eq!(disk.calls(), calls, "there is nothing to sync");
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
    gate.set_closed(true);
    let first = group.syncs.begin(0);
    wait_until(|| gate.syncs.load(Ordering::SeqCst) == 1);
    // What these have written may have come too late for the sync in progress.
    let later: Vec<_> = (0..7).map(|_| group.syncs.begin(0)).collect();
    gate.set_closed(false);
    for wanted in std::iter::once(first).chain(later) {
        group.syncs.finish(wanted).unwrap();
    }
    assert_eq!(gate.syncs.load(Ordering::SeqCst), 2);
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| volume.write(USED.start, &[1; 100], Fua::Yes).unwrap());
        }
    });
    assert!((3..=10).contains(&gate.syncs.load(Ordering::SeqCst)));
    group.close().unwrap();
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

#[test]
fn writes_slow_down_before_the_journal_is_full() {
    let disk = world();
    let host = Arc::new(SimHost::new(1));
    host.set_step(std::time::Duration::ZERO);
    let size = JournalSize { segment_bytes: 128 << 10, segments_max: 8 };
    let options = GroupOptions { size, when_behind: WhenBehind::Block, ..OPTIONS };
    let shared = Arc::clone(&host) as Arc<dyn Host>;
    let group = open_on(&disk, shared, options, origins(&disk).unwrap()).unwrap().0;
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    let (mut delayed, mut prompt) = (0, 0);
    loop {
        let status = group.journal().status();
        if 9 * status.bytes_max <= 10 * status.used {
            break;
        }
        let (before, is_prompt) = (host.monotonic(), volume.is_prompt());
        assert_eq!(is_prompt, 4 * status.used <= 3 * status.bytes_max);
        volume.write(USED.start, &[1; 4_000], Fua::No).unwrap();
        let waited = host.monotonic().saturating_sub(before);
        assert_eq!(waited.is_zero(), is_prompt, "{status:?}");
        assert!(waited <= DELAY_MAX);
        (delayed, prompt) = (delayed + u32::from(!is_prompt), prompt + u32::from(is_prompt));
    }
    assert!(10 < delayed && 10 < prompt, "{delayed} delayed, {prompt} not");
}
