//! `lab run`, `lab presets`, `lab paper`, `lab scaling`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use onefold_engine::monitor::Monitor;
use onefold_lab::coprocessor::worker::{self, Worker};
use onefold_lab::device::Device;
use onefold_lab::experiment::catalog::{self, Experiment};
use onefold_lab::experiment::data_set::DataSet;
use onefold_lab::experiment::inputs::Inputs;
use onefold_lab::experiment::scaling::{self, Scaling};
use onefold_lab::experiment::{Laboratory, Size};
use onefold_lab::files::write_new;
use onefold_lab::findings::{Findings, Origin};
use onefold_lab::point::dimension::{Listed, listed};
use onefold_lab::point::preset::{self, Preset};
use onefold_lab::regret::contender::Rules;
use onefold_lab::regret::{Chunks, Comparison, table};
use onefold_lab::report;
use onefold_lab::sim::Plan;
use onefold_lab::sim::containers::Layout;
use onefold_lab::sim::restore::Cache;
use onefold_lab::sim::rewriting::Rewrite;
use onefold_lab::trial::{Trial, try_out};

use crate::args::lab::experiment::{PaperArgs, PresetsArgs, RegretArgs, RunArgs, ScalingArgs};
use crate::interrupt::Interrupt;
use crate::json::lab::experiment::{Found, PresetListed};
use crate::json::object;
use crate::output::Output;
use crate::settings::Settings;
use onefold_engine::Error;
use onefold_engine::io::os::process_peak_rss_bytes;

/// Monitor that reports each run on standard error, and stops if the user asks to.
#[derive(Debug)]
struct Watch<'a> {
    output: &'a Output,
    interrupt: Interrupt,
}

impl Monitor for Watch<'_> {
    fn note(&self, text: &str) {
        self.output.note(text);
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_raised()
    }
}

fn watch(output: &Output) -> Result<Watch<'_>> {
    Ok(Watch { output, interrupt: Interrupt::listen()? })
}

/// Returns the origin of findings: the machine and the time.
pub(super) fn origin() -> Origin {
    let now = jiff::Timestamp::now().round(jiff::Unit::Second);
    Origin::of_this_machine(env!("CARGO_PKG_VERSION"), now.map(|now| now.to_string()).unwrap_or_default())
}

/// Options that do not change what is found, and have a value.
const WITHOUT_EFFECT: [&str; 3] = ["--output", "-o", "--findings"];

/// Returns the command as it was typed, without what does not change what is found.
pub(super) fn command() -> String {
    let mut words = vec!["onefold".to_owned()];
    let mut args = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    while let Some(word) = args.next() {
        let option = word.split_once('=').map_or(&*word, |(option, _)| option);
        if !WITHOUT_EFFECT.contains(&option) {
            words.push(word);
        } else if option.len() == word.len() {
            args.next();
        }
    }
    words.join(" ")
}

pub(super) fn scratch(args: Option<&PathBuf>) -> PathBuf {
    args.cloned().unwrap_or_else(std::env::temp_dir)
}

/// Adds a remedy to the error of a full disk: a run keeps nothing, in contrast to a backup.
pub(super) fn advised(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<Error>() {
        Some(full) if full.io_kind() == Some(std::io::ErrorKind::StorageFull) => {
            anyhow::anyhow!("{full}; --scratch names another directory")
        }
        _ => error,
    }
}

/// Prints what was found.
pub(super) fn print(output: &Output, as_csv: bool, findings: &Findings) -> Result<()> {
    if output.json {
        return Ok(output.message(&Found::of(findings, process_peak_rss_bytes()))?);
    }
    let text = if as_csv { report::csv::to_csv(findings)? } else { report::text::to_text(findings) };
    output.bytes(text.as_bytes())?;
    Ok(output.flush()?)
}

/// Runs points on a trace.
pub(crate) fn run(output: &Output, args: &RunArgs) -> Result<()> {
    let points = args.presets.iter().map(|name| Ok((name.clone(), Preset::named(name)?.with(&args.set)?)));
    let devices = args.devices.iter().map(|name| Device::named(name));
    let trial = Trial {
        trace: args.trace.clone(),
        points: points.collect::<Result<_>>()?,
        devices: devices.collect::<Result<_>>()?,
        scale: args.scale.scale,
        is_one_session: args.one_session,
        plan: Plan {
            layout: if args.destor_containers { Layout::Destor } else { Layout::Chunks },
            rewrite: Rewrite::parse(&args.rewrite)?,
            restores: args.restore.as_deref().map(Cache::parse_list).transpose()?.unwrap_or_default(),
            keep_last: args.keep_last,
        },
        scratch: scratch(args.scratch.as_ref()),
    };
    let findings = try_out(&trial, origin(), command(), &watch(output)?).map_err(advised)?;
    print(output, args.csv, &findings)
}

/// Compares adaptive with all other schedules.
pub(crate) fn regret(settings: &Settings, output: &Output, args: &RegretArgs) -> Result<()> {
    let traces = args.traces.iter().map(|path| Chunks::Trace(path.clone()));
    let seeds = args.adversarial.iter().flat_map(|seeds| &seeds.0);
    let streams = seeds.map(|seed| Chunks::Adversarial { seed: *seed, chunks: args.chunks });
    if let Some(dir) = &args.output {
        report::prepare(dir, &[table::NAME])?;
    }
    let comparison = Comparison {
        sources: traces.chain(streams).collect(),
        devices: args.devices.iter().map(|name| Device::named(name)).collect::<Result<_>>()?,
        rules: Rules { set: args.set.clone(), windows: args.windows.clone() },
        scale: args.scale.scale,
        is_one_session: args.one_session,
        threads: settings.threads,
        scratch: &scratch(args.scratch.as_ref()),
        monitor: &watch(output)?,
    };
    let findings = table::findings(&comparison, origin(), command()).map_err(advised)?;
    if let Some(dir) = &args.output {
        write(dir, table::NAME, &findings)?;
        write_new(&dir.join(report::REPORT_NAME), report::html::to_html(std::slice::from_ref(&findings))?.as_bytes())?;
    }
    if output.json || args.csv {
        return print(output, args.csv, &findings);
    }
    // The first table has a row for each cell, the second one for each of dozens of runs.
    let tables = findings.tables.first().cloned().into_iter().collect();
    print(output, false, &Findings { tables, ..findings })
}

/// Measures threads, and the thread that keeps the order.
pub(crate) fn scaling(output: &Output, args: &ScalingArgs) -> Result<()> {
    if let Some(dir) = &args.output {
        report::prepare(dir, &[scaling::NAME])?;
    }
    let measured = Scaling {
        threads: args.threads.clone(),
        readers: args.read_concurrency.map(usize::from),
        bytes: args.bytes,
        average: args.average,
        chunks: args.chunks,
        rounds: args.rounds,
        scratch: &scratch(args.scratch.as_ref()),
        monitor: &watch(output)?,
    };
    let findings = scaling::findings(&measured, origin(), command()).map_err(advised)?;
    if let Some(dir) = &args.output {
        write(dir, scaling::NAME, &findings)?;
        write_new(&dir.join(report::REPORT_NAME), report::html::to_html(std::slice::from_ref(&findings))?.as_bytes())?;
    }
    print(output, args.csv, &findings)
}

/// Writes findings as JSON and CSV.
fn write(dir: &Path, name: &str, findings: &Findings) -> Result<()> {
    let write = |ending: &str, text: &str| write_new(&dir.join(format!("{name}.{ending}")), text.as_bytes());
    write("json", &serde_json::to_string_pretty(findings)?)?;
    write("csv", &report::csv::to_csv(findings)?)
}

/// Lists presets, or dimensions.
pub(crate) fn presets(output: &Output, args: &PresetsArgs) -> Result<()> {
    if args.dimensions {
        for dimension in listed() {
            let Listed { name, values, default, about } = &dimension;
            if output.json {
                output.message(&object! {
                    message_type: "dimension",
                    name: &**name,
                    values: &**values,
                    default?: default.as_deref(),
                    about: &**about,
                })?;
            } else {
                let default = default.as_ref().map(|value| format!("; default: {value}")).unwrap_or_default();
                output.line(format!("{name:<16} {about}\n{:16} values: {values}{default}", ""))?;
            }
        }
        return Ok(());
    }
    for preset in preset::all()? {
        if output.json {
            output.message(&PresetListed::from(&preset))?;
        } else {
            output.line(format!("{:<14} {}\n{:14} {}", preset.name, preset.about, "", preset.source))?;
        }
    }
    Ok(())
}

/// Returns the experiments that were named; of all, those that have a data set that was named.
fn experiments(args: &PaperArgs) -> Result<Vec<Experiment>> {
    let is_all = args.names.iter().any(|name| name == "all");
    ensure!(!is_all || args.names.len() == 1, "all stands for all experiments: name no other experiment with it");
    args.data_sets.iter().try_for_each(|name| DataSet::named(name).map(drop))?;
    let names: Vec<&str> =
        if is_all { catalog::names().collect() } else { args.names.iter().map(String::as_str).collect() };
    let mut experiments = Vec::new();
    for name in names {
        let mut experiment = Experiment::named(name)?;
        if !args.data_sets.is_empty() {
            let has = experiment.data_sets().join(", ");
            experiment.keep_data_sets(&args.data_sets);
            if experiment.data_sets().is_empty() {
                let has = if has.is_empty() { "none".to_owned() } else { has };
                ensure!(is_all, "--data-set: {name} has none of those; it has {has}");
                continue;
            }
        }
        experiments.push(experiment);
    }
    Ok(experiments)
}

/// Does a job that standard input describes.
pub(crate) fn measure(output: &Output) -> Result<()> {
    let mut result = Vec::new();
    worker::serve(&mut std::io::stdin().lock(), &mut result, &watch(output)?)?;
    output.bytes(&result)?;
    Ok(output.flush()?)
}

/// Returns what starts this program again for each job.
fn worker() -> Result<Worker> {
    let program = std::env::current_exe().context("find this program, to start it again")?;
    Ok(Worker::of_program(program, ["lab", "measure"].map(Into::into).to_vec()))
}

/// Runs experiments.
pub(crate) fn paper(output: &Output, args: &PaperArgs) -> Result<()> {
    if args.names.is_empty() {
        let PaperArgs { quick, fraction, repetitions, data_sets, device, inputs, output: dir, .. } = args;
        let is_bare = !quick
            && *repetitions == 1
            && fraction.is_none()
            && data_sets.is_empty()
            && device.is_none()
            && inputs.is_empty()
            && dir.is_none();
        ensure!(is_bare, "name experiments, or all: none is run without");
        for name in catalog::names() {
            let experiment = Experiment::named(name)?;
            let (title, source) = (experiment.title(), experiment.source());
            if output.json {
                output.message(&object! { message_type: "experiment", name: experiment.name(), title, source, })?;
                continue;
            }
            output.line(format!("{name:<16} {title}\n{:16} {source}", ""))?;
        }
        return Ok(());
    }
    let experiments = experiments(args)?;
    let size = match (args.quick, args.fraction) {
        (true, _) => Size::Quick,
        (false, Some(fraction)) => Size::Fraction(fraction),
        (false, None) => Size::Own,
    };
    let device = args.device.as_ref().map(|name| Device::named(name)).transpose()?;
    let inputs = Inputs::parse(&args.inputs)?;
    if let Some(dir) = &args.output {
        report::prepare(dir, &experiments.iter().map(Experiment::name).collect::<Vec<_>>())?;
    }
    let watch = watch(output)?;
    let laboratory = Laboratory::new(scratch(args.scratch.as_ref()), size, args.repetitions, device);
    let mut laboratory = laboratory.with_inputs(inputs).with_worker(worker()?);
    let mut all = Vec::new();
    for experiment in &experiments {
        let findings = laboratory.run(experiment, origin(), command(), &watch).map_err(advised)?;
        print(output, args.csv, &findings)?;
        if let Some(dir) = &args.output {
            write(dir, experiment.name(), &findings)?;
        }
        all.push(findings);
    }
    if let Some(dir) = &args.output {
        write_new(&dir.join(report::REPORT_NAME), report::html::to_html(&all)?.as_bytes())?;
    }
    Ok(())
}
