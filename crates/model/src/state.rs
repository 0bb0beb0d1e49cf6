//! The state of a repository and of the processes that use it.

use crate::set::Set;

/// Largest number of writers.
pub const WRITERS: usize = 3;
/// Largest number of sessions that one writer begins.
pub const ATTEMPTS: usize = 2;
/// Largest number of collectors.
pub const COLLECTORS: usize = 2;
/// Largest number of sessions that one collector begins.
pub const ROUNDS: usize = 2;
/// Largest number of collections.
pub const COLLECTIONS: usize = 2;
/// Largest number of chunks.
pub const CHUNKS: usize = 2;

/// Sessions that ended before the first step: 0 committed the old snapshot, 1 stored duplicates and made no snapshot.
pub const OLD_SESSIONS: usize = 2;
/// First session of the writers.
pub(crate) const WRITERS_FROM: usize = OLD_SESSIONS;
/// First session of the collectors.
pub(crate) const COLLECTORS_FROM: usize = WRITERS_FROM + WRITERS * ATTEMPTS;
/// Number of all sessions, and of all containers: each session stores one at most.
pub const SESSIONS: usize = COLLECTORS_FROM + COLLECTORS * ROUNDS;
/// All sessions of collectors.
pub(crate) const COLLECTOR_SESSIONS: Set = Set::from_bits(((1 << (COLLECTORS * ROUNDS)) - 1) << COLLECTORS_FROM);

/// The objects of the repository, and what each process knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct State {
    pub(crate) sessions: Sessions,
    pub(crate) containers: Containers,
    pub(crate) collections: [Collection; COLLECTIONS],
    pub(crate) writers: [Writer; WRITERS],
    pub(crate) collectors: [Collector; COLLECTORS],
    pub(crate) reader: Reader,
    /// The power cut has happened.
    pub(crate) was_cut: bool,
    /// A container has been damaged.
    pub(crate) was_damaged: bool,
    /// The invariants that a step itself has broken.
    pub(crate) broken: Broken,
}

/// `sessions/`, `commits/` and `forget/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Sessions {
    /// Begun and not ended.
    pub(crate) open: Set,
    /// Ended with a snapshot.
    pub(crate) committed: Set,
    /// Committed under a name that is not durable yet.
    pub(crate) commit_unsynced: Set,
    /// Committed, and the user has read "success".
    pub(crate) acknowledged: Set,
    /// Ended without a snapshot: fenced, or given up.
    pub(crate) ended: Set,
    /// Fenced under a name that is not durable yet.
    pub(crate) fence_unsynced: Set,
    /// Snapshots that a `forget/` object names.
    pub(crate) forgotten: Set,
    /// Forgotten under a name that is not durable yet.
    pub(crate) forget_unsynced: Set,
    /// For each chunk, the snapshots that refer to it.
    pub(crate) refs: [Set; CHUNKS],
}

impl Sessions {
    /// Returns the chunks that any of these snapshots refers to.
    pub(crate) fn reached_from(&self, snapshots: Set) -> Set {
        chunks_of(self.refs, snapshots.and(self.committed))
    }

    /// Returns the snapshots that are roots.
    pub(crate) fn roots(&self) -> Set {
        self.committed.minus(self.forgotten)
    }
}

/// The containers, each with one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Containers {
    /// Those that a listing shows.
    pub(crate) visible: Set,
    /// Visible under a name that is not durable yet.
    pub(crate) unsynced: Set,
    /// Deleted, but not durably.
    pub(crate) removed: Set,
    /// For each chunk, the containers that hold it.
    pub(crate) holders: [Set; CHUNKS],
}

impl Containers {
    /// Returns the chunks in any of these containers.
    pub(crate) fn chunks_in(&self, containers: Set) -> Set {
        chunks_of(self.holders, containers)
    }

    /// Returns the containers that hold any of these chunks.
    pub(crate) fn holding(&self, chunks: Set) -> Set {
        chunks.members().fold(Set::EMPTY, |all, chunk| all.or(self.holders[chunk]))
    }

    /// Makes every visible name durable.
    pub(crate) fn sync(&mut self) {
        self.unsynced = Set::EMPTY;
    }

    /// Links a container under a name that is not durable yet.
    pub(crate) fn link(&mut self, container: usize, chunks: Set) {
        self.visible = self.visible.with(container);
        self.unsynced = self.unsynced.with(container);
        for chunk in chunks.members() {
            self.holders[chunk] = self.holders[chunk].with(container);
        }
    }
}

fn chunks_of(table: [Set; CHUNKS], members: Set) -> Set {
    (0..CHUNKS).filter(|&chunk| !table[chunk].and(members).is_empty()).fold(Set::EMPTY, Set::with)
}

/// The name `begin` of a collection.
pub(crate) const BEGIN: u8 = 1;
/// The name `condemn` of a collection.
pub(crate) const CONDEMN: u8 = 2;
/// The name `final` of a collection.
pub(crate) const FINAL: u8 = 4;
/// The name `done` of a collection.
pub(crate) const DONE: u8 = 8;

/// The objects `gc/<n>/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Collection {
    /// Names that exist: [`BEGIN`], [`CONDEMN`], [`FINAL`], [`DONE`].
    pub(crate) names: u8,
    /// Those that are not durable yet.
    pub(crate) unsynced: u8,
    /// Containers that `condemn` lists.
    pub(crate) condemned: Set,
    /// Snapshots that `condemn` lists as marked.
    pub(crate) marked: Set,
    /// Containers that `final` lists.
    pub(crate) last: Set,
}

impl Collection {
    /// Returns true if the name exists.
    pub(crate) const fn has(self, name: u8) -> bool {
        self.names & name != 0
    }

    /// Returns true if the collection has begun and `final` does not exist.
    pub(crate) const fn is_open(self) -> bool {
        self.has(BEGIN) && self.names & (FINAL | DONE) == 0
    }

    /// Creates the name, which is not durable yet.
    pub(crate) fn link(&mut self, name: u8) {
        self.names |= name;
        self.unsynced |= name;
    }

    /// Makes all names durable.
    pub(crate) fn sync(&mut self) {
        self.unsynced = 0;
    }

    /// Returns the containers that this collection makes absent for a writer.
    pub(crate) const fn absent(self) -> Set {
        if self.has(DONE) {
            Set::EMPTY
        } else if self.has(FINAL) {
            self.last
        } else {
            self.condemned
        }
    }
}

/// A process that backs up. It also stands for `recover`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Writer {
    /// Number of its session.
    pub(crate) attempt: u8,
    pub(crate) step: WriterStep,
    /// The parent's recipe may be taken over (after W2).
    pub(crate) may_take: bool,
    /// From W2 to W3: absent containers. Where a variant lists before W2: the listing.
    pub(crate) absent: Set,
    /// Chunks that the parent's recipe has given without a look at the containers.
    pub(crate) taken: Set,
    /// From W3 to W4: chunks to store.
    pub(crate) missing: Set,
}

/// The last step that a writer has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum WriterStep {
    #[default]
    Idle,
    /// Variants only: something was read before the session.
    Early,
    /// W1
    Started,
    /// Variants only: something was read before W2.
    Between,
    /// W2
    Informed,
    /// W3
    Listed,
    /// W4, the container is visible.
    Stored,
    /// W4, everything that the snapshot refers to is durable.
    Ready,
    /// W5, the commit is visible.
    Linked,
    Finished,
}

/// A process that prunes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Collector {
    /// Number of its session.
    pub(crate) round: u8,
    pub(crate) step: CollectorStep,
    /// Number of its collection.
    pub(crate) number: u8,
    /// From the plan to the copy: chunks to copy.
    pub(crate) copy: Set,
    /// Snapshots that it has marked.
    pub(crate) marked: Set,
    /// Containers: what it wants to condemn, then what it wants to delete.
    pub(crate) chosen: Set,
    /// After C2 the sessions that have ended, after C7 those to wait for, after the listing of C8 the containers kept.
    pub(crate) seen: Set,
}

/// The last step that a collector has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum CollectorStep {
    #[default]
    Idle,
    /// C0
    Started,
    /// C1
    Joined,
    /// C2
    Marked,
    /// C3 to C5, a copy is to be made.
    Planned,
    /// C5, the copy is visible.
    Copied,
    /// C5, the copy is durable.
    Ready,
    /// Variants only: sessions were listed before C6.
    ListedEarly,
    /// C6, `condemn` is visible.
    Condemning,
    /// C6, `condemn` is durable.
    Condemned,
    /// C7, sessions are listed.
    Waiting,
    /// C7, all of them have ended.
    Waited,
    /// C8, containers are listed and their names durable.
    Relisted,
    /// C8, the final set is known.
    Resolved,
    /// C8, `final` is visible.
    Publishing,
    /// C8, `final` is durable.
    Deleting,
    /// C9, copies of what is whole only in condemned containers are visible.
    Rescuing,
    /// C9, the files are gone, but not durably.
    Deleted,
    /// C10
    Finished,
}

/// A process that restores the old snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Reader {
    pub(crate) step: ReaderStep,
    /// Containers of the last whole listing.
    pub(crate) view: Set,
    /// Containers of the listing that is in progress.
    pub(crate) listing: Set,
    /// Collections that had a `final` before its last listing began, once it has listed after a miss.
    pub(crate) finals: Option<Set>,
}

/// The last step that a reader has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum ReaderStep {
    #[default]
    Idle,
    /// It has listed the containers with even numbers, and the others are next.
    HalfEven,
    /// It has listed the containers with odd numbers, and the others are next.
    HalfOdd,
    /// It has a listing.
    Viewing,
    /// It has not found a chunk in what the listing named.
    Missed,
    /// It has read `gc/` after that, and is to list again.
    Refreshing,
    /// As [`ReaderStep::HalfEven`], in a refresh.
    AgainEven,
    /// As [`ReaderStep::HalfOdd`], in a refresh.
    AgainOdd,
    Finished,
}

/// Invariants that a single step can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Broken {
    /// A reader has reported a chunk missing that a root refers to.
    pub(crate) reader_missed: bool,
}

/// Returns the session of a writer.
pub(crate) fn writer_session(writer: usize, attempt: u8) -> usize {
    WRITERS_FROM + writer * ATTEMPTS + usize::from(attempt)
}

/// Returns the session of a collector.
pub(crate) fn collector_session(collector: usize, round: u8) -> usize {
    COLLECTORS_FROM + collector * ROUNDS + usize::from(round)
}

impl State {
    /// Returns the state before the first step.
    ///
    /// With one chunk, the old snapshot refers to it and two containers hold it. With two chunks, the first container
    /// holds both, the second the other one, and the old snapshot refers to the first: so copying forward has a reason.
    pub fn initial(chunks: usize) -> Self {
        let mut state = Self::default();
        state.sessions.committed = Set::one(0);
        state.sessions.acknowledged = Set::one(0);
        state.sessions.ended = Set::one(1);
        state.sessions.refs[0] = Set::one(0);
        state.containers.visible = Set::of(&[0, 1]);
        if chunks == 1 {
            state.containers.holders[0] = Set::of(&[0, 1]);
        } else {
            state.containers.holders = [Set::one(0), Set::of(&[0, 1])];
        }
        state
    }

    /// Returns containers that collections other than this one are deleting: named by a `final` without `done`.
    pub(crate) fn going(&self, except: usize) -> Set {
        let others = self.collections.iter().enumerate().filter(|&(number, _)| number != except);
        others.filter(|(_, one)| one.has(FINAL) && !one.has(DONE)).fold(Set::EMPTY, |all, (_, one)| all.or(one.last))
    }

    /// Returns collections that have a `final`.
    pub(crate) fn finals(&self) -> Set {
        let numbers = (0..COLLECTIONS).filter(|&number| self.collections[number].has(FINAL));
        numbers.fold(Set::EMPTY, Set::with)
    }

    /// Drops what no later step can read, so that states that behave the same are equal.
    ///
    /// Names are never used again, so a container that is durably gone leaves all sets. An ended session without a
    /// container matters only to the writer that is still in it.
    pub(crate) fn normalize(&mut self) {
        let mut existing = self.containers.visible.or(self.containers.removed);
        // Variants only: a listing that is older than the deletion of what it names.
        for writer in self.writers.iter().filter(|writer| writer.step == WriterStep::Between) {
            existing = existing.or(writer.absent);
        }
        self.containers.holders = self.containers.holders.map(|holders| holders.and(existing));
        let mut current = existing;
        for (number, writer) in self.writers.iter_mut().enumerate() {
            if writer.step == WriterStep::Finished {
                *writer = Writer { attempt: writer.attempt, step: WriterStep::Finished, ..Writer::default() };
            } else {
                current = current.with(writer_session(number, writer.attempt));
            }
        }
        self.sessions.ended = self.sessions.ended.and(current);
        self.sessions.fence_unsynced = self.sessions.fence_unsynced.and(self.sessions.ended);
        let committed = self.sessions.committed;
        for collection in &mut self.collections {
            let is_over = collection.has(DONE);
            let is_final = is_over || collection.has(FINAL) && collection.unsynced & FINAL == 0;
            let keep = |set: Set, kept: Set, unless: bool| if unless { Set::EMPTY } else { set.and(kept) };
            collection.condemned = keep(collection.condemned, existing, is_final);
            collection.marked = keep(collection.marked, committed, is_final);
            collection.last = keep(collection.last, existing, is_over);
        }
        for collector in &mut self.collectors {
            collector.chosen = collector.chosen.and(existing);
            if collector.step == CollectorStep::Relisted {
                collector.seen = collector.seen.and(existing);
            }
        }
    }
}
