//! Verifying a repository.

use std::sync::Arc;

use crate::check::{self, CheckReport, CheckRequest, CheckedSnapshots, LostHeads, ReadData};
use crate::error::Result;
use crate::facade::{Repository, monitor_or_silent};
use crate::monitor::Monitor;

/// A verification that is described and then run.
#[derive(Debug)]
#[must_use = "nothing is checked before `run`"]
pub struct Check<'a> {
    repository: &'a Repository,
    read: ReadData,
    monitor: Option<Arc<dyn Monitor>>,
}

impl<'a> Check<'a> {
    pub(super) fn new(repository: &'a Repository) -> Self {
        Self { repository, read: ReadData::None, monitor: None }
    }

    /// Sets how much of the data is read: by default only what describes it.
    pub fn read_data(mut self, read: ReadData) -> Self {
        self.read = read;
        self
    }

    /// Sets who listens, and may interrupt.
    pub fn monitor(mut self, monitor: Arc<dyn Monitor>) -> Self {
        self.monitor = Some(monitor);
        self
    }

    /// Verifies. What is wrong with the repository is in the report; an error means that verification itself failed.
    #[must_use = "damage is in the report"]
    pub fn run(self) -> Result<CheckReport> {
        let Self { repository, read, monitor } = self;
        let request = CheckRequest {
            snapshots: CheckedSnapshots::All,
            read,
            scratch: repository.cache.scratch(),
            memory_bytes: repository.resources.memory_bytes,
            driver: repository.driver(),
            seed: None,
            heads: Some(repository.cache.heads(LostHeads::Report)),
            accelerator: None,
        };
        check::check(&repository.store, &request, &*monitor_or_silent(monitor.as_ref()))
    }
}
