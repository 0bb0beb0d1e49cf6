//! One file for each command: a typed plan, a call of the engine, and what is printed of its outcome.

mod backup;
mod cat;
mod check;
mod completions;
mod diff;
mod dump;
mod dump_contents;
mod dump_tar;
mod find;
mod init;
mod key;
mod lab;
mod ls;
mod restore;
mod snapshots;
mod stats;
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
    let names_repository = global.repo.is_some();
    let output = Arc::new(Output::new(settings.json, settings.verbosity));
    match command {
        Command::Init(typed) => init::run(&settings, &output, &typed),
        Command::Backup(typed) => backup::run(&settings, &output, &typed),
        Command::Restore(typed) => restore::run(&settings, &output, &typed),
        Command::Snapshots(typed) => snapshots::run(&settings, &output, &typed),
        Command::Ls(typed) => ls::run(&settings, &output, &typed),
        Command::Dump(typed) => dump::run(&settings, &output, &typed),
        Command::Find(typed) => find::run(&settings, &output, &typed),
        Command::Diff(typed) => diff::run(&settings, &output, &typed),
        Command::Stats(typed) => stats::run(&settings, &output, &typed),
        Command::Cat(typed) => cat::run(&settings, &output, &typed.object),
        Command::Check(typed) => check::run(&settings, &output, &typed),
        Command::Key(typed) => key::run(&settings, &output, &typed.command),
        Command::Lab(typed) => lab::run(&settings, &output, names_repository, &typed.command),
        Command::Completions(typed) => completions::write(&output, &typed),
        Command::Man(typed) => completions::write_pages(&output, &typed),
        Command::Version => version::run(&output),
    }?;
    Ok(output.flush()?)
}
