//! Frames of a journal, as both sides of a link read them.

use onefold_engine::error::Result;

use crate::journal::{Frames, Journal, Lsn};
use crate::link::failure::Failure;
use crate::link::wire::{self, FINGERPRINT_BYTES, Welcome};

/// Refuses a receiver whose records are not those of this journal.
pub(super) fn check_continues(journal: &Journal, welcome: &Welcome) -> std::result::Result<(), Failure> {
    let Welcome { durable, checksum, .. } = *welcome;
    let status = journal.status();
    if status.durable <= durable {
        return Err(Failure::Refusing(format!(
            "the receiver has records up to {durable}, and this journal ends before {}: it is an older copy",
            status.durable
        )));
    }
    if durable.0 + 1 < status.first.0 {
        return Err(Failure::Refusing(format!(
            "the receiver has records up to {durable}, and this journal begins with {}: the receiver is an older copy, and the \
             records between are lost",
            status.first
        )));
    }
    if durable < status.first {
        return Ok(());
    }
    let found = last_checksum(&mut journal.frames(durable), durable)?;
    if found != Some(checksum) {
        return Err(Failure::Refusing(format!(
            "record {durable} of the receiver is not the one of this journal: both have gone on from a common past"
        )));
    }
    Ok(())
}

/// Reads the next frame: its first record, its time and the number of its records.
pub(super) fn read_frame(frames: &mut Frames, plain: &mut Vec<u8>) -> Result<Option<(Lsn, u64, u32)>> {
    let mut frame: Option<(Lsn, u64, u32)> = None;
    while frame.is_none()
        && frames.next_frame(&mut |entry| {
            entry.record.encode(plain);
            let (_, _, records) = frame.get_or_insert((entry.lsn, entry.time, 0));
            *records += 1;
            Ok(())
        })?
    {}
    Ok(frame)
}

/// Returns the checksum of the record that a reader begins with; `None` if there is none.
pub(super) fn last_checksum(frames: &mut Frames, lsn: Lsn) -> Result<Option<[u8; FINGERPRINT_BYTES]>> {
    let (mut found, mut bytes) = (None, Vec::new());
    while found.is_none()
        && frames.next_frame(&mut |entry| {
            if entry.lsn == lsn {
                bytes.clear();
                entry.record.encode(&mut bytes);
                found = Some(wire::checksum(lsn, entry.time, &bytes));
            }
            Ok(())
        })?
    {}
    Ok(found)
}
