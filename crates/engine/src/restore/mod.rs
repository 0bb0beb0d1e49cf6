//! Restore: from a snapshot to files.

pub mod delete;
pub mod dump;
pub mod fetch;
pub mod files;
pub mod links;
mod locate;
mod passes;
mod region;
pub mod run;
pub mod select;
pub mod verify;

pub use delete::{DeleteReport, DeleteRequest, delete};
pub use dump::dump;
pub use run::{Overwrite, RestoreReport, RestoreRequest, restore};
pub use select::{Filter, find_entry};
