//! Options of `forget`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use onefold_engine::forget::{GroupBy, KeepRule, KeepRules, Limit, Period, Span, WithinFrom};

use crate::args::SelectionArgs;
use crate::args::backup::Grouping;
use crate::args::prune::LimitArgs;

/// Options of `forget`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct ForgetArgs {
    /// Forget these snapshots, instead of applying a policy
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// Only snapshots of this host
    #[arg(long, value_name = "HOST", alias = "hostname")]
    pub(crate) host: Vec<String>,
    /// Only snapshots with all of these tags
    #[arg(long, value_name = "TAG[,TAG...]")]
    pub(crate) tag: Vec<String>,
    /// Only snapshots of this path
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Vec<PathBuf>,
    /// Apply the policy to each group of snapshots with the same host, paths or tags
    #[arg(short, long, value_name = "host,paths,tags", default_value = "host,paths", value_parser = Grouping::parse)]
    pub(crate) group_by: Grouping,
    /// Show what would be forgotten and why the rest is kept, but forget nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Forget without a question, also a large part of a group
    #[arg(long)]
    pub(crate) force: bool,
    /// Forget all snapshots that --host, --tag or --path select, if no rule is given
    #[arg(long)]
    pub(crate) unsafe_allow_remove_all: bool,
    /// Count all snapshots by their own times, also those that the repository received at another time
    #[arg(long)]
    pub(crate) trust_times: bool,
    /// Omit paths and reasons from the tables
    #[arg(short, long)]
    pub(crate) compact: bool,
    /// Then give back the space that no snapshot needs, as `prune` does
    #[arg(long)]
    pub(crate) prune: bool,
    /// Count what --prune would free, but forget and write nothing; reads what --prune would read
    #[arg(long, conflicts_with = "prune")]
    pub(crate) what_if: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    // Last: its heading is that of all options after it.
    #[command(flatten)]
    pub(crate) keep: KeepArgs,
}

/// Moment that `--keep-within` counts back from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum WithinFromArg {
    /// The latest snapshot of the group
    Latest,
    /// The time of the run
    Now,
}

/// The rules of a policy.
#[derive(Args, Debug)]
#[command(next_help_heading = "Rules; a snapshot is kept if any rule keeps it")]
#[expect(clippy::struct_field_names, reason = "the names of the options")]
pub(crate) struct KeepArgs {
    /// Keep the last N snapshots, or all with "unlimited", as in the next five
    #[arg(short = 'l', long, value_name = "N", value_parser = Limit::parse)]
    keep_last: Option<Limit>,
    /// Keep the newest snapshot of each of the last N hours that have one
    #[arg(short = 'H', long, value_name = "N", value_parser = Limit::parse)]
    keep_hourly: Option<Limit>,
    /// Keep the newest snapshot of each of the last N days that have one
    #[arg(short = 'd', long, value_name = "N", value_parser = Limit::parse)]
    keep_daily: Option<Limit>,
    /// Keep the newest snapshot of each of the last N weeks that have one
    #[arg(short = 'w', long, value_name = "N", value_parser = Limit::parse)]
    keep_weekly: Option<Limit>,
    /// Keep the newest snapshot of each of the last N months that have one
    #[arg(short = 'm', long, value_name = "N", value_parser = Limit::parse)]
    keep_monthly: Option<Limit>,
    /// Keep the newest snapshot of each of the last N years that have one
    #[arg(short = 'y', long, value_name = "N", value_parser = Limit::parse)]
    keep_yearly: Option<Limit>,
    /// Keep all snapshots that are at most so much older than the latest, for example 1y5m7d2h
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    keep_within: Option<Span>,
    /// Keep the newest snapshot of each hour in this time before the latest
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    keep_within_hourly: Option<Span>,
    /// Keep the newest snapshot of each day in this time before the latest
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    keep_within_daily: Option<Span>,
    /// Keep the newest snapshot of each week in this time before the latest
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    keep_within_weekly: Option<Span>,
    /// Keep the newest snapshot of each month in this time before the latest
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    keep_within_monthly: Option<Span>,
    /// Keep the newest snapshot of each year in this time before the latest
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    keep_within_yearly: Option<Span>,
    /// Moment that the times of --keep-within and its kind end at
    #[arg(long, value_name = "WHEN", value_enum, default_value = "latest")]
    keep_within_from: WithinFromArg,
    /// Keep snapshots that have all of these tags
    #[arg(long, value_name = "TAG[,TAG...]")]
    keep_tag: Vec<String>,
}

impl KeepArgs {
    /// Returns the rules, in the order of restic's reasons.
    pub(crate) fn rules(&self) -> KeepRules {
        let tags = self.keep_tag.iter().map(|list| list.split(',').map(|tag| tag.trim().to_owned()).collect());
        let counts = [
            (Period::Last, self.keep_last),
            (Period::Hourly, self.keep_hourly),
            (Period::Daily, self.keep_daily),
            (Period::Weekly, self.keep_weekly),
            (Period::Monthly, self.keep_monthly),
            (Period::Yearly, self.keep_yearly),
        ];
        let within = [
            (Period::Hourly, self.keep_within_hourly),
            (Period::Daily, self.keep_within_daily),
            (Period::Weekly, self.keep_within_weekly),
            (Period::Monthly, self.keep_within_monthly),
            (Period::Yearly, self.keep_within_yearly),
        ];
        let tags = tags.map(KeepRule::Tags);
        let all = self.keep_within.map(|span| KeepRule::Within(Period::Last, span));
        let counts = counts.into_iter().filter_map(|(period, limit)| Some(KeepRule::Count(period, limit?)));
        let within = within.into_iter().filter_map(|(period, span)| Some(KeepRule::Within(period, span?)));
        let from = match self.keep_within_from {
            WithinFromArg::Latest => WithinFrom::Newest,
            WithinFromArg::Now => WithinFrom::Now,
        };
        KeepRules::new(tags.chain(all).chain(counts).chain(within)).within_from(from)
    }
}

impl ForgetArgs {
    /// Returns the selection of snapshots.
    pub(crate) fn selection(&self) -> SelectionArgs {
        SelectionArgs { host: self.host.clone(), tag: self.tag.clone(), path: self.path.clone() }
    }

    /// Returns the grouping.
    pub(crate) fn grouping(&self) -> GroupBy {
        GroupBy { host: self.group_by.host, paths: self.group_by.paths, tags: self.group_by.tags }
    }
}
