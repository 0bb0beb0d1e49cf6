//! Compression of regions.

pub mod lzjb;

use std::str::FromStr;

use zstd::zstd_safe::{CParameter, DCtx};

use crate::error::{Error, Result};

/// Method that compresses new regions. Each stored region records its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// Stored as they are.
    Off,
    /// LZ4 block format.
    Lz4,
    /// Zstandard at a level from 1 to 19.
    Zstd(i32),
    /// The same with the stored length rounded up to a multiple of 2,048 bytes, so that it reveals less about the contents.
    PaddedZstd(i32),
}

/// The first bytes of a trained dictionary (RFC 8878, section 5).
const DICTIONARY_MAGIC: [u8; 4] = 0xec30_a437_u32.to_le_bytes();

/// The lengths of padded frames are multiples of this many bytes.
const PADDED_STEP: usize = 2048;

impl Compression {
    /// Returns the method that rounds lengths; `None` for LZ4, which cannot pad. The length of an uncompressed region does
    /// not depend on its contents.
    pub fn padded(self) -> Option<Self> {
        match self {
            Self::Off => Some(Self::Off),
            Self::Lz4 => None,
            Self::Zstd(level) | Self::PaddedZstd(level) => Some(Self::PaddedZstd(level)),
        }
    }
}

impl Default for Compression {
    fn default() -> Self {
        Self::Zstd(3)
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
    /// Zstandard frame with the plaintexts of the region's bases as prefix (format 2).
    ZstdBased,
}

impl Algorithm {
    /// Returns the byte that stands for the algorithm in the format.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Zstd => 1,
            Self::Lz4 => 2,
            Self::ZstdBased => 3,
        }
    }

    /// Returns the algorithm that a byte of the format stands for.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Zstd),
            2 => Some(Self::Lz4),
            3 => Some(Self::ZstdBased),
            _ => None,
        }
    }
}

/// Tables in which level 3 looks for what came before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Tables {
    /// [`SMALL_TABLES`]: faster.
    #[default]
    Small,
    /// [`LARGE_TABLES`]: smaller results.
    Large,
}

/// Compresses and decompresses, keeping the state of the compressor between calls.
#[derive(Default)]
pub struct Compressor {
    /// For level 3.
    pub(crate) tables: Tables,
    zstd: Zstd,
    /// Tells at little cost what does not shrink.
    probe: Zstd,
    /// Holds on to no prefix: one is handed over with each frame that needs one.
    unzstd: Option<DCtx<'static>>,
    /// Room for the worst case of what is being compressed, kept from call to call.
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compressor")
    }
}

impl Compressor {
    /// Starts with these tables for level 3.
    pub(crate) fn with_tables(tables: Tables) -> Self {
        Self { tables, ..Self::default() }
    }

    /// Replaces `out` by the compressed form of `plain`, without spare capacity. If compression does not shrink `plain`, `out`
    /// stays empty, and `plain` itself is to be stored.
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
            Compression::Zstd(_) | Compression::PaddedZstd(_) if !self.may_shrink(plain, &mut scratch) => {
                Algorithm::None
            }
            Compression::Zstd(level) | Compression::PaddedZstd(level) => {
                scratch.reserve(zstd::zstd_safe::compress_bound(plain.len()));
                let zstd = at_level(&mut self.zstd, (level, self.tables));
                let done = zstd.is_some_and(|zstd| zstd.compress_to_buffer(plain, &mut scratch).is_ok());
                let padded = compression == Compression::Zstd(level) || pad_frame(&mut scratch);
                if done && padded { Algorithm::Zstd } else { Algorithm::None }
            }
        };
        let shrinks = algorithm != Algorithm::None && scratch.len() < plain.len();
        if shrinks {
            // A copy, so that a region that waits to be sealed does not hold a buffer for the worst case.
            out.reserve_exact(scratch.len());
            out.extend_from_slice(&scratch);
        }
        self.scratch = scratch;
        if shrinks { algorithm } else { Algorithm::None }
    }

    /// Compresses `plain` with `prefix` before it, as what it may repeat. Replaces `out` by the result, if that is shorter than
    /// `len_without`, the stored length without a prefix, by a [`SAVED_MIN`]-th at least, and returns true; else leaves `out`
    /// empty. Methods other than Zstandard know no prefix.
    pub(crate) fn compress_against(
        &mut self,
        compression: Compression,
        (prefix, plain): (&[u8], &[u8]),
        len_without: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        out.clear();
        let (Compression::Zstd(level) | Compression::PaddedZstd(level)) = compression else { return false };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.reserve(zstd::zstd_safe::compress_bound(plain.len()));
        let done = compress_with_prefix(level, prefix, plain, &mut scratch);
        let done = done && (compression == Compression::Zstd(level) || pad_frame(&mut scratch));
        let saves = done && scratch.len() <= len_without.saturating_sub(len_without.div_ceil(SAVED_MIN));
        if saves {
            out.reserve_exact(scratch.len());
            out.extend_from_slice(&scratch);
        }
        self.scratch = scratch;
        saves
    }

    /// Returns the memory that it holds, decompressors aside.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&mut self) -> usize {
        let held = [&mut self.zstd, &mut self.probe].into_iter().flatten();
        held.map(|(_, zstd)| zstd.context_mut().sizeof()).sum::<usize>() + self.scratch.capacity()
    }

    /// Decompresses what [`Compressor::compress_against`] made, otherwise as [`Compressor::decompress`]. Takes no memory but
    /// `out` and the state of a decompressor: a frame is decompressed at once, so that its window needs no buffer.
    #[must_use]
    pub(crate) fn decompress_against(
        &mut self,
        prefix: &[u8],
        stored: &[u8],
        plain_len: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        out.clear();
        out.reserve(plain_len);
        let done = if prefix.starts_with(&DICTIONARY_MAGIC) {
            // Would be read as a trained dictionary. A context keeps what it refers to, so that this one lives no longer than the prefix.
            let Some(mut unzstd) = DCtx::try_create() else { return false };
            unzstd.ref_prefix(prefix).and_then(|_| unzstd.decompress(out, stored))
        } else {
            let Some(unzstd) = self.unzstd() else { return false };
            unzstd.decompress_using_dict(out, stored, prefix)
        };
        done.is_ok_and(|len| len == plain_len)
    }

    fn unzstd(&mut self) -> Option<&mut DCtx<'static>> {
        if self.unzstd.is_none() {
            self.unzstd = DCtx::try_create();
        }
        self.unzstd.as_mut()
    }

    /// Decompresses what [`Compressor::compress_against`] made, and returns what `check` says of it; false if it does not decompress.
    pub(crate) fn check_against(
        &mut self,
        prefix: &[u8],
        stored: &[u8],
        plain_len: usize,
        check: impl FnOnce(&[u8]) -> bool,
    ) -> bool {
        let mut scratch = std::mem::take(&mut self.scratch);
        let is_right = self.decompress_against(prefix, stored, plain_len, &mut scratch) && check(&scratch);
        self.scratch = scratch;
        is_right
    }

    /// Decompresses `stored` into `out`, which is replaced and must come out exactly `plain_len` long.
    /// The caller has checked `plain_len` against the limit for regions. False: not what was compressed.
    #[must_use]
    pub(crate) fn decompress(
        &mut self,
        algorithm: Algorithm,
        stored: &[u8],
        plain_len: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        match algorithm {
            // Without its bases it means nothing.
            Algorithm::ZstdBased => false,
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
                let Some(unzstd) = self.unzstd() else { return false };
                unzstd.decompress(out, stored).is_ok_and(|len| len == plain_len)
            }
        }
    }

    /// Returns what was compressed, in `stored` itself or in `scratch`, which is replaced; otherwise as
    /// [`Compressor::decompress`]. `None`: not what was compressed.
    pub(crate) fn plaintext<'a>(
        &mut self,
        algorithm: Algorithm,
        stored: &'a [u8],
        plain_len: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        match algorithm {
            Algorithm::None => (stored.len() == plain_len).then_some(stored),
            Algorithm::Lz4 | Algorithm::Zstd | Algorithm::ZstdBased => {
                self.decompress(algorithm, stored, plain_len, scratch).then_some(scratch.as_slice())
            }
        }
    }

    /// Says whether it is worth the time to compress `plain` in earnest; `scratch` is left empty.
    ///
    /// What a compressor can use is bytes that come more often than others, or sequences that come again. Samples show the
    /// first; a hasty run of the compressor itself over a part in the middle, which skips most places, shows the second where
    /// there is much of it.
    fn may_shrink(&mut self, plain: &[u8], scratch: &mut Vec<u8>) -> bool {
        if plain.len() < PROBE_BYTES_MIN || !looks_uniform(plain) {
            return true;
        }
        let middle = plain.len().saturating_sub(PROBE_BYTES) / 2;
        let part = plain.get(middle..plain.len().min(middle + PROBE_BYTES)).unwrap_or_default();
        scratch.reserve(zstd::zstd_safe::compress_bound(part.len()));
        let probe = at_level(&mut self.probe, (PROBE_LEVEL, Tables::default()));
        let shrank = probe.is_none_or(|probe| {
            probe.compress_to_buffer(part, scratch).is_ok_and(|len| len < part.len() - part.len() / 128)
        });
        scratch.clear();
        shrank
    }
}

/// Compression against bases is kept only if it saves at least one of so many bytes: decoding costs the bases, too.
const SAVED_MIN: usize = 20;

/// Bytes of the table entries of levels up to 3 with a prefix, as powers of two: of longer sequences, of shorter ones. Zstandard loads
/// at most eight bytes of a prefix for each entry of the larger one, 1 MiB of it with 2^17.
const PREFIX_TABLES: [CParameter; 2] = [CParameter::HashLog(18), CParameter::ChainLog(17)];

/// Greatest window of a frame, as a power of two: the default limit of every decoder.
const WINDOW_LOG_MAX: u32 = 27;

fn compress_with_prefix(level: i32, prefix: &[u8], plain: &[u8], out: &mut Vec<u8>) -> bool {
    // A context holds on to its prefix, so that it lives no longer than that.
    let Some(mut zstd) = zstd::zstd_safe::CCtx::try_create() else { return false };
    let bytes = (prefix.len() + plain.len()).max(1);
    let window_log = bytes.ilog2().saturating_add(1).clamp(10, WINDOW_LOG_MAX);
    let mut parameters = vec![CParameter::CompressionLevel(level), CParameter::WindowLog(window_log)];
    if level <= 3 {
        parameters.extend(PREFIX_TABLES);
    }
    let mut is_set = parameters.into_iter().map(|parameter| zstd.set_parameter(parameter));
    is_set.all(|set| set.is_ok()) && zstd.ref_prefix(prefix).is_ok() && zstd.compress2(out, plain).is_ok()
}

/// Lengthens a Zstandard frame (RFC 8878) to a multiple of [`PADDED_STEP`] by blocks before its first one that stand for no
/// bytes: raw ones of three bytes, and run-length ones of four. False: it is no frame.
fn pad_frame(frame: &mut Vec<u8>) -> bool {
    const RAW: [u8; 3] = [0, 0, 0];
    const RUN: [u8; 4] = [2, 0, 0, 0];
    let Some(descriptor) = frame.get(4).copied() else { return false };
    let is_single = descriptor >> 5 & 1;
    let size = match descriptor >> 6 {
        0 => usize::from(is_single),
        flag => 1 << flag,
    };
    let dictionary = [0, 1, 2, 4].get(usize::from(descriptor & 3)).copied().unwrap_or(0);
    let first_block = 5 + usize::from(1 - is_single) + dictionary + size;
    if frame.len() < first_block {
        return false;
    }
    let mut padding = frame.len().next_multiple_of(PADDED_STEP) - frame.len();
    if [1, 2, 5].contains(&padding) {
        padding += PADDED_STEP;
    }
    let runs = padding % RAW.len();
    let mut blocks = RUN.repeat(runs);
    blocks.resize(padding, RAW[0]);
    frame.splice(first_block..first_block, blocks);
    true
}

/// Level and tables of a compressor.
type Effort = (i32, Tables);
/// A compressor, once it is needed.
type Zstd = Option<(Effort, zstd::bulk::Compressor<'static>)>;

/// The hastiest level that still looks at one place in a few dozen.
const PROBE_LEVEL: i32 = -32;
/// What it looks at of a region.
const PROBE_BYTES: usize = 128 << 10;
/// Below this a try costs little, and samples say little.
const PROBE_BYTES_MIN: usize = 16 << 10;
/// Samples and their length: spread so that zeros in a sixty-fourth are seen, and text in a twentieth.
const SAMPLES: usize = 64;
const SAMPLE_BYTES: usize = 128;

/// Says whether samples of `bytes` hold every value about as often as noise does.
fn looks_uniform(bytes: &[u8]) -> bool {
    let mut counts = [0u32; 256];
    for sample in bytes.chunks(bytes.len().div_ceil(SAMPLES).max(1)) {
        for byte in sample.iter().take(SAMPLE_BYTES) {
            if let Some(count) = counts.get_mut(usize::from(*byte)) {
                *count += 1;
            }
        }
    }
    let total: u64 = counts.iter().copied().map(u64::from).sum();
    let squares: u64 = counts.iter().map(|count| u64::from(*count).pow(2)).sum();
    // For n uniform bytes the squares add up to n^2 / 256 + n, give or take n * sqrt(2 / 256) (one standard deviation). n / 2
    // is more than five of them, and what 8,192 bytes come to that have 0.02 bits less than 8 of collision entropy each.
    squares <= total * total / 256 + total + total / 2
}

/// Entries of the tables in which level 3 looks for what came before, as powers of two: of longer sequences, of shorter ones.
///
/// Its own, 2^17 and 2^16, take 768 KiB and push region and result out of a processor's second-level cache; with these,
/// 192 KiB, it is faster by more than what it no longer finds is worth (decision 0023).
const SMALL_TABLES: [CParameter; 2] = [CParameter::HashLog(15), CParameter::ChainLog(14)];

/// The same for format 2 (decision 0056): twice as many places.
const LARGE_TABLES: [CParameter; 2] = [CParameter::HashLog(16), CParameter::ChainLog(15)];

fn at_level(held: &mut Zstd, effort: Effort) -> Option<&mut zstd::bulk::Compressor<'static>> {
    if held.as_ref().is_none_or(|(at, _)| *at != effort) {
        *held = compressor(effort).ok().map(|zstd| (effort, zstd));
    }
    held.as_mut().map(|(_, zstd)| zstd)
}

fn compressor((level, tables): Effort) -> std::io::Result<zstd::bulk::Compressor<'static>> {
    let mut zstd = zstd::bulk::Compressor::new(level)?;
    if level == 3 {
        let tables = match tables {
            Tables::Small => SMALL_TABLES,
            Tables::Large => LARGE_TABLES,
        };
        tables.into_iter().try_for_each(|table| zstd.set_parameter(table))?;
    }
    Ok(zstd)
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

    /// Also a prefix that begins like a trained dictionary, or is shorter than one can be, and one after an error.
    #[test]
    fn one_decompressor_reads_frames_with_any_prefix_and_without() {
        let noise: Vec<u8> = blake3::Hasher::new().finalize_xof().take_bytes(60_000);
        let edited = |prefix: &[u8]| [&noise[..100], prefix, &noise[200..300], prefix].concat();
        let dictionary = [&DICTIONARY_MAGIC[..], &[7, 0, 0, 0], &noise[..5000]].concat();
        let prefixes = [&noise[..], &noise[1..7], b"", &dictionary, &DICTIONARY_MAGIC[..], &noise[20_000..40_000]];
        let mut compressor = Compressor::default();
        let (mut stored, mut alone, mut back) = (Vec::new(), Vec::new(), Vec::new());
        let text = b"onefold stores everything once ".repeat(300);
        assert_eq!(compressor.compress(Compression::Zstd(3), &text, &mut alone), Algorithm::Zstd);
        for (round, prefix) in prefixes.iter().chain(&prefixes).enumerate() {
            let plain = edited(prefix);
            assert!(compressor.compress_against(Compression::Zstd(3), (prefix, &plain), usize::MAX, &mut stored));
            assert!(compressor.decompress_against(prefix, &stored, plain.len(), &mut back), "round {round}");
            assert_eq!(back, plain, "round {round}");
            if 1000 < prefix.len() {
                assert!(stored.len() < 1000, "{} bytes with the prefix of round {round}", stored.len());
                let other = vec![7; prefix.len()];
                assert!(
                    !compressor.decompress_against(&other[..10], &stored, plain.len(), &mut back) || back != plain,
                    "round {round}"
                );
            }
            assert!(!compressor.decompress_against(prefix, &stored[..stored.len() / 2], plain.len(), &mut back));
            assert!(!compressor.decompress_against(prefix, &stored, plain.len() - 1, &mut back));
            assert!(compressor.decompress(Algorithm::Zstd, &alone, text.len(), &mut back));
            assert_eq!(back, text);
        }
    }

    #[test]
    fn padded_frames_have_few_lengths_and_are_what_any_zstd_reads() {
        let noise: Vec<u8> = blake3::Hasher::new().finalize_xof().take_bytes(20_000);
        let mut compressor = Compressor::default();
        let (mut stored, mut back) = (Vec::new(), Vec::new());
        let mut lengths = std::collections::BTreeSet::new();
        for used in 0..6000 {
            let plain = [&noise[..used], &vec![b'x'; 40_000 - used]].concat();
            let algorithm = compressor.compress(Compression::PaddedZstd(3), &plain, &mut stored);
            assert_eq!((algorithm, stored.len() % PADDED_STEP), (Algorithm::Zstd, 0), "{used} bytes of noise");
            assert!(compressor.decompress(algorithm, &stored, plain.len(), &mut back));
            assert_eq!(back, plain);
            assert_eq!(zstd::stream::decode_all(&stored[..]).unwrap(), plain);
            lengths.insert(stored.len());
        }
        assert!(lengths.len() <= 5, "{lengths:?}");
        for (len, level) in [(0, 1), (100, 3), (300, 3), (5000, 19)] {
            let text = vec![b'a'; len];
            let algorithm = compressor.compress(Compression::PaddedZstd(level), &text, &mut stored);
            assert_eq!(algorithm == Algorithm::Zstd, 2048 < len, "padding must not make it longer than it is");
        }
    }

    #[test]
    fn any_frame_is_padded_to_the_step_by_blocks_that_stand_for_nothing() {
        for len in 0..PADDED_STEP {
            let noise: Vec<u8> = blake3::Hasher::new().finalize_xof().take_bytes(len);
            let mut frame = zstd::bulk::compress(&noise, 1).unwrap();
            let before = frame.len();
            assert!(pad_frame(&mut frame));
            assert!(frame.len().is_multiple_of(PADDED_STEP) && frame.len() < before + 2 * PADDED_STEP);
            assert_eq!(zstd::bulk::decompress(&frame, len).unwrap(), noise);
        }
    }

    /// Whoever trusts the probe must not lose what a compressor would have won.
    #[test]
    fn what_shrinks_is_compressed_and_noise_is_left_alone() {
        let noise: Vec<u8> = blake3::Hasher::new().finalize_xof().take_bytes(512 << 10);
        let letters: Vec<u8> = noise.iter().map(|byte| b'A' + byte % 64).collect();
        let seven_bits: Vec<u8> = noise.iter().map(|byte| byte & 0x7f).collect();
        let records: Vec<u8> = noise.chunks(1000).flat_map(|record| [record, record].concat()).collect();
        let counters: Vec<u8> = (0u32..128 << 10).flat_map(|number| (number.wrapping_mul(97)).to_le_bytes()).collect();
        let mut holes = noise.clone();
        holes.chunks_mut(4096).for_each(|page| page[..256].fill(0));
        let mut text_at_the_end = noise.clone();
        text_at_the_end[460 << 10..].fill(b' ');
        let mut compressor = Compressor::default();
        let mut stored = Vec::new();
        for (name, plain) in [
            ("letters", &letters),
            ("seven bits", &seven_bits),
            ("records", &records),
            ("counters", &counters),
            ("holes", &holes),
            ("text at the end", &text_at_the_end),
        ] {
            assert_eq!(compressor.compress(Compression::Zstd(3), plain, &mut stored), Algorithm::Zstd, "{name}");
            let least = super::compressor((3, Tables::Small)).unwrap().compress(plain).unwrap();
            assert_eq!(stored.len(), least.len(), "{name}");
        }
        assert!(looks_uniform(&noise));
        assert_eq!(compressor.compress(Compression::Zstd(3), &noise, &mut stored), Algorithm::None);
        assert!(!compressor.may_shrink(&noise, &mut stored), "noise is not worth a try");
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
