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

use crate::error::{Error, Result};
use crate::io::DiskFile;
use crate::kv::Fields;

/// Bytes of a page.
pub(in crate::identify) const FRAME_BYTES: usize = 4096;

/// Bytes of a page before its records.
pub(in crate::identify) const FRAME_HEADER_BYTES: usize = 16;

/// A record of a log.
pub(in crate::identify) trait FrameRecord: Sized {
    /// Bytes of an encoded record.
    const BYTES: usize;
    /// Records of a page.
    const PER_FRAME: usize = (FRAME_BYTES - FRAME_HEADER_BYTES) / Self::BYTES;

    /// Appends the encoded record to a page.
    fn encode(&self, page: &mut Vec<u8>);

    /// Decodes a record; `None` if the bytes end early.
    fn decode(fields: &mut Fields<'_>) -> Option<Self>;
}

/// Work of a log since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::identify) struct LogCounters {
    /// Reads of windows that were not completely in memory.
    pub(crate) reads: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    /// Bad or unreadable pages; their records count as absent.
    pub(crate) damaged_pages: u64,
}

impl LogCounters {
    /// Adds the work of another log.
    pub(in crate::identify) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.damaged_pages += other.damaged_pages;
    }
}

/// Concatenates fields and appends their CRC32C.
pub(in crate::identify) fn with_checksum(fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = fields.concat();
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Encodes a page of records.
pub(in crate::identify) fn encode_frame<R: FrameRecord>(number: u64, records: &[R]) -> Vec<u8> {
    let count = u16::try_from(records.len()).expect("a page holds fewer than 65,536 records");
    let mut page = Vec::with_capacity(FRAME_BYTES);
    page.extend_from_slice(&[0; 4]);
    page.extend_from_slice(&number.to_le_bytes());
    page.extend_from_slice(&count.to_le_bytes());
    page.resize(FRAME_HEADER_BYTES, 0);
    for record in records {
        record.encode(&mut page);
    }
    assert!(page.len() <= FRAME_BYTES, "records fit into their page");
    page.resize(FRAME_BYTES, 0);
    let (checksum, body) = page.split_at_mut(4);
    checksum.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    page
}

/// Decodes the page with that number, replacing `out`; `None` if it is damaged or another page.
pub(in crate::identify) fn decode_frame<R: FrameRecord>(number: u64, bytes: &[u8], out: &mut Vec<R>) -> Option<()> {
    out.clear();
    let mut fields = Fields::new(bytes);
    let checksum = fields.u32()?;
    if bytes.len() != FRAME_BYTES || crc32c::crc32c(bytes.get(4..)?) != checksum || fields.u64()? != number {
        return None;
    }
    let count = usize::from(fields.u16()?);
    fields.u16()?;
    if fields.left() < count.checked_mul(R::BYTES)? {
        return None;
    }
    for _ in 0..count {
        out.push(R::decode(&mut fields)?);
    }
    Some(())
}

/// Truncates a log to the pages that its checkpoint gives.
pub(in crate::identify) fn truncate_log(file: &dyn DiskFile, pages: u64, log: &str) -> Result<()> {
    let len = file.len()?;
    match pages.checked_mul(FRAME_BYTES as u64).filter(|&bytes| bytes <= len) {
        Some(bytes) => file.set_len(bytes),
        None => Err(Error::damaged(log, "shorter than its checkpoint says")),
    }
}

/// Checks that no wrong field under a right checksum makes [`decode_frame`] panic.
#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
pub(in crate::identify) fn check_wrong_fields<R: FrameRecord + PartialEq + std::fmt::Debug>(records: &[R]) {
    let page = encode_frame(7, records);
    let (mut out, mut decoded) = (Vec::<R>::new(), 0);
    for bit in 32..FRAME_HEADER_BYTES * 8 + 64 {
        let mut bytes = page.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let checksum = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        decoded += usize::from(decode_frame(7, &bytes, &mut out).is_some());
        assert!(out.len() <= R::PER_FRAME);
    }
    assert!(0 < decoded);
    assert!(decode_frame(7, &page, &mut out).is_some());
    assert_eq!(out, records);
    assert!(decode_frame(7, &page[..100], &mut out).is_none());
}
