//! Restore: from a snapshot to files.

pub mod dump;
pub mod fetch;
pub mod files;
pub mod links;
mod passes;
pub mod run;
pub mod select;
pub mod verify;

pub use dump::dump;
pub use run::{Overwrite, RestoreReport, RestoreRequest, restore};
pub use select::{Filter, find_entry};
