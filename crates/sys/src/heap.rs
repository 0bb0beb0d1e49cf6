//! Limits of the heap.

/// Limits the regions from which the threads of the process allocate, if its allocator has several. Each keeps the most that was
/// allocated from it at a time, so a process that starts threads again and again holds as many peaks as it has regions. To be called before
/// threads start. The GNU C library has 8 for each processor by default; other allocators have no such limit, and this does nothing.
pub fn limit_arenas(arenas: u8) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// `M_ARENA_MAX` of malloc.h.
        const ARENA_MAX: std::ffi::c_int = -8;
        unsafe extern "C" {
            fn mallopt(parameter: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
        }
        // SAFETY: the call takes two integers and changes a setting of the allocator, under its own lock.
        let _accepted = unsafe { mallopt(ARENA_MAX, arenas.max(1).into()) };
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = arenas;
}
