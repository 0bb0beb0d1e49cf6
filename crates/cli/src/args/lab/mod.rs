//! Options of the laboratory.

use clap::Subcommand;

use crate::args::lab::advise::AdviseArgs;
use crate::args::lab::experiment::{PaperArgs, PresetsArgs, RegretArgs, RunArgs, ScalingArgs};
use crate::args::lab::image::ImageCommand;
use crate::args::lab::rates::RatesArgs;
use crate::args::lab::report::ReportArgs;
use crate::args::lab::similarity::SimilarityArgs;
use crate::args::lab::trace::{DescribeArgs, ExportArgs, ImportArgs, RecordArgs, SynthArgs};

pub(crate) mod advise;
pub(crate) mod chunker;
pub(crate) mod experiment;
pub(crate) mod image;
pub(crate) mod rates;
pub(crate) mod report;
pub(crate) mod similarity;
pub(crate) mod trace;

/// The laboratory's commands.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Generate a trace of a source that changes from version to version
    #[command(after_help = examples! {
        "Make a trace of 30 versions, of which each changes 5% of its objects":
            "onefold lab synth made.trace --versions 30 --modified 0.05";
    })]
    Synth(Box<SynthArgs>),
    /// Record the chunks of real data
    #[command(after_help = examples! {
        "Record two versions of a directory": "onefold lab record home.trace ~/old ~/new";
    })]
    Record(Box<RecordArgs>),
    /// Convert traces of other formats
    #[command(after_help = examples! {
        "Import two hash files of the File systems and Storage Lab":
            "onefold lab import --format fsl homes.trace day-1.hash.anon day-2.hash.anon";
    })]
    Import(ImportArgs),
    /// Convert a trace to formats of other programs: a file for each version
    #[command(after_help = examples! {
        "Write a trace as text that destor reads": "onefold lab export --format destor home.trace versions";
    })]
    Export(ExportArgs),
    /// Describe a trace: its duplicates, their distances and the lengths of their runs
    #[command(after_help = examples! { "Show the duplicates of a trace": "onefold lab describe home.trace" })]
    Describe(DescribeArgs),
    /// Find the duplicates of a trace with presets on devices, and report the cost
    #[command(after_help = examples! {
        "Compare two indexes on a hard disk":
            "onefold lab run home.trace --preset eager --preset lazy --device hdd";
    })]
    Run(RunArgs),
    /// Compare the adaptive schedule with the best of all others on traces and devices, at equal memory
    ///
    /// Runs eager, lazy, pool and exhaustive with fixed windows of each length and with the windows of their preset and of
    /// adaptive, and adaptive as it is by default. Regret is the device time of adaptive over that of the best of the others.
    ///
    /// All have the same memory, 256 MiB unless --set memory=SIZE changes it, and the same rule for filter, memtable and reads
    /// of the table. The others keep the thresholds, limits of pending chunks and cycles of their presets; pending chunks take
    /// at most a quarter of the memory. On modeled devices, several runs take place at the same time.
    #[command(after_help = examples! {
        "Show the regret on a hard disk": "onefold lab regret home.trace --device hdd";
        "Try the streams of 20 seeds, and make a report": "onefold lab regret --adversarial 1-20 --scale 64 --output regret";
    })]
    Regret(Box<RegretArgs>),
    /// List the presets, the named ways of finding duplicates
    #[command(after_help = examples! { "List the dimensions and their values": "onefold lab presets --dimensions" })]
    Presets(PresetsArgs),
    /// Repeat experiments of papers, and compare the results with the published ones
    #[command(after_help = examples! {
        "Repeat all experiments at a small size": "onefold lab paper all --quick --output results";
        "Repeat an experiment on dumps of memory": "onefold lab paper dedupcdp-figure-12 --input dumps=dumps";
    })]
    Paper(PaperArgs),
    /// Measure chunking and fingerprints by the number of threads, and the thread that keeps the order
    ///
    /// Threads that work apart show what the processor can do. The pipeline is that of a backup up to identification, on a file in the
    /// page cache. Its sequencer is the one thread that cuts and keeps the order; its part alone limits any number of threads.
    #[command(after_help = examples! {
        "Measure 1 to 16 threads on a file in memory": "onefold lab scaling --scratch /dev/shm --output scaling";
        "Measure two threads quickly": "onefold lab scaling --threads 1,2 --bytes 64M --chunks 100000 --rounds 1";
    })]
    Scaling(ScalingArgs),
    /// Do a job of an experiment, described on standard input, in this process: `lab paper` starts it
    #[command(hide = true, after_help = examples! { "Do a job": "onefold lab measure" })]
    Measure,
    /// Measure searching and naming on threads and on a device: bench/device makes tables of it
    #[command(hide = true, after_help = examples! { "Measure the processor": "onefold lab rates" })]
    Rates(RatesArgs),
    /// Make a page with plots of findings
    #[command(after_help = examples! {
        "Draw the findings of two experiments":
            "onefold lab report first.json second.json --output report.html";
    })]
    Report(ReportArgs),
    /// Sample data and estimate the cost of each chunk size: repository, index, memory, time
    #[command(after_help = examples! {
        "Compare chunk sizes for a directory": "onefold lab advise ~/documents";
        "Also what similar data would save, if each path was backed up after the one before":
            "onefold lab advise --similarity ~/versions/1 ~/versions/2";
    })]
    Advise(AdviseArgs),
    /// Deduplicate the image of a disk, and read and write it in that form
    #[command(subcommand, after_help = examples! {
        "Make a store of an image": "onefold lab image pack disk.img disk.store";
        "Bring the image back": "onefold lab image read disk.store --output disk.img";
    })]
    Image(ImageCommand),
    /// Compress versions of real data against similar regions of each other, and report size, speed and reading
    ///
    /// Reads each path as a version, deduplicates all, and compresses the distinct chunks with each way to choose bases. Then
    /// restores the last version, and compares it. No repository is made: the compressed regions lie in a temporary file.
    #[command(after_help = examples! {
        "Compare ways to choose bases on two versions of a directory": "onefold lab similarity ~/old ~/new";
        "Compare two depths": "onefold lab similarity ~/old ~/new --point none --point depth=2 --point depth=4";
    })]
    Similarity(SimilarityArgs),
}
