//! `restore`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use onefold_engine::backup::Monitor;
use onefold_engine::io::discard::DiscardTarget;
use onefold_engine::io::os_identity;
use onefold_engine::io::os_source::OsSource;
use onefold_engine::io::os_target::OsTarget;
use onefold_engine::io::tree::{EntryKind, MetadataChoice, Omission, SelectAttributes, TargetTree, Trust};
use onefold_engine::pipeline::Driver;
use onefold_engine::restore::{
    DeleteRequest, Effect, Filter, FullDirectories, Overwrite, PARTIAL_SUFFIX, PartialFiles, RestoreReport,
    RestoreRequest, delete, ensure_apart, find_entry, restore,
};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::source::exclude::{Case, Patterns};
use onefold_engine::store::Store;

use crate::args::restore::{MetadataArgs, OverwriteArg, RestoreArgs};
use crate::compat::Dialect;
use crate::interrupt::Interrupt;
use crate::json::{self, short_id};
use crate::open::{Opened, OpenedSnapshot};
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::settings::{Settings, Verbosity};
use crate::sources;
use crate::text;

/// Restores a snapshot, or a part of it.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, args: &RestoreArgs) -> Result<()> {
    let when = args.overwrite.or(settings.dialect.overwrite());
    // A file that is kept is not that of the snapshot: comparing it would report damage where there is none.
    ensure!(
        !args.verify || matches!(args.overwrite, None | Some(OverwriteArg::Always)),
        "--verify compares every file with the snapshot, and --overwrite {} leaves some as they are; use --overwrite \
         always, or no --verify",
        args.overwrite.and_then(|when| when.to_possible_value()).map_or_else(String::new, |v| v.get_name().to_owned())
    );
    let filter = filter(settings.dialect, args)?;
    if args.delete {
        ensure_delete_makes_sense(args, when, &filter)?;
    }
    let found = OpenedSnapshot::open(settings, output, &args.snapshot, &args.selection)?;
    if args.delete {
        // Before anything is written.
        let entry = find_entry(&mut found.reader(settings)?, found.snapshot.tree, Path::new(&found.path))?;
        ensure!(
            entry.is_none_or(|found| found.entry.kind == EntryKind::Directory),
            "{}: not a directory, so that there is nothing for --delete to remove",
            args.snapshot
        );
    }
    let OpenedSnapshot { opened, cache, interrupt, session, snapshot, path } = &found;
    let progress = Progress::new(output, interrupt, Activity::Restore);
    let is_whole = path.trim_matches('/').is_empty() && filter.include.is_empty() && filter.exclude.is_empty();
    if is_whole {
        progress.set_total(snapshot.summary.files_processed, snapshot.summary.bytes_processed);
    }
    if let Some(target) = &args.destination.target {
        let read = [(&*found.opened.directory, "repository"), (&*found.cache.directory, "index")];
        ensure_apart(&OsSource::new(), target, &read).context("--target")?;
    }
    let choice = metadata(settings, args, snapshot)?;
    let target = target(args, when, choice.clone())?;
    let shown = args.destination.target.as_ref().map_or("nowhere".into(), |target| target.display().to_string());
    output.note(&format!("restoring snapshot {} to {shown}", short_id(*session)));
    let request = RestoreRequest {
        tree: snapshot.tree,
        path: Path::new(path),
        filter: filter.clone(),
        target,
        effect: if args.dry_run { Effect::DryRun } else { Effect::Write },
        overwrite: overwrite(settings.dialect, when),
        full_directories: full_directories(args, &found),
        verify: args.verify,
        trust: trust(args, opened),
        scratch: cache.scratch(),
        memory_bytes: settings.memory_bytes,
        driver: Driver::threads(settings.threads),
        monitor: Arc::clone(&progress) as Arc<dyn Monitor>,
    };
    let report = {
        let _shown = progress.show();
        if !is_whole && progress.is_watched() {
            count_ahead(&opened.store, &request, interrupt, &progress);
        }
        let restored = restore(&opened.store, &request)?;
        let partials = if restored.files_incomplete == 0 { PartialFiles::Delete } else { PartialFiles::Keep };
        let deleted = if args.delete {
            delete_others(settings, args, &found, (&filter, choice), partials, &progress)?
        } else {
            0
        };
        Outcome { deleted: deleted + restored.deleted, restored }
    };
    print(output, args, &report, &progress)?;
    let report = report.restored;
    let failures = report.failures.max(progress.failures());
    ensure!(failures == 0, "the restore is incomplete: {}, reported above", text::count(failures, "error"));
    Ok(())
}

/// Counts what a part of a snapshot holds, so that the time left can be estimated. Existing files count as well: they are
/// skipped one by one.
fn count_ahead(store: &Store, request: &RestoreRequest<'_>, interrupt: &Interrupt, progress: &Progress) {
    let counting = RestoreRequest {
        // It is empty, so that everything counts.
        target: Arc::new(DiscardTarget { folds_case: false }),
        effect: Effect::DryRun,
        verify: false,
        // The restore itself reports what cannot be read.
        monitor: Arc::new(interrupt.clone()),
        ..request.clone()
    };
    // The restore meets the same error and reports it.
    if let Ok(counted) = restore(store, &counting) {
        progress.set_total(counted.files, counted.bytes);
    }
}

/// Outcome of a restore.
struct Outcome {
    restored: RestoreReport,
    /// Entries that were not in the snapshot.
    deleted: u64,
}

fn ensure_delete_makes_sense(args: &RestoreArgs, when: Option<OverwriteArg>, filter: &Filter) -> Result<()> {
    match when {
        None => bail!(
            "--delete removes what stands in the target, which without --overwrite must be empty; say with --overwrite \
             what is to happen to the files that the snapshot has"
        ),
        Some(OverwriteArg::Never) => bail!(
            "--overwrite never leaves alone whatever stands in the target, and --delete removes it; use --overwrite \
             always, if-changed or if-newer with --delete"
        ),
        Some(OverwriteArg::Always | OverwriteArg::IfChanged | OverwriteArg::IfNewer) => {}
    }
    // However the root is spelled.
    let is_root = os_identity::canonical(directory(args)?) == Path::new("/");
    let has_filter = !filter.include.is_empty() || !filter.exclude.is_empty();
    ensure!(
        !is_root || has_filter,
        "--delete with --target / removes everything that the snapshot does not have; say with --include or --exclude \
         what it may remove"
    );
    Ok(())
}

/// Deletes what the snapshot does not have, or says what would be. Returns how many entries.
fn delete_others(
    settings: &Settings,
    args: &RestoreArgs,
    found: &OpenedSnapshot,
    (filter, choice): (&Filter, MetadataChoice),
    partials: PartialFiles,
    progress: &Arc<Progress>,
) -> Result<u64> {
    let target = match OsTarget::open(directory(args)?) {
        Ok(target) => target.with_metadata(choice),
        // A dry run: the restore would create it, and it would be empty.
        Err(error) if args.dry_run && error.io_kind() == Some(io::ErrorKind::NotFound) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let monitor: Arc<dyn Monitor> = Arc::clone(progress) as Arc<dyn Monitor>;
    let request = DeleteRequest {
        snapshot: &found.snapshot,
        path: Path::new(&found.path),
        filter,
        target: &target,
        trust: trust(args, &found.opened),
        keep: &sources::identities(&[&found.opened.directory, &found.cache.directory]),
        partials,
        dry_run: args.dry_run,
        monitor: &monitor,
    };
    Ok(delete(&mut found.reader(settings)?, &request)?.deleted)
}

/// Returns the treatment of a directory that is no directory in the snapshot.
fn full_directories(args: &RestoreArgs, found: &OpenedSnapshot) -> FullDirectories {
    if args.delete {
        FullDirectories::Delete {
            keep: Arc::new(sources::identities(&[&found.opened.directory, &found.cache.directory])),
        }
    } else {
        FullDirectories::Keep
    }
}

/// Returns the directory that is restored into.
fn directory(args: &RestoreArgs) -> Result<&Path> {
    args.destination.target.as_deref().context("no --target is given")
}

/// Opens the target; a dry run makes and changes nothing. The engine refuses a directory that is not empty as well, but
/// does not know what it is called.
fn target(args: &RestoreArgs, when: Option<OverwriteArg>, choice: MetadataChoice) -> Result<Arc<dyn TargetTree>> {
    if args.destination.discard {
        return Ok(Arc::new(DiscardTarget::default()));
    }
    let directory = directory(args)?;
    let target = if args.dry_run {
        match OsTarget::open_read_only(directory) {
            // The restore would create it, and it would be empty.
            Err(error) if error.io_kind() == Some(io::ErrorKind::NotFound) => {
                return Ok(Arc::new(DiscardTarget { folds_case: would_fold_case(directory)? }));
            }
            opened => opened?,
        }
    } else {
        OsTarget::create(directory)?
    };
    ensure!(
        when.is_some() || target.list(Path::new(""))?.is_empty(),
        "{}: not empty; restore into an empty directory, or say with --overwrite what is to happen",
        directory.display()
    );
    Ok(Arc::new(target.with_metadata(choice)))
}

/// Returns the metadata that is restored.
fn metadata(settings: &Settings, args: &RestoreArgs, snapshot: &Snapshot) -> Result<MetadataChoice> {
    let patterns = |texts: &[OsString]| {
        let texts = texts.iter().map(|text| text.as_bytes());
        Patterns::parse(texts, Case::Sensitive).map(|patterns| vec![patterns])
    };
    let MetadataArgs { no_ownership, numeric_owner, ownership_by_name, no_xattrs, include_xattr, exclude_xattr } =
        &args.metadata;
    // restic's default is by number.
    let is_by_name = *ownership_by_name || settings.dialect == Dialect::Onefold && !numeric_owner;
    let owners = if is_by_name { MetadataChoice::by_name(&snapshot.owners) } else { MetadataChoice::default() };
    let attributes: Option<Arc<dyn SelectAttributes>> = if *no_xattrs {
        Some(Arc::new(Filter { exclude: patterns(&["*".into()])?, ..Filter::default() }))
    } else if !include_xattr.is_empty() {
        Some(Arc::new(Filter { include: patterns(include_xattr)?, ..Filter::default() }))
    } else if !exclude_xattr.is_empty() {
        Some(Arc::new(Filter { exclude: patterns(exclude_xattr)?, ..Filter::default() }))
    } else {
        None
    };
    Ok(MetadataChoice { omits_owners: *no_ownership, attributes, ..owners })
}

/// Returns true if a directory that does not exist would not tell names apart that differ only in case, as the one that it
/// would be in.
fn would_fold_case(directory: &Path) -> Result<bool> {
    let mut above =
        directory.ancestors().skip(1).map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let above = above.find_map(|path| OsTarget::open_read_only(path).ok());
    Ok(above.map_or(Ok(false), |above| above.folds_case())?)
}

fn overwrite(dialect: Dialect, args: Option<OverwriteArg>) -> Overwrite {
    match args {
        None => Overwrite::Refuse,
        Some(OverwriteArg::Always) if dialect == Dialect::Restic => Overwrite::IfDifferent,
        Some(OverwriteArg::Always) => Overwrite::Always,
        Some(OverwriteArg::IfChanged) => Overwrite::IfChanged,
        Some(OverwriteArg::IfNewer) => Overwrite::IfNewer,
        Some(OverwriteArg::Never) => Overwrite::Never,
    }
}

/// Returns the trust in the repository: without a key, anyone may have written to it. Discarded data does no harm.
fn trust(args: &RestoreArgs, opened: &Opened) -> Trust {
    let is_trusted = opened.password.is_some() || args.trusted || args.destination.discard;
    if args.untrusted || !is_trusted { Trust::Untrusted } else { Trust::Full }
}

fn filter(dialect: Dialect, args: &RestoreArgs) -> Result<Filter> {
    let include = sources::include_patterns(dialect, &args.includes)?;
    let (exclude, _) = sources::exclude_patterns(dialect, &args.excludes)?;
    Ok(Filter { include, exclude })
}

/// Writes how many entries there are, in restic's words.
fn entries(count: u64) -> String {
    if count == 1 { "1 file/dir".to_owned() } else { format!("{count} files/dirs") }
}

fn print(output: &Output, args: &RestoreArgs, outcome: &Outcome, progress: &Progress) -> Result<()> {
    let Outcome { restored: report, deleted } = outcome;
    let elapsed = progress.elapsed();
    let restored = report.files + report.directories + report.others;
    if output.json {
        output.message(&json::restored(report, *deleted, args.dry_run, elapsed))?;
        return Ok(());
    }
    if output.verbosity == Verbosity::Quiet {
        return Ok(());
    }
    let verb = match (args.dry_run, args.destination.discard) {
        (true, _) => "Would restore",
        (false, true) => "Read and discarded",
        (false, false) => "Restored",
    };
    let (bytes, time) = (text::bytes(report.bytes), text::duration(elapsed));
    let restored_entries = entries(restored);
    output.line(format!("Summary: {verb} {restored_entries} ({bytes}) in {time}"))?;
    if 0 < report.chunks_recovered {
        let count = report.chunks_recovered;
        let chunks = text::count(count, "damaged chunk");
        output.line(format!("Took {chunks} from another copy; `onefold check --read-data` says where"))?;
    }
    if 0 < report.files_skipped {
        let skipped = text::bytes(report.bytes_skipped);
        output.line(format!(
            "Skipped {} ({skipped}) that stood there already",
            text::count(report.files_skipped, "file")
        ))?;
    }
    if 0 < report.files_incomplete {
        let count = text::count(report.files_incomplete, "file");
        output.line(format!(
            "Not restored whole: {count}; the names were not touched, and what could be read is in files that end in \
             {PARTIAL_SUFFIX}"
        ))?;
    }
    for (kind, count, first) in report.omissions.iter() {
        let first = Path::new("/").join(first);
        output.line(format!(
            "Not restored, since the target does not allow it: {}, the first is {}",
            omitted(kind, count),
            first.display()
        ))?;
    }
    if args.delete {
        let verb = if args.dry_run { "Would delete" } else { "Deleted" };
        let are = if *deleted == 1 { "that is" } else { "that are" };
        output.line(format!("{verb} {} {are} not in the snapshot", entries(*deleted)))?;
    }
    if args.verify {
        output.line(format!("Verified {}", text::count(report.files_verified, "file")))?;
    }
    Ok(output.flush()?)
}

/// Names what so many entries lack.
fn omitted(kind: Omission, count: u64) -> String {
    let of = match kind {
        Omission::Owner => "ownership of ",
        Omission::SetIds => "set-id bits of ",
        Omission::Mode => "mode of ",
        Omission::Attribute => "extended attributes of ",
        Omission::Time => "time of ",
        Omission::Special => return text::count(count, "FIFO, socket or device"),
        Omission::Symlink => return text::count(count, "symbolic link"),
        Omission::HardLink => return format!("{}, which became copies", text::count(count, "hard link")),
    };
    format!("{of}{}", entries(count))
}
