//! Options of `lab rates`.

use clap::Args;

/// Options of `lab rates`.
#[derive(Args, Debug)]
pub(crate) struct RatesArgs {
    /// Bytes in memory
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub(crate) bytes: String,
    /// Rounds of each measurement
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Numbers of threads
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16])]
    pub(crate) threads: Vec<usize>,
    /// Sizes of batches on a device
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "8M,16M,32M,64M")]
    pub(crate) batches: Vec<String>,
    /// Number of the device
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) device: u32,
}
