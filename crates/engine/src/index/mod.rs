//! Identification: which chunks are already stored.
//!
//! An [`Identifier`] is a state machine fed in stream order. It may defer: the verdict of a chunk can come with a
//! later call. What it answers is a hint that may miss but never invents: a hit names a container that is live.
//! (Source: Ma et al., "Lazy Exact Deduplication", ACM Trans. Storage 13(2), 2017, sections 3 and 4.)

use std::fmt::Debug;

use crate::error::Result;
use crate::types::{ContainerId, Fingerprint, Sequence};

pub use crate::types::UnitChunk;

pub mod cache;
pub mod checkpoint;
pub mod identify;
pub mod log;
pub mod options;
pub mod ordinals;
pub mod pending;
pub mod registry;
pub mod store;
pub mod window;

pub use identify::Index;
pub use options::{IndexOptions, Schedule};
pub use store::IndexState;

/// A chunk of the stream, as the identifier sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequencedChunk {
    /// Position in the stream; every call continues where the last one stopped, without gaps.
    pub sequence: Sequence,
    /// Name of the chunk.
    pub fingerprint: Fingerprint,
}

/// What an identifier found out about a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Not stored so far: the caller stores it, then records it.
    Unique,
    /// The same as an earlier chunk of this session whose container is not recorded yet.
    SameAs(Sequence),
    /// Stored in a live container.
    Stored(ContainerId),
}

/// A verdict that became final.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The chunk.
    pub sequence: Sequence,
    /// What it is.
    pub verdict: Verdict,
}

/// A container that has become durable, with its chunks in order.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// The container.
    pub container: ContainerId,
    /// Its chunks in the order of its directory.
    pub chunks: &'a [UnitChunk],
}

/// Decides, for every chunk of a stream, whether it is stored already.
///
/// One writer at a time. Exact on an undamaged index: no fingerprint is ever [`Verdict::Unique`] twice unless its container
/// was forgotten in between. Calls come from one thread. After an error the identifier must not be used again;
/// everything it was given and had not resolved is lost with it, which costs duplicates at worst.
pub trait Identifier: Debug + Send {
    /// Takes the next chunks of the stream; appends every verdict that became final, in any order.
    fn submit(&mut self, chunks: &[SequencedChunk], resolved: &mut Vec<Resolved>) -> Result<()>;
    /// Brings every pending chunk to a verdict (end of stream, checkpoint, age or memory limit).
    fn drain(&mut self, resolved: &mut Vec<Resolved>) -> Result<()>;
    /// Takes note of a unit that has become durable, once per unit. Only what is stored may be recorded.
    /// A chunk of this session leaves the map of chunks in flight and is found in the table from now on.
    fn record(&mut self, unit: Unit<'_>) -> Result<()>;
    /// Takes back what is known of containers that are about to go.
    fn forget(&mut self, containers: &[ContainerId]) -> Result<()>;
    /// Returns how many chunks wait for a verdict.
    fn pending(&self) -> usize;
    /// Returns what has been counted so far.
    fn counters(&self) -> Counters;
}

/// What every identifier counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Fingerprints submitted.
    pub submitted: u64,
    /// Probes of the filter.
    pub filter_probes: u64,
    /// Probes that proved a chunk unique.
    pub filter_negatives: u64,
    /// Chunks that the filter let pass and the table did not hold.
    pub filter_false_positives: u64,
    /// Chunks answered by the map of this session's chunks in flight, pending ones included.
    pub in_flight_hits: u64,
    /// Chunks joined to an equal chunk that was pending.
    pub joined: u64,
    /// Chunks answered by the cache at arrival.
    pub prelookup_hits: u64,
    /// Pending chunks answered by the cache after a prefetch.
    pub postlookup_hits: u64,
    /// Fingerprints looked up in the table, staging included.
    pub lookups: u64,
    /// Lookups that found the fingerprint among entries not yet written out.
    pub staging_hits: u64,
    /// Lookups that found the fingerprint on disk.
    pub disk_hits: u64,
    /// Batches that the lookups were submitted in.
    pub lookup_batches: u64,
    /// Pages of the table read for lookups.
    pub pages_read: u64,
    /// Bytes of table and log read.
    pub bytes_read: u64,
    /// Bytes of table and log written.
    pub bytes_written: u64,
    /// Reads of the log because of a hit.
    pub prefetches: u64,
    /// Entries added to the table.
    pub updates: u64,
    /// Calls of `drain` that found chunks pending.
    pub drains: u64,
    /// Entries ignored because their container is not live.
    pub dead_hits: u64,
    /// Table pages with a bad checksum, taken as empty.
    pub damaged_pages: u64,
}
