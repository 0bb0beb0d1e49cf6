//! The configurations that are explored: the protocol at several sizes, and each variant of it.

use crate::set::Set;
use crate::state::SESSIONS;
use crate::world::{Feature, Features, Omission, Sight, Violation, World};

/// A world with a name, and what its exploration must show.
#[derive(Clone, Copy, Debug)]
pub struct Configuration {
    /// Name on the command line.
    pub name: &'static str,
    /// Parts that are explored.
    pub world: World,
    /// Something that must happen in some run, lest the exploration proves nothing.
    pub shows: &'static [Sight],
}

/// A variant of the protocol with a step left out, and the invariant that this breaks.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// A small world that shows the fault.
    pub world: World,
    /// The invariant that is broken.
    pub breaks: Violation,
}

const NONE: Features = Features::NONE;
const COPYING: Features = NONE.with(Feature::Copying);
const CUT: Features = COPYING.with(Feature::PowerCut);
const OUTLIVED: Features = CUT.with(Feature::OthersOutliveCut);
const TAKING: Features = NONE.with(Feature::TakingOver);
const READING: Features = COPYING.with(Feature::Reader);
const DAMAGED: Features = COPYING.with(Feature::Damage);
/// Additions that cost no step of their own and make collections stranger.
const UNRULY: Features = COPYING
    .with(Feature::GivingUp)
    .with(Feature::Abandoning)
    .with(Feature::UnfinishedCandidates)
    .with(Feature::IndexMisses);

const EVERY_SNAPSHOT: Set = Set::first(SESSIONS);

/// Returns a world of so many writers, sessions of each, collectors, sessions of each, and collections.
const fn world([writers, attempts, collectors, rounds, collections]: [u8; 5], features: Features) -> World {
    World {
        writers: writers as usize,
        attempts,
        collectors: collectors as usize,
        rounds,
        collections: collections as usize,
        chunks: 1,
        features,
        forgettable: Set::one(0),
        omission: Omission::Nothing,
        prologue: &[],
    }
}

/// Lets users forget every snapshot, not only the old one.
const fn forgetting_all(world: World) -> World {
    World { forgettable: EVERY_SNAPSHOT, ..world }
}

const fn without(omission: Omission, world: World) -> World {
    World { omission, ..world }
}

const fn configuration(name: &'static str, world: World, shows: &'static [Sight]) -> Configuration {
    Configuration { name, world, shows }
}

/// Returns the configurations that every test run explores.
pub fn small() -> Vec<Configuration> {
    use Sight as S;
    let reclaiming = &[S::SpaceReclaimed, S::CopiedForward, S::Rescued, S::FenceMet, S::Joined, S::Adopted];
    vec![
        configuration("two-collectors", world([2, 1, 2, 1, 1], COPYING), reclaiming),
        configuration("unruly", world([1, 2, 2, 1, 1], UNRULY), &[S::GivenUp, S::CommittedAfterFence, S::Recovered]),
        configuration("two-collections", world([1, 1, 2, 1, 2], COPYING), &[S::BegunDuringDeletion, S::CopiedForward]),
        configuration(
            "two-chunks",
            World { chunks: 2, ..world([1, 1, 1, 2, 2], COPYING.with(Feature::AnyPlan)) },
            &[S::CopiedForward, S::Rescued],
        ),
        configuration(
            "taking-over",
            forgetting_all(world([2, 1, 1, 1, 1], TAKING)),
            &[S::TakenOver, S::TakingOverRefused, S::SpaceReclaimed, S::Rescued],
        ),
        configuration(
            "taking-over-cut",
            forgetting_all(world([1, 2, 1, 2, 1], OUTLIVED.with(Feature::TakingOver))),
            &[S::TakenOver, S::CommitLost],
        ),
        configuration("reader", world([0, 1, 2, 1, 2], READING), &[S::Refreshed, S::SpaceReclaimed, S::CopiedForward]),
        configuration(
            "cut",
            world([1, 2, 1, 2, 2], CUT),
            &[S::ContainerLost, S::DeletionLost, S::CommitLost, S::ForgetLost, S::FinalLost, S::ResumedAfterCut],
        ),
        configuration("outlived", world([1, 1, 2, 1, 1], OUTLIVED), &[S::FinalLost, S::FenceLost, S::Rescued]),
        configuration("damage", world([1, 1, 2, 1, 2], DAMAGED), &[S::RescuedLate, S::SpaceReclaimed, S::Adopted]),
        configuration(
            "damage-cut",
            world([1, 1, 1, 2, 2], DAMAGED.with(Feature::PowerCut)),
            &[S::RescuedLate, S::DeletionLost, S::ResumedAfterCut],
        ),
    ]
}

/// Returns steps that may be left out, each in a world that shows it.
pub fn not_needed() -> Vec<Configuration> {
    use Omission as O;
    let marks_all = CUT.with(Feature::SecondMarkOfAll).with(Feature::IndexMisses);
    vec![
        configuration(
            "plan-syncs-nothing",
            without(O::PlanTrustsUnsyncedNames, world([1, 1, 1, 2, 1], marks_all)),
            &[Sight::ContainerLost, Sight::SpaceReclaimed, Sight::CopiedForward],
        ),
        configuration(
            "copies-not-synced",
            without(O::CopiesNotSynced, world([1, 1, 1, 2, 1], marks_all)),
            &[Sight::ContainerLost, Sight::SpaceReclaimed, Sight::CopiedForward],
        ),
        configuration(
            "deletions-not-synced",
            without(O::DeletionsNotSynced, world([1, 2, 1, 2, 2], CUT)),
            &[Sight::DeletionLost, Sight::SpaceReclaimed],
        ),
        configuration(
            "writer-trusts-final",
            without(O::WriterTrustsUnsyncedFinal, world([1, 2, 2, 1, 1], CUT)),
            &[Sight::FinalLost, Sight::Rescued],
        ),
    ]
}

/// Returns the configurations of the full size.
pub fn full() -> Vec<Configuration> {
    let reclaiming = &[Sight::SpaceReclaimed, Sight::Rescued];
    let cut = CUT.with(Feature::TakingOver);
    let outlived = OUTLIVED.with(Feature::TakingOver);
    let everything = UNRULY.with(Feature::PowerCut).with(Feature::TakingOver);
    let two_chunks = World { chunks: 2, ..world([2, 1, 2, 1, 2], COPYING.with(Feature::AnyPlan)) };
    vec![
        configuration("three-writers", world([3, 1, 2, 1, 1], COPYING), reclaiming),
        configuration("three-writers-two-collections", world([3, 1, 2, 1, 2], COPYING), reclaiming),
        configuration("four-sessions", world([2, 2, 2, 1, 1], COPYING), reclaiming),
        configuration("two-chunks-any-plan", two_chunks, reclaiming),
        configuration("three-taking-over", forgetting_all(world([3, 1, 2, 1, 2], TAKING)), reclaiming),
        configuration("readers", world([1, 1, 2, 1, 2], READING), reclaiming),
        configuration("cut-two-collectors", world([2, 1, 2, 2, 1], CUT), reclaiming),
        configuration("cut-two-collections", world([2, 2, 1, 2, 2], CUT), reclaiming),
        configuration("cut-taking-over", forgetting_all(world([2, 1, 1, 2, 2], cut)), reclaiming),
        configuration("outlived-two-writers", world([2, 1, 2, 1, 1], OUTLIVED), reclaiming),
        configuration("outlived-two-collections", world([1, 1, 2, 2, 2], OUTLIVED), reclaiming),
        configuration("outlived-taking-over", forgetting_all(world([2, 1, 2, 1, 1], outlived)), reclaiming),
        configuration("three-writers-cut", world([3, 1, 2, 1, 1], CUT), reclaiming),
        configuration("three-writers-outlived", world([3, 1, 2, 1, 1], OUTLIVED), reclaiming),
        configuration("three-writers-cut-taking-over", forgetting_all(world([3, 1, 2, 1, 1], cut)), reclaiming),
        configuration("six-sessions", world([3, 2, 2, 1, 1], COPYING), reclaiming),
        configuration("unruly-two-collections", world([1, 1, 2, 1, 2], UNRULY), reclaiming),
        configuration("collectors-start-again", world([2, 1, 2, 2, 2], COPYING.with(Feature::GivingUp)), reclaiming),
        configuration("damage-two-writers", world([2, 1, 2, 1, 2], DAMAGED), &[Sight::RescuedLate]),
        configuration("damage-outlived", world([1, 1, 2, 1, 1], OUTLIVED.with(Feature::Damage)), &[Sight::RescuedLate]),
        configuration(
            "damage-two-chunks",
            World { chunks: 2, ..world([1, 1, 2, 1, 2], DAMAGED) },
            &[Sight::RescuedLate],
        ),
        configuration("everything", forgetting_all(world([3, 2, 2, 2, 2], everything)), &[]),
    ]
}

/// A collector rescues the containers that a first snapshot needs, but its `final` is not durable. A second snapshot stores
/// the same chunk again.
const AFTER_RESCUE: &[&str] = &[
    "writer 0: W1 links session 2",
    "writer 0: W2 reads gc/ 2",
    "writer 0: W3 lists containers, is to store {}",
    "user: forgets snapshot 0",
    "user: has forgotten durably snapshot 0",
    "collector 0: C0 links session 0",
    "collector 0: C1 begins collection 0",
    "collector 0: C2 reads commits/ and forget/, marks 0",
    "collector 0: C3 to C5 plans to condemn {0, 1}, copies {}",
    "collector 0: C6 links condemn of 0",
    "collector 0: C6 syncs 0",
    "collector 0: C7 lists sessions 0",
    "writer 0: W5 links commit 2",
    "writer 0: W5 syncs the commit 2",
    "collector 0: C7 has waited",
    "writer 1: W1 links session 4",
    "writer 1: W2 reads gc/ 4",
    "writer 1: W3 lists containers, is to store {0}",
    "collector 0: C8 lists containers 0",
    "collector 0: C8 marks again, final is to be {}",
    "collector 0: C8 links final {}",
    "writer 1: W4 stores container 4",
    "writer 1: W4 syncs 4",
    "writer 1: W5 links commit 4",
    "writer 1: W5 syncs the commit 4",
];

/// Returns the variants, each of which must break its invariant.
pub fn variants() -> Vec<Variant> {
    use Omission as O;
    let one = world([1, 1, 1, 1, 1], NONE);
    let two_collectors = world([1, 1, 2, 1, 1], NONE);
    let two_writers_cut = world([2, 1, 1, 1, 1], CUT);
    let no_writer = world([0, 1, 1, 1, 1], NONE);
    let taking = forgetting_all(world([1, 1, 1, 1, 1], TAKING));
    let two_taking = forgetting_all(world([2, 1, 1, 1, 1], TAKING));
    let lost = [
        without(O::CollectionsReadBeforeSession, one),
        without(O::ContainersListedBeforeCollections, one),
        without(O::SessionsListedBeforeCondemn, one),
        without(O::NoWait, one),
        without(O::NoSecondMark, one),
        without(O::SecondMarkOfWaitedOnly, one),
        without(O::OwnListOfMarked, two_collectors),
        without(O::FenceUnderAnotherName, one),
        without(O::FencesRemoved, one),
        without(O::ForgetRemoved, no_writer),
        without(O::TwoOpenCollections, world([0, 1, 2, 1, 2], NONE)),
        without(O::BlindToOtherFinals, world([0, 1, 2, 1, 2], NONE)),
        without(O::FinalsReadAfterContainers, world([1, 1, 2, 1, 2], NONE)),
        without(O::DoneWithoutFinal, two_collectors),
        without(O::DoneWithoutDeleting, two_collectors),
        without(O::DeletesItsOwnFinal, two_collectors),
        without(O::TakesOverForgotten, taking),
        without(O::TakesOverWhileCondemning, two_taking),
        without(O::ForgetsReadBeforeSession, taking),
        without(O::ForgetsReadBeforeCollections, two_taking),
        without(O::ContainersNotSynced, world([1, 1, 1, 1, 1], CUT)),
        without(O::FencedCountsAsDurable, two_writers_cut),
        without(O::SecondMarkTrustsUnsyncedNames, two_writers_cut),
        without(O::PlanTrustsUnsyncedNames, world([1, 1, 1, 2, 1], CUT.with(Feature::IndexMisses))),
        without(O::CopiesNotSynced, world([0, 1, 1, 2, 1], CUT)),
        without(O::ForgetsNotSynced, world([0, 1, 1, 1, 1], CUT)),
        World { prologue: AFTER_RESCUE, ..without(O::JoinerTrustsUnsyncedNames, world([2, 1, 2, 2, 2], CUT)) },
        without(O::WriterTrustsUnsyncedFinal, world([2, 1, 2, 1, 1], OUTLIVED)),
        without(O::FencesNotSynced, world([1, 1, 1, 1, 1], OUTLIVED)),
        without(O::DeletionsNotSynced, world([1, 1, 2, 1, 1], OUTLIVED)),
        without(O::DeletesWithoutLook, world([0, 1, 1, 1, 1], DAMAGED)),
        without(O::LookTrustsUnsyncedNames, world([1, 1, 1, 2, 2], DAMAGED.with(Feature::PowerCut))),
        without(O::RescueNotSynced, world([0, 1, 1, 2, 1], DAMAGED.with(Feature::PowerCut))),
    ];
    let others = [
        (Violation::AcknowledgedCommitLost, without(O::CommitNotSynced, world([1, 1, 0, 1, 1], CUT))),
        (Violation::ReaderMissedChunk, without(O::ReaderNeverRefreshes, world([0, 1, 1, 1, 1], READING))),
        (Violation::ReaderMissedChunk, without(O::ReaderIgnoresFinals, world([0, 1, 1, 2, 2], READING))),
        (Violation::ReaderMissedChunk, without(O::FinalsReadAfterListing, world([0, 1, 1, 2, 2], READING))),
    ];
    let lost = lost.map(|world| Variant { world, breaks: Violation::ChunkLost });
    lost.into_iter().chain(others.map(|(breaks, world)| Variant { world, breaks })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::{Limits, explore};
    use crate::world::Sights;

    /// Far above the largest small configuration.
    const LIMITS: Limits = Limits { states: 4_000_000, traces: true };

    /// Explores all configurations to their ends and returns what they have shown together.
    fn explore_all(configurations: &[Configuration]) -> Sights {
        let mut all = Sights::NONE;
        for one in configurations {
            let explored = explore(&one.world, LIMITS);
            let found = explored.counterexample.as_ref().map(ToString::to_string);
            assert_eq!(found, None, "{}", one.name);
            assert!(explored.is_complete, "{}: more than {} states", one.name, explored.states);
            for &sight in one.shows {
                assert!(explored.sights.has(sight), "{}: {sight:?} never happens", one.name);
            }
            all = all.or(explored.sights);
        }
        all
    }

    #[test]
    fn the_protocol_loses_nothing_in_any_small_configuration() {
        let sights = explore_all(&small());
        assert_eq!(sights.missing().collect::<Vec<_>>(), [], "these never happen");
    }

    #[test]
    fn steps_that_are_not_needed_may_be_left_out() {
        explore_all(&not_needed());
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "the traces are what a reader of the test wants")]
    fn every_essential_step_that_is_left_out_is_caught() {
        let page = include_str!("../../../docs/protocol.md");
        for variant in variants() {
            let name = format!("{:?}", variant.world.omission);
            let explored = explore(&variant.world, LIMITS);
            let found = explored.counterexample.unwrap_or_else(|| panic!("{name} breaks nothing"));
            assert_eq!(found.violation, variant.breaks, "{name}");
            println!("{name}, {} states: {found}", explored.states);
            let row = page.lines().find(|line| line.contains(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/protocol.md has no row for {name}"));
            let length = variant.world.prologue.len() + found.steps.len();
            assert!(row.ends_with(&format!("| {length} |")), "{name}: {length} steps, but docs/protocol.md has {row}");
        }
    }
}
