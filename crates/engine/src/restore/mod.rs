//! Restore: from a snapshot to files.

pub mod apart;
mod decide;
pub mod delete;
mod directories;
pub mod dump;
pub mod fetch;
pub mod files;
pub mod links;
mod locate;
pub mod partial;
mod passes;
pub mod pending;
mod region;
mod rehearsal;
mod removal;
pub mod run;
pub mod select;
mod verify;
pub mod writing;

pub use apart::ensure_apart;
pub use delete::{DeleteReport, DeleteRequest, PartialFiles, delete};
pub use dump::dump;
pub use partial::PARTIAL_SUFFIX;
pub use removal::FullDirectories;
pub use run::{Effect, Overwrite, RestoreReport, RestoreRequest, restore};
pub use select::{Filter, find_entry};
