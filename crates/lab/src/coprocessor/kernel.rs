//! Hashes and ciphers, measured in this process.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use aws_lc_rs::cipher::{AES_128, AES_256, Algorithm, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use aws_lc_rs::{aead, iv};
use serde::{Deserialize, Serialize};

use crate::coprocessor::code::Features;
use crate::counts::float;
use crate::processor::{processor_time, processor_time_since};

/// Bytes that are hashed or encrypted again and again: more than a core's own caches, which have 2 MiB at most.
const NOISE_BYTES: usize = 4 << 20;
/// Bytes between two looks at the clock.
const STEP_BYTES: usize = 1 << 20;
/// Length of the blocks of AES, of which a block of a measurement has a whole number.
const AES_BLOCK_BYTES: usize = 16;
/// Longest measurement, in milliseconds.
pub(crate) const MILLIS_MAX: u64 = 60_000;

/// A hash or a cipher.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Kernel {
    /// SHA-1.
    #[serde(rename = "sha-1")]
    Sha1,
    /// SHA-256.
    #[serde(rename = "sha-256")]
    Sha256,
    /// AES with 128 bits, each block chained to the one before.
    #[serde(rename = "aes-128-cbc")]
    Aes128Cbc,
    /// The same with 256 bits.
    #[serde(rename = "aes-256-cbc")]
    Aes256Cbc,
    /// AES with 128 bits, by a counter.
    #[serde(rename = "aes-128-ctr")]
    Aes128Ctr,
    /// The same with 256 bits.
    #[serde(rename = "aes-256-ctr")]
    Aes256Ctr,
    /// AES with 256 bits, by a counter and authenticated: that of repositories.
    #[serde(rename = "aes-256-gcm")]
    Aes256Gcm,
}

impl Kernel {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha-1",
            Self::Sha256 => "sha-256",
            Self::Aes128Cbc => "aes-128-cbc",
            Self::Aes256Cbc => "aes-256-cbc",
            Self::Aes128Ctr => "aes-128-ctr",
            Self::Aes256Ctr => "aes-256-ctr",
            Self::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// Returns true if it is a hash.
    pub fn is_hash(self) -> bool {
        matches!(self, Self::Sha1 | Self::Sha256)
    }

    /// Returns why no difference can be seen on a processor; none if one can.
    pub fn missing(self, features: Features) -> Option<String> {
        let (has, name) = if self.is_hash() { (features.sha, "SHA") } else { (features.aes, "AES") };
        if !features.can_be_masked {
            return Some("It needs an x86-64 processor and a program that can be started again: the library chooses its code by their features.".to_owned());
        }
        (!has).then(|| format!("This processor has no instructions for {name}."))
    }
}

/// A kernel with its key: changes a block in place if it is a cipher.
pub(crate) enum Ready {
    Hash(&'static aws_lc_rs::digest::Algorithm),
    Cipher(Box<EncryptingKey>),
    Authenticated(aead::LessSafeKey),
}

impl Ready {
    pub(crate) fn new(kernel: Kernel) -> Result<Self> {
        // The key and the initial vector are no secret here: nothing that is encrypted is kept.
        let cipher =
            |algorithm: &'static Algorithm, len: usize, make: fn(UnboundCipherKey) -> Result<EncryptingKey, _>| {
                let key = UnboundCipherKey::new(algorithm, &[0x5a; 32][..len]);
                key.and_then(make)
                    .map(|key| Self::Cipher(Box::new(key)))
                    .map_err(|_| anyhow!("{}: no such key", kernel.name()))
            };
        match kernel {
            Kernel::Sha1 => Ok(Self::Hash(&SHA1_FOR_LEGACY_USE_ONLY)),
            Kernel::Sha256 => Ok(Self::Hash(&SHA256)),
            Kernel::Aes128Cbc => cipher(&AES_128, 16, EncryptingKey::cbc),
            Kernel::Aes256Cbc => cipher(&AES_256, 32, EncryptingKey::cbc),
            Kernel::Aes128Ctr => cipher(&AES_128, 16, EncryptingKey::ctr),
            Kernel::Aes256Ctr => cipher(&AES_256, 32, EncryptingKey::ctr),
            Kernel::Aes256Gcm => {
                let key = aead::UnboundKey::new(&aead::AES_256_GCM, &[0x5a; 32]);
                Ok(Self::Authenticated(aead::LessSafeKey::new(key.map_err(|_| anyhow!("no such key"))?)))
            }
        }
    }

    /// Hashes or encrypts a block; returns a hash, or an authenticator.
    pub(crate) fn apply(&self, block: &mut [u8]) -> Result<Vec<u8>> {
        let len = block.len();
        let refused = |_| anyhow!("a block of {len} bytes cannot be encrypted");
        match self {
            Self::Hash(algorithm) => Ok(digest(algorithm, block).as_ref().to_vec()),
            Self::Cipher(key) => {
                let context = EncryptionContext::Iv128(iv::FixedLength::from([0xa5; AES_BLOCK_BYTES]));
                key.less_safe_encrypt(block, context).map_err(refused)?;
                Ok(Vec::new())
            }
            Self::Authenticated(key) => {
                let nonce = aead::Nonce::assume_unique_for_key([0xa5; aead::NONCE_LEN]);
                let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::empty(), block).map_err(refused)?;
                Ok(tag.as_ref().to_vec())
            }
        }
    }
}

/// A measurement to make.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelJob {
    /// The kernel.
    pub kernel: Kernel,
    /// Bytes of a block, each of which is hashed or encrypted by itself; a multiple of 16.
    pub block: usize,
    /// Milliseconds that it takes.
    pub millis: u64,
}

/// A measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelDone {
    /// Bytes hashed or encrypted.
    pub bytes: u64,
    /// Seconds by the clock.
    pub seconds: f64,
    /// Seconds of processor time.
    pub processor_seconds: f64,
    /// Hash of the results of the first block, equal for all code.
    pub check: String,
}

impl KernelDone {
    /// Returns MB per second of processor time.
    pub fn rate(&self) -> f64 {
        float(self.bytes) / 1e6 / self.processor_seconds.max(1e-9)
    }
}

/// Returns bytes that do not compress.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut noise = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    noise
}

impl KernelJob {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        let Self { block, millis, .. } = *self;
        let is_whole = block != 0 && block.is_multiple_of(AES_BLOCK_BYTES) && block <= STEP_BYTES;
        ensure!(is_whole, "blocks: multiples of {AES_BLOCK_BYTES} up to {STEP_BYTES} bytes, not {block}");
        ensure!((1..=MILLIS_MAX).contains(&millis), "milliseconds: 1 to {MILLIS_MAX}, not {millis}");
        Ok(())
    }

    /// Measures in this process.
    pub fn perform(&self) -> Result<KernelDone> {
        self.check()?;
        let ready = Ready::new(self.kernel)?;
        let mut noise = noise(NOISE_BYTES);
        let mut first = noise[..self.block].to_vec();
        let mut check = blake3::Hasher::new();
        check.update(&ready.apply(&mut first)?).update(&first);
        let check = check.finalize().to_hex()[..16].to_owned();
        let (start, started) = (Instant::now(), processor_time());
        let mut bytes = 0;
        'all: loop {
            for step in noise.chunks_mut(STEP_BYTES) {
                for block in step.chunks_exact_mut(self.block) {
                    std::hint::black_box(ready.apply(block)?);
                    bytes += block.len() as u64;
                }
                if Duration::from_millis(self.millis) <= start.elapsed() {
                    break 'all;
                }
            }
        }
        let processor_seconds = processor_time_since(started).as_secs_f64();
        Ok(KernelDone { bytes, seconds: start.elapsed().as_secs_f64(), processor_seconds, check })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Kernel; 7] = [
        Kernel::Sha1,
        Kernel::Sha256,
        Kernel::Aes128Cbc,
        Kernel::Aes256Cbc,
        Kernel::Aes128Ctr,
        Kernel::Aes256Ctr,
        Kernel::Aes256Gcm,
    ];

    #[test]
    fn kernels_compute_what_their_standards_say() {
        // FIPS 180: "abc".
        let hash = |kernel| Ready::new(kernel).unwrap().apply(&mut b"abc".to_vec()).unwrap();
        assert_eq!(hash(Kernel::Sha1)[..4], [0xa9, 0x99, 0x3e, 0x36]);
        assert_eq!(hash(Kernel::Sha256)[..4], [0xba, 0x78, 0x16, 0xbf]);
        // Of the modes, the first block by a counter is the encrypted initial vector where the plain one is zero, and the first chained block is that
        // where the plain one is the vector itself, differing by nothing from zero: compare them.
        let encrypted = |kernel, mut block: Vec<u8>| {
            Ready::new(kernel).unwrap().apply(&mut block).unwrap();
            block
        };
        let counter = encrypted(Kernel::Aes128Ctr, vec![0; 16]);
        let chained = encrypted(Kernel::Aes128Cbc, vec![0; 32]);
        assert_eq!(counter, chained[..16]);
        assert_ne!(chained[..16], chained[16..]);
        assert_ne!(encrypted(Kernel::Aes256Ctr, vec![0; 16]), counter);
        assert_ne!(encrypted(Kernel::Aes256Gcm, vec![0; 16]), counter);
    }

    #[test]
    fn every_kernel_is_measured_and_gives_the_same_each_time() {
        for kernel in ALL {
            assert_eq!(serde_json::to_value(kernel).unwrap(), kernel.name());
            let job = KernelJob { kernel, block: 4096, millis: 1 };
            let (one, other) = (job.perform().unwrap(), job.perform().unwrap());
            assert!(one.check == other.check && 1 << 20 <= one.bytes && 0.0 < one.rate(), "{one:?}");
            assert_ne!(one.check, KernelJob { block: 64, ..job }.perform().unwrap().check);
        }
        for (block, millis, wanted) in
            [(0, 1, "blocks"), (24, 1, "blocks"), (2 << 20, 1, "blocks"), (16, 0, "1 to 60000")]
        {
            let refused = KernelJob { kernel: Kernel::Sha1, block, millis }.perform().unwrap_err();
            assert!(refused.to_string().contains(wanted), "{refused}");
        }
    }

    #[test]
    fn a_processor_without_the_instructions_cannot_show_their_effect() {
        let features = Features { sha: false, aes: true, can_be_masked: true };
        assert_eq!(Kernel::Sha1.missing(features).unwrap(), "This processor has no instructions for SHA.");
        assert_eq!(Kernel::Aes128Cbc.missing(features), None);
        assert!(Kernel::Aes128Cbc.missing(Features { can_be_masked: false, ..features }).unwrap().contains("x86-64"));
    }
}
