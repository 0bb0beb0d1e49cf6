//! Windows of the arrival log around hits: which are read, and which pending chunks they answer.
//!
//! A hit is seldom alone: what arrived near the chunk when it was stored is likely to wait with it. So a hit reads a
//! window of the arrival log, which starts as many records before the hit as the chunk's rank in its cycle says, and the
//! window's records answer other pending chunks (Ma et al., section 3.3).
//!
//! Three ways to tell which: the lazy schedule asks the cache for the hit's cycle; the exhaustive one asks it for everything
//! that waits (both Ma et al.); all others probe the window's records in the map of pending chunks, which costs less for each
//! record and answers those of other cycles too, but not what has come to wait since an earlier window was read.

use crate::index::cycle::Membership;
use crate::index::identify::Index;
use crate::index::log::{LOG_PAGE_RECORDS, LogExtent, LogWindow};
use crate::index::options::{Prelookup, RECORDS_PER_BATCH, Schedule, WINDOW_PAGES_PER_BATCH, WindowRule};
use crate::index::session::InFlight;
use crate::index::slot::Slot;
use crate::kv::Position;
use crate::types::{Fingerprint, Sequence};

/// Fewest records that an adaptive window takes in. More of the page than that would be read for nothing, since each takes
/// as long to take in as a probe of the filter.
const WINDOW_RECORDS_MIN: u64 = 16;
/// Shortest mean run of duplicates at which repeats are followed: what is shorter costs as many reads as it saves.
const SUCCESSOR_RUN_MIN: u64 = 32;
/// How far neighbors are looked for that wait, in chunks: half of it where runs are that long.
const NEIGHBORS_MAX: u64 = 32;

/// Chunks whose lines of the cache are asked for together.
const PREFETCH_CHUNKS: usize = 32;

/// A hit whose neighborhood may be worth reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    pub(super) fingerprint: Fingerprint,
    pub(super) sequence: Sequence,
    pub(super) position: Position,
    pub(super) membership: Option<Membership>,
}

/// Returns how many of some windows, from the first on, are read together; at least one.
fn batch_of(windows: &[(LogWindow, Option<Membership>)]) -> usize {
    let (mut pages, mut records) = (0, 0);
    let fits = |(window, _): &&(LogWindow, Option<Membership>)| {
        pages += window.pages();
        records += window.records as usize;
        pages <= WINDOW_PAGES_PER_BATCH && records <= RECORDS_PER_BATCH
    };
    windows.iter().take_while(fits).count().max(1).min(windows.len())
}

impl Index {
    /// Returns how many records a hit reads now; 0 if none.
    pub(super) fn window_records(&self) -> u32 {
        match self.options.window {
            WindowRule::Fixed(records) => records,
            WindowRule::Adaptive(max) => {
                let runs = self.arrivals.runs();
                let wanted = match runs.mean_run() {
                    // Nothing is known: a page costs no more than a lookup.
                    0 => LOG_PAGE_RECORDS as u64,
                    // One by one: a window would answer nobody.
                    1 if !runs.is_blank() => 0,
                    run => (2 * run).max(WINDOW_RECORDS_MIN),
                };
                u32::try_from(wanted.min(u64::from(max))).expect("at most the maximum")
            }
        }
    }

    /// Reads the log around those hits whose neighbors may be waiting, or are yet to come.
    pub(super) fn prefetch(&mut self, hits: Vec<Hit>) {
        let windows = self.windows_for(hits);
        self.read_all(&windows);
    }

    /// Does the same beside, as far as that is one read; what it answers shows once the windows are taken.
    pub(super) fn prefetch_in_background(&mut self, hits: Vec<Hit>) {
        let windows = self.windows_for(hits);
        let (background, rest) = windows.split_at(batch_of(&windows));
        if !background.is_empty() {
            let start = self.timer.now();
            let windows: Vec<LogWindow> = background.iter().map(|(window, _)| *window).collect();
            let followed = self.successors_of(&windows);
            self.store.log.start_read([&followed[..], &windows].concat());
            self.successors.reading = followed;
            self.counters.prefetch_nanos += self.timer.nanos_since(start);
        }
        self.read_all(rest);
    }

    /// Waits for the windows that are being read beside, if any are, and takes them.
    pub(super) fn take_windows(&mut self) {
        let start = self.timer.now();
        let Some(extents) = self.store.log.end_read() else { return };
        self.counters.prefetch_nanos += self.timer.nanos_since(start);
        let followed = std::mem::take(&mut self.successors.reading);
        self.take_extents(&extents, &followed, &[]);
    }

    fn read_all(&mut self, mut windows: &[(LogWindow, Option<Membership>)]) {
        while !windows.is_empty() {
            let (batch, rest) = windows.split_at(batch_of(windows));
            self.read_windows(batch);
            windows = rest;
        }
    }

    /// Returns the windows around those hits for which one is to be read, with the hits' cycles.
    fn windows_for(&mut self, mut hits: Vec<Hit>) -> Vec<(LogWindow, Option<Membership>)> {
        let records = self.window_records();
        let mut windows = Vec::new();
        if records == 0 {
            return windows;
        }
        let by_bucket = matches!(self.options.schedule, Schedule::Lazy { .. } | Schedule::Exhaustive { .. });
        hits.retain(|hit| match hit.membership {
            Some(membership) if by_bucket => {
                !self.session.cycles.is_exhausted(membership) && self.session.cycles.has_mates(membership)
            }
            // The windows of a pool are for one stretch of neighbors each.
            Some(_) => self.has_waiting_neighbors(hit.sequence),
            None => true,
        });
        hits.sort_unstable_by_key(|hit| hit.position);
        let (mut read_up_to, mut has_asked_for_all) = (0, false);
        let is_exhaustive = matches!(self.options.schedule, Schedule::Exhaustive { .. });
        for hit in hits {
            // What an earlier window brings needs no read of its own.
            if hit.position.0 < read_up_to {
                continue;
            }
            // Nor does what one before has brought in, unless it ends soon.
            if let Some(end) = self.cache.window_end(&hit.fingerprint) {
                if u64::from(records / 2) <= end.0.saturating_sub(hit.position.0) {
                    // Chunks that arrived since were not asked for in it unless that is done at arrival.
                    let asks = self.options.prelookup != Prelookup::Always;
                    if asks && !std::mem::replace(&mut has_asked_for_all, is_exhaustive) {
                        self.post_look_up_cached(&hit);
                    }
                    continue;
                }
                read_up_to = end.0;
            }
            let mut window = self.window_around(&hit, records);
            let end = window.start.0.saturating_add(u64::from(window.records));
            let again = read_up_to.saturating_sub(window.start.0);
            window.start = Position(window.start.0 + again);
            window.records = window.records.saturating_sub(u32::try_from(again).unwrap_or(u32::MAX));
            read_up_to = end.max(read_up_to);
            windows.push((window, hit.membership));
        }
        windows
    }

    /// Says whether a chunk near that of a hit waits, or is yet to come.
    fn has_waiting_neighbors(&self, Sequence(sequence): Sequence) -> bool {
        let run = self.arrivals.runs().mean_run().clamp(1, NEIGHBORS_MAX);
        let before = if self.rounds.is_dense() { run } else { 0 };
        self.arrivals.waits_between(Sequence(sequence.saturating_sub(before)), Sequence(sequence + 2 * run))
    }

    fn window_around(&self, hit: &Hit, records: u32) -> LogWindow {
        let rank = hit.membership.map_or(0, |membership| membership.rank);
        let back = match (self.options.schedule, self.options.window) {
            (Schedule::Pool { .. } | Schedule::Adaptive { .. }, WindowRule::Adaptive(_)) if self.rounds.is_dense() => {
                // It may stand in the midst of its run, and what precedes it on its page is read anyway.
                let on_page = u32::try_from(hit.position.0 % LOG_PAGE_RECORDS as u64).unwrap_or(0);
                on_page.min(records / 2)
            }
            // The first of its stretch was looked up: those before it do not wait.
            (Schedule::Eager | Schedule::Pool { .. } | Schedule::Adaptive { .. }, _) => 0,
            (_, WindowRule::Adaptive(_)) => rank.min(records / 2),
            (_, WindowRule::Fixed(_)) => rank.min(records - 1),
        };
        let start = hit.position.0.saturating_sub(back.into());
        let page = LOG_PAGE_RECORDS as u64;
        let end = match self.options.window {
            // To the end of its last page: that is read anyway, and what is in it may well be wanted.
            WindowRule::Adaptive(_) if page <= u64::from(records) => {
                start.saturating_add(records.into()).div_ceil(page).saturating_mul(page)
            }
            _ => start.saturating_add(records.into()),
        };
        LogWindow { start: Position(start), records: u32::try_from(end - start).unwrap_or(u32::MAX) }
    }

    /// Reads windows of the log into the cache and answers pending chunks by them.
    fn read_windows(&mut self, windows: &[(LogWindow, Option<Membership>)]) {
        let start = self.timer.now();
        let cycles: Vec<Membership> = windows.iter().filter_map(|(_, membership)| *membership).collect();
        let windows: Vec<LogWindow> = windows.iter().map(|(window, _)| *window).collect();
        let followed = self.successors_of(&windows);
        let extents = self.store.read_log([&followed[..], &windows].concat());
        self.counters.prefetch_nanos += self.timer.nanos_since(start);
        self.take_extents(&extents, &followed, &cycles);
    }

    /// Reads the log on from a position and takes what comes.
    pub(super) fn read_ahead(&mut self, start: Position) {
        let window = LogWindow { start, records: self.window_records() };
        self.counters.read_aheads += 1;
        self.read_windows(&[(window, None)]);
    }

    /// Puts records of the log into the cache, and answers pending chunks by them. `followed`: what a repeat led to;
    /// `cycles`: of the hits that the others are for.
    fn take_extents(&mut self, extents: &[LogExtent], followed: &[LogWindow], cycles: &[Membership]) {
        let start = self.timer.now();
        for LogExtent { start, records } in extents {
            let is_followed = followed.iter().any(|window| window.holds(*start));
            self.cache.insert(*start, records, is_followed);
        }
        for membership in cycles {
            self.session.cycles.note_window(membership.cycle);
        }
        if self.immediate {
            self.read_up_to = extents.last().map(LogExtent::end);
        }
        if !self.session.pending.is_empty() {
            match self.options.schedule {
                Schedule::Lazy { .. } => self.post_look_up_cycles(cycles),
                Schedule::Exhaustive { .. } => self.post_look_up_all(),
                _ => extents.iter().for_each(|extent| self.post_look_up_records(extent)),
            }
        }
        self.counters.postlookup_nanos += self.timer.nanos_since(start);
    }

    /// Returns stretches that streams went on with where they had come to the place of a window: as much of each as a
    /// window has, and no more of them than can be read with the windows.
    fn successors_of(&mut self, windows: &[LogWindow]) -> Vec<LogWindow> {
        if !self.options.follows_successors {
            return Vec::new();
        }
        // Of a window with as many records.
        let records = self.window_records();
        let pages = records as usize / LOG_PAGE_RECORDS + 2;
        let taken: usize = windows.iter().map(LogWindow::pages).sum();
        let space = WINDOW_PAGES_PER_BATCH.saturating_sub(taken) / pages;
        if self.arrivals.runs().mean_run() < SUCCESSOR_RUN_MIN || space == 0 {
            return Vec::new();
        }
        self.successors.note_useful(self.cache.useful());
        if !self.successors.take_chance() {
            return Vec::new();
        }
        let (mut found, pages) = self.store.duplicate_runs_in(windows);
        // What is read for its hit anyway is not followed.
        found.retain(|extent| windows.iter().all(|window| !window.holds(extent.start)));
        found.truncate(space);
        for extent in &mut found {
            extent.records = extent.records.min(records);
        }
        // Where there was nothing to follow, finding that out took reads too.
        self.successors.note_read(found.len().max(pages) as u64);
        self.counters.successor_prefetches += found.len() as u64;
        found
    }

    /// Asks the cache for all that wait in some cycles.
    fn post_look_up_cycles(&mut self, cycles: &[Membership]) {
        let mut members = Vec::new();
        for membership in cycles {
            self.session.cycles.members(membership.cycle, &mut members);
        }
        members.sort_unstable_by_key(|(_, sequence)| *sequence);
        members.dedup_by_key(|(_, sequence)| *sequence);
        for piece in members.chunks(PREFETCH_CHUNKS) {
            let waiting = piece.iter().filter_map(|&(slot, sequence)| {
                let chunk = self.session.pending.get(slot, sequence)?;
                // One try more than those in vain: the window that was just read is counted.
                let is_exhausted = |membership| self.session.cycles.is_exhausted_after(membership, 1);
                (!chunk.membership.is_some_and(is_exhausted)).then_some((slot, chunk.first.chunk.fingerprint))
            });
            let waiting: Vec<(Slot, Fingerprint)> = waiting.collect();
            self.ask_cache_for(waiting);
        }
    }

    /// Asks the cache for some that wait.
    fn ask_cache_for(&mut self, waiting: Vec<(Slot, Fingerprint)>) {
        for (_, fingerprint) in &waiting {
            self.cache.prefetch(fingerprint);
        }
        self.counters.postlookup_probes += waiting.len() as u64;
        for (slot, fingerprint) in waiting {
            if let Some((ordinal, position)) = self.cache.get(&fingerprint) {
                let container = self.store.registry.live_container(ordinal);
                self.answer(slot, container, position);
            }
        }
    }

    /// Asks the cache for all that wait.
    fn post_look_up_all(&mut self) {
        let mut slots = Vec::new();
        self.session.pending.list(&mut slots);
        for piece in slots.chunks(PREFETCH_CHUNKS) {
            let waiting = piece.iter().filter_map(|&slot| Some((slot, *self.session.pending.fingerprint(slot)?)));
            self.ask_cache_for(waiting.collect());
        }
    }

    /// Answers by the cached window of a hit what waits for it: its cycle, or all that waits.
    fn post_look_up_cached(&mut self, hit: &Hit) {
        let start = self.timer.now();
        match self.options.schedule {
            Schedule::Lazy { .. } => self.post_look_up_cycles(hit.membership.as_slice()),
            Schedule::Exhaustive { .. } => self.post_look_up_all(),
            _ => {
                if let Some(extent) = self.cache.window_of(&hit.fingerprint) {
                    self.post_look_up_records(&extent);
                }
            }
        }
        self.counters.postlookup_nanos += self.timer.nanos_since(start);
    }

    /// Answers all that wait and are among the records.
    fn post_look_up_records(&mut self, extent: &LogExtent) {
        self.counters.postlookup_probes += extent.records.len() as u64;
        let mut is_useful = false;
        for (position, record) in (extent.start.0..).map(Position).zip(&extent.records) {
            let Some(InFlight::Pending(slot)) = self.session.get(&record.chunk.fingerprint) else { continue };
            if self.session.pending.is_asked(slot) {
                continue;
            }
            let container = self.store.registry.live_container(record.ordinal);
            if container.is_some() && !std::mem::replace(&mut is_useful, true) {
                // Notes that the window has answered something.
                self.cache.get(&record.chunk.fingerprint);
            }
            self.answer(slot, container, position);
        }
    }
}
