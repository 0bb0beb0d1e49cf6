//! Options of `repair`.

use std::ffi::OsString;

use clap::{Args, Command, FromArgMatches, Subcommand};

use crate::args::backup::IndexServerArgs;

use crate::args::SelectionArgs;

/// Commands that repair what is lost or damaged.
#[derive(Debug, Subcommand)]
pub(crate) enum RepairCommand {
    /// Throw the index of this host away and rebuild it from the repository
    #[command(after_help = examples! { "Rebuild the index of this host": "onefold repair index" })]
    Index(RepairIndexArgs),
    /// Make snapshots without what is lost from those that have lost something, after what `repair objects` does
    #[command(after_help = examples! {
        "Show what the snapshots have lost": "onefold repair snapshots --dry-run";
        "Replace a snapshot by one without what is lost": "onefold repair snapshots --forget 1a2b3c4d";
    })]
    Snapshots(RepairSnapshotsArgs),
    /// Mend damaged small objects: set aside what nothing needs, and write again what can be derived
    #[command(after_help = examples! {
        "Show which small objects are damaged": "onefold repair objects --dry-run";
        "Mend sessions, commits, manifests and the like": "onefold repair objects";
    })]
    Objects(RepairObjectsArgs),
    /// Find damaged containers and what they affect, and set them aside with --quarantine
    #[command(after_help = examples! {
        "Read all containers, and report those that are damaged": "onefold repair containers";
        "Set them aside, and keep what is whole in them": "onefold repair containers --quarantine";
        "Remove the containers that were set aside": "onefold repair containers --remove-quarantined";
    })]
    Containers(RepairContainersArgs),
    /// Set containers aside, and keep what is whole in them, as `repair containers --quarantine` does
    #[command(after_help = examples! {
        "Set a container aside": "onefold repair packs 0123456789abcdef0123456789abcdef/00000002";
    })]
    Packs(RepairPacksArgs),
}

/// Options of `repair packs`.
#[derive(Args, Debug)]
pub(crate) struct RepairPacksArgs {
    /// Containers, by the paths that `check` prints or the ids that `list packs` prints
    #[arg(value_name = "CONTAINER", required = true)]
    pub(crate) containers: Vec<String>,
}

impl RepairPacksArgs {
    /// Returns the options of `repair containers` that do the same.
    pub(crate) fn quarantine(&self) -> RepairContainersArgs {
        let matches = RepairContainersArgs::augment_args(Command::new("containers")).get_matches_from(["containers"]);
        let args = RepairContainersArgs::from_arg_matches(&matches).expect("the options have defaults");
        RepairContainersArgs { containers: self.containers.clone(), quarantine: true, ..args }
    }
}

/// Options of `repair containers`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct RepairContainersArgs {
    /// Read only these containers, by the paths that `check` prints or the ids that `list packs` prints; with --quarantine, set
    /// them aside, damaged or not
    #[arg(value_name = "CONTAINER", conflicts_with_all = ["salvage", "remove_quarantined"])]
    pub(crate) containers: Vec<String>,
    /// Set damaged containers aside: what is whole in them is copied, and their names get the ending .bad
    #[arg(long, conflicts_with_all = ["salvage", "remove_quarantined"])]
    pub(crate) quarantine: bool,
    /// Copy what is whole in containers that were set aside, and in no other container, back to the repository
    #[arg(long, conflicts_with = "remove_quarantined")]
    pub(crate) salvage: bool,
    /// Remove the containers that were set aside
    #[arg(long)]
    pub(crate) remove_quarantined: bool,
    /// Show what would be done, but change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Wait this long for backups that are at work; without it, a later prune goes on
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub(crate) wait: String,
    /// Fence backups that have shown no sign of life for this long: they start again
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    pub(crate) fence_after: String,
}

/// Options of `repair objects`.
#[derive(Args, Debug)]
pub(crate) struct RepairObjectsArgs {
    /// Show what would be done, but change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
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
    #[command(flatten)]
    pub(crate) server: IndexServerArgs,
}
