//! NVIDIA GPUs, through the driver that is there at run time. Without one, every function returns a fault.

mod driver;
mod image;
mod references;
mod selftest;
#[cfg(test)]
mod tests;

use super::{About, Fault, FaultKind};
use driver::Driver;
pub use references::{References, with_references};

/// Lists the devices in the order of their numbers. Returns a fault of the kind `Absent` if there is no driver or no device.
pub fn list() -> Result<Vec<About>, Fault> {
    devices(&Driver::open()?)
}

/// Runs every kernel on device `index`, and compares all results with those of the processor. Takes less than 100 MiB of the device's
/// memory. Returns a fault of the kind `Wrong` if a result differs.
pub fn self_test(index: u32) -> Result<About, Fault> {
    test(&Driver::open()?, index)
}

fn devices(driver: &Driver) -> Result<Vec<About>, Fault> {
    match driver.count()? {
        0 => Err(Fault::new(FaultKind::Absent, "the driver has no device")),
        count => (0..count).map(|index| driver.about(index)).collect(),
    }
}

fn test(driver: &Driver, index: u32) -> Result<About, Fault> {
    let about = driver.about(index)?;
    let code = image::code_for(about.architecture)?;
    selftest::run(&driver.session(index, &code)?)?;
    Ok(about)
}
