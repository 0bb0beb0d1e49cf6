//! Runs of containers: dense numbers in the order of ids.

use std::ops::Range;

use crate::object::names::ContainerKind;
use crate::types::{ContainerId, SessionId};

/// Bit of a position that marks metadata; the others hold the position. The number of containers is limited by them.
const METADATA: u32 = 1 << 31;

/// Containers of one session and kind with consecutive ordinals that arrived one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    first: ContainerId,
    len: u32,
    /// Place of the first in the order of arrival, with the kind.
    position: u32,
}

impl Arrival {
    /// Makes a run of one container; `None` if there is no such position.
    pub(super) fn new(first: ContainerId, kind: ContainerKind, position: u32) -> Option<Self> {
        let mark = match kind {
            ContainerKind::Data => 0,
            ContainerKind::Metadata => METADATA,
        };
        (position < METADATA).then_some(Self { first, len: 1, position: position | mark })
    }

    /// Appends the run that arrived next; returns false if it does not continue this one.
    pub(super) fn extend(&mut self, next: &Self) -> bool {
        let continues = self.first.session == next.first.session
            && self.first.ordinal.checked_add(self.len) == Some(next.first.ordinal)
            && self.position + self.len == next.position;
        self.len += if continues { next.len } else { 0 };
        continues
    }

    /// Returns the end of its ordinals, which may be 2^32.
    fn end(&self) -> u64 {
        u64::from(self.first.ordinal) + u64::from(self.len)
    }

    /// Returns the part from `step` on, and shortens this one to what is before.
    fn split_off(&mut self, step: u32) -> Self {
        let first = ContainerId { session: self.first.session, ordinal: self.first.ordinal + step };
        let rest = Self { first, len: self.len - step, position: self.position + step };
        self.len = step;
        rest
    }

    /// Returns one container of the run.
    fn one(mut self, step: u32) -> Self {
        Self { len: 1, ..self.split_off(step) }
    }
}

/// Runs that share ordinals with others, which is damage, are cut until each ordinal of theirs is in runs of one container.
/// Takes runs sorted by their first container.
fn separate(arrived: Vec<Arrival>) -> Vec<Arrival> {
    let overlaps = |pair: &[Arrival]| match pair {
        [before, after] => before.first.session == after.first.session && u64::from(after.first.ordinal) < before.end(),
        _ => false,
    };
    if !arrived.windows(2).any(overlaps) {
        return arrived;
    }
    let mut separated = Vec::with_capacity(arrived.len());
    let mut rest = arrived.as_slice();
    while let Some(first) = rest.first() {
        let mut end = first.end();
        let others = rest.iter().take_while(|run| {
            let belongs = run.first.session == first.first.session && u64::from(run.first.ordinal) < end;
            end = end.max(if belongs { run.end() } else { 0 });
            belongs
        });
        let (group, after) = rest.split_at(others.count());
        separate_group(group, &mut separated);
        rest = after;
    }
    separated
}

fn separate_group(group: &[Arrival], separated: &mut Vec<Arrival>) {
    if let [alone] = group {
        separated.push(*alone);
        return;
    }
    let mut bounds: Vec<u64> = group.iter().flat_map(|run| [u64::from(run.first.ordinal), run.end()]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let mut pieces = Vec::new();
    for run in group {
        let mut piece = *run;
        let inner = bounds.partition_point(|bound| *bound <= u64::from(run.first.ordinal));
        for bound in bounds.iter().skip(inner).take_while(|bound| **bound < run.end()) {
            let step = u32::try_from(bound - u64::from(piece.first.ordinal)).expect("bounds lie inside the run");
            let tail = piece.split_off(step);
            pieces.push(std::mem::replace(&mut piece, tail));
        }
        pieces.push(piece);
    }
    // Pieces that begin at the same ordinal have the same length.
    pieces.sort_unstable_by_key(|piece| (piece.first, piece.position & METADATA, piece.position));
    for same in pieces.chunk_by(|before, after| before.first == after.first) {
        if let [alone] = same {
            separated.push(*alone);
        } else {
            let steps = 0..same.first().map_or(0, |piece| piece.len);
            separated.extend(steps.flat_map(|step| same.iter().map(move |piece| piece.one(step))));
        }
    }
}

/// A session in the list of runs.
#[derive(Clone, Copy, Debug)]
struct SessionRuns {
    session: SessionId,
    /// Index of its first run.
    runs: u32,
}

/// A run in the order of ids. It ends where the next one begins, by number.
#[derive(Clone, Copy, Debug)]
struct Run {
    ordinal: u32,
    number: u32,
    position: u32,
}

/// Containers with dense numbers.
#[derive(Default, Debug)]
pub(super) struct ContainerRuns {
    sessions: Vec<SessionRuns>,
    runs: Vec<Run>,
    len: u32,
}

/// The run that was found last.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunCursor(Option<FoundRun>);

/// A run with everything that it implies.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundRun {
    /// Its session.
    pub(super) session: SessionId,
    /// Ordinal of the first container.
    pub(super) ordinal: u32,
    /// Number of the first container.
    pub(super) number: u32,
    /// Their number.
    pub(super) len: u32,
    /// Their kind.
    pub(super) kind: ContainerKind,
    /// Place of the first in the order of arrival.
    position: u32,
}

impl FoundRun {
    fn number_of(&self, id: ContainerId) -> Option<u32> {
        let step = id.ordinal.checked_sub(self.ordinal).filter(|step| *step < self.len)?;
        (self.session == id.session).then_some(self.number + step)
    }
}

impl ContainerRuns {
    /// Numbers the containers of runs that arrived in any order.
    pub(super) fn new(mut arrived: Vec<Arrival>) -> Self {
        arrived.sort_unstable_by_key(|run| (run.first, run.position & METADATA, run.position));
        let arrived = separate(arrived);
        let mut numbered = Self { sessions: Vec::new(), runs: Vec::with_capacity(arrived.len()), len: 0 };
        for Arrival { first, len, position } in arrived {
            if numbered.sessions.last().is_none_or(|last| last.session != first.session) {
                let runs = u32::try_from(numbered.runs.len()).expect("no more runs than containers");
                numbered.sessions.push(SessionRuns { session: first.session, runs });
            }
            numbered.runs.push(Run { ordinal: first.ordinal, number: numbered.len, position });
            numbered.len += len;
        }
        numbered.sessions.shrink_to_fit();
        numbered
    }

    /// Returns the number of containers.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the number of a container, the last of several with the same id.
    pub(super) fn find(&self, id: ContainerId, near: &mut RunCursor) -> Option<u32> {
        if let Some(number) = near.0.and_then(|run| run.number_of(id)) {
            return Some(number);
        }
        let index = self.sessions.binary_search_by_key(&id.session, |session| session.session).ok()?;
        let range = self.runs_of(index);
        let runs = self.runs.get(range.clone())?;
        let before = runs.partition_point(|run| run.ordinal <= id.ordinal).checked_sub(1)?;
        let run = self.run(id.session, range.start + before)?;
        near.0 = Some(run);
        run.number_of(id)
    }

    /// Returns id, kind and position in the order of arrival by number.
    pub(super) fn get(&self, number: u32) -> Option<(ContainerId, ContainerKind, u32)> {
        let index = self.runs.partition_point(|run| run.number <= number).checked_sub(1)?;
        let session = self.sessions.partition_point(|session| session.runs as usize <= index).checked_sub(1)?;
        let run = self.run(self.sessions.get(session)?.session, index)?;
        let step = number.checked_sub(run.number).filter(|step| *step < run.len)?;
        Some((ContainerId { session: run.session, ordinal: run.ordinal + step }, run.kind, run.position + step))
    }

    /// Returns all runs in the order of ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = FoundRun> {
        let sessions = self.sessions.iter().enumerate();
        sessions.flat_map(move |(index, session)| {
            self.runs_of(index).filter_map(move |index| self.run(session.session, index))
        })
    }

    /// Returns the runs of a session in the order of ids.
    pub(super) fn iter_session(&self, session: SessionId) -> impl Iterator<Item = FoundRun> {
        let index = self.sessions.binary_search_by_key(&session, |known| known.session).ok();
        let runs = index.map_or(0..0, |index| self.runs_of(index));
        runs.filter_map(move |index| self.run(session, index))
    }

    fn runs_of(&self, index: usize) -> Range<usize> {
        let start = |index: usize| self.sessions.get(index).map_or(self.runs.len(), |session| session.runs as usize);
        start(index)..start(index + 1)
    }

    fn run(&self, session: SessionId, index: usize) -> Option<FoundRun> {
        let Run { ordinal, number, position } = *self.runs.get(index)?;
        let end = self.runs.get(index + 1).map_or(self.len, |next| next.number);
        let kind = if position & METADATA == 0 { ContainerKind::Data } else { ContainerKind::Metadata };
        Some(FoundRun { session, ordinal, number, len: end - number, kind, position: position & !METADATA })
    }

    /// Returns the memory of the runs, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.sessions.capacity() * size_of::<SessionRuns>() + self.runs.capacity() * size_of::<Run>()
    }
}
