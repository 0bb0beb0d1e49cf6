//! One file for each command: a typed plan, a call of the engine, and the printed outcome.

mod backup;
mod cat;
mod check;
mod completions;
mod diff;
mod dump;
mod dump_contents;
mod dump_tar;
mod dump_zip;
mod find;
mod init;
mod key;
#[cfg(feature = "lab")]
mod lab;
mod list;
mod ls;
mod ncdu;
mod restore;
mod snapshots;
mod stats;
mod unlock;
mod version;

use std::sync::Arc;

use anyhow::{Result, bail};

use crate::args::restic::INSECURE_NO_PASSWORD;
use crate::args::{Arguments, Command};
use crate::compat::{Dialect, Environment};
use crate::output::Output;
use crate::settings::Settings;

pub(crate) use version::PROGRAM;

/// Carries out a command.
pub(crate) fn run(dialect: Dialect, arguments: Arguments) -> Result<()> {
    let environment: &Environment<'_> = &|name| std::env::var_os(name);
    let Arguments { global, mut command } = arguments;
    let notes = dialect.notes(&global.ignored.typed, environment)?;
    let settings = Settings::decide(dialect, &global, environment)?;
    #[cfg(feature = "lab")]
    let names_repository = global.repo.is_some();
    let output = Arc::new(Output::new(&settings));
    for note in &notes {
        output.note(note);
    }
    if let Some(host) = &settings.host {
        command.default_host(host);
    }
    match command {
        Command::Init(typed) => {
            let is_open = typed.no_encryption || global.ignored.typed.contains(&INSECURE_NO_PASSWORD);
            let encryption = if is_open { init::Encryption::None } else { init::Encryption::Password };
            init::run(&settings, &output, &typed, encryption)
        }
        Command::Backup(typed) => backup::run(&settings, &output, &typed),
        Command::Restore(typed) => restore::run(&settings, &output, &typed),
        Command::Snapshots(typed) => snapshots::run(&settings, &output, &typed),
        Command::Ls(typed) => ls::run(&settings, &output, &typed),
        Command::Dump(typed) => dump::run(&settings, &output, &typed),
        Command::Find(typed) => find::run(&settings, &output, &typed),
        Command::Diff(typed) => diff::run(&settings, &output, &typed),
        Command::Stats(typed) => stats::run(&settings, &output, &typed),
        Command::Cat(typed) => cat::run(&settings, &output, &typed),
        Command::Check(typed) => check::run(&settings, &output, &typed),
        Command::Key(typed) => key::run(&settings, &output, &typed),
        Command::List(typed) => list::run(&settings, &output, typed.objects),
        Command::Unlock(typed) => unlock::run(&settings, &output, &typed),
        #[cfg(feature = "lab")]
        Command::Lab(typed) => lab::run(&settings, &output, names_repository, &typed),
        Command::Completions(typed) => completions::write(&output, &typed),
        Command::Man(typed) => completions::write_pages(&output, &typed.directory),
        Command::Generate(typed) => completions::generate(&output, &typed),
        Command::Version => version::run(dialect, &output),
        Command::Features => Ok(output.line("there are no feature flags")?),
        Command::Options => Ok(output.line("there are no extended options")?),
        Command::Absent(command) => bail!("{}: {}", command.name, command.answer),
    }?;
    Ok(output.flush()?)
}

#[cfg(all(test, not(feature = "lab")))]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn lab_says_that_this_build_leaves_it_out_whatever_was_typed_after_it() {
        for typed in [&["lab"][..], &["lab", "run", "--preset", "x", "--help"], &["lab", "--help"]] {
            let arguments = Arguments::try_parse_from([&["onefold"], typed].concat()).expect("accepts all of it");
            let error = run(Dialect::Onefold, arguments).expect_err("there is no laboratory");
            assert!(error.to_string().starts_with("lab: this onefold was built without the laboratory"), "{typed:?}");
        }
    }
}
