//! The bucket table: fingerprints by prefix, each bucket a short chain of sorted runs on disk.
//!
//! Fingerprints are uniform: written one by one each would cost a page read and a page write. So entries are staged in
//! memory, and when staging is full the fullest buckets go out together, each as one sequential run. A chain that
//! gets longer than allowed has its youngest runs merged with the new one (the paper's chain of a bucket, kept
//! searchable: Ma et al., "Lazy Exact Deduplication", section 4). How long, and how much is merged, is drawn per
//! bucket: else all buckets, filling evenly, would merge in the same second.
//!
//! A lookup reads one page per run as a rule, since the first key of every page is known to 1/65,536 of its bucket. The
//! pages that a batch of keys needs are read together; runs are searched from the oldest, which is the largest.
//!
//! Runs are never written over; see [`Extents`]. A damaged page is an empty page: its chunks are not found.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::{AlignedBuffer, BatchRead, Disk, DiskFile};
use crate::kv::extent::Extents;
use crate::kv::manifest::{BUCKETS_MAX, Manifest, encode_manifest};
use crate::kv::page::{ENTRY_BYTES, Found, PAGE_BYTES, PAGE_ENTRIES, Page, PageName, decode_entry, encode_entry};
use crate::kv::run::{BucketOf, Run, RunReader, RunWriter, merge};
use crate::kv::sealed::{SealedReader, SealedWriter};
use crate::kv::staging::Staging;
use crate::kv::{Entry, Key, Ordinal};

/// Share of the buckets that one flush writes out: the fullest twenty-fourth, so that a run is about 1.8 times what a
/// bucket stages on average and yet reads and writes come in numbers.
const FLUSH_SHARE: u32 = 24;

/// Staging per bucket that makes runs long enough to write: 20 KiB, of which a flush writes 35 KiB.
const STAGING_PER_BUCKET: usize = 20 << 10;

/// Most pages read in one batch.
pub const BATCH_PAGES_MAX: usize = 256;

/// What a table is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableSpec {
    /// Memory for entries that are not written out yet.
    pub staging_bytes: usize,
    /// Longest chain of a bucket before runs are merged, at least 1.
    pub runs_max: u32,
}

impl TableSpec {
    /// Returns the number of buckets of a new table. It follows the memory for staging, not the size of the data.
    pub fn buckets(&self) -> u32 {
        u32::try_from(self.staging_bytes / STAGING_PER_BUCKET).unwrap_or(BUCKETS_MAX).clamp(1, BUCKETS_MAX)
    }
}

/// What the table holds of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// An entry that is not written out yet.
    Staged(Entry),
    /// An entry on disk.
    OnDisk(Entry),
    /// Only entries of containers that are not live.
    Dead,
    /// Nothing.
    Absent,
}

/// What the table did, since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TableCounters {
    /// Pages read for lookups.
    pub lookup_pages: u64,
    /// Bytes read for lookups, merges and scans.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Pages that were bad or unreadable.
    pub damaged_pages: u64,
    /// Runs written.
    pub runs_written: u64,
    /// Runs that a merge took in.
    pub runs_merged: u64,
}

/// The table.
#[derive(Debug)]
pub struct Table {
    file: Arc<dyn DiskFile>,
    spec: TableSpec,
    buckets: Vec<Vec<Run>>,
    staging: Staging,
    space: Extents,
    next_run: u64,
    /// Runs from this number on are in no checkpoint: their pages are free as soon as they are replaced.
    unsaved_run: u64,
    counters: TableCounters,
    spare_buffers: Vec<AlignedBuffer>,
}

/// Where the search for one key stands.
#[derive(Debug)]
struct Search {
    /// Index of the key in its batch.
    index: usize,
    bucket: u32,
    place: u16,
    /// Run of the bucket that is searched.
    run: usize,
    /// Pages of the run that can hold the key: first, last.
    pages: Option<(u32, u32)>,
    found: bool,
}

impl Search {
    fn page(&self) -> Option<u32> {
        // Two candidates: the later one, where the key is more likely. More: halves.
        self.pages.map(|(first, last)| first + (last - first).div_ceil(2))
    }

    /// Goes on to the next run that can hold the key; false if there is none.
    fn settle(&mut self, runs: &[Run]) -> bool {
        while self.pages.is_none() {
            let Some(run) = runs.get(self.run) else { return false };
            self.pages = run.candidates(self.place);
            if self.pages.is_none() {
                self.run += 1;
            }
        }
        true
    }

    fn leave_run(&mut self) {
        self.pages = None;
        self.run += 1;
    }

    fn narrow(&mut self, first: u32, last: Option<u32>) {
        match last.filter(|&last| first <= last) {
            Some(last) => self.pages = Some((first, last)),
            None => self.leave_run(),
        }
    }
}

impl Table {
    /// Makes an empty table over an empty file.
    pub fn new(file: Arc<dyn DiskFile>, spec: TableSpec) -> Self {
        let buckets = vec![Vec::new(); spec.buckets() as usize];
        Self::with(file, spec, Manifest { generation: 0, next_run: 0, space: Extents::default(), buckets })
    }

    /// Opens a table that a checkpoint described. The number of buckets stays what it was.
    pub fn open(file: Arc<dyn DiskFile>, spec: TableSpec, manifest: Manifest) -> Result<Self> {
        let bytes = manifest.space.end().checked_mul(PAGE_BYTES as u64);
        if bytes.is_none_or(|bytes| file.len().is_ok_and(|len| len < bytes)) {
            return Err(Error::damaged("fingerprint table", "shorter than its manifest says"));
        }
        Ok(Self::with(file, spec, manifest))
    }

    fn with(file: Arc<dyn DiskFile>, spec: TableSpec, manifest: Manifest) -> Self {
        let Manifest { next_run, space, buckets, .. } = manifest;
        let count = u32::try_from(buckets.len()).expect("a table has at most BUCKETS_MAX buckets");
        let staging = Staging::new(spec.staging_bytes, count);
        let counters = TableCounters::default();
        let spare_buffers = Vec::new();
        Self { file, spec, buckets, staging, space, next_run, unsaved_run: next_run, counters, spare_buffers }
    }

    /// Returns what was counted.
    pub fn counters(&self) -> TableCounters {
        self.counters
    }

    /// Returns how many buckets there are.
    pub fn buckets(&self) -> u32 {
        u32::try_from(self.buckets.len()).expect("a table has at most BUCKETS_MAX buckets")
    }

    /// Returns the length of the longest chain.
    pub fn longest_chain(&self) -> usize {
        self.buckets.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns how many bytes of the file wait for the next checkpoint to become free, and how many are in use at all.
    pub fn retired_and_used_bytes(&self) -> (u64, u64) {
        (self.space.retired_pages() * PAGE_BYTES as u64, self.space.end() * PAGE_BYTES as u64)
    }

    /// Says whether an entry can be added without a flush.
    pub fn has_room(&self) -> bool {
        !self.staging.is_full()
    }

    /// Adds an entry, or replaces the staged one of the same key. There must be room.
    pub fn insert(&mut self, entry: &Entry) {
        let (bucket, _) = entry.key.spread(self.buckets());
        self.staging.insert(bucket, entry);
    }

    /// Looks keys up, among staged entries first; `out` gets one answer per key. Entries that are not live are passed by.
    pub fn lookup(&mut self, disk: &dyn Disk, keys: &[Key], live: &dyn Fn(Ordinal) -> bool, out: &mut Vec<Lookup>) {
        out.clear();
        let buckets = self.buckets();
        let mut searches = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let mut answer = Lookup::Absent;
            match self.staging.get(key) {
                Some(entry) if live(entry.ordinal) => {
                    out.push(Lookup::Staged(entry));
                    continue;
                }
                Some(_) => answer = Lookup::Dead,
                None => {}
            }
            out.push(answer);
            let (bucket, place) = key.spread(buckets);
            searches.push(Search { index, bucket, place, run: 0, pages: None, found: false });
        }
        // In table order, so that equal pages are neighbors and a disk with a head moves it once.
        searches.sort_unstable_by_key(|search| (search.bucket, search.place));
        loop {
            searches.retain_mut(|search| search.settle(&self.buckets[search.bucket as usize]));
            if searches.is_empty() {
                return;
            }
            self.read_round(disk, keys, live, &mut searches, out);
            searches.retain(|search| !search.found);
        }
    }

    /// Reads one page for each search, all together, and takes the searches one step on.
    fn read_round(
        &mut self,
        disk: &dyn Disk,
        keys: &[Key],
        live: &dyn Fn(Ordinal) -> bool,
        searches: &mut [Search],
        out: &mut [Lookup],
    ) {
        for piece in searches.chunks_mut(BATCH_PAGES_MAX) {
            let mut reads: Vec<BatchRead> = Vec::with_capacity(piece.len());
            let mut of_search = Vec::with_capacity(piece.len());
            for search in &*piece {
                let run = &self.buckets[search.bucket as usize][search.run];
                let page = search.page().expect("a settled search has a page");
                let offset = (run.start + u64::from(page)) * PAGE_BYTES as u64;
                if reads.last().is_none_or(|last| last.offset != offset) {
                    let mut buffer = self.spare_buffers.pop().unwrap_or_default();
                    buffer.resize(PAGE_BYTES);
                    reads.push(BatchRead { file: Arc::clone(&self.file), offset, buffer, outcome: Ok(()) });
                }
                of_search.push(reads.len() - 1);
            }
            disk.read_batch(&mut reads);
            self.counters.lookup_pages += reads.len() as u64;
            self.counters.bytes_read += (reads.len() * PAGE_BYTES) as u64;
            let mut last_damaged = None;
            for (search, read_index) in piece.iter_mut().zip(of_search) {
                let read = &reads[read_index];
                let run = &self.buckets[search.bucket as usize][search.run];
                let index = search.page().expect("a settled search has a page");
                let name = PageName { bucket: search.bucket, run: run.id, index };
                let page = Page::decode(name, &read.buffer).filter(|_| read.outcome.is_ok());
                if page.is_none() && last_damaged != Some(read_index) {
                    last_damaged = Some(read_index);
                    self.counters.damaged_pages += 1;
                }
                step(search, page, &keys[search.index], live, out);
            }
            self.spare_buffers.extend(reads.into_iter().map(|read| read.buffer));
        }
    }

    /// Writes the fullest buckets out. After an error the table is as it was.
    pub fn flush(&mut self, live: &dyn Fn(Ordinal) -> bool) -> Result<()> {
        let staged = |bucket: &u32| self.staging.bucket_count(*bucket);
        let mut victims: Vec<u32> = (0..self.buckets()).filter(|bucket| staged(bucket) != 0).collect();
        let count = (self.buckets() / FLUSH_SHARE).max(1) as usize;
        if count < victims.len() {
            victims.select_nth_unstable_by_key(count, |bucket| std::cmp::Reverse(staged(bucket)));
            victims.truncate(count);
        }
        victims.sort_unstable();
        victims.into_iter().try_for_each(|bucket| self.flush_bucket(bucket, live))
    }

    fn flush_bucket(&mut self, bucket: u32, live: &dyn Fn(Ordinal) -> bool) -> Result<()> {
        let mut young = Vec::with_capacity(self.staging.bucket_count(bucket) as usize);
        self.staging.list(bucket, &mut young);
        young.sort_unstable_by_key(|entry| entry.key);
        let chain = &self.buckets[bucket as usize];
        let kept = kept_runs(bucket, self.spec.runs_max, young.len() as u64, chain);
        let merged = &chain[kept..];
        let entries = merged.iter().map(|run| run.entries).sum::<u64>() + young.len() as u64;
        let extent = self.space.allocate(entries.div_ceil(PAGE_ENTRIES as u64));
        let place = BucketOf { bucket, buckets: self.buckets() };
        let mut writer = RunWriter::new(Arc::clone(&self.file), place, self.next_run, extent);
        self.next_run += 1;
        let mut readers: Vec<_> = merged.iter().map(|run| RunReader::new(&*self.file, bucket, run)).collect();
        let outcome = merge(&mut readers, &young, live, &mut writer).and_then(|()| writer.finish());
        for reader in &readers {
            self.counters.bytes_read += reader.count().bytes;
            self.counters.damaged_pages += reader.count().damaged;
        }
        let run = outcome.inspect_err(|_| self.space.release(extent))?;
        let used = run.extent();
        self.space
            .release(crate::kv::extent::Extent { start: used.start + used.pages, pages: extent.pages - used.pages });
        self.counters.bytes_written += used.pages * PAGE_BYTES as u64;
        self.counters.runs_written += 1;
        for old in self.buckets[bucket as usize].drain(kept..) {
            self.counters.runs_merged += 1;
            if old.id < self.unsaved_run { self.space.retire(old.extent()) } else { self.space.release(old.extent()) }
        }
        if run.entries != 0 {
            self.buckets[bucket as usize].push(run);
        }
        self.staging.clear(bucket);
        Ok(())
    }

    /// Makes the pages durable and writes down where they lie and what is staged.
    pub fn save(&self, generation: u64, manifest: &mut SealedWriter, staged: &mut SealedWriter) -> Result<()> {
        self.file.sync()?;
        let mut write = |bytes: &[u8]| manifest.write(bytes);
        encode_manifest(generation, self.next_run, self.space.end(), &self.buckets, &mut write)?;
        let mut entries = Vec::new();
        for bucket in 0..self.buckets() {
            entries.clear();
            self.staging.list(bucket, &mut entries);
            entries.iter().try_for_each(|entry| staged.write(&encode_entry(entry)))?;
        }
        Ok(())
    }

    /// Takes note that what was saved is durable: pages that only older checkpoints refer to become free.
    pub fn saved(&mut self) {
        self.space.free_retired();
        self.unsaved_run = self.next_run;
    }

    /// Stages the entries that were staged when the table was saved, flushing where this table stages fewer.
    /// After an error the table must not be used.
    pub fn load_staged(&mut self, mut from: SealedReader) -> Result<()> {
        let mut bytes = [0; ENTRY_BYTES];
        while from.left() != 0 {
            from.read(&mut bytes)?;
            if !self.has_room() {
                // Nothing is known to be dead before the live containers are.
                self.flush(&|_| true)?;
            }
            self.insert(&decode_entry(&bytes));
        }
        from.finish()
    }

    /// Calls `each` with every key, in no order; keys on damaged pages are left out.
    pub fn scan(&mut self, each: &mut dyn FnMut(&Key)) {
        let mut entries = Vec::new();
        for (bucket, runs) in (0..).zip(&self.buckets) {
            for run in runs {
                let mut reader = RunReader::new(&*self.file, bucket, run);
                while let Some(entry) = reader.peek() {
                    each(&entry.key);
                    reader.advance();
                }
                self.counters.bytes_read += reader.count().bytes;
                self.counters.damaged_pages += reader.count().damaged;
            }
            entries.clear();
            self.staging.list(bucket, &mut entries);
            for entry in &entries {
                each(&entry.key);
            }
        }
    }
}

/// Takes one search on by what the page of its run says.
fn step(search: &mut Search, page: Option<Page<'_>>, key: &Key, live: &dyn Fn(Ordinal) -> bool, out: &mut [Lookup]) {
    let (first, last) = search.pages.expect("a settled search has pages");
    let index = search.page().expect("a settled search has a page");
    match page.map(|page| page.find(key)) {
        Some(Found::Here(entry)) if live(entry.ordinal) => {
            out[search.index] = Lookup::OnDisk(entry);
            search.found = true;
        }
        Some(Found::Here(_)) => {
            out[search.index] = Lookup::Dead;
            search.leave_run();
        }
        Some(Found::Absent) => search.leave_run(),
        // A page that cannot be read is empty; which half to go on with is then a guess.
        Some(Found::Before) | None => search.narrow(first, index.checked_sub(1)),
        Some(Found::After) => search.narrow(index + 1, Some(last)),
    }
}

/// Decides how many runs of a chain, from the oldest, stay as they are when `young` entries are written out.
///
/// A chain that is short enough stays whole. Else the youngest runs are merged, as far back as a run is at most f times
/// the sum of all younger ones; f of 1..=4 and the allowed length are drawn per bucket, to spread merges over time.
fn kept_runs(bucket: u32, runs_max: u32, young: u64, chain: &[Run]) -> usize {
    let drawn = bucket.wrapping_mul(0x9e37_79b9); // 2^32 / golden ratio: neighbors draw differently
    let ratio = u64::from(drawn >> 30) + 1;
    let runs_max = (runs_max - (drawn >> 29 & 1).min(runs_max - 1)) as usize;
    if chain.len() < runs_max {
        return chain.len();
    }
    let mut kept = chain.len();
    let mut sum = young;
    while let Some(before) = kept.checked_sub(1) {
        let must = runs_max <= kept;
        if !must && sum.saturating_mul(ratio) < chain[before].entries {
            break;
        }
        sum = sum.saturating_add(chain[before].entries);
        kept = before;
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::kv::Position;
    use crate::kv::manifest::decode_manifest;
    use crate::kv::mem_disk::{MemDisk, Random, fingerprint};
    use crate::kv::sealed::Seal;

    const ALL: fn(Ordinal) -> bool = |_| true;

    fn spec() -> TableSpec {
        TableSpec { staging_bytes: 60 << 10, runs_max: 4 }
    }

    fn key(number: u64) -> Key {
        Key::from(&fingerprint(number))
    }

    fn table(disk: &MemDisk) -> Table {
        Table::new(disk.create(Path::new("table")).unwrap(), spec())
    }

    fn add(table: &mut Table, entry: &Entry) {
        while !table.has_room() {
            table.flush(&ALL).unwrap();
        }
        table.insert(entry);
    }

    fn check(table: &mut Table, disk: &MemDisk, model: &HashMap<Key, Entry>, numbers: std::ops::Range<u64>) {
        let keys: Vec<_> = numbers.map(key).collect();
        let mut out = Vec::new();
        table.lookup(disk, &keys, &ALL, &mut out);
        for (key, found) in keys.iter().zip(out) {
            let entry = match found {
                Lookup::Staged(entry) | Lookup::OnDisk(entry) => Some(entry),
                Lookup::Dead | Lookup::Absent => None,
            };
            assert_eq!(entry.map(|entry| entry.key), model.get(key).map(|entry| entry.key));
        }
    }

    fn save(table: &mut Table, disk: &MemDisk) -> [(PathBuf, Seal); 2] {
        let names = ["manifest", "staged"].map(PathBuf::from);
        let file =
            |name: &PathBuf| disk.create(name).or_else(|_| disk.open(name, crate::io::Access::ReadWrite)).unwrap();
        let [mut manifest, mut staged] = names.each_ref().map(|name| SealedWriter::create(file(name)).unwrap());
        table.save(3, &mut manifest, &mut staged).unwrap();
        let seals = [manifest.finish().unwrap(), staged.finish().unwrap()];
        let [first, second] = names;
        [(first, seals[0]), (second, seals[1])]
    }

    fn reopen(disk: &MemDisk, spec: TableSpec, saved: &[(PathBuf, Seal); 2]) -> Result<Table> {
        let [(manifest, _), (staged, seal)] = saved;
        let open = |name: &Path| disk.open(name, crate::io::Access::ReadWrite).unwrap();
        let mut table = Table::open(open(Path::new("table")), spec, decode_manifest(&disk.bytes(manifest))?)?;
        table.load_staged(SealedReader::open(open(staged), staged.clone(), *seal)?)?;
        Ok(table)
    }

    #[test]
    fn everything_added_is_found_through_flushes_merges_and_a_reopening_with_less_memory() {
        let disk = MemDisk::default();
        let mut table = table(&disk);
        let mut model = HashMap::new();
        for number in 0..30_000 {
            let entry = Entry { key: key(number), ordinal: Ordinal(3), position: Position(number) };
            add(&mut table, &entry);
            model.insert(entry.key, entry);
        }
        assert!(table.counters().runs_merged > 20);
        assert!(table.longest_chain() <= 4);
        check(&mut table, &disk, &model, 0..40_000);
        let lookups = table.counters().lookup_pages;
        assert!(lookups < 40_000 * 4, "{lookups} pages for 40,000 lookups");
        let mut keys = 0;
        table.scan(&mut |key| keys += u64::from(model.contains_key(key)));
        assert_eq!(keys, 30_000);
        let saved = save(&mut table, &disk);
        drop(table);
        let small = TableSpec { staging_bytes: 1000, runs_max: 2 };
        let mut table = reopen(&disk, small, &saved).unwrap();
        check(&mut table, &disk, &model, 0..40_000);
    }

    #[test]
    fn what_was_saved_stays_intact_whatever_is_written_after() {
        let disk = MemDisk::default();
        let mut table = table(&disk);
        let mut model = HashMap::new();
        let mut random = Random::new(5);
        let mut next = 0;
        let mut saved = save(&mut table, &disk);
        for round in 0..12 {
            let before = model.clone();
            for _ in 0..random.below(6_000) {
                let entry = Entry { key: key(next), ordinal: Ordinal(round), position: Position(next) };
                add(&mut table, &entry);
                model.insert(entry.key, entry);
                next += 1;
            }
            let mut old = reopen(&disk, spec(), &saved).unwrap();
            check(&mut old, &disk, &before, 0..next);
            assert_eq!(old.counters().damaged_pages, 0);
            saved = save(&mut table, &disk);
            table.saved();
        }
        let (_, used) = table.retired_and_used_bytes();
        assert!(used < 3 * next * 40, "{used} bytes used for {next} entries: freed pages are used again");
    }

    #[test]
    fn dead_entries_are_passed_by_and_dropped_by_merges() {
        let disk = MemDisk::default();
        let mut table = table(&disk);
        for number in 0..5_000 {
            add(&mut table, &Entry { key: key(number), ordinal: Ordinal(1), position: Position(0) });
        }
        for number in 0..2_500 {
            add(&mut table, &Entry { key: key(number), ordinal: Ordinal(2), position: Position(0) });
        }
        let mut out = Vec::new();
        let keys: Vec<_> = (0..5_001).map(key).collect();
        table.lookup(&disk, &keys, &|ordinal| ordinal == Ordinal(2), &mut out);
        for (number, found) in out.iter().enumerate() {
            match (number, found) {
                (0..2_500, Lookup::Staged(entry) | Lookup::OnDisk(entry)) => assert_eq!(entry.ordinal, Ordinal(2)),
                (2_500..5_000, Lookup::Dead) | (5_000, Lookup::Absent) => {}
                _ => panic!("chunk {number}: {found:?}"),
            }
        }
        for number in 10_000..60_000 {
            while !table.has_room() {
                table.flush(&|ordinal| ordinal != Ordinal(1)).unwrap();
            }
            table.insert(&Entry { key: key(number), ordinal: Ordinal(3), position: Position(0) });
        }
        table.lookup(&disk, &keys[2_500..5_000], &ALL, &mut out);
        let left = out.iter().filter(|found| **found != Lookup::Absent).count();
        assert!(left < 1_250, "{left} of 2,500 dead entries are left");
    }

    #[test]
    fn a_full_disk_leaves_the_table_as_it_was_and_a_damaged_page_only_misses() {
        let disk = MemDisk::default();
        let mut table = table(&disk);
        let mut model = HashMap::new();
        for number in 0..20_000 {
            let entry = Entry { key: key(number), ordinal: Ordinal(3), position: Position(number) };
            add(&mut table, &entry);
            model.insert(entry.key, entry);
        }
        disk.limit_space(Some(100));
        assert!(table.flush(&ALL).is_err());
        check(&mut table, &disk, &model, 0..20_000);
        disk.limit_space(None);
        table.flush(&ALL).unwrap();
        check(&mut table, &disk, &model, 0..20_000);
        disk.damage("table", |bytes| bytes.chunks_mut(3 * PAGE_BYTES).for_each(|pages| pages[1000] ^= 1));
        let keys: Vec<_> = (0..20_000).map(key).collect();
        let mut out = Vec::new();
        table.lookup(&disk, &keys, &ALL, &mut out);
        let missed = out.iter().filter(|found| **found == Lookup::Absent).count();
        assert!(1_000 < missed, "{missed}");
        assert!(missed < 15_000, "{missed}");
        assert!(0 < table.counters().damaged_pages);
        assert!(table.counters().damaged_pages < 2_000);
    }

    #[test]
    fn keys_that_share_their_place_are_found_on_whichever_page() {
        let disk = MemDisk::default();
        let mut table = table(&disk);
        let crowded = |number: u64| {
            let mut key = Key([7; 20]);
            key.0[8..16].copy_from_slice(&number.to_be_bytes());
            key
        };
        for number in 0..5_000 {
            add(&mut table, &Entry { key: crowded(number * 2), ordinal: Ordinal(3), position: Position(number) });
        }
        assert!(table.counters().runs_written > 0);
        let keys: Vec<_> = (0..10_000).map(crowded).collect();
        let mut out = Vec::new();
        table.lookup(&disk, &keys, &ALL, &mut out);
        for (number, found) in out.iter().enumerate() {
            assert_eq!(*found == Lookup::Absent, number % 2 == 1, "{number}");
        }
    }
}
