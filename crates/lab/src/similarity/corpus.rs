//! Versions of real data after exact deduplication: the distinct chunks in the order of the stream, and where each version has them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_engine::Error;
use onefold_engine::backup::Budget;
use onefold_engine::backup::record::{RecordOptions, Recorded, record};
use onefold_engine::io::os_source::OsSource;
use onefold_engine::io::tree::SourceTree;
use onefold_engine::monitor::Monitor;
use onefold_engine::pipeline::Driver;
use onefold_engine::source::exclude::Excludes;
use onefold_engine::types::{Chunk, Fingerprint};

use crate::chunkers::Chunker;
use crate::record::Hash;

/// Memory of a distinct chunk: its place in the scratch file, and its entry in a map that is at most 7/8 full, and at least half of that.
const CHUNK_BYTES: usize = size_of::<Extent>() + (size_of::<(Fingerprint, u32)>() + 1) * 16 / 7;
/// Memory of a reference.
const REFERENCE_BYTES: usize = 4;

/// Bytes in a scratch file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// One version.
#[derive(Debug)]
pub(super) struct Version {
    /// Numbers of its chunks, in the order of the stream.
    pub(super) chunks: Vec<u32>,
    /// Bytes of them, repetitions included.
    pub(super) bytes: u64,
}

/// All versions.
#[derive(Debug)]
pub(super) struct Corpus {
    file: File,
    pub(super) chunks: Vec<Extent>,
    pub(super) versions: Vec<Version>,
    /// Files and directories that could not be read.
    pub(super) failures: u64,
}

/// How versions are read.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    pub(super) paths: &'a [PathBuf],
    pub(super) excludes: &'a Arc<Excludes>,
    pub(super) chunker: Chunker,
    pub(super) driver: &'a Driver,
    pub(super) budget: Budget,
    pub(super) scratch: &'a Path,
    pub(super) memory_bytes: usize,
}

impl Corpus {
    /// Reads and cuts each path as a backup does, and writes the distinct chunks to a temporary file.
    pub(super) fn read(reading: &Reading<'_>, monitor: &dyn Monitor) -> Result<Self> {
        let source: Arc<dyn SourceTree> = Arc::new(OsSource::new());
        reading.paths.iter().try_for_each(|path| source.metadata(path).map(drop))?;
        let mut gathering = Gathering::in_directory(reading.scratch)?;
        let mut failures = 0;
        for path in reading.paths {
            gathering.versions.push(Version { chunks: Vec::new(), bytes: 0 });
            let options = RecordOptions {
                roots: vec![path.clone()],
                excludes: Arc::clone(reading.excludes),
                rule: reading.chunker.rule(Arc::new(Hash::Blake3)),
                budget: reading.budget,
                accelerator: None,
            };
            // The error of the scratch file, for which the engine has no variant.
            let mut unwritten = None;
            let recorded = record(&source, options, reading.driver, monitor, &mut |recorded| {
                let Recorded::Chunk(chunk, bytes) = recorded else { return Ok(()) };
                gathering.push(chunk, bytes, reading.memory_bytes).map_err(|error| {
                    unwritten = Some(error);
                    Error::Interrupted
                })
            });
            match (recorded, unwritten) {
                (_, Some(error)) => return Err(error),
                (recorded, None) => failures += recorded?,
            }
        }
        let Gathering { file, chunks, versions, .. } = gathering;
        let file = file.into_inner().context("write the temporary file of chunks")?;
        Ok(Self { file, chunks, versions, failures })
    }

    /// Appends the bytes of a chunk.
    pub(super) fn append(&self, chunk: u32, out: &mut Vec<u8>) -> Result<()> {
        let extent = self.extent(chunk);
        let start = out.len();
        out.resize(start + extent.len as usize, 0);
        let buffer = out.get_mut(start..).unwrap_or_default();
        self.file.read_exact_at(buffer, extent.offset).context("read the temporary file of chunks")
    }

    pub(super) fn extent(&self, chunk: u32) -> Extent {
        self.chunks.get(chunk as usize).copied().expect("chunks have numbers below their count")
    }

    /// Returns the bytes of all versions.
    pub(super) fn logical_bytes(&self) -> u64 {
        self.versions.iter().map(|version| version.bytes).sum()
    }

    /// Returns the bytes of the distinct chunks.
    pub(super) fn unique_bytes(&self) -> u64 {
        self.chunks.iter().map(|extent| u64::from(extent.len)).sum()
    }
}

/// Chunks as they come.
struct Gathering {
    file: BufWriter<File>,
    end: u64,
    numbers: HashMap<Fingerprint, u32>,
    chunks: Vec<Extent>,
    versions: Vec<Version>,
    references: usize,
}

impl Gathering {
    fn in_directory(scratch: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(scratch).with_context(|| format!("create a file in {}", scratch.display()))?;
        let (numbers, chunks, versions) = (HashMap::new(), Vec::new(), Vec::new());
        Ok(Self { file: BufWriter::new(file), end: 0, numbers, chunks, versions, references: 0 })
    }

    fn push(&mut self, chunk: Chunk, bytes: &[u8], memory_bytes: usize) -> Result<()> {
        let next = u32::try_from(self.chunks.len()).context("more than 2^32 chunks")?;
        let number = match self.numbers.entry(chunk.fingerprint) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                entry.insert(next);
                self.chunks.push(Extent { offset: self.end, len: chunk.len });
                self.end += u64::from(chunk.len);
                self.file.write_all(bytes).context("write the temporary file of chunks")?;
                next
            }
        };
        self.references += 1;
        if let Some(version) = self.versions.last_mut() {
            version.chunks.push(number);
            version.bytes += u64::from(chunk.len);
        }
        let taken = self.chunks.len() * CHUNK_BYTES + self.references * REFERENCE_BYTES;
        ensure!(
            taken <= memory_bytes / 2,
            "{} chunks take more than half of the memory budget: give fewer versions, or more with --memory",
            self.chunks.len()
        );
        Ok(())
    }
}
