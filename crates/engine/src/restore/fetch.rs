//! Fetching chunks: each region that a window of references needs is read once, several at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::codec::{Reader, put_container_id};
use crate::compress::Compressor;
use crate::container::ContainerReader;
use crate::container::reader::ChunkPlace;
use crate::error::{Error, Result};
use crate::io::{AlignedBuffer, BatchRead};
use crate::object::names::{ContainerKind, ContainerName};
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{Lane, Work};
use crate::spill::SpillMap;
use crate::store::Store;
use crate::store::containers::{DIRECTORY_BATCH, Listing};
use crate::store::directories::Directories;
use crate::store::lru::Lru;
use crate::store::metadata::Scratch;
use crate::types::{ChunkKind, ContainerId, Fingerprint};

/// Takes a chunk's bytes. Called from worker threads, in any order.
pub trait Sink: Send + Sync {
    /// Takes the bytes of the wanted chunk with this number.
    fn take(&self, number: usize, bytes: &[u8]) -> Result<()>;
}

/// A chunk that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// Its length.
    pub len: u32,
    /// Where it probably is.
    pub hint: Option<ContainerId>,
}

/// Regions read from disk in one batch.
const READ_BATCH: usize = 8;

/// Fetches data chunks.
pub struct Fetcher {
    store: Store,
    containers: Arc<Listing>,
    directories: Directories,
    regions: Lru<RegionKey, Arc<Vec<u8>>>,
    lane: Lane<OpenRegion>,
    scratch: Scratch,
    /// Where all chunks are, learned from all directories once a hint has failed.
    everywhere: Option<SpillMap>,
    locations_bytes: usize,
    /// Regions read from disk.
    pub regions_read: u64,
}

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher").field("regions_read", &self.regions_read).finish_non_exhaustive()
    }
}

/// A region, by its container and number.
type RegionKey = (ContainerId, u32);
/// What is wanted of a region: number, name and place of each chunk.
type WantedOfRegion = Vec<(usize, Fingerprint, ChunkPlace)>;

/// Where the bytes of a region come from.
enum Source {
    /// As stored.
    Sealed(AlignedBuffer),
    /// From the cache.
    Plain(Arc<Vec<u8>>),
}

/// A region to be opened, and what of it goes where.
struct RegionJob {
    container: Arc<ContainerReader>,
    region: u32,
    source: Source,
    wanted: WantedOfRegion,
    sink: Arc<dyn Sink>,
}

struct RegionDone {
    key: RegionKey,
    plain: Option<Arc<Vec<u8>>>,
    failed: Vec<(usize, Error)>,
}

/// Opens regions, checks every chunk that is wanted, and hands it on.
struct OpenRegion {
    store: Store,
    compressors: Mutex<Vec<Compressor>>,
}

impl Work for OpenRegion {
    type In = RegionJob;
    type Out = RegionDone;

    fn run(&self, job: RegionJob) -> RegionDone {
        let key = (job.container.name.id, job.region);
        let plain = match job.source {
            Source::Plain(plain) => Ok(plain),
            Source::Sealed(mut sealed) => {
                let free = self.compressors.lock().ok().and_then(|mut free| free.pop());
                let mut compressor = free.unwrap_or_default();
                let mut plain = Vec::new();
                let opened = job.container.open_region(job.region, &mut sealed, &mut compressor, &mut plain);
                if let Ok(mut free) = self.compressors.lock() {
                    free.push(compressor);
                }
                opened.map(|()| Arc::new(plain))
            }
        };
        let plain = match plain {
            Ok(plain) => plain,
            Err(error) => {
                let text = error.to_string();
                let failed = job.wanted.iter().map(|(number, ..)| (*number, Error::invalid(&text))).collect();
                return RegionDone { key, plain: None, failed };
            }
        };
        let mut failed = Vec::new();
        for (number, fingerprint, place) in job.wanted {
            let start = place.offset as usize;
            let bytes = plain.get(start..start.saturating_add(place.len as usize)).unwrap_or_default();
            let taken = if self.store.keys.fingerprint(ChunkKind::Data, bytes) == fingerprint {
                job.sink.take(number, bytes)
            } else {
                let object = job.container.name.path().display().to_string();
                Err(Error::damaged(object, format!("chunk {fingerprint} is not what its name says")))
            };
            if let Err(error) = taken {
                failed.push((number, error));
            }
        }
        RegionDone { key, plain: Some(plain), failed }
    }
}

impl Fetcher {
    /// Prepares to fetch from the listed containers within `memory_bytes`.
    pub fn new(
        store: &Store,
        containers: Arc<Listing>,
        scratch: &Scratch,
        driver: &Driver,
        memory_bytes: usize,
    ) -> Self {
        let region_bytes = store.config.region_bytes_limit() as usize;
        // A region under way is held sealed and open.
        let depth = (memory_bytes / 4 / (2 * region_bytes)).clamp(2, 64);
        let work = OpenRegion { store: store.clone(), compressors: Mutex::default() };
        Self {
            store: store.clone(),
            directories: Directories::new(store, &containers, memory_bytes / 4),
            containers,
            regions: Lru::new(memory_bytes / 4),
            lane: driver.lane(work, Pool::Compute, depth),
            scratch: scratch.clone(),
            everywhere: None,
            locations_bytes: memory_bytes / 8,
            regions_read: 0,
        }
    }

    /// Fetches a window of chunks and hands each to the sink. Returns those that could not be had, by number.
    pub fn fetch(&mut self, wanted: &[Wanted], sink: &Arc<dyn Sink>) -> Result<Vec<(usize, Error)>> {
        let mut failed = Vec::new();
        let mut regions: BTreeMap<RegionKey, WantedOfRegion> = BTreeMap::new();
        self.open_hinted(wanted);
        for (number, chunk) in wanted.iter().enumerate() {
            match self.locate(chunk) {
                Ok((container, place)) => {
                    let key = (container.name.id, place.region);
                    regions.entry(key).or_default().push((number, chunk.fingerprint, place));
                }
                Err(error) => failed.push((number, error)),
            }
        }
        let mut batch = Vec::with_capacity(READ_BATCH);
        for (key, wanted) in regions {
            if let Some(plain) = self.regions.get(&key) {
                let container = self.directories.get(key.0)?;
                let job = RegionJob {
                    container,
                    region: key.1,
                    source: Source::Plain(plain),
                    wanted,
                    sink: Arc::clone(sink),
                };
                self.submit(job, &mut failed);
                continue;
            }
            batch.push((key, wanted));
            if batch.len() == READ_BATCH {
                self.read(&mut batch, sink, &mut failed);
            }
        }
        self.read(&mut batch, sink, &mut failed);
        while let Some(done) = self.lane.pop() {
            self.finish(done, &mut failed);
        }
        failed.sort_unstable_by_key(|(number, _)| *number);
        Ok(failed)
    }

    fn submit(&mut self, job: RegionJob, failed: &mut Vec<(usize, Error)>) {
        if self.lane.is_full()
            && let Some(done) = self.lane.pop()
        {
            self.finish(done, failed);
        }
        self.lane.push(job);
    }

    fn finish(&mut self, done: RegionDone, failed: &mut Vec<(usize, Error)>) {
        if let Some(plain) = done.plain {
            let bytes = plain.len();
            self.regions.insert(done.key, plain, bytes);
        }
        failed.extend(done.failed);
    }

    fn read(
        &mut self,
        batch: &mut Vec<(RegionKey, WantedOfRegion)>,
        sink: &Arc<dyn Sink>,
        failed: &mut Vec<(usize, Error)>,
    ) {
        let mut reads = Vec::with_capacity(batch.len());
        let mut jobs = Vec::with_capacity(batch.len());
        for ((id, region), wanted) in batch.drain(..) {
            match self.prepare(id, region) {
                Ok((container, read)) => {
                    reads.push(read);
                    jobs.push((container, region, wanted));
                }
                Err(error) => fail_all(&wanted, &error, failed),
            }
        }
        self.store.disk.read_batch(&mut reads);
        self.regions_read += reads.len() as u64;
        for ((container, region, wanted), read) in jobs.into_iter().zip(reads) {
            match read.outcome {
                Ok(()) => {
                    let source = Source::Sealed(read.buffer);
                    self.submit(RegionJob { container, region, source, wanted, sink: Arc::clone(sink) }, failed);
                }
                Err(error) => fail_all(&wanted, &error, failed),
            }
        }
    }

    fn prepare(&mut self, id: ContainerId, region: u32) -> Result<(Arc<ContainerReader>, BatchRead)> {
        let container = self.directories.get(id)?;
        let object = || container.name.path().display().to_string();
        let (offset, len) =
            container.region_range(region).ok_or_else(|| Error::damaged(object(), "region that does not exist"))?;
        let file = self.store.open_file(&container.name)?;
        let buffer = AlignedBuffer::new_zeroed(len as usize);
        Ok((container, BatchRead { file, offset, buffer, outcome: Ok(()) }))
    }

    /// Opens the containers that a window's hints name, together.
    fn open_hinted(&mut self, wanted: &[Wanted]) {
        let hinted: BTreeSet<ContainerId> = wanted.iter().filter_map(|chunk| chunk.hint).collect();
        let missing: Vec<ContainerName> = hinted
            .iter()
            .filter(|id| !self.directories.holds(**id))
            .filter_map(|id| self.containers.find(*id))
            .copied()
            .collect();
        for names in missing.chunks(DIRECTORY_BATCH) {
            // One that cannot be opened shows when its chunks are looked for.
            for container in self.store.open_containers(names).into_iter().flatten() {
                self.directories.insert(container);
            }
        }
    }

    /// Finds a chunk: where its hint says, else wherever it is.
    fn locate(&mut self, chunk: &Wanted) -> Result<(Arc<ContainerReader>, ChunkPlace)> {
        let fits = |place: &ChunkPlace| place.len == chunk.len;
        let hinted = chunk.hint.and_then(|id| self.directories.get(id).ok());
        if let Some(container) = hinted
            && let Some(place) = container.find(&chunk.fingerprint).filter(fits)
        {
            return Ok((container, place));
        }
        let missing = || Error::MissingChunk { fingerprint: chunk.fingerprint.to_string() };
        let id = self.look_everywhere(&chunk.fingerprint)?.ok_or_else(missing)?;
        let container = self.directories.get(id)?;
        let place = container.find(&chunk.fingerprint).filter(fits).ok_or_else(missing)?;
        Ok((container, place))
    }

    fn look_everywhere(&mut self, fingerprint: &Fingerprint) -> Result<Option<ContainerId>> {
        if self.everywhere.is_none() {
            self.everywhere = Some(self.learn_everywhere()?);
        }
        let Some(everywhere) = &mut self.everywhere else { return Ok(None) };
        let Some(location) = everywhere.get(&fingerprint.0)? else { return Ok(None) };
        let id = Reader::new(&location).container_id().map_err(|error| error.of("spilled locations"))?;
        Ok(Some(id))
    }

    fn learn_everywhere(&self) -> Result<SpillMap> {
        let host = Arc::clone(&self.store.host);
        let (disk, dir) = (self.scratch.disk.clone(), self.scratch.dir.clone());
        let mut map = SpillMap::new(disk, dir, host, "locations of chunks", self.locations_bytes)?;
        let data: Vec<ContainerName> =
            self.containers.containers.iter().filter(|name| name.kind == ContainerKind::Data).copied().collect();
        for names in data.chunks(DIRECTORY_BATCH) {
            for container in self.store.open_containers(names).into_iter().flatten() {
                let mut location = Vec::new();
                put_container_id(&mut location, container.name.id);
                for fingerprint in container.directory.chunks.iter().filter_map(|chunk| chunk.fingerprint) {
                    map.insert(fingerprint.0, &location)?;
                }
            }
        }
        Ok(map)
    }
}

fn fail_all(wanted: &[(usize, Fingerprint, ChunkPlace)], error: &Error, failed: &mut Vec<(usize, Error)>) {
    let text = error.to_string();
    failed.extend(wanted.iter().map(|(number, ..)| (*number, Error::invalid(&text))));
}
