//! `why`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Result, bail, ensure};
use onefold_engine::Error;
use onefold_engine::collect::why::{
    ChunkHolders, ChunkPrefix, ContainerHolders, ContainerState, WhyRequest, find_chunk, why_chunk, why_container,
    why_path,
};
use onefold_engine::io::os::process_peak_rss_bytes;
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::container_set::Containers;
use onefold_engine::store::{QuarantinedContainer, Store};
use onefold_engine::types::{ContainerId, SessionId};
use serde::Serialize;

use crate::args::inspect::WhyArgs;
use crate::commands::repair_containers::parse_container;
use crate::interrupt::Interrupt;
use crate::json::ledger::HeldObject;
use crate::json::why::{
    ChunkRow, ContainerRow, PathRow, RelatedRow, SnapshotFields, WhyChunk, WhyContainer, WhyPath, WhyQuarantined, ids,
};
use crate::open::{self, OpenedCache, open};
use crate::output::Output;
use crate::settings::Settings;
use crate::{text, trust};

/// Most related containers that are shown to people; programs get those that the engine lists.
const RELATED_SHOWN: usize = 20;

/// Shows which snapshots hold a path, a chunk or a container.
pub(crate) fn run(settings: &Settings, output: &Output, args: &WhyArgs) -> Result<()> {
    let opened = open(settings, output)?;
    let store = &opened.store;
    let interrupt = Interrupt::listen()?;
    let commits = trust::read_commits(settings, output, store)?;
    let unread = commits.findings.iter().map(|(_, error)| error).chain(&commits.not_forgotten);
    output.fail_on(unread, "what snapshots hold is known only if all of them can be read")?;
    let snapshots = commits.snapshots();
    let sessions = |names: &[String]| -> Result<BTreeSet<SessionId>> {
        Ok(open::find_all(output, &commits, &args.selection, names)?.into_iter().map(|(session, _)| session).collect())
    };
    let listed = sessions(&args.snapshot)?;
    let forgotten = if args.if_forgotten.is_empty() { None } else { Some(sessions(&args.if_forgotten)?) };
    let cache = OpenedCache::open(settings, store.config.repository, output)?;
    let scratch = cache.scratch();
    let request = WhyRequest {
        snapshots: &snapshots,
        listed: &listed,
        forgotten: forgotten.as_ref(),
        scratch: &scratch,
        memory_bytes: settings.memory_bytes,
        monitor: &interrupt,
    };
    let thing = Thing::find(store, &store.list_containers(&scratch)?, &args.thing)?;
    let by_session = snapshots.iter().copied().collect();
    let answer = Answer { store, output, request, by_session };
    match thing {
        Thing::Path(path) => answer.path(&path),
        Thing::Container(id) => answer.container(id),
        Thing::Quarantined(container) => answer.quarantined(&container),
        Thing::Chunk(prefix, text) => answer.chunk(&prefix, &text),
    }?;
    Ok(output.flush()?)
}

/// A thing that was asked about.
#[derive(Debug)]
enum Thing {
    /// A path in snapshots.
    Path(Vec<u8>),
    /// A container that is listed.
    Container(ContainerId),
    /// A container that was set aside.
    Quarantined(QuarantinedContainer),
    /// A chunk, as it was typed.
    Chunk(ChunkPrefix, String),
}

impl Thing {
    /// Finds what was typed. Digits name a container if the id of one begins with them, and else a chunk.
    fn find(store: &Store, containers: &Containers, typed: &OsStr) -> Result<Self> {
        let text = typed.to_str().unwrap_or_default();
        let quarantined = store.list_quarantined()?;
        if let Some(id) = parse_container(text.trim_end_matches(".bad")) {
            if containers.contains(id) {
                return Ok(Self::Container(id));
            }
            if let Some(container) = quarantined.iter().find(|container| container.name.id == id) {
                return Ok(Self::Quarantined(*container));
            }
            ensure!(text.starts_with('/'), "container `{text}` not found");
        }
        if typed.as_bytes().starts_with(b"/") {
            return Ok(Self::Path(typed.as_bytes().to_vec()));
        }
        let begins = |id: &ContainerId| !text.is_empty() && id.to_string().starts_with(text);
        let mut found = containers.iter().map(|(_, id)| id).filter(begins);
        if let Some(id) = found.next() {
            ensure!(found.next().is_none(), "container `{text}`: several ids begin like that; use a longer prefix");
            return Ok(Self::Container(id));
        }
        let mut aside = quarantined.iter().filter(|container| begins(&container.name.id));
        match (aside.next(), aside.next()) {
            (Some(container), None) => return Ok(Self::Quarantined(*container)),
            (Some(_), Some(_)) => bail!("container `{text}`: several ids begin like that; use a longer prefix"),
            (None, _) => {}
        }
        match ChunkPrefix::parse(text) {
            Some(prefix) => Ok(Self::Chunk(prefix, text.to_owned())),
            None => bail!(
                "{}: neither a path in snapshots, which begins with /, nor the beginning of a container's id or of a chunk's \
                 fingerprint",
                typed.display()
            ),
        }
    }
}

/// The repository, and the snapshots and paths that the question names.
struct Answer<'a> {
    store: &'a Store,
    output: &'a Output,
    request: WhyRequest<'a>,
    by_session: BTreeMap<SessionId, &'a Snapshot>,
}

impl Answer<'_> {
    fn snapshot(&self, session: SessionId) -> SnapshotFields {
        let snapshot = self.by_session.get(&session).expect("answers list snapshots that were asked for");
        SnapshotFields::of(session, snapshot)
    }

    /// Returns the ids of the snapshots that would be forgotten.
    fn forgotten(&self) -> Vec<String> {
        ids(self.request.forgotten.into_iter().flatten())
    }

    /// Writes the answer for programs. Returns false if the answer is for people.
    fn is_written(&self, answer: &impl Serialize) -> Result<bool> {
        if self.output.json {
            self.output.message(answer)?;
        }
        Ok(self.output.json)
    }

    fn path(&self, path: &[u8]) -> Result<()> {
        let found = why_path(self.store, &self.request, path)?;
        let shown = String::from_utf8_lossy(&self.output.printable(path)).into_owned();
        ensure!(!found.snapshots.is_empty(), "{shown}: in none of the snapshots");
        let rows = found.snapshots.iter().map(|row| PathRow::of(row, self.snapshot(row.session))).collect();
        let answer = WhyPath::of(path, &found, rows, self.forgotten(), process_peak_rss_bytes());
        if self.is_written(&answer)? {
            return Ok(());
        }
        let shows_hosts = shows_hosts(answer.snapshots.iter().map(|row| &row.snapshot));
        self.output.line(format!("{}  Contents", header("Snapshot")))?;
        for row in &answer.snapshots {
            let contents = match row.unchanged {
                None => "first",
                Some(true) => "same",
                Some(false) => "changed",
            };
            self.row(&row.snapshot, &row.held, &format!("  {contents:<8}"), shows_hosts)?;
        }
        self.output.line("")?;
        self.output.line(header("Held by"))?;
        self.output.line(cells("this path alone", &answer.only_path))?;
        self.output.line(cells("also other paths of these", &answer.other_paths))?;
        self.output.line(cells("also other snapshots", &answer.shared))?;
        self.output.line(cells("all of it", &answer.all))?;
        self.output.line("")?;
        match &answer.if_forgotten {
            None => {
                let count = text::count(answer.snapshots.len() as u64, "snapshot");
                self.output.line(format!("forgetting {count} with it would free {} of it", chunks(&answer.only)))?;
                self.output.line(format!("leaving it out of them would free {}", chunks(&answer.only_path)))?;
            }
            Some(forgotten) => self.if_forgotten(&forgotten.freed, &forgotten.left)?,
        }
        Ok(())
    }

    fn container(&self, id: ContainerId) -> Result<()> {
        let found = why_container(self.store, &self.request, id)?;
        let rows = found.snapshots.iter().map(|row| ContainerRow::of(row, self.snapshot(row.session))).collect();
        let answer = WhyContainer::of(&found, rows, self.forgotten(), process_peak_rss_bytes());
        if self.is_written(&answer)? {
            return Ok(());
        }
        self.output.line(format!(
            "container {}: {}, {} in {}, {}",
            answer.id,
            answer.kind,
            text::bytes(answer.container_size),
            text::count(answer.regions, "region"),
            state_line(found.state),
        ))?;
        if !answer.snapshots.is_empty() {
            let shows_hosts = shows_hosts(answer.snapshots.iter().map(|row| &row.snapshot));
            self.output.line(format!("{}  {:>10}  {:>12}", header("Snapshot"), "Only it", "Uncompressed"))?;
            for row in &answer.snapshots {
                let only = format!("  {:>10}  {:>12}", row.only.chunks, text::bytes(row.only.uncompressed_size));
                self.row(&row.snapshot, &row.held, &only, shows_hosts)?;
            }
        }
        self.output.line("")?;
        self.output.line(header("Held by"))?;
        self.output.line(cells("snapshots", &answer.held))?;
        self.output.line(cells("of these, copied elsewhere", &answer.copied))?;
        self.output.line(cells("no snapshot", &answer.unneeded))?;
        self.related("Its regions have bases in", &answer.bases, answer.bases_count)?;
        self.related("It has bases of regions in", &answer.dependents, answer.dependents_count)?;
        let unused = unused_line(&found);
        if answer.if_forgotten.is_some() || unused.is_some() {
            self.output.line("")?;
        }
        if let Some(forgotten) = &answer.if_forgotten {
            self.if_forgotten(&forgotten.freed, &forgotten.left)?;
        }
        unused.map_or(Ok(()), |line| Ok(self.output.line(line)?))
    }

    /// Prints containers with the regions that are compressed against each other.
    fn related(&self, title: &str, rows: &[RelatedRow], count: u64) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        self.output.line("")?;
        let titles = ["Regions", "Uncompressed", "Stored", "Container"];
        self.output
            .line(format!("{title:<41}  {:>8}  {:>12}  {:>10}  {:>10}", titles[0], titles[1], titles[2], titles[3]))?;
        for row in rows.iter().take(RELATED_SHOWN) {
            let size = row.container_size.map_or_else(|| "missing".to_owned(), text::bytes);
            let (plain, stored) = (text::bytes(row.uncompressed_size), text::bytes(row.size));
            let line = format!("{:<41}  {:>8}  {plain:>12}  {stored:>10}  {size:>10}", row.id, row.regions);
            self.output.line(line)?;
        }
        match count - rows.len().min(RELATED_SHOWN) as u64 {
            0 => Ok(()),
            more => Ok(self.output.line(format!("and {}", text::count(more, "more container")))?),
        }
    }

    fn quarantined(&self, container: &QuarantinedContainer) -> Result<()> {
        if self.is_written(&WhyQuarantined::of(container))? {
            return Ok(());
        }
        self.output.line(format!(
            "container {}: {}, set aside as damaged: no snapshot is read from it; `onefold repair containers --salvage` brings back \
             what is whole in it",
            container.name.id,
            text::bytes(container.len)
        ))?;
        Ok(())
    }

    fn chunk(&self, prefix: &ChunkPrefix, typed: &str) -> Result<()> {
        let mut found = find_chunk(self.store, &self.request, prefix).map_err(|error| match error {
            Error::MissingChunk { .. } => {
                anyhow::anyhow!("`{typed}`: no container's id begins like that, and no chunk of a readable container")
            }
            error => anyhow::Error::from(error).context(format!("chunk `{typed}`")),
        })?;
        why_chunk(self.store, &self.request, &mut found)?;
        let rows = found.snapshots.iter().map(|row| ChunkRow::of(row, self.snapshot(row.session))).collect();
        let answer = WhyChunk::of(&found, rows, self.forgotten(), process_peak_rss_bytes());
        if self.is_written(&answer)? {
            return Ok(());
        }
        self.print_copies(&found, &answer)?;
        let shows_hosts = shows_hosts(answer.snapshots.iter().map(|row| &row.snapshot));
        for (row, in_snapshot) in answer.snapshots.iter().zip(&found.snapshots) {
            let host = if shows_hosts { format!("  {}", row.snapshot.hostname) } else { String::new() };
            let host = self.output.printable(host.as_bytes());
            let snapshot = format!("{}  {}", row.snapshot.short_id, row.snapshot.local_time);
            self.output.line([snapshot.as_bytes(), &host].concat())?;
            for path in &in_snapshot.paths {
                self.output.line([b"    ", self.output.printable(path).as_slice()].concat())?;
            }
            if in_snapshot.has_more {
                self.output.line("    and more")?;
            }
        }
        let holders = text::count(answer.holders, "snapshot");
        self.output.line(match &answer.if_forgotten {
            _ if answer.holders == 0 => "no snapshot holds it".to_owned(),
            None => format!("{holders} {} it", holds(answer.holders)),
            Some(forgotten) if forgotten.freed => format!("forgetting {} would free it", self.forgotten_count()),
            Some(forgotten) => format!(
                "forgetting {} would not free it: {} of {holders} would hold it still",
                self.forgotten_count(),
                forgotten.holders,
            ),
        })?;
        Ok(())
    }

    fn print_copies(&self, found: &ChunkHolders, answer: &WhyChunk) -> Result<()> {
        let len = found.copies.first().map_or(0, |copy| copy.len);
        self.output.line(format!("chunk {}: {}, {}", answer.id, answer.kind, text::bytes(len.into())))?;
        for copy in &found.copies {
            let condemned = if copy.is_condemned { ", which a prune has condemned" } else { "" };
            let stored = text::bytes(copy.stored_len.into());
            self.output.line(format!("    {stored} of container {}{condemned}", copy.container))?;
        }
        let more = found.copies_count - found.copies.len() as u64;
        if 0 < more {
            self.output.line(format!("    and {more} more copies"))?;
        }
        Ok(())
    }

    /// Prints what a snapshot holds, and something behind it.
    fn row(&self, snapshot: &SnapshotFields, held: &HeldObject, more: &str, shows_hosts: bool) -> Result<()> {
        let mut line = cells(&format!("{}  {}", snapshot.short_id, snapshot.local_time), held).into_bytes();
        line.extend_from_slice(more.as_bytes());
        if shows_hosts {
            line.extend_from_slice(b"  ");
            line.extend(self.output.printable(snapshot.hostname.as_bytes()));
        }
        Ok(self.output.line(line.trim_ascii_end())?)
    }

    fn forgotten_count(&self) -> String {
        text::count(self.request.forgotten.map_or(0, |forgotten| forgotten.len() as u64), "snapshot")
    }

    fn if_forgotten(&self, freed: &HeldObject, left: &HeldObject) -> Result<()> {
        let count = self.forgotten_count();
        self.output.line(format!("forgetting {count} would free {} of it", chunks(freed)))?;
        Ok(self.output.line(format!("other snapshots would hold {}", chunks(left)))?)
    }
}

/// Returns true if snapshots are of several hosts.
fn shows_hosts<'a>(mut snapshots: impl Iterator<Item = &'a SnapshotFields>) -> bool {
    let first = snapshots.next().map(|snapshot| &snapshot.hostname);
    snapshots.any(|snapshot| Some(&snapshot.hostname) != first)
}

/// Returns the titles of a table whose first column has this one.
fn header(title: &str) -> String {
    format!("{title:>32}  {:>10}  {:>12}  {:>12}", "Chunks", "Uncompressed", "Stored")
}

fn cells(title: &str, held: &HeldObject) -> String {
    let (plain, stored) = (text::bytes(held.uncompressed_size), text::bytes(held.size));
    format!("{title:>32}  {:>10}  {plain:>12}  {stored:>12}", held.chunks)
}

fn chunks(held: &HeldObject) -> String {
    let (plain, stored) = (text::bytes(held.uncompressed_size), text::bytes(held.size));
    format!("{} ({plain} before compression, {stored} stored)", text::count(held.chunks, "chunk"))
}

fn holds(count: u64) -> &'static str {
    if count == 1 { "holds" } else { "hold" }
}

fn state_line(state: ContainerState) -> String {
    match state {
        ContainerState::Live => "live".to_owned(),
        ContainerState::Unended => "of a session that has not ended, so that no prune touches it".to_owned(),
        ContainerState::Condemned(number) => format!("condemned by prune {number}, which has not decided"),
        ContainerState::Decided(number) => format!("to be deleted: prune {number} has decided"),
    }
}

/// Returns what a prune would do with a container that no snapshot needs.
fn unused_line(found: &ContainerHolders) -> Option<String> {
    if !found.is_unused() || found.state != ContainerState::Live {
        return None;
    }
    let unused = match found.freed {
        None => "no snapshot holds a chunk of it",
        Some(_) => "then no snapshot would hold a chunk of it",
    };
    if !found.is_only_base() {
        return Some(format!("{unused}, and a prune would remove it"));
    }
    let dependents = text::count(found.dependents.count, "container");
    let (have, these) = if found.dependents.count == 1 { ("has", "this one") } else { ("have", "these") };
    Some(format!(
        "{unused}, but {dependents} {have} bases in it: a prune would keep it for {these}, remove it with {these}, or compress {these} \
         without it if that frees more"
    ))
}
