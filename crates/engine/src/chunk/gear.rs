//! Phase 1: candidates, by a keyed Gear hash over a window of 32 bytes.
//!
//! `h = (h << 1) + T[byte]` in 32 bits forgets a byte after 32 steps, so the hash at a position depends on the window
//! before it and on nothing else: any worker can start anywhere, 31 bytes early. (Gear: Xia et al., "Ddelta", 2014.
//! `FastCDC` and others restart the hash at every cut, which makes positions depend on the cuts before; we deviate.)
//! The search itself is `onefold_accel::boundary`.

use onefold_accel::boundary::Finder;
use onefold_accel::device::Search;

use crate::chunk::ChunkSizes;

pub use onefold_accel::boundary::WINDOW;

/// The table of the hash and its threshold, drawn from a repository's key.
#[derive(Clone, Debug)]
pub struct GearTable {
    finder: Finder,
}

impl GearTable {
    /// Expands the table from the key: BLAKE3 keyed with it, over a 32-bit attempt number, read as 256 little-endian
    /// words. Drawn again until no run of one byte is a candidate, so that such runs give chunks of the largest size.
    pub fn expand(key: &[u8; 32], sizes: ChunkSizes) -> Self {
        let threshold = u32::MAX / sizes.target.max(1);
        let mut attempt = 0u32;
        loop {
            let mut bytes = [0; 1024];
            blake3::Hasher::new_keyed(key).update(&attempt.to_le_bytes()).finalize_xof().fill(&mut bytes);
            let mut table = [0u32; 256];
            for (word, bytes) in table.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = u32::from_le_bytes(bytes.try_into().expect("chunks of four"));
            }
            // 32 equal bytes hash to T * (2^32 - 1), which is -T.
            if table.iter().all(|word| threshold <= word.wrapping_neg()) {
                return Self { finder: Finder::new(&table, threshold) };
            }
            attempt += 1;
        }
    }

    /// Returns the search for a device.
    pub(crate) fn search(&self) -> Search {
        Search { table: Box::new(*self.finder.table()), threshold: self.finder.threshold() }
    }

    /// Returns the words of the table.
    pub(crate) fn words(&self) -> &[u32; 256] {
        self.finder.table()
    }

    /// Returns the number that the hash of a candidate is less than.
    pub(crate) fn threshold(&self) -> u32 {
        self.finder.threshold()
    }

    /// Appends the candidates among the positions after `halo` bytes: offsets counted from the end of the halo, of the
    /// byte after the last hashed one, ascending. `halo` is how many bytes at the front only warm up the hash: 31, or
    /// fewer where the stream starts less than 31 bytes earlier.
    pub fn candidates(&self, bytes: &[u8], halo: usize, out: &mut Vec<u32>) {
        self.finder.candidates(bytes, halo, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> GearTable {
        GearTable::expand(&[42; 32], ChunkSizes::for_average(1024))
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().update(b"gear").finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn candidates_do_not_depend_on_where_a_worker_starts() {
        let (table, bytes) = (table(), noise(100_000));
        let mut whole = Vec::new();
        table.candidates(&bytes, 0, &mut whole);
        assert!(100 < whole.len() && whole.len() < 400, "{} candidates", whole.len());
        for block in [1, 7, 31, 32, 33, 4096, 65_536] {
            let mut parts = Vec::new();
            for start in (0..bytes.len()).step_by(block) {
                let halo = start.min(WINDOW - 1);
                let end = (start + block).min(bytes.len());
                let mut found = Vec::new();
                table.candidates(&bytes[start - halo..end], halo, &mut found);
                parts.extend(found.into_iter().map(|position| position + u32::try_from(start).unwrap()));
            }
            assert_eq!(parts, whole, "blocks of {block}");
        }
    }

    #[test]
    fn runs_of_one_byte_hold_no_candidate_once_the_window_is_full() {
        let table = table();
        for byte in 0..=255u8 {
            let mut found = Vec::new();
            table.candidates(&[byte; 4096], WINDOW - 1, &mut found);
            assert_eq!(found, [], "byte {byte}");
        }
    }
}
