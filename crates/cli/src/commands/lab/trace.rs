//! `lab record`, `lab synth`, `lab import`, `lab export`, `lab describe`.

use std::sync::Arc;

use anyhow::{Result, ensure};
use onefold_engine::accelerator::{Accelerator, AcceleratorUsage};
use onefold_engine::io::os::process_peak_rss_bytes;
use onefold_engine::pipeline::Driver;
use onefold_lab::record::{Rule, record_paths};
use onefold_lab::trace::block::Totals;
use onefold_lab::trace::describe::{Counts, Histogram, TraceSummary, describe};
use onefold_lab::trace::export::{self, export};
use onefold_lab::trace::file::{self, Foreign};
use onefold_lab::trace::foreign::raw;
use onefold_lab::trace::synth::{Lengths, Synth, SynthSpec};

use crate::accelerator;
use crate::args::lab::trace::{
    DescribeArgs, ExportArgs, ExportFormat, ImportArgs, ImportFormat, RecordArgs, SynthArgs,
};
use crate::commands::lab::chunker::{chunk_len, chunker_of};
use crate::compat::Dialect;
use crate::exit::Unreadable;
use crate::interrupt::Interrupt;
use crate::json::inspect::ratio;
use crate::json::lab::trace::TraceDescribed;
use crate::json::{accelerator, object};
use crate::open::open;
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::settings::{Settings, Verbosity};
use crate::sources::{self, Left};
use crate::text;

/// Records the chunks of real data. `names_repository`: --repo was given.
pub(crate) fn record(
    settings: &Settings,
    output: &Arc<Output>,
    names_repository: bool,
    args: &RecordArgs,
) -> Result<()> {
    let Left { excludes, .. } = sources::excludes(Dialect::Onefold, &args.excludes, &[])?;
    let accelerator = accelerator::open(settings, output, &args.accelerator)?;
    let (rule, what) = if names_repository {
        let opened = open(settings, output)?;
        (Rule::OfRepository(opened.store), "as in a repository".to_owned())
    } else {
        let (hash, chunker) = (args.hash, chunker_of(&args.chunker)?);
        (Rule::Open(chunker, hash), format!("{chunker}, {hash:?}"))
    };
    let interrupt = Interrupt::listen()?;
    let progress = Progress::new(output, &interrupt, Activity::Files);
    let paths = &args.paths;
    let description = format!("lab record, {} paths, {what}", paths.len());
    let budget = accelerator::budget(settings, accelerator.as_ref());
    let work = (&Driver::threads(settings.threads), budget, accelerator.as_ref());
    let recorded = {
        let _shown = progress.show();
        record_paths(&args.trace, &description, paths, &Arc::new(excludes), &rule, work, &*progress)
    };
    let (totals, failures) = recorded?;
    let usage = accelerator.as_ref().map(Accelerator::usage);
    if let Some(usage) = usage.as_ref().filter(|_| Verbosity::Verbose <= output.verbosity && !output.json) {
        output.line(accelerator::sentence(usage))?;
    }
    written(output, totals, usage)?;
    ensure!(failures == 0, Unreadable::NotRecorded);
    Ok(())
}

/// Generates a trace.
pub(crate) fn synth(output: &Output, args: &SynthArgs) -> Result<()> {
    let spec = SynthSpec { lengths: lengths(args)?, ..args.spec };
    let totals = file::write_events(&args.trace, &format!("lab synth {spec:?}"), &mut Synth::new(spec)?)?;
    written(output, totals, None)
}

fn lengths(args: &SynthArgs) -> Result<Lengths> {
    if let Some(size) = &args.fixed_chunk_size {
        return Ok(Lengths::Fixed(chunk_len(size)?));
    }
    let mean = chunk_len(&args.chunk_size)?;
    Ok(Lengths::Exponential { min: mean.div_ceil(4), mean, max: mean.saturating_mul(8) })
}

/// Imports traces of others.
pub(crate) fn import(output: &Output, args: &ImportArgs) -> Result<()> {
    let (name, format) = match args.format {
        ImportFormat::Fsl => ("fsl", Foreign::Fsl),
        ImportFormat::Destor => ("destor", Foreign::Destor),
        ImportFormat::Raw => ("raw", Foreign::Raw(raw::Lengths::Equal(chunk_len(&args.chunk_size)?))),
        ImportFormat::Records => ("records", Foreign::Raw(raw::Lengths::Recorded)),
        ImportFormat::Csv => ("csv", Foreign::Csv),
    };
    let sources = (0..).zip(&args.files).map(|(version, path)| file::open_foreign(path, format, version));
    let description = format!("lab import --format {name}, {}", text::count(args.files.len() as u64, "file"));
    written(output, file::write(&args.trace, &description, sources)?, None)
}

/// Exports a trace in a format of others.
pub(crate) fn export_trace(output: &Output, args: &ExportArgs) -> Result<()> {
    let format = match args.format {
        ExportFormat::Destor => export::Format::Destor,
        ExportFormat::Raw => export::Format::Raw,
        ExportFormat::Records => export::Format::Records,
        ExportFormat::Csv => export::Format::Csv,
    };
    let (_, mut events) = file::open(&args.trace)?;
    let (totals, files) = export(&mut events, format, &args.dir)?;
    if output.json {
        return Ok(output.message(&object! {
            message_type: "trace_exported",
            totals { streams, chunks, bytes },
            files,
            peak_rss_bytes: process_peak_rss_bytes(),
        })?);
    }
    written(output, totals, None)?;
    Ok(output.line(format!("{} in {}", text::count(files, "file"), args.dir.display()))?)
}

fn written(output: &Output, totals: Totals, usage: Option<AcceleratorUsage>) -> Result<()> {
    if output.json {
        return Ok(output.message(&object! {
            message_type: "trace_written",
            totals { streams, chunks, bytes },
            accelerator?: usage.map(accelerator),
            peak_rss_bytes: process_peak_rss_bytes(),
        })?);
    }
    let Totals { streams, chunks, bytes } = totals;
    Ok(output.line(format!(
        "{}, {}, in {}",
        text::count(chunks, "chunk"),
        text::bytes(bytes),
        text::count(streams, "stream")
    ))?)
}

/// Describes a trace.
pub(crate) fn describe_trace(output: &Output, args: &DescribeArgs) -> Result<()> {
    let (description, mut events) = file::open(&args.trace)?;
    let scratch = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let summary = describe(&mut events, &scratch)?;
    if output.json {
        return Ok(output.message(&TraceDescribed::of(description, &summary))?);
    }
    output.line(output.printable(description.as_bytes()))?;
    print(output, &summary)
}

fn print(output: &Output, summary: &TraceSummary) -> Result<()> {
    output
        .line(format!("\n{:>8} {:>10} {:>12} {:>14} {:>11}", "version", "streams", "chunks", "bytes", "duplicate"))?;
    let row = |title: &str, counts: &Counts| {
        let Totals { streams, chunks, bytes } = counts.totals;
        let duplicate = percent(counts.duplicate_bytes, bytes);
        output.line(format!("{title:>8} {streams:>10} {chunks:>12} {:>14} {duplicate:>11}", text::bytes(bytes)))
    };
    for version in &summary.versions {
        row(&version.version.to_string(), &version.counts)?;
    }
    let sum = summary.sum();
    row("all", &sum)?;
    let unique = sum.totals.bytes - sum.duplicate_bytes;
    output.line(format!("\nDeduplication ratio: {:.2}x", ratio(sum.totals.bytes, unique)))?;
    if 0 < summary.run_count {
        let mean = ratio(sum.duplicate_chunks, summary.run_count);
        output.line(format!("Runs of duplicates: {}, of {mean:.1} chunks on average", summary.run_count))?;
    }
    histogram(output, "Length of a run, in chunks", "runs", &summary.runs)?;
    histogram(output, "How far back the same chunk was last, in chunks", "duplicates", &summary.lags)
}

fn histogram(output: &Output, title: &str, what: &str, histogram: &Histogram) -> Result<()> {
    let all: u64 = histogram.classes().map(|(_, count)| count).sum();
    if all == 0 {
        return Ok(());
    }
    output.line(format!("\n{title}:\n{:>14} {what:>12}", "from"))?;
    for (from, count) in histogram.classes() {
        output.line(format!("{from:>14} {count:>12} {:>7}", percent(count, all)))?;
    }
    Ok(())
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}%", if whole == 0 { 0.0 } else { 100.0 * ratio(part, whole) })
}
