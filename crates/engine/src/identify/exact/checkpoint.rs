//! The checkpoint: a file that names a consistent state of the index.
//!
//! A rename replaces it, after all its files are durable. A crash falls back to it: its table pages are not overwritten, the
//! logs and the registry only grow, and the other files have two copies, which checkpoints use in turn.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | `OFINDEX`, 0 |
//! | 8 | 2 | version, 4 |
//! | 10 | 1 | store: 1 bucket table, 2 memory, 3 of the caller |
//! | 11 | 1 | which of the two files of the duplicate-run log, 0 or 1 |
//! | 12 | 1 | what a hit reads: 0 a window, 1 a container, 2 stream segments |
//! | 13 | 1 | which of the two files of the stream log, 0 or 1; 0 if there is none |
//! | 14 | 2 | zero |
//! | 16 | 16 | repository |
//! | 32 | 8 | generation, one more with every checkpoint |
//! | 40 | 4 | containers registered |
//! | 44 | 32 | BLAKE3 of their records |
//! | 76 | 8 | pages of the arrival log |
//! | 84 | 8 | pages of the duplicate-run log |
//! | 92 | 40 each | parts of the store (of a table manifest and memtable, of a memory its entries), then the filter, then of containers or stream segments the beginnings of containers in the log: length 8, BLAKE3 32 |
//! | ... | 24 | of stream segments: pages that the stream log has lost 8, the end of its pages 8, and the pages that its last compaction has left 8 |
//! | ... | 40 | of stream segments: their beginnings in the stream log, likewise |
//! | ... | 4 | incomplete parts of the table: number of the next items |
//! | ... | 16 each | first and last head of the keys of such a part |
//! | ... | 4 | bytes of the next field |
//! | ... | ... | covered containers, one bit each |
//! | end | 32 | BLAKE3 of everything before |
#![deny(clippy::indexing_slicing)]

use std::ops::{Range, RangeInclusive};

use crate::bitmap::Bitmap;
use crate::error::{Error, Result};
use crate::identify::options::{PrefetchUnit, StoreKind};
use crate::kv::{Fields, Seal};
use crate::types::RepositoryId;

const MAGIC: [u8; 8] = *b"OFINDEX\0";
const VERSION: u16 = 4;

/// Longest checkpoint: one bit for each of 2^32 containers, and the other fields.
pub(in crate::identify) const CHECKPOINT_BYTES_MAX: u64 = (1 << 29) + 16 * INCOMPLETE_MAX as u64 + 256;

/// Most pages of a stream log: the numbers of its records stay far below the bit that positions in it have.
const STREAM_PAGES_MAX: u64 = 1 << 48;

/// Most incomplete parts of the table; if there are more, the whole table counts as incomplete.
pub(in crate::identify) const INCOMPLETE_MAX: usize = 4096;

/// The stream log in a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::identify) struct StreamState {
    /// File of the log, 0 or 1.
    pub(crate) file: u8,
    /// Its pages: the first that it has, and the end.
    pub(crate) pages: Range<u64>,
    /// Pages that its last compaction has left.
    pub(crate) named_pages: u64,
    /// Its segments.
    pub(crate) segments: Seal,
}

/// A consistent state of the index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::identify) struct Checkpoint {
    /// Repository whose chunks are indexed.
    pub(crate) repository: RepositoryId,
    /// Number of the checkpoint; chooses between the two copies of its files.
    pub(crate) generation: u64,
    /// Number of its containers.
    pub(crate) registered: u32,
    /// BLAKE3 of their records.
    pub(crate) registry_checksum: [u8; 32],
    /// Pages of the arrival log.
    pub(crate) log_pages: u64,
    /// File of the duplicate-run log, 0 or 1.
    pub(crate) duplicate_runs_file: u8,
    /// Pages of the duplicate-run log.
    pub(crate) duplicate_run_pages: u64,
    /// Number of the kind of the store; see [`StoreKind::code`].
    pub(crate) store: u8,
    /// The parts of the store, as many as the kind has.
    pub(crate) parts: Vec<Seal>,
    /// The filter.
    pub(crate) filter: Seal,
    /// Number of what a hit reads; see [`PrefetchUnit::code`].
    pub(crate) unit: u8,
    /// The units of the arrival log, if hits read other units than windows.
    pub(crate) units: Option<Seal>,
    /// The stream log, if hits read stream segments.
    pub(crate) stream: Option<StreamState>,
    /// Parts of the table that damaged pages left incomplete, as ranges of key heads.
    pub(crate) incomplete: Vec<RangeInclusive<u64>>,
    /// Containers whose chunks are all in the table or the memtable, except for those parts.
    pub(crate) covered: Bitmap,
}

/// Encodes a checkpoint.
pub(in crate::identify) fn encode_checkpoint(checkpoint: &Checkpoint) -> Vec<u8> {
    let covered = checkpoint.covered.as_bytes();
    let covered_len = u32::try_from(covered.len()).expect("at most 2^32 ordinals, eight to a byte");
    let mut bytes = Vec::with_capacity(240 + covered.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    let stream_file = checkpoint.stream.as_ref().map_or(0, |stream| stream.file);
    let Checkpoint { store, duplicate_runs_file, unit, .. } = *checkpoint;
    bytes.extend_from_slice(&[store, duplicate_runs_file, unit, stream_file, 0, 0]);
    bytes.extend_from_slice(&checkpoint.repository.0);
    bytes.extend_from_slice(&checkpoint.generation.to_le_bytes());
    bytes.extend_from_slice(&checkpoint.registered.to_le_bytes());
    bytes.extend_from_slice(&checkpoint.registry_checksum);
    bytes.extend_from_slice(&checkpoint.log_pages.to_le_bytes());
    bytes.extend_from_slice(&checkpoint.duplicate_run_pages.to_le_bytes());
    for seal in checkpoint.parts.iter().chain([&checkpoint.filter]).chain(&checkpoint.units) {
        encode_seal(seal, &mut bytes);
    }
    if let Some(StreamState { pages, named_pages, segments, .. }) = &checkpoint.stream {
        bytes.extend_from_slice(&pages.start.to_le_bytes());
        bytes.extend_from_slice(&pages.end.to_le_bytes());
        bytes.extend_from_slice(&named_pages.to_le_bytes());
        encode_seal(segments, &mut bytes);
    }
    let incomplete = checkpoint.incomplete.get(..INCOMPLETE_MAX).unwrap_or(&checkpoint.incomplete);
    let count = u32::try_from(incomplete.len()).expect("at most INCOMPLETE_MAX");
    bytes.extend_from_slice(&count.to_le_bytes());
    for heads in incomplete {
        bytes.extend_from_slice(&heads.start().to_le_bytes());
        bytes.extend_from_slice(&heads.end().to_le_bytes());
    }
    bytes.extend_from_slice(&covered_len.to_le_bytes());
    bytes.extend_from_slice(covered);
    bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
    bytes
}

/// Decodes a checkpoint.
pub(in crate::identify) fn decode_checkpoint(bytes: &[u8]) -> Result<Checkpoint> {
    let damaged = |reason: &str| Error::damaged("checkpoint of the index", reason);
    let mut fields = Fields::new(bytes);
    if fields.array() != Some(MAGIC) {
        return Err(damaged("is none"));
    }
    let version = fields.u16().ok_or_else(|| damaged("ends early"))?;
    if VERSION < version {
        let object = "checkpoint of the index".to_owned();
        return Err(Error::NewerFormat { object, found: version, supported: VERSION });
    }
    let (body, checksum) = bytes.split_last_chunk::<32>().ok_or_else(|| damaged("ends early"))?;
    if version != VERSION {
        return Err(damaged("is of an earlier version"));
    }
    if blake3::hash(body) != blake3::Hash::from(*checksum) {
        return Err(damaged("checksum"));
    }
    decode_fields(fields).ok_or_else(|| damaged("does not make sense"))
}

fn encode_seal(Seal { len, checksum }: &Seal, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(checksum);
}

fn decode_stream(file: u8, fields: &mut Fields<'_>) -> Option<StreamState> {
    let pages = fields.u64()?..fields.u64()?;
    let named_pages = fields.u64()?;
    let segments = decode_seal(fields)?;
    (pages.start <= pages.end && pages.end <= STREAM_PAGES_MAX && file <= 1).then_some(StreamState {
        file,
        pages,
        named_pages: named_pages.min(STREAM_PAGES_MAX),
        segments,
    })
}

fn decode_seal(fields: &mut Fields<'_>) -> Option<Seal> {
    Some(Seal { len: fields.u64()?, checksum: fields.array()? })
}

fn decode_fields(mut fields: Fields<'_>) -> Option<Checkpoint> {
    let [store, duplicate_runs_file, unit, stream_file] = fields.array()?;
    let (parts, files) = (StoreKind::parts_of(store)?, PrefetchUnit::files_of(unit)?);
    fields.bytes(2)?;
    let mut checkpoint = Checkpoint {
        repository: RepositoryId(fields.array()?),
        generation: fields.u64()?,
        registered: fields.u32()?,
        registry_checksum: fields.array()?,
        log_pages: fields.u64()?,
        duplicate_runs_file,
        duplicate_run_pages: fields.u64()?,
        store,
        parts: (0..parts).map(|_| decode_seal(&mut fields)).collect::<Option<_>>()?,
        filter: decode_seal(&mut fields)?,
        unit,
        units: if files.has_units { Some(decode_seal(&mut fields)?) } else { None },
        stream: if files.has_stream { Some(decode_stream(stream_file, &mut fields)?) } else { None },
        incomplete: Vec::new(),
        covered: Bitmap::default(),
    };
    let count = usize::try_from(fields.u32()?).ok().filter(|&count| count <= INCOMPLETE_MAX)?;
    for _ in 0..count {
        checkpoint.incomplete.push(fields.u64()?..=fields.u64()?);
    }
    let covered_len = fields.u32()?;
    checkpoint.covered = Bitmap::from_bytes(fields.bytes(covered_len as usize)?.to_vec());
    (fields.left() == 32 && duplicate_runs_file <= 1).then_some(checkpoint)
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_come_back_and_every_changed_bit_shows() {
        let mut covered = Bitmap::default();
        covered.insert(77);
        let seal = |len| Seal { len, checksum: [7; 32] };
        let checkpoint = Checkpoint {
            repository: RepositoryId([3; 16]),
            generation: 1 << 50,
            registered: 78,
            registry_checksum: [9; 32],
            log_pages: 12,
            duplicate_runs_file: 1,
            duplicate_run_pages: 7,
            store: 1,
            parts: vec![seal(1), seal(2)],
            filter: Seal::empty(),
            unit: 2,
            units: Some(seal(3)),
            stream: Some(StreamState { file: 1, pages: 5..77, named_pages: 9, segments: seal(4) }),
            incomplete: vec![3..=9, 1 << 60..=u64::MAX],
            covered,
        };
        let mut bytes = encode_checkpoint(&checkpoint);
        assert_eq!(decode_checkpoint(&bytes).unwrap(), checkpoint);
        for len in 0..bytes.len() {
            assert!(decode_checkpoint(&bytes[..len]).is_err());
        }
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_checkpoint(&bytes).is_err());
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        bytes[8] = 5;
        assert!(matches!(decode_checkpoint(&bytes), Err(Error::NewerFormat { found: 5, .. })));
    }

    #[test]
    fn a_right_checksum_over_wrong_fields_makes_nothing_panic() {
        for unit in 0..3 {
            check_wrong_fields(unit);
        }
    }

    fn check_wrong_fields(unit: u8) {
        let mut covered = Bitmap::default();
        covered.insert(77);
        let checkpoint = Checkpoint {
            repository: RepositoryId([3; 16]),
            generation: 4,
            registered: 78,
            registry_checksum: [9; 32],
            log_pages: 12,
            duplicate_runs_file: 1,
            duplicate_run_pages: 7,
            store: 1,
            parts: vec![Seal::empty(), Seal::empty()],
            filter: Seal::empty(),
            unit,
            units: (unit != 0).then(Seal::empty),
            stream: (unit == 2).then(|| StreamState { file: 0, pages: 5..77, named_pages: 0, segments: Seal::empty() }),
            incomplete: vec![3..=9, 1 << 60..=u64::MAX],
            covered,
        };
        let bytes = encode_checkpoint(&checkpoint);
        assert_eq!(decode_checkpoint(&bytes).unwrap(), checkpoint);
        let body = &bytes[..bytes.len() - 32];
        let mut decoded = 0;
        for bit in 0..body.len() * 8 {
            let mut bytes = body.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
            decoded += u32::from(decode_checkpoint(&bytes).is_ok());
        }
        assert!(0 < decoded);
    }
}
