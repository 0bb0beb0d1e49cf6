//! The `onefold` command.
//!
//! It is thin: what was typed ([`args`]) becomes a plan, the engine carries it out, and what came of it is printed.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod exit;
mod files;
mod interrupt;
mod json;
mod open;
mod output;
mod password;
mod progress;
mod settings;
mod sources;
mod text;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::Parser;

use crate::args::Arguments;
use crate::exit::Code;

fn main() -> ExitCode {
    // Keys and plaintext must not end up in a core dump. A failure is passed over: it only means that a sandbox forbids
    // the calls, a dump is written only if the process crashes besides, and no restore should be refused over that.
    let _ignored = onefold_engine::io::os::disable_core_dumps();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error).into(),
    };
    let json = arguments.global.json;
    match commands::run(arguments) {
        Ok(()) => Code::Done.into(),
        Err(error) if exit::is_broken_pipe(&error) => Code::Failed.into(),
        Err(error) => {
            let code = exit::code_of(&error);
            exit::report(code, &exit::sentence(&error), json);
            code.into()
        }
    }
}

/// Prints a help text, or what is wrong with the command line.
fn usage(error: &clap::Error) -> Code {
    if !error.use_stderr() {
        // Nothing is to be done about a reader that went away.
        let _ignored = error.print();
        return Code::Done;
    }
    if std::env::args_os().any(|argument| argument == OsStr::new("--json")) {
        exit::report(Code::Failed, &error.render().to_string(), true);
    } else {
        let _ignored = error.print();
    }
    Code::Failed
}
