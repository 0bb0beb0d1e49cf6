//! Files that are written from front to back and believed only as a whole.
//!
//! Length and BLAKE3 of such a file stand in the checkpoint that refers to it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::DiskFile;

/// What is written or read in one call.
const PIECE_BYTES: usize = 64 << 10;

/// What a sealed file must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seal {
    /// Length in bytes.
    pub len: u64,
    /// BLAKE3 of all its bytes.
    pub digest: [u8; 32],
}

impl Seal {
    /// Returns the seal of a file without bytes.
    pub fn empty() -> Self {
        Self { len: 0, digest: blake3::hash(&[]).into() }
    }
}

/// Writes a sealed file.
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
        Ok(Self { file, len: 0, hasher: blake3::Hasher::new(), buffer: Vec::with_capacity(PIECE_BYTES) })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE_BYTES { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        self.hasher.update(&self.buffer);
        self.file.write_at(self.len, &self.buffer)?;
        self.len += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Makes the file durable and returns its seal.
    pub fn finish(mut self) -> Result<Seal> {
        self.write_out()?;
        self.file.sync()?;
        Ok(Seal { len: self.len, digest: self.hasher.finalize().into() })
    }
}

/// Reads a sealed file. What was read is true only once [`SealedReader::finish`] has said so.
#[derive(Debug)]
pub struct SealedReader {
    file: Arc<dyn DiskFile>,
    name: PathBuf,
    seal: Seal,
    /// Bytes handed out.
    offset: u64,
    /// The piece that is being handed out, and how much of it has been.
    piece: Vec<u8>,
    taken: usize,
    hasher: blake3::Hasher,
}

impl SealedReader {
    /// Starts at the front; an error if the file's length is not the seal's. The name is for messages.
    pub fn open(file: Arc<dyn DiskFile>, name: PathBuf, seal: Seal) -> Result<Self> {
        if file.len()? != seal.len {
            return Err(Error::damaged(name.display(), "has another length than its checkpoint says"));
        }
        Ok(Self { file, name, seal, offset: 0, piece: Vec::new(), taken: 0, hasher: blake3::Hasher::new() })
    }

    /// Returns how many bytes are left.
    pub fn left(&self) -> u64 {
        self.seal.len - self.offset
    }

    /// Fills the buffer with the next bytes; an error if the file has fewer.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<()> {
        if self.left() < buffer.len() as u64 {
            return Err(Error::damaged(self.name.display(), "ends early"));
        }
        let mut rest = buffer;
        while !rest.is_empty() {
            if self.taken == self.piece.len() {
                self.read_piece()?;
            }
            let ready = self.piece.get(self.taken..).unwrap_or_default();
            let count = ready.len().min(rest.len());
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(ready.get(..count).unwrap_or_default());
            self.taken += count;
            self.offset += count as u64;
            rest = later;
        }
        Ok(())
    }

    /// Reads ahead: records are as short as a cache line, and a call for each would take longer than all else.
    fn read_piece(&mut self) -> Result<()> {
        let len = usize::try_from(self.left()).unwrap_or(usize::MAX).min(PIECE_BYTES);
        self.piece.resize(len, 0);
        self.taken = 0;
        self.file.read_at(self.offset, &mut self.piece)?;
        self.hasher.update(&self.piece);
        Ok(())
    }

    /// Checks that everything was read and is what was sealed.
    pub fn finish(self) -> Result<()> {
        if self.left() != 0 {
            return Err(Error::damaged(self.name.display(), "is longer than its contents"));
        }
        if self.hasher.finalize() != blake3::Hash::from(self.seal.digest) {
            return Err(Error::damaged(self.name.display(), "checksum"));
        }
        Ok(())
    }
}
