//! Options of `repair`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::args::SelectionArgs;

/// Commands that repair what is lost or damaged.
#[derive(Debug, Subcommand)]
pub(crate) enum RepairCommand {
    /// Throw the index of this host away and rebuild it from the repository
    #[command(after_help = examples! { "Rebuild the index of this host": "onefold repair index" })]
    Index(RepairIndexArgs),
    /// Make snapshots without what is lost from those that have lost something
    #[command(after_help = examples! {
        "Show what the snapshots have lost": "onefold repair snapshots --dry-run";
        "Replace a snapshot by one without what is lost": "onefold repair snapshots --forget 1a2b3c4d";
    })]
    Snapshots(RepairSnapshotsArgs),
}

/// Options of `repair snapshots`.
#[derive(Args, Debug)]
pub(crate) struct RepairSnapshotsArgs {
    /// Repair only these snapshots
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// Show what is lost, but change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Forget each snapshot after its replacement is in the repository
    #[arg(long)]
    pub(crate) forget: bool,
    /// Append this to the names of files that have lost a part, for example .repaired
    #[arg(long, value_name = "SUFFIX", default_value = "", hide_default_value = true)]
    pub(crate) suffix: OsString,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Options of `repair index`.
#[derive(Args, Debug)]
pub(crate) struct RepairIndexArgs {
    /// Accepted for scripts, without effect: the directory of every container is read
    #[arg(long)]
    pub(crate) read_all_packs: bool,
}
