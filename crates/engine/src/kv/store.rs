//! The key-value store under the exact index, as the index sees it: entries by key, for batches.
//!
//! [`EntryStore`] is all that the index needs of a store, and [`OpenStore`] makes one. A store decides alone where its
//! entries lie, when it writes them, and which jobs it runs in the background. [`Containers`] is what a store may ask of the
//! index.
//!
//! The index calls a store from one thread. It calls it for batches, since a call through a trait costs a few nanoseconds and
//! a batch hides them.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::{Disk, DiskFile, Host};
use crate::kv::sealed::{SealedReader, SealedWriter};
use crate::kv::{Entry, Key, Ordinal};
use crate::types::ContainerId;

/// Returns true for live containers, on any thread.
pub type Live = Arc<dyn Fn(Ordinal) -> bool + Send + Sync>;

/// Makes the numbers of containers durable, on any thread.
pub type SyncContainers = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Result of the lookup of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// An entry in memory.
    InMemory(Entry),
    /// An entry on disk.
    OnDisk(Entry),
    /// Only entries of containers that are not live.
    Dead,
    /// No entry.
    Absent,
}

impl Lookup {
    /// Returns the better of two results for a key, each from a part of the store.
    pub(in crate::kv) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::InMemory(_) | Self::OnDisk(_), _) | (Self::Dead, Self::Absent) => self,
            (Self::Dead | Self::Absent, _) => other,
        }
    }

    /// Returns the entry that was found.
    pub fn entry(self) -> Option<Entry> {
        match self {
            Self::InMemory(entry) | Self::OnDisk(entry) => Some(entry),
            Self::Dead | Self::Absent => None,
        }
    }
}

/// The containers that entries name.
pub trait Containers {
    /// Returns true if a container is live. A container that was forgotten is not live until it is recorded again with all
    /// its chunks, so a store may drop its entries.
    fn is_live(&self, container: Ordinal) -> bool;
    /// Returns the container of an ordinal, for a store that several hosts share: each numbers containers in its own order.
    fn container(&self, ordinal: Ordinal) -> Option<ContainerId>;
    /// Returns the ordinal of a container, if it is live.
    fn live_ordinal(&self, container: ContainerId) -> Option<Ordinal>;
    /// Returns the length of a container's file, if it is known.
    fn len_of(&self, container: ContainerId) -> Option<u64>;
    /// Returns the same test for jobs in the background, with the present answers.
    fn live(&self) -> Live;
    /// Returns a function that makes the numbers of all present containers durable. A store calls it before its first write
    /// of entries that name them: otherwise a number could mean another container after a power cut.
    fn begin_sync(&mut self) -> Result<SyncContainers>;
}

/// Work and space of a store since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StoreCounters {
    /// Pages read for lookups.
    pub lookup_pages: u64,
    /// Pages that lookups needed; several may need one page.
    pub pages_needed: u64,
    /// Reads for lookups.
    pub lookup_reads: u64,
    /// Bytes read for any purpose.
    pub bytes_read: u64,
    /// Bytes written, without the parts of checkpoints.
    pub bytes_written: u64,
    /// Pages that were bad or unreadable.
    pub damaged_pages: u64,
    /// Sorted runs that merges replaced.
    pub runs_merged: u64,
    /// Buckets that were split or joined.
    pub buckets_changed: u64,
    /// Nanoseconds of waiting in [`EntryStore::make_space`].
    pub wait_nanos: u64,
    /// Bytes on disk that the store uses now.
    pub used_bytes: u64,
    /// Bytes on disk that only the last checkpoint uses: the next one frees them.
    pub retired_bytes: u64,
}

/// A key-value store from fingerprint to container and log position.
///
/// A key that was inserted is found as long as the container of its last entry is live. The answer may be an earlier entry of
/// the key whose container is live: the container is never wrong, but the position may be old. If the container of the last
/// entry is not live, the store may have forgotten the earlier ones. A store never answers with an entry that was not
/// inserted. It loses entries to damage only, and [`EntryStore::damage`] reports which.
///
/// A crash leaves the state of the last checkpoint.
pub trait EntryStore: Debug + Send {
    /// Looks keys up; returns one answer for each, in their order. An unreadable key counts as absent.
    fn look_up(&mut self, keys: &[Key], containers: &dyn Containers) -> Vec<Lookup>;

    /// Starts to look keys up as [`EntryStore::look_up`] does, in the background if the store can. The answers are taken
    /// before the next such lookup starts; every other call is allowed meanwhile. Entries inserted meanwhile may be missed.
    fn start_look_up(&mut self, keys: Vec<Key>, containers: &dyn Containers);

    /// Waits for the lookup that was started; returns its answers, or `None` if none was.
    fn finish_look_up(&mut self) -> Option<Vec<Lookup>>;

    /// Inserts entries from the front of the slice, as many as there is space for, and returns their number. Each replaces
    /// the entry of the same key. Does no I/O.
    fn insert(&mut self, entries: &[Entry]) -> usize;

    /// Makes space for at least one entry, and waits as long as that takes.
    ///
    /// Fails with [`Error::StoreFull`] if no space can be made: the store is whole, can be saved, and takes no more entries.
    /// After any other error the caller must not save the store; lookups and [`EntryStore::insert`] continue to work.
    fn make_space(&mut self, containers: &mut dyn Containers) -> Result<()>;

    /// Returns true if several hosts may have the store at the same time.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns for each container the length of its file, if a session of this or another host has entered all of its chunks.
    /// A store that one host has alone knows none.
    fn shared(&mut self, containers: &[ContainerId]) -> Vec<Option<u64>> {
        vec![None; containers.len()]
    }

    /// Starts jobs that are due and takes the results of those that have ended, without waiting. Called after each
    /// container. Errors are those of [`EntryStore::make_space`], also from jobs that were started earlier.
    fn maintain(&mut self, containers: &mut dyn Containers) -> Result<()>;

    /// Removes damaged parts, and returns the ranges of key heads whose entries may be lost by that. Waits. Called before a
    /// checkpoint if the live containers are known.
    fn repair(&mut self, containers: &mut dyn Containers) -> Result<Vec<RangeInclusive<u64>>>;

    /// Returns the ranges of key heads in which damage was found that is not repaired.
    fn damage(&self) -> Vec<RangeInclusive<u64>>;

    /// Returns the failure of a server, if there was one, after which entries may be lost.
    fn failure(&self) -> Option<&Error> {
        None
    }

    /// Calls `each` at least once with every key whose head is in a range, in any order, without those in damaged parts. The
    /// filter grows by this. Waits for jobs.
    fn keys_in(&mut self, heads: RangeInclusive<u64>, each: &mut dyn FnMut(&Key)) -> Result<()>;

    /// Calls `each` at least once with every entry, in any order, without those in damaged parts; entries that were replaced may be
    /// among them. Waits for jobs. Returns false, without a call, if the store cannot list its entries at a reasonable cost, as on a
    /// server.
    fn list(&mut self, _each: &mut dyn FnMut(&Entry)) -> Result<bool> {
        Ok(false)
    }

    /// Makes the files of the store durable, and writes the rest of its state to the parts that [`OpenStore::parts`] names.
    /// The numbers of all containers are durable. Waits for jobs. Whatever the last checkpoint refers to stays as it is until
    /// [`EntryStore::saved`].
    fn save(&mut self, generation: u64, containers: &mut dyn Containers, parts: &mut [SealedWriter]) -> Result<()>;

    /// Notes that the checkpoint with the last save is durable.
    fn saved(&mut self);

    /// Returns the memory that the store takes, in bytes, buffers of jobs included.
    fn memory_bytes(&self) -> usize;

    /// Returns the counters.
    fn counters(&self) -> StoreCounters;
}

/// Means of a store to reach its files and to run jobs.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Disk of the files.
    pub disk: &'a Arc<dyn Disk>,
    /// Runs the jobs.
    pub host: &'a Arc<dyn Host>,
    /// Opens a file of the store for direct access, by its name in the directory of the index. For a new store the file is
    /// created, or emptied durably.
    pub file: &'a dyn Fn(&str) -> Result<Arc<dyn DiskFile>>,
}

impl Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings").field("disk", self.disk).finish_non_exhaustive()
    }
}

/// Makes stores of one kind.
pub trait OpenStore: Debug + Send + Sync {
    /// Returns the names of the files in which a checkpoint keeps what [`EntryStore::save`] writes.
    fn parts(&self) -> &'static [&'static str];

    /// Makes an empty store. `epoch` differs from those of all earlier stores of the directory.
    fn create(&self, surroundings: Surroundings<'_>, epoch: u64) -> Result<Box<dyn EntryStore>>;

    /// Opens a store as the checkpoint of a generation saved it; returns it with its epoch.
    ///
    /// Fails if a part or a file is damaged, and with [`Error::StoreFull`] if the entries exceed the memory of this store.
    fn open(
        &self,
        surroundings: Surroundings<'_>,
        generation: u64,
        parts: Vec<SealedReader>,
    ) -> Result<(Box<dyn EntryStore>, u64)>;
}

impl OpenStore for Arc<dyn OpenStore> {
    fn parts(&self) -> &'static [&'static str] {
        (**self).parts()
    }

    fn create(&self, surroundings: Surroundings<'_>, epoch: u64) -> Result<Box<dyn EntryStore>> {
        (**self).create(surroundings, epoch)
    }

    fn open(
        &self,
        surroundings: Surroundings<'_>,
        generation: u64,
        parts: Vec<SealedReader>,
    ) -> Result<(Box<dyn EntryStore>, u64)> {
        (**self).open(surroundings, generation, parts)
    }
}
