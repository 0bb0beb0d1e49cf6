//! Contents that must not be there: after a prune that lets nothing unused stay, no container has a chunk that no snapshot
//! needs.

use std::collections::BTreeSet;
use std::path::Path;

use onefold_engine::Silent;
use onefold_engine::collect::plan::{MaxUnused, PruneOptions};
use onefold_engine::collect::{PruneRequest, PruneState, prune, what_if};
use onefold_engine::repo::{Derived, rewrite};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::Store;
use onefold_engine::types::{Fingerprint, SessionId};

use crate::integration::bases::{Policy, Way, ask, edit_everywhere, similar_tree};
use crate::integration::deriving::{exclusion, silent, storing};
use crate::integration::manifests::reached;
use crate::integration::pruning::{assert_clean, forget, request};
use crate::integration::support::{Ask, Draw, SMALL, World, containers, newest, noise, tree};

const SEEDS: u64 = if cfg!(feature = "slow") { 100 } else { 8 };
const SECRET: &[u8] = b"the password of the database is correct horse battery staple";

/// Returns all chunks in containers.
fn stored(store: &Store) -> BTreeSet<Fingerprint> {
    containers(store).iter().flat_map(|container| &container.chunks).map(|(_, fingerprint, _)| *fingerprint).collect()
}

/// Returns true if the plaintext of any container has some bytes.
fn has_bytes(store: &Store, bytes: &[u8]) -> bool {
    let all = containers(store);
    let mut regions = all.iter().flat_map(|container| &container.regions);
    regions.any(|region| region.windows(bytes.len()).any(|window| window == bytes))
}

/// A repository with a snapshot that was rewritten without a secret, which stands among small files. The original is forgotten.
fn left_out(seed: u64) -> (World, Store, SessionId) {
    let mut draw = Draw::new(seed);
    let world = World::new(seed);
    let store = world.create(SMALL).unwrap();
    let source = tree(20);
    for number in 0..60 {
        source.put_file(Path::new(&format!("/d/small-{number:02}")), &noise(3000 + number, 100 + draw.below(700)));
    }
    let secret = format!("/d/small-{:02}-secret", draw.below(60));
    source.put_file(Path::new(&secret), SECRET);
    let original = world.backup(&store, &source, &Ask::default()).unwrap().report.session;
    let rewritten = rewrite(&store, &silent(&world), &storing(), original, &exclusion(&[&secret])).unwrap();
    let Derived::Made(rewritten, _) = rewritten else { panic!("{rewritten:?}") };
    forget(&store, original).unwrap();
    (world, store, rewritten)
}

#[test]
fn no_chunk_that_no_snapshot_needs_is_left_where_nothing_unused_may_stay() {
    let mut carried = 0;
    for seed in 0..SEEDS {
        let (world, store, session) = left_out(seed);
        let snapshot = newest(&store).unwrap().unwrap();
        assert_eq!(snapshot.0, session);
        let needed = reached(&world, &store, snapshot.1.tree);
        assert!(has_bytes(&store, SECRET), "seed {seed}");
        for (max_unused, is_strict) in
            [(MaxUnused::Bytes(0), true), (MaxUnused::Percent(0.0), true), (MaxUnused::Bytes(1), false)]
        {
            let case = format!("seed {seed}, {max_unused:?}");
            let world = world.on(world.disk.fork());
            let store = world.open().unwrap();
            let request = request(&world, &store);
            let request = PruneRequest { options: PruneOptions { max_unused, ..request.options }, ..request };
            let predicted = what_if(&store, &request, &BTreeSet::new(), &Silent).unwrap();
            let report = prune(&store, &request, &Silent).unwrap();
            assert_eq!(report.state, PruneState::Done, "{case}");
            assert_eq!(
                (predicted.deleted_bytes, predicted.written_bytes),
                (report.deleted_bytes, report.written_bytes),
                "{case}"
            );
            assert_clean(&world, &store, &case);
            assert_eq!(world.restore(&store, &snapshot.1).unwrap().1.failures, 0, "{case}");
            if !is_strict {
                carried += u64::from(has_bytes(&store, SECRET));
                continue;
            }
            assert!(!has_bytes(&store, SECRET), "{case}: the secret is there");
            assert_eq!(stored(&store), needed, "{case}");
            let again = prune(&store, &request, &Silent).unwrap();
            assert_eq!((again.deleted_containers, again.written_containers), (0, 0), "{case}: {again:?}");
        }
    }
    assert!(0 < carried, "the secret never stood in a region that is carried over");
}

/// Versions of a tree with a secret, each against the one before, that were rewritten without it. The originals are forgotten.
fn left_out_among_bases(seed: u64) -> (World, Store, Vec<Snapshot>) {
    let world = World::new(seed).without_oracle();
    let store = world.create(SMALL).unwrap();
    let policy = Policy::new(Way::Previous, seed);
    let source = similar_tree(seed, 4);
    source.put_file(Path::new("/s/name-of-the-secret"), SECRET);
    let mut rewritten = Vec::new();
    for round in 0..3 {
        edit_everywhere(&source, seed, 4, round);
        let original = world.backup(&store, &source, &ask(&policy)).unwrap().report.session;
        policy.next_session();
        let exclusion = exclusion(&["/s/name-of-the-secret"]);
        let derived = rewrite(&store, &silent(&world), &storing(), original, &exclusion).unwrap();
        let Derived::Made(_, snapshot) = derived else { panic!("{derived:?}") };
        forget(&store, original).unwrap();
        rewritten.push(*snapshot);
    }
    (world, store, rewritten)
}

#[test]
fn neither_contents_nor_names_that_no_snapshot_needs_are_left_in_bases_where_nothing_unused_may_stay() {
    let secrets: [&[u8]; 2] = [SECRET, b"name-of-the-secret"];
    let mut left = 0;
    for seed in 0..SEEDS {
        let (world, store, snapshots) = left_out_among_bases(seed);
        let trees = snapshots.iter().map(|snapshot| snapshot.tree);
        let needed: BTreeSet<Fingerprint> = trees.flat_map(|tree| reached(&world, &store, tree)).collect();
        assert!(secrets.iter().all(|secret| has_bytes(&store, secret)), "seed {seed}");
        for (max_unused, is_strict) in [(MaxUnused::Bytes(1), false), (MaxUnused::Bytes(0), true)] {
            let case = format!("seed {seed}, {max_unused:?}");
            let world = world.on(world.disk.fork());
            let store = world.open().unwrap();
            let request = request(&world, &store);
            let request = PruneRequest { options: PruneOptions { max_unused, ..request.options }, ..request };
            let report = prune(&store, &request, &Silent).unwrap();
            assert_eq!(report.state, PruneState::Done, "{case}");
            assert_clean(&world, &store, &case);
            if !is_strict {
                left += secrets.iter().filter(|secret| has_bytes(&store, secret)).count();
                continue;
            }
            assert!(!secrets.iter().any(|secret| has_bytes(&store, secret)), "{case}: {report:?}");
            assert_eq!(stored(&store), needed, "{case}");
            let again = prune(&store, &request, &Silent).unwrap();
            assert_eq!((again.deleted_containers, again.written_containers), (0, 0), "{case}: {again:?}");
        }
    }
    assert!(0 < left, "no base that copies would grow more for than it wastes ever held a secret");
}
