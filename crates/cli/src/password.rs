//! Sources of passwords.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use zeroize::Zeroizing;

use crate::args::GlobalArgs;
use crate::args::restic::INSECURE_NO_PASSWORD;
use crate::files;

/// A password, wiped from memory when it is no longer needed.
pub(crate) type Password = Zeroizing<Vec<u8>>;

/// Source of the password of a repository.
#[derive(Clone)]
pub(crate) enum PasswordSource {
    /// The output of a shell command.
    Command(OsString),
    /// A file.
    File(PathBuf),
    /// The environment.
    Given(OsString),
    /// None: an encrypted repository is opened with an empty password.
    Unneeded,
    /// The user, if there is a terminal.
    Ask,
}

impl std::fmt::Debug for PasswordSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PasswordSource")
    }
}

impl PasswordSource {
    /// Decides between options and environment.
    pub(crate) fn decide(args: &GlobalArgs, variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let command = |command: OsString| Self::Command(command);
        let file = |path: OsString| Self::File(path.into());
        args.password_command
            .clone()
            .map(command)
            .or_else(|| args.password_file.clone().map(Self::File))
            .or_else(|| variable("ONEFOLD_PASSWORD_COMMAND").map(command))
            .or_else(|| variable("ONEFOLD_PASSWORD_FILE").map(file))
            .or_else(|| variable("ONEFOLD_PASSWORD").map(Self::Given))
            .or_else(|| args.ignored.args.contains(&INSECURE_NO_PASSWORD).then_some(Self::Unneeded))
            .unwrap_or(Self::Ask)
    }

    /// Returns true if a password was given, so that the user is not asked.
    pub(crate) fn is_given(&self) -> bool {
        match self {
            Self::Command(_) | Self::File(_) | Self::Given(_) => true,
            Self::Unneeded | Self::Ask => false,
        }
    }

    /// Returns the password; asks with `prompt` if none was given.
    pub(crate) fn read(&self, prompt: &str) -> Result<Password> {
        match self {
            Self::Command(command) => run(command),
            Self::File(path) => {
                let bytes = files::read_password(path)?;
                first_line(&bytes).with_context(|| format!("password file {} is empty", path.display()))
            }
            Self::Given(password) => Ok(Zeroizing::new(std::os::unix::ffi::OsStrExt::as_bytes(&**password).to_vec())),
            Self::Unneeded => Ok(Zeroizing::default()),
            Self::Ask => ask(prompt),
        }
    }

    /// Returns a password for something new; where it is typed, it is typed twice.
    pub(crate) fn read_new(&self, prompt: &str) -> Result<Password> {
        let password = self.read(prompt)?;
        if matches!(self, Self::Ask) {
            ensure!(*ask("repeat the password: ")? == *password, "the passwords differ");
        }
        Ok(password)
    }
}

fn run(command: &OsString) -> Result<Password> {
    // Standard input may be what is backed up.
    let output = Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("run the password command")?;
    let printed = Zeroizing::new(output.stdout);
    ensure!(output.status.success(), "the password command failed: {}", output.status);
    first_line(&printed).context("the password command printed nothing")
}

fn first_line(bytes: &[u8]) -> Option<Password> {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() { None } else { Some(Zeroizing::new(line.to_vec())) }
}

fn ask(prompt: &str) -> Result<Password> {
    if !io::stdin().is_terminal() {
        bail!("no password: give --password-file, --password-command or ONEFOLD_PASSWORD");
    }
    let password = rpassword::prompt_password(prompt).context("ask for the password")?;
    ensure!(!password.is_empty(), "the password is empty");
    Ok(Zeroizing::new(password.into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_line_is_the_password() {
        assert_eq!(*first_line(b"secret word \r\nmore\n").unwrap(), b"secret word ");
        assert_eq!(*first_line(b"secret").unwrap(), b"secret");
        assert!(first_line(b"\nsecret").is_none());
        assert_eq!(*run(&"echo one; echo two".into()).unwrap(), b"one");
        assert!(run(&"exit 3".into()).unwrap_err().to_string().contains('3'));
    }
}
