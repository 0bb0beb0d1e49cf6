//! The work on one region: read it, open it, verify the wanted chunks and hand them on.
//!
//! One worker reads, opens and checks a region and hands its chunks on, in buffers that it uses again: the bytes stay in the
//! cache of one core. The disk learns of regions a little before they are read.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::compress::Compressor;
use crate::container::ContainerReader;
use crate::container::reader::ChunkPosition;
use crate::error::{Error, Result};
use crate::fingerprint::fingerprint_batch;
use crate::object::names::ContainerName;
use crate::pipeline::{BufferPool, Task};
use crate::restore::sink::{Failures, Sink};
use crate::store::Store;
use crate::store::base_reader::BaseReader;
use crate::store::recipe_cursor::HintedChunk;
use crate::types::{ContainerId, Fingerprint};

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
    /// From the container, sealed.
    Stored,
    /// From the cache.
    Held(Arc<[u8]>),
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
    pub(super) plain: Option<Arc<[u8]>>,
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
        Self { store: store.clone(), bases, buffers, ahead, kept_bytes, kept_bytes_max }
    }

    /// Copies a region for the cache, unless too many wait for it already.
    fn keep(&self, plain: &[u8]) -> Option<Arc<[u8]>> {
        keep_within(&self.kept_bytes, self.kept_bytes_max, plain)
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

    /// Reads a region that was announced.
    fn read(&self, job: &RegionJob, sealed: &mut Vec<u8>) -> Result<()> {
        if let Ok(mut ahead) = self.ahead.lock() {
            ahead.announced = ahead.announced.saturating_sub(1);
            let next = ahead.next();
            drop(ahead);
            self.advise(next);
        }
        let object = || job.container.name.to_string();
        let (offset, len) = job
            .container
            .region_range(job.region())
            .ok_or_else(|| Error::damaged(object(), "region that does not exist"))?;
        // Bytes that are there are overwritten, not set to zero first.
        sealed.resize(len as usize, 0);
        let name = job.container.name.into();
        match self.store.objects.read_exact(name, offset, sealed) {
            Err(error) if error.is_out_of_handles() => {
                job.window.sink.relieve();
                self.store.objects.read_exact(name, offset, sealed)
            }
            outcome => outcome,
        }
    }

    fn open<'a>(&self, job: &'a RegionJob, buffers: &'a mut Buffers) -> Result<&'a [u8]> {
        match &job.source {
            Source::Held(plain) => Ok(plain),
            Source::Stored => {
                let prefix = self.bases.prefix_of(&job.container, job.region())?;
                self.read(job, &mut buffers.sealed)?;
                let Buffers { sealed, scratch, compressor } = buffers;
                job.container.plaintext_of_region(job.region(), &prefix, sealed, compressor, scratch)
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

fn keep_within(kept_bytes: &AtomicUsize, max: usize, plain: &[u8]) -> Option<Arc<[u8]>> {
    let kept = kept_bytes.fetch_add(plain.len(), Ordering::Relaxed);
    if max < kept.saturating_add(plain.len()) {
        kept_bytes.fetch_sub(plain.len(), Ordering::Relaxed);
        return None;
    }
    Some(Arc::from(plain))
}

impl Task for OpenRegion {
    type In = RegionJob;
    type Out = RegionDone;

    fn run(&self, job: RegionJob) -> RegionDone {
        let mut buffers = self.buffers.take();
        let (mut plain_kept, mut kept_bytes, mut lost, mut refused) = (None, 0, Vec::new(), Vec::new());
        match self.open(&job, &mut buffers) {
            Ok(plain) => {
                (lost, refused) = self.check(&job, plain);
                plain_kept = match &job.source {
                    Source::Held(held) => Some(Arc::clone(held)),
                    // What is wanted whole is seldom wanted again.
                    Source::Stored => {
                        let taken: usize = job.chunks().iter().map(|located| located.position.len as usize).sum();
                        let kept = if taken < plain.len() { self.keep(plain) } else { None };
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
        let keep = |len: usize| keep_within(&kept_bytes, 100, &vec![7; len]).map(|kept| kept.len());
        assert_eq!([keep(60), keep(41), keep(40), keep(1)], [Some(60), None, Some(40), None]);
        kept_bytes.fetch_sub(60, Ordering::Relaxed);
        assert_eq!([keep(61), keep(60)], [None, Some(60)]);
    }
}
