//! The facade: what a program does with a repository.

pub mod backup;
pub mod location;
pub mod long_id;
pub mod select;

pub use backup::{BackupOutcome, BackupRequest, Cache, backup};
pub use location::Location;
pub use long_id::{LongRepositoryId, SnapshotId};
pub use select::{Selection, SnapshotName};
