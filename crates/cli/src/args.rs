//! What was typed, and nothing else: each command turns it into a plan of its own.
#![expect(clippy::doc_markdown, reason = "the comments of options are their help texts")]

pub(crate) mod backup;
pub(crate) mod inspect;
pub(crate) mod key;
#[cfg(feature = "lab")]
pub(crate) mod lab;
pub(crate) mod list;
pub(crate) mod restic;
pub(crate) mod restore;
pub(crate) mod talk;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::args::backup::{ParentArgs, StreamArgs};
use crate::args::inspect::{CatObject, CompletionsArgs, DiffArgs, FindArgs, GenerateArgs, ManArgs, StatsArgs};
use crate::args::key::{KeyCommand, KeyCostArgs};
#[cfg(feature = "lab")]
use crate::args::lab::LabCommand;
use crate::args::list::{CheckArgs, DumpArgs, ListArgs, LsArgs, SnapshotsArgs};
use crate::args::restic::{AbsentCommand, IgnoredArgs, UnlockArgs};
use crate::args::restore::RestoreArgs;
use crate::args::talk::Talk;

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "onefold", version, about = "Backs up directory trees into an encrypted, deduplicated repository")]
#[command(propagate_version = false)]
#[command(after_help = "Disks are read and written in batches through io_uring where there is one, else on threads \
    [env: ONEFOLD_IO=auto|uring|threads] [default: auto]\n\n\
    The password comes from --password-command, --password-file, ONEFOLD_PASSWORD_COMMAND, ONEFOLD_PASSWORD_FILE or \
    ONEFOLD_PASSWORD, the first of them that is given; else it is asked for.\n\n\
    Exit codes: 0 done, 1 failed, 3 not everything could be read, 10 no repository, 11 index in use, \
    12 wrong password, 130 interrupted.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command takes.
#[derive(Args, Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct GlobalArgs {
    /// Directory of the repository, as PATH or local:PATH [env: ONEFOLD_REPOSITORY]
    #[arg(short, long, global = true, value_name = "DIR")]
    pub(crate) repo: Option<OsString>,
    /// File whose first line names the directory of the repository [env: ONEFOLD_REPOSITORY_FILE]
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "repo")]
    pub(crate) repository_file: Option<PathBuf>,
    /// File whose first line is the password [env: ONEFOLD_PASSWORD_FILE]
    #[arg(short, long, global = true, value_name = "FILE", conflicts_with = "password_command")]
    pub(crate) password_file: Option<PathBuf>,
    /// Shell command whose first line of output is the password [env: ONEFOLD_PASSWORD_COMMAND]
    #[arg(long, global = true, value_name = "COMMAND")]
    pub(crate) password_command: Option<OsString>,
    /// Key slot to try the password on first, by the beginning of its id [env: ONEFOLD_KEY_HINT]
    #[arg(long, global = true, value_name = "ID")]
    pub(crate) key_hint: Option<String>,
    /// Memory that trying a key slot may take; slots that need more are passed over [default: the memory budget]
    #[arg(long, global = true, value_name = "SIZE")]
    pub(crate) key_memory_max: Option<String>,
    /// Directory of the index, of temporary data and of what this host has seen; may be deleted when no command is running
    /// [env: ONEFOLD_CACHE_DIR] [default: $XDG_CACHE_HOME/onefold, or ~/.cache/onefold]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Use a cache that is removed at the end: the index is rebuilt each time
    #[arg(long, global = true)]
    pub(crate) no_cache: bool,
    /// Remove the caches of repositories that were not used for 30 days
    #[arg(long, global = true)]
    pub(crate) cleanup_cache: bool,
    /// Accepted for scripts: reading takes no lock, and a backup holds the index of this host in any case
    #[arg(long, global = true)]
    pub(crate) no_lock: bool,
    /// Memory budget [env: ONEFOLD_MEMORY] [default: 512M]
    #[arg(long, global = true, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// How new data is compressed: auto, off, lz4, fastest, better, max, zstd, zstd:1 to zstd:19 [env: ONEFOLD_COMPRESSION]
    /// [default: auto, which is zstd:3]
    #[arg(long, global = true, value_name = "METHOD")]
    pub(crate) compression: Option<String>,
    /// How long to wait for another backup on this host, for example 30s or 1h30m; 0 fails at once [default: 10m]
    #[arg(long, global = true, value_name = "DURATION")]
    pub(crate) retry_lock: Option<String>,
    /// Interval between progress reports, for example 10s; 0 turns them off [default: 1m; 100ms on a terminal and with
    /// --json]
    #[arg(long, global = true, value_name = "DURATION")]
    pub(crate) progress_interval: Option<String>,
    /// Accept that another repository stands at the path than this host has seen there, and remember the new one
    #[arg(long, global = true)]
    pub(crate) accept_new_repository: bool,
    /// Accept that newest snapshots which this host has seen are gone, and report them no longer
    #[arg(long, global = true)]
    pub(crate) accept_rollback: bool,
    /// Write JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Write only what was asked for, and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print more; twice, or --verbose=2, print every file that is backed up or restored
    #[arg(short, long, global = true, value_name = "N", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "more", hide_default_value = true)]
    pub(crate) verbose: Vec<Talk>,
    #[command(flatten)]
    pub(crate) ignored: IgnoredArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a repository
    Init(InitArgs),
    /// Make a snapshot of paths
    Backup(Box<BackupArgs>),
    /// Restore a snapshot, or a path within it
    Restore(Box<RestoreArgs>),
    /// List the snapshots
    Snapshots(SnapshotsArgs),
    /// List what is in a snapshot
    Ls(LsArgs),
    /// Write a file, or a directory as an archive, of a snapshot to the output
    Dump(DumpArgs),
    /// Search the snapshots for names
    Find(FindArgs),
    /// Show the differences between two snapshots
    Diff(DiffArgs),
    /// Show the size of snapshots and the space that they use
    Stats(StatsArgs),
    /// Write an object of the repository as JSON, or a chunk as it is
    #[command(subcommand)]
    Cat(CatObject),
    /// Verify the repository
    Check(CheckArgs),
    /// Manage passwords
    #[command(subcommand)]
    Key(KeyCommand),
    /// List the ids of objects of the repository
    List(ListArgs),
    /// Do nothing: a repository has no locks
    Unlock(UnlockArgs),
    /// Measure ways to find duplicates, on traces or on your data
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Lab(LabCommand),
    /// Write completions for a shell
    Completions(CompletionsArgs),
    /// Write manual pages, one for each command, into a directory
    Man(ManArgs),
    /// Write completions and manual pages into files, as restic does
    Generate(GenerateArgs),
    /// Print the version
    Version,
    /// Say that there are no feature flags
    #[command(hide = true)]
    Features,
    /// Say that there are no extended options
    #[command(hide = true)]
    Options,
    #[command(flatten)]
    Absent(AbsentCommand),
}

impl Command {
    /// Sets the host where the command has one and none was typed. `check` follows all snapshots unless told otherwise.
    pub(crate) fn default_host(&mut self, host: &str) {
        let selection = match self {
            Self::Backup(typed) => {
                typed.host.get_or_insert_with(|| host.to_owned());
                return;
            }
            Self::Restore(typed) => &mut typed.selection,
            Self::Snapshots(typed) => &mut typed.selection,
            Self::Ls(typed) => &mut typed.selection,
            Self::Dump(typed) => &mut typed.selection,
            Self::Find(typed) => &mut typed.selection,
            Self::Diff(typed) => &mut typed.selection,
            Self::Stats(typed) => &mut typed.selection,
            Self::Init(_) | Self::Cat(_) | Self::Check(_) | Self::Key(_) | Self::List(_) | Self::Unlock(_) => return,
            #[cfg(feature = "lab")]
            Self::Lab(_) => return,
            Self::Completions(_) | Self::Man(_) | Self::Generate(_) => return,
            Self::Version | Self::Features | Self::Options | Self::Absent(_) => return,
        };
        if selection.host.is_empty() {
            selection.host.push(host.to_owned());
        }
    }
}

/// Options of `init`.
#[derive(Args, Debug)]
pub(crate) struct InitArgs {
    /// Leave the key in the open: whoever can read the repository can read what is in it
    #[arg(long)]
    pub(crate) no_encryption: bool,
    /// Average length of a chunk, from 512 to 1M; at most an eighth of a container [default: 8k]
    #[arg(long, value_name = "SIZE")]
    pub(crate) chunk_size: Option<String>,
    /// Cut into chunks of this length whatever they hold, from 64 to 8M
    #[arg(long, value_name = "SIZE", conflicts_with = "chunk_size")]
    pub(crate) fixed_chunk_size: Option<String>,
    /// Bytes that are compressed and sealed together, from 4k to 8M [default: 512k, at most a quarter of a container]
    #[arg(long, value_name = "SIZE")]
    pub(crate) region_size: Option<String>,
    /// Length of a container, from 64k to 64M [default: 4M]
    #[arg(long, value_name = "SIZE")]
    pub(crate) container_size: Option<String>,
    #[command(flatten)]
    pub(crate) cost: KeyCostArgs,
}

/// Options of `backup`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct BackupArgs {
    /// What to back up
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Back up what comes in on standard input, as one file
    #[arg(long, conflicts_with_all = ["paths", "files_from", "files_from_verbatim", "files_from_raw"])]
    pub(crate) stdin: bool,
    /// Name of that file
    #[arg(long, value_name = "NAME", default_value = "stdin")]
    pub(crate) stdin_filename: OsString,
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    #[command(flatten)]
    pub(crate) excludes: ExcludeArgs,
    /// Read what to back up from a file, patterns one a line; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from: Vec<PathBuf>,
    /// The same, paths taken as they stand
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from_verbatim: Vec<PathBuf>,
    /// The same, each path ended by a NUL byte
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from_raw: Vec<PathBuf>,
    /// Add a tag to the snapshot
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    pub(crate) tag: Vec<String>,
    /// Host that the snapshot is of [default: this one]
    #[arg(short = 'H', long, alias = "hostname", value_name = "HOST")]
    pub(crate) host: Option<String>,
    /// Time of the snapshot, as 2012-11-01 22:08:41 [default: now]
    #[arg(long, value_name = "TIME")]
    pub(crate) time: Option<String>,
    /// Snapshot to compare with [default: the newest of the same group]
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "force")]
    pub(crate) parent: Option<String>,
    /// Read every file again
    #[arg(short, long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) compare: ParentArgs,
    /// Ignore the inode and the change time when comparing files
    #[arg(long)]
    pub(crate) ignore_inode: bool,
    /// Write nothing, only say what would be read
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Round the length of each compressed region up to a multiple of 2 KiB, so that lengths say less about contents
    #[arg(long)]
    pub(crate) pad: bool,
    /// Do not count ahead, which the estimate of the time left needs
    #[arg(long)]
    pub(crate) no_scan: bool,
}

/// Patterns to exclude.
#[derive(Args, Debug)]
pub(crate) struct ExcludePatterns {
    /// Leave out what matches the pattern
    #[arg(short, long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<OsString>,
    /// Like --exclude, but ignore case
    #[arg(long, value_name = "PATTERN")]
    pub(crate) iexclude: Vec<OsString>,
    /// Read patterns to exclude from a file, one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) exclude_file: Vec<PathBuf>,
    /// Like --exclude-file, but ignore case
    #[arg(long, value_name = "FILE")]
    pub(crate) iexclude_file: Vec<PathBuf>,
}

/// What to leave out of a backup.
#[derive(Args, Debug)]
pub(crate) struct ExcludeArgs {
    #[command(flatten)]
    pub(crate) patterns: ExcludePatterns,
    /// Leave out what is in directories marked as caches by a CACHEDIR.TAG
    #[arg(long)]
    pub(crate) exclude_caches: bool,
    /// Leave out what is in directories that hold the file, which begins with HEADER if one is given
    #[arg(long, value_name = "NAME[:HEADER]")]
    pub(crate) exclude_if_present: Vec<OsString>,
    /// Leave out files that are larger
    #[arg(long, value_name = "SIZE")]
    pub(crate) exclude_larger_than: Option<String>,
    /// Stay on the file systems of the paths
    #[arg(short = 'x', long)]
    pub(crate) one_file_system: bool,
}

/// Which snapshots count.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SelectionArgs {
    /// Only snapshots of this host
    #[arg(short = 'H', long, value_name = "HOST")]
    pub(crate) host: Vec<String>,
    /// Only snapshots with all of these tags
    #[arg(long, value_name = "TAG[,TAG...]")]
    pub(crate) tag: Vec<String>,
    /// Only snapshots of this path
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Vec<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
