//! Forgetting snapshots: which ones a policy keeps, and why.
//!
//! The policy is a function of the snapshots, the rules and the time; it returns a plan and touches nothing. [`Forgetting`]
//! carries it out.

mod calendar;
mod candidate;
mod doubt;
mod plan;
#[cfg(test)]
mod plan_tests;
mod receipt;
mod rules;
mod write;

pub use calendar::{Period, Span, Zone};
pub use candidate::{Candidate, HeadTime, Received};
pub(crate) use doubt::is_earlier;
pub use doubt::{Basis, Doubt, Trust};
pub use plan::{Caution, Fate, ForgetPlan, GroupBy, GroupKey, GroupPlan, Policy};
pub use receipt::candidates;
pub use rules::{KeepRule, KeepRules, Limit, Reason, WithinFrom};
pub use write::{Forgetting, Forgotten};
