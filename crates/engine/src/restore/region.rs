//! The work on one region: read it, open it, verify the wanted chunks and hand them on.
//!
//! One worker reads, opens and checks a region and hands its chunks on, in buffers that it uses again: the bytes stay in the
//! cache of one core. The disk learns of regions a little before they are read.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::compress::Compressor;
use crate::container::ContainerReader;
use crate::container::reader::{ChunkPosition, OpenedRegion};
use crate::container::seal::Plaintext;
use crate::error::{Error, Result};
use crate::fingerprint::fingerprint_batch;
use crate::object::names::ContainerName;
use crate::pipeline::{BufferPool, Task};
use crate::restore::sink::{Failures, Sink};
use crate::store::Store;
use crate::store::base_reader::BaseReader;
use crate::store::recipe_cursor::HintedChunk;
use crate::types::{ContainerId, Fingerprint, RegionId};

/// Regions that the disk learns of before they are read.
const AHEAD_REGIONS: usize = 32;

/// A region, by its container and number.
pub(super) type RegionKey = (ContainerId, u32);

/// Chunks that are fetched together, and their receiver.
pub(super) struct Window {
    pub(super) wanted: Vec<HintedChunk>,
    pub(super) sink: Arc<dyn Sink>,
}

/// Position of a chunk of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    pub(super) key: RegionKey,
    /// Its number in the window.
    pub(super) number: usize,
    pub(super) position: ChunkPosition,
}

/// Origin of a region's bytes.
pub(super) enum Source {
    /// From the container, sealed, unless it was read as a base before.
    Stored,
    /// The same; it is kept among the bases, since other regions of the window depend on it.
    Base,
    /// From the cache.
    Held(Plaintext),
}

/// A region to be opened, and its wanted chunks.
pub(super) struct RegionJob {
    pub(super) window: Arc<Window>,
    /// Chunks of the window, sorted by region; those at `range` are of this one.
    pub(super) located: Arc<[Located]>,
    pub(super) range: Range<usize>,
    pub(super) container: Arc<ContainerReader>,
    pub(super) source: Source,
    /// True for the last job of the window.
    pub(super) is_last: bool,
}

impl RegionJob {
    fn chunks(&self) -> &[Located] {
        self.located.get(self.range.clone()).unwrap_or_default()
    }

    /// Returns the region's number; a job without chunks has none.
    fn region(&self) -> u32 {
        self.chunks().first().map_or(u32::MAX, |located| located.key.1)
    }
}

/// Outcome of a region.
pub(super) struct RegionDone {
    pub(super) window: Arc<Window>,
    pub(super) key: RegionKey,
    /// Its bytes, if more of it will probably be wanted.
    pub(super) plain: Option<Plaintext>,
    /// Bytes of it that were not in the cache before.
    pub(super) kept_bytes: usize,
    /// Chunks that could not be read from the container, by number.
    pub(super) lost: Failures,
    /// Chunks that were not taken, by number.
    pub(super) refused: Failures,
    pub(super) is_last: bool,
}

/// Buffers for opening a region, used again for the next.
#[derive(Default)]
struct Buffers {
    sealed: Vec<u8>,
    scratch: Vec<u8>,
    compressor: Compressor,
}

/// Opens regions, checks every chunk that is wanted, and hands it on.
#[derive(Clone)]
pub(super) struct OpenRegion {
    store: Store,
    /// Reads what regions were compressed against.
    bases: BaseReader,
    /// At most one for each thread.
    buffers: Arc<BufferPool<Buffers>>,
    ahead: Arc<Mutex<Ahead>>,
    /// Regions that were read, those aside that were read as bases.
    regions_read: Arc<AtomicU64>,
    /// Bytes of regions that were opened and not taken over by the cache yet, and the most of them.
    kept_bytes: Arc<AtomicUsize>,
    kept_bytes_max: usize,
}

/// Reads that were not made yet, in the order in which they will be.
#[derive(Default)]
struct Ahead {
    /// Those that the disk does not know of.
    unannounced: VecDeque<Read>,
    /// Number of the others.
    announced: usize,
}

struct Read {
    name: ContainerName,
    range: Range<u64>,
}

impl OpenRegion {
    /// Keeps at most so many bytes of opened regions for the cache.
    pub(crate) fn new(store: &Store, bases: BaseReader, kept_bytes_max: usize) -> Self {
        let (buffers, ahead, kept_bytes) = (Arc::default(), Arc::default(), Arc::default());
        let regions_read = Arc::default();
        Self { store: store.clone(), bases, buffers, ahead, regions_read, kept_bytes, kept_bytes_max }
    }

    /// Returns the number of regions that were read so far, as bases of others or by themselves.
    pub(super) fn regions_read(&self) -> u64 {
        self.regions_read.load(Ordering::Relaxed) + self.bases.counts().read
    }

    /// Keeps a region for the cache, unless too many wait for it already.
    fn keep(&self, opened: &OpenedRegion<'_>) -> Option<Plaintext> {
        let kept = keep_within(&self.kept_bytes, self.kept_bytes_max, opened.plain().len());
        kept.then(|| match opened {
            OpenedRegion::Own(plain) => Plaintext::new(plain.to_vec()),
            OpenedRegion::Shared(plain) => Plaintext::clone(plain),
        })
    }

    /// Hands kept bytes over to the cache.
    pub(super) fn release(&self, bytes: usize) {
        self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Announces a region that a job will read.
    pub(super) fn announce(&self, name: ContainerName, range: Range<u64>) {
        let Ok(mut ahead) = self.ahead.lock() else { return };
        ahead.unannounced.push_back(Read { name, range });
        let next = ahead.next();
        drop(ahead);
        self.advise(next);
    }

    fn advise(&self, read: Option<Read>) {
        if let Some(Read { name, range }) = read {
            self.store.objects.will_read(name.into(), range);
        }
    }

    /// Announces the next region, since one that was announced is read now.
    fn announce_next(&self) {
        if let Ok(mut ahead) = self.ahead.lock() {
            ahead.announced = ahead.announced.saturating_sub(1);
            let next = ahead.next();
            drop(ahead);
            self.advise(next);
        }
    }

    /// Reads a region.
    fn read(&self, job: &RegionJob, sealed: &mut Vec<u8>) -> Result<()> {
        let object = || job.container.name.to_string();
        let (offset, len) = job
            .container
            .region_range(job.region())
            .ok_or_else(|| Error::damaged(object(), "region that does not exist"))?;
        // Bytes that are there are overwritten, not set to zero first.
        sealed.resize(len as usize, 0);
        self.regions_read.fetch_add(1, Ordering::Relaxed);
        let name = job.container.name.into();
        relieved(job, || self.store.objects.read_exact(name, offset, sealed))
    }

    fn open<'a>(&self, job: &RegionJob, buffers: &'a mut Buffers) -> Result<OpenedRegion<'a>> {
        let (container, region) = (&job.container, job.region());
        match &job.source {
            Source::Held(plain) => Ok(OpenedRegion::Shared(Plaintext::clone(plain))),
            Source::Base => {
                self.announce_next();
                relieved(job, || self.bases.open_base(container, region)).map(OpenedRegion::Shared)
            }
            Source::Stored => {
                self.announce_next();
                // One that others of another window depend on.
                if let Some(plain) = self.bases.held(RegionId { container: container.name.id, region }) {
                    return Ok(OpenedRegion::Shared(plain));
                }
                let prefix = relieved(job, || self.bases.prefix_of(container, region))?;
                self.read(job, &mut buffers.sealed)?;
                let Buffers { sealed, scratch, compressor } = buffers;
                container.plaintext_of_region(region, &prefix, sealed, compressor, scratch).map(OpenedRegion::Own)
            }
        }
    }

    /// Hands on the chunks that match their fingerprints. Returns the others, and the chunks that the sink refused.
    fn check(&self, job: &RegionJob, plain: &[u8]) -> (Failures, Failures) {
        let range = |position: &ChunkPosition| {
            position.offset as usize..(position.offset as usize).saturating_add(position.len as usize)
        };
        let bytes_of = |located: &Located| plain.get(range(&located.position)).unwrap_or_default();
        let mut found: Vec<Fingerprint> = Vec::with_capacity(job.range.len());
        fingerprint_batch(&self.store.keys, job.chunks().iter().map(bytes_of), &mut found);
        let (mut sound, mut lost) = (Vec::with_capacity(job.range.len()), Vec::new());
        for (located, found) in job.chunks().iter().zip(found) {
            let wanted = job.window.wanted.get(located.number).map(|wanted| wanted.chunk.fingerprint);
            if wanted == Some(found) {
                sound.push((located.number, range(&located.position)));
            } else if let Some(wanted) = wanted {
                let error = Error::damaged(job.container.name, format!("chunk {wanted} is not what its name says"));
                lost.push((located.number, error));
            }
        }
        let refused = if sound.is_empty() { Vec::new() } else { job.window.sink.take(plain, &sound) };
        (lost, refused)
    }
}

/// Reads, and once more after files were closed if the process has too many open.
fn relieved<T>(job: &RegionJob, mut read: impl FnMut() -> Result<T>) -> Result<T> {
    match read() {
        Err(error) if error.is_out_of_handles() => {
            job.window.sink.relieve();
            read()
        }
        outcome => outcome,
    }
}

/// Counts bytes that are kept; returns false if they were too many.
fn keep_within(kept_bytes: &AtomicUsize, max: usize, len: usize) -> bool {
    let kept = kept_bytes.fetch_add(len, Ordering::Relaxed);
    let fits = kept.saturating_add(len) <= max;
    if !fits {
        kept_bytes.fetch_sub(len, Ordering::Relaxed);
    }
    fits
}

impl Task for OpenRegion {
    type In = RegionJob;
    type Out = RegionDone;

    fn run(&self, job: RegionJob) -> RegionDone {
        let mut buffers = self.buffers.take();
        let (mut plain_kept, mut kept_bytes, mut lost, mut refused) = (None, 0, Vec::new(), Vec::new());
        match self.open(&job, &mut buffers) {
            Ok(opened) => {
                (lost, refused) = self.check(&job, opened.plain());
                plain_kept = match &job.source {
                    Source::Held(held) => Some(Plaintext::clone(held)),
                    // What is wanted whole is seldom wanted again.
                    Source::Stored | Source::Base => {
                        let taken: usize = job.chunks().iter().map(|located| located.position.len as usize).sum();
                        let kept = if taken < opened.plain().len() { self.keep(&opened) } else { None };
                        kept_bytes = kept.as_ref().map_or(0, |kept| kept.len());
                        kept
                    }
                };
            }
            Err(error) => {
                let error = Error::RegionUnreadable { source: Box::new(error) };
                lost.extend(job.chunks().iter().map(|located| (located.number, error.clone())));
            }
        }
        self.buffers.put(buffers);
        let key = (job.container.name.id, job.region());
        RegionDone { window: job.window, key, plain: plain_kept, kept_bytes, lost, refused, is_last: job.is_last }
    }
}

impl Ahead {
    /// Returns the next read of which the disk should know.
    fn next(&mut self) -> Option<Read> {
        if AHEAD_REGIONS <= self.announced {
            return None;
        }
        let next = self.unannounced.pop_front();
        self.announced += usize::from(next.is_some());
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_for_the_cache_than_is_allowed() {
        let kept_bytes = AtomicUsize::new(0);
        let keep = |len: usize| keep_within(&kept_bytes, 100, len);
        assert_eq!([keep(60), keep(41), keep(40), keep(1)], [true, false, true, false]);
        kept_bytes.fetch_sub(60, Ordering::Relaxed);
        assert_eq!([keep(61), keep(60)], [false, true]);
    }
}
