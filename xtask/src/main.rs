//! Everything that is run on the code: `cargo xtask --help` lists it.
//!
//! One language for the product and for what watches over it, so that whoever can read the one can mend the other.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command for people")]
#![expect(clippy::disallowed_methods, reason = "reads and writes the sources, not repositories")]

mod book;
mod checkout;
mod ci;
mod command;
mod dist;
mod rust;
mod tidy;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::checkout::Checkout;

const USAGE: &str = "usage: cargo xtask COMMAND

  ci              Run everything that must hold before a change is merged, and name the slowest tests.
  test --fast     Run the unit tests of all crates: what to run while you edit.
  fmt             Format every source.
  tidy            Check layers, names, lengths, wording, manifests and the record of the format's sources.
  tidy --bless    Record the checksums of the format's sources in docs/format.md, then check.
  book            Build the manual as web pages below target/book.
  dist            Build a static program and a Debian package below target/packages.
  dist --check    Build both and try them in an empty root.

Example: cargo xtask test --fast";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = checkout::root()?;
    match words.as_slice() {
        ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            Ok(())
        }
        ["ci"] => ci::run(&root),
        ["test", "--fast"] => ci::run_unit_tests(&root),
        ["fmt"] => ci::format(&root),
        ["book"] => book::run(&Checkout::read(&root)?),
        ["dist"] => dist::run(&root, dist::Then::Leave),
        ["dist", "--check"] => dist::run(&root, dist::Then::Check),
        ["tidy"] => tidy::run(&Checkout::read(&root)?),
        ["tidy", "--bless"] => {
            tidy::bless(&Checkout::read(&root)?).context("rewrite docs/format.md")?;
            tidy::run(&Checkout::read(&root)?)
        }
        _ => bail!(USAGE),
    }
}
