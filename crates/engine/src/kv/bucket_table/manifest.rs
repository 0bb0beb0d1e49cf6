//! The manifest of a table: the pages, page fences and recent filters of its runs. A checkpoint keeps it with the pages
//! and the entries of the memtable.
//!
//! | size | field |
//! |---|---|
//! | 8 | `OFTABLE2` |
//! | 8 | generation |
//! | 8 | epoch of the table |
//! | 4 | number of buckets, at least 1 |
//! | 8 | number of the next run |
//! | 8 | pages of the file in use |
//! | per bucket, in order of their keys | 4 prefix, 1 its length in bits, 4 number of runs |
//! | of each run | 8 number, 8 first page, 8 entries, 4 pages, 4 words of its filter; 2 per page fence, 8 per word |
//!
//! The digit is the version. The index is disposable: one of another version is rebuilt.
#![deny(clippy::indexing_slicing)]

use crate::error::{Error, Result};
use crate::kv::Fields;
use crate::kv::bucket_table::bucket::{Bucket, Buckets};
use crate::kv::bucket_table::bucket_name::{BucketName, DEPTH_MAX};
use crate::kv::bucket_table::extent::Extents;
use crate::kv::bucket_table::page::PAGE_ENTRIES;
use crate::kv::bucket_table::run::Run;
use crate::kv::sealed::SealedReader;

const MAGIC: [u8; 8] = *b"OFTABLE2";

/// Bytes of a bucket's fields before its runs.
const BUCKET_BYTES: usize = 9;

/// Bytes of a run's fields before its fences.
const RUN_BYTES: usize = 32;

/// Runs of a table.
#[derive(Debug)]
pub(in crate::kv) struct Manifest {
    /// Epoch of the table, drawn at its creation.
    pub(crate) epoch: u64,
    /// Number of the next run.
    pub(crate) next_run: u64,
    /// Pages of the file, used and free.
    pub(crate) space: Extents,
    /// Buckets and their runs.
    pub(crate) buckets: Buckets,
}

/// Encodes a manifest field by field, which needs little memory.
pub(in crate::kv) fn encode_manifest(
    (generation, epoch): (u64, u64),
    next_run: u64,
    file_pages: u64,
    buckets: &Buckets,
    write: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let count = u32::try_from(buckets.count()).expect("a table has at most 2^DEPTH_MAX buckets");
    write(&MAGIC)?;
    write(&generation.to_le_bytes())?;
    write(&epoch.to_le_bytes())?;
    write(&count.to_le_bytes())?;
    write(&next_run.to_le_bytes())?;
    write(&file_pages.to_le_bytes())?;
    for number in buckets.numbers() {
        let Bucket { name, runs } = buckets.get(number);
        let count = u32::try_from(runs.len()).expect("a chain is short");
        write(&name.prefix().to_le_bytes())?;
        write(&[name.depth()])?;
        write(&count.to_le_bytes())?;
        for run in runs {
            write(&run.id.to_le_bytes())?;
            write(&run.start.to_le_bytes())?;
            write(&run.entries.to_le_bytes())?;
            write(&run.pages().to_le_bytes())?;
            let words = u32::try_from(run.recent.len()).expect("a filter is smaller than its run");
            write(&words.to_le_bytes())?;
            run.fences.iter().try_for_each(|fence| write(&fence.to_le_bytes()))?;
            run.recent.iter().try_for_each(|word| write(&word.to_le_bytes()))?;
        }
    }
    Ok(())
}

/// Reads the manifest of a generation. Checks that the buckets tile the keys, that fences are in order, and that no page is
/// used twice or lies outside the file.
pub(in crate::kv) fn read_manifest(generation: u64, mut from: SealedReader) -> Result<Manifest> {
    let len = usize::try_from(from.left()).map_err(|_| Error::damaged("manifest", "too long"))?;
    let mut bytes = vec![0; len];
    from.read(&mut bytes)?;
    from.finish()?;
    decode_manifest(generation, &bytes)
}

fn decode_manifest(generation: u64, bytes: &[u8]) -> Result<Manifest> {
    let damaged = |reason| Error::damaged("manifest of the fingerprint table", reason);
    let mut fields = Fields::new(bytes);
    if fields.array() != Some(MAGIC) {
        return Err(damaged("has another version"));
    }
    let found = fields.u64();
    let manifest = decode(fields).ok_or_else(|| damaged("does not make sense"))?;
    if found == Some(generation) {
        Ok(manifest)
    } else {
        Err(Error::damaged("manifest", "belongs to another checkpoint"))
    }
}

fn decode(mut fields: Fields<'_>) -> Option<Manifest> {
    let epoch = fields.u64()?;
    let count = fields.u32()?;
    let next_run = fields.u64()?;
    let file_pages = fields.u64()?;
    // Before memory is allocated for the buckets.
    if !(1..=1 << DEPTH_MAX).contains(&count) || fields.left() / BUCKET_BYTES < count as usize {
        return None;
    }
    let mut used = Vec::new();
    let mut buckets = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (prefix, [depth]) = (fields.u32()?, fields.array()?);
        let runs = fields.u32()? as usize;
        if fields.left() / RUN_BYTES < runs {
            return None;
        }
        let mut chain = Vec::with_capacity(runs);
        for _ in 0..runs {
            let run = decode_run(&mut fields, next_run)?;
            used.push(run.extent());
            chain.push(run);
        }
        buckets.push(Bucket { name: BucketName::new(prefix, depth)?, runs: chain });
    }
    if fields.left() != 0 {
        return None;
    }
    let (space, buckets) = (Extents::with_used(file_pages, used)?, Buckets::from_list(buckets)?);
    Some(Manifest { epoch, next_run, space, buckets })
}

fn decode_run(fields: &mut Fields<'_>, next_run: u64) -> Option<Run> {
    let (id, start, entries) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (pages, words) = (fields.u32()?, fields.u32()?);
    let fences = fields.bytes((pages as usize).checked_mul(2)?)?;
    let fences: Vec<u16> = fences.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
    let recent = fields.bytes((words as usize).checked_mul(8)?)?;
    let recent: Vec<u64> = recent.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let capacity = u64::from(pages).checked_mul(PAGE_ENTRIES as u64)?;
    let sensible = id < next_run && 1 <= entries && entries <= capacity && fences.is_sorted();
    sensible.then_some(Run { id, start, entries, fences, recent })
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    fn encoded(buckets: &Buckets) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut write = |field: &[u8]| {
            bytes.extend_from_slice(field);
            Ok(())
        };
        encode_manifest((9, 77), 5, 8, buckets, &mut write).unwrap();
        bytes
    }

    fn buckets() -> Vec<Bucket> {
        let run = |id, start, fences: &[u16], recent: &[u64]| Run {
            id,
            start,
            entries: 5,
            fences: fences.to_vec(),
            recent: recent.to_vec(),
        };
        let chains =
            [vec![run(1, 0, &[3, 9], &[]), run(4, 5, &[0], &[1 << 50, 7])], vec![], vec![run(2, 2, &[1, 1, 7], &[])]];
        let names = [(0, 1), (2, 2), (3, 2)].map(|(prefix, depth)| BucketName::new(prefix, depth).unwrap());
        names.into_iter().zip(chains).map(|(name, runs)| Bucket { name, runs }).collect()
    }

    #[test]
    fn manifests_come_back_and_no_damage_makes_them_panic() {
        let list = buckets();
        let mut bytes = encoded(&Buckets::from_list(list.clone()).unwrap());
        let manifest = decode_manifest(9, &bytes).unwrap();
        assert_eq!((manifest.epoch, manifest.next_run), (77, 5));
        assert!(decode_manifest(8, &bytes).is_err());
        assert_eq!(manifest.space.end(), 6);
        assert!(manifest.buckets.numbers().map(|number| manifest.buckets.get(number)).eq(&list));
        for len in 0..bytes.len() {
            assert!(decode_manifest(9, &bytes[..len]).is_err(), "{len} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            drop(decode_manifest(9, &bytes));
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let start = bytes.len() - 6 - 24;
        bytes[start] = 1;
        assert!(decode_manifest(9, &bytes).is_err(), "two runs on one page");
    }

    #[test]
    fn buckets_that_do_not_tile_the_keys_and_other_versions_are_refused() {
        let bytes = encoded(&Buckets::from_list(buckets()).unwrap());
        let first_bucket = 8 + 8 + 8 + 4 + 8 + 8;
        for (offset, value) in [(first_bucket, 1), (first_bucket + 4, 2), (first_bucket + 4, 0), (first_bucket + 4, 64)]
        {
            let mut bytes = bytes.clone();
            bytes[offset] = value;
            assert!(decode_manifest(9, &bytes).is_err(), "{value} at {offset}");
        }
        let mut old = bytes;
        old[7] = b'1';
        assert!(decode_manifest(9, &old).unwrap_err().to_string().contains("version"));
    }
}
