//! The command as a user or a program runs it: what it prints where, and how it exits.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests prepare real files")]
#![expect(clippy::unwrap_used, reason = "tests")]

#[cfg(feature = "cuda")]
mod accelerators;
mod backup;
#[cfg(feature = "lab")]
mod browser;
mod checking;
mod compat;
mod deriving;
mod failures;
mod fixture;
mod forgetting;
#[cfg(feature = "servers")]
mod index_server;
mod inspecting;
#[cfg(feature = "cdp")]
mod journal_loss;
mod keys;
#[cfg(feature = "lab")]
mod lab;
#[cfg(feature = "lab")]
mod lab_advise;
#[cfg(feature = "lab")]
mod lab_image;
#[cfg(feature = "lab")]
mod lab_paper;
#[cfg(feature = "lab")]
mod lab_record;
#[cfg(feature = "lab")]
mod lab_report;
#[cfg(feature = "lab")]
mod lab_versions;
mod listing;
mod manual;
mod memory;
mod named;
mod options;
mod pruning;
mod quickstart;
#[cfg(feature = "cdp")]
mod receiving;
mod repairing;
mod restore_faults;
mod restoring;
mod shortage;
mod signals;
mod similar;
mod stopping;
mod terminal;
mod trust;
#[cfg(feature = "cdp")]
mod volume_clients;
#[cfg(feature = "cdp")]
mod volumes;
mod why;
