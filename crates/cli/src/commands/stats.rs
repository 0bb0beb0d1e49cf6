//! `stats`.

use anyhow::{Result, bail};
use onefold_engine::inspect::{RawStats, StatsRequest, contents_stats, raw_stats, restore_stats};
use onefold_engine::types::Fingerprint;

use crate::args::inspect::{StatsArgs, StatsMode};
use crate::interrupt::Interrupt;
use crate::json::inspect::{Stats, StatsRaw, ratio};
use crate::open::{self, OpenedCache, metadata_reader, open};
use crate::output::{Output, Verbosity};
use crate::settings::Settings;
use crate::text;
use crate::trust;

/// Counts what snapshots hold.
pub(crate) fn run(settings: &Settings, output: &Output, typed: &StatsArgs) -> Result<()> {
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let commits = trust::read_commits(settings, output, &opened)?;
    let snapshots = open::find_all(&commits, &typed.selection, &typed.snapshots)?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let mut reader = metadata_reader(settings, &opened.store, &cache)?;
    let roots: Vec<Fingerprint> = snapshots.iter().map(|(_, snapshot)| snapshot.tree).collect();
    let scratch = cache.scratch();
    let memory_bytes = settings.memory_bytes / 2;
    let request = StatsRequest { roots: &roots, scratch: &scratch, memory_bytes, monitor: &interrupt };
    let mut lines = vec![("Snapshots processed:", roots.len().to_string())];
    let snapshots_count = roots.len();
    let message = match typed.mode {
        StatsMode::RestoreSize => {
            let counted = restore_stats(&mut reader, &request)?;
            lines.push(("Total file count:", counted.entries.to_string()));
            lines.push(("Total size:", text::bytes(counted.bytes)));
            let total_file_count = Some(counted.entries);
            Stats { total_size: counted.bytes, total_file_count, snapshots_count, raw: None }
        }
        StatsMode::FilesByContents => {
            let counted = contents_stats(&mut reader, &request)?;
            lines.push(("Total file count:", counted.files.to_string()));
            lines.push(("Total size:", text::bytes(counted.bytes)));
            let total_file_count = Some(counted.files);
            Stats { total_size: counted.bytes, total_file_count, snapshots_count, raw: None }
        }
        StatsMode::RawData => {
            let logical = restore_stats(&mut reader, &request)?.bytes;
            let raw = raw_stats(&mut reader, &request)?;
            describe(&mut lines, &raw, logical);
            let total_size = raw.data_bytes_stored + raw.metadata_bytes_stored;
            let raw = Some(StatsRaw::of(&raw, logical));
            Stats { total_size, total_file_count: None, snapshots_count, raw }
        }
    };
    if output.json {
        output.message(&message)?;
    } else {
        print(output, typed.mode, &lines)?;
    }
    match commits.findings.len() {
        0 => Ok(()),
        1 => bail!("1 snapshot cannot be read and is not counted; `onefold check` says more"),
        count => bail!("{count} snapshots cannot be read and are not counted; `onefold check` says more"),
    }
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
