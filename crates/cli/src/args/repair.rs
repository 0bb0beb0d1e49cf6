//! Options of `repair`.

use clap::{Args, Subcommand};

/// Commands that repair what is lost or damaged.
#[derive(Debug, Subcommand)]
pub(crate) enum RepairCommand {
    /// Throw the index of this host away and rebuild it from the repository
    #[command(after_help = examples! { "Rebuild the index of this host": "onefold repair index" })]
    Index(RepairIndexArgs),
}

/// Options of `repair index`.
#[derive(Args, Debug)]
pub(crate) struct RepairIndexArgs {
    /// Accepted for scripts, without effect: the directory of every container is read
    #[arg(long)]
    pub(crate) read_all_packs: bool,
}
