//! Options of the laboratory's commands that run something.

use std::path::PathBuf;

use clap::Args;
use onefold_engine::source::exclude::parse_size;
use onefold_lab::adversarial::CHUNKS_MAX;
use onefold_lab::point::dimension::{Listed, listed};
use onefold_lab::regret::contender::WINDOWS;

/// Returns help on `--set`: all dimensions with their values.
fn set_help(about: &str) -> String {
    let lines =
        listed().into_iter().map(|Listed { name, values, .. }| format!("\n  {name}={}", values.replace(", ", "|")));
    format!("{about}. `onefold lab presets --dimensions` says what each one does:{}", lines.collect::<String>())
}

/// Memory in proportion to the source.
#[derive(Args, Debug)]
pub(crate) struct ScaleArgs {
    /// Divide filter, cache and memtable by this number, as for a source that is so much larger
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) scale: u32,
}

/// Options of `lab run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The trace
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Preset (see `lab presets`), or file of one; several run one after the other
    #[arg(long = "preset", value_name = "NAME", default_value = "adaptive")]
    pub(crate) presets: Vec<String>,
    /// Set a dimension of the preset to another value
    #[arg(long = "set", value_name = "DIMENSION=VALUE", long_help = set_help("Set a dimension of the preset to another value"))]
    pub(crate) set: Vec<String>,
    /// Device of the index: real (the disk under --scratch), hdd, ssd, nvme, pm, cxl, object-store, or a file of one;
    /// several run one after the other
    #[arg(long = "device", value_name = "NAME", default_value = "real")]
    pub(crate) devices: Vec<String>,
    #[command(flatten)]
    pub(crate) scale: ScaleArgs,
    /// Take all versions of the trace as one session, instead of opening the index again with an empty cache for each
    #[arg(long)]
    pub(crate) one_session: bool,
    /// Store fragmented duplicates again: none, cfl, cbr or capping by a window of the stream, har or har-paper by the version
    /// before, or both, as in har+capping
    #[arg(long, value_name = "WAY", default_value = "none")]
    pub(crate) rewrite: String,
    /// Restore each version with these caches of N containers: lru:N, asm:N or opt:N, with commas between them
    #[arg(long, value_name = "CACHES")]
    pub(crate) restore: Option<String>,
    /// Keep this many versions, and delete older ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep_last: Option<u32>,
    /// Take containers as destor has them: of container-size, 32 KiB are metadata, with 1,169 chunks at most
    #[arg(long)]
    pub(crate) destor_containers: bool,
    /// Directory for the index during the run [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Print tables as CSV
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

/// Options of `lab regret`.
#[derive(Args, Debug)]
pub(crate) struct RegretArgs {
    /// Traces
    #[arg(value_name = "TRACE", required_unless_present = "adversarial")]
    pub(crate) traces: Vec<PathBuf>,
    /// Also take the adversarial streams of these seeds: 7, 1-20 or 1-20,33
    #[arg(long, value_name = "SEEDS", value_parser = seeds)]
    pub(crate) adversarial: Option<Seeds>,
    /// Chunks of each adversarial stream
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=CHUNKS_MAX))]
    pub(crate) chunks: u64,
    /// Device of the index: real (the disk under --scratch), hdd, ssd, nvme, pm, cxl, object-store, or a file of one;
    /// each has a row for each trace
    #[arg(long = "device", value_name = "NAME", default_values = ["hdd", "ssd", "nvme"])]
    pub(crate) devices: Vec<String>,
    #[command(flatten)]
    pub(crate) scale: ScaleArgs,
    /// Set a dimension of each contender to another value
    #[arg(long = "set", value_name = "DIMENSION=VALUE", long_help = set_help("Set a dimension of each contender to another value"))]
    pub(crate) set: Vec<String>,
    /// Lengths of fixed windows, in records
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = WINDOWS)]
    pub(crate) windows: Vec<u32>,
    /// Take all versions of a trace as one session, instead of opening the index again with an empty cache for each
    #[arg(long)]
    pub(crate) one_session: bool,
    /// Directory for the findings: regret.json, regret.csv, and a report with heat maps
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Directory for the indexes during the runs [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Print tables as CSV
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

/// Seeds of adversarial streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seeds(pub(crate) Vec<u64>);

/// Most seeds of one command.
const SEEDS_MAX: u64 = 10_000;

/// Reads seeds: numbers and ranges, with commas between them.
fn seeds(text: &str) -> Result<Seeds, String> {
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| format!("{text:?} is no seed"));
    let mut seeds = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last < first || SEEDS_MAX <= last - first || SEEDS_MAX <= seeds.len() as u64 {
            return Err(format!("{part:?}: a range of 1 to {SEEDS_MAX} seeds, from the smallest to the largest"));
        }
        seeds.extend(first..=last);
    }
    Ok(Seeds(seeds))
}

/// Options of `lab presets`.
#[derive(Args, Debug)]
pub(crate) struct PresetsArgs {
    /// List the dimensions and their values instead
    #[arg(long)]
    pub(crate) dimensions: bool,
}

/// Options of `lab paper`.
#[derive(Args, Debug)]
pub(crate) struct PaperArgs {
    /// Experiments, or all; without a name, the command lists them
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Use a size at which all experiments together take minutes
    #[arg(long, conflicts_with = "fraction")]
    pub(crate) quick: bool,
    /// Use one Nth of the papers' sizes; 1 is the full size [default: the size that each experiment states]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) fraction: Option<u32>,
    /// Repeat each run so many times, each time with another seed; print medians, and which claims noise can flip
    #[arg(long = "repeat", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repetitions: u32,
    /// Run only on this data set: vm, src, fslhomes, pm-src or pm-fsl of the papers, or a file of your own; may be given again
    #[arg(long = "data-set", value_name = "NAME")]
    pub(crate) data_sets: Vec<String>,
    /// Run experiments with one device on this device instead: real (the disk under --scratch), hdd, ssd, nvme, pm, cxl,
    /// object-store, or a file of one
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Data that experiments read: common, dup or dumps, and a file or a directory of files; an experiment without its data shows
    /// nothing
    #[arg(long = "input", value_name = "NAME=PATH")]
    pub(crate) inputs: Vec<String>,
    /// Directory for the findings: NAME.json and NAME.csv of each experiment, and a report of all
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Directory for indexes during the measurements [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Print tables as CSV
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

/// Options of `lab scaling`.
#[derive(Args, Debug)]
pub(crate) struct ScalingArgs {
    /// Numbers of threads; those that this machine cannot run at the same time are left out
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16])]
    pub(crate) threads: Vec<usize>,
    /// Threads that read and find candidates, from 1 to 64 [default: as many as the others, at least 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) read_concurrency: Option<u8>,
    /// Bytes that are cut and named with each number of threads
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = parse_size)]
    pub(crate) bytes: u64,
    /// Average of chunks in bytes
    #[arg(long, value_name = "N", default_value_t = 8192)]
    pub(crate) average: u32,
    /// Chunks that are submitted to an index
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..=CHUNKS_MAX))]
    pub(crate) chunks: u64,
    /// Rounds; the table has medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Directory for the findings: scaling.json, scaling.csv and a report
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Directory for the file and the index; one in memory, such as /dev/shm, leaves the disk out [default: the directory for temporary
    /// files]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Print tables as CSV
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_numbers_and_ranges() {
        assert_eq!(seeds("7"), Ok(Seeds(vec![7])));
        assert_eq!(seeds("1-3,33"), Ok(Seeds(vec![1, 2, 3, 33])));
        for refused in ["", "x", "3-1", "1-", "0-10000", "1,,2"] {
            assert!(seeds(refused).is_err(), "{refused}");
        }
    }
}
