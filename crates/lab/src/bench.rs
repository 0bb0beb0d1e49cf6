//! The engine's index on a real disk, under a stream whose truth is known.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use onefold_engine::identify::{Counters, Identifier, Index, IndexOptions, IndexState};
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::types::{ContainerId, RepositoryId};

use crate::replay::{MadeUp, Outcome, Replay};
use crate::sim::containers::ContainerRule;
use crate::sim::{Repository, container};
use crate::stream::Stream;

/// Nominal length of chunks.
const CHUNK_BYTES: u32 = 4096;
/// Bytes of chunks that are recorded together.
const CONTAINER_BYTES: u64 = 4 << 20;

const REPOSITORY: RepositoryId = RepositoryId([9; 16]);

/// Opens the index in the directory `index` of a disk, which knows these containers or is not there.
pub fn open_index(
    disk: Arc<dyn Disk>,
    host: Arc<dyn Host>,
    options: &IndexOptions,
    live: &[ContainerId],
) -> Result<Index> {
    disk.create_dir(Path::new(""))?;
    let directory = disk.display(Path::new(""));
    let (mut index, state) = Index::open(disk, host, Path::new("index"), REPOSITORY, options)?;
    let fits = match state {
        IndexState::New => live.is_empty(),
        IndexState::Clean | IndexState::Unclean => !live.is_empty(),
        IndexState::Incomplete(_) | IndexState::Rebuilt(_) => false,
    };
    ensure!(fits, "the index in {directory} was found {state:?}");
    ensure!(index.attach(live)?.is_empty(), "the index in {directory} misses containers");
    Ok(index)
}

/// An index under test.
#[derive(Debug)]
pub struct Bench(Replay<Index>);

impl Bench {
    /// Opens the index in a directory, which holds one of `containers` containers or none.
    pub fn open(dir: &Path, options: &IndexOptions, containers: u32) -> Result<Self> {
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(dir.to_path_buf()));
        let host: Arc<dyn Host> = Arc::new(OsHost::new());
        let live: Vec<_> = (0..containers).map(container).collect();
        let index = open_index(disk, Arc::clone(&host), options, &live)?;
        let repository = Repository::starting_after(ContainerRule::of_bytes(CONTAINER_BYTES), containers);
        Ok(Self(Replay::new(index, host, repository)))
    }

    /// Submits `chunks` chunks of a stream; with `drains`, until none is pending. Fails if a chunk was declared unique again.
    pub fn advance(&mut self, stream: &mut Stream, chunks: u64, drains: bool) -> Result<Outcome> {
        let outcome = self.0.advance(&mut MadeUp { stream, len: CHUNK_BYTES }, chunks, drains)?;
        let degraded = self.0.identifier().degraded();
        ensure!(degraded.is_none(), "the index is degraded: {degraded:?}");
        ensure!(self.0.stored_again == 0, "{} chunks were declared unique a second time", self.0.stored_again);
        Ok(outcome)
    }

    /// Returns what the index has counted.
    pub fn index_counters(&self) -> Counters {
        self.0.identifier().counters()
    }

    /// Returns the index.
    pub fn index(&self) -> &Index {
        self.0.identifier()
    }

    /// Records the rest and closes the index; returns how many containers there are.
    pub fn close(self) -> Result<u32> {
        let (index, repository) = self.0.finish()?;
        index.close()?;
        Ok(repository.containers.next_number())
    }
}
