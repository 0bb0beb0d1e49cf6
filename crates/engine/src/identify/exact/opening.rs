//! Opening an index: the one that the checkpoint describes, or a new one.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::identify::exact::background::{BackgroundLog, BackgroundTable};
use crate::identify::exact::checkpoint::Checkpoint;
use crate::identify::exact::device;
use crate::identify::exact::directory::{CHECKPOINT, IndexDirectory};
use crate::identify::exact::growing_filter::GrowingFilter;
use crate::identify::exact::incomplete::Incomplete;
use crate::identify::exact::registry::Registry;
use crate::identify::exact::store::Store;
use crate::identify::locality::arrival_log::{ArrivalLog, LOG_PAGE_RECORDS};
use crate::identify::locality::duplicate_runs::{DuplicateRunCap, DuplicateRunLog};
use crate::identify::options::IndexOptions;
use crate::io::absent::{AbsentDisk, AbsentFile};
use crate::io::{Access, Disk, DiskFile, Host};
use crate::kv::filter::Filter;
use crate::kv::{BucketReads, Table, TableSpec};
use crate::types::RepositoryId;

/// Bits of a rebuilt filter for each record of the log: enough that it need not grow immediately.
const FILTER_BITS_REBUILT: usize = 20;

/// State in which an index was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IndexState {
    /// There was none.
    New,
    /// As it was closed.
    Clean,
    /// As it was at the last checkpoint; the last writer did not close it.
    Unclean,
    /// As it was closed, but so many parts of its table were damaged. The caller must record all containers again.
    Incomplete(usize),
    /// Empty again, with the reason.
    Rebuilt(String),
}

/// Opens the index in `path`; creates the directory's last component if it is missing.
///
/// Fails with [`Error::IndexBusy`] if another writer holds it, and if it cannot be read or written for a passing reason (a
/// full disk, missing permissions). An index that is missing, damaged, another repository's or of another version starts
/// empty, and the state gives the reason.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    host: Arc<dyn Host>,
    path: &Path,
    repository: RepositoryId,
    options: &IndexOptions,
) -> Result<(Store, IndexState)> {
    let mut opening = Opening { directory: IndexDirectory::lock(disk, path, repository)?, host, options };
    let why_empty = match opening.load() {
        Ok(Some(parts)) => return Ok(opening.finish(parts)),
        Ok(None) => IndexState::New,
        Err(error) if is_passing(&error) => return Err(error),
        Err(error) => IndexState::Rebuilt(error.to_string()),
    };
    Ok((opening.start()?, why_empty))
}

/// Starts an empty index in `path`, whatever stands there; creates the directory's last component if it is missing.
///
/// Fails with [`Error::IndexBusy`] if another writer holds it, and if it cannot be written.
pub(in crate::identify) fn create(
    disk: Arc<dyn Disk>,
    host: Arc<dyn Host>,
    path: &Path,
    repository: RepositoryId,
    options: &IndexOptions,
) -> Result<Store> {
    let mut directory = IndexDirectory::lock(disk, path, repository)?;
    directory.clear()?;
    Opening { directory, host, options }.start()
}

/// Makes an index in memory only. It is degraded for `reason` from the start.
pub(in crate::identify) fn without_disk(
    host: Arc<dyn Host>,
    repository: RepositoryId,
    options: &IndexOptions,
    reason: String,
) -> Result<Store> {
    let directory = IndexDirectory::new(Arc::new(AbsentDisk), Path::new(""), Arc::new(AbsentFile), repository);
    let opening = Opening { directory, host, options };
    let parts = opening.create(&|_| Ok(Arc::new(AbsentFile)))?;
    Ok(Store { degraded: Some(reason), ..opening.assemble(parts) })
}

/// Returns true if an error says nothing about the index, which therefore must survive it.
fn is_passing(error: &Error) -> bool {
    let passing = [
        ErrorKind::PermissionDenied,
        ErrorKind::StorageFull,
        ErrorKind::QuotaExceeded,
        ErrorKind::OutOfMemory,
        ErrorKind::Interrupted,
        ErrorKind::TimedOut,
        ErrorKind::ResourceBusy,
        ErrorKind::ReadOnlyFilesystem,
        ErrorKind::StaleNetworkFileHandle,
        ErrorKind::NetworkDown,
        ErrorKind::NetworkUnreachable,
        ErrorKind::HostUnreachable,
    ];
    error.io_kind().is_some_and(|kind| passing.contains(&kind))
}

/// The parts of an index that are read from its files.
struct Parts {
    registry: Registry,
    log: ArrivalLog,
    duplicate_runs: DuplicateRunLog,
    table: Table,
    filter: Filter,
    incomplete: Incomplete,
}

/// An index that is being opened.
struct Opening<'a> {
    directory: IndexDirectory,
    host: Arc<dyn Host>,
    options: &'a IndexOptions,
}

impl Opening<'_> {
    /// Returns the parts that the checkpoint describes; `None` if there is no index.
    fn load(&mut self) -> Result<Option<Parts>> {
        if !self.directory.exists(CHECKPOINT)? {
            if self.directory.exists("containers")? {
                return Err(Error::damaged("index", "it was given up before its first checkpoint"));
            }
            return Ok(None);
        }
        let checkpoint = self.directory.load_checkpoint()?;
        let mut table = self.load_table(&checkpoint)?;
        let filter = self.load_filter(&checkpoint, &mut table);
        let Checkpoint { registered, registry_checksum, log_pages, duplicate_runs_file, .. } = checkpoint;
        let Checkpoint { duplicate_run_pages, incomplete, covered, .. } = checkpoint;
        let containers = self.directory.open("containers", Access::ReadWrite)?;
        let registry = Registry::open(containers, self.directory.repository, registered, registry_checksum, covered)?;
        let log = ArrivalLog::open(
            self.directory.open("log", Access::Direct)?,
            table.epoch(),
            log_pages,
            self.options.log_tail_pages,
        )?;
        let runs = self.directory.open(&DuplicateRunLog::file_name(duplicate_runs_file), Access::ReadWrite)?;
        let duplicate_runs = DuplicateRunLog::open(runs, duplicate_runs_file, duplicate_run_pages, self.run_cap())?;
        let incomplete = Incomplete::new(incomplete);
        Ok(Some(Parts { registry, log, duplicate_runs, table, filter, incomplete }))
    }

    fn run_cap(&self) -> DuplicateRunCap {
        let IndexOptions { duplicate_run_bytes_per_chunk, duplicate_run_pages_min, .. } = *self.options;
        DuplicateRunCap { bytes_per_chunk: duplicate_run_bytes_per_chunk, pages_min: duplicate_run_pages_min }
    }

    fn load_table(&self, checkpoint: &Checkpoint) -> Result<Table> {
        let generation = checkpoint.generation;
        let mut spec = self.options.table();
        let disk = &*self.directory.disk;
        if self.options.reads.is_none()
            && let Some(profile) = device::profile(disk, &self.directory.path)
        {
            spec.reads = BucketReads::ByDevice(profile);
        }
        let manifest = self.directory.open_sealed("manifest", generation, checkpoint.manifest)?;
        let mut table = Table::open(self.directory.open("table", Access::Direct)?, spec, generation, manifest)?;
        table.load_memtable(disk, self.directory.open_sealed("staged", generation, checkpoint.memtable)?)?;
        Ok(table)
    }

    /// Returns the saved filter. One that is damaged, or too large by an odd factor, is rebuilt from the table.
    fn load_filter(&mut self, checkpoint: &Checkpoint, table: &mut Table) -> Filter {
        let generation = checkpoint.generation;
        let saved = self.directory.open_sealed("filter", generation, checkpoint.filter);
        if let Ok(filter) = saved.and_then(|from| Filter::load(generation, self.filter_bytes_max(), from)) {
            return filter;
        }
        self.directory.is_changed = true;
        let stored = usize::try_from(checkpoint.log_pages).unwrap_or(usize::MAX).saturating_mul(LOG_PAGE_RECORDS);
        let bytes = (stored.saturating_mul(FILTER_BITS_REBUILT) / 8).min(self.filter_bytes_max());
        let mut filter = Filter::new(bytes.max(self.options.filter_bytes), self.options.filter_hashes);
        table.scan(&*self.directory.disk, 0..=u64::MAX, &mut |key| {
            filter.test_and_set(key);
        });
        filter
    }

    fn filter_bytes_max(&self) -> usize {
        self.options.filter_bytes_max.max(self.options.filter_bytes)
    }

    /// Starts with an empty index.
    fn start(mut self) -> Result<Store> {
        // The checkpoint goes first and durably: it must not find the files below with other contents.
        self.directory.remove_checkpoints()?;
        let parts = self.create(&|name| {
            let file = self.directory.open_or_create(name)?;
            file.set_len(0)?;
            // No page of an earlier epoch may return after a power cut.
            file.sync()?;
            // Direct access: each page is read once, and the user limits the memory.
            if ["table", "log"].contains(&name) { self.directory.open(name, Access::Direct) } else { Ok(file) }
        })?;
        self.directory.sync()?;
        Ok(self.assemble(parts))
    }

    /// Makes the parts of an index from empty files.
    fn create(&self, empty: &dyn Fn(&str) -> Result<Arc<dyn DiskFile>>) -> Result<Parts> {
        let (containers, runs) = (empty("containers")?, empty(&DuplicateRunLog::file_name(0))?);
        let (table, log) = (empty("table")?, empty("log")?);
        let mut epoch = [0; 8];
        self.host.random(&mut epoch)?;
        let epoch = u64::from_le_bytes(epoch);
        Ok(Parts {
            registry: Registry::create(containers, self.directory.repository)?,
            log: ArrivalLog::open(log, epoch, 0, self.options.log_tail_pages)?,
            duplicate_runs: DuplicateRunLog::open(runs, 0, 0, self.run_cap())?,
            table: Table::new(table, TableSpec { epoch, ..self.options.table() }),
            filter: Filter::new(self.options.filter_bytes, self.options.filter_hashes),
            incomplete: Incomplete::default(),
        })
    }

    fn finish(self, parts: Parts) -> (Store, IndexState) {
        let state = match parts.incomplete.parts() {
            _ if self.directory.is_unclean => IndexState::Unclean,
            0 => IndexState::Clean,
            parts => IndexState::Incomplete(parts),
        };
        (self.assemble(parts), state)
    }

    fn assemble(self, parts: Parts) -> Store {
        let Parts { registry, log, duplicate_runs, table, filter, incomplete } = parts;
        let filter = GrowingFilter::new(filter, self.filter_bytes_max());
        let Self { directory, host, .. } = self;
        Store {
            registry,
            table: BackgroundTable::new(Arc::clone(&directory.disk), Arc::clone(&host), table),
            log: BackgroundLog::new(Arc::clone(&directory.disk), host, log),
            duplicate_runs,
            filter,
            incomplete,
            is_attached: false,
            degraded: None,
            entries: 0,
            directory,
        }
    }
}
