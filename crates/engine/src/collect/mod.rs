//! Reclaiming space: what a collection marks, plans, copies, and finally deletes.
//!
//! docs/protocol.md states the steps and the rules. Policies are functions that return values: `plan` proposes, `settle`
//! decides. `collector` carries them out.

mod bases_graph;
mod collector;
mod copies;
pub mod copy;
mod copying;
mod decide;
mod dependents;
mod depending;
mod last_look;
pub mod ledger;
pub mod lifetime;
mod manifests;
pub mod mark;
mod moved;
pub mod plan;
mod quarantine;
mod quick;
mod request;
mod rescue;
mod salvage;
pub mod settle;
mod stale;
mod steps;
mod survey;
mod unfinished;
pub mod usage;
mod wait;
mod weigh;
mod what_if;
mod whole;
pub mod why;

pub use collector::{plan_prune, prune, quarantine};
pub use copies::Copies;
pub use moved::MovedCounts;
pub use request::{PruneReport, PruneRequest, PruneState};
pub use rescue::rescue_pending;
pub use salvage::{Salvaged, salvage};
pub use steps::give_up_open as give_up;
pub use unfinished::{UnfinishedBackup, unfinished_backups};
pub use wait::UnendedSession;
pub use what_if::{WhatIf, what_if};

/// The least memory that a prune uses, in bytes: its smallest shares are a half for the usage of containers, and a quarter of
/// a half for each part of a mark.
pub(crate) const MEMORY_BYTES_MIN: usize = 4 * mark::MEMORY_BYTES_MIN;

const _: () =
    assert!(2 * usage::MEMORY_BYTES_MIN <= MEMORY_BYTES_MIN && 2 * decide::MEMORY_BYTES_MIN <= MEMORY_BYTES_MIN);
