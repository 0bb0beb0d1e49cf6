//! Sealing a container, and reading it back before it is believed.

use std::sync::Arc;

use crate::codec::len_u32;
use crate::compress::Compressor;
use crate::container::bases::{Base, Bases};
use crate::container::builder::{ContainerBuilder, Region, RegionChunk};
use crate::container::directory::{
    Directory, DirectoryChunk, Form, RegionEntry, RegionSample, Shape, Side, sealed_len,
};
use crate::container::trailer::{TRAILER_LEN, Trailer};
use crate::crypto::{Domain, Keys, ObjectKey, TAG_LEN};
use crate::error::{Error, Result};
use crate::fingerprint::fingerprint_batch;
use crate::io::AlignedBuffer;
use crate::object::bytes::ObjectBytes;
use crate::object::header::{FormatVersion, HEADER_LEN, Header, ObjectType};
use crate::object::names::{ContainerKind, ContainerName};
use crate::types::{Chunk, ContainerId, RepositoryId};

/// A container as it will be stored.
#[derive(Debug)]
pub struct SealedContainer {
    /// Its name, which contains the checksum of its bytes.
    pub(crate) name: ContainerName,
    /// All its bytes.
    pub bytes: ObjectBytes,
    /// Its chunks in order, to be recorded once it is durable.
    pub(crate) chunks: Vec<Chunk>,
}

/// Returns the additional bytes that a region's seal authenticates.
pub(crate) fn region_aad(format: FormatVersion, header: &[u8], region: &RegionEntry) -> Vec<u8> {
    let mut aad = header.to_vec();
    aad.push(region.algorithm.code());
    aad.extend_from_slice(&region.plain_len.to_le_bytes());
    if format != FormatVersion::V1 {
        region.bases.encode(&mut aad);
    }
    aad
}

/// The plaintext of a region, or a prefix, which several threads read. A buffer that was decompressed into is not copied.
pub(crate) type Plaintext = Arc<Vec<u8>>;

/// Reads bases for regions that are compressed and verified.
pub(crate) trait BasePlaintexts: std::fmt::Debug + Send + Sync {
    /// Returns the list of bases of a region that is to be compressed against these; `None` if they, or the bases of
    /// these, are more or deeper than allowed.
    fn list(&self, bases: Vec<Base>) -> Result<Option<Bases>>;

    /// Returns the plaintexts of some regions, one after the other.
    fn prefix(&self, bases: &Bases) -> Result<Plaintext>;

    /// Returns true if the chunks of the plaintext of a region in a container of this kind, and those of the prefix that it was decompressed
    /// with, have their fingerprints.
    fn is_right(&self, named: (ContainerKind, &[RegionChunk]), plain: &[u8], bases: &Bases, prefix: &[u8]) -> bool;
}

/// Rounds a length up to one of few: to a multiple of a power of two that loses at most 12%, less for longer ones.
/// (PADME: Nikitin et al., "Reducing Metadata Leakage from Encrypted Files", PETS 2019, section 4.)
pub(crate) fn padme(len: usize) -> usize {
    if len < 2 {
        return len;
    }
    let exponent = len.ilog2();
    let kept = exponent.ilog2() + 1;
    let mask = (1usize << (exponent.saturating_sub(kept))) - 1;
    (len + mask) & !mask
}

/// Bytes of a sealed container and of its parts.
struct Lengths {
    front: usize,
    regions: usize,
    back: usize,
    all: usize,
}

impl Lengths {
    fn of(builder: &ContainerBuilder) -> Self {
        let shape = builder.regions.iter().map(Region::shape).fold(Shape::default(), Shape::with);
        let form = |side| Form { format: builder.format, kind: builder.kind, side };
        let (front, back) = (sealed_len(form(Side::Front), shape), sealed_len(form(Side::Back), shape));
        let regions = builder.regions.iter().map(|region| region.stored().len() + TAG_LEN).sum();
        Self { front, regions, back, all: padme(HEADER_LEN + front + regions + back + TRAILER_LEN) }
    }
}

/// Returns the bytes that a container has once it is sealed.
pub(crate) fn len_sealed(builder: &ContainerBuilder) -> u64 {
    Lengths::of(builder).all as u64
}

/// Seals containers one after another and reuses its buffers.
#[derive(Default, Debug)]
pub struct Sealer {
    compressor: Compressor,
    /// A sealed region, opened.
    opened: Vec<u8>,
    /// A region, decompressed.
    plain: Vec<u8>,
    /// Reads the bases of regions that have some.
    bases: Option<Arc<dyn BasePlaintexts>>,
}

impl Sealer {
    /// Verifies regions with bases, too.
    pub(crate) fn with_bases(mut self, bases: Option<Arc<dyn BasePlaintexts>>) -> Self {
        self.bases = bases;
        self
    }

    /// Seals a container into `buffer` and verifies the result. Each region is opened, decompressed and fingerprinted again,
    /// right after it is sealed, from the bytes that will be written: a fault of memory or of a compressor is caught while
    /// the source still exists. A bit that flips later is caught by the container digest when the container is read.
    /// A region that was compared with its fingerprints when it was read is not decompressed again: what is opened must have
    /// the checksum of what was compared.
    pub fn seal(
        &mut self,
        keys: &Keys,
        repository: RepositoryId,
        builder: &ContainerBuilder,
        random: &[u8; 32],
        buffer: AlignedBuffer,
    ) -> Result<SealedContainer> {
        let directory = directory_of(builder);
        let Lengths { front: front_len, regions: regions_len, back: back_len, all: len } = Lengths::of(builder);
        let (header, key) = header_of(keys, repository, builder, &directory, random, front_len);
        let header = header.encode();

        let form = |side| Form { format: builder.format, kind: builder.kind, side };
        let back_offset = len - TRAILER_LEN - back_len;
        let mut bytes = ObjectBytes::within(buffer, len);
        let mut layout = Layout::of(bytes.bytes_mut());
        layout.append(&header, 0);
        let front = layout.append(&directory.encode(form(Side::Front)), TAG_LEN);
        key.seal_in_place(Domain::FrontDirectory, 0, &header, front);
        let reading = Reading { keys, key: &key, header: &header, format: builder.format, kind: builder.kind };
        let mut named = directory.chunks.as_slice();
        for (counter, (region, entry)) in (0u64..).zip(builder.regions.iter().zip(&directory.regions)) {
            let stored = region.stored();
            let aad = region_aad(builder.format, &header, entry);
            key.seal_into(Domain::Region, counter, &aad, stored, layout.leave(stored.len() + TAG_LEN));
            let chunks = named.split_off(..entry.chunk_count as usize);
            let chunks = chunks.ok_or_else(|| faulty(builder.id, "changed a directory"))?;
            // Both while the region is in the processor's cache, and the digest first: what changes after it is noticed by
            // who compares the digest, what changed before by this reading.
            layout.hasher();
            let sealed = layout.last(stored.len() + TAG_LEN);
            let verified = match region.compared {
                None => self.verify(&reading, counter, entry, chunks, sealed),
                Some(checksum) => self.verify_carried(&reading, counter, entry, checksum, sealed),
            };
            verified.map_err(|what| faulty(builder.id, what))?;
        }
        if !named.is_empty() {
            return Err(faulty(builder.id, "changed a directory"));
        }
        layout.pad(back_offset);
        let back = layout.append(&directory.encode(form(Side::Back)), TAG_LEN);
        key.seal_in_place(Domain::BackDirectory, 0, &header, back);
        let trailer = Trailer {
            front_len: len_u32(front_len),
            back_offset: len_u32(back_offset),
            back_len: len_u32(back_len),
            regions_len: len_u32(regions_len),
        };
        let (trailer, checksum) = trailer.encode(layout.hasher());
        layout.append(&trailer, 0);
        assert_eq!(layout.end, len, "the parts of a container add up");
        let name = ContainerName { id: builder.id, kind: builder.kind, checksum };
        let chunks = builder.regions.iter().flat_map(|region| &region.chunks);
        Ok(SealedContainer { name, bytes, chunks: chunks.map(|packed| packed.chunk).collect() })
    }

    /// Reads a sealed region back and compares its chunks with their fingerprints.
    fn verify(
        &mut self,
        reading: &Reading<'_>,
        counter: u64,
        region: &RegionEntry,
        named: &[DirectoryChunk],
        sealed: &[u8],
    ) -> std::result::Result<(), &'static str> {
        self.open(reading, counter, region, sealed)?;
        let Self { compressor, opened, plain: scratch, bases } = self;
        let prefix = match bases {
            _ if region.bases.is_empty() => None,
            None => return Err("lost the bases of a region"),
            Some(bases) => Some(bases.prefix(&region.bases).map_err(|_| "lost the bases of a region")?),
        };
        let plain =
            region.plaintext(prefix.as_deref().map(Vec::as_slice).unwrap_or_default(), opened, compressor, scratch);
        let plain = plain.ok_or("broke a compressed region")?;
        compare_chunks((reading.keys, reading.kind), named, plain)
    }

    /// Reads a sealed region back and compares its checksum.
    fn verify_carried(
        &mut self,
        reading: &Reading<'_>,
        counter: u64,
        region: &RegionEntry,
        checksum: u32,
        sealed: &[u8],
    ) -> std::result::Result<(), &'static str> {
        self.open(reading, counter, region, sealed)?;
        (checksum_of(&self.opened, &region.bases) == checksum).then_some(()).ok_or("changed a region")
    }

    /// Opens a sealed region into `opened`.
    fn open(
        &mut self,
        reading: &Reading<'_>,
        counter: u64,
        region: &RegionEntry,
        sealed: &[u8],
    ) -> std::result::Result<(), &'static str> {
        let aad = region_aad(reading.format, reading.header, region);
        self.opened.resize(sealed.len().saturating_sub(TAG_LEN), 0);
        let opening = reading.key.open_into(Domain::Region, counter, &aad, sealed, &mut self.opened);
        opening.map_err(|_| "broke a seal")
    }
}

/// Returns the checksum by which a region is recognized that was compared with its fingerprints: of its stored form, and of its bases.
pub(crate) fn checksum_of(stored: &[u8], bases: &Bases) -> u32 {
    let checksum = crc32c::crc32c(stored);
    if bases.is_empty() {
        return checksum;
    }
    let mut encoded = Vec::new();
    bases.encode(&mut encoded);
    crc32c::crc32c_append(checksum, &encoded)
}

/// Compares the chunks of a plaintext with the names that a directory gives them.
pub(crate) fn compare_chunks(
    (keys, kind): (&Keys, ContainerKind),
    named: &[DirectoryChunk],
    plain: &[u8],
) -> std::result::Result<(), &'static str> {
    let mut rest = plain;
    let mut contents = Vec::with_capacity(named.len());
    for chunk in named {
        let (stored, tail) = rest.split_at_checked(chunk.len as usize).ok_or("lost a chunk")?;
        contents.push(stored.get(..stored.len().saturating_sub(chunk.hints_len as usize)).unwrap_or_default());
        rest = tail;
    }
    if !rest.is_empty() {
        return Err("lost a chunk");
    }
    let mut fingerprints = Vec::with_capacity(named.len());
    match kind {
        ContainerKind::Data => fingerprint_batch(keys, contents.into_iter(), &mut fingerprints),
        ContainerKind::Metadata => {
            let each = named.iter().zip(contents);
            fingerprints.extend(each.map(|(chunk, content)| keys.fingerprint(chunk.kind, content)));
        }
    }
    let is_same = named.iter().map(|chunk| chunk.fingerprint).eq(fingerprints.into_iter().map(Some));
    is_same.then_some(()).ok_or("changed a chunk")
}

fn faulty(container: ContainerId, what: &str) -> Error {
    let reason = format!("{what} before it was written; this machine's memory or processor is faulty");
    Error::damaged(format!("container {container}"), reason)
}

/// The parts of a container that verifying a region needs.
struct Reading<'a> {
    keys: &'a Keys,
    key: &'a ObjectKey,
    header: &'a [u8],
    format: FormatVersion,
    kind: ContainerKind,
}

/// A container that is written from its beginning to its end.
struct Layout<'a> {
    bytes: &'a mut [u8],
    end: usize,
    /// Of the bytes before `digested`.
    hasher: blake3::Hasher,
    hashed: usize,
}

impl<'a> Layout<'a> {
    fn of(bytes: &'a mut [u8]) -> Self {
        Self { bytes, end: 0, hasher: blake3::Hasher::new(), hashed: 0 }
    }

    /// Appends bytes and `buffer` free bytes; returns both.
    fn append(&mut self, bytes: &[u8], buffer: usize) -> &mut [u8] {
        let part = self.leave(bytes.len() + buffer);
        part.get_mut(..bytes.len()).expect("the part is no shorter").copy_from_slice(bytes);
        part
    }

    /// Appends zeros up to an offset.
    fn pad(&mut self, end: usize) {
        self.leave(end - self.end).fill(0);
    }

    /// Appends `len` arbitrary bytes and returns them.
    fn leave(&mut self, len: usize) -> &mut [u8] {
        let start = self.end;
        self.end += len;
        self.bytes.get_mut(start..self.end).expect("a container is as long as its parts")
    }

    /// Takes what was appended, which does not change any more, into the digest; returns that of everything so far.
    fn hasher(&mut self) -> &blake3::Hasher {
        self.hasher.update(self.bytes.get(self.hashed..self.end).unwrap_or_default());
        self.hashed = self.end;
        &self.hasher
    }

    /// Returns the last `len` bytes that were appended.
    fn last(&self, len: usize) -> &[u8] {
        self.bytes.get(self.end - len..self.end).expect("as many were appended")
    }
}

fn directory_of(builder: &ContainerBuilder) -> Directory {
    let mut directory = Directory::default();
    for region in &builder.regions {
        directory.regions.push(RegionEntry {
            sealed_len: len_u32(region.stored().len() + TAG_LEN),
            plain_len: region.plain_len,
            algorithm: region.algorithm.expect("regions are compressed before they are placed"),
            chunk_count: len_u32(region.chunks.len()),
            bases: region.bases.clone(),
        });
        directory.chunks.extend(region.chunks.iter().map(RegionChunk::named));
    }
    for (number, region) in (0u16..).zip(&builder.regions) {
        let start = directory.samples.len();
        let of_region = region.samples.iter().map(|sample| RegionSample { region: number, hash: sample.hash });
        directory.samples.extend(of_region);
        if let Some(of_region) = directory.samples.get_mut(start..) {
            of_region.sort_unstable();
        }
    }
    directory
}

fn header_of(
    keys: &Keys,
    repository: RepositoryId,
    builder: &ContainerBuilder,
    directory: &Directory,
    random: &[u8; 32],
    front_len: usize,
) -> (Header, ObjectKey) {
    let object_type = match builder.kind {
        ContainerKind::Data => ObjectType::DataContainer,
        ContainerKind::Metadata => ObjectType::MetadataContainer,
    };
    let mut contents = blake3::Hasher::new();
    for chunk in &directory.chunks {
        contents.update(&chunk.fingerprint.map_or([0; 32], |fingerprint| fingerprint.0));
    }
    let mut identity = builder.id.session.0.to_vec();
    identity.extend_from_slice(&builder.id.ordinal.to_le_bytes());
    let salt = keys.salt(random, &identity, contents.finalize().as_bytes());
    let key = ObjectKey::derive(keys, object_type.purpose(), &salt, repository, object_type.code());
    let header = Header {
        format: builder.format,
        object_type,
        repository,
        session: builder.id.session,
        ordinal: builder.id.ordinal,
        key_epoch: 0,
        salt,
        commitment: *key.commitment(),
        sealed_len: len_u32(front_len),
    };
    (header, key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::Compression;
    use crate::container::builder::Region;
    use crate::crypto::MasterKey;
    use crate::types::{ChunkKind, Sequence, SessionId};

    #[test]
    fn padding_follows_the_paper_and_keeps_full_containers_full() {
        assert_eq!([padme(0), padme(1), padme(9), padme(100), padme(1000)], [0, 1, 10, 104, 1024]);
        assert_eq!(padme(4 << 20), 4 << 20);
        assert_eq!(padme((4 << 20) - 100), 4 << 20);
        for bytes in (64usize << 10..=64 << 20).step_by(2048) {
            let allowed = bytes.trailing_zeros() + 5 >= bytes.ilog2();
            assert_eq!(padme(bytes) == bytes, allowed, "container of {bytes} bytes");
        }
        assert!((1..100_000).all(|len| len <= padme(len) && padme(len) <= len + len / 8 + 1));
    }

    const RANDOM: [u8; 32] = [3; 32];
    const REPOSITORY: RepositoryId = RepositoryId([2; 16]);

    fn keys() -> Keys {
        Keys::derive(&MasterKey([1; 32]), REPOSITORY)
    }

    /// Returns a draft of two regions of three chunks each, and the plaintext of the regions.
    fn builder(kind: ContainerKind, compression: Compression) -> (ContainerBuilder, Vec<Vec<u8>>) {
        let (keys, mut compressor) = (keys(), Compressor::default());
        let chunk_kind = if kind == ContainerKind::Data { ChunkKind::Data } else { ChunkKind::Tree };
        let mut builder = ContainerBuilder {
            format: FormatVersion::V1,
            id: ContainerId { session: SessionId([4; 16]), ordinal: 5 },
            kind,
            regions: Vec::new(),
        };
        let mut plain = Vec::new();
        for number in 0..2u8 {
            let mut region = Region::default();
            for chunk in 0..3u8 {
                let bytes = [number, chunk, 7, 8, 9].repeat(20);
                let fingerprint = keys.fingerprint(chunk_kind, &bytes);
                let sequence = Sequence(u64::from(number * 3 + chunk));
                let len = len_u32(bytes.len());
                let chunk = Chunk { fingerprint, len };
                region.push(RegionChunk { chunk, kind: chunk_kind, hints_len: 0, sequence }, &bytes);
            }
            region.compress(&mut compressor, compression);
            plain.push(region.plain.clone());
            builder.regions.push(region);
        }
        (builder, plain)
    }

    fn seal(builder: &ContainerBuilder) -> Result<SealedContainer> {
        Sealer::default().seal(&keys(), REPOSITORY, builder, &RANDOM, AlignedBuffer::default())
    }

    /// Says what was found damaged; `None` where nothing was.
    fn damage<T>(result: Result<T>) -> Option<String> {
        match result {
            Ok(_) => None,
            Err(Error::Damaged { reason, .. }) => Some(reason),
            Err(error) => panic!("{error}"),
        }
    }

    const KINDS: [ContainerKind; 2] = [ContainerKind::Data, ContainerKind::Metadata];
    const COMPRESSIONS: [Compression; 2] = [Compression::Off, Compression::Zstd(3)];

    #[test]
    fn a_bit_that_flips_in_a_sealed_region_is_noticed() {
        for (kind, compression) in KINDS.into_iter().zip(COMPRESSIONS) {
            let (builder, _) = builder(kind, compression);
            let sealed = seal(&builder).unwrap();
            let keys = keys();
            let directory = directory_of(&builder);
            let front_len = Lengths::of(&builder).front;
            let (header, key) = header_of(&keys, REPOSITORY, &builder, &directory, &RANDOM, front_len);
            let header = header.encode();
            let reading = Reading { keys: &keys, key: &key, header: &header, format: FormatVersion::V1, kind };
            let mut start = HEADER_LEN + front_len;
            let mut named = directory.chunks.as_slice();
            for (counter, region) in (0u64..).zip(&directory.regions) {
                let chunks = named.split_off(..region.chunk_count as usize).unwrap();
                let verified = |bytes: &[u8]| Sealer::default().verify(&reading, counter, region, chunks, bytes);
                let bytes = &sealed.bytes[start..start + region.sealed_len as usize];
                assert_eq!(verified(bytes), Ok(()));
                for at in 0..bytes.len() {
                    let mut bytes = bytes.to_vec();
                    bytes[at] ^= 1 << (at % 8);
                    assert_eq!(verified(&bytes), Err("broke a seal"), "byte {at} of region {counter} of {kind:?}");
                }
                assert_eq!(verified(&bytes[1..]), Err("broke a seal"));
                assert_eq!(verified(&[]), Err("broke a seal"));
                start += bytes.len();
            }
            assert!(named.is_empty());
        }
    }

    #[test]
    fn a_bit_that_flips_before_sealing_is_noticed() {
        for (kind, compression) in KINDS.into_iter().zip(COMPRESSIONS) {
            let (builder, plain) = builder(kind, compression);
            let mut compressor = Compressor::default();
            let (mut noticed, mut bits) = (0, 0);
            for number in 0..builder.regions.len() {
                for bit in 0..builder.regions[number].stored().len() * 8 {
                    let mut regions = builder.regions.clone();
                    let region = &mut regions[number];
                    region.stored_mut()[bit / 8] ^= 1 << (bit % 8);
                    // A few bits of a compressed frame mean nothing: a flip of those loses nothing.
                    let mut now = Vec::new();
                    let len = region.plain_len as usize;
                    let algorithm = region.algorithm.unwrap();
                    let is_same =
                        compressor.decompress(algorithm, region.stored(), len, &mut now) && now == plain[number];
                    let is_noticed =
                        damage(seal(&ContainerBuilder { id: builder.id, format: builder.format, kind, regions }))
                            .is_some();
                    assert_eq!(is_noticed, !is_same, "bit {bit} of region {number}, {compression:?}");
                    noticed += usize::from(is_noticed);
                    bits += 1;
                }
            }
            assert!(bits / 2 < noticed, "{noticed} of {bits}, {compression:?}");
        }
    }

    #[test]
    fn a_bit_that_flips_in_a_region_that_is_carried_over_is_noticed() {
        for (kind, compression) in KINDS.into_iter().zip(COMPRESSIONS) {
            let (mut builder, plain) = builder(kind, compression);
            for region in &mut builder.regions {
                region.compared = Some(crc32c::crc32c(region.stored()));
            }
            let sealed = seal(&builder).unwrap();
            assert_eq!(sealed.chunks.len(), 6);
            let mut opened = Vec::new();
            for number in 0..builder.regions.len() {
                let stored = builder.regions[number].stored();
                let len = plain[number].len();
                let algorithm = builder.regions[number].algorithm.unwrap();
                assert!(
                    Compressor::default().decompress(algorithm, stored, len, &mut opened) && opened == plain[number]
                );
                for bit in 0..stored.len() * 8 {
                    let mut regions = builder.regions.clone();
                    regions[number].stored_mut()[bit / 8] ^= 1 << (bit % 8);
                    let reason =
                        damage(seal(&ContainerBuilder { id: builder.id, format: builder.format, kind, regions }))
                            .unwrap();
                    assert!(reason.starts_with("changed a region"), "bit {bit} of region {number}: {reason}");
                }
            }
        }
    }

    #[test]
    fn chunks_that_are_not_what_the_draft_says_are_noticed() {
        for (kind, compression) in KINDS.into_iter().zip(COMPRESSIONS) {
            let refused = |change: &dyn Fn(&mut Region)| {
                let (mut builder, _) = builder(kind, compression);
                change(&mut builder.regions[1]);
                damage(seal(&builder)).unwrap()
            };
            for chunk in 0..3 {
                let reason = refused(&|region| region.chunks[chunk].chunk.fingerprint.0[31] ^= 1);
                assert!(reason.starts_with("changed a chunk"), "{reason}");
            }
            let reason = refused(&|region| region.chunks.swap(0, 2));
            assert!(reason.starts_with("changed a chunk"), "{reason}");
            let reason = refused(&|region| region.chunks[2].chunk.len += 1);
            assert!(reason.starts_with("lost a chunk"), "{reason}");
            let reason = refused(&|region| region.plain_len -= 1);
            assert!(reason.starts_with("broke a compressed region"), "{reason}");
        }
    }
}
