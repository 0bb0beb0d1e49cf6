//! The mark of a collection and the usage of containers, from whole repositories.

use std::collections::BTreeSet;
use std::path::Path;

use onefold_engine::collect::mark::{DirectoryChunks, MEMORY_BYTES_MIN, Marker};
use onefold_engine::collect::plan::ContainerUsage;
use onefold_engine::collect::usage::{self, StoredChunk, StoredChunks, Usage};
use onefold_engine::io::Access;
use onefold_engine::object::names::ContainerKind;
use onefold_engine::pipeline::Driver;
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::{MetadataReader, Store};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::ContainerId;
use onefold_engine::{Error, Result, Silent};

use crate::integration::support::{Ask, OpenContainer, SMALL, World, containers, noise, tree};

/// What a mark has found.
#[derive(Debug)]
struct Counted {
    /// Of each container, in the order of their names.
    usage: Vec<ContainerUsage>,
    nodes: u64,
    /// Containers that hints name and that are not listed.
    gone: BTreeSet<ContainerId>,
}

/// Marks snapshots, the newest first, and counts the usage of all containers.
fn count(world: &World, store: &Store, snapshots: &[&Snapshot]) -> Result<Counted> {
    let containers = store.list_containers(&world.scratch())?;
    let mut reader = MetadataReader::open(store, &containers, &world.scratch(), MetadataMemory::of(4 << 20))?;
    let mut marker = Marker::new(&mut reader, &world.scratch(), MEMORY_BYTES_MIN)?;
    let mut gone = BTreeSet::new();
    for snapshot in snapshots {
        marker.mark(
            snapshot.tree,
            &mut |hint| {
                gone.extend(hint.container.filter(|container| !containers.contains(*container)));
                Ok(())
            },
            &Silent,
        )?;
    }
    let nodes = marker.nodes();
    let (containers, driver, unreadable) = (&containers, &Driver::inline(1), Vec::new());
    let mut chunks = DirectoryChunks { store, containers, driver, monitor: &Silent, unreadable };
    let end = u32::try_from(containers.len()).unwrap();
    let memory_bytes = usage::MEMORY_BYTES_MIN;
    let usage = Usage::count(&world.scratch(), &store.host, memory_bytes, end, marker.finish()?, &mut chunks)?;
    if let Some(error) = chunks.unreadable.into_iter().next() {
        return Err(error.1);
    }
    let each = containers.numbers().map(|number| {
        let kind = containers.name(number).unwrap().kind;
        usage.of(number.0, kind, 1000).unwrap()
    });
    Ok(Counted { usage: each.collect(), nodes, gone })
}

/// A repository with snapshots of a source that changes, the newest last, and the source.
fn world() -> (World, Store, MemTree, Vec<Snapshot>) {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    let source = tree(24);
    let snapshots = (0..3).map(|number| {
        source.put_file(Path::new("/d/large"), &noise(1000 + number, 300_000));
        source.put_file(Path::new(&format!("/d/e/new-{number}")), &noise(2000 + number, 9_000));
        world.backup(&store, &source, &Ask::default()).unwrap().report.snapshot
    });
    let snapshots = snapshots.collect();
    (world, store, source, snapshots)
}

fn live(usage: &[ContainerUsage]) -> u64 {
    usage.iter().map(|usage| u64::from(usage.live_chunks)).sum()
}

#[test]
fn all_that_is_stored_is_live_until_snapshots_are_forgotten_and_what_is_dead_then_is_not_missed() {
    let (world, store, source, snapshots) = world();
    let newest_first: Vec<&Snapshot> = snapshots.iter().rev().collect();
    let all = containers(&store);
    let Counted { usage, nodes, gone } = count(&world, &store, &newest_first).unwrap();
    assert_eq!(gone, BTreeSet::new());
    let stored: u64 = all.iter().map(|container| container.chunks.len() as u64).sum();
    assert_eq!(live(&usage), stored);
    assert!(usage.iter().all(|usage| usage.dead_bytes == 0));
    for (usage, OpenContainer { chunks, .. }) in usage.iter().zip(&all) {
        assert_eq!(u64::from(usage.live_bytes), chunks.iter().map(|(_, _, len)| u64::from(*len)).sum::<u64>());
    }
    assert_eq!(usage.iter().map(|usage| usage.rank).max(), Some(2));

    // Each node is read once, whatever the order.
    let twice: Vec<&Snapshot> = snapshots.iter().chain(&snapshots).collect();
    let again = count(&world, &store, &twice).unwrap();
    assert_eq!((again.nodes, live(&again.usage)), (nodes, stored));

    let Counted { usage, .. } = count(&world, &store, &newest_first[..1]).unwrap();
    let dead = usage.iter().zip(&all).filter(|(usage, _)| usage.is_dead());
    let dead: Vec<&OpenContainer> = dead.map(|(_, container)| container).collect();
    assert!(!dead.is_empty() && live(&usage) < stored);
    for container in dead {
        world.repo().remove(&container.name.path()).unwrap();
    }
    let (restored, report) = world.restore(&store, newest_first[0]).unwrap();
    assert_eq!((report.failures, source.diff(&restored)), (0, Vec::new()));
    // Without any of the others, a file or a node is lost.
    for (usage, container) in usage.iter().zip(&all).filter(|(usage, _)| !usage.is_dead()) {
        let without = world.on(world.disk.fork());
        without.repo().remove(&container.name.path()).unwrap();
        let store = without.open().unwrap();
        let restored = without.restore(&store, newest_first[0]);
        assert!(restored.is_err() || restored.is_ok_and(|(_, report)| 0 < report.failures), "{usage:?}");
    }
}

#[test]
fn a_node_or_a_directory_that_cannot_be_read_is_an_error_that_names_it() {
    let (world, store, _, snapshots) = world();
    let newest_first: Vec<&Snapshot> = snapshots.iter().rev().collect();
    for container in containers(&store) {
        let damaged = world.on(world.disk.fork());
        let store = damaged.open().unwrap();
        damaged.repo().remove(&container.name.path()).unwrap();
        let counted = count(&damaged, &store, &newest_first);
        match (counted, container.name.kind) {
            (Err(Error::MissingChunk { .. }), ContainerKind::Metadata) => {}
            (Ok(counted), ContainerKind::Data) => assert_eq!(counted.gone, BTreeSet::from([container.name.id])),
            (other, kind) => panic!("{kind:?}: {other:?}"),
        }
        let damaged = world.on(world.disk.fork());
        let store = damaged.open().unwrap();
        let file = damaged.repo().open(&container.name.path(), Access::ReadWrite).unwrap();
        file.write_at(0, &[0; 100]).unwrap();
        let error = count(&damaged, &store, &newest_first).unwrap_err();
        match (&error, container.name.kind) {
            (Error::MissingChunk { .. }, ContainerKind::Metadata) => {}
            (Error::Damaged { object, .. }, _) => {
                assert!(object.contains(&container.name.id.session.to_string()), "{error}");
            }
            _ => panic!("{error}"),
        }
    }
}

#[test]
fn directories_come_in_the_order_of_their_containers_whatever_driver_reads_them() {
    let (world, store, ..) = world();
    let listed = store.list_containers(&world.scratch()).unwrap();
    let all = containers(&store);
    // More than are read ahead.
    assert!(20 < all.len(), "{} containers", all.len());
    let damaged = all.len() / 2;
    let file = world.repo().open(&all[damaged].name.path(), Access::ReadWrite).unwrap();
    file.write_at(0, &[0; 100]).unwrap();
    let mut expected = Vec::new();
    for (number, OpenContainer { chunks, .. }) in all.iter().enumerate().filter(|(number, _)| *number != damaged) {
        expected
            .extend(chunks.iter().enumerate().map(|(slot, (_, fingerprint, len))| (*fingerprint, number, slot, *len)));
    }
    for driver in [1, 2, 8].map(Driver::threads).into_iter().chain((0..20).map(Driver::inline)) {
        let (containers, driver, unreadable) = (&listed, &driver, Vec::new());
        let mut chunks = DirectoryChunks { store: &store, containers, driver, monitor: &Silent, unreadable };
        let mut found = Vec::new();
        let each = &mut |chunk: StoredChunk| {
            found.push((chunk.fingerprint, chunk.container as usize, usize::from(chunk.slot), chunk.len));
            Ok(())
        };
        chunks.each(each).unwrap();
        assert_eq!(chunks.unreadable.len(), 1, "{:?}", chunks.unreadable);
        assert!(found == expected, "{driver:?}");
    }
}
