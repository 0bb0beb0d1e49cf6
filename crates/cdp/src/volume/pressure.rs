//! Back-pressure: writes are slowed down before the journal is full, so that they do not stop all together when it is.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Fill from which writes are delayed: three quarters.
const FREE_PARTS: u64 = 4;
/// Longest delay of a write. Clients give up after many seconds; a disk that is busy makes them wait as long.
pub const DELAY_MAX: Duration = Duration::from_millis(100);
/// How long a write that found the journal or the activity log full waits before it looks again.
pub(super) const FULL_WAIT: Duration = Duration::from_millis(20);
/// Time in which a whole journal is assumed to be stored, until some of it was.
const STORING_GUESS: Duration = Duration::from_mins(5);

/// Fill of a journal, and how fast it gets space back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalFill {
    /// Bytes that hold records.
    pub used: u64,
    /// Most bytes.
    pub bytes_max: u64,
    /// Bytes for each second that come back on average.
    pub returned: u64,
}

impl JournalFill {
    /// Returns true if writes are delayed.
    pub fn is_tight(&self) -> bool {
        self.bytes_max - self.bytes_max / FREE_PARTS < self.used
    }

    /// Returns the time that a write of so many bytes takes at the intake that is allowed now, or [`DELAY_MAX`]. With p, the part of the last
    /// quarter that is used, the intake is the rate at which space comes back, times (1 - p) / p: the same when half of the quarter is used.
    pub fn delay(&self, len: u64) -> Duration {
        let quarter = self.bytes_max / FREE_PARTS;
        let used = self.used.saturating_sub(self.bytes_max - quarter).min(quarter);
        if used == 0 {
            return Duration::ZERO;
        }
        let left = u128::from(quarter - used).max(1);
        let nanoseconds =
            (u128::from(len) * 1_000_000_000).saturating_mul(used.into()) / left / u128::from(self.returned.max(1));
        u64::try_from(nanoseconds).map_or(DELAY_MAX, Duration::from_nanos).min(DELAY_MAX)
    }
}

#[derive(Debug)]
struct State {
    /// When the last write that was delayed has had its time.
    next: Duration,
    /// When space came back last.
    last: Duration,
    /// Bytes for each second, once some came back.
    returned: Option<u64>,
}

/// Delays the writes of a group one after the other, by the clock of its host.
#[derive(Debug)]
pub(super) struct Pacer(Mutex<State>);

impl Pacer {
    pub(super) fn new(now: Duration) -> Self {
        Self(Mutex::new(State { next: now, last: now, returned: None }))
    }

    /// Returns the bytes for each second that come back.
    pub(super) fn returned(&self, bytes_max: u64) -> u64 {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.returned.unwrap_or(bytes_max / STORING_GUESS.as_secs())
    }

    /// Notes that space came back.
    pub(super) fn note_returned(&self, bytes: u64, now: Duration) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = u64::try_from(now.saturating_sub(state.last).as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = bytes.saturating_mul(1_000) / elapsed;
        state.returned = Some(state.returned.map_or(rate, |before| u64::midpoint(before, rate)));
        state.last = now;
    }

    /// Returns how long a write waits whose own time is `delay`: until those before it have had theirs.
    pub(super) fn wait(&self, delay: Duration, now: Duration) -> Duration {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = state.next.max(now);
        state.next = (begin + delay).min(now + DELAY_MAX);
        state.next.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn fill(used: u64) -> JournalFill {
        JournalFill { used, bytes_max: 64 * MIB, returned: 10 * MIB }
    }

    #[test]
    fn delays_begin_at_three_quarters_ascend_and_are_bounded() {
        let delay = |used| fill(used).delay(64 << 10);
        assert_eq!((delay(0), delay(48 * MIB)), (Duration::ZERO, Duration::ZERO));
        assert!(!fill(48 * MIB).is_tight() && fill(48 * MIB + 1).is_tight());
        let mut last = Duration::ZERO;
        for used in (48 * MIB..=64 * MIB).step_by(1 << 16) {
            assert!(last <= delay(used) && delay(used) <= DELAY_MAX);
            last = delay(used);
        }
        assert_eq!(last, DELAY_MAX);
        // Where half of the last quarter is used, intake is what comes back: 64 KiB at 10 MiB/s.
        assert_eq!(delay(56 * MIB).as_micros(), 6_250);
        for odd in [
            JournalFill { used: u64::MAX, bytes_max: u64::MAX, returned: 0 },
            JournalFill { used: 1, bytes_max: 0, returned: 0 },
        ] {
            assert!(odd.delay(u64::MAX) <= DELAY_MAX);
        }
    }

    #[test]
    fn intake_approaches_the_rate_at_which_space_comes_back() {
        for bursts in [1, 5] {
            let pacer = Pacer::new(Duration::ZERO);
            let (mut now, mut used, mut written, mut released) = (Duration::ZERO, 0_u64, 0_u64, Duration::ZERO);
            let mut written_before = 0;
            let (mut most, burst) = (0, Duration::from_secs(bursts));
            while now < Duration::from_mins(5) {
                // A client that writes 100 MiB/s, and 2 MiB/s that come back, in bursts.
                let load = JournalFill { used, bytes_max: 64 * MIB, returned: pacer.returned(64 * MIB) };
                now += Duration::from_micros(625) + pacer.wait(load.delay(64 << 10), now);
                (used, written) = (used + (64 << 10), written + (64 << 10));
                let elapsed = now.saturating_sub(released);
                if burst <= elapsed {
                    let bytes = (2 * MIB * u64::try_from(elapsed.as_millis()).unwrap() / 1_000).min(used);
                    used -= bytes;
                    released = now;
                    pacer.note_returned(bytes, now);
                }
                most = most.max(used);
                if now < Duration::from_mins(4) {
                    written_before = written;
                }
            }
            let rate = (written - written_before) / 60;
            assert!(most < 64 * MIB, "{most} bytes");
            assert!((19 * MIB / 10..21 * MIB / 10).contains(&rate), "{rate} bytes per second");
        }
    }
}
