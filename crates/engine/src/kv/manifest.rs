//! Where the runs of a table lie: what a checkpoint keeps of it beside the pages and the staged entries.
//!
//! | size | field |
//! |---|---|
//! | 8 | `OFTABLE1` |
//! | 8 | generation |
//! | 4 | number of buckets, at least 1 |
//! | 8 | number of the next run |
//! | 8 | pages of the file in use |
//! | per bucket | 4 number of runs, then of each: 8 number, 8 first page, 8 entries, 4 pages, 2 per page fence |
#![deny(clippy::indexing_slicing)]

use crate::error::{Error, Result};
use crate::kv::Fields;
use crate::kv::extent::Extents;
use crate::kv::page::PAGE_ENTRIES;
use crate::kv::run::Run;

const MAGIC: [u8; 8] = *b"OFTABLE1";

/// Most buckets of a table: beyond, the runs of any sensible staging are shorter than a page.
pub const BUCKETS_MAX: u32 = 1 << 20;

/// Bytes of a run's fields before its fences.
const RUN_BYTES: usize = 28;

/// A table's runs.
#[derive(Debug)]
pub struct Manifest {
    /// Checkpoint that it belongs to.
    pub generation: u64,
    /// Number that the next run gets.
    pub next_run: u64,
    /// Pages of the file, used and free.
    pub space: Extents,
    /// Runs of every bucket, oldest first.
    pub buckets: Vec<Vec<Run>>,
}

/// Encodes the manifest piece by piece, so that it needs no memory of its own size.
pub fn encode_manifest(
    generation: u64,
    next_run: u64,
    file_pages: u64,
    buckets: &[Vec<Run>],
    write: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let count = u32::try_from(buckets.len()).expect("a table has at most BUCKETS_MAX buckets");
    write(&MAGIC)?;
    write(&generation.to_le_bytes())?;
    write(&count.to_le_bytes())?;
    write(&next_run.to_le_bytes())?;
    write(&file_pages.to_le_bytes())?;
    for runs in buckets {
        let count = u32::try_from(runs.len()).expect("a chain is short");
        write(&count.to_le_bytes())?;
        for run in runs {
            write(&run.id.to_le_bytes())?;
            write(&run.start.to_le_bytes())?;
            write(&run.entries.to_le_bytes())?;
            write(&run.pages().to_le_bytes())?;
            run.fences.iter().try_for_each(|fence| write(&fence.to_le_bytes()))?;
        }
    }
    Ok(())
}

/// Decodes a manifest and checks that it makes sense: fences in order, no page used twice or outside the file.
pub fn decode_manifest(bytes: &[u8]) -> Result<Manifest> {
    decode(bytes).ok_or_else(|| Error::damaged("manifest of the fingerprint table", "does not make sense"))
}

fn decode(bytes: &[u8]) -> Option<Manifest> {
    let mut fields = Fields::new(bytes);
    let magic: [u8; 8] = fields.array()?;
    let generation = fields.u64()?;
    let count = fields.u32()?;
    let next_run = fields.u64()?;
    let file_pages = fields.u64()?;
    // Every bucket takes four bytes at least: nothing is allocated for buckets that are not there.
    if magic != MAGIC || !(1..=BUCKETS_MAX).contains(&count) || fields.left() / 4 < count as usize {
        return None;
    }
    let mut used = Vec::new();
    let mut buckets = Vec::with_capacity(count as usize);
    for _ in 0..count {
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
        buckets.push(chain);
    }
    if fields.left() != 0 {
        return None;
    }
    Some(Manifest { generation, next_run, space: Extents::with_used(file_pages, used)?, buckets })
}

fn decode_run(fields: &mut Fields<'_>, next_run: u64) -> Option<Run> {
    let (id, start, entries) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let pages = fields.u32()?;
    let fences = fields.bytes((pages as usize).checked_mul(2)?)?;
    let fences: Vec<u16> = fences.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
    let capacity = u64::from(pages).checked_mul(PAGE_ENTRIES as u64)?;
    let sensible = id < next_run && 1 <= entries && entries <= capacity && fences.is_sorted();
    sensible.then_some(Run { id, start, entries, fences })
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn manifests_come_back_and_no_damage_makes_them_panic() {
        let run = |id, start, fences: &[u16]| Run { id, start, entries: 5, fences: fences.to_vec() };
        let buckets = vec![vec![run(1, 0, &[3, 9]), run(4, 5, &[0])], vec![], vec![run(2, 2, &[1, 1, 7])]];
        let mut bytes = Vec::new();
        encode_manifest(9, 5, 8, &buckets, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
        let manifest = decode_manifest(&bytes).unwrap();
        assert_eq!((manifest.generation, manifest.next_run, manifest.space.end()), (9, 5, 6));
        assert_eq!(manifest.buckets, buckets);
        for len in 0..bytes.len() {
            assert!(decode_manifest(&bytes[..len]).is_err(), "{len} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            drop(decode_manifest(&bytes));
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let start = bytes.len() - 4 - 6 - 16;
        bytes[start] = 1;
        assert!(decode_manifest(&bytes).is_err(), "two runs on one page");
    }
}
