//! The facade: what a program does with a repository.

pub mod backup;
pub(crate) mod cache;
pub mod derive;
mod index;
mod learning;
pub(crate) mod location;
pub(crate) mod long_id;
mod preset;
mod repair;
mod repair_objects;
pub(crate) mod select;
mod sessions;
mod similar;
pub mod write;

pub use backup::{BackupOutcome, BackupRequest, backup};
pub use cache::Cache;
pub use derive::{Derived, recover, rewrite, tag, try_rewrite};
pub use index::{RebuildRequest, RebuiltIndex, rebuild_index};
pub use location::Location;
pub use long_id::{LongRepositoryId, SnapshotId};
pub use repair::{Losses, Repaired, find_losses, repair_snapshot};
pub use repair_objects::{GIVEN_UP, RepairedObjects, repair_objects};
pub use select::{LatestDoubt, Selection, SnapshotName};
pub use write::{WriteOutcome, WriteRequest, write};
