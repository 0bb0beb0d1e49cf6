//! The steps of a collection as objects: created once, adopted if another collector was first.

use std::collections::BTreeSet;

use crate::collect::quick::QUICK_MAX;
use crate::error::{Error, Result};
use crate::object::names::{CollectionStep, ContainerKind, ContainerName, ObjectName};
use crate::object::store::Created;
use crate::object::{ObjectType, sealed};
use crate::snapshot::{CollectionEncoder, CollectionItem, SessionKind};
use crate::store::collections::Undecided;
use crate::store::container_ids::ContainerIds;
use crate::store::metadata::Scratch;
use crate::store::{Session, Store};
use crate::types::{ContainerId, SessionId};

/// A collection that a collector goes on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Open {
    /// A collection that this process has begun, or that another one has begun and not condemned anything.
    Begun(u32),
    /// A collection that has condemned containers.
    Condemned(u32),
}

/// Creates a step. Returns false if another collector has created it, which makes that one's the step.
pub(super) fn create(
    store: &Store,
    session: SessionId,
    number: u32,
    which: CollectionStep,
    step: CollectionEncoder,
) -> Result<bool> {
    let identity = (store.config.repository, session, number);
    let bytes = sealed::seal_buffer(
        &store.keys,
        &*store.host,
        ObjectType::Collection.of(store.config.format),
        identity,
        step.finish(),
    )?;
    let created = store.objects.create(session, ObjectName::Collection(number, which), &bytes)?;
    Ok(created == Created::New)
}

/// Creates a step without containers.
pub(super) fn create_empty(store: &Store, session: SessionId, number: u32, step: CollectionStep) -> Result<bool> {
    create(store, session, number, step, CollectionEncoder::new(step))
}

/// Joins the open collection or begins the next one (step C1). At most one collection is open: it has no `final`.
pub(super) fn open(store: &Store, session: SessionId) -> Result<Open> {
    let collections = store.list_collections()?;
    let newest = collections.iter().next_back();
    if let Some((number, steps)) = newest
        && is_open(steps)
    {
        let confirmed: Vec<ObjectName> = steps.iter().map(|step| ObjectName::Collection(*number, *step)).collect();
        store.objects.confirm(&confirmed)?;
        return Ok(if steps.contains(&CollectionStep::Condemn) {
            Open::Condemned(*number)
        } else {
            Open::Begun(*number)
        });
    }
    let number = newest.map_or(0, |(number, _)| *number).checked_add(1);
    let number = number.ok_or_else(|| Error::invalid("the repository has seen more collections than it can count"))?;
    // Another collector may have begun the same one, which is then joined.
    create_empty(store, session, number, CollectionStep::Begin)?;
    Ok(Open::Begun(number))
}

/// Returns the collections whose deletions are pending: they have a `final` and no `done`.
pub(super) fn pending(store: &Store) -> Result<Vec<u32>> {
    let is_pending = |steps: &BTreeSet<CollectionStep>| {
        steps.contains(&CollectionStep::Final) && !steps.contains(&CollectionStep::Done)
    };
    Ok(store.list_collections()?.into_iter().filter(|(_, steps)| is_pending(steps)).map(|(number, _)| number).collect())
}

/// Returns true if a collection has decided nothing yet.
pub(super) fn is_open(steps: &BTreeSet<CollectionStep>) -> bool {
    !steps.contains(&CollectionStep::Final) && !steps.contains(&CollectionStep::Done)
}

/// The containers that a step names.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// All of them.
    pub(super) containers: ContainerIds,
    /// Those that are quarantined instead of deleted.
    pub(super) quarantined: ContainerIds,
}

/// Reads the containers of a step, and makes its name durable before anybody acts on it.
pub(super) fn adopt(store: &Store, number: u32, step: CollectionStep) -> Result<Named> {
    let mut named = Named::default();
    store.read_collection(number, step, &mut |item| {
        match item {
            CollectionItem::Container(id) => named.containers.push(id),
            CollectionItem::Quarantined(id) => named.quarantined.push(id),
            CollectionItem::Marked(_) | CollectionItem::Moved(..) => {}
        }
        Ok(())
    })?;
    named.containers.sort();
    named.quarantined.sort();
    store.objects.confirm(&[ObjectName::Collection(number, step)])?;
    Ok(named)
}

/// Ends the collections whose `final` is damaged, and of whose condemned containers none is left. Returns their numbers, and the
/// damage of the others.
///
/// Such a collection has no other end: nobody may write `done` for a `final` that he has not read, except when nothing is left that it
/// could name. Their deletion is made durable first.
pub(super) fn end_undecided(
    store: &Store,
    session: SessionId,
    scratch: &Scratch,
) -> Result<Vec<std::result::Result<u32, Error>>> {
    let undecided = store.read_absent()?.undecided;
    if undecided.is_empty() {
        return Ok(Vec::new());
    }
    let listed = store.list_containers(scratch)?;
    let end = |Undecided { number, condemned, error }: Undecided| {
        if condemned.iter().any(|id| listed.contains(id)) {
            return Ok(Err(error));
        }
        let sessions: BTreeSet<SessionId> = condemned.iter().map(|id| id.session).collect();
        // To delete what is not there makes earlier deletions durable.
        let any_of = |session| ContainerName {
            id: ContainerId { session, ordinal: 0 },
            kind: ContainerKind::Data,
            checksum: [0; 32],
        };
        let names: Vec<ObjectName> = sessions.into_iter().map(|session| any_of(session).into()).collect();
        store.objects.delete(&names)?;
        let is_ours = create_empty(store, session, number, CollectionStep::Done)?;
        // One that stands there and does not open ends nothing.
        Ok(if is_ours || adopt(store, number, CollectionStep::Done).is_ok() { Ok(number) } else { Err(error) })
    };
    undecided.into_iter().map(end).collect()
}

/// Gives up the open collection: nothing that it has condemned is deleted. Returns its number; `None` if none is open.
pub fn give_up_open(store: &Store, hostname: &str) -> Result<Option<u32>> {
    let collections = store.list_collections()?;
    let Some((number, _)) = collections.iter().next_back().filter(|(_, steps)| is_open(steps)) else {
        // Fails if what a collection has condemned cannot be known: nobody else can give it up either.
        return store.read_absent().map(|_| None);
    };
    let session = Session::create(store, &Scratch::default(), SessionKind::Collection, hostname)?;
    let count = store.count_quick().map(|count| count.unwrap_or(QUICK_MAX));
    let given_up = count.and_then(|count| give_up(store, session.id, *number, count));
    let given_up = given_up.map(|is_ours| is_ours.then_some(*number));
    match given_up {
        Ok(number) => session.end().map(|_| number),
        Err(error) => Err(session.abandon(error)),
    }
}

/// Gives up a collection: a `final` without containers, then `done`. `quick` is the number of quick collections since the last full
/// one. Returns false if it was decided already.
pub(super) fn give_up(store: &Store, session: SessionId, number: u32, quick: u32) -> Result<bool> {
    let mut step = CollectionEncoder::new(CollectionStep::Final);
    step.quick(quick);
    let is_ours = create(store, session, number, CollectionStep::Final, step)?;
    if is_ours {
        create_empty(store, session, number, CollectionStep::Done)?;
    }
    Ok(is_ours)
}
