//! Options of the laboratory's commands that run something.

use std::path::PathBuf;

use clap::Args;

/// Options of `lab run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The trace
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// A way of finding duplicates (see `lab presets`), or a file of one; several are run one after the other
    #[arg(long = "preset", value_name = "NAME", default_value = "adaptive")]
    pub(crate) presets: Vec<String>,
    /// Set a dimension of it to another value
    #[arg(long = "set", value_name = "DIMENSION=VALUE")]
    pub(crate) set: Vec<String>,
    /// What the index lies on: real (the disk under --scratch), hdd, ssd, nvme, pm, cxl, object-store, or a file of one;
    /// several are taken one after the other
    #[arg(long = "device", value_name = "NAME", default_value = "real")]
    pub(crate) devices: Vec<String>,
    /// Where to put the index while it runs [default: where temporary files go on this machine]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Print tables as CSV
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

/// Options of `lab presets`.
#[derive(Args, Debug)]
pub(crate) struct PresetsArgs {
    /// Say what dimensions there are, and which values they take, instead
    #[arg(long)]
    pub(crate) dimensions: bool,
}

/// Options of `lab paper`.
#[derive(Args, Debug)]
pub(crate) struct PaperArgs {
    /// Experiments, or all of them; without any, they are listed
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// At a size at which all of them take minutes
    #[arg(long, conflicts_with = "fraction")]
    pub(crate) quick: bool,
    /// At one Nth of the papers' sizes: 1 is all of it [default: the size that each experiment states]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) fraction: Option<u32>,
    /// Only on this data set of the papers: vm, src, fslhomes, pm-src or pm-fsl; may be given again
    #[arg(long = "data-set", value_name = "NAME")]
    pub(crate) data_sets: Vec<String>,
    /// Run experiments that have one device on this one instead; real is the disk under --scratch
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Directory for what is found: NAME.json and NAME.csv of each experiment, and a report of all
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Where to put indexes while they are measured [default: where temporary files go on this machine]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Print tables as CSV
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}
