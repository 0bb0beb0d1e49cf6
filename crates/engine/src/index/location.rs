//! Opening an index: what is there, or a new one.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::index::checkpoint::{CHECKPOINT_BYTES_MAX, Checkpoint, decode_checkpoint};
use crate::index::device;
use crate::index::duplicate_runs::DuplicateRunLog;
use crate::index::log::{ArrivalLog, LOG_PAGE_RECORDS};
use crate::index::maintenance::disjoint;
use crate::index::options::IndexOptions;
use crate::index::registry::Registry;
use crate::index::store::{IndexState, Store, duplicate_runs_name, open_or_create, slot_name};
use crate::io::{Access, Disk, DiskFile, Host};
use crate::kv::filter::Filter;
use crate::kv::manifest::decode_manifest;
use crate::kv::sealed::{Seal, SealedReader};
use crate::kv::table::{BucketReads, Table, TableSpec};
use crate::types::RepositoryId;

/// Bits of a filter that is made anew for each record of the log: so many that it need not grow at once.
const FILTER_BITS_REBUILT: usize = 20;

/// What an index is put together from.
struct Parts {
    generation: u64,
    registry: Registry,
    log: ArrivalLog,
    duplicate_runs: DuplicateRunLog,
    duplicate_runs_file: u8,
    table: Table,
    filter: Filter,
    incomplete: Vec<RangeInclusive<u64>>,
}

/// Where an index is opened, and how.
pub(super) struct IndexLocation<'a> {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) host: Arc<dyn Host>,
    pub(super) dir: &'a Path,
    pub(super) repository: RepositoryId,
    pub(super) options: &'a IndexOptions,
}

impl IndexLocation<'_> {
    fn file(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        self.disk.open(&self.dir.join(name), Access::ReadWrite)
    }

    /// Opens a file past the page cache: what is read of it is read once, and memory is what the user said.
    fn direct_file(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        self.disk.open(&self.dir.join(name), Access::Direct)
    }

    fn sealed(&self, name: &str, generation: u64, seal: Seal) -> Result<SealedReader> {
        let path = self.dir.join(slot_name(name, generation));
        SealedReader::open(self.disk.open(&path, Access::Read)?, path, seal)
    }

    /// Opens what is there; `None` if nothing is.
    pub(super) fn load(&self, lock: &Arc<dyn DiskFile>) -> Result<Option<(Store, IndexState)>> {
        if !self.disk.exists(&self.dir.join("checkpoint"))? {
            if self.disk.exists(&self.dir.join("containers"))? {
                return Err(Error::damaged("index", "it was given up before its first checkpoint"));
            }
            return Ok(None);
        }
        let checkpoint = self.load_checkpoint()?;
        let generation = checkpoint.generation;
        let mut table = self.load_table(&checkpoint)?;
        let (filter, is_whole) = self.load_filter(&checkpoint, &mut table);
        let Checkpoint { registered, registry_digest, log_pages, duplicate_runs_file, .. } = checkpoint;
        let Checkpoint { duplicate_run_pages, incomplete, covered, .. } = checkpoint;
        let registry = Registry::open(self.file("containers")?, self.repository, registered, registry_digest, covered)?;
        let log = ArrivalLog::open(self.direct_file("log")?, table.epoch(), log_pages)?;
        let duplicate_runs =
            DuplicateRunLog::open(self.file(&duplicate_runs_name(duplicate_runs_file))?, duplicate_run_pages)?;
        let marked = self.disk.exists(&self.dir.join("unclean"))?;
        let state = match incomplete.len() {
            _ if marked => IndexState::Unclean,
            0 => IndexState::Clean,
            parts => IndexState::Incomplete(parts),
        };
        let parts = Parts { generation, registry, log, duplicate_runs, duplicate_runs_file, table, filter, incomplete };
        let mut store = self.assemble(Arc::clone(lock), parts);
        (store.changed, store.marked) = (marked || !is_whole, marked);
        Ok(Some((store, state)))
    }

    fn load_table(&self, checkpoint: &Checkpoint) -> Result<Table> {
        let generation = checkpoint.generation;
        let mut manifest = self.sealed("manifest", generation, checkpoint.manifest)?;
        let len = usize::try_from(manifest.left()).map_err(|_| Error::damaged("manifest", "too long"))?;
        let mut bytes = vec![0; len];
        manifest.read(&mut bytes)?;
        manifest.finish()?;
        let manifest = decode_manifest(&bytes)?;
        drop(bytes);
        if manifest.generation != generation {
            return Err(Error::damaged("manifest", "belongs to another checkpoint"));
        }
        let mut spec = self.options.table();
        if self.options.reads.is_none()
            && let Some(profile) = device::profile(&*self.disk, self.dir)
        {
            spec.reads = BucketReads::ByDevice(profile);
        }
        let mut table = Table::open(self.direct_file("table")?, spec, manifest)?;
        table.load_staged(&*self.disk, self.sealed("staged", generation, checkpoint.staged)?)?;
        Ok(table)
    }

    /// Returns the filter, and whether it is the one that was saved.
    fn load_filter(&self, checkpoint: &Checkpoint, table: &mut Table) -> (Filter, bool) {
        let generation = checkpoint.generation;
        let saved = self.sealed("filter", generation, checkpoint.filter);
        let loaded = saved.and_then(|from| Filter::load(generation, self.filter_bytes_max(), from));
        if let Ok(filter) = loaded {
            return (filter, true);
        }
        // Damaged, or too large by an odd factor: the table knows the same bits of all fingerprints.
        let stored = usize::try_from(checkpoint.log_pages).unwrap_or(usize::MAX).saturating_mul(LOG_PAGE_RECORDS);
        let bytes = (stored.saturating_mul(FILTER_BITS_REBUILT) / 8)
            .min(self.filter_bytes_max())
            .max(self.options.filter_bytes);
        let mut filter = Filter::new(bytes, self.options.filter_hashes);
        table.scan(&*self.disk, 0..=u64::MAX, &mut |key| {
            filter.test_and_set(key);
        });
        (filter, false)
    }

    fn filter_bytes_max(&self) -> usize {
        self.options.filter_bytes_max.max(self.options.filter_bytes)
    }

    fn load_checkpoint(&self) -> Result<Checkpoint> {
        let path = self.dir.join("checkpoint");
        let file = self.disk.open(&path, Access::Read)?;
        let len = file.len()?;
        if CHECKPOINT_BYTES_MAX < len {
            return Err(Error::damaged(self.disk.display(&path), "too long"));
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| Error::invalid("the index is too large"))?];
        file.read_at(0, &mut bytes)?;
        let checkpoint = decode_checkpoint(&bytes)?;
        if checkpoint.repository != self.repository {
            return Err(Error::invalid(format!("the index is of the repository {}", checkpoint.repository)));
        }
        Ok(checkpoint)
    }

    /// Starts with nothing.
    pub(super) fn start(&self, lock: Arc<dyn DiskFile>) -> Result<Store> {
        // The checkpoint goes first, for good: it must not find the files below with other contents.
        for name in ["checkpoint", "checkpoint.new", "unclean"] {
            if self.disk.exists(&self.dir.join(name))? {
                self.disk.remove(&self.dir.join(name))?;
            }
        }
        self.disk.sync_dir(self.dir)?;
        let empty = |name: &str| {
            let path = self.dir.join(name);
            let file = open_or_create(&*self.disk, &path)?;
            file.set_len(0)?;
            // No page of an earlier life may come back with a power cut.
            file.sync()?;
            Ok::<_, Error>(if ["table", "log"].contains(&name) { self.direct_file(name)? } else { file })
        };
        let store = self.make(lock, &empty)?;
        self.disk.sync_dir(self.dir)?;
        Ok(store)
    }

    /// Puts an index together from empty files.
    pub(super) fn make(
        &self,
        lock: Arc<dyn DiskFile>,
        empty: &dyn Fn(&str) -> Result<Arc<dyn DiskFile>>,
    ) -> Result<Store> {
        let (containers, duplicate_runs) = (empty("containers")?, empty(&duplicate_runs_name(0))?);
        let (table, log) = (empty("table")?, empty("log")?);
        let mut epoch = [0; 8];
        self.host.random(&mut epoch)?;
        let epoch = u64::from_le_bytes(epoch);
        let parts = Parts {
            generation: 0,
            registry: Registry::create(containers, self.repository)?,
            log: ArrivalLog::open(log, epoch, 0)?,
            duplicate_runs: DuplicateRunLog::open(duplicate_runs, 0)?,
            duplicate_runs_file: 0,
            table: Table::new(table, TableSpec { epoch, ..self.options.table() }),
            filter: Filter::new(self.options.filter_bytes, self.options.filter_hashes),
            incomplete: Vec::new(),
        };
        Ok(self.assemble(lock, parts))
    }

    fn assemble(&self, lock: Arc<dyn DiskFile>, parts: Parts) -> Store {
        let Parts { generation, registry, log, duplicate_runs, duplicate_runs_file, table, filter, incomplete } = parts;
        let filter_reserved = filter.bytes_of_largest();
        Store {
            disk: Arc::clone(&self.disk),
            host: Arc::clone(&self.host),
            dir: self.dir.to_path_buf(),
            _lock: lock,
            repository: self.repository,
            generation,
            registry,
            log,
            duplicate_runs,
            duplicate_runs_file,
            duplicate_run_bytes_per_chunk: self.options.duplicate_run_bytes_per_chunk,
            duplicate_run_pages_min: self.options.duplicate_run_pages_min,
            table,
            filter,
            filter_bytes_max: self.filter_bytes_max(),
            filter_reserved,
            flush_running: None,
            lookup_running: None,
            reading: None,
            writing_log: None,
            next_segment: 0,
            next_growth: 0,
            filter_growths: 0,
            duplicate_runs_noted: 0,
            flush_wait_nanos: 0,
            changed: true,
            marked: false,
            degraded: None,
            incomplete: disjoint(incomplete),
            found_incomplete: Vec::new(),
            is_attached: false,
            to_complete: 0,
            updates: 0,
        }
    }
}
