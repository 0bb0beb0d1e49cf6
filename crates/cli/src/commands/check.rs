//! `check`.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_engine::accelerator::{Accelerator, AcceleratorUsage};
use onefold_engine::check::{CheckReport, CheckRequest, CheckedSnapshots, Extent, Finding, ReadData, Severity, check};
use onefold_engine::pipeline::Driver;
use onefold_engine::source::exclude::parse_size;

use crate::accelerator;
use crate::args::SelectionArgs;
use crate::args::list::CheckArgs;
use crate::interrupt::Interrupt;
use crate::json;
use crate::open::{self, Opened, OpenedCache, open};
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::settings::{Settings, Verbosity};
use crate::text;
use crate::trust;

/// Verifies the repository.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, args: &CheckArgs) -> Result<()> {
    let read = how_much(args)?;
    let accelerator = accelerator::open(settings, output, &args.accelerator)?;
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let progress = Progress::new(output, &interrupt, Activity::Check);
    let request = CheckRequest {
        read,
        snapshots: snapshots(output, &opened, args)?,
        scratch: cache.scratch(),
        memory_bytes: settings.memory_bytes,
        driver: Driver::threads(settings.threads),
        seed: None,
        accelerator,
        heads: trust::heads(settings, opened.store.config.repository),
    };
    let report = {
        let _shown = progress.show();
        check(&opened.store, &request, &*progress)?
    };
    let damaged = report.findings.iter().filter(|finding| finding.severity == Severity::Damage).count();
    print(output, &report, request.accelerator.as_ref().map(Accelerator::usage), damaged)?;
    ensure!(damaged == 0, "the repository has {}", text::count(damaged as u64, "error"));
    Ok(())
}

/// Returns the snapshots whose references are followed.
fn snapshots(output: &Output, opened: &Opened, args: &CheckArgs) -> Result<CheckedSnapshots> {
    let SelectionArgs { host, tag, path } = &args.selection;
    // An empty host means any host.
    let any_host = host.iter().all(String::is_empty);
    if args.snapshots.is_empty() && any_host && tag.is_empty() && path.is_empty() {
        return Ok(CheckedSnapshots::All);
    }
    let commits = opened.store.read_commits()?;
    let found = open::find_all(output, &commits, &args.selection, &args.snapshots)?;
    ensure!(!found.is_empty(), "no snapshot matches, so that there is nothing to check");
    Ok(CheckedSnapshots::Selected(found.into_iter().map(|(session, _)| session).collect()))
}

/// Reads `n/m`, `N%` or a size.
fn how_much(args: &CheckArgs) -> Result<ReadData> {
    let Some(text) = &args.read_data_subset else {
        return Ok(if args.read_data { ReadData::All } else { ReadData::None });
    };
    let wrong = || format!("--read-data-subset {text}: write n/m, as 1/10, N%, as 2.5%, or a size, as 500M");
    if let Some(percent) = text.strip_suffix('%') {
        return Ok(ReadData::Percent(percent.parse().ok().with_context(wrong)?));
    }
    let Some((index, of)) = text.split_once('/') else {
        return Ok(ReadData::Bytes(parse_size(text).ok().with_context(wrong)?));
    };
    Ok(ReadData::Subset { index: index.parse().ok().with_context(wrong)?, of: of.parse().ok().with_context(wrong)? })
}

fn print(output: &Output, report: &CheckReport, usage: Option<AcceleratorUsage>, damaged: usize) -> Result<()> {
    for finding in &report.findings {
        if output.json {
            output.warn_message(&json::finding(finding));
        } else {
            print_finding(output, finding);
        }
    }
    if output.json {
        output.message(&json::checked(report, usage, damaged))?;
    } else if Verbosity::Normal <= output.verbosity {
        output.line(format!(
            "checked {}, {} with {}; read {}",
            followed(report),
            text::count(report.containers, "container"),
            text::count(report.chunks, "chunk"),
            text::bytes(report.bytes_read),
        ))?;
        if 0 < report.leftovers {
            let left_over = text::count(report.leftovers, "harmless file");
            output.line(format!("interrupted sessions left {left_over} over"))?;
        }
        if damaged == 0 {
            output.line("no errors were found")?;
        }
    }
    Ok(output.flush()?)
}

/// Returns how many snapshots were followed, and how many there are if some were not.
fn followed(report: &CheckReport) -> String {
    let total = text::count(report.snapshots_total, "snapshot");
    if report.snapshots == report.snapshots_total { total } else { format!("{} of {total}", report.snapshots) }
}

/// Prints a finding with the files that it affects.
pub(crate) fn print_finding(output: &Output, finding: &Finding) {
    let kind = match finding.severity {
        Severity::Damage => "error",
        Severity::UnknownFile => "note",
    };
    output.warn(&format!("{kind}: {}: {}", finding.object, finding.problem));
    for file in &finding.affected {
        let more = match file.extent {
            Extent::File => String::new(),
            Extent::Directory => ", with everything in it".to_owned(),
            Extent::Run { entries: 1 } => " and the entry that follows".to_owned(),
            Extent::Run { entries } => format!(" and what follows, {entries} entries"),
        };
        output.warn(&format!("  hits {}:{}{more}", file.snapshot, file.path.display()));
    }
    let reported = finding.affected.len() as u64;
    if reported < finding.affected_count {
        output.warn(&format!("  and {} more", finding.affected_count - reported));
    }
    output.warn(&format!("  {}", finding.advice));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_are_read_as_restic_writes_them() {
        let read = |text: &str| {
            how_much(&CheckArgs { read_data_subset: Some(text.to_owned()), ..CheckArgs::default() }).map_err(|_| ())
        };
        assert_eq!(read("2/10"), Ok(ReadData::Subset { index: 2, of: 10 }));
        assert_eq!(read("2.5%"), Ok(ReadData::Percent(2.5)));
        assert_eq!(read("500M"), Ok(ReadData::Bytes(500 << 20)));
        assert!(read("half").is_err() && read("1/").is_err() && read("%").is_err());
    }
}
