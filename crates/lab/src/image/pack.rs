//! Making a store of an image: names of all blocks from one pass, halving, and a second pass that copies the distinct blocks.
//!
//! Names are in memory if the budget allows. Otherwise they are in temporary files, and each level is divided into partitions by its
//! names: equal names are in the same partition, so the result is the same. The second pass names all bytes that it copies, so an
//! image that changes meanwhile is an error and not a wrong store.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use onefold_engine::Error;
use onefold_engine::io::{Disk, DiskFile};
use onefold_engine::monitor::Monitor;

use crate::image::block::{BlockKeys, ImageNames, LEVEL_MAX, LEVELS, Name, UNIT_BYTES};
use crate::image::first::{BYTES_OF_POSITION, FirstMap, Found};
use crate::image::halving::{InMemory, Kept, LevelNames, found_and_zeros, halve};
use crate::image::parallel;
use crate::image::store::Store;
use crate::image::store::packing::{self, Stored};
use crate::image::store::{StoreOptions, StoreStats};

/// Units of a part that one thread reads and names at a time: 512 KiB.
const PART_UNITS: u32 = 512;
/// Names of all levels for a block of the smallest level, in bytes: two names, since the levels above have one for it together.
const NAMES_BYTES: u64 = 2 * size_of::<Name>() as u64;
/// Bytes for an active block while a level is halved: its position, what is found for it, and the positions of its halves.
const ACTIVE_BYTES: u64 = 4 + size_of::<(Found, bool)>() as u64 + 2 * 4;
/// Bytes for a block of a partition in addition: its name, its position and index, its slots in the map, and what is found for it.
const PARTITION_BYTES: u64 = (size_of::<Name>() + 2 * 4 + BYTES_OF_POSITION + 2 * size_of::<(Found, bool)>()) as u64;
/// Names that are read from a temporary file at a time: 1 MiB.
const NAMES_READ: usize = 1 << 16;

/// An image that is read.
pub trait Source: Sync {
    /// Returns its bytes.
    fn bytes(&self) -> u64;
    /// Fills a buffer from an offset on.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;
}

/// An image in a file.
#[derive(Debug)]
pub struct SourceFile {
    file: File,
    len: u64,
    path: PathBuf,
}

impl SourceFile {
    /// Opens a regular file.
    pub fn open(path: PathBuf) -> Result<Self> {
        let file = crate::files::open(&path).with_context(|| format!("open {}", path.display()))?;
        let len = file.metadata().with_context(|| format!("open {}", path.display()))?.len();
        Ok(Self { file, len, path })
    }
}

impl Source for SourceFile {
    fn bytes(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(out, offset).with_context(|| format!("read {}", self.path.display()))
    }
}

impl Source for [u8] {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset)?;
        let bytes = self.get(start..start + out.len()).context("read beyond the end")?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}

/// Around of a pack.
#[derive(Debug)]
pub struct Around<'a> {
    /// Directory of temporary files.
    pub scratch: PathBuf,
    /// Learns of progress, and may stop it.
    pub monitor: &'a dyn Monitor,
}

/// Makes a store of an image in an empty directory. After an error the directory is empty again, as far as it can be.
pub fn pack(
    source: &(impl Source + ?Sized),
    disk: Arc<dyn Disk>,
    key: [u8; 32],
    options: StoreOptions,
    around: &Around<'_>,
) -> Result<StoreStats> {
    ensure!(options.level_min <= LEVEL_MAX, "the smallest block has 1 to 128 KiB");
    let blocks = packing::create(&*disk)?;
    let cleaned = Arc::clone(&disk);
    let packed = Pack { source, key, keys: BlockKeys::new(&key), options, around }.into_store(disk, blocks);
    let store = packed.inspect_err(|_| packing::remove(&*cleaned))?;
    let stats = store.stats();
    store.close()?;
    Ok(stats)
}

struct Pack<'a, S: ?Sized> {
    source: &'a S,
    key: [u8; 32],
    keys: BlockKeys,
    options: StoreOptions,
    around: &'a Around<'a>,
}

impl<S: Source + ?Sized> Pack<'_, S> {
    fn into_store(self, disk: Arc<dyn Disk>, blocks: Arc<dyn DiskFile>) -> Result<Store> {
        let image_len = self.source.bytes();
        let level_min = self.options.level_min;
        let units = packing::units_of(image_len, level_min)?;
        let count = u64::from(units >> level_min);
        let memory = self.options.memory;
        let needed = count * (NAMES_BYTES + ACTIVE_BYTES + PARTITION_BYTES);
        let threads = self.options.threads;
        let mut names = if needed <= memory {
            Names::Memory(self.names_in_memory(units)?)
        } else {
            Names::Files(Box::new(self.names_in_files(units)?))
        };
        let zeros = self.keys.zeros();
        let kept = match &mut names {
            Names::Memory(names) => {
                let mut source = InMemory { names, map: FirstMap::Atomic, threads, zeros: Some(zeros) };
                halve(&mut source, units, level_min)?
            }
            Names::Files(files) => halve(&mut Partitioned { files, memory, threads, zeros, units }, units, level_min)?,
        };
        let kept_bytes = kept.len() as u64 * size_of::<Kept>() as u64;
        ensure!(kept_bytes <= memory, Error::invalid("the index of the image takes more than --memory allows"));
        let mut stored = Stored::new(image_len, self.options)?;
        for block in &kept {
            let name = if block.is_zero || !block.is_unique() { None } else { Some(names.get(block)?) };
            stored.add(block, name)?;
        }
        drop(names);
        let runs = stored.runs();
        parallel::for_each(runs.iter(), threads, |run| {
            let mut bytes = vec![0; run.units as usize * UNIT_BYTES];
            self.read(run.start, &mut bytes)?;
            if !stored.has_names(&self.keys, run, &bytes) {
                bail!("the image was changed while it was read");
            }
            blocks.write_at(u64::from(run.address) * UNIT_BYTES as u64, &bytes)?;
            Ok(())
        })?;
        Ok(stored.finish(disk, blocks, self.key)?)
    }

    /// Reads units. Those behind the end of the image are zeros.
    fn read(&self, start: u32, out: &mut [u8]) -> Result<()> {
        ensure!(!self.around.monitor.is_interrupted(), Error::Interrupted);
        let offset = u64::from(start) * UNIT_BYTES as u64;
        let there = self.source.bytes().saturating_sub(offset).min(out.len() as u64);
        let (bytes, behind) = out.split_at_mut(usize::try_from(there)?);
        behind.fill(0);
        self.source.read_at(offset, bytes)?;
        self.around.monitor.advance(there, 0);
        Ok(())
    }

    /// Names all blocks, a part at a time.
    fn name_all(&self, units: u32, keep: impl Fn(usize, [Vec<Name>; LEVELS]) -> Result<()> + Sync) -> Result<()> {
        let parts = (0..units).step_by(PART_UNITS as usize).collect::<Vec<_>>().into_iter();
        parallel::for_each(parts, self.options.threads, |start| {
            let len = (units - start).min(PART_UNITS) as usize;
            let mut bytes = vec![0; len * UNIT_BYTES];
            self.read(start, &mut bytes)?;
            keep(start as usize, self.keys.tree(&bytes))
        })
    }

    fn names_in_memory(&self, units: u32) -> Result<ImageNames> {
        let len = |level: usize| if level < usize::from(self.options.level_min) { 0 } else { units as usize >> level };
        let all: Mutex<ImageNames> = Mutex::new(std::array::from_fn(|level| vec![Name::default(); len(level)]));
        self.name_all(units, |start, names| {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            for (level, (all, names)) in all.iter_mut().zip(names).enumerate() {
                all.iter_mut().skip(start >> level).zip(names).for_each(|(to, from)| *to = from);
            }
            Ok(())
        })?;
        Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn names_in_files(&self, units: u32) -> Result<[File; LEVELS]> {
        let scratch = &self.around.scratch;
        let file = || tempfile::tempfile_in(scratch).with_context(|| format!("create a file in {}", scratch.display()));
        let files = (0..LEVELS).map(|_| file()).collect::<Result<Vec<_>>>()?;
        let Ok(files): Result<[File; LEVELS], _> = files.try_into() else { bail!("a file for each level") };
        self.name_all(units, |start, names| {
            for (level, (file, names)) in files.iter().zip(names).enumerate().skip(self.options.level_min.into()) {
                let offset = (start >> level) * size_of::<Name>();
                file.write_all_at(names.as_flattened(), offset as u64).context("write names to a temporary file")?;
            }
            Ok(())
        })?;
        Ok(files)
    }
}

/// Names of all blocks.
enum Names {
    Memory(ImageNames),
    Files(Box<[File; LEVELS]>),
}

impl Names {
    fn get(&self, block: &Kept) -> Result<Name> {
        let (level, at) = (usize::from(block.level), block.start as usize >> block.level);
        match self {
            Self::Memory(names) => names[level].get(at).copied().context("a block without a name"),
            Self::Files(files) => {
                let mut name = Name::default();
                let read = files[level].read_exact_at(&mut name, (at * size_of::<Name>()) as u64);
                read.context("read names from a temporary file")?;
                Ok(name)
            }
        }
    }
}

/// Names in temporary files, of which some are in memory at a time.
struct Partitioned<'a> {
    files: &'a [File; LEVELS],
    memory: u64,
    threads: usize,
    zeros: [Name; LEVELS],
    units: u32,
}

impl Partitioned<'_> {
    /// Takes the names of one of several partitions, with the index of each among the active blocks.
    fn gather(&self, level: u8, active: &[u32], (number, of): (u64, u64)) -> Result<(Vec<Name>, Vec<u32>)> {
        let (mut names, mut indexes) = (Vec::new(), Vec::new());
        let (mut read, mut from) = (Vec::new(), 0);
        let blocks = self.units as usize >> level;
        for (index, block) in (0..).zip(active) {
            let block = *block as usize;
            if from + read.len() <= block {
                from = block;
                read = vec![Name::default(); NAMES_READ.min(blocks.saturating_sub(from))];
                let file = &self.files[usize::from(level)];
                let done = file.read_exact_at(read.as_flattened_mut(), (from * size_of::<Name>()) as u64);
                done.context("read names from a temporary file")?;
            }
            let name: &Name = read.get(block - from).context("a block without a name")?;
            // Bits on which neither the slot of a name nor its tag depends.
            let bits = u32::from_le_bytes([name[8], name[9], name[10], name[11]]);
            if (u64::from(bits) * of) >> 32 == number {
                names.push(*name);
                indexes.push(index);
            }
        }
        Ok((names, indexes))
    }
}

impl LevelNames for Partitioned<'_> {
    fn find(&mut self, level: u8, active: &[u32]) -> Result<Vec<(Found, bool)>> {
        let half = (self.memory / 2).max(1);
        let count = active.len() as u64;
        ensure!(
            count * ACTIVE_BYTES <= half,
            Error::invalid(format_args!(
                "halving takes {} MiB of memory, and half of --memory is {} MiB",
                (count * ACTIVE_BYTES) >> 20,
                half >> 20
            ))
        );
        let partitions = (count * PARTITION_BYTES).div_ceil(half).max(1);
        let mut all = vec![(Found::default(), false); active.len()];
        for number in 0..partitions {
            let (names, indexes) = self.gather(level, active, (number, partitions))?;
            let own: Vec<u32> = (0..u32::try_from(names.len())?).collect();
            let zero = self.zeros[usize::from(level)];
            let found = found_and_zeros(FirstMap::Atomic, &names, &own, self.threads, Some(zero));
            for (index, (found, is_zero)) in indexes.iter().zip(found) {
                let first = indexes.get(found.first as usize).and_then(|first| active.get(*first as usize));
                let first = *first.context("a block without a first one")?;
                all[*index as usize] = (Found { first, ..found }, is_zero);
            }
        }
        Ok(all)
    }
}
