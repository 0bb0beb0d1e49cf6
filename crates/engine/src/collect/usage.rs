//! Usage of containers: the chunks that they hold, joined with the chunks that snapshots reach (step C4 of
//! docs/protocol.md).
//!
//! Both lists are partitioned by fingerprint and joined in their order, so memory grows with containers only. Eight bytes of
//! a fingerprint stand for it. Two chunks that agree in them cost space: a dead one stays, or `settle`, which compares whole
//! fingerprints, rescues a container.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::collect::plan::ContainerUsage;
use crate::error::Result;
use crate::io::Host;
use crate::object::names::ContainerKind;
use crate::spill::partition::{FilledPartitions, Partitions, SortedRecords};
use crate::store::metadata::Scratch;
use crate::types::Fingerprint;

/// Bytes of a fingerprint that stand for it. With 10^9 live and 10^8 dead chunks, the odds that a dead one agrees with a
/// live one are below 1%.
pub(super) const PREFIX_LEN: usize = 8;
pub(super) type Prefix = [u8; PREFIX_LEN];

/// Bytes of a reached chunk: prefix, and the rank of the newest snapshot that reaches it.
pub(super) const REACHED_LEN: usize = PREFIX_LEN + 2;
/// Bytes of a copy of a chunk that is not needed: prefix, container, slot.
const SURPLUS_LEN: usize = PREFIX_LEN + 4 + 2;
/// Bytes of a stored chunk: prefix, container, slot, length.
const STORED_LEN: usize = SURPLUS_LEN + 4;
/// Bytes of one of several copies of a reached chunk: prefix, container, slot, length, rank.
const COPY_LEN: usize = STORED_LEN + 2;
/// Bytes of a chunk that is looked for: prefix, number of a container that refers to it.
pub(super) const WANTED_LEN: usize = PREFIX_LEN + 4;
/// Rank that stands for no snapshot.
const NO_RANK: u16 = u16::MAX;
/// Greatest rank, which all older snapshots share.
pub const RANK_MAX: u16 = NO_RANK - 1;
/// The least memory that a count takes, in bytes, plus 16 for each container: its smallest share is an eighth.
pub const MEMORY_BYTES_MIN: usize = 8 * crate::spill::partition::PARTITIONS_BYTES_MIN;

const _: () = assert!(crate::container::directory::CHUNKS_MAX <= 1 << 16, "a slot has 16 bits");

/// A chunk as the directory of its container lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredChunk {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// Number of its container.
    pub container: u32,
    /// Its position in the directory.
    pub slot: u16,
    /// Its bytes, hints included.
    pub len: u32,
}

/// A source of all chunks of the containers that may be condemned: their directories, or the arrival log of an index. It
/// proposes; a chunk that it leaves out or invents costs space.
pub trait StoredChunks {
    /// Passes on every chunk, in any order. A chunk may come twice.
    fn each(&mut self, each: &mut dyn FnMut(StoredChunk) -> Result<()>) -> Result<()>;
}

/// The chunks that snapshots reach.
pub type Reached = FilledPartitions<REACHED_LEN>;

/// Returns the record of a reached chunk.
pub(super) fn reached_record(fingerprint: &Fingerprint, rank: u16) -> [u8; REACHED_LEN] {
    let mut record = [0; REACHED_LEN];
    let (prefix, last) = record.split_first_chunk_mut().expect("a record begins with a prefix");
    *prefix = prefix_of(fingerprint);
    last.copy_from_slice(&rank.min(RANK_MAX).to_be_bytes());
    record
}

pub(super) fn prefix_of(fingerprint: &Fingerprint) -> Prefix {
    *fingerprint.0.first_chunk().expect("a fingerprint is longer than its prefix")
}

/// A copy of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Copy {
    prefix: Prefix,
    container: u32,
    slot: u16,
    len: u32,
    rank: u16,
}

impl Copy {
    fn encode(&self) -> [u8; COPY_LEN] {
        let mut record = [0; COPY_LEN];
        let fields = self.prefix.into_iter().chain(self.container.to_be_bytes()).chain(self.slot.to_be_bytes());
        let fields = fields.chain(self.len.to_be_bytes()).chain(self.rank.to_be_bytes());
        record.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        record
    }

    /// Returns the first fields, as many as fit.
    fn encode_first<const N: usize>(&self) -> [u8; N] {
        *self.encode().first_chunk().expect("records hold the first fields of a copy")
    }

    /// Reads a record that holds the first fields. The others are 0.
    fn decode(record: &[u8]) -> Self {
        let mut whole = [0; COPY_LEN];
        whole.iter_mut().zip(record).for_each(|(to, byte)| *to = *byte);
        let [p0, p1, p2, p3, p4, p5, p6, p7, c0, c1, c2, c3, s0, s1, l0, l1, l2, l3, r0, r1] = whole;
        Self {
            prefix: [p0, p1, p2, p3, p4, p5, p6, p7],
            container: u32::from_be_bytes([c0, c1, c2, c3]),
            slot: u16::from_be_bytes([s0, s1]),
            len: u32::from_be_bytes([l0, l1, l2, l3]),
            rank: u16::from_be_bytes([r0, r1]),
        }
    }
}

/// Counts of a container, in 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counts {
    live_bytes: u32,
    dead_bytes: u32,
    live_chunks: u16,
    dead_chunks: u16,
    rank: u16,
}

const _: () = assert!(size_of::<Counts>() == 16);

impl Counts {
    const UNKNOWN: Self = Self { live_bytes: 0, dead_bytes: 0, live_chunks: 0, dead_chunks: 0, rank: NO_RANK };

    fn add_live(&mut self, copy: &Copy) {
        self.live_bytes = self.live_bytes.saturating_add(copy.len);
        self.live_chunks = self.live_chunks.saturating_add(1);
        self.rank = self.rank.min(copy.rank);
    }

    fn add_dead(&mut self, len: u32) {
        self.dead_bytes = self.dead_bytes.saturating_add(len);
        self.dead_chunks = self.dead_chunks.saturating_add(1);
    }

    /// Returns true if a copy of a chunk is better kept here than there: where a newer snapshot reads, else where a larger
    /// share is live.
    fn is_better_than(&self, other: &Self) -> bool {
        let product = |live: u32, dead: u32| u64::from(live) * u64::from(dead);
        let share = product(self.live_bytes, other.dead_bytes);
        let share_of_other = product(other.live_bytes, self.dead_bytes);
        (Reverse(self.rank), share, self.live_bytes) > (Reverse(other.rank), share_of_other, other.live_bytes)
    }
}

/// Usage of containers, with the lists that it was counted from.
#[derive(Debug)]
pub struct Usage {
    counts: Vec<Counts>,
    reached: Reached,
    stored: FilledPartitions<STORED_LEN>,
    /// Copies of reached chunks of which another one is kept.
    surplus: FilledPartitions<SURPLUS_LEN>,
}

impl Usage {
    /// Counts the usage of containers, whose numbers are below `containers`. Takes 16 bytes for each, and `memory_bytes`.
    pub fn count(
        scratch: &Scratch,
        host: &Arc<dyn Host>,
        memory_bytes: usize,
        containers: u32,
        reached: Reached,
        chunks: &mut dyn StoredChunks,
    ) -> Result<Self> {
        let mut stored = scratch.partitions(host, "chunks of containers", memory_bytes / 4)?;
        chunks.each(&mut |StoredChunk { fingerprint, container, slot, len }| {
            assert!(container < containers, "numbers of containers are below their count");
            stored.push(&Copy { prefix: prefix_of(&fingerprint), container, slot, len, rank: 0 }.encode_first())
        })?;
        let stored = stored.finish()?;
        let mut counts = vec![Counts::UNKNOWN; containers as usize];
        // Sole copies are counted at once, the others when all of these are.
        let mut copies = scratch.partitions(host, "chunks with several copies", memory_bytes / 8)?;
        for joined in Join::new(&reached, &stored)? {
            match joined? {
                Joined { copy, is_reached: false, .. } => counts_of(&mut counts, &copy).add_dead(copy.len),
                Joined { copy, is_sole: true, .. } => counts_of(&mut counts, &copy).add_live(&copy),
                Joined { copy, .. } => copies.push(&copy.encode())?,
            }
        }
        let mut surplus = scratch.partitions(host, "surplus copies", memory_bytes / 8)?;
        choose(&mut counts, &copies.finish()?, &mut surplus)?;
        Ok(Self { counts, reached, stored, surplus: surplus.finish()? })
    }

    /// Returns the usage of a container; `None` if no chunk of it is known, which proves nothing.
    pub fn of(&self, number: u32, kind: ContainerKind, stored_bytes: u32) -> Option<ContainerUsage> {
        let counts = self.counts.get(number as usize).filter(|counts| **counts != Counts::UNKNOWN)?;
        let Counts { live_bytes, dead_bytes, live_chunks, dead_chunks, rank } = *counts;
        Some(ContainerUsage { number, kind, stored_bytes, live_bytes, dead_bytes, live_chunks, dead_chunks, rank })
    }

    /// Returns the plaintext of the live chunks of a container whose copy is the one to keep.
    pub fn live_bytes(&self, number: u32) -> u32 {
        self.counts.get(number as usize).map_or(0, |counts| counts.live_bytes)
    }

    /// Returns what snapshots reach.
    pub fn reached(&self) -> &Reached {
        &self.reached
    }

    /// Returns the live chunks of which this container's copy is kept, in the order of their fingerprints. Takes three
    /// eighths of the memory limit.
    pub fn live_chunks(&self) -> Result<LiveChunks<'_>> {
        let mut surplus = self.surplus.sorted();
        let next_surplus = surplus.next().transpose()?;
        Ok(LiveChunks { joined: Join::new(&self.reached, &self.stored)?, surplus, next_surplus })
    }
}

/// Chunks that are looked for, by the beginning of their names, each with the number of a container that refers to it.
pub(super) type Wanted = FilledPartitions<WANTED_LEN>;

impl Usage {
    /// Passes on the container that keeps each of some chunks, as far as there is one: prefix, container that refers to the
    /// chunk, container that keeps it.
    pub(super) fn find_live(
        &self,
        wanted: &Wanted,
        found: &mut dyn FnMut(Prefix, u32, u32) -> Result<()>,
    ) -> Result<()> {
        let mut live = self.live_chunks()?;
        let mut next = live.advance()?;
        for record in wanted.sorted() {
            let [p0, p1, p2, p3, p4, p5, p6, p7, referring @ ..] = record?;
            let prefix = [p0, p1, p2, p3, p4, p5, p6, p7];
            while next.is_some_and(|copy| copy.prefix < prefix) {
                next = live.advance()?;
            }
            if let Some(copy) = next.filter(|copy| copy.prefix == prefix) {
                found(prefix, u32::from_be_bytes(referring), copy.container)?;
            }
        }
        Ok(())
    }
}

/// Returns the record of a chunk that is looked for.
pub(super) fn wanted_record(fingerprint: &Fingerprint, referring: u32) -> [u8; WANTED_LEN] {
    let mut record = [0; WANTED_LEN];
    let fields = prefix_of(fingerprint).into_iter().chain(referring.to_be_bytes());
    record.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    record
}

fn counts_of<'a>(counts: &'a mut [Counts], copy: &Copy) -> &'a mut Counts {
    counts.get_mut(copy.container as usize).expect("the container was counted")
}

/// Chooses one of several copies of each chunk. The others count as dead.
fn choose(
    counts: &mut [Counts],
    copies: &FilledPartitions<COPY_LEN>,
    surplus: &mut Partitions<SURPLUS_LEN>,
) -> Result<()> {
    let mut chosen: Option<Copy> = None;
    for record in copies.sorted() {
        let copy = Copy::decode(&record?);
        let Some(before) = chosen.replace(copy) else { continue };
        if before.prefix != copy.prefix {
            counts_of(counts, &before).add_live(&before);
            continue;
        }
        let counts_before = *counts_of(counts, &before);
        let is_better = counts_of(counts, &copy).is_better_than(&counts_before);
        let (best, other) = if is_better { (copy, before) } else { (before, copy) };
        counts_of(counts, &other).add_dead(other.len);
        surplus.push(&other.encode_first())?;
        chosen = Some(best);
    }
    if let Some(last) = chosen {
        counts_of(counts, &last).add_live(&last);
    }
    Ok(())
}

/// A stored chunk, compared with what snapshots reach.
#[derive(Debug)]
struct Joined {
    /// With the rank, if it is reached.
    copy: Copy,
    is_reached: bool,
    /// True if no other container, and no other slot, holds the chunk.
    is_sole: bool,
}

/// Cursor over the stored chunks in the order of their fingerprints.
#[derive(Debug)]
struct Join<'a> {
    reached: SortedRecords<'a, REACHED_LEN>,
    /// First record of a prefix, thus the one of the newest snapshot.
    next_reached: Option<[u8; REACHED_LEN]>,
    stored: SortedRecords<'a, STORED_LEN>,
    next_stored: Option<Copy>,
    last_prefix: Option<Prefix>,
}

impl<'a> Join<'a> {
    fn new(reached: &'a Reached, stored: &'a FilledPartitions<STORED_LEN>) -> Result<Self> {
        let (mut reached, mut stored) = (reached.sorted(), stored.sorted());
        let next_reached = reached.next().transpose()?;
        let next_stored = stored.next().transpose()?.map(|record| Copy::decode(&record));
        Ok(Self { reached, next_reached, stored, next_stored, last_prefix: None })
    }

    fn advance(&mut self) -> Result<Option<Joined>> {
        let Some(mut copy) = self.next_stored else { return Ok(None) };
        let position = |copy: &Copy| (copy.prefix, copy.container, copy.slot);
        // The source may pass a chunk on twice.
        while self.next_stored.as_ref().is_some_and(|next| position(next) == position(&copy)) {
            self.next_stored = self.stored.next().transpose()?.map(|record| Copy::decode(&record));
        }
        while self.next_reached.is_some_and(|record| record.first_chunk() < Some(&copy.prefix)) {
            self.next_reached = self.reached.next().transpose()?;
        }
        let is_next = self.next_stored.is_some_and(|next| next.prefix == copy.prefix);
        let is_sole = !is_next && self.last_prefix != Some(copy.prefix);
        self.last_prefix = Some(copy.prefix);
        let reached = self.next_reached.filter(|record| record.starts_with(&copy.prefix));
        if let Some(rank) = reached.and_then(|record| record.last_chunk().copied()) {
            copy.rank = u16::from_be_bytes(rank);
        }
        Ok(Some(Joined { copy, is_reached: reached.is_some(), is_sole }))
    }
}

impl Iterator for Join<'_> {
    type Item = Result<Joined>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

/// A chunk that snapshots reach, in the container whose copy is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LiveChunk {
    /// Number of its container.
    pub container: u32,
    /// Its position in the directory.
    pub slot: u16,
    /// Number of the newest snapshot that reaches it; 0 is the newest of all.
    pub rank: u16,
    /// Its bytes, hints included.
    pub len: u32,
}

/// Cursor over live chunks. After an error it must be dropped.
#[derive(Debug)]
pub struct LiveChunks<'a> {
    joined: Join<'a>,
    surplus: SortedRecords<'a, SURPLUS_LEN>,
    next_surplus: Option<[u8; SURPLUS_LEN]>,
}

impl LiveChunks<'_> {
    fn advance(&mut self) -> Result<Option<Copy>> {
        while let Some(Joined { copy, is_reached, .. }) = self.joined.advance()? {
            let record: [u8; SURPLUS_LEN] = copy.encode_first();
            while self.next_surplus.is_some_and(|next| next < record) {
                self.next_surplus = self.surplus.next().transpose()?;
            }
            if is_reached && self.next_surplus != Some(record) {
                return Ok(Some(copy));
            }
        }
        Ok(None)
    }
}

impl Iterator for LiveChunks<'_> {
    type Item = Result<LiveChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        let live = |Copy { container, slot, rank, len, .. }| LiveChunk { container, slot, rank, len };
        self.advance().map(|copy| copy.map(live)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    use super::*;
    use crate::random::SplitMix64;
    use crate::testing::sim::{SimDisk, SimHost};

    impl StoredChunks for Vec<StoredChunk> {
        fn each(&mut self, each: &mut dyn FnMut(StoredChunk) -> Result<()>) -> Result<()> {
            self.iter().try_for_each(|chunk| each(*chunk))
        }
    }

    fn fingerprint(number: u64) -> Fingerprint {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&crate::random::mix64(number).to_be_bytes());
        Fingerprint(bytes)
    }

    fn chunk(number: u64, container: u32, slot: u16, len: u32) -> StoredChunk {
        StoredChunk { fingerprint: fingerprint(number), container, slot, len }
    }

    fn count(containers: u32, reached: &[(u64, u16)], mut stored: Vec<StoredChunk>) -> Usage {
        let scratch = Scratch { disk: Some(Arc::new(SimDisk::new())), dir: PathBuf::new() };
        let host: Arc<dyn Host> = Arc::new(SimHost::new(1));
        let mut records = scratch.partitions(&host, "references", MEMORY_BYTES_MIN / 4).unwrap();
        for (number, rank) in reached {
            records.push(&reached_record(&fingerprint(*number), *rank)).unwrap();
        }
        let reached = records.finish().unwrap();
        Usage::count(&scratch, &host, MEMORY_BYTES_MIN, containers, reached, &mut stored).unwrap()
    }

    fn of(usage: &Usage, number: u32) -> (u32, u32, u16, u16) {
        let found = usage.of(number, ContainerKind::Data, 1000).unwrap();
        (found.live_bytes, found.dead_bytes, found.live_chunks, found.rank)
    }

    #[test]
    fn every_reached_chunk_is_live_in_one_container_and_all_others_are_dead() {
        for seed in 0..300 {
            let mut random = SplitMix64::new(seed);
            let (containers, chunks) = (1 + u32::try_from(random.below(20)).unwrap(), 1 + random.below(400));
            let mut stored = Vec::new();
            for container in 0..containers {
                for slot in 0..u16::try_from(random.below(40)).unwrap() {
                    let number = random.below(chunks);
                    stored.push(chunk(number, container, slot, 1 + u32::try_from(number % 90).unwrap()));
                    if random.below(10) == 0 {
                        stored.push(*stored.last().unwrap());
                    }
                }
            }
            let reached: Vec<(u64, u16)> = (0..random.below(600))
                .map(|_| (random.below(chunks), u16::try_from(random.below(9)).unwrap()))
                .collect();
            let mut ranks = BTreeMap::new();
            for (number, rank) in &reached {
                let newest = ranks.entry(fingerprint(*number)).or_insert(*rank);
                *newest = (*newest).min(*rank);
            }
            let usage = count(containers, &reached, stored.clone());
            let live: Vec<LiveChunk> = usage.live_chunks().unwrap().collect::<Result<_>>().unwrap();
            let by_position: BTreeMap<(u32, u16), StoredChunk> =
                stored.iter().map(|chunk| ((chunk.container, chunk.slot), *chunk)).collect();
            let kept = |chunk: &LiveChunk| by_position[&(chunk.container, chunk.slot)];
            // Each stored and reached chunk once, with its newest rank.
            let names: BTreeSet<Fingerprint> = live.iter().map(|chunk| kept(chunk).fingerprint).collect();
            let expected: BTreeSet<Fingerprint> =
                stored.iter().map(|chunk| chunk.fingerprint).filter(|name| ranks.contains_key(name)).collect();
            assert!(names == expected && names.len() == live.len(), "seed {seed}");
            assert!(live.iter().all(|chunk| chunk.rank == ranks[&kept(chunk).fingerprint]), "seed {seed}");
            // Containers count the same chunks.
            for number in 0..containers {
                let all: u32 =
                    by_position.values().filter(|chunk| chunk.container == number).map(|chunk| chunk.len).sum();
                let own = || live.iter().filter(|chunk| chunk.container == number);
                let live_bytes: u32 = own().map(|chunk| kept(chunk).len).sum();
                let rank = own().map(|chunk| chunk.rank).min().unwrap_or(NO_RANK);
                match usage.of(number, ContainerKind::Data, 1000) {
                    None => assert_eq!(all, 0, "seed {seed}"),
                    Some(found) => {
                        assert_eq!((found.live_bytes, found.live_bytes + found.dead_bytes), (live_bytes, all));
                        assert_eq!((usize::from(found.live_chunks), found.rank), (own().count(), rank), "seed {seed}");
                    }
                }
            }
        }
    }

    #[test]
    fn of_several_copies_the_one_beside_newer_chunks_is_kept_else_the_one_with_the_larger_live_share() {
        // Container 0 is older and fuller, 1 newer; chunk 9 is in both.
        let stored =
            vec![chunk(1, 0, 0, 50), chunk(9, 0, 1, 5), chunk(2, 1, 0, 1), chunk(9, 1, 1, 5), chunk(3, 1, 2, 40)];
        let usage = count(2, &[(1, 4), (2, 3), (9, 3)], stored.clone());
        assert_eq!([of(&usage, 0), of(&usage, 1)], [(50, 5, 1, 4), (6, 40, 2, 3)]);
        let usage = count(2, &[(1, 3), (2, 3), (9, 3)], stored);
        assert_eq!([of(&usage, 0), of(&usage, 1)], [(55, 0, 2, 3), (1, 45, 1, 3)]);
        // Equal containers: all chunks stay together.
        let twice = (0..50).flat_map(|number| [0, 1].map(|container| chunk(number.into(), container, number, 7)));
        let reached: Vec<(u64, u16)> = (0..50).map(|number| (number, 0)).collect();
        let usage = count(2, &reached, twice.collect());
        assert_eq!([of(&usage, 0), of(&usage, 1)], [(350, 0, 50, 0), (0, 350, 0, NO_RANK)]);
    }

    #[test]
    fn a_container_of_which_no_chunk_is_known_has_no_usage() {
        let usage = count(3, &[(1, 0)], vec![chunk(1, 0, 0, 10), chunk(2, 2, 0, 10)]);
        assert!(usage.of(1, ContainerKind::Data, 1000).is_none() && usage.of(3, ContainerKind::Data, 1000).is_none());
        assert!(usage.of(2, ContainerKind::Data, 1000).unwrap().is_dead());
    }

    #[test]
    fn counts_do_not_overflow_and_old_ranks_are_shared() {
        let many =
            (0..70_000_u32).map(|number| chunk(number.into(), 0, u16::try_from(number % 65_536).unwrap(), u32::MAX));
        let reached: Vec<(u64, u16)> = (0..70_000).map(|number| (number, u16::MAX)).collect();
        let usage = count(1, &reached, many.collect());
        assert_eq!(of(&usage, 0), (u32::MAX, 0, u16::MAX, RANK_MAX));
    }
}
