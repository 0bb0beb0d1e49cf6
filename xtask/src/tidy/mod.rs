//! `cargo xtask tidy`: rules of this repository that no linter knows, one file each.

mod cycles;
mod format_hash;
mod glossary;
mod kernels;
mod layers;
mod length;
mod machine_paths;
mod manifests;
mod old_formats;
mod unsafety;
mod wording;

use std::fmt;

use anyhow::{Result, bail};

use crate::checkout::Checkout;

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// Line counted from 1; 0 means the whole file.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// Checks every rule and prints every violation.
pub(crate) fn run(checkout: &Checkout) -> Result<()> {
    let mut findings = Vec::new();
    findings.extend(layers::check(checkout));
    findings.extend(cycles::check(checkout));
    findings.extend(glossary::check(checkout));
    findings.extend(length::check(checkout));
    findings.extend(wording::check(checkout));
    findings.extend(format_hash::check(checkout));
    findings.extend(old_formats::check(checkout));
    findings.extend(manifests::check(checkout));
    findings.extend(kernels::check(checkout));
    findings.extend(machine_paths::check(checkout));
    findings.extend(unsafety::check(checkout));
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    println!("tidy: ok, {} files", checkout.files.len());
    Ok(())
}

/// Records the checksums of the format's sources. Run it after you updated `docs/format.md`.
pub(crate) fn bless(checkout: &Checkout) -> Result<()> {
    format_hash::bless(checkout)
}
