//! Writers: W1 to W5.

use crate::set::Set;
use crate::state::{ATTEMPTS, CONDEMN, Collection, DONE, FINAL, State, Writer, WriterStep, writer_session};
use crate::step::{Actor, Detail, Step, Successors};
use crate::world::{Feature, Omission, Sight, Sights, World};

/// Adds the steps of all writers.
pub(crate) fn steps(successors: &mut Successors<'_>, state: &State) {
    for number in 0..successors.world.writers {
        let session = writer_session(number, state.writers[number].attempt);
        One { world: *successors.world, number, session, successors }.steps(state);
    }
}

/// One writer.
struct One<'a, 'b> {
    world: World,
    number: usize,
    session: usize,
    successors: &'a mut Successors<'b>,
}

impl One<'_, '_> {
    fn steps(&mut self, state: &State) {
        match state.writers[self.number].step {
            WriterStep::Idle => self.before_session(state),
            WriterStep::Early => self.begin(state),
            WriterStep::Started if self.world.omits(Omission::CollectionsReadBeforeSession) => {
                self.list_live(state);
            }
            WriterStep::Started if self.world.omits(Omission::ContainersListedBeforeCollections) => {
                self.advance(state, "lists containers too early", WriterStep::Between, |state, writer| {
                    writer.absent = state.containers.visible;
                });
            }
            WriterStep::Started if self.world.omits(Omission::ForgetsReadBeforeCollections) => {
                self.take_over(state, WriterStep::Between, "reads forget/ too early");
                self.advance(state, "takes nothing over", WriterStep::Between, |_, _| ());
            }
            WriterStep::Between if self.world.omits(Omission::ContainersListedBeforeCollections) => {
                let listing = state.writers[self.number].absent;
                self.list(state, listing.minus(absent(state)));
            }
            WriterStep::Started | WriterStep::Between => self.read_collections(state),
            WriterStep::Informed => {
                if state.writers[self.number].may_take {
                    self.take_over(state, WriterStep::Informed, "W2 reads forget/ and takes a recipe over, of");
                }
                self.list_live(state);
            }
            WriterStep::Listed => self.store(state),
            WriterStep::Stored => self.advance(state, "W4 syncs", WriterStep::Ready, |_, _| ()),
            WriterStep::Ready => self.commit(state),
            WriterStep::Linked => {
                let session = self.session;
                self.advance_with(state, "W5 syncs the commit", WriterStep::Finished, |state, _| {
                    state.sessions.commit_unsynced = state.sessions.commit_unsynced.without(session);
                    state.sessions.acknowledged = state.sessions.acknowledged.with(session);
                    Sights::NONE
                });
            }
            WriterStep::Finished => {}
        }
        self.abandon(state);
    }

    /// Adds a step that changes the writer, and the state as `change` does.
    fn advance(
        &mut self,
        state: &State,
        text: &'static str,
        step: WriterStep,
        change: impl FnOnce(&mut State, &mut Writer),
    ) {
        self.advance_with(state, text, step, |state, writer| {
            change(state, writer);
            Sights::NONE
        });
    }

    fn advance_with(
        &mut self,
        state: &State,
        text: &'static str,
        step: WriterStep,
        change: impl FnOnce(&mut State, &mut Writer) -> Sights,
    ) {
        let mut next = *state;
        let mut writer = Writer { step, ..state.writers[self.number] };
        if step == WriterStep::Ready {
            next.containers.unsynced = next.containers.unsynced.without(self.session);
            writer = Writer { attempt: writer.attempt, step, ..Writer::default() };
        }
        let sights = change(&mut next, &mut writer);
        next.writers[self.number] = writer;
        self.push(text, Detail::Session(self.session), sights, next);
    }

    fn push(&mut self, text: &'static str, detail: Detail, sights: Sights, next: State) {
        self.successors.push(Step::new(Actor::Writer(self.number), text, detail).showing(sights), next);
    }

    fn before_session(&mut self, state: &State) {
        if self.world.omits(Omission::CollectionsReadBeforeSession) {
            return self.advance(state, "reads gc/ too early", WriterStep::Early, |state, writer| {
                writer.absent = absent(state);
            });
        }
        if self.world.omits(Omission::ForgetsReadBeforeSession) {
            self.take_over(state, WriterStep::Early, "reads forget/ too early");
        }
        self.begin(state);
    }

    /// W1. Link and sync are one step: a session that a power cut takes back has ended with its process, and nobody
    /// relies on its name.
    fn begin(&mut self, state: &State) {
        let session = self.session;
        self.advance(state, "W1 links session", WriterStep::Started, |state, _| {
            state.sessions.open = state.sessions.open.with(session);
        });
    }

    /// W2. The writer syncs the objects that it has read: a power cut that it outlives must not take a `final` back that it
    /// relied on.
    fn read_collections(&mut self, state: &State) {
        let world = self.world;
        self.advance_with(state, "W2 reads gc/", WriterStep::Informed, |state, writer| {
            let is_condemning = state.collections.iter().any(|one| one.names & (CONDEMN | FINAL | DONE) == CONDEMN);
            writer.absent = absent(state);
            if !world.omits(Omission::WriterTrustsUnsyncedFinal) {
                state.collections.iter_mut().for_each(Collection::sync);
            }
            let ignores = world.omits(Omission::TakesOverWhileCondemning);
            writer.may_take =
                world.allows(Feature::TakingOver) && writer.taken.is_empty() && (ignores || !is_condemning);
            if is_condemning && !ignores {
                writer.taken = Set::EMPTY;
            }
            if writer.taken == world.wanted() {
                *writer = Writer { attempt: writer.attempt, step: WriterStep::Ready, ..Writer::default() };
            }
            let refused = world.allows(Feature::TakingOver) && is_condemning;
            Sights::when(refused, Sight::TakingOverRefused)
        });
    }

    /// The rule for unchanged files: the chunks of a parent are referred to without a look at any container.
    fn take_over(&mut self, state: &State, step: WriterStep, text: &'static str) {
        if !self.world.allows(Feature::TakingOver) {
            return;
        }
        let ignores = self.world.omits(Omission::TakesOverForgotten);
        let parents = if ignores { state.sessions.committed } else { state.sessions.roots() };
        for parent in parents.members() {
            let taken = state.sessions.reached_from(Set::one(parent)).and(self.world.wanted());
            let is_all = taken == self.world.wanted();
            let mut next = *state;
            let writer = Writer { step, may_take: false, taken, ..state.writers[self.number] };
            let ready = Writer { attempt: writer.attempt, step: WriterStep::Ready, ..Writer::default() };
            next.writers[self.number] = if is_all && step == WriterStep::Informed { ready } else { writer };
            let sights = Sights::when(step == WriterStep::Informed, Sight::TakenOver);
            self.push(text, Detail::Session(parent), sights, next);
        }
    }

    /// W3. The writer decides here which chunks it stores: its identification depends on nothing that happens later.
    fn list_live(&mut self, state: &State) {
        let live = state.containers.visible.minus(state.writers[self.number].absent);
        self.list(state, live);
    }

    fn list(&mut self, state: &State, live: Set) {
        let before = state.writers[self.number];
        let mut next = *state;
        let sessions = &state.sessions;
        let proven = if self.world.omits(Omission::FencedCountsAsDurable) {
            sessions.committed.or(sessions.ended)
        } else {
            sessions.committed
        };
        next.containers.unsynced = next.containers.unsynced.and(proven);
        let missing = self.world.wanted().minus(before.taken).minus(state.containers.chunks_in(live));
        let again = self.world.wanted().minus(before.taken).minus(missing);
        let again = if self.world.allows(Feature::IndexMisses) { again } else { Set::EMPTY };
        for also in again.subsets() {
            let stored = missing.or(also);
            let step = if stored.is_empty() { WriterStep::Ready } else { WriterStep::Listed };
            next.writers[self.number] = Writer { attempt: before.attempt, step, missing: stored, ..Writer::default() };
            self.push("W3 lists containers, is to store", Detail::Chunks(stored), Sights::NONE, next);
        }
    }

    /// W4
    fn store(&mut self, state: &State) {
        let session = self.session;
        let skips_sync = self.world.omits(Omission::ContainersNotSynced);
        let step = if skips_sync { WriterStep::Ready } else { WriterStep::Stored };
        let mut next = *state;
        let before = state.writers[self.number];
        next.containers.link(session, before.missing);
        next.writers[self.number] = Writer { attempt: before.attempt, step, ..Writer::default() };
        self.push("W4 stores container", Detail::Session(session), Sights::NONE, next);
    }

    /// W5: the name is free, or a fence has it.
    fn commit(&mut self, state: &State) {
        let (session, world) = (self.session, self.world);
        if state.sessions.ended.has(session) {
            return self.start_again(state, "W5 finds a fence instead of commit", Sights::one(Sight::FenceMet));
        }
        let was_fenced = self.has_ended_before(state);
        self.advance_with(state, "W5 links commit", WriterStep::Linked, |state, _| {
            let sessions = &mut state.sessions;
            sessions.open = sessions.open.without(session);
            sessions.committed = sessions.committed.with(session);
            sessions.commit_unsynced = sessions.commit_unsynced.with(session);
            for chunk in world.wanted().members() {
                sessions.refs[chunk] = sessions.refs[chunk].with(session);
            }
            if world.omits(Omission::CommitNotSynced) {
                sessions.acknowledged = sessions.acknowledged.with(session);
            }
            let stored = state.containers.visible.has(session);
            let forgotten = state.sessions.reached_from(state.sessions.forgotten);
            let recovered = !stored && world.wanted().minus(forgotten).is_empty();
            Sights::when(was_fenced && !state.was_cut, Sight::CommittedAfterFence)
                .or(Sights::when(recovered, Sight::Recovered))
        });
    }

    fn has_ended_before(&self, state: &State) -> bool {
        state.writers[self.number].attempt > 0
    }

    /// A writer that fails ends its own session. `recover` does so where a chunk is missing.
    fn abandon(&mut self, state: &State) {
        let step = state.writers[self.number].step;
        let is_inside = step > WriterStep::Started && step < WriterStep::Linked;
        if is_inside && self.world.allows(Feature::Abandoning) && state.sessions.open.has(self.session) {
            let mut next = *state;
            next.sessions.open = next.sessions.open.without(self.session);
            next.sessions.ended = next.sessions.ended.with(self.session);
            self.start_again(&next, "gives up session", Sights::NONE);
        }
    }

    fn start_again(&mut self, state: &State, text: &'static str, sights: Sights) {
        let mut next = *state;
        next.writers[self.number] = after(state.writers[self.number], self.world.attempts);
        self.push(text, Detail::Session(self.session), sights, next);
    }
}

/// Returns the writer after its session has ended without a snapshot.
pub(crate) fn after(writer: Writer, attempts: u8) -> Writer {
    let is_last = writer.attempt + 1 >= attempts.min(u8::try_from(ATTEMPTS).expect("small"));
    if is_last {
        Writer { attempt: writer.attempt, step: WriterStep::Finished, ..Writer::default() }
    } else {
        Writer { attempt: writer.attempt + 1, ..Writer::default() }
    }
}

/// Returns the containers that W2 finds absent.
fn absent(state: &State) -> Set {
    state.collections.iter().fold(Set::EMPTY, |all, collection| all.or(collection.absent()))
}
