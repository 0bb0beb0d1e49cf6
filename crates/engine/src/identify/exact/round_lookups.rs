//! Rounds of lookups: the mechanism of the pool and adaptive schedules.

use crate::identify::exact::identify::Index;
use crate::identify::exact::registry::Preferred;
use crate::identify::exact::windows::Hit;
use crate::identify::schedule::plan::{STRIDE_DIVISOR, Stride};
use crate::identify::slot::Slot;
use crate::kv::{Key, Lookup};

/// Longest stride, however long runs are: as many chunks as a window has records.
const STRIDE_MAX: u32 = 2048;
/// Stride before anything is known about runs.
const STRIDE_INITIAL: u32 = 16;

impl Index {
    /// Looks up the first chunk of the current run of pending chunks.
    pub(in crate::identify) fn look_up_run_head(&mut self) {
        if let Some((slot, _)) = self.rounds.run.first {
            self.look_up_slots(&[slot]);
        }
    }

    /// Takes the windows and the answers of the last round, and begins the next round.
    ///
    /// A round probes the first chunk of each run of pending chunks that arrived since the last round. It leaves out the
    /// chunks of the round before, because windows around the first of their runs are being read. The next round probes
    /// those that the windows do not resolve, in shorter strides, and two rounds later one by one. So the disk is always
    /// busy while identification continues.
    pub(in crate::identify) fn advance_pool(&mut self) {
        self.take_windows();
        let start = self.timer.now();
        let answers = self.store.entries.finish_look_up();
        self.counters.lookup_nanos += self.timer.nanos_since(start);
        let slots = if let Some(plan) = self.schedule.plan() {
            self.session.pending.strided(|sequence| self.rounds.planned_stride(sequence, plan.stride))
        } else {
            let left = self.session.pending.count_before(self.rounds.start_before());
            self.rounds.note_left(left, self.options.threshold());
            if self.options.pending_max / 2 < left {
                // The windows resolve few chunks: round by round would be too slow.
                let hits = self.resolve_looked_up(answers);
                self.prefetch(hits);
                return self.look_up_pool();
            }
            let stride = self.stride();
            self.session.pending.strided(|sequence| self.rounds.stride(sequence, stride))
        };
        self.rounds.begin(self.session.next_sequence);
        if !slots.is_empty() {
            let keys = slots.iter().map(|&slot| Key::from(self.session.pending.begin_lookup(slot))).collect();
            self.counters.lookups += slots.len() as u64;
            self.counters.lookup_batches += 1;
            self.store.entries.start_look_up(keys, &Preferred(&self.store.registry));
        }
        let hits = self.resolve_looked_up(answers);
        self.session.in_lookup = slots;
        self.prefetch_in_background(hits);
        self.arrivals.advance();
    }

    /// Waits for the reads and the lookup in the background, resolves their chunks and reads around the hits. Returns
    /// true if a lookup was running.
    pub(in crate::identify) fn take_answers(&mut self) -> bool {
        self.take_windows();
        let start = self.timer.now();
        let Some(answers) = self.store.entries.finish_look_up() else { return false };
        self.counters.lookup_nanos += self.timer.nanos_since(start);
        let hits = self.resolve_looked_up(Some(answers));
        self.prefetch(hits);
        self.arrivals.advance();
        true
    }

    /// Resolves the chunks of the lookup in the background; returns the hits.
    fn resolve_looked_up(&mut self, answers: Option<Vec<Lookup>>) -> Vec<Hit> {
        let answers = answers.unwrap_or_default();
        let slots = std::mem::take(&mut self.session.in_lookup);
        let chunks = self.session.take_all(&slots);
        assert_eq!(chunks.len(), answers.len(), "only its own lookup resolves a chunk that is in lookup");
        let hits = self.resolve_all(&chunks, answers);
        // The runs seen so far decide how much the hits read.
        self.arrivals.advance();
        hits
    }

    /// Returns the stride of the next lookup.
    fn stride(&self) -> u32 {
        let runs = &self.arrivals.runs;
        let resolved = if runs.is_blank() {
            STRIDE_INITIAL
        } else if runs.is_misled() {
            // Most lookups are false positives: every chunk needs one.
            1
        } else if self.rounds.is_dense {
            u32::try_from(runs.mean_run()).unwrap_or(u32::MAX)
        } else {
            // A window resolves as many chunks as it has records.
            self.window_records()
        };
        resolved.clamp(1, STRIDE_MAX)
    }

    /// Looks all pending chunks up, in as many rounds as it takes.
    pub(in crate::identify) fn look_up_pool(&mut self) {
        self.take_answers();
        match self.schedule.plan() {
            Some(plan) => self.look_up_planned(plan.stride),
            None => self.look_up_strided(),
        }
        self.rounds.begin(self.session.next_sequence);
    }

    fn look_up_strided(&mut self) {
        let mut stride = STRIDE_MAX;
        while !self.session.pending.is_empty() {
            stride = stride.min(self.stride());
            let slots = self.session.pending.strided(|_| Some(Stride::InRuns(stride)));
            self.look_up_slots(&slots);
            stride = (stride / STRIDE_DIVISOR).max(1);
        }
    }

    /// Looks all pending chunks up in the rounds of a plan. All keys of a round are in one batch: in the order of the table,
    /// neighbors share reads.
    fn look_up_planned(&mut self, first: Stride) {
        for round in 0.. {
            let slots: Vec<Slot> = self.session.pending.strided(|_| Some(first.of_round(round)));
            if slots.is_empty() {
                break;
            }
            let chunks = self.session.take_all(&slots);
            self.look_up(&chunks);
            self.arrivals.advance();
        }
    }
}
