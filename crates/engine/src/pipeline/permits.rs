//! Limits on how many threads do something at the same time, because it takes memory.

use std::sync::{Condvar, Mutex, PoisonError};

/// So many permits. Whoever takes one waits for no other kind of permit meanwhile.
#[derive(Debug)]
pub(crate) struct Permits {
    count: usize,
    free: Mutex<usize>,
    given_back: Condvar,
}

impl Permits {
    /// Makes permits, one at least.
    pub(crate) fn new(count: usize) -> Self {
        let count = count.max(1);
        Self { count, free: Mutex::new(count), given_back: Condvar::new() }
    }

    /// Waits for a permit. It is given back when it is dropped.
    pub(crate) fn take(&self) -> Permit<'_> {
        self.take_many(1)
    }

    /// Waits until so many permits are free together, or all of them if there are fewer, and takes them.
    pub(crate) fn take_many(&self, wanted: usize) -> Permit<'_> {
        let taken = wanted.min(self.count);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free < taken {
            free = self.given_back.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= taken;
        Permit { permits: self, taken }
    }
}

/// Permits that were taken.
#[derive(Debug)]
#[must_use]
pub(crate) struct Permit<'a> {
    permits: &'a Permits,
    taken: usize,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.permits.free.lock().unwrap_or_else(PoisonError::into_inner) += self.taken;
        // One that waits for many may be woken first, and not have enough.
        self.permits.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn no_more_threads_go_on_than_there_are_permits() {
        let (permits, running, most) = (Permits::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _permit = permits.take();
                        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!((1..=2).contains(&most.load(Ordering::SeqCst)));
    }

    #[test]
    fn permits_that_are_taken_together_never_exceed_what_there_is_and_more_than_all_are_all() {
        let (permits, taken, most) = (Permits::new(5), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (permits, taken, most) = (&permits, &taken, &most);
                scope.spawn(move || {
                    for round in 0..200 {
                        let wanted = (thread + round) % 9;
                        let _permits = permits.take_many(wanted);
                        let wanted = wanted.min(5);
                        most.fetch_max(taken.fetch_add(wanted, Ordering::SeqCst) + wanted, Ordering::SeqCst);
                        std::thread::yield_now();
                        taken.fetch_sub(wanted, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.load(Ordering::SeqCst), 5, "all of them were taken by one that wanted more");
        assert_eq!(*permits.free.lock().unwrap(), 5);
    }
}
