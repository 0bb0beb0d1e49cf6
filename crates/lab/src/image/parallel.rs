//! Parts of a list, handed out to threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::advise::window::on_threads;

/// Works on each part, on `threads` threads or on fewer if the system refuses some. After an error, no further part begins; returns
/// the first error.
pub(crate) fn for_each<P: Send, E: Send>(
    parts: impl Iterator<Item = P> + Send,
    threads: usize,
    work: impl Fn(P) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let parts = Mutex::new(parts);
    let failed = Mutex::new(None);
    let stopped = AtomicBool::new(false);
    on_threads(threads, || {
        while !stopped.load(Ordering::Relaxed) {
            let Some(part) = parts.lock().unwrap_or_else(PoisonError::into_inner).next() else { return };
            if let Err(error) = work(part) {
                stopped.store(true, Ordering::Relaxed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// As [`for_each`], for work that cannot fail.
pub(crate) fn for_all<P: Send>(parts: impl Iterator<Item = P> + Send, threads: usize, work: impl Fn(P) + Sync) {
    let Ok(()) = for_each(parts, threads, |part| {
        work(part);
        Ok::<_, std::convert::Infallible>(())
    });
}

/// Items of a part, so that each thread has several parts and none is too small to be worth a lock.
pub(crate) fn part_len(items: usize, threads: usize) -> usize {
    /// Parts of each thread: the last ones to end keep the others waiting for an eighth of their work at most.
    const PARTS: usize = 8;
    /// Fewest items of a part: they take tens of microseconds, and taking a part less than one.
    const ITEMS_MIN: usize = 1024;
    items.div_ceil(threads.max(1) * PARTS).max(ITEMS_MIN)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn each_part_is_worked_on_once_and_an_error_ends_the_work() {
        for threads in [1, 2, 7, 64] {
            let sum = AtomicUsize::new(0);
            for_all(1..=1000, threads, |part| {
                sum.fetch_add(part, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 500_500);
            let begun = AtomicUsize::new(0);
            let result = for_each(0..1_000_000, threads, |part| {
                begun.fetch_add(1, Ordering::Relaxed);
                if part == 5 { Err("five") } else { Ok(()) }
            });
            assert_eq!(result, Err("five"));
            assert!(begun.into_inner() < 1_000_000);
        }
    }

    #[test]
    fn parts_cover_all_items_and_are_not_tiny() {
        for (items, threads) in [(0, 1), (1, 64), (100_000, 2), (1 << 20, 64)] {
            let len = part_len(items, threads);
            assert!(1024 <= len && items.div_ceil(len) <= 8 * threads.max(1), "{items}, {threads}: {len}");
        }
    }
}
