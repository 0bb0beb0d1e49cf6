//! Processor time, and time in which a thread had none.

use std::fs::read_to_string;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time that the calling thread has taken so far.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Returns the processor time that the calling thread has taken since a moment.
pub(crate) fn processor_time_since(start: Duration) -> Duration {
    processor_time().saturating_sub(start)
}

/// Returns for how long the calling thread was ready to run and had no processor, so far; none where the kernel does not tell.
pub(crate) fn waiting_time() -> Duration {
    // Time on a processor, time waiting for one, turns: nanoseconds, by spaces.
    let text = read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or_default())
}

/// Returns the version of the driver for NVIDIA GPUs; none where the system does not tell.
pub(crate) fn driver_version() -> Option<String> {
    version_in(&read_to_string("/proc/driver/nvidia/version").unwrap_or_default())
}

/// Finds the first word of digits and points.
fn version_in(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|char| char.is_ascii_digit() || char == '.');
    text.split_ascii_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_driver_is_found_in_the_line_of_its_module() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version:  gcc 12.2.0\n";
        assert_eq!(version_in(text).as_deref(), Some("580.159.04"));
        assert_eq!(version_in("no driver.\n"), None);
    }

    #[test]
    fn work_takes_processor_time() {
        let start = processor_time();
        while processor_time() < start + Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        assert!(waiting_time() < Duration::from_hours(1));
    }
}
