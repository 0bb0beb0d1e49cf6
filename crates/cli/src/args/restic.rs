//! Options of restic that have no meaning here, and its commands that onefold recognizes only to answer with a sentence.

use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, Subcommand};

/// Options of restic without a value that have no meaning here. They are accepted with a note.
const SWITCHES: [&str; 8] = [
    "--insecure-tls",
    "--no-extra-verify",
    INSECURE_NO_PASSWORD,
    "--check-unused",
    "--with-cache",
    "--use-fs-snapshot",
    "--sparse",
    "--repack-uncompressed",
];

/// Options of the same kind that take a value.
const WITH_VALUES: [&str; 10] = [
    "--option",
    "--cacert",
    "--tls-client-cert",
    "--http-user-agent",
    "--stuck-request-timeout",
    "--limit-upload",
    "--limit-download",
    "--pack-size",
    "--repository-version",
    "--unsafe-recover-no-free-space",
];

/// The switch that makes `init` create an unencrypted repository. Elsewhere the password is empty if no other is given.
pub(crate) const INSECURE_NO_PASSWORD: &str = "--insecure-no-password";

/// Those of these options that were typed.
#[derive(Clone, Debug, Default)]
pub(crate) struct IgnoredArgs {
    pub(crate) args: Vec<&'static str>,
}

impl Args for IgnoredArgs {
    fn augment_args(command: Command) -> Command {
        let option = |name: &'static str| Arg::new(name).long(name.trim_start_matches('-')).global(true).hide(true);
        let switches = SWITCHES.map(|name| option(name).action(ArgAction::SetTrue));
        let with_values =
            WITH_VALUES.map(|name| option(name).action(ArgAction::Append).value_parser(ValueParser::os_string()));
        command.args(switches).args(with_values)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for IgnoredArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let is_typed = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
        Ok(Self { args: WITH_VALUES.into_iter().chain(SWITCHES).filter(is_typed).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Commands that this program does not have, and the answer to each.
const ABSENT: &[(&str, &str)] = &[
    ("cache", "not in this version; --cleanup-cache removes the caches of repositories not used for 30 days"),
    ("copy", "not in this version; restore the snapshot and back it up into the other repository"),
    ("debug", "not in this version; `onefold cat` and `onefold list` show objects"),
    #[cfg(not(feature = "lab"))]
    ("lab", "this onefold was built without the laboratory; cargo's default features include it"),
    ("migrate", "`onefold upgrade --format 2` changes the format"),
    ("mount", "not in this version; `onefold ls`, `onefold dump` and `onefold restore` read snapshots"),
    ("rebuild-index", "`onefold repair index` rebuilds the index of this host"),
    ("self-update", "not in this version; install the new version as you installed this one"),
    ("webdav", "not in this version; `onefold ls`, `onefold dump` and `onefold restore` read snapshots"),
];

/// A command that this program does not have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AbsentCommand {
    /// Its name.
    pub(crate) name: &'static str,
    /// The sentence that answers it.
    pub(crate) answer: &'static str,
}

impl AbsentCommand {
    fn named(args: &str) -> Option<Self> {
        ABSENT.iter().find(|(name, _)| *name == args).map(|&(name, answer)| Self { name, answer })
    }
}

impl Subcommand for AbsentCommand {
    fn augment_subcommands(command: Command) -> Command {
        // All options are accepted, so that the absence of the command is the error.
        let rest = Arg::new("rest")
            .num_args(0..)
            .value_parser(ValueParser::os_string())
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .hide(true);
        let absent = |(name, answer): &(&'static str, &'static str)| {
            Command::new(*name).about(*answer).hide(true).disable_help_flag(true).arg(rest.clone())
        };
        command.subcommands(ABSENT.iter().map(absent))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        Self::named(name).is_some()
    }
}

impl FromArgMatches for AbsentCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let named = matches.subcommand_name().and_then(Self::named);
        named.ok_or_else(|| Error::new(clap::error::ErrorKind::InvalidSubcommand))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Options of `unlock`.
#[derive(Args, Debug)]
pub(crate) struct UnlockArgs {
    /// Accepted for scripts, without effect
    #[arg(long)]
    pub(crate) remove_all: bool,
}
