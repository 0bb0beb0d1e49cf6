//! Opening an index: the one that the checkpoint describes, or a new one.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::identify::exact::checkpoint::{Checkpoint, StreamState};
use crate::identify::exact::device;
use crate::identify::exact::directory::{CHECKPOINT, IndexDirectory};
use crate::identify::exact::growing_filter::GrowingFilter;
use crate::identify::exact::incomplete::Incomplete;
use crate::identify::exact::registry::Registry;
use crate::identify::exact::store::{SEGMENTS, Store, UNITS};
use crate::identify::exact::stream_log::{StreamLog, StreamRules};
use crate::identify::exact::unit_log::UnitLog;
use crate::identify::locality::arrival_log::{ArrivalLog, LOG_PAGE_RECORDS};
use crate::identify::locality::duplicate_runs::{DuplicateRunCap, DuplicateRunLog};
use crate::identify::locality::units::Units;
use crate::identify::options::{Completeness, IndexOptions, PrefetchUnit};
use crate::io::absent::{AbsentDisk, AbsentFile};
use crate::io::{Access, Disk, DiskFile, Host};
use crate::kv::filter::Filter;
use crate::kv::{BucketReads, EntryStore, OpenStore, Surroundings};
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
    let parts = opening.create(&|_, _| Ok(Arc::new(AbsentFile)))?;
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
    // A server that is away has the entries still.
    matches!(error, Error::Server { .. }) || error.io_kind().is_some_and(|kind| passing.contains(&kind))
}

/// Opens a file of the index by its name, with this access.
type OpenFile<'a> = dyn Fn(&str, Access) -> Result<Arc<dyn DiskFile>> + 'a;

/// The parts of an index that are read from its files.
struct Parts {
    registry: Registry,
    log: UnitLog,
    stream: Option<StreamLog>,
    duplicate_runs: DuplicateRunLog,
    entries: Box<dyn EntryStore>,
    kind: Box<dyn OpenStore>,
    reads: BucketReads,
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
        if checkpoint.store != self.options.store.code() {
            // The files of the other store are of no use, and may be large.
            self.directory.clear()?;
            return Err(Error::invalid("the entries of the index are in a store of another kind"));
        }
        if checkpoint.unit != self.options.unit_code() {
            self.directory.clear()?;
            return Err(Error::invalid(
                "the index was made to read other units of the log around a hit, or with entries for other chunks",
            ));
        }
        let reads = self.reads();
        let kind = self.options.open_store(reads);
        let (mut entries, epoch) = self.load_store(&*kind, &checkpoint)?;
        let filter = self.load_filter(&checkpoint, &mut *entries)?;
        let Checkpoint { registered, registry_checksum, log_pages, duplicate_runs_file, .. } = checkpoint;
        let Checkpoint { duplicate_run_pages, incomplete, covered, .. } = checkpoint;
        let containers = self.directory.open("containers", Access::ReadWrite)?;
        let registry = Registry::open(containers, self.directory.repository, registered, registry_checksum, covered)?;
        let log = self.open_log("log", epoch, 0..log_pages)?;
        let units = match checkpoint.units {
            Some(seal) => {
                let from = self.directory.open_sealed(UNITS, checkpoint.generation, seal)?;
                Units::load(from, log.next_position())?
            }
            None => Units::default(),
        };
        let log = self.with_jobs(log, units);
        let generation = checkpoint.generation;
        let stream = checkpoint.stream.map(|stream| self.load_stream(&stream, generation, epoch)).transpose()?;
        let runs = self.directory.open(&DuplicateRunLog::file_name(duplicate_runs_file), Access::ReadWrite)?;
        let duplicate_runs = DuplicateRunLog::open(runs, duplicate_runs_file, duplicate_run_pages, self.run_cap())?;
        let incomplete = Incomplete::new(incomplete);
        Ok(Some(Parts { registry, log, stream, duplicate_runs, entries, kind, reads, filter, incomplete }))
    }

    fn open_log(&self, name: &str, epoch: u64, pages: Range<u64>) -> Result<ArrivalLog> {
        ArrivalLog::open(self.directory.open(name, Access::Direct)?, epoch, pages, self.options.log_tail_pages)
    }

    fn with_jobs(&self, log: ArrivalLog, units: Units) -> UnitLog {
        UnitLog::new(Arc::clone(&self.directory.disk), Arc::clone(&self.host), log, units)
    }

    /// Returns the stream log. One that is damaged starts empty, after the positions that it had: these lead to nothing, and no
    /// chunk is lost.
    fn load_stream(&mut self, state: &StreamState, generation: u64, epoch: u64) -> Result<StreamLog> {
        let StreamState { file, pages, named_pages, segments } = state;
        let saved = self.open_log(&StreamLog::file_name(*file), epoch, pages.clone()).and_then(|log| {
            let from = self.directory.open_sealed(SEGMENTS, generation, *segments)?;
            let units = Units::load(from, log.next_position())?;
            Ok((log, units))
        });
        let (log, units, file) = match saved {
            Ok((log, units)) => (log, units, *file),
            Err(error) if is_passing(&error) => return Err(error),
            Err(_) => {
                self.directory.is_changed = true;
                let file = 1 - file;
                self.directory.open_or_create(&StreamLog::file_name(file))?.set_len(0)?;
                (self.open_log(&StreamLog::file_name(file), epoch, pages.end..pages.end)?, Units::default(), file)
            }
        };
        let named_pages = if units.is_empty() { 0 } else { *named_pages };
        Ok(StreamLog::new(self.with_jobs(log, units), file, self.stream_rules(), named_pages))
    }

    fn stream_rules(&self) -> StreamRules {
        let IndexOptions { segmenting, sampling, stream_bytes_per_chunk, stream_pages_min, .. } = *self.options;
        let following = if let PrefetchUnit::Segment { following } = self.options.unit { following } else { 0 };
        let (bytes_per_chunk, pages_min) = (stream_bytes_per_chunk, stream_pages_min);
        let is_near_exact = self.options.completeness == Completeness::NearExact;
        let (is_whole, mapping) = (self.options.has_whole_segments(), self.options.mapping.max(1));
        StreamRules { segmenting, sampling, bytes_per_chunk, pages_min, following, is_near_exact, is_whole, mapping }
    }

    fn run_cap(&self) -> DuplicateRunCap {
        let IndexOptions { duplicate_run_bytes_per_chunk, duplicate_run_pages_min, .. } = *self.options;
        DuplicateRunCap { bytes_per_chunk: duplicate_run_bytes_per_chunk, pages_min: duplicate_run_pages_min }
    }

    /// Returns how lookups read the store: by default, as suits the measured device.
    fn reads(&self) -> BucketReads {
        let file = self.options.store.measured_file();
        let measured = || device::profile(&*self.directory.disk, &self.directory.path, file).map(BucketReads::ByDevice);
        self.options.reads.or_else(measured).unwrap_or(BucketReads::Pages)
    }

    fn load_store(&self, kind: &dyn OpenStore, checkpoint: &Checkpoint) -> Result<(Box<dyn EntryStore>, u64)> {
        let generation = checkpoint.generation;
        let parts = kind.parts().iter().zip(&checkpoint.parts);
        let parts = parts.map(|(name, seal)| self.directory.open_sealed(name, generation, *seal));
        let parts = parts.collect::<Result<_>>()?;
        kind.open(self.surroundings(&|name| self.directory.open(name, Access::Direct)), generation, parts)
    }

    fn surroundings<'a>(&'a self, file: &'a dyn Fn(&str) -> Result<Arc<dyn DiskFile>>) -> Surroundings<'a> {
        Surroundings { disk: &self.directory.disk, host: &self.host, file }
    }

    /// Returns the saved filter. One that is damaged, or too large by an odd factor, is rebuilt from the store.
    fn load_filter(&mut self, checkpoint: &Checkpoint, entries: &mut dyn EntryStore) -> Result<Filter> {
        let generation = checkpoint.generation;
        let saved = self.directory.open_sealed("filter", generation, checkpoint.filter);
        if let Ok(filter) = saved.and_then(|from| Filter::load(generation, self.filter_bytes_max(), from)) {
            return Ok(filter);
        }
        self.directory.is_changed = true;
        let stored = usize::try_from(checkpoint.log_pages).unwrap_or(usize::MAX).saturating_mul(LOG_PAGE_RECORDS);
        let bytes = (stored.saturating_mul(FILTER_BITS_REBUILT) / 8).min(self.filter_bytes_max());
        let mut filter = Filter::new(bytes.max(self.options.filter_bytes), self.options.filter_hashes);
        entries.keys_in(0..=u64::MAX, &mut |key| {
            filter.test_and_set(key);
        })?;
        Ok(filter)
    }

    fn filter_bytes_max(&self) -> usize {
        self.options.filter_bytes_max.max(self.options.filter_bytes)
    }

    /// Starts with an empty index.
    fn start(mut self) -> Result<Store> {
        // The checkpoint goes first and durably: it must not find the files below with other contents.
        self.directory.remove_checkpoints()?;
        let parts = self.create(&|name, access| {
            let file = self.directory.open_or_create(name)?;
            file.set_len(0)?;
            // No page of an earlier epoch may return after a power cut.
            file.sync()?;
            if access == Access::ReadWrite { Ok(file) } else { self.directory.open(name, access) }
        })?;
        self.directory.sync()?;
        Ok(self.assemble(parts))
    }

    /// Makes the parts of an index from empty files.
    fn create(&self, empty: &OpenFile<'_>) -> Result<Parts> {
        let containers = empty("containers", Access::ReadWrite)?;
        let runs = empty(&DuplicateRunLog::file_name(0), Access::ReadWrite)?;
        // Direct access: each page is read once, and the user limits the memory.
        let direct = |name: &str| empty(name, Access::Direct);
        let log = direct("log")?;
        let has_stream = matches!(self.options.unit, PrefetchUnit::Segment { .. });
        let stream = if has_stream { Some(direct(&StreamLog::file_name(0))?) } else { None };
        let mut epoch = [0; 8];
        self.host.random(&mut epoch)?;
        let epoch = u64::from_le_bytes(epoch);
        let reads = self.options.reads.unwrap_or(BucketReads::Pages);
        let kind = self.options.open_store(reads);
        let new_log = |file| {
            let log = ArrivalLog::open(file, epoch, 0..0, self.options.log_tail_pages)?;
            Ok(self.with_jobs(log, Units::default()))
        };
        Ok(Parts {
            registry: Registry::create(containers, self.directory.repository)?,
            log: new_log(log)?,
            stream: stream.map(|file| Ok(StreamLog::new(new_log(file)?, 0, self.stream_rules(), 0))).transpose()?,
            duplicate_runs: DuplicateRunLog::open(runs, 0, 0, self.run_cap())?,
            entries: kind.create(self.surroundings(&direct), epoch)?,
            kind,
            reads,
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
        let Parts { registry, log, stream, duplicate_runs, entries, kind, reads, filter, incomplete } = parts;
        let filter = GrowingFilter::new(filter, self.filter_bytes_max());
        let directory = self.directory;
        Store {
            registry,
            entries,
            kind,
            code: self.options.store.code(),
            reads,
            log,
            stream,
            unit: self.options.unit,
            unit_code: self.options.unit_code(),
            samples: self.options.samples(),
            duplicate_runs,
            filter,
            incomplete,
            is_attached: false,
            degraded: None,
            added: 0,
            directory,
        }
    }
}
