//! Faults at every call of a checkpoint.
#![expect(clippy::print_stdout, reason = "a sweep says what it covered")]

use onefold_engine::testing::sim::{CrashMode, Fault};

use super::*;
use crate::stored::Checkpoints;

/// A world with records in the journal, after a first checkpoint.
fn prepared() -> (World, Model) {
    let mut random = SplitMix64::new(21);
    let (world, bytes) = World::new(21);
    let mut model = Model::new(bytes);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    for _ in 0..15 {
        model.step(&opened, &mut random).unwrap();
    }
    world.checkpoint(&mut opened).unwrap().unwrap();
    for _ in 0..15 {
        model.step(&opened, &mut random).unwrap();
    }
    opened.group.sync().unwrap();
    (world, model)
}

/// Makes the checkpoint that a fault has interrupted again, and compares moments with the model.
fn check(world: &World, model: &Model, what: &str) {
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap_or_else(|error| panic!("{what}: {error}"));
    let made = world.checkpoint_all(&mut opened).unwrap_or_else(|error| panic!("{what}: {error}"));
    let checkpoints = Checkpoints::read(&opened.store, GROUP, Some(ID)).unwrap();
    assert_eq!(checkpoints.newest().unwrap().last(), model.last(), "{what}");
    assert!(checkpoints.list.len() == 3 && made <= 1, "{what}: {} checkpoints", checkpoints.list.len());
    for lsn in (0..=model.last().0).step_by(7).chain([model.last().0]) {
        let point =
            world.point(&opened.store, &At::Lsn(Lsn(lsn)), None).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(read_all(&point) == model.states[usize::try_from(lsn).unwrap()], "{what}: after record {lsn}");
    }
}

#[test]
fn a_fault_at_any_call_of_a_checkpoint_loses_nothing() {
    let (world, model) = prepared();
    let whole = World::on(world.disk.fork(), 1);
    let mut opened = whole.open(CheckpointLimits::DEFAULT).unwrap();
    let before = whole.disk.calls();
    whole.checkpoint(&mut opened).unwrap().unwrap();
    let calls = whole.disk.calls() - before;
    drop(opened);
    check(&whole, &model, "undisturbed");
    let mut images = 0;
    for call in 1..=calls {
        for fault in [Fault::Error(std::io::ErrorKind::Other), Fault::Die, Fault::DieAfter] {
            let faulty = World::on(world.disk.fork(), 1);
            let mut opened = faulty.open(CheckpointLimits::DEFAULT).unwrap();
            faulty.disk.fail_at(faulty.disk.calls() + call, fault);
            let outcome = faulty.checkpoint(&mut opened);
            drop(opened);
            let what = format!("{fault:?} at {call}: {outcome:?}");
            faulty.disk.clear_faults();
            if fault == Fault::Error(std::io::ErrorKind::Other) {
                check(&World::on(faulty.disk.reopen(), 2), &model, &what);
                images += 1;
                continue;
            }
            for mode in [CrashMode::LoseUnsynced, CrashMode::Subset(call)] {
                check(&World::on(faulty.disk.crash(mode), 2), &model, &format!("{what}, {mode:?}"));
                images += 1;
            }
        }
    }
    println!("faults at {calls} calls of a checkpoint, {images} images: the next checkpoint continues");
    assert!(60 < calls);
}

#[test]
fn records_of_a_checkpoint_survive_a_power_cut_right_after_it() {
    let mut random = SplitMix64::new(22);
    let (world, bytes) = World::new(22);
    let mut model = Model::new(bytes);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    // Nothing of this was synced.
    while model.states.len() < 12 {
        let len = 4096 * (1 + random.index(2));
        let mut state = model.now();
        random_bytes(&mut random, &mut state[0][..len]);
        opened.volumes[0].write(0, &state[0][..len], Fua::No).unwrap();
        model.fill(&state, opened.group.journal().next());
    }
    assert_eq!(opened.group.journal().status().durable, Lsn(1));
    let made = world.checkpoint(&mut opened).unwrap().unwrap();
    assert_eq!(made.last, model.last());
    drop(opened);
    let world = World::on(world.disk.crash(CrashMode::LoseUnsynced), 23);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    assert_eq!(opened.group.journal().next(), Lsn(made.last.0 + 1));
    assert!(opened.volumes[0].flush().is_err(), "nothing is recorded before the volumes were compared");
    opened.group.compare(&[], &mut |_, _, _, _| Ok(())).unwrap();
    opened.volumes[0].flush().unwrap();
    model.fill(&model.now(), opened.group.journal().next());
    world.checkpoint(&mut opened).unwrap().unwrap();
    for (lsn, state) in (0..).zip(&model.states) {
        assert!(
            read_all(&world.point(&opened.store, &At::Lsn(Lsn(lsn)), None).unwrap()) == *state,
            "after record {lsn}"
        );
    }
}
