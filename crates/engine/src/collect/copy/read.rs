//! Reading containers, and comparing their regions with what their directories state.

use std::sync::Arc;

use crate::collect::copies::Copies;
use crate::collect::copy::CopyRequest;
use crate::collect::copy::order::{CopiedContainer, Wanted};
use crate::collect::lifetime::{self, ClassBytes, LifetimeClass, LifetimeClasses};
use crate::compress::Compressor;
use crate::container::{CompressedRegion, ContainerReader, DirectoryChunk, Region, RegionChunk};
use crate::crypto::Keys;
use crate::error::{Error, Result};
use crate::io::AlignedBuffer;
use crate::object::names::{ContainerKind, ContainerName};
use crate::object::store::RangeRead;
use crate::pipeline::{BufferPool, Task};
use crate::store::Store;
use crate::store::base_reader::BaseReader;
use crate::types::{Chunk, ChunkKind, Fingerprint, Sequence};

/// A region is carried over if at least this share of its plaintext is live: 7 of 8.
const CARRIED_LIVE_MIN: (u64, u64) = (7, 8);
/// A region below this fraction of the usual length is taken apart, so that small ones are joined.
const CARRIED_FRACTION_MIN: u32 = 4;

/// Reads the regions of a container that have live chunks.
pub(super) struct ReadContainer {
    store: Store,
}

/// The regions of a container that were read.
pub(super) struct ReadRegions {
    /// Number of the container.
    pub(super) container: u32,
    /// Its regions with live chunks in order; an error if none of them could be read.
    pub(super) outcome: Result<Vec<SealedRegion>>,
}

/// A region as it is stored, with its live chunks.
pub(super) struct SealedRegion {
    container: u32,
    reader: Arc<ContainerReader>,
    region: u32,
    /// Its live chunks in ascending order, at least one.
    wanted: Vec<Wanted>,
    sealed: Result<AlignedBuffer>,
}

impl ReadContainer {
    pub(super) fn new(store: &Store) -> Self {
        Self { store: store.clone() }
    }

    fn read(&self, name: &ContainerName, container: &CopiedContainer) -> Result<Vec<SealedRegion>> {
        let reader = self.store.open_container(name)?;
        // So that each of its regions fits an empty container.
        if u64::from(self.store.config.container_bytes) < reader.stored_len() {
            return Err(Error::damaged(self.store.display(name), "longer than a container can be"));
        }
        let reader = Arc::new(reader);
        let mut regions: Vec<SealedRegion> = Vec::new();
        let mut reads: Vec<RangeRead> = Vec::new();
        for &wanted in &container.wanted {
            let missing = || Error::damaged(self.store.display(name), "its directory has fewer chunks than it had");
            let region = reader.position(usize::from(wanted.slot)).ok_or_else(missing)?.region;
            if let Some(last) = regions.last_mut().filter(|last| last.region == region) {
                last.wanted.push(wanted);
                continue;
            }
            let (offset, len) = reader.region_range(region).ok_or_else(missing)?;
            reads.push(RangeRead::new(self.store.standing(name), offset, len as usize));
            let (container, sealed) = (container.number, Ok(AlignedBuffer::default()));
            regions.push(SealedRegion { container, reader: Arc::clone(&reader), region, wanted: vec![wanted], sealed });
        }
        self.store.objects.read(&mut reads);
        for (region, RangeRead { buffer, outcome, .. }) in regions.iter_mut().zip(reads) {
            // A region that ends too soon does not open.
            region.sealed = outcome.map(|_| buffer);
        }
        Ok(regions)
    }
}

impl Task for ReadContainer {
    type In = (ContainerName, CopiedContainer);
    type Out = ReadRegions;

    fn run(&self, (name, container): Self::In) -> ReadRegions {
        ReadRegions { container: container.number, outcome: self.read(&name, &container) }
    }
}

/// Live chunks of a region, compared with their fingerprints.
pub(super) enum Opened {
    /// The whole region as it is compressed.
    Carried {
        /// The region.
        region: CompressedRegion,
        /// The class that most of its live bytes have.
        class: LifetimeClass,
        /// Number of its live chunks, and of all.
        chunks: (usize, usize),
        /// Bytes of its live chunks, and of all.
        bytes: (u64, u64),
        /// Its live chunks, if they are to be compressed again.
        live: Option<Box<Region>>,
    },
    /// Its live chunks.
    TakenApart {
        /// The chunks with their classes, in order.
        chunks: Vec<(RegionChunk, LifetimeClass)>,
        /// Their bytes, one after the other.
        plain: Vec<u8>,
    },
}

/// Result of opening, with the kind of the container.
pub(super) struct LiveRegion {
    pub(super) kind: ContainerKind,
    pub(super) opened: Opened,
    /// Bytes of the region as it was sealed.
    pub(super) stored_bytes: u64,
    /// Whether its container withholds its samples.
    pub(super) is_withheld: bool,
}

impl LiveRegion {
    /// Returns the bytes of the live chunks.
    pub(super) fn live_bytes(&self) -> u64 {
        match &self.opened {
            Opened::Carried { bytes: (live, _), .. } => *live,
            Opened::TakenApart { plain, .. } => plain.len() as u64,
        }
    }
}

/// Outcome of opening a region.
pub(super) struct OpenedRegion {
    /// Number of its container.
    pub(super) container: u32,
    /// The part that can be copied.
    pub(super) outcome: Option<LiveRegion>,
    /// Why a live chunk cannot be copied.
    pub(super) error: Option<Error>,
}

/// Buffers for opening a region, used again for the next.
#[derive(Default)]
struct Buffers {
    compressor: Compressor,
    plain: Vec<u8>,
}

/// Opens regions and compares chunks with their fingerprints.
pub(super) struct OpenRegion {
    keys: Arc<Keys>,
    bases: BaseReader,
    carried_bytes_min: u64,
    leaves_dead: bool,
    recompresses: bool,
    classes: LifetimeClasses,
    /// True if metadata is never carried over, since its hints change.
    refreshes: bool,
    buffers: BufferPool<Buffers>,
}

impl OpenRegion {
    pub(super) fn new(request: &CopyRequest<'_>, refreshes: bool) -> Self {
        let &CopyRequest { store, bases, classes, leaves_dead, copies: Copies { recompresses, .. }, .. } = request;
        let carried_bytes_min = u64::from(store.config.region_bytes / CARRIED_FRACTION_MIN);
        let (keys, buffers) = (Arc::clone(&store.keys), BufferPool::default());
        let (bases, classes) = (bases.clone(), classes.clone());
        Self { keys, bases, carried_bytes_min, leaves_dead, recompresses, classes, refreshes, buffers }
    }

    fn open(&self, region: SealedRegion) -> OpenedRegion {
        let SealedRegion { container, reader, region: region_number, wanted, sealed } = region;
        let mut buffers = self.buffers.take();
        let opened =
            sealed.and_then(|mut sealed| self.compare(&reader, region_number, &wanted, &mut sealed, &mut buffers));
        self.buffers.put(buffers);
        match opened {
            Ok((opened, error)) => {
                let outcome = opened.map(|opened| LiveRegion {
                    kind: reader.name.kind,
                    opened,
                    stored_bytes: reader.region_range(region_number).map_or(0, |(_, len)| len.into()),
                    is_withheld: reader.withholds_samples(),
                });
                OpenedRegion { container, outcome, error }
            }
            Err(error) => OpenedRegion { container, outcome: None, error: Some(error) },
        }
    }

    /// Returns the live chunks that are what their names say, and the error of the first one that is not.
    fn compare(
        &self,
        reader: &ContainerReader,
        region: u32,
        wanted: &[Wanted],
        sealed: &mut [u8],
        buffers: &mut Buffers,
    ) -> Result<(Option<Opened>, Option<Error>)> {
        let Buffers { compressor, plain } = buffers;
        let prefix = self.bases.prefix_of(reader, region)?;
        let (entry, stored) = reader.unseal_region(region, sealed)?;
        // Before anything is derived from the bytes: a bit that flips later is noticed when they are sealed again.
        let checksum = crc32c::crc32c(stored);
        let plain = entry
            .plaintext(&prefix, stored, compressor, plain)
            .ok_or_else(|| reader.wrong_region(region, "does not decompress"))?;
        let chunks = RegionChunks::of(reader, region, plain);
        let mut class_bytes = ClassBytes::default();
        let mut live_bytes = 0;
        for wanted in wanted {
            let len = chunks.get(*wanted).map_or(0, |(chunk, _)| chunk.len);
            lifetime::add(&mut class_bytes, self.classes.of(wanted.rank), len);
            live_bytes += u64::from(len);
        }
        let (part, whole) = CARRIED_LIVE_MIN;
        let all_bytes = u64::from(entry.plain_len);
        let is_mostly_live = all_bytes * part <= live_bytes * whole;
        // A chunk may be empty, so bytes do not decide.
        let may_be_carried = !self.leaves_dead || wanted.len() == chunks.chunks.len();
        let changes = self.refreshes && reader.name.kind == ContainerKind::Metadata;
        if is_mostly_live
            && may_be_carried
            && !changes
            // Its bases may be given up, too; by itself it depends on nobody.
            && entry.bases.is_empty()
            && self.carried_bytes_min <= all_bytes
            && let Some(packed) = chunks.all_named(&self.keys)
        {
            let opened = Opened::Carried {
                class: lifetime::largest(&class_bytes),
                chunks: (wanted.len(), packed.len()),
                bytes: (live_bytes, all_bytes),
                live: if self.recompresses { chunks.live(wanted).map(Box::new) } else { None },
                region: CompressedRegion::new(packed, entry.algorithm, stored.to_vec(), checksum)
                    .with_samples(reader.samples_of(region)),
            };
            return Ok((Some(opened), None));
        }
        let (opened, bad) = self.take_apart(&chunks, wanted);
        let error = bad.map(|bad| match bad.and_then(|chunk| chunk.fingerprint) {
            Some(fingerprint) => Error::damaged(reader.name, format!("chunk {fingerprint} is not what its name says")),
            None => reader.wrong_region(region, "has a chunk without a name"),
        });
        Ok((opened, error))
    }

    /// Returns the live chunks that are sound, and the first of the others.
    #[expect(clippy::option_option, reason = "a chunk that is not sound may be missing")]
    fn take_apart<'a>(
        &self,
        chunks: &RegionChunks<'a>,
        wanted: &[Wanted],
    ) -> (Option<Opened>, Option<Option<&'a DirectoryChunk>>) {
        let found: Vec<_> = wanted.iter().map(|wanted| (wanted, chunks.get(*wanted))).collect();
        let contents: Vec<_> = found.iter().filter_map(|(_, chunk)| *chunk).collect();
        let mut names = fingerprints(&self.keys, &contents).into_iter();
        let bytes = contents.iter().map(|(_, bytes)| bytes.len()).sum();
        let (mut packed, mut plain, mut bad) = (Vec::with_capacity(wanted.len()), Vec::with_capacity(bytes), None);
        for (wanted, chunk) in found {
            let name = chunk.and_then(|_| names.next());
            match chunk {
                Some((entry, bytes)) if name.is_some() && entry.fingerprint == name => {
                    packed.extend(packed_of(entry).map(|chunk| (chunk, self.classes.of(wanted.rank))));
                    plain.extend_from_slice(bytes);
                }
                _ => bad = bad.or(Some(chunk.map(|(entry, _)| entry))),
            }
        }
        let opened = (!packed.is_empty()).then_some(Opened::TakenApart { chunks: packed, plain });
        (opened, bad)
    }
}

impl Task for OpenRegion {
    type In = SealedRegion;
    type Out = OpenedRegion;

    fn run(&self, region: SealedRegion) -> OpenedRegion {
        self.open(region)
    }
}

/// A chunk as its directory lists it, with its bytes, hints included.
type Listed<'a> = (&'a DirectoryChunk, &'a [u8]);

/// The chunks of a region with their bytes.
struct RegionChunks<'a> {
    first: usize,
    chunks: Vec<Listed<'a>>,
}

impl<'a> RegionChunks<'a> {
    fn of(reader: &'a ContainerReader, region: u32, plain: &'a [u8]) -> Self {
        let numbers = reader.chunks_of(region);
        let mut rest = plain;
        let listed = reader.directory.chunks.get(numbers.clone()).unwrap_or_default().iter();
        let chunks = listed.map_while(|chunk| {
            let (bytes, tail) = rest.split_at_checked(chunk.len as usize)?;
            rest = tail;
            Some((chunk, bytes))
        });
        Self { first: numbers.start, chunks: chunks.collect() }
    }

    fn get(&self, wanted: Wanted) -> Option<Listed<'a>> {
        self.chunks.get(usize::from(wanted.slot).checked_sub(self.first)?).copied()
    }

    /// Returns a region of the live chunks alone; `None` if one is missing.
    fn live(&self, wanted: &[Wanted]) -> Option<Region> {
        let mut region = Region::default();
        for wanted in wanted {
            let (entry, bytes) = self.get(*wanted)?;
            region.push(packed_of(entry)?, bytes);
        }
        Some(region)
    }

    /// Returns the chunks if all of them are what their names say.
    fn all_named(&self, keys: &Keys) -> Option<Vec<RegionChunk>> {
        let names = fingerprints(keys, &self.chunks);
        let is_same = self.chunks.iter().map(|(chunk, _)| chunk.fingerprint).eq(names.into_iter().map(Some));
        is_same.then(|| self.chunks.iter().filter_map(|(chunk, _)| packed_of(chunk)).collect())
    }
}

/// Returns the fingerprints of chunks in order. They cover the bytes without hints.
fn fingerprints(keys: &Keys, chunks: &[Listed<'_>]) -> Vec<Fingerprint> {
    let content =
        |(chunk, bytes): &Listed<'_>| bytes.len().checked_sub(chunk.hints_len as usize).unwrap_or(bytes.len());
    let contents: Vec<&[u8]> =
        chunks.iter().map(|listed| listed.1.get(..content(listed)).unwrap_or_default()).collect();
    if chunks.iter().all(|(chunk, _)| chunk.kind == ChunkKind::Data) {
        return keys.fingerprints(ChunkKind::Data, &contents);
    }
    chunks.iter().zip(contents).map(|((chunk, _), content)| keys.fingerprint(chunk.kind, content)).collect()
}

fn packed_of(chunk: &DirectoryChunk) -> Option<RegionChunk> {
    let &DirectoryChunk { fingerprint, kind, len, hints_len } = chunk;
    // Copies belong to no stream.
    let sequence = Sequence(0);
    fingerprint.map(|fingerprint| RegionChunk { chunk: Chunk { fingerprint, len }, kind, hints_len, sequence })
}
