//! Files that are written from front to back and verified as a whole.
//!
//! The checkpoint that refers to such a file holds its length and its BLAKE3 checksum.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::DiskFile;

/// Bytes that one call reads or writes.
const BUFFER_BYTES: usize = 64 << 10;

/// Length and checksum of a sealed file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seal {
    /// Length in bytes.
    pub len: u64,
    /// BLAKE3 checksum of all bytes.
    pub checksum: [u8; 32],
}

impl Seal {
    /// Returns the seal of an empty file.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self { len: 0, checksum: blake3::hash(&[]).into() }
    }
}

/// Writer of a sealed file.
#[derive(Debug)]
pub struct SealedWriter {
    file: Arc<dyn DiskFile>,
    len: u64,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

impl SealedWriter {
    /// Empties the file and starts at its front.
    pub fn create(file: Arc<dyn DiskFile>) -> Result<Self> {
        file.set_len(0)?;
        Ok(Self { file, len: 0, hasher: blake3::Hasher::new(), buffer: Vec::with_capacity(BUFFER_BYTES) })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_BYTES { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        self.hasher.update(&self.buffer);
        self.file.write_at(self.len, &self.buffer)?;
        self.len += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Makes the file durable; returns its seal.
    pub fn finish(mut self) -> Result<Seal> {
        self.write_out()?;
        self.file.sync()?;
        Ok(Seal { len: self.len, checksum: self.hasher.finalize().into() })
    }
}

/// Reader of a sealed file. The bytes are valid only if [`SealedReader::finish`] succeeds.
#[derive(Debug)]
pub struct SealedReader {
    file: Arc<dyn DiskFile>,
    name: PathBuf,
    seal: Seal,
    /// Bytes returned so far.
    offset: u64,
    /// Bytes read ahead, of which `taken` were returned.
    buffer: Vec<u8>,
    taken: usize,
    hasher: blake3::Hasher,
}

impl SealedReader {
    /// Starts at the front. Fails if the file has another length than the seal. The name is for messages.
    pub fn open(file: Arc<dyn DiskFile>, name: PathBuf, seal: Seal) -> Result<Self> {
        if file.len()? != seal.len {
            return Err(Error::damaged(name.display(), "has another length than its checkpoint says"));
        }
        Ok(Self::front_of(file, name, seal))
    }

    /// Starts at the front of a file that may be longer than the seal says.
    pub(crate) fn front_of(file: Arc<dyn DiskFile>, name: PathBuf, seal: Seal) -> Self {
        Self { file, name, seal, offset: 0, buffer: Vec::new(), taken: 0, hasher: blake3::Hasher::new() }
    }

    /// Returns the number of bytes left.
    pub fn left(&self) -> u64 {
        self.seal.len - self.offset
    }

    /// Fills the buffer with the next bytes. Fails if the file has fewer.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<()> {
        if self.left() < buffer.len() as u64 {
            return Err(Error::damaged(self.name.display(), "ends early"));
        }
        let mut rest = buffer;
        while !rest.is_empty() {
            if self.taken == self.buffer.len() {
                self.read_ahead()?;
            }
            let ready = self.buffer.get(self.taken..).unwrap_or_default();
            let count = ready.len().min(rest.len());
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(ready.get(..count).unwrap_or_default());
            self.taken += count;
            self.offset += count as u64;
            rest = later;
        }
        Ok(())
    }

    /// Reads the next part of the file. Records are as short as a cache line: a call for each would take most of the time.
    fn read_ahead(&mut self) -> Result<()> {
        let len = usize::try_from(self.left()).unwrap_or(usize::MAX).min(BUFFER_BYTES);
        self.buffer.resize(len, 0);
        self.taken = 0;
        self.file.read_at(self.offset, &mut self.buffer)?;
        self.hasher.update(&self.buffer);
        Ok(())
    }

    /// Checks that all bytes were read and that the checksum is right.
    pub fn finish(self) -> Result<()> {
        if self.left() != 0 {
            return Err(Error::damaged(self.name.display(), "is longer than its contents"));
        }
        if self.hasher.finalize() != blake3::Hash::from(self.seal.checksum) {
            return Err(Error::damaged(self.name.display(), "checksum"));
        }
        Ok(())
    }
}
