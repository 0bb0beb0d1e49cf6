//! Limits of plans, the division of memory that the filter has not grown to, and counts between decisions.

#![expect(clippy::cast_precision_loss, reason = "costs are estimates; counts are far below 2^52")]

use crate::identify::SequencedChunk;
use crate::identify::options::{IndexOptions, LOOKUP_BYTES, PENDING_BYTES, WindowRule};
use crate::identify::schedule::plan::PlanLimits;

/// Share of the memory that the filter has not grown to which pending chunks may take; the cache has the rest.
const PENDING_SHARE: usize = 4;
/// Most pending chunks that take memory from the cache: more hardly share more reads.
const PENDING_EXTRA_MAX: usize = 1 << 16;
/// Memory of a further pending chunk: all may be looked up together.
const EXTRA_BYTES: usize = PENDING_BYTES + LOOKUP_BYTES;
/// Lookups after which older ones count half.
const KEYS_PER_HALVING: u64 = 1 << 13;

/// Returns how many chunks may be pending in addition to [`IndexOptions::pending_max`], with `left` bytes that the filter
/// has not grown to. Only a schedule that plans knows what to do with them.
fn pending_extra(options: &IndexOptions, left: usize) -> usize {
    if options.schedule.plans() { (left / PENDING_SHARE / EXTRA_BYTES).min(PENDING_EXTRA_MAX) } else { 0 }
}

/// Returns how many chunks may be pending.
pub(in crate::identify) fn pending_max(options: &IndexOptions, left: usize) -> usize {
    options.pending_max + pending_extra(options, left)
}

/// Returns the memory of the cache.
pub(in crate::identify) fn cache_bytes(options: &IndexOptions, left: usize) -> usize {
    options.cache_bytes + left - pending_extra(options, left) * EXTRA_BYTES
}

/// Returns the limits of plans for chunks of some mean length; 0 if it is not known. `unit`: records that each hit reads, if
/// it reads a whole unit.
pub(in crate::identify) fn plan_limits(
    options: &IndexOptions,
    left: usize,
    mean_len: usize,
    unit: Option<u32>,
) -> PlanLimits {
    let chunks = pending_max(options, left).min(options.pending_bytes_max / mean_len.max(1));
    let (window, fixed_window) = match (options.window, unit) {
        (WindowRule::Fixed(records), None) => (records, Some(records)),
        (WindowRule::Adaptive(records), None) => (records, None),
        (rule, Some(records)) => (rule.max(), Some(records)),
    };
    let pool = u32::try_from(chunks).unwrap_or(u32::MAX);
    PlanLimits { pool, age: options.pending_age_max, window, fixed_window, reads_ahead: options.follows() }
}

/// Work of the table and the log, at the last decision.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::identify) struct Work {
    /// Chunks of the stream.
    pub(in crate::identify) chunks: u64,
    pub(in crate::identify) lookups: u64,
    /// Pending chunks that windows resolved.
    pub(in crate::identify) resolved: u64,
    pub(in crate::identify) pages_needed: u64,
    pub(in crate::identify) reads: u64,
    pub(in crate::identify) bytes: u64,
    /// Those of the log.
    pub(in crate::identify) log_bytes: u64,
}

/// Counts between decisions.
#[derive(Debug, Default)]
pub(in crate::identify) struct Planning {
    pub(in crate::identify) before: Work,
    /// Recent lookups, and the pages that they needed.
    keys: u64,
    pages_needed: u64,
    /// Chunks of the stream, and their bytes.
    chunks: u64,
    bytes: u64,
}

impl Planning {
    /// Notes chunks that arrive.
    pub(in crate::identify) fn count(&mut self, chunks: &[SequencedChunk]) {
        self.chunks += chunks.len() as u64;
        self.bytes += chunks.iter().map(|chunk| u64::from(chunk.chunk.len)).sum::<u64>();
    }

    /// Returns the chunks so far.
    pub(in crate::identify) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Returns the mean length of a chunk; 0 before the first.
    pub(in crate::identify) fn mean_len(&self) -> usize {
        usize::try_from(self.bytes / self.chunks.max(1)).unwrap_or(usize::MAX)
    }

    /// Notes recent lookups, and forgets earlier ones after a surprise; returns the pages that each needed.
    pub(in crate::identify) fn note(&mut self, (keys, pages_needed): (u64, u64), is_surprise: bool) -> Option<f64> {
        if is_surprise && keys != 0 {
            (self.keys, self.pages_needed) = (0, 0);
        }
        self.keys += keys;
        self.pages_needed += pages_needed;
        if KEYS_PER_HALVING <= self.keys {
            self.keys /= 2;
            self.pages_needed /= 2;
        }
        self.pages_per_key()
    }

    /// Returns the pages that each of the recent lookups needed; `None` before the first.
    pub(in crate::identify) fn pages_per_key(&self) -> Option<f64> {
        (self.keys != 0).then(|| self.pages_needed as f64 / self.keys as f64)
    }
}
