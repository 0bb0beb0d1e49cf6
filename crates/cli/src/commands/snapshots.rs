//! `snapshots`.

use std::collections::BTreeMap;

use anyhow::Result;
use onefold_engine::repo::SnapshotId;
use onefold_engine::snapshot::Snapshot;
use onefold_engine::types::SessionId;

use crate::args::backup::Grouping;
use crate::args::list::SnapshotsArgs;
use crate::json::{GroupKey, list, short_id};
use crate::open::{self, open};
use crate::output::Output;
use crate::settings::Settings;
use crate::text;
use crate::trust;

/// Lists snapshots, oldest first.
pub(crate) fn run(settings: &Settings, output: &Output, args: &SnapshotsArgs) -> Result<()> {
    let opened = open(settings, output)?;
    let commits = trust::read_commits(settings, output, &opened.store)?;
    let mut listed = open::find_all(output, &commits, &args.selection, &args.snapshots)?;
    let latest = if args.last { Some(1) } else { args.latest };
    if latest.is_some() {
        let now = opened.store.host.now();
        let (by_time, future) =
            commits.by_time(now, |snapshot| listed.iter().any(|(_, other)| std::ptr::eq(*other, snapshot)));
        if let Some(doubt) = future {
            open::warn_of_doubt(output, &doubt, now);
        }
        listed = by_time;
    }
    let by = args.group_by.unwrap_or_default();
    let is_grouped = by != Grouping::default();
    let groups = if is_grouped {
        let groups = grouped(listed, by).into_iter();
        groups.map(|(key, group)| (Some(key), keep_latest(group, latest, |_| ()))).collect()
    } else {
        vec![(None, keep_latest(listed, latest, |snapshot| (snapshot.hostname.clone(), sorted(&snapshot.paths))))]
    };
    let table = Table { output, compact: args.compact, long_ids: args.long_ids, reasons: None };
    let objects = |group: &Group<'_>| -> Vec<_> {
        group.iter().map(|(session, snapshot)| list::snapshot(*session, snapshot)).collect()
    };
    match (output.json, is_grouped) {
        (true, false) => {
            let all: Vec<_> = groups.iter().flat_map(|(_, group)| objects(group)).collect();
            output.message(&all)?;
        }
        (true, true) => {
            let all: Vec<_> = groups.into_iter().map(|(key, group)| list::group(key, objects(&group))).collect();
            output.message(&all)?;
        }
        (false, _) => {
            for (key, group) in &groups {
                if let Some(key) = key {
                    output.line(heading(output, key))?;
                }
                table.print(group)?;
            }
        }
    }
    output.flush()?;
    let unread = commits.findings.iter().map(|(_, error)| error).chain(&commits.not_forgotten);
    output.fail_on(unread, "not all commits can be read")
}

/// Snapshots that are listed together.
type Group<'a> = Vec<(SessionId, &'a Snapshot)>;

/// Keeps the last ones of each key; without a number, all.
fn keep_latest<'a, K: Ord>(listed: Group<'a>, count: Option<usize>, key: impl Fn(&Snapshot) -> K) -> Group<'a> {
    let Some(count) = count else { return listed };
    let mut seen: BTreeMap<K, usize> = BTreeMap::new();
    let mut kept: Group<'a> = Vec::new();
    for (session, snapshot) in listed.into_iter().rev() {
        let number = seen.entry(key(snapshot)).or_default();
        *number += 1;
        if *number <= count {
            kept.push((session, snapshot));
        }
    }
    kept.reverse();
    kept
}

fn sorted<T: Ord + Clone>(values: &[T]) -> Vec<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values
}

/// Divides snapshots into groups that have the same of what is grouped by, sorted by that.
fn grouped<'a>(listed: Group<'a>, by: Grouping) -> BTreeMap<GroupKey, Group<'a>> {
    let mut groups: BTreeMap<GroupKey, Group<'a>> = BTreeMap::new();
    for (session, snapshot) in listed {
        let texts = |paths: Vec<Vec<u8>>| paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
        let key = GroupKey {
            hostname: if by.host { snapshot.hostname.clone() } else { String::new() },
            paths: by.paths.then(|| texts(sorted(&snapshot.paths))),
            tags: by.tags.then(|| sorted(&snapshot.tags)),
        };
        groups.entry(key).or_default().push((session, snapshot));
    }
    groups
}

/// Returns the line above a group, as restic has it.
pub(super) fn heading(output: &Output, key: &GroupKey) -> Vec<u8> {
    let list = |name: &str, values: &Option<Vec<String>>| {
        values.as_ref().map(|values| format!("{name} [{}]", values.join(", ")))
    };
    let host = (!key.hostname.is_empty()).then(|| format!("host [{}]", key.hostname));
    let parts: Vec<String> = [host, list("tags", &key.tags), list("paths", &key.paths)].into_iter().flatten().collect();
    output.printable(format!("snapshots for ({}):", parts.join(", ")).as_bytes())
}

/// Table of snapshots for people.
pub(super) struct Table<'a> {
    pub(super) output: &'a Output,
    pub(super) compact: bool,
    pub(super) long_ids: bool,
    /// Why each snapshot is kept.
    pub(super) reasons: Option<&'a [Vec<String>]>,
}

impl Table<'_> {
    /// Prints the snapshots and their number.
    pub(super) fn print(&self, listed: &[(SessionId, &Snapshot)]) -> Result<()> {
        let mut titles = vec!["ID", "Time", "Host", "Tags"];
        titles.extend(self.reasons.map(|_| "Reasons"));
        titles.extend((!self.compact).then_some("Paths"));
        titles.push("Size");
        let header: Vec<Vec<u8>> = titles.iter().map(|title| title.as_bytes().to_vec()).collect();
        let mut rows = Vec::new();
        for (number, (session, snapshot)) in listed.iter().enumerate() {
            let cells = self.cells(*session, snapshot, number);
            // One line for each of several tags, reasons and paths.
            for line in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                rows.push(cells.iter().map(|lines| lines.get(line).cloned().unwrap_or_default()).collect());
            }
        }
        print_rows(self.output, &header, &rows)?;
        self.output.line(text::count(listed.len() as u64, "snapshot"))?;
        Ok(())
    }

    /// Returns the lines of each cell.
    fn cells(&self, session: SessionId, snapshot: &Snapshot, number: usize) -> Vec<Vec<Vec<u8>>> {
        let output = self.output;
        let id = if self.long_ids { SnapshotId(session).to_string() } else { short_id(session) };
        let mut cells = vec![
            vec![id.into_bytes()],
            vec![text::local_time(snapshot.time).into_bytes()],
            vec![output.printable(snapshot.hostname.as_bytes())],
            snapshot.tags.iter().map(|tag| output.printable(tag.as_bytes())).collect(),
        ];
        if let Some(reasons) = self.reasons {
            let reasons = reasons.get(number).into_iter().flatten();
            cells.push(reasons.map(|reason| output.printable(reason.as_bytes())).collect());
        }
        if !self.compact {
            cells.push(snapshot.paths.iter().map(|path| output.printable(path)).collect());
        }
        cells.push(vec![text::bytes(snapshot.summary.bytes_processed).into_bytes()]);
        cells
    }
}

fn print_rows(output: &Output, header: &[Vec<u8>], rows: &[Vec<Vec<u8>>]) -> Result<()> {
    let mut widths: Vec<usize> = header.iter().map(Vec::len).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(width_of(cell));
        }
    }
    let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
    print_row(output, header, &widths)?;
    output.line(&rule)?;
    for row in rows {
        print_row(output, row, &widths)?;
    }
    output.line(&rule)?;
    Ok(())
}

fn print_row(output: &Output, row: &[Vec<u8>], widths: &[usize]) -> Result<()> {
    let mut line = Vec::new();
    for (cell, width) in row.iter().zip(widths) {
        line.extend_from_slice(cell);
        line.resize(line.len() + width - width_of(cell) + 2, b' ');
    }
    output.line(line.trim_ascii_end())?;
    Ok(())
}

/// Returns the width of a cell, at one column for each character.
fn width_of(cell: &[u8]) -> usize {
    String::from_utf8_lossy(cell).chars().count()
}
