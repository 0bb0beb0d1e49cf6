//! `devices`.

use anyhow::{Result, ensure};
use onefold_accel::{boundary, fingerprint};
use onefold_engine::accelerator::{devices, self_test};

use crate::json::object;
use crate::output::Output;
use crate::text;

/// Lists what can search and name chunks, and tests each device. Fails if one does not work.
pub(crate) fn run(output: &Output) -> Result<()> {
    let (mut listed, mut lines, mut broken, mut missing) = (Vec::new(), Vec::new(), 0, None);
    match devices() {
        Ok(found) => {
            for (number, about) in (0..).zip(found) {
                let fault = self_test(number).err();
                broken += u64::from(fault.as_ref().is_some_and(|fault| fault.kind.is_failure()));
                let fault = fault.map(|fault| fault.to_string());
                let capability = format!("{}.{}", about.architecture / 10, about.architecture % 10);
                let driver = format!("{}.{}", about.driver / 1000, about.driver % 1000 / 10);
                lines.push(format!(
                    "cuda:{number}: {}, compute capability {capability}, {}, CUDA {driver}: {}",
                    about.name,
                    text::bytes(about.memory_bytes),
                    fault
                        .as_ref()
                        .map_or("passed its self-test".to_owned(), |fault| format!("cannot be used: {fault}")),
                ));
                listed.push(object! {
                    accelerator: format!("cuda:{number}"),
                    name: about.name.clone(),
                    compute_capability: capability,
                    about { memory_bytes },
                    driver,
                    is_usable: fault.is_none(),
                    fault?: fault,
                });
            }
        }
        Err(fault) => {
            broken += u64::from(fault.kind.is_failure());
            lines.push(format!("no device: {fault}"));
            missing = Some(fault.to_string());
        }
    }
    let boundaries = boundary::Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    let fingerprints = fingerprint::Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    let boundaries: Vec<String> = boundaries.map(|kernel| format!("{kernel:?}")).collect();
    let fingerprints: Vec<String> = fingerprints.map(|kernel| format!("{kernel:?}")).collect();
    if output.json {
        output.message(&object! {
            message_type: "devices",
            // Kernels of the processor, the fastest last.
            processor: object! { boundaries, fingerprints, },
            devices: listed,
            missing?: missing,
        })?;
    } else {
        output.line(format!("processor: boundaries by {}", boundaries.join(", ")))?;
        output.line(format!("processor: fingerprints by {}", fingerprints.join(", ")))?;
        lines.into_iter().try_for_each(|line| output.line(line))?;
    }
    ensure!(broken == 0, "of the devices that should work, {broken} cannot be used");
    Ok(())
}
