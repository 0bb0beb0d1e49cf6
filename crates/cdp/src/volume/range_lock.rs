//! A lock on ranges of a volume: changes that overlap take place one after the other, so that the order of the journal is that of the
//! volume.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A lock on ranges. Connections have few requests in flight, so a list is searched.
#[derive(Debug, Default)]
pub(super) struct RangeLock {
    held: Mutex<Vec<Range<u64>>>,
    released: Condvar,
}

/// A range that is held until this is dropped.
#[derive(Debug)]
pub(super) struct HeldRange<'a> {
    lock: &'a RangeLock,
    range: Range<u64>,
}

impl RangeLock {
    fn lock(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody holds a part of the range, and holds it.
    pub(super) fn hold(&self, range: Range<u64>) -> HeldRange<'_> {
        let mut held = self.lock();
        while held.iter().any(|other| other.start < range.end && range.start < other.end) {
            held = self.released.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        held.push(range.clone());
        HeldRange { lock: self, range }
    }
}

impl Drop for HeldRange<'_> {
    fn drop(&mut self) {
        let mut held = self.lock.lock();
        if let Some(at) = held.iter().position(|range| *range == self.range) {
            held.swap_remove(at);
        }
        drop(held);
        self.lock.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn ranges_that_overlap_exclude_each_other_and_others_do_not() {
        let lock = RangeLock::default();
        let first = lock.hold(0..10);
        let _second = lock.hold(10..20);
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let _third = lock.hold(9..10);
                inside.store(1, Ordering::SeqCst);
            });
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            drop(first);
            waiting.join().unwrap();
        });
        assert_eq!(inside.load(Ordering::SeqCst), 1);
        assert_eq!(lock.lock().len(), 1);
    }

    #[test]
    fn threads_that_change_the_same_bytes_never_meet() {
        let lock = RangeLock::default();
        let users = [const { AtomicU32::new(0) }; 16];
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let (lock, users) = (&lock, &users);
                scope.spawn(move || {
                    for turn in 0..500 {
                        let start = (turn * 7 + thread * 3) % 13;
                        let _held = lock.hold(start as u64..start as u64 + 3);
                        for user in &users[start..start + 3] {
                            assert_eq!(user.fetch_add(1, Ordering::SeqCst), 0);
                        }
                        for user in &users[start..start + 3] {
                            user.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
    }
}
