//! The command as a user or a program runs it: what it prints where, and how it exits.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests prepare real files")]
#![expect(clippy::unwrap_used, reason = "tests")]

mod backup;
mod browser;
mod checking;
mod failures;
mod inspecting;
mod keys;
mod lab;
mod lab_advise;
mod lab_paper;
mod lab_record;
mod lab_report;
mod listing;
mod manual;
mod memory;
mod place;
mod restoring;
mod shortage;
