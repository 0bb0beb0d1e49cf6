//! Traces of real data: it is read, cut and named as by a backup.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use clap::ValueEnum;
use onefold_accel::device::NameHash;
use onefold_engine::Error;
use onefold_engine::accelerator::Accelerator;
use onefold_engine::backup::Budget;
use onefold_engine::backup::ingest::ChunkRule;
use onefold_engine::backup::record::{RecordOptions, Recorded, record};
use onefold_engine::fingerprint::Fingerprinter;
use onefold_engine::io::os_source::OsSource;
use onefold_engine::io::tree::SourceTree;
use onefold_engine::monitor::Monitor;
use onefold_engine::pipeline::Driver;
use onefold_engine::source::exclude::Excludes;
use onefold_engine::store::Store;
use onefold_engine::types::{Chunk, Fingerprint};
use sha2::digest::Digest;

use crate::chunkers::Chunker;
use crate::trace::block::{NAME_LEN_MAX, Totals};
use crate::trace::file;
use crate::trace::{Event, HASH_LEN, TraceChunk};

/// Hash that names chunks, cut to 160 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Hash {
    /// BLAKE3.
    Blake3,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
}

impl Fingerprinter for Hash {
    fn name(&self, chunks: &[&[u8]]) -> Vec<Fingerprint> {
        let one = |chunk: &&[u8]| {
            let mut bytes = [0; 32];
            match self {
                Self::Sha1 => bytes[..20].copy_from_slice(&sha1::Sha1::digest(chunk)),
                Self::Sha256 => bytes.copy_from_slice(&sha2::Sha256::digest(chunk)),
                Self::Blake3 => bytes = *blake3::hash(chunk).as_bytes(),
            }
            Fingerprint(bytes)
        };
        chunks.iter().map(one).collect()
    }

    /// The kernel of BLAKE3 always has a key.
    fn on_device(&self) -> Option<NameHash> {
        match self {
            Self::Blake3 => None,
            Self::Sha1 => Some(NameHash::Sha1),
            Self::Sha256 => Some(NameHash::Sha256),
        }
    }
}

/// Settings that turn data into chunks.
#[derive(Clone, Debug)]
pub enum Rule {
    /// As in a repository: its keys and its chunking.
    OfRepository(Store),
    /// With no secret.
    Open(Chunker, Hash),
}

impl Rule {
    fn chunk_rule(&self) -> ChunkRule {
        match self {
            Self::OfRepository(store) => {
                let fingerprinter: Arc<dyn Fingerprinter> = Arc::<onefold_engine::crypto::Keys>::clone(&store.keys);
                ChunkRule::new(store.config.chunking, store.keys.chunk(), fingerprinter)
            }
            Self::Open(chunker, hash) => chunker.rule(Arc::new(*hash)),
        }
    }
}

/// Records paths, each as a version, into a trace. Returns how much there was, and how many things could not be read, of
/// which the monitor learned.
pub fn record_paths(
    trace: &Path,
    description: &str,
    paths: &[PathBuf],
    excludes: &Arc<Excludes>,
    rule: &Rule,
    (driver, budget, accelerator): (&Driver, Budget, Option<&Accelerator>),
    monitor: &dyn Monitor,
) -> Result<(Totals, u64)> {
    let source: Arc<dyn SourceTree> = Arc::new(OsSource::new());
    // A path that does not exist would be a version without anything: that is no trace that anybody wants.
    paths.iter().try_for_each(|path| source.metadata(path).map(drop))?;
    let mut failures = 0;
    let totals = file::write_with(trace, description, |writer| {
        for (version, path) in (0..).zip(paths) {
            let options = RecordOptions {
                roots: vec![path.clone()],
                excludes: Arc::clone(excludes),
                rule: rule.chunk_rule(),
                budget,
                accelerator: accelerator.cloned(),
            };
            // The error of the trace, for which the engine has no variant.
            let mut unwritten = None;
            let recorded = record(&source, options, driver, monitor, &mut |recorded| {
                let event = match recorded {
                    Recorded::Begin(path) => {
                        let name = path.as_os_str().as_bytes();
                        Event::Begin { name: name.get(..NAME_LEN_MAX).unwrap_or(name).to_vec(), version }
                    }
                    Recorded::Chunk(Chunk { fingerprint, len }, _) => {
                        let hash = *fingerprint.0.first_chunk::<HASH_LEN>().expect("fingerprints are longer");
                        Event::Chunk(TraceChunk { hash, len })
                    }
                    Recorded::End => Event::End,
                };
                writer.push(&event).map_err(|error| {
                    unwritten = Some(error);
                    Error::Interrupted
                })
            });
            match (recorded, unwritten) {
                (_, Some(error)) => return Err(error),
                (recorded, None) => failures += recorded?,
            }
        }
        Ok(())
    })?;
    Ok((totals, failures))
}
