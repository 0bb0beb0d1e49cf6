//! `lab report`.

use anyhow::Result;
use onefold_lab::files::write_new;
use onefold_lab::report;

use crate::args::lab::report::ReportArgs;
use crate::json::lab::report::ReportWritten;
use crate::output::Output;
use crate::text;

/// Makes a page of findings.
pub(crate) fn report(output: &Output, args: &ReportArgs) -> Result<()> {
    let findings = report::read::read(&args.files)?;
    let page = report::html::to_html(&findings)?;
    write_new(&args.output, page.as_bytes())?;
    let plots = findings.iter().map(|each| each.plots.len()).sum();
    let written = ReportWritten { experiments: findings.len(), plots, bytes: page.len() as u64 };
    if output.json {
        return Ok(output.message(&written)?);
    }
    let ReportWritten { experiments, plots, bytes, .. } = written;
    Ok(output.line(format!(
        "wrote {}: {}, {}, {}",
        args.output.display(),
        text::count(experiments as u64, "experiment"),
        text::count(plots as u64, "plot"),
        text::bytes(bytes)
    ))?)
}
