//! One file for each command: a typed plan, a call of the engine, and what is printed of its outcome.

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
mod later;
mod list;
mod ls;
mod ncdu;
mod restore;
mod snapshots;
mod stats;
mod unlock;
mod version;

use std::sync::Arc;

use anyhow::Result;

use crate::args::{Arguments, Command};
use crate::compat::{Dialect, Environment};
use crate::output::Output;
use crate::settings::Settings;

pub(crate) use version::PROGRAM;

/// The answer to `lab` in a build without it.
#[cfg(not(feature = "lab"))]
const WITHOUT_LAB: &str = "this onefold was built without the laboratory; cargo's default features include it";

/// Carries out a command.
pub(crate) fn run(dialect: Dialect, arguments: Arguments) -> Result<()> {
    let environment: &Environment<'_> = &|name| std::env::var_os(name);
    let Arguments { global, mut command } = arguments;
    let notes = dialect.notes(&global.ignored.typed(), environment)?;
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
            let is_open = typed.no_encryption || global.ignored.insecure_no_password;
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
        Command::Cat(typed) => cat::run(&settings, &output, &typed.object),
        Command::Check(typed) => check::run(&settings, &output, &typed),
        Command::Key(typed) => key::run(&settings, &output, &typed.command),
        Command::List(typed) => list::run(&settings, &output, typed.objects),
        Command::Unlock(typed) => unlock::run(&settings, &output, &typed),
        #[cfg(feature = "lab")]
        Command::Lab(typed) => lab::run(&settings, &output, names_repository, &typed.command),
        #[cfg(not(feature = "lab"))]
        Command::Lab(_) => Err(anyhow::Error::msg(WITHOUT_LAB)),
        Command::Completions(typed) => completions::write(&output, &typed),
        Command::Man(typed) => completions::write_pages(&output, &typed.directory),
        Command::Generate(typed) => completions::generate(&output, &typed),
        Command::Version => version::run(dialect, &output),
        Command::Features => Ok(output.line("there are no feature flags")?),
        Command::Options => Ok(output.line("there are no extended options")?),
        Command::Later(command) => later::refuse(&command),
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
            assert_eq!(error.to_string(), WITHOUT_LAB, "{typed:?}");
        }
    }
}
