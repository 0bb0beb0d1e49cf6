//! Arrays of records of one length: appended once, then read in any order.
//!
//! Short arrays stay in memory. A longer one goes to one unlinked file of sealed pages, each with as many whole records as fit.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use zeroize::Zeroizing;

use crate::crypto::ObjectKey;
use crate::error::{Error, Result};
use crate::io::{Disk, DiskFile, Host};
use crate::lru::Lru;
use crate::spill::page::{PAGE_LEN, SEALED_LEN, Sealer};
use crate::spill::run::ScratchDir;

/// Pages of records that stay in memory (640 KiB), and that are written together when there are more.
const PAGES_IN_MEMORY: usize = 40;
/// Pages that are kept in memory of those in the file (256 KiB): readers mostly go forward, a few at a time.
const CACHED_PAGES: usize = 16;

/// An array of records of `LEN` bytes. After an error it is of no more use.
#[derive(Default)]
pub(crate) struct SpillArray<const LEN: usize> {
    /// Name of the array, for messages.
    name: &'static str,
    scratch: Option<(ScratchDir, Arc<dyn Host>)>,
    /// Records after those in the file.
    tail: Vec<[u8; LEN]>,
    spilled: Option<Spilled>,
}

/// The part of an array that is in a file.
struct Spilled {
    file: Arc<dyn DiskFile>,
    /// Former name of the file.
    file_name: String,
    sealer: Sealer,
    /// Records in the file. Only the last page may have fewer than fit.
    records: usize,
    cache: Mutex<Lru<u64, Arc<[u8]>>>,
}

impl<const LEN: usize> fmt::Debug for SpillArray<LEN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpillArray").field("name", &self.name).field("records", &self.len()).finish_non_exhaustive()
    }
}

impl<const LEN: usize> SpillArray<LEN> {
    /// Records of a page.
    const PAGE_RECORDS: usize = PAGE_LEN / LEN;
    /// Records that stay in memory.
    pub(crate) const RECORDS_IN_MEMORY: usize = PAGES_IN_MEMORY * Self::PAGE_RECORDS;

    /// Makes an empty array, which spills to `dir` on the scratch disk. Without a disk it stays in memory.
    pub(crate) fn new(disk: Option<Arc<dyn Disk>>, dir: PathBuf, host: Arc<dyn Host>, name: &'static str) -> Self {
        let scratch = disk.map(|disk| (ScratchDir::new(disk, dir), host));
        Self { name, scratch, tail: Vec::new(), spilled: None }
    }

    /// Returns the number of records.
    pub(crate) fn len(&self) -> usize {
        self.spilled.as_ref().map_or(0, |spilled| spilled.records) + self.tail.len()
    }

    /// Appends a record.
    pub(crate) fn push(&mut self, record: [u8; LEN]) -> Result<()> {
        if self.tail.len() == Self::RECORDS_IN_MEMORY {
            self.spill()?;
        }
        self.tail.push(record);
        Ok(())
    }

    /// Ends the appending: an array that has spilled keeps no records in memory but those of its cache.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if self.spilled.is_some() {
            self.spill()?;
        }
        self.tail.shrink_to_fit();
        Ok(())
    }

    /// Writes the records in memory to the file, if there is a disk for it.
    fn spill(&mut self) -> Result<()> {
        let Some((scratch, host)) = &self.scratch else { return Ok(()) };
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            none => none.insert(Spilled::create(scratch, &**host, self.name)?),
        };
        for records in self.tail.chunks(Self::PAGE_RECORDS) {
            let mut page = records.concat();
            page.resize(PAGE_LEN, 0);
            let offset = offset_of(spilled.sealer.next_counter());
            spilled.sealer.seal(&mut page);
            spilled.file.write_at(offset, &page)?;
            spilled.records += records.len();
        }
        self.tail.clear();
        Ok(())
    }

    /// Returns the record at an index, which must be below the length.
    pub(crate) fn get(&self, index: usize) -> Result<[u8; LEN]> {
        let record = match &self.spilled {
            Some(spilled) if index < spilled.records => {
                let page = spilled.page((index / Self::PAGE_RECORDS) as u64)?;
                let start = index % Self::PAGE_RECORDS * LEN;
                page.get(start..).and_then(|rest| rest.first_chunk().copied())
            }
            Some(Spilled { records, .. }) => self.tail.get(index - records).copied(),
            None => self.tail.get(index).copied(),
        };
        Ok(record.expect("callers ask for records that there are"))
    }

    /// Returns the memory of a finished array, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let cached = self.spilled.as_ref().map_or(0, |_| CACHED_PAGES * PAGE_LEN);
        self.tail.capacity() * LEN + cached
    }
}

impl Spilled {
    fn create(scratch: &ScratchDir, host: &dyn Host, name: &'static str) -> Result<Self> {
        let mut key = Zeroizing::new([0; 32]);
        host.random(&mut *key)?;
        let (file, file_name) = scratch.create(host)?;
        let cache = Mutex::new(Lru::new(CACHED_PAGES * PAGE_LEN));
        Ok(Self { file, file_name, sealer: Sealer::new(ObjectKey::from_bytes(&key), name), records: 0, cache })
    }

    fn page(&self, number: u64) -> Result<Arc<[u8]>> {
        let cached = self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(&number);
        if let Some(page) = cached {
            return Ok(page);
        }
        let mut page = vec![0; SEALED_LEN];
        self.file.read_at(offset_of(number), &mut page)?;
        if !self.sealer.is_opened(number, &mut page) {
            return Err(Error::damaged(&self.file_name, "a page does not open"));
        }
        page.truncate(PAGE_LEN);
        let page: Arc<[u8]> = page.into();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.insert(number, Arc::clone(&page), PAGE_LEN);
        Ok(page)
    }
}

fn offset_of(page: u64) -> u64 {
    page.checked_mul(SEALED_LEN as u64).expect("a file system limits files to less")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sim::{SimDisk, SimHost};

    const IN_MEMORY: usize = SpillArray::<12>::RECORDS_IN_MEMORY;

    fn record(number: usize) -> [u8; 12] {
        let mut record = [7; 12];
        record[..8].copy_from_slice(&(number as u64).to_le_bytes());
        record
    }

    fn array_of(disk: Option<Arc<dyn Disk>>, count: usize) -> Result<SpillArray<12>> {
        let host = Arc::new(SimHost::new(1));
        let mut array = SpillArray::new(disk, PathBuf::new(), host, "test");
        for number in 0..count {
            array.push(record(number))?;
        }
        array.finish()?;
        Ok(array)
    }

    #[test]
    fn records_come_back_from_memory_and_from_the_file() {
        for count in [0, 1, IN_MEMORY, IN_MEMORY + 1, 3 * IN_MEMORY, 3 * IN_MEMORY + 5] {
            for has_disk in [false, true] {
                let disk = has_disk.then(|| Arc::new(SimDisk::new()) as Arc<dyn Disk>);
                let array = array_of(disk, count).unwrap();
                assert_eq!(array.len(), count);
                assert_eq!(array.spilled.is_some(), has_disk && IN_MEMORY < count);
                for number in (0..count).chain((0..count).rev().step_by(97)) {
                    assert_eq!(array.get(number).unwrap(), record(number));
                }
                let memory_max = if has_disk { PAGES_IN_MEMORY * PAGE_LEN } else { 12 * count };
                assert!(array.memory_bytes() <= memory_max);
            }
        }
    }

    #[test]
    fn a_damaged_page_is_an_error_and_the_others_are_read() {
        let array = array_of(Some(Arc::new(SimDisk::new())), 2 * IN_MEMORY).unwrap();
        let file = &array.spilled.as_ref().unwrap().file;
        let mut byte = [0];
        file.read_at(SEALED_LEN as u64 + 100, &mut byte).unwrap();
        file.write_at(SEALED_LEN as u64 + 100, &[byte[0] ^ 1]).unwrap();
        let page = SpillArray::<12>::PAGE_RECORDS;
        assert!(matches!(array.get(page), Err(Error::Damaged { .. })));
        assert_eq!(array.get(page - 1).unwrap(), record(page - 1));
        assert_eq!(array.get(2 * page).unwrap(), record(2 * page));
    }
}
