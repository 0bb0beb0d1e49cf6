//! Limits on how many threads do something at the same time, because it takes memory.

use std::sync::{Condvar, Mutex, PoisonError};

/// So many permits. Whoever takes one waits for no other kind of permit meanwhile.
#[derive(Debug)]
pub(crate) struct Permits {
    free: Mutex<usize>,
    given_back: Condvar,
}

impl Permits {
    /// Makes permits, one at least.
    pub(crate) fn new(count: usize) -> Self {
        Self { free: Mutex::new(count.max(1)), given_back: Condvar::new() }
    }

    /// Waits for a permit. It is given back when it is dropped.
    pub(crate) fn take(&self) -> Permit<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.given_back.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Permit(self)
    }
}

/// A permit that was taken.
#[derive(Debug)]
#[must_use]
pub(crate) struct Permit<'a>(&'a Permits);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.given_back.notify_one();
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
}
