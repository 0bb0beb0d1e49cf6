//! Scope of a configuration, and the step that a variant leaves out.

use crate::set::Set;
use crate::state::{CHUNKS, COLLECTOR_SESSIONS, State};

/// The sizes of a configuration, what may happen in it, and the variant of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Number of writers.
    pub writers: usize,
    /// Sessions that each writer may begin, one after the other.
    pub attempts: u8,
    /// Number of collectors.
    pub collectors: usize,
    /// Sessions that each collector may begin, one after the other.
    pub rounds: u8,
    /// Number of collections.
    pub collections: usize,
    /// Number of chunks, all of which a writer wants to refer to.
    pub chunks: usize,
    /// Events that may happen.
    pub features: Features,
    /// Snapshots that a user may forget.
    pub forgettable: Set,
    /// The step that is left out.
    pub omission: Omission,
    /// Steps of the whole protocol that lead to the state with which the exploration begins, as a trace prints them.
    pub prologue: &'static [&'static str],
}

/// A set of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(u16);

impl Features {
    /// Nothing beyond backups, collections and forgetting.
    pub const NONE: Self = Self(0);

    /// Returns the features with this one.
    #[must_use]
    pub const fn with(self, feature: Feature) -> Self {
        Self(self.0 | 1 << feature as u16)
    }

    const fn has(self, feature: Feature) -> bool {
        self.0 >> feature as u16 & 1 == 1
    }
}

/// Something that may happen in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A collector copies live chunks forward before it condemns (C5).
    Copying,
    /// One power cut ends all processes and takes back any of the names and deletions that are not durable.
    PowerCut,
    /// The power cut hits the storage alone: it ends the processes that have a change that is not durable, and no others.
    OthersOutliveCut,
    /// A writer takes a parent's recipe over without looking for its chunks.
    TakingOver,
    /// A collector gives its collection up by an empty `final`.
    GivingUp,
    /// A writer ends its session without a snapshot.
    Abandoning,
    /// Containers of sessions that have not ended may be condemned.
    UnfinishedCandidates,
    /// A writer may store a chunk again that it could have found: an index may miss.
    IndexMisses,
    /// A collector may condemn any set that its mark allows, not only the largest ones.
    AnyPlan,
    /// A reader restores the old snapshot.
    Reader,
    /// The second mark takes all snapshots, also those that `condemn` lists as marked.
    SecondMarkOfAll,
    /// A container loses its contents once, after a `final` and before its `done`, and C9 looks at copies before it deletes.
    Damage,
}

/// A step of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omission {
    /// Nothing is left out.
    Nothing,
    /// W2 is done before W1 only.
    CollectionsReadBeforeSession,
    /// W3 lists containers before W2 reads `gc/`.
    ContainersListedBeforeCollections,
    /// C7 lists sessions before C6.
    SessionsListedBeforeCondemn,
    /// C7 does not wait.
    NoWait,
    /// C8 does not mark again.
    NoSecondMark,
    /// C8 marks the snapshots of sessions that C7 waited for, and no others.
    SecondMarkOfWaitedOnly,
    /// A collector that adopts `condemn` keeps its own list of marked snapshots.
    OwnListOfMarked,
    /// A fence does not take the name of the commit.
    FenceUnderAnotherName,
    /// A collection begins although another one has no `final`.
    TwoOpenCollections,
    /// A collection takes no notice of containers that another `final` names.
    BlindToOtherFinals,
    /// C7 relies on a fence that may not be durable.
    FencesNotSynced,
    /// C8 lists containers before it reads which ones another `final` names.
    FinalsReadAfterContainers,
    /// A collection is given up by `done` without `final`.
    DoneWithoutFinal,
    /// `done` is written by a process that has not deleted what `final` names.
    DoneWithoutDeleting,
    /// A collector that finds `final` taken deletes what it has computed itself.
    DeletesItsOwnFinal,
    /// C9 does not sync the deletions.
    DeletionsNotSynced,
    /// C9 deletes without a look at the copies that C8 has found.
    DeletesWithoutLook,
    /// The look of C9 relies on containers whose names may not be durable.
    LookTrustsUnsyncedNames,
    /// C9 deletes before what it has copied is durable.
    RescueNotSynced,
    /// Fences are removed when a collection is done.
    FencesRemoved,
    /// A forget is taken back by removing its object.
    ForgetRemoved,
    /// C8 relies on forgets whose names may not be durable.
    ForgetsNotSynced,
    /// W3 relies on containers of fenced sessions whose names may not be durable.
    FencedCountsAsDurable,
    /// C8 relies on containers whose names may not be durable.
    SecondMarkTrustsUnsyncedNames,
    /// C3 relies on containers whose names may not be durable.
    PlanTrustsUnsyncedNames,
    /// C6 is done before the copies of C5 are durable.
    CopiesNotSynced,
    /// A collector relies on an object of `gc/` that another one created and may not have synced.
    JoinerTrustsUnsyncedNames,
    /// W2 relies on a `final` that may not be durable.
    WriterTrustsUnsyncedFinal,
    /// W5 is done before the containers of W4 are durable.
    ContainersNotSynced,
    /// A writer reports success before W5 is durable.
    CommitNotSynced,
    /// A parent's recipe is taken over although a collection is condemning.
    TakesOverWhileCondemning,
    /// A parent's recipe is taken over although the parent is forgotten.
    TakesOverForgotten,
    /// `forget/` is read before W1.
    ForgetsReadBeforeSession,
    /// `forget/` is read between W1 and W2.
    ForgetsReadBeforeCollections,
    /// A reader does not list again.
    ReaderNeverRefreshes,
    /// A reader gives up at its second miss, whether or not a `final` has appeared meanwhile.
    ReaderIgnoresFinals,
    /// A reader reads `gc/` after it has listed again, instead of before.
    FinalsReadAfterListing,
}

/// A set of things that an exploration has shown to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sights(u32);

/// Something that happens in some run: an exploration without it shows little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A collection deletes a container and is done.
    SpaceReclaimed,
    /// A container is deleted whose chunk a root reaches, since a collector has copied it.
    CopiedForward,
    /// The second mark rescues a condemned container.
    Rescued,
    /// A fenced writer finds the name of its commit taken.
    FenceMet,
    /// A writer that was fenced commits in a later session.
    CommittedAfterFence,
    /// A collector joins a collection of another one.
    Joined,
    /// A collector finds `condemn` or `final` taken and adopts it.
    Adopted,
    /// A collection is given up by an empty `final`.
    GivenUp,
    /// A collection begins after another one's `final` and before its `done`.
    BegunDuringDeletion,
    /// A parent's recipe is taken over.
    TakenOver,
    /// A parent's recipe may not be taken over, since a collection is condemning.
    TakingOverRefused,
    /// A snapshot of a forgotten snapshot's chunks is committed.
    Recovered,
    /// A power cut takes a container back.
    ContainerLost,
    /// A power cut brings a deleted container back.
    DeletionLost,
    /// A power cut takes back a commit that was not acknowledged.
    CommitLost,
    /// A power cut takes a fence back.
    FenceLost,
    /// A power cut takes a forget back.
    ForgetLost,
    /// A power cut takes `final` back.
    FinalLost,
    /// A collector works on a collection of a process that a power cut has ended.
    ResumedAfterCut,
    /// A reader finds a chunk after a refresh.
    Refreshed,
    /// C9 copies a chunk whose other copies were damaged after C8.
    RescuedLate,
}

/// All sights, in order.
const SIGHTS: [Sight; 21] = [
    Sight::SpaceReclaimed,
    Sight::CopiedForward,
    Sight::Rescued,
    Sight::FenceMet,
    Sight::CommittedAfterFence,
    Sight::Joined,
    Sight::Adopted,
    Sight::GivenUp,
    Sight::BegunDuringDeletion,
    Sight::TakenOver,
    Sight::TakingOverRefused,
    Sight::Recovered,
    Sight::ContainerLost,
    Sight::DeletionLost,
    Sight::CommitLost,
    Sight::FenceLost,
    Sight::ForgetLost,
    Sight::FinalLost,
    Sight::ResumedAfterCut,
    Sight::Refreshed,
    Sight::RescuedLate,
];

impl Sights {
    /// No sight.
    pub const NONE: Self = Self(0);

    /// Returns the set of one sight.
    pub(crate) const fn one(sight: Sight) -> Self {
        Self(1 << sight as u32)
    }

    /// Returns this sight if the condition holds, else none.
    pub(crate) const fn when(holds: bool, sight: Sight) -> Self {
        if holds { Self::one(sight) } else { Self::NONE }
    }

    /// Returns the sights of both sets.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if the set has this sight.
    pub const fn has(self, sight: Sight) -> bool {
        self.0 >> sight as u32 & 1 == 1
    }

    /// Returns the sights that this set has not.
    pub fn missing(self) -> impl Iterator<Item = Sight> {
        SIGHTS.into_iter().filter(move |&sight| !self.has(sight))
    }
}

/// An invariant that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A snapshot that is a root refers to a chunk that stands in no container.
    ChunkLost,
    /// A commit that was acknowledged does not exist.
    AcknowledgedCommitLost,
    /// A reader has reported a chunk missing that a root refers to.
    ReaderMissedChunk,
    /// Two collections have begun and have no `final`.
    TwoOpenCollections,
}

impl World {
    /// Returns true if this may happen.
    pub(crate) const fn allows(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    /// Returns true if this is left out.
    pub(crate) fn omits(&self, omission: Omission) -> bool {
        self.omission == omission
    }

    /// Returns the chunks that every writer wants to refer to.
    pub(crate) fn wanted(&self) -> Set {
        Set::first(self.chunks.min(CHUNKS))
    }

    /// Returns the first invariant that the state breaks.
    pub fn violation(&self, state: &State) -> Option<Violation> {
        let sessions = &state.sessions;
        let reached = sessions.reached_from(sessions.roots());
        if !reached.minus(state.containers.chunks_in(state.containers.visible)).is_empty() {
            return Some(Violation::ChunkLost);
        }
        if !sessions.acknowledged.minus(sessions.committed).is_empty() {
            return Some(Violation::AcknowledgedCommitLost);
        }
        if state.broken.reader_missed {
            return Some(Violation::ReaderMissedChunk);
        }
        // A variant that allows this, or whose fault leads to it, is explored up to the loss.
        let open = state.collections.iter().filter(|collection| collection.is_open()).count();
        (self.omits(Omission::Nothing) && open > 1).then_some(Violation::TwoOpenCollections)
    }

    /// Returns sessions that C7 waits for: all open ones but those of collectors.
    pub(crate) fn waited_for(state: &State) -> Set {
        state.sessions.open.minus(COLLECTOR_SESSIONS)
    }
}
