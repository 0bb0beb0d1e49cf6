//! `prune`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use onefold_engine::collect::plan::{MaxUnused, PlanTotals, PruneOptions};
use onefold_engine::collect::{
    Copies, PruneReport, PruneRequest, PruneState, UnendedSession, UnfinishedBackup, give_up, plan_prune, prune,
    unfinished_backups,
};
use onefold_engine::compress::Compression;
use onefold_engine::io::os::give_way;
use onefold_engine::io::os_identity::host_name;
use onefold_engine::pipeline::Driver;
use onefold_engine::source::exclude::parse_size;
use onefold_engine::store::{QuarantinedContainer, Store};

use crate::args::prune::{LimitArgs, PruneArgs};
use crate::compat::Dialect;
use crate::interrupt::Interrupt;
use crate::json::prune::pruned;
use crate::json::short_id;
use crate::open::{OpenedCache, open};
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::settings::{Settings, Verbosity};
use crate::{text, trust};

/// Removes what no snapshot needs.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, args: &PruneArgs) -> Result<()> {
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    if args.give_up {
        let given_up = give_up(&opened.store, &host_name())?;
        output.note(&match given_up {
            Some(number) => format!("gave up prune {number}; what it had condemned stays"),
            None => "no prune waits or was interrupted".to_owned(),
        });
        return Ok(());
    }
    ensure!(
        trust::accepts_all(settings, output, &opened.store)?,
        "nothing is deleted while a snapshot that this host has seen is gone: what it needs is not known"
    );
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let progress = Progress::new(output, &interrupt, Activity::Prune);
    // Before the driver starts its threads. A backup beside it hardly takes longer.
    give_way();
    let request = request(settings, &opened.store, &cache, args)?;
    let report = {
        let _shown = progress.show();
        if args.dry_run {
            plan_prune(&opened.store, &request, &*progress)?
        } else {
            prune(&opened.store, &request, &*progress)?
        }
    };
    let quarantined = opened.store.list_quarantined()?;
    let unfinished = unfinished_backups(&opened.store, &cache.scratch())?;
    if settings.dialect == Dialect::Restic && !output.json && Verbosity::Normal <= output.verbosity {
        restic_lines(&report).into_iter().try_for_each(|line| output.line(line))?;
    }
    print(output, args, &report, (&quarantined, &unfinished))?;
    ensure!(
        report.findings.is_empty(),
        "not all of the repository can be read; `onefold check --read-data` reports more"
    );
    ensure!(
        !report.lacks_space,
        "there was no space to copy what is needed of other containers; make space for one of them, and prune again"
    );
    Ok(())
}

/// Returns the request that options make.
pub(crate) fn request(
    settings: &Settings,
    store: &Store,
    cache: &OpenedCache,
    args: &PruneArgs,
) -> Result<PruneRequest> {
    let limits = &args.limits;
    Ok(PruneRequest {
        options: PruneOptions {
            max_unused: if limits.repack_cacheable_only {
                MaxUnused::Unlimited
            } else {
                max_unused(&limits.max_unused)?
            },
            max_repack_bytes: limits.max_repack_size.as_deref().map_or(Ok(u64::MAX), |text| {
                parse_size(text).ok().with_context(|| format!("--max-repack-size {text}: not a size; write it as 50G"))
            })?,
            repack_below_bytes: repack_below(limits, store.config.container_bytes)?,
        },
        quick: args.quick,
        fence_after: duration("--fence-after", &args.fence_after)?,
        wait: duration("--wait", &args.wait)?,
        keep_deleted: duration("--keep-deleted", &args.keep_deleted)?,
        keep_unfinished: duration("--keep-unfinished", &args.keep_unfinished)?,
        trust_copies: args.trust_copies,
        copies: copies(settings, limits)?,
        hostname: host_name(),
        scratch: cache.scratch(),
        memory_bytes: settings.memory_bytes,
        driver: Driver::threads(settings.threads),
    })
}

/// Returns how what is copied is compressed.
fn copies(settings: &Settings, limits: &LimitArgs) -> Result<Copies> {
    if !limits.recompress {
        return Ok(Copies::mostly_as_stored(settings.compression));
    }
    ensure!(
        settings.chosen_compression != Some(Compression::Off),
        "--recompress: nothing gets shorter with `off`, which --compression or ONEFOLD_COMPRESSION chooses"
    );
    Ok(Copies::recompressed(settings.chosen_compression))
}

/// Returns the size below which containers are joined.
fn repack_below(limits: &LimitArgs, container_bytes: u32) -> Result<u32> {
    match &limits.repack_smaller_than {
        Some(text) => {
            let size = parse_size(text).context("--repack-smaller-than")?;
            Ok(u32::try_from(size).unwrap_or(u32::MAX))
        }
        None if limits.repack_small => Ok(container_bytes / 2),
        None => Ok(0),
    }
}

/// Reads a share of what is used, a size, or `unlimited`.
fn max_unused(text: &str) -> Result<MaxUnused> {
    let wrong = || format!("--max-unused {text}: write a share, as 5%, a size, as 50G, or unlimited");
    if text == "unlimited" {
        return Ok(MaxUnused::Unlimited);
    }
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.parse().ok().with_context(wrong)?;
        ensure!(percent.is_finite() && 0.0 <= percent, wrong());
        return Ok(MaxUnused::Percent(percent));
    }
    Ok(MaxUnused::Bytes(parse_size(text).ok().with_context(wrong)?))
}

fn duration(option: &str, text: &str) -> Result<Duration> {
    text::parse_duration(text).with_context(|| option.to_owned())
}

fn print(
    output: &Output,
    args: &PruneArgs,
    report: &PruneReport,
    (quarantined, unfinished): (&[QuarantinedContainer], &[UnfinishedBackup]),
) -> Result<()> {
    for finding in &report.findings {
        output.warn(finding);
    }
    if output.json {
        output.message(&pruned(args.dry_run, report, (quarantined, unfinished)))?;
    } else if Verbosity::Normal <= output.verbosity {
        for line in lines(args, report) {
            output.line(line)?;
        }
        if !quarantined.is_empty() {
            output.line(format!(
                "{} in {} set aside as damaged; `onefold repair containers --remove-quarantined` removes what was set aside",
                text::bytes(bytes_of(quarantined)),
                text::count(quarantined.len() as u64, "container"),
            ))?;
        }
        for line in unfinished_lines(args, unfinished)? {
            output.line(line)?;
        }
    }
    Ok(output.flush()?)
}

/// Returns what backups without a snapshot still hold, and how to free it, in sentences.
fn unfinished_lines(args: &PruneArgs, unfinished: &[UnfinishedBackup]) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let limits = [
        (true, "interrupted", "the next backup may use it", "--keep-unfinished", &args.keep_unfinished),
        (false, "unended", "they may still be at work", "--fence-after", &args.fence_after),
    ];
    for (is_ended, what, why, option, limit) in limits {
        let (limit, some) = (duration(option, limit)?, unfinished.iter().filter(|backup| backup.is_ended == is_ended));
        let some: Vec<&UnfinishedBackup> = some.collect();
        let Some(last) = some.iter().map(|backup| limit.saturating_sub(backup.age.unwrap_or_default())).max() else {
            continue;
        };
        let (count, bytes) = (some.len() as u64, some.iter().map(|backup| backup.bytes).sum());
        let count = text::count(count, &format!("{what} backup"));
        let left = if last.is_zero() { String::new() } else { format!(" in {}", text::short_duration(last)) };
        lines.push(format!(
            "{} stay stored by {count} without a snapshot, since {why}; a prune{left} frees what no snapshot needs of it, \
             `onefold prune {option} 0s` does now:",
            text::bytes(bytes)
        ));
        lines.extend(some.iter().map(|backup| {
            let host = if backup.hostname.is_empty() { "an unknown host" } else { &backup.hostname };
            format!("  session {} on {host}: {}", short_id(backup.session), text::bytes(backup.bytes))
        }));
    }
    Ok(lines)
}

/// Returns the plan in the lines that programs made for restic parse. A blob is a chunk.
fn restic_lines(report: &PruneReport) -> Vec<String> {
    let plan = &report.plan;
    let line = |title: &str, chunks: u64, bytes| format!("{title:<13} {chunks:10} blobs / {}", text::bytes(bytes));
    let removed = plan.removed_chunks + plan.removed_by_copying_chunks;
    let freed = plan.removed_bytes + plan.freed_by_copying_bytes;
    vec![
        String::new(),
        line("to repack:", plan.copied_chunks, plan.copied_bytes + plan.freed_by_copying_bytes),
        line("this removes:", plan.removed_by_copying_chunks, plan.freed_by_copying_bytes),
        line("to delete:", plan.removed_chunks, plan.removed_bytes),
        line("total prune:", removed, freed),
        line("remaining:", plan.chunks.saturating_sub(removed), plan.stored_bytes.saturating_sub(freed)),
        format!("unused size after prune: {}", text::bytes(plan.left_unused_bytes)),
        String::new(),
    ]
}

/// Returns the bytes of quarantined containers.
pub(crate) fn bytes_of(quarantined: &[QuarantinedContainer]) -> u64 {
    quarantined.iter().map(|container| container.len).sum()
}

/// Returns the report in sentences.
fn lines(args: &PruneArgs, report: &PruneReport) -> Vec<String> {
    let plan = &report.plan;
    let containers = |count| text::count(count, "container");
    let mut lines = Vec::new();
    if 0 < plan.containers {
        lines.push(format!(
            "looked at {} with {}, of which {} is unused",
            containers(plan.containers),
            text::bytes(plan.stored_bytes),
            text::bytes(plan.unused_bytes),
        ));
    }
    if args.dry_run {
        lines.push(format!(
            "would remove {} ({}), and copy {} of {} to free {}; {} would stay unused",
            containers(plan.removed_containers),
            text::bytes(plan.removed_bytes),
            text::bytes(plan.copied_bytes),
            containers(plan.copied_containers),
            text::bytes(plan.freed_by_copying_bytes),
            text::bytes(plan.left_unused_bytes),
        ));
        lines.extend(bases_lines(plan));
        if args.limits.recompress && 0 < plan.copied_containers {
            lines.push(
                "  how much shorter the copies get by --recompress is not known before, and not counted here"
                    .to_owned(),
            );
        }
        return lines;
    }
    lines.extend(collection_lines(report));
    lines.push(match &report.state {
        PruneState::Done if report.deleted_containers == 0 => "nothing was removed".to_owned(),
        PruneState::Done => {
            format!("removed {} ({})", containers(report.deleted_containers), text::bytes(report.deleted_bytes))
        }
        PruneState::Kept(left) => {
            format!("what was decided is deleted by the next prune after {}", text::short_duration(*left))
        }
        PruneState::Waiting(_) => waiting_line(&report.state),
    });
    lines.extend(waited_lines(&report.state));
    if 0 < report.leftovers.0 {
        let files = text::count(report.leftovers.0, "file");
        let bytes = text::bytes(report.leftovers.1);
        lines.push(format!("removed {files} of interrupted sessions and forgotten snapshots ({bytes})"));
    }
    lines
}

/// Returns what a plan does about bases of regions in sentences.
pub(crate) fn bases_lines(plan: &PlanTotals) -> Vec<String> {
    let mut lines = Vec::new();
    if 0 < plan.apart_containers {
        let apart = text::count(plan.apart_containers, "copied container");
        lines.push(format!("  {apart} would leave their bases, so that these can go"));
    }
    if 0 < plan.grown_bytes {
        lines.push(format!("  copies would grow by about {} without their bases", text::bytes(plan.grown_bytes)));
    }
    if 0 < plan.bases_containers {
        let kept = text::count(plan.bases_containers, "container");
        let bytes = text::bytes(plan.bases_bytes);
        lines
            .push(format!("  {bytes} in {kept} would stay only because regions elsewhere are compressed against them"));
    }
    lines
}

/// Returns the work of collections in sentences, without what they have removed.
pub(crate) fn collection_lines(report: &PruneReport) -> Vec<String> {
    let containers = |count| text::count(count, "container");
    let mut lines = Vec::new();
    for session in &report.fenced {
        lines.push(format!("fenced session {}, which had shown no sign of life", short_id(*session)));
    }
    if 0 < report.written_containers {
        let written = containers(report.written_containers);
        lines.push(format!("copied what is needed to {written} with {}", text::bytes(report.written_bytes)));
        lines.push(format!(
            "  the regions of the copied chunks took {} before, with what is not needed in them, and take {}",
            text::bytes(report.copied_regions_bytes),
            text::bytes(report.written_regions_bytes),
        ));
    }
    if 0 < report.rescued_chunks {
        let rescued = text::count(report.rescued_chunks, "chunk");
        lines.push(format!("copied {rescued} of which the copies that snapshots would use are damaged or gone"));
    }
    if 0 < report.rescued_containers {
        lines.push(format!("kept {}, which a snapshot has come to need", containers(report.rescued_containers)));
    }
    if 0 < report.quarantined_containers {
        let quarantined = text::count(report.quarantined_containers, "damaged container");
        lines.push(format!("set {quarantined} aside ({})", text::bytes(report.quarantined_bytes)));
    }
    lines
}

/// Returns the state of a collection that waits in a sentence.
pub(crate) fn waiting_line(state: &PruneState) -> String {
    let count = if let PruneState::Waiting(sessions) = state { sessions.len() as u64 } else { 0 };
    format!("waits for {}; the next prune goes on", text::count(count, "backup"))
}

/// Returns a line for each session that is waited for.
pub(crate) fn waited_lines(state: &PruneState) -> Vec<String> {
    if let PruneState::Waiting(sessions) = state { sessions.iter().map(waited).collect() } else { Vec::new() }
}

fn waited(session: &UnendedSession) -> String {
    let host = if session.hostname.is_empty() { "an unknown host" } else { &session.hostname };
    let since = session.began.map_or_else(String::new, |began| format!(", since {}", text::local_time(began)));
    format!("  session {} on {host}{since}", short_id(session.id))
}
