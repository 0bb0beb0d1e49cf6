//! Devices other than the processor that can find candidates and name chunks, with the kernels in `kernels/`.
//!
//! [`Device`] and [`Queue`] are the interface, [`Pool`] has the memory that a device reads, and [`Batches`] checks results before
//! anybody takes them. `cuda` is the implementation for NVIDIA GPUs; it also finds duplicates among names for an experiment of the laboratory.

mod batches;
#[cfg(test)]
mod batches_tests;
mod buffer;
#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "calls the driver of the device")]
pub mod cuda;
#[cfg(test)]
#[expect(unsafe_code, reason = "kernels take addresses")]
mod host;
#[cfg(any(test, feature = "testing"))]
pub mod host_device;
mod queue;
#[cfg(test)]
mod tests;

pub use batches::{Batch, Batches, Check, Namer, Range};
pub use buffer::{Buffer, Frozen, Memory, Pool};
pub use queue::{
    Device, Limits, Listed, NameHash, Named, POISON, POISON_WORD, Queue, Rule, Search, Span, TILE_BYTES, Wait,
};

use std::fmt;

/// A device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    /// Its name, as the driver has it.
    pub name: String,
    /// Ten times the compute capability: 90 for 9.0.
    pub architecture: u32,
    /// Number of its multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Newest version of the interface that the driver has: 12,090 for 12.9.
    pub driver: u32,
}

/// Kinds of faults, by which a caller decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// There is no driver, or no device.
    Absent,
    /// The device or its driver cannot run the kernels.
    Unsuitable,
    /// The device has too little free memory.
    OutOfMemory,
    /// The device does not answer any more, or refuses to.
    Lost,
    /// A result is not what it must be.
    Wrong,
}

impl FaultKind {
    /// Returns true if a device is there that should work, and does not.
    pub fn is_failure(self) -> bool {
        match self {
            Self::Absent | Self::Unsuitable | Self::OutOfMemory => false,
            Self::Lost | Self::Wrong => true,
        }
    }
}

/// A device did not do its work. The processor can always do it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The kind.
    pub kind: FaultKind,
    /// A sentence that names the call, or the result.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl Fault {
    /// Creates a fault.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}
