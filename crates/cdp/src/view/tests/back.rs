//! Volumes that are brought back themselves.

use std::io::ErrorKind;

use onefold_engine::testing::sim::{CrashMode, Fault};

use super::*;

/// Names the present moment, and brings both volumes back to a record.
fn back_to(world: &World, opened: &Opened, lsn: Lsn) -> Result<Lsn> {
    let at = At::Lsn(lsn);
    let point = world.point(&opened.store, &at, Some(opened.group.journal()))?;
    let marked = opened.group.mark("before").map_err(|error| onefold_engine::Error::invalid(error.to_string()))?;
    for (number, volume) in opened.volumes.iter().enumerate() {
        bring_back(&point, number, volume, &mut || Result::Ok(()))?;
    }
    Ok(marked)
}

fn volumes_of(world: &World) -> Bytes {
    [0, 1].map(|at| {
        let file = world.disk.open(Path::new(NAMES[at]), Access::Read).unwrap();
        let mut bytes = vec![0; usize::try_from(SIZES[at]).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        bytes
    })
}

/// A world with a checkpoint, and records after it.
fn changed(seed: u64) -> (World, Model, Opened) {
    let mut random = SplitMix64::new(seed);
    let (world, bytes) = World::new(seed);
    let mut model = Model::new(bytes);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    for round in 0..2 {
        for _ in 0..12 {
            model.step(&opened, &mut random).unwrap();
        }
        if round == 0 {
            world.checkpoint_all(&mut opened).unwrap();
        }
    }
    (world, model, opened)
}

#[test]
fn volumes_go_back_and_forth_and_no_moment_is_lost() {
    let (world, mut model, mut opened) = changed(51);
    let last = model.last();
    for lsn in [Lsn(0), Lsn(last.0 / 2), last] {
        let before = model.now();
        let marked = back_to(&world, &opened, lsn).unwrap();
        let wanted = model.states[usize::try_from(lsn.0).unwrap()].clone();
        assert!(volumes_of(&world) == wanted, "after record {lsn}");
        model.fill(&before, Lsn(marked.0 + 1));
        let next = opened.group.journal().next();
        // The states between are neither one nor the other.
        while (model.states.len() as u64) < next.0 {
            model.states.push(wanted.clone());
        }
        let undone = world.point(&opened.store, &At::Mark("before".into()), Some(opened.group.journal())).unwrap();
        assert!(read_all(&undone) == before && undone.moment().lsn == marked);
    }
    let latest = world.point(&opened.store, &At::Latest, Some(opened.group.journal())).unwrap();
    assert!(read_all(&latest) == volumes_of(&world));
    opened.group.sync().unwrap();
    world.checkpoint_all(&mut opened).unwrap();
    for lsn in 0..=last.0 {
        let point = world.point(&opened.store, &At::Lsn(Lsn(lsn)), None).unwrap();
        assert!(read_all(&point) == model.states[usize::try_from(lsn).unwrap()], "after record {lsn}");
    }
    // Nothing differs, so nothing is written.
    let point = world.point(&opened.store, &At::Latest, None).unwrap();
    assert_eq!(bring_back(&point, 1, &opened.volumes[1], &mut || Result::<()>::Ok(())).unwrap(), 0);
    world.assert_clean(&opened.store);
}

#[test]
fn a_volume_that_is_brought_back_equals_its_history_after_a_fault_at_any_call() {
    let (world, model, opened) = changed(53);
    opened.group.sync().unwrap();
    drop(opened);
    let whole = World::on(world.disk.fork(), 53);
    let opened = whole.open(CheckpointLimits::DEFAULT).unwrap();
    let before = whole.disk.calls();
    back_to(&whole, &opened, Lsn(2)).unwrap();
    let calls = whole.disk.calls() - before;
    assert!(volumes_of(&whole) == model.states[2] && 20 < calls, "{calls}");
    let step = if std::env::var_os("ONEFOLD_SWEEP_ALL").is_some() { 1 } else { 7 };
    for call in (1..=calls).step_by(step) {
        for fault in [Fault::Error(ErrorKind::Other), Fault::DieAfter] {
            let faulty = World::on(world.disk.fork(), 53);
            let opened = faulty.open(CheckpointLimits::DEFAULT).unwrap();
            faulty.disk.fail_at(faulty.disk.calls() + call, fault);
            let _ = back_to(&faulty, &opened, Lsn(2));
            drop(opened);
            // The process ended: everything that was written is in the page cache.
            let after = World::on(faulty.disk.crash(CrashMode::KeepAll), 53);
            let opened = after.open(CheckpointLimits::DEFAULT).unwrap();
            let latest = after.point(&opened.store, &At::Latest, Some(opened.group.journal())).unwrap();
            assert!(read_all(&latest) == volumes_of(&after), "{fault:?} at {call}");
            let kept = after.point(&opened.store, &At::Lsn(model.last()), Some(opened.group.journal())).unwrap();
            assert!(read_all(&kept) == model.now(), "{fault:?} at {call}");
            // It can be done again.
            back_to(&after, &opened, Lsn(2)).unwrap();
            assert!(volumes_of(&after) == model.states[2], "{fault:?} at {call}");
        }
    }
}
