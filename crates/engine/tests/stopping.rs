//! Processes that are stopped while others go on: whatever the order of their calls, no byte of a snapshot that was not
//! forgotten is lost.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use onefold_engine::Error;
use onefold_engine::backup::Monitor;
use onefold_engine::collect::{PruneRequest, prune};
use onefold_engine::error::Result;
use onefold_engine::identify::IndexOptions;
use onefold_engine::io::Disk;
use onefold_engine::monitor::Silent;
use onefold_engine::object::FormatVersion;
use onefold_engine::repo::{Cache, RebuildRequest, rebuild_index};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::create::Adjustments;
use onefold_engine::store::{Store, Unlock, open};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::{SimDisk, SimHost};
use onefold_engine::types::SessionId;

use crate::integration::bases::{self, Policy, Way};
use crate::integration::damage::lose_cache;
use crate::integration::pruning::{assert_clean, assert_restores, back_up_all, each_or_one, forget, request, versions};
use crate::integration::support::hooked::Hooked;
use crate::integration::support::{
    Ask, Draw, Notes, PASSWORD, SMALL, SMALL_1, World, back_up, copy, directory_store, noise, restore_to, tell,
};

/// A repository of three snapshots, the first of which is forgotten.
struct Repository {
    world: World,
    versions: Vec<MemTree>,
    sessions: Vec<SessionId>,
}

/// Three versions of a source with one container each, so that operations have few calls and most of their orders differ in steps of
/// the protocol.
fn small_versions() -> Vec<MemTree> {
    let source = MemTree::new();
    source.put_dir(Path::new("/d"));
    source.put_file(Path::new("/d/stays"), &noise(1, 6_000));
    let version = |number: u64| {
        source.put_file(Path::new("/d/changes"), &noise(2 + number, 6_000));
        source.put_file(Path::new("/d/e/comes-back"), &noise(10 + number % 2, 3_000));
        copy(&source)
    };
    (0..3).map(version).collect()
}

impl Repository {
    fn new(seed: u64) -> Self {
        Self::of(SMALL, seed, versions())
    }

    fn of(adjustments: Adjustments, seed: u64, versions: Vec<MemTree>) -> Self {
        let world = World::with(SimDisk::new(), SimHost::new(seed));
        let store = world.create(adjustments).unwrap();
        let sessions = back_up_all(&world, &store, &versions);
        forget(&store, sessions[0]).unwrap();
        Self { world, versions, sessions }
    }

    /// A repository in which later versions have regions that depend on those of earlier ones.
    fn with_bases(seed: u64, versions: Vec<MemTree>) -> Self {
        let world = World::with(SimDisk::new(), SimHost::new(seed));
        let store = world.create(SMALL).unwrap();
        let policy = Policy::new(Way::Previous, seed);
        let sessions = versions.iter().map(|version| {
            let made = world.backup(&store, version, &bases::ask(&policy)).unwrap().report.session;
            policy.next_session();
            made
        });
        let sessions = sessions.collect::<Vec<_>>();
        assert!(bases::depths(&store).keys().any(|depth| *depth != 0));
        forget(&store, sessions[0]).unwrap();
        Self { world, versions, sessions }
    }

    fn fork(&self) -> World {
        self.world.on(self.world.disk.fork())
    }

    /// Opens the repository of a fork on a disk with a hook.
    fn open_hooked(world: &World) -> (Store, Arc<Hooked>) {
        let hooked = Hooked::new(world.watched_repo(), Box::new(|_| ()));
        let disk = Arc::clone(&hooked) as Arc<dyn Disk>;
        (open(&directory_store(disk), &world.host, Unlock::Password(PASSWORD)).unwrap(), hooked)
    }

    /// Backs up what the forgotten snapshot held. Nothing may be reported that could not be read.
    fn back_up_again(&self, world: &World, store: &Store, with_parent: bool) -> Result<SessionId> {
        let notes = Arc::new(Notes::default());
        let ask = Ask { with_parent, monitor: Arc::clone(&notes) as Arc<dyn Monitor>, ..Ask::default() };
        let report = world.backup(store, &self.versions[0], &ask)?.report;
        assert_eq!((notes.failures.lock().unwrap().clone(), report.failures), (Vec::<String>::new(), 0));
        Ok(report.session)
    }
}

#[test]
fn a_backup_that_is_stopped_at_any_call_while_prunes_run_commits_and_everything_restores() {
    let repository = Repository::new(1);
    let mut tried = 0;
    for (with_parent, has_index) in [(false, true), (true, true), (false, false)] {
        let host = || if has_index { repository.fork() } else { lose_cache(&repository.world) };
        let calls = {
            let world = host();
            let (store, hooked) = Repository::open_hooked(&world);
            hooked.restart(Box::new(|_| ()));
            repository.back_up_again(&world, &store, with_parent).unwrap();
            hooked.calls()
        };
        for call in 0..calls {
            let world = host();
            let (store, hooked) = Repository::open_hooked(&world);
            let others = world.clone();
            hooked.restart(Box::new(move |now| {
                if now == call {
                    let store = others.open().unwrap();
                    // The second one deletes what the first one has fenced.
                    for _ in 0..2 {
                        prune(&store, &request(&others, &store), &Silent).unwrap();
                    }
                }
            }));
            let case = format!("stopped at call {call} of {calls}, parent {with_parent}, index {has_index}");
            let session = repository.back_up_again(&world, &store, with_parent);
            let session = session.unwrap_or_else(|error| panic!("{case}: {error}"));
            hooked.restart(Box::new(|_| ()));
            assert_restores(&world, &store, session, &repository.versions[0], &case);
            for version in [1, 2] {
                assert_restores(&world, &store, repository.sessions[version], &repository.versions[version], &case);
            }
            assert_clean(&world, &store, &case);
            tried += 1;
        }
    }
    tell(&format!("backups stopped at {tried} calls while prunes ran: all committed, nothing lost"));
}

/// Containers that prunes delete after they were listed are no damage.
#[test]
fn a_rebuilt_index_is_stopped_at_any_call_while_prunes_run_and_nothing_is_reported() {
    let repository = Repository::new(9);
    let rebuild = |world: &World, store: &Store, case: &str| {
        let notes = Arc::new(Notes::default());
        let request = RebuildRequest {
            cache: &Cache { disk: world.cache(), dir: PathBuf::new() },
            index: IndexOptions { filter_bytes: 64 << 10, ..IndexOptions::for_memory(8 << 20) },
            scratch: world.scratch(),
            monitor: Arc::clone(&notes) as Arc<dyn Monitor>,
        };
        let rebuilt = rebuild_index(store, &request).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!((notes.failures.lock().unwrap().clone(), rebuilt.unreadable), (Vec::<String>::new(), 0), "{case}");
        rebuilt.containers
    };
    let (all, calls) = {
        let world = repository.fork();
        let (store, hooked) = Repository::open_hooked(&world);
        hooked.restart(Box::new(|_| ()));
        (rebuild(&world, &store, "not stopped"), hooked.calls())
    };
    let mut fewer = 0;
    for call in 0..calls {
        let world = repository.fork();
        let (store, hooked) = Repository::open_hooked(&world);
        let others = world.clone();
        hooked.restart(Box::new(move |now| {
            if now == call {
                let store = others.open().unwrap();
                prune(&store, &request(&others, &store), &Silent).unwrap();
            }
        }));
        let case = format!("stopped at call {call} of {calls}");
        fewer += usize::from(rebuild(&world, &store, &case) < all);
        hooked.restart(Box::new(|_| ()));
        let session = repository.back_up_again(&world, &store, false).unwrap();
        assert_restores(&world, &store, session, &repository.versions[0], &case);
        assert_clean(&world, &store, &case);
    }
    assert_ne!(fewer, 0, "a prune deletes what was listed");
}

/// Operations that run to their end while a prune is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meanwhile {
    /// A backup of what the forgotten snapshot held.
    Backup,
    /// The same after another prune.
    PruneThenBackup,
    /// The same before another prune.
    BackupThenPrune,
}

#[test]
fn a_prune_that_is_stopped_at_any_call_while_others_run_deletes_nothing_that_they_need() {
    let repository = Repository::new(4);
    let calls = {
        let world = repository.fork();
        let (store, hooked) = Repository::open_hooked(&world);
        hooked.restart(Box::new(|_| ()));
        assert!(0 < prune(&store, &request(&world, &store), &Silent).unwrap().deleted_containers);
        hooked.calls()
    };
    let mut tried = 0;
    for call in 0..calls {
        let ways = [Meanwhile::Backup, Meanwhile::PruneThenBackup, Meanwhile::BackupThenPrune];
        for way in each_or_one(&ways, call) {
            let world = repository.fork();
            let (store, hooked) = Repository::open_hooked(&world);
            let (others, source, made) = (world.clone(), repository.versions[0].clone(), Arc::new(Mutex::new(None)));
            let case = format!("stopped at call {call} of {calls}, meanwhile {way:?}");
            let (in_hook, made_in_hook) = (case.clone(), Arc::clone(&made));
            hooked.restart(Box::new(move |now| {
                if now != call {
                    return;
                }
                let store = others.open().unwrap();
                let run_prune = || prune(&store, &request(&others, &store), &Silent).unwrap();
                if way == Meanwhile::PruneThenBackup {
                    run_prune();
                }
                let cache: Arc<dyn Disk> = Arc::new(others.disk.subdir("other-cache"));
                let made = back_up(&store, &cache, Arc::new(source.clone()), Path::new("/"), &Ask::default());
                let made = made.unwrap_or_else(|error| panic!("{in_hook}: {error}"));
                *made_in_hook.lock().unwrap() = Some(made.report.session);
                if way == Meanwhile::BackupThenPrune {
                    run_prune();
                }
            }));
            prune(&store, &request(&world, &store), &Silent).unwrap_or_else(|error| panic!("{case}: {error}"));
            hooked.restart(Box::new(|_| ()));
            let session = made.lock().unwrap().unwrap();
            assert_restores(&world, &store, session, &repository.versions[0], &case);
            for version in [1, 2] {
                assert_restores(&world, &store, repository.sessions[version], &repository.versions[version], &case);
            }
            assert_clean(&world, &store, &case);
            tried += 1;
        }
    }
    let (removed, needed) = repository.world.removals();
    tell(&format!(
        "prunes stopped at {tried} calls while others ran: {removed} containers were removed, and {needed} chunks of them that are \
         needed stood elsewhere; nothing lost"
    ));
}

#[test]
fn a_check_finds_nothing_wrong_whenever_a_prune_runs() {
    let repository = Repository::new(3);
    let calls = {
        let world = repository.fork();
        let (store, hooked) = Repository::open_hooked(&world);
        hooked.restart(Box::new(|_| ()));
        assert_clean(&world, &store, "undisturbed");
        hooked.calls()
    };
    for call in 0..calls {
        let world = repository.fork();
        let (store, hooked) = Repository::open_hooked(&world);
        let others = world.clone();
        hooked.restart(Box::new(move |now| {
            if now == call {
                let store = others.open().unwrap();
                assert!(0 < prune(&store, &request(&others, &store), &Silent).unwrap().deleted_containers);
            }
        }));
        assert_clean(&world, &store, &format!("a prune before call {call} of {calls}"));
    }
    tell(&format!("prunes before each of {calls} calls of a check: nothing wrong was found"));
}

/// Lets one thread at a time make its next call, in an order that a seed draws.
#[derive(Debug)]
struct Turns {
    state: Mutex<TurnState>,
    /// One for each thread, so that nobody else wakes up.
    is_next: Vec<Condvar>,
}

#[derive(Debug)]
struct TurnState {
    draw: u64,
    left: Vec<usize>,
    current: usize,
}

impl TurnState {
    fn next(&mut self) {
        self.draw = self.draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if !self.left.is_empty() {
            let drawn = usize::try_from(self.draw >> 33).unwrap() % self.left.len();
            self.current = self.left[drawn];
        }
    }
}

impl Turns {
    fn new(seed: u64, threads: usize) -> Self {
        let mut state = TurnState { draw: seed, left: (0..threads).collect(), current: 0 };
        state.next();
        Self { state: Mutex::new(state), is_next: (0..threads).map(|_| Condvar::new()).collect() }
    }

    fn wait(&self, thread: usize, state: MutexGuard<'_, TurnState>) {
        drop(self.is_next[thread].wait_while(state, |state| state.current != thread).unwrap());
    }

    /// Waits until it is the turn of `thread`.
    fn start(&self, thread: usize) {
        self.wait(thread, self.state.lock().unwrap());
    }

    /// Draws who is next, and waits until that is `thread`.
    fn take(&self, thread: usize) {
        let mut state = self.state.lock().unwrap();
        state.next();
        if state.current != thread {
            self.is_next[state.current].notify_one();
            self.wait(thread, state);
        }
    }
}

/// Gives the turn away when its thread ends, also by a panic.
struct Participant {
    turns: Arc<Turns>,
    thread: usize,
}

impl Drop for Participant {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock().unwrap();
        state.left.retain(|thread| *thread != self.thread);
        state.next();
        self.turns.is_next[state.current].notify_one();
    }
}

/// Result of a thread: a snapshot of a version.
type Made = Option<(SessionId, usize)>;

/// One interleaving in so many is of a larger repository, whose operations have more calls.
const LARGE_EVERY: u64 = 8;

/// Operations that run at the same time.
const THREADS: usize = 6;

/// Returns how many orders of their calls are tried: what `INTERLEAVINGS` says, or a few.
fn interleavings() -> u64 {
    std::env::var("INTERLEAVINGS")
        .map_or(if cfg!(feature = "slow") { 5_000 } else { 60 }, |count| count.parse().unwrap())
}

/// Runs one of the operations. A backup may be fenced more often than it starts again.
fn operate(
    thread: usize,
    seed: u64,
    (world, store): (&World, &Store),
    versions: &[MemTree],
    kept: &Snapshot,
) -> Result<Made> {
    let cache: Arc<dyn Disk> = Arc::new(world.disk.subdir(&format!("cache-{thread}")));
    let mut draw = Draw::new(seed * 10 + thread as u64);
    match thread {
        0 | 1 => {
            let version = draw.below(versions.len());
            let with_parent = draw.once_in(2);
            let ask = match store.config.format {
                FormatVersion::V1 => Ask { with_parent, ..Ask::default() },
                FormatVersion::V2 => Ask { with_parent, ..bases::ask(&Policy::of(store, &world.scratch(), seed)) },
            };
            let source = Arc::new(versions[version].clone());
            match back_up(store, &cache, source, Path::new("/"), &ask) {
                Ok(outcome) => Ok(Some((outcome.report.session, version))),
                Err(Error::Fenced { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        }
        2 | 3 => {
            // The second one may go on with what the first one has begun, and begins the next collection.
            for _ in 0..2 {
                let fence_after = if draw.once_in(2) { Duration::ZERO } else { Duration::from_hours(24) };
                let quick = draw.once_in(4);
                prune(store, &PruneRequest { quick, fence_after, ..request(world, store) }, &Silent)?;
            }
            Ok(None)
        }
        4 => {
            assert_clean(world, store, &format!("seed {seed}: a check"));
            Ok(None)
        }
        _ => {
            let target = MemTree::new();
            let report = restore_to(store, &cache, kept, Path::new("/"), Arc::new(target.clone()))?;
            assert_eq!((report.failures, versions[2].diff(&target)), (0, Vec::new()), "seed {seed}: a restore");
            Ok(None)
        }
    }
}

#[test]
fn two_backups_two_prunes_a_check_and_a_restore_lose_nothing_in_any_order_of_their_calls() {
    interleave([Repository::of(SMALL_1, 2, versions()), Repository::of(SMALL_1, 5, small_versions())]);
}

#[test]
fn two_backups_two_prunes_a_check_and_a_restore_lose_no_base_in_any_order_of_their_calls() {
    let small = || {
        let source = bases::similar_tree(8, 1);
        let version = |round| {
            bases::edit_everywhere(&source, 8, 1, round);
            copy(&source)
        };
        (0..3).map(version).collect()
    };
    interleave([Repository::with_bases(2, small()), Repository::with_bases(5, small())]);
}

fn interleave(repositories: [Repository; 2]) {
    let (mut made, mut fenced) = (0, 0);
    let interleavings = interleavings();
    for seed in 0..interleavings {
        let repository = &repositories[usize::from(seed % LARGE_EVERY != 0)];
        let world = repository.fork();
        let store = world.open().unwrap();
        let commits = store.read_commits().unwrap();
        let kept = commits.snapshots().last().unwrap().1.clone();
        let turns = Arc::new(Turns::new(seed, THREADS));
        let outcomes: Vec<Made> = std::thread::scope(|scope| {
            let threads = (0..THREADS).map(|thread| {
                let (world, turns, versions, kept) = (world.clone(), Arc::clone(&turns), &repository.versions, &kept);
                scope.spawn(move || {
                    let _participant = Participant { turns: Arc::clone(&turns), thread };
                    turns.start(thread);
                    let (store, hooked) = Repository::open_hooked(&world);
                    hooked.restart(Box::new(move |_| turns.take(thread)));
                    let made = operate(thread, seed, (&world, &store), versions, kept);
                    made.unwrap_or_else(|error| panic!("seed {seed}, operation {thread}: {error}"))
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let case = format!("seed {seed}");
        let known = [1, 2].map(|version| (repository.sessions[version], version));
        for (session, version) in known.into_iter().chain(outcomes.iter().flatten().copied()) {
            assert_restores(&world, &store, session, &repository.versions[version], &case);
        }
        assert_clean(&world, &store, &case);
        made += outcomes.iter().flatten().count();
        fenced += outcomes[..2].iter().filter(|made| made.is_none()).count();
    }
    let [(mut removed, mut needed), (more, more_needed)] = repositories.map(|repository| repository.world.removals());
    (removed, needed) = (removed + more, needed + more_needed);
    tell(&format!(
        "{interleavings} interleavings: {made} snapshots made, {fenced} backups fenced for good, {removed} containers removed, of \
         which {needed} needed chunks stood elsewhere, nothing lost"
    ));
    assert!(interleavings < made as u64);
}
