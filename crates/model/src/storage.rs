//! Users who forget snapshots, damage, and the power cut.

use crate::collector;
use crate::set::Set;
use crate::state::{BEGIN, CONDEMN, CollectorStep, DONE, FINAL, Reader, State, WriterStep};
use crate::step::{Actor, Detail, Step, Successors};
use crate::world::{Feature, Omission, Sight, Sights};
use crate::writer;

/// Adds forgetting and the power cut.
pub(crate) fn steps(successors: &mut Successors<'_>, state: &State) {
    forget(successors, state);
    if successors.world.allows(Feature::PowerCut) && !state.was_cut {
        cut(successors, state);
    }
    if successors.world.allows(Feature::Damage) && !state.was_damaged {
        damage(successors, state);
    }
}

/// A container loses its contents while a deletion is pending. What roots reach is whole elsewhere, and no writer has looked for
/// chunks yet: otherwise the damage alone is the loss.
fn damage(successors: &mut Successors<'_>, state: &State) {
    let is_pending = state.collections.iter().any(|one| one.has(FINAL) && !one.has(DONE));
    let has_looked =
        |step| !matches!(step, WriterStep::Idle | WriterStep::Started | WriterStep::Informed | WriterStep::Finished);
    if !is_pending || state.writers.iter().any(|writer| has_looked(writer.step)) {
        return;
    }
    // A power cut may take back a forget that is not durable.
    let sessions = &state.sessions;
    let roots = sessions.committed.minus(sessions.forgotten.minus(sessions.forget_unsynced));
    let reached = sessions.reached_from(roots);
    for container in state.containers.visible.members() {
        let mut next = *state;
        next.was_damaged = true;
        next.containers.holders = next.containers.holders.map(|holders| holders.without(container));
        if next.containers.holders != state.containers.holders
            && reached.minus(next.containers.chunks_in(next.containers.visible)).is_empty()
        {
            successors.push(Step::new(Actor::Disk, "damages", Detail::Containers(Set::one(container))), next);
        }
    }
}

/// `forget` links an object and syncs it. The process may stop between the two.
fn forget(successors: &mut Successors<'_>, state: &State) {
    let forgettable = successors.world.forgettable.and(state.sessions.committed);
    let cuts = successors.world.allows(Feature::PowerCut) && !state.was_cut;
    for snapshot in forgettable.members() {
        let mut next = *state;
        let sessions = &mut next.sessions;
        let text = if !sessions.forgotten.has(snapshot) {
            sessions.forgotten = sessions.forgotten.with(snapshot);
            if cuts {
                sessions.forget_unsynced = sessions.forget_unsynced.with(snapshot);
            }
            "forgets snapshot"
        } else if sessions.forget_unsynced.has(snapshot) {
            sessions.forget_unsynced = sessions.forget_unsynced.without(snapshot);
            "has forgotten durably snapshot"
        } else if successors.world.omits(Omission::ForgetRemoved) {
            sessions.forgotten = sessions.forgotten.without(snapshot);
            "takes the forget back of snapshot"
        } else {
            continue;
        };
        successors.push(Step::new(Actor::User, text, Detail::Session(snapshot)), next);
    }
}

/// A change that a power cut may take back, independently of all others.
#[derive(Clone, Copy)]
enum Volatile {
    Container(usize),
    Deletion(usize),
    Commit(usize),
    Fence(usize),
    Forget(usize),
    Name(usize, u8),
}

/// All processes end, and any set of changes that are not durable is taken back. What is left is durable.
fn cut(successors: &mut Successors<'_>, state: &State) {
    let mut after = *state;
    after.was_cut = true;
    if !successors.world.allows(Feature::OthersOutliveCut) {
        after.reader = Reader::default();
    }
    let world = *successors.world;
    let outlive = world.allows(Feature::OthersOutliveCut);
    for one in after.writers.iter_mut().take(world.writers) {
        let has_volatile = matches!(one.step, WriterStep::Stored | WriterStep::Linked);
        if one.step != WriterStep::Idle && (has_volatile || !outlive) {
            *one = writer::after(*one, world.attempts);
        }
    }
    for one in after.collectors.iter_mut().take(world.collectors) {
        let has_volatile = matches!(
            one.step,
            CollectorStep::Copied
                | CollectorStep::Condemning
                | CollectorStep::Publishing
                | CollectorStep::Rescuing
                | CollectorStep::Deleted
        );
        if one.step != CollectorStep::Idle && (has_volatile || !outlive) {
            *one = collector::after(*one, world.rounds);
        }
    }
    after.containers.unsynced = Set::EMPTY;
    after.containers.removed = Set::EMPTY;
    after.sessions.commit_unsynced = Set::EMPTY;
    after.sessions.fence_unsynced = Set::EMPTY;
    after.sessions.forget_unsynced = Set::EMPTY;
    for collection in &mut after.collections {
        collection.unsynced = 0;
    }
    let volatile = volatile(state);
    for taken in Set::first(volatile.len()).subsets() {
        let mut next = after;
        let mut sights = Sights::NONE;
        for change in taken.members() {
            sights = sights.or(take_back(&mut next, volatile[change]));
        }
        // The containers that the cut brought back hold what they held.
        next.containers.holders = state.containers.holders;
        successors.push(
            Step::new(Actor::Power, "takes back changes, of", Detail::Collection(volatile.len())).showing(sights),
            next,
        );
    }
}

fn volatile(state: &State) -> Vec<Volatile> {
    let mut all = Vec::new();
    all.extend(state.containers.unsynced.members().map(Volatile::Container));
    all.extend(state.containers.removed.members().map(Volatile::Deletion));
    all.extend(state.sessions.commit_unsynced.members().map(Volatile::Commit));
    all.extend(state.sessions.fence_unsynced.members().map(Volatile::Fence));
    all.extend(state.sessions.forget_unsynced.members().map(Volatile::Forget));
    for (number, collection) in state.collections.iter().enumerate() {
        let names = [BEGIN, CONDEMN, FINAL, DONE].into_iter().filter(|name| collection.unsynced & name != 0);
        all.extend(names.map(|name| Volatile::Name(number, name)));
    }
    assert!(all.len() <= 15, "too many changes are not durable for the bits of a set");
    all
}

fn take_back(state: &mut State, change: Volatile) -> Sights {
    match change {
        Volatile::Container(container) => {
            state.containers.visible = state.containers.visible.without(container);
            Sights::one(Sight::ContainerLost)
        }
        Volatile::Deletion(container) => {
            state.containers.visible = state.containers.visible.with(container);
            Sights::one(Sight::DeletionLost)
        }
        Volatile::Commit(session) => {
            let sessions = &mut state.sessions;
            sessions.committed = sessions.committed.without(session);
            sessions.open = sessions.open.with(session);
            sessions.refs = sessions.refs.map(|refs| refs.without(session));
            Sights::when(!sessions.acknowledged.has(session), Sight::CommitLost)
        }
        Volatile::Fence(session) => {
            state.sessions.ended = state.sessions.ended.without(session);
            state.sessions.open = state.sessions.open.with(session);
            Sights::one(Sight::FenceLost)
        }
        Volatile::Forget(snapshot) => {
            state.sessions.forgotten = state.sessions.forgotten.without(snapshot);
            Sights::one(Sight::ForgetLost)
        }
        Volatile::Name(number, name) => {
            let collection = &mut state.collections[number];
            collection.names &= !name;
            if name == CONDEMN {
                (collection.condemned, collection.marked) = (Set::EMPTY, Set::EMPTY);
            } else if name == FINAL {
                collection.last = Set::EMPTY;
            }
            Sights::when(name == FINAL, Sight::FinalLost)
        }
    }
}
