//! `lab rates`.

use anyhow::{Result, ensure};
use onefold_accel::device::{Fault, FaultKind};
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
    let missing = match of_device(args, &options)? {
        Ok(more) => {
            rates.extend(more);
            None
        }
        Err(absent) => Some(absent.to_string()),
    };
    if output.json {
        return Ok(output.message(&Rates { rates, missing })?);
    }
    for Rate { work, by, threads, batch_bytes, bytes, median_seconds, least_seconds, most_seconds } in &rates {
        #[expect(clippy::cast_precision_loss, reason = "two decimals are printed")]
        let rate = |seconds: f64| *bytes as f64 / 1e9 / seconds.max(1e-9);
        let [median, least, most] = [*median_seconds, *most_seconds, *least_seconds].map(rate);
        let batch = batch_bytes >> 20;
        output.line(format!(
            "{work:<22} {by:<24} {threads:>3} threads {batch:>4} MiB {median:>9.2} GB/s ({least:.2} to {most:.2})"
        ))?;
    }
    match missing {
        Some(missing) => Ok(output.line(format!("no device: {missing}"))?),
        None => Ok(()),
    }
}

#[cfg(feature = "cuda")]
fn of_device(args: &RatesArgs, options: &RatesOptions) -> Result<Result<Vec<Rate>, Fault>> {
    use onefold_accel::device::cuda;

    let device = match cuda::open(args.device) {
        // A device that is there and does not work is an error.
        Err(fault) if fault.kind == FaultKind::Absent => return Ok(Err(fault)),
        opened => opened?,
    };
    let mut rates = onefold_lab::rates::of_device(&device, options)?;
    let tile = onefold_accel::device::TILE_BYTES;
    let kernels = cuda::rates(args.device, options.bytes.next_multiple_of(tile).min((1 << 30) - tile), options.rounds)?;
    rates.extend(onefold_lab::rates::of_references(args.device, options)?);
    let name = &*device.about().name;
    rates.extend(kernels.into_iter().map(|kernel| {
        Rate::new(&format!("kernel {}", kernel.name), (name, 0, kernel.bytes), kernel.bytes, &kernel.seconds)
    }));
    Ok(Ok(rates))
}

#[cfg(not(feature = "cuda"))]
fn of_device(_: &RatesArgs, _: &RatesOptions) -> Result<Result<Vec<Rate>, Fault>> {
    Ok(Err(Fault::new(FaultKind::Absent, "this program was built without support for NVIDIA GPUs")))
}
