//! The device of `--accelerator`.

use anyhow::Result;
use onefold_engine::accelerator::{Accelerator, AcceleratorUsage};
use onefold_engine::backup::Budget;
use onefold_engine::io::os::OsHost;

use crate::args::accelerator::AcceleratorArgs;
use crate::output::Output;
use crate::settings::{Settings, Verbosity};
use crate::text;

/// Opens the device that was chosen, before anything else is done.
pub(crate) fn open(settings: &Settings, output: &Output, args: &AcceleratorArgs) -> Result<Option<Accelerator>> {
    let choice = args.accelerator.unwrap_or(settings.accelerator);
    let check = args.accelerator_check.into();
    let mut note = |sentence: &str| output.warn(sentence);
    let opened = Accelerator::choose(choice, check, settings.memory_bytes, &OsHost::new(), &mut note)?;
    if let Some(accelerator) = &opened
        && Verbosity::Verbose <= output.verbosity
    {
        output.note(&format!("using {} as an accelerator", accelerator.usage().name));
    }
    Ok(opened)
}

/// Divides the memory budget, with a share for the device.
pub(crate) fn budget(settings: &Settings, accelerator: Option<&Accelerator>) -> Budget {
    let budget = settings.budget();
    if accelerator.is_some() { budget.with_device(settings.memory_bytes) } else { budget }
}

/// Describes what a device did.
pub(crate) fn sentence(usage: &AcceleratorUsage) -> String {
    format!("{} searched and named {} (batches: {})", usage.name, text::bytes(usage.bytes), usage.batches)
}
