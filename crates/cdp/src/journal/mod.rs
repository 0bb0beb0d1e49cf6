//! The journal: every write to the volumes of a consistency group, in order, before it reaches the volume.
//!
//! The journal is the only durable state of continuous protection besides the repository. It lies outside the repository, in a
//! directory of its own, as files of equal length, called segments. A segment holds frames, and a frame holds records. `docs/journal.md`
//! describes every byte.
//!
//! Order: a record gets its log sequence number (LSN) when it is appended. All records that arrive while a frame is being written form
//! the next frame, so no timer is needed. [`Journal::commit`] returns when a record is in its file, where it survives the end of the
//! process. [`Journal::sync`] returns when all records before it are durable. A failed write or sync is never retried: the journal fails
//! as a whole, and everything that waits for it fails too.

pub mod codec;
mod head;
mod reader;
mod recovery;
mod segment;
mod status;
mod write;

pub use codec::{Op, RECORD_BYTES_MAX, Record};
pub use reader::{Entry, Frames};
pub use recovery::{End, Recovered};
pub use status::{JournalStatus, Lag};
pub use write::Journal;

use onefold_engine::crypto::Keys;
use onefold_engine::error::Error;
use onefold_engine::types::RepositoryId;

/// Position of a record in the order of all writes of a group; the first is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lsn(pub u64);

impl std::fmt::Display for Lsn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Identity of a consistency group: volumes whose writes have one order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupId(pub [u8; 16]);

/// Keys and identity of a journal.
#[derive(Clone, Debug)]
pub struct JournalIdentity {
    /// Keys of the repository that the group is backed up to.
    pub keys: Keys,
    /// Id of that repository.
    pub repository: RepositoryId,
    /// The group.
    pub group: GroupId,
}

/// Size of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalSize {
    /// Bytes of a segment: a multiple of 4 KiB, at least [`JournalSize::SEGMENT_BYTES_MIN`].
    pub segment_bytes: u64,
    /// Most segments; at least [`JournalSize::SEGMENTS_MIN`].
    pub segments_max: u32,
}

impl JournalSize {
    /// Bytes of a segment, unless another length is chosen.
    pub const SEGMENT_BYTES: u64 = 64 << 20;
    /// Shortest segment: any frame fits into one.
    pub const SEGMENT_BYTES_MIN: u64 = 4 << 20;
    /// One that is written, one that is being read, and one that waits.
    pub const SEGMENTS_MIN: u32 = 3;

    /// Divides a journal of about `bytes` into segments.
    pub fn of(bytes: u64) -> Self {
        let segment_bytes = (bytes / 16 / 4096 * 4096).clamp(Self::SEGMENT_BYTES_MIN, Self::SEGMENT_BYTES);
        let segments = u32::try_from(bytes / segment_bytes).unwrap_or(u32::MAX);
        Self { segment_bytes, segments_max: segments.max(Self::SEGMENTS_MIN) }
    }

    /// Returns the most bytes that the journal takes.
    pub fn bytes(&self) -> u64 {
        self.segment_bytes * u64::from(self.segments_max)
    }
}

/// Why a record was not taken.
#[derive(Clone, Debug)]
pub enum AppendError {
    /// All segments hold records that are still needed.
    Full,
    /// A write or sync has failed; the reason is that of the first failure.
    Failed(Error),
}

impl std::fmt::Display for AppendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full => f.write_str("the journal is full"),
            Self::Failed(error) => write!(f, "the journal has failed: {error}"),
        }
    }
}

impl std::error::Error for AppendError {}

#[cfg(test)]
mod tests;
