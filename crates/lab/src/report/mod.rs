//! Findings of experiments, brought to people: text for a terminal, CSV, and a page of HTML with plots.

use std::fs::{OpenOptions, remove_file};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

pub mod check;
pub mod csv;
mod digits;
mod figure;
pub mod html;
pub mod read;
pub mod text;

#[cfg(test)]
mod example;

/// Writes a report. A file that exists is not written over; after an error there is none.
pub fn write(path: &Path, report: &str) -> Result<()> {
    let context = || format!("write {}", path.display());
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).with_context(context)?;
    // Half a report is of no use; that it cannot be removed is no second error.
    file.write_all(report.as_bytes()).inspect_err(|_| drop(remove_file(path))).with_context(context)
}
