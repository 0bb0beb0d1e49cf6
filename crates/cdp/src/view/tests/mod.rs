//! Checkpoints and views together: what a repository and a journal give back is what the volumes were.

mod back;
mod damage;
mod faults;
mod gaps;
mod hooked;
mod journal_damage;
mod moments;
mod reclaiming;
mod thinning;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::backup::{BaseChoices, Budget, WriterOptions};
use onefold_engine::check::{CheckRequest, CheckedSnapshots, ReadData, check};
use onefold_engine::compress::Compression;
use onefold_engine::crypto::slot::{PasswordCost, SlotLabel};
use onefold_engine::error::Result;
use onefold_engine::identify::{IndexOptions, IndexPreset};
use onefold_engine::io::{Access, Disk, Host};
use onefold_engine::monitor::Silent;
use onefold_engine::object::ObjectStore;
use onefold_engine::object::directory::DirectoryStore;
use onefold_engine::pipeline::Driver;
use onefold_engine::random::SplitMix64;
use onefold_engine::repo::{Cache, WriteRequest};
use onefold_engine::store::create::{Adjustments, Purpose};
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::{CreateOptions, Store, Unlock, create, open};
use onefold_engine::testing::sim::{SimDisk, SimHost};

use super::*;
use crate::checkpoint::{CheckpointOptions, CheckpointOutcome, Checkpointer, MadeCheckpoint};
use crate::history::CheckpointLimits;
use crate::journal::{GroupId, Journal, JournalIdentity, JournalSize, Lsn};
use crate::nbd::export::{Context, Export, Fua, StatusExtents, ZeroOptions};
use crate::nbd::wire::Errno;
use crate::sim_origin::SimOrigin;
use crate::stored::{GroupSpec, VolumeSpec};
use crate::volume::{Durability, Group, GroupOptions, ProtectedVolume, WhenBehind};

const PASSWORD: &[u8] = b"correct horse";
const GROUP: &str = "web";
const ID: GroupId = GroupId([2; 16]);
const NAMES: [&str; 2] = ["root", "log"];
/// Bytes of the volumes.
const SIZES: [u64; 2] = [40 * 4096, 300 * 4096];
const DIR: &str = "group";

/// The bytes of both volumes.
type Bytes = [Vec<u8>; 2];

/// A disk with a repository, a cache, a group, and its volumes.
#[derive(Clone, Debug)]
struct World {
    disk: SimDisk,
    host: Arc<dyn Host>,
    /// Of the journal.
    segment_bytes: u64,
}

/// Segments that a few records fill.
const SHORT: u64 = 64 << 10;

/// Everything of a world opened.
struct Opened {
    store: Store,
    group: Arc<Group>,
    volumes: [ProtectedVolume; 2],
    checkpointer: Checkpointer,
}

fn spec() -> GroupSpec {
    let volume = |at: usize| VolumeSpec { name: NAMES[at].into(), size: SIZES[at] };
    GroupSpec { name: GROUP.into(), id: ID, volumes: vec![volume(0), volume(1)] }
}

/// Limits that a few records reach.
const TIGHT: CheckpointLimits = CheckpointLimits { versions: 12, partial: 5, others: 4, marks: 2 };

impl World {
    /// Makes a world whose volumes have some bytes, and stores their initial images.
    fn new(seed: u64) -> (Self, Bytes) {
        let world = Self { disk: SimDisk::new(), host: Arc::new(SimHost::new(seed)), segment_bytes: SHORT };
        let _ = (world.disk.subdir("repo"), world.disk.subdir("cache"), world.disk.subdir(DIR));
        let mut random = SplitMix64::new(seed);
        let bytes = [0, 1].map(|at| {
            let mut bytes = vec![0; usize::try_from(SIZES[at]).unwrap()];
            for _ in 0..6 {
                let start = random.index(bytes.len() - 9_000);
                let end = start + 1 + random.index(9_000);
                random_bytes(&mut random, &mut bytes[start..end]);
            }
            let file = world.disk.create(Path::new(NAMES[at])).unwrap();
            file.write_at(0, &bytes).unwrap();
            file.sync().unwrap();
            bytes
        });
        Group::create(&world.disk, Path::new(DIR), &SIZES).unwrap();
        world.disk.sync_dir(Path::new("")).unwrap();
        let adjustments = Adjustments {
            purpose: Purpose::Volumes,
            chunk_bytes: None,
            fixed_bytes: None,
            region_bytes: Some(16 << 10),
            container_bytes: Some(64 << 10),
            ..Adjustments::default()
        };
        let cost = PasswordCost { memory_kib: 64, passes: 1, lanes: 1 };
        let options = CreateOptions { password: Some(PASSWORD), cost, label: SlotLabel::default(), adjustments };
        create(&world.objects(), &world.host, &options).unwrap();
        let mut opened = world.open(TIGHT).unwrap();
        let made = world.write(|request| opened.checkpointer.initial(&world.origins().unwrap(), Lsn(0), request));
        assert!(made.unwrap().is_some());
        (world, bytes)
    }

    /// A world after its process has ended: another boot draws other random numbers.
    fn on(disk: SimDisk, boot: u64) -> Self {
        Self { disk, host: Arc::new(SimHost::new(boot)), segment_bytes: SHORT }
    }

    fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::new(DirectoryStore::new(Arc::new(self.disk.subdir("repo"))))
    }

    fn origins(&self) -> Result<Vec<Arc<dyn Export>>> {
        let origin = |at: usize| -> Result<Arc<dyn Export>> {
            let file = self.disk.open(Path::new(NAMES[at]), Access::ReadWrite)?;
            Ok(Arc::new(SimOrigin { file, size: SIZES[at], knows_holes: at == 1 }))
        };
        Ok(vec![origin(0)?, origin(1)?])
    }

    fn cache(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.subdir("cache"))
    }

    fn scratch(&self) -> Scratch {
        Scratch { disk: Some(self.cache()), dir: PathBuf::new() }
    }

    fn store(&self) -> Result<Store> {
        open(&self.objects(), &self.host, Unlock::Password(PASSWORD))
    }

    fn options(&self) -> ViewOptions {
        ViewOptions { scratch: self.scratch(), driver: Driver::inline(3), memory_bytes: 16 << 20 }
    }

    fn open(&self, limits: CheckpointLimits) -> Result<Opened> {
        let store = self.store()?;
        let identity = JournalIdentity { keys: (*store.keys).clone(), repository: store.config.repository, group: ID };
        let size = JournalSize { segment_bytes: self.segment_bytes, segments_max: 64 };
        let options = GroupOptions { size, durability: Durability::Both, when_behind: WhenBehind::Fail };
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let (group, _) =
            Group::open(&disk, Arc::clone(&self.host), Path::new(DIR), identity, self.origins()?, options)?;
        let group = Arc::new(group);
        let volumes = [0, 1].map(|number| ProtectedVolume::new(Arc::clone(&group), number));
        let checkpointer = self.checkpointer(&store, limits)?;
        Ok(Opened { store, group, volumes, checkpointer })
    }

    fn checkpointer(&self, store: &Store, limits: CheckpointLimits) -> Result<Checkpointer> {
        let options = CheckpointOptions {
            limits,
            scratch: self.scratch(),
            memory_bytes: 8 << 20,
            program: "onefold test".into(),
        };
        Checkpointer::open(store, spec(), options, &Driver::inline(5))
    }

    fn write<T>(&self, work: impl FnOnce(&WriteRequest<'_>) -> Result<T>) -> Result<T> {
        let cache = Cache { disk: self.cache(), dir: PathBuf::new() };
        let mut index = IndexOptions::for_memory(8 << 20);
        (index.filter_bytes, index.log_tail_pages, index.memtable_bytes) = (64 << 10, 1, 2 << 10);
        let budget = Budget { barrier_containers: 2, references_in_flight: 2000, ..Budget::of(64 << 20, 2) };
        work(&WriteRequest {
            cache: &cache,
            index,
            preset: IndexPreset::default(),
            hostname: "host",
            options: WriterOptions {
                compression: Compression::Zstd(1),
                budget,
                scratch: self.scratch(),
                bases: BaseChoices::default(),
            },
            driver: Driver::inline(9),
            monitor: Arc::new(Silent),
            heads: None,
        })
    }

    /// Makes one checkpoint; returns true if there is more.
    fn checkpoint(&self, opened: &mut Opened) -> Result<Option<MadeCheckpoint>> {
        let Opened { checkpointer, group, .. } = opened;
        let outcome = self.write(|request| checkpointer.checkpoint(group.journal(), group.synced(), request))?;
        match outcome {
            CheckpointOutcome::Made(made) => Ok(Some(made)),
            CheckpointOutcome::NothingNew => Ok(None),
            CheckpointOutcome::PruneInProgress => panic!("nothing prunes"),
        }
    }

    fn checkpoint_all(&self, opened: &mut Opened) -> Result<usize> {
        let mut made = 0;
        while self.checkpoint(opened)?.is_some() {
            made += 1;
        }
        Ok(made)
    }

    fn point(&self, store: &Store, at: &At, journal: Option<&Journal>) -> Result<PointInTime> {
        PointInTime::open(store, &self.options(), (GROUP, None), at, journal)
    }

    fn assert_clean(&self, store: &Store) {
        let request = CheckRequest {
            snapshots: CheckedSnapshots::All,
            read: ReadData::All,
            scratch: self.scratch(),
            memory_bytes: 16 << 20,
            driver: Driver::inline(1),
            seed: None,
            heads: None,
            accelerator: None,
        };
        let report = check(store, &request, &Silent).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
}

fn random_bytes(random: &mut SplitMix64, into: &mut [u8]) {
    for byte in into {
        *byte = u8::try_from(random.index(256)).unwrap();
    }
}

/// The volumes after every record.
#[derive(Clone)]
struct Model {
    /// By LSN, from 0 on.
    states: Vec<Bytes>,
    flushes: Vec<Lsn>,
    marks: Vec<(Lsn, String)>,
}

impl Model {
    fn new(bytes: Bytes) -> Self {
        Self { states: vec![bytes], flushes: Vec::new(), marks: Vec::new() }
    }

    fn last(&self) -> Lsn {
        Lsn(self.states.len() as u64 - 1)
    }

    fn now(&self) -> Bytes {
        self.states.last().unwrap().clone()
    }

    /// All records before one led to the present state.
    fn fill(&mut self, state: &Bytes, next: Lsn) {
        while (self.states.len() as u64) < next.0 {
            self.states.push(state.clone());
        }
    }

    /// Makes a random change.
    fn step(&mut self, opened: &Opened, random: &mut SplitMix64) -> Result<(), Errno> {
        let mut state = self.now();
        let at = random.index(2);
        let (volume, bytes) = (&opened.volumes[at], &mut state[at]);
        let is_aligned = random.index(2) == 0;
        let (mut start, mut len) = (random.index(bytes.len() - 16_384), 1 + random.index(9_000));
        if is_aligned {
            (start, len) = (start / 4096 * 4096, (1 + random.index(3)) * 4096);
        }
        let range = start as u64..(start + len) as u64;
        let zeroes = ZeroOptions { fua: Fua::No, allocate: false, fast: false };
        match random.index(10) {
            0 => {
                volume.flush()?;
                self.flushes.push(Lsn(opened.group.journal().next().0 - 1));
            }
            1 => {
                let name = format!("moment {}", random.index(4));
                let lsn = opened.group.mark(&name).map_err(|_| Errno::Io)?;
                self.marks.push((lsn, name));
            }
            2 => {
                volume.trim(range, Fua::No)?;
                bytes[start..start + len].fill(0);
            }
            3 => {
                volume.write_zeroes(range, zeroes)?;
                bytes[start..start + len].fill(0);
            }
            kind => {
                match random.index(4) {
                    // Contents that are somewhere already, and zeros.
                    0 => bytes.copy_within(..len, start),
                    1 => bytes[start..start + len].fill(0),
                    _ => random_bytes(random, &mut bytes[start..start + len]),
                }
                let fua = if kind == 4 { Fua::Yes } else { Fua::No };
                volume.write(range.start, &bytes[start..start + len], fua)?;
                if fua == Fua::Yes {
                    self.flushes.push(Lsn(opened.group.journal().next().0 - 1));
                }
            }
        }
        self.fill(&state, opened.group.journal().next());
        Ok(())
    }
}

fn read_all(point: &PointInTime) -> Bytes {
    [0, 1].map(|at| {
        let mut bytes = vec![0xaa; usize::try_from(SIZES[at]).unwrap()];
        point.read(at, 0, &mut bytes).unwrap();
        bytes
    })
}
