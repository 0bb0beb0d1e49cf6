//! The references of a version, in the order of its stream, in a file: 16 bytes each.

use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Bytes of a record: container, length, bytes of the fingerprint.
const RECORD_BYTES: usize = 16;
const BUFFER_BYTES: usize = 256 << 10;

/// A reference of a version to a chunk in a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Referred {
    /// The container.
    pub container: u32,
    /// Bytes of the chunk.
    pub len: u32,
    /// Eight bytes of its fingerprint.
    pub fingerprint: u64,
}

/// Writes the references of a version.
#[derive(Debug)]
pub struct ReferencesWriter {
    path: PathBuf,
    file: BufWriter<File>,
}

impl ReferencesWriter {
    /// Creates a file.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create_new(path).with_context(|| path.display().to_string())?;
        Ok(Self { path: path.to_path_buf(), file: BufWriter::with_capacity(BUFFER_BYTES, file) })
    }

    /// Appends a reference.
    pub fn push(&mut self, referred: Referred) -> Result<()> {
        let mut record = [0; RECORD_BYTES];
        record[..4].copy_from_slice(&referred.container.to_le_bytes());
        record[4..8].copy_from_slice(&referred.len.to_le_bytes());
        record[8..].copy_from_slice(&referred.fingerprint.to_le_bytes());
        self.file.write_all(&record).with_context(|| self.path.display().to_string())
    }

    /// Writes the rest; returns the path.
    pub fn finish(mut self) -> Result<PathBuf> {
        self.file.flush().with_context(|| self.path.display().to_string())?;
        Ok(self.path)
    }
}

/// Reads the references of a file, in their order.
pub fn read(path: &Path) -> Result<impl Iterator<Item = Result<Referred>>> {
    let context = |path: &Path| path.display().to_string();
    let mut file = BufReader::with_capacity(BUFFER_BYTES, File::open(path).with_context(|| context(path))?);
    let path = path.to_path_buf();
    Ok(std::iter::from_fn(move || {
        let mut record = [0; RECORD_BYTES];
        match file.read_exact(&mut record) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return None,
            Err(error) => return Some(Err(error).with_context(|| context(&path))),
        }
        let ([container, len, ..], _) = record.as_chunks::<4>() else { return None };
        let [_, fingerprint] = record.as_chunks::<8>().0 else { return None };
        Some(Ok(Referred {
            container: u32::from_le_bytes(*container),
            len: u32::from_le_bytes(*len),
            fingerprint: u64::from_le_bytes(*fingerprint),
        }))
    }))
}
