//! Rates of single kernels, without transfers.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::Instant;

use super::context::Argument::{Long, Memory, Word};
use super::context::Context;
use super::queue::{BEFORE_BYTES, BEHIND_BYTES};
use crate::device::queue::{POISON, TILE_BYTES};
use crate::device::{Fault, FaultKind};

/// Bytes of each chunk.
const CHUNK_BYTES: usize = 8 << 10;
/// Bytes of a leaf of BLAKE3.
const LEAF_BYTES: usize = 1024;
/// Candidates that a tile lists.
const SLOTS: usize = 64;
/// Mean distance of candidates.
const DISTANCE: u32 = 4096;

/// Rate of a kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelRate {
    /// Its name.
    pub name: String,
    /// Bytes that it worked on.
    pub bytes: usize,
    /// Seconds of each round, shortest first.
    pub seconds: Vec<f64>,
}

fn word(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn timed(
    context: &Context,
    kernel: &'static CStr,
    rounds: usize,
    run: &dyn Fn() -> Result<(), Fault>,
) -> Result<Vec<f64>, Fault> {
    // The first run loads the code.
    run()?;
    let mut seconds = Vec::new();
    for _ in 0..rounds.max(1) {
        context.synchronize(kernel)?;
        let start = Instant::now();
        run()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds)
}

/// Measures kernels on `bytes` bytes of noise, a multiple of 16 KiB below 1 GiB, `rounds` times each.
pub(super) fn measure(
    context: &Arc<Context>,
    ctas: u32,
    bytes: usize,
    rounds: usize,
) -> Result<Vec<KernelRate>, Fault> {
    if bytes == 0 || !bytes.is_multiple_of(TILE_BYTES) || 1 << 30 <= bytes {
        return Err(Fault::new(
            FaultKind::Unsuitable,
            format!("{bytes} bytes: possible are multiples of 16 KiB below 1 GiB"),
        ));
    }
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 32).unwrap_or(0)
    };
    let table: Vec<u32> = (0..256).map(|_| noise()).collect();
    let area: Vec<u32> = (0..(BEFORE_BYTES + bytes + BEHIND_BYTES) / 4).map(|_| noise()).collect();
    let (tiles, count, leaves) = (bytes / TILE_BYTES, bytes / CHUNK_BYTES, bytes / LEAF_BYTES);
    let each = CHUNK_BYTES / LEAF_BYTES;
    let list: Vec<u32> = (0..count)
        .flat_map(|number| [word(BEFORE_BYTES + number * CHUNK_BYTES), word(CHUNK_BYTES), word(number * each)])
        .collect();
    let (area, table, list) = (context.upload(&area)?, context.upload(&table)?, context.upload(&list)?);
    let (counts, found) = (context.memory(4 * tiles, POISON)?, context.memory(2 * SLOTS * tiles, POISON)?);
    let (leaf_list, nodes) = (context.memory(8 * leaves, 0)?, context.memory(32 * leaves, 0)?);
    let (names, key) = (context.memory(32 * count, POISON)?, context.upload(&[7u8; 32])?);
    let (first, len) = (Long(BEFORE_BYTES as u64), Long(bytes as u64));
    let rule = [Memory(&table), Word(u32::MAX / DISTANCE), Word(word(SLOTS)), Memory(&counts), Memory(&found)];
    let gear: Vec<_> = [Memory(&area), first, len].into_iter().chain(rule).collect();
    let (chunks, all) = (|| Memory(&list), || Word(word(count)));
    let hash = || vec![Memory(&area), Memory(&leaf_list), Word(word(leaves)), Memory(&key), Memory(&nodes)];
    let sha = || vec![Memory(&area), chunks(), all(), Memory(&names)];
    let launches: [(&'static CStr, u32, Vec<_>); 8] = [
        (c"gear", 256, gear),
        (c"expand", 128, vec![chunks(), all(), Memory(&leaf_list)]),
        (c"blake3_leaves", 128, hash()),
        (c"blake3_leaves_quads", 128, hash()),
        (c"blake3_leaves_staged", 128, hash()),
        (c"blake3_trees", 128, vec![chunks(), all(), Memory(&key), Memory(&nodes), Memory(&names)]),
        (c"sha1", 128, sha()),
        (c"sha256", 128, sha()),
    ];
    let mut rates = Vec::new();
    for (kernel, threads, arguments) in &launches {
        // SAFETY: there is a count and slots for each tile; all chunks lie in the area, each has its leaves and nodes, and each a name.
        let run = || unsafe { context.launch(kernel, ctas, *threads, arguments) };
        let seconds = timed(context, kernel, rounds, &run)?;
        rates.push(KernelRate { name: kernel.to_string_lossy().into_owned(), bytes, seconds });
    }
    Ok(rates)
}
