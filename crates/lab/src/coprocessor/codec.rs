//! Compressors: the paper's, and those of today.

use std::fmt;

use anyhow::{Context, Result, ensure};
use onefold_engine::compress::lzjb;
use serde::{Deserialize, Serialize};

use crate::point::dimension::unknown;

/// Level of zstd that is fastest, and the slowest that is measured.
const LEVELS: std::ops::RangeInclusive<i32> = -7..=19;

/// A compressor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Codec {
    /// None: bytes are copied.
    Off,
    /// LZJB.
    Lzjb,
    /// LZ4, as blocks.
    Lz4,
    /// Zstandard, of a level.
    Zstd(i32),
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Lzjb => f.write_str("lzjb"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl From<Codec> for String {
    fn from(codec: Codec) -> Self {
        codec.to_string()
    }
}

impl TryFrom<String> for Codec {
    type Error = anyhow::Error;

    fn try_from(name: String) -> Result<Self> {
        match (&*name, name.strip_prefix("zstd:")) {
            ("off", _) => Ok(Self::Off),
            ("lzjb", _) => Ok(Self::Lzjb),
            ("lz4", _) => Ok(Self::Lz4),
            (_, Some(level)) => {
                let level = level.parse().with_context(|| format!("{name:?}: a level is a number"))?;
                ensure!(LEVELS.contains(&level), "{name:?}: levels {} to {}", LEVELS.start(), LEVELS.end());
                Ok(Self::Zstd(level))
            }
            _ => Err(unknown("compressor", &name, ["off", "lzjb", "lz4", "zstd:3"].into_iter())),
        }
    }
}

/// A compressor with its tables.
pub struct Compressor {
    codec: Codec,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Compressor").field(&self.codec).finish()
    }
}

impl Compressor {
    /// Makes one.
    pub fn new(codec: Codec) -> Result<Self> {
        let zstd = match codec {
            Codec::Zstd(level) => Some(zstd::bulk::Compressor::new(level)?),
            Codec::Off | Codec::Lzjb | Codec::Lz4 => None,
        };
        Ok(Self { codec, zstd })
    }

    /// Replaces the contents of `out` by the compressed form of some bytes.
    pub fn compress(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        match (self.codec, &mut self.zstd) {
            (Codec::Lzjb, _) => lzjb::compress(plain, out),
            (Codec::Lz4, _) => {
                out.resize(lz4_flex::block::get_maximum_output_size(plain.len()), 0);
                let len = lz4_flex::block::compress_into(plain, out)?;
                out.truncate(len);
            }
            (Codec::Zstd(_), Some(zstd)) => {
                out.reserve(zstd::zstd_safe::compress_bound(plain.len()));
                zstd.compress_to_buffer(plain, out)?;
            }
            (Codec::Off | Codec::Zstd(_), _) => out.extend_from_slice(plain),
        }
        Ok(())
    }

    /// Returns the plain form, of `len` bytes.
    pub fn decompress(&self, stream: &[u8], len: usize) -> Result<Vec<u8>> {
        match self.codec {
            Codec::Off => Ok(stream.to_vec()),
            Codec::Lzjb => {
                let mut plain = Vec::with_capacity(len);
                lzjb::decompress(stream, len, &mut plain)?;
                Ok(plain)
            }
            Codec::Lz4 => Ok(lz4_flex::block::decompress(stream, len)?),
            Codec::Zstd(_) => Ok(zstd::bulk::decompress(stream, len)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_compressor_has_a_name_and_gives_back_what_it_took() {
        let plain = include_bytes!("codec.rs");
        for name in ["off", "lzjb", "lz4", "zstd:-1", "zstd:3"] {
            let codec = Codec::try_from(name.to_owned()).unwrap();
            assert_eq!(codec.to_string(), name);
            let mut compressor = Compressor::new(codec).unwrap();
            let mut out = vec![1];
            for plain in [&plain[..], &plain[..4096], &plain[..0]] {
                compressor.compress(plain, &mut out).unwrap();
                assert!(codec == Codec::Off || plain.is_empty() || out.len() < plain.len(), "{name}");
                assert_eq!(compressor.decompress(&out, plain.len()).unwrap(), plain, "{name}");
            }
        }
        let refused = |name: &str| Codec::try_from(name.to_owned()).unwrap_err().to_string();
        assert!(refused("lzjbb").contains("did you mean \"lzjb\""));
        assert!(refused("zstd:20").contains("levels -7 to 19") && refused("zstd:x").contains("a level is a number"));
    }
}
