//! `why`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Result, bail, ensure};
use onefold_engine::Error;
use onefold_engine::collect::ledger::Held;
use onefold_engine::collect::why::{
    ChunkHolders, ChunkPrefix, ContainerHolders, ContainerState, RelatedContainer, WhyRequest, find_chunk, why_chunk,
    why_container, why_path,
};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::container_set::Containers;
use onefold_engine::store::{QuarantinedContainer, Store};
use onefold_engine::types::{ContainerId, SessionId};

use crate::args::inspect::WhyArgs;
use crate::commands::repair_containers::parse_container;
use crate::interrupt::Interrupt;
use crate::json::why::{self, Asked, kind_of_chunk, kind_of_container};
use crate::json::{Object, short_id};
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
    fn snapshot(&self, session: SessionId) -> &Snapshot {
        self.by_session.get(&session).expect("answers list snapshots that were asked for")
    }

    /// Writes the answer for programs. Returns false if the answer is for people.
    fn is_written(&self, answer: impl FnOnce(Asked<'_>) -> Object) -> Result<bool> {
        if self.output.json {
            let forgotten: Vec<SessionId> = self.request.forgotten.into_iter().flatten().copied().collect();
            let snapshot = |session| why::snapshot(session, self.snapshot(session));
            self.output.message(&answer(Asked { snapshot: &snapshot, forgotten: &forgotten }))?;
        }
        Ok(self.output.json)
    }

    fn path(&self, path: &[u8]) -> Result<()> {
        let found = why_path(self.store, &self.request, path)?;
        let shown = String::from_utf8_lossy(&self.output.printable(path)).into_owned();
        ensure!(!found.snapshots.is_empty(), "{shown}: in none of the snapshots");
        if self.is_written(|asked| why::path(path, &found, asked))? {
            return Ok(());
        }
        let shows_hosts = self.shows_hosts(found.snapshots.iter().map(|row| row.session));
        self.output.line(format!("{}  Contents", header("Snapshot")))?;
        for row in &found.snapshots {
            let contents = match row.is_unchanged {
                None => "first",
                Some(true) => "same",
                Some(false) => "changed",
            };
            self.row(row.session, &row.held, &format!("  {contents:<8}"), shows_hosts)?;
        }
        self.output.line("")?;
        self.output.line(header("Held by"))?;
        self.output.line(cells("this path alone", &found.only_path))?;
        self.output.line(cells("also other paths of these", &found.only.without(&found.only_path)))?;
        self.output.line(cells("also other snapshots", &found.shared))?;
        self.output.line(cells("all of it", &found.all))?;
        self.output.line("")?;
        match &found.freed {
            None => {
                let count = text::count(found.snapshots.len() as u64, "snapshot");
                self.output.line(format!("forgetting {count} with it would free {} of it", chunks(&found.only)))?;
                self.output.line(format!("leaving it out of them would free {}", chunks(&found.only_path)))?;
            }
            Some(freed) => self.if_forgotten(freed, &found.all.without(freed))?,
        }
        Ok(())
    }

    fn container(&self, id: ContainerId) -> Result<()> {
        let found = why_container(self.store, &self.request, id)?;
        if self.is_written(|asked| why::container(&found, asked))? {
            return Ok(());
        }
        self.output.line(format!(
            "container {}: {}, {} in {}, {}",
            found.id,
            kind_of_container(found.kind),
            text::bytes(found.stored_bytes),
            text::count(found.regions, "region"),
            state_line(found.state),
        ))?;
        if !found.snapshots.is_empty() {
            let shows_hosts = self.shows_hosts(found.snapshots.iter().map(|row| row.session));
            self.output.line(format!("{}  {:>10}  {:>12}", header("Snapshot"), "Only it", "Uncompressed"))?;
            for row in &found.snapshots {
                let only = format!("  {:>10}  {:>12}", row.only.chunks, text::bytes(row.only.plain_bytes));
                self.row(row.session, &row.held, &only, shows_hosts)?;
            }
        }
        self.output.line("")?;
        self.output.line(header("Held by"))?;
        self.output.line(cells("snapshots", &found.held))?;
        self.output.line(cells("of these, copied elsewhere", &found.copied))?;
        self.output.line(cells("no snapshot", &found.unneeded))?;
        self.related("Its regions have bases in", &found.bases.listed, found.bases.count)?;
        self.related("It has bases of regions in", &found.dependents.listed, found.dependents.count)?;
        let unused = unused_line(&found);
        if found.freed.is_some() || unused.is_some() {
            self.output.line("")?;
        }
        if let Some(freed) = &found.freed {
            self.if_forgotten(freed, &found.held.without(freed))?;
        }
        unused.map_or(Ok(()), |line| Ok(self.output.line(line)?))
    }

    /// Prints containers with the regions that are compressed against each other.
    fn related(&self, title: &str, rows: &[RelatedContainer], count: u64) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        self.output.line("")?;
        let titles = ["Regions", "Uncompressed", "Stored", "Container"];
        self.output
            .line(format!("{title:<41}  {:>8}  {:>12}  {:>10}  {:>10}", titles[0], titles[1], titles[2], titles[3]))?;
        for row in rows.iter().take(RELATED_SHOWN) {
            let size = row.stored_bytes.map_or_else(|| "missing".to_owned(), text::bytes);
            let (plain, stored) = (text::bytes(row.regions.plain_bytes), text::bytes(row.regions.stored_bytes));
            let line =
                format!("{:<41}  {:>8}  {plain:>12}  {stored:>10}  {size:>10}", row.id.to_string(), row.regions.count);
            self.output.line(line)?;
        }
        match count - rows.len().min(RELATED_SHOWN) as u64 {
            0 => Ok(()),
            more => Ok(self.output.line(format!("and {}", text::count(more, "more container")))?),
        }
    }

    fn quarantined(&self, container: &QuarantinedContainer) -> Result<()> {
        if self.is_written(|_| why::quarantined(container))? {
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
        if self.is_written(|asked| why::chunk(&found, asked))? {
            return Ok(());
        }
        self.print_copies(&found)?;
        let shows_hosts = self.shows_hosts(found.snapshots.iter().map(|row| row.session));
        for row in &found.snapshots {
            let of = self.snapshot(row.session);
            let host = if shows_hosts { format!("  {}", of.hostname) } else { String::new() };
            let host = self.output.printable(host.as_bytes());
            let snapshot = format!("{}  {}", short_id(row.session), text::local_time(of.time));
            self.output.line([snapshot.as_bytes(), &host].concat())?;
            for path in &row.paths {
                self.output.line([b"    ", self.output.printable(path).as_slice()].concat())?;
            }
            if row.has_more {
                self.output.line("    and more")?;
            }
        }
        let holders = text::count(found.holders, "snapshot");
        self.output.line(match found.kept_holders {
            _ if found.holders == 0 => "no snapshot holds it".to_owned(),
            None => format!("{holders} {} it", holds(found.holders)),
            Some(0) => format!("forgetting {} would free it", self.forgotten_count()),
            Some(kept) => format!(
                "forgetting {} would not free it: {kept} of {holders} would hold it still",
                self.forgotten_count(),
            ),
        })?;
        Ok(())
    }

    fn print_copies(&self, found: &ChunkHolders) -> Result<()> {
        let len = found.copies.first().map_or(0, |copy| copy.len);
        self.output.line(format!(
            "chunk {}: {}, {}",
            found.fingerprint,
            kind_of_chunk(found.kind),
            text::bytes(len.into())
        ))?;
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
    fn row(&self, session: SessionId, held: &Held, more: &str, shows_hosts: bool) -> Result<()> {
        let snapshot = self.snapshot(session);
        let mut line = cells(&format!("{}  {}", short_id(session), text::local_time(snapshot.time)), held).into_bytes();
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

    /// Returns true if snapshots are of several hosts.
    fn shows_hosts(&self, sessions: impl Iterator<Item = SessionId>) -> bool {
        let mut hosts = sessions.map(|session| &self.snapshot(session).hostname);
        let first = hosts.next();
        hosts.any(|host| Some(host) != first)
    }

    fn if_forgotten(&self, freed: &Held, left: &Held) -> Result<()> {
        let count = self.forgotten_count();
        self.output.line(format!("forgetting {count} would free {} of it", chunks(freed)))?;
        Ok(self.output.line(format!("other snapshots would hold {}", chunks(left)))?)
    }
}

/// Returns the titles of a table whose first column has this one.
fn header(title: &str) -> String {
    format!("{title:>32}  {:>10}  {:>12}  {:>12}", "Chunks", "Uncompressed", "Stored")
}

fn cells(title: &str, held: &Held) -> String {
    let (plain, stored) = (text::bytes(held.plain_bytes), text::bytes(held.stored_bytes));
    format!("{title:>32}  {:>10}  {plain:>12}  {stored:>12}", held.chunks)
}

fn chunks(held: &Held) -> String {
    let (plain, stored) = (text::bytes(held.plain_bytes), text::bytes(held.stored_bytes));
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
