//! Keeping less of the past: rules, the plan that follows from them, and the snapshots that carry it out.
//!
//! [`plan()`] is a function of facts, rules and the time; it returns a value and touches nothing. [`Thinner`] reads the facts, and carries
//! a plan out: a checkpoint whose records are thinned becomes a derived snapshot with the same images, whose history leads to the moments
//! that were kept and to no others. The original is forgotten once the derived one is durable. A prune gives the space back.

mod collapse;
mod facts;
mod plan;
mod rules;
mod thin;

pub use plan::{CheckpointFacts, Fate, Held, HistoryFacts, MomentFacts, Plan, Planned, Why, plan};
pub use rules::KeepMoments;
pub use thin::{Carried, ThinOptions, Thinner};

#[cfg(test)]
mod plan_tests;
