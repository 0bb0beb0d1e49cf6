//! `lab advise`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use onefold_engine::io::os::process_peak_rss_bytes;
use onefold_engine::source::exclude::parse_size;
use onefold_lab::advise::estimate::Interval;
use onefold_lab::advise::findings::Advised;
use onefold_lab::advise::predict::{Prediction, Whole};
use onefold_lab::advise::recommend::{bytes, recommend};
use onefold_lab::advise::rules::RULES;
use onefold_lab::advise::similar::{Measured, REGIONS_LEAST, SimilarOptions};
use onefold_lab::advise::survey::Sample;
use onefold_lab::advise::{AdviseOptions, scan};
use onefold_lab::files::write_new;

use crate::args::lab::advise::AdviseArgs;
use crate::commands::lab::experiment::{advised, origin, scratch};
use crate::compat::Dialect;
use crate::exit::Unreadable;
use crate::files;
use crate::interrupt::Interrupt;
use crate::json::lab::advise::message;
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::settings::Settings;
use crate::sources::{self, Left};
use crate::text;

/// A column of the table: the lines of its heading, its width, and its cells.
type Column = (&'static str, &'static str, usize, fn(&Prediction, &Whole) -> String);

const COLUMNS: [Column; 14] = [
    ("", "chunks", 9, |it, _| it.rule.to_string()),
    ("dedup", "ratio", 6, |it, _| format!("{:.2}x", it.dedup_ratio.value)),
    ("19 of 20 lie", "within", 12, |it, _| ratios(it.dedup_ratio)),
    ("stored :", "unique", 8, |it, _| format!("{:.3}", it.compressed_share.value)),
    ("", "repository", 10, |it, _| bytes(it.stored_bytes.value)),
    ("19 of 20 lie", "within", 18, |it, _| sizes(it.stored_bytes)),
    ("of it", "metadata", 8, |it, _| bytes(it.overhead_bytes)),
    ("index", "on disk", 8, |it, _| bytes(it.index_bytes)),
    ("memory", "wanted", 8, |it, _| text::bytes(it.memory_bytes).replace(".000", "")),
    ("bits a", "chunk", 6, |it, _| format!("{:.0}", it.filter_bits.min(FILTER_BITS_SHOWN))),
    ("first", "backup", 7, |it, _| seconds(it.first.time)),
    ("", "MB/s", 4, |it, whole| format!("{:.0}", it.bytes_per_second(whole) / 1e6)),
    ("all read", "again", 8, |it, _| seconds(it.read_again.time)),
    ("nothing", "changed", 7, |it, _| seconds(it.unchanged.time)),
];
/// More bits than this are as good as this.
const FILTER_BITS_SHOWN: f64 = 999.0;

/// Estimates the cost of each chunk size.
pub(crate) fn advise(settings: &Settings, output: &Arc<Output>, args: &AdviseArgs) -> Result<()> {
    let Left { excludes, .. } = sources::excludes(Dialect::Onefold, &args.excludes, &[])?;
    let options = AdviseOptions {
        roots: args.paths.clone(),
        excludes: Arc::new(excludes),
        sample: sample(&args.sample).context("--sample")?,
        seed: args.seed,
        compression: settings.compression,
        memory_bytes: settings.memory_bytes,
        threads: settings.threads,
        similar: args.similarity.then(|| SimilarOptions { scratch: scratch(args.scratch.as_ref()) }),
    };
    if let Some(path) = &args.findings {
        ensure!(!files::exists(path), "write {}: it exists", path.display());
    }
    let interrupt = Interrupt::listen()?;
    let progress = Progress::new(output, &interrupt, Activity::Files);
    let scanned = {
        let _shown = progress.show();
        scan(&options, &*progress).map_err(advised)
    }?;
    let whole = Whole::of(&scanned);
    let (memory, threads) = (settings.memory_bytes, settings.threads);
    let is_empty = scanned.reading.bytes == 0;
    let rules = if is_empty { &[] } else { scanned.rules.as_slice() };
    let predictions: Vec<Prediction> =
        rules.iter().map(|rule| Prediction::of(&scanned, &whole, rule, memory, threads)).collect();
    let recommendation = recommend(&predictions, memory as u64);
    let advice = Advised {
        scanned: &scanned,
        predictions: &predictions,
        recommendation: recommendation.as_ref(),
        memory_bytes: memory,
        threads,
    };
    if output.json {
        let process = (memory, threads, process_peak_rss_bytes().unwrap_or_default());
        output.message(&message(&scanned, &whole, &predictions, recommendation.as_ref(), process))?;
    } else {
        print(output, &advice, &whole, args.similarity)?;
    }
    if let Some(path) = &args.findings {
        let findings = advice.findings(command(args, settings), origin());
        write_new(path, &serde_json::to_vec_pretty(&findings)?)?;
    }
    ensure!(scanned.reading.failures == 0, Unreadable::NotAdvisedOn);
    Ok(())
}

fn sample(text: &str) -> Result<Sample> {
    if text == "all" {
        return Ok(Sample::Everything);
    }
    Ok(match parse_size(text)? {
        0 => Sample::Everything,
        bytes => Sample::Bytes(bytes),
    })
}

/// Returns the command that makes the findings again, but for what is left out.
fn command(args: &AdviseArgs, settings: &Settings) -> String {
    let paths: Vec<String> = args.paths.iter().map(|path| path.display().to_string()).collect();
    let (sample, memory) = (&args.sample, settings.memory_bytes >> 20);
    let similarity = if args.similarity { "--similarity " } else { "" };
    let options = format!("--sample {sample} --seed {} --memory {memory}M {similarity}", args.seed);
    format!("onefold lab advise {options}{}", paths.join(" "))
}

fn print(output: &Output, advised: &Advised<'_>, whole: &Whole, shows_similar: bool) -> Result<()> {
    let Advised { scanned, predictions, .. } = advised;
    let (totals, reading) = (&scanned.survey.totals, &scanned.reading);
    output.line(format!("{} in {}", text::bytes(totals.bytes), text::count(totals.files, "file")))?;
    if predictions.is_empty() {
        return Ok(output.line(nothing(scanned.survey.totals.bytes, reading.hole_bytes))?);
    }
    let holes = if reading.hole_bytes == 0 {
        String::new()
    } else {
        format!(", and {} of holes", text::bytes(reading.hole_bytes))
    };
    let read = format!("{} of {}{holes}", text::bytes(reading.bytes), text::count(reading.files, "file"));
    let time = text::duration(scanned.time);
    if scanned.survey.is_everything() {
        output.line(format!("All was read, {read}, in {time}"))?;
    } else {
        output.line(format!("A sample was read, {read}, in {time}; it has all files of similar names or none"))?;
    }
    if reading.is_cut_short {
        output.line("The sample exceeded its limit and was cut short: it lacks late directories, and the estimates may be wrong")?;
    }
    table(output, predictions, whole)?;
    if predictions.len() < RULES {
        output
            .line("\nRules with longer chunks are left out: the sample has too short parts of large files for them")?;
    }
    output.line(format!(
        "\nbits a chunk: of the index's filter, at --memory {}; times: with {}, if the repository's disk keeps up; reading \
         alone takes {}",
        bytes_of(advised.memory_bytes),
        text::count(advised.threads as u64, "thread"),
        seconds(whole.read_seconds)
    ))?;
    let similar = if shows_similar {
        similar_line(scanned.similar.as_ref(), predictions)
    } else {
        "These are sizes of regions compressed alone. Backups can compress new data against similar data of earlier ones: --similarity estimates it"
            .to_owned()
    };
    output.line(format!("\n{similar}"))?;
    if let Some(recommendation) = advised.recommendation {
        output.line(format!("\nRecommended: {}, {}", recommendation.rule.options(), recommendation.reason))?;
        for otherwise in &recommendation.otherwise {
            output.line(format!("  {otherwise}"))?;
        }
    }
    Ok(())
}

/// Returns the estimate with similar data compressed against each other, or why there is none.
fn similar_line(measured: Option<&Measured>, predictions: &[Prediction]) -> String {
    let Some(measured) = measured else {
        return "With similar data: a backup with this compression and --memory looks for none".to_owned();
    };
    let found = predictions.iter().find_map(|it| Some((it, it.similar_bytes?)));
    let Some((prediction, similar)) = found else {
        let regions = text::count(measured.regions, "region");
        return format!(
            "With similar data: not enough data, the sample has {regions} of new chunks and {REGIONS_LEAST} are needed"
        );
    };
    let change = 100.0 * (1.0 - similar.value / prediction.stored_bytes.value);
    let compared = if change < 0.0 { format!("{:.0}% more", -change) } else { format!("{change:.0}% less") };
    let part = if measured.is_cut_short { ", of which only a part was compressed so" } else { "" };
    format!(
        "With similar data, {}: {} ({}), {compared}; each path is a backup after the one before{part}",
        prediction.rule,
        bytes(similar.value),
        sizes(similar),
    )
}

/// Prints a line for each rule.
fn table(output: &Output, predictions: &[Prediction], whole: &Whole) -> Result<()> {
    output.line("")?;
    line(output, |(above, ..)| above.to_owned())?;
    line(output, |(_, below, ..)| below.to_owned())?;
    predictions.iter().try_for_each(|it| line(output, |(.., cell)| cell(it, whole)))
}

fn line(output: &Output, cell: impl Fn(Column) -> String) -> Result<()> {
    let cells = COLUMNS.map(|column| format!("{:>width$}", cell(column), width = column.2));
    Ok(output.line(cells.join(" "))?)
}

fn nothing(bytes: u64, holes: u64) -> &'static str {
    match (bytes, holes) {
        (0, _) => "There are no bytes to advise on",
        (_, 0) => "Nothing was read: the sample is too small for the files that there are, or they cannot be read",
        _ => "There are only holes, which take no space",
    }
}

fn ratios(interval: Interval) -> String {
    if interval.is_counted() { "counted".to_owned() } else { format!("{:.2}-{:.2}x", interval.low, interval.high) }
}

fn sizes(interval: Interval) -> String {
    format!("{}-{}", bytes(interval.low).replace(' ', ""), bytes(interval.high).replace(' ', ""))
}

fn bytes_of(count: usize) -> String {
    text::bytes(count as u64).replace(".000", "")
}

fn seconds(seconds: f64) -> String {
    if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        text::duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}
