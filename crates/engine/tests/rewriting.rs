//! Chunks that are stored again so that restores read fewer containers: no others are stored twice, and a prune takes the old copies back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onefold_engine::backup::rewriting::History;
use onefold_engine::collect::{PruneState, prune};
use onefold_engine::identify::Schedule;
use onefold_engine::monitor::Silent;
use onefold_engine::object::names::{ContainerKind, ObjectName};
use onefold_engine::pipeline::Driver;
use onefold_engine::similarity::choose::Limits;
use onefold_engine::store::Store;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::ContainerId;

use crate::integration::manifests::{assert_complete, listed_by};
use crate::integration::pruning::{assert_clean, assert_restores, forget, request};
use crate::integration::support::{Ask, SMALL, World, containers, noise, twin};

/// All that is sparse is stored again.
pub(super) const WITHOUT_LIMIT: History = History { utilization: 0.5, limit: 1.0 };

/// Three versions of a source. The first has files that share containers, of which one in four stays.
pub(super) fn fragments() -> [MemTree; 3] {
    let first = MemTree::new();
    first.put_dir(Path::new("/d"));
    first.put_dir(Path::new("/e"));
    for number in 0..32 {
        first.put_file(&path(number), &noise(number, 6000));
    }
    let second = twin(&first);
    for number in (0..32).filter(|number| number % 4 != 1) {
        second.remove(path(number).strip_prefix("/").unwrap()).unwrap();
    }
    let third = twin(&second);
    third.put_file(Path::new("/e/new"), &noise(100, 20_000));
    [first, second, third]
}

fn path(number: u64) -> std::path::PathBuf {
    format!("/d/file-{number:02}").into()
}

/// Returns the number of copies besides one of each chunk, and their bytes.
pub(super) fn stored_twice(store: &Store) -> (u64, u64) {
    let commits = store.read_commits().unwrap();
    let sessions: Vec<_> = commits.snapshots().into_iter().map(|(session, _)| session).collect();
    let mut containers = containers(store);
    // The copies of metadata may have hints of other lengths, and the newer copy counts.
    containers.sort_by_key(|container| sessions.iter().position(|session| *session == container.name.id.session));
    let mut seen = BTreeSet::new();
    let chunks = containers.into_iter().flat_map(|container| container.chunks);
    let again = chunks.filter(|(_, fingerprint, _)| !seen.insert(*fingerprint));
    again.fold((0, 0), |(count, bytes), (_, _, len)| (count + 1, bytes + u64::from(len)))
}

/// Returns the chunks and bytes that snapshots note as stored again.
pub(super) fn rewritten(store: &Store) -> (u64, u64) {
    let commits = store.read_commits().unwrap();
    let notes = commits.snapshots().into_iter().filter_map(|(_, snapshot)| snapshot.rewritten);
    notes.fold((0, 0), |(chunks, bytes), note| (chunks + note.chunks, bytes + note.bytes))
}

/// Returns the data containers that a snapshot's manifest lists.
fn data_listed(store: &Store, listed: &BTreeMap<ContainerId, u8>) -> usize {
    let is_data = |id| {
        containers(store).iter().any(|container| (container.name.id, container.name.kind) == (id, ContainerKind::Data))
    };
    listed.keys().filter(|id| is_data(**id)).count()
}

#[test]
fn what_is_stored_twice_was_rewritten_and_a_prune_takes_the_old_copies_back() {
    let schedules =
        [Schedule::Adaptive, Schedule::Eager, Schedule::Lazy { threshold: 8 }, Schedule::Pool { candidates: 8 }];
    for (seed, schedule) in (1..).zip(schedules) {
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let similarity = (seed % 2 == 0).then(Limits::default);
        let plain = Ask { driver: Driver::inline(seed), schedule, similarity, with_parent: true, ..Ask::default() };
        let again = Ask { rewriting: Some(WITHOUT_LIMIT), ..plain.clone() };
        let [first, second, third] = fragments();
        let fourth = twin(&third);
        fourth.put_file(Path::new("/e/newer"), &noise(101, 9000));
        let mut made = Vec::new();
        for (version, ask) in [(&first, &again), (&second, &plain), (&third, &again), (&fourth, &again)] {
            made.push((world.backup(&store, version, ask).unwrap().report, version));
            assert_eq!(stored_twice(&store), rewritten(&store), "{schedule:?}");
        }
        let [_, second, third, fourth] = &made[..] else { panic!() };
        assert_eq!(second.0.snapshot.rewritten, None);
        let third_rewritten = third.0.snapshot.rewritten.unwrap();
        // Eight files, and the nodes of their directory, which name the containers of their chunks.
        assert!(48_000 < third_rewritten.bytes && third_rewritten.bytes < 60_000, "{third_rewritten:?}");
        assert_eq!(fourth.0.snapshot.rewritten.unwrap().chunks, 0, "nothing is stored a third time");
        assert_eq!(fourth.0.snapshot.summary.files_unmodified, 9);
        let listed = |report: &onefold_engine::backup::BackupReport| {
            data_listed(&store, &listed_by(&store, report.session).unwrap())
        };
        assert!(listed(&third.0) < listed(&second.0), "{} and {}", listed(&third.0), listed(&second.0));
        assert_complete(&world, &store, "rewritten");
        for (report, version) in &made {
            assert_restores(&world, &store, report.session, version, "before the prune");
        }
        for (report, _) in &made[..3] {
            forget(&store, report.session).unwrap();
        }
        assert_eq!(prune(&store, &request(&world, &store), &Silent).unwrap().state, PruneState::Done);
        assert_eq!(stored_twice(&store), (0, 0), "{schedule:?}");
        assert_restores(&world, &store, fourth.0.session, fourth.1, "after the prune");
        assert_clean(&world, &store, "after the prune");
    }
}

#[test]
fn the_limit_bounds_what_is_stored_again() {
    let rewritten = |limit| {
        let world = World::new(1);
        let store = world.create(SMALL).unwrap();
        let ask = Ask { with_parent: true, rewriting: Some(History { utilization: 0.5, limit }), ..Ask::default() };
        let reports = fragments().map(|version| world.backup(&store, &version, &ask).unwrap().report);
        reports[2].snapshot.rewritten.unwrap().bytes
    };
    let (all, some) = (rewritten(0.99), rewritten(0.4));
    // Of 48,000 bytes.
    assert!(0 < some && some < all && some < 19_200 + 4000, "{some} of {all}");
    assert_eq!(rewritten(0.0), 0);
}

#[test]
fn without_a_manifest_nothing_is_stored_again_and_the_report_says_why() {
    let world = World::new(1).without_oracle();
    let store = world.create(SMALL).unwrap();
    let [first, second, third] = fragments();
    let ask = Ask { with_parent: true, rewriting: Some(WITHOUT_LIMIT), ..Ask::default() };
    let report = world.backup(&store, &first, &ask).unwrap().report;
    assert_eq!(report.not_rewritten.unwrap(), "nothing is stored again: there is no parent snapshot");
    let session = world.backup(&store, &second, &ask).unwrap().report.session;
    store.objects.delete(&[ObjectName::Manifest(session)]).unwrap();
    let report = world.backup(&store, &third, &ask).unwrap().report;
    let reason = report.not_rewritten.unwrap();
    assert!(reason.starts_with("nothing is stored again: the manifest of the parent snapshot: "), "{reason}");
    assert_eq!((rewritten(&store), stored_twice(&store)), ((0, 0), (0, 0)));
    assert_restores(&world, &store, report.session, &third, "without a manifest");
}
