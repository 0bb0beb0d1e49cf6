//! The facade: what a program does with a repository.

pub mod backup;
pub(crate) mod location;
pub(crate) mod long_id;
pub(crate) mod select;

pub use backup::{BackupOutcome, BackupRequest, Cache, backup};
pub use location::Location;
pub use long_id::{LongRepositoryId, SnapshotId};
pub use select::{Selection, SnapshotName};
