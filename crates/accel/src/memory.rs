//! Prefetching of memory into the processor's cache.

/// Prefetches the cache line in which a value begins, without waiting for it. Does nothing on other processors than
/// x86-64.
#[inline(always)]
pub fn will_need<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address is that of an existing value, and a hint has no effect that the program can observe.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
