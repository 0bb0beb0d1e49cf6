//! `snapshots`.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::types::SessionId;

use crate::args::SnapshotsArgs;
use crate::json::{SnapshotObject, short_id};
use crate::open::{self, open};
use crate::output::Output;
use crate::settings::Settings;
use crate::text;
use crate::trust;

/// Lists snapshots, oldest first.
pub(crate) fn run(settings: &Settings, output: &Output, typed: &SnapshotsArgs) -> Result<()> {
    let opened = open(settings, output)?;
    let commits = trust::read_commits(settings, output, &opened)?;
    let mut listed = open::find_all(&commits, &typed.selection, &typed.snapshots)?;
    if let Some(count) = typed.latest {
        keep_latest(&mut listed, count);
    }
    if output.json {
        let objects: Vec<_> = listed.iter().map(|(session, snapshot)| SnapshotObject::of(*session, snapshot)).collect();
        output.message(&objects)?;
    } else {
        print_table(output, &listed)?;
    }
    output.flush()?;
    let unread: Vec<_> = commits.findings.iter().map(|(_, error)| error).chain(&commits.not_forgotten).collect();
    for error in &unread {
        output.warn(&format!("error: {error}"));
    }
    match unread.len() {
        0 => Ok(()),
        count => bail!("{count} commits or forgettings cannot be read; `onefold check` says more"),
    }
}

/// Keeps the last ones of each host and paths.
fn keep_latest(listed: &mut Vec<(SessionId, &Snapshot)>, count: usize) {
    let mut seen: BTreeMap<(&str, &[Vec<u8>]), usize> = BTreeMap::new();
    let mut kept: Vec<_> = Vec::new();
    for (session, snapshot) in listed.iter().rev() {
        let number = seen.entry((&snapshot.hostname, &snapshot.paths)).or_default();
        *number += 1;
        if *number <= count {
            kept.push((*session, *snapshot));
        }
    }
    kept.reverse();
    *listed = kept;
}

fn print_table(output: &Output, listed: &[(SessionId, &Snapshot)]) -> Result<()> {
    let header = ["ID", "Time", "Host", "Tags", "Paths", "Size"].map(|title| title.as_bytes().to_vec());
    let mut rows = Vec::new();
    for (session, snapshot) in listed {
        let mut tags = snapshot.tags.iter().map(|tag| output.printable(tag.as_bytes()));
        let mut paths = snapshot.paths.iter().map(|path| output.printable(path));
        rows.push([
            short_id(*session).into_bytes(),
            text::local_time(snapshot.time).into_bytes(),
            output.printable(snapshot.hostname.as_bytes()),
            tags.next().unwrap_or_default(),
            paths.next().unwrap_or_default(),
            text::bytes(snapshot.summary.bytes_processed).into_bytes(),
        ]);
        // One line for each of several tags and paths.
        loop {
            let (tag, path) = (tags.next(), paths.next());
            if tag.is_none() && path.is_none() {
                break;
            }
            let (tag, path) = (tag.unwrap_or_default(), path.unwrap_or_default());
            rows.push([Vec::new(), Vec::new(), Vec::new(), tag, path, Vec::new()]);
        }
    }
    let mut widths = header.each_ref().map(Vec::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(width_of(cell));
        }
    }
    let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
    print_row(output, &header, &widths)?;
    output.line(&rule)?;
    for row in &rows {
        print_row(output, row, &widths)?;
    }
    output.line(&rule)?;
    output.line(text::count(listed.len() as u64, "snapshot"))?;
    Ok(())
}

fn print_row(output: &Output, row: &[Vec<u8>; 6], widths: &[usize; 6]) -> Result<()> {
    let mut line = Vec::new();
    for (cell, width) in row.iter().zip(widths) {
        line.extend_from_slice(cell);
        line.resize(line.len() + width - width_of(cell) + 2, b' ');
    }
    output.line(line.trim_ascii_end())?;
    Ok(())
}

/// Characters that a cell takes, as far as that can be told without tables.
fn width_of(cell: &[u8]) -> usize {
    String::from_utf8_lossy(cell).chars().count()
}
