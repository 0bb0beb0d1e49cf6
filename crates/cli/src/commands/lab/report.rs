//! `lab report`.

use anyhow::Result;
use onefold_lab::files::write_new;
use onefold_lab::report;

use crate::args::lab::report::ReportArgs;
use crate::json::object;
use crate::output::Output;
use crate::text;

/// Makes a page of findings.
pub(crate) fn report(output: &Output, args: &ReportArgs) -> Result<()> {
    let findings = report::read::read(&args.files)?;
    let page = report::html::to_html(&findings)?;
    write_new(&args.output, page.as_bytes())?;
    let plots: usize = findings.iter().map(|each| each.plots.len()).sum();
    let (experiments, bytes) = (findings.len(), page.len() as u64);
    if output.json {
        return Ok(output.message(&object! { message_type: "report_written", experiments, plots, bytes, })?);
    }
    Ok(output.line(format!(
        "wrote {}: {}, {}, {}",
        args.output.display(),
        text::count(experiments as u64, "experiment"),
        text::count(plots as u64, "plot"),
        text::bytes(bytes)
    ))?)
}
