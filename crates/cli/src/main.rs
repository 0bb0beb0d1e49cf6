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
mod last_resort;
mod open;
mod output;
mod password;
mod progress;
mod settings;
mod sources;
mod stream;
mod text;
mod trust;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Arguments;
use crate::exit::Code;

#[global_allocator]
static ALLOCATOR: onefold_sys::EndOnRefusal = onefold_sys::EndOnRefusal::new(last_resort::out_of_memory);

fn main() -> ExitCode {
    last_resort::prepare(exit::wants_json());
    // Keys and plaintext must not end up in a core dump. A failure is passed over: it only means that a sandbox forbids
    // the calls, a dump is written only if the process crashes besides, and no restore should be refused over that.
    let _ignored = onefold_engine::io::os::disable_core_dumps();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error).into(),
    };
    let json = arguments.global.json;
    match interrupt::prepare().and_then(|()| commands::run(arguments)) {
        Ok(()) => Code::Done.into(),
        Err(error) => failed(&error, json).into(),
    }
}

/// Reports what ended the command.
fn failed(error: &anyhow::Error, json: bool) -> Code {
    if exit::is_broken_pipe(error) {
        return Code::Failed;
    }
    let code = exit::code_of(error);
    exit::report(code, &exit::sentence(error), json);
    code
}

/// Prints a help text, or what is wrong with the command line.
fn usage(error: &clap::Error) -> Code {
    if !error.use_stderr() {
        return match output::printed(error.print()) {
            Ok(()) => Code::Done,
            Err(error) => failed(&error.into(), exit::wants_json()),
        };
    }
    if exit::wants_json() {
        exit::report(Code::Failed, &error.render().to_string(), true);
    } else {
        // There is nobody left to tell if standard error is gone.
        let _ignored = error.print();
    }
    Code::Failed
}
