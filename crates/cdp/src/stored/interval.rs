//! The records of a checkpoint, as its index lists them.

use onefold_engine::error::{Error, Result};

use crate::history::{BLOCK_BYTES, Change, HistoryEntry, IndexKind, IndexReader};
use crate::stored::streams::{Stream, Streams};
use crate::stored::{Checkpoint, index_path};

/// Bytes of an index that are read at a time.
const READ_BYTES: u64 = 64 << 10;

/// Passes the entries of a checkpoint's index, in order, and returns its kind. Fails with [`Error::Damaged`] if one is of a record that the checkpoint does
/// not contain.
pub(crate) fn read_index(
    streams: &mut Streams,
    checkpoint: &Checkpoint,
    each: &mut dyn FnMut(HistoryEntry) -> Result<()>,
) -> Result<IndexKind> {
    if !checkpoint.has_history() {
        return Ok(IndexKind::Whole);
    }
    let mut stream = streams.find(checkpoint.tree, &index_path(checkpoint.first()))?;
    let records = checkpoint.first()..=checkpoint.last();
    let mut reader = IndexReader::default();
    let mut offset = 0;
    while offset < stream.len() {
        let len = READ_BYTES.min(stream.len() - offset);
        let mut bytes = vec![0; usize::try_from(len).expect("as short as a read")];
        streams.read(&mut stream, offset, &mut bytes)?;
        offset += len;
        reader.push(&bytes, &mut |entry| {
            if !records.contains(&entry.lsn) {
                return Err(Error::damaged(stream.name(), format!("has record {}", entry.lsn)));
            }
            each(entry)
        })?;
    }
    reader.finish()
}

/// Refuses an entry whose blocks the volume does not have, and versions that the data stream does not have.
pub(crate) fn check_entry(entry: &HistoryEntry, sizes: &[u64], versions: u64, data: &Stream) -> Result<()> {
    let wrong = |what: String| Err(Error::damaged(data.name(), what));
    let Some(size) = sizes.get(usize::from(entry.volume)) else {
        return wrong(format!("record {} is of volume {}, which is not in the group", entry.lsn, entry.volume));
    };
    if size / BLOCK_BYTES < entry.block + entry.count {
        return wrong(format!("record {} is beyond the end of volume {}", entry.lsn, entry.volume));
    }
    let taken = if entry.change == Change::Data { entry.count } else { 0 };
    if data.len() / BLOCK_BYTES < versions.saturating_add(taken) {
        return wrong(format!("ends before the contents of record {}", entry.lsn));
    }
    Ok(())
}
