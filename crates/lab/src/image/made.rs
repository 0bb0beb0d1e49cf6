//! Images for experiments, made of a seed: the same on every machine.
//!
//! An image has two states of a disk, one behind the other. The first one has runs of zeros, of new bytes, and of bytes that were
//! there before. The second one equals the first, but a share of its pages of 4 KiB, in runs, have new bytes.

use onefold_engine::random::SplitMix64;

use crate::image::block::UNIT_BYTES;

/// Bytes of a page: files of the disk begin at multiples of it.
const PAGE_BYTES: usize = 4 << 10;
/// Longest run of one kind, in pages: a megabyte.
const RUN_PAGES_MAX: usize = 256;
/// Longest run of changed pages.
const CHANGED_PAGES_MAX: usize = 16;
/// One of so many pages is changed.
const CHANGED: usize = 50;

/// Makes an image of `bytes` bytes, rounded down to a whole number of units.
pub fn disk_image(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let bytes = bytes / UNIT_BYTES * UNIT_BYTES;
    let mut image = Vec::with_capacity(bytes);
    let state = bytes / 2 / PAGE_BYTES * PAGE_BYTES;
    while image.len() < state {
        add_run(&mut image, state, &mut random);
    }
    image.extend_from_within(..);
    // The rest of a page, of an image that is no multiple of two.
    image.resize(bytes, 0xff);
    let pages = state / PAGE_BYTES;
    let mut changed = 0;
    while changed < pages / CHANGED {
        let len = 1 + random.index(CHANGED_PAGES_MAX);
        let at = state + random.index(pages) * PAGE_BYTES;
        let end = (at + len * PAGE_BYTES).min(2 * state);
        if let Some(run) = image.get_mut(at..end) {
            fill(run, &mut random);
        }
        changed += len;
    }
    image
}

/// Adds a run: a quarter of them zeros, a quarter repeated, the others new.
fn add_run(image: &mut Vec<u8>, end: usize, random: &mut SplitMix64) {
    let len = ((1 + random.index(RUN_PAGES_MAX)) * PAGE_BYTES).min(end - image.len());
    let before = image.len();
    match random.index(4) {
        0 => image.resize(before + len, 0),
        1 if len <= before => {
            let from = random.index((before - len) / PAGE_BYTES + 1) * PAGE_BYTES;
            image.extend_from_within(from..from + len);
        }
        _ => {
            image.resize(before + len, 0);
            fill(&mut image[before..], random);
        }
    }
}

/// Fills bytes with numbers.
fn fill(bytes: &mut [u8], random: &mut SplitMix64) {
    for bytes in bytes.chunks_mut(8) {
        bytes.iter_mut().zip(random.next_u64().to_le_bytes()).for_each(|(byte, number)| *byte = number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_its_size_repeats_itself_and_has_zeros_and_changes() {
        for bytes in [0, 1000, 5 << 10, 9000, (4 << 20) + 1024] {
            let image = disk_image(bytes, 1);
            assert_eq!(image.len(), bytes / UNIT_BYTES * UNIT_BYTES);
            assert_eq!(image, disk_image(bytes, 1));
        }
        let image = disk_image(8 << 20, 1);
        assert_ne!(image, disk_image(8 << 20, 2));
        let (one, other) = image.split_at(4 << 20);
        let pages = one.chunks(PAGE_BYTES).zip(other.chunks(PAGE_BYTES));
        let changed = pages.filter(|(one, other)| one != other).count();
        assert!((5..100).contains(&changed), "{changed} of 1024 pages");
        let zeros = one.chunks(PAGE_BYTES).filter(|page| page.iter().all(|byte| *byte == 0)).count();
        assert!((50..700).contains(&zeros), "{zeros} of 1024 pages");
    }
}
