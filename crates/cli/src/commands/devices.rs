//! `devices`.

use anyhow::{Result, ensure};
use onefold_accel::{boundary, fingerprint};
use onefold_engine::accelerator::{About, devices, self_test};

use crate::json::devices::{DeviceList, ListedDevice, Processor};
use crate::output::Output;
use crate::text;

/// Lists what can search and name chunks, and tests each device. Fails if one does not work.
pub(crate) fn run(output: &Output) -> Result<()> {
    let (mut listed, mut broken, mut missing) = (Vec::new(), 0, None);
    match devices() {
        Ok(found) => {
            for (number, about) in (0..).zip(found) {
                let fault = self_test(number).err();
                broken += u64::from(fault.as_ref().is_some_and(|fault| fault.kind.is_failure()));
                listed.push(described(number, &about, fault.map(|fault| fault.to_string())));
            }
        }
        Err(fault) => {
            broken += u64::from(fault.kind.is_failure());
            missing = Some(fault.to_string());
        }
    }
    let boundaries = boundary::Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    let fingerprints = fingerprint::Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    let processor = Processor {
        boundaries: boundaries.map(|kernel| format!("{kernel:?}")).collect(),
        fingerprints: fingerprints.map(|kernel| format!("{kernel:?}")).collect(),
    };
    let found = DeviceList { processor, devices: listed, missing };
    if output.json {
        output.message(&found)?;
    } else {
        print(output, &found)?;
    }
    ensure!(broken == 0, "of the devices that should work, {broken} cannot be used");
    Ok(())
}

fn print(output: &Output, found: &DeviceList) -> Result<()> {
    output.line(format!("processor: boundaries by {}", found.processor.boundaries.join(", ")))?;
    output.line(format!("processor: fingerprints by {}", found.processor.fingerprints.join(", ")))?;
    for ListedDevice { accelerator, name, compute_capability, memory_bytes, driver, fault, .. } in &found.devices {
        let memory = text::bytes(*memory_bytes);
        let state =
            fault.as_deref().map_or("passed its self-test".to_owned(), |fault| format!("cannot be used: {fault}"));
        output.line(format!(
            "{accelerator}: {name}, compute capability {compute_capability}, {memory}, CUDA {driver}: {state}"
        ))?;
    }
    match &found.missing {
        Some(missing) => Ok(output.line(format!("no device: {missing}"))?),
        None => Ok(()),
    }
}

fn described(number: u32, about: &About, fault: Option<String>) -> ListedDevice {
    ListedDevice {
        accelerator: format!("cuda:{number}"),
        name: about.name.clone(),
        compute_capability: format!("{}.{}", about.architecture / 10, about.architecture % 10),
        memory_bytes: about.memory_bytes,
        driver: format!("{}.{}", about.driver / 1000, about.driver % 1000 / 10),
        is_usable: fault.is_none(),
        fault,
    }
}
