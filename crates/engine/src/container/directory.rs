//! The directory of a container: its regions and its chunks in order. Stored twice.
//!
//! The front directory holds the fingerprint of every chunk. The back directory omits the fingerprints, since they follow
//! from the plaintext, and is equal otherwise.

use crate::codec::{Decoded, Reader, len_u32};
use crate::compress::Algorithm;
use crate::crypto::TAG_LEN;
use crate::object::names::ContainerKind;
use crate::types::{Chunk, ChunkKind, FINGERPRINT_LEN, Fingerprint};

/// Most regions in a container.
pub(crate) const REGIONS_MAX: usize = 4096;
/// Most chunks in a container.
pub(crate) const CHUNKS_MAX: usize = 65_536;
const REGION_ENTRY_LEN: usize = 13;
const HEAD_LEN: usize = 8;

/// One region as the directory describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionEntry {
    /// Bytes it takes in the container, tag included.
    pub sealed_len: u32,
    /// Bytes of its plaintext.
    pub plain_len: u32,
    /// How it was compressed.
    pub algorithm: Algorithm,
    /// How many of the container's chunks it holds.
    pub chunk_count: u32,
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

/// A container's table of contents.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Directory {
    /// Regions in the order they are stored.
    pub regions: Vec<RegionEntry>,
    /// Chunks in the order of the regions' plaintext.
    pub chunks: Vec<DirectoryChunk>,
}

/// Which of the two directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Behind the header, with fingerprints.
    Front,
    /// Before the trailer, without.
    Back,
}

fn chunk_entry_len(kind: ContainerKind, side: Side) -> usize {
    let fingerprint = match side {
        Side::Front => FINGERPRINT_LEN,
        Side::Back => 0,
    };
    match kind {
        ContainerKind::Data => fingerprint + 4,
        ContainerKind::Metadata => fingerprint + 9,
    }
}

/// Returns the sealed length of a directory.
pub(crate) fn sealed_len(kind: ContainerKind, side: Side, regions: usize, chunks: usize) -> usize {
    HEAD_LEN + regions * REGION_ENTRY_LEN + chunks * chunk_entry_len(kind, side) + TAG_LEN
}

impl Directory {
    /// Returns the plaintext form. Chunks of a front directory must have fingerprints.
    pub fn encode(&self, kind: ContainerKind, side: Side) -> Vec<u8> {
        let mut out = Vec::with_capacity(sealed_len(kind, side, self.regions.len(), self.chunks.len()));
        out.extend_from_slice(&len_u32(self.regions.len()).to_le_bytes());
        out.extend_from_slice(&len_u32(self.chunks.len()).to_le_bytes());
        for region in &self.regions {
            out.extend_from_slice(&region.sealed_len.to_le_bytes());
            out.extend_from_slice(&region.plain_len.to_le_bytes());
            out.push(region.algorithm.code());
            out.extend_from_slice(&region.chunk_count.to_le_bytes());
        }
        for chunk in &self.chunks {
            if side == Side::Front {
                out.extend_from_slice(&chunk.fingerprint.expect("chunks are packed with their fingerprints").0);
            }
            if kind == ContainerKind::Metadata {
                out.push(chunk.kind.code());
                out.extend_from_slice(&chunk.hints_len.to_le_bytes());
            }
            out.extend_from_slice(&chunk.len.to_le_bytes());
        }
        out
    }

    /// Reads the plaintext form. Afterward every region's chunks add up to its plaintext, and no region's plaintext is
    /// longer than `region_bytes_limit`.
    pub(crate) fn decode(bytes: &[u8], kind: ContainerKind, side: Side, region_bytes_limit: u32) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        let region_count = reader.count32(REGION_ENTRY_LEN)?;
        let chunk_count = reader.count32(chunk_entry_len(kind, side))?;
        if REGIONS_MAX < region_count || CHUNKS_MAX < chunk_count {
            return Err(reader.error("more regions or chunks than a container can hold"));
        }
        let mut directory = Self { regions: Vec::with_capacity(region_count), chunks: Vec::with_capacity(chunk_count) };
        for _ in 0..region_count {
            directory.regions.push(decode_region(&mut reader, region_bytes_limit)?);
        }
        for _ in 0..chunk_count {
            directory.chunks.push(decode_chunk(&mut reader, kind, side)?);
        }
        let error = reader.error("regions and chunks do not add up");
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

fn decode_region(reader: &mut Reader<'_>, region_bytes_limit: u32) -> Decoded<RegionEntry> {
    let (sealed_len, plain_len) = (reader.u32()?, reader.u32()?);
    let Some(algorithm) = Algorithm::from_code(reader.u8()?) else {
        return Err(reader.error("unknown compression"));
    };
    let chunk_count = reader.u32()?;
    if region_bytes_limit < plain_len {
        return Err(reader.error("region longer than regions can be"));
    }
    // Compression is kept only where it shrinks, so the plaintext bounds what is stored.
    if (sealed_len as usize) < TAG_LEN || u64::from(plain_len) + (TAG_LEN as u64) < u64::from(sealed_len) {
        return Err(reader.error("region of an impossible length"));
    }
    Ok(RegionEntry { sealed_len, plain_len, algorithm, chunk_count })
}

fn decode_chunk(reader: &mut Reader<'_>, kind: ContainerKind, side: Side) -> Decoded<DirectoryChunk> {
    let fingerprint = match side {
        Side::Front => Some(reader.fingerprint()?),
        Side::Back => None,
    };
    let (chunk_kind, hints_len) = match kind {
        ContainerKind::Data => (ChunkKind::Data, 0),
        ContainerKind::Metadata => {
            let code = reader.u8()?;
            match ChunkKind::from_code(code) {
                Some(kind @ (ChunkKind::Tree | ChunkKind::Recipe)) => (kind, reader.u32()?),
                Some(ChunkKind::Data) | None => return Err(reader.error("chunk of a kind that does not belong here")),
            }
        }
    };
    let len = reader.u32()?;
    if len < hints_len || len == 0 {
        return Err(reader.error("chunk of an impossible length"));
    }
    Ok(DirectoryChunk { fingerprint, kind: chunk_kind, len, hints_len })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Directory {
        let chunk = |byte, len| DirectoryChunk {
            fingerprint: Some(Fingerprint([byte; 32])),
            kind: ChunkKind::Tree,
            len,
            hints_len: 1,
        };
        Directory {
            regions: vec![
                RegionEntry { sealed_len: 40, plain_len: 30, algorithm: Algorithm::Zstd, chunk_count: 2 },
                RegionEntry { sealed_len: 23, plain_len: 7, algorithm: Algorithm::None, chunk_count: 1 },
            ],
            chunks: vec![chunk(1, 10), chunk(2, 20), chunk(3, 7)],
        }
    }

    #[test]
    fn both_sides_come_back() {
        for side in [Side::Front, Side::Back] {
            let bytes = directory().encode(ContainerKind::Metadata, side);
            assert_eq!(bytes.len() + TAG_LEN, sealed_len(ContainerKind::Metadata, side, 2, 3));
            let back = Directory::decode(&bytes, ContainerKind::Metadata, side, 30).unwrap();
            assert!(back.agrees_with(&directory()));
            assert!(Directory::decode(&bytes, ContainerKind::Metadata, side, 29).is_err());
            assert!(Directory::decode(&bytes[..bytes.len() - 1], ContainerKind::Metadata, side, 30).is_err());
        }
    }

    #[test]
    fn a_directory_that_does_not_add_up_is_refused() {
        let mut wrong = directory();
        wrong.chunks[0].len = 11;
        let bytes = wrong.encode(ContainerKind::Metadata, Side::Front);
        assert!(Directory::decode(&bytes, ContainerKind::Metadata, Side::Front, 1000).is_err());
    }
}
