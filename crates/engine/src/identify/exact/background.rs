//! The table and the arrival log, each with the jobs that it runs in the background.
//!
//! At most one flush and one lookup of the table, one write and one read of the log run at a time. A job owns its inputs.
//! The caller takes its results at points that the stream decides, so the speed of a disk changes no verdict.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::Result;
use crate::identify::exact::registry::Registry;
use crate::identify::locality::arrival_log::{ArrivalLog, LogExtent, LogReadDone, LogWindow};
use crate::io::background::Background;
use crate::io::{Disk, Host};
use crate::kv::{BucketName, FlushDone, Key, Live, Lookup, LookupDone, Table};

/// A flush of the table, in several jobs.
#[derive(Debug, Default)]
struct BackgroundFlush {
    running: VecDeque<Background<Result<FlushDone>>>,
    done: Vec<Result<FlushDone>>,
}

impl BackgroundFlush {
    /// Returns true if a part has not ended.
    fn is_running(&mut self) -> bool {
        while self.running.front_mut().is_some_and(Background::has_ended) {
            self.done.extend(self.running.pop_front().map(|part| part.wait().flatten()));
        }
        !self.running.is_empty()
    }

    /// Waits for its end; returns the results of its parts in order.
    fn wait(self) -> Result<Vec<FlushDone>> {
        let Self { running, mut done } = self;
        // All parts end before an error is returned: until then they may write.
        done.extend(running.into_iter().map(|part| part.wait().flatten()));
        done.into_iter().collect()
    }
}

/// A lookup of the table in the background.
#[derive(Debug)]
enum BackgroundLookup {
    /// Its parts run.
    Running(Vec<Background<LookupDone>>),
    /// It has ended; its answers are not taken yet.
    Ended(Vec<Lookup>),
}

/// The table with its flush and its lookup in the background.
///
/// A flush merges entries of the memtable into runs. The entries stay in the memtable, and are found there, until the runs
/// are installed. The next flush starts when the memtable is nearly full again.
#[derive(Debug)]
pub(in crate::identify) struct BackgroundTable {
    disk: Arc<dyn Disk>,
    host: Arc<dyn Host>,
    /// Not to be flushed or looked up directly.
    pub(crate) table: Table,
    flush: Option<BackgroundFlush>,
    lookup: Option<BackgroundLookup>,
    /// Nanoseconds for which [`BackgroundTable::make_space`] has waited.
    pub(crate) flush_wait_nanos: u64,
}

impl BackgroundTable {
    pub(crate) fn new(disk: Arc<dyn Disk>, host: Arc<dyn Host>, table: Table) -> Self {
        Self { disk, host, table, flush: None, lookup: None, flush_wait_nanos: 0 }
    }

    /// Looks keys up in live containers; returns one answer for each key.
    pub(in crate::identify) fn lookup(&mut self, keys: &[Key], registry: &Registry) -> Vec<Lookup> {
        let mut answers = Vec::with_capacity(keys.len());
        self.table.lookup(&*self.disk, keys, &|ordinal| registry.live.contains(ordinal.0), &mut answers);
        answers
    }

    /// Starts to look keys up in the background.
    pub(in crate::identify) fn start_lookup(&mut self, keys: Vec<Key>, registry: &Registry) {
        assert!(self.lookup.is_none(), "the answers of a lookup are taken before the next starts");
        let mut running = Vec::new();
        for job in self.table.start_lookup(keys, &live_in(registry)) {
            let disk = Arc::clone(&self.disk);
            running.push(Background::start(&self.host, "lookup", move || job.run(&*disk)));
        }
        self.lookup = Some(BackgroundLookup::Running(running));
    }

    /// Waits for the lookup in the background; returns one answer for each key, or `None` if none was started.
    pub(in crate::identify) fn end_lookup(&mut self) -> Option<Vec<Lookup>> {
        self.wait_for_lookup();
        match self.lookup.take()? {
            BackgroundLookup::Ended(answers) => Some(answers),
            BackgroundLookup::Running(_) => None,
        }
    }

    /// Waits for the lookup in the background, and keeps its answers until they are taken.
    fn wait_for_lookup(&mut self) {
        self.lookup = match self.lookup.take() {
            Some(BackgroundLookup::Running(parts)) => {
                let done = parts.into_iter().map(|part| part.wait().expect("a lookup ends with answers")).collect();
                Some(BackgroundLookup::Ended(self.table.finish_lookup(done)))
            }
            other => other,
        };
    }

    /// Waits until the memtable has space for another entry.
    pub(in crate::identify) fn make_space(&mut self, registry: &mut Registry) -> Result<()> {
        if self.table.has_space() {
            return Ok(());
        }
        let start = self.host.monotonic();
        while !self.table.has_space() {
            if self.flush.is_none() {
                self.start_flush(registry)?;
            }
            self.finish_flush()?;
        }
        let waited = self.host.monotonic().saturating_sub(start);
        self.flush_wait_nanos += u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Installs a flush that has ended, and starts another if one is due.
    pub(in crate::identify) fn keep_flushing(&mut self, registry: &mut Registry) -> Result<()> {
        if let Some(flush) = &mut self.flush {
            if flush.is_running() {
                return Ok(());
            }
            self.finish_flush()?;
        }
        if self.table.wants_flush() { self.start_flush(registry) } else { Ok(()) }
    }

    fn start_flush(&mut self, registry: &mut Registry) -> Result<()> {
        let (synced, records) = registry.begin_sync()?;
        let mut flush = BackgroundFlush::default();
        for job in self.table.start_flush(&live_in(registry)) {
            let (disk, synced) = (Arc::clone(&self.disk), Arc::clone(&synced));
            // Registry before table: an ordinal in it must mean the same container after a power cut.
            let run = move || synced.sync(records).map(|()| job.run(&*disk));
            flush.running.push_back(Background::start(&self.host, "flush", run));
        }
        self.flush = Some(flush);
        Ok(())
    }

    /// Waits for the flush in the background, if one runs, and installs its runs.
    pub(crate) fn finish_flush(&mut self) -> Result<()> {
        let Some(flush) = self.flush.take() else { return Ok(()) };
        let done = flush.wait();
        // A lookup may read pages that installing frees.
        self.wait_for_lookup();
        self.table.finish_flush(done?)
    }

    /// Rewrites damaged buckets without their bad pages. Returns those buckets.
    pub(in crate::identify) fn rewrite_damaged(&mut self, registry: &mut Registry) -> Result<Vec<BucketName>> {
        let damaged = self.table.damaged_buckets();
        for _ in 0..damaged.len() {
            if !self.table.has_damaged_pages() {
                break;
            }
            self.start_flush(registry)?;
            self.finish_flush()?;
        }
        for &bucket in &damaged {
            self.table.forget_damage(bucket);
        }
        Ok(damaged)
    }

    /// Calls `each` with every key whose head lies in the range.
    pub(in crate::identify) fn scan(&mut self, heads: RangeInclusive<u64>, each: &mut dyn FnMut(&Key)) -> Result<()> {
        // The table is whole only between two flushes.
        self.finish_flush()?;
        self.table.scan(&*self.disk, heads, each);
        Ok(())
    }
}

impl Drop for BackgroundTable {
    fn drop(&mut self) {
        // The flush writes into the table file: the index keeps its lock until the flush ends.
        if let Some(flush) = self.flush.take() {
            let _ = flush.wait();
        }
    }
}

/// Returns a test for live containers that a job can take with it.
fn live_in(registry: &Registry) -> Live {
    let live = registry.live.clone();
    Arc::new(move |ordinal| live.contains(ordinal.0))
}

/// The arrival log with its write and its read in the background.
#[derive(Debug)]
pub(in crate::identify) struct BackgroundLog {
    disk: Arc<dyn Disk>,
    host: Arc<dyn Host>,
    /// Not to be written or read directly.
    pub(crate) log: ArrivalLog,
    writing: Option<Background<Result<()>>>,
    reading: Option<Background<LogReadDone>>,
}

impl BackgroundLog {
    pub(crate) fn new(disk: Arc<dyn Disk>, host: Arc<dyn Host>, log: ArrivalLog) -> Self {
        Self { disk, host, log, writing: None, reading: None }
    }

    /// Makes space for another record: writes the whole pages in memory in the background.
    pub(in crate::identify) fn make_space(&mut self, registry: &mut Registry) -> Result<()> {
        if self.log.has_space() {
            return Ok(());
        }
        self.finish_write()?;
        let (synced, records) = registry.begin_sync()?;
        let write = self.log.start_write();
        // Registry before log: an ordinal in it must mean the same container after a power cut.
        let write = move || synced.sync(records).and_then(|()| write());
        self.writing = Some(Background::start(&self.host, "log write", write));
        Ok(())
    }

    /// Waits for the pages that are being written, if any are.
    pub(in crate::identify) fn finish_write(&mut self) -> Result<()> {
        let Some(done) = self.writing.take() else { return Ok(()) };
        self.log.finish_write(done.wait().flatten())
    }

    /// Reads windows.
    pub(in crate::identify) fn read(&mut self, windows: Vec<LogWindow>) -> Vec<LogExtent> {
        self.log.read(&*self.disk, windows)
    }

    /// Starts to read windows in the background.
    pub(in crate::identify) fn start_read(&mut self, windows: Vec<LogWindow>) {
        assert!(self.reading.is_none(), "windows of the log are taken before the next are read");
        let read = self.log.start_read(windows);
        let disk = Arc::clone(&self.disk);
        self.reading = Some(Background::start(&self.host, "window read", move || read(&*disk)));
    }

    /// Waits for the read in the background; returns its records, or `None` if none was started.
    pub(in crate::identify) fn end_read(&mut self) -> Option<Vec<LogExtent>> {
        let read = self.reading.take()?;
        Some(self.log.finish_read(read.wait().expect("a read ends with its records")))
    }
}

impl Drop for BackgroundLog {
    fn drop(&mut self) {
        // The write goes into the log file: the index keeps its lock until the write ends.
        let _ = self.finish_write();
    }
}
