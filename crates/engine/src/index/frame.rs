//! Pages of the logs: whole records behind a checked header.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | CRC32C of all that follows |
//! | 4 | 8 | number of the page |
//! | 12 | 2 | number of records |
//! | 14 | 2 | zero |
//! | 16 | | records |
#![deny(clippy::indexing_slicing)]

use crate::kv::Fields;

/// Bytes of a page.
pub const FRAME_BYTES: usize = 4096;

/// Bytes of a page before its records.
pub const FRAME_HEADER_BYTES: usize = 16;

/// Encodes a page of `count` records, which `encode` appends.
pub fn encode_frame(number: u64, count: usize, encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let count = u16::try_from(count).expect("a page holds fewer than 65,536 records");
    let mut page = Vec::with_capacity(FRAME_BYTES);
    page.extend_from_slice(&[0; 4]);
    page.extend_from_slice(&number.to_le_bytes());
    page.extend_from_slice(&count.to_le_bytes());
    page.resize(FRAME_HEADER_BYTES, 0);
    encode(&mut page);
    assert!(page.len() <= FRAME_BYTES, "records fit into their page");
    page.resize(FRAME_BYTES, 0);
    let (checksum, body) = page.split_at_mut(4);
    checksum.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    page
}

/// Checks the page with that number; returns how many records of `record_bytes` it has, and these. `None` if it is damaged
/// or another one.
pub(crate) fn decode_frame(number: u64, record_bytes: usize, bytes: &[u8]) -> Option<(usize, Fields<'_>)> {
    let mut fields = Fields::new(bytes);
    let checksum = fields.u32()?;
    if bytes.len() != FRAME_BYTES || crc32c::crc32c(bytes.get(4..)?) != checksum || fields.u64()? != number {
        return None;
    }
    let count = usize::from(fields.u16()?);
    fields.u16()?;
    (count.checked_mul(record_bytes)? <= fields.left()).then_some((count, fields))
}
