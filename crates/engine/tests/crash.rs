//! Every I/O call fails once, and every I/O call is the last one once.
//!
//! The workload is the life of a small repository: `init`, a backup, a changed backup. It is replayed with an error at,
//! and with a crash at, every single call; after a crash, for what was not synced: all lost, all kept, three seeded
//! subsets, torn. Further seeds defer background jobs of larger backups and sample the calls and the ways. Then every snapshot whose backup returned success must be listed and restore bit for bit, one that
//! was not acknowledged must be whole or absent, `check --read-data` must be clean, and the next backup must succeed.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;

use onefold_engine::Error;
use onefold_engine::backup::Budget;
use onefold_engine::check::{CheckRequest, CheckedSnapshots, ReadData, check};
use onefold_engine::identify::{IndexState, Schedule};
use onefold_engine::io::Disk;
use onefold_engine::monitor::Silent;
use onefold_engine::object::names::DIRECTORIES;
use onefold_engine::pipeline::Driver;
use onefold_engine::store::Store;
use onefold_engine::store::create::create_directory;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk, SimHost, TraceEntry};
use onefold_engine::types::SessionId;

use crate::integration::rewriting::{WITHOUT_LIMIT, fragments, rewritten, stored_twice};
use crate::integration::support::{
    Ask, Draw, JobTotals, SMALL, World, change, copy, hash_directory, noise, tell, tree,
};

/// Files of the source; the slow test takes more.
const FILES: u64 = if cfg!(feature = "slow") { 60 } else { 18 };

/// Memory of index entries that are not written out.
const MEMTABLE_BYTES: usize = 2 << 10;

/// Seeds of the host and of the driver. Seed 1 tries every call in every way, the others a sample.
const SEEDS: u64 = if cfg!(feature = "slow") { 12 } else { 8 };

/// The seed of a life in which chunks are stored again.
const REWRITING_SEED: u64 = SEEDS + 1;

/// Calls of which a sample takes one.
const CALLS_PER_SAMPLE: usize = if cfg!(feature = "slow") { 3 } else { 9 };

/// The states of the source that are backed up.
struct Sources {
    first: MemTree,
    second: MemTree,
    third: MemTree,
}

impl Sources {
    fn new() -> Self {
        let first = tree(FILES);
        let second = copy(&first);
        change(&second);
        let third = tree(FILES + 2);
        Self { first, second, third }
    }

    /// Adds so many chunks to each state that flushes, lookups and window reads overlap with the stream.
    fn enlarge(&self) {
        for (version, tree) in (0..).zip(self.all()) {
            for number in 0..10 {
                let seed = 1000 + number + 100 * version * (number % 2);
                tree.put_file(Path::new(&format!("/d/large-{number}")), &noise(seed, 60_000));
            }
        }
    }

    fn all(&self) -> [&MemTree; 3] {
        [&self.first, &self.second, &self.third]
    }
}

/// Snapshots that were acknowledged, with what they must hold.
type Acknowledged<'a> = Vec<(SessionId, &'a MemTree)>;

/// The life of a small repository, which a seed repeats.
struct Life {
    seed: u64,
    sources: Sources,
    has_parent: bool,
    ask: Ask,
    /// Backups of the workload.
    backups: usize,
}

impl Life {
    fn new(seed: u64) -> Self {
        let sources = Sources::new();
        if seed == 1 {
            // So few entries are staged that the index writes its table while the stream goes on.
            let ask = Ask { memtable_bytes: Some(MEMTABLE_BYTES), ..Ask::default() };
            return Self { seed, sources, has_parent: true, ask, backups: 2 };
        }
        if seed == REWRITING_SEED {
            let [first, second, third] = fragments();
            let ask = Ask { driver: Driver::inline(seed), rewriting: Some(WITHOUT_LIMIT), ..Ask::default() };
            return Self { seed, sources: Sources { first, second, third }, has_parent: true, ask, backups: 3 };
        }
        sources.enlarge();
        let schedules = [Schedule::Adaptive, Schedule::Pool { candidates: 8 }, Schedule::Pool { candidates: 16 }];
        let ask = Ask {
            driver: Driver::inline(seed),
            schedule: *Draw::new(seed).one_of(&schedules),
            filter_bytes: Some(1 << 10),
            memtable_bytes: Some(16 << 10),
            budget: Budget { barrier_containers: 1, ..Ask::default().budget },
            ..Ask::default()
        };
        Self { seed, sources, has_parent: seed % 4 == 1, ask, backups: 2 }
    }

    fn world(&self) -> World {
        World::new(self.seed)
    }

    /// Runs the workload as far as it goes. Steps that fail are passed over, as a user would try the next one.
    fn run(&self, world: &World) -> (bool, Acknowledged<'_>) {
        let mut acknowledged = Vec::new();
        let created = world.create(SMALL).is_ok();
        for (number, source) in self.sources.all().into_iter().enumerate().take(self.backups) {
            let ask = Ask { with_parent: number != 0 && self.has_parent, ..self.ask.clone() };
            let Ok(store) = world.open() else { continue };
            if let Ok(outcome) = world.backup(&store, source, &ask) {
                acknowledged.push((outcome.report.session, source));
            }
        }
        (created, acknowledged)
    }

    /// Checks everything that is promised of a world in which some of the workload has happened.
    fn assert_sound(&self, world: &World, created: bool, acknowledged: &Acknowledged<'_>, case: &str) {
        let store = match world.open() {
            Ok(store) => store,
            Err(error) => {
                assert!(!created, "{case}: a repository that was acknowledged does not open: {error}");
                world.create(SMALL).unwrap_or_else(|error| panic!("{case}: init after a failed init: {error}"))
            }
        };
        let commits = store.read_commits().unwrap_or_else(|error| panic!("{case}: {error}"));
        assert!(commits.findings.is_empty(), "{case}: {:?}", commits.findings);
        let snapshots = commits.snapshots();
        for (session, _) in acknowledged {
            assert!(snapshots.iter().any(|(listed, _)| listed == session), "{case}: snapshot {session} is lost");
        }
        for (session, snapshot) in &snapshots {
            let (restored, report) =
                world.restore(&store, snapshot).unwrap_or_else(|error| panic!("{case}: restore: {error}"));
            assert_eq!(report.failures, 0, "{case}: snapshot {session}");
            if let Some((_, source)) = acknowledged.iter().find(|(known, _)| known == session) {
                assert_eq!(source.diff(&restored), Vec::<String>::new(), "{case}");
            }
            let is_whole = self.sources.all().iter().any(|source| source.diff(&restored).is_empty());
            assert!(is_whole, "{case}: snapshot {session} is neither whole nor absent");
        }
        assert_clean(world, &store, case);
        let ask = Ask { with_parent: self.has_parent, ..self.ask.clone() };
        let next = world.backup(&store, &self.sources.third, &ask);
        let next = next.unwrap_or_else(|error| panic!("{case}: the next backup: {error}"));
        let (restored, report) = world.restore(&store, &next.report.snapshot).unwrap();
        let differences = self.sources.third.diff(&restored);
        assert_eq!((report.failures, differences), (0, Vec::new()), "{case}: after the next backup");
    }

    /// Runs the workload undisturbed; returns its calls.
    fn trace(&self) -> Vec<TraceEntry> {
        let world = self.world();
        world.disk.record_trace();
        let (created, acknowledged) = self.run(&world);
        assert!(created);
        assert_eq!(acknowledged.len(), self.backups);
        let trace = world.disk.trace();
        let case = format!("seed {}, undisturbed", self.seed);
        self.assert_sound(&world, created, &acknowledged, &case);
        let store = world.open().unwrap();
        let rewritten = rewritten(&store);
        assert_eq!(rewritten.0 != 0, self.seed == REWRITING_SEED, "{case}");
        assert_eq!(stored_twice(&store), rewritten, "{case}");
        trace
    }

    /// Returns the calls to try, each with the ways to try: all, or a sample that the seed draws.
    fn cases<T: Copy>(&self, ways: &[T]) -> Vec<(TraceEntry, Vec<T>)> {
        let calls = self.trace().into_iter();
        if self.seed == 1 {
            return calls.map(|call| (call, ways.to_vec())).collect();
        }
        let mut draw = Draw::new(self.seed);
        let sample = calls.filter(|_| draw.once_in(CALLS_PER_SAMPLE));
        let sample: Vec<TraceEntry> = sample.collect();
        sample.into_iter().map(|call| (call, vec![*draw.one_of(ways)])).collect()
    }
}

/// The images of a life that were examined: the same image is sound again.
#[derive(Default)]
struct Examined(HashSet<blake3::Hash>);

impl Examined {
    fn is_new(&mut self, disk: &SimDisk, created: bool, acknowledged: &Acknowledged<'_>) -> bool {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[u8::from(created)]);
        for (session, _) in acknowledged {
            hasher.update(&session.0);
        }
        // Its calls do not count for the world that goes on.
        hash_directory(&disk.fork(), Path::new(""), &mut hasher);
        self.0.insert(hasher.finalize())
    }
}

/// Reads every byte of the repository and follows every reference.
fn assert_clean(world: &World, store: &Store, case: &str) {
    let request = CheckRequest {
        snapshots: CheckedSnapshots::All,
        read: ReadData::All,
        scratch: world.scratch(),
        memory_bytes: 16 << 20,
        driver: Driver::inline(1),
        seed: None,
        heads: None,
        accelerator: None,
    };
    let report = check(store, &request, &Silent).unwrap_or_else(|error| panic!("{case}: check: {error}"));
    assert!(report.findings.is_empty(), "{case}: {:?}", report.findings);
}

/// Returns true if another fault, at this call or at the next, has the same effect.
fn is_repetition(fault: Fault, operation: &str) -> bool {
    match fault {
        // At other calls it is `Error`.
        Fault::ShortWrite(_) => operation != "write",
        // A call that changes nothing answers with an error either way.
        Fault::ErrorAfter(ErrorKind::Other) => ["list", "look up", "measure", "open", "read"].contains(&operation),
        // A call that needs no space succeeds, and the next one finds the disk full.
        Fault::DiskFull => !["create", "create directory", "link", "resize", "write"].contains(&operation),
        _ => false,
    }
}

#[test]
fn an_error_at_any_call_loses_nothing() {
    let faults = [
        Fault::Error(ErrorKind::Other),
        Fault::Error(ErrorKind::StorageFull),
        Fault::Error(ErrorKind::Interrupted),
        Fault::Error(ErrorKind::ReadOnlyFilesystem),
        Fault::ShortWrite(ErrorKind::Other),
        Fault::DiskFull,
        Fault::ErrorAfter(ErrorKind::Other),
        Fault::ErrorAfter(ErrorKind::AlreadyExists),
    ];
    let (mut calls, mut replays, mut examined, mut jobs) = (0, 0, 0, JobTotals::default());
    for life in (1..=REWRITING_SEED).map(Life::new) {
        let mut images = Examined::default();
        for (call, faults) in life.cases(&faults) {
            calls += 1;
            for fault in faults.into_iter().filter(|fault| !is_repetition(*fault, call.operation)) {
                let world = life.world();
                world.disk.fail_at(call.number, fault);
                let (created, acknowledged) = life.run(&world);
                jobs.add(&world);
                world.disk.clear_faults();
                let case = format!("seed {}, {fault:?} at call {}", life.seed, call.number);
                if images.is_new(&world.disk, created, &acknowledged) {
                    life.assert_sound(&world, created, &acknowledged, &case);
                }
                replays += 1;
            }
        }
        examined += images.0.len();
    }
    tell(&format!(
        "errors at {calls} calls of {REWRITING_SEED} seeds: {replays} replays, {examined} results, nothing lost"
    ));
    jobs.assert_interrupted("errors");
}

#[test]
fn a_crash_at_any_call_loses_nothing_that_was_acknowledged() {
    // `None`: the process is killed, and the kernel goes on.
    let ways = [
        Some(CrashMode::LoseUnsynced),
        Some(CrashMode::KeepAll),
        Some(CrashMode::Subset(1)),
        Some(CrashMode::Subset(2)),
        Some(CrashMode::Subset(3)),
        Some(CrashMode::Torn(4)),
        None,
    ];
    let (mut calls, mut crashes, mut examined, mut jobs) = (0, 0, 0, JobTotals::default());
    for life in (1..=REWRITING_SEED).map(Life::new) {
        let mut images = Examined::default();
        for (call, ways) in life.cases(&ways) {
            calls += 1;
            let world = life.world();
            let fault = if call.number % 2 == 0 { Fault::Die } else { Fault::DieAfter };
            world.disk.fail_at(call.number, fault);
            let (created, acknowledged) = life.run(&world);
            jobs.add(&world);
            for way in ways {
                let after = way.map_or_else(|| world.disk.reopen(), |mode| world.disk.crash(mode));
                if images.is_new(&after, created, &acknowledged) {
                    let case = format!("seed {}, {fault:?} at call {}, {way:?}", life.seed, call.number);
                    life.assert_sound(&world.on(after), created, &acknowledged, &case);
                }
                crashes += 1;
            }
        }
        examined += images.0.len();
    }
    tell(&format!(
        "crashes at {calls} calls of {REWRITING_SEED} seeds: {crashes} images, {examined} of them different, nothing lost"
    ));
    jobs.assert_crashed("crashes");
}

/// An ordinal in the table or the log means the same container after a power cut, and a checkpoint names durable files only.
#[test]
fn the_index_syncs_containers_before_pages_that_name_them_and_all_before_a_checkpoint() {
    let life = Life::new(2);
    // Jobs run immediately, so pages may name all containers that are written.
    let world = World::with(SimDisk::new(), SimHost::new(life.seed));
    world.disk.record_trace();
    assert_eq!(life.run(&world).1.len(), 2);
    let (mut unsynced, mut pages, mut checkpoints) = (HashSet::new(), 0, 0);
    for call in world.disk.trace() {
        let Ok(name) = call.path.strip_prefix("cache/index") else { continue };
        match (name.to_str().unwrap(), call.operation) {
            ("table" | "log", "write") => {
                assert!(!unsynced.contains(Path::new("containers")), "{call:?}");
                unsynced.insert(name.to_path_buf());
                pages += 1;
            }
            (_, "write" | "resize") => {
                unsynced.insert(name.to_path_buf());
            }
            (_, "sync") => {
                unsynced.remove(name);
            }
            (_, "rename") => {
                assert!(unsynced.is_empty(), "{call:?}: {unsynced:?}");
                checkpoints += 1;
            }
            _ => {}
        }
    }
    assert!(20 < pages && 2 <= checkpoints, "{pages} writes of pages, {checkpoints} checkpoints");
}

/// Background jobs write most of these files, and nobody waits for the error.
#[test]
fn a_failed_write_or_sync_of_the_index_is_reported() {
    let life = Life::new(2);
    let files = ["containers", "table", "log"].map(|name| Path::new("cache/index").join(name));
    let is_tried = |call: &TraceEntry| files.contains(&call.path) && ["write", "sync"].contains(&call.operation);
    let calls: Vec<TraceEntry> = life.trace().into_iter().filter(is_tried).collect();
    assert!(50 < calls.len(), "{calls:?}");
    for call in calls {
        let world = life.world();
        world.disk.fail_at(call.number, Fault::Error(ErrorKind::Other));
        world.create(SMALL).unwrap();
        let mut is_reported = false;
        for source in [&life.sources.first, &life.sources.second] {
            let store = world.open().unwrap();
            let outcome = world.backup(&store, source, &life.ask);
            let (state, degraded) = outcome.map(|outcome| (outcome.index_state, outcome.index_degraded)).unwrap();
            is_reported |= degraded.is_some() || matches!(state, IndexState::Rebuilt(_));
        }
        assert!(is_reported, "{call:?}");
    }
}

/// Backs up the second source onto the first, on a disk that fails at a call, and returns what came of it and the calls
/// that it made in the repository.
fn second_backup(sources: &Sources, fault: Option<(u64, Fault)>) -> (World, Result<SessionId, Error>, Vec<TraceEntry>) {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    world.backup(&store, &sources.first, &Ask::default()).unwrap();
    world.disk.record_trace();
    if let Some((call, fault)) = fault {
        world.disk.fail_at(call, fault);
    }
    let ask = Ask { with_parent: true, ..Ask::default() };
    let result = world.backup(&store, &sources.second, &ask).map(|outcome| outcome.report.session);
    world.disk.clear_faults();
    let trace = in_the_repository(&world);
    (world, result, trace)
}

fn in_the_repository(world: &World) -> Vec<TraceEntry> {
    world.disk.trace().into_iter().filter(|call| call.path.starts_with("repo")).collect()
}

#[test]
fn a_sync_that_fails_ends_the_session() {
    let sources = Sources::new();
    let (_, undisturbed, trace) = second_backup(&sources, None);
    undisturbed.unwrap();
    let syncs: Vec<_> = trace.iter().filter(|call| call.operation.starts_with("sync")).collect();
    assert!(syncs.iter().any(|call| call.operation == "sync") && 4 < syncs.len(), "{trace:?}");
    for sync in syncs {
        let (world, result, _) = second_backup(&sources, Some((sync.number, Fault::Error(ErrorKind::Interrupted))));
        let unknown = matches!(result, Err(Error::UnknownState { .. }));
        assert!(result.is_err(), "{sync:?}: success was reported");
        let snapshots = world.open().unwrap().read_commits().unwrap().snapshots().len();
        assert!(snapshots == 1 || unknown, "{sync:?}: an error was reported, and a snapshot made: {result:?}");
    }
}

#[test]
fn a_commit_whose_name_may_be_lost_is_called_unknown() {
    let sources = Sources::new();
    let (_, _, trace) = second_backup(&sources, None);
    let sync = trace.iter().rfind(|call| call.operation == "sync directory" && call.path.ends_with("commits")).unwrap();
    let (_, result, _) = second_backup(&sources, Some((sync.number, Fault::Error(ErrorKind::Other))));
    let Err(error @ Error::UnknownState { session, .. }) = result else { panic!("{result:?}") };
    assert!(error.to_string().contains(&session.to_string()), "{error}");
}

#[test]
fn opening_listing_restoring_and_checking_write_nothing() {
    let sources = Sources::new();
    let (world, made, _) = second_backup(&sources, None);
    let made = made.unwrap();
    let before = world.disk.calls();
    let store = world.open().unwrap();
    let commits = store.read_commits().unwrap();
    let (_, snapshot) = commits.snapshots().into_iter().find(|(listed, _)| *listed == made).unwrap();
    world.restore(&store, snapshot).unwrap();
    assert_clean(&world, &store, "undisturbed");
    let calls: Vec<_> = in_the_repository(&world).into_iter().filter(|call| before < call.number).collect();
    let reads = ["open", "read", "list", "look up"];
    assert!(calls.iter().any(|call| call.operation == "read"));
    let others: Vec<_> = calls.iter().filter(|call| !reads.contains(&call.operation)).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// A network file system repeats a request whose answer was lost, and then finds the name that the first one made.
#[test]
fn a_link_that_was_made_but_answers_that_the_name_exists_is_taken_for_made() {
    let life = Life::new(1);
    let world = life.world();
    world.disk.record_trace();
    life.run(&world);
    let links: Vec<u64> =
        in_the_repository(&world).iter().filter(|call| call.operation == "link").map(|call| call.number).collect();
    assert!(6 < links.len(), "key slots, config, sessions, commits: {links:?}");
    for link in links {
        let world = life.world();
        world.disk.fail_at(link, Fault::ErrorAfter(ErrorKind::AlreadyExists));
        let (created, acknowledged) = life.run(&world);
        assert_eq!((created, acknowledged.len()), (true, 2), "link at call {link}");
        life.assert_sound(&world, created, &acknowledged, &format!("link at call {link}"));
    }
}

/// The kernel reports a failed sync of a directory once; the names that it lost stay visible until the power is cut.
#[test]
fn a_directory_sync_that_failed_is_not_believed_when_a_later_session_repeats_it() {
    let life = Life::new(1);
    let sources = &life.sources;
    let (_, undisturbed, trace) = second_backup(sources, None);
    undisturbed.unwrap();
    let is_of_containers = |call: &&TraceEntry| {
        call.operation == "sync directory" && call.path.components().any(|part| part.as_os_str() == "containers")
    };
    let syncs: Vec<_> = trace.iter().filter(is_of_containers).collect();
    assert!(2 < syncs.len(), "{trace:?}");
    for sync in syncs {
        for cache in ["kept", "lost"] {
            let (world, result, _) = second_backup(sources, Some((sync.number, Fault::Error(ErrorKind::Other))));
            let case = format!("{sync:?}, cache {cache}");
            assert!(result.is_err(), "{case}");
            if cache == "lost" {
                let _lost = world.disk.subdir("lost");
                world.disk.rename(Path::new("cache"), Path::new("lost/cache")).unwrap();
            }
            let store = world.open().unwrap();
            let ask = Ask { with_parent: true, ..Ask::default() };
            let session = world.backup(&store, &sources.second, &ask).unwrap().report.session;
            for mode in [CrashMode::LoseUnsynced, CrashMode::Subset(1), CrashMode::Subset(2)] {
                let after = world.on(world.disk.crash(mode));
                life.assert_sound(&after, true, &vec![(session, &sources.second)], &format!("{case}, {mode:?}"));
            }
        }
    }
}

#[test]
fn a_directory_of_the_repository_that_is_missing_is_made_again() {
    let sources = Sources::new();
    for name in ["containers", "sessions", "commits", "forget", "gc", "tmp"] {
        let (world, made, _) = second_backup(&sources, None);
        made.unwrap();
        let _lost = world.disk.subdir("lost");
        world.disk.rename(&Path::new("repo").join(name), &Path::new("lost").join(name)).unwrap();
        let store = world.open().unwrap();
        let session = world.backup(&store, &sources.third, &Ask::default()).unwrap().report.session;
        let after = world.on(world.disk.crash(CrashMode::LoseUnsynced));
        let store = after.open().unwrap();
        let commits = store.read_commits().unwrap();
        let (_, snapshot) = commits.snapshots().into_iter().find(|(listed, _)| *listed == session).unwrap();
        let (restored, report) = after.restore(&store, snapshot).unwrap();
        assert_eq!((report.failures, sources.third.diff(&restored)), (0, Vec::new()), "{name}");
    }
}

#[test]
fn init_syncs_every_directory_that_it_makes_and_the_one_above() {
    let world = World::new(1);
    world.disk.record_trace();
    world.create(SMALL).unwrap();
    let trace = world.disk.trace();
    let made = trace.iter().filter(|call| call.operation == "create directory");
    let made: Vec<&TraceEntry> = made.filter(|call| call.path.starts_with("repo")).collect();
    assert_eq!(made.len(), DIRECTORIES.len());
    for directory in made {
        let is_synced = |path: &Path| {
            trace
                .iter()
                .any(|call| call.operation == "sync directory" && call.path == path && directory.number < call.number)
        };
        assert!(is_synced(&directory.path) && is_synced(directory.path.parent().unwrap()), "{directory:?}");
    }
}

#[test]
fn directories_that_lead_to_a_repository_are_durable() {
    let disk = SimDisk::new();
    let _home = disk.subdir("home");
    create_directory(&disk, Path::new("home/a/b/c")).unwrap();
    assert!(disk.crash(CrashMode::LoseUnsynced).exists(Path::new("home/a/b/c")).unwrap());
    // Made by an init that was killed before it had synced.
    disk.create_dir(Path::new("home/d")).unwrap();
    create_directory(&disk, Path::new("home/d")).unwrap();
    assert!(disk.crash(CrashMode::LoseUnsynced).exists(Path::new("home/d")).unwrap());
}

#[test]
fn an_init_that_failed_leaves_no_probe_once_another_one_is_done() {
    let world = World::new(1);
    world.create(SMALL).unwrap();
    for call in 1..=world.disk.calls() {
        for fault in [Fault::Error(ErrorKind::Other), Fault::ErrorAfter(ErrorKind::Other), Fault::Die, Fault::DieAfter]
        {
            let world = World::new(1);
            world.disk.record_trace();
            world.disk.fail_at(call, fault);
            let failed = world.create(SMALL).is_err();
            let of_the_fault = world.disk.trace().into_iter().find(|entry| entry.number == call);
            let removes = of_the_fault.is_some_and(|entry| ["remove", "look up"].contains(&entry.operation));
            let names = |world: &World| -> Vec<String> {
                let list = |directory| world.repo().list(Path::new(directory)).unwrap_or_default();
                ["tmp", "sessions", "gc"].into_iter().flat_map(list).map(|entry| entry.name).collect()
            };
            if failed
                && !removes
                && matches!(fault, Fault::Error(_) | Fault::ErrorAfter(_))
                && world.repo().exists(Path::new("tmp")).unwrap()
            {
                assert!(names(&world).iter().all(|name| !name.ends_with("probe")), "{fault:?} at {call}");
            }
            let world = world.on(world.disk.reopen());
            if world.open().is_err() {
                world.create(SMALL).unwrap();
                assert_eq!(names(&world), Vec::<String>::new(), "{fault:?} at {call}");
            }
        }
    }
}
