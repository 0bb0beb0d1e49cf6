//! Restore: from a snapshot to files.

mod apart;
mod decide;
mod delete;
mod directories;
mod dry_run;
mod dump;
pub mod fetch;
mod files;
pub mod links;
mod locate;
mod omissions;
mod partial;
mod passes;
mod pending;
mod plan;
mod policy;
mod region;
mod removal;
mod request;
pub mod residency;
mod run;
mod select;
mod sink;
mod verify;
mod walk;
mod writing;

pub use apart::ensure_apart;
pub use delete::{DeleteReport, DeleteRequest, PartialFiles, delete};
pub use dump::{dump, fetch_chunks};
pub use omissions::Omissions;
pub use partial::PARTIAL_SUFFIX;
pub use policy::{Effect, FullDirectories, Overwrite};
pub use request::{RestoreReport, RestoreRequest};
pub use run::restore;
pub use select::{Filter, find_entry};
