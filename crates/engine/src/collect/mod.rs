//! Reclaiming space: what a collection marks, plans, and finally deletes.
//!
//! docs/protocol.md states the steps and the rules. Policies are functions that return values; nothing here deletes.

pub mod copy;
pub mod lifetime;
pub mod mark;
pub mod plan;
pub mod settle;
pub mod usage;
