//! Zstandard with earlier bytes in front, and over one long stream.

use std::io::{self, Write};

use anyhow::{Context, Result, ensure};
use zstd::zstd_safe::{CCtx, CParameter, DCtx, compress_bound, get_error_name};

use super::corpus::Corpus;

/// Largest window of Zstandard on 64-bit machines, as a power of two: that of `--long=31`.
const WINDOW_LOG_MAX: u32 = 31;
/// Smallest window that can be asked for.
const WINDOW_LOG_MIN: u32 = 10;

/// Replaces `out` by a frame of `plain` that refers to `prefix`, too.
pub(super) fn compress(level: i32, prefix: &[u8], plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
    // A context borrows its prefix as long as it lives, so each region has its own.
    let mut context = CCtx::try_create().context("no memory to compress")?;
    let window_log = window_log(prefix.len() + plain.len());
    let done = context
        .set_parameter(CParameter::CompressionLevel(level))
        .and_then(|_| context.set_parameter(CParameter::WindowLog(window_log)))
        .and_then(|_| context.ref_prefix(prefix))
        .and_then(|_| {
            out.clear();
            out.reserve(compress_bound(plain.len()));
            context.compress2(out, plain)
        });
    done.map(drop).map_err(|code| anyhow::anyhow!("compress with a prefix: {}", get_error_name(code)))
}

/// Replaces `out` by the `plain_len` bytes that a frame stands for.
pub(super) fn decompress(prefix: &[u8], frame: &[u8], plain_len: usize, out: &mut Vec<u8>) -> Result<()> {
    let mut context = DCtx::try_create().context("no memory to decompress")?;
    out.clear();
    out.reserve(plain_len);
    let done = context.ref_prefix(prefix).and_then(|_| context.decompress(out, frame));
    done.map_err(|code| anyhow::anyhow!("decompress with a prefix: {}", get_error_name(code)))?;
    ensure!(out.len() == plain_len, "decompressed to {} bytes instead of {plain_len}", out.len());
    Ok(())
}

fn window_log(bytes: usize) -> u32 {
    bytes.max(1).next_power_of_two().ilog2().clamp(WINDOW_LOG_MIN, WINDOW_LOG_MAX)
}

/// Returns the memory that one stream of so many bytes takes: its window, and a table for long matches with 8 bytes for each
/// 128 bytes of the window; for the rest of the compressor, 8 MiB.
pub(super) fn long_stream_memory_bytes(bytes: u64) -> u64 {
    let window = 1u64 << window_log(usize::try_from(bytes).unwrap_or(usize::MAX / 2));
    window + window / 16 + (8 << 20)
}

/// Returns the bytes of one frame of all versions, one after the other, as `zstd --long=31` makes it.
pub(super) fn long_stream(corpus: &Corpus, level: i32) -> Result<u64> {
    let mut encoder = zstd::stream::write::Encoder::new(Counted(0), level)?;
    encoder.set_pledged_src_size(Some(corpus.logical_bytes()))?;
    encoder.long_distance_matching(true)?;
    encoder.window_log(window_log(usize::try_from(corpus.logical_bytes()).unwrap_or(usize::MAX / 2)))?;
    let mut bytes = Vec::new();
    for chunk in corpus.versions.iter().flat_map(|version| &version.chunks) {
        bytes.clear();
        corpus.append(*chunk, &mut bytes)?;
        encoder.write_all(&bytes)?;
    }
    Ok(encoder.finish()?.0)
}

/// Counts what is written.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use onefold_engine::random::SplitMix64;

    use super::*;

    #[test]
    fn a_frame_with_a_prefix_comes_back_with_the_same_prefix_only() {
        let mut random = SplitMix64::new(1);
        let prefix: Vec<u8> = (0..100_000).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        let plain = [&prefix[700_000..], &b"edited"[..], &prefix[..300_000]].concat();
        let (mut frame, mut back) = (Vec::new(), Vec::new());
        compress(3, &prefix, &plain, &mut frame).unwrap();
        assert!(frame.len() < 2000, "{} bytes", frame.len());
        decompress(&prefix, &frame, plain.len(), &mut back).unwrap();
        assert_eq!(back, plain);
        assert!(decompress(&prefix, &frame, plain.len() - 1, &mut back).is_err());
        let other = vec![0; prefix.len()];
        let read = decompress(&other, &frame, plain.len(), &mut back);
        assert!(read.is_err() || back != plain);
        compress(3, &[], &plain, &mut frame).unwrap();
        decompress(&[], &frame, plain.len(), &mut back).unwrap();
        assert_eq!(back, plain);
    }
}
