//! What the allocator keeps of freed memory.

/// Has the allocator give freed memory back to the system, as far as it has such a function (glibc's does): it goes
/// through all it has, which takes milliseconds.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointer, may be called at any time from any thread, and frees nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "what the kernel says of this process is no file of the user's")]
    fn resident_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix("kB").unwrap().trim().parse::<usize>().unwrap() << 10
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn pieces_freed_between_others_leave_memory() {
        let pieces: Vec<Vec<u8>> = (0..2_000).map(|_| vec![1; 40 << 10]).collect();
        let full = resident_bytes();
        let kept: Vec<Vec<u8>> = pieces.into_iter().step_by(8).collect();
        give_back();
        let left = full - resident_bytes();
        assert!(50 << 20 < left, "{left} bytes of 70 MiB are back");
        assert_eq!(kept.len(), 250);
    }
}
