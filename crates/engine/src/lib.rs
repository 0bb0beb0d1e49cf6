//! Exact, deduplicating backup engine: every piece of data is stored once, in a memory that its caller chooses.
//!
//! A program that backs up and restores:
//!
//! ```
//! use onefold_engine::{Overwrite, RepositoryOptions, Result};
//!
//! fn main() -> Result<()> {
//!     let home = std::env::temp_dir().join(format!("onefold-example-{}", std::process::id()));
//!     let options = RepositoryOptions::new(home.join("repository")).password("secret").cache_directory(home.join("cache"));
//!     let repository = options.create()?;
//!     let made = repository.backup(["src"]).tag("example").run()?;
//!     repository.restore(made.snapshot, home.join("restored")).run()?;
//!     repository.restore("latest:/src", home.join("restored/src")).overwrite(Overwrite::IfChanged).run()?;
//!     assert!(repository.check().run()?.is_sound());
//! #   assert_eq!(std::fs::read(home.join("restored/src/lib.rs")).unwrap(), std::fs::read("src/lib.rs").unwrap());
//! #   std::fs::remove_dir_all(home).unwrap();
//!     Ok(())
//! }
//! ```
//!
//! [`Repository`] is the way in. The engine is synchronous, prints nothing and knows no JSON. The feature `internals` opens
//! its modules to the command and the laboratory; nothing in them is stable.
//!
//! Modules are layered; each imports only from lower layers: L0 `types error codec random bloom lru`, L1 `io monitor`, L2 `accelerator chunk
//! fingerprint compress crypto kv object spill`, L3 `container recipe similarity snapshot source tree`, L4 `identify store`, L5
//! `pipeline backup restore check collect inspect forget`, L6 `repo`, L7 `facade`.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "internals"),
    expect(
        unreachable_pub,
        dead_code,
        unused_imports,
        reason = "what the modules offer to the command and the laboratory"
    )
)]

pub mod error;
mod facade;

cfg_if::cfg_if! {
    if #[cfg(feature = "internals")] {
        pub mod accelerator;
        pub mod backup;
        mod bitmap;
        pub mod bloom;
        pub mod check;
        pub mod chunk;
        pub mod codec;
        pub mod collect;
        pub mod compress;
        pub mod container;
        pub mod crypto;
        pub mod derive;
        pub mod fingerprint;
        pub mod forget;
        pub mod identify;
        pub mod inspect;
        pub mod io;
        pub mod kv;
        pub mod lru;
        pub mod monitor;
        pub mod object;
        pub mod pipeline;
        pub mod random;
        pub mod recipe;
        pub mod repo;
        pub mod restore;
        pub mod similarity;
        pub mod snapshot;
        pub mod source;
        pub mod spill;
        pub mod store;
        pub mod tree;
        pub mod types;
    } else {
        mod accelerator;
        mod backup;
        mod bitmap;
        mod bloom;
        mod check;
        mod chunk;
        mod codec;
        mod collect;
        mod compress;
        mod container;
        mod crypto;
        mod derive;
        mod fingerprint;
        mod forget;
        mod identify;
        mod inspect;
        mod io;
        mod kv;
        mod lru;
        mod monitor;
        mod object;
        mod pipeline;
        mod random;
        mod recipe;
        mod repo;
        mod restore;
        mod similarity;
        mod snapshot;
        mod source;
        mod spill;
        mod store;
        mod tree;
        mod types;
    }
}
// Never compiled: `cargo mutants` does not look for modules in macros.
#[cfg(any())]
mod collect;
#[cfg(any())]
mod store;

#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
extern crate self as onefold_engine;
#[cfg(test)]
#[path = "../tests/main.rs"]
mod integration;

pub use backup::Budget;
pub use check::{AffectedFile, CheckReport, Extent, Finding, ReadData, Severity};
pub use compress::Compression;
pub use error::{Error, Result};
pub use facade::{Backup, BackupSummary, Check, Failure, Repository, RepositoryOptions};
pub use facade::{Restore, RestoreSummary, SnapshotInfo};
pub use identify::IndexPreset;
pub use monitor::{Action, Monitor, Silent};
pub use restore::Overwrite;
pub use types::{RepositoryId, SessionId as SnapshotId, Timestamp};

/// Compiles the program in the manual.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/manual/src/library.md")]
struct Manual;
