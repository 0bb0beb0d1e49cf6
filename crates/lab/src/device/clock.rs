//! The virtual clock of a modeled device, and the processor time that passes meanwhile.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::counts::counts;
use crate::processor::processor_time;

counts! {
    /// Requests to a device.
    pub struct Traffic {
        /// Requests to read; of mapped memory, lines that were waited for.
        pub reads: u64,
        /// Requests to write; of mapped memory, lines flushed.
        pub writes: u64,
        /// Syncs; of mapped memory, fences.
        pub syncs: u64,
        /// Bytes read.
        pub bytes_read: u64,
        /// Bytes written.
        pub bytes_written: u64,
        /// Time that the device took by its model.
        pub time: Duration,
    }
}

/// A virtual clock. It advances by the processor time of the one thread that works, and by the model's time of each
/// request. The real time of carrying out a request is left out, and so is reading the
/// processor time, which is a call of the kernel.
#[derive(Debug)]
pub struct Clock {
    state: Mutex<State>,
    /// Time of a reading of the processor time.
    reading: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    traffic: Traffic,
    /// Processor time that went into carrying requests out, and into readings.
    left_out: Duration,
}

/// Readings whose minimum is the time of one.
const READINGS: usize = 256;

impl Default for Clock {
    fn default() -> Self {
        let reading = |_| {
            let start = processor_time();
            processor_time().saturating_sub(start)
        };
        let reading = (0..READINGS).map(reading).min().unwrap_or_default();
        Self { state: Mutex::default(), reading }
    }
}

impl Clock {
    /// Carries out a request, and charges the model's time for it.
    pub fn charge<T>(&self, carry_out: impl FnOnce() -> T, note: impl FnOnce(&T, &mut Traffic)) -> T {
        let start = processor_time();
        let result = carry_out();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        note(&result, &mut state.traffic);
        // Of the two readings, the time between them has half of each.
        state.left_out += processor_time().saturating_sub(start) + self.reading;
        result
    }

    /// Returns what the device was asked for so far.
    pub fn traffic(&self) -> Traffic {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).traffic
    }

    /// Returns processor time and device time together.
    pub fn now(&self) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = processor_time().saturating_sub(state.left_out) + state.traffic.time;
        state.left_out += self.reading;
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_passes_and_what_carrying_it_out_takes_does_not() {
        let clock = Clock::default();
        let start = clock.now();
        let mut sum = 0_u64;
        let work = || {
            let begun = processor_time();
            while processor_time().saturating_sub(begun) < Duration::from_millis(50) {
                sum = sum.wrapping_add(1);
            }
        };
        clock.charge(work, |(), traffic| {
            traffic.reads += 1;
            traffic.time += Duration::from_secs(3);
        });
        let passed = clock.now().saturating_sub(start);
        assert!((Duration::from_secs(3)..Duration::from_millis(3_040)).contains(&passed), "{passed:?}");
        assert_eq!((clock.traffic().reads, clock.traffic().time), (1, Duration::from_secs(3)));
        let before = processor_time();
        while processor_time().saturating_sub(before) < Duration::from_millis(20) {}
        assert!(Duration::from_millis(20) <= clock.now().saturating_sub(start + passed));
    }
}
