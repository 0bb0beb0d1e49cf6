//! Duplicates among names, found on a device.

use std::sync::Arc;
use std::time::Duration;

use super::context::Argument::{Memory, Word};
use super::context::{self, Context};
use super::driver::Driver;
use super::image;
use crate::device::{About, Fault, FaultKind};

/// Fills the memory of results before the launch: no position has it, because a list has less than 2^28 names.
const POISON: u8 = 0xFF;
/// Names of a list at most, as the kernel takes them.
const NAMES_MAX: usize = 1 << 28;
/// Nanoseconds that a CTA takes at most to compare two names. One of 256 threads alone takes 0.2 on an H200.
const PAIR_NANOSECONDS: u64 = 1;
/// CTAs of 256 threads at most that run on a multiprocessor at the same time, as `backward` is compiled.
const CTAS_TOGETHER: u32 = 4;
/// Words of a name.
const WORDS: usize = 4;
/// Names of a tile of the sort, as the kernels have it.
const SORT_TILE: usize = 4096;
/// Values of a digit of the sort.
const SORT_DIGITS: usize = 16;

/// Kernels on a device that find duplicates.
pub struct References {
    context: Arc<Context>,
    multiprocessors: u32,
}

impl std::fmt::Debug for References {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("References")
    }
}

impl References {
    /// Returns for each name the first position of an equal one, by comparing all pairs with so many CTAs of 256 threads. `words` has
    /// four planes, one after the other: word w of each name. Returns a fault of the kind `Wrong` if a result is missing; the caller
    /// compares the results. The time is quadratic: the device may take as much more of it before it counts as hung.
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
        let more = time_of_pairs(names, ctas, self.multiprocessors);
        // SAFETY: there are four words for each name, and a result.
        unsafe { self.context.launch_long(c"backward", (ctas.max(1), 256), &arguments, more)? };
        positions("backward", &first, names)
    }

    /// Returns the same by sorting the names and looking each one up, with so many CTAs of 256 threads. A step that went wrong is found by the
    /// driver or by the caller, who compares the results.
    pub fn by_sorting(&self, words: &[u32], ctas: u32) -> Result<Vec<u32>, Fault> {
        let names = words.len() / WORDS;
        assert!(words.len().is_multiple_of(WORDS) && names < NAMES_MAX, "four planes of names");
        if names == 0 {
            return Ok(Vec::new());
        }
        let word = |number: usize| Word(u32::try_from(number).unwrap_or(u32::MAX));
        let (ctas, numbers) = (ctas.max(1), SORT_DIGITS * names.div_ceil(SORT_TILE));
        let uploaded = self.context.upload(words)?;
        let list =
            || Ok::<_, Fault>((self.context.memory(8 * names, POISON)?, self.context.memory(4 * names, POISON)?));
        let (mut from, mut to) = (list()?, list()?);
        let counts = self.context.memory(4 * numbers, POISON)?;
        let first = self.context.memory(4 * names, POISON)?;
        let begin = [Memory(&uploaded), word(names), word(names), Memory(&from.0), Memory(&from.1)];
        // SAFETY: there is a key and a position for each name.
        unsafe { self.context.launch(c"sort_begin", ctas, 256, &begin)? };
        for shift in (0..64).step_by(4) {
            let counted = [Memory(&from.0), word(names), Word(shift), Memory(&counts)];
            let moved = [Memory(&from.0), Memory(&from.1), word(names), Word(shift), Memory(&counts)];
            let moved: Vec<_> = moved.into_iter().chain([Memory(&to.0), Memory(&to.1)]).collect();
            // SAFETY: there is a count for each digit of each tile, and each key has a new position.
            unsafe {
                self.context.launch(c"sort_count", ctas, 256, &counted)?;
                self.context.launch(c"sort_sum", 1, 256, &[Memory(&counts), word(numbers)])?;
                self.context.launch(c"sort_move", ctas, 256, &moved)?;
            }
            std::mem::swap(&mut from, &mut to);
        }
        let asks = [Memory(&uploaded), word(names), Memory(&from.1), word(names), Memory(&uploaded), word(names)];
        let knows = [Memory(&from.0), Memory(&from.1), word(names), Memory(&first)];
        let joined: Vec<_> = asks.into_iter().chain(knows).collect();
        // SAFETY: there is a result for each name.
        unsafe { self.context.launch(c"join", ctas, 256, &joined)? };
        positions("join", &first, names)
    }
}

/// Returns how long all pairs of names take at most.
fn time_of_pairs(names: usize, ctas: u32, multiprocessors: u32) -> Duration {
    let together = ctas.clamp(1, CTAS_TOGETHER.saturating_mul(multiprocessors.max(1)));
    // Less than 2^56: a list has less than 2^28 names.
    let pairs = names as u64 * names as u64 / 2;
    Duration::from_nanos(pairs * PAIR_NANOSECONDS / u64::from(together))
}

/// Returns the results of a kernel, if each is a position up to its own.
fn positions(kernel: &str, first: &context::Memory, names: usize) -> Result<Vec<u32>, Fault> {
    let first = first.download::<u32>(names)?;
    if first.iter().enumerate().all(|(j, first)| *first as usize <= j) {
        return Ok(first);
    }
    Err(Fault::new(FaultKind::Wrong, format!("the device's kernel {kernel}: a result is missing")))
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
    let context = Context::open(driver, index, &code)?;
    Ok(act(&about, &References { context, multiprocessors: about.multiprocessors }))
}

#[cfg(test)]
mod time_tests {
    use super::*;

    #[test]
    fn few_ctas_have_more_time_and_more_than_run_together_have_no_less() {
        let seconds = |names, ctas| time_of_pairs(names, ctas, 132).as_secs();
        // An H200 takes 115 s with one CTA (from 1.9 ms for 2^12 names), and 0.33 s with 528.
        assert_eq!([1, 2, 132, 528, 5000].map(|ctas| seconds(1 << 20, ctas)), [549, 274, 4, 1, 1]);
        assert_eq!([seconds(1 << 12, 1), seconds(0, 0)], [0, 0]);
        assert_eq!(time_of_pairs(1 << 20, 5000, 0), time_of_pairs(1 << 20, 4, 1));
    }
}
