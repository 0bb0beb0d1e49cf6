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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_processor_time() {
        let start = processor_time();
        while processor_time() < start + Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        assert!(waiting_time() < Duration::from_hours(1));
    }
}
