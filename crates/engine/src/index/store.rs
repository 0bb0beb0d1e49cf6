//! The index's directory: what is in it, which state of it counts, and what happens when it fails.
//!
//! | file | holds |
//! |---|---|
//! | `lock` | nothing; its lock says that a writer is at work |
//! | `checkpoint` | the state that counts; see [`crate::index::checkpoint`] |
//! | `unclean` | nothing; stands there while the state on disk is being gone on from |
//! | `containers` | the registry; see [`crate::index::registry`] |
//! | `log` | the arrival log; see [`crate::index::log`] |
//! | `table` | pages of the bucket table; see [`crate::kv::page`] |
//! | `manifest.N`, `staged.N`, `filter.N` | rest of table and filter at the checkpoint of generation N modulo 2 |
//!
//! The index is disposable. Whatever does not hold together is thrown away as a whole, and the caller enters all live
//! containers again. While it runs, it fails by forgetting: after the first error of a write nothing is written any
//! more, lookups go on, and the next opening falls back to the last checkpoint. What it never does is to answer with a
//! container that does not hold the chunk.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::index::checkpoint::{CHECKPOINT_BYTES_MAX, Checkpoint, Standing, decode_checkpoint, encode_checkpoint};
use crate::index::log::{ArrivalLog, LogRecord, LogWindow};
use crate::index::options::IndexOptions;
use crate::index::registry::Registry;
use crate::index::{Counters, Unit};
use crate::io::{Access, Disk, DiskFile};
use crate::kv::filter::Filter;
use crate::kv::manifest::decode_manifest;
use crate::kv::sealed::{Seal, SealedReader, SealedWriter};
use crate::kv::table::{Lookup, Table};
use crate::kv::{Entry, Key, Ordinal, Position};
use crate::types::{ContainerId, RepositoryId};

/// Bytes of replaced runs, in use only by the last checkpoint, that are worth a new one however small the table is.
const RETIRED_BYTES_MIN: u64 = 256 << 20;

/// A position that the log never reaches: entries that were made after the log failed prefetch nothing.
const NO_POSITION: Position = Position(u64::MAX);

/// In which state an index was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IndexState {
    /// There was none.
    New,
    /// As it was closed.
    Clean,
    /// As it was at the last checkpoint of a run that did not end well.
    Unclean,
    /// Empty again, and why.
    Rebuilt(String),
}

/// The open index on disk.
#[derive(Debug)]
pub struct Store {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Held for its lock.
    _lock: Arc<dyn DiskFile>,
    repository: RepositoryId,
    generation: u64,
    registry: Registry,
    log: ArrivalLog,
    table: Table,
    filter: Filter,
    /// Whether the checkpoint is behind, or the marker says so.
    changed: bool,
    marked: bool,
    degraded: Option<String>,
    updates: u64,
}

impl Store {
    /// Opens the index in `dir`, creating the directory's last component where it is missing.
    ///
    /// Fails with [`Error::IndexBusy`] if another writer holds it, and where nothing can be written or read for a reason
    /// that passes (a full disk, missing permissions). An index that is
    /// missing, damaged, another repository's or of another version is started anew; the state says why.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        repository: RepositoryId,
        options: &IndexOptions,
    ) -> Result<(Self, IndexState)> {
        if let Some(parent) = dir.parent() {
            disk.create_dir(dir)?;
            disk.sync_dir(parent)?;
        }
        let lock_path = dir.join("lock");
        let lock = open_or_create(&*disk, &lock_path)?;
        if !lock.try_lock()? {
            return Err(Error::IndexBusy { path: PathBuf::from(disk.display(&lock_path)) });
        }
        let place = Place { disk, dir, repository, options };
        let why_not = match place.load(&lock) {
            Ok(Some(opened)) => return Ok(opened),
            Ok(None) => IndexState::New,
            Err(error) if is_passing(&error) => return Err(error),
            Err(error) => IndexState::Rebuilt(error.to_string()),
        };
        Ok((place.start(lock)?, why_not))
    }

    /// Takes the containers that exist, sorted; returns those whose chunks are not all entered: to be recorded.
    pub fn attach(&mut self, live: &[ContainerId]) -> Vec<ContainerId> {
        self.registry.attach(live)
    }

    /// Notes that a container is gone.
    pub fn bury(&mut self, container: ContainerId) {
        self.registry.bury(container);
    }

    /// Returns why the index does not write any more.
    pub fn degraded(&self) -> Option<String> {
        let damaged = || {
            let pages = self.table.counters().damaged_pages;
            (pages != 0).then(|| format!("{pages} damaged pages in the fingerprint table"))
        };
        self.degraded.clone().or_else(damaged)
    }

    /// Returns the share of the filter's bits that are set.
    pub fn filter_fill(&self) -> f64 {
        self.filter.fill()
    }

    /// Returns the filter.
    pub fn filter(&mut self) -> &mut Filter {
        &mut self.filter
    }

    /// Returns the container of an ordinal if it is live.
    pub fn live_container(&self, ordinal: Ordinal) -> Option<ContainerId> {
        self.registry.live_container(ordinal)
    }

    /// Looks keys up; `out` gets one answer per key, in live containers only.
    pub fn lookup(&mut self, keys: &[Key], out: &mut Vec<Lookup>) {
        self.table.lookup(&*self.disk, keys, &|ordinal| self.registry.is_live(ordinal), out);
    }

    /// Reads windows of the log; `out` gets the records of each.
    pub fn read_log(&mut self, windows: &[LogWindow], out: &mut Vec<Vec<LogRecord>>) {
        self.log.read(&*self.disk, windows, out);
    }

    /// Fills in what table and log have counted.
    pub fn count(&self, counters: &mut Counters) {
        let (table, log) = (self.table.counters(), self.log.counters());
        counters.pages_read = table.lookup_pages;
        counters.bytes_read = table.bytes_read + log.bytes_read;
        counters.bytes_written = table.bytes_written + log.bytes_written;
        counters.prefetches = log.reads;
        counters.damaged_pages = table.damaged_pages;
        counters.updates = self.updates;
    }

    /// Enters the chunks of a container that is durable. A failure to write degrades the index and is no error.
    pub fn record(&mut self, unit: &Unit<'_>) {
        let outcome = match self.degraded {
            Some(_) => return self.record_in_memory(unit),
            None => self.record_on_disk(unit),
        };
        if let Err(error) = outcome {
            self.degraded = Some(error.to_string());
            self.record_in_memory(unit);
        }
    }

    fn record_on_disk(&mut self, unit: &Unit<'_>) -> Result<()> {
        self.mark_unclean()?;
        let ordinal = self.registry.register(unit.container)?;
        self.registry.revive(ordinal);
        for chunk in unit.chunks {
            if !self.log.has_room() || !self.table.has_room() {
                self.make_room()?;
            }
            let record = LogRecord { fingerprint: chunk.fingerprint, ordinal, len: chunk.len };
            let position = self.log.append(record);
            self.enter(Key::from(&chunk.fingerprint), ordinal, position);
        }
        self.registry.cover(ordinal);
        let (retired, used) = self.table.retired_and_used_bytes();
        if retired > (used / 2).max(RETIRED_BYTES_MIN) { self.checkpoint() } else { Ok(()) }
    }

    /// Enters what fits into memory: nothing of it will reach the disk.
    fn record_in_memory(&mut self, unit: &Unit<'_>) {
        let Some(ordinal) = self.registry.register_in_memory(unit.container) else { return };
        self.registry.revive(ordinal);
        for chunk in unit.chunks {
            if !self.table.has_room() {
                return;
            }
            self.enter(Key::from(&chunk.fingerprint), ordinal, NO_POSITION);
        }
    }

    fn enter(&mut self, key: Key, ordinal: Ordinal, position: Position) {
        self.table.insert(&Entry { key, ordinal, position });
        self.filter.test_and_set(&key);
        self.updates += 1;
    }

    fn make_room(&mut self) -> Result<()> {
        // Registry before log and table: an ordinal that they name must mean the same container after a power cut.
        self.registry.sync()?;
        if !self.log.has_room() {
            self.log.write_out()?;
        }
        if !self.table.has_room() {
            self.table.flush(&*self.disk, &|ordinal| self.registry.is_live(ordinal))?;
        }
        Ok(())
    }

    /// Says on disk that the checkpoint is behind, before anything else is written.
    fn mark_unclean(&mut self) -> Result<()> {
        if !self.marked {
            open_or_create(&*self.disk, &self.dir.join("unclean"))?;
            self.disk.sync_dir(&self.dir)?;
            self.marked = true;
        }
        self.changed = true;
        Ok(())
    }

    /// Makes everything recorded durable, as the state to fall back to. A failure degrades the index and is no error.
    pub fn save(&mut self) {
        let damaged = self.table.counters().damaged_pages != 0;
        if damaged || self.degraded.is_some() || !self.changed {
            return;
        }
        if let Err(error) = self.mark_unclean().and_then(|()| self.checkpoint()) {
            self.degraded = Some(error.to_string());
        }
    }

    /// Makes everything recorded durable, as the state to fall back to. After an error the index must not write.
    fn checkpoint(&mut self) -> Result<()> {
        let mut checkpoint = self.describe(Standing::Whole);
        self.registry.sync()?;
        self.log.sync()?;
        let create = |name: &str| {
            let path = self.dir.join(slot_name(name, checkpoint.generation));
            SealedWriter::create(open_or_create(&*self.disk, &path)?)
        };
        let (mut manifest, mut staged, mut filter) = (create("manifest")?, create("staged")?, create("filter")?);
        self.table.save(checkpoint.generation, &mut manifest, &mut staged)?;
        self.filter.save(checkpoint.generation, &mut filter)?;
        checkpoint.log_pages = self.log.written_pages();
        (checkpoint.manifest, checkpoint.staged, checkpoint.filter) =
            (manifest.finish()?, staged.finish()?, filter.finish()?);
        self.replace_checkpoint(&checkpoint)?;
        self.generation = checkpoint.generation;
        self.table.saved();
        Ok(())
    }

    fn describe(&self, standing: Standing) -> Checkpoint {
        Checkpoint {
            standing,
            repository: self.repository,
            generation: self.generation + 1,
            registered: self.registry.count(),
            registry_digest: self.registry.digest(),
            log_pages: 0,
            manifest: Seal::empty(),
            staged: Seal::empty(),
            filter: Seal::empty(),
            covered: self.registry.covered().clone(),
        }
    }

    fn replace_checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        let [new, path] = ["checkpoint.new", "checkpoint"].map(|name| self.dir.join(name));
        let file = open_or_create(&*self.disk, &new)?;
        file.set_len(0)?;
        file.write_at(0, &encode_checkpoint(checkpoint))?;
        file.sync()?;
        // The names of everything it refers to before its own: a new name must not be durable alone.
        self.disk.sync_dir(&self.dir)?;
        self.disk.rename(&new, &path)?;
        self.disk.sync_dir(&self.dir)
    }

    /// Closes the index with a checkpoint. One that is degraded keeps its last checkpoint; one in which damage was
    /// found says so, and is started anew at the next opening.
    pub fn close(mut self) -> Result<()> {
        if self.table.counters().damaged_pages != 0 {
            return self.replace_checkpoint(&self.describe(Standing::Damaged));
        }
        if self.degraded.is_some() || !self.changed {
            return Ok(());
        }
        self.checkpoint()?;
        let marker = self.dir.join("unclean");
        if self.disk.exists(&marker)? {
            self.disk.remove(&marker)?;
            self.disk.sync_dir(&self.dir)?;
        }
        Ok(())
    }
}

/// Where an index is opened, and how.
struct Place<'a> {
    disk: Arc<dyn Disk>,
    dir: &'a Path,
    repository: RepositoryId,
    options: &'a IndexOptions,
}

impl Place<'_> {
    fn file(&self, name: &str) -> Result<Arc<dyn DiskFile>> {
        self.disk.open(&self.dir.join(name), Access::ReadWrite)
    }

    fn sealed(&self, name: &str, generation: u64, seal: Seal) -> Result<SealedReader> {
        let path = self.dir.join(slot_name(name, generation));
        SealedReader::open(self.disk.open(&path, Access::Read)?, path, seal)
    }

    /// Opens what is there; `None` if nothing is.
    fn load(&self, lock: &Arc<dyn DiskFile>) -> Result<Option<(Store, IndexState)>> {
        if !self.disk.exists(&self.dir.join("checkpoint"))? {
            if self.disk.exists(&self.dir.join("containers"))? {
                return Err(Error::damaged("index", "it was given up before its first checkpoint"));
            }
            return Ok(None);
        }
        let checkpoint = self.load_checkpoint()?;
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
        let mut table = Table::open(self.file("table")?, self.options.table(), manifest)?;
        table.load_staged(&*self.disk, self.sealed("staged", generation, checkpoint.staged)?)?;
        let Checkpoint { registered, registry_digest, log_pages, covered, .. } = checkpoint;
        let registry = Registry::open(self.file("containers")?, self.repository, registered, registry_digest, covered)?;
        let log = ArrivalLog::open(self.file("log")?, log_pages)?;
        let mut filter = Filter::new(self.options.filter_bytes, self.options.filter_hashes);
        let loaded =
            self.sealed("filter", generation, checkpoint.filter).and_then(|from| filter.load(generation, from));
        if loaded.is_err() {
            // Damaged, or made with other parameters: the table knows the same bits of all fingerprints.
            filter.clear();
            table.scan(&*self.disk, &mut |key| {
                filter.test_and_set(key);
            });
        }
        let marked = self.disk.exists(&self.dir.join("unclean"))?;
        let state = if marked { IndexState::Unclean } else { IndexState::Clean };
        let store = Store {
            disk: Arc::clone(&self.disk),
            dir: self.dir.to_path_buf(),
            _lock: Arc::clone(lock),
            repository: self.repository,
            generation,
            registry,
            log,
            table,
            filter,
            changed: marked || loaded.is_err(),
            marked,
            degraded: None,
            updates: 0,
        };
        Ok(Some((store, state)))
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
        match checkpoint.standing {
            Standing::Whole => Ok(checkpoint),
            Standing::Damaged => Err(Error::damaged("index", "damage was found in it when it was last used")),
        }
    }

    /// Starts with nothing.
    fn start(self, lock: Arc<dyn DiskFile>) -> Result<Store> {
        // The checkpoint goes first, for good: it must not find the files below with other contents.
        for name in ["checkpoint", "checkpoint.new", "unclean"] {
            if self.disk.exists(&self.dir.join(name))? {
                self.disk.remove(&self.dir.join(name))?;
            }
        }
        self.disk.sync_dir(self.dir)?;
        let empty = |name: &str| {
            let file = open_or_create(&*self.disk, &self.dir.join(name))?;
            file.set_len(0)?;
            // No page of an earlier life may come back with a power cut.
            file.sync()?;
            Ok::<_, Error>(file)
        };
        let (table, log, containers) = (empty("table")?, empty("log")?, empty("containers")?);
        self.disk.sync_dir(self.dir)?;
        Ok(Store {
            disk: self.disk,
            dir: self.dir.to_path_buf(),
            _lock: lock,
            repository: self.repository,
            generation: 0,
            registry: Registry::create(containers, self.repository)?,
            log: ArrivalLog::open(log, 0)?,
            table: Table::new(table, self.options.table()),
            filter: Filter::new(self.options.filter_bytes, self.options.filter_hashes),
            changed: true,
            marked: false,
            degraded: None,
            updates: 0,
        })
    }
}

/// Says whether an error has nothing to do with the index: it must not cost it.
fn is_passing(error: &Error) -> bool {
    let passing = [
        ErrorKind::PermissionDenied,
        ErrorKind::StorageFull,
        ErrorKind::QuotaExceeded,
        ErrorKind::OutOfMemory,
        ErrorKind::Interrupted,
    ];
    error.io_kind().is_some_and(|kind| passing.contains(&kind))
}

fn slot_name(name: &str, generation: u64) -> String {
    format!("{name}.{}", generation % 2)
}

fn open_or_create(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn DiskFile>> {
    if disk.exists(path)? {
        return disk.open(path, Access::ReadWrite);
    }
    match disk.create(path) {
        // Another writer that is starting was faster: the lock will tell the two apart.
        Err(error) if error.io_kind() == Some(ErrorKind::AlreadyExists) => disk.open(path, Access::ReadWrite),
        created => created,
    }
}
