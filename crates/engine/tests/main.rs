//! Integration tests of the engine, one binary.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests stop at a surprise and tell what they tried")]
#![expect(unreachable_pub, reason = "the support of tests is public to all of them")]

mod condemned;
mod corpus;
mod crash;
mod damage;
mod deleting;
mod drivers;
mod exactness;
mod hostile;
mod inspecting;
mod interrupting;
mod old_formats;
mod property;
mod races;
mod regressions;
mod rehearsing;
mod replacing;
mod restore_faults;
mod sources;
mod standing;
mod support;
