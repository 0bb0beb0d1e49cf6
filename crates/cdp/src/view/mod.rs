//! Volumes as they were at any moment.
//!
//! A [`PointInTime`] is the newest checkpoint that is not after the moment, and a map from blocks to the contents that they got between
//! the two: in the data of later checkpoints, or in the journal. [`history()`] lists the moments that there are. An [`Overlay`] takes
//! writes to a volume that nobody may change. [`bring_back()`] writes a moment into the volumes themselves.

mod block_map;
mod bring_back;
mod history;
mod interval;
mod moment;
mod overlay;
mod point;
mod resolve;
mod sources;
mod spool;

pub use bring_back::bring_back;
pub use history::{FlushDetail, GapListed, HistoryListing, HistoryRequest, MarkListed, UnreachableRange, history};
pub use moment::{At, Moment, TimeRule};
pub use overlay::Overlay;
pub use point::{PointInTime, PointVolume, ViewOptions};

#[cfg(test)]
mod tests;
