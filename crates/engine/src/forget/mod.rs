//! Forgetting snapshots: which ones a policy keeps, and why.
//!
//! The policy is a function of the snapshots, the rules and the time; it returns a plan and touches nothing.

mod calendar;
mod candidate;
mod doubt;
mod plan;
#[cfg(test)]
mod plan_tests;
mod rules;

pub use calendar::{Period, Span, Zone};
pub use candidate::{Candidate, HeadTime, Received};
pub use doubt::{Basis, Doubt, Trust};
pub use plan::{Caution, Fate, ForgetPlan, GroupBy, GroupKey, GroupPlan, Policy};
pub use rules::{KeepRule, KeepRules, Limit, Reason};
