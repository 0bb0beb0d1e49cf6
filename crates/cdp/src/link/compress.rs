//! Compression of frames on their way. Journals are sealed, and sealed bytes do not compress: records are compressed before TLS
//! encrypts them.

use onefold_engine::compress::lzjb;

/// Level of zstd: the fastest, since both sides wait for it.
const ZSTD_LEVEL: i32 = 1;

/// How frames are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Codec {
    /// They are not.
    Off,
    /// LZ4.
    Lz4,
    /// Zstandard, at its level 1.
    #[default]
    Zstd,
    /// LZJB.
    Lzjb,
}

impl Codec {
    /// All codecs.
    pub const ALL: [Self; 4] = [Self::Off, Self::Lz4, Self::Zstd, Self::Lzjb];

    /// Returns its number on the wire.
    pub fn code(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
            Self::Lzjb => 3,
        }
    }

    /// Returns the codec with a number; `None` if there is none.
    pub fn of(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.code() == code)
    }

    /// Returns its name, as options have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::Lzjb => "lzjb",
        }
    }
}

/// Compresses frames one after the other.
#[derive(Default)]
pub(super) struct Compressor {
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

impl Compressor {
    /// Replaces `out` by the compressed form of `plain`. Returns the codec of `out`: off if nothing became shorter.
    pub(super) fn compress(&mut self, codec: Codec, plain: &[u8], out: &mut Vec<u8>) -> Codec {
        out.clear();
        let is_shorter = match codec {
            Codec::Off => false,
            Codec::Lz4 => {
                out.resize(lz4_flex::block::get_maximum_output_size(plain.len()), 0);
                let len = lz4_flex::block::compress_into(plain, out).unwrap_or(plain.len());
                out.truncate(len);
                out.len() < plain.len()
            }
            Codec::Zstd => self.zstd(plain, out) && out.len() < plain.len(),
            Codec::Lzjb => {
                lzjb::compress(plain, out);
                out.len() < plain.len()
            }
        };
        if is_shorter {
            return codec;
        }
        out.clear();
        out.extend_from_slice(plain);
        Codec::Off
    }

    fn zstd(&mut self, plain: &[u8], out: &mut Vec<u8>) -> bool {
        if self.zstd.is_none() {
            self.zstd = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
        }
        out.reserve(zstd::zstd_safe::compress_bound(plain.len()));
        self.zstd.as_mut().is_some_and(|zstd| zstd.compress_to_buffer(plain, out).is_ok())
    }
}

/// Decompresses frames one after the other.
#[derive(Default)]
pub(super) struct Decompressor {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Decompressor {
    /// Returns the `len` bytes that were compressed; `None` if `bytes` is not their compressed form. The caller has checked `len`.
    pub(super) fn decompress(&mut self, codec: Codec, bytes: &[u8], len: usize) -> Option<Vec<u8>> {
        match codec {
            Codec::Off => (bytes.len() == len).then(|| bytes.to_vec()),
            Codec::Lz4 => {
                let mut out = vec![0; len];
                let filled = lz4_flex::block::decompress_into(bytes, &mut out).ok()?;
                (filled == len).then_some(out)
            }
            Codec::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Decompressor::new().ok();
                }
                let mut out = Vec::with_capacity(len);
                let filled = self.zstd.as_mut()?.decompress_to_buffer(bytes, &mut out).ok()?;
                (filled == len).then_some(out)
            }
            Codec::Lzjb => {
                let mut out = Vec::with_capacity(len);
                lzjb::decompress(bytes, len, &mut out).ok().map(|()| out)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_come_back_from_every_codec_and_only_with_their_length() {
        let text = "a line that repeats with a number ".repeat(1000).into_bytes();
        let noise: Vec<u8> = (0..50_000_u32).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect();
        for codec in Codec::ALL {
            assert_eq!(Codec::of(codec.code()), Some(codec));
            for plain in [&text[..], &noise, &[], &[7]] {
                let (mut out, mut plainer) = (Vec::new(), Decompressor::default());
                let used = Compressor::default().compress(codec, plain, &mut out);
                assert!(out.len() <= plain.len());
                assert_eq!(plainer.decompress(used, &out, plain.len()).unwrap(), plain, "{codec:?}");
                assert_eq!(plainer.decompress(used, &out, plain.len() + 1), None, "{codec:?}");
                if plain.len() > 1 {
                    assert_eq!(plainer.decompress(used, &out, plain.len() - 1), None, "{codec:?}");
                }
            }
            let mut out = Vec::new();
            assert_eq!(Compressor::default().compress(codec, &text, &mut out), codec);
        }
        assert_eq!(Codec::of(4), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_codec_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), len in 0_usize..5000) {
            for codec in Codec::ALL {
                let out = Decompressor::default().decompress(codec, &bytes, len);
                prop_assert!(out.is_none_or(|out| out.len() == len));
            }
        }
    }
}
