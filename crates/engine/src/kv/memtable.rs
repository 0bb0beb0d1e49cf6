//! Entries that are not written out yet: searchable by key, listed by bucket, in a fixed amount of memory.
//!
//! The entries of a bucket stand in a list of small slabs, encoded as they will stand on a page, so that listing them
//! is reading in order. A hash of lines, each one cache line of fifteen slots and a count of the entries that found it
//! full, leads to them: a key that is not staged costs one access to memory as a rule, and nothing moves when entries go.
//!
//! A bucket that is being written out has its slabs frozen: its entries are still found, and later ones go to new slabs.

use onefold_accel::memory::will_need;

use crate::kv::page::{ENTRY_BYTES, EntryBytes, decode_entry, encode_entry, head_of, key_of};
use crate::kv::{Entry, KEY_LEN, Key, part_of};

/// Ends a list of slabs.
const END: u32 = u32::MAX;

/// Entries of a slab: half a slab of each bucket is wasted, 8 of about 500 entries.
const SLAB_ENTRIES: u32 = 16;
const SLAB_LEN: usize = SLAB_ENTRIES as usize;
const FULL: u8 = SLAB_ENTRIES.to_le_bytes()[0];

/// Slots of a line beside its count.
const LINE_SLOTS: usize = 15;

/// Entries per line when staging is full: at two thirds one line in twenty has been passed by, at four fifths one in
/// seven, and going on to the next one costs an access to memory.
const LINE_ENTRIES: usize = 10;

/// Most entries that are staged, whatever the memory: beyond, a slot has too few bits left to tell keys apart.
const CAPACITY_MAX: usize = 1 << 28;

/// Memory that one entry costs: itself, its share of line and slab, and of the copies that a flush takes of what it
/// writes out (of the fullest [`FLUSH_SHARE`](crate::kv::table::FLUSH_SHARE) of the buckets).
pub const STAGED_BYTES: usize = ENTRY_BYTES + size_of::<Line>() / LINE_ENTRIES + 1 + 3;

/// Returns the slots that equal `wanted` in the bits of `mask`, one bit each; all are compared at once.
fn equal_slots(slots: &[u32; LINE_SLOTS + 1], wanted: u32, mask: u32) -> u32 {
    let mut same = 0;
    for (place, slot) in slots.iter().enumerate() {
        same |= u32::from((slot ^ wanted) & mask == 0) << place;
    }
    // The count is no slot.
    same & ((1 << LINE_SLOTS) - 1)
}

/// Fifteen slots and the number of entries that were put further on because this line was full. A slot is 0 or one more
/// than the index of an entry, with bits of its key above.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([u32; LINE_SLOTS + 1]);

/// The entries of a slab: two to a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Entries([EntryBytes; SLAB_LEN]);

#[derive(Clone, Copy, Debug)]
struct Slab {
    next: u32,
    fill: u8,
    frozen: bool,
}

/// The slabs of a bucket. The last one's fill stands here.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    fill: u8,
    count: u32,
}

const EMPTY: List = List { first: END, last: END, fill: FULL, count: 0 };

/// The slabs of a bucket that is being written out.
#[derive(Debug)]
pub(super) struct Frozen(List);

/// The entries that were staged.
pub(super) struct Memtable {
    entries: Vec<Entries>,
    slabs: Vec<Slab>,
    free: u32,
    free_slabs: usize,
    lines: Vec<Line>,
    index_bits: u32,
    lists: Vec<List>,
    len: usize,
}

impl std::fmt::Debug for Memtable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { len, slabs, free_slabs, .. } = self;
        write!(f, "Staging {{ len: {len}, slabs: {}, free_slabs: {free_slabs} }}", slabs.len())
    }
}

impl Memtable {
    /// Makes room for as many entries as fit into `bytes`, at least one slab.
    pub(super) fn new(bytes: usize, buckets: usize) -> Self {
        let slabs = (bytes / STAGED_BYTES).min(CAPACITY_MAX).div_ceil(SLAB_LEN).max(1);
        let capacity = slabs * SLAB_LEN;
        let mut memtable = Self {
            entries: vec![Entries([[0; ENTRY_BYTES]; SLAB_LEN]); slabs],
            slabs: vec![Slab { next: END, fill: 0, frozen: false }; slabs],
            free: 0,
            free_slabs: slabs,
            lines: vec![Line::default(); capacity.div_ceil(LINE_ENTRIES) + 1],
            index_bits: capacity.ilog2() + 1,
            lists: vec![EMPTY; buckets],
            len: 0,
        };
        for (next, slab) in (1..).zip(&mut memtable.slabs[..slabs - 1]) {
            slab.next = next;
        }
        memtable
    }

    /// Says whether there is no room that an entry of any bucket could take.
    pub(super) fn is_full(&self) -> bool {
        self.free_slabs == 0
    }

    /// Returns the share of memory that is left, as a fraction of two numbers of slabs.
    pub(super) fn space(&self) -> (usize, usize) {
        (self.free_slabs, self.slabs.len())
    }

    /// Returns how many entries of a bucket are staged and not frozen.
    pub(super) fn bucket_count(&self, bucket: u32) -> u32 {
        self.lists[bucket as usize].count
    }

    /// Returns the memory taken.
    pub(super) fn memory_bytes(&self) -> usize {
        let lists = self.lists.capacity() * size_of::<List>();
        size_of_val(&self.entries[..]) + size_of_val(&self.slabs[..]) + size_of_val(&self.lines[..]) + lists
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

    fn index_mask(&self) -> u32 {
        (1 << self.index_bits) - 1
    }

    fn after(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() { 0 } else { line + 1 }
    }

    /// Asks for the memory of what leads to a key, to be looked for soon.
    pub(super) fn prefetch(&self, key: &Key) {
        will_need(&self.lines[self.home(key)]);
    }

    /// Asks for the memory of where the next entry of a bucket will be put.
    pub(super) fn prefetch_end(&self, bucket: u32) {
        let List { last, fill, .. } = self.lists[bucket as usize];
        if let Some(Entries(entries)) = self.entries.get(last as usize) {
            will_need(&entries[usize::from(fill) % SLAB_LEN]);
        }
    }

    /// Returns line, slot and index of a staged key.
    fn find(&self, key: &Key) -> Option<(usize, usize, u32)> {
        let (tag, mask) = (self.tag(key), self.index_mask());
        let mut line = self.home(key);
        for _ in 0..self.lines.len() {
            let Line(slots) = &self.lines[line];
            let mut same = equal_slots(slots, tag, !mask);
            while same != 0 {
                let place = same.trailing_zeros() as usize;
                same &= same - 1;
                if let Some(index) = (slots[place] & mask).checked_sub(1)
                    && key_of(self.entry(index)) == &key.0
                {
                    return Some((line, place, index));
                }
            }
            if slots[LINE_SLOTS] == 0 {
                return None;
            }
            line = self.after(line);
        }
        None
    }

    /// Returns the staged entry of a key.
    pub(super) fn get(&self, key: &Key) -> Option<Entry> {
        self.find(key).map(|(_, _, index)| decode_entry(self.entry(index)))
    }

    /// Adds an entry, or replaces the one that has the same key. Staging must not be full.
    pub(super) fn insert(&mut self, bucket: u32, entry: &Entry) {
        assert!(!self.is_full(), "the table flushes before it stages more");
        let bytes = encode_entry(entry);
        match self.find(&entry.key) {
            Some((_, _, index)) if !self.slabs[index as usize / SLAB_LEN].frozen => {
                *self.entry_mut(index) = bytes;
            }
            Some((line, slot, _)) => {
                // The frozen one is being written out; when it goes, this one is found in its place.
                let index = self.append(bucket, bytes);
                self.lines[line].0[slot] = self.tag(&entry.key) | (index + 1);
                self.len += 1;
            }
            None => {
                let index = self.append(bucket, bytes);
                self.link(&entry.key, index);
                self.len += 1;
            }
        }
    }

    /// Lets a slot of a key's first line that has a free one lead to an index.
    fn link(&mut self, key: &Key, index: u32) {
        let value = self.tag(key) | (index + 1);
        let mut line = self.home(key);
        loop {
            let Line(slots) = &mut self.lines[line];
            let free = equal_slots(slots, 0, u32::MAX);
            if free != 0 {
                slots[free.trailing_zeros() as usize] = value;
                return;
            }
            slots[LINE_SLOTS] += 1;
            line = self.after(line);
        }
    }

    /// Returns line and slot that lead to an index; none if a later entry of the key took its place.
    fn slot_of(&self, key: &Key, index: u32) -> Option<(usize, usize)> {
        let value = self.tag(key) | (index + 1);
        let mut line = self.home(key);
        for _ in 0..self.lines.len() {
            let Line(slots) = &self.lines[line];
            let same = equal_slots(slots, value, u32::MAX);
            if same != 0 {
                return Some((line, same.trailing_zeros() as usize));
            }
            if slots[LINE_SLOTS] == 0 {
                return None;
            }
            line = self.after(line);
        }
        None
    }

    /// Undoes [`Memtable::link`]; false if a later entry of the key took the slot.
    fn unlink(&mut self, key: &Key, index: u32) -> bool {
        let Some((found, place)) = self.slot_of(key, index) else { return false };
        self.lines[found].0[place] = 0;
        let mut line = self.home(key);
        while line != found {
            self.lines[line].0[LINE_SLOTS] -= 1;
            line = self.after(line);
        }
        true
    }

    fn append(&mut self, bucket: u32, bytes: EntryBytes) -> u32 {
        let list = &mut self.lists[bucket as usize];
        if list.fill == FULL {
            let slab = self.free;
            let free = &mut self.slabs[slab as usize];
            self.free = free.next;
            self.free_slabs -= 1;
            *free = Slab { next: END, fill: FULL, frozen: false };
            match list.last {
                END => list.first = slab,
                last => self.slabs[last as usize] = Slab { next: slab, fill: FULL, frozen: false },
            }
            list.last = slab;
            list.fill = 0;
        }
        let index = list.last * SLAB_ENTRIES + u32::from(list.fill);
        list.fill += 1;
        list.count += 1;
        *self.entry_mut(index) = bytes;
        index
    }

    fn release(&mut self, slab: u32) {
        self.slabs[slab as usize] = Slab { next: self.free, fill: 0, frozen: false };
        self.free = slab;
        self.free_slabs += 1;
    }

    /// Returns the slabs of a list.
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

    /// Appends the entries of a bucket that are not frozen, in no order.
    pub(super) fn list(&self, bucket: u32, out: &mut Vec<EntryBytes>) {
        for (_, entries) in self.slabs_of(self.lists[bucket as usize]) {
            out.extend_from_slice(entries);
        }
    }

    /// Freezes the entries of a bucket and appends them, in no order. They are found until they are thawed or dropped.
    pub(super) fn freeze(&mut self, bucket: u32, out: &mut Vec<EntryBytes>) -> Frozen {
        self.list(bucket, out);
        let list = std::mem::replace(&mut self.lists[bucket as usize], EMPTY);
        let mut next = list.first;
        while let Some(slab) = self.slabs.get_mut(next as usize) {
            slab.frozen = true;
            next = slab.next;
        }
        Frozen(list)
    }

    /// Drops entries that were written out. Those that came later under the same keys stay.
    pub(super) fn drop_frozen(&mut self, Frozen(list): Frozen) {
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

    /// Returns the keys of a slab, whose lines will be wanted once those of the slab before it are done with; asks for the
    /// memory of the slab after it.
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

    /// Gives frozen entries back to their bucket: they could not be written out.
    pub(super) fn thaw(&mut self, bucket: u32, Frozen(mut list): Frozen) {
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

    /// Takes entries whose key has a later entry out of a slab; returns how many are left.
    fn drop_replaced(&mut self, slab: u32, mut fill: u8) -> u8 {
        let start = slab * SLAB_ENTRIES;
        let mut place = 0;
        while place < fill {
            let index = start + u32::from(place);
            let key = Key(*key_of(self.entry(index)));
            if self.slot_of(&key, index).is_some() {
                place += 1;
                continue;
            }
            fill -= 1;
            let last = start + u32::from(fill);
            if last != index {
                let moved = *self.entry(last);
                let key = Key(*key_of(&moved));
                *self.entry_mut(index) = moved;
                if let Some((line, slot)) = self.slot_of(&key, last) {
                    self.lines[line].0[slot] = self.tag(&key) | (index + 1);
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

    /// Divides the list of a bucket as the bucket was: entries whose heads are not below `boundary` go to a new last
    /// list. There must be room for one slab.
    pub(super) fn split(&mut self, bucket: u32, boundary: u64) {
        let other = u32::try_from(self.lists.len()).expect("fewer than 2^32 buckets");
        self.lists.push(EMPTY);
        let list = std::mem::replace(&mut self.lists[bucket as usize], EMPTY);
        let mut slab = list.first;
        while slab != END {
            let Slab { next, fill, .. } = self.slabs[slab as usize];
            let fill = usize::from(if slab == list.last { list.fill } else { fill });
            let Entries(entries) = self.entries[slab as usize];
            // Before its entries find their new places, so that two slabs are never short.
            self.release(slab);
            let keys = entries.map(|entry| Key(*key_of(&entry)));
            let old = (slab * SLAB_ENTRIES..).zip(&keys[..fill]);
            let slots: Vec<_> = old.map(|(index, key)| self.slot_of(key, index)).collect();
            for ((entry, key), slot) in entries.iter().zip(&keys).zip(slots) {
                let half = if head_of(entry) < boundary { bucket } else { other };
                let index = self.append(half, *entry);
                if let Some((line, slot)) = slot {
                    self.lines[line].0[slot] = self.tag(key) | (index + 1);
                }
            }
            slab = next;
        }
    }

    /// Puts the lists of two buckets together, under the number of the first; that of the second goes to the last.
    pub(super) fn join(&mut self, first: u32, second: u32) {
        let later = self.lists[second as usize];
        self.chain(first, later);
        self.lists.swap_remove(second as usize);
    }
}

#[cfg(test)]
#[path = "memtable_tests.rs"]
mod tests;
