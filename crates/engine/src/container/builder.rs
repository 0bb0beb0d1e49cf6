//! Packing: regions go into the open container until the next one does not fit.
//!
//! Serial and a function of the order of its input alone, so that every driver fills the same containers.

use std::fmt::Debug;
use std::sync::Arc;

use crate::compress::{Algorithm, Compression, Compressor};
use crate::container::bases::{Base, Bases};
use crate::container::directory::{CHUNKS_MAX, DirectoryChunk, Form, REGIONS_MAX, Shape, Side, sealed_len};
use crate::container::trailer::TRAILER_LEN;
use crate::crypto::TAG_LEN;
use crate::object::header::{FormatVersion, HEADER_LEN};
use crate::object::names::ContainerKind;
use crate::types::{Chunk, ChunkKind, ContainerId, Sequence, SessionId};

/// One chunk of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionChunk {
    /// The chunk; its length includes the hints.
    pub chunk: Chunk,
    /// Kind of its contents.
    pub kind: ChunkKind,
    /// Bytes of hints at its end.
    pub hints_len: u32,
    /// Position of the chunk in the stream.
    pub sequence: Sequence,
}

impl RegionChunk {
    /// Returns how a directory names it.
    pub(crate) fn named(&self) -> DirectoryChunk {
        let &Self { chunk, kind, hints_len, .. } = self;
        DirectoryChunk { fingerprint: Some(chunk.fingerprint), kind, len: chunk.len, hints_len }
    }
}

/// An anchor of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkSample {
    /// Number of its chunk in the region.
    pub chunk: u16,
    /// Its hash.
    pub hash: u64,
}

/// Regions that a new one is compressed against.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChosenBases {
    /// At most two regions, or chunks of more, the best last: what is next to the new region is found best.
    pub bases: Vec<Base>,
    /// True if they have so much in common with the new region that it need not be compressed without them, too, to know that they save enough.
    pub is_sure: bool,
}

/// Bytes of several chunks, which stay where they are until a region takes them.
pub(crate) trait LendChunks: Debug + Send + Sync {
    /// Returns a chunk's bytes.
    fn lent(&self, number: usize) -> &[u8];
}

/// A chunk of a region whose bytes are elsewhere.
#[derive(Clone, Debug)]
struct LentChunk {
    /// Number of the chunk in the region.
    index: usize,
    /// Holder of its bytes.
    lender: Arc<dyn LendChunks>,
    /// Its number there.
    number: usize,
}

/// A run of consecutive unique chunks, to be compressed and sealed together.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// The chunks in order.
    pub(crate) chunks: Vec<RegionChunk>,
    /// Their bytes, one after the other. Dropped once the region is packed, unless they are stored as they are.
    pub(crate) plain: Vec<u8>,
    /// Chunks whose bytes are not in `plain` yet, in order.
    lent: Vec<LentChunk>,
    /// Compressed form, where that is shorter; empty until compressed.
    compressed: Vec<u8>,
    /// How it was compressed.
    pub(crate) algorithm: Option<Algorithm>,
    /// Length of the plaintext.
    pub(crate) plain_len: u32,
    /// Checksum of what is stored and of its bases, from before it was last decompressed and compared with its fingerprints. `None` for new
    /// regions without bases, which are compared when they are sealed.
    pub(crate) compared: Option<u32>,
    /// Regions that were chosen as bases, until it is compressed.
    pub(crate) chosen: ChosenBases,
    /// Those bases and their bytes, if these were in memory when they were chosen, until it is compressed.
    pub(crate) prefix: Option<Box<(Bases, Arc<Vec<u8>>)>>,
    /// Anchors by which it may be found as a base, with the chunks that they are of.
    pub(crate) samples: Vec<ChunkSample>,
    /// The regions that it was compressed against.
    pub(crate) bases: Bases,
}

/// A region that is stored again as it is compressed, because most of its chunks are needed.
#[derive(Clone, Debug)]
pub(crate) struct CompressedRegion(Region);

impl CompressedRegion {
    /// Takes the stored form of a region. `checksum` is its CRC-32C, taken before it was decompressed, and all of its `chunks`
    /// matched their fingerprints then.
    pub(crate) fn new(chunks: Vec<RegionChunk>, algorithm: Algorithm, stored: Vec<u8>, checksum: u32) -> Self {
        let plain_len = chunks.iter().map(|packed| packed.chunk.len).sum();
        let (plain, compressed) = match algorithm {
            Algorithm::None => (stored, Vec::new()),
            Algorithm::Zstd | Algorithm::Lz4 | Algorithm::ZstdBased => (Vec::new(), stored),
        };
        // A region with bases is never stored again as it is.
        let (algorithm, compared, bases) = (Some(algorithm), Some(checksum), Bases::default());
        Self(Region { chunks, plain, compressed, algorithm, plain_len, compared, bases, ..Region::default() })
    }
}

impl CompressedRegion {
    /// Takes a region that was compressed, and that fits an empty container.
    pub(crate) fn of(region: Region) -> Self {
        Self(region)
    }

    /// Returns the bytes that a container and its directories take for it if it is their only region.
    pub(crate) fn len_alone(&self, format: FormatVersion) -> usize {
        let Self(region) = self;
        let directory = |side| sealed_len(Form { format, kind: region.kind(), side }, region.shape());
        region.stored().len() + directory(Side::Front) + directory(Side::Back)
    }

    /// Keeps the samples that it had.
    pub(crate) fn with_samples(mut self, hashes: impl Iterator<Item = u64>) -> Self {
        // It is never divided, so that no chunk matters.
        self.0.samples = hashes.map(|hash| ChunkSample { chunk: 0, hash }).collect();
        self
    }
}

impl Region {
    /// Creates an empty region with a buffer for `bytes` bytes of chunks.
    pub fn with_buffer(bytes: u32) -> Self {
        Self { plain: Vec::with_capacity(bytes as usize), ..Self::default() }
    }

    /// Appends a chunk.
    pub fn push(&mut self, chunk: RegionChunk, bytes: &[u8]) {
        self.chunks.push(chunk);
        self.plain.extend_from_slice(bytes);
        self.plain_len += chunk.chunk.len;
    }

    /// Appends a chunk whose bytes stay where they are until [`Region::gather`].
    pub(crate) fn push_lent(&mut self, chunk: RegionChunk, lender: Arc<dyn LendChunks>, number: usize) {
        self.lent.push(LentChunk { index: self.chunks.len(), lender, number });
        self.chunks.push(chunk);
        self.plain_len += chunk.chunk.len;
    }

    /// Copies the bytes of all chunks into the region.
    pub(crate) fn gather(&mut self) {
        if self.lent.is_empty() {
            return;
        }
        let own = std::mem::replace(&mut self.plain, Vec::with_capacity(self.plain_len as usize));
        let mut own = own.as_slice();
        let mut lent = std::mem::take(&mut self.lent).into_iter().peekable();
        for (index, packed) in self.chunks.iter().enumerate() {
            if let Some(LentChunk { lender, number, .. }) = lent.next_if(|lent| lent.index == index) {
                self.plain.extend_from_slice(lender.lent(number));
            } else {
                let (bytes, rest) = own.split_at(packed.chunk.len as usize);
                self.plain.extend_from_slice(bytes);
                own = rest;
            }
        }
    }

    /// Compresses the plaintext.
    pub fn compress(&mut self, compressor: &mut Compressor, compression: Compression) {
        (self.bases, self.compared) = (Bases::default(), None);
        self.algorithm = Some(compressor.compress(compression, &self.plain, &mut self.compressed));
    }

    /// Compresses the plaintext again, against the plaintexts of bases, one after the other. Keeps the result where it saves a
    /// twentieth of what is stored without bases. Returns true then.
    pub(crate) fn compress_against(
        &mut self,
        compressor: &mut Compressor,
        compression: Compression,
        (bases, prefix): (&Bases, &[u8]),
    ) -> bool {
        let mut compressed = Vec::new();
        let len_without = self.stored().len();
        let saves = compressor.compress_against(compression, (prefix, &self.plain), len_without, &mut compressed);
        if saves {
            (self.compressed, self.algorithm, self.bases) = (compressed, Some(Algorithm::ZstdBased), bases.clone());
        }
        saves
    }

    /// Returns the kind of container that it belongs to.
    pub(crate) fn kind(&self) -> ContainerKind {
        let is_data = self.chunks.first().is_some_and(|packed| packed.kind == ChunkKind::Data);
        if is_data { ContainerKind::Data } else { ContainerKind::Metadata }
    }

    /// Returns what the directories of its container grow by.
    pub(crate) fn shape(&self) -> Shape {
        let longest = self.chunks.iter().map(|packed| packed.chunk.len).max().unwrap_or(0);
        let (chunks, bases, samples) = (self.chunks.len(), self.bases.len(), self.samples.len());
        Shape { regions: 1, chunks, bases, runs: self.bases.run_count(), samples, longest }
    }

    /// Returns what is stored, once compressed.
    pub(crate) fn stored(&self) -> &[u8] {
        match self.algorithm {
            None | Some(Algorithm::None) => &self.plain,
            Some(Algorithm::Zstd | Algorithm::Lz4 | Algorithm::ZstdBased) => &self.compressed,
        }
    }

    /// Takes a compressed form that was made elsewhere.
    #[cfg(test)]
    pub(crate) fn set_compressed(&mut self, algorithm: Algorithm, compressed: Vec<u8>, bases: Bases) {
        (self.algorithm, self.compressed, self.bases) = (Some(algorithm), compressed, bases);
    }

    /// Returns what is stored, to be damaged.
    #[cfg(test)]
    pub(crate) fn stored_mut(&mut self) -> &mut [u8] {
        match self.algorithm {
            None | Some(Algorithm::None) => &mut self.plain,
            Some(Algorithm::Zstd | Algorithm::Lz4 | Algorithm::ZstdBased) => &mut self.compressed,
        }
    }

    /// Frees the form that is not stored.
    fn shed(&mut self) {
        if self.algorithm == Some(Algorithm::None) {
            self.compressed = Vec::new();
        } else {
            self.plain = Vec::new();
        }
    }

    /// Cuts off and returns the chunks from `count` on. What is stored as it is stays so in both parts; otherwise neither is
    /// compressed any more.
    fn split_off(&mut self, count: usize) -> Region {
        let chunks = self.chunks.split_off(count);
        let head_len: u32 = self.chunks.iter().map(|packed| packed.chunk.len).sum();
        let plain = self.plain.split_off(head_len as usize);
        self.algorithm = self.algorithm.filter(|algorithm| *algorithm == Algorithm::None);
        let (algorithm, plain_len) = (self.algorithm, self.plain_len - head_len);
        self.plain_len = head_len;
        (self.bases, self.compared) = (Bases::default(), None);
        self.compressed.clear();
        let (kept, samples): (Vec<_>, Vec<_>) =
            self.samples.drain(..).partition(|sample| usize::from(sample.chunk) < count);
        self.samples = kept;
        let of_rest = |sample: ChunkSample| {
            let chunk = usize::from(sample.chunk).checked_sub(count).and_then(|chunk| u16::try_from(chunk).ok())?;
            Some(ChunkSample { chunk, ..sample })
        };
        let samples = samples.into_iter().filter_map(of_rest).collect();
        Region { chunks, plain, algorithm, plain_len, samples, ..Region::default() }
    }
}

/// A container that is full, or the last one, ready to be sealed.
#[derive(Debug)]
pub struct ContainerBuilder {
    /// Version of its format.
    pub format: FormatVersion,
    /// Its name.
    pub id: ContainerId,
    /// What it holds.
    pub kind: ContainerKind,
    /// Its regions, compressed, their plaintext dropped.
    pub regions: Vec<Region>,
}

/// A region, or a part of one, that was assigned to a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Assigned {
    /// The container.
    pub(crate) container: ContainerId,
    /// Its chunks in order.
    pub(crate) chunks: Vec<RegionChunk>,
    /// Its bases.
    pub(crate) bases: Bases,
    /// Hashes of its samples.
    pub(crate) samples: Vec<u64>,
}

/// Result of packing a region.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    /// Parts of the region and their containers, in order.
    pub(crate) assigned: Vec<Assigned>,
    /// Containers that are full now.
    pub(crate) full: Vec<ContainerBuilder>,
}

/// Fills containers of one kind.
#[derive(Debug)]
pub(crate) struct Packer {
    session: SessionId,
    form: (FormatVersion, ContainerKind),
    container_bytes: usize,
    compression: Compression,
    open: Option<ContainerBuilder>,
    /// Sealed bytes of the open container's regions.
    regions_len: usize,
    /// Counts that decide the length of its directories.
    shape: Shape,
}

/// A container is sealed when less than this part of it is left.
const FREE_MIN_FRACTION: usize = 128;
/// How often a region is cut smaller to fill a container before the rest of it is given up.
const CUT_ATTEMPTS_MAX: usize = 3;

impl Packer {
    /// Starts without an open container.
    pub(crate) fn new(
        session: SessionId,
        form: (FormatVersion, ContainerKind),
        container_bytes: u32,
        compression: Compression,
    ) -> Self {
        let container_bytes = container_bytes as usize;
        let shape = Shape::default();
        Self { session, form, container_bytes, compression, open: None, regions_len: 0, shape }
    }

    /// Packs a compressed region. `ordinals` gives out the next container's number.
    pub(crate) fn push(&mut self, mut region: Region, compressor: &mut Compressor, ordinals: &mut u32) -> Packed {
        let mut packed = Packed::default();
        while !region.chunks.is_empty() {
            let id = self.open_container(ordinals);
            if self.fits(&region) {
                self.assign(id, region, &mut packed);
                break;
            }
            let rest = self.fill(region, compressor);
            match rest {
                Filled::Cut { head, rest } => {
                    self.assign(id, head, &mut packed);
                    region = rest;
                }
                Filled::Full(whole) => region = whole,
            }
            packed.full.extend(self.finish());
            if region.algorithm.is_none() {
                region.compress(compressor, self.compression);
            }
        }
        packed
    }

    /// Packs a region as it is. It is not cut: if it does not fit, the container is full. An empty container takes any region
    /// that a container of this repository held.
    pub(crate) fn push_compressed(&mut self, region: CompressedRegion, ordinals: &mut u32) -> Packed {
        let CompressedRegion(region) = region;
        let mut packed = Packed::default();
        if !self.fits(&region) {
            packed.full.extend(self.finish());
        }
        let id = self.open_container(ordinals);
        self.assign(id, region, &mut packed);
        packed
    }

    /// Takes the open container out, whatever it holds.
    pub(crate) fn finish(&mut self) -> Option<ContainerBuilder> {
        self.regions_len = 0;
        self.shape = Shape::default();
        self.open.take()
    }

    fn open_container(&mut self, ordinals: &mut u32) -> ContainerId {
        let (session, (format, kind)) = (self.session, self.form);
        self.open
            .get_or_insert_with(|| {
                let id = ContainerId { session, ordinal: *ordinals };
                *ordinals += 1;
                ContainerBuilder { format, id, kind, regions: Vec::new() }
            })
            .id
    }

    fn assign(&mut self, id: ContainerId, mut region: Region, packed: &mut Packed) {
        self.regions_len += region.stored().len() + TAG_LEN;
        self.shape = self.shape.with(region.shape());
        region.shed();
        let samples = region.samples.iter().map(|sample| sample.hash).collect();
        let (chunks, bases) = (region.chunks.clone(), region.bases.clone());
        packed.assigned.push(Assigned { container: id, chunks, bases, samples });
        self.open.as_mut().expect("a container was opened").regions.push(region);
    }

    fn region_count(&self) -> usize {
        self.open.as_ref().map_or(0, |builder| builder.regions.len())
    }

    /// Returns how many bytes are left for one more region, its tag taken off.
    fn buffer(&self, region: &Region) -> usize {
        let shape = self.shape.with(region.shape());
        if REGIONS_MAX < shape.regions || CHUNKS_MAX < shape.chunks {
            return 0;
        }
        let (format, kind) = self.form;
        let directory = |side| sealed_len(Form { format, kind, side }, shape);
        let directories = directory(Side::Front) + directory(Side::Back);
        let taken = HEADER_LEN + TRAILER_LEN + directories + self.regions_len + TAG_LEN;
        self.container_bytes.saturating_sub(taken)
    }

    fn fits(&self, region: &Region) -> bool {
        region.stored().len() <= self.buffer(region)
    }

    /// Cuts a region that does not fit so that its head does, if enough space is left to be worth it.
    fn fill(&self, mut region: Region, compressor: &mut Compressor) -> Filled {
        let buffer = self.buffer(&region);
        if self.region_count() > 0 && buffer < self.container_bytes / FREE_MIN_FRACTION {
            return Filled::Full(region);
        }
        // A part that is compressed without the bases would mostly take more than is left.
        if self.region_count() > 0 && !region.bases.is_empty() {
            return Filled::Full(region);
        }
        if region.algorithm == Some(Algorithm::None) {
            // What did not shrink as a whole is not tried again in parts, so the cut is exact.
            let count = self.prefix_of(&region, buffer);
            if 0 < count && count < region.chunks.len() {
                let rest = region.split_off(count);
                return Filled::Cut { head: region, rest };
            }
        }
        let mut wanted = buffer.saturating_sub(buffer / 32);
        for _ in 0..CUT_ATTEMPTS_MAX {
            let count = self.prefix_of(&region, wanted);
            if count == 0 || region.chunks.len() <= count {
                break;
            }
            let mut head = region.clone();
            let rest = head.split_off(count);
            head.compress(compressor, self.compression);
            if self.fits(&head) {
                return Filled::Cut { head, rest };
            }
            wanted -= wanted / 8;
        }
        if self.region_count() > 0 { Filled::Full(region) } else { self.halve(&region, compressor) }
    }

    /// Cuts a region that not even an empty container takes: many chunks of a few bytes each, which weigh more in the
    /// directories than in the region.
    fn halve(&self, region: &Region, compressor: &mut Compressor) -> Filled {
        let mut count = (region.chunks.len() / 2).max(1);
        loop {
            let mut head = region.clone();
            let rest = head.split_off(count);
            head.compress(compressor, self.compression);
            // One chunk always fits: the config keeps the longest below half a container.
            if count == 1 || self.fits(&head) {
                return Filled::Cut { head, rest };
            }
            count /= 2;
        }
    }

    /// Returns how many chunks make up about `wanted` stored bytes, at the whole region's ratio.
    #[expect(clippy::unused_self, reason = "reads as a step of `fill`")]
    fn prefix_of(&self, region: &Region, wanted: usize) -> usize {
        let plain_wanted = wanted as u64 * u64::from(region.plain_len) / (region.stored().len() as u64).max(1);
        let mut len = 0;
        region
            .chunks
            .iter()
            .take_while(|packed| {
                len += u64::from(packed.chunk.len);
                len <= plain_wanted
            })
            .count()
    }
}

enum Filled {
    Cut { head: Region, rest: Region },
    Full(Region),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Fingerprint;

    fn data_chunk(fingerprint: Fingerprint, len: u32, sequence: u64) -> RegionChunk {
        let chunk = Chunk { fingerprint, len };
        RegionChunk { chunk, kind: ChunkKind::Data, hints_len: 0, sequence: Sequence(sequence) }
    }

    fn region(first: u64, count: u64, len: u32, text: bool) -> Region {
        let mut region = Region::default();
        for sequence in first..first + count {
            let mut bytes = vec![7u8; len as usize];
            if !text {
                blake3::Hasher::new().update(&sequence.to_le_bytes()).finalize_xof().fill(&mut bytes);
            }
            let fingerprint = Fingerprint(*blake3::hash(&sequence.to_le_bytes()).as_bytes());
            region.push(data_chunk(fingerprint, len, sequence), &bytes);
        }
        region.compress(&mut Compressor::default(), Compression::Zstd(1));
        region
    }

    #[derive(Debug)]
    struct Lender(Vec<Vec<u8>>);

    impl LendChunks for Lender {
        fn lent(&self, number: usize) -> &[u8] {
            &self.0[number]
        }
    }

    #[test]
    fn a_region_of_lent_chunks_is_that_of_copied_ones() {
        let chunks: Vec<Vec<u8>> = (0..12u8).map(|number| vec![number; 1 + usize::from(number) % 5]).collect();
        let lender: Arc<dyn LendChunks> = Arc::new(Lender(chunks.clone()));
        for lent in 0..1u32 << chunks.len() {
            let (mut copied, mut mixed) = (Region::default(), Region::default());
            for (number, bytes) in chunks.iter().enumerate() {
                let len = u32::try_from(bytes.len()).unwrap();
                let chunk = data_chunk(Fingerprint([1; 32]), len, number as u64);
                copied.push(chunk, bytes);
                if lent >> number & 1 == 0 {
                    mixed.push(chunk, bytes);
                } else {
                    mixed.push_lent(chunk, Arc::clone(&lender), number);
                }
            }
            mixed.gather();
            assert_eq!((&mixed.plain, mixed.plain_len), (&copied.plain, copied.plain_len), "{lent:b}");
            assert_eq!(mixed.chunks, copied.chunks);
        }
    }

    #[test]
    fn more_tiny_chunks_than_a_container_can_list_are_shared_out() {
        for (container_bytes, count) in [(4 << 20, 70_000), (64 << 10, 5_000)] {
            let mut packer = Packer::new(
                SessionId([1; 16]),
                (FormatVersion::V1, ContainerKind::Data),
                container_bytes,
                Compression::Off,
            );
            let (mut compressor, mut ordinals) = (Compressor::default(), 0);
            let mut region = Region::default();
            for sequence in 0..count {
                region.push(data_chunk(Fingerprint([1; 32]), 3, sequence), b"abc");
            }
            region.compress(&mut compressor, Compression::Off);
            let packed = packer.push(region, &mut compressor, &mut ordinals);
            let placed = packed.assigned.iter().flat_map(|part| &part.chunks).map(|chunk| chunk.sequence.0);
            assert!(placed.eq(0..count));
            assert!(packed.full.iter().all(|builder| !builder.regions.is_empty()));
            assert!(packed.full.len() < 16, "{} containers", packed.full.len());
        }
    }

    #[test]
    fn what_does_not_shrink_fills_containers_without_being_compressed_again() {
        let mut packer =
            Packer::new(SessionId([1; 16]), (FormatVersion::V1, ContainerKind::Data), 1 << 18, Compression::Zstd(19));
        let (mut compressor, mut ordinals) = (Compressor::default(), 0);
        let mut full = Vec::new();
        for step in 0..20 {
            let region = region(step * 16, 16, 4096, false);
            assert_eq!(region.algorithm, Some(Algorithm::None));
            full.extend(packer.push(region, &mut compressor, &mut ordinals).full);
        }
        assert!(4 <= full.len());
        for builder in &full {
            assert!(builder.regions.iter().all(|region| region.algorithm == Some(Algorithm::None)));
            let stored: usize = builder.regions.iter().map(|region| region.stored().len()).sum();
            assert!((1 << 18) - (1 << 13) < stored, "{stored} bytes in a container of 256 KiB");
        }
    }

    #[test]
    fn every_chunk_is_placed_once_in_order_and_containers_fill_up() {
        let mut packer =
            Packer::new(SessionId([1; 16]), (FormatVersion::V1, ContainerKind::Data), 1 << 18, Compression::Zstd(1));
        let (mut compressor, mut ordinals) = (Compressor::default(), 0);
        let (mut placed, mut full) = (Vec::new(), Vec::new());
        for step in 0..100 {
            let packed = packer.push(region(step * 8, 8, 4096, step % 3 == 0), &mut compressor, &mut ordinals);
            placed.extend(
                packed.assigned.into_iter().flat_map(|part| part.chunks.into_iter().map(move |c| (part.container, c))),
            );
            full.extend(packed.full);
        }
        let open = packer.finish().unwrap();
        let sequences: Vec<u64> = placed.iter().map(|(_, chunk)| chunk.sequence.0).collect();
        assert_eq!(sequences, (0..800).collect::<Vec<_>>());
        assert!(placed.is_sorted_by_key(|(id, _)| id.ordinal));
        assert_eq!(open.id.ordinal as usize, full.len());
        for builder in &full {
            let stored: usize = builder.regions.iter().map(|region| region.stored().len() + TAG_LEN).sum();
            let chunks: usize = builder.regions.iter().map(|region| region.chunks.len()).sum();
            let shape = Shape { regions: builder.regions.len(), chunks, bases: 0, runs: 0, samples: 0, longest: 4096 };
            let form = |side| Form { format: FormatVersion::V1, kind: ContainerKind::Data, side };
            let (front, back) = (sealed_len(form(Side::Front), shape), sealed_len(form(Side::Back), shape));
            let len = HEADER_LEN + TRAILER_LEN + front + back + stored;
            assert!(len <= 1 << 18);
            assert!((1 << 18) * 97 / 100 < len, "container of {len} bytes");
        }
    }
}
