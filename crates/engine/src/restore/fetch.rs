//! Fetching chunks: each region that a window of references needs is read once, several at a time.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::codec::{Reader, put_container_id};
use crate::compress::Compressor;
use crate::container::ContainerReader;
use crate::container::reader::ChunkPlace;
use crate::error::{Error, Result};
use crate::fingerprint::fingerprint_batch;
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
use crate::types::{ContainerId, Fingerprint};

/// Takes the chunks of a window.
pub trait Sink: Send + Sync {
    /// Takes chunks of one region: each by its number in the window, ascending, and the place of its bytes in `plain`.
    /// Returns those that could not be taken. Called from worker threads, in any order.
    fn take(&self, plain: &[u8], chunks: &[(usize, Range<usize>)]) -> Vec<(usize, Error)>;
    /// Takes note of a chunk that could not be had, or not be taken. Called from the thread that fetches.
    fn lose(&self, number: usize, error: Error);
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
    sink: Arc<dyn Sink>,
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
                return RegionDone { key, plain: None, failed, sink: job.sink };
            }
        };
        let ranges =
            |place: &ChunkPlace| place.offset as usize..(place.offset as usize).saturating_add(place.len as usize);
        let bytes_of = |place: &ChunkPlace| plain.get(ranges(place)).unwrap_or_default();
        let mut found = Vec::with_capacity(job.wanted.len());
        fingerprint_batch(&self.store.keys, job.wanted.iter().map(|(_, _, place)| bytes_of(place)), &mut found);
        let mut failed = Vec::new();
        let mut sound = Vec::with_capacity(job.wanted.len());
        for ((number, fingerprint, place), found) in job.wanted.into_iter().zip(found) {
            if found == fingerprint {
                sound.push((number, ranges(&place)));
            } else {
                let object = job.container.name.path().display().to_string();
                failed.push((number, Error::damaged(object, format!("chunk {fingerprint} is not what its name says"))));
            }
        }
        failed.extend(job.sink.take(&plain, &sound));
        RegionDone { key, plain: Some(plain), failed, sink: job.sink }
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

    /// Starts to fetch a window of chunks and hands each to the sink, now or later: regions of the window may still be
    /// under way when this returns, so that workers have something to do while the next window is put together.
    pub fn fetch(&mut self, wanted: &[Wanted], sink: &Arc<dyn Sink>) -> Result<()> {
        let mut places: Vec<(RegionKey, usize, ChunkPlace)> = Vec::with_capacity(wanted.len());
        self.open_hinted(wanted);
        let mut last = None;
        for (number, chunk) in wanted.iter().enumerate() {
            match self.locate(chunk, &mut last) {
                Ok((id, place)) => places.push(((id, place.region), number, place)),
                Err(error) => sink.lose(number, error),
            }
        }
        places.sort_unstable_by_key(|(key, number, _)| (*key, *number));
        let mut batch = Vec::with_capacity(READ_BATCH);
        for of_region in places.chunk_by(|(before, ..), (after, ..)| before == after) {
            let Some((key, ..)) = of_region.first().copied() else { continue };
            let named = |number: usize| wanted.get(number).map_or(Fingerprint([0; 32]), |chunk| chunk.fingerprint);
            let wanted: WantedOfRegion =
                of_region.iter().map(|(_, number, place)| (*number, named(*number), *place)).collect();
            if let Some(plain) = self.regions.get(&key) {
                let container = self.directories.get(key.0)?;
                let source = Source::Plain(plain);
                self.submit(RegionJob { container, region: key.1, source, wanted, sink: Arc::clone(sink) });
                continue;
            }
            batch.push((key, wanted));
            if batch.len() == READ_BATCH {
                self.read(&mut batch, sink);
            }
        }
        self.read(&mut batch, sink);
        Ok(())
    }

    /// Waits for everything under way.
    pub fn finish(&mut self) {
        while let Some(done) = self.lane.pop() {
            self.take_done(done);
        }
    }

    fn submit(&mut self, job: RegionJob) {
        if self.lane.is_full()
            && let Some(done) = self.lane.pop()
        {
            self.take_done(done);
        }
        self.lane.push(job);
    }

    fn take_done(&mut self, done: RegionDone) {
        if let Some(plain) = done.plain {
            let bytes = plain.capacity();
            self.regions.insert(done.key, plain, bytes);
        }
        done.failed.into_iter().for_each(|(number, error)| done.sink.lose(number, error));
    }

    fn read(&mut self, batch: &mut Vec<(RegionKey, WantedOfRegion)>, sink: &Arc<dyn Sink>) {
        let mut reads = Vec::with_capacity(batch.len());
        let mut jobs = Vec::with_capacity(batch.len());
        for ((id, region), wanted) in batch.drain(..) {
            match self.prepare(id, region) {
                Ok((container, read)) => {
                    reads.push(read);
                    jobs.push((container, region, wanted));
                }
                Err(error) => lose_all(&wanted, &error, &**sink),
            }
        }
        self.store.disk.read_batch(&mut reads);
        self.regions_read += reads.len() as u64;
        for ((container, region, wanted), read) in jobs.into_iter().zip(reads) {
            match read.outcome {
                Ok(()) => {
                    let source = Source::Sealed(read.buffer);
                    self.submit(RegionJob { container, region, source, wanted, sink: Arc::clone(sink) });
                }
                Err(error) => lose_all(&wanted, &error, &**sink),
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

    /// Finds a chunk: where its hint says, else wherever it is. `last` is the container that the chunk before was in.
    fn locate(&mut self, chunk: &Wanted, last: &mut Option<Arc<ContainerReader>>) -> Result<(ContainerId, ChunkPlace)> {
        let fits = |place: &ChunkPlace| place.len == chunk.len;
        if let Some(id) = chunk.hint
            && last.as_ref().is_none_or(|last| last.name.id != id)
        {
            *last = self.directories.get(id).ok();
        }
        let hinted = last.as_ref().filter(|last| chunk.hint == Some(last.name.id));
        if let Some(container) = hinted
            && let Some(place) = container.find(&chunk.fingerprint).filter(fits)
        {
            return Ok((container.name.id, place));
        }
        let missing = || Error::MissingChunk { fingerprint: chunk.fingerprint.to_string() };
        let id = self.look_everywhere(&chunk.fingerprint)?.ok_or_else(missing)?;
        let container = self.directories.get(id)?;
        let place = container.find(&chunk.fingerprint).filter(fits).ok_or_else(missing)?;
        Ok((id, place))
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

fn lose_all(wanted: &[(usize, Fingerprint, ChunkPlace)], error: &Error, sink: &dyn Sink) {
    let text = error.to_string();
    for (number, ..) in wanted {
        sink.lose(*number, Error::invalid(&text));
    }
}
