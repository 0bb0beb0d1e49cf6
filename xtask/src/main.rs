//! Tests, checks and packages of this repository: `cargo xtask --help` lists the commands.
//!
//! The checks are written in Rust like the product, so its developers can change both.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command prints to the terminal")]
#![expect(clippy::disallowed_methods, reason = "reads and writes the sources, not repositories")]

mod book;
mod checkout;
mod ci;
mod command;
mod dist;
mod kernels;
mod rust;
mod tidy;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::checkout::Checkout;

const USAGE: &str = "usage: cargo xtask COMMAND

  ci              Run all checks and tests that a change must pass, and list the slowest tests.
  test --fast     Run the unit tests of all crates, for use while you edit.
  fmt             Format the sources.
  tidy            Check rules that no linter knows: layers, import cycles, names, lengths, manifests, format sources.
  tidy --bless    Record the checksums of the format's sources in docs/format.md, then check.
  book            Build the manual as web pages in target/book.
  kernels         Compile the kernels for GPUs into crates/accel/kernels/kernels.bin. Fetches the compiler once.
  kernels --check Compile them again and compare.
  kernels --fetch Fetch the compiler into the build directory.
  dist            Build a static program and a Debian package in target/packages.
  dist --check    Build both, then run them in an empty root directory.

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
        ["kernels"] => kernels::run(&root, kernels::Then::Write),
        ["kernels", "--check"] => kernels::run(&root, kernels::Then::Check),
        ["kernels", "--fetch"] => kernels::fetch(),
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
