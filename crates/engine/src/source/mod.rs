//! What is backed up: which paths, which of what lies below them, in which order.
//!
//! Users bring their habits and their exclude files from restic, so options that carry restic's names mean what they
//! mean there.

pub(crate) mod ahead;
mod clean;
pub mod exclude;
pub mod files_from;
pub(crate) mod glob;
mod item;
mod roots;
pub mod stream;
mod survey;
pub mod walk;

pub use roots::{absolute, identity};
