//! `repair`.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_engine::backup::Monitor;
use onefold_engine::collect::rescue_pending;
use onefold_engine::derive::StoreOptions;
use onefold_engine::io::os_identity::{host_name, user_name};
use onefold_engine::pipeline::Driver;
use onefold_engine::repo::{
    GIVEN_UP, RebuildRequest, RebuiltIndex, Repaired, RepairedObjects, find_losses, rebuild_index, repair_objects,
    repair_snapshot,
};
use onefold_engine::snapshot::{ForgetBody, Snapshot};
use onefold_engine::types::SessionId;

use crate::args::prune::PruneArgs;
use crate::args::repair::{RepairCommand, RepairIndexArgs, RepairSnapshotsArgs};
use crate::commands::derive::Run;
use crate::commands::{prune, repair_containers};
use crate::exit::Unreadable;
use crate::index_server::index_options;
use crate::interrupt::Interrupt;
use crate::json::{object, repair, short_id};
use crate::open::{self, OpenedCache, open};
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::retry::with_retries;
use crate::settings::{Settings, Verbosity};
use crate::text;
use crate::trust;

/// Longest name of a file, in bytes.
const NAME_LEN_MAX: usize = 255;

/// Repairs the index of this host, small objects, snapshots, or containers.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, command: &RepairCommand) -> Result<()> {
    match command {
        RepairCommand::Index(args) => index(settings, output, args),
        RepairCommand::Snapshots(args) => snapshots(settings, output, args),
        RepairCommand::Objects(args) => {
            let mut run = Run::begin(settings, output, "repair objects")?;
            objects(&mut run, settings, output, args.dry_run)?;
            run.finish()
        }
        RepairCommand::Containers(args) => repair_containers::run(settings, output, args),
        RepairCommand::Packs(args) => repair_containers::run(settings, output, &args.quarantine()),
    }
}

/// Rebuilds the index of this host. `--read-all-packs` changes nothing about it.
fn index(settings: &Settings, output: &Arc<Output>, args: &RepairIndexArgs) -> Result<()> {
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    ensure!(
        !cache.is_temporary(),
        "there is no index to rebuild: it is kept in the cache directory, which is not used"
    );
    let progress = Progress::new(output, &interrupt, Activity::Repair);
    let request = RebuildRequest {
        cache: &cache.cache,
        index: index_options(
            settings,
            (cache.cache.index_preset(), settings.budget().index_bytes),
            &args.server,
            opened.store.config.repository,
            &cache,
        )?,
        scratch: cache.scratch(),
        monitor: Arc::clone(&progress) as Arc<dyn Monitor>,
    };
    let rebuilt = {
        let _shown = progress.show();
        with_retries(settings, output, &progress, || rebuild_index(&opened.store, &request))?
    };
    print_index(output, &rebuilt)?;
    ensure!(rebuilt.unreadable == 0, Unreadable::NotIndexed);
    Ok(())
}

fn print_index(output: &Output, rebuilt: &RebuiltIndex) -> Result<()> {
    if output.json {
        output.message(&repair::rebuilt(rebuilt))?;
    } else if Verbosity::Normal <= output.verbosity {
        let (containers, chunks) = (text::count(rebuilt.containers, "container"), text::count(rebuilt.chunks, "chunk"));
        output.line(format!("the index was rebuilt: {containers} with {chunks}"))?;
        if 0 < rebuilt.in_doubt {
            let left = text::count(rebuilt.in_doubt, "container");
            output.line(format!("{left} of unfinished sessions will be added by the next backup"))?;
        }
    }
    Ok(output.flush()?)
}

/// Mends small objects, and prints what was done.
fn objects(run: &mut Run<'_>, settings: &Settings, output: &Output, is_dry_run: bool) -> Result<()> {
    let store = &run.opened.store;
    let note = ForgetBody {
        time: store.host.now(),
        hostname: host_name(),
        username: user_name(),
        rules: "repair objects: its commit was damaged".to_owned(),
    };
    let RepairedObjects { mended, left } = repair_objects(store, &run.options, &note, is_dry_run)?;
    for (object, how) in &mended {
        // With --quiet, too: the next prune removes what only this snapshot needs.
        if *how == GIVEN_UP && !is_dry_run {
            output.warn(&format!("warning: {object}: {how}"));
        }
        if output.json {
            output.message(&object! { message_type: "mended", object: &**object, how: *how, dry_run: is_dry_run, })?;
        } else if Verbosity::Normal <= output.verbosity {
            output.line(format!("{object}: {}{how}", if is_dry_run { "would be " } else { "" }))?;
        }
    }
    output.flush()?;
    if !mended.is_empty() && !is_dry_run {
        run.commits = trust::read_commits(settings, output, store)?;
    }
    output.fail_on(&left, "not all damaged objects can be mended")?;
    let damaged = text::count(mended.len() as u64, "damaged small object");
    ensure!(!is_dry_run || mended.is_empty(), "the repository has {damaged}");
    Ok(())
}

/// Repairs snapshots.
fn snapshots(settings: &Settings, output: &Arc<Output>, args: &RepairSnapshotsArgs) -> Result<()> {
    let suffix = args.suffix.as_encoded_bytes();
    let is_name = suffix.len() < NAME_LEN_MAX && !suffix.iter().any(|byte| matches!(byte, 0 | b'/'));
    ensure!(is_name, "--suffix: no name can end like that");
    let mut run = Run::begin(settings, output, "repair snapshots")?;
    // Objects that stay damaged do not keep snapshots from being repaired.
    let mended = objects(&mut run, settings, output, args.dry_run);
    if !args.dry_run {
        // Nothing counts as lost that a container still holds whose deletion is pending.
        let request = prune::request(settings, &run.opened.store, &run.cache, &PruneArgs::default())?;
        rescue_pending(&run.opened.store, &request, &*run.options.monitor)?;
    }
    let selected = open::find_all(output, &run.commits, &args.selection, &args.snapshots)?;
    let repair = Repair { run: &run, settings, output, args, suffix };
    let (changed, empty) = if args.dry_run { repair.try_out(&selected)? } else { repair.carry_out(&selected)? };
    run.summarize(changed, args.dry_run)?;
    run.finish()?;
    mended?;
    ensure!(
        empty == 0,
        "nothing is left of {}: `onefold forget` forgets what is named",
        text::count(empty, "snapshot")
    );
    Ok(())
}

/// One run of `repair snapshots`.
struct Repair<'a> {
    run: &'a Run<'a>,
    settings: &'a Settings,
    output: &'a Output,
    args: &'a RepairSnapshotsArgs,
    suffix: &'a [u8],
}

impl Repair<'_> {
    /// Reports what is lost. Returns how many snapshots would be repaired, and of how many nothing is left.
    fn try_out(&self, selected: &[(SessionId, &Snapshot)]) -> Result<(u64, u64)> {
        let trees: Vec<&Snapshot> = selected.iter().map(|(_, snapshot)| *snapshot).collect();
        let mut losses = find_losses(&self.run.opened.store, &self.run.options, &trees)?;
        let (mut changed, mut empty) = (0, 0);
        for (id, snapshot) in selected {
            if !losses.hit(snapshot, &self.run.options)? {
                continue;
            }
            self.announce(*id)?;
            let tried = losses.try_repair((*id, snapshot), self.suffix, &self.run.options);
            if let Some(repaired) = tried.with_context(|| format!("snapshot {}", short_id(*id)))? {
                self.run.would_change(*id, &losses_of(snapshot, &repaired))?;
                changed += 1;
            } else {
                self.nothing_left(*id);
                empty += 1;
            }
        }
        Ok((changed, empty))
    }

    /// Repairs snapshots. Returns how many there are instead, and of how many nothing is left.
    fn carry_out(&self, selected: &[(SessionId, &Snapshot)]) -> Result<(u64, u64)> {
        let (store, options) = (&self.run.opened.store, &self.run.options);
        let forgetting = self.run.forgetting("repair snapshots")?;
        let driver = Driver::threads(self.settings.threads);
        let storing = StoreOptions { compression: self.settings.compression, driver };
        let (mut changed, mut empty) = (0, 0);
        for (id, snapshot) in self.find_hit(selected)? {
            let so_far = || format!("snapshot {}, after {} repaired", short_id(id), text::count(changed, "snapshot"));
            self.announce(id)?;
            let new = match repair_snapshot(store, options, &storing, id, self.suffix).with_context(so_far)? {
                Repaired::Made(new, repaired) => {
                    self.output.note(&format!("snapshot {}: {}", short_id(id), losses_of(snapshot, &repaired)));
                    new
                }
                Repaired::Exists(same) => {
                    self.output.note(&format!("snapshot {} is there already", short_id(same)));
                    same
                }
                Repaired::Sound => {
                    self.output.note(&format!("snapshot {} is whole again", short_id(id)));
                    continue;
                }
                Repaired::Empty => {
                    self.nothing_left(id);
                    empty += 1;
                    continue;
                }
            };
            // Only now that the new one is durable.
            if self.args.forget {
                forgetting.forget(id).with_context(so_far)?;
            }
            self.run.report(id, new)?;
            changed += 1;
        }
        Ok((changed, empty))
    }

    /// Returns the snapshots that have lost something. What they have lost takes no memory after that.
    fn find_hit<'s>(&self, selected: &[(SessionId, &'s Snapshot)]) -> Result<Vec<(SessionId, &'s Snapshot)>> {
        let trees: Vec<&Snapshot> = selected.iter().map(|(_, snapshot)| *snapshot).collect();
        let mut losses = find_losses(&self.run.opened.store, &self.run.options, &trees)?;
        let mut hit = Vec::new();
        for (id, snapshot) in selected {
            if losses.hit(snapshot, &self.run.options)? {
                hit.push((*id, *snapshot));
            }
        }
        Ok(hit)
    }

    fn announce(&self, id: SessionId) -> Result<()> {
        if !self.output.json {
            self.output.line(format!("snapshot {}:", short_id(id)))?;
        }
        Ok(())
    }

    fn nothing_left(&self, id: SessionId) {
        self.output.warn(&format!("snapshot {} is not repaired: nothing of it is left", short_id(id)));
    }
}

/// Returns what a repaired snapshot does not have.
fn losses_of(original: &Snapshot, repaired: &Snapshot) -> String {
    let (before, after) = (&original.summary, &repaired.summary);
    let files = before.files_processed.saturating_sub(after.files_processed);
    let bytes = text::bytes(before.bytes_processed.saturating_sub(after.bytes_processed));
    if files == 0 { format!("without {bytes}") } else { format!("without {}, {bytes}", text::count(files, "file")) }
}
