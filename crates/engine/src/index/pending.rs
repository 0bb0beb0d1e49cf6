//! Chunks that wait for a verdict, in buckets by fingerprint prefix and in order of arrival.
//!
//! Prefix buckets are in table order: one bucket here covers one or more whole buckets of the table, or a part of one.
//! Equal chunks wait as followers of the first and share its verdict.

use std::collections::VecDeque;

use crate::index::SequencedChunk;
use crate::index::cycle::Membership;
use crate::index::slot::Slot;
use crate::kv::{Key, part_of};
use crate::types::{Chunk, Fingerprint, Sequence};

/// A pending chunk and those equal to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PendingChunk {
    /// Its first arrival.
    pub first: SequencedChunk,
    /// Its cycle; none if it never waits.
    pub membership: Option<Membership>,
    /// Later arrivals.
    pub followers: Vec<Sequence>,
}

#[derive(Debug)]
struct Waiting {
    chunk: PendingChunk,
    bucket: u32,
    index: u32,
    /// Number of the stretch of neighbors that it belongs to.
    extent: u64,
    /// Whether it is being looked up.
    is_asked: bool,
}

/// The chunks that wait.
#[derive(Debug)]
pub(super) struct Pending {
    slots: Vec<Option<Waiting>>,
    free: Vec<u32>,
    buckets: Vec<Vec<u32>>,
    /// Arrivals, oldest first; those that were taken stay until they are met or outnumber the others.
    order: VecDeque<(Sequence, u32)>,
    leaders: usize,
    followers: usize,
    bytes: usize,
}

impl Pending {
    /// Makes room for chunks in so many buckets, at least one.
    pub(super) fn new(buckets: u32) -> Self {
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

    /// Returns the bytes of the chunks that wait, followers included.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how many chunks wait, followers included.
    pub(super) fn len(&self) -> usize {
        self.leaders + self.followers
    }

    /// Says whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.leaders == 0
    }

    /// Returns how many different chunks wait in a bucket.
    pub(super) fn bucket_len(&self, bucket: u32) -> usize {
        self.buckets[bucket as usize].len()
    }

    /// Adds a chunk that differs from all that wait; returns its slot and its bucket.
    pub(super) fn push(&mut self, first: SequencedChunk, membership: Option<Membership>, extent: u64) -> (Slot, u32) {
        let SequencedChunk { sequence, chunk: Chunk { fingerprint, len } } = first;
        let bucket = part_of(Key::from(&fingerprint).head(), self.buckets.len());
        let bucket = u32::try_from(bucket).expect("the number of buckets is a u32");
        let members = &mut self.buckets[bucket as usize];
        let index = u32::try_from(members.len()).expect("fewer than 2^32 chunks wait");
        let chunk = PendingChunk { first, membership, followers: Vec::new() };
        let waiting = Some(Waiting { chunk, bucket, index, extent, is_asked: false });
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = waiting;
            slot
        } else {
            self.slots.push(waiting);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 chunks wait")
        };
        members.push(slot);
        self.leaders += 1;
        self.bytes += len as usize;
        if self.order.len() > 2 * self.leaders + 64 {
            let slots = &self.slots;
            self.order.retain(|&entry| is_waiting(slots, entry));
        }
        self.order.push_back((sequence, slot));
        (Slot(slot), bucket)
    }

    /// Adds a chunk that equals one that waits.
    pub(super) fn join(&mut self, Slot(slot): Slot, sequence: Sequence) {
        let waiting = self.slots[slot as usize].as_mut().expect("the slot of a chunk that waits");
        waiting.chunk.followers.push(sequence);
        self.bytes += waiting.chunk.first.chunk.len as usize;
        self.followers += 1;
    }

    /// Takes a chunk out; `None` if it was taken already.
    pub(super) fn take(&mut self, Slot(slot): Slot) -> Option<PendingChunk> {
        let Waiting { chunk, bucket, index, .. } = self.slots[slot as usize].take()?;
        let members = &mut self.buckets[bucket as usize];
        members.swap_remove(index as usize);
        if let Some(&moved) = members.get(index as usize) {
            self.slots[moved as usize].as_mut().expect("members of a bucket wait").index = index;
        }
        self.free.push(slot);
        self.leaders -= 1;
        self.bytes -= chunk.first.chunk.len as usize * (1 + chunk.followers.len());
        self.followers -= chunk.followers.len();
        Some(chunk)
    }

    /// Returns the chunk of a slot if it is still the one that arrived with this number.
    pub(super) fn get(&self, Slot(slot): Slot, sequence: Sequence) -> Option<&PendingChunk> {
        let waiting = self.slots.get(slot as usize)?.as_ref()?;
        (waiting.chunk.first.sequence == sequence).then_some(&waiting.chunk)
    }

    /// Returns the bucket that holds most different chunks.
    pub(super) fn fullest_bucket(&self) -> u32 {
        let counted = (0..).zip(&self.buckets).max_by_key(|(_, members)| members.len());
        counted.map_or(0, |(bucket, _)| bucket)
    }

    /// Replaces `out` with the first chunk that waits of each cycle, oldest first.
    pub(super) fn list_heads(&self, out: &mut Vec<Slot>) {
        out.clear();
        let mut last = None;
        for &(_, slot) in self.order.iter().filter(|&&entry| is_waiting(&self.slots, entry)) {
            let cycle = self.slots[slot as usize].as_ref().map(|waiting| waiting.chunk.membership.map(|it| it.cycle));
            if cycle != last {
                out.push(Slot(slot));
                last = cycle;
            }
        }
    }

    /// Returns the oldest chunk's sequence and bucket.
    pub(super) fn oldest(&mut self) -> Option<(Sequence, u32)> {
        while let Some(&(sequence, slot)) = self.order.front() {
            if let Some(waiting) = self.slots[slot as usize].as_ref().filter(|it| it.chunk.first.sequence == sequence) {
                return Some((sequence, waiting.bucket));
            }
            self.order.pop_front();
        }
        None
    }

    /// Replaces `out` with the slots of a bucket.
    pub(super) fn list_bucket(&self, bucket: u32, out: &mut Vec<Slot>) {
        out.clear();
        out.extend(self.buckets[bucket as usize].iter().copied().map(Slot));
    }

    /// Replaces `out` with the slots of all chunks, in the order of buckets.
    pub(super) fn list(&self, out: &mut Vec<Slot>) {
        out.clear();
        out.extend(self.buckets.iter().flatten().copied().map(Slot));
    }

    /// Returns the fingerprint of a chunk, if it still waits.
    pub(super) fn fingerprint(&self, Slot(slot): Slot) -> Option<&Fingerprint> {
        Some(&self.slots.get(slot as usize)?.as_ref()?.chunk.first.chunk.fingerprint)
    }

    /// Notes that a chunk that waits is being looked up; returns its fingerprint.
    pub(super) fn ask(&mut self, Slot(slot): Slot) -> &Fingerprint {
        let waiting = self.slots[slot as usize].as_mut().expect("the slot of a chunk that waits");
        waiting.is_asked = true;
        &waiting.chunk.first.chunk.fingerprint
    }

    /// Says whether a chunk waits and is being looked up.
    pub(super) fn is_asked(&self, Slot(slot): Slot) -> bool {
        self.slots.get(slot as usize).and_then(Option::as_ref).is_some_and(|waiting| waiting.is_asked)
    }

    /// Returns how many different chunks wait, and are not being looked up, that arrived before a place in the stream.
    pub(super) fn waiting_before(&self, end: Sequence) -> usize {
        let before = self.order.iter().take_while(|(sequence, _)| *sequence < end);
        before.filter(|&&entry| is_waiting(&self.slots, entry) && !self.is_asked(Slot(entry.1))).count()
    }

    /// Replaces `out` with the first chunk of every stretch, and with every further one in it that is as many after the
    /// last as `stride` says of it, oldest first. Where it says `None`, chunks are left out, and a stretch begins anew
    /// after them. Those that are being looked up are passed by.
    pub(super) fn list_strided(&self, out: &mut Vec<Slot>, stride: impl Fn(Sequence) -> Option<usize>) {
        out.clear();
        let mut before: Option<(u64, usize)> = None;
        for &(sequence, slot) in &self.order {
            let waiting = self.slots[slot as usize].as_ref().filter(|waiting| waiting.chunk.first.sequence == sequence);
            let Some(&Waiting { extent, is_asked, .. }) = waiting else { continue };
            if is_asked {
                before = Some((extent, 0));
                continue;
            }
            let Some(stride) = stride(sequence) else {
                before = None;
                continue;
            };
            let passed = match before {
                Some((last, passed)) if last == extent && passed + 1 < stride => passed + 1,
                _ => 0,
            };
            if passed == 0 {
                out.push(Slot(slot));
            }
            before = Some((extent, passed));
        }
    }
}

fn is_waiting(slots: &[Option<Waiting>], (sequence, slot): (Sequence, u32)) -> bool {
    slots[slot as usize].as_ref().is_some_and(|waiting| waiting.chunk.first.sequence == sequence)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::index::cycle::{CycleRule, Cycles};
    use crate::random::SplitMix64;
    use crate::testing::mem_disk::fingerprint;

    fn arrival(number: u64) -> SequencedChunk {
        let chunk = Chunk { fingerprint: fingerprint(number), len: 3 };
        SequencedChunk { sequence: Sequence(number), chunk }
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
            assert_eq!(pending.bytes(), 3 * pending.len());
            assert_eq!(pending.len(), model.values().map(|(_, _, followers)| 1 + followers.len()).sum::<usize>());
        }
        let mut out = Vec::new();
        pending.list_strided(&mut out, |_| Some(1));
        assert_eq!(out, model.values().map(|(slot, ..)| *slot).collect::<Vec<_>>());
        for stride in [2, 7, usize::MAX] {
            pending.list_strided(&mut out, |_| Some(stride));
            let (mut expected, mut last, mut passed) = (Vec::new(), None, 0);
            for (sequence, (slot, ..)) in &model {
                let extent = sequence.0 / 5;
                passed = if last == Some(extent) && passed + 1 < stride { passed + 1 } else { 0 };
                expected.extend((passed == 0).then_some(*slot));
                last = Some(extent);
            }
            assert_eq!(out, expected, "stride {stride}");
        }
        pending.list_heads(&mut out);
        assert_eq!(out.len(), 1, "all are of one cycle");
    }
}
