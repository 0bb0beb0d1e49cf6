//! Manifests: each names a container for every chunk that its snapshot reaches, whoever wrote it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onefold_engine::derive::RewriteOptions;
use onefold_engine::error::Result;
use onefold_engine::monitor::Silent;
use onefold_engine::object::names::{ContainerKind, ObjectName, Prefix};
use onefold_engine::repo::{Derived, Repaired, find_losses, recover, repair_snapshot, rewrite, tag};
use onefold_engine::source::exclude::{Case, Patterns};
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::node_walk::{NodeVisitor, NodeWalk};
use onefold_engine::store::{MetadataReader, Store};
use onefold_engine::types::{Chunk, ContainerId, Fingerprint, SessionId};

use crate::integration::deriving::{forget, silent, storing};
use crate::integration::pruning::{back_up_all, versions};
use crate::integration::support::{Ask, SMALL, World, container_names, containers, copy, noise, tree};

/// All chunks that a snapshot reaches.
#[derive(Default)]
struct ReachedChunks(BTreeSet<Fingerprint>);

impl NodeVisitor for ReachedChunks {
    fn node(&mut self, node: Fingerprint, _: &mut MetadataReader) -> Result<()> {
        self.0.insert(node);
        Ok(())
    }

    fn chunk(&mut self, chunk: Chunk, _: Option<ContainerId>) -> Result<()> {
        self.0.insert(chunk.fingerprint);
        Ok(())
    }
}

pub(super) fn reached(world: &World, store: &Store, tree: Fingerprint) -> BTreeSet<Fingerprint> {
    let listed = store.list_containers(&world.scratch()).unwrap();
    let mut reader = MetadataReader::open(store, &listed, &world.scratch(), MetadataMemory::of(16 << 20)).unwrap();
    let visited = world.scratch().map(&store.host, "visited", 1 << 20).unwrap();
    let mut chunks = ReachedChunks::default();
    NodeWalk::new(&mut reader, visited).walk(tree, &mut chunks, &Silent).unwrap();
    chunks.0
}

/// Returns what a snapshot's manifest lists; `None` if its commit vouches for none.
pub(super) fn listed_by(store: &Store, session: SessionId) -> Option<BTreeMap<ContainerId, u8>> {
    let checksum = store.read_commit(session).unwrap().body.manifest?;
    let mut listed = BTreeMap::new();
    let mut take = |id, share| {
        assert_eq!(listed.insert(id, share), None, "{id} twice");
        Ok(())
    };
    store.read_manifest(session, &checksum, &mut take).unwrap();
    Some(listed)
}

/// Asserts that the manifest of each snapshot names a container for each chunk, and returns the number of containers that it names
/// without a need, of all snapshots.
pub(super) fn assert_complete(world: &World, store: &Store, case: &str) -> usize {
    let mut holders: BTreeMap<Fingerprint, BTreeSet<ContainerId>> = BTreeMap::new();
    for container in containers(store) {
        for (_, chunk, _) in container.chunks {
            holders.entry(chunk).or_default().insert(container.name.id);
        }
    }
    let mut needless = 0;
    for (session, snapshot) in store.read_commits().unwrap().snapshots() {
        let listed = listed_by(store, session).unwrap_or_else(|| panic!("{case}: {session} has no manifest"));
        let mut needed: BTreeSet<ContainerId> = BTreeSet::new();
        for chunk in reached(world, store, snapshot.tree) {
            let holders = &holders[&chunk];
            assert!(holders.iter().any(|id| listed.contains_key(id)), "{case}: {chunk} of {session}");
            needed.extend(holders);
        }
        needless += listed.keys().filter(|id| !needed.contains(*id)).count();
    }
    needless
}

#[test]
fn every_writer_names_a_container_for_each_chunk_and_no_others() {
    for seed in 0..4 {
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let versions = versions();
        let sessions = back_up_all(&world, &store, &versions);
        assert_eq!(assert_complete(&world, &store, "backups"), 0);
        // Without a parent, and with files whose recipes have segments.
        let large = copy(&versions[2]);
        large.put_file(Path::new("/d/large"), &noise(7, 600_000));
        let first = world.backup(&store, &large, &Ask { with_parent: seed % 2 == 0, ..Ask::default() }).unwrap();
        large.put_file(Path::new("/d/file-005"), &noise(915, 9100));
        large.put_file(Path::new("/d/e/newer"), &noise(916, 30_000));
        let second = world.backup(&store, &large, &Ask { with_parent: true, ..Ask::default() }).unwrap();
        assert!(0 < second.report.snapshot.summary.files_unmodified);
        assert_eq!(assert_complete(&world, &store, "segments"), 0);

        let options = silent(&world);
        let Derived::Made(tagged, _) = tag(&store, &options, first.report.session, &["x".to_owned()]).unwrap() else {
            panic!("no snapshot")
        };
        assert_eq!(listed_by(&store, tagged), listed_by(&store, first.report.session));
        forget(&store, sessions[0]).unwrap();
        let Derived::Made(recovered, _) = recover(&store, &options, sessions[0], None).unwrap() else {
            panic!("no snapshot")
        };
        assert_ne!(recovered, sessions[0]);
        assert_eq!(assert_complete(&world, &store, "derived"), 0);
        let patterns = Patterns::parse([b"/d/large".as_slice()], Case::Sensitive).unwrap();
        let exclusion = RewriteOptions {
            patterns: vec![patterns],
            texts: vec!["/d/large".to_owned()],
            ..RewriteOptions::default()
        };
        let rewritten = rewrite(&store, &options, &storing(), second.report.session, &exclusion).unwrap();
        assert!(matches!(rewritten, Derived::Made(..)), "{rewritten:?}");
        assert_eq!(assert_complete(&world, &store, "rewritten"), 0);
    }
}

#[test]
fn a_repaired_snapshot_names_what_is_left() {
    let world = World::new(3);
    let store = world.create(SMALL).unwrap();
    let source = tree(8);
    source.put_file(Path::new("/d/large"), &noise(7, 600_000));
    let session = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    let lost = container_names(&store).into_iter().find(|name| name.kind == ContainerKind::Data).unwrap();
    world.repo().remove(&lost.path()).unwrap();
    let commits = store.read_commits().unwrap();
    let snapshots: Vec<_> = commits.snapshots().into_iter().map(|(_, snapshot)| snapshot).collect();
    assert!(!find_losses(&store, &silent(&world), &snapshots).unwrap().is_empty());
    let repaired = repair_snapshot(&store, &silent(&world), &storing(), session, b".cut").unwrap();
    assert!(matches!(repaired, Repaired::Made(..)), "{repaired:?}");
    forget(&store, session).unwrap();
    assert_complete(&world, &store, "repaired");
}

#[test]
fn a_share_is_of_the_plaintext_and_a_snapshot_without_changes_has_the_same_containers() {
    let world = World::new(5);
    let store = world.create(SMALL).unwrap();
    let source = tree(8);
    let first = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    let listed = listed_by(&store, first).unwrap();
    let names: BTreeSet<ContainerId> = container_names(&store).iter().map(|name| name.id).collect();
    assert_eq!(listed.keys().copied().collect::<BTreeSet<_>>(), names);
    assert!(listed.values().all(|share| *share == 255), "a first snapshot uses all that it stores: {listed:?}");
    // Of a few files, a part.
    let few = copy(&source);
    for number in 2..8 {
        few.remove(Path::new(&format!("d/file-{number:03}"))).unwrap();
    }
    let second = world.backup(&store, &few, &Ask { with_parent: true, ..Ask::default() }).unwrap().report.session;
    let again = listed_by(&store, second).unwrap();
    assert!(again.iter().any(|(id, share)| listed.contains_key(id) && *share < 255), "{again:?}");
}

#[test]
fn a_manifest_that_the_commit_does_not_vouch_for_is_refused() {
    let world = World::new(6);
    let store = world.create(SMALL).unwrap();
    let first = world.backup(&store, &tree(4), &Ask::default()).unwrap().report.session;
    let checksum = store.read_commit(first).unwrap().body.manifest.unwrap();
    assert_eq!(store.list(Prefix::Manifests).unwrap(), [ObjectName::Manifest(first)]);
    assert!(store.read_manifest(first, &[1; 32], &mut |_, _| Ok(())).unwrap_err().is_loss());
    world.repo().remove(&ObjectName::Manifest(first).path()).unwrap();
    assert!(store.read_manifest(first, &checksum, &mut |_, _| Ok(())).is_err());
}
