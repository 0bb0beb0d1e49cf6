//! The `onefold` command.
//!
//! It is thin: the command line ([`args`]) becomes a plan, the engine carries it out, and the command prints the outcome.
#![forbid(unsafe_code)]

mod accelerator;
mod args;
mod commands;
mod compat;
mod exit;
mod files;
mod index_server;
mod interrupt;
mod json;
mod last_resort;
mod open;
mod output;
mod password;
mod progress;
mod retry;
mod settings;
mod sources;
mod stream;
mod text;
mod trust;

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::args::{Arguments, flags};
use crate::commands::PROGRAM;
use crate::compat::Dialect;
use crate::exit::Code;

#[global_allocator]
static ALLOCATOR: onefold_sys::EndOnRefusal = onefold_sys::EndOnRefusal::new(last_resort::out_of_memory);

fn main() -> ExitCode {
    last_resort::prepare(exit::wants_json());
    // Keys and plaintext must not end up in a core dump. A failure is passed over: it only means that a sandbox forbids
    // the calls, a dump is written only if the process crashes besides, and no restore should be refused over that.
    let _ignored = onefold_engine::io::os::disable_core_dumps();
    let program = std::env::args_os().next();
    let dialect = match Dialect::decide(program.as_deref(), &|name| std::env::var_os(name)) {
        Ok(dialect) => dialect,
        Err(error) => return failed(Dialect::Onefold, &error, exit::wants_json()).into(),
    };
    let typed = flags::write_out(&Arguments::command(), dialect.arguments(std::env::args_os()));
    let arguments = match Arguments::try_parse_from(typed) {
        Ok(arguments) => arguments,
        Err(error) => return usage(dialect, &error).into(),
    };
    let json = arguments.global.json;
    let next = arguments.command.after_interruption();
    match interrupt::prepare().and_then(|()| commands::run(dialect, arguments)) {
        Ok(()) => Code::Done.into(),
        Err(error) => failed_to_end(dialect, &error, next, json).into(),
    }
}

/// Reports the error that ended the command.
fn failed(dialect: Dialect, error: &anyhow::Error, json: bool) -> Code {
    failed_to_end(dialect, error, "", json)
}

/// Does the same, and says after an interruption what is `next`.
fn failed_to_end(dialect: Dialect, error: &anyhow::Error, next: &str, json: bool) -> Code {
    if exit::is_broken_pipe(error) {
        return Code::Failed;
    }
    let code = exit::code_of(error);
    let next = if code == Code::Interrupted { next } else { "" };
    exit::report_as(dialect, code, Some(error), &(exit::sentence(error) + next), json);
    code
}

/// Prints a help text, or the error of the command line.
fn usage(dialect: Dialect, error: &clap::Error) -> Code {
    if !error.use_stderr() {
        let printed = match (dialect, error.kind()) {
            (Dialect::Restic, ErrorKind::DisplayVersion) => print_version(dialect),
            (Dialect::Onefold | Dialect::Restic, _) => output::printed(error.print()),
        };
        return match printed {
            Ok(()) => Code::Done,
            Err(error) => failed(dialect, &error.into(), exit::wants_json()),
        };
    }
    if let Some(sentence) = dialect.usage(error) {
        output::say(&output::escape(sentence.as_bytes()));
    } else if exit::wants_json() {
        exit::report(Code::Failed, &error.render().to_string(), true);
    } else {
        // If standard error is gone, nothing can be reported.
        let _ignored = error.print();
    }
    Code::Failed
}

/// Prints the version as programs that run restic expect it.
fn print_version(dialect: Dialect) -> std::io::Result<()> {
    output::printed(writeln!(std::io::stdout().lock(), "{}", dialect.version(PROGRAM)))
}
