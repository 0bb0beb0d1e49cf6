//! The final choice of the containers that a collection deletes (step C8 of docs/protocol.md).
//!
//! Everything before it proposes: hints, the index, the first mark and the plan. This function alone decides, from
//! directories that were opened and authenticated in this run and from what snapshots reach.

use crate::bitmap::Bitmap;
use crate::error::Result;
use crate::snapshot::TARGETS_MAX;
use crate::types::Fingerprint;

/// A condemned container by its number, with its chunks. A chunk without a fingerprint is one whose name is not known.
pub type CondemnedContainer = (u32, Vec<Option<Fingerprint>>);

/// What a collection may delete.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settled {
    /// Containers that may be deleted: the set that `final` names.
    pub deleted: Vec<u32>,
    /// Condemned containers that stay.
    pub rescued: Vec<u32>,
    /// Locations of the reached chunks of the deleted containers.
    pub moved: Moved,
    /// Kept containers whose copies were found for a condemned one.
    pub(super) relied_upon: Bitmap,
}

impl Settled {
    /// Lets containers stay that others depend on.
    pub(super) fn rescue(&mut self, needed: &Bitmap) {
        let (rescued, deleted) =
            std::mem::take(&mut self.deleted).into_iter().partition(|number| needed.contains(*number));
        let rescued: Vec<u32> = rescued;
        self.deleted = deleted;
        self.rescued.extend(rescued);
        let mut moved = Moved::default();
        for (container, targets) in self.moved.iter().filter(|(container, _)| !needed.contains(*container)) {
            moved.targets.extend(targets);
            moved.containers.push((container, moved.targets.len()));
        }
        self.moved = moved;
    }
}

/// The containers that now hold the reached chunks of deleted ones. A list of lists in two allocations: a collection may
/// delete 2^18 containers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Each deleted container with reached chunks, and where its targets end.
    containers: Vec<(u32, usize)>,
    targets: Vec<u32>,
}

impl Moved {
    /// Returns each deleted container with the containers that hold its reached chunks. An empty list: there are more than
    /// [`TARGETS_MAX`].
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u32])> {
        let starts = std::iter::once(0).chain(self.containers.iter().map(|(_, end)| *end));
        self.containers
            .iter()
            .zip(starts)
            .map(|((container, end), start)| (*container, self.targets.get(start..*end).unwrap_or_default()))
    }

    /// Returns the containers that hold the reached chunks of a deleted one; `None` if it has none. Numbers must ascend.
    pub(super) fn of(&self, container: u32) -> Option<&[u32]> {
        let at = self.containers.binary_search_by_key(&container, |(number, _)| *number).ok()?;
        let start = at.checked_sub(1).and_then(|before| self.containers.get(before)).map_or(0, |(_, end)| *end);
        self.targets.get(start..self.containers.get(at)?.1)
    }

    fn push(&mut self, container: u32, targets: &Targets) {
        if let Targets::Listed(listed) = targets {
            self.targets.extend(listed);
        }
        self.containers.push((container, self.targets.len()));
    }
}

/// Containers that hold the reached chunks of one condemned container.
enum Targets {
    /// In the order of the chunks.
    Listed(Vec<u32>),
    /// More than [`TARGETS_MAX`].
    Everywhere,
}

/// Decides which condemned containers may be deleted, and where their reached chunks are then.
///
/// `condemned` are all containers of the collection, from their own directories. `reached` returns true if a snapshot reaches
/// a chunk; it may err towards true. `kept` returns a container that holds a sound copy of a chunk and stays. Condemned
/// containers never stay, nor does what another `final` names, nor what could not be opened.
///
/// A condemned container is rescued if a reached chunk of it has no kept copy, or if the name of a chunk is not known.
///
/// # Panics
///
/// If `kept` has returned a condemned container: deleting both copies of a chunk would lose it.
pub fn settle(
    condemned: &mut dyn Iterator<Item = Result<CondemnedContainer>>,
    reached: &mut dyn FnMut(&Fingerprint) -> Result<bool>,
    kept: &mut dyn FnMut(&Fingerprint) -> Result<Option<u32>>,
) -> Result<Settled> {
    let mut settled = Settled::default();
    let mut relied_upon = Bitmap::default();
    for container in condemned {
        let (number, chunks) = container?;
        let mut kept = |chunk: &Fingerprint| {
            let copy = kept(chunk)?;
            if let Some(copy) = copy {
                relied_upon.insert(copy);
            }
            Ok(copy)
        };
        match targets_of(&chunks, reached, &mut kept)? {
            None => settled.rescued.push(number),
            Some(targets) => {
                settled.deleted.push(number);
                if !matches!(&targets, Targets::Listed(listed) if listed.is_empty()) {
                    settled.moved.push(number, &targets);
                }
            }
        }
    }
    for number in settled.deleted.iter().chain(&settled.rescued) {
        assert!(!relied_upon.contains(*number), "condemned container {number} counts as kept");
    }
    settled.relied_upon = relied_upon;
    Ok(settled)
}

/// Returns where the reached chunks of a condemned container are kept; `None` if one of them is not.
fn targets_of(
    chunks: &[Option<Fingerprint>],
    reached: &mut dyn FnMut(&Fingerprint) -> Result<bool>,
    kept: &mut dyn FnMut(&Fingerprint) -> Result<Option<u32>>,
) -> Result<Option<Targets>> {
    let mut targets = Targets::Listed(Vec::new());
    for chunk in chunks {
        let Some(fingerprint) = chunk else { return Ok(None) };
        if !reached(fingerprint)? {
            continue;
        }
        let Some(copy) = kept(fingerprint)? else { return Ok(None) };
        if let Targets::Listed(listed) = &mut targets
            && !listed.contains(&copy)
        {
            if listed.len() == TARGETS_MAX {
                targets = Targets::Everywhere;
            } else {
                listed.push(copy);
            }
        }
    }
    Ok(Some(targets))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::error::Error;
    use crate::random::SplitMix64;

    fn chunk(number: usize) -> Fingerprint {
        Fingerprint([u8::try_from(number).unwrap(); 32])
    }

    fn number_of(fingerprint: &Fingerprint) -> usize {
        fingerprint.0[0].into()
    }

    /// What may happen to a container in a collection.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Fate {
        Condemned,
        Stays,
        /// Named by another `final`, quarantined, or not to be opened.
        Unusable,
    }

    /// A repository: what is true, and what those who propose say about it.
    #[derive(Debug)]
    struct World {
        /// Fate and chunks of each container; a damaged chunk has no name.
        containers: Vec<(Fate, Vec<Option<usize>>)>,
        /// True contents of each container.
        contents: Vec<Vec<usize>>,
        /// Chunks that snapshots reach.
        reached: BTreeSet<usize>,
        /// Chunks that are taken for reached.
        marked: BTreeSet<usize>,
        /// Containers in which each chunk is looked for, true or not, in this order.
        hints: Vec<Vec<usize>>,
    }

    /// Containers that are deleted, those that are rescued, and the targets of each deleted one.
    type Expected = (Vec<u32>, Vec<u32>, Vec<(u32, Vec<u32>)>);

    impl World {
        fn random(random: &mut SplitMix64) -> Self {
            let (containers, chunks) = (1 + random.index(9), 1 + random.index(6));
            let contents: Vec<Vec<usize>> =
                (0..containers).map(|_| (0..random.index(5)).map(|_| random.index(chunks)).collect()).collect();
            let damage = 1 + random.index(20);
            let containers = contents.iter().map(|content| {
                let fate = [Fate::Condemned, Fate::Condemned, Fate::Stays, Fate::Unusable][random.index(4)];
                (fate, content.iter().map(|chunk| (random.index(20) != damage).then_some(*chunk)).collect())
            });
            let containers: Vec<_> = containers.collect();
            let reached: BTreeSet<usize> = (0..chunks).filter(|_| random.coin()).collect();
            let marked = (0..chunks).filter(|chunk| reached.contains(chunk) || random.index(4) == 0).collect();
            let hints = (0..chunks).map(|_| (0..random.index(12)).map(|_| random.index(containers.len())).collect());
            let hints = hints.collect();
            Self { containers, contents, reached, marked, hints }
        }

        /// Returns a kept copy as a caller finds it: hints propose, directories decide.
        fn kept(&self, chunk: usize) -> Option<usize> {
            let stays = |number: &&usize| {
                let (fate, chunks) = &self.containers[**number];
                *fate == Fate::Stays && chunks.contains(&Some(chunk))
            };
            self.hints[chunk].iter().find(stays).copied()
        }

        fn settle(&self) -> Settled {
            let condemned = self.containers.iter().enumerate().filter(|(_, (fate, _))| *fate == Fate::Condemned);
            let mut condemned = condemned.map(|(number, (_, chunks))| {
                Ok((u32::try_from(number).unwrap(), chunks.iter().map(|name| name.map(chunk)).collect()))
            });
            let mut reached = |fingerprint: &Fingerprint| Ok(self.marked.contains(&number_of(fingerprint)));
            let mut kept =
                |fingerprint: &Fingerprint| Ok(self.kept(number_of(fingerprint)).map(|at| u32::try_from(at).unwrap()));
            settle(&mut condemned, &mut reached, &mut kept).unwrap()
        }

        /// Returns the condemned containers that may go by the rule, and where their chunks are.
        fn expected(&self) -> Expected {
            let (mut deleted, mut rescued, mut moved) = (Vec::new(), Vec::new(), Vec::new());
            for (at, (_, chunks)) in
                self.containers.iter().enumerate().filter(|(_, (fate, _))| *fate == Fate::Condemned)
            {
                let number = u32::try_from(at).unwrap();
                let needed: Vec<Option<usize>> = chunks
                    .iter()
                    .filter(|name| name.is_none_or(|chunk| self.marked.contains(&chunk)))
                    .copied()
                    .collect();
                let copies: Vec<Option<usize>> =
                    needed.iter().map(|name| name.and_then(|chunk| self.kept(chunk))).collect();
                if copies.contains(&None) {
                    rescued.push(number);
                    continue;
                }
                deleted.push(number);
                let mut targets: Vec<u32> = Vec::new();
                for copy in copies.into_iter().flatten().map(|copy| u32::try_from(copy).unwrap()) {
                    if !targets.contains(&copy) {
                        targets.push(copy);
                    }
                }
                if !targets.is_empty() {
                    moved.push((number, targets));
                }
            }
            (deleted, rescued, moved)
        }

        /// Asserts that each reached chunk that could be read from a usable container still can.
        fn assert_nothing_is_lost(&self, settled: &Settled) {
            for chunk in &self.reached {
                let holds = |number: &usize| {
                    self.containers[*number].0 != Fate::Unusable && self.contents[*number].contains(chunk)
                };
                let before: Vec<usize> = (0..self.containers.len()).filter(holds).collect();
                let is_left = |number: &usize| !settled.deleted.contains(&u32::try_from(*number).unwrap());
                assert!(
                    before.is_empty() || before.iter().any(is_left),
                    "chunk {chunk} is lost: {settled:?} of {self:?}"
                );
            }
        }
    }

    #[test]
    fn no_reached_chunk_is_lost_and_no_container_stays_without_a_reason() {
        let (mut deleted, mut rescued, mut moved) = (0, 0, 0);
        let rounds = if cfg!(feature = "slow") { 1_000_000 } else { 50_000 };
        for seed in 0..rounds {
            let world = World::random(&mut SplitMix64::new(seed));
            let settled = world.settle();
            let expected = world.expected();
            world.assert_nothing_is_lost(&settled);
            let moves: Vec<(u32, Vec<u32>)> =
                settled.moved.iter().map(|(container, targets)| (container, targets.to_vec())).collect();
            assert_eq!((&settled.deleted, &settled.rescued, &moves), (&expected.0, &expected.1, &expected.2));
            for number in (0..).take(world.containers.len()) {
                let targets = moves.iter().find(|(container, _)| *container == number).map(|(_, targets)| &targets[..]);
                assert_eq!(settled.moved.of(number), targets, "seed {seed}, container {number}");
            }
            deleted += settled.deleted.len();
            rescued += settled.rescued.len();
            moved += moves.len();
        }
        let rounds = usize::try_from(rounds).unwrap();
        assert!(rounds / 2 < deleted && rounds / 2 < rescued && rounds / 20 < moved, "{deleted}, {rescued}, {moved}");
    }

    /// Settles containers with these chunks, all of them reached; chunk n is kept in container 100 + n if n is below a number.
    fn settle_reached(containers: &[&[Option<usize>]], kept_below: usize) -> Settled {
        let mut condemned = (0..).zip(containers).map(|(number, chunks): (u32, &&[Option<usize>])| {
            Ok((number, chunks.iter().map(|name| name.map(chunk)).collect()))
        });
        let mut kept = |fingerprint: &Fingerprint| {
            let chunk = number_of(fingerprint);
            Ok((chunk < kept_below).then(|| 100 + u32::try_from(chunk).unwrap()))
        };
        settle(&mut condemned, &mut |_| Ok(true), &mut kept).unwrap()
    }

    #[test]
    fn more_targets_than_are_listed_mean_everywhere() {
        let names: Vec<Option<usize>> = (0..20).map(Some).collect();
        let settled = settle_reached(&[&names[..8], &names[..9], &names[..20], &[Some(3), Some(2), Some(3)], &[]], 20);
        assert_eq!((settled.deleted.as_slice(), settled.rescued.as_slice()), (&[0, 1, 2, 3, 4][..], &[][..]));
        let moved: Vec<(u32, &[u32])> = settled.moved.iter().collect();
        let first: Vec<u32> = (100..108).collect();
        assert_eq!(moved, [(0, first.as_slice()), (1, &[]), (2, &[]), (3, &[103, 102])]);
    }

    #[test]
    fn a_chunk_without_a_name_or_a_copy_rescues_its_container() {
        let settled = settle_reached(&[&[Some(0), None], &[Some(0), Some(5)], &[Some(0)], &[None]], 5);
        assert_eq!((settled.deleted.as_slice(), settled.rescued.as_slice()), (&[2][..], &[0, 1, 3][..]));
        assert_eq!(settled.moved.iter().collect::<Vec<_>>(), [(2, &[100][..])]);
    }

    #[test]
    fn equal_copies_in_condemned_containers_rescue_each_other() {
        let settled = settle_reached(&[&[Some(7)], &[Some(7)]], 5);
        assert_eq!((settled.deleted.as_slice(), settled.rescued.as_slice()), (&[][..], &[0, 1][..]));
    }

    #[test]
    fn an_error_of_any_input_ends_it() {
        let failure = || Error::invalid("failure");
        let container = || (1, vec![Some(chunk(1))]);
        let settled = |condemned: Result<CondemnedContainer>, reached: Result<bool>, kept: Result<Option<u32>>| {
            let mut first = std::iter::once(condemned);
            settle(&mut first, &mut |_| reached.clone(), &mut |_| kept.clone())
        };
        assert!(settled(Err(failure()), Ok(true), Ok(Some(2))).is_err());
        assert!(settled(Ok(container()), Err(failure()), Ok(Some(2))).is_err());
        assert!(settled(Ok(container()), Ok(true), Err(failure())).is_err());
        assert_eq!(settled(Ok(container()), Ok(true), Ok(Some(2))).unwrap().deleted, [1]);
        // A chunk that is not reached is not looked for.
        assert_eq!(settled(Ok(container()), Ok(false), Err(failure())).unwrap().deleted, [1]);
    }

    #[test]
    #[should_panic(expected = "condemned container 64 counts as kept")]
    fn a_condemned_container_never_counts_as_kept() {
        let mut condemned = [(3, vec![Some(chunk(1))]), (64, Vec::new())].into_iter().map(Ok);
        let _ = settle(&mut condemned, &mut |_| Ok(true), &mut |_| Ok(Some(64)));
    }

    #[test]
    #[should_panic(expected = "condemned container 5 counts as kept")]
    fn not_even_one_that_is_rescued() {
        let mut condemned = [(3, vec![Some(chunk(1))]), (5, vec![None])].into_iter().map(Ok);
        let _ = settle(&mut condemned, &mut |_| Ok(true), &mut |_| Ok(Some(5)));
    }
}
