//! A reader: it lists once, reads, and lists again when a chunk is in none of the containers of its listing.
//!
//! It restores the old snapshot. A listing is not atomic: it takes two steps, for containers with even and with odd numbers
//! in either order. After its first miss the reader reads `gc/` and lists again. After a later miss it reads `gc/`, and gives
//! up if no `final` has appeared since it did so before.

use crate::set::Set;
use crate::state::{Broken, Reader, ReaderStep, State};
use crate::step::{Actor, Detail, Step, Successors};
use crate::world::{Feature, Omission, Sight, Sights};

/// The snapshot that it restores.
const SNAPSHOT: usize = 0;

const EVEN: Set = Set::from_bits(0x5555);
const ODD: Set = Set::from_bits(0xaaaa);

/// Adds the steps of the reader.
pub(crate) fn steps(successors: &mut Successors<'_>, state: &State) {
    if !successors.world.allows(Feature::Reader) {
        return;
    }
    match state.reader.step {
        ReaderStep::Idle => list_half(successors, state, [ReaderStep::HalfEven, ReaderStep::HalfOdd]),
        ReaderStep::Refreshing => list_half(successors, state, [ReaderStep::AgainEven, ReaderStep::AgainOdd]),
        ReaderStep::HalfEven | ReaderStep::AgainEven => list_rest(successors, state, ODD),
        ReaderStep::HalfOdd | ReaderStep::AgainOdd => list_rest(successors, state, EVEN),
        ReaderStep::Viewing => read(successors, state),
        ReaderStep::Missed => decide(successors, state),
        ReaderStep::Finished => {}
    }
}

fn push(successors: &mut Successors<'_>, step: Step, state: &State, reader: Reader) {
    successors.push(step, State { reader, ..*state });
}

fn list_half(successors: &mut Successors<'_>, state: &State, [even, odd]: [ReaderStep; 2]) {
    for (step, half) in [(even, EVEN), (odd, ODD)] {
        let listing = state.containers.visible.and(half);
        let step_done = Step::new(Actor::Reader, "lists one half of the containers", Detail::Containers(listing));
        push(successors, step_done, state, Reader { step, listing, ..state.reader });
    }
}

fn list_rest(successors: &mut Successors<'_>, state: &State, half: Set) {
    let reader = state.reader;
    let view = reader.listing.or(state.containers.visible.and(half));
    let finals = if successors.world.omits(Omission::FinalsReadAfterListing) {
        reader.finals.map(|_| state.finals())
    } else {
        reader.finals
    };
    let step = Step::new(Actor::Reader, "lists the other half, has", Detail::Containers(view));
    push(successors, step, state, Reader { step: ReaderStep::Viewing, view, finals, ..Reader::default() });
}

/// After a miss: lists again, or gives up.
fn decide(successors: &mut Successors<'_>, state: &State) {
    let (reader, finals) = (state.reader, state.finals());
    let is_known = |before: Set| before == finals || successors.world.omits(Omission::ReaderIgnoresFinals);
    if reader.finals.is_some_and(is_known) {
        return report_missing(successors, state);
    }
    let step = Step::new(Actor::Reader, "reads gc/", Detail::Nothing);
    push(successors, step, state, Reader { step: ReaderStep::Refreshing, finals: Some(finals), ..reader });
}

fn read(successors: &mut Successors<'_>, state: &State) {
    let reader = state.reader;
    let there = state.containers.chunks_in(reader.view.and(state.containers.visible));
    let is_missing = !state.sessions.reached_from(Set::one(SNAPSHOT)).minus(there).is_empty();
    if is_missing && successors.world.omits(Omission::ReaderNeverRefreshes) {
        report_missing(successors, state);
    } else if is_missing {
        let step = Step::new(Actor::Reader, "misses a chunk", Detail::Nothing);
        push(successors, step, state, Reader { step: ReaderStep::Missed, finals: reader.finals, ..Reader::default() });
    } else {
        let step = Step::new(Actor::Reader, "reads everything", Detail::Nothing)
            .showing(Sights::when(reader.finals.is_some(), Sight::Refreshed));
        push(successors, step, state, Reader { step: ReaderStep::Finished, ..Reader::default() });
    }
}

fn report_missing(successors: &mut Successors<'_>, state: &State) {
    let reader = Reader { step: ReaderStep::Finished, ..Reader::default() };
    let broken = Broken { reader_missed: state.sessions.roots().has(SNAPSHOT) };
    let step = Step::new(Actor::Reader, "reports a chunk missing", Detail::Nothing);
    push(successors, step, &State { broken, ..*state }, reader);
}
