//! The directory of a container: its regions and its chunks in order. Stored twice.
//!
//! The front directory holds the fingerprint of every chunk. The back directory omits the fingerprints, since they follow
//! from the plaintext, and is equal otherwise.

use crate::codec::{Decoded, Reader, len_u32};
use crate::compress::{Algorithm, Compressor};
use crate::container::bases::{BASE_LEN, Bases, RUN_LEN};
use crate::crypto::TAG_LEN;
use crate::object::header::FormatVersion;
use crate::object::names::ContainerKind;
use crate::types::{Chunk, ChunkKind, FINGERPRINT_LEN, Fingerprint};

/// Most regions in a container.
pub(crate) const REGIONS_MAX: usize = 4096;
/// Most chunks in a container.
pub(crate) const CHUNKS_MAX: usize = 65_536;
/// Bytes of a region, bases excepted: of format 1, and with depth and number of bases of format 2.
const REGION_ENTRY_LEN: [usize; 2] = [13, 15];
/// Bytes before the regions: two counts, and in format 2 the numbers of bases and samples and the width of lengths.
const HEAD_LEN: [usize; 2] = [8, 17];
/// Bytes of a sample: number of the region, and of the hash those that are looked at.
const SAMPLE_LEN: usize = 7;
/// Bits of a hash that are not stored.
const SAMPLE_SHIFT: u32 = 24;
/// Bytes of a length in format 1.
const LEN_WIDTH: usize = 4;

/// One region as the directory describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionEntry {
    /// Bytes it takes in the container, tag included.
    pub sealed_len: u32,
    /// Bytes of its plaintext.
    pub plain_len: u32,
    /// How it was compressed.
    pub algorithm: Algorithm,
    /// How many of the container's chunks it holds.
    pub chunk_count: u32,
    /// The regions that it was compressed against.
    pub bases: Bases,
}

impl RegionEntry {
    /// Returns the contents of the region, in `stored` itself or in `scratch`, which is replaced. `prefix` are the plaintexts of its
    /// bases. `None`: it does not decompress to its length.
    pub(crate) fn plaintext<'a>(
        &self,
        prefix: &[u8],
        stored: &'a [u8],
        compressor: &mut Compressor,
        scratch: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        let plain_len = self.plain_len as usize;
        match self.algorithm {
            Algorithm::ZstdBased => {
                compressor.decompress_against(prefix, stored, plain_len, scratch).then_some(scratch.as_slice())
            }
            algorithm => compressor.plaintext(algorithm, stored, plain_len, scratch),
        }
    }
}

/// One chunk as the directory describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryChunk {
    /// Name of the chunk; `None` in a back directory.
    pub fingerprint: Option<Fingerprint>,
    /// What it holds.
    pub kind: ChunkKind,
    /// Bytes in the region, hints included.
    pub len: u32,
    /// Bytes of hints at its end, which the fingerprint does not cover.
    pub hints_len: u32,
}

impl DirectoryChunk {
    /// Returns the chunk with its hints; `None` without a name.
    pub(crate) fn chunk(&self) -> Option<Chunk> {
        self.fingerprint.map(|fingerprint| Chunk { fingerprint, len: self.len })
    }
}

/// An anchor of a region in the sample by which similar regions are found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RegionSample {
    /// Number of the region.
    pub region: u16,
    /// Hash of the anchor. The lowest 24 bits are zero once it was stored.
    pub hash: u64,
}

/// A container's table of contents.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Directory {
    /// Regions in the order they are stored.
    pub regions: Vec<RegionEntry>,
    /// Chunks in the order of the regions' plaintext.
    pub chunks: Vec<DirectoryChunk>,
    /// Samples of the regions, ascending; none in a back directory. They follow from the plaintext.
    pub samples: Vec<RegionSample>,
}

/// Which of the two directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Behind the header, with fingerprints.
    Front,
    /// Before the trailer, without.
    Back,
}

/// Meaning of the bytes of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// Version of the format of its container.
    pub format: FormatVersion,
    /// Kind of its container.
    pub kind: ContainerKind,
    /// Which of the two it is.
    pub side: Side,
}

impl Form {
    fn of_version<T>(self, [first, second]: [T; 2]) -> T {
        match self.format {
            FormatVersion::V1 => first,
            FormatVersion::V2 => second,
        }
    }

    /// Returns how many samples there are in this directory.
    fn samples(self, shape: Shape) -> usize {
        let has_samples = self.format != FormatVersion::V1 && self.side == Side::Front;
        if has_samples { shape.samples } else { 0 }
    }

    /// Returns the bytes of a chunk, if lengths take `width` bytes.
    fn chunk_entry_len(self, width: usize) -> usize {
        let fingerprint = match self.side {
            Side::Front => FINGERPRINT_LEN,
            Side::Back => 0,
        };
        match self.kind {
            ContainerKind::Data => fingerprint + width,
            ContainerKind::Metadata => fingerprint + 1 + 2 * width,
        }
    }
}

/// Everything that the length of a directory depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shape {
    /// Regions.
    pub(crate) regions: usize,
    /// Chunks.
    pub(crate) chunks: usize,
    /// Bases of all regions.
    pub(crate) bases: usize,
    /// Runs of chunks of all bases.
    pub(crate) runs: usize,
    /// Samples of all regions.
    pub(crate) samples: usize,
    /// Bytes of the longest chunk, hints included.
    pub(crate) longest: u32,
}

impl Shape {
    /// Returns the shape of two parts together.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            regions: self.regions + other.regions,
            chunks: self.chunks + other.chunks,
            bases: self.bases + other.bases,
            runs: self.runs + other.runs,
            samples: self.samples + other.samples,
            longest: self.longest.max(other.longest),
        }
    }

    /// Returns the bytes of each length: in format 2 as many as the longest takes, so that they tell nothing of the others.
    fn width(self, form: Form) -> usize {
        let needed = (u32::BITS - self.longest.leading_zeros()).div_ceil(8).max(1);
        form.of_version([LEN_WIDTH, needed as usize])
    }
}

/// Returns the sealed length of a directory.
pub(crate) fn sealed_len(form: Form, shape: Shape) -> usize {
    let Shape { regions, chunks, bases, runs, .. } = shape;
    let regions = regions * form.of_version(REGION_ENTRY_LEN) + bases * BASE_LEN + runs * RUN_LEN;
    form.of_version(HEAD_LEN)
        + regions
        + chunks * form.chunk_entry_len(shape.width(form))
        + form.samples(shape) * SAMPLE_LEN
        + TAG_LEN
}

impl Directory {
    /// Returns what the length of its stored form depends on.
    pub(crate) fn shape(&self) -> Shape {
        Shape {
            regions: self.regions.len(),
            chunks: self.chunks.len(),
            bases: self.regions.iter().map(|region| region.bases.len()).sum(),
            runs: self.regions.iter().map(|region| region.bases.run_count()).sum(),
            samples: self.samples.len(),
            longest: self.chunks.iter().map(|chunk| chunk.len).max().unwrap_or(0),
        }
    }

    /// Returns the plaintext form. Chunks of a front directory must have fingerprints.
    pub fn encode(&self, form: Form) -> Vec<u8> {
        let shape = self.shape();
        let width = shape.width(form);
        let mut out = Vec::with_capacity(sealed_len(form, shape));
        out.extend_from_slice(&len_u32(self.regions.len()).to_le_bytes());
        out.extend_from_slice(&len_u32(self.chunks.len()).to_le_bytes());
        if form.format != FormatVersion::V1 {
            out.extend_from_slice(&len_u32(shape.bases).to_le_bytes());
            out.extend_from_slice(&len_u32(form.samples(shape)).to_le_bytes());
            out.push(u8::try_from(width).unwrap_or(u8::MAX));
        }
        for region in &self.regions {
            out.extend_from_slice(&region.sealed_len.to_le_bytes());
            out.extend_from_slice(&region.plain_len.to_le_bytes());
            out.push(region.algorithm.code());
            out.extend_from_slice(&region.chunk_count.to_le_bytes());
            if form.format != FormatVersion::V1 {
                region.bases.encode(&mut out);
            }
        }
        let put = |out: &mut Vec<u8>, len: u32| out.extend(len.to_le_bytes().into_iter().take(width));
        for chunk in &self.chunks {
            if form.side == Side::Front {
                out.extend_from_slice(&chunk.fingerprint.expect("chunks are packed with their fingerprints").0);
            }
            if form.kind == ContainerKind::Metadata {
                out.push(chunk.kind.code());
                put(&mut out, chunk.hints_len);
            }
            put(&mut out, chunk.len);
        }
        for RegionSample { region, hash } in self.samples.iter().take(form.samples(shape)) {
            out.extend_from_slice(&region.to_le_bytes());
            out.extend((hash >> SAMPLE_SHIFT).to_le_bytes().into_iter().take(SAMPLE_LEN - 2));
        }
        out
    }

    /// Reads the plaintext form. Afterward every region's chunks add up to its plaintext, and no region's plaintext is
    /// longer than `region_bytes_limit`.
    pub(crate) fn decode(bytes: &[u8], form: Form, region_bytes_limit: u32) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        let region_count = reader.count32(form.of_version(REGION_ENTRY_LEN))?;
        let chunk_count = reader.count32(form.chunk_entry_len(form.of_version([LEN_WIDTH, 1])))?;
        if REGIONS_MAX < region_count || CHUNKS_MAX < chunk_count {
            return Err(reader.error("more regions or chunks than a container can hold"));
        }
        let (base_count, sample_count, width) = match form.format {
            FormatVersion::V1 => (0, 0, LEN_WIDTH),
            FormatVersion::V2 => (reader.count32(BASE_LEN)?, reader.count32(SAMPLE_LEN)?, usize::from(reader.u8()?)),
        };
        if !(1..=LEN_WIDTH).contains(&width) {
            return Err(reader.error("lengths of an impossible width"));
        }
        let mut directory = Self {
            regions: Vec::with_capacity(region_count),
            chunks: Vec::with_capacity(chunk_count),
            samples: Vec::with_capacity(sample_count),
        };
        for _ in 0..region_count {
            directory.regions.push(decode_region(&mut reader, form, region_bytes_limit)?);
        }
        for _ in 0..chunk_count {
            directory.chunks.push(decode_chunk(&mut reader, form, width)?);
        }
        for _ in 0..sample_count {
            let sample = decode_sample(&mut reader)?;
            let is_next = directory.samples.last().is_none_or(|last| *last <= sample);
            if !is_next || region_count <= usize::from(sample.region) {
                return Err(reader.error("samples out of order"));
            }
            directory.samples.push(sample);
        }
        let error = reader.error("regions and chunks do not add up");
        let shape = directory.shape();
        if shape.bases != base_count || form.samples(shape) != sample_count || shape.width(form) != width {
            return Err(reader.error("bases, samples or lengths are not those announced"));
        }
        reader.finish()?;
        if directory.adds_up() { Ok(directory) } else { Err(error) }
    }

    fn adds_up(&self) -> bool {
        let mut chunks = self.chunks.iter();
        let regions_fit = self.regions.iter().all(|region| {
            let count = region.chunk_count as usize;
            let len: u64 = chunks.by_ref().take(count).map(|chunk| u64::from(chunk.len)).sum();
            len == u64::from(region.plain_len)
        });
        let count: u64 = self.regions.iter().map(|region| u64::from(region.chunk_count)).sum();
        regions_fit && count == self.chunks.len() as u64
    }

    /// Returns true if two directories describe the same contents, apart from fingerprints.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        let bare = |chunk: &DirectoryChunk| (chunk.kind, chunk.len, chunk.hints_len);
        self.regions == other.regions && self.chunks.iter().map(bare).eq(other.chunks.iter().map(bare))
    }
}

fn decode_region(reader: &mut Reader<'_>, form: Form, region_bytes_limit: u32) -> Decoded<RegionEntry> {
    let (sealed_len, plain_len) = (reader.u32()?, reader.u32()?);
    let Some(algorithm) = Algorithm::from_code(reader.u8()?) else {
        return Err(reader.error("unknown compression"));
    };
    let chunk_count = reader.u32()?;
    let bases = match form.format {
        FormatVersion::V1 => Bases::default(),
        FormatVersion::V2 => Bases::decode(reader)?,
    };
    if (algorithm == Algorithm::ZstdBased) == bases.is_empty() {
        return Err(reader.error("bases and compression that contradict each other"));
    }
    if region_bytes_limit < plain_len {
        return Err(reader.error("region longer than regions can be"));
    }
    // Compression is kept only where it shrinks, so the plaintext bounds what is stored.
    if (sealed_len as usize) < TAG_LEN || u64::from(plain_len) + (TAG_LEN as u64) < u64::from(sealed_len) {
        return Err(reader.error("region of an impossible length"));
    }
    Ok(RegionEntry { sealed_len, plain_len, algorithm, chunk_count, bases })
}

fn decode_chunk(reader: &mut Reader<'_>, form: Form, width: usize) -> Decoded<DirectoryChunk> {
    let fingerprint = match form.side {
        Side::Front => Some(reader.fingerprint()?),
        Side::Back => None,
    };
    let (chunk_kind, hints_len) = match form.kind {
        ContainerKind::Data => (ChunkKind::Data, 0),
        ContainerKind::Metadata => {
            let code = reader.u8()?;
            match ChunkKind::from_code(code) {
                Some(kind @ (ChunkKind::Tree | ChunkKind::Recipe)) => (kind, decode_len(reader, width)?),
                Some(ChunkKind::Data) | None => return Err(reader.error("chunk of a kind that does not belong here")),
            }
        }
    };
    let len = decode_len(reader, width)?;
    if len < hints_len || len == 0 {
        return Err(reader.error("chunk of an impossible length"));
    }
    Ok(DirectoryChunk { fingerprint, kind: chunk_kind, len, hints_len })
}

fn decode_sample(reader: &mut Reader<'_>) -> Decoded<RegionSample> {
    let region = reader.u16()?;
    let [b0, b1, b2, b3, b4] = reader.array()?;
    Ok(RegionSample { region, hash: u64::from_le_bytes([b0, b1, b2, b3, b4, 0, 0, 0]) << SAMPLE_SHIFT })
}

fn decode_len(reader: &mut Reader<'_>, width: usize) -> Decoded<u32> {
    let mut len = [0; LEN_WIDTH];
    len.iter_mut().zip(reader.bytes(width)?).for_each(|(to, byte)| *to = *byte);
    Ok(u32::from_le_bytes(len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::bases::DEPTH_MAX;
    use crate::types::{ContainerId, RegionId, SessionId};

    fn directory() -> Directory {
        let chunk = |byte, len| DirectoryChunk {
            fingerprint: Some(Fingerprint([byte; 32])),
            kind: ChunkKind::Tree,
            len,
            hints_len: 1,
        };
        Directory {
            regions: vec![
                RegionEntry {
                    sealed_len: 40,
                    plain_len: 30,
                    algorithm: Algorithm::Zstd,
                    chunk_count: 2,
                    bases: Bases::default(),
                },
                RegionEntry {
                    sealed_len: 23,
                    plain_len: 7,
                    algorithm: Algorithm::None,
                    chunk_count: 1,
                    bases: Bases::default(),
                },
            ],
            chunks: vec![chunk(1, 10), chunk(2, 20), chunk(3, 7)],
            samples: Vec::new(),
        }
    }

    const FORMATS: [FormatVersion; 2] = [FormatVersion::V1, FormatVersion::V2];

    fn form(format: FormatVersion, side: Side) -> Form {
        Form { format, kind: ContainerKind::Metadata, side }
    }

    #[test]
    fn both_sides_come_back() {
        for (format, side) in
            FORMATS.into_iter().flat_map(|format| [Side::Front, Side::Back].map(|side| (format, side)))
        {
            let form = form(format, side);
            let bytes = directory().encode(form);
            assert_eq!(bytes.len() + TAG_LEN, sealed_len(form, directory().shape()));
            let back = Directory::decode(&bytes, form, 30).unwrap();
            assert!(back.agrees_with(&directory()));
            assert!(Directory::decode(&bytes, form, 29).is_err());
            assert!(Directory::decode(&bytes[..bytes.len() - 1], form, 30).is_err());
        }
    }

    #[test]
    fn a_directory_that_does_not_add_up_is_refused() {
        for format in FORMATS {
            let mut wrong = directory();
            wrong.chunks[0].len = 11;
            let bytes = wrong.encode(form(format, Side::Front));
            assert!(Directory::decode(&bytes, form(format, Side::Front), 1000).is_err());
        }
    }

    fn based(bases: &[RegionId], depth: u8) -> Directory {
        let chunk = |byte, len| DirectoryChunk {
            fingerprint: Some(Fingerprint([byte; 32])),
            kind: ChunkKind::Data,
            len,
            hints_len: 0,
        };
        Directory {
            regions: vec![RegionEntry {
                sealed_len: 40,
                plain_len: 30_000,
                algorithm: Algorithm::ZstdBased,
                chunk_count: 2,
                bases: Bases::new(bases, depth).unwrap(),
            }],
            chunks: vec![chunk(1, 10_000), chunk(2, 20_000)],
            samples: [0x0100, 0xffff_ffff_ff00].map(|hash| RegionSample { region: 0, hash: hash << 16 }).into(),
        }
    }

    fn region(ordinal: u32, region: u32) -> RegionId {
        RegionId { container: ContainerId { session: SessionId([7; 16]), ordinal }, region }
    }

    #[test]
    fn bases_come_back_in_both_directories_of_a_container_of_format_2_alone() {
        let form = |format, kind, side| Form { format, kind, side };
        for (bases, depth) in [(&[region(1, 2)][..], 1), (&[region(1, 2), region(1, 3)], DEPTH_MAX)] {
            for (side, kind) in FORMS {
                let form = form(FormatVersion::V2, kind, side);
                let based = of_kind(based(bases, depth), kind);
                let bytes = based.encode(form);
                assert_eq!(bytes.len() + TAG_LEN, sealed_len(form, based.shape()));
                let back = Directory::decode(&bytes, form, 1 << 20).unwrap();
                assert_eq!(back.regions, based.regions);
                let samples = if side == Side::Front { based.samples.clone() } else { Vec::new() };
                assert_eq!(back.samples, samples);
                let cut: Vec<_> =
                    (0..bytes.len()).filter(|len| Directory::decode(&bytes[..*len], form, 1 << 20).is_ok()).collect();
                assert!(cut.is_empty(), "{cut:?}");
                for at in 0..bytes.len() {
                    let mut flipped = bytes.clone();
                    flipped[at] ^= 0x80;
                    if let Ok(decoded) = Directory::decode(&flipped, form, 1 << 20) {
                        assert_eq!(decoded.encode(form), flipped, "byte {at}: one form for each directory");
                    }
                }
            }
        }
        for (side, kind) in FORMS {
            let (form, plain) = (form(FormatVersion::V1, kind, side), of_kind(based(&[region(1, 2)], 1), kind));
            assert!(Directory::decode(&plain.encode(form), form, 1 << 20).is_err(), "format 1 has no bases");
        }
    }

    const FORMS: [(Side, ContainerKind); 4] = [
        (Side::Front, ContainerKind::Data),
        (Side::Back, ContainerKind::Data),
        (Side::Front, ContainerKind::Metadata),
        (Side::Back, ContainerKind::Metadata),
    ];

    fn of_kind(mut directory: Directory, kind: ContainerKind) -> Directory {
        if kind == ContainerKind::Metadata {
            directory.chunks.iter_mut().for_each(|chunk| chunk.kind = ChunkKind::Tree);
        }
        directory
    }

    #[test]
    fn no_region_is_deeper_than_allowed_or_has_a_base_twice_or_more_bases_than_two() {
        let (one, two, three) = (region(1, 2), region(1, 3), region(2, 2));
        assert!(Bases::new(&[one, two], DEPTH_MAX).is_some());
        for (bases, depth) in
            [(&[one][..], 0), (&[], 1), (&[one], DEPTH_MAX + 1), (&[one, one], 1), (&[one, two, three], 1)]
        {
            assert_eq!(Bases::new(bases, depth), None);
            let mut bytes = vec![depth, u8::try_from(bases.len()).unwrap()];
            for base in bases {
                bytes.extend_from_slice(&[7; 16]);
                bytes.extend_from_slice(&base.container.ordinal.to_le_bytes());
                bytes.extend_from_slice(&base.region.to_le_bytes());
            }
            assert!(Bases::decode(&mut Reader::new(&bytes)).is_err(), "{bases:?}, depth {depth}");
        }
    }

    #[test]
    fn lengths_take_as_many_bytes_as_the_longest() {
        let data = |format| Form { format, kind: ContainerKind::Data, side: Side::Back };
        for (longest, width) in [(1, 1), (255, 1), (256, 2), (32_768, 2), (65_536, 3), (1 << 24, 4), (u32::MAX, 4)] {
            let shape = |chunks| Shape { regions: 1, chunks, bases: 0, runs: 0, samples: 0, longest };
            assert_eq!(
                sealed_len(data(FormatVersion::V2), shape(9)) - sealed_len(data(FormatVersion::V2), shape(8)),
                width
            );
            assert_eq!(
                sealed_len(data(FormatVersion::V1), shape(9)) - sealed_len(data(FormatVersion::V1), shape(8)),
                4
            );
        }
    }
}
