//! The command line as it was typed. Each command turns it into a plan of its own.
#![expect(clippy::doc_markdown, reason = "the comments of options are their help texts")]

/// Lists examples below a help text: a line that says what a command does, and the command.
macro_rules! examples {
    ($($does:literal: $command:literal);+ $(;)?) => {
        concat!("Examples:", $("\n  ", $does, "\n    ", $command),+)
    };
}

pub(crate) mod accelerator;
pub(crate) mod backup;
#[cfg(feature = "cdp")]
pub(crate) mod cdp;
pub(crate) mod create;
pub(crate) mod derive;
pub(crate) mod flags;
pub(crate) mod forget;
pub(crate) mod inspect;
pub(crate) mod key;
#[cfg(feature = "lab")]
pub(crate) mod lab;
pub(crate) mod list;
mod patterns;
pub(crate) mod prune;
pub(crate) mod repair;
pub(crate) mod restic;
pub(crate) mod restore;
pub(crate) mod talk;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::args::backup::{IndexServerArgs, ParentArgs, StreamArgs};
#[cfg(feature = "cdp")]
use crate::args::cdp::CdpCommand;
use crate::args::create::{InitArgs, UpgradeArgs};
use crate::args::derive::{RecoverArgs, RewriteArgs, TagArgs};
use crate::args::forget::ForgetArgs;
use crate::args::inspect::{CatObject, CompletionsArgs, DiffArgs, FindArgs, GenerateArgs, ManArgs, StatsArgs, WhyArgs};
use crate::args::key::KeyCommand;
#[cfg(feature = "lab")]
use crate::args::lab::LabCommand;
use crate::args::list::{CheckArgs, DumpArgs, ListArgs, LsArgs, SnapshotsArgs};
pub(crate) use crate::args::patterns::{ExcludeArgs, ExcludePatterns, IncludePatterns};
use crate::args::prune::PruneArgs;
use crate::args::repair::RepairCommand;
use crate::args::restic::{AbsentCommand, IgnoredArgs, UnlockArgs};
use crate::args::restore::RestoreArgs;
use crate::args::talk::Talk;

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "onefold", version, about = "Backs up directory trees into an encrypted, deduplicated repository")]
#[command(propagate_version = false)]
// Of an option that is given twice, the last one counts, in every command.
#[command(args_override_self = true)]
#[command(after_help = concat!(
    examples! {
        "Create a repository": "onefold --repo /srv/backup init";
        "Back up a directory": "onefold --repo /srv/backup backup ~/documents";
        "Restore the newest snapshot": "onefold --repo /srv/backup restore latest --target /tmp/restored";
    },
    "\n\nONEFOLD_IO selects the batch I/O of disks: uring, threads, or auto, which prefers io_uring [default: auto]\n\n\
    The password comes from the first of these that is given: --password-command, --password-file, \
    ONEFOLD_PASSWORD_COMMAND, ONEFOLD_PASSWORD_FILE, ONEFOLD_PASSWORD. Otherwise the command asks for it.\n\n\
    Exit codes: 0 done, 1 failed, 3 not everything could be read, 10 no repository, 11 index in use, \
    12 wrong password, 130 interrupted."
))]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command takes.
#[derive(Args, Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
// Behind those of the command, in help texts and manuals.
#[command(next_help_heading = "Options of every command", next_display_order = 1000)]
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
    /// Memory that a key slot may need; slots that need more are skipped [default: the memory budget]
    #[arg(long, global = true, value_name = "SIZE")]
    pub(crate) key_memory_max: Option<String>,
    /// Directory of the index, of temporary data and of the state that this host remembers; you may delete it while no
    /// command runs [env: ONEFOLD_CACHE_DIR] [default: $XDG_CACHE_HOME/onefold, or ~/.cache/onefold]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Use a temporary cache, so that every command rebuilds the index
    #[arg(long, global = true)]
    pub(crate) no_cache: bool,
    /// Remove the caches of repositories that were not used for 30 days
    #[arg(long, global = true)]
    pub(crate) cleanup_cache: bool,
    /// Accepted for scripts, without effect: readers take no lock, and a backup always locks the index of this host
    #[arg(long, global = true)]
    pub(crate) no_lock: bool,
    /// Memory budget [env: ONEFOLD_MEMORY] [default: 512M]
    #[arg(long, global = true, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// Compression of new data: auto, off, lz4, fastest, better, max, zstd, zstd:1 to zstd:19 [env: ONEFOLD_COMPRESSION]
    /// [default: auto, which is zstd:3]
    #[arg(long, global = true, value_name = "METHOD")]
    pub(crate) compression: Option<String>,
    /// Time to wait for another command on this host that holds the index, for example 30s or 1h30m; 0 fails immediately [default: 10m]
    #[arg(long, global = true, value_name = "DURATION")]
    pub(crate) retry_lock: Option<String>,
    /// Interval between progress reports, for example 10s; 0 turns them off [default: 1m; 100ms on a terminal and with
    /// --json]
    #[arg(long, global = true, value_name = "DURATION")]
    pub(crate) progress_interval: Option<String>,
    /// Accept a different repository than this host has seen at this path, and remember it
    #[arg(long, global = true)]
    pub(crate) accept_new_repository: bool,
    /// Accept that the newest snapshots that this host has seen are gone, and stop reporting them
    #[arg(long, global = true)]
    pub(crate) accept_rollback: bool,
    /// Write JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print only results and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print more; -vv or --verbose=2 also prints every file that is backed up or restored
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
    #[command(after_help = examples! {
        "Create an encrypted repository and ask for its password": "onefold --repo /srv/backup init";
        "Create a repository with longer chunks": "onefold --repo /srv/backup init --chunk-size 64k";
        "Create a repository for images of volumes": "onefold --repo /srv/volumes init --for volumes";
        "Create a repository that programs of version 0.1.0 read": "onefold --repo /srv/backup init --format 1";
    })]
    Init(InitArgs),
    /// Set the version of the repository's format, after a check
    #[command(after_help = examples! {
        "Let a repository of format 1 use format 2": "onefold upgrade --format 2";
    })]
    Upgrade(UpgradeArgs),
    /// Make a snapshot of paths
    #[command(after_help = examples! {
        "Back up two directories, without caches": "onefold backup ~/documents ~/pictures --exclude-caches";
        "Back up the output of a command":
            "onefold backup --stdin-filename app.sql --stdin-from-command -- pg_dump app";
    })]
    Backup(Box<BackupArgs>),
    /// Restore a snapshot, or a path within it
    #[command(after_help = examples! {
        "Restore the newest snapshot into an empty directory":
            "onefold restore latest --target /tmp/restored";
        "Restore a directory of a snapshot, and overwrite files that differ":
            "onefold restore 1a2b3c4d:/home/me/documents --target ~/documents --overwrite if-changed";
    })]
    Restore(Box<RestoreArgs>),
    /// List the snapshots
    #[command(after_help = examples! {
        "List the newest snapshot of each host and paths": "onefold snapshots --latest 1";
    })]
    Snapshots(SnapshotsArgs),
    /// Forget snapshots that no rule keeps, or that are named
    #[command(after_help = examples! {
        "Show what a policy would forget":
            "onefold forget --keep-daily 7 --keep-weekly 5 --keep-monthly 12 --dry-run";
        "Forget one snapshot": "onefold forget 1a2b3c4d";
        "Show what forgetting one snapshot would free": "onefold forget 1a2b3c4d --what-if";
    })]
    Forget(Box<ForgetArgs>),
    /// Give back the space that no snapshot needs
    #[command(after_help = examples! {
        "Show what would be given back": "onefold prune --dry-run";
        "Give back only what needs no copying": "onefold prune --max-unused unlimited";
        "Compress what is copied once more, harder": "onefold prune --recompress";
    })]
    Prune(PruneArgs),
    /// Take forgets back
    #[command(after_help = examples! {
        "List the snapshots that are forgotten": "onefold recover";
        "Take back that a snapshot was forgotten": "onefold recover 1a2b3c4d";
    })]
    Recover(RecoverArgs),
    /// Change the tags of snapshots
    #[command(after_help = examples! {
        "Add a tag to the newest snapshot, and remove another one":
            "onefold tag --add release --remove draft latest";
        "Remove all tags of the snapshots of a host": "onefold tag --set '' --host laptop";
    })]
    Tag(TagArgs),
    /// Leave paths out of snapshots, or change their host and time
    #[command(after_help = examples! {
        "Show what a pattern would leave out of all snapshots":
            "onefold rewrite --exclude '*.iso' --dry-run --verbose";
        "Leave a file out of a snapshot, and forget the snapshot with it":
            "onefold rewrite --exclude /home/me/secret.txt --forget 1a2b3c4d";
    })]
    Rewrite(RewriteArgs),
    /// List the contents of a snapshot
    #[command(after_help = examples! {
        "List a directory of the newest snapshot, with sizes and times": "onefold ls latest /home/me --long";
    })]
    Ls(LsArgs),
    /// Write a file of a snapshot, or a directory as an archive, to the output
    #[command(after_help = examples! {
        "Write a file to the output": "onefold dump latest /home/me/notes.txt";
        "Write a directory as a zip archive": "onefold dump latest /home/me --archive zip --target me.zip";
    })]
    Dump(DumpArgs),
    /// Search the snapshots for names
    #[command(after_help = examples! {
        "Search all snapshots for PDF files, ignoring case": "onefold find --ignore-case '*.pdf'";
    })]
    Find(FindArgs),
    /// Show the differences between two snapshots
    #[command(after_help = examples! {
        "Compare the newest snapshot with the one before it": "onefold diff latest~1 latest";
    })]
    Diff(DiffArgs),
    /// Show the size of snapshots and the space that they use
    #[command(after_help = examples! {
        "Show the space that all snapshots use in the repository": "onefold stats --mode raw-data";
        "Show what only one snapshot holds, for each of them": "onefold stats --mode exclusive";
    })]
    Stats(StatsArgs),
    /// Show which snapshots hold a path, a chunk or a container, and what forgetting them would free of it
    #[command(after_help = examples! {
        "Show which snapshots have a directory, and what only they hold of it": "onefold why /home/me/videos";
        "Count what forgetting two snapshots would free of it":
            "onefold why /home/me/videos --if-forgotten 1a2b3c4d,2b3c4d5e";
        "Show which snapshots need a container": "onefold why 0123456789abcdef0123456789abcdef/00000002";
    })]
    Why(WhyArgs),
    /// Write an object of the repository as JSON, or the bytes of a chunk or container
    #[command(subcommand)]
    #[command(after_help = examples! { "Show the parameters of the repository": "onefold cat config" })]
    Cat(CatObject),
    /// Verify the repository
    #[command(after_help = examples! {
        "Verify the structure of the repository": "onefold check";
        "Also read and verify a tenth of the data": "onefold check --read-data-subset 1/10";
    })]
    Check(CheckArgs),
    /// Repair what is lost or damaged
    #[command(subcommand)]
    #[command(after_help = examples! { "Rebuild the index of this host": "onefold repair index" })]
    Repair(RepairCommand),
    /// Manage passwords
    #[command(subcommand)]
    #[command(after_help = examples! { "Add a second password": "onefold key add" })]
    Key(KeyCommand),
    /// List the ids of objects of the repository
    #[command(after_help = examples! { "List the ids of all snapshots": "onefold list snapshots" })]
    List(ListArgs),
    /// Do nothing: a repository has no locks
    #[command(after_help = examples! { "Check that the repository can be opened": "onefold unlock" })]
    Unlock(UnlockArgs),
    /// Protect volumes continuously: every write can be brought back
    #[cfg(feature = "cdp")]
    #[command(subcommand)]
    #[command(after_help = examples! {
        "Serve the volumes of a group": "onefold cdp serve /var/lib/onefold/web";
    })]
    Cdp(CdpCommand),
    /// Measure ways to find duplicates, on traces or on your data
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    #[command(after_help = examples! {
        "Record the chunks of a directory": "onefold lab record home.trace ~";
        "Compare two indexes on the recorded chunks":
            "onefold lab run home.trace --preset adaptive --preset lazy";
    })]
    Lab(LabCommand),
    /// Write completions for a shell
    #[command(after_help = examples! {
        "Install completions for bash":
            "onefold completions bash > ~/.local/share/bash-completion/completions/onefold";
    })]
    Completions(CompletionsArgs),
    /// Write manual pages, one for each command, into a directory
    #[command(after_help = examples! {
        "Install the manual pages for one user": "onefold man ~/.local/share/man/man1";
    })]
    Man(ManArgs),
    /// Write completions and manual pages into files, as restic does
    #[command(after_help = examples! {
        "Write manual pages and completions for zsh": "onefold generate --man man1 --zsh-completion _onefold";
    })]
    Generate(GenerateArgs),
    /// List the devices that can find and name chunks, and test them
    #[command(after_help = examples! {
        "Test the NVIDIA GPUs of this host": "onefold devices";
    })]
    Devices,
    /// Print the version
    #[command(after_help = examples! { "Print the version as JSON": "onefold version --json" })]
    Version,
    /// Print that there are no feature flags
    #[command(hide = true)]
    Features,
    /// Print that there are no extended options
    #[command(hide = true)]
    Options,
    #[command(flatten)]
    Absent(AbsentCommand),
}

impl Command {
    /// Returns the sentence that says how an interrupted command goes on.
    pub(crate) fn after_interruption(&self) -> &'static str {
        match self {
            Self::Backup(_) => "; no snapshot was made, and the next backup goes on with what was stored",
            Self::Restore(_) => "; run it again with --overwrite if-changed to go on with what was restored",
            Self::Prune(_) => "; nothing that a snapshot needs is missing, and the next prune goes on",
            Self::Forget(_) | Self::Tag(_) | Self::Rewrite(_) | Self::Recover(_) => {
                "; what was done stays done, and the same command does the rest"
            }
            Self::Repair(_) | Self::Upgrade(_) | Self::Init(_) => "; run it again to go on",
            _ => "",
        }
    }

    /// Sets the host where the command has one and none was typed. `check` follows all snapshots unless told otherwise.
    pub(crate) fn default_host(&mut self, host: &str) {
        let selection = match self {
            Self::Backup(args) => {
                args.host.get_or_insert_with(|| host.to_owned());
                return;
            }
            Self::Forget(args) => {
                if args.host.is_empty() {
                    args.host.push(host.to_owned());
                }
                return;
            }
            Self::Tag(args) => &mut args.selection,
            Self::Rewrite(args) => &mut args.selection,
            Self::Restore(args) => &mut args.selection,
            Self::Snapshots(args) => &mut args.selection,
            Self::Ls(args) => &mut args.selection,
            Self::Dump(args) => &mut args.selection,
            Self::Find(args) => &mut args.selection,
            Self::Diff(args) => &mut args.selection,
            Self::Stats(args) => &mut args.selection,
            Self::Why(args) => &mut args.selection,
            Self::Init(_) | Self::Upgrade(_) | Self::Recover(_) | Self::Cat(_) | Self::Check(_) | Self::Repair(_) => {
                return;
            }
            Self::Key(_) | Self::List(_) | Self::Prune(_) | Self::Unlock(_) => return,
            #[cfg(feature = "cdp")]
            Self::Cdp(_) => return,
            #[cfg(feature = "lab")]
            Self::Lab(_) => return,
            Self::Completions(_) | Self::Man(_) | Self::Generate(_) => return,
            Self::Devices | Self::Version | Self::Features | Self::Options | Self::Absent(_) => return,
        };
        if selection.host.is_empty() {
            selection.host.push(host.to_owned());
        }
    }
}

/// Options of `backup`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct BackupArgs {
    /// Files and directories to back up
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Back up standard input, as one file
    #[arg(long, conflicts_with_all = ["paths", "files_from", "files_from_verbatim", "files_from_raw"])]
    pub(crate) stdin: bool,
    /// Name of the file in the snapshot, with --stdin or --stdin-from-command
    #[arg(long, value_name = "NAME", default_value = "stdin")]
    pub(crate) stdin_filename: OsString,
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    #[command(flatten)]
    pub(crate) excludes: ExcludeArgs,
    /// Read patterns of paths to back up from a file, one per line; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from: Vec<PathBuf>,
    /// Like --files-from, but read literal paths
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from_verbatim: Vec<PathBuf>,
    /// Like --files-from-verbatim, but each path ends with a NUL byte
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from_raw: Vec<PathBuf>,
    /// Add a tag to the snapshot
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    pub(crate) tag: Vec<String>,
    /// Host name of the snapshot [default: the name of this host]
    #[arg(short = 'H', long, alias = "hostname", value_name = "HOST")]
    pub(crate) host: Option<String>,
    /// Time of the snapshot, for example 2012-11-01 22:08:41 [default: now]
    #[arg(long, value_name = "TIME")]
    pub(crate) time: Option<String>,
    /// Snapshot to compare with [default: the newest of the same group]; --force goes before it
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) parent: Option<String>,
    /// Read every file again
    #[arg(short, long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) compare: ParentArgs,
    #[command(flatten)]
    pub(crate) server: IndexServerArgs,
    /// Store the times of the last access
    #[arg(long)]
    pub(crate) with_atime: bool,
    /// Ignore the inode and the change time when comparing files
    #[arg(long)]
    pub(crate) ignore_inode: bool,
    /// Write nothing; only report what a backup would read and add
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Round the length of each compressed region up to a multiple of 2 KiB, so that lengths reveal less about contents
    #[arg(long)]
    pub(crate) pad: bool,
    /// Do not compress new data against similar data of the repository, so that lengths reveal less to whoever can write into the source
    #[arg(long)]
    pub(crate) no_similarity: bool,
    /// Do not count files in advance, so that no time left is shown
    #[arg(long)]
    pub(crate) no_scan: bool,
}

/// Selection of snapshots.
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
    use clap::error::ErrorKind;

    use super::*;

    /// Splits a line into words as a shell does: at spaces outside single quotes. A redirection ends the command.
    fn words(line: &str) -> Vec<String> {
        let command = line.split(" > ").next().unwrap();
        let mut words = vec![String::new()];
        for (number, part) in command.split('\'').enumerate() {
            let mut unquoted = part.split(' ');
            if number % 2 == 1 {
                words.last_mut().unwrap().push_str(part);
            } else {
                words.last_mut().unwrap().push_str(unquoted.next().unwrap());
                words.extend(unquoted.map(str::to_owned));
            }
        }
        words
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    /// Values of which each option takes at least one.
    const VALUES: [&str; 13] =
        ["1", "2", "1k", "64k", "24h", "50%", "1/2", "a=b", "host", "cpu", "adaptive", "2012-11-01", "none"];

    #[test]
    fn of_an_option_that_is_given_twice_the_last_one_counts() {
        let mut root = Arguments::command();
        root.build();
        let (mut left, mut count) = (vec![root], 0);
        while let Some(command) = left.pop() {
            // Those of every command are tried with the root.
            let is_own =
                |arg: &&clap::Arg| arg.get_id() != "help" && (arg.is_global_set() == command.has_subcommands());
            for arg in command.get_arguments().filter(is_own) {
                let Some(name) = arg.get_long() else { continue };
                let possible: Vec<String> =
                    arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
                let values = possible.into_iter().chain(VALUES.map(str::to_owned));
                let typed: Vec<String> = if arg.get_action().takes_values() {
                    values.map(|value| format!("--{name}={value}")).collect()
                } else {
                    vec![format!("--{name}")]
                };
                let ends = typed.into_iter().map(|typed| {
                    let line = [command.get_name().to_owned(), typed.clone(), typed];
                    command.clone().try_get_matches_from(line).err().map(|error| error.kind())
                });
                let wrong = [ErrorKind::ValueValidation, ErrorKind::InvalidValue].map(Some);
                let end = ends.into_iter().find(|end| !wrong.contains(end));
                let end = end.unwrap_or_else(|| panic!("{} --{name}: VALUES has none for it", command.get_name()));
                assert_ne!(end, Some(ErrorKind::ArgumentConflict), "{} --{name}", command.get_name());
                count += 1;
            }
            left.extend(command.get_subcommands().filter(|below| below.get_name() != "help").cloned());
        }
        assert!(200 < count, "{count} options: they are not found any more");
        let restore = |line: &str| match Arguments::try_parse_from(line.split(' ')).unwrap() {
            Arguments { global, command: Command::Restore(args) } => (global, args),
            other => panic!("{other:?}"),
        };
        let (global, args) = restore(
            "onefold -r a restore x -i 1 --repo b --target c --target d --trusted --untrusted --dry-run --dry-run -i 2",
        );
        assert_eq!((global.repo, args.destination.target), (Some("b".into()), Some("d".into())));
        assert_eq!((args.trusted, args.untrusted, args.dry_run, args.includes.include.len()), (false, true, true, 2));
        assert!(restore("onefold restore x --target d --untrusted --trusted").1.trusted);
    }

    #[test]
    fn every_command_has_examples_that_are_valid() {
        let mut left = vec![Arguments::command()];
        let mut count = 0;
        while let Some(command) = left.pop() {
            let name = command.get_name();
            let help = command.get_after_help().unwrap_or_else(|| panic!("{name}: no examples")).to_string();
            let examples = help.strip_prefix("Examples:\n").unwrap_or_else(|| panic!("{name}: no examples: {help}"));
            let examples: Vec<&str> = examples.lines().take_while(|line| !line.is_empty()).collect();
            for pair in examples.chunks(2) {
                let [does, line] = pair else { panic!("{name}: {pair:?}") };
                let does = does.strip_prefix("  ").unwrap();
                assert!(does.starts_with(|c: char| c.is_ascii_uppercase()) && !does.ends_with('.'), "{name}: {does}");
                let words = words(line.strip_prefix("    ").unwrap());
                assert!(name == "onefold" || words.iter().any(|word| word == name), "{name}: {line}");
                let parsed = Arguments::try_parse_from(&words);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                count += 1;
            }
            left.extend(command.get_subcommands().filter(|below| !below.is_hide_set()).cloned());
        }
        assert!(20 < count, "examples are not found any more");
    }
}
