//! Findings of experiments, brought to people: text for a terminal, CSV, and a page of HTML with plots.

use std::fs::create_dir_all;
use std::path::Path;

use anyhow::{Context, Result, ensure};

pub mod check;
pub mod csv;
mod digits;
mod figure;
mod heat;
pub mod html;
pub mod read;
pub mod text;

#[cfg(test)]
mod example;

/// Name of the page of all experiments in a directory of findings.
pub const REPORT_NAME: &str = "report.html";

/// Makes a directory for findings of these experiments. Refuses one that has some: that shows before all is measured.
pub fn prepare(dir: &Path, experiments: &[&str]) -> Result<()> {
    create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let files = experiments.iter().flat_map(|name| ["json", "csv"].map(|ending| format!("{name}.{ending}")));
    for file in files.chain([REPORT_NAME.to_owned()]) {
        let path = dir.join(file);
        ensure!(!path.exists(), "write {}: File exists", path.display());
    }
    Ok(())
}
