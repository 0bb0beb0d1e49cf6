//! Identification: which chunks are already stored.
//!
//! An [`Identifier`] takes chunks in stream order and returns verdicts, possibly with a later call. It may miss a chunk but
//! never invents one: a hit names a live container. (Source: Ma et al., "Lazy Exact Deduplication", ACM Trans. Storage
//! 13(2), 2017, sections 3 and 4.)

use std::fmt::Debug;

use crate::error::{Error, Result};
use crate::types::{Chunk, ChunkKind, ContainerId, Sequence};

pub mod design;
mod exact;
pub mod identity_hasher;
mod locality;
pub mod options;
mod preset;
pub mod sampling;
mod schedule;
pub mod segmenting;
pub mod selection;
mod slot;
mod unit;

pub use design::Design;
pub(crate) use exact::growing_filter::FilterState;
pub use exact::identify::Index;
pub use exact::opening::IndexState;
pub use options::{
    Completeness, GivenStore, IndexOptions, Order, PrefetchUnit, Prelookup, Schedule, StoreKind, WindowRule,
};
pub use preset::IndexPreset;
pub use sampling::Sampling;
pub use segmenting::Segmenting;
pub use selection::Selection;

/// A chunk of the stream, without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequencedChunk {
    /// Position in the stream. Every call continues after the last one, without gaps.
    pub sequence: Sequence,
    /// The chunk; the caller holds its bytes until the verdict.
    pub chunk: Chunk,
    /// Its kind. Only data is in stream segments and is sampled.
    pub kind: ChunkKind,
}

impl SequencedChunk {
    /// Makes a chunk of data.
    pub fn data(sequence: Sequence, chunk: Chunk) -> Self {
        Self { sequence, chunk, kind: ChunkKind::Data }
    }
}

/// An event of the stream between two chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A file begins.
    FileBegin,
    /// The file ends.
    FileEnd,
}

/// The answer of an identifier about a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Not stored: the caller stores it, then records it.
    Unique,
    /// Equal to an earlier chunk of this session whose container is not recorded yet.
    SameAs(Sequence),
    /// Stored in a live container.
    Stored(ContainerId),
}

/// A final verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The chunk.
    pub sequence: Sequence,
    /// Its verdict.
    pub verdict: Verdict,
}

/// A durable container with its chunks.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// The container.
    pub container: ContainerId,
    /// Bytes of its file; 0 if unknown.
    pub len: u64,
    /// Its chunks in the order of its directory.
    pub chunks: &'a [Chunk],
}

/// Decides for every chunk of a stream whether it is stored already.
///
/// One writer at a time, from one thread. Exact on an undamaged index: no fingerprint is [`Verdict::Unique`] twice unless
/// its container was forgotten in between. After an error the identifier must not be used again. Its unresolved chunks are
/// lost, which costs duplicates at worst.
pub trait Identifier: Debug + Send {
    /// Takes the next chunks of the stream; appends all verdicts that are final now, in any order.
    fn submit(&mut self, chunks: &[SequencedChunk], resolved: &mut Vec<Resolved>) -> Result<()>;
    /// Notes an event of the stream between two chunks; appends verdicts that are final now. Without file-defined segments it has no
    /// effect.
    fn mark(&mut self, _mark: Mark, _resolved: &mut Vec<Resolved>) -> Result<()> {
        Ok(())
    }
    /// Notes that the caller stores a chunk again although its verdict was "stored". From now on equal chunks are the same as it,
    /// as after the verdict "unique".
    ///
    /// Fails if the identifier does not support rewriting.
    fn supersede(&mut self, _chunk: &SequencedChunk) -> Result<()> {
        Err(Error::invalid("this index does not support rewriting"))
    }
    /// Replaces the set of containers that are live but give no verdicts in this session: a hit in one of them counts as none. Their
    /// entries stay in the table (HAR: Fu et al., USENIX ATC 2014).
    ///
    /// Fails if the identifier does not support rewriting.
    fn shun(&mut self, _containers: &[ContainerId]) -> Result<()> {
        Err(Error::invalid("this index does not support rewriting"))
    }
    /// Returns true if no stored chunk is ever declared unique.
    fn is_exact(&self) -> bool {
        true
    }
    /// Resolves all pending chunks (end of stream, checkpoint, age or memory limit).
    fn drain(&mut self, resolved: &mut Vec<Resolved>) -> Result<()>;
    /// Records a durable unit, once. Its chunks must be stored. The table holds them from now on, and the map of in-flight
    /// chunks does not.
    fn record(&mut self, unit: Unit<'_>) -> Result<()>;
    /// Forgets the chunks of containers that are about to go.
    fn forget(&mut self, containers: &[ContainerId]) -> Result<()>;
    /// Returns the number of pending chunks.
    fn pending(&self) -> usize;
    /// Returns the counters so far.
    fn counters(&self) -> Counters;
}

/// Declares [`Counters`], so that each counter has one line.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of an identifier.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns all counters with their names.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// Returns the growth of each counter since an earlier reading.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)* }
            }

            /// Adds other counters.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }
        }
    };
}

counters! {
    /// Fingerprints submitted.
    submitted,
    /// Probes of the filter.
    filter_probes,
    /// Probes that proved a chunk unique.
    filter_negatives,
    /// Chunks that passed the filter although the table did not hold them.
    filter_false_positives,
    /// Chunks resolved or joined by the map of in-flight and pending chunks.
    in_flight_hits,
    /// Chunks joined to an equal pending chunk.
    joined,
    /// Chunks that the cache resolved at their arrival.
    prelookup_hits,
    /// Chunks resolved by a window that was read for another chunk, or ahead.
    postlookup_hits,
    /// Probes of cache or map for these hits.
    postlookup_probes,
    /// Buffer cycles opened.
    cycles,
    /// Windows that left the cache for others.
    evictions,
    /// Windows read ahead in a run, instead of a lookup.
    read_aheads,
    /// Changes between immediate and deferred lookups.
    schedule_changes,
    /// Fingerprints looked up in the table or its memtable.
    lookups,
    /// Lookups that found the fingerprint in the memtable.
    memtable_hits,
    /// Lookups that found the fingerprint on disk.
    disk_hits,
    /// Batches of lookups.
    lookup_batches,
    /// Pages of the table read for lookups.
    pages_read,
    /// Bytes of table and logs read.
    bytes_read,
    /// Bytes of table and logs written.
    bytes_written,
    /// Reads of the logs of chunks: around hits, ahead in a run, and of successors.
    prefetches,
    /// Runs of the arrival log read because they had followed a window the last time.
    successor_prefetches,
    /// Entries added to the table: of new chunks, and of duplicates that get a new position in the stream.
    updates,
    /// Entries among them with a position in the stream.
    stream_updates,
    /// Stream segments begun.
    segments,
    /// Stream segments that ended early: the stream ended, or too many chunks waited for their containers.
    segments_cut_short,
    /// Stream segments and containers read as a whole, each counted once for each hit that reads it.
    units_read,
    /// Stream segments that were read because they are similar to a segment of the stream.
    champions,
    /// Hits whose position led to no unit, so that they read their container.
    lookups_without_unit,
    /// Containers and stream segments that left the cache for want of memory, before it held as many as it may.
    evictions_for_memory,
    /// Calls of `drain` with pending chunks.
    drains,
    /// Entries ignored because their container is not live, or shunned.
    dead_hits,
    /// Chunks declared unique that only shunned containers hold, so that they are stored again. The lookups that find this out do not
    /// count among the others.
    rewritten_chunks,
    /// Bytes of these.
    rewritten_bytes,
    /// Duplicate runs noted.
    duplicate_runs,
    /// Compactions of the duplicate-run log and of the stream log.
    compactions,
    /// Runs of table buckets that were merged.
    runs_merged,
    /// Buckets of the table that were split or joined.
    buckets_changed,
    /// Filter segments that have grown.
    filter_growths,
    /// Nanoseconds in lookups of the table.
    lookup_nanos,
    /// Nanoseconds in reads of the arrival log.
    prefetch_nanos,
    /// Nanoseconds in probes of the cache at arrival, from a sample.
    prelookup_nanos,
    /// Nanoseconds in resolving pending chunks by windows.
    postlookup_nanos,
    /// Nanoseconds of waiting for a flush while the memtable was full.
    flush_wait_nanos,
    /// Table pages with a bad checksum, which count as empty.
    damaged_pages,
}
