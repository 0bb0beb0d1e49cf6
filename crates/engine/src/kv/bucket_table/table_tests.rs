use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::*;
use crate::io::DeviceProfile;
use crate::kv::bucket_table::page::key_of;
use crate::kv::{BucketReads, Position, Seal};
use crate::random::SplitMix64;
use crate::testing::fingerprint;
use crate::testing::sim::SimDisk;

const ALL: fn(Ordinal) -> bool = |_| true;

fn spec() -> TableSpec {
    TableSpec { recent_filter_bytes: 1 << 20, merge_buffer_bytes: 256 << 10, ..TableSpec::for_memtable(60 << 10) }
}

fn key(number: u64) -> Key {
    Key::from(&fingerprint(number))
}

fn entry(number: u64) -> Entry {
    Entry { key: key(number), ordinal: Ordinal(3), position: Position(number) }
}

fn table(disk: &SimDisk, spec: TableSpec) -> Table {
    Table::new(disk.create(Path::new("table")).unwrap(), spec)
}

fn add(table: &mut Table, disk: &SimDisk, entry: &Entry) {
    while !table.has_space() {
        table.flush(disk, &ALL).unwrap();
    }
    table.insert(entry);
}

fn check(table: &mut Table, disk: &SimDisk, model: &HashMap<Key, Entry>, numbers: std::ops::Range<u64>) {
    let keys: Vec<_> = numbers.map(key).collect();
    let mut out = Vec::new();
    table.lookup(disk, &keys, &ALL, &mut out);
    for (key, found) in keys.iter().zip(out) {
        let entry = match found {
            Lookup::InMemory(entry) | Lookup::OnDisk(entry) => Some(entry),
            Lookup::Dead | Lookup::Absent => None,
        };
        assert_eq!(entry.map(|entry| entry.key), model.get(key).map(|entry| entry.key));
    }
}

fn save(table: &mut Table, disk: &SimDisk) -> [(PathBuf, Seal); 2] {
    let names = ["manifest", "staged"].map(PathBuf::from);
    let file = |name: &PathBuf| disk.create(name).or_else(|_| disk.open(name, crate::io::Access::ReadWrite)).unwrap();
    let [mut manifest, mut staged] = names.each_ref().map(|name| SealedWriter::create(file(name)).unwrap());
    table.save(3, &mut manifest, &mut staged).unwrap();
    let seals = [manifest.finish().unwrap(), staged.finish().unwrap()];
    let [first, second] = names;
    [(first, seals[0]), (second, seals[1])]
}

fn reopen(disk: &SimDisk, spec: TableSpec, saved: &[(PathBuf, Seal); 2]) -> Result<Table> {
    let open = |name: &Path| disk.open(name, crate::io::Access::ReadWrite).unwrap();
    let [manifest, staged] = saved.each_ref().map(|(name, seal)| SealedReader::open(open(name), name.clone(), *seal));
    let mut table = Table::open(open(Path::new("table")), spec, 3, manifest?)?;
    table.load_memtable(disk, staged?)?;
    Ok(table)
}

#[test]
fn everything_added_is_found_through_flushes_merges_and_a_reopening_with_less_memory() {
    let disk = SimDisk::default();
    let mut table = table(&disk, spec());
    let mut model = HashMap::new();
    for number in 0..30_000 {
        add(&mut table, &disk, &entry(number));
        model.insert(key(number), entry(number));
    }
    assert!(table.counters().runs_merged > 20);
    assert!(table.longest_chain() <= 4);
    check(&mut table, &disk, &model, 0..40_000);
    let mut keys = 0;
    table.scan(&disk, 0..=u64::MAX, &mut |entry| keys += u64::from(model.contains_key(&Key(*key_of(entry)))));
    assert_eq!(keys, 30_000);
    let saved = save(&mut table, &disk);
    drop(table);
    let small = TableSpec { runs_max: 2, ..TableSpec::for_memtable(1000) };
    let mut table = reopen(&disk, small, &saved).unwrap();
    check(&mut table, &disk, &model, 0..40_000);
}

#[test]
fn what_was_saved_stays_intact_whatever_is_written_after() {
    let disk = SimDisk::default();
    let mut table = table(&disk, spec());
    let mut model = HashMap::new();
    let mut random = SplitMix64::new(5);
    let mut next = 0;
    let mut saved = save(&mut table, &disk);
    for _ in 0..12 {
        let before = model.clone();
        for _ in 0..random.below(6_000) {
            add(&mut table, &disk, &entry(next));
            model.insert(key(next), entry(next));
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
fn dead_entries_are_skipped_by_lookups_and_dropped_by_merges() {
    let disk = SimDisk::default();
    let mut table = table(&disk, spec());
    for number in 0..5_000 {
        add(&mut table, &disk, &Entry { ordinal: Ordinal(1), ..entry(number) });
    }
    for number in 0..2_500 {
        add(&mut table, &disk, &Entry { ordinal: Ordinal(2), ..entry(number) });
    }
    let mut out = Vec::new();
    let keys: Vec<_> = (0..5_001).map(key).collect();
    table.lookup(&disk, &keys, &|ordinal| ordinal == Ordinal(2), &mut out);
    for (number, found) in out.iter().enumerate() {
        match (number, found) {
            (0..2_500, Lookup::InMemory(entry) | Lookup::OnDisk(entry)) => assert_eq!(entry.ordinal, Ordinal(2)),
            (2_500..5_000, Lookup::Dead) | (5_000, Lookup::Absent) => {}
            _ => panic!("chunk {number}: {found:?}"),
        }
    }
    for number in 10_000..60_000 {
        while !table.has_space() {
            table.flush(&disk, &|ordinal| ordinal != Ordinal(1)).unwrap();
        }
        table.insert(&entry(number));
    }
    table.lookup(&disk, &keys[2_500..5_000], &ALL, &mut out);
    let left = out.iter().filter(|found| **found != Lookup::Absent).count();
    assert!(left < 1_250, "{left} of 2,500 dead entries are left");
}

#[test]
fn a_full_disk_leaves_the_table_as_it_was() {
    let disk = SimDisk::default();
    let mut table = table(&disk, spec());
    let mut model = HashMap::new();
    for number in 0..20_000 {
        add(&mut table, &disk, &entry(number));
        model.insert(key(number), entry(number));
    }
    disk.limit_space(Some(100));
    assert!(table.flush(&disk, &ALL).is_err());
    check(&mut table, &disk, &model, 0..20_000);
    disk.limit_space(None);
    table.flush(&disk, &ALL).unwrap();
    check(&mut table, &disk, &model, 0..20_000);
}

#[test]
fn a_damaged_page_only_misses_names_its_bucket_and_is_rewritten() {
    let disk = SimDisk::default();
    let mut table = table(&disk, spec());
    for number in 0..20_000 {
        add(&mut table, &disk, &entry(number));
    }
    disk.damage("table", |bytes| bytes.chunks_mut(30 * PAGE_BYTES).for_each(|pages| pages[1000] ^= 1));
    let keys: Vec<_> = (0..20_000).map(key).collect();
    let mut out = Vec::new();
    table.lookup(&disk, &keys, &ALL, &mut out);
    let missed: Vec<_> = keys.iter().zip(&out).filter(|(_, found)| **found == Lookup::Absent).collect();
    assert!((100..5_000).contains(&missed.len()), "{}", missed.len());
    assert!(0 < table.counters().damaged_pages);
    let damaged = table.damaged_buckets();
    assert!(missed.iter().all(|(key, _)| damaged.iter().any(|bucket| bucket.holds(key))));
    // The index adds everything that the containers hold of these buckets.
    for number in (0..20_000).filter(|&number| damaged.iter().any(|bucket| bucket.holds(&key(number)))) {
        add(&mut table, &disk, &entry(number));
    }
    (0..damaged.len()).for_each(|_| table.flush(&disk, &ALL).unwrap());
    for bucket in damaged {
        table.forget_damage(bucket);
    }
    let before = table.counters().damaged_pages;
    table.lookup(&disk, &keys, &ALL, &mut out);
    assert!(!out.contains(&Lookup::Absent));
    assert_eq!((table.counters().damaged_pages, table.damaged_buckets().len()), (before, 0));
}

#[test]
fn keys_with_equal_fractions_are_found_on_any_page() {
    for reads in [BucketReads::Pages, BucketReads::Whole, BucketReads::Entire] {
        let disk = SimDisk::default();
        let mut table = table(&disk, TableSpec { reads, ..spec() });
        let crowded = |number: u64| {
            let mut key = Key([7; 20]);
            key.0[8..16].copy_from_slice(&number.to_be_bytes());
            key
        };
        for number in 0..5_000 {
            let entry = Entry { key: crowded(number * 2), ordinal: Ordinal(3), position: Position(number) };
            add(&mut table, &disk, &entry);
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

/// Reads per lookup, one key at a time.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn reads_per_lookup(table: &mut Table, disk: &SimDisk, numbers: std::ops::Range<u64>) -> f64 {
    let before = table.counters().page_reads;
    let (count, mut out) = (numbers.end - numbers.start, Vec::new());
    numbers.for_each(|number| table.lookup(disk, &[key(number)], &ALL, &mut out));
    (table.counters().page_reads - before) as f64 / count as f64
}

#[test]
fn recent_filters_spare_most_reads_of_absent_keys_and_keep_their_memory_limit() {
    let mut absent = Vec::new();
    for recent_filter_bytes in [0, 4 << 10, 1 << 20] {
        let disk = SimDisk::default();
        let mut table = table(&disk, TableSpec { recent_filter_bytes, ..spec() });
        (0..40_000).for_each(|number| add(&mut table, &disk, &entry(number)));
        assert!(table.counters().recent_bytes_max <= recent_filter_bytes as u64);
        absent.push(reads_per_lookup(&mut table, &disk, 1_000_000..1_003_000));
        let saved = save(&mut table, &disk);
        drop(table);
        let mut table = reopen(&disk, TableSpec { recent_filter_bytes, ..spec() }, &saved).unwrap();
        let model: HashMap<_, _> = (0..40_000).map(|number| (key(number), entry(number))).collect();
        check(&mut table, &disk, &model, 0..40_000);
        let reopened = reads_per_lookup(&mut table, &disk, 1_000_000..1_003_000);
        assert!((reopened - absent.last().unwrap()).abs() < 0.01, "filters come back");
        let fewer = TableSpec { recent_filter_bytes: recent_filter_bytes / 1000, ..spec() };
        let mut table = reopen(&disk, fewer, &saved).unwrap();
        assert!(table.counters().recent_bytes_max <= recent_filter_bytes as u64 / 1000);
        check(&mut table, &disk, &model, 0..40_000);
    }
    assert!(2.0 < absent[0], "{absent:?}");
    assert!(absent[1] < absent[0] - 0.1, "{absent:?}");
    assert!(absent[2] < 1.45, "{absent:?}");
}

#[test]
fn keys_that_fall_close_together_are_read_together() {
    let read = |reads| {
        let disk = SimDisk::default();
        let mut table = table(&disk, TableSpec { reads, ..spec() });
        (0..60_000).for_each(|number| add(&mut table, &disk, &entry(number)));
        // Of the upper half of all keys, each page twice or so.
        let keys: Vec<_> = (0..8_000).map(key).filter(|key| key.head() >> 63 == 1).collect();
        let mut out = Vec::new();
        table.lookup(&disk, &keys, &ALL, &mut out);
        assert!(!out.contains(&Lookup::Absent));
        table.counters()
    };
    let [pages, whole] = [BucketReads::Pages, BucketReads::Whole].map(read);
    assert_eq!(pages.whole_reads, 0);
    assert!(pages.page_reads * 10 < pages.lookup_pages, "{pages:?}");
    assert!(whole.whole_reads < pages.page_reads, "{whole:?}");
    let entire = read(BucketReads::Entire);
    assert!(whole.lookup_pages < entire.lookup_pages && entire.page_reads == 0, "{entire:?}");
    let slow_seeks = DeviceProfile {
        random_reads_per_s_single: 120,
        random_reads_per_s_deep: 250,
        sequential_bytes_per_s: 150_000_000,
    };
    assert!(0 < read(BucketReads::ByDevice(slow_seeks)).whole_reads);
    let no_seeks = DeviceProfile { random_reads_per_s_deep: 1_000_000_000, ..slow_seeks };
    assert_eq!(read(BucketReads::ByDevice(no_seeks)).whole_reads, 0);
}

#[test]
fn a_table_with_a_flush_in_flight_is_not_saved_and_pages_of_an_earlier_epoch_are_damaged() {
    let disk = SimDisk::default();
    let mut first = table(&disk, TableSpec { epoch: 7, ..spec() });
    (0..5_000).for_each(|number| add(&mut first, &disk, &entry(number)));
    let mut saved = save(&mut first, &disk);
    let manifest = disk.bytes("manifest");
    let live: Live = Arc::new(|_| true);
    let jobs = first.start_flush(&live);
    assert!(!first.wants_flush());
    assert!(first.is_flushing());
    let file = disk.create(Path::new("other")).unwrap();
    let mut writers = [0; 2].map(|_| SealedWriter::create(Arc::clone(&file)).unwrap());
    let [manifest_writer, staged] = &mut writers;
    let mut save = || first.save(4, manifest_writer, staged);
    assert!(catch_unwind(AssertUnwindSafe(&mut save)).is_err());
    let done = jobs.into_iter().map(|job| job.run(&disk)).collect();
    first.finish_flush(done).unwrap();
    // The same runs at the same pages, in a table of another epoch.
    let mut other = manifest;
    other[16] ^= 1;
    disk.damage("manifest", |bytes| bytes.clone_from(&other));
    saved[0].1.checksum = blake3::hash(&other).into();
    let mut table = reopen(&disk, spec(), &saved).unwrap();
    let mut out = Vec::new();
    let keys: Vec<_> = (0..5_000).map(key).collect();
    table.lookup(&disk, &keys, &ALL, &mut out);
    assert!(out.iter().all(|found| !matches!(found, Lookup::OnDisk(_))));
}

/// A table, what it must hold, and what happened to it.
struct Model {
    disk: SimDisk,
    table: Table,
    random: SplitMix64,
    entries: HashMap<Key, Entry>,
    /// Keys that stood on a page that was damaged: they may be missing.
    hit: Vec<BucketName>,
    jobs: Vec<FlushJob>,
    position: u64,
    totals: TableCounters,
    failed: u64,
    damaged: u64,
}

impl Model {
    fn spec(&mut self) -> TableSpec {
        let memtable_bytes = [16 << 10, 40 << 10, 100 << 10, 400 << 10][usize::try_from(self.random.below(4)).unwrap()];
        TableSpec {
            runs_max: 1 + u32::try_from(self.random.below(5)).unwrap(),
            recent_filter_bytes: [0, 500, 20 << 10][usize::try_from(self.random.below(3)).unwrap()],
            merge_buffer_bytes: [16 << 10, 100 << 10, 1 << 20][usize::try_from(self.random.below(3)).unwrap()],
            reads: match self.random.below(4) {
                0 => BucketReads::Whole,
                1 => BucketReads::Entire,
                _ => BucketReads::Pages,
            },
            ..TableSpec::for_memtable(memtable_bytes)
        }
    }

    fn insert(&mut self) {
        for _ in 0..self.random.below(400) {
            while !self.table.has_space() {
                if self.jobs.is_empty() { self.table.flush(&self.disk, &ALL).unwrap() } else { self.finish() }
            }
            let key = key(self.random.below(40_000));
            self.position += 1;
            let entry = Entry { key, ordinal: Ordinal(1), position: Position(self.position) };
            self.table.insert(&entry);
            self.entries.insert(key, entry);
        }
    }

    fn start_flush(&mut self) {
        let live: Live = Arc::new(|_| true);
        self.jobs = self.table.start_flush(&live);
    }

    fn finish(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let fails = self.random.below(6) == 0;
        self.disk.limit_space(fails.then_some(5000));
        let done = self.jobs.drain(..).map(|job| job.run(&self.disk)).collect();
        let outcome = self.table.finish_flush(done);
        self.failed += u64::from(outcome.is_err());
        self.disk.limit_space(None);
        assert!(fails || outcome.is_ok());
    }

    fn reopen(&mut self) {
        self.finish();
        let saved = save(&mut self.table, &self.disk);
        self.table.saved();
        self.count();
        let spec = self.spec();
        self.table = reopen(&self.disk, spec, &saved).unwrap();
    }

    fn count(&mut self) {
        self.totals.add(&self.table.counters());
    }

    fn damage(&mut self) {
        let pages = self.disk.bytes("table").len() / PAGE_BYTES;
        if pages == 0 || !self.jobs.is_empty() {
            return;
        }
        let page = usize::try_from(self.random.below(pages as u64)).unwrap();
        self.disk.damage("table", |bytes| bytes[page * PAGE_BYTES + 40] ^= 1);
        let before = self.table.damaged_buckets();
        assert!(before.is_empty());
        self.table.scan(&self.disk, 0..=u64::MAX, &mut |_| {});
        self.hit = self.table.damaged_buckets();
        self.damaged += self.hit.len() as u64;
        self.check(300);
        // Repaired at once, as the index does: a flush rewrites the bucket, and its entries are added again.
        for bucket in std::mem::take(&mut self.hit) {
            let mut lost: Vec<_> = self.entries.values().filter(|entry| bucket.holds(&entry.key)).copied().collect();
            lost.sort_unstable_by_key(|entry| entry.position);
            self.table.flush(&self.disk, &ALL).unwrap();
            for entry in lost {
                while !self.table.has_space() {
                    self.table.flush(&self.disk, &ALL).unwrap();
                }
                self.table.insert(&entry);
            }
            self.table.forget_damage(bucket);
        }
        // A half that was joined with a damaged one is named too, although none of its entries is missing.
        self.table.damaged_buckets().into_iter().for_each(|bucket| self.table.forget_damage(bucket));
    }

    fn check(&mut self, count: usize) {
        let keys: Vec<_> = (0..count).map(|_| key(self.random.below(60_000))).collect();
        let mut out = Vec::new();
        for key in &keys {
            self.table.prefetch(key);
        }
        self.table.lookup(&self.disk, &keys, &ALL, &mut out);
        self.compare(&keys, &out);
    }

    /// A background lookup answers with the state at its start.
    fn check_in_background(&mut self, count: usize) {
        let keys: Vec<_> = (0..count).map(|_| key(self.random.below(60_000))).collect();
        let live: Live = Arc::new(|_| true);
        let jobs = self.table.start_lookup(keys.clone(), &live);
        let entries = self.entries.clone();
        for &key in &keys {
            if self.table.has_space() && self.random.below(2) == 0 {
                self.position += 1;
                let entry = Entry { key, ordinal: Ordinal(1), position: Position(self.position) };
                self.table.insert(&entry);
                self.entries.insert(key, entry);
            }
        }
        if self.jobs.is_empty() {
            self.start_flush();
        }
        let done = jobs.into_iter().map(|job| job.run(&self.disk)).collect();
        let answers = self.table.finish_lookup(done);
        let later = std::mem::replace(&mut self.entries, entries);
        self.compare(&keys, &answers);
        self.entries = later;
    }

    fn compare(&self, keys: &[Key], out: &[Lookup]) {
        for (key, found) in keys.iter().zip(out) {
            let wanted = self.entries.get(key).copied();
            let may_miss = self.hit.iter().any(|bucket| bucket.holds(key));
            match found {
                Lookup::InMemory(found) => assert_eq!(Some(*found), wanted),
                Lookup::OnDisk(found) => assert_eq!(Some(found.key), wanted.map(|entry| entry.key)),
                Lookup::Absent | Lookup::Dead => assert!(wanted.is_none() || may_miss, "{key:?} {found:?}"),
            }
        }
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a random test names its seed")]
fn the_table_equals_a_map_through_jobs_splits_joins_merges_reopenings_failures_and_damage() {
    let seed = 77;
    eprintln!("seed {seed}");
    let disk = SimDisk::default();
    let mut model = Model {
        table: table(&disk, spec()),
        disk,
        random: SplitMix64::new(seed),
        entries: HashMap::new(),
        hit: Vec::new(),
        jobs: Vec::new(),
        position: 0,
        totals: TableCounters::default(),
        failed: 0,
        damaged: 0,
    };
    for _ in 0..1_500 {
        model.insert();
        match model.random.below(40) {
            0..16 if model.jobs.is_empty() => model.start_flush(),
            0..28 => model.finish(),
            28 => model.reopen(),
            29 => model.damage(),
            30..34 => model.check_in_background(60),
            _ => model.check(60),
        }
    }
    model.finish();
    model.check(20_000);
    model.count();
    let (totals, failed, damaged) = (model.totals, model.failed, model.damaged);
    eprintln!("{totals:?}, {failed} failed, {damaged} damaged");
    let happened = [
        totals.runs_merged,
        totals.recent_skips,
        totals.recent_filters_dropped,
        totals.merges_grouped,
        totals.merges_streamed,
        totals.buckets_split,
        totals.buckets_joined,
        totals.whole_reads,
        totals.page_reads,
        failed,
        damaged,
    ];
    assert!(happened.iter().all(|&count| 0 < count), "{happened:?}");
}
