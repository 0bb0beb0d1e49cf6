//! Options of the commands that derive a snapshot from another one.

use clap::Args;

use crate::args::{ExcludePatterns, IncludePatterns, SelectionArgs};

/// Options of `recover`.
#[derive(Args, Debug)]
pub(crate) struct RecoverArgs {
    /// Forgotten snapshots; without any, they are listed
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
}

/// Options of `tag`.
#[derive(Args, Debug)]
pub(crate) struct TagArgs {
    /// Change only these snapshots
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// Add these tags
    #[arg(long, value_name = "TAG[,TAG...]", value_delimiter = ',')]
    pub(crate) add: Vec<String>,
    /// Remove these tags
    #[arg(long, value_name = "TAG[,TAG...]", value_delimiter = ',')]
    pub(crate) remove: Vec<String>,
    /// Replace all tags by these; "" removes all tags
    #[arg(long, value_name = "TAG[,TAG...]", value_delimiter = ',', conflicts_with_all = ["add", "remove"])]
    pub(crate) set: Vec<String>,
    /// Show what would be changed, but change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Options of `rewrite`.
#[derive(Args, Debug)]
pub(crate) struct RewriteArgs {
    /// Rewrite only these snapshots
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    #[command(flatten)]
    pub(crate) patterns: ExcludePatterns,
    #[command(flatten)]
    pub(crate) includes: IncludePatterns,
    /// Host of the new snapshots
    #[arg(long, value_name = "HOST")]
    pub(crate) new_host: Option<String>,
    /// Time of the new snapshots, for example 2012-11-01 22:08:41
    #[arg(long, value_name = "TIME")]
    pub(crate) new_time: Option<String>,
    /// Accepted for scripts, without effect: every snapshot has a summary
    #[arg(short, long)]
    pub(crate) snapshot_summary: bool,
    /// Forget each snapshot after its replacement is in the repository
    #[arg(long)]
    pub(crate) forget: bool,
    /// Show what would be left out, but change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

impl TagArgs {
    /// Returns the tags of a snapshot after the change.
    pub(crate) fn change(&self, tags: &[String]) -> Vec<String> {
        let is_named = |tag: &&String| !tag.is_empty();
        if !self.set.is_empty() {
            return unique(self.set.iter().filter(is_named));
        }
        let added = tags.iter().chain(self.add.iter().filter(is_named));
        unique(added.filter(|tag| !self.remove.contains(tag)))
    }
}

/// Returns each tag once, in the order in which they come first.
fn unique<'a>(tags: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut unique: Vec<String> = Vec::new();
    for tag in tags {
        if !unique.contains(tag) {
            unique.push(tag.clone());
        }
    }
    unique
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_added_removed_and_replaced() {
        let texts = |tags: &[&str]| -> Vec<String> { tags.iter().map(|tag| (*tag).to_owned()).collect() };
        let change = |add: &[&str], remove: &[&str], set: &[&str]| {
            let (add, remove, set) = (texts(add), texts(remove), texts(set));
            let selection = SelectionArgs::default();
            let args = TagArgs { snapshots: Vec::new(), add, remove, set, dry_run: false, selection };
            args.change(&texts(&["a", "b"]))
        };
        assert_eq!(change(&["b", "c", "c", ""], &[], &[]), ["a", "b", "c"]);
        assert_eq!(change(&["c"], &["a", "c", "x"], &[]), ["b"]);
        assert_eq!(change(&[], &["x"], &[]), ["a", "b"]);
        assert_eq!(change(&[], &[], &["z", "a", "z"]), ["z", "a"]);
        assert_eq!(change(&[], &[], &[""]), Vec::<String>::new());
    }
}
