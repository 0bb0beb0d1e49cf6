//! `diff`.

use anyhow::{Context, Result};
use onefold_engine::inspect::{Diff, DiffReport, SideCounts};
use onefold_engine::io::tree::EntryKind;
use onefold_engine::repo::SnapshotName;
use onefold_engine::store::MetadataReader;
use onefold_engine::store::commits::Commits;
use onefold_engine::types::{Fingerprint, SessionId};

use crate::args::inspect::DiffArgs;
use crate::commands::ls::descend;
use crate::json::inspect::{change, compared, modifier};
use crate::json::short_id;
use crate::open::{self, OpenedMetadata};
use crate::output::Output;
use crate::settings::{Settings, Verbosity};
use crate::text;

/// Lists the differences between two snapshots.
pub(crate) fn run(settings: &Settings, output: &Output, args: &DiffArgs) -> Result<()> {
    let OpenedMetadata { commits, cache, interrupt, mut reader } = OpenedMetadata::open(settings, output)?;
    let (before, old) = side(output, &mut reader, &commits, args, &args.before)?;
    let (after, new) = side(output, &mut reader, &commits, args, &args.after)?;
    if !output.json && Verbosity::Normal <= output.verbosity {
        output.line(format!("comparing snapshot {} to {}:\n", short_id(before), short_id(after)))?;
    }
    let mut diff = Diff::new(&reader, (old, new), args.metadata, &cache.scratch(), settings.memory_bytes / 8)?;
    while let Some(found) = diff.next(&mut reader, &interrupt)? {
        let mut path = found.path.clone();
        if found.kind == EntryKind::Directory {
            path.push(b'/');
        }
        if output.json {
            output.line(serde_json::to_vec(&change(&found, &path))?)?;
        } else {
            let mut line = format!("{:<5}", modifier(found.difference)).into_bytes();
            line.extend(output.printable(&path));
            output.line(line)?;
        }
    }
    let report = diff.report();
    if output.json {
        output.message(&compared(before, after, &report))?;
    } else if Verbosity::Normal <= output.verbosity {
        print_statistics(output, &report)?;
    }
    Ok(output.flush()?)
}

/// Finds one side: the snapshot, and the directory of it that is compared.
fn side(
    output: &Output,
    reader: &mut MetadataReader,
    commits: &Commits,
    args: &DiffArgs,
    name: &str,
) -> Result<(SessionId, Fingerprint)> {
    let name = SnapshotName::parse(name);
    let (session, snapshot) = open::find(output, commits, &args.selection, &name)?;
    let path = name.path.unwrap_or_default();
    let (node, _) = descend(reader, snapshot.tree, path.as_bytes()).with_context(|| short_id(session))?;
    Ok((session, node))
}

fn print_statistics(output: &Output, report: &DiffReport) -> Result<()> {
    let DiffReport { changed, added, removed, .. } = report;
    let pair = |title: &str, count: fn(&SideCounts) -> u64| {
        format!("{title:<12} {:5} new, {:5} removed", count(added), count(removed))
    };
    output.line("")?;
    output.line(format!("{}, {changed:5} changed", pair("Files:", |side| side.files)))?;
    output.line(pair("Dirs:", |side| side.directories))?;
    output.line(pair("Others:", |side| side.others))?;
    output.line(pair("Data chunks:", |side| side.data_chunks))?;
    output.line(pair("Tree chunks:", |side| side.tree_chunks))?;
    output.line(format!("  Added:   {}", text::bytes(added.bytes)))?;
    output.line(format!("  Removed: {}", text::bytes(removed.bytes)))?;
    Ok(())
}
