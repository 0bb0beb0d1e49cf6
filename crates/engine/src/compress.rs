//! Compression of regions.

use std::str::FromStr;

use crate::error::{Error, Result};

/// How new regions are compressed. What is stored says for itself how it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// Stored as they are.
    Off,
    /// LZ4 block format.
    Lz4,
    /// Zstandard at a level from 1 to 19.
    Zstd(i32),
}

impl Default for Compression {
    fn default() -> Self {
        Self::Zstd(1)
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(Self::Off),
            "lz4" => Ok(Self::Lz4),
            "auto" | "zstd" => Ok(Self::default()),
            "fastest" => Ok(Self::Zstd(1)),
            "better" => Ok(Self::Zstd(9)),
            "max" => Ok(Self::Zstd(19)),
            _ => match text.strip_prefix("zstd:").and_then(|level| level.parse().ok()) {
                Some(level @ 1..=19) => Ok(Self::Zstd(level)),
                _ => Err(Error::invalid(format!(
                    "compression `{text}` is none of auto, off, lz4, zstd, zstd:1 to zstd:19, fastest, better, max"
                ))),
            },
        }
    }
}

/// How a stored region was compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// As it is.
    None,
    /// Zstandard frame.
    Zstd,
    /// LZ4 block.
    Lz4,
}

impl Algorithm {
    /// Returns the byte that stands for the algorithm in the format.
    pub fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Zstd => 1,
            Self::Lz4 => 2,
        }
    }

    /// Returns the algorithm that a byte of the format stands for.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Zstd),
            2 => Some(Self::Lz4),
            _ => None,
        }
    }
}

/// Compresses and decompresses, keeping the state of the compressor between calls.
#[derive(Default)]
pub struct Compressor {
    zstd: Option<(i32, zstd::bulk::Compressor<'static>)>,
    unzstd: Option<zstd::bulk::Decompressor<'static>>,
    /// Room for the worst case of what is being compressed, kept from call to call.
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compressor")
    }
}

impl Compressor {
    /// Compresses `plain` into `out`, which is replaced and takes no more room than what is put into it; where compression
    /// would not shrink it, `out` stays empty, and what is stored is `plain` itself.
    pub fn compress(&mut self, compression: Compression, plain: &[u8], out: &mut Vec<u8>) -> Algorithm {
        out.clear();
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let algorithm = match compression {
            Compression::Off => Algorithm::None,
            Compression::Lz4 => {
                scratch.resize(lz4_flex::block::get_maximum_output_size(plain.len()), 0);
                let len = lz4_flex::block::compress_into(plain, &mut scratch).unwrap_or(plain.len());
                scratch.truncate(len);
                Algorithm::Lz4
            }
            Compression::Zstd(level) => {
                scratch.reserve(zstd::zstd_safe::compress_bound(plain.len()));
                let done = self.zstd(level).is_some_and(|zstd| zstd.compress_to_buffer(plain, &mut scratch).is_ok());
                if done { Algorithm::Zstd } else { Algorithm::None }
            }
        };
        let shrinks = algorithm != Algorithm::None && scratch.len() < plain.len();
        if shrinks {
            // A copy of the little that is left, so that what waits to be sealed does not hold room for the worst case.
            out.reserve_exact(scratch.len());
            out.extend_from_slice(&scratch);
        }
        self.scratch = scratch;
        if shrinks { algorithm } else { Algorithm::None }
    }

    /// Decompresses `stored` into `out`, which is replaced and must come out exactly `plain_len` long.
    /// The caller has checked `plain_len` against the limit for regions. False: not what was compressed.
    #[must_use]
    pub fn decompress(&mut self, algorithm: Algorithm, stored: &[u8], plain_len: usize, out: &mut Vec<u8>) -> bool {
        match algorithm {
            Algorithm::None => {
                out.clear();
                out.extend_from_slice(stored);
                out.len() == plain_len
            }
            Algorithm::Lz4 => {
                // Bytes that are there are overwritten, not set to zero first.
                out.resize(plain_len, 0);
                lz4_flex::block::decompress_into(stored, out).is_ok_and(|len| len == plain_len)
            }
            Algorithm::Zstd => {
                out.clear();
                out.reserve(plain_len);
                if self.unzstd.is_none() {
                    self.unzstd = zstd::bulk::Decompressor::new().ok();
                }
                let Some(unzstd) = &mut self.unzstd else { return false };
                unzstd.decompress_to_buffer(stored, out).is_ok_and(|len| len == plain_len)
            }
        }
    }

    /// Returns what was compressed, in `stored` itself or in `scratch`, which is replaced; otherwise as
    /// [`Compressor::decompress`]. `None`: not what was compressed.
    pub fn plaintext<'a>(
        &mut self,
        algorithm: Algorithm,
        stored: &'a [u8],
        plain_len: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        match algorithm {
            Algorithm::None => (stored.len() == plain_len).then_some(stored),
            Algorithm::Lz4 | Algorithm::Zstd => {
                self.decompress(algorithm, stored, plain_len, scratch).then_some(scratch.as_slice())
            }
        }
    }

    fn zstd(&mut self, level: i32) -> Option<&mut zstd::bulk::Compressor<'static>> {
        if self.zstd.as_ref().is_none_or(|(held, _)| *held != level) {
            self.zstd = zstd::bulk::Compressor::new(level).ok().map(|zstd| (level, zstd));
        }
        self.zstd.as_mut().map(|(_, zstd)| zstd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_gives_back_what_it_took() {
        let text = b"onefold stores everything once ".repeat(300);
        let noise: Vec<u8> = blake3::Hasher::new().finalize_xof().take_bytes(5000);
        let mut compressor = Compressor::default();
        for compression in [Compression::Off, Compression::Lz4, Compression::Zstd(1), Compression::Zstd(3)] {
            for plain in [&b""[..], b"a", &text, &noise] {
                let (mut stored, mut back) = (Vec::new(), Vec::new());
                let algorithm = compressor.compress(compression, plain, &mut stored);
                if algorithm == Algorithm::None {
                    assert_eq!(stored, b"");
                    stored.extend_from_slice(plain);
                } else {
                    assert!(stored.len() < plain.len());
                }
                assert!(compressor.decompress(algorithm, &stored, plain.len(), &mut back));
                assert_eq!(back, plain);
                assert!(!compressor.decompress(algorithm, &stored, plain.len() + 1, &mut back));
            }
        }
    }

    trait TakeBytes {
        fn take_bytes(self, len: usize) -> Vec<u8>;
    }

    impl TakeBytes for blake3::OutputReader {
        fn take_bytes(mut self, len: usize) -> Vec<u8> {
            let mut bytes = vec![0; len];
            self.fill(&mut bytes);
            bytes
        }
    }
}
