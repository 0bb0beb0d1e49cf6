//! Requests to write snapshots of a group.

use std::sync::Arc;

use anyhow::Result;
use onefold_cdp::history::CheckpointLimits;
use onefold_cdp::journal::GroupId;
use onefold_cdp::retention::{ThinOptions, Thinner};
use onefold_cdp::stored::GroupSpec;
use onefold_cdp::volume::{BehindMap, Group};
use onefold_engine::backup::{BaseChoices, Budget, Monitor, Silent, WriterOptions};
use onefold_engine::error::Error;
use onefold_engine::forget::Trust;
use onefold_engine::identify::IndexOptions;
use onefold_engine::io::os_identity::{host_name, user_name};
use onefold_engine::pipeline::Driver;
use onefold_engine::repo::WriteRequest;
use onefold_engine::snapshot::ForgetBody;
use onefold_engine::store::Store;

use crate::args::backup::IndexServerArgs;
use crate::index_server::index_options;
use crate::open::OpenedCache;
use crate::settings::Settings;
use crate::{text, trust};

/// Shares of the memory budget that reading the repository takes, for checkpoints and again for thinning, and those of the history that
/// becomes a checkpoint and of the one that is thinned: one part in so many. The index and the queues of a backup have the rest.
const READING_SHARE: usize = 8;
const HISTORY_SHARE: usize = 8;
const THINNING_SHARE: usize = 16;
/// Share of the memory budget that a view of the history takes in a process that makes checkpoints: one part in so many.
const VIEW_SHARE: usize = 4;

/// Returns the memory of a view of the history, to which volumes are compared while checkpoints are made.
pub(super) fn view_bytes(settings: &Settings) -> usize {
    settings.memory_bytes / VIEW_SHARE
}

/// Everything that writing snapshots needs.
pub(super) struct Writing<'a> {
    pub(super) store: &'a Store,
    pub(super) cache: &'a OpenedCache,
    settings: &'a Settings,
    budget: Budget,
    index: IndexOptions,
    hostname: String,
}

/// Work of this process besides checkpoints, which needs memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    /// It thins history.
    pub(super) thins: bool,
    /// It reads views of the history.
    pub(super) views: bool,
    /// Memory in bytes for the extents of volumes that are behind or compared.
    pub(super) volume_bytes: usize,
}

impl Needs {
    /// Returns the needs of a process that has the volumes of a group, and compares them with their history.
    pub(super) fn of_volumes(group: &GroupSpec) -> Self {
        let sizes: Vec<u64> = group.volumes.iter().map(|volume| volume.size).collect();
        let volume_bytes = BehindMap::memory_bytes(&sizes).saturating_add(Group::scan_memory_bytes(&sizes));
        Self { thins: false, views: true, volume_bytes }
    }
}

impl<'a> Writing<'a> {
    pub(super) fn new(settings: &'a Settings, store: &'a Store, cache: &'a OpenedCache, needs: Needs) -> Result<Self> {
        let preset = cache.cache.index_preset();
        let server = IndexServerArgs::default();
        let budget = budget(settings, needs)?;
        let index = index_options(settings, (preset, budget.index_bytes), &server, store.config.repository, cache)?;
        Ok(Self { store, cache, settings, budget, index, hostname: host_name() })
    }

    /// Returns a request. Only one at a time may write.
    pub(super) fn request(&self) -> WriteRequest<'_> {
        WriteRequest {
            cache: &self.cache.cache,
            index: self.index.clone(),
            preset: self.cache.cache.index_preset(),
            hostname: &self.hostname,
            options: WriterOptions {
                compression: self.settings.compression,
                budget: self.budget,
                scratch: self.cache.scratch(),
                bases: BaseChoices::default(),
            },
            driver: Driver::threads(self.settings.threads),
            monitor: Arc::new(Silent) as Arc<dyn Monitor>,
            heads: trust::heads(self.settings, self.store.config.repository),
        }
    }

    /// Returns the limits of checkpoints.
    pub(super) fn limits(&self) -> CheckpointLimits {
        CheckpointLimits::within(self.settings.memory_bytes / HISTORY_SHARE)
    }

    /// Returns the memory for reading the repository.
    pub(super) fn reading_bytes(&self) -> usize {
        self.settings.memory_bytes / READING_SHARE
    }

    /// Prepares to thin the history of a group: `group` is its name, and its identity if that is known.
    pub(super) fn thinner(&self, group: (&str, Option<GroupId>), trust: Trust) -> Result<Thinner> {
        let options = ThinOptions {
            // A history may be twice as long, which is the longest that this host makes.
            limits: CheckpointLimits::within(self.settings.memory_bytes / THINNING_SHARE),
            scratch: self.cache.scratch(),
            memory_bytes: self.reading_bytes(),
            trust,
        };
        Ok(Thinner::open(self.store, group, options, &Driver::threads(self.settings.threads))?)
    }

    /// Returns the note of snapshots that thinning forgets.
    pub(super) fn forget_note(&self) -> ForgetBody {
        let (hostname, username) = (self.hostname.clone(), user_name());
        ForgetBody { time: self.store.host.now(), hostname, username, rules: "thinned".to_owned() }
    }
}

/// Returns the division of what the history, views, volumes, reading and thinning leave of the memory budget.
fn budget(settings: &Settings, needs: Needs) -> Result<Budget> {
    let share = |share: usize| settings.memory_bytes / share;
    let thinning = if needs.thins { share(READING_SHARE) + 2 * share(THINNING_SHARE) } else { 0 };
    let views = if needs.views { view_bytes(settings) } else { 0 };
    let taken = share(READING_SHARE) + share(HISTORY_SHARE) + thinning + views;
    let left = (settings.memory_bytes - taken).checked_sub(needs.volume_bytes);
    let too_large = || {
        let (needed, memory) = (text::bytes(needs.volume_bytes as u64), text::bytes(settings.memory_bytes as u64));
        Error::invalid(format!(
            "the extents of the volumes need {needed} of the memory budget of {memory}: give more with --memory"
        ))
    };
    let left = left.ok_or_else(too_large)?;
    Ok(Budget::of(left.max(Budget::BYTES_MIN), settings.threads))
}
