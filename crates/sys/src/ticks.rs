//! A counter that is quick to read, for measuring tens of nanoseconds.

/// Returns a count that grows at a constant rate, which the caller measures: the processor's time stamp counter, or
/// nanoseconds if there is none. Two readings on different processors may differ by more than the time between them.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reading the counter changes no memory. If the system forbids it, the process ends.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::try_from(now.tv_nsec).unwrap_or_default())
    }
}

/// Returns the count of [`ticks`] after all earlier instructions have completed and before later ones begin. Otherwise,
/// instructions that the processor reorders would count toward another measurement.
#[inline]
pub fn ticks_in_order() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::_mm_lfence;
        // SAFETY: a load fence changes no register and no memory; every x86-64 processor has it.
        unsafe { _mm_lfence() };
        let now = ticks();
        // SAFETY: as above.
        unsafe { _mm_lfence() };
        now
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        ticks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_grows() {
        let first = ticks();
        let last = (0..10_000).map(|_| ticks()).max();
        assert!(last.is_some_and(|last| first < last));
        assert!(last.is_some_and(|last| last < ticks_in_order()));
    }
}
