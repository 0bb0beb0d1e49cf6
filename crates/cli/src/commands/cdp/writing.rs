//! Requests to write snapshots of a group.

use std::sync::Arc;

use anyhow::Result;
use onefold_cdp::history::CheckpointLimits;
use onefold_cdp::journal::GroupId;
use onefold_cdp::retention::{ThinOptions, Thinner};
use onefold_engine::backup::{Budget, Monitor, Silent, WriterOptions};
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
use crate::trust;

/// Shares of the memory budget that reading the repository takes, for checkpoints and again for thinning, and those of the history that
/// becomes a checkpoint and of the one that is thinned: one part in so many. The index and the queues of a backup have the rest.
const READING_SHARE: usize = 8;
const HISTORY_SHARE: usize = 8;
const THINNING_SHARE: usize = 16;

/// Everything that writing snapshots needs.
pub(super) struct Writing<'a> {
    pub(super) store: &'a Store,
    pub(super) cache: &'a OpenedCache,
    settings: &'a Settings,
    thins: Thins,
    index: IndexOptions,
    hostname: String,
}

/// Whether history is thinned, which needs memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Thins {
    Yes,
    No,
}

impl<'a> Writing<'a> {
    pub(super) fn new(settings: &'a Settings, store: &'a Store, cache: &'a OpenedCache, thins: Thins) -> Result<Self> {
        let preset = cache.cache.index_preset();
        let server = IndexServerArgs::default();
        let index = index_options(
            settings,
            (preset, budget(settings, thins).index_bytes),
            &server,
            store.config.repository,
            cache,
        )?;
        Ok(Self { store, cache, settings, thins, index, hostname: host_name() })
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
                budget: budget(self.settings, self.thins),
                scratch: self.cache.scratch(),
                bases: None,
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

/// Returns the division of what the history, reading and thinning leave of the memory budget.
fn budget(settings: &Settings, thins: Thins) -> Budget {
    let share = |share: usize| settings.memory_bytes / share;
    let thinning = if thins == Thins::Yes { share(READING_SHARE) + 2 * share(THINNING_SHARE) } else { 0 };
    let taken = share(READING_SHARE) + share(HISTORY_SHARE) + thinning;
    Budget::of((settings.memory_bytes - taken).max(Budget::BYTES_MIN), settings.threads)
}
