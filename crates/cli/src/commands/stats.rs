//! `stats`.

use anyhow::Result;
use onefold_engine::collect::ledger::{Held, LedgerRequest, held_by_each, held_by_set};
use onefold_engine::inspect::{RawStats, StatsRequest, contents_stats, raw_stats, reference_stats, restore_stats};
use onefold_engine::repo::SnapshotId;
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::Store;
use onefold_engine::store::commits::Commits;
use onefold_engine::types::{Fingerprint, SessionId};

use crate::args::inspect::{StatsArgs, StatsMode};
use crate::json::inspect::{ratio, raw_stats as raw_fields};
use crate::json::{Object, object, short_id};
use crate::open::{self, OpenedMetadata};
use crate::output::Output;
use crate::settings::{Settings, Verbosity};
use crate::text;

/// Counts what snapshots hold.
pub(crate) fn run(settings: &Settings, output: &Output, args: &StatsArgs) -> Result<()> {
    let OpenedMetadata { commits, cache, interrupt, mut reader } = OpenedMetadata::open(settings, output)?;
    let snapshots = open::find_all(output, &commits, &args.selection, &args.snapshots)?;
    let roots: Vec<Fingerprint> = snapshots.iter().map(|(_, snapshot)| snapshot.tree).collect();
    let scratch = cache.scratch();
    let memory_bytes = settings.memory_bytes / 2;
    let request = StatsRequest { roots: &roots, scratch: &scratch, memory_bytes, monitor: &interrupt };
    let mut lines = vec![("Snapshots processed:", roots.len().to_string())];
    let snapshots_count = roots.len();
    let message = match args.mode {
        StatsMode::Exclusive => return exclusive(output, args, &commits, reader.store(), &request),
        StatsMode::RestoreSize => {
            let counted = restore_stats(&mut reader, &request)?;
            counts(&mut lines, snapshots_count, counted.entries, counted.bytes)
        }
        StatsMode::FilesByContents => {
            let counted = contents_stats(&mut reader, &request)?;
            counts(&mut lines, snapshots_count, counted.files, counted.bytes)
        }
        StatsMode::ChunksPerFile => {
            let counted = reference_stats(&mut reader, &request)?;
            lines.push(("Total chunk count:", counted.chunks.to_string()));
            text_of_counts(&mut lines, counted.files, counted.bytes);
            object! {
                total_size: counted.bytes,
                total_file_count: counted.files,
                total_blob_count: counted.chunks,
                snapshots_count,
            }
        }
        StatsMode::RawData => {
            let logical = restore_stats(&mut reader, &request)?.bytes;
            let raw = raw_stats(&mut reader, &request)?;
            describe(&mut lines, &raw, logical);
            let total_size = raw.data_bytes_stored + raw.metadata_bytes_stored;
            object! { total_size, snapshots_count, ..raw_fields(&raw, logical), }
        }
    };
    if output.json {
        output.message(&message)?;
    } else {
        print(output, args.mode, &lines)?;
    }
    output.fail_on(commits.findings.iter().map(|(_, error)| error), "not all snapshots can be read and are counted")
}

/// Counts what single snapshots hold, or what those that were named hold together.
fn exclusive(
    output: &Output,
    args: &StatsArgs,
    commits: &Commits,
    store: &Store,
    request: &StatsRequest<'_>,
) -> Result<()> {
    // What an unreadable snapshot holds would count as held by others alone.
    let unread = commits.findings.iter().map(|(_, error)| error).chain(&commits.not_forgotten);
    output.fail_on(unread, "what a snapshot alone holds is known only if all of them can be read")?;
    let &StatsRequest { scratch, memory_bytes, monitor, .. } = request;
    // The memory that the other modes divide among two maps.
    let request = LedgerRequest { scratch, memory_bytes: memory_bytes * 2, monitor };
    let all = commits.snapshots();
    let chosen = open::find_all(output, commits, &args.selection, &args.snapshots)?;
    let is_chosen = |session: &SessionId| chosen.iter().any(|(id, _)| id == session);
    let snapshots_count = chosen.len();
    let mut rows: Vec<(String, Held)> = Vec::new();
    let message = if args.snapshots.is_empty() {
        let roots: Vec<Fingerprint> = all.iter().map(|(_, snapshot)| snapshot.tree).collect();
        let held = held_by_each(store, &request, &roots)?;
        let each: Vec<_> = all.iter().zip(&held.each).filter(|((session, _), _)| is_chosen(session)).collect();
        let objects = each.iter().map(|&(&(session, snapshot), held)| {
            object! {
                id: SnapshotId(session), short_id: short_id(session), time: snapshot.time, ..held.into(),
            }
        });
        let objects: Vec<_> = objects.collect();
        rows.extend(each.iter().map(|((session, snapshot), held)| {
            (format!("{}  {}", short_id(*session), text::local_time(snapshot.time)), **held)
        }));
        rows.extend([("several snapshots".to_owned(), held.shared), ("no snapshot".to_owned(), held.unneeded)]);
        object! { snapshots_count, snapshots: objects, shared: &held.shared, unneeded: &held.unneeded, }
    } else {
        let (set, others): (Vec<_>, Vec<_>) = all.iter().partition(|(session, _)| is_chosen(session));
        let roots = |snapshots: Vec<&(SessionId, &Snapshot)>| -> Vec<Fingerprint> {
            snapshots.into_iter().map(|(_, snapshot)| snapshot.tree).collect()
        };
        let held = held_by_set(store, &request, &roots(set), &roots(others))?;
        let names = ["the named snapshots", "several snapshots", "other snapshots", "no snapshot"].map(str::to_owned);
        rows.extend(names.into_iter().zip([held.only, held.shared, held.others, held.unneeded]));
        object! {
            snapshots_count,
            only: &held.only,
            shared: &held.shared,
            others: &held.others,
            unneeded: &held.unneeded,
        }
    };
    if output.json {
        output.message(&message)?;
        return Ok(output.flush()?);
    }
    output.line(format!("{:>32}  {:>10}  {:>12}  {:>12}", "Held only by", "Chunks", "Uncompressed", "Stored"))?;
    for (title, held) in rows {
        let (plain, stored) = (text::bytes(held.plain_bytes), text::bytes(held.stored_bytes));
        output.line(format!("{title:>32}  {:>10}  {plain:>12}  {stored:>12}", held.chunks))?;
    }
    Ok(output.flush()?)
}

/// Returns the message on counted files, and adds lines that say the same.
fn counts(lines: &mut Vec<(&'static str, String)>, snapshots_count: usize, files: u64, bytes: u64) -> Object {
    text_of_counts(lines, files, bytes);
    object! { total_size: bytes, total_file_count: files, snapshots_count, }
}

fn text_of_counts(lines: &mut Vec<(&'static str, String)>, files: u64, bytes: u64) {
    lines.push(("Total file count:", files.to_string()));
    lines.push(("Total size:", text::bytes(bytes)));
}

fn describe(lines: &mut Vec<(&'static str, String)>, raw: &RawStats, logical: u64) {
    let (plain, stored) = (raw.data_bytes + raw.metadata_bytes, raw.data_bytes_stored + raw.metadata_bytes_stored);
    let chunks = raw.data_chunks + raw.metadata_chunks;
    lines
        .push(("Total chunk count:", format!("{chunks} ({} data, {} metadata)", raw.data_chunks, raw.metadata_chunks)));
    lines.push(("Logical size:", text::bytes(logical)));
    lines.push(("Total uncompressed size:", text::bytes(plain)));
    lines.push(("Total size:", text::bytes(stored)));
    lines.push(("Deduplication ratio:", format!("{:.2}x", ratio(logical, raw.data_bytes))));
    lines.push(("Compression ratio:", format!("{:.2}x", ratio(plain, stored))));
    lines.push(("Both together:", format!("{:.2}x", ratio(logical, stored))));
    lines.push(("Containers:", format!("{} ({})", raw.containers, text::bytes(raw.container_bytes))));
    if 0 < raw.other_chunks {
        lines.push(("Other chunks:", format!("{}, which these snapshots do not need", raw.other_chunks)));
    }
    if 0 < raw.missing_chunks {
        lines.push(("Missing chunks:", format!("{}; `onefold check` says more", raw.missing_chunks)));
    }
    if 0 < raw.quarantined_containers {
        let quarantined = format!("{} ({})", raw.quarantined_containers, text::bytes(raw.quarantined_bytes));
        lines.push(("Set aside as damaged:", quarantined));
    }
    if 0 < raw.unreadable_containers {
        lines.push(("Unreadable containers:", format!("{}; `onefold check` says more", raw.unreadable_containers)));
    }
}

fn print(output: &Output, mode: StatsMode, lines: &[(&str, String)]) -> Result<()> {
    if Verbosity::Normal <= output.verbosity {
        let mode = clap::ValueEnum::to_possible_value(&mode);
        let mode = mode.as_ref().map_or("", |value| value.get_name());
        output.line(format!("Stats in {mode} mode:"))?;
    }
    for (title, value) in lines {
        output.line(format!("{title:>24}  {value}"))?;
    }
    Ok(output.flush()?)
}
