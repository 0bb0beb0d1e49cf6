//! Protected volumes: every write enters the journal before it reaches the volume.
//!
//! Order of a write, with the range locked: the extents are active (durably), the record is in its file, the volume is written, the
//! client gets its answer. A flush makes the journal durable, and the volume too unless the journal alone is to answer for it.
//! `docs/durability.md` has the argument, and the crash tests carry it out.

mod activity;
mod append;
mod behind;
mod change;
mod compare;
mod group;
mod group_files;
mod loss;
mod pressure;
mod protected;
mod range_lock;
mod releases;
mod requests;
mod resync;
mod scan;
mod status;
mod syncs;

pub use activity::{ActivityLog, EXTENT_BYTES, EXTENTS_MAX, Extent, LastUse, extents_of};
pub use behind::{BEHIND_BYTES, BehindMap, VolumeRange};
pub use compare::{FindDifferences, differing_blocks};
pub use group::{Durability, Group, GroupOptions, HeldRecords, Opened, UNSYNCED_AGE, VOLUMES_MAX, WhenBehind};
pub use group_files::{JOURNAL, open_journal};
pub use pressure::{DELAY_MAX, JournalFill};
pub use protected::ProtectedVolume;
pub use resync::Resync;
pub use scan::{Differing, LISTED_MAX, ROUNDS, Ranges, Scanned};
pub use status::GroupStatus;

#[cfg(test)]
mod tests;
