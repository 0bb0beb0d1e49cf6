//! `devices`.

use anyhow::Result;
use onefold_accel::{boundary, fingerprint};
use onefold_engine::accelerator::{About, devices, self_test};

use crate::json::devices::{DeviceList, ListedDevice, Processor};
use crate::output::Output;
use crate::text;

/// Lists what can search and name chunks, and tests each device.
pub(crate) fn run(output: &Output) -> Result<()> {
    let (listed, missing) = match devices() {
        Ok(found) => ((0..).zip(found).map(|(number, about)| tested(number, &about)).collect(), None),
        Err(fault) => (Vec::new(), Some(fault.to_string())),
    };
    let boundaries = boundary::Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    let fingerprints = fingerprint::Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    let processor = Processor {
        boundaries: boundaries.map(|kernel| format!("{kernel:?}")).collect(),
        fingerprints: fingerprints.map(|kernel| format!("{kernel:?}")).collect(),
    };
    let found = DeviceList { processor, devices: listed, missing };
    if output.json {
        return Ok(output.message(&found)?);
    }
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

fn tested(number: u32, about: &About) -> ListedDevice {
    let fault = self_test(number).err().map(|fault| fault.to_string());
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
