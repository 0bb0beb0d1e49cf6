//! A prune takes apart what depends on bases that are not needed, and gives their space back.

use onefold_engine::collect::{PruneState, plan_prune, prune};
use onefold_engine::monitor::Silent;
use onefold_engine::store::create::Adjustments;
use onefold_engine::testing::sim::Fault;
use onefold_engine::{Error, Result};

use crate::integration::bases::{Versions, Way, depths, stored_bytes, versions};
use crate::integration::forgetting::{FAULTS, WAYS};
use crate::integration::pruning::{assert_clean, assert_restores, forget, request};
use crate::integration::support::{SMALL, SMALL_1, World, tell};

/// Forgets all versions but the last and prunes. Returns the bytes before and after.
fn shrink(adjustments: Adjustments) -> (u64, u64) {
    let Versions { world, store, snapshots } = versions(adjustments, Way::Previous, 3, (8, 4));
    let before = stored_bytes(&store);
    let (last, forgotten) = snapshots.split_last().unwrap();
    for (session, ..) in forgotten {
        forget(&store, *session).unwrap();
    }
    let planned = plan_prune(&store, &request(&world, &store), &Silent).unwrap();
    let calls = world.disk.calls();
    let report = prune(&store, &request(&world, &store), &Silent).unwrap();
    assert_eq!((&report.state, &report.findings), (&PruneState::Done, &Vec::new()));
    // What the plan promises is deleted: the last look rescues nothing.
    assert_eq!((report.plan, report.rescued_containers), (planned.plan, 0));
    let planned_containers = report.plan.removed_containers + report.plan.copied_containers;
    assert_eq!(report.deleted_containers, planned_containers);
    assert_restores(&world, &store, last.0, &last.2, "after the prune");
    assert_clean(&world, &store, "after the prune");
    let after = stored_bytes(&store);
    tell(&format!(
        "{:?}: {before} bytes before, {after} after; {} written, {} calls; {:?}",
        adjustments.format,
        report.written_bytes,
        world.disk.calls() - calls,
        report.plan
    ));
    if adjustments.format == SMALL.format {
        assert!(0 < report.plan.apart_containers && depths(&store).keys().all(|depth| *depth == 0));
    }
    (before, after)
}

#[test]
fn forgetting_most_versions_gives_back_what_it_would_without_bases() {
    let (_, after_plain) = shrink(SMALL_1);
    let (before, after) = shrink(SMALL);
    let (freed, possible) = (before - after, before - after_plain);
    assert!(possible * 9 / 10 <= freed, "{freed} bytes freed of {possible}");
}

/// Prunes with a fault at some calls, while dependants are taken apart, then goes on without.
#[test]
fn a_prune_that_fails_or_dies_while_it_takes_dependants_apart_loses_nothing() {
    let Versions { world, store, snapshots } = versions(SMALL, Way::Previous, 11, (2, 3));
    let (last, forgotten) = snapshots.split_last().unwrap();
    for (session, ..) in forgotten {
        forget(&store, *session).unwrap();
    }
    let run = |world: &World| -> Result<u64> {
        let store = world.open()?;
        prune(&store, &request(world, &store), &Silent).map(|report| report.plan.apart_containers)
    };
    let calls = {
        let world = world.on(world.disk.fork());
        let before = world.disk.calls();
        assert!(0 < run(&world).unwrap(), "dependants are taken apart");
        world.disk.calls() - before
    };
    let assert_sound = |world: &World, case: &str| {
        let store = world.open().unwrap();
        assert_restores(world, &store, last.0, &last.2, case);
        run(world).unwrap_or_else(|error: Error| panic!("{case}: {error}"));
        assert_restores(world, &store, last.0, &last.2, case);
        assert_clean(world, &store, case);
    };
    let step = if cfg!(feature = "slow") { 1 } else { 1 + usize::try_from(calls).unwrap() / 12 };
    let mut images = 0;
    for call in (1..=calls).step_by(step) {
        for fault in FAULTS {
            let world = world.on(world.disk.fork());
            world.disk.fail_at(world.disk.calls() + call, fault);
            let _either = run(&world);
            world.disk.clear_faults();
            assert_sound(&world, &format!("{fault:?} at call {call}"));
            images += 1;
        }
        let world = world.on(world.disk.fork());
        world.disk.fail_at(world.disk.calls() + call, Fault::Die);
        let _either = run(&world);
        for way in WAYS {
            let after = world.on(way.map_or_else(|| world.disk.reopen(), |mode| world.disk.crash(mode)));
            assert_sound(&after, &format!("death at call {call}, {way:?}"));
            images += 1;
        }
    }
    tell(&format!("taking apart: {calls} calls, every {step}th, {images} images, nothing lost"));
}
