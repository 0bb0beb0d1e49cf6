//! The fixed end of a container: where the directories are, and what authenticates the whole without a key.

use crate::codec::{Decoded, Reader};

/// Bytes of a trailer.
pub(crate) const TRAILER_LEN: usize = 64;
const MAGIC: [u8; 4] = *b"1FLT";
/// Where the digest of all bytes before it stands.
pub(crate) const CHECKSUM_OFFSET: usize = 24;
const CHECKED_LEN: usize = CHECKSUM_OFFSET + 32;

/// The trailer's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// Bytes of the sealed front directory, which begins behind the header.
    pub front_len: u32,
    /// Where the sealed back directory begins.
    pub back_offset: u32,
    /// Bytes of the sealed back directory, which ends where the trailer begins.
    pub back_len: u32,
    /// Bytes of all sealed regions, which begin behind the front directory.
    pub regions_len: u32,
}

impl Trailer {
    /// Returns the trailer of a container, and the checksum of all stored bytes; `digest` has taken everything before it.
    pub(crate) fn encode(&self, hasher: &blake3::Hasher) -> ([u8; TRAILER_LEN], [u8; 32]) {
        let mut trailer = Vec::with_capacity(TRAILER_LEN);
        trailer.extend_from_slice(&MAGIC);
        for field in [self.front_len, self.back_offset, self.back_len, self.regions_len, 0] {
            trailer.extend_from_slice(&field.to_le_bytes());
        }
        let mut hasher = hasher.clone();
        hasher.update(&trailer);
        trailer.extend_from_slice(hasher.finalize().as_bytes());
        // Lets a reader trust offsets and digest without reading the whole container.
        trailer.extend_from_slice(&crc32c::crc32c(&trailer).to_le_bytes());
        trailer.extend_from_slice(&[0; 4]);
        hasher.update(trailer.get(CHECKSUM_OFFSET..).unwrap_or_default());
        (trailer.try_into().expect("the fields add up to a trailer"), *hasher.finalize().as_bytes())
    }

    /// Reads a trailer. The digest within is checked only by who reads the whole container.
    pub(crate) fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        let fields = reader.clone().bytes(CHECKED_LEN)?;
        if reader.array()? != MAGIC {
            return Err(reader.error("does not end like a container"));
        }
        let trailer = Self {
            front_len: reader.u32()?,
            back_offset: reader.u32()?,
            back_len: reader.u32()?,
            regions_len: reader.u32()?,
        };
        let reserved = reader.u32()?;
        reader.bytes(32)?;
        let checksum = reader.u32()?;
        let reserved_too = reader.u32()?;
        if checksum != crc32c::crc32c(fields) || reserved != 0 || reserved_too != 0 {
            return Err(reader.error("trailer checksum"));
        }
        reader.finish()?;
        Ok(trailer)
    }
}
