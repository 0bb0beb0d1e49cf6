//! The map: a table in memory, runs on disk, and the shares of the memory limit.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::crypto::ObjectKey;
use crate::error::{Error, Result};
use crate::io::{Disk, Host};
use crate::spill::filter::{BITS_PER_ENTRY, BITS_PER_ENTRY_HALF, Filter};
use crate::spill::page::{Key, PAGE_LEN, PageBuilder, Sealer, VALUE_LEN_MAX, pages_max};
use crate::spill::run::{Cursor, PageCache, Run, RunWriter, ScratchDir, merge};
use crate::spill::table::Table;

/// Smallest memory limit in bytes: a merge needs a page of each run.
pub(crate) const MEMORY_BYTES_MIN: usize = 512 * 1024;
/// Most runs that a lookup visits.
pub const RUNS_MAX: usize = 8;
/// Most pages of the cache (1 MiB): keys are uniform, so a larger cache would have hardly more hits.
const CACHE_PAGES_MAX: usize = 64;
/// Memory of the map outside of its shares, in bytes: itself, the list of runs, their files, the page being written.
const FIXED_BYTES: usize = PageBuilder::MEMORY_BYTES + 16 * 1024;

/// Shares of the memory limit, in bytes.
#[derive(Debug)]
struct Shares {
    /// The table; during a merge, the pages being read instead.
    table: usize,
    /// Filters of all runs.
    filters: usize,
    /// Page fences of all runs; during a merge, as much again for the new run.
    fences: usize,
    /// Pages of the cache.
    cache_pages: usize,
}

impl Shares {
    fn new(memory_bytes: usize) -> Self {
        // A quarter holds full-size filters for one entry per 5 bytes of the limit: about twelve tables of empty
        // values. A sixteenth holds a fence for every page of runs of 128 times the limit.
        let filters = memory_bytes / 4;
        let fences = memory_bytes / 16;
        let cache_pages = (memory_bytes / 16 / PageCache::SLOT_BYTES).clamp(1, CACHE_PAGES_MAX);
        let taken = filters + 2 * fences + cache_pages * PageCache::SLOT_BYTES + FIXED_BYTES;
        Self { table: memory_bytes - taken, filters, fences, cache_pages }
    }
}

const _: () = {
    let taken = MEMORY_BYTES_MIN / 4 + MEMORY_BYTES_MIN / 8 + MEMORY_BYTES_MIN / 16 + FIXED_BYTES;
    assert!((RUNS_MAX + 1) * Cursor::MEMORY_BYTES <= MEMORY_BYTES_MIN - taken);
};

/// Map from 32-byte keys to short values that keeps a memory limit and spills the rest to disk.
///
/// Keys need not be uniform: the map hashes them under its own key, and keeps 160 bits of the hash (two of 2^40 keys
/// collide with a probability of 2^-81). A later value of a key replaces an earlier one; no key is removed.
///
/// After an error the map has the same entries as before, and the caller may repeat the operation.
///
/// In memory an entry takes 22 bytes, its value, and 9 to 15 bytes of the hash table. An entry is written once when it
/// spills, and at most about log2(spilled / memory) times again by merges. A hit reads one page. A miss reads one page per
/// run whose filter errs (1.2%) or was dropped. The map keeps the filters of recent runs longest, where a bit per entry
/// saves most.
pub struct SpillMap {
    /// Name of the limit, for messages.
    name: &'static str,
    memory_bytes: usize,
    shares: Shares,
    scratch: Option<ScratchDir>,
    host: Arc<dyn Host>,
    hash_key: Zeroizing<[u8; 32]>,
    sealer: Sealer,
    table: Table,
    /// From oldest to newest. One more than [`RUNS_MAX`] only while the table is empty.
    runs: Vec<Run>,
    cache: PageCache,
    memory_bytes_peak: usize,
}

impl fmt::Debug for SpillMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpillMap")
            .field("name", &self.name)
            .field("memory_bytes", &self.memory_bytes)
            .field("in_memory", &self.table.count())
            .field("runs", &self.runs)
            .finish_non_exhaustive()
    }
}

impl SpillMap {
    /// Makes an empty map that takes at most `memory_bytes` and spills to unlinked files in `dir`, which must exist on the
    /// scratch disk by then. Without a scratch disk, an insertion beyond the limit fails.
    ///
    /// Messages name the limit `name`. Fails if the limit is below `MEMORY_BYTES_MIN` or the host has no randomness.
    pub fn new(
        scratch: Option<Arc<dyn Disk>>,
        dir: PathBuf,
        host: Arc<dyn Host>,
        name: &'static str,
        memory_bytes: usize,
    ) -> Result<Self> {
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(Error::invalid(format!(
                "{name}: a memory limit of {memory_bytes} bytes is too low, the least is {MEMORY_BYTES_MIN}"
            )));
        }
        let mut key = Zeroizing::new([0; 32]);
        host.random(&mut *key)?;
        let sealing_key = Zeroizing::new(blake3::derive_key("onefold v1 spill seal", &*key));
        let shares = Shares::new(memory_bytes);
        // Without runs, only the table needs memory.
        let table_bytes = if scratch.is_some() { shares.table } else { memory_bytes - FIXED_BYTES };
        let mut map = Self {
            name,
            memory_bytes,
            scratch: scratch.map(|disk| ScratchDir::new(disk, dir)),
            host,
            hash_key: Zeroizing::new(blake3::derive_key("onefold v1 spill hash", &*key)),
            sealer: Sealer::new(ObjectKey::from_bytes(&sealing_key), name),
            table: Table::new(table_bytes),
            runs: Vec::with_capacity(RUNS_MAX + 1),
            cache: PageCache::new(shares.cache_pages),
            shares,
            memory_bytes_peak: 0,
        };
        map.note_memory(0);
        Ok(map)
    }

    /// Sets the value of a key, replacing the one it had.
    ///
    /// Fails if the value is longer than [`VALUE_LEN_MAX`], if the map is full and cannot spill, or if the disk fails;
    /// then the key keeps the value it had.
    pub(crate) fn insert(&mut self, key: [u8; 32], value: &[u8]) -> Result<()> {
        let key = self.hash(&key);
        self.insert_hashed(&key, value)
    }

    /// Sets the value of a key if the key is not in the map. Returns true if it was not.
    ///
    /// Fails as [`SpillMap::insert`] and [`SpillMap::get`] do.
    pub(crate) fn insert_new(&mut self, key: [u8; 32], value: &[u8]) -> Result<bool> {
        let key = self.hash(&key);
        let is_new = self.find(&key, |_| ())?.is_none();
        if is_new {
            self.insert_hashed(&key, value)?;
        }
        Ok(is_new)
    }

    /// Returns the value of a key. Fails if the disk fails or a page does not open.
    pub(crate) fn get(&mut self, key: &[u8; 32]) -> Result<Option<Vec<u8>>> {
        let key = self.hash(key);
        self.find(&key, <[u8]>::to_vec)
    }

    /// Returns true if a key is in the map. Fails as [`SpillMap::get`] does.
    pub(crate) fn contains(&mut self, key: &[u8; 32]) -> Result<bool> {
        let key = self.hash(key);
        Ok(self.find(&key, |_| ())?.is_some())
    }

    /// Merges all runs into one, so that a lookup reads one page, and returns the number of keys.
    ///
    /// During the merge, the scratch disk holds the spilled entries twice. Fails if the disk fails; then nothing is lost.
    pub(crate) fn compact(&mut self) -> Result<u64> {
        if self.runs.is_empty() {
            return Ok(self.table.count() as u64);
        }
        // An earlier merge that failed has left one run too many, and an empty table.
        if self.table.count() != 0 {
            self.spill()?;
        }
        if 1 < self.runs.len() {
            self.merge_from(0)?;
        }
        Ok(self.runs.iter().map(Run::entries).sum())
    }

    /// Returns an upper bound of the number of keys: a key that was replaced after it spilled counts twice until its runs
    /// are merged.
    #[cfg(test)]
    pub(crate) fn len_upper_bound(&self) -> u64 {
        self.table.count() as u64 + self.runs.iter().map(Run::entries).sum::<u64>()
    }

    /// Returns the memory of the map, in bytes.
    pub(crate) fn memory_bytes_used(&self) -> usize {
        let runs: usize = self.runs.iter().map(Run::memory_bytes).sum();
        let list = self.runs.capacity() * size_of::<Run>();
        size_of::<Self>() + self.table.memory_bytes() + self.cache.memory_bytes() + list + runs
    }

    /// Returns the peak memory of the map, in bytes, with the buffers of spills and merges.
    #[cfg(test)]
    pub(crate) fn memory_bytes_peak(&self) -> usize {
        self.memory_bytes_peak.max(self.memory_bytes_used())
    }

    fn hash(&self, key: &[u8; 32]) -> Key {
        let hash = blake3::keyed_hash(&self.hash_key, key);
        *hash.as_bytes().first_chunk().expect("a hash is longer than a hashed key")
    }

    fn find<T>(&mut self, key: &Key, take: impl Fn(&[u8]) -> T) -> Result<Option<T>> {
        if let Some(value) = self.table.get(key) {
            return Ok(Some(take(value)));
        }
        for run in self.runs.iter().rev() {
            if let Some(found) = run.find(key, &self.sealer, &mut self.cache, &take)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn insert_hashed(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        if VALUE_LEN_MAX < value.len() {
            let name = self.name;
            let len = value.len();
            return Err(Error::invalid(format!("{name}: a value of {len} bytes, the most are {VALUE_LEN_MAX}")));
        }
        if !self.table.has_space(value.len()) {
            self.spill()?;
        }
        // Also after a merge that failed: the table is still empty.
        if RUNS_MAX < self.runs.len() {
            self.merge_runs()?;
        }
        self.table.insert(key, value);
        Ok(())
    }

    /// Writes the table as a run and empties it. A failure leaves the table as it is.
    fn spill(&mut self) -> Result<()> {
        assert!(self.runs.len() <= RUNS_MAX, "runs are merged before more are written");
        let scratch = self.scratch.clone().ok_or_else(|| self.no_scratch())?;
        let filter = self.filter_for(self.table.count() as u64);
        let fences = self.fences_for(self.runs.len(), pages_max(self.table.memory_bytes()));
        self.note_memory(writer_bytes(filter.as_ref(), fences));
        let mut writer = RunWriter::create(&scratch, &*self.host, &mut self.sealer, fences, filter)?;
        for (key, value) in self.table.sorted() {
            writer.push(key, value)?;
        }
        let run = writer.finish()?;
        self.runs.push(run);
        self.table.clear();
        Ok(())
    }

    /// Merges the newest runs into one, as many as [`first_to_merge`] chooses.
    fn merge_runs(&mut self) -> Result<()> {
        let pages: Vec<u64> = self.runs.iter().map(Run::pages).collect();
        self.merge_from(first_to_merge(&pages))
    }

    /// Merges the runs from `first` on into one. A failure leaves them as they are, without their filters.
    fn merge_from(&mut self, first: usize) -> Result<()> {
        assert_eq!(self.table.count(), 0, "the pages of the runs take the memory of the table");
        let scratch = self.scratch.clone().ok_or_else(|| self.no_scratch())?;
        let (mut entries, mut pages) = (0, 0_u64);
        for run in self.runs.iter_mut().skip(first) {
            run.drop_filter();
            entries += run.entries();
            pages += run.pages();
        }
        let filter = self.filter_for(entries);
        let record_bytes = usize::try_from(pages).unwrap_or(usize::MAX).saturating_mul(PAGE_LEN);
        let fences = self.fences_for(first, pages_max(record_bytes));
        let cursors = (self.runs.len() - first) * Cursor::MEMORY_BYTES;
        self.note_memory(writer_bytes(filter.as_ref(), fences) + cursors);
        let mut writer = RunWriter::create(&scratch, &*self.host, &mut self.sealer, fences, filter)?;
        merge(self.runs.get(first..).unwrap_or_default(), &mut writer)?;
        let merged = writer.finish()?;
        self.runs.truncate(first);
        self.runs.push(merged);
        Ok(())
    }

    /// Makes an empty filter for a new run, and halves larger filters to free its memory; `None` if that is not enough.
    fn filter_for(&mut self, entries: u64) -> Option<Filter> {
        for bits in [BITS_PER_ENTRY, BITS_PER_ENTRY_HALF] {
            let Some(wanted) = Filter::bytes_for(entries, bits) else { continue };
            loop {
                let taken: usize = self.runs.iter().map(Run::filter_bytes).sum();
                if wanted <= self.shares.filters.saturating_sub(taken) {
                    return Some(Filter::new(wanted, bits));
                }
                match self.runs.iter_mut().max_by_key(|run| run.filter_bytes()) {
                    Some(largest) if wanted < largest.filter_bytes() => largest.shrink_filter(),
                    _ => break,
                }
            }
        }
        None
    }

    /// Returns how many page fences a new run of at most so many pages may have. The first `kept` runs stay; they drop
    /// fences if they have more than half of the share.
    fn fences_for(&mut self, kept: usize, pages: usize) -> usize {
        let share = self.shares.fences / size_of::<u64>();
        let wanted = pages.clamp(1, share / 2);
        loop {
            let kept = self.runs.get_mut(..kept).unwrap_or_default();
            let free = share.saturating_sub(kept.iter().map(Run::fences).sum());
            if wanted <= free {
                return pages.clamp(1, free);
            }
            // The loop ends: the share is far larger than one fence per run.
            kept.iter_mut().max_by_key(|run| run.fences()).into_iter().for_each(Run::thin_fences);
        }
    }

    fn no_scratch(&self) -> Error {
        let Self { name, memory_bytes, .. } = self;
        Error::invalid(format!(
            "{name}: more entries than fit the memory limit of {memory_bytes} bytes, and no cache directory to spill \
             to: raise --memory or allow a cache directory"
        ))
    }

    /// Records the peak of memory when buffers take `more` bytes.
    fn note_memory(&mut self, more: usize) {
        self.memory_bytes_peak = self.memory_bytes_peak.max(self.memory_bytes_used() + more);
    }
}

/// Returns the memory of a writer of a run, in bytes.
fn writer_bytes(filter: Option<&Filter>, fences: usize) -> usize {
    filter.map_or(0, Filter::memory_bytes) + fences * size_of::<u64>() + PageBuilder::MEMORY_BYTES
}

/// Returns the first run to merge, given the sizes of all runs from oldest to newest; the merge takes all newer ones too.
///
/// A merge takes at least the two newest runs, and each older one that is not larger than all newer ones together. So an
/// entry is merged about w times for n spills into r runs, where C(r + w, w) = n (Mathieu et al., "Bigtable merge
/// compaction", arXiv 1407.3008). They decide by the number of spills, this by size, since replaced entries vanish.
fn first_to_merge(pages: &[u64]) -> usize {
    let mut first = pages.len();
    let mut sum = 0;
    for (index, run) in pages.iter().enumerate().rev() {
        if first + 2 <= pages.len() && sum < *run {
            break;
        }
        (first, sum) = (index, sum + run);
    }
    first
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::ErrorKind;
    use std::path::Path;
    use std::sync::Mutex;

    use super::*;
    use crate::io::os::OsDisk;
    use crate::io::{Access, BatchRead, DiskEntry, DiskFile, Linked};
    use crate::testing::sim::{Fault, SimDisk, SimHost};

    /// A simulated disk that keeps the files it created, whose names are gone.
    #[derive(Debug, Default)]
    struct KeepingDisk {
        disk: SimDisk,
        files: Mutex<Vec<Arc<dyn DiskFile>>>,
    }

    impl Disk for KeepingDisk {
        fn create(&self, path: &Path) -> Result<Arc<dyn DiskFile>> {
            let file = self.disk.create(path)?;
            self.files.lock().unwrap().push(Arc::clone(&file));
            Ok(file)
        }
        fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn DiskFile>> {
            self.disk.open(path, access)
        }
        fn create_dir(&self, path: &Path) -> Result<()> {
            self.disk.create_dir(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> Result<()> {
            self.disk.rename(from, to)
        }
        fn link(&self, existing: &Path, new: &Path) -> Result<Linked> {
            self.disk.link(existing, new)
        }
        fn remove(&self, path: &Path) -> Result<()> {
            self.disk.remove(path)
        }
        fn remove_dir(&self, path: &Path) -> Result<bool> {
            self.disk.remove_dir(path)
        }
        fn sync_dir(&self, path: &Path) -> Result<()> {
            self.disk.sync_dir(path)
        }
        fn list(&self, path: &Path) -> Result<Vec<DiskEntry>> {
            self.disk.list(path)
        }
        fn exists(&self, path: &Path) -> Result<bool> {
            self.disk.exists(path)
        }
        fn read_batch(&self, reads: &mut [BatchRead]) {
            self.disk.read_batch(reads);
        }
        fn display(&self, path: &Path) -> String {
            self.disk.display(path)
        }
    }

    fn map(disk: Arc<dyn Disk>, memory_bytes: usize) -> SpillMap {
        let host = Arc::new(SimHost::new(5));
        SpillMap::new(Some(disk), PathBuf::new(), host, "test", memory_bytes).unwrap()
    }

    /// A key as (device, inode) make it: far from uniform.
    fn key(number: u64) -> [u8; 32] {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&42_u64.to_be_bytes());
        key[8..16].copy_from_slice(&number.to_be_bytes());
        key
    }

    fn draw(host: &SimHost) -> u64 {
        let mut bytes = [0; 8];
        host.random(&mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn value(number: u64, len: u64) -> Vec<u8> {
        vec![number.to_le_bytes()[0]; usize::try_from(len).unwrap()]
    }

    #[track_caller]
    fn assert_within_limit(map: &SpillMap) {
        let (used, peak) = (map.memory_bytes_used(), map.memory_bytes_peak());
        assert!(used <= peak && peak <= map.memory_bytes, "{used} now, {peak} at the most, of {}", map.memory_bytes);
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "a random test says its seed")]
    fn random_operations_agree_with_a_model_through_many_runs_and_merges() {
        for seed in 0..3 {
            println!("seed {seed}");
            let random = SimHost::new(seed);
            let mut map = map(Arc::new(SimDisk::new()), MEMORY_BYTES_MIN);
            let mut model = BTreeMap::new();
            let (mut spills, mut merges) = (0, 0);
            for _ in 0..60_000 {
                let number = draw(&random) % 6000;
                let len = if draw(&random).is_multiple_of(8) {
                    draw(&random) % (VALUE_LEN_MAX as u64 + 1)
                } else {
                    number % 40
                };
                let (key, value) = (key(number), value(draw(&random), len));
                let runs = map.runs.len();
                match draw(&random) % 8 {
                    0..=3 => {
                        map.insert(key, &value).unwrap();
                        model.insert(key, value);
                    }
                    4 => {
                        assert_eq!(map.insert_new(key, &value).unwrap(), !model.contains_key(&key));
                        model.entry(key).or_insert(value);
                    }
                    5 => assert_eq!(map.contains(&key).unwrap(), model.contains_key(&key)),
                    _ => assert_eq!(map.get(&key).unwrap().as_ref(), model.get(&key)),
                }
                spills += usize::from(runs < map.runs.len());
                merges += usize::from(map.runs.len() < runs);
                assert!(model.len() as u64 <= map.len_upper_bound() && map.runs.len() <= RUNS_MAX);
            }
            assert!(20 < spills && 2 < merges, "seed {seed}: {spills} spills, {merges} merges");
            for compact in [false, true] {
                if compact {
                    assert_eq!(map.compact().unwrap(), model.len() as u64);
                    assert!(
                        map.runs.len() == 1 && map.table.count() == 0 && map.compact().unwrap() == model.len() as u64
                    );
                }
                for number in 0..6100 {
                    assert_eq!(map.get(&key(number)).unwrap().as_ref(), model.get(&key(number)), "seed {seed}");
                }
            }
            assert_within_limit(&map);
        }
    }

    #[test]
    fn two_hundred_thousand_entries_stay_within_a_mebibyte_and_misses_rarely_read() {
        let disk = SimDisk::new();
        let mut map = map(Arc::new(disk.clone()), 1 << 20);
        let count = 200_000;
        for number in 0..count {
            map.insert(key(number), &number.to_le_bytes()).unwrap();
            assert!(map.memory_bytes_used() <= 1 << 20);
        }
        assert_within_limit(&map);
        assert_eq!(map.len_upper_bound(), count);
        for number in (0..count).step_by(97) {
            assert_eq!(map.get(&key(number)).unwrap().unwrap(), number.to_le_bytes());
        }
        let calls = disk.calls();
        let misses = 5000;
        for number in count..count + misses {
            assert!(!map.contains(&key(number)).unwrap());
        }
        let reads = disk.calls() - calls;
        assert!(reads < misses / 2, "{reads} reads for {misses} misses");
        assert_within_limit(&map);
    }

    #[test]
    fn lookups_stay_right_when_fences_and_filters_are_dropped() {
        let mut map = map(Arc::new(SimDisk::new()), MEMORY_BYTES_MIN);
        map.shares.fences = 20 * size_of::<u64>();
        map.shares.filters = 8192;
        let count = 60_000;
        for number in 0..count {
            map.insert(key(number), &value(number, number % 64)).unwrap();
        }
        let fences: usize = map.runs.iter().map(Run::fences).sum();
        let filters: usize = map.runs.iter().map(Run::filter_bytes).sum();
        assert!(fences <= 20 && filters <= 8192 && 100 < map.runs.iter().map(Run::pages).sum::<u64>());
        for number in (0..2 * count).step_by(31) {
            let expected = (number < count).then(|| value(number, number % 64));
            assert_eq!(map.get(&key(number)).unwrap(), expected);
        }
    }

    #[test]
    fn spilled_bytes_show_neither_keys_nor_values_and_files_have_no_names() {
        let disk = Arc::new(KeepingDisk::default());
        let mut map = map(Arc::clone(&disk) as Arc<dyn Disk>, MEMORY_BYTES_MIN);
        for number in 0..20_000_u64 {
            map.insert(key(number), b"a value in plain text").unwrap();
        }
        assert_eq!(disk.list(Path::new("")).unwrap(), []);
        let hashed = map.hash(&key(0));
        let mut bytes_seen = 0;
        for file in disk.files.lock().unwrap().iter() {
            let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
            file.read_at(0, &mut bytes).unwrap();
            let shows = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
            assert!(!shows(b"in plain") && !shows(&key(0)[..12]) && !shows(&hashed[..8]) && !shows(&[0; 8]));
            bytes_seen += bytes.len();
        }
        assert!(500_000 < bytes_seen);
    }

    #[test]
    fn damage_is_an_error_that_names_the_file() {
        let disk = Arc::new(KeepingDisk::default());
        let mut map = map(Arc::clone(&disk) as Arc<dyn Disk>, MEMORY_BYTES_MIN);
        let mut number = 0;
        while map.runs.is_empty() {
            map.insert(key(number), b"value").unwrap();
            number += 1;
        }
        let file = Arc::clone(&disk.files.lock().unwrap()[0]);
        let mut byte = [0];
        file.read_at(100, &mut byte).unwrap();
        file.write_at(100, &[byte[0] ^ 1]).unwrap();
        let (mut damaged, mut right) = (0, 0);
        for number in 0..number {
            match map.get(&key(number)) {
                Ok(Some(value)) => right += usize::from(value == b"value"),
                Err(Error::Damaged { object, .. }) => damaged += usize::from(object.starts_with("sim:/spill-")),
                other => panic!("{other:?}"),
            }
        }
        assert!(0 < damaged && 0 < right && damaged + right == usize::try_from(number).unwrap());
        file.set_len(0).unwrap();
        map.cache = PageCache::new(1);
        assert!((0..number - 1).all(|number| map.get(&key(number)).is_err()));
    }

    #[test]
    fn a_disk_that_fails_at_any_call_costs_an_error_and_nothing_else() {
        let workload = |map: &mut SpillMap, may_fail: bool| {
            let mut failures = 0;
            for number in 0..900 {
                let value = value(number, 3600);
                while let Err(error) = map.insert(key(number), &value) {
                    assert!(may_fail && error.io_kind() == Some(ErrorKind::Other), "{error}");
                    failures += 1;
                    if 0 < number {
                        // The same read succeeds later.
                        assert!(map.get(&key(number - 1)).is_ok_and(|value| value.is_some()));
                    }
                }
            }
            (0..900).for_each(|number| assert_eq!(map.get(&key(number)).unwrap(), Some(value(number, 3600))));
            failures
        };
        let disk = SimDisk::new();
        let mut clean = map(Arc::new(disk.clone()), MEMORY_BYTES_MIN);
        disk.record_trace();
        assert_eq!(workload(&mut clean, false), 0);
        let trace = disk.trace();
        let last_write = trace.iter().rfind(|call| call.operation == "write").unwrap().number;
        assert!(trace.iter().any(|call| call.operation == "read" && call.number < last_write), "runs were merged");
        // Every file's creation and the loss of its name, and some of the many reads and writes.
        let is_chosen = |operation, number| !matches!(operation, "read" | "write") || number % 37 == 0;
        let chosen = trace.iter().filter(|call| call.number <= last_write && is_chosen(call.operation, call.number));
        for call in chosen.map(|call| call.number) {
            for fault in [Fault::Error(ErrorKind::Other), Fault::ShortWrite(ErrorKind::Other)] {
                let disk = SimDisk::new();
                let mut map = map(Arc::new(disk.clone()), MEMORY_BYTES_MIN);
                disk.fail_at(call, fault);
                assert_eq!(workload(&mut map, true), 1, "call {call}");
                assert_within_limit(&map);
            }
        }
    }

    #[test]
    fn a_failing_read_fails_the_lookup() {
        let disk = SimDisk::new();
        let mut map = map(Arc::new(disk.clone()), MEMORY_BYTES_MIN);
        while map.runs.is_empty() {
            map.insert(key(map.len_upper_bound()), &[]).unwrap();
        }
        disk.fail_at(disk.calls() + 1, Fault::Error(ErrorKind::Other));
        assert_eq!(map.get(&key(0)).unwrap_err().io_kind(), Some(ErrorKind::Other));
        assert_eq!(map.get(&key(0)).unwrap(), Some(Vec::new()));
    }

    #[test]
    fn without_a_scratch_disk_the_limit_is_an_error_that_says_so() {
        let host = Arc::new(SimHost::new(5));
        let mut map = SpillMap::new(None, PathBuf::new(), host, "hard links", MEMORY_BYTES_MIN).unwrap();
        let mut number = 0;
        let error = loop {
            match map.insert(key(number), b"value") {
                Ok(()) => number += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(error.to_string().starts_with("hard links: ") && error.to_string().contains("--memory"), "{error}");
        assert!(5000 < number && map.get(&key(number)).unwrap().is_none());
        assert!((0..number).all(|number| map.get(&key(number)).unwrap().unwrap() == b"value"));
        assert_within_limit(&map);
    }

    #[test]
    fn limits_are_checked() {
        let mut map = map(Arc::new(SimDisk::new()), MEMORY_BYTES_MIN);
        assert!(matches!(map.insert(key(1), &[0; VALUE_LEN_MAX + 1]), Err(Error::Invalid { .. })));
        assert!(!map.contains(&key(1)).unwrap());
        map.insert(key(1), &[1; VALUE_LEN_MAX]).unwrap();
        let host = Arc::new(SimHost::new(5));
        let too_small = SpillMap::new(None, PathBuf::new(), host, "test", MEMORY_BYTES_MIN - 1);
        assert!(matches!(too_small, Err(Error::Invalid { .. })));
    }

    #[test]
    fn a_real_file_system_reads_files_without_names() {
        let directory = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(directory.path().to_path_buf()));
        let mut map = map(Arc::clone(&disk), MEMORY_BYTES_MIN);
        (0..50_000).for_each(|number| map.insert(key(number), &value(number, 9)).unwrap());
        assert!(1 < map.runs.len());
        assert_eq!(disk.list(Path::new("")).unwrap(), []);
        (0..50_000).for_each(|number| assert_eq!(map.get(&key(number)).unwrap(), Some(value(number, 9))));
    }

    #[test]
    fn merging_takes_the_newest_runs_up_to_one_that_is_larger_than_all_of_them() {
        assert_eq!(first_to_merge(&[5, 5, 5, 5, 5, 5, 5, 5, 5]), 0);
        assert_eq!(first_to_merge(&[45, 5, 5, 5, 5, 5, 5, 5, 5]), 1);
        assert_eq!(first_to_merge(&[45, 40, 35, 30, 25, 20, 15, 5, 5]), 7);
        assert_eq!(first_to_merge(&[9, 1, 5]), 1);
        // The work of many spills stays within that of a balanced merge: 8 runs, so C(12, 4) = 495 spills cost 4 merges.
        let (mut runs, mut merged) = (Vec::<u64>::new(), 0);
        for spilled_pages in [1; 495] {
            runs.push(spilled_pages);
            if RUNS_MAX < runs.len() {
                let sum = runs.drain(first_to_merge(&runs)..).sum();
                merged += sum;
                runs.push(sum);
            }
        }
        assert!(merged < 5 * 495, "{merged}");
    }
}
