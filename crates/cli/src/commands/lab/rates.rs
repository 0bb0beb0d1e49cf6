//! `lab rates`.

use anyhow::{Result, ensure};
use onefold_engine::source::exclude::parse_size;
use onefold_lab::rates::{Rate, RatesOptions, of_processor};
use serde::Serialize;

use crate::args::lab::rates::RatesArgs;
use crate::output::Output;

/// All rates, and what is missing of a device.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "rates")]
struct Rates {
    rates: Vec<Rate>,
    /// Why no device was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

/// Measures the processor, and a device if there is one.
pub(crate) fn rates(output: &Output, args: &RatesArgs) -> Result<()> {
    let size = |text: &str| -> Result<usize> { Ok(usize::try_from(parse_size(text)?)?) };
    ensure!(args.threads.iter().all(|threads| *threads != 0), "--threads: at least one");
    let options = RatesOptions {
        bytes: size(&args.bytes)?.max(1),
        rounds: args.rounds,
        threads: args.threads.clone(),
        batch_bytes: args.batches.iter().map(|text| size(text)).collect::<Result<_>>()?,
    };
    let mut rates = of_processor(&options)?;
    let missing = match of_device(args, &options) {
        Ok(more) => {
            rates.extend(more);
            None
        }
        Err(error) => Some(format!("{error:#}")),
    };
    if output.json {
        return Ok(output.message(&Rates { rates, missing })?);
    }
    for Rate { work, by, threads, batch_bytes, bytes, best_seconds, median_seconds } in &rates {
        #[expect(clippy::cast_precision_loss, reason = "two decimals are printed")]
        let rate = |seconds: f64| *bytes as f64 / 1e9 / seconds.max(1e-9);
        let (best, median, batch) = (rate(*best_seconds), rate(*median_seconds), batch_bytes >> 20);
        output
            .line(format!("{work:<22} {by:<24} {threads:>3} threads {batch:>4} MiB {best:>9.2} {median:>9.2} GB/s"))?;
    }
    match missing {
        Some(missing) => Ok(output.line(format!("no device: {missing}"))?),
        None => Ok(()),
    }
}

#[cfg(feature = "cuda")]
fn of_device(args: &RatesArgs, options: &RatesOptions) -> Result<Vec<Rate>> {
    use onefold_accel::device::cuda;

    let device = cuda::open(args.device)?;
    let mut rates = onefold_lab::rates::of_device(&device, options)?;
    let tile = onefold_accel::device::TILE_BYTES;
    let kernels = cuda::rates(args.device, options.bytes.next_multiple_of(tile).min((1 << 30) - tile), options.rounds)?;
    rates.extend(kernels.into_iter().map(|kernel| Rate {
        work: format!("kernel {}", kernel.name),
        by: device.about().name.clone(),
        threads: 0,
        batch_bytes: kernel.bytes,
        bytes: kernel.bytes,
        best_seconds: kernel.seconds.first().copied().unwrap_or_default(),
        median_seconds: kernel.seconds.get(kernel.seconds.len() / 2).copied().unwrap_or_default(),
    }));
    Ok(rates)
}

#[cfg(not(feature = "cuda"))]
fn of_device(_: &RatesArgs, _: &RatesOptions) -> Result<Vec<Rate>> {
    anyhow::bail!("this program was built without support for NVIDIA GPUs")
}
