//! The yield of successor prefetch: whether reading the records that followed a window the last time pays.
//!
//! It does not pay for a stream that begins its runs anywhere, because such a stream does not continue as an earlier one.

use crate::identify::locality::arrival_log::LogWindow;

/// Windows read after which older ones count half.
const READ_PER_HALVING: u64 = 64;
/// Windows read before the yield counts.
const READ_MIN: u64 = 16;
/// One window in so many must resolve a chunk.
const READ_PER_USEFUL: u64 = 8;
/// Below that yield, one chance in so many is taken: the stream may have changed.
const CHANCES_PER_TRY: u64 = 16;

/// The yield of successor prefetches, recent ones counting more.
#[derive(Debug, Default)]
pub(in crate::identify) struct Successors {
    read: u64,
    useful: u64,
    chances: u64,
    /// Useful windows of the cache when they were last counted.
    useful_before: u64,
    /// Successor windows among those that are being read in the background.
    pub(crate) reading: Vec<LogWindow>,
}

impl Successors {
    /// Forgets the yield, as at the start of a session.
    pub(in crate::identify) fn restart(&mut self) {
        (self.read, self.useful, self.chances) = (0, 0, 0);
    }

    /// Notes windows that were read as successors.
    pub(in crate::identify) fn note_read(&mut self, windows: u64) {
        self.read += windows;
        if READ_PER_HALVING <= self.read {
            self.read /= 2;
            self.useful /= 2;
        }
    }

    /// Notes how many successor windows of the cache have resolved a chunk so far.
    pub(in crate::identify) fn note_useful(&mut self, total: u64) {
        self.useful += total - self.useful_before;
        self.useful_before = total;
    }

    /// Returns true if successors are to be read at this chance.
    pub(in crate::identify) fn take_chance(&mut self) -> bool {
        self.chances += 1;
        self.read < READ_MIN
            || self.read <= READ_PER_USEFUL * self.useful
            || self.chances.is_multiple_of(CHANCES_PER_TRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn useless_successors_are_soon_read_seldom_and_again_once_they_are_useful() {
        let mut successors = Successors::default();
        let taken = (0..1_600).filter(|_| successors.take_chance()).count();
        assert_eq!(taken, 1_600, "nothing was read yet");
        let mut total = 0;
        let mut read = |useful: u64| {
            let mut taken = 0;
            for _ in 0..1_600 {
                if successors.take_chance() {
                    successors.note_read(4);
                    total += useful;
                    successors.note_useful(total);
                    taken += 1;
                }
            }
            taken
        };
        assert!(read(0) < 120);
        assert!(1_300 < read(2));
        assert!(read(0) < 150);
    }
}
