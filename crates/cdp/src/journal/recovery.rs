//! Finding the end of a journal: after a clean end, the end of its process, or a power cut.
//!
//! The end is the first frame that does not open, or does not continue the one before. After a power cut, frames of which nobody was
//! told that they are durable may be missing, in any order: the operating system writes pages as it likes. Each frame says which
//! frames were durable when it was sealed. So a frame after the end which says that the missing one was durable proves damage, and the
//! journal is refused: writes that somebody relies on are gone. Otherwise, what comes after the end is dropped.

use onefold_engine::error::{Error, Result};

use crate::journal::Lsn;
use crate::journal::codec::{BLOCK_BYTES, FrameHeader};
use crate::journal::head::{Head, HeadNote};
use crate::journal::reader::{Walk, open_frame};
use crate::journal::segment::{Chain, Directory, Segment};

/// Bytes that are written again at a time.
const REWRITE_BYTES: usize = 1 << 20;

/// How a journal ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// With a frame that nothing follows.
    Whole,
    /// Frames after the end were dropped. Nobody was told that they are durable.
    Torn,
}

/// Contents of a journal when it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// Its first record; the next one if it has none.
    pub first: Lsn,
    /// The record after its last.
    pub next: Lsn,
    /// Wall clock of its last frame, in nanoseconds since 1970-01-01 00:00:00 UTC; 0 if it has none.
    pub time: u64,
    /// How it ended.
    pub end: End,
}

/// State from which writing continues, in a new segment.
#[derive(Debug)]
pub(super) struct Resumed {
    pub(super) recovered: Recovered,
    /// Segments with records, ascending, and the first record of each.
    pub(super) segments: Vec<(u64, Lsn)>,
    pub(super) free: Vec<u64>,
    /// Number of the next free file.
    pub(super) file_number: u64,
    pub(super) next: Chain,
    /// Number of the next segment.
    pub(super) number: u64,
}

impl Resumed {
    fn after(
        next: Chain,
        (time, end): (u64, End),
        segments: Vec<(u64, Lsn)>,
        (free, file_number): (Vec<u64>, u64),
    ) -> Self {
        let first = segments.first().map_or(next.lsn, |(_, first)| *first);
        let number = segments.last().map_or(1, |(last, _)| last + 1);
        let recovered = Recovered { first, next: next.lsn, time, end };
        Self { recovered, segments, free, file_number, next, number }
    }
}

/// Finds the end of the journal and frees what is after it. Fails if the journal has not come as far as its head says. `boot` is that of
/// the system.
pub(super) fn recover(directory: &Directory, head: &mut Head, boot: [u8; 16]) -> Result<Resumed> {
    let mut listing = directory.list()?;
    directory.remove_second_names(&mut listing)?;
    for path in &listing.unfilled {
        directory.disk.remove(path)?;
    }
    // Frames are written one after the other, so only a power cut takes one and leaves a later one.
    let HeadNote { segment: newest_begun, durable: durable_next, boot: last_boot, .. } = head.note;
    let is_same_boot = last_boot == boot && boot != [0; 16];
    let mut named = listing.segments.first().map_or(newest_begun, |first| *first)..=newest_begun;
    if let Some(number) = named.find(|number| 0 < *number && !listing.segments.contains(number)) {
        let reason = format!("segment-{number:016x} is gone, and the records in it");
        return Err(Error::damaged(format!("journal {}", directory.disk.display(&directory.dir)), reason));
    }
    let mut begun = Vec::with_capacity(listing.segments.len());
    for number in &listing.segments {
        begun.push((*number, directory.open(*number)?));
    }
    let mut buffer = Vec::new();
    let durable = durable_before(directory, &begun, &mut buffer)?;
    let chained = chain_of(directory, &begun, durable, &mut buffer)?;
    let Chained { next, time, segments, offset } = chained;
    let newest = segments.checked_sub(1).and_then(|last| begun.get(last)).map_or(0, |(number, _)| *number);
    if is_same_boot && newest < newest_begun || next.lsn < durable_next {
        return Err(lost(directory, next.lsn));
    }
    // A sync may have failed in the process before: then the page cache holds what the disk does not, and would not write it again.
    for (at, (_, segment)) in begun.iter().enumerate().take(segments).skip(durable) {
        let Some(segment) = segment else { continue };
        let is_last = at + 1 == segments;
        rewrite(segment, if is_last { offset } else { directory.size.segment_bytes })?;
    }
    let broken = segments.checked_sub(1).and_then(|last| Some((begun.get(last)?.1.as_ref()?, offset)));
    let rest = begun.get(segments..).unwrap_or_default();
    let rest = rest.iter().filter_map(|(_, segment)| Some((segment.as_ref()?, BLOCK_BYTES as u64)));
    let mut end = End::Whole;
    for (segment, offset) in broken.into_iter().chain(rest) {
        if let Some(synced) = synced_after(directory, segment, offset, &mut buffer)? {
            if is_same_boot || next.frame <= synced {
                return Err(lost(directory, next.lsn));
            }
            end = End::Torn;
        }
    }
    let mut free = listing.free;
    let mut file_number = free.iter().max().map_or(1, |last| last + 1);
    if segments < begun.len() {
        // The head does not name segments that are free.
        head.change(|note| note.segment = newest)?;
        head.sync()?;
    }
    for (number, _) in begun.get(segments..).unwrap_or_default() {
        directory.free(*number, file_number)?;
        free.push(file_number);
        file_number += 1;
    }
    if !(listing.unfilled.is_empty() && segments == begun.len()) {
        directory.disk.sync_dir(&directory.dir)?;
    }
    let kept = begun.iter().take(segments);
    let segments: Vec<(u64, Lsn)> =
        kept.filter_map(|(number, segment)| Some((*number, segment.as_ref()?.start.lsn))).collect();
    Ok(Resumed::after(next, (time, end), segments, (free, file_number)))
}

/// Finds the records that continue a checkpoint without a hole, and sets all other segments aside. Without such records, the journal begins
/// after the checkpoint.
pub(super) fn salvage(directory: &Directory, stored: Lsn) -> Result<Resumed> {
    let after = Lsn(stored.0 + 1);
    let listing = directory.list()?;
    let (mut buffer, mut time, mut next) = (Vec::new(), 0, None);
    let mut kept: Vec<Segment> = Vec::new();
    for number in &listing.segments {
        // Whatever cannot be read ends the records.
        let Ok(Some(segment)) = directory.open(*number) else { break };
        if next.map_or(after < segment.start.lsn, |next| segment.start != next) {
            break;
        }
        let mut walk = Walk::new(segment.clone(), directory.size.segment_bytes);
        while let Ok(Some(frame)) = walk.step(&mut buffer) {
            time = frame.header.time;
        }
        next = Some(walk.next);
        kept.push(segment);
    }
    let next = next.filter(|next| after <= next.lsn).unwrap_or_else(|| {
        (kept, time) = (Vec::new(), 0);
        Chain { lsn: after, ..Chain::FIRST }
    });
    for segment in &kept {
        rewrite(segment, directory.size.segment_bytes)?;
    }
    for number in listing.segments.iter().skip(kept.len()) {
        directory.quarantine(*number)?;
    }
    directory.disk.sync_dir(&directory.dir)?;
    let segments: Vec<(u64, Lsn)> = kept.iter().map(|segment| (segment.number, segment.start.lsn)).collect();
    let file_number = listing.free.iter().max().map_or(1, |last| last + 1);
    Ok(Resumed::after(next, (time, End::Torn), segments, (Vec::new(), file_number)))
}

/// Writes the beginning of a segment again, as it is read, and makes it durable.
fn rewrite(segment: &Segment, bytes: u64) -> Result<()> {
    let mut buffer = Vec::new();
    let mut offset = 0;
    while offset < bytes {
        let len = usize::try_from(bytes - offset).unwrap_or(REWRITE_BYTES).min(REWRITE_BYTES);
        buffer.resize(len, 0);
        segment.file.read_at(offset, &mut buffer)?;
        segment.file.write_at(offset, &buffer)?;
        offset += len as u64;
    }
    segment.file.sync_data()
}

fn lost(directory: &Directory, next: Lsn) -> Error {
    let path = directory.disk.display(&directory.dir);
    let last = next.0.saturating_sub(1);
    Error::damaged(
        format!("journal {path}"),
        format!("record {next} is gone although it was written: every moment up to LSN {last} is good"),
    )
}

/// Returns the first segment whose frames need to be read: all frames before it are known to have been durable.
fn durable_before(directory: &Directory, begun: &[(u64, Option<Segment>)], buffer: &mut Vec<u8>) -> Result<usize> {
    let mut synced = 0;
    for (at, (_, segment)) in begun.iter().enumerate().rev() {
        let Some(segment) = segment else { continue };
        let mut walk = Walk::new(segment.clone(), directory.size.segment_bytes);
        while let Some(frame) = walk.step(buffer)? {
            synced = frame.header.synced.max(synced);
        }
        let before = at.checked_sub(1).and_then(|before| begun.get(before));
        if before.is_none_or(|(_, before)| before.is_some()) && segment.start.frame <= synced + 1 {
            return Ok(at);
        }
    }
    Ok(0)
}

/// The part of a journal in which each frame continues the one before.
struct Chained {
    next: Chain,
    time: u64,
    /// Segments that belong to it.
    segments: usize,
    /// Offset of its end in the last of them.
    offset: u64,
}

fn chain_of(
    directory: &Directory,
    begun: &[(u64, Option<Segment>)],
    from: usize,
    buffer: &mut Vec<u8>,
) -> Result<Chained> {
    let mut chained = Chained { next: Chain::FIRST, time: 0, segments: from, offset: BLOCK_BYTES as u64 };
    // What is not read is only compared by headers: the numbers of its segments and frames have no gaps.
    for pair in begun.get(..=from).unwrap_or_default().windows(2) {
        if let [(first, Some(a)), (second, Some(b))] = pair {
            let ascends = first + 1 == *second && a.start.frame <= b.start.frame && a.start.lsn <= b.start.lsn;
            if !ascends {
                return Err(lost(directory, a.start.lsn));
            }
        } else {
            return Err(lost(directory, chained.next.lsn));
        }
    }
    for (at, (_, segment)) in begun.iter().enumerate().skip(from) {
        let Some(segment) = segment else { break };
        if at != from && segment.start != chained.next {
            break;
        }
        let mut walk = Walk::new(segment.clone(), directory.size.segment_bytes);
        while let Some(frame) = walk.step(buffer)? {
            chained.time = frame.header.time;
        }
        chained = Chained { next: walk.next, offset: walk.offset, segments: at + 1, ..chained };
    }
    Ok(chained)
}

/// Returns the highest number of a frame that was durable, as the frames say that open at or after an offset; `None` if none opens.
fn synced_after(
    directory: &Directory,
    segment: &Segment,
    mut offset: u64,
    buffer: &mut Vec<u8>,
) -> Result<Option<u64>> {
    let mut found = None;
    while offset < directory.size.segment_bytes {
        match open_frame(segment, directory.size.segment_bytes, offset, buffer)? {
            Some(frame) => {
                let FrameHeader { synced, .. } = frame.header;
                found = found.max(Some(synced));
                offset = frame.end;
            }
            None => offset += BLOCK_BYTES as u64,
        }
    }
    Ok(found)
}
