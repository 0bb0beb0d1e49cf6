//! What snapshots hold, compared with a count that looks at each of them by itself, and what forgetting would free, compared with
//! a prune.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onefold_engine::Silent;
use onefold_engine::collect::ledger::{Held, LedgerRequest, held_by_each, held_by_set};
use onefold_engine::collect::mark::{MEMORY_BYTES_MIN, Marker};
use onefold_engine::collect::plan::{MaxUnused, PruneOptions};
use onefold_engine::collect::{PruneRequest, prune, what_if};
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::{MetadataReader, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::{Fingerprint, SessionId};

use crate::integration::pruning::{forget, request};
use crate::integration::support::{Ask, Draw, SMALL, World, container_names, containers, noise};

const SEEDS: u64 = if cfg!(feature = "slow") { 200 } else { 12 };

/// A repository with snapshots of a source whose files come, go and come back, in directories that stay the same for some time.
fn world(seed: u64) -> (World, Store, Vec<(SessionId, Fingerprint)>) {
    let mut draw = Draw::new(seed);
    let world = World::new(seed);
    let store = world.create(SMALL).unwrap();
    let source = MemTree::new();
    let snapshots = (0..2 + draw.below(4)).map(|_| {
        for _ in 0..=draw.below(4) {
            let path = format!("/{}/{}", draw.one_of(&["a", "b", "c"]), draw.one_of(&["x", "y", "z"]));
            let len = 1000 + draw.below(60_000);
            source.put_file(Path::new(&path), &noise(draw.below(6) as u64, len));
        }
        let made = world.backup(&store, &source, &Ask::default()).unwrap().report;
        (made.session, made.snapshot.tree)
    });
    let snapshots = snapshots.collect();
    (world, store, snapshots)
}

/// Returns the first bytes of what one snapshot reaches.
fn reached(world: &World, store: &Store, root: Fingerprint) -> BTreeSet<[u8; 8]> {
    let containers = store.list_containers(&world.scratch()).unwrap();
    let memory = MetadataMemory::of(4 << 20);
    let mut reader = MetadataReader::open(store, &containers, &world.scratch(), memory).unwrap();
    let mut marker = Marker::new(&mut reader, &world.scratch(), MEMORY_BYTES_MIN).unwrap();
    marker.mark(root, &mut |_| Ok(()), &Silent).unwrap();
    let reached = marker.finish().unwrap();
    reached.sorted().map(|record| *record.unwrap().first_chunk().unwrap()).collect()
}

fn counts(held: &Held) -> (u64, u64) {
    (held.chunks, held.plain_bytes)
}

#[test]
fn what_each_snapshot_and_each_set_alone_holds_is_what_a_look_at_every_snapshot_finds() {
    let mut shared_chunks = 0;
    for seed in 0..SEEDS {
        let (world, store, snapshots) = world(seed);
        let roots: Vec<Fingerprint> = snapshots.iter().map(|(_, root)| *root).collect();
        let reached: Vec<_> = roots.iter().map(|root| reached(&world, &store, *root)).collect();
        let mut holders: BTreeMap<[u8; 8], (BTreeSet<usize>, u64)> = BTreeMap::new();
        for (_, fingerprint, len) in containers(&store).iter().flat_map(|container| &container.chunks) {
            let prefix = *fingerprint.0.first_chunk().unwrap();
            let by = (0..roots.len()).filter(|number| reached[*number].contains(&prefix)).collect();
            assert!(holders.insert(prefix, (by, u64::from(*len))).is_none(), "seed {seed}: stored twice");
        }
        let count = |of: &dyn Fn(&BTreeSet<usize>) -> bool| {
            let found = holders.values().filter(|(by, _)| of(by));
            found.fold((0, 0), |(chunks, bytes), (_, len)| (chunks + 1, bytes + len))
        };
        let scratch = world.scratch();
        let ledger = LedgerRequest { scratch: &scratch, memory_bytes: 16 << 20, monitor: &Silent };
        let found = held_by_each(&store, &ledger, &roots).unwrap();
        for (number, held) in found.each.iter().enumerate() {
            assert_eq!(counts(held), count(&|by| *by == BTreeSet::from([number])), "seed {seed}: {number}");
        }
        assert_eq!(counts(&found.shared), count(&|by| 1 < by.len()), "seed {seed}");
        assert_eq!(counts(&found.unneeded), count(&BTreeSet::is_empty), "seed {seed}");
        shared_chunks += found.shared.chunks;
        for bits in 0..1usize << roots.len() {
            let (set, others): (Vec<usize>, Vec<usize>) =
                (0..roots.len()).partition(|number| bits & (1 << number) != 0);
            let of = |numbers: &[usize]| numbers.iter().map(|number| roots[*number]).collect::<Vec<_>>();
            let found = held_by_set(&store, &ledger, &of(&set), &of(&others)).unwrap();
            let in_set = |by: &BTreeSet<usize>| by.iter().any(|number| set.contains(number));
            let in_others = |by: &BTreeSet<usize>| by.iter().any(|number| others.contains(number));
            assert_eq!(counts(&found.only), count(&|by| in_set(by) && !in_others(by)), "seed {seed}: {set:?}");
            assert_eq!(counts(&found.shared), count(&|by| in_set(by) && in_others(by)), "seed {seed}: {set:?}");
            assert_eq!(counts(&found.others), count(&|by| !in_set(by) && in_others(by)), "seed {seed}: {set:?}");
        }
    }
    assert!(0 < shared_chunks);
}

#[test]
fn what_forgetting_would_free_is_to_the_byte_what_a_prune_then_frees() {
    let stored =
        |store: &Store| -> u64 { container_names(store).iter().map(|name| store.container_len(name).unwrap()).sum() };
    let mut copied = 0;
    for seed in 0..SEEDS {
        let (world, _, snapshots) = world(seed);
        for max_unused in [MaxUnused::Bytes(0), MaxUnused::Percent(5.0), MaxUnused::Unlimited] {
            let world = world.on(world.disk.fork());
            let store = world.open().unwrap();
            let request = request(&world, &store);
            let request = PruneRequest { options: PruneOptions { max_unused, ..request.options }, ..request };
            let mut draw = Draw::new(1000 + seed);
            let set: BTreeSet<SessionId> =
                snapshots.iter().filter(|_| draw.once_in(2)).map(|(session, _)| *session).collect();
            let before = (stored(&store), containers(&store).len());
            let found = what_if(&store, &request, &set, &Silent).unwrap();
            assert_eq!((stored(&store), containers(&store).len()), before, "seed {seed}: something was written");
            for session in &set {
                forget(&store, *session).unwrap();
            }
            let report = prune(&store, &request, &Silent).unwrap();
            assert_eq!(found.plan, report.plan, "seed {seed}");
            let counted = (found.deleted_bytes, found.written_bytes, found.written_containers);
            assert_eq!(
                counted,
                (report.deleted_bytes, report.written_bytes, report.written_containers),
                "seed {seed}, {max_unused:?}"
            );
            let freed = i64::try_from(before.0).unwrap() - i64::try_from(stored(&store)).unwrap();
            assert_eq!(found.freed_bytes(), freed, "seed {seed}, {max_unused:?}");
            copied += found.written_containers;
        }
    }
    assert!(0 < copied, "nothing was ever copied");
}

#[test]
fn without_a_container_there_is_an_error_and_no_number() {
    let (world, store, snapshots) = world(3);
    let roots: Vec<Fingerprint> = snapshots.iter().map(|(_, root)| *root).collect();
    for name in container_names(&store) {
        let world = world.on(world.disk.fork());
        let store = world.open().unwrap();
        world.repo().remove(&name.path()).unwrap();
        let scratch = world.scratch();
        let ledger = LedgerRequest { scratch: &scratch, memory_bytes: 16 << 20, monitor: &Silent };
        assert!(held_by_each(&store, &ledger, &roots).is_err(), "{name:?}");
        assert!(held_by_set(&store, &ledger, &roots[..1], &roots[1..]).is_err(), "{name:?}");
        let set = BTreeSet::from([snapshots[0].0]);
        assert!(what_if(&store, &request(&world, &store), &set, &Silent).is_err(), "{name:?}");
    }
}
