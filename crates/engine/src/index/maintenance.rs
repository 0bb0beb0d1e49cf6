//! What keeps the index in shape while it serves: writing staged entries out, growing the filter, noting repeats.
//!
//! Entries are merged into the table beside identification, by a job that owns what it needs; the entries stay staged, and
//! are found there, until its runs are taken in. One job at a time: the next starts when staging is nearly full again.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::Result;
use crate::index::Unit;
use crate::index::arrivals::DuplicateRun;
use crate::index::checkpoint::INCOMPLETE_MAX;
use crate::index::duplicate_runs::{DUPLICATE_RUN_PAGE_BYTES, DuplicateRunRecord};
use crate::index::log::LogWindow;
use crate::index::store::{NO_POSITION, Store};
use crate::io::background::Background;
use crate::kv::filter::{FILTER_SEGMENTS, Filter};
use crate::kv::flush::{FlushDone, Live};
use crate::kv::table::Lookup;
use crate::kv::{Key, Ordinal, Position};

/// Shortest stretch that is noted when it repeats: what is shorter costs more to note than it helps.
const DUPLICATE_RUN_LEN_MIN: u32 = 8;

/// Share of set bits above which a segment of the filter is made anew, larger: there, with five bits set for each fingerprint
/// and 17 bits of memory, it lets between one and two of a thousand pass.
const FILTER_FILL_MAX: f64 = 0.25;

/// How many times as large it becomes: each time its share of the table is read.
const FILTER_GROWTH: usize = 4;

/// Returns what a part of the filter grows to if it may have at most `bytes_max`: all of that where little is left beyond
/// [`FILTER_GROWTH`], since sizes are rounded down.
fn grown_bytes(bytes: usize, bytes_max: usize) -> usize {
    let grown = FILTER_GROWTH * bytes;
    if bytes_max < grown + 2 * bytes { bytes_max } else { grown }
}

/// Returns what a filter or a part of it must grow to for the growth to be worth reading the table.
pub(super) fn grown_bytes_min(bytes: usize) -> usize {
    bytes + bytes / 4
}

/// Bytes of replaced runs, in use only by the last checkpoint, that are worth a new one however small the table is.
const RETIRED_BYTES_MIN: u64 = 256 << 20;

/// A flush of the table that goes on beside, in parts.
#[derive(Debug)]
pub(super) struct BackgroundFlush {
    running: VecDeque<Background<Result<FlushDone>>>,
    done: Vec<Result<FlushDone>>,
}

impl BackgroundFlush {
    /// Says whether a part has not ended.
    fn goes_on(&mut self) -> bool {
        while self.running.front_mut().is_some_and(Background::has_ended) {
            self.done.extend(self.running.pop_front().map(|part| part.wait().flatten()));
        }
        !self.running.is_empty()
    }

    /// Waits for its end; returns what its parts came to, in their order.
    pub(super) fn wait(self) -> Result<Vec<FlushDone>> {
        let Self { running, mut done } = self;
        // All of them, before an error is looked at: until then they may write.
        done.extend(running.into_iter().map(|part| part.wait().flatten()));
        done.into_iter().collect()
    }
}

impl Store {
    /// Makes room for another record in log and table, waiting for the table only if it is full.
    pub(super) fn make_space(&mut self) -> Result<()> {
        if !self.log.has_space() {
            self.finish_log_write()?;
            self.start_log_write()?;
        }
        if self.table.has_space() {
            return Ok(());
        }
        let start = self.host.monotonic();
        while !self.table.has_space() {
            if self.flush_running.is_none() {
                self.start_flush()?;
            }
            self.finish_flush()?;
        }
        let waited = self.host.monotonic().saturating_sub(start);
        self.flush_wait_nanos += u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Takes in a flush that has ended, and starts another if it is time.
    pub(super) fn keep_flushing(&mut self) -> Result<()> {
        if let Some(flush_running) = &mut self.flush_running {
            if flush_running.goes_on() {
                return Ok(());
            }
            self.finish_flush()?;
        }
        if self.table.wants_flush() { self.start_flush() } else { Ok(()) }
    }

    fn start_log_write(&mut self) -> Result<()> {
        let (synced, records) = self.registry.begin_sync()?;
        let write = self.log.start_write();
        // Registry before log: an ordinal that it names must mean the same container after a power cut.
        let write = move || synced.sync(records).and_then(|()| write.run());
        self.writing_log = Some(Background::start(&self.host, write));
        Ok(())
    }

    /// Waits for the pages of the log that are being written beside, if any are.
    pub(super) fn finish_log_write(&mut self) -> Result<()> {
        let Some(done) = self.writing_log.take() else { return Ok(()) };
        self.log.finish_write(done.wait().flatten())
    }

    fn start_flush(&mut self) -> Result<()> {
        let (synced, records) = self.registry.begin_sync()?;
        let live = self.registry.live().clone();
        let live: Live = Arc::new(move |ordinal| live.contains(ordinal));
        let mut flush_running = BackgroundFlush { running: VecDeque::new(), done: Vec::new() };
        for job in self.table.start_flush(&live) {
            let (disk, synced) = (Arc::clone(&self.disk), Arc::clone(&synced));
            // Registry before table, as before the log.
            let run = move || synced.sync(records).map(|()| job.run(&*disk));
            flush_running.running.push_back(Background::start(&self.host, run));
        }
        self.flush_running = Some(flush_running);
        Ok(())
    }

    /// Waits for the flush that goes on beside, if one does.
    pub(super) fn finish_flush(&mut self) -> Result<()> {
        let Some(flush_running) = self.flush_running.take() else { return Ok(()) };
        self.install(flush_running.wait())
    }

    fn install(&mut self, done: Result<Vec<FlushDone>>) -> Result<()> {
        // It may read pages that are free from now on.
        self.wait_for_lookup();
        self.table.finish_flush(done?)
    }

    /// Makes the next segment of the filter anew, larger, if it is too full and the memory allows it: what that reads is the
    /// segment's share of the table. Segments follow each other at distances in which all of them get their turn while
    /// the table grows by about a quarter. Before the first of them, the memory for all is reserved, see
    /// [`Store::filter_left`].
    ///
    /// When this happens depends on what was entered alone, and not on when a flush ends: what the filter lets pass decides
    /// in which order verdicts come.
    pub(super) fn grow_filter(&mut self) -> Result<()> {
        if self.updates < self.next_growth {
            return Ok(());
        }
        let index = self.next_segment;
        self.next_segment = (index + 1) % FILTER_SEGMENTS;
        let old = self.filter.segment(index);
        let grown = Filter::segment_bytes(grown_bytes(old.bytes(), self.filter_bytes_max / FILTER_SEGMENTS));
        if old.fill() < FILTER_FILL_MAX || grown < grown_bytes_min(old.bytes()) {
            return Ok(());
        }
        if self.filter_reserved < grown * FILTER_SEGMENTS {
            // It is this segment's turn again when the memory has been given back.
            (self.filter_reserved, self.next_segment) = (grown * FILTER_SEGMENTS, index);
            return Ok(());
        }
        let mut segment = self.filter.new_segment(grown);
        self.next_growth = self.updates + self.log.next_position().0 / (4 * FILTER_SEGMENTS as u64);
        // The table is read as a whole, which it is between two flushes.
        self.finish_flush()?;
        let width = u64::MAX / FILTER_SEGMENTS as u64 + 1;
        let first = index as u64 * width;
        // Chunks that are in flight are not in the table: they are found in the map of flights, before the filter.
        self.table.scan(&*self.disk, first..=first + (width - 1), &mut |key| {
            segment.test_and_set(key);
        });
        self.filter.replace(index, segment);
        self.filter_growths += 1;
        Ok(())
    }

    /// Has damaged buckets written anew without their bad pages. What these held is noted as incomplete.
    pub(super) fn rewrite_damaged(&mut self) -> Result<()> {
        if !self.is_attached {
            // Every entry would seem to be of a container that is gone.
            return Ok(());
        }
        let damaged = self.table.damaged_buckets();
        self.found_incomplete.extend(damaged.iter().map(|bucket| bucket.first_head()..=bucket.last_head()));
        for _ in 0..damaged.len() {
            if !self.table.has_damaged_pages() {
                break;
            }
            self.start_flush()?;
            self.finish_flush()?;
        }
        for bucket in damaged {
            self.table.forget_damage(bucket);
        }
        Ok(())
    }

    /// Returns the parts of the table whose entries may be missing.
    pub(super) fn incomplete_now(&self) -> Vec<RangeInclusive<u64>> {
        let mut parts = [&self.incomplete[..], &self.found_incomplete].concat();
        for bucket in self.table.damaged_buckets() {
            let heads = bucket.first_head()..=bucket.last_head();
            if !parts.contains(&heads) {
                parts.push(heads);
            }
        }
        if INCOMPLETE_MAX < parts.len() { vec![0..=u64::MAX] } else { disjoint(parts) }
    }

    /// Enters those chunks of a covered container that damaged parts of the table may have held and do not hold now.
    pub(super) fn complete(&mut self, unit: &Unit<'_>, ordinal: Ordinal) -> Result<()> {
        let is_missing = |key: &Key| {
            let head = key.head();
            let index = self.incomplete.partition_point(|heads| *heads.end() < head);
            self.incomplete.get(index).is_some_and(|heads| heads.contains(&head))
        };
        let keys: Vec<Key> = unit.chunks.iter().map(|chunk| Key::from(&chunk.fingerprint)).filter(is_missing).collect();
        let mut found = Vec::new();
        self.lookup(&keys, &mut found);
        for (key, found) in keys.iter().zip(found) {
            // It may be on a page that could not be read when the filter was made from the table.
            self.filter.test_and_set(key);
            if matches!(found, Lookup::Absent | Lookup::Dead) {
                self.make_space()?;
                // Where it stands in the log is not known; a hit on it reads no window.
                self.enter(*key, ordinal, NO_POSITION);
            }
        }
        self.to_complete -= 1;
        if self.to_complete == 0 {
            // What was found meanwhile was not asked for in every container: that is for the next session.
            self.incomplete = std::mem::take(&mut self.found_incomplete);
        }
        self.keep_flushing()
    }

    /// Notes that a stretch of the log was repeated, `ahead` chunks before those are recorded that came before it. It is
    /// durable with the next checkpoint.
    pub fn log_duplicate_run(&mut self, duplicate_run: &DuplicateRun, ahead: u64) {
        // A session that records nothing makes no checkpoint that would compact them.
        let are_too_many = 4 * self.duplicate_run_pages_max() < self.duplicate_runs.pages();
        if duplicate_run.len < DUPLICATE_RUN_LEN_MIN || self.degraded.is_some() || are_too_many {
            return;
        }
        let location = Position(self.log.next_position().0.saturating_add(ahead));
        let extent = LogWindow { start: duplicate_run.start, records: duplicate_run.len };
        self.duplicate_runs_noted += 1;
        if let Err(error) = self.duplicate_runs.append(DuplicateRunRecord { location, extent }) {
            self.degraded = Some(error.to_string());
        }
    }

    /// Returns how many pages the log of repeats may have.
    pub(super) fn duplicate_run_pages_max(&self) -> u64 {
        let bytes = self.log.next_position().0.saturating_mul(u64::from(self.duplicate_run_bytes_per_chunk));
        (bytes / DUPLICATE_RUN_PAGE_BYTES as u64).max(self.duplicate_run_pages_min)
    }

    /// Says whether what only the last checkpoint refers to has become so much that another is worth its cost.
    pub(super) fn checkpoint_is_due(&self) -> bool {
        let (retired, used) = self.table.retired_and_used_bytes();
        (used / 2).max(RETIRED_BYTES_MIN) < retired || 2 * self.duplicate_run_pages_max() < self.duplicate_runs.pages()
    }
}

/// Returns parts in their order, those that overlap put together: one search tells whether a key is in them.
pub(super) fn disjoint(mut parts: Vec<RangeInclusive<u64>>) -> Vec<RangeInclusive<u64>> {
    parts.retain(|part| !part.is_empty());
    parts.sort_unstable_by_key(|part| *part.start());
    let mut out: Vec<RangeInclusive<u64>> = Vec::with_capacity(parts.len());
    for part in parts {
        match out.last_mut().filter(|last| part.start() <= last.end()) {
            Some(last) => *last = *last.start()..=*last.end().max(part.end()),
            None => out.push(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::options::FILTER_START_SHARE;

    #[test]
    fn a_segment_that_starts_as_its_share_has_all_that_it_may_after_two_growths() {
        for bytes_max in (64 << 10..4 << 20).step_by(10_007) {
            let most = Filter::segment_bytes(bytes_max);
            let first = Filter::segment_bytes(bytes_max / FILTER_START_SHARE);
            let second = Filter::segment_bytes(grown_bytes(first, bytes_max));
            let third = Filter::segment_bytes(grown_bytes(second, bytes_max));
            assert!(first < second && second < third && third == most, "{bytes_max}: {first}, {second}, {third}");
        }
    }
}
