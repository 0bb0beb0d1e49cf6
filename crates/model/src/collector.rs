//! Collectors: C0 to C10.

use crate::set::Set;
use crate::state::{
    BEGIN, CONDEMN, Collection, Collector, CollectorStep, DONE, FINAL, State, WRITERS_FROM, collector_session,
};
use crate::step::{Actor, Detail, Step, Successors};
use crate::world::{Feature, Omission, Sight, Sights, World};

/// Adds the steps of all collectors.
pub(crate) fn steps(successors: &mut Successors<'_>, state: &State) {
    for number in 0..successors.world.collectors {
        let session = collector_session(number, state.collectors[number].round);
        One { world: *successors.world, number, session, successors }.steps(state);
    }
}

/// One collector.
struct One<'a, 'b> {
    world: World,
    number: usize,
    session: usize,
    successors: &'a mut Successors<'b>,
}

impl One<'_, '_> {
    fn steps(&mut self, state: &State) {
        let me = state.collectors[self.number];
        match me.step {
            CollectorStep::Idle => self.begin_session(state),
            CollectorStep::Started => self.choose_collection(state),
            CollectorStep::Joined => self.mark(state),
            CollectorStep::Marked => self.plan(state),
            CollectorStep::Planned => self.copy(state),
            CollectorStep::Copied => self.sync_copy(state),
            CollectorStep::Ready if self.world.omits(Omission::SessionsListedBeforeCondemn) => {
                self.advance(state, "C7 lists sessions too early", CollectorStep::ListedEarly, |state, me| {
                    me.seen = World::waited_for(state);
                });
            }
            CollectorStep::Ready | CollectorStep::ListedEarly => self.condemn(state),
            CollectorStep::Condemning => {
                self.advance(state, "C6 syncs", CollectorStep::Condemned, |state, me| {
                    state.collections[usize::from(me.number)].sync();
                });
            }
            CollectorStep::Condemned if self.world.omits(Omission::SessionsListedBeforeCondemn) => {
                self.advance(state, "C7 has listed sessions", CollectorStep::Waiting, |_, _| ());
            }
            CollectorStep::Condemned => {
                let syncs = !self.world.omits(Omission::FencesNotSynced);
                self.advance(state, "C7 lists sessions", CollectorStep::Waiting, |state, me| {
                    me.seen = World::waited_for(state);
                    if syncs {
                        state.sessions.fence_unsynced = Set::EMPTY;
                    }
                });
            }
            CollectorStep::Waiting => self.wait(state),
            CollectorStep::Waited => self.list_again(state),
            CollectorStep::Relisted => self.mark_again(state),
            CollectorStep::Resolved => self.publish(state),
            CollectorStep::Publishing => {
                self.advance(state, "C8 syncs", CollectorStep::Deleting, |state, me| {
                    state.collections[usize::from(me.number)].sync();
                });
            }
            CollectorStep::Deleting => self.look_and_delete(state),
            CollectorStep::Rescuing => {
                let session = self.session;
                self.advance(state, "C9 syncs the copies of", CollectorStep::Deleting, |state, _| {
                    state.containers.unsynced = state.containers.unsynced.without(session);
                });
            }
            CollectorStep::Deleted => self.finish(state),
            CollectorStep::Finished => {}
        }
        self.give_up(state);
    }

    fn collection(&self, state: &State) -> Collection {
        state.collections[usize::from(state.collectors[self.number].number)]
    }

    /// Adds a step that changes the collector, and the state as `change` does.
    fn advance(
        &mut self,
        state: &State,
        text: &'static str,
        step: CollectorStep,
        change: impl FnOnce(&mut State, &mut Collector),
    ) {
        let mut next = *state;
        let mut me = Collector { step, ..state.collectors[self.number] };
        change(&mut next, &mut me);
        self.push(text, Detail::Collection(usize::from(me.number)), Sights::NONE, next, me);
    }

    fn push(&mut self, text: &'static str, detail: Detail, sights: Sights, mut next: State, me: Collector) {
        next.collectors[self.number] = me;
        self.successors.push(Step::new(Actor::Collector(self.number), text, detail).showing(sights), next);
    }

    /// C0
    fn begin_session(&mut self, state: &State) {
        if state.collections.iter().take(self.world.collections).all(|one| one.has(DONE)) {
            return;
        }
        let session = self.session;
        self.advance(state, "C0 links session", CollectorStep::Started, |state, _| {
            state.sessions.open = state.sessions.open.with(session);
        });
    }

    /// C1. A collector joins a collection that is open, finishes one that has a `final`, or begins the next one.
    fn choose_collection(&mut self, state: &State) {
        let newest = state.collections.iter().rposition(|one| one.has(BEGIN));
        for (number, collection) in state.collections.iter().enumerate() {
            if !collection.has(BEGIN) || collection.has(DONE) {
                continue;
            }
            let mut next = *state;
            // Whoever relies on an object that somebody else created syncs it first.
            if !self.world.omits(Omission::JoinerTrustsUnsyncedNames) {
                next.collections[number].sync();
            }
            let step = self.step_to_join(*collection);
            let chosen = if collection.has(FINAL) { collection.last } else { Set::EMPTY };
            let me = Collector { step, number: small(number), chosen, ..state.collectors[self.number] };
            let sights = Sights::when(!collection.has(FINAL), Sight::Joined)
                .or(Sights::when(state.was_cut, Sight::ResumedAfterCut));
            self.push("C1 goes on with collection", Detail::Collection(number), sights, next, me);
        }
        let number = newest.map_or(0, |newest| newest + 1);
        let may_begin = number < self.world.collections
            && (self.world.omits(Omission::TwoOpenCollections)
                || newest.is_none_or(|newest| !state.collections[newest].is_open()));
        if may_begin {
            let mut next = *state;
            if let Some(newest) = newest
                && !self.world.omits(Omission::JoinerTrustsUnsyncedNames)
            {
                next.collections[newest].sync();
            }
            next.collections[number] = Collection { names: BEGIN, ..Collection::default() };
            let me = Collector { step: CollectorStep::Joined, number: small(number), ..state.collectors[self.number] };
            let is_deleting = newest.is_some_and(|newest| !state.collections[newest].has(DONE));
            let sights = Sights::when(is_deleting, Sight::BegunDuringDeletion);
            self.push("C1 begins collection", Detail::Collection(number), sights, next, me);
        }
    }

    fn step_to_join(&self, collection: Collection) -> CollectorStep {
        if collection.has(FINAL) && self.world.omits(Omission::DoneWithoutDeleting) {
            CollectorStep::Deleted
        } else if collection.has(FINAL) {
            CollectorStep::Deleting
        } else if collection.has(CONDEMN) {
            CollectorStep::Condemned
        } else {
            CollectorStep::Joined
        }
    }

    /// C2
    fn mark(&mut self, state: &State) {
        self.advance(state, "C2 reads commits/ and forget/, marks", CollectorStep::Marked, |state, me| {
            me.marked = state.sessions.roots();
            me.seen = state.sessions.committed.or(state.sessions.ended);
        });
    }

    /// C3 to C5: every largest set of candidates that leaves a copy of all marked chunks, with and without copying one
    /// set of chunks forward.
    fn plan(&mut self, state: &State) {
        let me = state.collectors[self.number];
        let mut next = *state;
        if !self.world.omits(Omission::PlanTrustsUnsyncedNames) {
            next.containers.sync();
        }
        let number = usize::from(me.number);
        let blind = self.world.omits(Omission::BlindToOtherFinals);
        let going = if blind { Set::EMPTY } else { state.going(number) };
        let usable = state.containers.visible.minus(going);
        let all_sessions = self.world.allows(Feature::UnfinishedCandidates);
        let candidates = if all_sessions { usable } else { usable.and(me.seen) };
        let needed = state.sessions.reached_from(me.marked).and(state.containers.chunks_in(usable));
        let may_copy = self.world.allows(Feature::Copying) && !state.containers.visible.has(self.session);
        let copies = if may_copy { needed } else { Set::EMPTY };
        for copy in copies.subsets() {
            let spares = |condemned: Set| {
                let kept = state.containers.chunks_in(usable.minus(condemned)).or(copy);
                !condemned.is_empty() && needed.minus(kept).is_empty()
            };
            let allowed: Vec<Set> = candidates.subsets().filter(|&set| spares(set)).collect();
            for &condemned in &allowed {
                // A chunk that keeps another copy anyway is not copied.
                let kept = state.containers.chunks_in(usable.minus(condemned));
                let is_larger = |other: &Set| *other != condemned && condemned.minus(*other).is_empty();
                if !kept.and(copy).is_empty() || !self.world.allows(Feature::AnyPlan) && allowed.iter().any(is_larger) {
                    continue;
                }
                let step = if copy.is_empty() { CollectorStep::Ready } else { CollectorStep::Planned };
                let me = Collector { step, copy, chosen: condemned, seen: Set::EMPTY, ..me };
                let detail = Detail::CondemnedAndCopied(condemned, copy);
                self.push("C3 to C5 plans to condemn", detail, Sights::NONE, next, me);
            }
        }
        if self.collection(state).names & (CONDEMN | FINAL) != 0 {
            self.condemn(state);
        }
    }

    /// C5. Where another collector has condemned meanwhile, the sources may be gone: its `condemn` is adopted.
    fn copy(&mut self, state: &State) {
        let me = state.collectors[self.number];
        if self.collection(state).names & (CONDEMN | FINAL) != 0 {
            return self.condemn(state);
        }
        let done = Collector { copy: Set::EMPTY, ..me };
        let skips_sync = self.world.omits(Omission::CopiesNotSynced);
        let step = if skips_sync { CollectorStep::Ready } else { CollectorStep::Copied };
        let mut next = *state;
        // Chunks that were damaged after the plan are not copied.
        let copy = me.copy.and(state.containers.chunks_in(state.containers.visible));
        next.containers.link(self.session, copy);
        self.push("C5 stores copies", Detail::Chunks(copy), Sights::NONE, next, Collector { step, ..done });
    }

    fn sync_copy(&mut self, state: &State) {
        let session = self.session;
        self.advance(state, "C5 syncs the copies of", CollectorStep::Ready, |state, _| {
            state.containers.unsynced = state.containers.unsynced.without(session);
        });
    }

    /// C6: the name is free, or somebody else's `condemn` is adopted.
    fn condemn(&mut self, state: &State) {
        let world = self.world;
        let (marked, chosen) = (state.collectors[self.number].marked, state.collectors[self.number].chosen);
        let forget = |me: &mut Collector| {
            (me.chosen, me.copy) = (Set::EMPTY, Set::EMPTY);
            if !world.omits(Omission::OwnListOfMarked) {
                me.marked = Set::EMPTY;
            }
        };
        if self.collection(state).names & (CONDEMN | FINAL) != 0 {
            let mut next = *state;
            let mut me = Collector { step: CollectorStep::Condemned, ..state.collectors[self.number] };
            forget(&mut me);
            me.seen = Set::EMPTY;
            if !world.omits(Omission::JoinerTrustsUnsyncedNames) {
                next.collections[usize::from(me.number)].sync();
            }
            let detail = Detail::Collection(usize::from(me.number));
            return self.push("C6 adopts condemn of", detail, Sights::one(Sight::Adopted), next, me);
        }
        self.advance(state, "C6 links condemn of", CollectorStep::Condemning, |state, me| {
            let collection = &mut state.collections[usize::from(me.number)];
            collection.link(CONDEMN);
            collection.condemned = chosen;
            collection.marked = marked;
            forget(me);
        });
    }

    /// C7. The collector syncs `commits/` whenever it takes a session for ended: a fence of somebody else may not be
    /// durable.
    fn wait(&mut self, state: &State) {
        let me = state.collectors[self.number];
        let waited = me.seen.and(state.sessions.open);
        if waited.is_empty() || self.world.omits(Omission::NoWait) {
            let seen = if self.world.omits(Omission::SecondMarkOfWaitedOnly) { me.seen } else { Set::EMPTY };
            let me = Collector { step: CollectorStep::Waited, seen, ..me };
            let mut next = *state;
            if !self.world.omits(Omission::FencesNotSynced) {
                next.sessions.fence_unsynced = Set::EMPTY;
            }
            return self.push("C7 has waited", Detail::Nothing, Sights::NONE, next, me);
        }
        for session in waited.members() {
            let mut next = *state;
            let mut me = me;
            if self.world.omits(Omission::FenceUnderAnotherName) {
                me.seen = me.seen.without(session);
            } else {
                next.sessions.open = next.sessions.open.without(session);
                next.sessions.ended = next.sessions.ended.with(session);
                // A cut that ends all processes ends the fenced writer, too: with or without its fence, it never commits.
                if self.world.allows(Feature::OthersOutliveCut) && !state.was_cut {
                    next.sessions.fence_unsynced = next.sessions.fence_unsynced.with(session);
                }
            }
            self.push("C7 fences session", Detail::Session(session), Sights::NONE, next, me);
        }
    }

    /// C8, its first half: containers are listed and synced before commits are read.
    fn list_again(&mut self, state: &State) {
        let world = self.world;
        self.advance(state, "C8 lists containers", CollectorStep::Relisted, |state, me| {
            let number = usize::from(me.number);
            if !world.omits(Omission::SecondMarkTrustsUnsyncedNames) {
                state.containers.sync();
            }
            let blind = world.omits(Omission::BlindToOtherFinals);
            let going = if blind { Set::EMPTY } else { state.going(number) };
            if world.omits(Omission::SecondMarkOfWaitedOnly) {
                me.marked = me.seen;
            }
            let not_condemned = state.containers.visible.minus(state.collections[number].condemned);
            if world.omits(Omission::FinalsReadAfterContainers) {
                me.copy = state.containers.chunks_in(not_condemned);
            }
            me.seen = not_condemned.minus(going);
        });
    }

    /// C8, its second half: what the new snapshots reach is rescued.
    fn mark_again(&mut self, state: &State) {
        let me = state.collectors[self.number];
        let collection = self.collection(state);
        let mut next = *state;
        if !self.world.omits(Omission::ForgetsNotSynced) {
            next.sessions.forget_unsynced = Set::EMPTY;
        }
        let roots = state.sessions.roots();
        let to_mark = match self.world.omission {
            Omission::NoSecondMark => Set::EMPTY,
            Omission::SecondMarkOfWaitedOnly => roots.and(me.marked),
            Omission::OwnListOfMarked if !me.marked.is_empty() => roots.minus(me.marked),
            _ if self.world.allows(Feature::SecondMarkOfAll) => roots,
            _ => roots.minus(collection.marked),
        };
        // Variants only: the listing of before counts whole as soon as the other `final` has its `done`.
        let nothing_goes = state.going(usize::from(me.number)).is_empty();
        let kept_before = if nothing_goes { me.copy } else { Set::EMPTY };
        let kept = state.containers.chunks_in(me.seen).or(kept_before);
        let needed = state.sessions.reached_from(to_mark).minus(kept);
        let condemned = collection.condemned.and(state.containers.visible);
        let chosen = condemned.minus(state.containers.holding(needed));
        let step = CollectorStep::Resolved;
        let me = Collector { step, chosen, marked: Set::EMPTY, seen: Set::EMPTY, copy: Set::EMPTY, ..me };
        let sights = Sights::when(chosen != condemned, Sight::Rescued);
        self.push("C8 marks again, final is to be", Detail::Containers(chosen), sights, next, me);
    }

    /// C8, its end: the name is free, or somebody else's `final` is adopted.
    fn publish(&mut self, state: &State) {
        let me = state.collectors[self.number];
        let number = usize::from(me.number);
        let mut next = *state;
        if self.collection(state).has(FINAL) {
            if !self.world.omits(Omission::JoinerTrustsUnsyncedNames) {
                next.collections[number].sync();
            }
            let keeps = self.world.omits(Omission::DeletesItsOwnFinal);
            let chosen = if keeps { me.chosen } else { self.collection(state).last };
            let me = Collector { step: CollectorStep::Deleting, chosen, ..me };
            let sights = Sights::one(Sight::Adopted);
            return self.push("C8 adopts final of", Detail::Collection(number), sights, next, me);
        }
        self.link_final(&mut next, me, "C8 links final", me.chosen);
    }

    fn link_final(&mut self, next: &mut State, me: Collector, text: &'static str, last: Set) {
        let collection = &mut next.collections[usize::from(me.number)];
        collection.link(FINAL);
        collection.last = last;
        let me = Collector {
            step: CollectorStep::Publishing,
            chosen: last,
            marked: Set::EMPTY,
            seen: Set::EMPTY,
            copy: Set::EMPTY,
            ..me
        };
        self.push(text, Detail::Containers(last), Sights::NONE, *next, me);
    }

    /// C9. The look at the copies and the deletion are one step: the time between them is that of one batch.
    fn look_and_delete(&mut self, state: &State) {
        if !self.world.allows(Feature::Damage) || self.world.omits(Omission::DeletesWithoutLook) {
            return self.delete(state);
        }
        let me = state.collectors[self.number];
        let mut next = *state;
        next.sessions.forget_unsynced = Set::EMPTY;
        if !self.world.omits(Omission::LookTrustsUnsyncedNames) {
            next.containers.sync();
        }
        let gone = me.chosen.and(next.containers.visible);
        let kept = next.containers.visible.minus(gone).minus(next.going(usize::from(me.number)));
        let reached = next.sessions.reached_from(next.sessions.roots());
        let only_there = reached.and(next.containers.chunks_in(gone)).minus(next.containers.chunks_in(kept));
        if only_there.is_empty() {
            return self.delete(&next);
        }
        next.containers.link(self.session, only_there);
        if self.world.omits(Omission::RescueNotSynced) {
            return self.delete(&next);
        }
        let me = Collector { step: CollectorStep::Rescuing, ..me };
        self.push("C9 copies", Detail::Chunks(only_there), Sights::one(Sight::RescuedLate), next, me);
    }

    /// C9. All deletions are one step: until `done`, everybody treats what `final` names as absent, whether it is there
    /// or not, and a power cut brings back any part of it.
    fn delete(&mut self, state: &State) {
        let me = state.collectors[self.number];
        let gone = me.chosen.and(state.containers.visible);
        let mut next = *state;
        next.containers.visible = next.containers.visible.minus(gone);
        next.containers.unsynced = next.containers.unsynced.minus(gone);
        next.containers.removed = next.containers.removed.or(gone);
        let reached = state.sessions.reached_from(state.sessions.roots());
        let lost = reached.and(state.containers.chunks_in(gone));
        let sights = Sights::when(!lost.is_empty() && copies_hold(&next, lost), Sight::CopiedForward);
        let me = Collector { step: CollectorStep::Deleted, ..me };
        self.push("C9 deletes", Detail::Containers(gone), sights, next, me);
    }

    /// C9 and C10: sync of the deletions, `done`, end of the session. They are one step: a deletion that is durable
    /// before `done` is a deletion that a power cut did not take back.
    fn finish(&mut self, state: &State) {
        let me = state.collectors[self.number];
        let mut next = *state;
        if !self.world.omits(Omission::DoneWithoutDeleting) && !self.world.omits(Omission::DeletionsNotSynced) {
            next.containers.removed = next.containers.removed.minus(me.chosen);
        }
        if self.world.omits(Omission::FencesRemoved) {
            let fenced = next.sessions.ended.minus(Set::first(WRITERS_FROM));
            next.sessions.open = next.sessions.open.or(fenced);
            next.sessions.ended = next.sessions.ended.minus(fenced);
        }
        let collection = &mut next.collections[usize::from(me.number)];
        let is_empty = collection.last.is_empty();
        collection.link(DONE);
        collection.sync();
        let sights = Sights::when(!is_empty, Sight::SpaceReclaimed);
        self.end_session(next, "C10 links done of", sights);
    }

    fn end_session(&mut self, mut next: State, text: &'static str, sights: Sights) {
        next.sessions.open = next.sessions.open.without(self.session);
        next.sessions.ended = next.sessions.ended.with(self.session);
        let me = after(next.collectors[self.number], self.world.rounds);
        let number = usize::from(next.collectors[self.number].number);
        self.push(text, Detail::Collection(number), sights, next, me);
    }

    /// An empty `final` gives a collection up. The variant writes `done` instead.
    fn give_up(&mut self, state: &State) {
        let me = state.collectors[self.number];
        let is_inside = me.step >= CollectorStep::Joined && me.step < CollectorStep::Publishing;
        if !is_inside || self.collection(state).has(FINAL) || self.collection(state).has(DONE) {
            return;
        }
        if self.world.allows(Feature::GivingUp) {
            let mut next = *state;
            self.link_final(&mut next, me, "gives up by an empty final", Set::EMPTY);
            if let Some((step, _)) = self.successors.found.last_mut() {
                step.sights = step.sights.or(Sights::one(Sight::GivenUp));
            }
        }
        if self.world.omits(Omission::DoneWithoutFinal) {
            let mut next = *state;
            next.collections[usize::from(me.number)].link(DONE);
            next.collections[usize::from(me.number)].sync();
            self.end_session(next, "gives up by done of", Sights::NONE);
        }
    }
}

/// Returns true if containers of collectors hold one of these chunks.
fn copies_hold(state: &State, chunks: Set) -> bool {
    let copies = state.containers.visible.and(crate::state::COLLECTOR_SESSIONS);
    !state.containers.chunks_in(copies).and(chunks).is_empty()
}

/// Returns the collector after its session has ended.
pub(crate) fn after(collector: Collector, rounds: u8) -> Collector {
    if collector.round + 1 < rounds {
        Collector { round: collector.round + 1, ..Collector::default() }
    } else {
        Collector { round: collector.round, step: CollectorStep::Finished, ..Collector::default() }
    }
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("a collection's number is small")
}
