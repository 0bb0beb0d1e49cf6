//! Reading a file of the target back, and comparing it with the snapshot.

use std::ops::Range;
use std::path::Path;

use crate::crypto::Keys;
use crate::error::{Error, Result};
use crate::io::tree::{TargetFile, TargetTree};
use crate::monitor::Monitor;
use crate::store::MetadataReader;
use crate::store::cursor::HintedEntry;
use crate::store::recipe_cursor::{FileExtent, HintedChunk, RecipeCursor};
use crate::tree::Content;
use crate::types::{Chunk, ChunkKind};

/// Bytes of a hole that are compared at a time.
const HOLE_STEP: u64 = 64 << 10;

/// Compares a file with its entry, chunk by chunk. Returns the difference, if there is one.
pub(super) fn compare_file(
    keys: &Keys,
    reader: &mut MetadataReader,
    target: &dyn TargetTree,
    path: &Path,
    hinted: &HintedEntry,
    monitor: &dyn Monitor,
) -> Result<Option<Error>> {
    let Content::File { recipe, .. } = &hinted.entry.content else { return Ok(None) };
    let file = target.open_to_read(path)?;
    if file.len()? != hinted.entry.size() {
        return Ok(Some(Error::WrongLength));
    }
    let mut cursor = RecipeCursor::new(recipe, &hinted.hints);
    let mut offset = 0;
    let mut buffer = Vec::new();
    while let Some(extent) = cursor.next(reader)? {
        if monitor.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let (end, is_equal) = match extent {
            FileExtent::Chunk(HintedChunk { chunk: Chunk { fingerprint, len }, .. }) => {
                let is_whole = fill(&*file, offset, len as usize, &mut buffer)?;
                let is_equal = is_whole && keys.fingerprint(ChunkKind::Data, &buffer) == fingerprint;
                (offset + u64::from(len), is_equal)
            }
            FileExtent::Hole { len } => (offset + len, is_empty(&*file, offset..offset + len, &mut buffer, monitor)?),
        };
        if !is_equal {
            return Ok(Some(Error::Differs { offset, len: end - offset }));
        }
        offset = end;
    }
    Ok(None)
}

/// Returns true if a range of a file reads as zeros.
fn is_empty(file: &dyn TargetFile, range: Range<u64>, buffer: &mut Vec<u8>, monitor: &dyn Monitor) -> Result<bool> {
    let mut offset = range.start;
    while offset < range.end {
        if monitor.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let step = HOLE_STEP.min(range.end - offset);
        if !fill(file, offset, usize::try_from(step).unwrap_or(0), buffer)? || buffer.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        offset += step;
    }
    Ok(true)
}

/// Reads so many bytes. Returns true unless the file ends before.
fn fill(file: &dyn TargetFile, offset: u64, len: usize, buffer: &mut Vec<u8>) -> Result<bool> {
    buffer.clear();
    buffer.resize(len, 0);
    Ok(file.read_at(offset, buffer)? == len)
}
