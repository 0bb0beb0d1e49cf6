//! The ledger: which chunks are held by which snapshots, exactly.
//!
//! A chunk is exclusive to a snapshot if no other one reaches it, also if it stands below a node that several share. So two
//! marks are made for all snapshots together, however many there are: one from the first snapshot to the last, whose ranks are the
//! first holders, and one from the last to the first, whose ranks are the last holders. A chunk has one holder if both are the
//! same. Each node is read twice. The marks and the directories of all containers are joined by the prefix of the
//! fingerprint, as in [`usage`](super::usage).

use std::ops::ControlFlow;

use crate::collect::MEMORY_BYTES_MIN;
use crate::collect::mark::Marker;
use crate::collect::usage::{PREFIX_LEN, Prefix, RANK_MAX, REACHED_LEN, Reached, prefix_of};
use crate::error::{Error, Result};
use crate::inspect::stats::share;
use crate::monitor::{Items, Monitor};
use crate::spill::partition::{FilledPartitions, Partitions, SortedRecords};
use crate::store::metadata::{MetadataMemory, Scratch};
use crate::store::view::open_each;
use crate::store::{MetadataReader, Store};
use crate::types::Fingerprint;

/// Bytes of a stored chunk: prefix, length, share of its region; the numbers in big-endian order.
const STORED_LEN: usize = PREFIX_LEN + 4 + 4;

/// The chunks of all containers.
pub(super) type Stored = FilledPartitions<STORED_LEN>;

/// Chunks and what they take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Number of chunks.
    pub chunks: u64,
    /// Their bytes before compression, hints included.
    pub plain_bytes: u64,
    /// Their shares of the stored regions.
    pub stored_bytes: u64,
}

impl Held {
    /// Adds a chunk by its length and its share of a region.
    pub(super) fn add(&mut self, (len, stored): (u32, u32)) {
        self.chunks += 1;
        self.plain_bytes += u64::from(len);
        self.stored_bytes += u64::from(stored);
    }

    /// Returns the rest without a part of it.
    #[must_use]
    pub fn without(&self, part: &Self) -> Self {
        Self {
            chunks: self.chunks - part.chunks,
            plain_bytes: self.plain_bytes - part.plain_bytes,
            stored_bytes: self.stored_bytes - part.stored_bytes,
        }
    }
}

/// Request to count.
#[derive(Clone, Copy, Debug)]
pub struct LedgerRequest<'a> {
    /// Directory that lists spill to.
    pub scratch: &'a Scratch,
    /// Memory in bytes; 16 MiB are enough for few containers.
    pub memory_bytes: usize,
    /// Receiver of progress, by snapshots, and of interruptions.
    pub monitor: &'a dyn Monitor,
}

/// The chunks of snapshots, by their holders.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeldByEach {
    /// What only one snapshot holds, in the order of the snapshots.
    pub each: Vec<Held>,
    /// What several snapshots hold.
    pub shared: Held,
    /// What no snapshot holds, and further copies of chunks.
    pub unneeded: Held,
}

/// The chunks of a set of snapshots and of all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeldBySet {
    /// What only snapshots of the set hold.
    pub only: Held,
    /// What snapshots of the set and others hold.
    pub shared: Held,
    /// What only others hold.
    pub others: Held,
    /// What no snapshot holds, and further copies of chunks.
    pub unneeded: Held,
}

/// Counts for each of all snapshots, by the roots of their trees, what only that one holds.
///
/// Fails if a node cannot be read, a container does not open, or a chunk is missing: then the numbers are not known.
pub fn held_by_each(store: &Store, request: &LedgerRequest<'_>, roots: &[Fingerprint]) -> Result<HeldByEach> {
    if usize::from(RANK_MAX) <= roots.len() {
        return Err(Error::invalid(format!("what each snapshot holds is counted for at most {RANK_MAX} snapshots")));
    }
    request.monitor.stage(Items::Snapshots, 2 * roots.len() as u64);
    let first = request.mark(store, roots.iter())?;
    let last = request.mark(store, roots.iter().rev())?;
    let stored = request.stored(store)?;
    let mut counted = HeldByEach { each: vec![Held::default(); roots.len()], ..HeldByEach::default() };
    let mut shared = Held::default();
    counted.unneeded = join(&stored, (&first, &last), &mut |ranks, chunk| {
        let holder = match ranks {
            (Some(first), Some(last)) if usize::from(first) + usize::from(last) + 1 == roots.len() => {
                counted.each.get_mut(usize::from(first))
            }
            _ => None,
        };
        holder.unwrap_or(&mut shared).add(chunk);
    })?;
    counted.shared = shared;
    Ok(counted)
}

/// Counts what only a set of snapshots holds, by the roots of their trees and of all others. Fails as [`held_by_each`] does.
pub fn held_by_set(
    store: &Store,
    request: &LedgerRequest<'_>,
    set: &[Fingerprint],
    others: &[Fingerprint],
) -> Result<HeldBySet> {
    request.monitor.stage(Items::Snapshots, (set.len() + others.len()) as u64);
    let of_set = request.mark(store, set.iter())?;
    let of_others = request.mark(store, others.iter())?;
    request.held_by_marked(store, &of_set, &of_others)
}

impl LedgerRequest<'_> {
    fn memory(&self) -> usize {
        self.memory_bytes.max(MEMORY_BYTES_MIN)
    }

    fn mark<'a>(&self, store: &Store, roots: impl Iterator<Item = &'a Fingerprint>) -> Result<Reached> {
        let containers = store.list_containers(self.scratch)?;
        let memory = MetadataMemory::left_by(&containers, self.memory() / 4);
        let mut reader = MetadataReader::open(store, &containers, self.scratch, memory)?;
        let mut marker = Marker::new(&mut reader, self.scratch, self.memory() / 4)?;
        for root in roots {
            marker.mark(*root, &mut |_| Ok(()), self.monitor)?;
            self.monitor.advance(0, 1);
        }
        marker.finish()
    }

    /// Counts by the marks of a set of snapshots and of all others.
    pub(super) fn held_by_marked(&self, store: &Store, set: &Reached, others: &Reached) -> Result<HeldBySet> {
        let stored = self.stored(store)?;
        let mut counted = HeldBySet::default();
        counted.unneeded = join(&stored, (set, others), &mut |ranks, chunk| match ranks {
            (Some(_), Some(_)) => counted.shared.add(chunk),
            (Some(_), None) => counted.only.add(chunk),
            (None, _) => counted.others.add(chunk),
        })?;
        Ok(counted)
    }

    /// Returns the chunks of all containers, from their directories.
    pub(super) fn stored(&self, store: &Store) -> Result<Stored> {
        let mut stored: Partitions<STORED_LEN> =
            self.scratch.partitions(&store.host, "chunks of containers", self.memory() / 4)?;
        open_each(store, self.scratch, false, &mut |name, opened| {
            if self.monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let container = opened?;
            let mut chunks = container.directory.chunks.iter();
            for region in &container.directory.regions {
                for chunk in chunks.by_ref().take(region.chunk_count as usize) {
                    let unnamed = || Error::damaged(store.display(name), "its directory does not name all chunks");
                    let prefix = prefix_of(&chunk.fingerprint.ok_or_else(unnamed)?);
                    let stored_len = share(chunk.len, region.sealed_len, region.plain_len);
                    let stored_len = u32::try_from(stored_len).unwrap_or(u32::MAX);
                    let mut record = [0; STORED_LEN];
                    let fields = prefix.into_iter().chain(chunk.len.to_be_bytes()).chain(stored_len.to_be_bytes());
                    record.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
                    stored.push(&record)?;
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        stored.finish()
    }
}

/// Ranks of a chunk in two marks.
type Ranks = (Option<u16>, Option<u16>);

/// Passes on each chunk that a mark reaches once, with its length and its share of a region. Returns all others.
fn join(
    stored: &Stored,
    (first, second): (&Reached, &Reached),
    each: &mut dyn FnMut(Ranks, (u32, u32)),
) -> Result<Held> {
    let (mut first, mut second) = (RankCursor::new(first)?, RankCursor::new(second)?);
    let mut stored = StoredCursor::new(stored)?;
    let (mut unneeded, mut missing) = (Held::default(), 0u64);
    loop {
        let prefixes = [first.prefix(), second.prefix(), stored.prefix()];
        let Some(prefix) = prefixes.into_iter().flatten().min() else { break };
        let ranks = (first.take(prefix)?, second.take(prefix)?);
        let chunk = stored.take(prefix, &mut unneeded)?;
        match (ranks, chunk) {
            ((None, None), chunk) => chunk.into_iter().for_each(|chunk| unneeded.add(chunk)),
            (_, Some(chunk)) => each(ranks, chunk),
            (_, None) => missing += 1,
        }
    }
    fail_on_missing(missing)?;
    Ok(unneeded)
}

/// Fails if needed chunks are in no container.
pub(super) fn fail_on_missing(chunks: u64) -> Result<()> {
    if chunks == 0 {
        return Ok(());
    }
    let reason = format!("{chunks} chunks that snapshots need are in none of the containers");
    Err(Error::damaged("repository", reason))
}

/// Cursor over the chunks of containers. After an error it must be dropped.
pub(super) struct StoredCursor<'a> {
    records: SortedRecords<'a, STORED_LEN>,
    next: Option<(Prefix, (u32, u32))>,
}

impl<'a> StoredCursor<'a> {
    /// Starts at the least prefix.
    pub(super) fn new(stored: &'a Stored) -> Result<Self> {
        let mut cursor = Self { records: stored.sorted(), next: None };
        cursor.advance()?;
        Ok(cursor)
    }

    fn advance(&mut self) -> Result<()> {
        self.next = self.records.next().transpose()?.map(|record| {
            let [p0, p1, p2, p3, p4, p5, p6, p7, l0, l1, l2, l3, s0, s1, s2, s3] = record;
            let lengths = (u32::from_be_bytes([l0, l1, l2, l3]), u32::from_be_bytes([s0, s1, s2, s3]));
            ([p0, p1, p2, p3, p4, p5, p6, p7], lengths)
        });
        Ok(())
    }

    fn prefix(&self) -> Option<Prefix> {
        self.next.map(|(prefix, _)| prefix)
    }

    /// Returns the length of a chunk and its share of a region, of the least of its copies, and goes on to the next prefix. Adds the
    /// other copies to `surplus`. The prefix must be the least one that is left.
    fn take(&mut self, prefix: Prefix, surplus: &mut Held) -> Result<Option<(u32, u32)>> {
        let mut least = None;
        while let Some((_, chunk)) = self.next.filter(|(next, _)| *next == prefix) {
            if least.is_some() {
                surplus.add(chunk);
            }
            least = least.or(Some(chunk));
            self.advance()?;
        }
        Ok(least)
    }

    /// Returns the same for any prefix that is not below the one before.
    pub(super) fn find(&mut self, prefix: Prefix) -> Result<Option<(u32, u32)>> {
        while self.prefix().is_some_and(|next| next < prefix) {
            self.advance()?;
        }
        self.take(prefix, &mut Held::default())
    }
}

/// Cursor over the chunks of a mark, each with its least rank. After an error it must be dropped.
pub(super) struct RankCursor<'a> {
    records: SortedRecords<'a, REACHED_LEN>,
    next: Option<(Prefix, u16)>,
}

impl<'a> RankCursor<'a> {
    /// Starts at the least prefix.
    pub(super) fn new(reached: &'a Reached) -> Result<Self> {
        let mut cursor = Self { records: reached.sorted(), next: None };
        cursor.advance()?;
        Ok(cursor)
    }

    fn advance(&mut self) -> Result<()> {
        self.next = self.records.next().transpose()?.map(|record| {
            let [p0, p1, p2, p3, p4, p5, p6, p7, r0, r1] = record;
            ([p0, p1, p2, p3, p4, p5, p6, p7], u16::from_be_bytes([r0, r1]))
        });
        Ok(())
    }

    fn prefix(&self) -> Option<Prefix> {
        self.next.map(|(prefix, _)| prefix)
    }

    /// Returns the least rank of a prefix, which must be the least one that is left, and goes on to the next one.
    fn take(&mut self, prefix: Prefix) -> Result<Option<u16>> {
        let mut least = None;
        while let Some((_, rank)) = self.next.filter(|(next, _)| *next == prefix) {
            least = least.or(Some(rank));
            self.advance()?;
        }
        Ok(least)
    }

    /// Returns the same for any prefix that is not below the one before.
    pub(super) fn find(&mut self, prefix: Prefix) -> Result<Option<u16>> {
        while self.prefix().is_some_and(|next| next < prefix) {
            self.advance()?;
        }
        self.take(prefix)
    }
}
