//! Messages about devices.

use onefold_engine::accelerator::AcceleratorUsage;
use serde::Serialize;

use crate::json::{Object, object};

/// Work of a device, in the summary of a command.
pub(crate) fn accelerator(AcceleratorUsage { name, batches, bytes, faults }: AcceleratorUsage) -> Object {
    object! { name, batches, bytes, faults, }
}

/// `devices`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "devices")]
pub(crate) struct DeviceList {
    pub(crate) processor: Processor,
    pub(crate) devices: Vec<ListedDevice>,
    /// The reason if there is no device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
}

/// Kernels of the processor, the fastest last.
#[derive(Serialize)]
pub(crate) struct Processor {
    pub(crate) boundaries: Vec<String>,
    pub(crate) fingerprints: Vec<String>,
}

/// A device.
#[derive(Serialize)]
pub(crate) struct ListedDevice {
    pub(crate) accelerator: String,
    pub(crate) name: String,
    pub(crate) compute_capability: String,
    pub(crate) memory_bytes: u64,
    pub(crate) driver: String,
    pub(crate) is_usable: bool,
    /// The reason if it is not usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<String>,
}
