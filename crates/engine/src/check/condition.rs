//! The condition of each container, the finding about it, and the chunks that it names.
//!
//! References mostly come in the order in which chunks were stored, so that the next thousands are in the directory of
//! one container. Asking what a sound container names spares the spilled map of all chunks a read for each of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::lru::Lru;
use crate::types::{Chunk, ContainerId, Fingerprint};

/// Memory that a chunk of a directory takes here.
const CHUNK_BYTES: usize = 64;

/// Damage of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Condition {
    /// It can be read, but not believed as a whole: what it holds is looked up chunk by chunk.
    Faulty,
    /// Its chunks are lost by the finding of this number, unless another container holds them.
    Lost(usize),
}

/// The condition of every container, and what was last asked for of those that are sound.
#[derive(Debug)]
pub(super) struct Conditions {
    /// Those that are not sound.
    unsound: BTreeMap<ContainerId, Condition>,
    named: Lru<ContainerId, Arc<HashMap<Fingerprint, u32>>>,
    /// Room for what containers that are examined name.
    bytes_left: usize,
    last: Option<ContainerId>,
}

impl Conditions {
    /// Knows of no container that is not sound, and keeps what others name in so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { unsound: BTreeMap::new(), named: Lru::new(bytes_max), bytes_left: bytes_max, last: None }
    }

    /// Notes that a container has a fault.
    pub(super) fn fault(&mut self, id: ContainerId) {
        self.unsound.entry(id).or_insert(Condition::Faulty);
    }

    /// Notes that what a container held is lost by a finding.
    pub(super) fn lose(&mut self, id: ContainerId, finding: usize) {
        self.unsound.insert(id, Condition::Lost(finding));
    }

    /// Returns the finding by which what a container held is lost.
    pub(super) fn lost_by(&self, id: ContainerId) -> Option<usize> {
        match self.unsound.get(&id)? {
            Condition::Lost(finding) => Some(*finding),
            Condition::Faulty => None,
        }
    }

    /// Keeps what a container that was examined names, if there is room.
    pub(super) fn keep(&mut self, id: ContainerId, chunks: impl ExactSizeIterator<Item = Chunk>) {
        if let Some(left) = self.bytes_left.checked_sub(chunks.len() * CHUNK_BYTES) {
            self.bytes_left = left;
            self.insert(id, chunks);
        }
    }

    fn insert(&mut self, id: ContainerId, chunks: impl Iterator<Item = Chunk>) {
        let chunks: HashMap<_, _> = chunks.map(|chunk| (chunk.fingerprint, chunk.len)).collect();
        let bytes = chunks.len() * CHUNK_BYTES;
        self.named.insert(id, Arc::new(chunks), bytes);
    }

    /// Returns the length of a chunk if the container is sound and is known to hold it. One whose names are not kept any
    /// more is opened by `open` when a second reference in a row asks for it: scattered references would open one for
    /// each chunk.
    pub(crate) fn find(
        &mut self,
        id: ContainerId,
        fingerprint: &Fingerprint,
        open: impl FnOnce() -> Option<Vec<Chunk>>,
    ) -> Option<u32> {
        let is_again = self.last.replace(id) == Some(id);
        if self.unsound.contains_key(&id) {
            return None;
        }
        if self.named.get(&id).is_none() {
            let chunks = is_again.then(open).flatten()?;
            self.insert(id, chunks.into_iter());
        }
        self.named.get(&id)?.get(fingerprint).copied()
    }
}

/// State of a data chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Judged {
    /// The number of a container that holds it; `None`: one that has appeared meanwhile.
    Found(Option<u32>),
    /// The finding by which it cannot be restored.
    Lost(usize),
}

impl Judged {
    /// Returns the finding by which a chunk cannot be restored.
    pub(super) fn lost(self) -> Option<usize> {
        match self {
            Self::Found(_) => None,
            Self::Lost(finding) => Some(finding),
        }
    }

    /// Returns the number of a container that holds a chunk, if it is known.
    pub(super) fn found(self) -> Option<u32> {
        match self {
            Self::Found(number) => number,
            Self::Lost(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SessionId;

    const CHUNK: Fingerprint = Fingerprint([7; 32]);
    const NAMED: Chunk = Chunk { fingerprint: CHUNK, len: 5 };

    fn id(ordinal: u32) -> ContainerId {
        ContainerId { session: SessionId([1; 16]), ordinal }
    }

    fn never() -> Option<Vec<Chunk>> {
        panic!("opened again")
    }

    #[test]
    fn what_is_kept_of_a_container_is_found_without_opening_it_again() {
        let mut conditions = Conditions::new(CHUNK_BYTES);
        conditions.keep(id(0), [NAMED].into_iter());
        // Without room, what was kept before stays.
        conditions.keep(id(1), [NAMED].into_iter());
        assert_eq!(conditions.find(id(1), &CHUNK, never), None);
        assert_eq!(conditions.find(id(0), &CHUNK, never), Some(5));
        assert_eq!(conditions.find(id(0), &CHUNK, never), Some(5));
        assert_eq!(conditions.find(id(0), &Fingerprint([8; 32]), never), None);
    }

    #[test]
    fn a_container_is_opened_for_the_second_reference_in_a_row_and_once() {
        let mut conditions = Conditions::new(1000);
        for ordinal in [0, 1, 0, 1] {
            assert_eq!(conditions.find(id(ordinal), &CHUNK, never), None);
        }
        assert_eq!(conditions.find(id(1), &CHUNK, || Some(vec![NAMED])), Some(5));
        assert_eq!(conditions.find(id(0), &CHUNK, never), None);
        assert_eq!(conditions.find(id(1), &CHUNK, never), Some(5));
    }

    #[test]
    fn a_container_that_is_not_sound_is_not_asked_whatever_it_names() {
        let mut conditions = Conditions::new(1000);
        for ordinal in 0..3 {
            conditions.keep(id(ordinal), [NAMED].into_iter());
        }
        conditions.fault(id(0));
        conditions.lose(id(1), 9);
        conditions.fault(id(1));
        assert_eq!([0, 1, 2].map(|ordinal| conditions.find(id(ordinal), &CHUNK, never)), [None, None, Some(5)]);
        assert_eq!([0, 1, 2].map(|ordinal| conditions.lost_by(id(ordinal))), [None, Some(9), None]);
    }
}
