//! Sort of more records than memory holds, on temporary files.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Bits by which a file that is too long is divided.
const SPLIT_BITS: usize = 6;
/// Buffer of each file. A level of files takes 2^[`SPLIT_BITS`] of them, and two levels are rare.
const BUFFER_BYTES: usize = 64 << 10;

/// Records of `N` bytes in a temporary file, which is removed on drop.
#[derive(Debug)]
pub struct Records<const N: usize> {
    dir: PathBuf,
    file: BufWriter<File>,
    count: u64,
    first: [u8; N],
    /// Bits in which any record differs from the first.
    differing: [u8; N],
}

impl<const N: usize> Records<N> {
    /// Starts without any. The file has no name: nothing is left of it, however the program ends.
    pub fn new(dir: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(dir);
        let file = file.with_context(|| format!("create a temporary file in {}", dir.display()))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self { dir: dir.to_path_buf(), file, count: 0, first: [0; N], differing: [0; N] })
    }

    /// Appends a record.
    pub fn push(&mut self, record: &[u8; N]) -> Result<()> {
        if self.count == 0 {
            self.first = *record;
        }
        for ((differing, first), byte) in self.differing.iter_mut().zip(&self.first).zip(record) {
            *differing |= first ^ byte;
        }
        self.count += 1;
        self.file.write_all(record).with_context(|| format!("write a temporary file in {}", self.dir.display()))
    }

    /// Passes on all records in the order of their bytes, with this memory and the buffers of each level.
    pub fn sorted(self, memory_bytes: usize, each: &mut dyn FnMut(&[u8; N]) -> Result<()>) -> Result<()> {
        let Self { dir, file, count, differing, .. } = self;
        let context = || format!("read a temporary file in {}", dir.display());
        let mut file = file.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(context)?;
        file.seek(SeekFrom::Start(0)).with_context(context)?;
        let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
        let mut record = [0; N];
        let first_bit = differing.iter().position(|byte| *byte != 0);
        let first_bit = first_bit.map(|at| 8 * at + differing.get(at).map_or(0, |byte| byte.leading_zeros() as usize));
        if let Some(first_bit) = first_bit.filter(|_| (memory_bytes / N) as u64 <= count) {
            let mut parts: Vec<Option<Self>> = (0..1 << SPLIT_BITS).map(|_| None).collect();
            for _ in 0..count {
                file.read_exact(&mut record).with_context(context)?;
                let part = parts.get_mut(bits_at(&record, first_bit)).expect("as many parts as the bits have values");
                match part {
                    Some(part) => part.push(&record)?,
                    None => part.insert(Self::new(&dir)?).push(&record)?,
                }
            }
            drop(file);
            return parts.into_iter().flatten().try_for_each(|part| part.sorted(memory_bytes, each));
        }
        if first_bit.is_none() {
            // All the same.
            return (0..count).try_for_each(|_| each(&self.first));
        }
        let mut all = Vec::with_capacity(usize::try_from(count)?);
        for _ in 0..count {
            file.read_exact(&mut record).with_context(context)?;
            all.push(record);
        }
        drop(file);
        all.sort_unstable();
        all.iter().try_for_each(each)
    }
}

/// Returns the bits from one on; zeros follow the last.
fn bits_at(record: &[u8], first: usize) -> usize {
    (first..first + SPLIT_BITS).fold(0, |bits, at| {
        let bit = record.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
        bits << 1 | usize::from(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Random;

    #[test]
    fn records_come_in_order_however_little_memory_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut random = Random::new(1);
        for (count, distinct) in [(0, 1), (1, 1), (5000, 1), (5000, 3), (20_000, 1 << 40)] {
            for memory_bytes in [0, 100, 10_000, 1 << 20] {
                let mut records = Records::<10>::new(dir.path()).unwrap();
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
                let mut found = Vec::new();
                let mut take = |record: &[u8; 10]| {
                    found.push(*record);
                    Ok(())
                };
                records.sorted(memory_bytes, &mut take).unwrap();
                assert_eq!(found, expected);
            }
        }
    }
}
