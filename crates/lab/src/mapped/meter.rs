//! Counts of accesses to a medium, and latency added on request.
//!
//! A dependent miss is an access that the next step has to wait for: a bucket of the table, an entry of the log. A copy of
//! consecutive entries is one access, and its bytes are counted. Both wait for the injected latency once. With prefetching, a
//! round of lines that were asked for together waits for it once, since they are on their way at the same time.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use onefold_engine::Result;
use onefold_engine::random::mix64;
use onefold_sys::{ticks, ticks_in_order};

use crate::counts::counts;
use crate::mapped::medium::{LINE_BYTES, Medium, WORD_BYTES};

/// Duration of the comparison of the tick counter with the clock.
const CALIBRATION: Duration = Duration::from_millis(4);

/// Readings of both clocks; the fastest counts.
const PAIRS: usize = 32;

counts! {
    /// Accesses to a medium.
    pub struct Traffic {
        /// Accesses that were waited for one at a time: buckets probed and single entries of the log read.
        pub misses: u64,
        /// Copies of consecutive words; each is waited for once.
        pub copies: u64,
        /// Bytes that those copied.
        pub bytes_copied: u64,
        /// Lines prefetched, that were not waited for one at a time.
        pub lines_prefetched: u64,
        /// Rounds of such prefetches; each is waited for once.
        pub rounds: u64,
        /// Bytes stored.
        pub bytes_written: u64,
        /// Lines flushed.
        pub lines_flushed: u64,
        /// Fences.
        pub fences: u64,
        /// Nanoseconds of latency injected.
        pub injected_nanos: u64,
    }
}

impl Traffic {
    /// Returns the number of waits for the medium.
    pub fn waits(&self) -> u64 {
        self.misses + self.copies + self.rounds
    }
}

/// A clock for spans of tens of nanoseconds, calibrated against the system's.
#[derive(Clone, Copy, Debug)]
pub struct TickClock {
    ticks_per_nano: f64,
    reading_ticks: u64,
}

#[expect(clippy::cast_precision_loss, reason = "spans of time")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and far below 2^53")]
impl TickClock {
    /// Returns the clock of this process, which is calibrated once.
    pub fn shared() -> Self {
        static CLOCK: OnceLock<TickClock> = OnceLock::new();
        *CLOCK.get_or_init(Self::calibrate)
    }

    /// Compares the processor's counter with the system's clock, for some milliseconds.
    pub fn calibrate() -> Self {
        let (start, from) = Self::pair();
        while start.elapsed() < CALIBRATION {}
        let (end, to) = Self::pair();
        // The least of many: whatever else happens between two readings only adds to it.
        let reading = |_| {
            let from = ticks_in_order();
            ticks_in_order().wrapping_sub(from)
        };
        let reading_ticks = (0..1_000).map(reading).min().unwrap_or_default();
        Self::new(end - start, to.wrapping_sub(from), reading_ticks)
    }

    fn new(elapsed: Duration, ticks: u64, reading_ticks: u64) -> Self {
        Self { ticks_per_nano: (ticks as f64 / elapsed.as_nanos() as f64).max(1e-6), reading_ticks }
    }

    /// Reads both clocks at the same moment, or nearly: of several readings the one that took least.
    fn pair() -> (Instant, u64) {
        let reading = |_| {
            let start = Instant::now();
            let ticks = ticks();
            (start.elapsed(), start, ticks)
        };
        let (_, start, ticks) = (0..PAIRS).map(reading).min_by_key(|(taken, ..)| *taken).expect("there are some");
        (start, ticks)
    }

    /// Returns the nanoseconds that a number of ticks takes.
    pub fn nanos(&self, ticks: u64) -> f64 {
        ticks as f64 / self.ticks_per_nano
    }

    /// Returns the ticks that a time takes.
    pub fn ticks_of(&self, time: Duration) -> u64 {
        (time.as_nanos() as f64 * self.ticks_per_nano).round() as u64
    }

    /// Returns the nanoseconds between two readings of [`ticks_in_order`], without those that a reading takes itself.
    pub fn nanos_between(&self, from: u64, to: u64) -> f64 {
        self.nanos(to.wrapping_sub(from).saturating_sub(self.reading_ticks))
    }

    /// Returns the nanoseconds that a reading takes.
    pub fn reading_nanos(&self) -> f64 {
        self.nanos(self.reading_ticks)
    }
}

/// A medium whose accesses are counted and may be delayed.
#[derive(Debug)]
pub struct Metered<M> {
    medium: M,
    traffic: Traffic,
    injected: Duration,
    injected_ticks: u64,
    reading_ticks: u64,
}

impl<M: Medium> Metered<M> {
    /// Counts the accesses to a medium, and adds `injected` to every wait for it.
    pub fn new(medium: M, injected: Duration, clock: &TickClock) -> Self {
        let injected_ticks = clock.ticks_of(injected);
        Self { medium, traffic: Traffic::default(), injected, injected_ticks, reading_ticks: clock.reading_ticks }
    }

    /// Returns the counts.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Returns the medium.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Returns the medium.
    pub fn into_medium(self) -> M {
        self.medium
    }

    /// Returns how many bytes there are.
    pub fn len(&self) -> u64 {
        self.medium.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.medium.is_empty()
    }

    /// Waits for the injected latency.
    #[inline]
    fn wait(&mut self) {
        if self.injected_ticks == 0 {
            return;
        }
        self.traffic.injected_nanos += u64::try_from(self.injected.as_nanos()).unwrap_or(u64::MAX);
        // After all earlier accesses.
        let start = ticks_in_order();
        // The first reading and the last take half of their time each outside what they measure, and the last is half
        // of one too late on average.
        let wanted = self.injected_ticks.saturating_sub(self.reading_ticks);
        spin(start, wanted, ticks);
    }

    /// Reads words that the next step has to wait for.
    #[inline]
    pub fn miss<const N: usize>(&mut self, offset: u64) -> [u64; N] {
        self.traffic.misses += 1;
        self.wait();
        self.again(offset)
    }

    /// Reads words of a line that was read just before, or prefetched in a round.
    #[inline]
    pub fn again<const N: usize>(&self, offset: u64) -> [u64; N] {
        let mut words = [0; N];
        self.medium.copy_out(offset, &mut words);
        words
    }

    /// Copies consecutive words.
    pub fn copy(&mut self, offset: u64, words: &mut [u64]) {
        self.traffic.copies += 1;
        self.traffic.bytes_copied += (words.len() * WORD_BYTES) as u64;
        self.wait();
        self.medium.copy_out(offset, words);
    }

    /// Prefetches a line of the round.
    #[inline]
    pub fn prefetch(&mut self, offset: u64) {
        self.traffic.lines_prefetched += 1;
        self.medium.will_need(offset);
    }

    /// Ends a round of prefetches.
    pub fn end_round(&mut self) {
        self.traffic.rounds += 1;
        self.wait();
    }

    /// Replaces a word.
    #[inline]
    pub fn store(&mut self, offset: u64, word: u64) {
        self.traffic.bytes_written += WORD_BYTES as u64;
        self.medium.store(offset, word);
    }

    /// Replaces words.
    #[inline]
    pub fn write(&mut self, offset: u64, words: &[u64]) {
        self.traffic.bytes_written += (words.len() * WORD_BYTES) as u64;
        self.medium.write(offset, words);
    }

    /// Flushes the lines that hold `len` bytes from an offset on.
    #[inline]
    pub fn flush(&mut self, offset: u64, len: u64) {
        if len != 0 {
            let line = LINE_BYTES as u64;
            self.traffic.lines_flushed += (offset + len).div_ceil(line) - offset / line;
            self.medium.flush(offset, len);
        }
    }

    /// Waits until all flushed lines are durable.
    pub fn fence(&mut self) -> Result<()> {
        self.traffic.fences += 1;
        self.medium.fence()
    }

    /// Makes the medium longer; new bytes are zero.
    pub fn grow(&mut self, len: u64) -> Result<()> {
        self.medium.grow(len)
    }

    /// Releases the memory of a range.
    pub fn release(&mut self, offset: u64, len: u64) {
        self.medium.release(offset, len);
    }
}

/// Waits until so many ticks have passed since `start`.
fn spin(start: u64, wanted: u64, mut ticks: impl FnMut() -> u64) {
    while ticks().wrapping_sub(start) < wanted {}
}

/// Measures the latency of a medium: the mean time of an access to a line at random, each known only after the one before
/// (a pointer chase). Nothing is written. The medium must not be empty, and should not fit into a cache.
pub fn base_latency(medium: &impl Medium, accesses: u32, clock: &TickClock) -> f64 {
    let lines = (medium.len() / LINE_BYTES as u64).max(1);
    let mut position = 1;
    let from = ticks_in_order();
    for _ in 0..accesses {
        let mut word = [0];
        let line = (u128::from(mix64(position)) * u128::from(lines)) >> 64;
        medium.copy_out(u64::try_from(line).expect("below the number of lines") * LINE_BYTES as u64, &mut word);
        // The next line depends on the word read; the step changes it even if all memory is zero.
        position = position.wrapping_add(1) ^ word[0] << 32;
    }
    let nanos = clock.nanos_between(from, ticks_in_order());
    std::hint::black_box(position);
    nanos / f64::from(accesses.max(1)).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::medium::MappedMemory;

    #[test]
    fn a_wait_ends_with_the_first_reading_at_its_end() {
        for step in [1, 7, 300] {
            let mut now = u64::MAX - 500;
            let start = now;
            spin(start, 1_000, || {
                now = now.wrapping_add(step);
                now
            });
            assert!((1_000..1_000 + step).contains(&now.wrapping_sub(start)), "a step of {step}");
        }
    }

    #[test]
    fn a_clock_converts_ticks_and_takes_a_reading_off_a_span() {
        let clock = TickClock::new(Duration::from_millis(4), 10_000_000, 20);
        assert_eq!(clock.ticks_of(Duration::from_nanos(300)), 750);
        assert!((clock.nanos(750) - 300.0).abs() < 1e-9 && (clock.reading_nanos() - 8.0).abs() < 1e-9);
        assert!((clock.nanos_between(u64::MAX - 9, 260) - 100.0).abs() < 1e-9, "the counter wraps around");
        assert!(clock.nanos_between(5, 15).abs() < 1e-9, "less than a reading");
    }

    #[test]
    fn accesses_are_counted_and_waited_for_by_their_kind() {
        let clock = TickClock::calibrate();
        let mut metered = Metered::new(MappedMemory::anonymous(4096).unwrap(), Duration::from_nanos(50), &clock);
        let _: [u64; 8] = metered.miss(64);
        let _: [u64; 4] = metered.again(64);
        metered.copy(0, &mut [0; 204]);
        metered.prefetch(0);
        metered.prefetch(64);
        metered.end_round();
        metered.store(0, 1);
        metered.write(56, &[1, 2]);
        metered.flush(56, 16);
        metered.flush(0, 0);
        metered.fence().unwrap();
        let counted = Traffic {
            misses: 1,
            copies: 1,
            bytes_copied: 1632,
            lines_prefetched: 2,
            rounds: 1,
            bytes_written: 24,
            lines_flushed: 2,
            fences: 1,
            injected_nanos: 150,
        };
        assert_eq!(*metered.traffic(), counted);
        assert_eq!((counted.waits(), counted.since(&counted)), (3, Traffic::default()));
    }
}
