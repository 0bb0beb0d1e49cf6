//! What every key-value store under the index must do, as one suite for all of them.
//!
//! [`check_store`] runs the suite over a kind of store. A crate that implements [`OpenStore`] calls it in its tests, with the
//! feature `testing` of this crate. The tests below run it over the stores of the engine, and add power cuts and errors of a
//! simulated disk at every call.
//!
//! The random part takes 2^17 operations; the variable `ONEFOLD_STORE_OPERATIONS` sets another number.

#![expect(clippy::unwrap_used, reason = "a suite for tests: a failure is a panic")]

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::io::{Access, Disk, DiskFile, Host};
use crate::kv::{
    Containers, Entry, EntryStore, Key, Live, Lookup, OpenStore, Ordinal, Position, Seal, SealedReader, SealedWriter,
    Surroundings, SyncContainers,
};
use crate::random::SplitMix64;
use crate::types::{ContainerId, Fingerprint, SessionId};

/// Variable with the number of random operations.
const OPERATIONS: &str = "ONEFOLD_STORE_OPERATIONS";

/// A kind of store under test.
#[derive(Debug)]
pub struct Subject<'a> {
    /// Makes the stores. They must have space for half as many entries as there are operations.
    pub kind: &'a dyn OpenStore,
    /// Most bytes that [`EntryStore::memory_bytes`] may return while the store holds a number of entries.
    pub memory_bytes_max: fn(usize) -> usize,
    /// Returns an empty directory for a store, and its host.
    pub directory: fn() -> Directory,
    /// Other stores may have written into it, and it keeps what was written after a checkpoint.
    pub is_shared: bool,
}

/// Returns the number of random operations: 2^17, unless the environment sets another.
pub fn operations() -> u64 {
    std::env::var(OPERATIONS).map_or(1 << 17, |text| text.parse().expect("a number of operations"))
}

/// Runs the suite; panics where a store does not conform.
pub fn check_store(subject: &Subject<'_>) {
    equal_keys_in_a_batch_get_an_answer_each(subject);
    the_last_entry_of_a_key_counts(subject);
    entries_of_dead_containers_are_not_found_and_make_space(subject);
    ranges_of_keys_are_complete(subject);
    a_saved_store_comes_back_and_later_entries_do_not(subject);
    for seed in 0..3 {
        random_operations_agree_with_a_model(subject, seed, operations() / 3);
    }
}

/// Returns the n-th key.
fn key(number: u64) -> Key {
    Key::from(&Fingerprint(blake3::hash(&number.to_le_bytes()).into()))
}

fn entry(number: u64, container: u32) -> Entry {
    Entry { key: key(number), ordinal: Ordinal(container), position: Position(number) }
}

/// The containers of a test, numbered from 0.
#[derive(Debug, Default)]
struct Known {
    count: u32,
    dead: BTreeSet<u32>,
    /// Containers whose numbers are durable.
    synced: Arc<AtomicU64>,
}

impl Known {
    fn new(count: u32) -> Self {
        Self { count, ..Self::default() }
    }

    fn is_live(&self, container: Ordinal) -> bool {
        container.0 < self.count && !self.dead.contains(&container.0)
    }
}

impl Containers for Known {
    fn container(&self, ordinal: Ordinal) -> Option<ContainerId> {
        Some(ContainerId { session: SessionId([9; 16]), ordinal: ordinal.0 })
    }

    fn live_ordinal(&self, container: ContainerId) -> Option<Ordinal> {
        Some(Ordinal(container.ordinal)).filter(|ordinal| self.is_live(*ordinal))
    }

    fn len_of(&self, container: ContainerId) -> Option<u64> {
        Some(1_000 + u64::from(container.ordinal))
    }

    fn is_live(&self, container: Ordinal) -> bool {
        Self::is_live(self, container)
    }

    fn live(&self) -> Live {
        let (count, dead) = (self.count, self.dead.clone());
        Arc::new(move |container| container.0 < count && !dead.contains(&container.0))
    }

    fn begin_sync(&mut self) -> Result<SyncContainers> {
        let (synced, count) = (Arc::clone(&self.synced), u64::from(self.count));
        Ok(Arc::new(move || {
            synced.fetch_max(count, Ordering::SeqCst);
            Ok(())
        }))
    }
}

/// The directory of a store.
#[derive(Debug)]
pub struct Directory {
    /// The root of a disk.
    pub disk: Arc<dyn Disk>,
    /// Runs the jobs of the store.
    pub host: Arc<dyn Host>,
}

/// What a checkpoint says of a store.
#[derive(Clone, Debug)]
struct Saved {
    generation: u64,
    seals: Vec<Seal>,
}

impl Directory {
    fn file(&self, path: &Path) -> Result<Arc<dyn DiskFile>> {
        if self.disk.exists(path)? { self.disk.open(path, Access::ReadWrite) } else { self.disk.create(path) }
    }

    fn create(&self, kind: &dyn OpenStore) -> Result<Box<dyn EntryStore>> {
        let file = |name: &str| {
            let file = self.file(Path::new(name))?;
            file.set_len(0)?;
            file.sync()?;
            self.disk.sync_dir(Path::new(""))?;
            self.disk.open(Path::new(name), Access::Direct)
        };
        kind.create(Surroundings { disk: &self.disk, host: &self.host, file: &file }, 77)
    }

    fn part(name: &str, generation: u64) -> PathBuf {
        PathBuf::from(format!("{name}.{}", generation % 2))
    }

    /// Saves a store as an index does, up to the point where the checkpoint would be replaced.
    fn save(
        &self,
        kind: &dyn OpenStore,
        store: &mut dyn EntryStore,
        containers: &mut Known,
        generation: u64,
    ) -> Result<Saved> {
        let names = kind.parts().iter();
        let create = |name: &&str| SealedWriter::create(self.file(&Self::part(name, generation))?);
        let mut parts = names.map(create).collect::<Result<Vec<_>>>()?;
        store.save(generation, containers, &mut parts)?;
        let seals = parts.into_iter().map(SealedWriter::finish).collect::<Result<_>>()?;
        self.disk.sync_dir(Path::new(""))?;
        Ok(Saved { generation, seals })
    }

    fn open(&self, kind: &dyn OpenStore, saved: &Saved) -> Result<Box<dyn EntryStore>> {
        let (store, epoch) = self.open_any(kind, saved)?;
        assert_eq!(epoch, 77, "a store keeps its epoch");
        Ok(store)
    }

    fn open_any(&self, kind: &dyn OpenStore, saved: &Saved) -> Result<(Box<dyn EntryStore>, u64)> {
        let parts = kind.parts().iter().zip(&saved.seals).map(|(name, seal)| {
            let path = Self::part(name, saved.generation);
            SealedReader::open(self.disk.open(&path, Access::Read)?, path, *seal)
        });
        let parts = parts.collect::<Result<_>>()?;
        let file = |name: &str| self.disk.open(Path::new(name), Access::Direct);
        let surroundings = Surroundings { disk: &self.disk, host: &self.host, file: &file };
        kind.open(surroundings, saved.generation, parts)
    }
}

/// Inserts all entries, with space made as it is needed and the maintenance after a container.
fn insert_all(store: &mut dyn EntryStore, containers: &mut Known, entries: &[Entry]) -> Result<()> {
    let mut rest = entries;
    loop {
        rest = &rest[store.insert(rest)..];
        if rest.is_empty() {
            return store.maintain(containers);
        }
        store.make_space(containers)?;
    }
}

/// Returns the entries that are found.
fn found(store: &mut dyn EntryStore, containers: &Known, keys: &[Key]) -> Vec<Option<Entry>> {
    let answers = store.look_up(keys, containers);
    assert_eq!(answers.len(), keys.len());
    answers.into_iter().map(Lookup::entry).collect()
}

fn equal_keys_in_a_batch_get_an_answer_each(subject: &Subject<'_>) {
    let mut store = (subject.directory)().create(subject.kind).unwrap();
    let mut containers = Known::new(1);
    let entries: Vec<_> = (0..500).map(|number| entry(number, 0)).collect();
    let twice: Vec<_> = entries.iter().flat_map(|&entry| [entry, entry]).collect();
    insert_all(&mut *store, &mut containers, &twice).unwrap();
    let keys: Vec<_> = (0..600).flat_map(|number| [key(number), key(number), key(number / 2)]).collect();
    let expected = |number: u64| (number < 500).then(|| entry(number, 0));
    let expected: Vec<_> = (0..600).flat_map(|number| [number, number, number / 2].map(expected)).collect();
    assert_eq!(found(&mut *store, &containers, &keys), expected);
    store.start_look_up(keys, &containers);
    let answers = store.finish_look_up().expect("a lookup was started");
    assert_eq!(answers.into_iter().map(Lookup::entry).collect::<Vec<_>>(), expected);
    assert_eq!(store.finish_look_up(), None);
    assert_eq!(found(&mut *store, &containers, &[]), []);
}

fn the_last_entry_of_a_key_counts(subject: &Subject<'_>) {
    let mut store = (subject.directory)().create(subject.kind).unwrap();
    let mut containers = Known::new(3);
    for container in 0..3 {
        // Other keys in between, so that a store on disk has written some.
        let others = 10_000 * u64::from(container + 1);
        let entries: Vec<_> = (0..300).chain(others..others + 2_000).map(|number| entry(number, container)).collect();
        insert_all(&mut *store, &mut containers, &entries).unwrap();
    }
    containers.dead.extend([0, 1]);
    let keys: Vec<_> = (0..300).map(key).collect();
    let expected: Vec<_> = (0..300).map(|number| Some(entry(number, 2))).collect();
    assert_eq!(found(&mut *store, &containers, &keys), expected);
}

fn entries_of_dead_containers_are_not_found_and_make_space(subject: &Subject<'_>) {
    let mut store = (subject.directory)().create(subject.kind).unwrap();
    let mut containers = Known::new(0);
    // Several times as many entries as a store in memory has space for, few of them live at a time.
    let per_container = (operations() / 8).min(20_000);
    for container in 0..24 {
        containers.count += 1;
        let start = u64::from(container) * per_container;
        let entries: Vec<_> = (start..start + per_container).map(|number| entry(number, container)).collect();
        insert_all(&mut *store, &mut containers, &entries).unwrap();
        let keys: Vec<_> = entries.iter().map(|entry| entry.key).collect();
        assert_eq!(found(&mut *store, &containers, &keys), entries.iter().copied().map(Some).collect::<Vec<_>>());
        if 0 < container {
            containers.dead.insert(container - 1);
            let before: Vec<_> = (start - per_container..start).map(key).collect();
            let answers = store.look_up(&before, &containers);
            assert!(answers.iter().all(|answer| matches!(answer, Lookup::Dead | Lookup::Absent)));
        }
    }
}

fn ranges_of_keys_are_complete(subject: &Subject<'_>) {
    let mut store = (subject.directory)().create(subject.kind).unwrap();
    let mut containers = Known::new(1);
    let entries: Vec<_> = (0..5_000).map(|number| entry(number, 0)).collect();
    insert_all(&mut *store, &mut containers, &entries).unwrap();
    let part = u64::MAX / 64;
    let parts = (0..64).map(|index| index * part..=index * part + (part - 1));
    let odd = [0..=u64::MAX, 0..=0, u64::MAX..=u64::MAX, key(7).head()..=key(7).head(), part / 3..=40 * part];
    for heads in parts.chain(odd) {
        check_keys(&mut *store, &heads, entries.iter().map(|entry| entry.key), &|_| false);
    }
}

/// Checks that a range has all these keys, and beside them only keys that are allowed.
fn check_keys(
    store: &mut dyn EntryStore,
    heads: &RangeInclusive<u64>,
    wanted: impl Iterator<Item = Key>,
    is_allowed: &dyn Fn(&Key) -> bool,
) {
    let mut keys = BTreeSet::new();
    let mut each = |key: &Key| {
        assert!(heads.contains(&key.head()), "{key:?} is not in {heads:?}");
        keys.insert(*key);
    };
    store.keys_in(heads.clone(), &mut each).unwrap();
    for key in wanted.filter(|key| heads.contains(&key.head())) {
        assert!(keys.remove(&key), "{key:?} is missing in {heads:?}");
    }
    assert!(keys.iter().all(is_allowed), "{heads:?} has keys that were never inserted");
}

fn a_saved_store_comes_back_and_later_entries_do_not(subject: &Subject<'_>) {
    let directory = (subject.directory)();
    let mut store = directory.create(subject.kind).unwrap();
    let mut containers = Known::new(2);
    for generation in 1..6 {
        let start = generation * 10_000;
        let entries: Vec<_> = (start..start + 3_000).map(|number| entry(number, 0)).collect();
        insert_all(&mut *store, &mut containers, &entries).unwrap();
        let saved = directory.save(subject.kind, &mut *store, &mut containers, generation).unwrap();
        store.saved();
        let later: Vec<_> = (start + 5_000..start + 8_000).map(|number| entry(number, 1)).collect();
        insert_all(&mut *store, &mut containers, &later).unwrap();
        drop(store);
        store = directory.open(subject.kind, &saved).unwrap();
        let later = if subject.is_shared { &[] } else { &later[..] };
        let keys: Vec<_> = entries.iter().chain(later).map(|entry| entry.key).collect();
        let expected: Vec<_> = entries.iter().map(|&entry| Some(entry)).chain(later.iter().map(|_| None)).collect();
        assert_eq!(found(&mut *store, &containers, &keys), expected);
        let wrong = Saved { generation: generation + 2, ..saved };
        assert!(directory.open(subject.kind, &wrong).is_err(), "parts of another checkpoint are refused");
    }
}

/// All entries of each key that were inserted, the last one last.
type Model = HashMap<Key, Vec<Entry>>;

fn check_answer(model: &Model, containers: &Known, key: &Key, answer: Lookup) {
    let entries = model.get(key).map(Vec::as_slice).unwrap_or_default();
    if let Some(entry) = answer.entry() {
        assert!(entries.contains(&entry), "{entry:?} was not inserted");
        assert!(containers.is_live(entry.ordinal), "{entry:?} is of a dead container");
    } else if let Some(last) = entries.last() {
        assert!(!containers.is_live(last.ordinal), "{last:?} is lost: {answer:?}");
    } else {
        assert_eq!(answer, Lookup::Absent);
    }
}

/// A store under random operations, and what it must hold.
struct Run<'a> {
    subject: &'a Subject<'a>,
    directory: Directory,
    /// `None` only while it is opened again.
    store: Option<Box<dyn EntryStore>>,
    containers: Known,
    model: Model,
    /// The last checkpoint, and what it holds.
    saved: Option<(Saved, Model)>,
    /// Keys of the lookup in the background.
    in_lookup: Option<(Vec<Key>, Model, Known)>,
    next_key: u64,
    operations: u64,
}

fn opened(store: &mut Option<Box<dyn EntryStore>>) -> &mut dyn EntryStore {
    &mut **store.as_mut().expect("the store is open")
}

impl Run<'_> {
    fn draw_keys(&self, random: &mut SplitMix64) -> Vec<Key> {
        let beyond = self.next_key + 1 + self.next_key / 8;
        (0..random.below(200)).map(|_| key(random.below(beyond))).collect()
    }

    fn insert(&mut self, random: &mut SplitMix64) {
        let container = Ordinal(self.containers.count);
        self.containers.count += 1;
        let mut entries = Vec::new();
        for _ in 0..=random.below(120) {
            let number = if random.below(4) == 0 { random.below(self.next_key + 1) } else { self.next_key };
            self.next_key = self.next_key.max(number + 1);
            let position = Position(random.next_u64());
            entries.push(Entry { key: key(number), ordinal: container, position });
        }
        insert_all(opened(&mut self.store), &mut self.containers, &entries).unwrap();
        self.operations += entries.len() as u64;
        for entry in entries {
            self.model.entry(entry.key).or_default().push(entry);
        }
    }

    fn look_up(&mut self, random: &mut SplitMix64) {
        let keys = self.draw_keys(random);
        self.operations += keys.len() as u64;
        for (key, answer) in keys.iter().zip(opened(&mut self.store).look_up(&keys, &self.containers)) {
            check_answer(&self.model, &self.containers, key, answer);
        }
    }

    /// Starts a lookup, or takes the answers of the one that was started.
    fn step_lookup(&mut self, random: &mut SplitMix64) {
        let Some((keys, model, containers)) = self.in_lookup.take() else {
            let keys = self.draw_keys(random);
            opened(&mut self.store).start_look_up(keys.clone(), &self.containers);
            // The answers are those of now.
            let of_keys = keys.iter().filter_map(|key| Some((*key, self.model.get(key)?.clone()))).collect();
            let (count, dead) = (self.containers.count, self.containers.dead.clone());
            self.in_lookup = Some((keys, of_keys, Known { count, dead, ..Known::default() }));
            return;
        };
        let answers = opened(&mut self.store).finish_look_up().expect("a lookup was started");
        self.operations += keys.len() as u64;
        for (key, answer) in keys.iter().zip(answers) {
            // A store may see what was inserted meanwhile. The container of that is not live for this lookup.
            let is_later = answer == Lookup::Dead && !model.contains_key(key) && self.model.contains_key(key);
            if !is_later {
                check_answer(&model, &containers, key, answer);
            }
        }
    }

    fn scan(&mut self, random: &mut SplitMix64) {
        let (first, last) = (random.next_u64(), random.next_u64());
        let heads = first.min(last)..=first.max(last);
        let live = |entries: &&Vec<Entry>| entries.last().is_some_and(|last| self.containers.is_live(last.ordinal));
        let wanted = self.model.iter().filter(|(_, entries)| live(entries)).map(|(key, _)| *key);
        check_keys(opened(&mut self.store), &heads, wanted, &|key| self.model.contains_key(key));
    }

    fn save(&mut self) {
        let generation = self.saved.as_ref().map_or(0, |(saved, _)| saved.generation) + 1;
        let saved =
            self.directory.save(self.subject.kind, opened(&mut self.store), &mut self.containers, generation).unwrap();
        opened(&mut self.store).saved();
        self.saved = Some((saved, self.model.clone()));
    }

    /// Opens the store at its last checkpoint.
    fn reopen(&mut self) {
        if self.subject.is_shared {
            self.save();
        }
        let Some((saved, model)) = &self.saved else { return };
        self.in_lookup = None;
        // The store goes first: its jobs write into its files.
        drop(self.store.take());
        self.store = Some(self.directory.open(self.subject.kind, saved).unwrap());
        self.model.clone_from(model);
    }

    fn check_all(&mut self) {
        let keys: Vec<Key> = (0..self.next_key).map(key).collect();
        for keys in keys.chunks(1_000) {
            for (key, answer) in keys.iter().zip(opened(&mut self.store).look_up(keys, &self.containers)) {
                check_answer(&self.model, &self.containers, key, answer);
            }
        }
    }
}

fn random_operations_agree_with_a_model(subject: &Subject<'_>, seed: u64, operations: u64) {
    let directory = (subject.directory)();
    let store = directory.create(subject.kind).unwrap();
    let mut random = SplitMix64::new(seed);
    let mut run = Run {
        subject,
        directory,
        store: Some(store),
        containers: Known::new(0),
        model: Model::new(),
        saved: None,
        in_lookup: None,
        next_key: 0,
        operations: 0,
    };
    let mut steps = 0_u64;
    while run.operations < operations {
        match random.below(100) {
            0..=44 => run.insert(&mut random),
            45..=74 => run.look_up(&mut random),
            75..=92 => run.step_lookup(&mut random),
            93..=95 => {
                let container = random.below(u64::from(run.containers.count) + 1);
                run.containers.dead.insert(u32::try_from(container).unwrap());
            }
            // A scan, a save or a comparison takes as long as many steps: it comes once in so many.
            _ if random.below(1 + steps / 400) != 0 => {}
            96 => run.scan(&mut random),
            97 | 98 => run.save(),
            _ => run.reopen(),
        }
        steps += 1;
        let store = opened(&mut run.store);
        let (memory, most) = (store.memory_bytes(), (subject.memory_bytes_max)(run.model.len()));
        assert!(memory <= most, "seed {seed}: {memory} bytes of memory, of {most}");
        let counters = store.counters();
        // A shared store names containers by themselves, and needs no durable numbers.
        let has_synced = 0 < run.containers.synced.load(Ordering::SeqCst);
        assert!(counters.bytes_written == 0 || subject.is_shared || has_synced);
        assert_eq!(counters.damaged_pages, 0);
        assert_eq!(store.damage(), []);
    }
    run.check_all();
    run.save();
    run.reopen();
    run.check_all();
    assert_eq!(opened(&mut run.store).repair(&mut run.containers).unwrap(), []);
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::Error;
    use crate::kv::bucket_table::memtable::MEMTABLE_ENTRY_BYTES;
    use crate::kv::{MemorySpec, TableSpec};
    use crate::testing::sim::{CrashMode, Fault, SimDisk, SimHost};

    fn simulated() -> Directory {
        Directory { disk: Arc::new(SimDisk::new()), host: Arc::new(SimHost::deferring(9)) }
    }

    fn table() -> TableSpec {
        TableSpec::for_memtable(64 << 10)
    }

    /// Two fifths of the entries that the suite inserts over time fit.
    fn memory() -> MemorySpec {
        MemorySpec { bytes: usize::try_from(operations()).unwrap() * 20 }
    }

    #[test]
    fn the_bucket_table_is_a_store() {
        // Fences and runs come to the memory of the specification; a batch of pages is 1 MiB.
        let memory_bytes_max = |entries: usize| table().memory_bytes_max() + (1 << 20) + (32 << 10) + entries / 8;
        check_store(&Subject { kind: &table(), memory_bytes_max, directory: simulated, is_shared: false });
    }

    #[test]
    fn the_store_in_memory_is_a_store() {
        check_store(&Subject {
            kind: &memory(),
            memory_bytes_max: |_| memory().bytes,
            directory: simulated,
            is_shared: false,
        });
    }

    #[test]
    fn a_full_store_in_memory_says_so_keeps_what_it_has_and_comes_back() {
        let spec = MemorySpec { bytes: 1 << 16 };
        let subject = Subject { kind: &spec, memory_bytes_max: |_| 1 << 16, directory: simulated, is_shared: false };
        let directory = (subject.directory)();
        let mut store = directory.create(&spec).unwrap();
        let mut containers = Known::new(1);
        let entries: Vec<_> = (0..3_000).map(|number| entry(number, 0)).collect();
        let mut count = 0;
        let error = loop {
            match insert_all(&mut *store, &mut containers, &entries[count..=count]) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        let slots = (1 << 16) / 34;
        assert!(slots * 19 / 20 < count && count < slots, "{count} of {slots} slots are used");
        let text = format!("the index holds {count} entries, and its memory is used up");
        assert_eq!(error.to_string(), text);
        let keys: Vec<_> = entries.iter().map(|entry| entry.key).collect();
        let expected: Vec<_> = (0..3_000).map(|index| (index < count).then(|| entries[index])).collect();
        assert_eq!(found(&mut *store, &containers, &keys), expected);
        let saved = directory.save(&spec, &mut *store, &mut containers, 1).unwrap();
        // As it was, and with more memory; with less, opening fails with the reason.
        for bytes in [1 << 16, 1 << 17] {
            let mut store = directory.open(&MemorySpec { bytes }, &saved).unwrap();
            assert_eq!(found(&mut *store, &containers, &keys), expected);
        }
        let less = directory.open(&MemorySpec { bytes: 1 << 15 }, &saved).unwrap_err();
        assert_eq!(less.to_string(), text);
        // A container that is gone gives its space back.
        containers.count = 2;
        containers.dead.insert(0);
        let later: Vec<_> = (5_000..6_000).map(|number| entry(number, 1)).collect();
        insert_all(&mut *store, &mut containers, &later).unwrap();
        let keys: Vec<_> = later.iter().map(|entry| entry.key).collect();
        assert_eq!(found(&mut *store, &containers, &keys), later.into_iter().map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn no_damage_to_a_saved_store_makes_opening_panic_or_goes_unnoticed() {
        for kind in
            [&TableSpec::for_memtable(60 * MEMTABLE_ENTRY_BYTES) as &dyn OpenStore, &MemorySpec { bytes: 4_000 }]
        {
            let disk = SimDisk::new();
            let directory = Directory { disk: Arc::new(disk.clone()), host: Arc::new(SimHost::deferring(1)) };
            let mut store = directory.create(kind).unwrap();
            let entries: Vec<_> = (0..80).map(|number| entry(number, 0)).collect();
            let mut containers = Known::new(1);
            insert_all(&mut *store, &mut containers, &entries).unwrap();
            let saved = directory.save(kind, &mut *store, &mut containers, 1).unwrap();
            drop(store);
            for (part, seal) in saved.seals.iter().enumerate() {
                let path = Directory::part(kind.parts()[part], 1);
                let bytes = disk.bytes(&path);
                for index in 0..usize::try_from(seal.len).unwrap() {
                    disk.damage(&path, |bytes| bytes[index] ^= 1 << (index % 8));
                    assert!(directory.open(kind, &saved).is_err(), "{path:?}: byte {index}");
                    // A right checksum over wrong bytes: any answer but a panic.
                    let checksum = blake3::hash(&disk.bytes(&path)).into();
                    let mut resealed = saved.clone();
                    resealed.seals[part].checksum = checksum;
                    let _ = directory.open_any(kind, &resealed);
                    disk.damage(&path, |bytes| bytes[index] ^= 1 << (index % 8));
                }
                assert_eq!(disk.bytes(&path), bytes);
            }
        }
    }

    /// What an acknowledged checkpoint covers.
    struct Covered {
        saved: Saved,
        /// The first so many keys.
        keys: u64,
        /// Ranges of heads whose entries may be lost, by damage.
        lost: Vec<RangeInclusive<u64>>,
    }

    /// Fills a store in three generations. `covered` gets each checkpoint that was acknowledged.
    fn fill(directory: &Directory, kind: &dyn OpenStore, covered: &mut Option<Covered>) -> Result<()> {
        let mut store = directory.create(kind)?;
        let mut containers = Known::new(1);
        let mut lost = Vec::new();
        for generation in 1..=3 {
            let keys = generation * 300;
            for start in (keys - 300..keys).step_by(50) {
                let entries: Vec<_> = (start..start + 50).map(|number| entry(number, 0)).collect();
                insert_all(&mut *store, &mut containers, &entries)?;
            }
            lost.extend(store.repair(&mut containers)?);
            let saved = directory.save(kind, &mut *store, &mut containers, generation)?;
            let all_lost = [&lost[..], &store.damage()].concat();
            *covered = Some(Covered { saved, keys, lost: all_lost });
            store.saved();
        }
        let rest: Vec<_> = (900..1_200).map(|number| entry(number, 0)).collect();
        insert_all(&mut *store, &mut containers, &rest)
    }

    /// Checks that a disk has what a checkpoint covers.
    fn check_covered(disk: &SimDisk, kind: &dyn OpenStore, Covered { saved, keys, lost }: &Covered) {
        let directory = Directory { disk: Arc::new(disk.clone()), host: Arc::new(SimHost::deferring(2)) };
        let mut store = directory.open(kind, saved).unwrap();
        let all: Vec<_> = (0..1_200).map(key).collect();
        for ((number, key), found) in (0..).zip(&all).zip(found(&mut *store, &Known::new(1), &all)) {
            match found {
                Some(found) => assert!(number < *keys && found == entry(number, 0), "{found:?} of {keys} keys"),
                None => assert!(*keys <= number || lost.iter().any(|heads| heads.contains(&key.head())), "{number}"),
            }
        }
        assert_eq!(store.damage(), []);
    }

    #[test]
    fn a_crash_or_an_error_at_any_call_leaves_the_last_checkpoint() {
        let table = TableSpec::for_memtable(60 * MEMTABLE_ENTRY_BYTES);
        for kind in [&table as &dyn OpenStore, &MemorySpec { bytes: 60_000 }] {
            let run = |fault: Option<(u64, Fault)>| {
                let disk = SimDisk::new();
                if let Some((call, fault)) = fault {
                    disk.fail_at(call, fault);
                }
                let directory = Directory { disk: Arc::new(disk.clone()), host: Arc::new(SimHost::deferring(4)) };
                let mut covered = None;
                let outcome = fill(&directory, kind, &mut covered);
                (disk, covered, outcome)
            };
            let (counted, covered, outcome) = run(None);
            outcome.unwrap();
            let covered = covered.unwrap();
            assert_eq!(covered.lost, []);
            check_covered(&counted.reopen(), kind, &covered);
            let (mut failed, mut checked) = (0, 0);
            for call in 1..=counted.calls() {
                for fault in [Fault::Error(ErrorKind::Other), Fault::ShortWrite(ErrorKind::Other)] {
                    let (disk, covered, outcome) = run(Some((call, fault)));
                    failed += u64::from(outcome.is_err());
                    if let Some(covered) = covered {
                        check_covered(&disk.reopen(), kind, &covered);
                    }
                }
                for fault in [Fault::Die, Fault::DieAfter] {
                    let (disk, covered, outcome) = run(Some((call, fault)));
                    assert!(outcome.is_ok() || outcome.is_err_and(|error| !matches!(error, Error::StoreFull { .. })));
                    let Some(covered) = covered else { continue };
                    for mode in
                        [CrashMode::LoseUnsynced, CrashMode::KeepAll, CrashMode::Subset(call), CrashMode::Torn(call)]
                    {
                        check_covered(&disk.crash(mode), kind, &covered);
                        checked += 1;
                    }
                }
            }
            assert!(0 < failed && 0 < checked, "{kind:?}: {failed} runs failed, {checked} images were checked");
        }
    }
}
