//! How much of the arrival log a hit reads.
//!
//! The paper reads a fixed window of 2,048 records. Where duplicates come in short runs that is 80 KiB read for a few
//! answers. The size here follows what windows were good for: it doubles while more than half of the records read are
//! asked for, and halves while fewer than a quarter are, so that it settles near twice the length of a run. Its floor is
//! one page of the log, its ceiling the parameter.

use crate::index::log::LOG_PAGE_RECORDS;

/// Windows between two decisions: enough that one long or short run does not decide.
const WINDOWS_PER_DECISION: u32 = 16;

/// The size of the next window.
#[derive(Clone, Debug)]
pub struct WindowSize {
    min: u32,
    max: u32,
    size: u32,
    windows: u32,
    records: u64,
    answers: u64,
}

impl WindowSize {
    /// Starts with the largest window, of `max` records.
    pub fn new(max: u32) -> Self {
        let page = u32::try_from(LOG_PAGE_RECORDS).expect("a page holds few records");
        Self { min: max.min(page), max, size: max, windows: 0, records: 0, answers: 0 }
    }

    /// Returns how many records the next window has.
    pub fn records(&self) -> u32 {
        self.size
    }

    /// Says whether windows are as small as one page of the log.
    pub fn is_page(&self) -> bool {
        self.size as usize == LOG_PAGE_RECORDS
    }

    /// Notes that a chunk was answered by what was prefetched.
    pub fn note_answer(&mut self) {
        self.answers += 1;
    }

    /// Notes that a window was read.
    pub fn note_window(&mut self, records: usize) {
        self.windows += 1;
        self.records += records as u64;
        if self.windows < WINDOWS_PER_DECISION {
            return;
        }
        if self.records < 2 * self.answers {
            self.size = self.size.saturating_mul(2).min(self.max);
        } else if 4 * self.answers < self.records {
            self.size = (self.size / 2).max(self.min);
        }
        (self.windows, self.records, self.answers) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(max: u32, run: u32) -> u32 {
        let mut size = WindowSize::new(max);
        for _ in 0..1_000 {
            for _ in 0..run.min(size.records()) {
                size.note_answer();
            }
            size.note_window(size.records() as usize);
        }
        size.records()
    }

    #[test]
    fn windows_settle_near_twice_the_run_between_a_page_and_the_ceiling() {
        let page = u32::try_from(LOG_PAGE_RECORDS).unwrap();
        assert_eq!(settle(2048, 0), page);
        assert_eq!(settle(2048, 10), page);
        assert_eq!(settle(2048, 5_000), 2048);
        for run in [100, 200, 500] {
            let settled = settle(2048, run);
            assert!((2 * run..=4 * run).contains(&settled), "runs of {run}: {settled}");
        }
        assert_eq!(settle(64, 1), 64);
    }
}
