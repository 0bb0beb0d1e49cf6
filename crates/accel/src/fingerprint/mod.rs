//! Fingerprints: keyed BLAKE3 of many chunks at a time.
//!
//! BLAKE3 hashes leaves of 1 KiB independently of each other, then pairs of results, level by level, up to a root. The
//! `blake3` crate, which is the specification, fills the lanes of a vector from one input. A chunk of 4 KiB keeps most
//! lanes idle, and the levels above keep even more idle. These kernels fill the lanes from all chunks of a group: first
//! with whole leaves, then with the partial last leaves sorted by length, then with the pairs of each level. Chunks of
//! more than 128 KiB go through the crate.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod group;
#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "x86_64")]
mod leaf;
#[cfg(test)]
mod tests;

/// One of several ways to compute the same fingerprints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// The `blake3` crate, one chunk at a time: the specification. Runs on any processor.
    ChunkByChunk,
    /// Eight lanes of 32 bits, filled from several chunks. Needs AVX2.
    Avx2,
    /// Sixteen lanes of 32 bits, filled from several chunks. Needs AVX-512 F.
    Avx512,
}

impl Kernel {
    /// All kernels, slowest first.
    pub const ALL: [Self; 3] = [Self::ChunkByChunk, Self::Avx2, Self::Avx512];

    /// Returns true if this processor has the instructions of the kernel.
    pub fn is_available(self) -> bool {
        match self {
            Self::ChunkByChunk => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// Returns the fastest available kernel.
    pub fn fastest() -> Self {
        let available = Self::ALL.into_iter().rev().find(|kernel| kernel.is_available());
        available.unwrap_or(Self::ChunkByChunk)
    }
}

/// Appends the keyed BLAKE3 of every chunk, in order, computed by the processor's fastest kernel.
pub fn keyed_hashes(key: &[u8; 32], chunks: &[&[u8]], out: &mut Vec<[u8; 32]>) {
    keyed_hashes_with(Kernel::fastest(), key, chunks, out);
}

/// Appends the keyed BLAKE3 of every chunk, in order, computed by `kernel`. Panics if the kernel is not available.
pub fn keyed_hashes_with(kernel: Kernel, key: &[u8; 32], chunks: &[&[u8]], out: &mut Vec<[u8; 32]>) {
    assert!(kernel.is_available(), "{kernel:?} on a processor that lacks its instructions");
    match kernel {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the assertion above checks that the processor has the instructions.
        Kernel::Avx2 => unsafe { group::keyed_hashes::<avx2::Eight>(key, chunks, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the assertion above checks that the processor has the instructions.
        Kernel::Avx512 => unsafe { group::keyed_hashes::<avx512::Sixteen>(key, chunks, out) },
        _ => chunk_by_chunk(key, chunks, out),
    }
}

fn chunk_by_chunk(key: &[u8; 32], chunks: &[&[u8]], out: &mut Vec<[u8; 32]>) {
    out.extend(chunks.iter().map(|chunk| *blake3::keyed_hash(key, chunk).as_bytes()));
}
