//! `backup`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use onefold_engine::Error;
use onefold_engine::accelerator::{Accelerator, AcceleratorUsage};
use onefold_engine::backup::{AccessTimes, BackupOptions, BaseChoices, Comparison, Monitor, Unchanged, dry_run};
use onefold_engine::compress::Compression;
use onefold_engine::io::Host;
use onefold_engine::io::os::{OsHost, process_peak_rss_bytes};
use onefold_engine::io::os_identity::{host_name, user_ids, user_name};
use onefold_engine::pipeline::Driver;
use onefold_engine::repo::{self, BackupOutcome, BackupRequest, Selection, SnapshotName};
use onefold_engine::similarity::choose::Limits;
use onefold_engine::snapshot::{Rewritten, Snapshot, Summary};
use onefold_engine::source::exclude::Excludes;
use onefold_engine::source::walk::{Contents, Event, Walk};
use onefold_engine::store::Store;
use onefold_engine::types::{SessionId, Timestamp};

use crate::accelerator;
use crate::args::BackupArgs;
use crate::commands::version::PROGRAM;
use crate::exit::Unreadable;
use crate::index_server::index_options;
use crate::interrupt::Interrupt;
use crate::json::{self, short_id};
use crate::open::{self, Opened, OpenedCache, open};
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::retry::with_retries;
use crate::settings::{Settings, Verbosity};
use crate::sources::{self, Left, Sources};
use crate::text;
use crate::trust;

/// Makes a snapshot.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, args: &BackupArgs) -> Result<()> {
    let accelerator = accelerator::open(settings, output, &args.compare.accelerator)?;
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let activity = if args.is_stream() { Activity::Stream(sources::stream_path(args)?) } else { Activity::Files };
    let progress = Progress::new(output, &interrupt, activity);
    let sources = if args.is_stream() {
        sources::stream(args, &interrupt)?
    } else {
        sources::files(settings.dialect, args, &progress)?
    };
    if !args.dry_run {
        for name in opened.store.objects.complete()? {
            let path = opened.directory.join(name);
            output.warn(&format!(
                "warning: {} was missing and is made again; `onefold check` reports what was lost with it",
                path.display()
            ));
        }
    }
    let budget = accelerator::budget(settings, accelerator.as_ref());
    let options = BackupOptions { accelerator, ..plan(settings, output, args, &opened, &cache, &sources)? };
    let uses_bases = options.similarity.is_some() && opened.store.uses_similarity();
    let budget = if uses_bases { budget.with_bases(settings.memory_bytes) } else { budget };
    let options = BackupOptions { budget, ..options };
    if args.dry_run {
        return try_out(output, &opened.store, &sources, &options, (&Driver::threads(settings.threads), &progress));
    }
    let request = BackupRequest {
        cache: &cache.cache,
        index: index_options(
            settings,
            (options.preset, budget.index_bytes),
            &args.server,
            opened.store.config.repository,
            &cache,
        )?,
        source: Arc::clone(&sources.tree),
        options,
        driver: args.compare.read_concurrency.or(settings.read_concurrency).map_or_else(
            || Driver::threads(settings.threads),
            |readers| Driver::threads_and_readers(settings.threads, readers.into()),
        ),
        monitor: Arc::clone(&progress) as Arc<dyn Monitor>,
        heads: trust::heads(settings, opened.store.config.repository),
    };
    let outcome = {
        let _shown = progress.show();
        if progress.is_watched() && !args.no_scan && !args.is_stream() {
            count_ahead(&sources, &request.options.excludes, &progress);
        }
        with_retries(settings, output, &progress, || repo::backup(&opened.store, &request))
    };
    let outcome = outcome.map_err(|error| end_of_stream(error, &sources, &progress))?;
    let usage = request.options.accelerator.as_ref().map(Accelerator::usage);
    print(output, &outcome, usage, &progress)?;
    if let Some(heads) = &request.heads {
        trust::report(output, heads, &outcome.heads);
    }
    finish(&progress, Unreadable::LeftOut)
}

/// Collects the options of the engine.
fn plan(
    settings: &Settings,
    output: &Output,
    args: &BackupArgs,
    opened: &Opened,
    cache: &OpenedCache,
    sources: &Sources,
) -> Result<BackupOptions> {
    let Left { excludes, texts } =
        sources::excludes(settings.dialect, &args.excludes, &[&opened.directory, &cache.directory])?;
    let hostname = args.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(host_name);
    let time = args.time.as_deref().map(text::parse_time).transpose()?;
    let parent = parent(output, &opened.store, args, &hostname, &sources.paths, time)?;
    match &parent {
        Some((session, _)) => output.note(&format!("using parent snapshot {}", short_id(*session))),
        None => output.note("no parent snapshot, all files are read"),
    }
    let (uid, gid) = user_ids();
    Ok(BackupOptions {
        roots: sources.roots.clone(),
        paths: sources.paths.clone(),
        excludes: Arc::new(excludes),
        exclude_texts: texts,
        tags: args.tag.iter().filter(|tag| !tag.is_empty()).cloned().collect(),
        hostname,
        username: user_name(),
        uid,
        gid,
        time,
        parent,
        comparison: comparison(args),
        unchanged: if args.compare.skip_if_unchanged { Unchanged::Skip } else { Unchanged::Make },
        compression: compression(settings, args)?,
        program: PROGRAM.to_owned(),
        preset: args.compare.index.unwrap_or_else(|| cache.cache.index_preset()),
        budget: settings.budget(),
        accelerator: None,
        scratch: cache.scratch(),
        access_times: if args.with_atime { AccessTimes::Stored } else { AccessTimes::LeftOut },
        similarity: (!args.no_similarity).then(Limits::default),
        bases: BaseChoices::default(),
        rewriting: args.compare.rewrite.history(),
    })
}

fn compression(settings: &Settings, args: &BackupArgs) -> Result<Compression> {
    if !args.pad {
        return Ok(settings.compression);
    }
    settings.compression.padded().context("--pad: what LZ4 compresses cannot be padded; use zstd or off")
}

fn comparison(args: &BackupArgs) -> Comparison {
    match (args.ignore_inode, args.compare.ignore_ctime) {
        (true, _) => Comparison::IgnoreInode,
        (false, true) => Comparison::IgnoreCtime,
        (false, false) => Comparison::Full,
    }
}

/// Finds the parent: the one that was named, else the newest snapshot of the same group. One that is dated in the future comes last.
fn parent(
    output: &Output,
    store: &Store,
    args: &BackupArgs,
    hostname: &str,
    paths: &[Vec<u8>],
    time: Option<Timestamp>,
) -> Result<Option<(SessionId, Snapshot)>> {
    // A stream has nothing that could tell that it is the same.
    if args.force || args.is_stream() {
        return Ok(None);
    }
    let (commits, now) = (store.read_commits()?, store.host.now());
    let mut warn = |doubt| open::warn_of_doubt(output, &doubt, now);
    if let Some(name) = &args.parent {
        let (session, snapshot) =
            Selection::default().find(&commits, &SnapshotName::parse(name).name, now, &mut warn)?;
        return Ok(Some((session, snapshot.clone())));
    }
    let admits = |snapshot: &Snapshot| args.compare.group_by.admits(snapshot, hostname, paths, &args.tag);
    let (mut snapshots, future) = commits.by_time(now, admits);
    future.into_iter().for_each(&mut warn);
    snapshots.retain(|(_, snapshot)| time.is_none_or(|time| snapshot.time <= time));
    let newest = snapshots.pop();
    Ok(newest.map(|(session, snapshot)| (session, snapshot.clone())))
}

/// Counts the source in the background.
fn count_ahead(sources: &Sources, excludes: &Arc<Excludes>, progress: &Arc<Progress>) {
    let Ok(walk) = Walk::new(Arc::clone(&sources.tree), &sources.roots, Arc::clone(excludes)) else { return };
    let progress = Arc::clone(progress);
    let count = move || {
        if !progress.wait_for_scan() {
            return;
        }
        for event in walk {
            if progress.is_interrupted() {
                return;
            }
            // The backup itself reports what cannot be read.
            if let Event::Entry(item) = event
                && item.contents != Contents::None
            {
                progress.count_ahead(item.metadata.size);
            }
        }
        progress.finish_scan();
    };
    // Without the thread there is no estimate, which is no reason to stop.
    let _ignored = std::thread::Builder::new().name("count".to_owned()).spawn(count);
}

/// Replaces the interruption that stopped the engine by the failure of the stream.
fn end_of_stream(error: Error, sources: &Sources, progress: &Progress) -> anyhow::Error {
    match (error, progress.broken()) {
        (Error::Interrupted, Some(_)) if sources.found_empty.load(Ordering::Relaxed) => Unreadable::Empty.into(),
        (Error::Interrupted, Some(reason)) if !progress.is_interrupt_raised() => {
            anyhow!("no snapshot was made: {reason}")
        }
        (error, _) => error.into(),
    }
}

/// Returns an error if anything could not be read: the snapshot stays.
fn finish(progress: &Progress, end: Unreadable) -> Result<()> {
    if progress.failures() == 0 { Ok(()) } else { Err(end.into()) }
}

fn print(output: &Output, outcome: &BackupOutcome, usage: Option<AcceleratorUsage>, progress: &Progress) -> Result<()> {
    let report = &outcome.report;
    let elapsed = progress.elapsed();
    if output.json {
        let with_index = Verbosity::Verbose <= output.verbosity;
        output.message(&json::backed_up(outcome, usage, elapsed, with_index))?;
        // The engine's note of it is for people only.
        if let Some(reason) = outcome.index_degraded.as_ref().filter(|_| Verbosity::Normal <= output.verbosity) {
            output.warn(&format!("warning: the index will be rebuilt next time: {reason}"));
        }
        return Ok(());
    }
    if output.verbosity == Verbosity::Quiet {
        return Ok(());
    }
    let summary = &report.snapshot.summary;
    print_entries(output, summary)?;
    if Verbosity::Verbose <= output.verbosity {
        let chunks = &report.chunks;
        if let Some(usage) = &usage {
            output.line(accelerator::sentence(usage))?;
        }
        output.line(format!("Data chunks:  {:5} new, {:5} known", chunks.data_unique, chunks.data_duplicate))?;
        output
            .line(format!("Tree chunks:  {:5} new, {:5} known", chunks.metadata_unique, chunks.metadata_duplicate))?;
        if let Some(reason) = &report.not_rewritten {
            output.line(reason)?;
        }
    }
    let (added, stored) = (text::bytes(summary.data_added), text::bytes(summary.data_added_packed));
    output.line(format!("Added to the repository: {added} ({stored} stored)"))?;
    if let Some(Rewritten { chunks, bytes }) = report.snapshot.rewritten {
        output.line(format!(
            "Stored again for faster restores: {}, {}",
            text::count(chunks, "chunk"),
            text::bytes(bytes)
        ))?;
    }
    print_processed(output, summary, elapsed)?;
    if Verbosity::Verbose <= output.verbosity
        && let Some(peak) = process_peak_rss_bytes()
    {
        output.line(format!("at most {} of memory were held", text::bytes(peak)))?;
    }
    output.line(if report.is_skipped {
        "no snapshot made: nothing has changed since the parent".to_owned()
    } else {
        format!("snapshot {} saved", short_id(report.session))
    })?;
    Ok(output.flush()?)
}

fn print_entries(output: &Output, summary: &Summary) -> Result<()> {
    let line = |title: &str, new, changed, unmodified| {
        output.line(format!("{title:<13}{new:5} new, {changed:5} changed, {unmodified:5} unmodified"))
    };
    output.line("")?;
    line("Files:", summary.files_new, summary.files_changed, summary.files_unmodified)?;
    Ok(line("Dirs:", summary.dirs_new, summary.dirs_changed, summary.dirs_unmodified)?)
}

fn print_processed(output: &Output, summary: &Summary, elapsed: Duration) -> Result<()> {
    let files = text::count(summary.files_processed, "file");
    let (bytes, time) = (text::bytes(summary.bytes_processed), text::duration(elapsed));
    Ok(output.line(format!("\nprocessed {files}, {bytes} in {time}"))?)
}

/// Reports what a backup would read and add, and writes nothing.
fn try_out(
    output: &Output,
    store: &Store,
    sources: &Sources,
    options: &BackupOptions,
    (driver, progress): (&Driver, &Progress),
) -> Result<()> {
    let start = options.time.unwrap_or_else(|| OsHost::new().now());
    let found = dry_run(store, &sources.tree, options, driver, progress)?;
    let elapsed = progress.elapsed();
    let summary = &found.summary;
    if output.json {
        output.message(&json::tried_out(&found, (start, OsHost::new().now()), elapsed))?;
    } else if Verbosity::Normal <= output.verbosity {
        print_entries(output, summary)?;
        output.line(format!(
            "Would read {}\nWould add to the repository: {} before compression",
            text::bytes(found.bytes_to_read),
            text::bytes(summary.data_added)
        ))?;
        print_processed(output, summary, elapsed)?;
        output.flush()?;
    }
    finish(progress, Unreadable::TriedOut)
}
