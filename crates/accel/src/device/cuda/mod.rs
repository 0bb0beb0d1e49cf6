//! NVIDIA GPUs, through the driver that is there at run time. Without one, every function returns a fault.

mod context;
mod driver;
mod image;
mod queue;
mod rates;
mod references;
mod selftest;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::{About, Device, Fault, FaultKind, Limits, Memory, Queue, Rule};
use context::Context;
use driver::Driver;
use queue::CudaQueue;

pub use context::PageLocked;
pub use rates::KernelRate;
pub use references::{References, with_references};

/// The least compute capability for which there are kernels, times ten.
pub const ARCHITECTURE_MIN: u32 = 75;

/// Lists the devices in the order of their numbers. Returns a fault of the kind `Absent` if there is no driver or no device.
pub fn list() -> Result<Vec<About>, Fault> {
    devices(&Driver::open()?)
}

/// Runs every kernel on device `index`, and compares all results with those of the processor. Takes less than 100 MiB of the device's
/// memory. Returns a fault of the kind `Wrong` if a result differs.
pub fn self_test(index: u32) -> Result<About, Fault> {
    test(&Arc::new(Driver::open()?), index).map(|(about, _)| about)
}

/// Opens device `index` after its self-test.
pub fn open(index: u32) -> Result<Arc<dyn Device>, Fault> {
    Ok(Arc::new(Cuda::of(&Arc::new(Driver::open()?), index)?))
}

/// Measures kernels of device `index` on `bytes` bytes of its memory, a multiple of 16 KiB below 1 GiB, `rounds` times each.
pub fn rates(index: u32, bytes: usize, rounds: usize) -> Result<Vec<KernelRate>, Fault> {
    measured(&Arc::new(Driver::open()?), index, bytes, rounds)
}

/// Opens a device of a library in place of the driver, for tests.
#[cfg(feature = "host-kernels")]
pub fn open_in(library: &str, index: u32) -> Result<Arc<dyn Device>, Fault> {
    Ok(Arc::new(Cuda::of(&Arc::new(Driver::open_any(&[library])?), index)?))
}

/// The library in place of the driver, whose device is the processor.
#[cfg(feature = "host-kernels")]
pub const STAND_IN: &str = env!("ONEFOLD_STANDIN");

/// A GPU that has passed its self-test.
#[derive(Debug)]
pub(crate) struct Cuda {
    about: About,
    context: Arc<Context>,
}

impl Cuda {
    fn of(driver: &Arc<Driver>, index: u32) -> Result<Self, Fault> {
        let (about, context) = test(driver, index)?;
        Ok(Self { about, context })
    }
}

impl Device for Cuda {
    fn about(&self) -> &About {
        &self.about
    }

    fn allocate(&self, len: usize) -> Result<Memory, Fault> {
        self.context.page_locked(len).map(Memory::page_locked)
    }

    fn open(&self, rule: &Rule, limits: &Limits) -> Result<Box<dyn Queue>, Fault> {
        limits.check();
        Ok(Box::new(CudaQueue::open(&self.context, self.about.multiprocessors, rule, limits)?))
    }
}

fn devices(driver: &Driver) -> Result<Vec<About>, Fault> {
    match driver.count()? {
        0 => Err(Fault::new(FaultKind::Absent, "the driver has no device")),
        count => (0..count).map(|index| driver.about(index)).collect(),
    }
}

fn measured(driver: &Arc<Driver>, index: u32, bytes: usize, rounds: usize) -> Result<Vec<KernelRate>, Fault> {
    let (about, context) = test(driver, index)?;
    rates::measure(&context, queue::CTAS_EACH * about.multiprocessors.max(1), bytes, rounds)
}

fn test(driver: &Arc<Driver>, index: u32) -> Result<(About, Arc<Context>), Fault> {
    let about = driver.about(index)?;
    let code = image::code_for(about.architecture)?;
    let context = Context::open(driver, index, &code)?;
    selftest::run(&context)?;
    Ok((about, context))
}
