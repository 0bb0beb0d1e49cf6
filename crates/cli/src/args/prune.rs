//! Options of `prune`.

use clap::{Args, Command, FromArgMatches};

/// Limits of a prune, which `forget` has, too.
#[derive(Args, Clone, Debug)]
pub(crate) struct LimitArgs {
    /// Unused space that may stay in a prune: a share of what is used, a size, or "unlimited", which copies nothing
    #[arg(long, value_name = "LIMIT", default_value = "5%")]
    pub(crate) max_unused: String,
    /// Copy at most this much in a prune, for example 50G
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_repack_size: Option<String>,
    /// Join small containers in a prune, too: those below half of a container
    #[arg(long)]
    pub(crate) repack_small: bool,
    /// Join containers that are smaller than this in a prune, too
    #[arg(long, value_name = "SIZE", conflicts_with = "repack_small")]
    pub(crate) repack_smaller_than: Option<String>,
    /// The same as --max-unused unlimited: no container is kept in a cache
    #[arg(long)]
    pub(crate) repack_cacheable_only: bool,
    /// Compress what a prune copies again, with level 9 or --compression, and keep what gets shorter
    #[arg(long)]
    pub(crate) recompress: bool,
}

/// Options of `prune`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct PruneArgs {
    /// Show what would be removed and copied, but change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Remove only containers that no snapshot refers to at all, by their lists in manifests; reads no tree and no copy, copies
    /// nothing, and leaves unused space among what is needed
    #[arg(long, conflicts_with_all = ["max_repack_size", "repack_small", "repack_smaller_than", "recompress", "trust_copies"])]
    pub(crate) quick: bool,
    /// Delete containers only this long after the decision to delete them, for example 14d
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub(crate) keep_deleted: String,
    /// Leave what interrupted backups stored alone for this long, since the next backup may use it
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    pub(crate) keep_unfinished: String,
    /// Fence backups that have shown no sign of life for this long: they start again
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    pub(crate) fence_after: String,
    /// Wait this long for backups that are at work; without it, a later prune goes on
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub(crate) wait: String,
    /// Rely on chunks that are stored twice without a look at the copy that is kept
    #[arg(long)]
    pub(crate) trust_copies: bool,
    /// Give up a prune that was interrupted or waits: what it has condemned stays
    #[arg(long, conflicts_with_all = ["dry_run", "quick", "max_repack_size", "repack_small", "repack_smaller_than", "recompress", "trust_copies"])]
    pub(crate) give_up: bool,
}

impl Default for PruneArgs {
    /// Returns the options of a command line without any.
    fn default() -> Self {
        let matches = Self::augment_args(Command::new("prune")).get_matches_from(["prune"]);
        Self::from_arg_matches(&matches).expect("the options of prune have defaults")
    }
}
