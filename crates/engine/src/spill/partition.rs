//! Records of one length in the order of their bytes, however many there are.
//!
//! [`Partitions`] divides records by their first bits and appends each partition's records to pages of one file. Then
//! [`FilledPartitions::sorted`] sorts one partition after another in memory. A partition that does not fit is divided again, by
//! the first bits in which its records differ. So uniform records are written once and read once.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::crypto::{ObjectKey, TAG_LEN};
use crate::error::{Error, Result};
use crate::io::{Disk, DiskFile, Host};
use crate::spill::page::{BadPage, Sealer};
use crate::spill::run::ScratchDir;

/// Memory of a partition that is being filled, in bytes. With 512 partitions in 32 MiB, records of 8 TiB of chunks are
/// divided once, and a disk with heads reads 64 KiB for each seek.
const PARTITION_BYTES: usize = 64 << 10;
/// Bytes of a page in the file. The rest of [`PARTITION_BYTES`] is for the partition itself.
const SEALED_LEN: usize = PARTITION_BYTES - 512;
/// Bytes of a page's plaintext: the number of the partition's page before (u64, little-endian), and whole records.
const PAGE_LEN: usize = SEALED_LEN - TAG_LEN;
const HEADER_LEN: usize = 8;
/// Number that stands for no page.
const NO_PAGE: u64 = u64::MAX;
/// Smallest memory limit in bytes: four partitions, twice.
pub(crate) const PARTITIONS_BYTES_MIN: usize = 8 * PARTITION_BYTES;
/// Most bits by which records are divided at a time; more memory goes to larger partitions that are sorted.
const BITS_MAX: u32 = 12;
/// First allocation of a partition in bytes. It doubles up to a page.
const FIRST_BYTES: usize = 1 << 10;

/// Partition: records that begin with the same bits.
struct Partition<const N: usize> {
    count: u64,
    /// Its newest page in the file.
    last_page: u64,
    first: [u8; N],
    /// Bits in which any record differs from the first.
    differing: [u8; N],
    /// Space for the header of a page, and the records that are not in the file.
    buffer: Vec<u8>,
}

impl<const N: usize> Partition<N> {
    /// Records of a full page.
    const RECORDS: usize = (PAGE_LEN - HEADER_LEN) / N;

    fn new() -> Self {
        const { assert!(0 < N && N <= 128 && size_of::<Self>() <= PARTITION_BYTES - SEALED_LEN) }
        Self { count: 0, last_page: NO_PAGE, first: [0; N], differing: [0; N], buffer: Vec::new() }
    }

    /// Appends a record to the buffer; returns true if the buffer is a full page.
    fn push(&mut self, record: &[u8; N]) -> bool {
        if self.count == 0 {
            self.first = *record;
        }
        for ((differing, first), byte) in self.differing.iter_mut().zip(&self.first).zip(record) {
            *differing |= first ^ byte;
        }
        self.count += 1;
        if self.buffer.is_empty() {
            self.grow();
            self.buffer.extend_from_slice(&[0; HEADER_LEN]);
        }
        if self.buffer.capacity() < self.buffer.len() + N {
            self.grow();
        }
        self.buffer.extend_from_slice(record);
        PAGE_LEN < self.buffer.len() + N
    }

    /// Doubles the buffer up to the length of a sealed page.
    fn grow(&mut self) {
        let capacity = (2 * self.buffer.capacity()).clamp(FIRST_BYTES, SEALED_LEN);
        self.buffer.reserve_exact(capacity - self.buffer.len());
    }

    /// Returns the records that are not in the file.
    fn buffered(&self) -> &[[u8; N]] {
        self.buffer.get(HEADER_LEN..).unwrap_or_default().as_chunks().0
    }

    /// Returns the first bit in which records differ; `None` if all are equal.
    fn first_difference(&self) -> Option<usize> {
        let at = self.differing.iter().position(|byte| *byte != 0)?;
        Some(8 * at + self.differing.get(at)?.leading_zeros() as usize)
    }

    fn bytes(&self) -> u64 {
        self.count.saturating_mul(N as u64)
    }
}

/// Records of `N` bytes, divided by their first bits, in a temporary file without a name.
///
/// Takes at most its memory limit while it is filled. Afterward it takes hardly any, unless all records fit into less than
/// half of the limit: then it never touches the disk and keeps them. Records whose first bits are not uniform cost another
/// pass.
///
/// After an error it must be dropped: records are lost.
pub struct Partitions<const N: usize> {
    /// Name of the limit, for messages.
    name: &'static str,
    scratch: Option<ScratchDir>,
    host: Arc<dyn Host>,
    memory_bytes: usize,
    /// Most memory of records that never touch the disk.
    retained_bytes_max: usize,
    first_bit: usize,
    bits: u32,
    all: Vec<Partition<N>>,
    /// The file and its former name, once a page is full.
    file: Option<(Arc<dyn DiskFile>, String)>,
    sealer: Sealer,
    count: u64,
    has_failed: bool,
}

impl<const N: usize> fmt::Debug for Partitions<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partitions")
            .field("name", &self.name)
            .field("memory_bytes", &self.memory_bytes)
            .field("partitions", &self.all.len())
            .field("count", &self.count)
            .field("pages", &self.sealer.next_counter())
            .finish_non_exhaustive()
    }
}

impl<const N: usize> Partitions<N> {
    /// Starts without records. Takes at most `memory_bytes`, and spills to an unlinked file in `dir`, which must exist on the
    /// scratch disk by then. Without a scratch disk, it fails when records take more than half of the limit.
    ///
    /// Messages name the limit `name`. Fails if the limit is below 512 KiB or the host has no randomness.
    pub fn new(
        scratch: Option<Arc<dyn Disk>>,
        dir: PathBuf,
        host: Arc<dyn Host>,
        name: &'static str,
        memory_bytes: usize,
    ) -> Result<Self> {
        if memory_bytes < PARTITIONS_BYTES_MIN {
            return Err(Error::invalid(format!(
                "{name}: a memory limit of {memory_bytes} bytes is too low, the least is {PARTITIONS_BYTES_MIN}"
            )));
        }
        let scratch = scratch.map(|disk| ScratchDir::new(disk, dir));
        // So that sorting all of them at once takes no more than the rest.
        let retained_bytes_max = memory_bytes / 2 - PARTITION_BYTES;
        Ok(Self { retained_bytes_max, ..Self::divided_at(0, scratch, host, name, memory_bytes)? })
    }

    /// Starts to divide by the bits from `first_bit` on.
    fn divided_at(
        first_bit: usize,
        scratch: Option<ScratchDir>,
        host: Arc<dyn Host>,
        name: &'static str,
        memory_bytes: usize,
    ) -> Result<Self> {
        let mut key = Zeroizing::new([0; 32]);
        host.random(&mut *key)?;
        let bits = (memory_bytes / PARTITION_BYTES).ilog2().min(BITS_MAX);
        Ok(Self {
            name,
            scratch,
            host,
            memory_bytes,
            retained_bytes_max: 0,
            first_bit,
            bits,
            all: (0..1 << bits).map(|_| Partition::new()).collect(),
            file: None,
            sealer: Sealer::new(ObjectKey::from_bytes(&key), name),
            count: 0,
            has_failed: false,
        })
    }

    /// Returns the number of records.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the memory that it takes, in bytes.
    pub(crate) fn memory_bytes_used(&self) -> usize {
        let buffers: usize = self.all.iter().map(|partition| partition.buffer.capacity()).sum();
        buffers + self.all.capacity() * size_of::<Partition<N>>()
    }

    /// Appends a record.
    pub fn push(&mut self, record: &[u8; N]) -> Result<()> {
        assert!(!self.has_failed, "partitions that failed are dropped");
        self.count += 1;
        let number = bits_at(record, self.first_bit, self.bits);
        let partition = self.all.get_mut(number).expect("as many partitions as the bits have values");
        if partition.push(record) { self.write_page(number) } else { Ok(()) }
    }

    /// Ends filling and gives the buffers back.
    pub fn finish(mut self) -> Result<FilledPartitions<N>> {
        assert!(!self.has_failed, "partitions that failed are dropped");
        if self.file.is_some() || self.retained_bytes_max < self.memory_bytes_used() {
            for number in 0..self.all.len() {
                if self.all.get(number).is_some_and(|partition| !partition.buffered().is_empty()) {
                    self.write_page(number)?;
                }
            }
            self.all.iter_mut().for_each(|partition| partition.buffer = Vec::new());
        }
        Ok(FilledPartitions(self))
    }

    /// Writes the buffer of a partition as its newest page.
    fn write_page(&mut self, number: usize) -> Result<()> {
        self.has_failed = true;
        if self.file.is_none() {
            let scratch = self.scratch.as_ref().ok_or_else(|| self.no_scratch())?;
            self.file = Some(scratch.create(&*self.host)?);
        }
        let (file, _) = self.file.as_ref().expect("created above");
        let partition = self.all.get_mut(number).expect("callers name a partition");
        let page = self.sealer.next_counter();
        let header = partition.buffer.first_chunk_mut::<HEADER_LEN>().expect("a buffer begins with the header");
        *header = partition.last_page.to_le_bytes();
        self.sealer.seal(&mut partition.buffer);
        file.write_at(offset_of(page), &partition.buffer)?;
        partition.buffer.clear();
        partition.last_page = page;
        self.has_failed = false;
        Ok(())
    }

    /// Passes on the records of a partition in any order. `page` is a buffer.
    fn read(
        &self,
        partition: &Partition<N>,
        page: &mut Vec<u8>,
        each: &mut dyn FnMut(&[u8; N]) -> Result<()>,
    ) -> Result<()> {
        partition.buffered().iter().try_for_each(&mut *each)?;
        let Some((file, name)) = &self.file else { return Ok(()) };
        let damaged = |BadPage(reason)| Error::damaged(name, reason);
        let mut remaining = partition.count - partition.buffered().len() as u64;
        let mut number = partition.last_page;
        while remaining != 0 {
            // All pages are full, except the newest one.
            let full = Partition::<N>::RECORDS as u64;
            let count = if remaining.is_multiple_of(full) { full } else { remaining % full };
            let count = usize::try_from(count).expect("a page holds fewer records than bytes");
            page.resize(HEADER_LEN + count * N + TAG_LEN, 0);
            file.read_at(offset_of(number), page)?;
            if !self.sealer.is_opened(number, page) {
                return Err(damaged(BadPage("a page does not open")));
            }
            let (before, records) = page.split_first_chunk().expect("a page begins with a header");
            records.as_chunks().0.iter().take(count).try_for_each(&mut *each)?;
            number = u64::from_le_bytes(*before);
            remaining -= count as u64;
        }
        Ok(())
    }

    fn no_scratch(&self) -> Error {
        let Self { name, memory_bytes, .. } = self;
        Error::invalid(format!(
            "{name}: more records than fit the memory limit of {memory_bytes} bytes, and no cache directory to spill to: \
             raise --memory or allow a cache directory"
        ))
    }
}

fn offset_of(page: u64) -> u64 {
    page.checked_mul(SEALED_LEN as u64).expect("a file system limits files to less")
}

/// Returns the bits from one on, at most 16; zeros follow the last.
fn bits_at(record: &[u8], first: usize, bits: u32) -> usize {
    let byte = |index: usize| record.get(first / 8 + index).copied().unwrap_or(0);
    let word = u32::from_be_bytes([byte(0), byte(1), byte(2), byte(3)]) << (first % 8);
    if bits == 0 { 0 } else { (word >> (u32::BITS - bits)) as usize }
}

/// Partitions that take no more records, and can be read any number of times.
#[derive(Debug)]
pub struct FilledPartitions<const N: usize>(Partitions<N>);

impl<const N: usize> FilledPartitions<N> {
    /// Returns the number of records.
    pub fn count(&self) -> u64 {
        self.0.count
    }

    /// Returns the records in the order of their bytes. The cursor takes at most the memory limit, together with what these
    /// partitions keep in memory.
    pub fn sorted(&self) -> SortedRecords<'_, N> {
        let level = Level { partitions: Held::Borrowed(&self.0), next: 0 };
        let free_bytes = self.0.memory_bytes.saturating_sub(self.0.memory_bytes_used() + PARTITION_BYTES);
        SortedRecords {
            free_bytes: free_bytes.max(2 * PARTITION_BYTES),
            levels: vec![level],
            sorted: Vec::new(),
            next: 0,
            equal: ([0; N], 0),
            page: Vec::new(),
        }
    }
}

/// The partitions that were filled, or a partition that was divided.
#[derive(Debug)]
enum Held<'a, const N: usize> {
    Borrowed(&'a Partitions<N>),
    Owned(Box<Partitions<N>>),
}

impl<const N: usize> Held<'_, N> {
    fn get(&self) -> &Partitions<N> {
        match self {
            Self::Borrowed(partitions) => partitions,
            Self::Owned(partitions) => partitions,
        }
    }
}

#[derive(Debug)]
struct Level<'a, const N: usize> {
    partitions: Held<'a, N>,
    /// Number of the next partition.
    next: usize,
}

/// Cursor over records in the order of their bytes. After an error it must be dropped.
#[derive(Debug)]
pub struct SortedRecords<'a, const N: usize> {
    /// Memory for sorting or dividing, in bytes.
    free_bytes: usize,
    /// From the partitions that were filled to the ones of the partition that was divided last. Each level divides by later
    /// bits, so there are fewer than bits of a record.
    levels: Vec<Level<'a, N>>,
    /// Records of the current partition, and the position of the next one.
    sorted: Vec<[u8; N]>,
    next: usize,
    /// A record and how often it still follows.
    equal: ([u8; N], u64),
    page: Vec<u8>,
}

impl<const N: usize> SortedRecords<'_, N> {
    /// Returns the memory of the cursor, in bytes.
    #[cfg(test)]
    fn memory_bytes_used(&self) -> usize {
        let owned = self.levels.iter().filter(|level| matches!(level.partitions, Held::Owned(_)));
        let levels: usize = owned.map(|level| level.partitions.get().memory_bytes_used()).sum();
        levels + self.sorted.capacity() * N + self.page.capacity()
    }

    /// Loads the next partition, or divides it. Returns false after the last.
    fn advance(&mut self) -> Result<bool> {
        self.next = 0;
        self.sorted.clear();
        let Some(Level { partitions, next }) = self.levels.last_mut() else { return Ok(false) };
        let partitions = partitions.get();
        let Some(partition) = partitions.all.get(*next) else {
            self.levels.pop();
            return Ok(true);
        };
        *next += 1;
        let Some(first_bit) = partition.first_difference() else {
            self.equal = (partition.first, partition.count);
            return Ok(true);
        };
        if partition.bytes() <= self.free_bytes as u64 {
            let count = usize::try_from(partition.count).expect("fits the memory");
            if self.sorted.capacity() < count {
                // Growing would hold the records before and the new ones.
                self.sorted = Vec::new();
                self.sorted.reserve_exact(count);
            }
            let sorted = &mut self.sorted;
            partitions.read(partition, &mut self.page, &mut |record| {
                sorted.push(*record);
                Ok(())
            })?;
            // Most records differ in their first bytes, which compare faster as integers.
            sorted.sort_unstable_by(|a, b| head_of(a).cmp(&head_of(b)).then_with(|| a.cmp(b)));
            return Ok(true);
        }
        self.sorted = Vec::new();
        let Partitions { scratch, host, name, .. } = partitions;
        let (scratch, host) = (scratch.clone(), Arc::clone(host));
        // Nothing of the parts stays in memory, so that all levels share it.
        let mut parts = Partitions::divided_at(first_bit, scratch, host, name, self.free_bytes)?;
        partitions.read(partition, &mut self.page, &mut |record| parts.push(record))?;
        let FilledPartitions(parts) = parts.finish()?;
        self.levels.push(Level { partitions: Held::Owned(Box::new(parts)), next: 0 });
        Ok(true)
    }
}

impl<const N: usize> Iterator for SortedRecords<'_, N> {
    type Item = Result<[u8; N]>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(record) = self.sorted.get(self.next) {
                self.next += 1;
                return Some(Ok(*record));
            }
            let (record, times) = &mut self.equal;
            if *times != 0 {
                *times -= 1;
                return Some(Ok(*record));
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Returns the first eight bytes as an integer with the order of records.
fn head_of<const N: usize>(record: &[u8; N]) -> u64 {
    record.first_chunk().map_or(0, |head| u64::from_be_bytes(*head))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::path::Path;

    use super::*;
    use crate::io::os::OsDisk;
    use crate::random::SplitMix64;
    use crate::testing::sim::{Fault, SimDisk, SimHost};

    fn partitions<const N: usize>(disk: &SimDisk, memory_bytes: usize) -> Partitions<N> {
        let host = Arc::new(SimHost::new(5));
        Partitions::new(Some(Arc::new(disk.clone())), PathBuf::new(), host, "test", memory_bytes).unwrap()
    }

    fn uniform(random: &mut SplitMix64) -> [u8; 10] {
        let mut record = [0; 10];
        record[..8].copy_from_slice(&random.next_u64().to_be_bytes());
        record[9] = 7;
        record
    }

    fn read_all<const N: usize>(filled: &FilledPartitions<N>) -> Result<Vec<[u8; N]>> {
        filled.sorted().collect()
    }

    #[test]
    fn records_come_in_order_whatever_their_distribution_and_any_number_of_times() {
        let mut random = SplitMix64::new(1);
        for (count, distinct) in [(0, 1), (1, 1), (50_000, 1), (50_000, 3), (20_000, 1 << 40), (200_000, 1 << 60)] {
            for memory_bytes in [PARTITIONS_BYTES_MIN, 1 << 20, 16 << 20] {
                let mut records = partitions::<10>(&SimDisk::new(), memory_bytes);
                let mut expected: Vec<[u8; 10]> = Vec::new();
                for _ in 0..count {
                    let mut record = [7; 10];
                    record[2..].copy_from_slice(&random.below(distinct).to_be_bytes());
                    // One that is more frequent than all others together.
                    if random.below(3) != 0 {
                        record = [9; 10];
                    }
                    records.push(&record).unwrap();
                    expected.push(record);
                }
                expected.sort_unstable();
                let filled = records.finish().unwrap();
                assert_eq!(filled.count(), count);
                for _ in 0..2 {
                    assert!(read_all(&filled).unwrap() == expected, "{count} of {distinct} in {memory_bytes}");
                }
            }
        }
    }

    #[test]
    fn uniform_records_are_written_once_and_read_once() {
        let disk = SimDisk::new();
        disk.record_trace();
        let mut random = SplitMix64::new(2);
        let mut records = partitions::<10>(&disk, 1 << 20);
        let mut expected: Vec<[u8; 10]> = (0..500_000).map(|_| uniform(&mut random)).collect();
        for record in &expected {
            records.push(record).unwrap();
        }
        expected.sort_unstable();
        assert!(read_all(&records.finish().unwrap()).unwrap() == expected);
        let calls = |operation| disk.trace().iter().filter(|call| call.operation == operation).count();
        // A page for each 64 KiB, and the last one of each partition.
        assert!(calls("write") <= 5_000_000 / SEALED_LEN + 16, "{} writes", calls("write"));
        assert_eq!((calls("create"), calls("read")), (1, calls("write")));
        assert_eq!(disk.list(Path::new("")).unwrap(), []);
    }

    #[test]
    fn memory_stays_within_the_limit_while_records_are_pushed_sorted_and_divided() {
        let mut random = SplitMix64::new(3);
        for memory_bytes in [PARTITIONS_BYTES_MIN, 3 << 20] {
            for (count, first_bits) in [(1_000_000, 0), (1_000_000, 10), (15_000, 0), (15_000, 10)] {
                let mut records = partitions::<10>(&SimDisk::new(), memory_bytes);
                for _ in 0..count {
                    let mut record = uniform(&mut random);
                    let first = u16::from_be_bytes([record[0], record[1]]) >> first_bits;
                    record[..2].copy_from_slice(&first.to_be_bytes());
                    records.push(&record).unwrap();
                    assert!(records.memory_bytes_used() <= memory_bytes);
                }
                let filled = records.finish().unwrap();
                let mut sorted = filled.sorted();
                let (mut last, mut found) = ([0; 10], 0);
                while let Some(record) = sorted.next().map(Result::unwrap) {
                    assert!(last <= record);
                    (last, found) = (record, found + 1);
                    let bytes = filled.0.memory_bytes_used() + sorted.memory_bytes_used();
                    assert!(bytes <= memory_bytes, "{bytes} of {memory_bytes}");
                }
                assert_eq!(found, count);
            }
        }
    }

    #[test]
    fn few_records_never_touch_the_disk_and_need_none() {
        let host = Arc::new(SimHost::new(5));
        let mut records =
            Partitions::<10>::new(None, PathBuf::new(), host, "references", PARTITIONS_BYTES_MIN).unwrap();
        let mut random = SplitMix64::new(4);
        let mut expected: Vec<[u8; 10]> = (0..5_000).map(|_| uniform(&mut random)).collect();
        for record in &expected {
            records.push(record).unwrap();
        }
        expected.sort_unstable();
        assert_eq!(read_all(&records.finish().unwrap()).unwrap(), expected);
    }

    #[test]
    fn without_a_scratch_disk_the_limit_is_an_error_that_says_so() {
        let make = || {
            let host = Arc::new(SimHost::new(5));
            Partitions::<10>::new(None, PathBuf::new(), host, "references", PARTITIONS_BYTES_MIN).unwrap()
        };
        let mut random = SplitMix64::new(5);
        let mut records = make();
        let error = (0..100_000).find_map(|_| records.push(&uniform(&mut random)).err()).unwrap().to_string();
        assert!(error.starts_with("references: ") && error.contains("--memory"), "{error}");
        let mut records = make();
        (0..35_000).for_each(|_| records.push(&uniform(&mut random)).unwrap());
        let error = records.finish().unwrap_err().to_string();
        assert!(error.starts_with("references: ") && error.contains("--memory"), "{error}");
        let host = Arc::new(SimHost::new(5));
        let too_small = Partitions::<10>::new(None, PathBuf::new(), host, "test", PARTITIONS_BYTES_MIN - 1);
        assert!(matches!(too_small, Err(Error::Invalid { .. })));
    }

    /// Sorts records that are divided twice, and returns the first error.
    fn sort_skewed(disk: &SimDisk) -> Result<()> {
        let mut random = SplitMix64::new(6);
        let host = Arc::new(SimHost::new(5));
        let disk = Some(Arc::new(disk.clone()) as Arc<dyn Disk>);
        let mut records = Partitions::<10>::new(disk, PathBuf::new(), host, "test", PARTITIONS_BYTES_MIN)?;
        let mut expected = Vec::new();
        for _ in 0..120_000 {
            let mut record = uniform(&mut random);
            record[0] = 1;
            records.push(&record)?;
            expected.push(record);
        }
        expected.sort_unstable();
        let filled = records.finish()?;
        assert!(read_all(&filled)? == expected);
        Ok(())
    }

    #[test]
    fn a_disk_that_is_full_or_fails_at_any_call_is_an_error_and_leaves_no_file() {
        let disk = SimDisk::new();
        sort_skewed(&disk).unwrap();
        let calls = disk.calls();
        assert!(60 < calls, "{calls} calls");
        for call in 1..=calls {
            for fault in [Fault::Error(ErrorKind::Other), Fault::ShortWrite(ErrorKind::Other), Fault::DiskFull] {
                let disk = SimDisk::new();
                disk.fail_at(call, fault);
                let Err(error) = sort_skewed(&disk) else {
                    // What comes after the last write needs no space.
                    assert_eq!(fault, Fault::DiskFull, "call {call}");
                    continue;
                };
                let kind = if fault == Fault::DiskFull { ErrorKind::StorageFull } else { ErrorKind::Other };
                assert_eq!(error.io_kind(), Some(kind), "call {call}: {error}");
                disk.clear_faults();
                let names = disk.list(Path::new("")).unwrap();
                // A file keeps its name only if the name could not be removed.
                assert!(names.len() <= 1, "call {call}: {names:?}");
            }
        }
    }

    #[test]
    fn a_damaged_page_is_an_error_that_names_the_file_and_bytes_show_no_record() {
        let disk = SimDisk::new();
        let mut records = partitions::<10>(&disk, PARTITIONS_BYTES_MIN);
        (0..60_000).for_each(|_| records.push(b"plain text").unwrap());
        let mut other = *b"plain text";
        other[9] = b'!';
        records.push(&other).unwrap();
        let filled = records.finish().unwrap();
        let (file, _) = filled.0.file.clone().unwrap();
        let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        assert!(!bytes.windows(5).any(|window| window == b"plain"));
        assert_eq!(read_all(&filled).unwrap().len(), 60_001);
        file.write_at(100, &[bytes[100] ^ 1]).unwrap();
        match read_all(&filled) {
            Err(Error::Damaged { object, .. }) => assert!(object.starts_with("sim:/spill-"), "{object}"),
            other => panic!("{:?}", other.map(|all| all.len())),
        }
    }

    #[test]
    fn a_real_file_system_sorts_in_files_without_names() {
        let directory = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(directory.path().to_path_buf()));
        let host = Arc::new(SimHost::new(5));
        let mut records =
            Partitions::<18>::new(Some(Arc::clone(&disk)), PathBuf::new(), host, "test", PARTITIONS_BYTES_MIN).unwrap();
        let record = |number: u32| {
            let mut record = [0; 18];
            record[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b1).to_be_bytes());
            record
        };
        (0..100_000).for_each(|number| records.push(&record(number)).unwrap());
        let filled = records.finish().unwrap();
        assert_eq!(disk.list(Path::new("")).unwrap(), []);
        let mut expected: Vec<[u8; 18]> = (0..100_000).map(record).collect();
        expected.sort_unstable();
        assert!(read_all(&filled).unwrap() == expected);
    }
}
