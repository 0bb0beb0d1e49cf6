//! Candidates for the ends of chunks, by a 32-bit Gear hash over a window of 32 bytes.
//!
//! In `h = (h << 1) + T[byte]` with 32 bits, a byte has no effect after 32 steps. The hash at a position depends only
//! on the window before it, so a kernel can search several strips of a range in parallel if it starts each 32 bytes
//! early. `serial` is the specification. The other kernels set a bit for each position they find and then read the
//! positions in order. The bits need no more memory even if every position is a candidate.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod interleaved;
mod marks;
mod serial;
#[cfg(test)]
mod tests;

use std::fmt;

use marks::Marks;

/// Number of bytes that determine whether a position is a candidate.
pub const WINDOW: usize = 32;

/// Minimum length of a strip: the early start of a shorter one costs more than the strip saves.
const STRIP_BYTES_MIN: usize = 2 * WINDOW;
/// Strips are a multiple of this many bytes, the most that a kernel loads of a strip at a time.
const STRIP_STEP: usize = 16;

/// One of several ways to find the same candidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// One byte after another: the specification.
    Serial,
    /// Four strips in turn, whose steps overlap. Runs on any processor.
    Interleaved,
    /// Eight strips in vectors of 256 bits. Needs AVX2.
    Avx2,
    /// Sixteen strips in vectors of 512 bits. Needs AVX-512 F, BW and VBMI.
    Avx512,
}

impl Kernel {
    /// All kernels, slowest first.
    pub const ALL: [Self; 4] = [Self::Serial, Self::Interleaved, Self::Avx2, Self::Avx512];

    /// Returns true if this processor has the instructions of the kernel.
    pub fn is_available(self) -> bool {
        match self {
            Self::Serial | Self::Interleaved => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vbmi")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// Returns the fastest available kernel.
    pub fn fastest() -> Self {
        let available = Self::ALL.into_iter().rev().find(|kernel| kernel.is_available());
        available.unwrap_or(Self::Serial)
    }

    /// Returns the number of strips that the kernel searches at a time, or `None` if it does not use strips.
    fn strips(self) -> Option<usize> {
        match self {
            Self::Serial => None,
            Self::Interleaved => Some(interleaved::STRIPS),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Some(avx2::STRIPS),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Some(avx512::STRIPS),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => None,
        }
    }
}

/// The table, the form of it that shuffles use, and the threshold.
#[derive(Clone)]
struct Hash {
    table: [u32; 256],
    /// The four bytes of the table's words as four tables, in quarters, for byte shuffles.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only the kernel for AVX-512 looks up bytes"))]
    planes: [[[u8; 64]; 4]; 4],
    threshold: u32,
}

/// Adjacent strips of equal length. A whole window precedes the first.
#[derive(Clone, Copy)]
struct Strips {
    start: usize,
    len: usize,
}

/// A search for candidates with a table and a threshold.
#[derive(Clone)]
pub struct Finder {
    hash: Box<Hash>,
    kernel: Kernel,
}

impl fmt::Debug for Finder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The table is secret: it would tell boundaries from lengths.
        let Self { hash, kernel } = self;
        f.debug_struct("Finder").field("threshold", &hash.threshold).field("kernel", kernel).finish_non_exhaustive()
    }
}

impl Finder {
    /// Prepares the search for positions whose hash is less than `threshold`, with the fastest available kernel.
    pub fn new(table: &[u32; 256], threshold: u32) -> Self {
        Self::with_kernel(table, threshold, Kernel::fastest())
    }

    /// Prepares the search with a kernel. Panics if the kernel is not available.
    pub fn with_kernel(table: &[u32; 256], threshold: u32, kernel: Kernel) -> Self {
        assert!(kernel.is_available(), "{kernel:?} on a processor that lacks its instructions");
        let mut planes = [[[0; 64]; 4]; 4];
        for (index, word) in table.iter().enumerate() {
            for (plane, byte) in planes.iter_mut().zip(word.to_le_bytes()) {
                plane[index / 64][index % 64] = byte;
            }
        }
        Self { hash: Box::new(Hash { table: *table, planes, threshold }), kernel }
    }

    /// Returns the table.
    pub fn table(&self) -> &[u32; 256] {
        &self.hash.table
    }

    /// Returns the threshold.
    pub fn threshold(&self) -> u32 {
        self.hash.threshold
    }

    /// Returns the hash after the last of `bytes`, which decides whether a candidate ends there.
    pub fn hash(&self, bytes: &[u8]) -> u32 {
        self.hash.before(bytes, bytes.len())
    }

    /// Returns the hash after `bytes` from the hash before them.
    pub fn roll(&self, hash: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(hash, |hash, byte| self.hash.step(hash, *byte))
    }

    /// Appends the candidates among the positions after `halo` bytes, in ascending order. A candidate is the offset of
    /// the byte after the last hashed one from the end of the halo. `halo` is the number of bytes at the front that
    /// only warm up the hash: 31, or fewer if the stream starts less than 31 bytes earlier. Less than 4 GiB follow it.
    pub fn candidates(&self, bytes: &[u8], halo: usize, out: &mut Vec<u32>) {
        let halo = halo.min(bytes.len());
        assert!(u32::try_from(bytes.len() - halo).is_ok(), "positions have 32 bits");
        let mut start = halo;
        if let Some(strips) = self.kernel.strips() {
            // A whole window must precede the first strip.
            start = halo.max(WINDOW).min(bytes.len());
            serial::candidates(&self.hash, bytes, halo..start, halo, out);
            start = self.search_strips(strips, bytes, start, halo, out);
        }
        serial::candidates(&self.hash, bytes, start..bytes.len(), halo, out);
    }

    /// Searches from `start` while the rest is long enough for strips, and returns the end of the searched bytes.
    fn search_strips(&self, count: usize, bytes: &[u8], mut start: usize, halo: usize, out: &mut Vec<u32>) -> usize {
        let mut marks = Marks::default();
        loop {
            let len = (bytes.len() - start).min(marks::POSITIONS) / count / STRIP_STEP * STRIP_STEP;
            if len < STRIP_BYTES_MIN {
                return start;
            }
            let strips = Strips { start, len };
            match self.kernel {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a finder is only made with a kernel whose instructions the processor has.
                Kernel::Avx512 => unsafe { avx512::mark(&self.hash, bytes, strips, &mut marks) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                Kernel::Avx2 => unsafe { avx2::mark(&self.hash, bytes, strips, &mut marks) },
                _ => interleaved::mark(&self.hash, bytes, strips, &mut marks),
            }
            marks.take(count * len, start - halo, out);
            start += count * len;
        }
    }
}
