//! Options that choose a device.

use clap::{Args, ValueEnum};
use onefold_engine::accelerator::{AcceleratorCheck, AcceleratorChoice};

/// A device other than the processor.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AcceleratorArgs {
    /// Device that finds and names chunks, too: cpu uses none, cuda or cuda:N an NVIDIA GPU, auto one that is there. The results are the
    /// same [env: ONEFOLD_ACCELERATOR] [default: cpu]
    #[arg(long, value_name = "DEVICE", value_parser = parse)]
    pub(crate) accelerator: Option<AcceleratorChoice>,
    /// Results of the device that the processor computes again
    #[arg(long, value_name = "PART", value_enum, default_value_t)]
    pub(crate) accelerator_check: CheckedPart,
}

/// Reads a device.
pub(crate) fn parse(text: &str) -> Result<AcceleratorChoice, String> {
    text.parse().map_err(|error: onefold_engine::Error| error.to_string())
}

/// Part of a device's results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum CheckedPart {
    /// One chunk of each block of 512 KiB, and of each 128; and 16 KiB of each batch
    #[default]
    Sample,
    /// Everything
    All,
}

impl From<CheckedPart> for AcceleratorCheck {
    fn from(part: CheckedPart) -> Self {
        match part {
            CheckedPart::Sample => Self::Sample,
            CheckedPart::All => Self::All,
        }
    }
}
