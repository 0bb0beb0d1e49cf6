//! Reading a restored file back.

use std::path::Path;

use crate::crypto::Keys;
use crate::error::{Error, Result};
use crate::io::tree::{TargetFile, TargetTree};
use crate::store::MetadataReader;
use crate::store::cursor::{HintedEntry, Piece, RecipeCursor};
use crate::tree::Content;
use crate::types::ChunkKind;

/// Bytes of a hole that are compared at a time.
const HOLE_STEP: u64 = 64 << 10;

/// Compares a file with its entry, chunk by chunk.
pub fn verify_file(
    keys: &Keys,
    reader: &mut MetadataReader,
    target: &dyn TargetTree,
    path: &Path,
    hinted: &HintedEntry,
) -> Result<()> {
    let Content::File { recipe, .. } = &hinted.entry.content else { return Ok(()) };
    let file = target.open_file(path)?;
    if file.len()? != hinted.entry.size() {
        return Err(Error::invalid("was restored with a wrong length"));
    }
    let mut cursor = RecipeCursor::new(recipe, &hinted.hints);
    let mut offset = 0;
    let mut buffer = Vec::new();
    while let Some(piece) = cursor.next(reader)? {
        match piece {
            Piece::Chunk { fingerprint, len, .. } => {
                fill(&*file, offset, len as usize, &mut buffer)?;
                if keys.fingerprint(ChunkKind::Data, &buffer) != fingerprint {
                    return Err(Error::invalid(format!("the {len} bytes at {offset} differ from the snapshot")));
                }
                offset += u64::from(len);
            }
            Piece::Hole { len } => {
                let end = offset + len;
                while offset < end {
                    let step = HOLE_STEP.min(end - offset);
                    fill(&*file, offset, usize::try_from(step).unwrap_or(0), &mut buffer)?;
                    if buffer.iter().any(|byte| *byte != 0) {
                        return Err(Error::invalid(format!("the hole at {offset} is not empty")));
                    }
                    offset += step;
                }
            }
        }
    }
    Ok(())
}

fn fill(file: &dyn TargetFile, offset: u64, len: usize, buffer: &mut Vec<u8>) -> Result<()> {
    buffer.clear();
    buffer.resize(len, 0);
    if file.read_at(offset, buffer)? == len {
        Ok(())
    } else {
        Err(Error::invalid(format!("ends before byte {}", offset + len as u64)))
    }
}
