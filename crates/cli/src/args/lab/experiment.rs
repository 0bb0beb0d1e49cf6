//! Options of the laboratory's commands that run something.

use std::path::PathBuf;

use clap::Args;

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
    #[arg(long = "set", value_name = "DIMENSION=VALUE")]
    pub(crate) set: Vec<String>,
    /// Device of the index: real (the disk under --scratch), hdd, ssd, nvme, pm, cxl, object-store, or a file of one;
    /// several run one after the other
    #[arg(long = "device", value_name = "NAME", default_value = "real")]
    pub(crate) devices: Vec<String>,
    /// Take all versions of the trace as one session, instead of opening the index again with an empty cache for each
    #[arg(long)]
    pub(crate) one_session: bool,
    /// Directory for the index during the run [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Print tables as CSV
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
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
    /// Run only on this data set of the papers: vm, src, fslhomes, pm-src or pm-fsl; may be given again
    #[arg(long = "data-set", value_name = "NAME")]
    pub(crate) data_sets: Vec<String>,
    /// Run experiments with one device on this device instead; real is the disk under --scratch
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
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
