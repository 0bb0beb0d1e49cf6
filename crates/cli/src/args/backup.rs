//! Options of `backup` that come in groups: streams and parents.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use clap::Args;
use onefold_engine::backup::rewriting::History;
use onefold_engine::identify::IndexPreset;
use onefold_engine::snapshot::Snapshot;

use crate::args::BackupArgs;
use crate::args::accelerator::AcceleratorArgs;

/// Numbers of files that may be read at the same time.
pub(crate) const READ_CONCURRENCY: RangeInclusive<u8> = 1..=64;

/// Streams besides standard input.
#[derive(Args, Debug)]
pub(crate) struct StreamArgs {
    /// Back up the output of a command, as one file; the command and its arguments follow --
    #[arg(
        long,
        requires = "paths",
        conflicts_with_all = ["stdin", "files_from", "files_from_verbatim", "files_from_raw"]
    )]
    pub(crate) stdin_from_command: bool,
    /// Make a snapshot even if standard input or the output of the command is empty
    #[arg(long)]
    pub(crate) allow_empty: bool,
}

/// Comparison of a backup with earlier ones.
#[derive(Args, Debug)]
pub(crate) struct ParentArgs {
    /// Properties that a parent shares with this backup: host, paths, tags, or none of them; a --parent goes before them
    #[arg(short, long, value_name = "GROUP", default_value = "host,paths", value_parser = Grouping::parse)]
    pub(crate) group_by: Grouping,
    /// Ignore the change time when comparing files
    #[arg(long)]
    pub(crate) ignore_ctime: bool,
    /// Make no snapshot if it would be equal to its parent
    #[arg(long)]
    pub(crate) skip_if_unchanged: bool,
    /// Number of small files, and of parts of files above 256 KiB, to read at the same time, from 1 to 64 [env: ONEFOLD_READ_CONCURRENCY] [default: one for each
    /// processor, at most one for each 32 MiB of the memory budget, at least 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(*READ_CONCURRENCY.end())))]
    pub(crate) read_concurrency: Option<u8>,
    /// How to find duplicates, now and in later backups of this host: adaptive, ddfs, edpl, chunkstash, blc or edll [default: as chosen
    /// last, at first adaptive]
    #[arg(long, value_name = "PRESET", value_parser = index_preset)]
    pub(crate) index: Option<IndexPreset>,
    /// Store chunks again so that restores read fewer containers: none, or har (chunks in containers of which the parent uses less than
    /// half, at most a twentieth of its bytes; `prune` takes the old copies back)
    #[arg(long, value_name = "POLICY", default_value = "none", value_parser = rewriting)]
    pub(crate) rewrite: Rewriting,
    #[command(flatten)]
    pub(crate) accelerator: AcceleratorArgs,
}

/// Policy of storing chunks again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rewriting {
    None,
    Har,
}

impl Rewriting {
    /// Returns the bounds of the engine.
    pub(crate) fn history(self) -> Option<History> {
        (self == Self::Har).then_some(History::DEFAULT)
    }
}

/// Reads the name of a policy of storing chunks again.
fn rewriting(name: &str) -> Result<Rewriting, String> {
    match name {
        "none" => Ok(Rewriting::None),
        "har" => Ok(Rewriting::Har),
        "capping" => Err("backups do not cap yet what a segment refers to: choose none or har".to_owned()),
        _ => Err("the policies are none and har".to_owned()),
    }
}

/// Reads the name of a preset of the index.
fn index_preset(name: &str) -> Result<IndexPreset, String> {
    IndexPreset::named(name).ok_or_else(|| {
        let names: Vec<&str> = IndexPreset::all().map(IndexPreset::name).collect();
        format!("backups have the presets {}; those of `onefold lab presets` are for the laboratory", names.join(", "))
    })
}

/// Place of the entries of the index.
#[derive(Args, Debug, Default)]
pub(crate) struct IndexServerArgs {
    /// Keep the entries of the index on a server: mysql://USER@HOST/DATABASE for MariaDB or MySQL, redis://HOST:PORT for a Redis
    /// cluster that several hosts share [env: ONEFOLD_INDEX_SERVER, which hides a password] [default: files in the cache directory]
    #[arg(long, value_name = "URL")]
    pub(crate) index_server: Option<String>,
}

/// Properties that the snapshots of a group share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Grouping {
    pub(crate) host: bool,
    pub(crate) paths: bool,
    pub(crate) tags: bool,
}

impl Grouping {
    /// Reads names that commas separate; an empty text groups by nothing.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut grouping = Self::default();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "host" | "hosts" => grouping.host = true,
                "path" | "paths" => grouping.paths = true,
                "tag" | "tags" => grouping.tags = true,
                _ => return Err(format!("{name:?}: snapshots are grouped by host, paths or tags")),
            }
        }
        Ok(grouping)
    }

    /// Returns true if a snapshot is in the group of one with this host, these paths and tags.
    pub(crate) fn admits(self, snapshot: &Snapshot, host: &str, paths: &[Vec<u8>], tags: &[String]) -> bool {
        (!self.host || snapshot.hostname == host)
            && (!self.paths || is_same_set(&snapshot.paths, paths))
            && (!self.tags || is_same_set(&snapshot.tags, tags))
    }
}

fn is_same_set<T: Ord>(left: &[T], right: &[T]) -> bool {
    left.iter().collect::<BTreeSet<_>>() == right.iter().collect()
}

impl BackupArgs {
    /// Returns true if a stream is backed up, not paths.
    pub(crate) fn is_stream(&self) -> bool {
        self.stdin || self.stream.stdin_from_command
    }
}
