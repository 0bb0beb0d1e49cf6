//! `restore`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use onefold_engine::backup::Monitor;
use onefold_engine::io::os::process_peak_rss_bytes;
use onefold_engine::io::os_target::OsTarget;
use onefold_engine::io::tree::{TargetTree, Trust};
use onefold_engine::pipeline::Driver;
use onefold_engine::repo::SnapshotName;
use onefold_engine::restore::{Filter, Overwrite, RestoreReport, RestoreRequest, restore};
use onefold_engine::source::exclude::{Case, Patterns};

use crate::args::{OverwriteArg, RestoreArgs};
use crate::interrupt::Interrupt;
use crate::json::{RestoreSummary, short_id};
use crate::open::{self, Opened, OpenedCache, open};
use crate::output::{Output, Verbosity};
use crate::progress::{Activity, Progress};
use crate::settings::Settings;
use crate::text;

/// Restores a snapshot, or a part of it.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, typed: &RestoreArgs) -> Result<()> {
    // A file that is left as it stands is not the snapshot's, and to compare it would tell of damage where none is.
    ensure!(
        !typed.verify || matches!(typed.overwrite, None | Some(OverwriteArg::Always)),
        "--verify compares every file with the snapshot, and --overwrite {} leaves some as they are; use --overwrite \
         always, or no --verify",
        typed.overwrite.and_then(|when| when.to_possible_value()).map_or_else(String::new, |v| v.get_name().to_owned())
    );
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let name = SnapshotName::parse(&typed.snapshot);
    let commits = opened.store.read_commits()?;
    let (session, snapshot) = open::find(&commits, &typed.selection, &name)?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let progress = Progress::new(output, &interrupt, Activity::Restore);
    let path = name.path.as_deref().unwrap_or_default();
    let filter = filter(typed)?;
    let is_whole = path.trim_matches('/').is_empty() && filter.include.is_empty() && filter.exclude.is_empty();
    if is_whole {
        progress.set_total(snapshot.summary.files_processed, snapshot.summary.bytes_processed);
    }
    let target = if typed.dry_run { None } else { Some(target(typed)?) };
    output.note(&format!("restoring snapshot {} to {}", short_id(session), typed.target.display()));
    let request = RestoreRequest {
        tree: snapshot.tree,
        path: Path::new(path),
        filter,
        target,
        overwrite: overwrite(typed.overwrite),
        verify: typed.verify,
        trust: trust(typed, &opened),
        scratch: cache.scratch(),
        memory_bytes: settings.memory_bytes,
        driver: Driver::threads(settings.threads),
        monitor: Arc::clone(&progress) as Arc<dyn Monitor>,
    };
    let report = {
        let _shown = progress.show();
        restore(&opened.store, &request)?
    };
    print(output, typed, &report, &progress)?;
    match report.failures.max(progress.failures()) {
        0 => Ok(()),
        1 => bail!("something could not be restored"),
        count => bail!("{count} things could not be restored"),
    }
}

/// Opens the target directory. The engine refuses one that is not empty as well, but does not know what it is called.
fn target(typed: &RestoreArgs) -> Result<Arc<dyn TargetTree>> {
    let target = OsTarget::create(&typed.target)?;
    ensure!(
        typed.overwrite.is_some() || target.list(Path::new(""))?.is_empty(),
        "{}: not empty; restore into an empty directory, or say with --overwrite what is to happen",
        typed.target.display()
    );
    Ok(Arc::new(target))
}

fn overwrite(typed: Option<OverwriteArg>) -> Overwrite {
    match typed {
        None => Overwrite::Refuse,
        Some(OverwriteArg::Always) => Overwrite::Always,
        Some(OverwriteArg::IfChanged) => Overwrite::IfChanged,
        Some(OverwriteArg::IfNewer) => Overwrite::IfNewer,
        Some(OverwriteArg::Never) => Overwrite::Never,
    }
}

/// Anybody could have written into a repository without a key.
fn trust(typed: &RestoreArgs, opened: &Opened) -> Trust {
    let is_encrypted = opened.password.is_some();
    if typed.untrusted || !(is_encrypted || typed.trusted) { Trust::Untrusted } else { Trust::Full }
}

fn filter(typed: &RestoreArgs) -> Result<Filter> {
    let compile = |sensitive: &[OsString], insensitive: &[OsString]| -> Result<Vec<Patterns>> {
        let groups = [(sensitive, Case::Sensitive), (insensitive, Case::Insensitive)];
        let groups = groups.into_iter().filter(|(patterns, _)| !patterns.is_empty());
        groups
            .map(|(patterns, case)| Ok(Patterns::parse(patterns.iter().map(|pattern| pattern.as_bytes()), case)?))
            .collect()
    };
    let include = compile(&typed.include, &typed.iinclude)?;
    Ok(Filter { include, exclude: compile(&typed.exclude, &typed.iexclude)? })
}

fn print(output: &Output, typed: &RestoreArgs, report: &RestoreReport, progress: &Progress) -> Result<()> {
    let elapsed = progress.elapsed();
    let restored = report.files + report.directories + report.others;
    if output.json {
        output.message(&RestoreSummary {
            message_type: "summary",
            seconds_elapsed: elapsed.as_secs(),
            total_files: restored + report.files_skipped,
            files_restored: restored,
            files_skipped: report.files_skipped,
            files_deleted: 0,
            total_bytes: report.bytes + report.bytes_skipped,
            bytes_restored: report.bytes,
            bytes_skipped: report.bytes_skipped,
            dry_run: typed.dry_run,
            files_verified: report.files_verified,
            regions_read: report.regions_read,
            error_count: report.failures,
            peak_rss_bytes: process_peak_rss_bytes(),
        })?;
        return Ok(());
    }
    if output.verbosity == Verbosity::Quiet {
        return Ok(());
    }
    let verb = if typed.dry_run { "Would restore" } else { "Restored" };
    let (bytes, time) = (text::bytes(report.bytes), text::duration(elapsed));
    output.line(format!("Summary: {verb} {restored} files/dirs ({bytes}) in {time}"))?;
    if 0 < report.files_skipped {
        let skipped = text::bytes(report.bytes_skipped);
        output.line(format!("Skipped {} files ({skipped}) that stood there already", report.files_skipped))?;
    }
    if typed.verify {
        output.line(format!("Verified {} files", report.files_verified))?;
    }
    Ok(output.flush()?)
}
