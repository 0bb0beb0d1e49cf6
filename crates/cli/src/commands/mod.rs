//! One file for each command: a typed plan, a call of the engine, and what is printed of its outcome.

mod backup;
mod check;
mod dump;
mod init;
mod key;
mod ls;
mod restore;
mod snapshots;
mod version;

use std::sync::Arc;

use anyhow::Result;

use crate::args::{Arguments, Command};
use crate::output::Output;
use crate::settings::Settings;

/// Carries out a command.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let Arguments { global, command } = arguments;
    let settings = Settings::decide(&global, &|name| std::env::var_os(name))?;
    let output = Arc::new(Output::new(settings.json, settings.verbosity));
    match command {
        Command::Init(typed) => init::run(&settings, &output, &typed),
        Command::Backup(typed) => backup::run(&settings, &output, &typed),
        Command::Restore(typed) => restore::run(&settings, &output, &typed),
        Command::Snapshots(typed) => snapshots::run(&settings, &output, &typed),
        Command::Ls(typed) => ls::run(&settings, &output, &typed),
        Command::Dump(typed) => dump::run(&settings, &output, &typed),
        Command::Check(typed) => check::run(&settings, &output, &typed),
        Command::Key(typed) => key::run(&settings, &output, &typed.command),
        Command::Version => version::run(&output),
    }?;
    Ok(output.flush()?)
}
