//! The head of a journal: how far the journal has come, noted next to its directory.
//!
//! A journal whose last files are gone looks like one that was never longer. The head tells both apart: it names the newest segment and
//! the records that are durable. It is never ahead of the journal, so that a power cut may take a note back, and none needs a sync. Two
//! slots are written in turn: a torn write leaves the other.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Access, Disk, DiskFile};

use crate::journal::Lsn;

const MAGIC: [u8; 8] = *b"onefoldh";
const SLOT_BYTES: usize = 4096;
/// Magic, number of the slot, segment, durable record, boot; the checksum follows.
const SUM: Range<usize> = 48..52;

/// A note.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct HeadNote {
    number: u64,
    /// The newest segment; 0 before the first.
    pub(super) segment: u64,
    /// The record after the last that is durable.
    pub(super) durable: Lsn,
    /// Boot of the system that has begun the segment.
    pub(super) boot: [u8; 16],
}

/// The file with the notes.
#[derive(Debug)]
pub(super) struct Head {
    file: Arc<dyn DiskFile>,
    pub(super) note: HeadNote,
}

fn path_of(dir: &Path) -> PathBuf {
    dir.with_extension("head")
}

fn encode(note: &HeadNote) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    let fields = [note.number, note.segment, note.durable.0].map(u64::to_le_bytes).concat();
    slot[..8].copy_from_slice(&MAGIC);
    slot[8..32].copy_from_slice(&fields);
    slot[32..48].copy_from_slice(&note.boot);
    let sum = crc32c::crc32c(&slot);
    slot[SUM].copy_from_slice(&sum.to_le_bytes());
    slot
}

fn decode(slot: &[u8; SLOT_BYTES]) -> Option<HeadNote> {
    let integer = |at: usize| Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?));
    let boot = slot[32..48].try_into().ok()?;
    let note = HeadNote { number: integer(8)?, segment: integer(16)?, durable: Lsn(integer(24)?), boot };
    (encode(&note) == *slot).then_some(note)
}

impl Head {
    /// Creates the head of a new journal, or replaces one.
    pub(super) fn create(disk: &dyn Disk, dir: &Path) -> Result<Self> {
        let path = path_of(dir);
        if disk.exists(&path)? {
            disk.remove(&path)?;
        }
        let head = Self { file: disk.create(&path)?, note: HeadNote::default() };
        let first = encode(&head.note);
        head.file.write_at(0, &[first, first].concat())?;
        head.file.sync()?;
        Ok(head)
    }

    /// Opens the head of the journal in a directory.
    pub(super) fn open(disk: &dyn Disk, dir: &Path) -> Result<Self> {
        let path = path_of(dir);
        let lost = |reason: &str| Error::damaged(format!("journal {}", disk.display(dir)), reason);
        if !disk.exists(&path)? {
            return Err(lost("its head is missing, the file with the extension `head`: records may be gone"));
        }
        let file = disk.open(&path, Access::ReadWrite)?;
        let mut newest = None;
        for at in 0..2 {
            let mut slot = [0; SLOT_BYTES];
            if (at + 1) * SLOT_BYTES as u64 <= file.len()? {
                file.read_at(at * SLOT_BYTES as u64, &mut slot)?;
            }
            newest = newest.max(decode(&slot));
        }
        let note = newest.ok_or_else(|| lost("its head is damaged: records may be gone"))?;
        Ok(Self { file, note })
    }

    /// Notes how far the journal has come.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut HeadNote)) -> Result<()> {
        change(&mut self.note);
        self.note.number += 1;
        self.file.write_at(self.note.number % 2 * SLOT_BYTES as u64, &encode(&self.note))
    }

    /// Makes the last note durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_data()
    }
}
