//! Lookups of the table and reads of the log that go on beside identification.
//!
//! One of each at a time. Answers are taken where the caller says and not when they come, so that verdicts and their order
//! do not depend on how fast a disk is.

use std::sync::Arc;

use crate::index::log::{LogExtent, LogWindow};
use crate::index::store::Store;
use crate::io::background::Background;
use crate::kv::Key;
use crate::kv::background::LookupDone;
use crate::kv::flush::Live;
use crate::kv::table::Lookup;

/// A lookup of the table that goes on beside, or what it came to.
#[derive(Debug)]
pub(super) enum BackgroundLookup {
    /// It goes on.
    Running(Vec<Background<LookupDone>>),
    /// It has ended, and nobody has asked for its answers yet.
    Ended(Vec<Lookup>),
}

impl Store {
    /// Starts to look keys up beside. One lookup at a time.
    pub(super) fn start_lookup(&mut self, keys: Vec<Key>) {
        assert!(self.lookup_running.is_none(), "a lookup was started before the last one's answers were taken");
        let live = self.registry.live().clone();
        let live: Live = Arc::new(move |ordinal| live.contains(ordinal));
        let mut running = Vec::new();
        for job in self.table.start_lookup(keys, &live) {
            let disk = Arc::clone(&self.disk);
            running.push(Background::start(&self.host, move || job.run(&*disk)));
        }
        self.lookup_running = Some(BackgroundLookup::Running(running));
    }

    /// Waits for the lookup that goes on beside and returns its answers, one for each key; `None` if there is none.
    pub(super) fn end_lookup(&mut self) -> Option<Vec<Lookup>> {
        self.wait_for_lookup();
        match self.lookup_running.take()? {
            BackgroundLookup::Ended(answers) => Some(answers),
            BackgroundLookup::Running(_) => None,
        }
    }

    /// Waits for the lookup that goes on beside, and keeps its answers until they are asked for.
    pub(super) fn wait_for_lookup(&mut self) {
        self.lookup_running = match self.lookup_running.take() {
            Some(BackgroundLookup::Running(parts)) => {
                let done = parts.into_iter().map(|part| part.wait().expect("a lookup ends with answers")).collect();
                Some(BackgroundLookup::Ended(self.table.finish_lookup(done)))
            }
            other => other,
        };
    }

    /// Starts to read windows of the log beside. One read at a time.
    pub(super) fn start_read_log(&mut self, windows: Vec<LogWindow>) {
        assert!(self.reading.is_none(), "windows were asked for before the last ones were taken");
        let read = self.log.start_read(windows);
        let disk = Arc::clone(&self.disk);
        self.reading = Some(Background::start(&self.host, move || read.run(&*disk)));
    }

    /// Waits for the windows that are being read beside and returns what exists of them; `None` if none are.
    pub(super) fn end_read_log(&mut self) -> Option<Vec<LogExtent>> {
        let read = self.reading.take()?;
        Some(self.log.finish_read(read.wait().expect("a read ends with what it came to")))
    }
}
