//! Entries that no flush has written yet: searchable by key, listed by bucket, in a fixed amount of memory.
//!
//! The entries of a bucket are in a list of small slabs, encoded as on a page, so that a bucket is listed in order of
//! memory. A hash table of lines leads to them. Each line is one cache line: fifteen slots, and a count of the entries that
//! found it full. An absent key usually costs one memory access, and no entry moves when others are removed.
//!
//! A flush freezes the slabs of a bucket: their entries are still found, and later ones go to new slabs.

use onefold_accel::memory::will_need;

use crate::kv::bucket_table::lines::{LINE_SLOTS, Line, Lines, equal_slots};
use crate::kv::bucket_table::page::{ENTRY_BYTES, EntryBytes, decode_entry, encode_entry, head_of, key_of};
use crate::kv::{Entry, KEY_LEN, Key, part_of};

/// Ends a list of slabs.
const END: u32 = u32::MAX;

/// Entries of a slab. Half a slab of each bucket is empty on average: 8 of about 500 entries.
const SLAB_ENTRIES: u32 = 16;
const SLAB_LEN: usize = SLAB_ENTRIES as usize;
const FULL: u8 = SLAB_ENTRIES.to_le_bytes()[0];

/// Entries per line of a full memtable: two thirds of the slots. One line in twenty then overflows into the next, which
/// costs a memory access; at four fifths it is one in seven.
const LINE_ENTRIES: usize = 10;

/// Most entries of a memtable: with more, a slot has too few bits left to distinguish keys.
const CAPACITY_MAX: usize = 1 << 28;

/// Memory of one entry: the entry, its share of a line and of a slab, and of the copies that a flush makes of a
/// twenty-fourth of the buckets (see `kv::change`).
pub(crate) const MEMTABLE_ENTRY_BYTES: usize = ENTRY_BYTES + size_of::<Line>() / LINE_ENTRIES + 1 + 3;

/// Entries of a slab: two to a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Entries([EntryBytes; SLAB_LEN]);

#[derive(Clone, Copy, Debug)]
struct Slab {
    next: u32,
    fill: u8,
    frozen: bool,
}

/// Slabs of a bucket. `fill` is that of the last slab.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    fill: u8,
    count: u32,
}

const EMPTY: List = List { first: END, last: END, fill: FULL, count: 0 };

/// Slabs of a bucket that a flush writes.
#[derive(Debug)]
pub(in crate::kv) struct Frozen(List);

/// Entries that no flush has written yet.
pub(in crate::kv) struct Memtable {
    /// As long as `slabs`: slabs that were never used take no pages of memory.
    entries: Vec<Entries>,
    slabs: Vec<Slab>,
    /// Most slabs.
    slabs_max: usize,
    /// The first slab that was used before and is free.
    free: u32,
    free_slabs: usize,
    lines: Lines,
    index_bits: u32,
    lists: Vec<List>,
    len: usize,
}

impl std::fmt::Debug for Memtable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { len, slabs, free_slabs, .. } = self;
        write!(f, "Memtable {{ len: {len}, slabs: {}, free_slabs: {free_slabs} }}", slabs.len())
    }
}

impl Memtable {
    /// Makes an empty memtable for as many entries as fit into `bytes`, at least one slab.
    pub(crate) fn new(bytes: usize, buckets: usize) -> Self {
        let slabs = (bytes / MEMTABLE_ENTRY_BYTES).min(CAPACITY_MAX).div_ceil(SLAB_LEN).max(1);
        let capacity = slabs * SLAB_LEN;
        Self {
            entries: Vec::with_capacity(slabs),
            slabs: Vec::with_capacity(slabs),
            slabs_max: slabs,
            free: END,
            free_slabs: slabs,
            lines: Lines::new(capacity.div_ceil(LINE_ENTRIES) + 1),
            index_bits: capacity.ilog2() + 1,
            lists: vec![EMPTY; buckets],
            len: 0,
        }
    }

    /// Returns true if an entry of some bucket could find no free slab.
    pub(in crate::kv) fn is_full(&self) -> bool {
        self.free_slabs == 0
    }

    /// Returns the number of free slabs, and of all.
    pub(in crate::kv) fn space(&self) -> (usize, usize) {
        (self.free_slabs, self.slabs_max)
    }

    /// Returns the number of entries of a bucket that are not frozen.
    pub(in crate::kv) fn bucket_count(&self, bucket: u32) -> u32 {
        self.lists[bucket as usize].count
    }

    /// Returns the memory of the memtable, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let lists = self.lists.capacity() * size_of::<List>();
        let slabs = self.slabs_max * (size_of::<Entries>() + size_of::<Slab>());
        slabs + self.lines.memory_bytes() + lists
    }

    fn entry(&self, index: u32) -> &EntryBytes {
        &self.entries[index as usize / SLAB_LEN].0[index as usize % SLAB_LEN]
    }

    fn entry_mut(&mut self, index: u32) -> &mut EntryBytes {
        &mut self.entries[index as usize / SLAB_LEN].0[index as usize % SLAB_LEN]
    }

    fn home(&self, key: &Key) -> usize {
        part_of(key.middle(), self.lines.len())
    }

    fn tag(&self, key: &Key) -> u32 {
        key.tail() << self.index_bits
    }

    /// Returns the slot that leads to an index.
    fn slot_value(&self, key: &Key, index: u32) -> u32 {
        self.tag(key) | (index + 1)
    }

    fn index_mask(&self) -> u32 {
        (1 << self.index_bits) - 1
    }

    fn after(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() { 0 } else { line + 1 }
    }

    /// Prefetches the line of a key that will be looked up soon.
    pub(in crate::kv) fn prefetch(&self, key: &Key) {
        will_need(&self.lines[self.home(key)]);
    }

    /// Prefetches the memory of the next entry of a bucket.
    pub(in crate::kv) fn prefetch_end(&self, bucket: u32) {
        let List { last, fill, .. } = self.lists[bucket as usize];
        if let Some(Entries(entries)) = self.entries.get(last as usize) {
            will_need(&entries[usize::from(fill) % SLAB_LEN]);
        }
    }

    /// Returns the line and the slot of the first slot on the path of a key that equals `wanted` in the bits of `mask` and
    /// matches.
    fn find_slot(&self, key: &Key, wanted: u32, mask: u32, is_match: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        let mut line = self.home(key);
        for _ in 0..self.lines.len() {
            let slots = &self.lines[line];
            let mut same = equal_slots(slots, wanted, mask);
            while same != 0 {
                let slot = same.trailing_zeros() as usize;
                same &= same - 1;
                if is_match(slots[slot]) {
                    return Some((line, slot));
                }
            }
            if slots[LINE_SLOTS] == 0 {
                return None;
            }
            line = self.after(line);
        }
        None
    }

    /// Returns the line and the slot of a key, and the index of its entry.
    fn find(&self, key: &Key) -> Option<(usize, usize, u32)> {
        let mask = self.index_mask();
        let index_of = |slot: u32| (slot & mask).checked_sub(1);
        let is_key = |slot| index_of(slot).is_some_and(|index| key_of(self.entry(index)) == &key.0);
        let (line, slot) = self.find_slot(key, self.tag(key), !mask, is_key)?;
        Some((line, slot, index_of(self.lines[line][slot])?))
    }

    /// Returns the entry of a key.
    pub(crate) fn get(&self, key: &Key) -> Option<Entry> {
        self.find(key).map(|(_, _, index)| decode_entry(self.entry(index)))
    }

    /// Adds an entry, or replaces the one that has the same key. The memtable must not be full.
    pub(crate) fn insert(&mut self, bucket: u32, entry: &Entry) {
        assert!(!self.is_full(), "the table flushes before it adds more");
        let bytes = encode_entry(entry);
        match self.find(&entry.key) {
            Some((_, _, index)) if !self.slabs[index as usize / SLAB_LEN].frozen => {
                *self.entry_mut(index) = bytes;
            }
            Some((line, slot, _)) => {
                // A flush writes the frozen one. Lookups find this one from now on.
                let index = self.append(bucket, bytes);
                self.lines[line][slot] = self.slot_value(&entry.key, index);
                self.len += 1;
            }
            None => {
                let index = self.append(bucket, bytes);
                self.link(&entry.key, index);
                self.len += 1;
            }
        }
    }

    /// Puts an index into the first free slot on the path of a key.
    fn link(&mut self, key: &Key, index: u32) {
        let value = self.slot_value(key, index);
        let mut line = self.home(key);
        loop {
            let slots = &mut self.lines[line];
            let free = equal_slots(slots, 0, u32::MAX);
            if free != 0 {
                slots[free.trailing_zeros() as usize] = value;
                return;
            }
            slots[LINE_SLOTS] += 1;
            line = self.after(line);
        }
    }

    /// Returns the line and the slot of an index; none if a later entry of the key replaced it.
    fn slot_of(&self, key: &Key, index: u32) -> Option<(usize, usize)> {
        self.find_slot(key, self.slot_value(key, index), u32::MAX, |_| true)
    }

    /// Undoes [`Memtable::link`], unless a later entry of the key has the slot.
    fn unlink(&mut self, key: &Key, index: u32) {
        let Some((found, slot)) = self.slot_of(key, index) else { return };
        self.lines[found][slot] = 0;
        let mut line = self.home(key);
        while line != found {
            self.lines[line][LINE_SLOTS] -= 1;
            line = self.after(line);
        }
    }

    fn append(&mut self, bucket: u32, bytes: EntryBytes) -> u32 {
        if self.lists[bucket as usize].fill == FULL {
            let slab = self.take_slab();
            let list = &mut self.lists[bucket as usize];
            match list.last {
                END => list.first = slab,
                last => self.slabs[last as usize] = Slab { next: slab, fill: FULL, frozen: false },
            }
            list.last = slab;
            list.fill = 0;
        }
        let list = &mut self.lists[bucket as usize];
        let index = list.last * SLAB_ENTRIES + u32::from(list.fill);
        list.fill += 1;
        list.count += 1;
        *self.entry_mut(index) = bytes;
        index
    }

    /// Takes a free slab: one that was used before, or the next of the others.
    fn take_slab(&mut self) -> u32 {
        self.free_slabs -= 1;
        let taken = Slab { next: END, fill: FULL, frozen: false };
        if let Some(free) = self.slabs.get_mut(self.free as usize) {
            return std::mem::replace(&mut self.free, std::mem::replace(free, taken).next);
        }
        let slab = u32::try_from(self.slabs.len()).expect("the capacity of a memtable has 28 bits");
        self.slabs.push(taken);
        self.entries.push(Entries([[0; ENTRY_BYTES]; SLAB_LEN]));
        slab
    }

    fn release(&mut self, slab: u32) {
        self.slabs[slab as usize] = Slab { next: self.free, fill: 0, frozen: false };
        self.free = slab;
        self.free_slabs += 1;
    }

    /// Returns the slabs of a list with their entries.
    fn slabs_of(&self, list: List) -> impl Iterator<Item = (u32, &[EntryBytes])> {
        let mut next = list.first;
        std::iter::from_fn(move || {
            let slab = next;
            let found = self.slabs.get(slab as usize)?;
            next = found.next;
            let fill = if slab == list.last { list.fill } else { found.fill };
            Some((slab, &self.entries[slab as usize].0[..usize::from(fill)]))
        })
    }

    /// Appends the entries of a bucket that are not frozen, in no particular order.
    pub(in crate::kv) fn list(&self, bucket: u32, out: &mut Vec<EntryBytes>) {
        for (_, entries) in self.slabs_of(self.lists[bucket as usize]) {
            out.extend_from_slice(entries);
        }
    }

    /// Freezes the entries of a bucket and appends them, in no particular order. Lookups find them until they are thawed or
    /// dropped.
    pub(in crate::kv) fn freeze(&mut self, bucket: u32, out: &mut Vec<EntryBytes>) -> Frozen {
        self.list(bucket, out);
        let list = std::mem::replace(&mut self.lists[bucket as usize], EMPTY);
        let mut next = list.first;
        while let Some(slab) = self.slabs.get_mut(next as usize) {
            slab.frozen = true;
            next = slab.next;
        }
        Frozen(list)
    }

    /// Drops entries that a flush wrote. Later entries of the same keys stay.
    pub(in crate::kv) fn drop_frozen(&mut self, Frozen(list): Frozen) {
        let mut slab = list.first;
        let mut keys = self.keys_ahead(slab);
        while slab != END {
            let Slab { next, fill, .. } = self.slabs[slab as usize];
            let fill = usize::from(if slab == list.last { list.fill } else { fill });
            let next_keys = self.keys_ahead(next);
            for (index, key) in (slab * SLAB_ENTRIES..).zip(&keys[..fill]) {
                self.unlink(key, index);
            }
            self.len -= fill;
            self.release(slab);
            (slab, keys) = (next, next_keys);
        }
    }

    /// Returns the keys of a slab. Prefetches their lines, for the caller that is still busy with the slab before, and the
    /// slab after it.
    fn keys_ahead(&self, slab: u32) -> [Key; SLAB_LEN] {
        let (Some(&Slab { next, .. }), Some(Entries(entries))) =
            (self.slabs.get(slab as usize), self.entries.get(slab as usize))
        else {
            return [Key([0; KEY_LEN]); SLAB_LEN];
        };
        if let Some(Entries(after)) = self.entries.get(next as usize) {
            after.iter().step_by(2).for_each(will_need);
        }
        entries.map(|entry| {
            let key = Key(*key_of(&entry));
            self.prefetch(&key);
            key
        })
    }

    /// Returns frozen entries to their bucket after a failed flush.
    pub(in crate::kv) fn thaw(&mut self, bucket: u32, Frozen(mut list): Frozen) {
        let mut slab = list.first;
        while slab != END {
            let next = self.slabs[slab as usize].next;
            let fill = if slab == list.last { list.fill } else { self.slabs[slab as usize].fill };
            let kept = self.drop_replaced(slab, fill);
            list.count -= u32::from(fill - kept);
            self.len -= usize::from(fill - kept);
            self.slabs[slab as usize].fill = kept;
            self.slabs[slab as usize].frozen = false;
            if slab == list.last {
                list.fill = kept;
            }
            slab = next;
        }
        let later = std::mem::replace(&mut self.lists[bucket as usize], list);
        self.chain(bucket, later);
    }

    /// Removes the entries of a slab whose key has a later entry; returns how many are left.
    fn drop_replaced(&mut self, slab: u32, mut fill: u8) -> u8 {
        let start = slab * SLAB_ENTRIES;
        let mut next = 0;
        while next < fill {
            let index = start + u32::from(next);
            let key = Key(*key_of(self.entry(index)));
            if self.slot_of(&key, index).is_some() {
                next += 1;
                continue;
            }
            fill -= 1;
            let last = start + u32::from(fill);
            if last != index {
                let moved = *self.entry(last);
                let key = Key(*key_of(&moved));
                *self.entry_mut(index) = moved;
                if let Some((line, slot)) = self.slot_of(&key, last) {
                    self.lines[line][slot] = self.slot_value(&key, index);
                }
            }
        }
        fill
    }

    /// Appends a list to that of a bucket.
    fn chain(&mut self, bucket: u32, later: List) {
        let list = &mut self.lists[bucket as usize];
        if later.first == END {
            return;
        }
        match list.last {
            END => *list = later,
            last => {
                let slab = &mut self.slabs[last as usize];
                (slab.fill, slab.next) = (list.fill, later.first);
                *list = List { first: list.first, count: list.count + later.count, ..later };
            }
        }
    }

    /// Splits the list of a bucket: entries whose heads are not below `boundary` go to a new last list. One slab must be
    /// free.
    pub(in crate::kv) fn split(&mut self, bucket: u32, boundary: u64) {
        let other = u32::try_from(self.lists.len()).expect("fewer than 2^32 buckets");
        self.lists.push(EMPTY);
        let list = std::mem::replace(&mut self.lists[bucket as usize], EMPTY);
        let mut slab = list.first;
        while slab != END {
            let Slab { next, fill, .. } = self.slabs[slab as usize];
            let fill = usize::from(if slab == list.last { list.fill } else { fill });
            let Entries(entries) = self.entries[slab as usize];
            // Before its entries are appended, which may need two slabs.
            self.release(slab);
            let keys = entries.map(|entry| Key(*key_of(&entry)));
            let old = (slab * SLAB_ENTRIES..).zip(&keys[..fill]);
            let slots: Vec<_> = old.map(|(index, key)| self.slot_of(key, index)).collect();
            for ((entry, key), slot) in entries.iter().zip(&keys).zip(slots) {
                let half = if head_of(entry) < boundary { bucket } else { other };
                let index = self.append(half, *entry);
                if let Some((line, slot)) = slot {
                    self.lines[line][slot] = self.slot_value(key, index);
                }
            }
            slab = next;
        }
    }

    /// Joins the lists of two buckets under the number of the first. The last bucket gets the number of the second.
    pub(in crate::kv) fn join(&mut self, first: u32, second: u32) {
        let later = self.lists[second as usize];
        self.chain(first, later);
        self.lists.swap_remove(second as usize);
    }
}

#[cfg(test)]
#[path = "memtable_tests.rs"]
mod tests;
