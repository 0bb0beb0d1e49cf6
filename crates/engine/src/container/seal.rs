//! Sealing a container, and reading it back before it is believed.

use crate::codec::len_u32;
use crate::compress::{Algorithm, Compressor};
use crate::container::directory::{Directory, DirectoryChunk, RegionEntry, Side, sealed_len};
use crate::container::draft::Draft;
use crate::container::room::ContainerBytes;
use crate::container::trailer::{TRAILER_LEN, Trailer};
use crate::crypto::{Domain, Keys, ObjectKey, TAG_LEN};
use crate::error::{Error, Result};
use crate::fingerprint::fingerprint_batch;
use crate::io::AlignedBuffer;
use crate::object::header::{HEADER_LEN, Header, ObjectType};
use crate::object::names::{ContainerKind, ContainerName};
use crate::types::{RepositoryId, UnitChunk};

/// A container as it will be stored.
#[derive(Debug)]
pub struct SealedContainer {
    /// Its name, which contains the checksum of its bytes.
    pub name: ContainerName,
    /// All its bytes.
    pub bytes: ContainerBytes,
    /// Its chunks in order, to be recorded once it is durable.
    pub chunks: Vec<UnitChunk>,
}

/// Returns the bytes that a region's seal authenticates beside the region itself.
pub fn region_aad(header: &[u8], algorithm: Algorithm, plain_len: u32) -> Vec<u8> {
    let mut aad = header.to_vec();
    aad.push(algorithm.code());
    aad.extend_from_slice(&plain_len.to_le_bytes());
    aad
}

/// Rounds a length up to one of few: to a multiple of a power of two that loses at most 12%, less for longer ones.
/// (PADME: Nikitin et al., "Reducing Metadata Leakage from Encrypted Files", PETS 2019, section 4.)
pub fn padme(len: usize) -> usize {
    if len < 2 {
        return len;
    }
    let exponent = len.ilog2();
    let kept = exponent.ilog2() + 1;
    let mask = (1usize << (exponent.saturating_sub(kept))) - 1;
    (len + mask) & !mask
}

/// Seals drafts, one after another, in room that is kept from one to the next.
#[derive(Default, Debug)]
pub struct Sealer {
    compressor: Compressor,
    /// A sealed region, opened.
    opened: Vec<u8>,
    /// A region, decompressed.
    plain: Vec<u8>,
}

impl Sealer {
    /// Seals a draft into `room` and verifies the result: every region is opened, decompressed and fingerprinted again from
    /// the bytes that will be written, so that a fault of memory or of a compressor is caught while the source is still
    /// there.
    pub fn seal(
        &mut self,
        keys: &Keys,
        repository: RepositoryId,
        draft: &Draft,
        random: &[u8; 32],
        room: AlignedBuffer,
    ) -> Result<SealedContainer> {
        let directory = directory_of(draft);
        let (regions, chunks) = (directory.regions.len(), directory.chunks.len());
        let front_len = sealed_len(draft.kind, Side::Front, regions, chunks);
        let back_len = sealed_len(draft.kind, Side::Back, regions, chunks);
        let regions_len: usize = directory.regions.iter().map(|region| region.sealed_len as usize).sum();
        let (header, key) = header_of(keys, repository, draft, &directory, random, front_len);
        let header = header.encode();

        let len = padme(HEADER_LEN + front_len + regions_len + back_len + TRAILER_LEN);
        let back_offset = len - TRAILER_LEN - back_len;
        let mut bytes = ContainerBytes::within(room, len);
        let mut layout = Layout { bytes: bytes.bytes_mut(), end: 0 };
        layout.append(&header, 0);
        let front = layout.append(&directory.encode(draft.kind, Side::Front), TAG_LEN);
        key.seal_in_place(Domain::FrontDirectory, 0, &header, front);
        for (counter, (region, entry)) in (0u64..).zip(draft.regions.iter().zip(&directory.regions)) {
            let aad = region_aad(&header, entry.algorithm, entry.plain_len);
            let stored = region.stored();
            key.seal_into(Domain::Region, counter, &aad, stored, layout.leave(stored.len() + TAG_LEN));
        }
        layout.pad(back_offset);
        let back = layout.append(&directory.encode(draft.kind, Side::Back), TAG_LEN);
        key.seal_in_place(Domain::BackDirectory, 0, &header, back);
        let trailer = Trailer {
            front_len: len_u32(front_len),
            back_offset: len_u32(back_offset),
            back_len: len_u32(back_len),
            regions_len: len_u32(regions_len),
        };
        let (trailer, checksum) = trailer.encode(layout.written());
        layout.append(&trailer, 0);
        assert_eq!(layout.end, len, "the parts of a container add up");
        let name = ContainerName { id: draft.id, kind: draft.kind, checksum };
        self.verify(keys, &key, &name, &header, &directory, &bytes)?;
        let chunks = draft.regions.iter().flat_map(|region| &region.chunks);
        let chunks = chunks.map(|c| UnitChunk { fingerprint: c.fingerprint, len: c.len, kind: c.kind }).collect();
        Ok(SealedContainer { name, bytes, chunks })
    }

    fn verify(
        &mut self,
        keys: &Keys,
        key: &ObjectKey,
        name: &ContainerName,
        header: &[u8],
        directory: &Directory,
        bytes: &[u8],
    ) -> Result<()> {
        let wrong = |what: &str| {
            let object = name.path().display().to_string();
            Error::damaged(
                object,
                format!("{what} before it was written; this machine's memory or processor is faulty"),
            )
        };
        let mut offset =
            HEADER_LEN + sealed_len(name.kind, Side::Front, directory.regions.len(), directory.chunks.len());
        let mut chunks = directory.chunks.iter();
        let Self { compressor, opened, plain: scratch } = self;
        let mut fingerprints = Vec::new();
        for (counter, region) in (0u64..).zip(&directory.regions) {
            let end = offset + region.sealed_len as usize;
            let sealed = bytes.get(offset..end).ok_or_else(|| wrong("lost a region"))?;
            offset = end;
            let aad = region_aad(header, region.algorithm, region.plain_len);
            opened.resize(sealed.len() - TAG_LEN, 0);
            let opening = key.open_into(Domain::Region, counter, &aad, sealed, opened);
            opening.map_err(|_| wrong("broke a seal"))?;
            let stored = opened.as_slice();
            let plain_len = region.plain_len as usize;
            let plain = compressor.plaintext(region.algorithm, stored, plain_len, scratch);
            let mut rest = plain.ok_or_else(|| wrong("broke a compressed region"))?;
            let mut contents = Vec::with_capacity(region.chunk_count as usize);
            let named = chunks.as_slice().get(..region.chunk_count as usize).unwrap_or_default();
            for chunk in chunks.by_ref().take(region.chunk_count as usize) {
                let (stored, tail) = rest.split_at_checked(chunk.len as usize).ok_or_else(|| wrong("lost a chunk"))?;
                contents.push(stored.get(..stored.len() - chunk.hints_len as usize).unwrap_or_default());
                rest = tail;
            }
            fingerprints.clear();
            match name.kind {
                ContainerKind::Data => fingerprint_batch(keys, contents.into_iter(), &mut fingerprints),
                ContainerKind::Metadata => {
                    let each = named.iter().zip(contents);
                    fingerprints.extend(each.map(|(chunk, content)| keys.fingerprint(chunk.kind, content)));
                }
            }
            if !named.iter().map(|chunk| chunk.fingerprint).eq(fingerprints.iter().copied().map(Some)) {
                return Err(wrong("changed a chunk"));
            }
        }
        Ok(())
    }
}

/// A container that is being laid out from its beginning to its end.
struct Layout<'a> {
    bytes: &'a mut [u8],
    end: usize,
}

impl Layout<'_> {
    /// Appends bytes and leaves so much room behind them; returns both.
    fn append(&mut self, bytes: &[u8], room: usize) -> &mut [u8] {
        let part = self.leave(bytes.len() + room);
        part.get_mut(..bytes.len()).expect("the part is no shorter").copy_from_slice(bytes);
        part
    }

    /// Appends zeros up to a place.
    fn pad(&mut self, end: usize) {
        self.leave(end - self.end).fill(0);
    }

    /// Appends room, whatever is in it; returns it.
    fn leave(&mut self, len: usize) -> &mut [u8] {
        let start = self.end;
        self.end += len;
        self.bytes.get_mut(start..self.end).expect("a container is as long as its parts")
    }

    fn written(&self) -> &[u8] {
        self.bytes.get(..self.end).unwrap_or_default()
    }
}

fn directory_of(draft: &Draft) -> Directory {
    let mut directory = Directory::default();
    for region in &draft.regions {
        directory.regions.push(RegionEntry {
            sealed_len: len_u32(region.stored().len() + TAG_LEN),
            plain_len: region.plain_len,
            algorithm: region.algorithm.expect("regions are compressed before they are placed"),
            chunk_count: len_u32(region.chunks.len()),
        });
        directory.chunks.extend(region.chunks.iter().map(|chunk| DirectoryChunk {
            fingerprint: Some(chunk.fingerprint),
            kind: chunk.kind,
            len: chunk.len,
            hints_len: chunk.hints_len,
        }));
    }
    directory
}

fn header_of(
    keys: &Keys,
    repository: RepositoryId,
    draft: &Draft,
    directory: &Directory,
    random: &[u8; 32],
    front_len: usize,
) -> (Header, ObjectKey) {
    let object_type = match draft.kind {
        ContainerKind::Data => ObjectType::DataContainer,
        ContainerKind::Metadata => ObjectType::MetadataContainer,
    };
    let mut contents = blake3::Hasher::new();
    for chunk in &directory.chunks {
        contents.update(&chunk.fingerprint.map_or([0; 32], |fingerprint| fingerprint.0));
    }
    let mut identity = draft.id.session.0.to_vec();
    identity.extend_from_slice(&draft.id.ordinal.to_le_bytes());
    let salt = keys.salt(random, &identity, contents.finalize().as_bytes());
    let key = ObjectKey::derive(keys, object_type.purpose(), &salt, repository, object_type.code());
    let header = Header {
        object_type,
        repository,
        session: draft.id.session,
        ordinal: draft.id.ordinal,
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
    use crate::container::draft::{Region, RegionChunk};
    use crate::crypto::MasterKey;
    use crate::types::{ChunkKind, ContainerId, Sequence, SessionId};

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
    fn draft(kind: ContainerKind, compression: Compression) -> (Draft, Vec<Vec<u8>>) {
        let (keys, mut compressor) = (keys(), Compressor::default());
        let chunk_kind = if kind == ContainerKind::Data { ChunkKind::Data } else { ChunkKind::Tree };
        let mut draft =
            Draft { id: ContainerId { session: SessionId([4; 16]), ordinal: 5 }, kind, regions: Vec::new() };
        let mut plain = Vec::new();
        for number in 0..2u8 {
            let mut region = Region::default();
            for chunk in 0..3u8 {
                let bytes = [number, chunk, 7, 8, 9].repeat(20);
                let fingerprint = keys.fingerprint(chunk_kind, &bytes);
                let sequence = Sequence(u64::from(number * 3 + chunk));
                let len = len_u32(bytes.len());
                region.push(RegionChunk { fingerprint, kind: chunk_kind, len, hints_len: 0, sequence }, &bytes);
            }
            region.compress(&mut compressor, compression);
            plain.push(region.plain.clone());
            draft.regions.push(region);
        }
        (draft, plain)
    }

    fn seal(draft: &Draft) -> Result<SealedContainer> {
        Sealer::default().seal(&keys(), REPOSITORY, draft, &RANDOM, AlignedBuffer::default())
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
            let (draft, _) = draft(kind, compression);
            let sealed = seal(&draft).unwrap();
            let keys = keys();
            let directory = directory_of(&draft);
            let front_len = sealed_len(kind, Side::Front, directory.regions.len(), directory.chunks.len());
            let (header, key) = header_of(&keys, REPOSITORY, &draft, &directory, &RANDOM, front_len);
            let header = header.encode();
            let verified =
                |bytes: &[u8]| damage(Sealer::default().verify(&keys, &key, &sealed.name, &header, &directory, bytes));
            assert_eq!(verified(&sealed.bytes), None);
            let start = HEADER_LEN + front_len;
            let regions_len: usize = directory.regions.iter().map(|region| region.sealed_len as usize).sum();
            for at in start..start + regions_len {
                let mut bytes = sealed.bytes.to_vec();
                bytes[at] ^= 1 << (at % 8);
                let reason = verified(&bytes).unwrap_or_else(|| panic!("byte {at} of {kind:?} is not verified"));
                assert!(reason.starts_with("broke a seal"), "{reason}");
            }
            let reason = verified(&sealed.bytes[..start + regions_len - 1]).unwrap();
            assert!(reason.starts_with("lost a region"), "{reason}");
        }
    }

    #[test]
    fn a_bit_that_flips_before_sealing_is_noticed() {
        for (kind, compression) in KINDS.into_iter().zip(COMPRESSIONS) {
            let (draft, plain) = draft(kind, compression);
            let mut compressor = Compressor::default();
            let (mut noticed, mut bits) = (0, 0);
            for number in 0..draft.regions.len() {
                for bit in 0..draft.regions[number].stored().len() * 8 {
                    let mut regions = draft.regions.clone();
                    let region = &mut regions[number];
                    region.stored_mut()[bit / 8] ^= 1 << (bit % 8);
                    // A few bits of a compressed frame mean nothing: a flip of those loses nothing.
                    let mut now = Vec::new();
                    let len = region.plain_len as usize;
                    let algorithm = region.algorithm.unwrap();
                    let is_same =
                        compressor.decompress(algorithm, region.stored(), len, &mut now) && now == plain[number];
                    let is_noticed = damage(seal(&Draft { id: draft.id, kind, regions })).is_some();
                    assert_eq!(is_noticed, !is_same, "bit {bit} of region {number}, {compression:?}");
                    noticed += usize::from(is_noticed);
                    bits += 1;
                }
            }
            assert!(bits / 2 < noticed, "{noticed} of {bits}, {compression:?}");
        }
    }

    #[test]
    fn chunks_that_are_not_what_the_draft_says_are_noticed() {
        for (kind, compression) in KINDS.into_iter().zip(COMPRESSIONS) {
            let refused = |change: &dyn Fn(&mut Region)| {
                let (mut draft, _) = draft(kind, compression);
                change(&mut draft.regions[1]);
                damage(seal(&draft)).unwrap()
            };
            for chunk in 0..3 {
                let reason = refused(&|region| region.chunks[chunk].fingerprint.0[31] ^= 1);
                assert!(reason.starts_with("changed a chunk"), "{reason}");
            }
            let reason = refused(&|region| region.chunks.swap(0, 2));
            assert!(reason.starts_with("changed a chunk"), "{reason}");
            let reason = refused(&|region| region.chunks[2].len += 1);
            assert!(reason.starts_with("lost a chunk"), "{reason}");
            let reason = refused(&|region| region.plain_len -= 1);
            assert!(reason.starts_with("broke a compressed region"), "{reason}");
        }
    }
}
