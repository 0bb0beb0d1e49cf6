//! `ONEFOLD_COMPAT=restic`, or a program that is called `restic`: restic's variables, defaults and sentences, so that
//! programs made for restic run this one. Everything here is a function of the program's name, the environment and what
//! was typed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::error::ContextKind;
use onefold_engine::Error;

use crate::args::restic::INSECURE_NO_PASSWORD;
use crate::args::restore::OverwriteArg;

/// The version of restic whose command line, JSON and exit codes are followed.
pub(crate) const RESTIC_VERSION: &str = "0.19.1";

/// Beginning of restic's final message of a backup that could not read everything.
pub(crate) const LEFT_OUT_OF_RESTIC: &str = "Warning: at least one source file could not be read";

/// The variable that chooses.
pub(crate) const VARIABLE: &str = "ONEFOLD_COMPAT";

/// Looks up a variable of the environment.
pub(crate) type Environment<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// Pairs of this program's variables and restic's. A variable of this program that is set hides the whole group of
/// restic's: a password file of one must not meet a password of the other.
const VARIABLES: [&[(&str, &str)]; 7] = [
    &[("ONEFOLD_REPOSITORY", "RESTIC_REPOSITORY"), ("ONEFOLD_REPOSITORY_FILE", "RESTIC_REPOSITORY_FILE")],
    &[
        ("ONEFOLD_PASSWORD", "RESTIC_PASSWORD"),
        ("ONEFOLD_PASSWORD_FILE", "RESTIC_PASSWORD_FILE"),
        ("ONEFOLD_PASSWORD_COMMAND", "RESTIC_PASSWORD_COMMAND"),
    ],
    &[("ONEFOLD_CACHE_DIR", "RESTIC_CACHE_DIR")],
    &[("ONEFOLD_COMPRESSION", "RESTIC_COMPRESSION")],
    &[("ONEFOLD_HOST", "RESTIC_HOST")],
    &[("ONEFOLD_KEY_HINT", "RESTIC_KEY_HINT")],
    &[("ONEFOLD_READ_CONCURRENCY", "RESTIC_READ_CONCURRENCY")],
];

/// Variables of restic that mean nothing here and whose users should know.
const IGNORED_VARIABLES: [&str; 4] =
    ["RESTIC_PACK_SIZE", "RESTIC_CACERT", "RESTIC_TLS_CLIENT_CERT", "RESTIC_FROM_REPOSITORY"];

/// Most progress reports in a second, as in restic.
const FPS_MAX: f64 = 60.0;
/// Fewest progress reports in a second that the variable may choose: one in a day.
const FPS_MIN: f64 = 1.0 / 86_400.0;

/// Program whose conventions the command follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    /// Its own.
    Onefold,
    /// Those of restic.
    Restic,
}

impl Dialect {
    /// Decides by the name under which the program was called and by the environment.
    pub(crate) fn decide(program: Option<&OsStr>, environment: &Environment<'_>) -> Result<Self> {
        match environment(VARIABLE).filter(|value| !value.is_empty()) {
            Some(value) if value == "restic" => Ok(Self::Restic),
            Some(value) => bail!("{VARIABLE}={}: the only value is restic", value.display()),
            None if program.map(Path::new).and_then(Path::file_name) == Some(OsStr::new("restic")) => Ok(Self::Restic),
            None => Ok(Self::Onefold),
        }
    }

    /// Returns what was typed, with restic's `-o` written out: it has another meaning here.
    pub(crate) fn arguments(self, args: impl Iterator<Item = OsString>) -> Vec<OsString> {
        let mut is_over = self == Self::Onefold;
        let written_out = args.map(|argument| {
            is_over |= argument == "--";
            match argument.as_bytes().strip_prefix(b"-o") {
                Some(b"") if !is_over => "--option".into(),
                Some(value) if !is_over => [OsStr::new("--option="), OsStr::from_bytes(value)].into_iter().collect(),
                _ => argument,
            }
        });
        written_out.collect()
    }

    /// Looks up one of this program's variables, or restic's counterpart if no variable of its group is set.
    pub(crate) fn variable(self, environment: &Environment<'_>, name: &str) -> Option<OsString> {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        let group = VARIABLES.into_iter().find(|group| group.iter().any(|(own, _)| *own == name));
        let Some(group) = group.filter(|_| self == Self::Restic) else { return set(name) };
        if group.iter().any(|(own, _)| set(own).is_some()) {
            return set(name);
        }
        group.iter().find(|(own, _)| *own == name).and_then(|(_, restic)| set(restic))
    }

    /// Returns how often progress is reported if nothing is typed: restic's variable counts reports in a second. One that
    /// is no positive number is passed over, as restic does.
    pub(crate) fn progress_interval(self, environment: &Environment<'_>) -> Option<Duration> {
        let fps = match self {
            Self::Onefold => None,
            Self::Restic => environment("RESTIC_PROGRESS_FPS"),
        };
        let fps: f64 = fps?.to_str()?.parse().ok()?;
        (0.0 < fps).then(|| Duration::from_secs_f64(1.0 / fps.clamp(FPS_MIN, FPS_MAX)))
    }

    /// Returns a note for each option of restic that has no meaning here, and for each of its variables.
    pub(crate) fn notes(self, args: &[&str], environment: &Environment<'_>) -> Vec<String> {
        let is_set = |name: &&&str| self == Self::Restic && environment(name).is_some_and(|value| !value.is_empty());
        let variables = IGNORED_VARIABLES.iter().filter(is_set);
        let options = args.iter().filter(|option| **option != INSECURE_NO_PASSWORD);
        options.chain(variables).map(|name| format!("{name} has no meaning here and is ignored")).collect()
    }

    /// Returns the default treatment of files that exist in the target of `restore`. `None`: the target must be empty.
    pub(crate) fn overwrite(self) -> Option<OverwriteArg> {
        match self {
            Self::Onefold => None,
            Self::Restic => Some(OverwriteArg::Always),
        }
    }

    /// Returns the line of `version`. Programs take the version of restic from its beginning.
    pub(crate) fn version(self, own: &str) -> String {
        let os = std::env::consts::OS;
        match self {
            Self::Onefold => format!("{own} on {os}/{}", std::env::consts::ARCH),
            Self::Restic => format!("restic {RESTIC_VERSION} compiled with {own} on {os}/{}", go_arch()),
        }
    }

    /// Returns the tag of snapshots that `recover` makes if none is named. `None`: it lists what is forgotten.
    pub(crate) fn tag_of_recovered(self) -> Option<&'static str> {
        (self == Self::Restic).then_some("recovered")
    }

    /// Returns the words of the library that restic's command line is made with for an error in it, where programs look for them.
    pub(crate) fn usage(self, error: &clap::Error) -> Option<String> {
        let command = error.get(ContextKind::InvalidSubcommand).filter(|_| self == Self::Restic)?;
        Some(format!("unknown command \"{command}\" for \"restic\""))
    }

    /// Returns the final message in JSON, which does not name the program.
    pub(crate) fn json_ending(self, error: Option<&Error>, sentence: &str) -> String {
        match self {
            Self::Onefold => sentence.to_owned(),
            Self::Restic => self.ending(error, sentence),
        }
    }

    /// Returns the final message: in restic's words if programs look for them.
    pub(crate) fn ending(self, error: Option<&Error>, sentence: &str) -> String {
        if self == Self::Onefold {
            return format!("onefold: {sentence}");
        }
        let known = match error {
            Some(Error::NoRepository { .. }) => "repository does not exist: unable to open config file: ",
            Some(Error::RepositoryExists { .. }) => "create repository failed: config file already exists: ",
            Some(Error::WrongPassword) => "wrong password or no key found: ",
            Some(Error::IndexBusy { .. }) => "unable to create lock: repository is already locked on this host: ",
            _ => "",
        };
        format!("Fatal: {known}{sentence}")
    }
}

/// The name that Go has for this machine's architecture.
pub(crate) fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    }

    #[test]
    fn the_dialect_comes_from_the_variable_or_the_name() {
        let decide = |name: &str, variables: &[(&str, &str)]| {
            Dialect::decide(Some(OsStr::new(name)), &environment(variables)).map_err(|error| error.to_string())
        };
        assert_eq!(decide("/usr/bin/onefold", &[]), Ok(Dialect::Onefold));
        assert_eq!(decide("onefold", &[(VARIABLE, "restic")]), Ok(Dialect::Restic));
        assert_eq!(decide("/usr/bin/restic", &[]), Ok(Dialect::Restic));
        assert_eq!(decide("/srv/restic/onefold", &[(VARIABLE, "")]), Ok(Dialect::Onefold));
        assert!(decide("onefold", &[(VARIABLE, "borg")]).unwrap_err().contains("ONEFOLD_COMPAT=borg"));
    }

    #[test]
    fn an_extended_option_is_written_out_for_restic_only() {
        let arguments = |dialect: Dialect, args: &[&str]| -> Vec<String> {
            let args = args.iter().map(OsString::from);
            dialect.arguments(args).into_iter().map(|argument| argument.into_string().unwrap()).collect()
        };
        let args = ["restic", "-o", "a=b", "-oc=d", "--option=e", "--", "-o"];
        assert_eq!(arguments(Dialect::Onefold, &args), args);
        let written_out = ["restic", "--option", "a=b", "--option=c=d", "--option=e", "--", "-o"];
        assert_eq!(arguments(Dialect::Restic, &args), written_out);
    }

    #[test]
    fn variables_of_restic_stand_in_for_groups_that_are_not_set() {
        let variables = [
            ("RESTIC_REPOSITORY", "/r"),
            ("RESTIC_PASSWORD_COMMAND", "pass"),
            ("ONEFOLD_PASSWORD", "own"),
            ("RESTIC_HOST", "h"),
            ("ONEFOLD_MEMORY", "1G"),
        ];
        let of = |dialect: Dialect, name| dialect.variable(&environment(&variables), name);
        assert_eq!(of(Dialect::Restic, "ONEFOLD_REPOSITORY"), Some("/r".into()));
        assert_eq!(of(Dialect::Onefold, "ONEFOLD_REPOSITORY"), None);
        assert_eq!(of(Dialect::Restic, "ONEFOLD_PASSWORD"), Some("own".into()));
        assert_eq!(of(Dialect::Restic, "ONEFOLD_PASSWORD_COMMAND"), None);
        assert_eq!(of(Dialect::Restic, "ONEFOLD_HOST"), Some("h".into()));
        assert_eq!(of(Dialect::Restic, "ONEFOLD_MEMORY"), Some("1G".into()));
    }

    #[test]
    fn reports_in_a_second_become_an_interval() {
        let interval = |dialect: Dialect, fps| dialect.progress_interval(&environment(&[("RESTIC_PROGRESS_FPS", fps)]));
        assert_eq!(interval(Dialect::Restic, "2"), Some(Duration::from_millis(500)));
        assert_eq!(interval(Dialect::Restic, "0.1"), Some(Duration::from_secs(10)));
        assert_eq!(interval(Dialect::Restic, "1e9"), interval(Dialect::Restic, "60"));
        assert_eq!(interval(Dialect::Restic, "1e-300"), Some(Duration::from_hours(24)));
        for wrong in ["0", "-1", "NaN", "fast", ""] {
            assert_eq!(interval(Dialect::Restic, wrong), None, "{wrong}");
        }
        assert_eq!(interval(Dialect::Onefold, "2"), None);
    }

    #[test]
    fn options_and_variables_that_mean_nothing_are_noted() {
        let variables = [("RESTIC_PACK_SIZE", "64")];
        let environment = environment(&variables);
        let notes = Dialect::Restic.notes(&["--option", "--insecure-no-password"], &environment);
        assert_eq!(notes.len(), 2);
        assert!(notes[0].starts_with("--option") && notes[1].starts_with("RESTIC_PACK_SIZE"));
        assert_eq!(Dialect::Onefold.notes(&["--pack-size"], &environment).len(), 1);
    }

    #[test]
    fn the_version_line_and_the_endings_are_those_that_programs_look_for() {
        assert!(Dialect::Restic.version("onefold 1.2.3").starts_with("restic 0.19.1 compiled with onefold 1.2.3 on "));
        assert!(Dialect::Onefold.version("onefold 1.2.3").starts_with("onefold 1.2.3 on "));
        let missing = Error::NoRepository { path: "/r".into(), reason: "x".into() };
        let ending = Dialect::Restic.ending(Some(&missing), "none");
        assert!(ending.starts_with("Fatal: repository does not exist: unable to open config file"), "{ending}");
        let exists = Dialect::Restic.ending(Some(&Error::RepositoryExists { path: "/r".into() }), "there");
        assert!(exists.contains("config file already exists"), "{exists}");
        assert!(Dialect::Restic.ending(Some(&Error::WrongPassword), "no").starts_with("Fatal: wrong password"));
        assert_eq!(Dialect::Restic.ending(None, "bad"), "Fatal: bad");
        assert_eq!(Dialect::Onefold.ending(Some(&Error::WrongPassword), "no"), "onefold: no");
    }
}
