//! Identification: which chunks are already stored.
//!
//! An [`Identifier`] is a state machine fed in stream order. It may defer: the verdict of a chunk can come with a
//! later call. What it answers is a hint that may miss but never invents: a hit names a container that is live.
//! (Source: Ma et al., "Lazy Exact Deduplication", ACM Trans. Storage 13(2), 2017, sections 3 and 4.)

use std::fmt::Debug;

use crate::error::Result;
use crate::types::{Chunk, ContainerId, Sequence};

mod arrivals;
mod background;
mod cache;
pub mod checkpoint;
pub mod cycle;
mod device;
mod directory;
pub mod duplicate_runs;
pub mod frame;
mod growing_filter;
pub mod identify;
pub mod identity_hasher;
mod incomplete;
pub mod log;
mod lookup;
mod opening;
pub mod options;
mod ordinals;
mod pending;
mod pool;
mod prelookup;
pub mod registry;
mod rounds;
mod session;
mod slot;
mod store;
mod successor;
mod timer;
mod windows;

pub use growing_filter::FilterState;
pub use identify::Index;
pub use opening::IndexState;
pub use options::{IndexOptions, Order, Prelookup, Schedule, WindowRule};

/// A chunk of the stream, as the identifier sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequencedChunk {
    /// Position in the stream; every call continues where the last one stopped, without gaps.
    pub sequence: Sequence,
    /// The chunk; the caller holds its bytes until the verdict.
    pub chunk: Chunk,
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
    /// Bytes of its file; 0 where that is not known.
    pub len: u64,
    /// Its chunks in the order of its directory.
    pub chunks: &'a [Chunk],
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

/// Declares [`Counters`], so that a counter stands in one place only.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What every identifier counts.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns all counters with their names.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// Returns by how much each has grown since an earlier reading.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)* }
            }

            /// Adds another's counts.
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
    /// Chunks that the filter let pass and the table did not hold.
    filter_false_positives,
    /// Chunks answered by the map of this session's chunks in flight, pending ones included.
    in_flight_hits,
    /// Chunks joined to an equal chunk that was pending.
    joined,
    /// Chunks answered by the cache at arrival.
    prelookup_hits,
    /// Chunks answered by a window that was read for another, or ahead.
    postlookup_hits,
    /// Accesses to cache or map to find them.
    postlookup_probes,
    /// Buffer cycles opened.
    cycles,
    /// Windows that went out of the cache for others.
    evictions,
    /// Windows read where a run was expected to go on, instead of a lookup.
    read_aheads,
    /// Changes between looking up at once and together.
    schedule_changes,
    /// Fingerprints looked up in the table, staging included.
    lookups,
    /// Lookups that found the fingerprint among entries not yet written out.
    memtable_hits,
    /// Lookups that found the fingerprint on disk.
    disk_hits,
    /// Batches that the lookups were submitted in.
    lookup_batches,
    /// Pages of the table read for lookups.
    pages_read,
    /// Bytes of table and log read.
    bytes_read,
    /// Bytes of table and log written.
    bytes_written,
    /// Reads of the log: around hits, ahead in a run, and of what repeats led to.
    prefetches,
    /// Stretches of the log read because a stream had gone on with them at the place of a window.
    successor_prefetches,
    /// Entries added to the table.
    updates,
    /// Calls of `drain` that found chunks pending.
    drains,
    /// Entries ignored because their container is not live.
    dead_hits,
    /// Repeated stretches of the log that were noted.
    duplicate_runs,
    /// Compactions of the log of repeats.
    compactions,
    /// Runs of table buckets that were merged.
    runs_merged,
    /// Buckets of the table that were split or joined.
    buckets_changed,
    /// Parts of the filter that were made anew, larger.
    filter_growths,
    /// Nanoseconds in lookups of the table.
    lookup_nanos,
    /// Nanoseconds in reading the log.
    prefetch_nanos,
    /// Nanoseconds in asking the cache as chunks arrive, from a sample.
    prelookup_nanos,
    /// Nanoseconds in answering pending chunks by what was read.
    postlookup_nanos,
    /// Nanoseconds in waiting for a flush of the table because staging was full.
    flush_wait_nanos,
    /// Table pages with a bad checksum, taken as empty.
    damaged_pages,
}
