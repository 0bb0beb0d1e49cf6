//! Pending chunks, in buckets by fingerprint prefix and in order of arrival.
//!
//! Prefix buckets are in table order: one bucket here covers one or more whole buckets of the table, or a part of one.
//! An equal chunk joins the pending one as a follower and shares its verdict.

use std::collections::VecDeque;

use crate::identify::SequencedChunk;
use crate::identify::schedule::cycle::Membership;
use crate::identify::schedule::plan::Stride;
use crate::identify::slot::Slot;
use crate::kv::{Key, part_of};
use crate::types::{Chunk, Fingerprint, Sequence};

/// A pending chunk and its followers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::identify) struct PendingChunk {
    /// Its first arrival.
    pub(crate) first: SequencedChunk,
    /// Its rank and cycle; none with immediate lookups.
    pub(crate) membership: Option<Membership>,
    /// Later arrivals of equal chunks.
    pub(crate) followers: Vec<Sequence>,
}

#[derive(Debug)]
struct PendingSlot {
    chunk: PendingChunk,
    bucket: u32,
    /// Index in the bucket.
    index: u32,
    /// Number of its run of pending chunks.
    run: u64,
    /// Whether a lookup of it runs in the background.
    in_lookup: bool,
}

/// All pending chunks.
#[derive(Debug)]
pub(in crate::identify) struct Pending {
    slots: Vec<Option<PendingSlot>>,
    free: Vec<u32>,
    buckets: Vec<Vec<u32>>,
    /// Arrivals, oldest first. Resolved ones stay until they are oldest or outnumber the others.
    order: VecDeque<(Sequence, u32)>,
    leaders: usize,
    followers: usize,
    /// Bytes of the pending chunks, followers included.
    pub(crate) bytes: usize,
}

impl Pending {
    /// Makes so many empty buckets, at least one.
    pub(crate) fn new(buckets: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            buckets: vec![Vec::new(); buckets.max(1) as usize],
            order: VecDeque::new(),
            leaders: 0,
            followers: 0,
            bytes: 0,
        }
    }

    /// Returns the number of pending chunks, followers included.
    pub(in crate::identify) fn len(&self) -> usize {
        self.leaders + self.followers
    }

    pub(in crate::identify) fn is_empty(&self) -> bool {
        self.leaders == 0
    }

    /// Returns the number of different pending chunks in a bucket.
    pub(in crate::identify) fn bucket_len(&self, bucket: u32) -> usize {
        self.buckets[bucket as usize].len()
    }

    /// Adds a chunk that differs from all pending ones; returns its slot and its bucket.
    pub(in crate::identify) fn push(
        &mut self,
        first: SequencedChunk,
        membership: Option<Membership>,
        run: u64,
    ) -> (Slot, u32) {
        let SequencedChunk { sequence, chunk: Chunk { fingerprint, len }, .. } = first;
        let bucket = part_of(Key::from(&fingerprint).head(), self.buckets.len());
        let bucket = u32::try_from(bucket).expect("the number of buckets is a u32");
        let members = &mut self.buckets[bucket as usize];
        let index = u32::try_from(members.len()).expect("fewer than 2^32 chunks are pending");
        let chunk = PendingChunk { first, membership, followers: Vec::new() };
        let pending = Some(PendingSlot { chunk, bucket, index, run, in_lookup: false });
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = pending;
            slot
        } else {
            self.slots.push(pending);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 chunks are pending")
        };
        members.push(slot);
        self.leaders += 1;
        self.bytes += len as usize;
        if self.order.len() > 2 * self.leaders + 64 {
            let slots = &self.slots;
            self.order.retain(|&(sequence, slot)| at(slots, slot, sequence).is_some());
        }
        self.order.push_back((sequence, slot));
        (Slot(slot), bucket)
    }

    /// Adds a follower to a pending chunk.
    pub(in crate::identify) fn join(&mut self, Slot(slot): Slot, sequence: Sequence) {
        let pending = self.slots[slot as usize].as_mut().expect("a chunk joins a pending one");
        pending.chunk.followers.push(sequence);
        self.bytes += pending.chunk.first.chunk.len as usize;
        self.followers += 1;
    }

    /// Takes a chunk out; `None` if it was taken before.
    pub(in crate::identify) fn take(&mut self, Slot(slot): Slot) -> Option<PendingChunk> {
        let PendingSlot { chunk, bucket, index, .. } = self.slots[slot as usize].take()?;
        let members = &mut self.buckets[bucket as usize];
        members.swap_remove(index as usize);
        if let Some(&moved) = members.get(index as usize) {
            self.slots[moved as usize].as_mut().expect("members of a bucket are pending").index = index;
        }
        self.free.push(slot);
        self.leaders -= 1;
        self.bytes -= chunk.first.chunk.len as usize * (1 + chunk.followers.len());
        self.followers -= chunk.followers.len();
        Some(chunk)
    }

    /// Returns the chunk of a slot if it is still the one that arrived with this number.
    pub(crate) fn get(&self, Slot(slot): Slot, sequence: Sequence) -> Option<&PendingChunk> {
        at(&self.slots, slot, sequence).map(|pending| &pending.chunk)
    }

    /// Returns the bucket with the most different chunks.
    pub(in crate::identify) fn fullest_bucket(&self) -> u32 {
        let counted = (0..).zip(&self.buckets).max_by_key(|(_, members)| members.len());
        counted.map_or(0, |(bucket, _)| bucket)
    }

    /// Returns the slots that are pending, in order of arrival.
    fn in_order(&self) -> impl Iterator<Item = (Slot, &PendingSlot)> {
        self.order.iter().filter_map(|&(sequence, slot)| Some((Slot(slot), at(&self.slots, slot, sequence)?)))
    }

    /// Returns the first pending chunk of each cycle, oldest first.
    pub(in crate::identify) fn heads(&self) -> Vec<Slot> {
        let mut last = None;
        let mut heads = Vec::new();
        for (slot, pending) in self.in_order() {
            let cycle = Some(pending.chunk.membership.map(|membership| membership.cycle));
            if std::mem::replace(&mut last, cycle) != cycle {
                heads.push(slot);
            }
        }
        heads
    }

    /// Returns the oldest chunk's sequence and bucket.
    pub(in crate::identify) fn oldest(&mut self) -> Option<(Sequence, u32)> {
        while let Some(&(sequence, slot)) = self.order.front() {
            if let Some(pending) = at(&self.slots, slot, sequence) {
                return Some((sequence, pending.bucket));
            }
            self.order.pop_front();
        }
        None
    }

    /// Returns the slots of a bucket.
    pub(in crate::identify) fn of_bucket(&self, bucket: u32) -> Vec<Slot> {
        self.buckets[bucket as usize].iter().copied().map(Slot).collect()
    }

    /// Returns the slots of all chunks, bucket by bucket.
    pub(in crate::identify) fn by_bucket(&self) -> Vec<Slot> {
        self.buckets.iter().flatten().copied().map(Slot).collect()
    }

    /// Returns the fingerprint of a chunk that is still pending.
    pub(in crate::identify) fn fingerprint(&self, Slot(slot): Slot) -> Option<&Fingerprint> {
        Some(&self.slots.get(slot as usize)?.as_ref()?.chunk.first.chunk.fingerprint)
    }

    /// Notes that a lookup of a pending chunk starts in the background; returns the chunk's fingerprint.
    pub(in crate::identify) fn begin_lookup(&mut self, Slot(slot): Slot) -> &Fingerprint {
        let pending = self.slots[slot as usize].as_mut().expect("only pending chunks are looked up");
        pending.in_lookup = true;
        &pending.chunk.first.chunk.fingerprint
    }

    /// Returns true if a chunk is pending and a lookup of it runs in the background.
    pub(in crate::identify) fn is_in_lookup(&self, Slot(slot): Slot) -> bool {
        self.slots.get(slot as usize).and_then(Option::as_ref).is_some_and(|pending| pending.in_lookup)
    }

    /// Returns how many different chunks arrived before a position in the stream and are pending without a lookup.
    pub(in crate::identify) fn count_before(&self, end: Sequence) -> usize {
        let before = self.in_order().take_while(|(_, pending)| pending.chunk.first.sequence < end);
        before.filter(|(_, pending)| !pending.in_lookup).count()
    }

    /// Returns the chunks that `stride` selects, oldest first. If it gives `None`, the chunk is left out and runs begin again
    /// after it. Chunks in lookup are skipped.
    pub(in crate::identify) fn strided(&self, stride: impl Fn(Sequence) -> Option<Stride>) -> Vec<Slot> {
        let mut out = Vec::new();
        let mut before: Option<(u64, u32)> = None;
        for (slot, &PendingSlot { ref chunk, run, in_lookup, .. }) in self.in_order() {
            if in_lookup {
                before = Some((run, 0));
                continue;
            }
            let Some(stride) = stride(chunk.first.sequence) else {
                before = None;
                continue;
            };
            let (distance, is_in_run) = match stride {
                Stride::Chunks(distance) => (distance, false),
                Stride::InRuns(distance) => (distance, true),
            };
            let passed = match before {
                Some((last, passed)) if (last == run || !is_in_run) && passed + 1 < distance => passed + 1,
                _ => 0,
            };
            if passed == 0 {
                out.push(slot);
            }
            before = Some((run, passed));
        }
        out
    }
}

/// Returns the pending chunk of a slot if it arrived with this number.
fn at(slots: &[Option<PendingSlot>], slot: u32, sequence: Sequence) -> Option<&PendingSlot> {
    slots.get(slot as usize)?.as_ref().filter(|pending| pending.chunk.first.sequence == sequence)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::identify::options::CycleRule;
    use crate::identify::schedule::cycle::Cycles;
    use crate::random::SplitMix64;
    use crate::testing::fingerprint;

    fn arrival(number: u64) -> SequencedChunk {
        let chunk = Chunk { fingerprint: fingerprint(number), len: 3 };
        SequencedChunk::data(Sequence(number), chunk)
    }

    #[test]
    fn chunks_are_taken_out_as_they_were_put_in() {
        let mut random = SplitMix64::new(21);
        let mut pending = Pending::new(7);
        let membership = Cycles::new(CycleRule::default(), false).assign(Sequence(0));
        let membership = Some(membership);
        let mut model: BTreeMap<Sequence, (Slot, u32, Vec<Sequence>)> = BTreeMap::new();
        for number in 0..20_000 {
            let sequence = Sequence(number);
            let chosen = usize::try_from(random.below(model.len() as u64 + 1)).unwrap();
            let chosen = model.keys().nth(chosen).copied();
            match (chosen, random.below(5)) {
                (Some(key), 0) => {
                    let (slot, _, followers) = model.get_mut(&key).unwrap();
                    pending.join(*slot, sequence);
                    followers.push(sequence);
                }
                (Some(key), 1 | 2) => {
                    let (slot, _, followers) = model.remove(&key).unwrap();
                    let first = arrival(key.0);
                    assert_eq!(pending.get(slot, key).map(|chunk| chunk.first), Some(first));
                    let expected = PendingChunk { first, membership, followers };
                    assert_eq!(pending.take(slot), Some(expected));
                    assert_eq!(pending.get(slot, key), None);
                    assert_eq!(pending.take(slot), None);
                }
                _ => {
                    let (slot, bucket) = pending.push(arrival(number), membership, number / 5);
                    model.insert(sequence, (slot, bucket, Vec::new()));
                }
            }
            let oldest = model.first_key_value().map(|(sequence, (_, bucket, _))| (*sequence, *bucket));
            assert_eq!(pending.oldest(), oldest);
            assert_eq!(pending.bytes, 3 * pending.len());
            assert_eq!(pending.len(), model.values().map(|(_, _, followers)| 1 + followers.len()).sum::<usize>());
        }
        let out = pending.strided(|_| Some(Stride::Chunks(1)));
        assert_eq!(out, model.values().map(|(slot, ..)| *slot).collect::<Vec<_>>());
        for stride in [2, 7, u32::MAX] {
            let out = pending.strided(|_| Some(Stride::InRuns(stride)));
            let (mut expected, mut last, mut passed) = (Vec::new(), None, 0);
            for (sequence, (slot, ..)) in &model {
                let run = sequence.0 / 5;
                passed = if last == Some(run) && passed + 1 < stride { passed + 1 } else { 0 };
                expected.extend((passed == 0).then_some(*slot));
                last = Some(run);
            }
            assert_eq!(out, expected, "stride {stride}");
        }
        let all: Vec<Slot> = model.values().map(|(slot, ..)| *slot).collect();
        let every_third: Vec<Slot> = all.iter().step_by(3).copied().collect();
        assert_eq!(pending.strided(|_| Some(Stride::Chunks(3))), every_third);
        assert_eq!(pending.heads().len(), 1, "all are of one cycle");
    }
}
