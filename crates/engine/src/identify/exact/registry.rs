//! Ordinals of containers on this host: four bytes in the table and the log instead of twenty.
//!
//! The file `containers` only grows. An ordinal always means the same container, even after a power cut: otherwise a stale
//! entry would name a container that does not hold its chunk, and data would be lost. So a record becomes durable before
//! anything on disk names its ordinal ([`Registry::begin_sync`]), and the checkpoint keeps a checksum of its records.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | `OFCONTS2` |
//! | 8 | 16 | repository |
//! | 24 | 4 | CRC32C of the 24 bytes before |
//! | 28 | 8 | zero |
//! | 36 (1 + ordinal) | 36 | session 16, number in the session 4, ordinal 4, bytes of its file 8, CRC32C of these 32 bytes 4 |
#![deny(clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::bitmap::Bitmap;
use crate::error::{Error, Result};
use crate::identify::locality::frame::with_checksum;
use crate::io::DiskFile;
use crate::kv::{Containers, Fields, Live, Ordinal, SyncContainers};
use crate::types::{ContainerId, RepositoryId, SessionId};

const MAGIC: [u8; 8] = *b"OFCONTS2";

/// Bytes of the header and of each record.
const RECORD_BYTES: usize = 36;

/// Records that one call reads or writes.
const RECORDS_PER_CALL: usize = 2048;

/// The containers that this host knows.
#[derive(Debug)]
pub(in crate::identify) struct Registry {
    file: Arc<dyn DiskFile>,
    /// Registered containers.
    pub(crate) count: u32,
    hasher: blake3::Hasher,
    synced: Arc<SyncedRecords>,
    /// Records in the file.
    written: u32,
    /// Further records. Nothing on disk may name them before the next sync.
    unwritten: Vec<u8>,
    /// Runs of containers by their first ordinal. Consecutive containers of a session mostly have consecutive ordinals, so
    /// there is one run for each interruption, not one entry for each container.
    by_ordinal: BTreeMap<u32, ContainerRun>,
    by_container: BTreeMap<ContainerId, u32>,
    /// Bytes of the containers' files, by ordinal; 0 if unknown.
    lengths: Vec<u64>,
    /// Containers that exist.
    pub(crate) live: Bitmap,
    /// Containers whose chunks are all in the table or in the memtable.
    pub(crate) covered: Bitmap,
    /// Containers that were covered and did not exist any more when a session began.
    vanished: Bitmap,
    /// Live containers that give no verdicts in this session.
    shunned: Bitmap,
}

/// The registry as lookups see it: shunned containers are not live.
pub(in crate::identify) struct Preferred<'a>(pub(in crate::identify) &'a Registry);

#[derive(Clone, Copy, Debug)]
struct ContainerRun {
    first: ContainerId,
    len: u32,
}

/// The number of durable records.
#[derive(Debug)]
pub(in crate::identify) struct SyncedRecords {
    file: Arc<dyn DiskFile>,
    state: Mutex<SyncState>,
}

#[derive(Debug)]
enum SyncState {
    /// So many, the header included.
    Durable(u64),
    /// Unknown after this error: a later sync proves nothing.
    Failed(Error),
}

impl SyncedRecords {
    /// Makes so many written records durable.
    pub(in crate::identify) fn sync(&self, count: u32) -> Result<()> {
        let wanted = u64::from(count) + 1;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            SyncState::Durable(durable) if wanted <= *durable => Ok(()),
            SyncState::Durable(_) => {
                let outcome = self.file.sync();
                *state = match &outcome {
                    Ok(()) => SyncState::Durable(wanted),
                    Err(error) => SyncState::Failed(error.clone()),
                };
                outcome
            }
            SyncState::Failed(error) => Err(error.clone()),
        }
    }
}

/// A registered container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    container: ContainerId,
    /// Bytes of its file; 0 if unknown.
    len: u64,
}

fn encode_record(ordinal: Ordinal, Record { container, len }: Record) -> Vec<u8> {
    let number = container.ordinal.to_le_bytes();
    with_checksum(&[&container.session.0, &number, &ordinal.0.to_le_bytes(), &len.to_le_bytes()])
}

/// Decodes the record of an ordinal; `None` if it is damaged or another's.
fn decode_record(ordinal: Ordinal, bytes: &[u8]) -> Option<Record> {
    let mut fields = Fields::new(bytes);
    let container = ContainerId { session: SessionId(fields.array()?), ordinal: fields.u32()? };
    let (found, len) = (fields.u32()?, fields.u64()?);
    let rest = (fields.u32()?, fields.left());
    (found == ordinal.0 && rest == (crc32c::crc32c(bytes.get(..32)?), 0)).then_some(Record { container, len })
}

fn encode_header(repository: RepositoryId) -> Vec<u8> {
    let mut bytes = with_checksum(&[&MAGIC, &repository.0]);
    bytes.resize(RECORD_BYTES, 0);
    bytes
}

fn offset_of(ordinal: u32) -> u64 {
    (u64::from(ordinal) + 1) * RECORD_BYTES as u64
}

impl Registry {
    /// Starts a registry in an empty file.
    pub(crate) fn create(file: Arc<dyn DiskFile>, repository: RepositoryId) -> Result<Self> {
        file.write_at(0, &encode_header(repository))?;
        Ok(Self::empty(file))
    }

    fn empty(file: Arc<dyn DiskFile>) -> Self {
        let synced = SyncedRecords { file: Arc::clone(&file), state: Mutex::new(SyncState::Durable(0)) };
        Self {
            file,
            synced: Arc::new(synced),
            count: 0,
            hasher: blake3::Hasher::new(),
            written: 0,
            unwritten: Vec::new(),
            by_ordinal: BTreeMap::new(),
            by_container: BTreeMap::new(),
            lengths: Vec::new(),
            live: Bitmap::default(),
            covered: Bitmap::default(),
            vanished: Bitmap::default(),
            shunned: Bitmap::default(),
        }
    }

    /// Reads a registry. The checkpoint relies on the first `count` records, which must have that checksum.
    ///
    /// Whole records after these are kept, since pages of an interrupted session may name them. The rest of the file is
    /// truncated, since nothing was allowed to name it.
    pub(crate) fn open(
        file: Arc<dyn DiskFile>,
        repository: RepositoryId,
        count: u32,
        checksum: [u8; 32],
        covered: Bitmap,
    ) -> Result<Self> {
        let damaged = |reason: &str| Error::damaged("list of containers", reason);
        let mut header = vec![0; RECORD_BYTES];
        file.read_at(0, &mut header)?;
        if header != encode_header(repository) {
            return Err(damaged("is not this repository's"));
        }
        let mut registry = Self { covered, ..Self::empty(file) };
        let mut matches = count == 0;
        let records = registry.file.len()?.saturating_sub(offset_of(0)) / RECORD_BYTES as u64;
        let mut buffer = Vec::new();
        'file: while u64::from(registry.count) < records {
            let left = usize::try_from(records - u64::from(registry.count)).unwrap_or(RECORDS_PER_CALL);
            buffer.resize(left.min(RECORDS_PER_CALL) * RECORD_BYTES, 0);
            registry.file.read_at(offset_of(registry.count), &mut buffer)?;
            for record in buffer.chunks_exact(RECORD_BYTES) {
                let Some(known) = decode_record(Ordinal(registry.count), record) else { break 'file };
                if registry.count == u32::MAX || registry.ordinal(known.container).is_some() {
                    break 'file;
                }
                registry.hasher.update(record);
                registry.add(known);
                matches |= registry.count == count && registry.checksum() == checksum;
            }
        }
        if registry.count < count || !matches {
            return Err(damaged("does not match its checkpoint"));
        }
        registry.file.set_len(offset_of(registry.count))?;
        registry.written = registry.count;
        Ok(registry)
    }

    /// Returns the BLAKE3 of all records.
    pub(in crate::identify) fn checksum(&self) -> [u8; 32] {
        self.hasher.finalize().into()
    }

    /// Returns the ordinal of a container.
    pub(in crate::identify) fn ordinal(&self, container: ContainerId) -> Option<Ordinal> {
        let (first, start) = self.by_container.range(..=container).next_back()?;
        let run = self.by_ordinal.get(start)?;
        let step = container.ordinal.checked_sub(first.ordinal)?;
        (first.session == container.session && step < run.len).then(|| Ordinal(start + step))
    }

    /// Returns the length that a container's file had when it was registered, if it is known.
    pub(in crate::identify) fn len_of(&self, container: ContainerId) -> Option<u64> {
        let Ordinal(ordinal) = self.ordinal(container)?;
        self.lengths.get(usize::try_from(ordinal).ok()?).copied().filter(|len| *len != 0)
    }

    /// Returns the container of an ordinal.
    pub(in crate::identify) fn container(&self, Ordinal(ordinal): Ordinal) -> Option<ContainerId> {
        let (start, run) = self.by_ordinal.range(..=ordinal).next_back()?;
        let step = ordinal - start;
        let number = run.first.ordinal.checked_add(step)?;
        (step < run.len).then_some(ContainerId { session: run.first.session, ordinal: number })
    }

    /// Returns the container of an ordinal if it is live and not shunned.
    pub(in crate::identify) fn live_container(&self, ordinal: Ordinal) -> Option<ContainerId> {
        self.container(ordinal).filter(|_| self.live.contains(ordinal.0) && !self.shunned.contains(ordinal.0))
    }

    /// Returns true if containers are shunned.
    pub(in crate::identify) fn shuns(&self) -> bool {
        self.shunned.count() != 0
    }

    /// Returns true if the container of an ordinal is live and shunned.
    pub(in crate::identify) fn is_shunned(&self, ordinal: Ordinal) -> bool {
        self.live.contains(ordinal.0) && self.shunned.contains(ordinal.0)
    }

    /// Replaces the set of shunned containers.
    pub(in crate::identify) fn shun(&mut self, containers: &[ContainerId]) {
        let mut shunned = Bitmap::default();
        for ordinal in containers.iter().filter_map(|container| self.ordinal(*container)) {
            shunned.insert(ordinal.0);
        }
        self.shunned = shunned;
    }

    /// Returns the ordinal of a container; registers it if it has none. The record is durable after [`Registry::sync`].
    pub(in crate::identify) fn register(&mut self, container: ContainerId, len: u64) -> Result<Ordinal> {
        if let Some(ordinal) = self.ordinal(container) {
            return Ok(ordinal);
        }
        if RECORDS_PER_CALL * RECORD_BYTES <= self.unwritten.len() {
            self.write_out()?;
        }
        let full = || Error::invalid("the index has numbered 4,294,967,295 containers: delete it to start again");
        let ordinal = self.register_in_memory(container, len).ok_or_else(full)?;
        let record = encode_record(ordinal, Record { container, len });
        self.unwritten.extend_from_slice(&record);
        self.hasher.update(&record);
        Ok(ordinal)
    }

    /// Registers a container in memory only. Nothing on disk may ever name its ordinal, so the index must write nothing
    /// more. `None` if no ordinals are left.
    pub(in crate::identify) fn register_in_memory(&mut self, container: ContainerId, len: u64) -> Option<Ordinal> {
        if let Some(ordinal) = self.ordinal(container) {
            return Some(ordinal);
        }
        let ordinal = Ordinal(self.count);
        (self.count < u32::MAX).then(|| self.add(Record { container, len })).map(|()| ordinal)
    }

    fn add(&mut self, Record { container, len }: Record) {
        let ordinal = self.count;
        self.lengths.push(len);
        self.count += 1;
        if let Some(mut last) = self.by_ordinal.last_entry() {
            let ContainerRun { first, len: containers } = last.get_mut();
            if first.session == container.session && first.ordinal.checked_add(*containers) == Some(container.ordinal) {
                *containers += 1;
                return;
            }
        }
        self.by_ordinal.insert(ordinal, ContainerRun { first: container, len: 1 });
        self.by_container.insert(container, ordinal);
    }

    fn write_out(&mut self) -> Result<()> {
        if !self.unwritten.is_empty() {
            self.file.write_at(offset_of(self.written), &self.unwritten)?;
            self.unwritten.clear();
            self.written = self.count;
        }
        Ok(())
    }

    /// Makes every record durable, before anything on disk names its ordinal.
    pub(in crate::identify) fn sync(&mut self) -> Result<()> {
        let (synced, count) = self.begin_sync()?;
        synced.sync(count)
    }

    /// Writes every record. [`SyncedRecords::sync`] of that many makes them durable, on any thread.
    pub(in crate::identify) fn begin_sync(&mut self) -> Result<(Arc<SyncedRecords>, u32)> {
        self.write_out()?;
        Ok((Arc::clone(&self.synced), self.written))
    }

    /// Notes that all chunks of a live container are recorded.
    pub(in crate::identify) fn cover(&mut self, ordinal: Ordinal) {
        self.live.insert(ordinal.0);
        self.covered.insert(ordinal.0);
    }

    /// Notes that a container is live; its chunks are not all recorded yet.
    pub(in crate::identify) fn mark_live(&mut self, ordinal: Ordinal) {
        self.live.insert(ordinal.0);
    }

    /// Notes that a container is gone. If it returns, its chunks must be recorded again: merges drop their entries.
    pub(in crate::identify) fn mark_dead(&mut self, container: ContainerId) {
        if let Some(ordinal) = self.ordinal(container) {
            self.live.remove(ordinal.0);
            self.covered.remove(ordinal.0);
        }
    }

    /// Takes the existing containers with numbers of the caller's. Returns the numbers of those whose chunks are not all
    /// recorded.
    pub(in crate::identify) fn attach(&mut self, live: impl Iterator<Item = (u32, ContainerId)>) -> Bitmap {
        (self.live, self.shunned) = (Bitmap::default(), Bitmap::default());
        let mut missing = Bitmap::default();
        for (number, container) in live {
            let ordinal = self.ordinal(container);
            if let Some(ordinal) = ordinal {
                self.live.insert(ordinal.0);
            }
            if !ordinal.is_some_and(|ordinal| self.covered.contains(ordinal.0)) {
                missing.insert(number);
            }
        }
        for ordinal in 0..self.count {
            if self.covered.contains(ordinal) && !self.live.contains(ordinal) {
                self.vanished.insert(ordinal);
            }
        }
        self.covered.intersect(&self.live);
        missing
    }

    /// Returns the containers that were covered and are not live any more, since they were last taken note of.
    pub(in crate::identify) fn vanished(&self) -> impl Iterator<Item = ContainerId> + '_ {
        let is_gone = |ordinal: &u32| self.vanished.contains(*ordinal) && !self.live.contains(*ordinal);
        (0..self.count).filter(is_gone).filter_map(|ordinal| self.container(Ordinal(ordinal)))
    }

    /// Takes note of the containers that vanished.
    pub(in crate::identify) fn settle_vanished(&mut self) {
        self.vanished = Bitmap::default();
    }
}

impl Containers for Registry {
    fn is_live(&self, container: Ordinal) -> bool {
        self.live.contains(container.0)
    }

    fn container(&self, ordinal: Ordinal) -> Option<ContainerId> {
        Self::container(self, ordinal)
    }

    fn live_ordinal(&self, container: ContainerId) -> Option<Ordinal> {
        self.ordinal(container).filter(|ordinal| self.live.contains(ordinal.0))
    }

    fn len_of(&self, container: ContainerId) -> Option<u64> {
        Self::len_of(self, container)
    }

    fn live(&self) -> Live {
        let live = self.live.clone();
        Arc::new(move |container| live.contains(container.0))
    }

    fn begin_sync(&mut self) -> Result<SyncContainers> {
        let (synced, records) = Self::begin_sync(self)?;
        Ok(Arc::new(move || synced.sync(records)))
    }
}

impl Containers for Preferred<'_> {
    fn is_live(&self, container: Ordinal) -> bool {
        self.0.is_live(container) && !self.0.shunned.contains(container.0)
    }

    fn container(&self, ordinal: Ordinal) -> Option<ContainerId> {
        self.0.container(ordinal)
    }

    fn live_ordinal(&self, container: ContainerId) -> Option<Ordinal> {
        self.0.live_ordinal(container).filter(|ordinal| self.is_live(*ordinal))
    }

    fn len_of(&self, container: ContainerId) -> Option<u64> {
        self.0.len_of(container)
    }

    fn live(&self) -> Live {
        if !self.0.shuns() {
            return self.0.live();
        }
        let (live, shunned) = (self.0.live.clone(), self.0.shunned.clone());
        Arc::new(move |container| live.contains(container.0) && !shunned.contains(container.0))
    }

    fn begin_sync(&mut self) -> Result<SyncContainers> {
        Err(Error::invalid("lookups write nothing"))
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::io::{Access, Disk};
    use crate::random::SplitMix64;
    use crate::testing::sim::SimDisk;

    const FILE: &str = "containers";
    const REPOSITORY: RepositoryId = RepositoryId([5; 16]);

    fn container(session: u8, ordinal: u32) -> ContainerId {
        ContainerId { session: SessionId([session; 16]), ordinal }
    }

    fn open(disk: &SimDisk, count: u32, checksum: [u8; 32]) -> Result<Registry> {
        let file = disk.open(Path::new(FILE), Access::ReadWrite).unwrap();
        Registry::open(file, REPOSITORY, count, checksum, Bitmap::default())
    }

    #[test]
    fn ordinals_and_containers_name_each_other_in_any_order_of_registering() {
        let disk = SimDisk::default();
        let mut registry = Registry::create(disk.create(Path::new(FILE)).unwrap(), REPOSITORY).unwrap();
        let mut random = SplitMix64::new(3);
        let mut known: Vec<ContainerId> = Vec::new();
        for _ in 0..2_000 {
            let next = match random.below(3) {
                0 => container(1, u32::try_from(random.below(500)).unwrap()),
                _ => known.last().map_or(container(2, 0), |last| ContainerId { ordinal: last.ordinal + 1, ..*last }),
            };
            let ordinal = registry.register(next, 1 << 20).unwrap();
            if ordinal.0 as usize == known.len() {
                known.push(next);
            }
            assert_eq!(known[ordinal.0 as usize], next);
        }
        registry.sync().unwrap();
        let registry = open(&disk, registry.count, registry.checksum()).unwrap();
        for (ordinal, &container) in (0..).zip(&known) {
            assert_eq!(registry.container(Ordinal(ordinal)), Some(container));
            assert_eq!(registry.len_of(container), Some(1 << 20));
            assert_eq!(registry.ordinal(container), Some(Ordinal(ordinal)));
        }
        assert_eq!(registry.count as usize, known.len());
        assert_eq!(registry.ordinal(container(9, 0)), None);
        assert!(registry.by_ordinal.len() < known.len());
    }

    #[test]
    fn records_of_a_checkpoint_must_be_whole_and_later_ones_are_kept_while_they_are() {
        let disk = SimDisk::default();
        let mut registry = Registry::create(disk.create(Path::new(FILE)).unwrap(), REPOSITORY).unwrap();
        for number in 0..10 {
            registry.register(container(1, number), 0).unwrap();
        }
        let (count, checksum) = (registry.count, registry.checksum());
        for number in 10..20 {
            registry.register(container(1, number), 0).unwrap();
        }
        registry.sync().unwrap();
        assert_eq!(open(&disk, count, checksum).unwrap().count, 20);
        assert!(open(&disk, count + 1, checksum).is_err());
        disk.damage(FILE, |bytes| bytes[RECORD_BYTES * 16 + 3] ^= 1);
        let kept = open(&disk, count, checksum).unwrap();
        assert_eq!(kept.count, 15);
        assert_eq!(disk.bytes(FILE).len(), RECORD_BYTES * 16);
        disk.damage(FILE, |bytes| bytes[RECORD_BYTES * 5] ^= 1);
        assert!(open(&disk, count, checksum).is_err());
        disk.damage(FILE, |bytes| bytes.truncate(3));
        assert!(open(&disk, count, checksum).is_err());
    }

    #[test]
    fn a_container_that_went_and_came_back_is_not_covered() {
        let disk = SimDisk::default();
        let mut registry = Registry::create(disk.create(Path::new(FILE)).unwrap(), REPOSITORY).unwrap();
        let both = [container(1, 0), container(1, 1)];
        for container in both {
            let ordinal = registry.register(container, 0).unwrap();
            registry.cover(ordinal);
        }
        let attach = |registry: &mut Registry, live: &[ContainerId]| {
            let missing = registry.attach((0..).zip(live.iter().copied()));
            (0..).zip(live).filter(|(number, _)| missing.contains(*number)).map(|(_, id)| *id).collect::<Vec<_>>()
        };
        assert!(attach(&mut registry, &both).is_empty());
        assert!(attach(&mut registry, &both[..1]).is_empty());
        assert_eq!(registry.live_container(Ordinal(1)), None);
        assert_eq!(attach(&mut registry, &both), both[1..]);
        assert_eq!(registry.live_container(Ordinal(1)), Some(both[1]));
        registry.mark_dead(both[0]);
        assert_eq!(registry.live_container(Ordinal(0)), None);
        assert_eq!(attach(&mut registry, &both), both);
    }
}
