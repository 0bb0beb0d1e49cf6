//! Copies that a prune compresses again: as short as their level makes them, never longer than they were, and equal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onefold_engine::collect::plan::{MaxUnused, PruneOptions};
use onefold_engine::collect::{Copies, PruneReport, PruneRequest, PruneState, plan_prune, prune, what_if};
use onefold_engine::compress::{Compression, Compressor};
use onefold_engine::monitor::Silent;
use onefold_engine::store::Store;
use onefold_engine::store::create::Adjustments;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::{Fingerprint, SessionId};

use crate::integration::bases::{Versions, Way, stored_bytes, versions};
use crate::integration::pruning::{
    Pruned, assert_clean, assert_restores, back_up_all, forget, request, try_crashes, try_errors,
};
use crate::integration::support::{Draw, SMALL, SMALL_1, World, containers, copy, noise, tell};

/// Regions long enough that a level matters.
fn long_regions(adjustments: Adjustments) -> Adjustments {
    Adjustments { region_bytes: Some(64 << 10), container_bytes: Some(256 << 10), ..adjustments }
}

/// Words of a small vocabulary.
fn text(seed: u64, len: usize) -> Vec<u8> {
    const WORDS: [&str; 12] =
        ["container", "region", "chunk", "index", "of", "the", "snapshot", "recipe", "a", "tree", "is", "sealed"];
    let mut draw = Draw::new(seed);
    let mut text = Vec::new();
    while text.len() < len {
        text.extend_from_slice(draw.one_of(&WORDS).as_bytes());
        text.push(if draw.once_in(9) { b'\n' } else { b' ' });
        if draw.once_in(12) {
            text.extend_from_slice(format!("{} ", draw.below(9000)).as_bytes());
        }
    }
    text.truncate(len);
    text
}

/// Versions of text-like files of which some change as a whole, with noise between.
fn texts(count: u64, bytes: usize) -> Vec<MemTree> {
    let first = MemTree::new();
    first.put_dir(Path::new("/d"));
    for number in 0..4 {
        first.put_file(Path::new(&format!("/d/stays-{number}")), &text(number, bytes));
    }
    first.put_file(Path::new("/d/noise"), &noise(3, bytes / 2));
    let mut versions: Vec<MemTree> = Vec::new();
    for version in 0..count {
        let next = versions.last().map_or_else(|| copy(&first), copy);
        for number in 0..3 {
            next.put_file(
                Path::new(&format!("/d/changes-{number}")),
                // Another length each time, since times are the same.
                &text(100 * (version + 1) + number, bytes * 2 / 3 + usize::try_from(version).unwrap()),
            );
        }
        versions.push(next);
    }
    versions
}

/// A repository of which some versions are forgotten.
struct Forgotten {
    world: World,
    kept: Vec<(SessionId, MemTree)>,
}

impl Forgotten {
    fn new(adjustments: Adjustments, sources: Vec<MemTree>, kept: &[usize]) -> Self {
        let world = World::new(21);
        let store = world.create(adjustments).unwrap();
        let sessions = back_up_all(&world, &store, &sources);
        let (kept, forgotten): (Vec<_>, Vec<_>) =
            sessions.into_iter().zip(sources).enumerate().partition(|(number, _)| kept.contains(number));
        for (_, (session, _)) in forgotten {
            forget(&store, session).unwrap();
        }
        Self { world, kept: kept.into_iter().map(|(_, kept)| kept).collect() }
    }

    /// Prunes a copy of the repository, and checks that everything is there.
    fn prune(&self, copies: Copies, max_unused: MaxUnused) -> Pruning {
        let case = format!("{copies:?}, {max_unused:?}");
        let world = self.world.on(self.world.disk.fork());
        let store = world.open().unwrap();
        let asked = request(&world, &store);
        let asked = PruneRequest { copies, options: PruneOptions { max_unused, ..asked.options }, ..asked };
        let planned = plan_prune(&store, &asked, &Silent).unwrap();
        let counted = what_if(&store, &asked, &BTreeSet::new(), &Silent).unwrap();
        let report = prune(&store, &asked, &Silent).unwrap();
        assert_eq!((&report.state, report.rescued_containers), (&PruneState::Done, 0), "{case}");
        assert_eq!(report.plan, planned.plan, "{case}");
        assert_eq!(
            (counted.written_containers, counted.written_bytes),
            (report.written_containers, report.written_bytes),
            "{case}"
        );
        for (session, source) in &self.kept {
            assert_restores(&world, &store, *session, source, &case);
        }
        assert_clean(&world, &store, &case);
        let again = prune(&store, &asked, &Silent).unwrap();
        assert_eq!((again.deleted_containers, again.written_containers), (0, 0), "{case}: {again:?}");
        Pruning { report, bytes: stored_bytes(&store), store }
    }
}

struct Pruning {
    report: PruneReport,
    bytes: u64,
    store: Store,
}

impl Pruning {
    /// Returns how often each chunk is stored.
    fn chunks(&self) -> BTreeMap<Fingerprint, usize> {
        let mut chunks = BTreeMap::new();
        for container in containers(&self.store) {
            for (_, fingerprint, _) in container.chunks {
                *chunks.entry(fingerprint).or_default() += 1;
            }
        }
        chunks
    }
}

#[test]
fn copies_are_as_short_as_their_level_makes_them_and_hold_the_same() {
    for (adjustments, kept) in [(SMALL_1, vec![1, 3]), (SMALL, vec![1, 3]), (SMALL, vec![3])] {
        let case = format!("{:?}, {kept:?} kept", adjustments.format);
        let forgotten = Forgotten::new(long_regions(adjustments), texts(4, 60_000), &kept);
        let plain = forgotten.prune(Copies::mostly_as_stored(Compression::Zstd(1)), MaxUnused::Bytes(0));
        let again = forgotten.prune(Copies::recompressed(None), MaxUnused::Bytes(0));
        assert_eq!(plain.chunks(), again.chunks(), "{case}");
        assert_eq!((plain.report.recompressed_regions, plain.report.plan), (0, again.report.plan), "{case}");
        assert_eq!(plain.report.copied_regions_bytes, again.report.copied_regions_bytes, "{case}");
        assert!(0 < again.report.recompressed_regions, "{case}: {:?}", again.report);
        tell(&format!(
            "{case}: copies of {} bytes; {} as stored, {} again, {} regions whole",
            plain.report.copied_regions_bytes,
            plain.report.written_regions_bytes,
            again.report.written_regions_bytes,
            again.report.recompressed_regions
        ));
        let (before, after) = (plain.report.written_regions_bytes, again.report.written_regions_bytes);
        assert!(after * 100 < before * 92, "{case}: {after} bytes instead of {before}");
        assert!(before - after <= plain.bytes - again.bytes + 4096, "{case}: {} -> {}", plain.bytes, again.bytes);
        // Each copied region is what its level makes of it, or shorter.
        let old: BTreeSet<SessionId> = forgotten
            .world
            .open()
            .unwrap()
            .read_commits()
            .unwrap()
            .commits
            .iter()
            .map(|commit| commit.session)
            .collect();
        let (mut compressor, mut stored, mut checked) = (Compressor::default(), Vec::new(), 0);
        for container in containers(&again.store) {
            if old.contains(&container.name.id.session) {
                continue;
            }
            let reader = again.store.open_container(&container.name).unwrap();
            for (entry, plain) in reader.directory.regions.iter().zip(&container.regions) {
                compressor.compress(Compression::Zstd(Copies::LEVEL), plain, &mut stored);
                let least = if stored.is_empty() { plain.len() } else { stored.len() };
                assert!(entry.sealed_len as usize <= least + 16, "{case}: {} for {least}", entry.sealed_len);
                checked += 1;
            }
        }
        assert!(3 < checked, "{case}: {checked} regions");
    }
}

#[test]
fn what_does_not_get_shorter_is_copied_as_it_is() {
    for adjustments in [SMALL_1, SMALL] {
        let forgotten = Forgotten::new(long_regions(adjustments), texts(4, 60_000), &[1, 3]);
        for max_unused in [MaxUnused::Bytes(0), MaxUnused::Percent(1.0)] {
            // LZ4 makes text longer than level 1 does.
            let plain = forgotten.prune(Copies::mostly_as_stored(Compression::Lz4), max_unused);
            let again = forgotten.prune(Copies::recompressed(Some(Compression::Lz4)), max_unused);
            assert!(plain.report.plan.copied_containers != 0 && plain.chunks() == again.chunks());
            let (plain, again) = (&plain.report, &again.report);
            assert_eq!(again.recompressed_regions, 0);
            assert_eq!(plain.written_bytes, again.written_bytes);
        }
        // Neither does noise, at any level.
        let sources: Vec<MemTree> = (0..3)
            .map(|version| {
                let tree = MemTree::new();
                tree.put_dir(Path::new("/d"));
                tree.put_file(Path::new("/d/stays"), &noise(7, 200_000));
                tree.put_file(
                    Path::new("/d/changes"),
                    &noise(100 + version, 50_000 + usize::try_from(version).unwrap()),
                );
                tree
            })
            .collect();
        let forgotten = Forgotten::new(long_regions(adjustments), sources, &[2]);
        let data = |pruning: &Pruning| -> u64 {
            let all = containers(&pruning.store).into_iter();
            let data = all.filter(|container| container.regions.iter().any(|region| 20_000 < region.len()));
            data.map(|container| pruning.store.container_len(&container.name).unwrap()).sum()
        };
        let plain = forgotten.prune(Copies::mostly_as_stored(Compression::Zstd(1)), MaxUnused::Bytes(0));
        let again = forgotten.prune(Copies::recompressed(None), MaxUnused::Bytes(0));
        assert!(100_000 < data(&plain));
        assert_eq!(data(&plain), data(&again));
    }
}

#[test]
fn limits_of_copying_hold_and_a_quick_prune_copies_nothing() {
    let forgotten = Forgotten::new(long_regions(SMALL), texts(4, 60_000), &[3]);
    let copies = Copies::recompressed(None);
    let store = forgotten.world.open().unwrap();
    let asked = PruneRequest { copies, ..request(&forgotten.world, &store) };
    let planned = plan_prune(&store, &asked, &Silent).unwrap().plan;
    for max_repack_bytes in [0, planned.copied_bytes / 2] {
        let world = forgotten.world.on(forgotten.world.disk.fork());
        let store = world.open().unwrap();
        let options = PruneOptions { max_repack_bytes, ..asked.options };
        let report = prune(&store, &PruneRequest { options, ..asked.clone() }, &Silent).unwrap();
        assert!(report.plan.copied_bytes <= max_repack_bytes && report.plan.copied_bytes < planned.copied_bytes);
        assert_eq!(report.written_bytes == 0, report.plan.copied_bytes == 0);
    }
    let world = forgotten.world.on(forgotten.world.disk.fork());
    let store = world.open().unwrap();
    let quick = PruneRequest { quick: true, ..asked };
    let report = prune(&store, &quick, &Silent).unwrap();
    assert!(report.is_quick);
    assert_eq!((report.written_bytes, report.recompressed_regions), (0, 0));
}

#[test]
fn what_depends_on_bases_is_compressed_again_without_them() {
    let Versions { world, store, snapshots } = versions(SMALL, Way::Previous, 5, (5, 4));
    let (last, forgotten) = snapshots.split_last().unwrap();
    for (session, ..) in forgotten {
        forget(&store, *session).unwrap();
    }
    let asked = PruneRequest { copies: Copies::recompressed(None), ..request(&world, &store) };
    let report = prune(&store, &asked, &Silent).unwrap();
    assert!(report.state == PruneState::Done && 0 < report.plan.apart_containers, "{report:?}");
    assert_eq!(report.rescued_containers, 0);
    assert_restores(&world, &store, last.0, &last.2, "taken apart");
    assert_clean(&world, &store, "taken apart");
}

#[test]
fn an_error_at_any_call_while_copies_are_compressed_again_loses_nothing() {
    try_errors(&Pruned::of(31, SMALL_1, texts(3, 15_000), Copies::recompressed(None)));
    try_errors(&Pruned::of(32, SMALL, texts(3, 12_000), Copies::recompressed(None)));
}

#[test]
fn a_crash_at_any_call_while_copies_are_compressed_again_loses_nothing() {
    try_crashes(&Pruned::of(33, SMALL_1, texts(3, 15_000), Copies::recompressed(None)));
    try_crashes(&Pruned::of(34, SMALL, texts(3, 12_000), Copies::recompressed(None)));
}
