//! Telling the processor which memory will be wanted soon.

/// Asks for the cache line in which a value begins, without waiting for it. Where the processor cannot be asked, nothing
/// happens.
#[inline(always)]
pub fn will_need<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address is that of a value that exists, and a hint reads nothing that the program sees.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
