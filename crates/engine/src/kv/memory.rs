//! A store in memory: a cuckoo hash table of whole entries, in a fixed amount of memory, saved as a whole at a checkpoint.
//!
//! The table is an array of buckets of four slots. The head of a key chooses its first bucket, and its middle the second,
//! at most [`Memory::reach`] buckets behind. So the keys of a range of heads lie in consecutive buckets, and the filter grows
//! without a pass over the whole table. An entry whose buckets are full displaces others to their second bucket, along the
//! shortest path to a free slot that a search of [`SEARCH_BUCKETS`] buckets finds. If it finds none, the table drops the
//! entries of containers that are not live. If that helps not either, the table is full.
//!
//! A 16-bit signature of each key lies apart from the entries, so that an absent key costs two memory accesses and a present one
//! three. (Debnath et al., "`ChunkStash`", USENIX ATC 2010, keep only the signature and a position of four bytes in memory, and
//! verify a match by a read of the log. This table keeps whole entries: 34 bytes instead of 6, and exact answers without a
//! read. Its other user is the memory-resident key-value store of Fu et al., "Design Tradeoffs for Data Deduplication
//! Performance in Backup Workloads", FAST 2015.)
//!
//! Part `entries` of a checkpoint:
//!
//! | size | field |
//! |---|---|
//! | 8 | `OFMEMRY1` |
//! | 8 | generation |
//! | 8 | epoch |
//! | 8 | number of buckets, at least 2 |
//! | 8 | number of entries |
//! | per bucket | 1 number of its entries, 0 to 4; 32 each |
//!
//! With as many buckets as were saved, every entry returns to its bucket. Otherwise the entries are inserted again.
#![deny(clippy::indexing_slicing)]

use std::ops::RangeInclusive;

use onefold_accel::memory::will_need;

use crate::error::{Error, Result};
use crate::kv::bucket_table::page::{ENTRY_BYTES, EntryBytes, decode_entry, encode_entry, key_of, ordinal_of};
use crate::kv::sealed::{SealedReader, SealedWriter};
use crate::kv::store::{Containers, EntryStore, Lookup, OpenStore, StoreCounters, Surroundings};
use crate::kv::{Entry, Fields, Key, part_of};

const MAGIC: [u8; 8] = *b"OFMEMRY1";

/// Bytes of the part before the buckets.
const HEADER_BYTES: usize = 40;

/// Slots of a bucket: the signatures of two buckets are compared with two loads, and 19 of 20 slots can be used.
const SLOTS: usize = 4;

/// Memory of a bucket: entries and signatures.
const BUCKET_BYTES: usize = SLOTS * (ENTRY_BYTES + size_of::<u16>());

/// Buckets that a search for a free slot visits: both of the new entry, and four steps from there.
const SEARCH_BUCKETS: usize = 2 * (1 + 4 + 16 + 64 + 256);

/// Most parts of the table that the second bucket of a key is away from the first: one in so many.
const REACH_SHARE: usize = 64;
/// Fewest buckets within which it lies, in a table that has as many.
const REACH_MIN: usize = 64;

/// Share of the slots that was inserted since the last pass over all entries before another pass may look for those that are
/// not live: one in so many. So passes take a bounded share of the time.
const PASS_SHARE: usize = 64;

/// Keys whose cache lines are loaded together.
const PREFETCH_KEYS: usize = 64;

/// Memory of a store in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemorySpec {
    /// Bytes of the table. It holds about one entry for 36 bytes, and has two buckets at least.
    pub bytes: usize,
}

impl MemorySpec {
    fn buckets(self) -> usize {
        // A step of a search has four bytes for a bucket.
        (self.bytes / BUCKET_BYTES).clamp(2, u32::MAX as usize)
    }

    /// Returns the memory that the store takes.
    pub(crate) fn memory_bytes(self) -> usize {
        self.buckets() * BUCKET_BYTES
    }
}

/// Entries of a bucket.
type Slots = [EntryBytes; SLOTS];

/// Signatures of the entries of a bucket; 0 marks a free slot.
type Signatures = [u16; SLOTS];

/// Returns the signature of a key, which is not 0.
fn signature_of(key: &Key) -> u16 {
    let [low, high, ..] = key.tail().to_le_bytes();
    u16::from_le_bytes([low, high]).max(1)
}

/// A bucket that a search for a free slot visits.
#[derive(Clone, Copy, Default)]
struct Step {
    bucket: u32,
    /// The step before: its entry in `slot` can move to this bucket.
    before: u16,
    slot: u8,
}

/// The store.
pub(in crate::kv) struct Memory {
    epoch: u64,
    signatures: Vec<Signatures>,
    entries: Vec<Slots>,
    /// Buckets behind its first among which is the second bucket of a key.
    reach: usize,
    /// Number of entries.
    len: usize,
    /// Entries inserted since the last pass for those that are not live.
    since_pass: usize,
    /// Answers of a lookup that was started.
    answers: Option<Vec<Lookup>>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { len, epoch, .. } = self;
        write!(f, "Memory {{ len: {len}, buckets: {}, epoch: {epoch} }}", self.entries.len())
    }
}

impl Memory {
    fn new(spec: MemorySpec, epoch: u64) -> Self {
        let buckets = spec.buckets();
        Self {
            epoch,
            signatures: vec![[0; SLOTS]; buckets],
            entries: vec![[[0; ENTRY_BYTES]; SLOTS]; buckets],
            reach: (buckets / REACH_SHARE).max(REACH_MIN).min(buckets - 1),
            len: 0,
            since_pass: usize::MAX,
            answers: None,
        }
    }

    fn first_bucket(&self, key: &Key) -> usize {
        part_of(key.head(), self.entries.len())
    }

    fn buckets_of(&self, key: &Key) -> [usize; 2] {
        let first = self.first_bucket(key);
        [first, (first + 1 + part_of(key.middle(), self.reach)) % self.entries.len()]
    }

    /// Starts to load the signatures of a key into the processor's cache.
    fn prefetch(&self, key: &Key) {
        self.buckets_of(key).iter().filter_map(|&bucket| self.signatures.get(bucket)).for_each(will_need);
    }

    fn signatures(&self, bucket: usize) -> Signatures {
        self.signatures.get(bucket).copied().unwrap_or_default()
    }

    /// Returns the entry in a slot, whether it is free or not.
    fn entry(&self, bucket: usize, slot: usize) -> &EntryBytes {
        self.entries.get(bucket).and_then(|slots| slots.get(slot)).expect("a slot of the table")
    }

    fn put(&mut self, bucket: usize, slot: usize, signature: u16, entry: EntryBytes) {
        let signatures = self.signatures.get_mut(bucket).and_then(|slots| slots.get_mut(slot));
        *signatures.expect("a slot of the table") = signature;
        *self.entries.get_mut(bucket).and_then(|slots| slots.get_mut(slot)).expect("a slot of the table") = entry;
    }

    /// Returns the bucket and the slot of a key.
    fn find(&self, key: &Key) -> Option<(usize, usize)> {
        let wanted = signature_of(key);
        for bucket in self.buckets_of(key) {
            for (slot, signature) in self.signatures(bucket).into_iter().enumerate() {
                if signature == wanted && key_of(self.entry(bucket, slot)) == &key.0 {
                    return Some((bucket, slot));
                }
            }
        }
        None
    }

    fn look_up_key(&self, key: &Key, containers: &dyn Containers) -> Lookup {
        match self.find(key).map(|(bucket, slot)| decode_entry(self.entry(bucket, slot))) {
            Some(entry) if containers.is_live(entry.ordinal) => Lookup::InMemory(entry),
            Some(_) => Lookup::Dead,
            None => Lookup::Absent,
        }
    }

    /// Adds an entry, or replaces the one of its key. Returns false if there is no space for it.
    fn set(&mut self, entry: &Entry) -> bool {
        let (bytes, signature) = (encode_entry(entry), signature_of(&entry.key));
        if let Some((bucket, slot)) = self.find(&entry.key) {
            self.put(bucket, slot, signature, bytes);
            return true;
        }
        let Some((bucket, slot)) = self.free_slot(&entry.key) else { return false };
        self.put(bucket, slot, signature, bytes);
        self.len += 1;
        self.since_pass = self.since_pass.saturating_add(1);
        true
    }

    fn free_slot_in(&self, bucket: usize) -> Option<usize> {
        self.signatures(bucket).iter().position(|&signature| signature == 0)
    }

    /// Returns a free slot for a key, after displacing others if need be.
    fn free_slot(&mut self, key: &Key) -> Option<(usize, usize)> {
        let roots = self.buckets_of(key);
        let free = |&bucket: &usize| self.free_slot_in(bucket).map(|slot| (bucket, slot));
        roots.iter().find_map(free).or_else(|| self.search(roots))
    }

    /// Searches the buckets around two full ones for a free slot, and displaces the entries on the way to it.
    fn search(&mut self, roots: [usize; 2]) -> Option<(usize, usize)> {
        let mut steps = [Step::default(); SEARCH_BUCKETS];
        for (step, bucket) in steps.iter_mut().zip(roots) {
            step.bucket = u32::try_from(bucket).ok()?;
        }
        let mut count = roots.len();
        // The first path that ends at a free slot is the shortest, so it passes no slot twice.
        for index in 0..SEARCH_BUCKETS {
            let bucket = steps.get(..count)?.get(index)?.bucket as usize;
            if let Some(slot) = self.free_slot_in(bucket) {
                return Some(self.displace(&steps, index, slot));
            }
            for slot in 0..SLOTS {
                let Some(step) = steps.get_mut(count) else { break };
                let [first, second] = self.buckets_of(&Key(*key_of(self.entry(bucket, slot))));
                let other = if bucket == first { second } else { first };
                *step = Step {
                    bucket: u32::try_from(other).ok()?,
                    before: u16::try_from(index).ok()?,
                    slot: u8::try_from(slot).ok()?,
                };
                count += 1;
            }
        }
        None
    }

    /// Moves each entry on the path to step `index` into the bucket of the next step, the last into the free slot. Returns
    /// the slot that is free then, in a bucket of the new entry.
    fn displace(&mut self, steps: &[Step; SEARCH_BUCKETS], mut index: usize, mut free: usize) -> (usize, usize) {
        loop {
            let step = steps.get(index).copied().unwrap_or_default();
            let bucket = step.bucket as usize;
            if index < 2 {
                return (bucket, free);
            }
            let (before, slot) = (usize::from(step.before), usize::from(step.slot));
            let from = steps.get(before).copied().unwrap_or_default().bucket as usize;
            let signature = self.signatures(from).get(slot).copied().unwrap_or_default();
            let entry = *self.entry(from, slot);
            self.put(bucket, free, signature, entry);
            (index, free) = (before, slot);
        }
    }

    /// Drops the entries of containers that are not live; returns their number.
    fn drop_dead(&mut self, containers: &dyn Containers) -> usize {
        let before = self.len;
        for (signatures, entries) in self.signatures.iter_mut().zip(&self.entries) {
            for (signature, entry) in signatures.iter_mut().zip(entries) {
                if *signature != 0 && !containers.is_live(ordinal_of(entry)) {
                    *signature = 0;
                    self.len -= 1;
                }
            }
        }
        before - self.len
    }

    fn full(&self) -> Error {
        Error::StoreFull { entries: self.len as u64 }
    }

    /// Returns the entries of a bucket.
    fn used(&self, bucket: usize) -> impl Iterator<Item = &EntryBytes> {
        let entries = self.entries.get(bucket).into_iter().flatten();
        self.signatures(bucket)
            .into_iter()
            .zip(entries)
            .filter(|(signature, _)| *signature != 0)
            .map(|(_, entry)| entry)
    }

    /// Takes an entry that was saved in a bucket; returns false if it does not belong there.
    fn restore(&mut self, bucket: usize, slot: usize, bytes: EntryBytes) -> bool {
        let key = Key(*key_of(&bytes));
        let belongs = self.buckets_of(&key).contains(&bucket) && self.find(&key).is_none();
        if belongs {
            self.put(bucket, slot, signature_of(&key), bytes);
            self.len += 1;
        }
        belongs
    }
}

impl EntryStore for Memory {
    fn look_up(&mut self, keys: &[Key], containers: &dyn Containers) -> Vec<Lookup> {
        let mut answers = Vec::with_capacity(keys.len());
        for batch in keys.chunks(PREFETCH_KEYS) {
            for key in batch {
                self.prefetch(key);
            }
            answers.extend(batch.iter().map(|key| self.look_up_key(key, containers)));
        }
        answers
    }

    /// Answers immediately.
    fn start_look_up(&mut self, keys: Vec<Key>, containers: &dyn Containers) {
        assert!(self.answers.is_none(), "the answers of a lookup are taken before the next starts");
        self.answers = Some(self.look_up(&keys, containers));
    }

    fn finish_look_up(&mut self) -> Option<Vec<Lookup>> {
        self.answers.take()
    }

    fn insert(&mut self, entries: &[Entry]) -> usize {
        let mut inserted = 0;
        for batch in entries.chunks(PREFETCH_KEYS) {
            for entry in batch {
                self.prefetch(&entry.key);
            }
            for entry in batch {
                if !self.set(entry) {
                    return inserted;
                }
                inserted += 1;
            }
        }
        inserted
    }

    fn make_space(&mut self, containers: &mut dyn Containers) -> Result<()> {
        let slots = self.entries.len() * SLOTS;
        if self.since_pass < (slots / PASS_SHARE).max(1) || self.drop_dead(containers) == 0 {
            return Err(self.full());
        }
        self.since_pass = 0;
        Ok(())
    }

    fn maintain(&mut self, _containers: &mut dyn Containers) -> Result<()> {
        Ok(())
    }

    fn repair(&mut self, _containers: &mut dyn Containers) -> Result<Vec<RangeInclusive<u64>>> {
        Ok(Vec::new())
    }

    fn damage(&self) -> Vec<RangeInclusive<u64>> {
        Vec::new()
    }

    fn keys_in(&mut self, heads: RangeInclusive<u64>, each: &mut dyn FnMut(&Key)) -> Result<()> {
        let buckets = self.entries.len();
        let (first, last) = (part_of(*heads.start(), buckets), part_of(*heads.end(), buckets));
        let count = (last.saturating_sub(first) + 1 + self.reach).min(buckets);
        for bucket in (first..first + count).map(|bucket| bucket % buckets) {
            for key in self.used(bucket).map(|entry| Key(*key_of(entry))) {
                if heads.contains(&key.head()) {
                    each(&key);
                }
            }
        }
        Ok(())
    }

    fn list(&mut self, each: &mut dyn FnMut(&Entry)) -> Result<bool> {
        for bucket in 0..self.entries.len() {
            self.used(bucket).for_each(|entry| each(&decode_entry(entry)));
        }
        Ok(true)
    }

    fn save(&mut self, generation: u64, _containers: &mut dyn Containers, parts: &mut [SealedWriter]) -> Result<()> {
        let [part] = parts else { panic!("a store in memory has the part that it names") };
        part.write(&MAGIC)?;
        for field in [generation, self.epoch, self.entries.len() as u64, self.len as u64] {
            part.write(&field.to_le_bytes())?;
        }
        for bucket in 0..self.entries.len() {
            let count = self.signatures(bucket).iter().filter(|&&signature| signature != 0).count();
            part.write(&[u8::try_from(count).expect("a bucket has four slots")])?;
            for entry in self.used(bucket) {
                part.write(entry)?;
            }
        }
        Ok(())
    }

    fn saved(&mut self) {}

    fn memory_bytes(&self) -> usize {
        self.signatures.capacity() * size_of::<Signatures>() + self.entries.capacity() * size_of::<Slots>()
    }

    fn counters(&self) -> StoreCounters {
        StoreCounters::default()
    }
}

/// Header of the part of a checkpoint.
struct Header {
    generation: u64,
    epoch: u64,
    buckets: u64,
    entries: u64,
}

fn decode_header(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
    let mut fields = Fields::new(bytes);
    let magic = fields.array()?;
    let header =
        Header { generation: fields.u64()?, epoch: fields.u64()?, buckets: fields.u64()?, entries: fields.u64()? };
    (magic == MAGIC && 2 <= header.buckets).then_some(header)
}

fn damaged(reason: &str) -> Error {
    Error::damaged("saved entries", reason)
}

impl MemorySpec {
    /// Reads the entries that [`EntryStore::save`] wrote.
    fn load(self, generation: u64, mut part: SealedReader) -> Result<Memory> {
        let mut header = [0; HEADER_BYTES];
        part.read(&mut header)?;
        let header = decode_header(&header).ok_or_else(|| damaged("have another version"))?;
        if header.generation != generation {
            return Err(damaged("belong to another checkpoint"));
        }
        // The memory is that of the specification, whatever the header says. A part that is too short ends early.
        let mut memory = Memory::new(self, header.epoch);
        let is_same_size = header.buckets == memory.entries.len() as u64;
        let mut entries = 0;
        for bucket in 0..header.buckets {
            let mut count = [0];
            part.read(&mut count)?;
            let [count] = count;
            if SLOTS < usize::from(count) {
                return Err(damaged("exceed their bucket"));
            }
            for slot in 0..usize::from(count) {
                let mut bytes = [0; ENTRY_BYTES];
                part.read(&mut bytes)?;
                entries += 1;
                if !is_same_size {
                    if !memory.set(&decode_entry(&bytes)) {
                        return Err(Error::StoreFull { entries: header.entries });
                    }
                } else if !usize::try_from(bucket).is_ok_and(|bucket| memory.restore(bucket, slot, bytes)) {
                    return Err(damaged("are in a wrong bucket"));
                }
            }
        }
        part.finish()?;
        if entries == header.entries { Ok(memory) } else { Err(damaged("are not as many as their header says")) }
    }
}

/// Opens stores in memory.
impl OpenStore for MemorySpec {
    fn parts(&self) -> &'static [&'static str] {
        &["entries"]
    }

    fn create(&self, _surroundings: Surroundings<'_>, epoch: u64) -> Result<Box<dyn EntryStore>> {
        Ok(Box::new(Memory::new(*self, epoch)))
    }

    fn open(
        &self,
        _surroundings: Surroundings<'_>,
        generation: u64,
        parts: Vec<SealedReader>,
    ) -> Result<(Box<dyn EntryStore>, u64)> {
        let [part] = <[SealedReader; 1]>::try_from(parts).map_err(|_| damaged("have other parts"))?;
        let memory = self.load(generation, part)?;
        let epoch = memory.epoch;
        Ok((Box::new(memory), epoch))
    }
}
