//! With a device and without, with one that fails or lies at any moment: the same bytes come out.

use std::sync::Arc;

use onefold_accel::device::host_device::{Field, HostDevice, Mood, Script};
use onefold_accel::device::{Check, Device, FaultKind, cuda};
use onefold_engine::accelerator::{Accelerator, AcceleratorUsage};
use onefold_engine::backup::{Budget, Silent};
use onefold_engine::check::{CheckReport, CheckRequest, CheckedSnapshots, ReadData, check};
use onefold_engine::io::Access;
use onefold_engine::object::names::ContainerKind;
use onefold_engine::pipeline::Driver;
use onefold_engine::store::read_file;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::SimHost;
use onefold_engine::types::Fingerprint;

use crate::integration::copying::store_lie;
use crate::integration::support::{Ask, Notes, OpenContainer, SMALL, World, change, containers, copy, noise, tree};

/// Files that fill several blocks, small ones, holes, and a second state of them.
fn sources(bytes: usize) -> [MemTree; 2] {
    let first = tree(12);
    first.put_file("/d/large".as_ref(), &noise(77, bytes));
    first.put_file("/d/zeros".as_ref(), &vec![0; 700_000]);
    let second = copy(&first);
    change(&second);
    let mut large = noise(77, bytes);
    large.splice(bytes / 2..bytes / 2, noise(78, 999));
    second.put_file("/d/large".as_ref(), &large);
    [first, second]
}

/// Result of backups of two states.
struct Made {
    trees: Vec<Fingerprint>,
    containers: Vec<OpenContainer>,
    usage: Option<AcceleratorUsage>,
    notes: Vec<String>,
}

/// Backs both states up, the second one with the first as its parent.
fn back_up(
    empty: &World,
    sources: &[MemTree; 2],
    driver: &Driver,
    device: Option<(Arc<dyn Device>, Check)>,
    (device_batches, device_blocks): (usize, usize),
) -> Made {
    let world = World::with(empty.disk.fork(), SimHost::new(4));
    let store = world.open().unwrap();
    let accelerator = device.map(|(device, check)| Accelerator::new(device, check, [5; 32]));
    let notes = Arc::new(Notes::default());
    let budget = Budget { device_batches, device_blocks, blocks_in_flight: 2, ..Ask::default().budget };
    let backed_up = sources.iter().map(|source| {
        let ask = Ask {
            driver: driver.clone(),
            with_parent: true,
            budget,
            accelerator: accelerator.clone(),
            monitor: Arc::<Notes>::clone(&notes),
            ..Ask::default()
        };
        world.backup(&store, source, &ask).unwrap().report.snapshot.tree
    });
    let trees = backed_up.collect();
    let usage = accelerator.map(|accelerator| accelerator.usage());
    let notes = notes.notes.lock().unwrap().iter().filter(|note| note.contains("not used any more")).cloned().collect();
    Made { trees, containers: containers(&store), usage, notes }
}

fn assert_same(expected: &Made, made: &Made, case: &str) {
    assert_eq!(expected.trees, made.trees, "{case}");
    assert!(expected.containers == made.containers, "{case}: containers differ");
    let faults = made.usage.as_ref().map_or(0, |usage| usage.faults);
    assert_eq!(made.notes.len() as u64, faults, "{case}: one note for a fault: {:?}", made.notes);
}

fn host_device(script: Script) -> (Arc<HostDevice>, Arc<dyn Device>) {
    let device = Arc::new(HostDevice::new(script));
    (Arc::clone(&device), device)
}

fn drivers() -> Vec<(String, Driver)> {
    let inline = (0..2).map(|seed| (format!("inline, seed {seed}"), Driver::inline(seed)));
    inline.chain([3].map(|threads| (format!("{threads} threads"), Driver::threads(threads)))).collect()
}

fn repository() -> World {
    let empty = World::new(3);
    empty.create(SMALL).unwrap();
    empty
}

#[test]
fn every_driver_and_every_device_pack_the_same_containers_and_the_same_trees() {
    let (empty, sources) = (repository(), sources(4_000_000));
    let expected = back_up(&empty, &sources, &Driver::inline(1), None, (0, 0));
    assert!(30 < expected.containers.len());
    let mut done = 0;
    for (name, driver) in drivers() {
        for batches in [(1, 1), (2, 3), (4, 2), (3, 64)] {
            for late in [0, 2] {
                let (_, device) = host_device(Script { late, ..Script::default() });
                let made = back_up(&empty, &sources, &driver, Some((device, Check::Sample)), batches);
                assert_same(&expected, &made, &format!("{name}, {batches:?}, late {late}"));
                let usage = made.usage.unwrap();
                assert_eq!(usage.faults, 0, "{name}, {batches:?}");
                assert!(2 <= usage.batches && 1_000_000 < usage.bytes, "{name}, {batches:?}: {usage:?}");
                done += usage.batches;
            }
        }
    }
    assert!(60 < done, "{done} batches");
}

#[test]
fn a_device_that_fails_or_lies_at_any_call_leaves_the_same_repository_and_one_note() {
    let (empty, sources) = (repository(), sources(2_300_000));
    let batches = (2, 2);
    let expected = back_up(&empty, &sources, &Driver::inline(1), None, (0, 0));
    let (device, used) = host_device(Script::default());
    back_up(&empty, &sources, &Driver::inline(1), Some((used, Check::All)), batches);
    let calls = device.calls();
    assert!(20 < calls, "{calls}");
    let kinds = [FaultKind::Absent, FaultKind::Unsuitable, FaultKind::OutOfMemory, FaultKind::Lost, FaultKind::Wrong];
    let moods = kinds.map(Mood::Fail).into_iter().chain([Mood::Stale, Mood::Absent]).chain(Field::ALL.map(Mood::Lie));
    let (mut shown, mut faults) = (0, 0);
    for (number, mood) in moods.enumerate() {
        // The engine does not tell the kinds of faults apart. Together, the moods hit every call.
        let step = match mood {
            Mood::Fail(kind) if kind != FaultKind::Lost => 11,
            _ if cfg!(feature = "slow") => 1,
            _ => 4,
        };
        for at in (1 + number as u64 % step..=calls).step_by(usize::try_from(step).unwrap()) {
            let (device, used) = host_device(Script { at, mood: Some(mood), late: at % 3 });
            let driver = if at % 5 == 0 { Driver::threads(2) } else { Driver::inline(at) };
            let made = back_up(&empty, &sources, &driver, Some((used, Check::All)), batches);
            assert_same(&expected, &made, &format!("{mood:?} at call {at} of {calls}"));
            shown += u64::from(device.is_done());
            faults += made.usage.unwrap().faults;
        }
    }
    assert!(calls < shown && 9 * shown / 10 < faults, "{shown} shown, {faults} faults, {calls} calls");
}

#[test]
fn the_driver_of_nvidia_on_the_processor_packs_the_same_containers_and_trees() {
    let (empty, sources) = (repository(), sources(1_200_000));
    let expected = back_up(&empty, &sources, &Driver::inline(1), None, (0, 0));
    for driver in [Driver::inline(2), Driver::threads(2)] {
        let device = cuda::open_in(cuda::STAND_IN, 0).unwrap();
        let made = back_up(&empty, &sources, &driver, Some((device, Check::All)), (2, 2));
        assert_same(&expected, &made, "the stand-in");
        let usage = made.usage.unwrap();
        assert!(usage.faults == 0 && 2 <= usage.batches && usage.name == "the processor", "{usage:?}");
    }
}

/// Checks every byte, with a device or without; returns the findings, the chunks that were compared, and what the device did.
fn check_all(
    world: &World,
    driver: Driver,
    device: Option<(Arc<dyn Device>, Check)>,
) -> (CheckReport, AcceleratorUsage) {
    let accelerator = device.map(|(device, check)| Accelerator::new(device, check, [5; 32]));
    let request = CheckRequest {
        snapshots: CheckedSnapshots::All,
        read: ReadData::All,
        scratch: world.scratch(),
        memory_bytes: 16 << 20,
        driver,
        seed: None,
        heads: None,
        accelerator: accelerator.clone(),
    };
    let report = check(&world.open().unwrap(), &request, &Silent).unwrap();
    let none = AcceleratorUsage { name: String::new(), batches: 0, bytes: 0, faults: 0 };
    (report, accelerator.map_or(none, |accelerator| accelerator.usage()))
}

#[test]
fn a_check_finds_the_same_with_every_device_and_never_reports_damage_that_only_a_device_sees() {
    let (world, [source, _]) = (repository(), sources(1_500_000));
    world.backup(&world.open().unwrap(), &source, &Ask::default()).unwrap();
    let damaged = world.on(world.disk.fork());
    let store = damaged.open().unwrap();
    // A flipped bit, and a chunk that is not what its name says in a container that is whole.
    let name =
        containers(&store).into_iter().map(|container| container.name).find(|name| name.kind == ContainerKind::Data);
    let path = name.unwrap().path();
    let repo = damaged.repo();
    let mut bytes = read_file(&*repo, &path, 16 << 20).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    repo.open(&path, Access::ReadWrite).unwrap().write_at(0, &bytes).unwrap();
    store_lie(&damaged, &store, 5);
    for (world, is_damaged) in [(&world, false), (&damaged, true)] {
        let (expected, _) = check_all(world, Driver::inline(1), None);
        assert_eq!(expected.findings.is_empty(), !is_damaged, "{:?}", expected.findings);
        let lies =
            expected.findings.iter().filter(|finding| finding.problem.contains("chunk 5 is not what its name says"));
        assert_eq!(lies.count(), usize::from(is_damaged), "{:?}", expected.findings);
        let (device, used) = host_device(Script::default());
        let (report, usage) = check_all(world, Driver::inline(1), Some((used, Check::Sample)));
        assert_eq!((&report.findings, report.chunks_read), (&expected.findings, expected.chunks_read));
        assert!(1_000_000 < usage.bytes && 0 < usage.batches && usage.faults == 0, "{usage:?}");
        let calls = device.calls();
        let moods = [
            Mood::Fail(FaultKind::Lost),
            Mood::Stale,
            Mood::Absent,
            Mood::Lie(Field::Name),
            Mood::Lie(Field::NamesNumber),
        ];
        let mut faults = 0;
        for mood in moods {
            // Some calls in turn; a step that is odd hits all kinds of calls.
            for at in (1..=calls).step_by(if cfg!(feature = "slow") { 1 } else { 3 }) {
                let (device, used) = host_device(Script { at, mood: Some(mood), late: at % 3 });
                let driver = if at % 4 == 0 { Driver::threads(2) } else { Driver::inline(at) };
                let (report, usage) = check_all(world, driver, Some((used, Check::Sample)));
                let found = (&report.findings, report.chunks_read);
                assert_eq!(found, (&expected.findings, expected.chunks_read), "{mood:?} at {at} of {calls}");
                assert_eq!(usage.faults == 1, device.is_done(), "{mood:?} at {at} of {calls}");
                faults += usage.faults;
            }
        }
        assert!(calls / 2 < faults, "{faults} faults, {calls} calls");
    }
}
