//! Options of the commands that look at snapshots, and of those that describe the command line itself.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::SelectionArgs;

/// Options of `find`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct FindArgs {
    /// Names or paths to find, with wildcards as for --exclude; the contents of a directory that matches are listed too
    #[arg(value_name = "PATTERN", required = true)]
    pub(crate) patterns: Vec<OsString>,
    /// Search only these snapshots
    #[arg(short, long, value_name = "SNAPSHOT")]
    pub(crate) snapshot: Vec<String>,
    /// Ignore case
    #[arg(short, long)]
    pub(crate) ignore_case: bool,
    /// Show modes, owners, sizes and times
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Find only entries last modified at or before this time, for example 2012-11-01 22:08:41 or 2012-11-01
    #[arg(short = 'N', long, value_name = "TIME")]
    pub(crate) newest: Option<String>,
    /// Find only entries last modified at or after this time
    #[arg(short = 'O', long, value_name = "TIME")]
    pub(crate) oldest: Option<String>,
    /// Search the oldest snapshot first
    #[arg(short = 'R', long)]
    pub(crate) reverse: bool,
    /// Show sizes with units
    #[arg(long)]
    pub(crate) human_readable: bool,
    /// Find the files with a chunk of contents: each PATTERN is a fingerprint, or its beginning
    #[arg(long = "blob", conflicts_with_all = ["tree", "pack"])]
    pub(crate) chunk: bool,
    /// Find the directories whose entries are this tree: each PATTERN is a fingerprint, or its beginning
    #[arg(long, conflicts_with = "pack")]
    pub(crate) tree: bool,
    /// Find the files and directories with a chunk in a container: each PATTERN is its id, or its beginning
    #[arg(long)]
    pub(crate) pack: bool,
    /// With --blob, --tree or --pack, also show the container of each chunk that is found
    #[arg(long)]
    pub(crate) show_pack_id: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Options of `diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// Earlier snapshot, or SNAPSHOT:PATH for a directory of it
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    pub(crate) before: String,
    /// Later snapshot, or SNAPSHOT:PATH for a directory of it
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    pub(crate) after: String,
    /// Also show entries that differ only in mode, owner, time or extended attributes
    #[arg(long)]
    pub(crate) metadata: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Quantity that `stats` counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum StatsMode {
    /// Size of the snapshots when they are restored
    RestoreSize,
    /// Distinct contents of files
    FilesByContents,
    /// Distinct chunks of each path
    #[value(name = "blobs-per-file")]
    ChunksPerFile,
    /// Chunks that the snapshots need, and their space in the repository
    RawData,
    /// What each snapshot holds and no other one does; of named snapshots, what only these hold together
    Exclusive,
}

/// Options of `stats`.
#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// Select only these snapshots
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// Quantity to count
    #[arg(long, value_name = "MODE", value_enum, default_value = "restore-size")]
    pub(crate) mode: StatsMode,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Options of `why`.
#[derive(Args, Debug)]
pub(crate) struct WhyArgs {
    /// Path in the snapshots, with / at its beginning; or container, by the beginning of the id that `list packs` prints or by the
    /// path that `check` prints; or chunk, by the beginning of its fingerprint
    #[arg(value_name = "PATH|CONTAINER|CHUNK")]
    pub(crate) thing: OsString,
    /// Show only these snapshots; what others hold counts all the same
    #[arg(short, long, value_name = "SNAPSHOT")]
    pub(crate) snapshot: Vec<String>,
    /// Count exactly what forgetting these snapshots would free of it
    #[arg(long, value_name = "SNAPSHOT,...", value_delimiter = ',')]
    pub(crate) if_forgotten: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Objects that `cat` writes.
#[derive(Debug, Subcommand)]
pub(crate) enum CatObject {
    /// The repository's parameters
    #[command(after_help = examples! { "Show the parameters of the repository": "onefold cat config" })]
    Config,
    /// A key slot, by the beginning of its id
    #[command(after_help = examples! { "Show the cost and the salt of a key slot": "onefold cat key 1a2b3c4d" })]
    Key {
        /// Key slot
        #[arg(value_name = "ID")]
        id: String,
    },
    /// A snapshot
    #[command(after_help = examples! { "Show the newest snapshot": "onefold cat snapshot latest" })]
    Snapshot {
        /// Snapshot
        #[arg(value_name = "SNAPSHOT")]
        snapshot: String,
        #[command(flatten)]
        selection: SelectionArgs,
    },
    /// A directory of a snapshot, with the chunks of its files
    #[command(after_help = examples! { "Show a directory of the newest snapshot": "onefold cat tree latest:/home/me" })]
    Tree {
        /// Snapshot, or SNAPSHOT:PATH for a directory of it
        #[arg(value_name = "SNAPSHOT[:PATH]")]
        snapshot: String,
        #[command(flatten)]
        selection: SelectionArgs,
    },
    /// The bytes of a chunk, by its whole fingerprint
    #[command(alias = "blob")]
    #[command(after_help = examples! {
        "Write a chunk to a file":
            "onefold cat chunk 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef > chunk";
    })]
    Chunk {
        /// Fingerprint
        #[arg(value_name = "FINGERPRINT")]
        fingerprint: String,
    },
    /// The bytes of a container, by the beginning of its id
    #[command(alias = "pack")]
    #[command(after_help = examples! { "Write a container to a file": "onefold cat container 1a2b3c4d > container" })]
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
    /// Directory for the manual pages; created if it does not exist
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
    /// Directory; created if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}
