//! Everything that is run on the code: `cargo xtask ci | tidy [--bless] | fmt | book | dist [--check]`.
//!
//! One language for the product and for what watches over it, so that whoever can read the one can mend the other.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command for people")]
#![expect(clippy::disallowed_methods, reason = "reads and writes the sources, not repositories")]

mod book;
mod checkout;
mod ci;
mod dist;
mod tidy;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::checkout::Checkout;

const USAGE: &str = "usage: cargo xtask ci | tidy [--bless] | fmt | book | dist [--check]";

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
        ["ci"] => ci::run(&root),
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
