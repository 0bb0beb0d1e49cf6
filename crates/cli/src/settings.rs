//! Settings of every command, decided once: options, then the environment, then defaults.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use onefold_engine::accelerator::AcceleratorChoice;
use onefold_engine::backup::Budget;
use onefold_engine::check::LostHeads;
use onefold_engine::compress::Compression;
use onefold_engine::io::os::IoBackend;
use onefold_engine::io::os_identity;
use onefold_engine::repo::Location;
use onefold_engine::source::exclude::parse_size;
use onefold_engine::store::slots::SlotPolicy;

use crate::args::GlobalArgs;
use crate::args::backup::READ_CONCURRENCY;
use crate::args::talk::Talk;
use crate::compat::{Dialect, Environment};
use crate::files;
use crate::password::PasswordSource;
use crate::text::parse_duration;

/// Default time to wait for another writer.
const RETRY_LOCK_DEFAULT: Duration = Duration::from_mins(10);

/// The variables that are looked up, for manuals.
pub(crate) const ENVIRONMENT: [(&str, &str); 15] = [
    ("ONEFOLD_REPOSITORY", "Directory of the repository, as --repo: PATH or local:PATH."),
    ("ONEFOLD_REPOSITORY_FILE", "File whose first line names the directory of the repository, as --repository-file."),
    (
        "ONEFOLD_HOST",
        "Host of backups, and of the snapshots that are selected, as --host. check follows the snapshots of all hosts.",
    ),
    (
        "ONEFOLD_READ_CONCURRENCY",
        "Small files and parts of others that a backup reads at the same time, as --read-concurrency.",
    ),
    ("ONEFOLD_PASSWORD", "The password."),
    ("ONEFOLD_PASSWORD_FILE", "File whose first line is the password, as --password-file."),
    ("ONEFOLD_PASSWORD_COMMAND", "Command that prints the password, as --password-command."),
    ("ONEFOLD_KEY_HINT", "The key slot that is tried first, as --key-hint."),
    ("ONEFOLD_CACHE_DIR", "Directory of the index, as --cache-dir."),
    ("ONEFOLD_INDEX_SERVER", "Address of the server for the entries of the index, as --index-server."),
    ("ONEFOLD_ACCELERATOR", "Device that finds and names chunks, too, as --accelerator: auto, cpu, cuda or cuda:N."),
    ("ONEFOLD_COMPRESSION", "Compression of new data, as --compression."),
    ("ONEFOLD_MEMORY", "The memory budget, as --memory."),
    ("ONEFOLD_COMPAT", "restic: restic's variables, defaults and messages are used, for programs made for restic."),
    ("ONEFOLD_IO", "Batch I/O of disks: auto, uring or threads."),
];

/// Reaction to a change that only an attacker or the user can have made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The command ends.
    Refuse,
    /// The user has said that it is right.
    Accept,
}

/// Directory of the caches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CacheLocation {
    /// In this directory.
    Directory(PathBuf),
    /// The location is unknown.
    Unknown,
    /// Nothing is written into a cache: the index is temporary. The state that the host has remembered in the directory
    /// still counts.
    Unwanted(Option<PathBuf>),
}

/// Amount of messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Verbosity {
    /// Errors only.
    Quiet,
    /// Results and notes.
    Normal,
    /// Details of what is done.
    Verbose,
    /// Every file.
    EveryFile,
}

/// The decisions.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The option or variable that names the repository, if any.
    repository: Option<NamedBy>,
    /// Source of the password.
    pub(crate) password: PasswordSource,
    /// Which key slots it is tried on.
    pub(crate) slots: SlotPolicy,
    /// Directory of the caches.
    pub(crate) cache: CacheLocation,
    /// Whether caches of repositories that are not used any more are removed.
    pub(crate) cleans_cache: bool,
    /// Program whose conventions are followed.
    pub(crate) dialect: Dialect,
    /// Files that a backup reads at the same time, unless an option chooses another number.
    pub(crate) read_concurrency: Option<u8>,
    /// Address of the server for the entries of the index, unless an option names another.
    pub(crate) index_server: Option<String>,
    /// Host of backups, and of the snapshots that are selected, unless an option names another.
    pub(crate) host: Option<String>,
    /// Memory budget in bytes.
    pub(crate) memory_bytes: usize,
    /// Threads that compute.
    pub(crate) threads: usize,
    /// Device that finds and names chunks, unless an option chooses another.
    pub(crate) accelerator: AcceleratorChoice,
    /// Compression of new data.
    pub(crate) compression: Compression,
    /// The same if the user has chosen one: `auto` leaves the choice to each command.
    pub(crate) chosen_compression: Option<Compression>,
    /// Method by which disks carry out batches.
    pub(crate) io: IoBackend,
    /// Time to wait for another writer.
    pub(crate) retry_lock: Duration,
    /// Interval of progress reports, if the user chose one; zero turns them off.
    pub(crate) progress_interval: Option<Duration>,
    /// Reaction to another repository than this host has seen at the path.
    pub(crate) new_repository: Change,
    /// Reaction to newest snapshots that are gone.
    pub(crate) lost_heads: LostHeads,
    /// Whether the output is JSON.
    pub(crate) json: bool,
    /// Amount of messages.
    pub(crate) verbosity: Verbosity,
}

impl CacheLocation {
    fn decide(args: &GlobalArgs, variable: &Environment<'_>) -> Self {
        let named = args.cache_dir.clone().or_else(|| variable("ONEFOLD_CACHE_DIR").map(PathBuf::from));
        let directory = named.or_else(|| os_identity::cache_directory(variable));
        match (args.no_cache, directory) {
            (true, directory) => Self::Unwanted(directory),
            (false, Some(directory)) => Self::Directory(directory),
            (false, None) => Self::Unknown,
        }
    }

    /// Returns the directory to write into.
    pub(crate) fn written(&self) -> Option<&PathBuf> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Unknown | Self::Unwanted(_) => None,
        }
    }

    /// Returns the directory that may hold what the host has remembered.
    pub(crate) fn remembered(&self) -> Option<&PathBuf> {
        match self {
            Self::Directory(directory) | Self::Unwanted(Some(directory)) => Some(directory),
            Self::Unknown | Self::Unwanted(None) => None,
        }
    }
}

/// Option or variable that names the repository.
#[derive(Debug)]
enum NamedBy {
    /// This name.
    Name(OsString),
    /// The first line of this file. Commands without a repository do not read it.
    File(PathBuf),
}

impl NamedBy {
    /// Decides: a name or a file that was typed, or the same from the environment.
    fn decide(args: &GlobalArgs, variable: &Environment<'_>) -> Option<Self> {
        let typed_name = args.repo.clone().map(Self::Name);
        typed_name
            .or_else(|| args.repository_file.clone().map(Self::File))
            .or_else(|| variable("ONEFOLD_REPOSITORY").map(Self::Name))
            .or_else(|| variable("ONEFOLD_REPOSITORY_FILE").map(|file| Self::File(file.into())))
    }
}

/// Reads the number of files that are read at the same time, within the limits of the option.
fn read_concurrency(text: &str) -> Result<u8> {
    let number = text.parse().ok().filter(|number| READ_CONCURRENCY.contains(number));
    number.with_context(|| {
        let (least, most) = (READ_CONCURRENCY.start(), READ_CONCURRENCY.end());
        format!("ONEFOLD_READ_CONCURRENCY: `{text}` is not a number from {least} to {most}")
    })
}

impl Settings {
    /// Decides. `environment` looks up a variable; an empty one is as none.
    pub(crate) fn decide(dialect: Dialect, args: &GlobalArgs, environment: &Environment<'_>) -> Result<Self> {
        let variable = |name: &str| dialect.variable(environment, name).filter(|value| !value.is_empty());
        let text = |name: &str| -> Result<Option<String>> {
            variable(name)
                .map(|value| value.into_string().map_err(|_| anyhow::anyhow!("{name} is not UTF-8")))
                .transpose()
        };
        let either = |option: &Option<String>, name: &str| -> Result<Option<String>> {
            option.clone().map_or_else(|| text(name), |option| Ok(Some(option)))
        };
        let memory = match either(&args.memory, "ONEFOLD_MEMORY")? {
            Some(text) => parse_size(&text).context("memory budget")?,
            None => Budget::BYTES_DEFAULT as u64,
        };
        ensure!(
            Budget::BYTES_MIN as u64 <= memory,
            "a memory budget of {memory} bytes is too small: the smallest that works is {}M",
            Budget::BYTES_MIN >> 20
        );
        let chosen_compression = match either(&args.compression, "ONEFOLD_COMPRESSION")?.as_deref() {
            None | Some("auto") => None,
            Some(text) => Some(text.parse()?),
        };
        let accelerator = text("ONEFOLD_ACCELERATOR")?.map(|text| text.parse()).transpose();
        let accelerator = accelerator.context("ONEFOLD_ACCELERATOR")?.unwrap_or_default();
        let io = text("ONEFOLD_IO")?.map(|text| text.parse()).transpose().context("ONEFOLD_IO")?.unwrap_or_default();
        let key_memory = args.key_memory_max.as_deref().map(parse_size).transpose().context("--key-memory-max")?;
        let memory_kib_max = u32::try_from(key_memory.unwrap_or(memory) >> 10).unwrap_or(u32::MAX);
        let memory_bytes = usize::try_from(memory).context("memory budget")?;
        let verbosity = match (args.quiet, Talk::level(&args.verbose)) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, 1) => Verbosity::Verbose,
            (false, _) => Verbosity::EveryFile,
        };
        Ok(Self {
            repository: NamedBy::decide(args, &variable),
            password: PasswordSource::decide(args, &variable),
            slots: SlotPolicy { memory_kib_max, hint: either(&args.key_hint, "ONEFOLD_KEY_HINT")? },
            cache: CacheLocation::decide(args, &variable),
            cleans_cache: args.cleanup_cache,
            dialect,
            read_concurrency: text("ONEFOLD_READ_CONCURRENCY")?.map(|text| read_concurrency(&text)).transpose()?,
            index_server: text("ONEFOLD_INDEX_SERVER")?,
            host: text("ONEFOLD_HOST")?,
            memory_bytes,
            threads: Budget::threads(memory_bytes, os_identity::processors()),
            accelerator,
            compression: chosen_compression.unwrap_or_default(),
            chosen_compression,
            io,
            retry_lock: args.retry_lock.as_deref().map_or(Ok(RETRY_LOCK_DEFAULT), parse_duration)?,
            progress_interval: match &args.progress_interval {
                Some(text) => Some(parse_duration(text)?),
                None => dialect.progress_interval(environment),
            },
            new_repository: if args.accept_new_repository { Change::Accept } else { Change::Refuse },
            lost_heads: if args.accept_rollback { LostHeads::Accept } else { LostHeads::Report },
            json: args.json,
            verbosity,
        })
    }

    /// Returns the directory of the repository.
    pub(crate) fn repository(&self) -> Result<PathBuf> {
        let named = self
            .repository
            .as_ref()
            .context("no repository named: give --repo DIR or --repository-file FILE, or set ONEFOLD_REPOSITORY")?;
        let named = match named {
            NamedBy::Name(name) => name.clone(),
            NamedBy::File(file) => files::read_repository(file)?,
        };
        let Location::Directory(directory) = Location::parse(&named)?;
        Ok(directory)
    }

    /// Divides the memory budget.
    pub(crate) fn budget(&self) -> Budget {
        Budget::of(self.memory_bytes, self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(args: &GlobalArgs, variables: &[(&str, &str)]) -> Result<Settings> {
        Settings::decide(Dialect::Onefold, args, &|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn options_come_before_the_environment_and_that_before_defaults() {
        let args = GlobalArgs { memory: Some("100M".into()), ..GlobalArgs::default() };
        let variables = [("ONEFOLD_MEMORY", "1G"), ("ONEFOLD_REPOSITORY", "/r"), ("HOME", "/home/me")];
        let settings = decide(&args, &variables).unwrap();
        assert_eq!(settings.memory_bytes, 100 << 20);
        assert_eq!(settings.repository().unwrap(), PathBuf::from("/r"));
        assert_eq!(settings.cache, CacheLocation::Directory("/home/me/.cache/onefold".into()));
        let settings = decide(&GlobalArgs::default(), &[("XDG_CACHE_HOME", "/x"), ("ONEFOLD_MEMORY", "1G")]).unwrap();
        assert_eq!(settings.memory_bytes, 1 << 30);
        assert_eq!(settings.cache, CacheLocation::Directory("/x/onefold".into()));
        let unwanted = GlobalArgs { no_cache: true, ..GlobalArgs::default() };
        let unwanted = decide(&unwanted, &variables).unwrap().cache;
        assert_eq!(
            (unwanted.written(), unwanted.remembered()),
            (None, Some(&PathBuf::from("/home/me/.cache/onefold")))
        );
        let system = decide(&GlobalArgs::default(), &[]).unwrap().cache;
        assert!(system.written().is_none_or(|directory| directory.is_absolute()));
    }

    #[test]
    fn the_way_to_the_disk_is_chosen_by_the_environment() {
        let choose = |value| decide(&GlobalArgs::default(), &[("ONEFOLD_IO", value)]).map(|settings| settings.io);
        assert_eq!((choose("threads").unwrap(), choose("").unwrap()), (IoBackend::Threads, IoBackend::Auto));
        let message = format!("{:#}", choose("fast").unwrap_err());
        assert!(message.starts_with("ONEFOLD_IO: `fast`") && message.contains("uring"), "{message}");
    }

    #[test]
    fn durations_of_nothing_are_zero_and_not_the_default() {
        let args = |text: &str| GlobalArgs {
            retry_lock: Some(text.into()),
            progress_interval: Some(text.into()),
            ..GlobalArgs::default()
        };
        for zero in ["0", "0s"] {
            let settings = decide(&args(zero), &[]).unwrap();
            assert_eq!((settings.retry_lock, settings.progress_interval), (Duration::ZERO, Some(Duration::ZERO)));
        }
        let settings = decide(&GlobalArgs::default(), &[]).unwrap();
        assert_eq!((settings.retry_lock, settings.progress_interval), (Duration::from_mins(10), None));
        assert!(decide(&args("soon"), &[]).is_err());
    }

    #[test]
    fn a_budget_too_small_is_refused_with_the_smallest_that_works() {
        let error = decide(&GlobalArgs::default(), &[("ONEFOLD_MEMORY", "63M")]).unwrap_err();
        assert!(error.to_string().contains("64M"), "{error}");
        assert!(decide(&GlobalArgs::default(), &[("ONEFOLD_MEMORY", "64M")]).is_ok());
    }
}
