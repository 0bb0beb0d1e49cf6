//! Whether repeats are worth following: a stream that begins its runs anywhere goes on where no earlier one did.

/// Windows read by following after which older ones count half.
const READ_PER_HALVING: u64 = 64;
/// Windows read before anything is concluded.
const READ_MIN: u64 = 16;
/// One window in so many has to answer something.
const READ_PER_USEFUL: u64 = 8;
/// Where they do not, one chance in so many is taken all the same: the stream may have changed.
const CHANCES_PER_TRY: u64 = 16;

/// What following has brought, the younger counting more.
#[derive(Clone, Copy, Debug, Default)]
pub struct SuccessorMeter {
    read: u64,
    useful: u64,
    chances: u64,
}

impl SuccessorMeter {
    /// Notes windows that were read because a repeat led to them.
    pub fn note_read(&mut self, windows: u64) {
        self.read += windows;
        if READ_PER_HALVING <= self.read {
            self.read /= 2;
            self.useful /= 2;
        }
    }

    /// Notes such windows that have answered something.
    pub fn note_useful(&mut self, windows: u64) {
        self.useful += windows;
    }

    /// Says whether to follow at the next chance.
    pub fn take_chance(&mut self) -> bool {
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
    fn what_answers_nothing_is_soon_followed_seldom_and_again_once_it_does() {
        let mut meter = SuccessorMeter::default();
        let taken = (0..1_600).filter(|_| meter.take_chance()).count();
        assert_eq!(taken, 1_600, "nothing was read yet");
        let mut successor = |useful: u64| {
            let mut taken = 0;
            for _ in 0..1_600 {
                if meter.take_chance() {
                    meter.note_read(4);
                    meter.note_useful(useful);
                    taken += 1;
                }
            }
            taken
        };
        assert!(successor(0) < 120);
        assert!(1_300 < successor(2));
        assert!(successor(0) < 150);
    }
}
