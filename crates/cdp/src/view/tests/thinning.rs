//! Histories that are thinned: what was kept is what it was, and nothing else is offered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onefold_engine::derive::DeriveOptions;
use onefold_engine::forget::{Forgetting, Trust};
use onefold_engine::repo::{recover, tag};
use onefold_engine::snapshot::ForgetBody;
use onefold_engine::testing::sim::{CrashMode, Fault};
use onefold_engine::types::Timestamp;

use super::hooked::Hooked;
use super::reclaiming::{prune_all, prune_with};
use super::*;
use crate::journal::{Op, Record};
use crate::retention::{Carried, Fate, KeepMoments, Plan, ThinOptions, Thinner, Why};
use crate::stored::Checkpoints;

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

/// A world whose clock the test sets.
struct Clocked {
    world: World,
    clock: Arc<SimHost>,
    seconds: i64,
}

impl Clocked {
    fn new(seed: u64) -> (Self, Bytes) {
        let (world, bytes) = World::new(seed);
        // The same boot, further on in its random numbers.
        let clock = Arc::new(SimHost::new(seed));
        clock.random(&mut vec![0; 1 << 16]).unwrap();
        let mut clocked =
            Self { world: World { host: Arc::clone(&clock) as _, ..world }, clock, seconds: 1_767_300_000 };
        clocked.pass(1);
        (clocked, bytes)
    }

    fn pass(&mut self, seconds: u64) {
        self.seconds += i64::try_from(seconds).unwrap();
        self.clock.set_now(Timestamp { seconds: self.seconds, nanoseconds: 0 });
    }

    /// Makes changes, and checkpoints of them.
    fn live(&mut self, model: &mut Model, random: &mut SplitMix64, checkpoints: usize) {
        let mut opened = self.world.open(CheckpointLimits::DEFAULT).unwrap();
        for _ in 0..checkpoints {
            for _ in 0..8 + random.index(10) {
                let pause = [1, 10, 40, 20 * MINUTE, 2 * HOUR][random.index(5)];
                self.pass(pause);
                model.step(&opened, random).unwrap();
            }
            self.world.checkpoint_all(&mut opened).unwrap();
        }
        opened.group.sync().unwrap();
    }
}

fn thinner(world: &World, store: &Store) -> Result<Thinner> {
    let options = ThinOptions {
        limits: CheckpointLimits::DEFAULT,
        scratch: world.scratch(),
        memory_bytes: 8 << 20,
        trust: Trust::Times,
    };
    Thinner::open(store, (GROUP, Some(ID)), options, &Driver::inline(4))
}

fn thin(world: &World, store: &Store, rules: &KeepMoments) -> Result<(Plan, Carried)> {
    let mut thinner = thinner(world, store)?;
    let plan = thinner.plan(rules, &|_| 3600)?;
    let carried = world.write(|request| thinner.carry_out(&plan, request, &ForgetBody::default(), &mut || false))?;
    Ok((plan, carried))
}

/// Returns the records after which a moment can be reached once a plan was carried out.
fn reachable(plan: &Plan) -> BTreeSet<Lsn> {
    let stay = plan.checkpoints.iter().filter(|planned| planned.fate != Fate::Forgotten);
    let (mut reachable, mut before) = (BTreeSet::new(), None);
    for planned in stay {
        let is_continued = before.is_some_and(|before: Lsn| planned.first.0 == before.0 + 1);
        match &planned.fate {
            Fate::Thinned | Fate::Kept(Why::Enough) => {
                assert!(is_continued || planned.inside.is_empty());
                reachable.extend(planned.inside.iter().map(|moment| moment.lsn));
            }
            Fate::Kept(_) if is_continued => reachable.extend((planned.first.0..planned.last.0).map(Lsn)),
            Fate::Kept(_) | Fate::Forgotten => {}
        }
        reachable.insert(planned.last);
        before = Some(planned.last);
    }
    reachable
}

fn rules(random: &mut SplitMix64) -> KeepMoments {
    let mut of = |choices: [u64; 3]| Duration::from_secs(choices[random.index(3)]);
    KeepMoments {
        writes: of([0, 10 * MINUTE, 2 * HOUR]),
        minutes: of([0, HOUR, 8 * HOUR]),
        hours: of([0, 12 * HOUR, 48 * HOUR]),
        days: of([0, 48 * HOUR, 200 * HOUR]),
        marks: [None, Some(Duration::ZERO), Some(Duration::from_secs(HOUR))][random.index(3)],
        pins: vec![format!("moment {}", random.index(4))],
        tags: Vec::new(),
    }
}

/// Checks every moment, and that the listing and times know the kept ones alone. `times` are those of all flushes.
fn assert_moments(world: &World, store: &Store, model: &Model, kept: &BTreeSet<Lsn>, times: &BTreeMap<Lsn, u64>) {
    for lsn in (0..=model.last().0).map(Lsn) {
        match world.point(store, &At::Lsn(lsn), None) {
            Ok(point) => {
                assert!(kept.contains(&lsn), "record {lsn} is not kept");
                assert!(read_all(&point) == model.states[usize::try_from(lsn.0).unwrap()], "after record {lsn}");
            }
            Err(error) => {
                let said = error.to_string();
                let reasons = ["was thinned out", "in no checkpoint any more", "the history begins after record"];
                assert!(!kept.contains(&lsn), "record {lsn}: {said}");
                assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");
            }
        }
    }
    let request = HistoryRequest { flushes: FlushDetail::All, since: Lsn(0) };
    let listed = history(store, &world.options(), (GROUP, None), request, None).unwrap();
    let flushes: Vec<Lsn> = listed.flushes.iter().map(|flush| flush.lsn).collect();
    let expected: Vec<Lsn> = model.flushes.iter().copied().filter(|flush| kept.contains(flush)).collect();
    assert_eq!(flushes, expected);
    for mark in &listed.marks {
        assert!(kept.contains(&mark.lsn) && model.marks.contains(&(mark.lsn, mark.name.clone())), "{mark:?}");
    }
    for (flush, time) in times {
        // The last kept flush of records that are not later.
        let last = expected.iter().rfind(|kept| times[kept] <= *time);
        let at = At::Time(*time, TimeRule::LastFlush);
        match (world.point(store, &at, None), last) {
            (Ok(point), Some(last)) => assert_eq!(point.moment().lsn, *last, "at the time of {flush}"),
            (Ok(point), None) => assert!(kept.contains(&point.moment().lsn), "at the time of {flush}"),
            (Err(error), last) => assert!(last.is_none(), "at the time of {flush}: {error}"),
        }
    }
}

fn times_of_flushes(world: &World, store: &Store) -> BTreeMap<Lsn, u64> {
    let request = HistoryRequest { flushes: FlushDetail::All, since: Lsn(0) };
    let listed = history(store, &world.options(), (GROUP, None), request, None).unwrap();
    listed.flushes.iter().map(|flush| (flush.lsn, flush.time.unwrap())).collect()
}

#[test]
fn kept_moments_stay_what_they_were_and_no_others_are_offered() {
    let (mut thinned, mut forgotten, mut inside) = (0, 0, 0);
    for seed in 60..66 {
        let mut random = SplitMix64::new(seed);
        let (mut clocked, bytes) = Clocked::new(seed);
        let mut model = Model::new(bytes);
        let mut rules = rules(&mut random);
        rules.hours = rules.hours.max(Duration::from_secs(HOUR));
        let mut times = BTreeMap::new();
        // The second round thins what was thinned before again.
        for round in 0..2 {
            clocked.live(&mut model, &mut random, 4);
            let world = &clocked.world;
            let store = world.store().unwrap();
            times.extend(times_of_flushes(world, &store));
            let mut thinner = thinner(world, &store).unwrap();
            let plan = thinner.plan(&rules, &|_| 3600).unwrap();
            let carried = world
                .write(|request| thinner.carry_out(&plan, request, &ForgetBody::default(), &mut || false))
                .unwrap();
            // It remembers what it has read, and plans what another one plans.
            for _ in 0..2 {
                assert_eq!(thinner.plan(&rules, &|_| 3600).unwrap(), thin(world, &store, &rules).unwrap().0);
            }
            let kept = reachable(&plan);
            inside += kept.len() - plan.checkpoints.iter().filter(|planned| kept.contains(&planned.last)).count();
            (thinned, forgotten) = (thinned + carried.thinned.len(), forgotten + carried.forgotten.len());
            assert_moments(world, &store, &model, &kept, &times);
            let again = thin(world, &store, &rules).unwrap();
            assert!(again.0.is_empty() && again.1 == Carried::default(), "{round}: {:?}", again.1);
            prune_all(world, &store).unwrap();
            assert_moments(world, &store, &model, &kept, &times);
            world.assert_clean(&store);
        }
    }
    assert!(20 < thinned && 5 < forgotten && 30 < inside, "{thinned} {forgotten} {inside}");
}

/// A world in which the same blocks are written again and again.
fn churned(seed: u64) -> (Clocked, Model) {
    let mut random = SplitMix64::new(seed);
    let (mut clocked, bytes) = Clocked::new(seed);
    let mut model = Model::new(bytes);
    let mut opened = clocked.world.open(CheckpointLimits::DEFAULT).unwrap();
    for _ in 0..4 {
        for number in 0..30 {
            clocked.pass(MINUTE);
            let mut state = model.now();
            random_bytes(&mut random, &mut state[1][8192..24_576]);
            opened.volumes[1].write(8192, &state[1][8192..24_576], Fua::No).unwrap();
            model.fill(&state, opened.group.journal().next());
            if number % 10 == 9 {
                opened.volumes[1].flush().unwrap();
                model.flushes.push(Lsn(opened.group.journal().next().0 - 1));
                model.fill(&state, opened.group.journal().next());
            }
        }
        clocked.world.checkpoint_all(&mut opened).unwrap();
    }
    opened.group.sync().unwrap();
    drop(opened);
    (clocked, model)
}

fn hourly() -> KeepMoments {
    KeepMoments { hours: Duration::from_secs(48 * HOUR), ..KeepMoments::default() }
}

#[test]
fn a_period_whose_last_end_is_inside_a_gap_keeps_the_moment_before_the_gap() {
    let (mut clocked, bytes) = Clocked::new(78);
    let mut model = Model::new(bytes);
    let mut opened = clocked.world.open(CheckpointLimits::DEFAULT).unwrap();
    let write = |opened: &Opened, model: &mut Model, byte: u8| {
        let mut state = model.now();
        state[1][8_192..12_288].fill(byte);
        opened.volumes[1].write(8_192, &[byte; 4096], Fua::No).unwrap();
        model.fill(&state, opened.group.journal().next());
    };
    let append = |opened: &Opened, model: &mut Model, op: Op| {
        opened.group.journal().append(&Record::range(op, 1, 8_192, 28_672)).unwrap();
        model.fill(&model.now(), opened.group.journal().next());
    };
    write(&opened, &mut model, 1);
    let before = model.last();
    clocked.world.checkpoint_all(&mut opened).unwrap();
    clocked.pass(MINUTE);
    append(&opened, &mut model, Op::Gap);
    write(&opened, &mut model, 2);
    let inside = model.last();
    clocked.world.checkpoint_all(&mut opened).unwrap();
    clocked.pass(48 * HOUR);
    append(&opened, &mut model, Op::ResyncBegin);
    write(&opened, &mut model, 3);
    append(&opened, &mut model, Op::ResyncEnd);
    // The checkpoint before stays, since this flush is reached from its images.
    opened.volumes[1].flush().unwrap();
    model.fill(&model.now(), opened.group.journal().next());
    let flush = model.last();
    for byte in 4..6 {
        write(&opened, &mut model, byte);
        clocked.world.checkpoint_all(&mut opened).unwrap();
    }
    opened.group.sync().unwrap();

    let world = &clocked.world;
    let store = world.store().unwrap();
    let rules = KeepMoments { days: Duration::from_secs(200 * HOUR), ..KeepMoments::default() };
    let mut thinner = thinner(world, &store).unwrap();
    let plan = thinner.plan(&rules, &|_| 0).unwrap();
    let fates: Vec<&Fate> = plan.checkpoints.iter().skip(1).map(|planned| &planned.fate).collect();
    assert_eq!(fates, [&Fate::Thinned, &Fate::Thinned, &Fate::Thinned, &Fate::Kept(Why::Newest)]);
    world.write(|request| thinner.carry_out(&plan, request, &ForgetBody::default(), &mut || false)).unwrap();
    // The second time it remembers what it has read.
    for _ in 0..2 {
        let again = thinner.plan(&rules, &|_| 0).unwrap();
        assert!(again.is_empty(), "{again:?}");
    }
    prune_all(world, &store).unwrap();
    for lsn in [before, flush, model.last()] {
        let point = world.point(&store, &At::Lsn(lsn), None).unwrap();
        assert!(read_all(&point) == model.states[usize::try_from(lsn.0).unwrap()], "after record {lsn}");
    }
    assert!(world.point(&store, &At::Lsn(inside), None).unwrap_err().to_string().contains("is inside a gap"));
    world.assert_clean(&store);
}

#[test]
fn a_prune_gives_the_space_of_thinned_history_back() {
    for is_quick in [false, true] {
        let (mut clocked, mut model) = churned(70);
        let world = &clocked.world;
        let store = world.store().unwrap();
        // 4 checkpoints of 30 versions of 16 KiB: those of the newest stay, and one moment an hour.
        let versions = 4 * 30 * 16_384;
        let before = prune_with(world, &store, is_quick).unwrap().deleted_bytes;
        assert!(before < versions / 8, "{before}");
        // Two checkpoints after the history was thinned. The first looks at every chunk, so that its manifest does not list what that of its
        // parent does. The parent is thinned in the second round.
        let mut random = SplitMix64::new(71);
        let mut opened = clocked.world.open(CheckpointLimits::DEFAULT).unwrap();
        let mut plans = Vec::new();
        for _ in 0..2 {
            model.step(&opened, &mut random).unwrap();
            clocked.world.checkpoint_all(&mut opened).unwrap();
            let (plan, carried) = thin(&clocked.world, &store, &hourly()).unwrap();
            assert!(!carried.thinned.is_empty(), "{carried:?}");
            plans.push(plan);
            clocked.pass(HOUR);
        }
        opened.group.sync().unwrap();
        let kept = reachable(&plans[1]);
        let world = &clocked.world;
        let deleted = prune_with(world, &store, is_quick).unwrap().deleted_bytes;
        assert!(versions / 2 < deleted, "quick {is_quick}: {deleted} of {versions}");
        assert_kept(world, &store, &model, &kept, if is_quick { "quick" } else { "full" });
        world.assert_clean(&store);
    }
}

/// A world on another disk, with a clock of its own that shows the same time.
fn on(clocked: &Clocked, disk: SimDisk, boot: u64) -> World {
    let clock = SimHost::new(boot);
    clock.set_now(Timestamp { seconds: clocked.seconds, nanoseconds: 0 });
    World { disk, host: Arc::new(clock), segment_bytes: SHORT }
}

/// Checks some moments that were kept, and the last one.
fn assert_kept(world: &World, store: &Store, model: &Model, kept: &BTreeSet<Lsn>, context: &str) {
    let flushes: Vec<Lsn> = model.flushes.iter().copied().filter(|flush| kept.contains(flush)).collect();
    for lsn in flushes.iter().copied().chain([model.last()]) {
        let point = world.point(store, &At::Lsn(lsn), None).unwrap();
        assert!(read_all(&point) == model.states[usize::try_from(lsn.0).unwrap()], "{context}: after record {lsn}");
    }
}

#[test]
fn a_fault_at_any_call_of_thinning_loses_nothing_and_the_next_run_ends_it() {
    let (clocked, model) = churned(72);
    let whole = on(&clocked, clocked.world.disk.fork(), 73);
    let store = whole.store().unwrap();
    let before = whole.disk.calls();
    let (plan, carried) = thin(&whole, &store, &hourly()).unwrap();
    let calls = whole.disk.calls() - before;
    let kept = reachable(&plan);
    assert!(2 <= carried.thinned.len() && 100 < calls, "{carried:?} {calls}");
    let step = if std::env::var_os("ONEFOLD_SWEEP_ALL").is_some() { 1 } else { 1 + calls / 25 };
    for call in (1..=calls).step_by(usize::try_from(step).unwrap()) {
        for fault in [Fault::Error(std::io::ErrorKind::Other), Fault::DieAfter] {
            let faulty = on(&clocked, clocked.world.disk.fork(), 73);
            let store = faulty.store().unwrap();
            faulty.disk.fail_at(faulty.disk.calls() + call, fault);
            let _ = thin(&faulty, &store, &hourly());
            for mode in [CrashMode::KeepAll, CrashMode::LoseUnsynced, CrashMode::Subset(call)] {
                let context = format!("{fault:?} at {call}, {mode:?}");
                let after = on(&clocked, faulty.disk.crash(mode), 1000 + call);
                let store = after.store().unwrap();
                assert_kept(&after, &store, &model, &kept, &context);
                thin(&after, &store, &hourly()).unwrap();
                assert_kept(&after, &store, &model, &kept, &context);
                let checkpoints = Checkpoints::read(&store, GROUP, None).unwrap();
                assert!(checkpoints.others.is_empty(), "{context}");
                assert_eq!(checkpoints.list.len(), 5 - carried.forgotten.len(), "{context}");
                if mode == CrashMode::KeepAll {
                    after.assert_clean(&store);
                }
            }
        }
    }
}

#[test]
fn thinning_waits_for_a_prune_or_is_fenced_and_loses_nothing() {
    let (clocked, model) = churned(74);
    let run = |call: Option<u64>| {
        let world = on(&clocked, clocked.world.disk.fork(), 75);
        let hooked = Hooked::new(world.objects());
        let objects: Arc<dyn ObjectStore> = Arc::clone(&hooked) as _;
        let store = open(&objects, &world.host, Unlock::Password(PASSWORD)).unwrap();
        let mut thinner = thinner(&world, &store).unwrap();
        let plan = thinner.plan(&hourly(), &|_| 3600).unwrap();
        let kept = reachable(&plan);
        let fenced = Arc::new(AtomicUsize::new(0));
        let before = hooked.calls();
        if let Some(call) = call {
            let (world, store, fenced) = (world.clone(), world.store().unwrap(), Arc::clone(&fenced));
            hooked.before(call, move || {
                fenced.fetch_add(prune_all(&world, &store).unwrap().fenced.len(), Ordering::Relaxed);
            });
        }
        let carried =
            world.write(|request| thinner.carry_out(&plan, request, &ForgetBody::default(), &mut || false)).unwrap();
        let calls = hooked.calls() - before;
        let context = format!("{call:?}");
        assert_kept(&world, &store, &model, &kept, &context);
        prune_all(&world, &store).unwrap();
        thin(&world, &store, &hourly()).unwrap();
        prune_all(&world, &store).unwrap();
        assert_kept(&world, &store, &model, &kept, &context);
        world.assert_clean(&store);
        (calls, fenced.load(Ordering::Relaxed), carried)
    };
    let (calls, _, carried) = run(None);
    assert!(2 <= carried.thinned.len());
    let (mut fenced, mut waited) = (0, 0);
    for call in (1..=calls).step_by(3) {
        let (_, of_call, carried) = run(Some(call));
        fenced += of_call;
        waited += usize::from(carried.is_prune_in_progress);
    }
    assert!(5 < fenced, "{fenced} of {calls} fenced a session, {waited} waited");
}

#[test]
fn a_checkpoint_that_is_recovered_has_all_of_its_moments_again() {
    let (clocked, model) = churned(76);
    let world = &clocked.world;
    let store = world.store().unwrap();
    let (plan, carried) = thin(world, &store, &hourly()).unwrap();
    let (from, _) = carried.thinned[0];
    let planned = plan.checkpoints.iter().find(|planned| planned.snapshot == from).unwrap();
    let lost = Lsn(planned.last.0 - 1);
    assert!(world.point(&store, &At::Lsn(lost), None).unwrap_err().to_string().contains("was thinned out"));
    let options = DeriveOptions {
        hostname: "host".into(),
        scratch: world.scratch(),
        budget: Budget::of(64 << 20, 2),
        monitor: Arc::new(Silent),
    };
    recover(&store, &options, from, None).unwrap();
    let point = world.point(&store, &At::Lsn(lost), None).unwrap();
    assert!(read_all(&point) == model.states[usize::try_from(lost.0).unwrap()]);
    // The next run thins it again, and forgets the one that took its place before.
    let (_, carried) = thin(world, &store, &hourly()).unwrap();
    assert_eq!((carried.thinned.len(), carried.forgotten.len()), (1, 1));
    assert!(Checkpoints::read(&store, GROUP, None).unwrap().others.is_empty());
    assert!(world.point(&store, &At::Lsn(lost), None).is_err());
}

#[test]
fn a_checkpoint_with_a_tag_that_is_kept_has_all_of_its_moments() {
    let (clocked, model) = churned(77);
    let world = &clocked.world;
    let store = world.store().unwrap();
    let tagged = Checkpoints::read(&store, GROUP, None).unwrap().list[2].clone();
    let options = DeriveOptions {
        hostname: "host".into(),
        scratch: world.scratch(),
        budget: Budget::of(64 << 20, 2),
        monitor: Arc::new(Silent),
    };
    tag(&store, &options, tagged.snapshot, &[spec().tag(), "audit".into()]).unwrap();
    Forgetting::begin(&store, &ForgetBody::default()).unwrap().forget(tagged.snapshot).unwrap();
    let rules = KeepMoments { tags: vec!["audit".into()], ..hourly() };
    let (plan, carried) = thin(world, &store, &rules).unwrap();
    assert_eq!((carried.thinned.len(), plan.checkpoints.len()), (2, 5));
    for lsn in (tagged.first().0 - 1..=tagged.last().0).map(Lsn) {
        let point = world.point(&store, &At::Lsn(lsn), None).unwrap();
        assert!(read_all(&point) == model.states[usize::try_from(lsn.0).unwrap()], "after record {lsn}");
    }
}
