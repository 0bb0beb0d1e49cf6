//! One file for each command: a typed plan, a call of the engine, and the printed outcome.

mod backup;
mod cat;
#[cfg(feature = "cdp")]
mod cdp;
mod check;
mod completions;
mod derive;
mod devices;
mod diff;
mod dump;
mod dump_contents;
mod dump_tar;
mod dump_zip;
mod find;
mod find_objects;
mod forget;
mod init;
mod key;
#[cfg(feature = "lab")]
mod lab;
mod list;
mod ls;
mod ncdu;
mod prune;
mod repair;
mod repair_containers;
mod restore;
mod snapshots;
mod stats;
mod unlock;
mod upgrade;
mod version;
mod what_if;
mod why;

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
    let notes = dialect.notes(&global.ignored.args, environment);
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
        Command::Init(args) => {
            let is_open = args.no_encryption || global.ignored.args.contains(&INSECURE_NO_PASSWORD);
            let encryption = if is_open { init::Encryption::None } else { init::Encryption::Password };
            init::run(&settings, &output, &args, encryption)
        }
        Command::Upgrade(args) => upgrade::run(&settings, &output, &args),
        Command::Backup(args) => backup::run(&settings, &output, &args),
        Command::Forget(args) => forget::run(&settings, &output, &args),
        Command::Prune(args) => prune::run(&settings, &output, &args),
        Command::Recover(args) => derive::recover(&settings, &output, &args),
        Command::Tag(args) => derive::tag(&settings, &output, &args),
        Command::Rewrite(args) => derive::rewrite(&settings, &output, &args),
        Command::Restore(args) => restore::run(&settings, &output, &args),
        Command::Snapshots(args) => snapshots::run(&settings, &output, &args),
        Command::Ls(args) => ls::run(&settings, &output, &args),
        Command::Dump(args) => dump::run(&settings, &output, &args),
        Command::Find(args) if args.chunk || args.tree || args.pack => find_objects::run(&settings, &output, &args),
        Command::Find(args) => find::run(&settings, &output, &args),
        Command::Diff(args) => diff::run(&settings, &output, &args),
        Command::Stats(args) => stats::run(&settings, &output, &args),
        Command::Why(args) => why::run(&settings, &output, &args),
        Command::Cat(args) => cat::run(&settings, &output, &args),
        Command::Check(args) => check::run(&settings, &output, &args),
        Command::Repair(command) => repair::run(&settings, &output, &command),
        Command::Key(args) => key::run(&settings, &output, &args),
        Command::List(args) => list::run(&settings, &output, args.objects),
        Command::Unlock(args) => unlock::run(&settings, &output, &args),
        #[cfg(feature = "cdp")]
        Command::Cdp(command) => cdp::run(&settings, &output, &command),
        #[cfg(feature = "lab")]
        Command::Lab(args) => lab::run(&settings, &output, names_repository, &args),
        Command::Completions(args) => completions::write(&output, &args),
        Command::Man(args) => completions::write_pages(&output, &args.directory),
        Command::Generate(args) => completions::generate(&output, &args),
        Command::Devices => devices::run(&output),
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
        for args in [&["lab"][..], &["lab", "run", "--preset", "x", "--help"], &["lab", "--help"]] {
            let arguments = Arguments::try_parse_from([&["onefold"], args].concat()).expect("accepts all of it");
            let error = run(Dialect::Onefold, arguments).expect_err("there is no laboratory");
            assert!(error.to_string().starts_with("lab: this onefold was built without the laboratory"), "{args:?}");
        }
    }
}
