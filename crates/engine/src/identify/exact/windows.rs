//! Log windows around hits: which of them are read, and which pending chunks they resolve.
//!
//! A hit is seldom alone: chunks that arrived near it when it was stored are likely to be pending with it. A hit therefore
//! reads a window of the arrival log. The window starts before the hit by the chunk's rank in its cycle, and its records
//! resolve other pending chunks (Ma et al., section 3.3).
//!
//! Three postlookups exist. The lazy schedule probes the cache for the hit's cycle, and the exhaustive one for all pending
//! chunks (both Ma et al.). All others probe the map of pending chunks for the window's records: this costs less for each
//! record and also resolves chunks of other cycles, but not chunks that arrive after their window was read.

use crate::identify::exact::identify::Index;
use crate::identify::exact::session::InFlight;
use crate::identify::locality::arrival_log::{LOG_PAGE_RECORDS, LogExtent, LogWindow};
use crate::identify::options::{
    Postlookup, PrefetchUnit, Prelookup, RECORDS_PER_BATCH, WINDOW_PAGES_PER_BATCH, WindowRule,
};
use crate::identify::schedule::cycle::Membership;
use crate::identify::schedule::plan::{Plan, end_of_cached, merge_windows, reach_of, uncached};
use crate::identify::slot::Slot;
use crate::kv::{Ordinal, Position};
use crate::types::{Fingerprint, Sequence};

/// Fewest records that an adaptive window adds to the cache. The rest of the page is ignored, since each record takes as
/// long to add as a probe of the filter.
const WINDOW_RECORDS_MIN: u64 = 16;
/// Shortest mean run of duplicates at which successors are read: with shorter runs they cost as many reads as they save.
const SUCCESSOR_RUN_MIN: u64 = 32;
/// Farthest neighbor that counts, in chunks: half of it if runs are that long.
const NEIGHBORS_MAX: u64 = 32;

/// Chunks whose cache lines are loaded together.
const PREFETCH_CHUNKS: usize = 32;

/// A hit whose neighborhood may be worth reading.
#[derive(Clone, Copy, Debug)]
pub(in crate::identify) struct Hit {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) sequence: Sequence,
    pub(crate) ordinal: Ordinal,
    pub(crate) position: Position,
    pub(crate) membership: Option<Membership>,
}

/// A window to read, and the cycle of its hit.
pub(in crate::identify) type HitWindow = (LogWindow, Option<Membership>);

/// Returns how many of some windows, from the first on, are read together; at least one.
fn batch_of(windows: &[HitWindow]) -> usize {
    let (mut pages, mut records) = (0, 0);
    let fits = |(window, _): &&HitWindow| {
        pages += window.pages();
        records += window.records as usize;
        pages <= WINDOW_PAGES_PER_BATCH && records <= RECORDS_PER_BATCH
    };
    windows.iter().take_while(fits).count().max(1).min(windows.len())
}

impl Index {
    /// Returns how many records a hit reads now; 0 if none.
    pub(in crate::identify) fn window_records(&self) -> u32 {
        if let Some(records) = self.unit_records() {
            return records;
        }
        match self.options.window {
            WindowRule::Fixed(records) => records,
            WindowRule::Adaptive(max) => {
                if let Some(window) = self.schedule.window() {
                    return window.min(max);
                }
                let runs = &self.arrivals.runs;
                let wanted = match runs.mean_run() {
                    // Nothing is known: a page costs no more than a lookup.
                    0 => LOG_PAGE_RECORDS as u64,
                    // Single duplicates: a window would resolve no other chunk.
                    1 if !runs.is_blank() => 0,
                    run => (2 * run).max(WINDOW_RECORDS_MIN),
                };
                u32::try_from(wanted.min(u64::from(max))).expect("at most the maximum")
            }
        }
    }

    /// Returns how many records a unit has on average, if hits read other units than windows.
    pub(in crate::identify) fn unit_records(&self) -> Option<u32> {
        self.store.unit_records(self.options.window.max())
    }

    /// Reads windows around those hits whose neighbors are pending or have yet to arrive.
    pub(in crate::identify) fn prefetch(&mut self, hits: Vec<Hit>) {
        let windows = self.windows_for(hits);
        self.read_all(&windows);
    }

    /// Like [`Index::prefetch`], but reads the first batch in the background; [`Index::take_windows`] takes it.
    pub(in crate::identify) fn prefetch_in_background(&mut self, hits: Vec<Hit>) {
        let windows = self.windows_for(hits);
        let (background, rest) = windows.split_at(batch_of(&windows));
        if !background.is_empty() {
            let start = self.timer.now();
            let windows: Vec<LogWindow> = background.iter().map(|(window, _)| *window).collect();
            let successors = self.successors_of(&windows);
            self.store.start_read([&successors[..], &windows].concat());
            self.successors.reading = successors;
            self.counters.prefetch_nanos += self.timer.nanos_since(start);
        }
        self.read_all(rest);
    }

    /// Waits for the windows that are being read in the background, if any are, and takes them.
    pub(in crate::identify) fn take_windows(&mut self) {
        let start = self.timer.now();
        let Some(extents) = self.store.end_read() else { return };
        self.counters.prefetch_nanos += self.timer.nanos_since(start);
        let successors = std::mem::take(&mut self.successors.reading);
        self.take_extents(extents, &successors, &[]);
    }

    pub(in crate::identify) fn read_all(&mut self, mut windows: &[HitWindow]) {
        while !windows.is_empty() {
            let (batch, rest) = windows.split_at(batch_of(windows));
            self.read_windows(batch);
            windows = rest;
        }
    }

    /// Returns the windows that the hits need.
    fn windows_for(&mut self, mut hits: Vec<Hit>) -> Vec<HitWindow> {
        let records = self.window_records();
        let mut windows = Vec::new();
        if records == 0 {
            return windows;
        }
        let has_buckets = self.options.schedule.has_buckets();
        let plan = self.plan_of_windows();
        hits.retain(|hit| match hit.membership {
            Some(membership) if has_buckets => {
                !self.session.cycles.is_exhausted(membership, 0) && self.session.cycles.has_others_pending(membership)
            }
            // A window of a pool is for one run of pending chunks.
            Some(_) => self.has_pending_neighbors(hit.sequence),
            None => true,
        });
        hits.sort_unstable_by_key(|hit| hit.position);
        let (mut read_up_to, mut has_probed_all) = (0, false);
        for hit in hits {
            // The window of an earlier hit has the records.
            if hit.position.0 < read_up_to {
                continue;
            }
            // A cached window has them, unless it ends soon.
            if let Some(end) = self.cache.window_end(&hit.fingerprint) {
                let is_served = match plan {
                    Some(plan) => plan.is_served(hit.position.0, end.0),
                    // The whole unit was read.
                    None if self.options.unit != PrefetchUnit::Window => true,
                    None => u64::from(records / 2) <= end.0.saturating_sub(hit.position.0),
                };
                if is_served {
                    // Chunks that arrived later have not probed it, unless each probes the cache at its arrival.
                    if self.options.prelookup != Prelookup::Always && !has_probed_all {
                        has_probed_all = self.options.schedule.postlookup() == Postlookup::Pending;
                        self.postlookup_cached(&hit);
                    }
                    continue;
                }
                read_up_to = end.0;
            }
            let Some(mut window) = self.range_around(&hit, records) else { continue };
            self.counters.units_read += u64::from(self.options.unit != PrefetchUnit::Window);
            // A hit whose position leads to nothing reads its container instead, which may be in the other log.
            if window.start.is_in_stream() == hit.position.is_in_stream() {
                let end = window.end();
                let overlap = read_up_to.saturating_sub(window.start.0);
                window.start = Position(window.start.0 + overlap);
                window.records = window.records.saturating_sub(u32::try_from(overlap).unwrap_or(u32::MAX));
                read_up_to = end.max(read_up_to);
            }
            windows.push((window, hit.membership));
        }
        if self.plans_windows() { self.merge(&windows) } else { windows }
    }

    /// Returns true if the schedule, and nothing else, says what hits read.
    fn plans_windows(&self) -> bool {
        self.options.schedule.plans() && self.options.adapts_windows()
    }

    /// Returns the plan, if it and nothing else says what hits read.
    fn plan_of_windows(&self) -> Option<Plan> {
        self.schedule.plan().filter(|_| self.options.adapts_windows())
    }

    /// Merges windows, without what is cached of them, as the plan's replay does.
    fn merge(&self, windows: &[HitWindow]) -> Vec<HitWindow> {
        let log_end = self.store.positions_end();
        let not_cached = |(window, _): &HitWindow| {
            uncached((window.start.0, window.end()), log_end, &self.device, |from, to| self.cache.first_in(from, to))
        };
        let ranges = windows.iter().flat_map(not_cached).collect();
        let merged = merge_windows(ranges, &self.device, self.options.window.max().into());
        let window = |(start, end)| LogWindow {
            start: Position(start),
            records: u32::try_from(end - start).expect("at most as many as a window has"),
        };
        merged.into_iter().map(|range| (window(range), None)).collect()
    }

    /// Returns true if a neighbor of a chunk is pending or has yet to arrive.
    fn has_pending_neighbors(&self, Sequence(sequence): Sequence) -> bool {
        if let Some(plan) = self.plan_of_windows() {
            let reach = reach_of(&plan);
            if self.session.pending.is_empty() {
                return self.session.next_sequence.0 <= sequence + reach;
            }
            let before = Sequence(sequence.saturating_sub(reach));
            return self.arrivals.is_undecided_between(before, Sequence(sequence + reach));
        }
        let run = self.arrivals.runs.mean_run().clamp(1, NEIGHBORS_MAX);
        let before = if self.rounds.is_dense { run } else { 0 };
        self.arrivals.is_undecided_between(Sequence(sequence.saturating_sub(before)), Sequence(sequence + 2 * run))
    }

    /// Returns what a hit reads; `None` if nothing.
    fn range_around(&self, hit: &Hit, records: u32) -> Option<LogWindow> {
        match self.options.unit {
            PrefetchUnit::Window => Some(self.window_around(hit, records)),
            PrefetchUnit::Container | PrefetchUnit::Segment { .. } => {
                self.store.unit_around(hit.position, hit.ordinal, self.options.window.max())
            }
        }
    }

    fn window_around(&self, hit: &Hit, records: u32) -> LogWindow {
        if let Some(plan) = self.plan_of_windows() {
            let (start, end) = plan.window_around(hit.position.0);
            return LogWindow { start: Position(start), records: u32::try_from(end - start).unwrap_or(u32::MAX) };
        }
        let page = LOG_PAGE_RECORDS as u64;
        let rank = hit.membership.map_or(0, |membership| membership.rank);
        let back = match self.options.window {
            WindowRule::Adaptive(_) if self.options.schedule.has_buckets() => rank.min(records / 2),
            WindowRule::Fixed(_) if self.options.schedule.has_buckets() => rank.min(records - 1),
            WindowRule::Adaptive(_) if self.options.schedule.is_pool() && self.rounds.is_dense => {
                // The hit may be in the middle of its run, and the records before it on its page are read anyway.
                u32::try_from(hit.position.0 % page).unwrap_or(0).min(records / 2)
            }
            // The first chunk of the run was looked up: no chunk before it is pending.
            WindowRule::Adaptive(_) | WindowRule::Fixed(_) => 0,
        };
        let start = hit.position.0.saturating_sub(back.into());
        let mut end = start.saturating_add(records.into());
        if matches!(self.options.window, WindowRule::Adaptive(_)) && page <= u64::from(records) {
            // The rest of the last page is read anyway, and its records may well be useful.
            end = end.div_ceil(page).saturating_mul(page);
        }
        LogWindow { start: Position(start), records: u32::try_from(end - start).unwrap_or(u32::MAX) }
    }

    /// Reads log windows into the cache and resolves pending chunks by them.
    fn read_windows(&mut self, windows: &[HitWindow]) {
        let start = self.timer.now();
        let cycles: Vec<Membership> = windows.iter().filter_map(|(_, membership)| *membership).collect();
        let windows: Vec<LogWindow> = windows.iter().map(|(window, _)| *window).collect();
        let successors = self.successors_of(&windows);
        let extents = self.store.read_windows([&successors[..], &windows].concat());
        self.counters.prefetch_nanos += self.timer.nanos_since(start);
        self.take_extents(extents, &successors, &cycles);
    }

    /// Reads the log ahead from a position and takes the records.
    pub(in crate::identify) fn read_ahead(&mut self, start: Position) {
        let window = (LogWindow { start, records: self.window_records() }, None);
        self.counters.read_aheads += 1;
        let windows = if self.plans_windows() { self.merge(&[window]) } else { vec![window] };
        self.read_windows(&windows);
    }

    /// Adds log records to the cache and resolves pending chunks by them. `successors` were read by successor prefetch;
    /// `cycles` are those of the hits that the other records were read for.
    fn take_extents(&mut self, extents: Vec<LogExtent>, successors: &[LogWindow], cycles: &[Membership]) {
        let start = self.timer.now();
        let are_units = self.options.unit != PrefetchUnit::Window;
        let extents = if are_units { self.store.divide_into_units(extents) } else { extents };
        for LogExtent { start, records } in &extents {
            let is_successor = successors.iter().any(|window| window.holds(*start));
            if self.plans_windows() && !is_successor {
                self.cache.insert_missing(*start, records);
            } else {
                self.cache.insert(*start, records, is_successor);
            }
            if let Some(trace) = &mut self.arrivals.trace {
                trace.read(start.0, start.0 + records.len() as u64);
            }
        }
        for membership in cycles {
            self.session.cycles.note_window(membership.cycle);
        }
        if self.immediate {
            let end = extents.last().map(LogExtent::end);
            self.read_up_to = end.map(|end| Position(end_of_cached(end.0, |from, to| self.cache.first_in(from, to))));
        }
        if !self.session.pending.is_empty() {
            match self.options.schedule.postlookup() {
                Postlookup::Cycle => self.postlookup_cycles(cycles),
                Postlookup::Pending => self.postlookup_pending(),
                Postlookup::Records => extents.iter().for_each(|extent| self.postlookup_records(extent)),
            }
        }
        self.counters.postlookup_nanos += self.timer.nanos_since(start);
    }

    /// Returns the duplicate runs that followed some windows the last time: as many records of each as a window has, and as
    /// many runs as can be read with the windows.
    fn successors_of(&mut self, windows: &[LogWindow]) -> Vec<LogWindow> {
        // Where a seek is expensive, a plan reads more around each hit instead.
        if !self.options.follows() || self.schedule.plan().is_some() {
            return Vec::new();
        }
        let records = self.window_records();
        let pages = records as usize / LOG_PAGE_RECORDS + 2;
        let taken: usize = windows.iter().map(LogWindow::pages).sum();
        let space = WINDOW_PAGES_PER_BATCH.saturating_sub(taken) / pages;
        if self.arrivals.runs.mean_run() < SUCCESSOR_RUN_MIN || space == 0 {
            return Vec::new();
        }
        self.successors.note_useful(self.cache.useful);
        if !self.successors.take_chance() {
            return Vec::new();
        }
        let (mut found, pages) = self.store.duplicate_runs.read(&*self.store.directory.disk, windows);
        // Runs that begin in a window are read for its hit.
        found.retain(|run| windows.iter().all(|window| !window.holds(run.start)));
        found.truncate(space);
        for run in &mut found {
            run.records = run.records.min(records);
        }
        // A search without result costs reads too.
        self.successors.note_read(found.len().max(pages) as u64);
        self.counters.successor_prefetches += found.len() as u64;
        found
    }

    /// Probes the cache for the pending chunks of some cycles.
    fn postlookup_cycles(&mut self, cycles: &[Membership]) {
        let members = cycles.iter().flat_map(|membership| self.session.cycles.members(membership.cycle));
        let mut members: Vec<(Slot, Sequence)> = members.copied().collect();
        members.sort_unstable_by_key(|(_, sequence)| *sequence);
        members.dedup_by_key(|(_, sequence)| *sequence);
        for batch in members.chunks(PREFETCH_CHUNKS) {
            let pending = batch.iter().filter_map(|&(slot, sequence)| {
                let chunk = self.session.pending.get(slot, sequence)?;
                // The window that was just read is counted already, and is one more try.
                let is_exhausted = |membership| self.session.cycles.is_exhausted(membership, 1);
                (!chunk.membership.is_some_and(is_exhausted)).then_some((slot, chunk.first.chunk.fingerprint))
            });
            self.probe_cache(pending.collect());
        }
    }

    /// Probes the cache for all pending chunks.
    fn postlookup_pending(&mut self) {
        for batch in self.session.pending.by_bucket().chunks(PREFETCH_CHUNKS) {
            let pending = batch.iter().filter_map(|&slot| Some((slot, *self.session.pending.fingerprint(slot)?)));
            self.probe_cache(pending.collect());
        }
    }

    fn probe_cache(&mut self, pending: Vec<(Slot, Fingerprint)>) {
        for (_, fingerprint) in &pending {
            self.cache.prefetch(fingerprint);
        }
        self.counters.postlookup_probes += pending.len() as u64;
        for (slot, fingerprint) in pending {
            if let Some((ordinal, position)) = self.cache.get(&fingerprint) {
                self.resolve_by_window(slot, self.live(ordinal, position));
            }
        }
    }

    /// Resolves pending chunks by the cached window of a hit.
    fn postlookup_cached(&mut self, hit: &Hit) {
        let start = self.timer.now();
        match self.options.schedule.postlookup() {
            Postlookup::Cycle => self.postlookup_cycles(hit.membership.as_slice()),
            Postlookup::Pending => self.postlookup_pending(),
            Postlookup::Records => {
                if let Some(extent) = self.cache.window_of(&hit.fingerprint) {
                    self.postlookup_records(&extent);
                }
            }
        }
        self.counters.postlookup_nanos += self.timer.nanos_since(start);
    }

    /// Resolves the pending chunks among some records.
    fn postlookup_records(&mut self, extent: &LogExtent) {
        self.counters.postlookup_probes += extent.records.len() as u64;
        let mut is_useful = false;
        for (position, record) in (extent.start.0..).map(Position).zip(&extent.records) {
            let Some(InFlight::Pending(slot)) = self.session.get(&record.chunk.fingerprint) else { continue };
            if self.session.pending.is_in_lookup(slot) {
                continue;
            }
            let found = self.live(record.ordinal, position);
            if found.is_some() && !std::mem::replace(&mut is_useful, true) {
                // Marks the window as used.
                self.cache.get(&record.chunk.fingerprint);
            }
            self.resolve_by_window(slot, found);
        }
    }
}
