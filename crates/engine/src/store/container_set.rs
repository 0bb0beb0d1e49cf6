//! The containers of a repository, in memory that hardly grows with them.
//!
//! Containers have dense numbers in the order of their ids. Memory holds a few bytes for each *run*: containers of one
//! session and one kind with consecutive ordinals, listed one after the other. A session writes a metadata container for
//! many data containers, so there are two runs for each metadata container. Checksums and lengths are in a spilled array, in
//! the order of the listing.

use std::sync::Arc;

use crate::bitmap::Bitmap;
use crate::error::{Error, Result};
use crate::io::Host;
use crate::object::names::{ContainerKind, ContainerName};
use crate::spill::SpillArray;
use crate::store::container_ids::ContainerIds;
pub(crate) use crate::store::container_runs::RunCursor;
use crate::store::container_runs::{Arrival, ContainerRuns};
use crate::store::scratch::Scratch;
use crate::types::{ContainerId, SessionId};

/// Bytes of a spilled record: the checksum in the name, and the length of the object.
const RECORD_LEN: usize = 32 + 8;

/// Number of a container in a [`ContainerSet`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ContainerNumber(pub(crate) u32);

/// Builds a set from names in any order; their order decides how many runs there are.
#[derive(Debug)]
pub(crate) struct ContainerSetBuilder {
    arrived: Vec<Arrival>,
    records: SpillArray<RECORD_LEN>,
}

impl ContainerSetBuilder {
    /// Starts without containers.
    pub(crate) fn new(host: &Arc<dyn Host>, scratch: &Scratch) -> Self {
        Self { arrived: Vec::new(), records: scratch.array(host, "names of containers") }
    }

    /// Adds a container and the length of its object.
    pub(crate) fn push(&mut self, name: &ContainerName, len: u64) -> Result<()> {
        let arrival =
            u32::try_from(self.records.len()).ok().and_then(|position| Arrival::new(name.id, name.kind, position));
        let arrival = arrival.ok_or_else(|| Error::invalid("a repository of more than 2,147,483,648 containers"))?;
        let mut record = [0; RECORD_LEN];
        let (checksum, length) = record.split_at_mut(name.checksum.len());
        checksum.copy_from_slice(&name.checksum);
        length.copy_from_slice(&len.to_le_bytes());
        self.records.push(record)?;
        if !self.arrived.last_mut().is_some_and(|last| last.extend(&arrival)) {
            self.arrived.push(arrival);
        }
        Ok(())
    }

    /// Numbers the containers.
    pub(crate) fn finish(mut self) -> Result<ContainerSet> {
        self.records.finish()?;
        Ok(ContainerSet { runs: ContainerRuns::new(self.arrived), records: self.records })
    }
}

/// Listed containers.
#[derive(Default, Debug)]
pub struct ContainerSet {
    runs: ContainerRuns,
    records: SpillArray<RECORD_LEN>,
}

impl ContainerSet {
    fn record(&self, number: ContainerNumber) -> Result<(ContainerName, u64)> {
        let (id, kind, position) = self.runs.get(number.0).expect("numbers come from this set");
        let record = self.records.get(position as usize)?;
        let (checksum, len) = record.split_first_chunk().expect("a record begins with a checksum");
        let len = u64::from_le_bytes(*len.first_chunk().expect("a record ends with a length"));
        Ok((ContainerName { id, kind, checksum: *checksum }, len))
    }
}

/// Containers of a repository: those of a listing but some. Cheap to clone.
#[derive(Clone, Default, Debug)]
pub struct Containers {
    set: Arc<ContainerSet>,
    /// Numbers of those left out.
    absent: Arc<Bitmap>,
    len: usize,
}

impl From<ContainerSet> for Containers {
    fn from(set: ContainerSet) -> Self {
        let len = set.runs.len() as usize;
        Self { set: Arc::new(set), absent: Arc::default(), len }
    }
}

impl Containers {
    /// Returns how many containers there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the number after the greatest one of the listing.
    pub(crate) fn numbers_end(&self) -> u32 {
        self.set.runs.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns these containers but those with the given ids.
    pub(crate) fn without(&self, ids: &ContainerIds) -> Self {
        let mut cursor = ids.cursor();
        self.retain(|_, id| !cursor.contains(id))
    }

    /// Returns these containers but those for which `keeps` returns false.
    pub(crate) fn retain(&self, mut keeps: impl FnMut(ContainerNumber, ContainerId) -> bool) -> Self {
        let mut absent: Option<Bitmap> = None;
        let mut len = self.len;
        for (number, id) in self.iter() {
            if !keeps(number, id) {
                absent.get_or_insert_with(|| Bitmap::clone(&self.absent)).insert(number.0);
                len -= 1;
            }
        }
        let absent = absent.map_or_else(|| Arc::clone(&self.absent), Arc::new);
        Self { set: Arc::clone(&self.set), absent, len }
    }

    /// Returns the number of a container. Of several with the same id, which is damage, returns any.
    pub fn find(&self, id: ContainerId) -> Option<ContainerNumber> {
        self.find_near(id, &mut RunCursor::default())
    }

    /// Returns the number of a container, which is found at once in the run that was found last.
    pub(crate) fn find_near(&self, id: ContainerId, near: &mut RunCursor) -> Option<ContainerNumber> {
        self.set.runs.find(id, near).filter(|number| !self.absent.contains(*number)).map(ContainerNumber)
    }

    /// Returns true if a container is one of these.
    pub fn contains(&self, id: ContainerId) -> bool {
        self.find(id).is_some()
    }

    /// Returns the name of a container. May read from the disk of temporary files.
    pub fn name(&self, number: ContainerNumber) -> Result<ContainerName> {
        self.set.record(number).map(|(name, _)| name)
    }

    /// Returns the kind of a container.
    pub(crate) fn kind(&self, number: ContainerNumber) -> ContainerKind {
        let (_, kind, _) = self.set.runs.get(number.0).expect("numbers come from this set");
        kind
    }

    /// Returns the name of a container and the length that was listed.
    pub(crate) fn sized(&self, number: ContainerNumber) -> Result<(ContainerName, u64)> {
        self.set.record(number)
    }

    /// Returns all containers in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (ContainerNumber, ContainerId)> {
        self.of_kinds(None)
    }

    /// Returns the numbers of all containers in the order of their ids.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = ContainerNumber> {
        self.iter().map(|(number, _)| number)
    }

    /// Returns the numbers of all containers of a kind, in the order of their ids.
    pub(crate) fn of_kind(&self, kind: ContainerKind) -> impl Iterator<Item = ContainerNumber> {
        self.of_kinds(Some(kind)).map(|(number, _)| number)
    }

    fn of_kinds(&self, kind: Option<ContainerKind>) -> impl Iterator<Item = (ContainerNumber, ContainerId)> {
        let all = self.set.runs.iter().filter(move |run| kind.is_none_or(|kind| kind == run.kind));
        let numbered = all.flat_map(|run| {
            (0..run.len).map(move |step| {
                let id = ContainerId { session: run.session, ordinal: run.ordinal + step };
                (ContainerNumber(run.number + step), id)
            })
        });
        numbered.filter(|(number, _)| !self.absent.contains(number.0))
    }

    /// Returns the names of all containers in the order of their ids. May read from the disk of temporary files.
    pub fn names(&self) -> impl Iterator<Item = Result<ContainerName>> {
        self.iter().map(|(number, _)| self.name(number))
    }

    /// Returns the sessions that wrote these containers, sorted.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        let mut last = None;
        self.iter().map(|(_, id)| id.session).filter(move |session| last.replace(*session) != Some(*session))
    }

    /// Returns the ordinal after the last one of a session in the listing, 0 if it has none.
    pub(crate) fn ordinals_end(&self, session: SessionId) -> u32 {
        let ends = self.set.runs.iter_session(session).map(|run| run.ordinal.saturating_add(run.len));
        ends.max().unwrap_or(0)
    }

    /// Returns the memory of the containers, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.set.runs.memory_bytes() + self.set.records.memory_bytes() + self.absent.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::SplitMix64;
    use crate::testing::sim::{SimDisk, SimHost};

    fn scratch() -> Scratch {
        Scratch { disk: Some(Arc::new(SimDisk::new())), dir: "".into() }
    }

    fn name(session: u32, ordinal: u32, kind: ContainerKind, salt: u8) -> ContainerName {
        let session = SessionId(*blake3::hash(&session.to_le_bytes()).as_bytes().first_chunk().unwrap());
        let id = ContainerId { session, ordinal };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&id.session.0).update(&ordinal.to_le_bytes()).update(&[salt]);
        ContainerName { id, kind, checksum: hasher.finalize().into() }
    }

    /// A container with the length of its file.
    type Sized = (ContainerName, u64);

    fn set_of(names: &[Sized], scratch: &Scratch) -> Containers {
        let host: Arc<dyn Host> = Arc::new(SimHost::new(1));
        let mut builder = ContainerSetBuilder::new(&host, scratch);
        for (name, len) in names {
            builder.push(name, *len).unwrap();
        }
        builder.finish().unwrap().into()
    }

    /// Names of one session as a directory lists them: data before metadata, with gaps.
    fn session_of(session: u32, count: u32, random: &mut SplitMix64) -> Vec<Sized> {
        let is_gap = |random: &mut SplitMix64| random.below(50) == 0;
        let ordinals: Vec<u32> = (0..count).filter(|_| !is_gap(random)).collect();
        let is_metadata = |ordinal: &u32| ordinal % 64 == 63;
        let data = ordinals.iter().filter(|ordinal| !is_metadata(ordinal)).map(|o| (*o, ContainerKind::Data));
        let metadata = ordinals.iter().filter(|o| is_metadata(o)).map(|o| (*o, ContainerKind::Metadata));
        let names = data.chain(metadata).map(|(ordinal, kind)| (name(session, ordinal, kind, 0), u64::from(ordinal)));
        names.collect()
    }

    fn assert_same(set: &Containers, expected: &[Sized]) {
        let mut sorted = expected.to_vec();
        sorted.sort_unstable_by_key(|(name, _)| (name.id, name.kind));
        let found: Vec<Sized> = set.iter().map(|(number, _)| set.sized(number).unwrap()).collect();
        assert!(found == sorted, "the names come back in the order of ids");
        assert_eq!(set.len(), sorted.len());
        let mut near = RunCursor::default();
        for (name, _) in expected {
            let number = set.find(name.id).unwrap();
            assert_eq!(set.find_near(name.id, &mut near), Some(number));
            assert_eq!(set.name(number).unwrap().id, name.id);
        }
        let metadata: Vec<_> = set.of_kind(ContainerKind::Metadata).map(|number| set.name(number).unwrap()).collect();
        assert!(metadata.iter().all(|name| name.kind == ContainerKind::Metadata));
        assert_eq!(metadata.len(), sorted.iter().filter(|(name, _)| name.kind == ContainerKind::Metadata).count());
    }

    #[test]
    fn names_and_lengths_come_back_whatever_the_order_of_the_listing() {
        let mut random = SplitMix64::new(1);
        for (sessions, containers) in [(0, 0), (1, 1), (30, 100), (3, 10_000)] {
            let mut names: Vec<Sized> =
                (0..sessions).flat_map(|session| session_of(session, containers, &mut random)).collect();
            assert_same(&set_of(&names, &scratch()), &names);
            assert_same(&set_of(&names, &Scratch::default()), &names);
            for index in (1..names.len()).rev() {
                names.swap(index, usize::try_from(random.below(index as u64 + 1)).unwrap());
            }
            assert_same(&set_of(&names, &scratch()), &names);
        }
    }

    #[test]
    fn containers_that_are_not_there_are_not_found() {
        let names: Vec<Sized> =
            [2, 3, 4, 7].map(|ordinal| (name(1, ordinal, ContainerKind::Data, 0), 0)).into_iter().collect();
        let set = set_of(&names, &Scratch::default());
        for ordinal in [0, 1, 5, 6, 8, u32::MAX] {
            assert_eq!(set.find(name(1, ordinal, ContainerKind::Data, 0).id), None);
        }
        for session in [0, 2, 3, 4, 5] {
            assert!(!set.contains(name(session, 3, ContainerKind::Data, 0).id));
        }
    }

    #[test]
    fn every_container_of_an_id_that_several_have_is_in_the_set() {
        let mut random = SplitMix64::new(2);
        for _ in 0..200 {
            let mut names: BTreeMap<ContainerName, u64> = BTreeMap::new();
            for _ in 0..random.below(40) {
                let kind = if random.below(2) == 0 { ContainerKind::Data } else { ContainerKind::Metadata };
                let salt = u8::try_from(random.below(2)).unwrap();
                names.insert(name(1, u32::try_from(random.below(12)).unwrap(), kind, salt), random.below(100));
            }
            let mut listed: Vec<Sized> = names.iter().map(|(name, len)| (*name, *len)).collect();
            listed.sort_by_key(|(name, _)| (name.kind, name.id, name.checksum));
            let set = set_of(&listed, &Scratch::default());
            let mut found: Vec<Sized> = set.iter().map(|(number, _)| set.sized(number).unwrap()).collect();
            assert!(found.is_sorted_by_key(|(name, _)| name.id));
            for (name, _) in &listed {
                assert_eq!(set.name(set.find(name.id).unwrap()).unwrap().id, name.id);
            }
            found.sort_unstable();
            assert!(found.into_iter().eq(names), "each name once");
        }
    }

    #[test]
    fn what_is_left_out_is_not_found_and_not_listed() {
        let mut random = SplitMix64::new(3);
        let names = session_of(1, 1000, &mut random);
        let all = set_of(&names, &Scratch::default());
        let gone: Vec<ContainerId> = names.iter().map(|(name, _)| name.id).filter(|id| id.ordinal % 3 == 0).collect();
        let rest = all.without(&gone.iter().rev().copied().collect());
        assert_eq!(rest.len() + gone.len(), all.len());
        for (name, _) in &names {
            assert_eq!(rest.contains(name.id), name.id.ordinal % 3 != 0);
        }
        let kept: Vec<ContainerId> = rest.iter().map(|(_, id)| id).collect();
        assert_eq!(kept.len(), rest.len());
        assert!(kept.iter().all(|id| id.ordinal % 3 != 0));
        let none = rest.retain(|_, _| false);
        assert!(none.is_empty() && none.iter().next().is_none() && none.sessions().next().is_none());
        assert_eq!(rest.sessions().count(), 1);
    }

    #[test]
    fn two_million_containers_take_a_byte_each_of_memory() {
        let host: Arc<dyn Host> = Arc::new(SimHost::new(1));
        let mut builder = ContainerSetBuilder::new(&host, &scratch());
        let (sessions, containers) = (200, 10_000);
        for session in 0..sessions {
            let is_metadata = |ordinal: &u32| ordinal % 64 == 63;
            for ordinal in (0..containers).filter(|ordinal| !is_metadata(ordinal)) {
                builder.push(&name(session, ordinal, ContainerKind::Data, 0), 4 << 20).unwrap();
            }
            for ordinal in (0..containers).filter(is_metadata) {
                builder.push(&name(session, ordinal, ContainerKind::Metadata, 0), 1 << 20).unwrap();
            }
        }
        let containers_of_all: Containers = builder.finish().unwrap().into();
        assert_eq!(containers_of_all.len(), 2_000_000);
        assert!(containers_of_all.memory_bytes() < 2_000_000, "{}", containers_of_all.memory_bytes());
        let mut random = SplitMix64::new(4);
        for _ in 0..100_000 {
            let session = u32::try_from(random.below(u64::from(sessions))).unwrap();
            let ordinal = u32::try_from(random.below(u64::from(containers))).unwrap();
            let id = name(session, ordinal, ContainerKind::Data, 0).id;
            assert!(containers_of_all.contains(id));
        }
        let wanted = name(17, 4_242, ContainerKind::Data, 0);
        let number = containers_of_all.find(wanted.id).unwrap();
        assert_eq!(containers_of_all.sized(number).unwrap(), (wanted, 4 << 20));
    }
}
