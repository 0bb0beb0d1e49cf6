//! Sets of container ids, as runs of consecutive ordinals.

use crate::types::{ContainerId, SessionId};

/// Containers that a collection condemns at most: a terabyte of 4 MiB each. A session reads the lists of running collections
/// before it lists containers. One list has 5.8 MB, of which two copies are held while it is opened, and then takes at most
/// 6.3 MB as runs. A longer list of another program is read all the same.
pub(crate) const CONDEMNED_MAX: usize = 1 << 18;

/// Containers of one session with consecutive ordinals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct IdRun {
    session: SessionId,
    first: u32,
    last: u32,
}

/// Returns the key of a container in a spilled map. It is uniform, as the filters of the map need.
pub(crate) fn spill_key(container: ContainerId) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&container.session.0).update(&container.ordinal.to_le_bytes());
    hasher.finalize().into()
}

/// A set of container ids: 24 bytes for each run of consecutive ordinals.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ContainerIds {
    /// Sorted and disjoint once `sort` was called after the last `push`.
    runs: Vec<IdRun>,
}

impl ContainerIds {
    /// Adds an id. [`ContainerIds::sort`] ends the adding.
    pub(crate) fn push(&mut self, id: ContainerId) {
        match self.runs.last_mut() {
            Some(run) if run.session == id.session && run.last.checked_add(1) == Some(id.ordinal) => {
                run.last = id.ordinal;
            }
            _ => self.runs.push(IdRun { session: id.session, first: id.ordinal, last: id.ordinal }),
        }
    }

    /// Adds the ids of another set. [`ContainerIds::sort`] ends the adding.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.runs.append(&mut other.runs);
    }

    /// Sorts and joins what was added.
    pub(crate) fn sort(&mut self) {
        self.runs.sort_unstable();
        self.runs.dedup_by(|next, before| {
            let joins =
                before.session == next.session && before.last.checked_add(1).is_none_or(|end| next.first <= end);
            if joins {
                before.last = before.last.max(next.last);
            }
            joins
        });
        self.runs.shrink_to_fit();
    }

    /// Returns true if the set contains an id.
    pub(crate) fn contains(&self, id: ContainerId) -> bool {
        let after = self.runs.partition_point(|run| (run.session, run.first) <= (id.session, id.ordinal));
        let run = after.checked_sub(1).and_then(|at| self.runs.get(at));
        run.is_some_and(|run| run.session == id.session && id.ordinal <= run.last)
    }

    /// Returns true if the set contains an id of a session.
    pub(crate) fn has_session(&self, session: SessionId) -> bool {
        self.runs.binary_search_by_key(&session, |run| run.session).is_ok()
    }

    /// Returns the ids in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ContainerId> {
        let ids = |run: &IdRun| {
            let session = run.session;
            (run.first..=run.last).map(move |ordinal| ContainerId { session, ordinal })
        };
        self.runs.iter().flat_map(ids)
    }

    /// Starts a search for ids that come in ascending order.
    pub(crate) fn cursor(&self) -> IdCursor<'_> {
        IdCursor { runs: &self.runs }
    }
}

impl FromIterator<ContainerId> for ContainerIds {
    fn from_iter<I: IntoIterator<Item = ContainerId>>(ids: I) -> Self {
        let mut set = Self::default();
        ids.into_iter().for_each(|id| set.push(id));
        set.sort();
        set
    }
}

/// A search for ids in ascending order.
#[derive(Debug)]
pub(crate) struct IdCursor<'a> {
    runs: &'a [IdRun],
}

impl IdCursor<'_> {
    /// Returns true if the set contains an id, which must not be below the one before.
    pub(crate) fn contains(&mut self, id: ContainerId) -> bool {
        while let Some((run, rest)) = self.runs.split_first() {
            if (id.session, id.ordinal) <= (run.session, run.last) {
                return id.session == run.session && run.first <= id.ordinal;
            }
            self.runs = rest;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn ids_in_any_order_are_in_the_set_and_no_others() {
        let mut random = SplitMix64::new(1);
        let id = |session: u64, ordinal: u64| ContainerId {
            session: SessionId([u8::try_from(session).unwrap(); 16]),
            ordinal: match ordinal {
                59 => u32::MAX,
                ordinal => u32::try_from(ordinal).unwrap(),
            },
        };
        for _ in 0..300 {
            let count = random.below(100);
            let added: Vec<_> = (0..count).map(|_| id(random.below(4), random.below(60))).collect();
            let set: ContainerIds = added.iter().copied().collect();
            let model: BTreeSet<_> = added.into_iter().collect();
            assert_eq!(set.runs.is_empty(), model.is_empty());
            assert!(set.runs.is_sorted() && set.runs.len() <= model.len());
            assert!(set.iter().eq(model.iter().copied()));
            let mut cursor = set.cursor();
            for session in 0..5 {
                let has_session = model.iter().any(|member| member.session == id(session, 0).session);
                assert_eq!(set.has_session(id(session, 0).session), has_session);
                for ordinal in 0..60 {
                    let id = id(session, ordinal);
                    assert_eq!(cursor.contains(id), model.contains(&id), "{id}");
                    assert_eq!(set.contains(id), model.contains(&id), "{id}");
                }
            }
        }
        let id = |ordinal: u32| ContainerId { session: SessionId([1; 16]), ordinal };
        let scattered: ContainerIds = (0..CONDEMNED_MAX).map(|step| id(2 * u32::try_from(step).unwrap())).collect();
        assert!(scattered.runs.capacity() * size_of::<IdRun>() <= 6_300_000);
        let all: ContainerIds = (0..1000).map(|ordinal| ContainerId { session: SessionId([1; 16]), ordinal }).collect();
        assert_eq!(all.runs.len(), 1);
    }
}
