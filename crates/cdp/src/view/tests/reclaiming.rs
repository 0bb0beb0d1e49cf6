//! Checkpoints that were forgotten, and prunes.

use std::sync::Mutex;
use std::time::Duration;

use onefold_engine::collect::plan::{MaxUnused, PruneOptions};
use onefold_engine::collect::{Copies, PruneReport, PruneRequest, prune};
use onefold_engine::forget::Forgetting;
use onefold_engine::snapshot::ForgetBody;
use onefold_engine::testing::sim::Fault;

use super::hooked::Hooked;
use super::*;
use crate::stored::Checkpoints;

pub(super) fn prune_all(world: &World, store: &Store) -> Result<PruneReport> {
    prune_with(world, store, false)
}

pub(super) fn prune_with(world: &World, store: &Store, quick: bool) -> Result<PruneReport> {
    let request = PruneRequest {
        options: PruneOptions { max_unused: MaxUnused::Bytes(0), max_repack_bytes: u64::MAX, repack_below_bytes: 0 },
        quick,
        fence_after: Duration::ZERO,
        wait: Duration::ZERO,
        keep_deleted: Duration::ZERO,
        keep_unfinished: Duration::ZERO,
        trust_copies: false,
        copies: Copies::mostly_as_stored(Compression::Zstd(1)),
        hostname: "collector".into(),
        scratch: world.scratch(),
        memory_bytes: 16 << 20,
        driver: Driver::inline(1),
    };
    prune(store, &request, &Silent)
}

/// A world with four checkpoints and initial images, of which the second is forgotten. Returns its first and last record, too, and the last of the next.
fn forgotten(seed: u64) -> (World, Model, [Lsn; 3]) {
    let mut random = SplitMix64::new(seed);
    let (world, bytes) = World::new(seed);
    let mut model = Model::new(bytes);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    let mut made = Vec::new();
    for _ in 0..4 {
        for _ in 0..12 {
            model.step(&opened, &mut random).unwrap();
        }
        made.push(world.checkpoint(&mut opened).unwrap().unwrap());
    }
    Forgetting::begin(&opened.store, &ForgetBody::default()).unwrap().forget(made[1].snapshot).unwrap();
    (world, model, [made[1].first, made[1].last, made[2].last])
}

#[test]
fn a_forgotten_checkpoint_takes_the_moments_that_need_it_and_no_others() {
    let (world, mut model, [first, last, next]) = forgotten(31);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    assert!(prune_all(&world, &opened.store).unwrap().deleted_bytes != 0);
    let mut random = SplitMix64::new(32);
    for round in 0..2 {
        for lsn in 0..=model.last().0 {
            let state = &model.states[usize::try_from(lsn).unwrap()];
            let with_journal = world.point(&opened.store, &At::Lsn(Lsn(lsn)), Some(opened.group.journal())).unwrap();
            assert!(read_all(&with_journal) == *state, "after record {lsn}");
            match world.point(&opened.store, &At::Lsn(Lsn(lsn)), None) {
                Ok(point) => {
                    assert!(!(first..next).contains(&Lsn(lsn)), "after record {lsn}");
                    assert!(read_all(&point) == *state, "after record {lsn}");
                }
                Err(error) => {
                    assert!((first..next).contains(&Lsn(lsn)), "after record {lsn}: {error}");
                    assert!(error.to_string().contains(&format!("the next moment is that after record {next}")));
                }
            }
        }
        let request = HistoryRequest::default();
        let listed = history(&opened.store, &world.options(), (GROUP, None), request, None).unwrap();
        assert_eq!(listed.unreachable, [UnreachableRange { first, last: next }], "{last}");
        if round == 0 {
            for _ in 0..20 {
                model.step(&opened, &mut random).unwrap();
            }
            assert_eq!(world.checkpoint(&mut opened).unwrap().unwrap().whole_images, 0);
        }
    }
    world.assert_clean(&opened.store);
}

#[test]
fn a_checkpoint_waits_for_a_prune_or_is_made_and_loses_nothing() {
    let (world, mut model, _) = forgotten(33);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    let mut random = SplitMix64::new(34);
    for _ in 0..10 {
        model.step(&opened, &mut random).unwrap();
    }
    opened.group.sync().unwrap();
    drop(opened);
    let whole = World::on(world.disk.fork(), 35);
    let store = whole.store().unwrap();
    let before = whole.disk.calls();
    prune_all(&whole, &store).unwrap();
    let calls = whole.disk.calls() - before;
    let (mut waited, mut made) = (0, 0);
    for call in (1..=calls).step_by(5) {
        let interrupted = World::on(world.disk.fork(), 35);
        let store = interrupted.store().unwrap();
        interrupted.disk.fail_at(interrupted.disk.calls() + call, Fault::Die);
        let _ = prune_all(&interrupted, &store);
        let world = World::on(interrupted.disk.reopen(), 36);
        opened = world.open(CheckpointLimits::DEFAULT).unwrap();
        let Opened { checkpointer, group, .. } = &mut opened;
        let outcome = world.write(|request| checkpointer.checkpoint(group.journal(), group.synced(), request)).unwrap();
        match outcome {
            CheckpointOutcome::PruneInProgress => {
                waited += 1;
                prune_all(&world, &opened.store).unwrap();
                world.checkpoint(&mut opened).unwrap().unwrap();
            }
            CheckpointOutcome::Made(_) => made += 1,
            CheckpointOutcome::NothingNew => panic!("there are records"),
        }
        prune_all(&world, &opened.store).unwrap();
        let newest = Checkpoints::read(&opened.store, GROUP, None).unwrap().newest().unwrap().clone();
        assert_eq!(newest.last(), model.last(), "call {call}");
        for lsn in [0, model.last().0 - 3, model.last().0] {
            let point = world.point(&opened.store, &At::Lsn(Lsn(lsn)), None).unwrap();
            assert!(read_all(&point) == model.states[usize::try_from(lsn).unwrap()], "call {call}: after record {lsn}");
        }
        world.assert_clean(&opened.store);
    }
    assert!(0 < waited && 0 < made, "{waited} waited, {made} were made");
}

/// A volume during whose first read a prune fences all sessions.
#[derive(Debug)]
struct Fencing {
    inner: Arc<dyn Export>,
    fence: Mutex<Option<(World, Store)>>,
}

impl Export for Fencing {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn flags(&self) -> u16 {
        self.inner.flags()
    }

    fn has_context(&self, context: Context) -> bool {
        self.inner.has_context(context)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        if let Some((world, store)) = self.fence.lock().unwrap().take() {
            let report = prune_all(&world, &store).unwrap();
            assert_eq!(report.fenced.len(), 1, "{report:?}");
        }
        self.inner.read(offset, into)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), Errno> {
        self.inner.write(offset, data, fua)
    }

    fn write_zeroes(&self, range: Range<u64>, options: ZeroOptions) -> Result<(), Errno> {
        self.inner.write_zeroes(range, options)
    }

    fn trim(&self, range: Range<u64>, fua: Fua) -> Result<(), Errno> {
        self.inner.trim(range, fua)
    }

    fn flush(&self) -> Result<(), Errno> {
        self.inner.flush()
    }

    fn cache(&self, range: Range<u64>) -> Result<(), Errno> {
        self.inner.cache(range)
    }

    fn block_status(&self, range: Range<u64>, context: Context, extents: &mut StatusExtents) -> Result<(), Errno> {
        self.inner.block_status(range, context, extents)
    }
}

#[test]
fn initial_images_are_stored_again_after_a_fence() {
    let (world, bytes) = World::new(37);
    let mut opened = world.open(TIGHT).unwrap();
    let first = Checkpoints::read(&opened.store, GROUP, None).unwrap().newest().unwrap().snapshot;
    Forgetting::begin(&opened.store, &ForgetBody::default()).unwrap().forget(first).unwrap();
    let mut origins = world.origins().unwrap();
    let fence = Mutex::new(Some((world.clone(), opened.store.clone())));
    origins[0] = Arc::new(Fencing { inner: Arc::clone(&origins[0]), fence });
    let made = world.write(|request| opened.checkpointer.initial(&origins, Lsn(0), request)).unwrap();
    let made = made.unwrap_or_else(|| {
        // The prune may have left its work to another one.
        prune_all(&world, &opened.store).unwrap();
        world.write(|request| opened.checkpointer.initial(&origins, Lsn(0), request)).unwrap().unwrap()
    });
    let checkpoints = Checkpoints::read(&opened.store, GROUP, None).unwrap();
    assert_eq!(checkpoints.list.iter().map(|checkpoint| checkpoint.snapshot).collect::<Vec<_>>(), [made]);
    assert!(read_all(&world.point(&opened.store, &At::Latest, None).unwrap()) == bytes);
    world.assert_clean(&opened.store);
}

/// A world with checkpoints of which one is forgotten, and records that are in none.
fn pending(seed: u64) -> (World, Model) {
    let (world, mut model, _) = forgotten(seed);
    let opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    let mut random = SplitMix64::new(seed + 1);
    for _ in 0..10 {
        model.step(&opened, &mut random).unwrap();
    }
    opened.group.sync().unwrap();
    (world, model)
}

#[test]
fn a_checkpoint_that_a_prune_fences_at_any_call_is_made_again_or_waits_and_loses_nothing() {
    let (world, model) = pending(41);
    // Returns the calls, and the sessions that were fenced.
    let run = |call: Option<u64>| {
        let world = World::on(world.disk.fork(), 41);
        let opened = world.open(CheckpointLimits::DEFAULT).unwrap();
        let hooked = Hooked::new(world.objects());
        let objects: Arc<dyn ObjectStore> = Arc::clone(&hooked) as _;
        let store = open(&objects, &world.host, Unlock::Password(PASSWORD)).unwrap();
        let mut checkpointer = world.checkpointer(&store, CheckpointLimits::DEFAULT).unwrap();
        let before = hooked.calls();
        let fenced = Arc::new(Mutex::new(0));
        if let Some(call) = call {
            let (world, store, fenced) = (world.clone(), opened.store.clone(), Arc::clone(&fenced));
            hooked.before(call, move || *fenced.lock().unwrap() += prune_all(&world, &store).unwrap().fenced.len());
        }
        let group = &opened.group;
        let outcome = world.write(|request| checkpointer.checkpoint(group.journal(), group.synced(), request));
        let is_made = match outcome.unwrap() {
            CheckpointOutcome::Made(_) => true,
            CheckpointOutcome::PruneInProgress => {
                prune_all(&world, &store).unwrap();
                world.write(|request| checkpointer.checkpoint(group.journal(), group.synced(), request)).unwrap();
                false
            }
            CheckpointOutcome::NothingNew => panic!("there are records"),
        };
        let calls = hooked.calls() - before;
        prune_all(&world, &store).unwrap();
        for lsn in [0, model.last().0 - 3, model.last().0] {
            let point = world.point(&store, &At::Lsn(Lsn(lsn)), None).unwrap();
            assert!(read_all(&point) == model.states[usize::try_from(lsn).unwrap()], "{call:?}: after record {lsn}");
        }
        world.assert_clean(&store);
        let fenced = *fenced.lock().unwrap();
        (calls, fenced, is_made)
    };
    let (calls, ..) = run(None);
    let (mut fenced, mut waited) = (0, 0);
    for call in 1..=calls {
        let (_, of_call, is_made) = run(Some(call));
        fenced += of_call;
        waited += usize::from(!is_made);
    }
    assert!(5 < fenced, "{fenced} of {calls} fenced a session, {waited} waited");
}
