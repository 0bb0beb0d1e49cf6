//! Fingerprints of chunks on several threads, by SHA-1, SHA-256 or keyed BLAKE3.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::coprocessor::kernel::{Kernel, Ready};
use crate::counts::float;
use crate::together::{THREADS_MAX, Taken, together};

/// Bytes that a thread names again and again: more than a core's own caches, which have 2 MiB at most.
const NOISE_BYTES: usize = 4 << 20;
/// Bytes of a call, as a block of a backup.
const BLOCK_BYTES: usize = 512 << 10;
/// Key of BLAKE3 here; it is no secret.
const KEY: [u8; 32] = [7; 32];

/// A hash that names chunks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Hash {
    /// SHA-1, the paper's.
    #[serde(rename = "sha-1")]
    Sha1,
    /// SHA-256.
    #[serde(rename = "sha-256")]
    Sha256,
    /// Keyed BLAKE3 of many chunks at a time, that of repositories.
    #[serde(rename = "blake3")]
    Blake3,
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha1 => "sha-1",
            Self::Sha256 => "sha-256",
            Self::Blake3 => "blake3",
        })
    }
}

impl Hash {
    /// Returns true if the library chooses its code by the variable that takes instructions away.
    pub fn can_be_masked(self) -> bool {
        self != Self::Blake3
    }

    fn ready(self) -> Result<Option<Ready>> {
        match self {
            Self::Sha1 => Ready::new(Kernel::Sha1).map(Some),
            Self::Sha256 => Ready::new(Kernel::Sha256).map(Some),
            Self::Blake3 => Ok(None),
        }
    }
}

/// Names the chunks of a block, and appends the names.
fn name(ready: Option<&Ready>, block: &mut [u8], chunk: usize, names: &mut Vec<u8>) -> Result<()> {
    if let Some(hash) = ready {
        for chunk in block.chunks_mut(chunk) {
            names.extend(hash.apply(chunk)?);
        }
        return Ok(());
    }
    let chunks: Vec<_> = block.chunks(chunk).collect();
    let mut found = Vec::with_capacity(chunks.len());
    onefold_accel::fingerprint::keyed_hashes(&KEY, &chunks, &mut found);
    names.extend(found.iter().flatten());
    Ok(())
}

/// A measurement to make.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FingerprintJob {
    /// The hash.
    pub hash: Hash,
    /// Threads that name chunks at the same time.
    pub threads: usize,
    /// Bytes of a chunk.
    pub chunk: usize,
    /// MiB that each thread names.
    pub mib: u64,
}

/// A measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FingerprintDone {
    /// MB per second by the clock, of all threads.
    pub rate: f64,
    /// Seconds of processor time for a GB.
    pub processor_per_gigabyte: f64,
    /// Hash of the names of the first thread, equal for all code.
    pub check: String,
}

impl FingerprintJob {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        let Self { threads, chunk, mib, .. } = *self;
        ensure!((1..=THREADS_MAX).contains(&threads), "threads: 1 to {THREADS_MAX}, not {threads}");
        let is_whole = chunk.is_power_of_two() && (64..=BLOCK_BYTES).contains(&chunk);
        ensure!(is_whole, "chunks: 64 to {BLOCK_BYTES} bytes, a power of two, not {chunk}");
        ensure!((1..=1 << 20).contains(&mib), "MiB of a thread: 1 to {}, not {mib}", 1 << 20);
        Ok(())
    }

    /// Measures in this process.
    pub fn perform(&self) -> Result<FingerprintDone> {
        self.check()?;
        let prepare = |number: usize| Ok((noise_of(number), self.hash.ready()?));
        let blocks = (self.mib << 20).div_ceil(BLOCK_BYTES as u64);
        let work = |(mut noise, ready): (Vec<u8>, Option<Ready>)| {
            let (mut names, mut left) = (Vec::new(), blocks);
            while left != 0 {
                for block in noise.chunks_mut(BLOCK_BYTES) {
                    if left == 0 {
                        break;
                    }
                    names.clear();
                    name(ready.as_ref(), block, self.chunk, &mut names)?;
                    std::hint::black_box(&names);
                    left -= 1;
                }
            }
            Ok(blocks * BLOCK_BYTES as u64)
        };
        let taken: Taken = together(self.threads, prepare, work)?;
        let mut names = Vec::new();
        name(self.hash.ready()?.as_ref(), &mut noise_of(0), self.chunk, &mut names)?;
        let check = blake3::hash(&names).to_hex()[..16].to_owned();
        Ok(FingerprintDone { rate: taken.rate(), processor_per_gigabyte: taken.processor_per_gigabyte(), check })
    }
}

/// Returns bytes that do not compress, others for each thread.
fn noise_of(thread: usize) -> Vec<u8> {
    let mut noise = vec![0; NOISE_BYTES];
    blake3::Hasher::new().update(&(thread as u64).to_le_bytes()).finalize_xof().fill(&mut noise);
    noise
}

impl FingerprintDone {
    /// Returns seconds by the clock for a GB.
    pub fn per_gigabyte(&self) -> f64 {
        float(1000) / self.rate.max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use sha2::Digest;

    use super::*;

    #[test]
    fn names_are_those_of_the_hash_and_do_not_depend_on_the_threads() {
        let noise = noise_of(0);
        for (hash, len) in [(Hash::Sha1, 20), (Hash::Sha256, 32), (Hash::Blake3, 32)] {
            let wanted: Vec<u8> = noise
                .chunks(4096)
                .flat_map(|chunk| match hash {
                    Hash::Sha1 => sha1::Sha1::digest(chunk).to_vec(),
                    Hash::Sha256 => sha2::Sha256::digest(chunk).to_vec(),
                    Hash::Blake3 => blake3::keyed_hash(&KEY, chunk).as_bytes().to_vec(),
                })
                .collect();
            assert_eq!(wanted.len(), noise.len() / 4096 * len);
            for threads in [1, 3] {
                let done = FingerprintJob { hash, threads, chunk: 4096, mib: 1 }.perform().unwrap();
                assert_eq!(done.check, blake3::hash(&wanted).to_hex()[..16].to_owned(), "{hash}");
                assert!(0.0 < done.rate && 0.0 < done.processor_per_gigabyte, "{done:?}");
            }
            assert_eq!(serde_json::to_value(hash).unwrap(), hash.to_string());
        }
        assert_ne!(noise_of(1), noise);
        let sound = FingerprintJob { hash: Hash::Sha1, threads: 1, chunk: 4096, mib: 1 };
        let refused = |job: FingerprintJob| job.perform().unwrap_err().to_string();
        assert!(refused(FingerprintJob { threads: 0, ..sound.clone() }).starts_with("threads: 1 to"));
        assert!(refused(FingerprintJob { chunk: 100, ..sound.clone() }).starts_with("chunks: 64 to"));
        assert!(refused(FingerprintJob { mib: 0, ..sound }).starts_with("MiB of a thread"));
    }
}
