//! Protected volumes: every write enters the journal before it reaches the volume.
//!
//! Order of a write, with the range locked: the extents are active (durably), the record is in its file, the volume is written, the
//! client gets its answer. A flush makes the journal durable, and the volume too unless the journal alone is to answer for it.
//! `docs/durability.md` has the argument, and the crash tests carry it out.

mod activity;
mod group;
mod protected;
mod range_lock;

pub use activity::{ActivityLog, EXTENT_BYTES, EXTENTS_MAX, Extent, LastUse, extents_of};
pub use group::{Durability, FindDifferences, Group, GroupOptions, Opened, WhenBehind, differing_blocks};
pub use protected::ProtectedVolume;

#[cfg(test)]
mod tests;
