//! The medium of a fingerprint store on persistent memory: words that can be stored, flushed and fenced.
//!
//! The rules are those of memory behind a processor's caches. A word is stored as a whole. A store is durable after the line
//! it lies in was flushed and then a fence has returned; before, it may be durable or not, each word by itself, since a cache
//! may write any line back at any time. Nothing orders two stores but a fence between them.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use onefold_engine::{Error, Result};
use onefold_sys::Mapping;
use rustix::fs::{FlockOperation, flock};

pub use onefold_sys::{LINE_BYTES, WORD_BYTES};

/// Memory in words of eight bytes. Offsets are in bytes and multiples of eight; accesses outside panic.
pub trait Medium: Debug + Send {
    /// Returns how many bytes there are.
    fn len(&self) -> u64;
    /// Returns true if there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies the words from an offset on.
    fn copy_out(&self, offset: u64, words: &mut [u64]);
    /// Replaces a word.
    fn store(&mut self, offset: u64, word: u64);
    /// Replaces the words from an offset on, in any order.
    fn write(&mut self, offset: u64, words: &[u64]);
    /// Sends the lines that hold `len` bytes from an offset on to the memory.
    fn flush(&mut self, offset: u64, len: u64);
    /// Returns when all flushed lines are durable.
    fn fence(&mut self) -> Result<()>;
    /// Makes the medium at least `len` bytes long. New bytes are zero, now and after a crash. An error leaves the medium
    /// unchanged.
    fn grow(&mut self, len: u64) -> Result<()>;
    /// Releases the memory of a range; its contents are undefined afterward.
    fn release(&mut self, offset: u64, len: u64);
    /// Prefetches the line of an offset.
    fn will_need(&self, offset: u64);
}

/// Memory that is mapped: the machine's own, which is lost with the process, or a file.
///
/// On a file of persistent memory (DAX), lines that were flushed and fenced are durable. Elsewhere they are in the page
/// cache: they outlive the process, and a power cut only with [`Durability::Device`]; on tmpfs nothing does.
#[derive(Debug)]
pub struct MappedMemory {
    mapping: Mapping,
    path: PathBuf,
    durability: Durability,
}

/// Scope of a fence on mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// The processor's caches.
    Memory,
    /// The device under the file as well (`msync`): for files that are not persistent memory.
    Device,
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).expect("what is mapped has addresses")
}

fn mapped_len(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::invalid(format!("{len} bytes cannot be mapped")))
}

impl MappedMemory {
    /// Takes `len` bytes of zeroed memory of the machine in whole pages; 0 is allowed.
    pub fn anonymous(len: u64) -> Result<Self> {
        let path = PathBuf::from("(memory)");
        let mapping = Mapping::anonymous(mapped_len(len)?).map_err(|error| Error::io("map", &path, error))?;
        Ok(Self { mapping, path, durability: Durability::Memory })
    }

    /// Opens a file, or creates it empty. One process at a time may open it; another gets an error.
    pub fn of_file(path: &Path, durability: Durability) -> Result<Self> {
        let wrap = |operation| move |error| Error::io(operation, path, error);
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path).map_err(wrap("open"))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| Error::io("lock", path, error.into()))?;
        let mapping = Mapping::of_file(file.into()).map_err(wrap("map"))?;
        Ok(Self { mapping, path: path.to_path_buf(), durability })
    }
}

impl Medium for MappedMemory {
    fn len(&self) -> u64 {
        self.mapping.len() as u64
    }

    #[inline]
    fn copy_out(&self, offset: u64, words: &mut [u64]) {
        self.mapping.copy_out(at(offset), words);
    }

    #[inline]
    fn store(&mut self, offset: u64, word: u64) {
        self.mapping.store(at(offset), word);
    }

    #[inline]
    fn write(&mut self, offset: u64, words: &[u64]) {
        self.mapping.write(at(offset), words);
    }

    #[inline]
    fn flush(&mut self, offset: u64, len: u64) {
        self.mapping.flush(at(offset), at(len));
    }

    fn fence(&mut self) -> Result<()> {
        self.mapping.fence();
        match self.durability {
            Durability::Memory => Ok(()),
            Durability::Device => self.mapping.sync().map_err(|error| Error::io("sync", &self.path, error)),
        }
    }

    fn grow(&mut self, len: u64) -> Result<()> {
        let len = mapped_len(len)?;
        self.mapping.grow(len).map_err(|error| Error::io("extend", &self.path, error))
    }

    fn release(&mut self, offset: u64, len: u64) {
        self.mapping.release(at(offset), at(len));
    }

    #[inline]
    fn will_need(&self, offset: u64) {
        self.mapping.will_need(at(offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conforms(medium: &mut dyn Medium) {
        medium.grow(10_000).unwrap();
        assert!(10_000 <= medium.len());
        let mut words = [1; 3];
        medium.copy_out(9_000, &mut words);
        assert_eq!(words, [0; 3], "what is new is zero");
        medium.write(9_000, &[5, 6, 7]);
        medium.store(9_008, 8);
        medium.flush(9_000, 24);
        medium.fence().unwrap();
        let len = medium.len();
        medium.grow(1).unwrap();
        assert_eq!(medium.len(), len, "nothing shrinks");
        medium.grow(len + 1).unwrap();
        medium.copy_out(9_000, &mut words);
        assert_eq!(words, [5, 8, 7]);
        medium.will_need(0);
        medium.release(0, 8192);
        medium.copy_out(9_000, &mut words);
        assert_eq!(words, [5, 8, 7], "a range that is released leaves its neighbors");
    }

    #[test]
    fn every_medium_keeps_its_contract() {
        conforms(&mut MappedMemory::anonymous(0).unwrap());
        conforms(&mut crate::mapped::recorder::Recorder::default());
        let dir = tempfile::tempdir().unwrap();
        for (name, durability) in [("memory", Durability::Memory), ("device", Durability::Device)] {
            let path = dir.path().join(name);
            let mut file = MappedMemory::of_file(&path, durability).unwrap();
            assert!(file.is_empty());
            conforms(&mut file);
            let busy = MappedMemory::of_file(&path, durability).unwrap_err().to_string();
            assert!(busy.contains("lock") && busy.contains(name), "{busy}");
            drop(file);
            let mut word = [0];
            MappedMemory::of_file(&path, durability).unwrap().copy_out(9_008, &mut word);
            assert_eq!(word, [8]);
        }
    }

    #[test]
    fn a_file_system_without_room_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = MappedMemory::of_file(&dir.path().join("store"), Durability::Memory).unwrap();
        file.grow(4096).unwrap();
        let error = file.grow(1 << 60).unwrap_err().to_string();
        assert!(error.contains("store"), "{error}");
        assert_eq!(file.len(), 4096);
    }
}
