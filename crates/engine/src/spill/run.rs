//! Runs: sorted pages, each run in a file of its own without a name.

use std::path::PathBuf;
use std::sync::Arc;

use crate::crypto::slot::hex;
use crate::error::{Error, Result};
use crate::io::{Disk, DiskFile, Host};
use crate::spill::filter::Filter;
use crate::spill::page::{BadPage, Key, Page, PageBuilder, PagePosition, SEALED_LEN, Sealer, prefix_of};

/// Memory of an open file, in bytes: handle, path and allocation.
const FILE_BYTES: usize = 512;

/// Directory in which runs are written.
#[derive(Clone, Debug)]
pub(super) struct ScratchDir {
    disk: Arc<dyn Disk>,
    path: PathBuf,
}

impl ScratchDir {
    pub(crate) fn new(disk: Arc<dyn Disk>, path: PathBuf) -> Self {
        Self { disk, path }
    }

    /// Creates a file and unlinks it at once, so that it vanishes with the process. Returns it with its former name, for
    /// messages.
    pub(super) fn create(&self, host: &dyn Host) -> Result<(Arc<dyn DiskFile>, String)> {
        let mut random = [0; 16];
        host.random(&mut random)?;
        let path = self.path.join(format!("spill-{}", hex(&random)));
        let file = self.disk.create(&path)?;
        self.disk.remove(&path)?;
        Ok((file, self.disk.display(&path)))
    }
}

/// Page fences: prefixes of the first keys of all pages, or of every 2^shift-th page if memory is short.
#[derive(Debug)]
struct Fences {
    prefixes: Vec<u64>,
    shift: u32,
}

impl Fences {
    fn new(count_max: usize) -> Self {
        // The final size at once: a list that grows exists twice.
        Self { prefixes: Vec::with_capacity(count_max.max(1)), shift: 0 }
    }

    /// Adds the first key of the next page. Drops every other fence instead of exceeding the capacity.
    fn push(&mut self, page: u64, first: &Key) {
        if self.is_fenced(page) && self.prefixes.len() == self.prefixes.capacity() {
            self.thin();
        }
        if self.is_fenced(page) {
            self.prefixes.push(prefix_of(first));
        }
    }

    fn is_fenced(&self, page: u64) -> bool {
        page.trailing_zeros() >= self.shift
    }

    /// Drops every other fence.
    fn thin(&mut self) {
        let mut index = 0;
        self.prefixes.retain(|_| {
            index += 1;
            index % 2 == 1
        });
        self.shift += 1;
    }

    /// Returns the last group of pages that may begin at or before the prefix.
    fn last_group(&self, prefix: u64) -> Option<usize> {
        self.prefixes.partition_point(|fence| *fence <= prefix).checked_sub(1)
    }
}

/// Sorted run.
#[derive(Debug)]
pub(super) struct Run {
    file: Arc<dyn DiskFile>,
    /// Former name of the file.
    name: String,
    first_counter: u64,
    pages: u64,
    entries: u64,
    fences: Fences,
    filter: Option<Filter>,
}

impl Run {
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the memory of the run, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        FILE_BYTES + self.name.capacity() + self.fences() * size_of::<u64>() + self.filter_bytes()
    }

    /// Returns the memory of its filter, in bytes.
    pub(super) fn filter_bytes(&self) -> usize {
        self.filter.as_ref().map_or(0, Filter::memory_bytes)
    }

    /// Halves the filter, or drops it if it was halved before.
    pub(super) fn shrink_filter(&mut self) {
        self.filter = self.filter.take().and_then(Filter::fold);
    }

    /// Drops the filter.
    pub(super) fn drop_filter(&mut self) {
        self.filter = None;
    }

    /// Returns the number of page fences in memory.
    pub(super) fn fences(&self) -> usize {
        self.fences.prefixes.capacity()
    }

    /// Drops every other page fence: lookups read one page more.
    pub(super) fn thin_fences(&mut self) {
        self.fences.thin();
        self.fences.prefixes.shrink_to_fit();
    }

    /// Looks a key up. Returns the result of `take` for its value.
    pub(crate) fn find<T>(
        &self,
        key: &Key,
        sealer: &Sealer,
        cache: &mut PageCache,
        take: &impl Fn(&[u8]) -> T,
    ) -> Result<Option<T>> {
        if self.filter.as_ref().is_some_and(|filter| !filter.may_hold(key)) {
            return Ok(None);
        }
        let prefix = prefix_of(key);
        let mut group = self.fences.last_group(prefix);
        while let Some(index) = group {
            if let Some(found) = self.find_in_group(index, key, sealer, cache, take)? {
                return Ok(Some(found));
            }
            // With equal prefixes, the key may also be at the end of the group before.
            let may_be_before = self.fences.prefixes.get(index).is_some_and(|fence| *fence == prefix);
            group = if may_be_before { index.checked_sub(1) } else { None };
        }
        Ok(None)
    }

    /// Bisects the pages of one group.
    fn find_in_group<T>(
        &self,
        group: usize,
        key: &Key,
        sealer: &Sealer,
        cache: &mut PageCache,
        take: &impl Fn(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let start_of = |group: u64| group.saturating_mul(1 << self.fences.shift).min(self.pages);
        let (mut low, mut high) = (start_of(group as u64), start_of(group as u64 + 1));
        while low < high {
            let middle = low.midpoint(high);
            let page = cache.page(self, middle, sealer)?;
            match page.find(key).map_err(|bad| self.damaged(bad))? {
                PagePosition::Found(value) => return Ok(Some(take(value))),
                PagePosition::Absent => return Ok(None),
                PagePosition::Before => high = middle,
                PagePosition::After => low = middle + 1,
            }
        }
        Ok(None)
    }

    fn counter_of(&self, page: u64) -> u64 {
        self.first_counter + page
    }

    fn load(&self, index: u64, sealer: &Sealer, page: &mut Page) -> Result<()> {
        self.file.read_at(offset_of(index), page.buffer())?;
        page.open(sealer, self.counter_of(index)).map_err(|bad| self.damaged(bad))
    }

    fn damaged(&self, bad: BadPage) -> Error {
        Error::damaged(&self.name, bad.0)
    }
}

fn offset_of(page: u64) -> u64 {
    page.checked_mul(SEALED_LEN as u64).expect("a file system limits files to less")
}

/// Cache of opened pages by their counters, which are unique in a map.
pub(super) struct PageCache {
    /// A page has one possible slot: with uniform keys, no order of eviction is better than another.
    slots: Vec<Option<(u64, Page)>>,
}

impl PageCache {
    /// Memory of a slot with a page, in bytes.
    pub(super) const SLOT_BYTES: usize = Page::MEMORY_BYTES + size_of::<Option<(u64, Page)>>();

    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: std::iter::repeat_with(|| None).take(slots.max(1)).collect() }
    }

    /// Returns the memory of the cache, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let filled = self.slots.iter().flatten().count();
        filled * Page::MEMORY_BYTES + self.slots.capacity() * size_of::<Option<(u64, Page)>>()
    }

    fn page(&mut self, run: &Run, index: u64, sealer: &Sealer) -> Result<&Page> {
        let counter = run.counter_of(index);
        let slots = self.slots.len() as u64;
        let position = usize::try_from(counter % slots).expect("below the number of slots");
        let slot = self.slots.get_mut(position).expect("below the number of slots");
        let (held, page) = slot.get_or_insert_with(|| (counter, Page::new()));
        // A page that failed to load has no records.
        if *held != counter || page.count() == 0 {
            *held = counter;
            run.load(index, sealer, page)?;
        }
        Ok(page)
    }
}

/// Writer of a run, with keys in ascending order.
pub(super) struct RunWriter<'a> {
    sealer: &'a mut Sealer,
    run: Run,
    builder: PageBuilder,
    /// Key of the last record.
    last: Option<Key>,
}

impl<'a> RunWriter<'a> {
    /// Starts a run with at most `fences_max` page fences, and fills the filter.
    pub(crate) fn create(
        scratch: &ScratchDir,
        host: &dyn Host,
        sealer: &'a mut Sealer,
        fences_max: usize,
        filter: Option<Filter>,
    ) -> Result<Self> {
        let (file, name) = scratch.create(host)?;
        let first_counter = sealer.next_counter();
        let run = Run { file, name, first_counter, pages: 0, entries: 0, fences: Fences::new(fences_max), filter };
        Ok(Self { sealer, run, builder: PageBuilder::new(), last: None })
    }

    /// Appends a record, whose key is larger than all before.
    pub(super) fn push(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        assert!(self.last.is_none_or(|last| last < *key), "runs are written in ascending order");
        if !self.builder.fits(value.len()) {
            self.write_page()?;
        }
        if self.builder.is_empty() {
            self.run.fences.push(self.run.pages, key);
        }
        self.builder.push(key, value);
        if let Some(filter) = &mut self.run.filter {
            filter.add(key);
        }
        self.run.entries += 1;
        self.last = Some(*key);
        Ok(())
    }

    fn write_page(&mut self) -> Result<()> {
        let sealed = self.builder.seal(self.sealer);
        self.run.file.write_at(offset_of(self.run.pages), sealed)?;
        self.run.pages += 1;
        self.builder.clear();
        Ok(())
    }

    /// Writes the last page and returns the run. A sync is pointless: nobody can open the pages after a crash.
    pub(crate) fn finish(mut self) -> Result<Run> {
        if !self.builder.is_empty() {
            self.write_page()?;
        }
        self.run.fences.prefixes.shrink_to_fit();
        Ok(self.run)
    }
}

/// Cursor over the records of a run.
pub(super) struct Cursor<'a> {
    run: &'a Run,
    page: Page,
    next_page: u64,
    record: usize,
}

impl<'a> Cursor<'a> {
    /// Memory of a cursor, in bytes.
    pub(super) const MEMORY_BYTES: usize = Page::MEMORY_BYTES + size_of::<Self>();

    /// Starts at the first record.
    fn new(run: &'a Run, sealer: &Sealer) -> Result<Self> {
        let mut cursor = Self { run, page: Page::new(), next_page: 0, record: 0 };
        cursor.refill(sealer)?;
        Ok(cursor)
    }

    /// Loads the next page after the last record of this one. At the end of the run the page stays empty.
    fn refill(&mut self, sealer: &Sealer) -> Result<()> {
        if self.page.count() <= self.record {
            self.record = 0;
            // Empties the page.
            self.page.buffer();
            if self.next_page < self.run.pages {
                self.run.load(self.next_page, sealer, &mut self.page)?;
                self.next_page += 1;
            }
        }
        Ok(())
    }

    fn advance(&mut self, sealer: &Sealer) -> Result<()> {
        self.record += 1;
        self.refill(sealer)
    }

    /// Returns the current record; `None` after the last.
    fn record(&self) -> Result<Option<(&Key, &[u8])>> {
        if self.page.count() == 0 {
            return Ok(None);
        }
        self.page.record(self.record).map(Some).map_err(|bad| self.run.damaged(bad))
    }
}

/// Merges runs, from oldest to newest, into the writer. Of several values of a key it keeps the newest.
pub(super) fn merge(runs: &[Run], writer: &mut RunWriter<'_>) -> Result<()> {
    let mut cursors = Vec::with_capacity(runs.len());
    for run in runs {
        cursors.push(Cursor::new(run, writer.sealer)?);
    }
    loop {
        let mut least: Option<(&Key, &[u8])> = None;
        for cursor in &cursors {
            // A later run replaces an equal key.
            if let Some((key, value)) = cursor.record()?
                && least.is_none_or(|(least, _)| key <= least)
            {
                least = Some((key, value));
            }
        }
        let Some((key, value)) = least else { return Ok(()) };
        let key = *key;
        writer.push(&key, value)?;
        for cursor in &mut cursors {
            if cursor.record()?.is_some_and(|(found, _)| *found == key) {
                cursor.advance(writer.sealer)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::ObjectKey;
    use crate::testing::sim::{SimDisk, SimHost};

    #[test]
    fn fences_keep_their_limit_and_name_the_right_pages() {
        for count_max in [1, 2, 3, 7, 100] {
            let mut fences = Fences::new(count_max);
            for page in 0..60_u64 {
                let mut key = [0; 20];
                key[..8].copy_from_slice(&(10 * page).to_be_bytes());
                fences.push(page, &key);
                assert!(fences.prefixes.capacity() <= count_max);
            }
            for (group, fence) in fences.prefixes.iter().enumerate() {
                assert_eq!(*fence, 10 * ((group as u64) << fences.shift), "at most {count_max}");
            }
            assert_eq!(fences.prefixes.len() as u64, 60_u64.div_ceil(1 << fences.shift), "at most {count_max}");
            assert_eq!(fences.last_group(u64::MAX), Some(fences.prefixes.len() - 1));
        }
    }

    #[test]
    fn keys_with_equal_prefixes_are_found_across_pages_and_groups() {
        let scratch = ScratchDir::new(Arc::new(SimDisk::new()), PathBuf::new());
        let mut sealer = Sealer::new(ObjectKey::from_bytes(&[7; 32]), "test");
        // Three prefixes, each over several pages; even numbers are in the run.
        let key = |number: u32| {
            let mut key = [0; 20];
            key[7] = u8::try_from(number / 4000).unwrap();
            key[16..].copy_from_slice(&number.to_be_bytes());
            key
        };
        for fences_max in [1, 2, 5, 100] {
            let mut writer = RunWriter::create(&scratch, &SimHost::new(1), &mut sealer, fences_max, None).unwrap();
            for number in (0..12_000).step_by(2) {
                writer.push(&key(number), &number.to_le_bytes()).unwrap();
            }
            let run = writer.finish().unwrap();
            assert!(8 < run.pages() && run.fences() <= fences_max);
            let mut cache = PageCache::new(3);
            for number in (0..12_000).step_by(7) {
                let found = run.find(&key(number), &sealer, &mut cache, &<[u8]>::to_vec).unwrap();
                assert_eq!(found, number.is_multiple_of(2).then(|| number.to_le_bytes().to_vec()), "{number}");
            }
        }
    }
}
