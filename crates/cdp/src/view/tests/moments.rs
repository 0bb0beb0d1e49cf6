//! Every moment of random runs.

use onefold_engine::io::tree::Trust;
use onefold_engine::restore::{Effect, Filter, FullDirectories, Overwrite, RestoreRequest, restore};
use onefold_engine::testing::mem_tree::MemTree;

use super::*;
use crate::stored::Checkpoints;

/// Compares the volumes at every moment with the model, and reads of parts, too.
fn verify(world: &World, opened: &Opened, model: &Model, with_journal: bool, random: &mut SplitMix64) {
    let journal = with_journal.then(|| opened.group.journal());
    let until = if with_journal {
        model.last()
    } else {
        Checkpoints::read(&opened.store, GROUP, Some(ID)).unwrap().newest().unwrap().last()
    };
    for (lsn, state) in (0..=until.0).zip(&model.states) {
        let point =
            world.point(&opened.store, &At::Lsn(Lsn(lsn)), journal).unwrap_or_else(|error| panic!("{lsn}: {error}"));
        assert!(read_all(&point) == *state, "after record {lsn}");
        assert!(point.checkpoint() <= Lsn(lsn));
        for at in [0, 1] {
            let size = state[at].len();
            let start = random.index(size);
            let mut part = vec![0; (1 + random.index(9_000)).min(size - start)];
            point.read(at, start as u64, &mut part).unwrap();
            assert!(part == state[at][start..start + part.len()]);
            let mut offset = 0;
            while offset < size {
                let (is_hole, len) = point.is_hole(at, offset as u64, (size - offset) as u64).unwrap();
                let len = usize::try_from(len).unwrap();
                assert!(0 < len && offset + len <= size);
                assert!(!is_hole || state[at][offset..offset + len].iter().all(|byte| *byte == 0));
                offset += len;
            }
        }
    }
    let beyond = world.point(&opened.store, &At::Lsn(Lsn(until.0 + 1)), journal).unwrap_err();
    assert!(beyond.to_string().contains(&format!("ends with record {until}")), "{beyond}");
}

/// Compares the images that an ordinary restore gives with the model.
fn verify_restored(world: &World, store: &Store, model: &Model) {
    for checkpoint in Checkpoints::read(store, GROUP, None).unwrap().list {
        let target = MemTree::new();
        let request = RestoreRequest {
            tree: checkpoint.tree,
            path: Path::new("/"),
            filter: Filter::default(),
            target: Arc::new(target.clone()),
            effect: Effect::Write,
            overwrite: Overwrite::Refuse,
            full_directories: FullDirectories::Keep,
            verify: false,
            trust: Trust::Full,
            scratch: world.scratch(),
            memory_bytes: 16 << 20,
            driver: Driver::inline(1),
            monitor: Arc::new(Silent),
        };
        assert_eq!(restore(store, &request).unwrap().failures, 0);
        let state = &model.states[usize::try_from(checkpoint.last().0).unwrap()];
        for (name, bytes) in NAMES.iter().zip(state) {
            let path = Path::new("/").join(name).join("image");
            assert!(contents(&target, &path) == *bytes, "{path:?} after {}", checkpoint.last());
        }
    }
}

fn contents(tree: &MemTree, path: &Path) -> Vec<u8> {
    use onefold_engine::io::tree::SourceTree;
    let mut bytes = vec![0; usize::try_from(tree.metadata(path).unwrap().size).unwrap()];
    tree.open(path).unwrap().read_at(0, &mut bytes).unwrap();
    bytes
}

fn verify_names(world: &World, opened: &Opened, model: &Model) {
    let journal = Some(opened.group.journal());
    let moment = |at: &At| world.point(&opened.store, at, journal).map(|point| point.moment().lsn);
    assert_eq!(moment(&At::Latest).unwrap(), model.last());
    for (back, lsn) in model.flushes.iter().rev().enumerate() {
        assert_eq!(moment(&At::FlushBack(back as u64)).unwrap(), *lsn);
    }
    assert!(moment(&At::FlushBack(model.flushes.len() as u64)).is_err());
    for number in 0..4 {
        let name = format!("moment {number}");
        let last = model.marks.iter().rfind(|(_, mark)| *mark == name).map(|(lsn, _)| *lsn);
        assert_eq!(moment(&At::Mark(name)).ok(), last);
    }
    assert!(moment(&At::Mark("never".into())).unwrap_err().to_string().contains("`never`"));

    let request = HistoryRequest { flushes: FlushDetail::All, since: Lsn(0) };
    let listed = history(&opened.store, &world.options(), (GROUP, Some(ID)), request, journal).unwrap();
    assert_eq!(listed.flushes.iter().map(|flush| flush.lsn).collect::<Vec<_>>(), model.flushes);
    let marks: Vec<_> = listed.marks.iter().map(|mark| (mark.lsn, mark.name.clone())).collect();
    assert_eq!(marks, model.marks);
    assert_eq!((listed.latest.lsn, listed.gaps.len(), listed.unreachable.len()), (model.last(), 0, 0));
    // A time is the last flush that is not after it, and exactly any record.
    let start = listed.checkpoints[0].nanoseconds();
    for (at, flush) in listed.flushes.iter().enumerate() {
        let time = flush.time.unwrap();
        assert_eq!(moment(&At::Time(time, TimeRule::LastFlush)).unwrap(), flush.lsn);
        let before = at.checked_sub(1).map_or(Lsn(0), |before| listed.flushes[before].lsn);
        assert_eq!(moment(&At::Time(time - 1, TimeRule::LastFlush)).unwrap(), before);
        assert_eq!(moment(&At::Time(time, TimeRule::Exact)).unwrap(), flush.lsn);
    }
    assert!(moment(&At::Time(start - 1, TimeRule::LastFlush)).is_err());
}

/// A run by a seed: changes, checkpoints of some of the records, releases, and openings.
fn run(seed: u64) {
    let mut random = SplitMix64::new(seed);
    let (world, bytes) = World::new(seed);
    let mut model = Model::new(bytes);
    let mut opened = world.open(TIGHT).unwrap();
    let (mut made, mut released) = (0, false);
    for turn in 0..70 {
        model.step(&opened, &mut random).unwrap();
        match random.index(12) {
            0 => {
                let last = world.checkpoint(&mut opened).unwrap().map(|made| made.last);
                made += usize::from(last.is_some());
                if let Some(last) = last
                    && random.index(2) == 0
                {
                    opened.group.sync().unwrap();
                    let before = opened.group.journal().status().first;
                    opened.group.release(Lsn(last.0 + 1));
                    released |= before < opened.group.journal().status().first;
                }
            }
            1 => {
                drop(opened);
                opened = world.open(TIGHT).unwrap();
            }
            _ => {}
        }
        if turn % 35 == 34 {
            verify(&world, &opened, &model, true, &mut random);
            verify(&world, &opened, &model, false, &mut random);
        }
    }
    verify_names(&world, &opened, &model);
    made += world.checkpoint_all(&mut opened).unwrap();
    opened.group.sync().unwrap();
    opened.group.release(Lsn(model.last().0 + 1));
    released |= Lsn(1) < opened.group.journal().status().first;
    verify_names(&world, &opened, &model);
    verify(&world, &opened, &model, false, &mut random);
    drop(opened);
    let opened = world.open(TIGHT).unwrap();
    verify(&world, &opened, &model, true, &mut random);
    verify_restored(&world, &opened.store, &model);
    world.assert_clean(&opened.store);
    assert!(5 < made && released, "{made} checkpoints, seed {seed}");
}

#[test]
fn the_volumes_at_every_moment_are_what_they_were() {
    for seed in 0..5 {
        run(seed);
    }
}

#[test]
fn a_checkpoint_of_everything_is_that_of_many_small_ones() {
    let mut random = SplitMix64::new(9);
    let (world, bytes) = World::new(9);
    let mut model = Model::new(bytes);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    for _ in 0..60 {
        model.step(&opened, &mut random).unwrap();
    }
    let made = world.checkpoint(&mut opened).unwrap().unwrap();
    assert_eq!((made.first, made.last, made.has_more, made.whole_images), (Lsn(1), model.last(), false, 0));
    assert_eq!(world.checkpoint(&mut opened).unwrap(), None);
    verify(&world, &opened, &model, false, &mut random);
    verify_restored(&world, &opened.store, &model);
}

#[test]
fn a_view_stays_readable_after_its_records_were_released() {
    let mut random = SplitMix64::new(10);
    let (world, bytes) = World::new(10);
    let mut model = Model::new(bytes);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    for _ in 0..80 {
        model.step(&opened, &mut random).unwrap();
    }
    let (middle, last) = (Lsn(model.last().0 / 2), model.last());
    let views = [middle, last].map(|lsn| {
        let journal = Some(opened.group.journal());
        (lsn, world.point(&opened.store, &At::Lsn(lsn), journal).unwrap())
    });
    world.checkpoint_all(&mut opened).unwrap();
    opened.group.sync().unwrap();
    opened.group.release(Lsn(last.0 + 1));
    assert!(Lsn(1) < opened.group.journal().status().first);
    for _ in 0..60 {
        model.step(&opened, &mut random).unwrap();
    }
    for (lsn, point) in views {
        assert!(read_all(&point) == model.states[usize::try_from(lsn.0).unwrap()], "after record {lsn}");
    }
}

#[test]
fn maps_that_need_more_memory_than_they_may_take_go_to_temporary_files() {
    let mut random = SplitMix64::new(11);
    let (world, bytes) = World::new(11);
    let mut model = Model::new(bytes);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    for _ in 0..200 {
        model.step(&opened, &mut random).unwrap();
    }
    let at = At::Lsn(Lsn(model.last().0 - 1));
    for _ in 0..2 {
        let journal = Some(opened.group.journal());
        let point = world.point(&opened.store, &at, journal).unwrap();
        assert!(1 << 10 < point.map_bytes() && point.map_bytes() <= 4 << 20 && point.maps_spilled() == 0);
        let bytes = point.map_bytes();
        let (group, options) = ((GROUP, None), world.options());
        let spilled =
            PointInTime::open_within(&opened.store, &options, group, &at, (journal, 2 * bytes - 512)).unwrap();
        assert!(0 < spilled.maps_spilled() && spilled.map_bytes() < 2 * bytes, "{bytes}");
        let refused = PointInTime::open_within(&opened.store, &options, group, &at, (journal, 1 << 10)).unwrap_err();
        assert!(refused.to_string().contains("make a checkpoint"), "{refused}");
        assert!(read_all(&spilled) == read_all(&point) && read_all(&point) == model.states[model.states.len() - 2]);
        world.checkpoint_all(&mut opened).unwrap();
    }
}
