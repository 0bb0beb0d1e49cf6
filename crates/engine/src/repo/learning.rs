//! Bringing an index up to date: it learns the containers that it does not know from their directories.
//!
//! Nothing new refers to a container whose chunks cannot be read: one that is damaged or cut, or that depends on one that is, or that is lost.

use std::collections::BTreeSet;
use std::path::Path;

use crate::bitmap::Bitmap;
use crate::container::{ContainerReader, DirectoryChunk};
use crate::error::{Error, Result};
use crate::identify::{Identifier, Index, Unit};
use crate::monitor::Monitor;
use crate::object::names::ContainerName;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::store::session::PUTS_MAX;
use crate::store::{Session, Store};
use crate::types::{Chunk, ContainerId};

/// Makes the index know every live container, reading the directories of those it misses; returns those that may be
/// referred to. A container whose directory cannot be read, or whose file has another length than it should have, is reported
/// and is not referred to by anything new, nor is one that depends on it. Their chunks are stored again where they turn up.
pub(crate) fn bring_up_to_date(
    store: &Store,
    index: &mut Index,
    session: &Session,
    monitor: &dyn Monitor,
) -> Result<Containers> {
    let live = &session.live;
    let missing = index.attach_numbered(live.iter().map(|(number, id)| (number.0, id)));
    let mut unreadable = BTreeSet::new();
    if let Err(error) = learn(store, index, (session, &missing), &mut unreadable, monitor) {
        if !unreadable.is_empty() || !index.vanished().is_empty() {
            // The next session must not rely on containers whose bases this one has not looked for.
            forget_all(index, live);
        }
        return Err(error);
    }
    if unreadable.is_empty() {
        return Ok(live.clone());
    }
    index.forget(&unreadable.iter().copied().collect::<Vec<_>>())?;
    Ok(live.retain(|_, id| !unreadable.contains(&id)))
}

/// Lets the index forget containers after an error, which counts more than one of forgetting: that changes memory alone.
fn forget_all(index: &mut Index, containers: &Containers) {
    let _in_memory = index.forget(&containers.iter().map(|(_, id)| id).collect::<Vec<_>>());
}

/// Makes the index know the `missing` ones of the live containers. Adds those that cannot be relied upon to `unreadable`, and reports them.
fn learn(
    store: &Store,
    index: &mut Index,
    (session, missing): (&Session, &Bitmap),
    unreadable: &mut BTreeSet<ContainerId>,
    monitor: &dyn Monitor,
) -> Result<()> {
    let live = &session.live;
    unreadable.extend(find_cut(store, index, session, monitor)?);
    if !unreadable.is_empty() || has_lost_containers(store, index, session)? {
        find_dependents((store, session), live, unreadable, monitor)?;
        index.forget(&unreadable.iter().copied().collect::<Vec<_>>())?;
    }
    index.settle_vanished();
    let found = unreadable.len();
    let mut report = |name: &ContainerName, error: &Error| report_unreadable((store, session), name, error, monitor);
    unreadable.extend(make_durable(index, session, monitor, &mut report)?);
    // Other hosts recorded these when their bases were there. Before this one looks for them, nothing of the index may become durable.
    let asked = live.retain(|number, id| missing.contains(number.0) && !unreadable.contains(&id));
    let shared = take_shared(&asked, index).and_then(|shared| {
        let taken = asked.retain(|number, _| shared.contains(number.0));
        find_dependents((store, session), &taken, unreadable, monitor).map(|()| shared)
    });
    let shared = shared.inspect_err(|_| forget_all(index, &asked))?;
    let to_read = asked.retain(|number, id| !shared.contains(number.0) && !unreadable.contains(&id));
    record_directories(store, index, (&to_read, &session.listed), unreadable, (monitor, &mut report))?;
    if found < unreadable.len() { find_dependents((store, session), live, unreadable, monitor) } else { Ok(()) }
}

/// Returns true if containers are gone that the index knew, and that no collection has deleted: nothing that stays depends on what one has.
fn has_lost_containers(store: &Store, index: &Index, session: &Session) -> Result<bool> {
    let mut vanished = index.vanished();
    vanished.retain(|id| !session.listed.contains(*id));
    if vanished.is_empty() || !session.may_have_bases {
        return Ok(false);
    }
    let absent = store.read_absent()?;
    Ok(vanished.iter().any(|id| !absent.containers.contains(*id) && !absent.is_undecided(*id)))
}

/// Adds those of some containers to the unreadable ones that depend on one that is lost or unreadable, and reports them: their chunks cannot
/// be read. Reads all of their directories, unless no region may have bases.
fn find_dependents(
    (store, session): (&Store, &Session),
    among: &Containers,
    unreadable: &mut BTreeSet<ContainerId>,
    monitor: &dyn Monitor,
) -> Result<()> {
    if !session.may_have_bases || among.is_empty() {
        return Ok(());
    }
    let readable = among.retain(|_, id| !unreadable.contains(&id));
    let mut found = Vec::new();
    let mut take = |name: &ContainerName, error: &Error| {
        found.push(name.id);
        report_unreadable((store, session), name, error, monitor)
    };
    store.lacking_among(&readable, &session.listed, unreadable, &mut || go_on(session, monitor), &mut take)?;
    unreadable.extend(found);
    Ok(())
}

/// Shows a sign of life; fails if the session is to end.
fn go_on(session: &Session, monitor: &dyn Monitor) -> Result<()> {
    session.beat();
    if monitor.is_interrupted() { Err(Error::Interrupted) } else { Ok(()) }
}

/// Reports a container that cannot be read. If a collection has fenced the session, that may be for what the collection has deleted: the
/// session begins again.
fn report_unreadable(
    (store, session): (&Store, &Session),
    name: &ContainerName,
    error: &Error,
    monitor: &dyn Monitor,
) -> Result<()> {
    if session.is_fenced() {
        return Err(Error::Fenced { session: session.id });
    }
    monitor.failure(Path::new(&store.display(name)), error);
    Ok(())
}

/// Takes a container that cannot be read, with the reason.
pub(super) type Unreadable<'a> = &'a mut dyn FnMut(&ContainerName, &Error) -> Result<()>;

/// Containers whose directories were read into an index.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// Containers recorded.
    pub(super) containers: u64,
    /// Chunks recorded, those that several containers hold counted in each.
    pub(super) chunks: u64,
}

/// Makes the index know what the directories of durable containers list. Bases of their regions must be in containers that are `listed`
/// and not `unreadable`. Adds the containers that cannot be relied upon to these, and reports them. The index knows a container only
/// after all those of `containers` that it depends on, so that it can be relied upon wherever this ends.
pub(super) fn record_directories(
    store: &Store,
    index: &mut Index,
    (containers, listed): (&Containers, &Containers),
    unreadable: &mut BTreeSet<ContainerId>,
    (monitor, report): (&dyn Monitor, Unreadable<'_>),
) -> Result<Recorded> {
    let interrupted = || if monitor.is_interrupted() { Err(Error::Interrupted) } else { Ok(()) };
    let (mut recorded, mut unrecorded) = (Recorded::default(), Bitmap::default());
    for number in containers.numbers() {
        unrecorded.insert(number.0);
    }
    loop {
        let left = containers.retain(|number, _| unrecorded.contains(number.0));
        let mut waiting = 0;
        for (number, opened) in left.numbers().zip(store.open_containers(&left, left.numbers())) {
            interrupted()?;
            let (name, opened) = opened?;
            let is_there = |id| {
                !unreadable.contains(&id)
                    && listed.find(id).is_some_and(|base: ContainerNumber| !unrecorded.contains(base.0))
            };
            match opened.and_then(|container| is_as_long_as_it_says(store, &name, container)) {
                Ok(container) if container.expect_bases_in(&is_there).is_err() => {
                    waiting += 1;
                    continue;
                }
                Ok(container) => recorded.add(index, &name, &container)?,
                Err(error) => {
                    report(&name, &error)?;
                    unreadable.insert(name.id);
                }
            }
            unrecorded.remove(number.0);
            monitor.advance(0, 1);
        }
        if waiting == 0 || waiting == left.len() {
            break;
        }
    }
    // Containers are left that lack a base, directly or over each other.
    let left = containers.retain(|number, _| unrecorded.contains(number.0));
    let mut found = Vec::new();
    let mut take = |name: &ContainerName, error: &Error| {
        found.push(name.id);
        report(name, error)
    };
    store.lacking_among(&left, listed, unreadable, &mut || interrupted(), &mut take)?;
    unreadable.extend(found);
    Ok(recorded)
}

impl Recorded {
    fn add(&mut self, index: &mut Index, name: &ContainerName, container: &ContainerReader) -> Result<()> {
        let chunks: Vec<Chunk> = container.directory.chunks.iter().filter_map(DirectoryChunk::chunk).collect();
        index.record(Unit { container: name.id, len: container.stored_len(), chunks: &chunks })?;
        self.containers += 1;
        self.chunks += chunks.len() as u64;
        Ok(())
    }
}

/// Containers that a shared store is asked about in one call.
const SHARED_PER_CALL: usize = 2_048;

/// Takes those of some containers that other hosts have recorded in a store that this index shares with them. Returns their numbers.
fn take_shared(asked: &Containers, index: &mut Index) -> Result<Bitmap> {
    let mut shared = Bitmap::default();
    if !index.is_shared() {
        return Ok(shared);
    }
    let mut numbers = asked.numbers().peekable();
    while numbers.peek().is_some() {
        let (mut of_call, mut containers) = (Vec::new(), Vec::new());
        for number in numbers.by_ref().take(SHARED_PER_CALL) {
            let (name, len) = asked.sized(number)?;
            of_call.push(number);
            containers.push((name.id, len));
        }
        let taken = index.take_shared(&containers)?;
        of_call.iter().zip(taken).filter(|(_, taken)| *taken).for_each(|(number, _)| shared.insert(number.0));
    }
    Ok(shared)
}

/// Makes the containers durable of sessions that have not ended and that the index does not know: it takes note of a container
/// only once that is durable. Reports and returns those that cannot be read.
fn make_durable(
    index: &Index,
    session: &Session,
    monitor: &dyn Monitor,
    report: Unreadable<'_>,
) -> Result<BTreeSet<ContainerId>> {
    let in_doubt = session.live.retain(|_, id| session.in_doubt.contains(&id.session) && !index.knows(id));
    let mut unreadable = BTreeSet::new();
    if in_doubt.is_empty() {
        return Ok(unreadable);
    }
    monitor.note(&format!("{} containers of interrupted backups are written again", in_doubt.len()));
    let mut names = in_doubt.names();
    loop {
        let batch: Vec<ContainerName> = names.by_ref().take(PUTS_MAX).collect::<Result<_>>()?;
        if batch.is_empty() {
            return Ok(unreadable);
        }
        for (name, error) in session.make_durable(&batch, &|| monitor.is_interrupted())? {
            report(&name, &error)?;
            unreadable.insert(name.id);
        }
    }
}

/// Reports and returns the containers whose files have another length than the index recorded. The index would answer for
/// their chunks without opening them.
fn find_cut(store: &Store, index: &Index, session: &Session, monitor: &dyn Monitor) -> Result<BTreeSet<ContainerId>> {
    let mut cut = BTreeSet::new();
    for number in session.live.numbers() {
        let (name, len) = session.live.sized(number)?;
        let Some(recorded) = index.stored_len(name.id).filter(|recorded| *recorded != len) else { continue };
        let object = store.display(name);
        monitor.failure(Path::new(&object), &wrong_length(&object, len, recorded));
        cut.insert(name.id);
    }
    Ok(cut)
}

/// Refuses a container that ends too early, as an interrupted copy of a repository leaves them: its directory would promise
/// chunks that are not there. What is there still is what a restore may take.
fn is_as_long_as_it_says(store: &Store, name: &ContainerName, container: ContainerReader) -> Result<ContainerReader> {
    let (len, wanted) = (store.container_len(name)?, container.stored_len());
    if len == wanted { Ok(container) } else { Err(wrong_length(&store.display(name), len, wanted)) }
}

fn wrong_length(object: &str, len: u64, wanted: u64) -> Error {
    Error::damaged(object, format!("is {len} bytes long instead of {wanted}"))
}
