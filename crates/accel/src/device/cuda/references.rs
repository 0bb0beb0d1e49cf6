//! Duplicates among names, found on a device.

use std::sync::Arc;

use super::context::Argument::{Memory, Word};
use super::context::Context;
use super::driver::Driver;
use super::image;
use crate::device::{About, Fault, FaultKind};

/// Fills the memory of results before the launch: no position has it, because a list has less than 2^28 names.
const POISON: u8 = 0xFF;
/// Names of a list at most, as the kernel takes them.
const NAMES_MAX: usize = 1 << 28;
/// Words of a name.
const WORDS: usize = 4;

/// Kernels on a device that find duplicates.
pub struct References {
    context: Arc<Context>,
}

impl std::fmt::Debug for References {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("References")
    }
}

impl References {
    /// Returns for each name the first position of an equal one, by comparing all pairs with so many CTAs of 256 threads. `words` has
    /// four planes, one after the other: word w of each name. Returns a fault of the kind `Wrong` if a result is missing; the caller
    /// compares the results.
    pub fn backward(&self, words: &[u32], ctas: u32) -> Result<Vec<u32>, Fault> {
        let names = words.len() / WORDS;
        assert!(words.len().is_multiple_of(WORDS) && names < NAMES_MAX, "four planes of names");
        if names == 0 {
            return Ok(Vec::new());
        }
        let count = u32::try_from(names).unwrap_or(u32::MAX);
        let uploaded = self.context.upload(words)?;
        let first = self.context.memory(4 * names, POISON)?;
        let arguments = [Memory(&uploaded), Word(count), Word(count), Memory(&first)];
        // SAFETY: there are four words for each name, and a result.
        unsafe { self.context.launch(c"backward", ctas.max(1), 256, &arguments)? };
        let first = first.download::<u32>(names)?;
        let is_position = |(j, first): (usize, &u32)| *first as usize <= j;
        if first.iter().enumerate().all(is_position) {
            return Ok(first);
        }
        Err(Fault::new(FaultKind::Wrong, "the device's kernel backward: a result is missing"))
    }
}

/// Gives kernels on device `index` to a function. Returns what it returns.
pub fn with_references<T>(index: u32, act: impl FnOnce(&About, &References) -> T) -> Result<T, Fault> {
    with_driver(&Arc::new(Driver::open()?), index, act)
}

pub(super) fn with_driver<T>(
    driver: &Arc<Driver>,
    index: u32,
    act: impl FnOnce(&About, &References) -> T,
) -> Result<T, Fault> {
    let about = driver.about(index)?;
    let code = image::code_for(about.architecture)?;
    Ok(act(&about, &References { context: Context::open(driver, index, &code)? }))
}
