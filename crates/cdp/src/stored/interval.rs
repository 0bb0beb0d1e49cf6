//! The records of a checkpoint, as its index lists them.

use onefold_engine::error::{Error, Result};

use crate::history::{HistoryEntry, IndexReader};
use crate::stored::streams::Streams;
use crate::stored::{Checkpoint, index_path};

/// Bytes of an index that are read at a time.
const READ_BYTES: u64 = 64 << 10;

/// Passes the entries of a checkpoint's index, in order. Fails with [`Error::Damaged`] if one is of a record that the checkpoint does
/// not contain.
pub(crate) fn read_index(
    streams: &mut Streams,
    checkpoint: &Checkpoint,
    each: &mut dyn FnMut(HistoryEntry) -> Result<()>,
) -> Result<()> {
    if !checkpoint.has_history() {
        return Ok(());
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
