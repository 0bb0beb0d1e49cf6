//! The facade: what a program does with a repository.

pub mod backup;
pub mod select;

pub use backup::{BackupOutcome, BackupRequest, Cache, backup};
pub use select::{Selection, SnapshotName};
