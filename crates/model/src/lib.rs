//! The protocol of reclaiming space, as a model whose states are all explored.
//!
//! docs/protocol.md describes the protocol, its steps W1 to W5 and C0 to C10, and the results. Each step of a process is one
//! transition here. A process that dies or sleeps is one whose next step is never chosen. A fence may come at any moment.
//!
//! A name is visible as soon as it is linked, and durable when it is synced. One power cut takes back any set of the names
//! and deletions that are not durable.
//!
//! # The rule for unchanged files
//!
//! A writer may refer to all chunks of a parent snapshot, without a look at their containers, if
//!
//! 1. it has created its session (W1), and after that
//! 2. has read `gc/` (W2) and found no collection that has a `condemn` and neither `final` nor `done`, and after that
//! 3. has read `commits/` and `forget/` and found the parent committed and not forgotten.
//!
//! The order of the three is essential. Otherwise the writer looks for every chunk in a live container (W3, W4). The rule
//! holds for the rest of the session: a forget or a collection that comes later changes nothing.
//!
//! Why it is safe: a collection whose `condemn` comes after 2 lists sessions later still, so it waits for this writer and
//! marks its snapshot. A collection with a `final` at 2 had read the forgets before, when the parent was not forgotten. So
//! it kept a copy of every chunk of the parent if it could see the parent's commit. If it could not, the parent's session
//! began after `condemn`, and its writer treated what was condemned as absent.
//!
//! # Layout
//!
//! [`state`] has the objects and what each process knows; the private modules `writer`, `collector`, `reader` and `storage`
//! have the steps; [`world`] the sizes, the features, the variants and the invariants; [`explore`] the search;
//! [`configurations`] what is explored.
#![forbid(unsafe_code)]

mod collector;
pub mod configurations;
pub mod explore;
mod reader;
pub mod set;
pub mod state;
pub mod step;
mod storage;
mod symmetry;
pub mod world;
mod writer;
