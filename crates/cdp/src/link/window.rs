//! Frames that were sent and not acknowledged.

use std::collections::VecDeque;

use crate::journal::Lsn;
use crate::link::{FRAME_COST, WINDOW_BYTES};

/// A frame that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    /// Its last record.
    pub(super) last: Lsn,
    /// Bytes of its records.
    pub(super) bytes: usize,
}

impl Sent {
    fn cost(&self) -> usize {
        self.bytes + FRAME_COST
    }
}

/// Frames on their way, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Window {
    frames: VecDeque<Sent>,
    cost: usize,
    /// The last record that was acknowledged.
    acknowledged: Lsn,
}

impl Window {
    /// Begins after a record that the receiver has.
    pub(super) fn begin(acknowledged: Lsn) -> Self {
        Self { acknowledged, ..Self::default() }
    }

    /// Returns true if a frame with so many bytes may be sent.
    pub(super) fn has_space(&self, bytes: usize) -> bool {
        self.cost + bytes + FRAME_COST <= WINDOW_BYTES
    }

    /// Notes a frame that is about to be sent.
    pub(super) fn push(&mut self, sent: Sent) {
        self.cost += sent.cost();
        self.frames.push_back(sent);
    }

    /// Takes an acknowledgement; returns false if it is of records that were not sent, or goes back.
    pub(super) fn acknowledge(&mut self, last: Lsn) -> bool {
        let sent = self.frames.back().map_or(self.acknowledged, |frame| frame.last);
        if last < self.acknowledged || sent < last {
            return false;
        }
        self.acknowledged = last;
        while let Some(frame) = self.frames.front().filter(|frame| frame.last <= last) {
            self.cost -= frame.cost();
            self.frames.pop_front();
        }
        true
    }

    /// Returns the last record that was acknowledged.
    pub(super) fn acknowledged(&self) -> Lsn {
        self.acknowledged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::codec::FRAME_BODY_MAX;

    #[test]
    fn acknowledgements_give_space_back_and_wrong_ones_are_refused() {
        let mut window = Window::begin(Lsn(10));
        assert!(window.has_space(FRAME_BODY_MAX) && window.acknowledge(Lsn(10)));
        assert!(!window.acknowledge(Lsn(11)), "not sent");
        let mut last = 10;
        while window.has_space(FRAME_BODY_MAX) {
            last += 5;
            window.push(Sent { last: Lsn(last), bytes: FRAME_BODY_MAX });
        }
        assert_eq!((last, window.cost), (40, 6 * (FRAME_BODY_MAX + FRAME_COST)));
        assert!(window.acknowledge(Lsn(17)) && window.has_space(FRAME_BODY_MAX));
        assert_eq!((window.frames.len(), window.acknowledged()), (5, Lsn(17)));
        assert!(!window.acknowledge(Lsn(16)), "goes back");
        assert!(!window.acknowledge(Lsn(41)), "not sent");
        assert!(window.acknowledge(Lsn(40)));
        assert_eq!((window.cost, window.frames.len()), (0, 0));
    }
}
