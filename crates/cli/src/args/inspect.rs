//! Options of the commands that look at snapshots, and of those that describe the command line itself.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::SelectionArgs;

/// Options of `find`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct FindArgs {
    /// What to look for: names or paths with wildcards, as for --exclude; a directory is found with all that is in it
    #[arg(value_name = "PATTERN", required = true)]
    pub(crate) patterns: Vec<OsString>,
    /// Only in these snapshots
    #[arg(short, long, value_name = "SNAPSHOT")]
    pub(crate) snapshot: Vec<String>,
    /// Ignore case
    #[arg(short, long)]
    pub(crate) ignore_case: bool,
    /// Show modes, owners, sizes and times
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Only what was changed last at this time or before, as 2012-11-01 22:08:41 or 2012-11-01
    #[arg(short = 'N', long, value_name = "TIME")]
    pub(crate) newest: Option<String>,
    /// Only what was changed last at this time or after
    #[arg(short = 'O', long, value_name = "TIME")]
    pub(crate) oldest: Option<String>,
    /// Search the oldest snapshot first
    #[arg(short = 'R', long)]
    pub(crate) reverse: bool,
    /// Show sizes with units
    #[arg(long)]
    pub(crate) human_readable: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Options of `diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// What was before: a snapshot, or SNAPSHOT:PATH for a directory of it
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    pub(crate) before: String,
    /// What came after
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    pub(crate) after: String,
    /// Also what differs only in mode, owner, time or extended attributes
    #[arg(long)]
    pub(crate) metadata: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// What `stats` counts.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StatsMode {
    /// What restoring the snapshots would bring back
    RestoreSize,
    /// Files of different contents
    FilesByContents,
    /// Chunks that the snapshots need, and what they take in the repository
    RawData,
}

/// Options of `stats`.
#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// Only these snapshots
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// What to count
    #[arg(long, value_name = "MODE", value_enum, default_value = "restore-size")]
    pub(crate) mode: StatsMode,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// What to write.
#[derive(Debug, Subcommand)]
pub(crate) enum CatObject {
    /// The repository's parameters
    Config,
    /// A key slot, by the beginning of its id
    Key {
        /// Key slot
        #[arg(value_name = "ID")]
        id: String,
    },
    /// A snapshot
    Snapshot {
        /// Snapshot
        #[arg(value_name = "SNAPSHOT")]
        snapshot: String,
        #[command(flatten)]
        selection: SelectionArgs,
    },
    /// A directory of a snapshot, with the chunks that its files are made of
    Tree {
        /// Snapshot, or SNAPSHOT:PATH for a directory of it
        #[arg(value_name = "SNAPSHOT[:PATH]")]
        snapshot: String,
        #[command(flatten)]
        selection: SelectionArgs,
    },
    /// The bytes of a chunk, by its whole fingerprint
    #[command(alias = "blob")]
    Chunk {
        /// Fingerprint
        #[arg(value_name = "FINGERPRINT")]
        fingerprint: String,
    },
    /// The bytes of a container, by the beginning of its id
    #[command(alias = "pack")]
    Container {
        /// Container
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Refused: the key that everything is encrypted with is never shown
    #[command(hide = true)]
    Masterkey,
    /// Refused: the index is kept on this host
    #[command(hide = true)]
    Index {
        /// Index file
        id: Option<String>,
    },
    /// Refused: a repository has no locks
    #[command(hide = true)]
    Lock {
        /// Lock
        id: Option<String>,
    },
}

/// Options of `completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// Shell
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// Options of `generate`.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub(crate) struct GenerateArgs {
    /// Directory of the manual pages, which is made if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) man: Option<PathBuf>,
    /// File of the completions for bash; - is the output
    #[arg(long, value_name = "FILE")]
    pub(crate) bash_completion: Option<PathBuf>,
    /// File of the completions for fish
    #[arg(long, value_name = "FILE")]
    pub(crate) fish_completion: Option<PathBuf>,
    /// File of the completions for zsh
    #[arg(long, value_name = "FILE")]
    pub(crate) zsh_completion: Option<PathBuf>,
    /// File of the completions for PowerShell
    #[arg(long, value_name = "FILE")]
    pub(crate) powershell_completion: Option<PathBuf>,
}

/// Options of `man`.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Directory, which is made if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}
