//! Whatever is damaged, a check names it, says which files are hit, and everything else comes back.

#![expect(clippy::print_stdout, reason = "tests print their seeds")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::backup::Silent;
use onefold_engine::check::{AffectedFile, CheckReport, CheckRequest, CheckedSnapshots, Extent, ReadData, check};
use onefold_engine::crypto::slot::SlotLabel;
use onefold_engine::inspect::list_chunks;
use onefold_engine::io::tree::{EntryKind, SourceTree};
use onefold_engine::io::{Access, Disk};
use onefold_engine::object::names::{CollectionStep, ContainerKind, ContainerName};
use onefold_engine::object::{ObjectType, seal_small};
use onefold_engine::pipeline::Driver;
use onefold_engine::random::SplitMix64;
use onefold_engine::restore::fetch::Fetcher;
use onefold_engine::restore::{dump, find_entry};
use onefold_engine::snapshot::{CollectionBody, Snapshot};
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::slots::{NewSlot, SlotPolicy, add_slot, unlock};
use onefold_engine::store::{MetadataReader, Store, read_file};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::SessionId;

use crate::integration::support::{
    Ask, CHEAP, Notes, PASSWORD, SMALL, World, change, container_names, copy, heads_on, noise, stored_twice, tree,
};

/// Few enough files that no finding has to leave any of them out of its list.
const FILES: u64 = 24;
const LEN_MAX: usize = 1 << 20;

/// A repository of three snapshots, with what each was made of.
pub(super) struct Base {
    pub(super) world: World,
    pub(super) snapshots: Vec<(SessionId, Snapshot, MemTree)>,
}

#[derive(Clone, Debug)]
pub(super) enum Damage {
    Delete,
    Truncate(usize),
    /// The lowest bit of a byte.
    Flip(usize),
    Swap(PathBuf),
    Replace(Vec<u8>),
}

fn base(seed: u64) -> Base {
    println!("seed {seed}");
    let world = World::new(seed);
    let store = world.create(SMALL).unwrap();
    let (key, _) = unlock(&*world.objects(), store.config.repository, PASSWORD, &SlotPolicy::default()).unwrap();
    let new = NewSlot { password: b"another", cost: CHEAP, label: &SlotLabel::default() };
    add_slot(&*world.objects(), &*world.host, store.config.repository, &key, new).unwrap();
    let source = tree(FILES);
    let mut snapshots = Vec::new();
    for round in 0..3 {
        let ask = Ask { with_parent: round == 1, ..Ask::default() };
        let report = world.backup(&store, &source, &ask).unwrap().report;
        assert_eq!(report.failures, 0);
        snapshots.push((report.session, report.snapshot, copy(&source)));
        if round == 0 {
            change(&source);
        } else {
            source.put_file(Path::new("/d/e/last"), &noise(seed, 40_000));
        }
    }
    let base = Base { world, snapshots };
    for read in [ReadData::None, ReadData::All] {
        assert_eq!(Base::check(&base.world, read).findings, []);
    }
    base
}

impl Base {
    /// Damages a copy of the repository.
    pub(super) fn damaged(&self, path: &Path, damage: &Damage) -> World {
        let world = self.world.on(self.world.disk.fork());
        let repo = world.repo();
        let read = |path: &Path| read_file(&*repo, path, LEN_MAX).unwrap();
        let write = |path: &Path, bytes: &[u8]| {
            repo.remove(path).unwrap();
            repo.create(path).unwrap().write_at(0, bytes).unwrap();
        };
        let mut bytes = read(path);
        match damage {
            Damage::Delete => repo.remove(path).unwrap(),
            Damage::Truncate(len) => {
                assert!(*len < bytes.len());
                write(path, &bytes[..*len]);
            }
            Damage::Flip(at) => {
                bytes[*at] ^= 1;
                repo.open(path, Access::ReadWrite).unwrap().write_at(0, &bytes).unwrap();
            }
            Damage::Swap(other) => {
                let others = read(other);
                assert_ne!(bytes, others);
                write(path, &others);
                write(other, &bytes);
            }
            Damage::Replace(others) => write(path, others),
        }
        world
    }

    pub(super) fn check(world: &World, read: ReadData) -> CheckReport {
        let store = world.open().unwrap();
        check(&store, &check_request(world, read), &Silent).unwrap()
    }

    /// Checks that damage is named, with or without reading the data.
    fn names(&self, path: &Path, damage: &Damage, reads: &[ReadData]) -> World {
        let world = self.damaged(path, damage);
        for read in reads {
            let report = Self::check(&world, *read);
            assert!(
                is_named(&world, &report, path),
                "{}: {damage:?}: {read:?}: {:#?}",
                path.display(),
                report.findings
            );
            assert!(!report.is_sound());
            if let Damage::Swap(other) = damage {
                assert!(is_named(&world, &report, other), "{}: {damage:?}: {:#?}", other.display(), report.findings);
            }
        }
        world
    }

    /// Checks that a file comes back exactly if the check does not say that it is hit.
    pub(super) fn restores_what_is_not_hit(&self, world: &World, report: &CheckReport, context: &str) -> usize {
        let store = world.open().unwrap();
        let mut hit_count = 0;
        for (session, snapshot, source) in &self.snapshots {
            let restored = restores(world, &store, snapshot);
            let hit: BTreeSet<PathBuf> = report
                .findings
                .iter()
                .flat_map(|finding| {
                    let count: u64 = finding.affected.iter().map(|file| count_of(file.extent)).sum();
                    assert_eq!(count, finding.affected_count, "the list was cut");
                    &finding.affected
                })
                .filter(|affected| affected.snapshot == *session)
                .flat_map(|affected| paths_of(source, affected))
                .collect();
            let is_hit = |path: &Path| path.ancestors().any(|path| hit.contains(path));
            for path in files(source) {
                let is_back = restored.as_ref().is_some_and(|restored| same(source, restored, &path));
                assert_ne!(
                    is_back,
                    is_hit(&path),
                    "{context}: {} of {session}: {:#?}",
                    path.display(),
                    report.findings
                );
                hit_count += usize::from(!is_back);
            }
        }
        hit_count
    }
}

fn count_of(extent: Extent) -> u64 {
    match extent {
        Extent::File | Extent::Directory => 1,
        Extent::Run { entries } => entries,
    }
}

/// Returns the paths that are said to be hit; of a run the names are known from the source.
fn paths_of(source: &MemTree, affected: &AffectedFile) -> Vec<PathBuf> {
    let Extent::Run { entries } = affected.extent else { return vec![affected.path.clone()] };
    let directory = affected.path.parent().unwrap();
    let names = SourceTree::list(source, directory).unwrap();
    let first = names.iter().position(|name| Some(name.as_os_str()) == affected.path.file_name()).unwrap();
    let run = names.iter().skip(first).take(usize::try_from(entries).unwrap());
    run.map(|name| directory.join(name)).collect()
}

/// Restores a snapshot as far as it can be.
fn restores(world: &World, store: &Store, snapshot: &Snapshot) -> Option<MemTree> {
    world.restore(store, snapshot).ok().map(|(restored, _)| restored)
}

fn files(source: &MemTree) -> Vec<PathBuf> {
    let mut todo = vec![PathBuf::from("/")];
    let mut files = Vec::new();
    while let Some(path) = todo.pop() {
        match SourceTree::metadata(source, &path).unwrap().kind {
            EntryKind::Directory => {
                todo.extend(SourceTree::list(source, &path).unwrap().iter().map(|name| path.join(name)));
            }
            EntryKind::File => files.push(path),
            _ => {}
        }
    }
    files
}

pub(super) fn contents(tree: &MemTree, path: &Path) -> Option<Vec<u8>> {
    let len = SourceTree::metadata(tree, path).ok()?.size;
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    let read = tree.open(path).unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(read, bytes.len());
    Some(bytes)
}

fn same(source: &MemTree, restored: &MemTree, path: &Path) -> bool {
    contents(source, path) == contents(restored, path)
}

/// Says whether a finding names an object; a container that is gone can only be named by its number, or, if it was the
/// last of its session, by the session.
fn is_named(world: &World, report: &CheckReport, path: &Path) -> bool {
    let repo = world.repo();
    let mut names = vec![repo.display(path)];
    if let (Some(container), false) = (container_of(path), repo.exists(path).unwrap()) {
        names.push(repo.display(&Path::new("containers").join(container.id.to_string())));
        names.push(repo.display(path.parent().unwrap()));
    }
    report.findings.iter().any(|finding| names.contains(&finding.object))
}

fn container_of(path: &Path) -> Option<ContainerName> {
    let name = path.file_name()?.to_str()?;
    let session = SessionId::parse(path.parent()?.file_name()?.to_str()?)?;
    ContainerName::parse(session, name)
}

fn listed(disk: &dyn Disk, directory: &str) -> Vec<PathBuf> {
    let entries = disk.list(Path::new(directory)).unwrap();
    entries.iter().map(|entry| Path::new(directory).join(&entry.name)).collect()
}

fn containers(base: &Base) -> Vec<ContainerName> {
    container_names(&base.world.open().unwrap())
}

fn lengths(len: usize) -> [Damage; 5] {
    [0, 1, len / 3, len / 2, len - 1].map(Damage::Truncate)
}

fn object_len(base: &Base, path: &Path) -> usize {
    read_file(&*base.world.repo(), path, LEN_MAX).unwrap().len()
}

/// Damage of every sort: lengths, and one bit in every `stride` bytes.
fn damages(len: usize, stride: usize) -> Vec<Damage> {
    let flips = (0..len).step_by(stride).map(Damage::Flip);
    [Damage::Delete].into_iter().chain(lengths(len)).chain(flips).collect()
}

const NONE: &[ReadData] = &[ReadData::None];

#[test]
fn one_sound_copy_of_config_and_key_slot_is_enough_and_the_other_is_named() {
    let base = base(1);
    let other = World::new(99);
    other.create(SMALL).unwrap();
    let foreign = |path: &str| read_file(&*other.repo(), Path::new(path), LEN_MAX).unwrap();
    let newest = base.snapshots.last().unwrap();
    for path in ["config", "config.copy"].map(Path::new) {
        let mut all = damages(object_len(&base, path), 7);
        all.push(Damage::Flip(4));
        all.push(Damage::Replace(foreign("config.copy")));
        for damage in all {
            let world = base.names(path, &damage, NONE);
            let store = world.open().unwrap();
            if !matches!(damage, Damage::Flip(at) if at % 5 != 0) {
                assert_eq!(restores(&world, &store, &newest.1).unwrap().diff(&newest.2), Vec::<String>::new());
            }
        }
    }
    let slots = listed(&*base.world.repo(), "keys");
    assert_eq!(slots.len(), 4);
    for path in &slots {
        let mut all = damages(object_len(&base, path), 11);
        all.push(Damage::Flip(4));
        all.push(Damage::Replace(foreign(listed(&*other.repo(), "keys")[0].to_str().unwrap())));
        let same_copy = |candidate: &&PathBuf| *candidate != path && candidate.extension() == path.extension();
        all.push(Damage::Swap(slots.iter().find(same_copy).unwrap().clone()));
        for damage in all {
            base.names(path, &damage, NONE);
        }
    }
}

#[test]
fn damaged_sessions_and_commits_are_named_and_other_snapshots_restore() {
    let base = base(2);
    for directory in ["commits", "sessions"] {
        let paths = listed(&*base.world.repo(), directory);
        assert_eq!(paths.len(), 3);
        for (number, path) in paths.iter().enumerate() {
            let mut all = damages(object_len(&base, path), 13);
            // Every field of the header.
            all.extend([0, 4, 6, 7, 8, 24, 40, 44, 48, 80, 112, 116].map(Damage::Flip));
            all.push(Damage::Swap(paths[(number + 1) % 3].clone()));
            for damage in all {
                let world = base.names(path, &damage, NONE);
                if matches!(damage, Damage::Flip(at) if at % 8 != 0) {
                    continue;
                }
                let store = world.open().unwrap();
                let commits = store.read_commits().unwrap();
                let listed: BTreeSet<SessionId> = commits.snapshots().iter().map(|(session, _)| *session).collect();
                for (session, snapshot, source) in &base.snapshots {
                    let is_hit = directory == "commits" && !listed.contains(session);
                    if !is_hit {
                        assert_eq!(restores(&world, &store, snapshot).unwrap().diff(source), Vec::<String>::new());
                    }
                }
                let lost = match (directory, &damage) {
                    ("commits", Damage::Swap(_)) => 2,
                    ("commits", _) => 1,
                    _ => 0,
                };
                assert_eq!(listed.len(), 3 - lost, "{}: {damage:?}", path.display());
            }
        }
    }
}

#[test]
fn damaged_steps_of_forgetting_and_collecting_are_named() {
    let mut base = base(10);
    let store = base.world.open().unwrap();
    let repo = base.world.repo();
    let put = |path: &str, object_type, session, ordinal, body: &[u8]| {
        let identity = (store.config.repository, session, ordinal);
        let bytes = seal_small(&store.keys, &*store.host, object_type, identity, body).unwrap();
        repo.create(Path::new(path)).unwrap().write_at(0, &bytes).unwrap();
        PathBuf::from(path)
    };
    let sessions: Vec<SessionId> = base.snapshots.iter().map(|(session, _, _)| *session).collect();
    let forget = |session: SessionId| put(&format!("forget/{session}"), ObjectType::Forget, session, 0, &[]);
    let forgotten = [forget(sessions[0]), forget(sessions[1])];
    repo.create_dir(Path::new("gc/00000001")).unwrap();
    let collect = |name: &str, step| {
        let body = CollectionBody::new(step, Vec::new());
        put(&format!("gc/00000001/{name}"), ObjectType::Collection, sessions[2], 1, &body.encode())
    };
    let collected = [collect("begin", CollectionStep::Begin), collect("condemn", CollectionStep::Condemn)];
    let report = Base::check(&base.world, ReadData::None);
    assert_eq!((report.findings, report.snapshots), (Vec::new(), 1));
    base.snapshots.clear();
    for [path, other] in [forgotten, collected] {
        let mut all = damages(object_len(&base, &path), 17);
        // What is deleted undoes the step, and is as if it had never been taken.
        all.remove(0);
        all.push(Damage::Swap(other));
        for damage in all {
            let world = base.names(&path, &damage, NONE);
            // What does not open hides nothing.
            let commits = world.open().unwrap().read_commits().unwrap();
            let expected = match damage {
                _ if !path.starts_with("forget") => 1,
                // Neither is that of its name.
                Damage::Swap(_) => 3,
                _ => 2,
            };
            assert_eq!(commits.snapshots().len(), expected, "{}: {damage:?}", path.display());
            assert_eq!(commits.not_forgotten.len(), expected - 1);
        }
    }
}

#[test]
fn a_vanished_newest_snapshot_is_told_by_a_host_that_has_seen_it() {
    let base = base(3);
    let newest = base.snapshots.last().unwrap().0;
    let path = PathBuf::from(format!("commits/{newest}"));
    let world = base.names(&path, &Damage::Delete, NONE);
    // It is still told the next time, and after a backup that cannot know of it.
    assert!(!Base::check(&world, ReadData::None).is_sound());
    let store = world.open().unwrap();
    world.backup(&store, &base.snapshots[2].2, &Ask::default()).unwrap();
    let report = Base::check(&world, ReadData::None);
    assert!(is_named(&world, &report, &path));
    assert!(report.findings[0].problem.contains("seen before from this host"), "{:?}", report.findings);
    // A host that has not seen it cannot know: the session looks like one that was interrupted.
    world.cache().remove(Path::new("heads")).unwrap();
    assert_eq!(Base::check(&world, ReadData::None).findings, []);
}

/// Damage to all parts of a container but its regions: a check names it without reading these.
/// A commit that another one has seen is gone if it is not there. One that is there and cannot be read is a finding, and not gone.
#[test]
fn a_commit_that_cannot_be_read_is_not_told_to_be_gone() {
    let base = base(4);
    let seen = base.snapshots[1].0;
    let path = PathBuf::from(format!("commits/{seen}"));
    for (damage, gone, unread) in [(Damage::Delete, vec![seen], 0), (Damage::Flip(100), vec![], 1)] {
        let commits = base.damaged(&path, &damage).open().unwrap().read_commits().unwrap();
        assert_eq!(commits.gone().map(|(head, _)| head.session).collect::<Vec<_>>(), gone, "{damage:?}");
        assert_eq!(commits.findings.len(), unread, "{damage:?}");
    }
}

fn directory_damages(base: &Base, name: &ContainerName, random: &mut SplitMix64) -> Vec<Damage> {
    let bytes = read_file(&*base.world.repo(), &name.path(), LEN_MAX).unwrap();
    let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let trailer = bytes.len() - 64;
    let (front_len, back, back_len) = (field(trailer + 4), field(trailer + 8), field(trailer + 12));
    assert_eq!(front_len, field(112));
    assert_eq!(back + back_len, trailer);
    let header = [0, 4, 5, 6, 7, 8, 24, 40, 44, 48, 80, 112, 116, 127];
    let fields = [0, 4, 8, 12, 16, 20, 24, 55, 56, 60].map(|at| trailer + at);
    let regions_end = 128 + front_len + field(trailer + 16);
    let padding = (regions_end < back).then(|| regions_end + random.index(back - regions_end));
    let directories = [(128, front_len), (back, back_len)].map(|(at, len)| at + random.index(len));
    let flips = header.into_iter().chain(fields).chain(directories).chain(padding).map(Damage::Flip);
    flips.chain(lengths(bytes.len())).collect()
}

#[test]
fn damaged_containers_are_named_without_reading_their_data() {
    let base = base(4);
    let mut random = SplitMix64::new(4);
    let containers = containers(&base);
    for name in &containers {
        for damage in directory_damages(&base, name, &mut random) {
            base.names(&name.path(), &damage, NONE);
        }
    }
}

#[test]
fn lost_containers_hit_the_files_that_are_named_and_no_others() {
    let base = base(5);
    let containers = containers(&base);
    for kind in [ContainerKind::Data, ContainerKind::Metadata] {
        let alike: Vec<&ContainerName> = containers.iter().filter(|name| name.kind == kind).collect();
        assert!(1 < alike.len());
        for (number, name) in alike.iter().enumerate() {
            let path = name.path();
            let other = alike[(number + 1) % alike.len()].path();
            for damage in [Damage::Delete, Damage::Truncate(200), Damage::Flip(50), Damage::Swap(other)] {
                for read in [ReadData::None, ReadData::All] {
                    let world = base.names(&path, &damage, &[read]);
                    let report = Base::check(&world, read);
                    let context = format!("{}: {damage:?}", path.display());
                    assert_ne!(base.restores_what_is_not_hit(&world, &report, &context), 0, "{context}");
                }
            }
        }
    }
}

#[test]
fn flipped_bits_anywhere_in_a_container_are_named_by_reading_the_data() {
    let base = base(6);
    let mut random = SplitMix64::new(6);
    let containers = containers(&base);
    let (mut hits, mut quiet) = (0, 0);
    for _ in 0..100 {
        let name = containers[random.index(containers.len())];
        let bytes = read_file(&*base.world.repo(), &name.path(), LEN_MAX).unwrap();
        let front_len = u32::from_le_bytes(bytes[112..116].try_into().unwrap()) as usize;
        let trailer = bytes.len() - 64;
        let back = u32::from_le_bytes(bytes[trailer + 8..trailer + 12].try_into().unwrap()) as usize;
        let start = 128 + front_len;
        let damage = Damage::Flip(start + random.index(back - start));
        let world = base.names(&name.path(), &damage, &[ReadData::All]);
        let report = Base::check(&world, ReadData::All);
        let context = format!("{}: {damage:?}", name.path().display());
        match base.restores_what_is_not_hit(&world, &report, &context) {
            0 => quiet += 1,
            _ => hits += 1,
        }
    }
    println!("{hits} hit files, {quiet} hit padding or what another copy heals");
    assert!(20 < hits);
}

#[test]
fn a_damaged_container_that_is_moved_away_is_healed_by_the_next_backup() {
    let base = base(7);
    let data = containers(&base).into_iter().find(|name| name.kind == ContainerKind::Data).unwrap();
    let path = data.path();
    let front = 128
        + u32::from_le_bytes(read_file(&*base.world.repo(), &path, LEN_MAX).unwrap()[112..116].try_into().unwrap())
            as usize;
    let world = base.names(&path, &Damage::Flip(front + 5), &[ReadData::All]);
    let quarantined = PathBuf::from(format!("{}.bad", path.display()));
    world.repo().rename(&path, &quarantined).unwrap();
    let report = Base::check(&world, ReadData::None);
    assert!(!report.is_sound() && is_named(&world, &report, &quarantined), "{:#?}", report.findings);
    let store = world.open().unwrap();
    let (_, _, source) = &base.snapshots[0];
    world.backup(&store, source, &Ask { with_parent: true, ..Ask::default() }).unwrap();
    world.backup(&store, &base.snapshots[2].2, &Ask { with_parent: true, ..Ask::default() }).unwrap();
    let report = Base::check(&world, ReadData::All);
    assert!(report.is_sound(), "{:#?}", report.findings);
    let objects: Vec<&str> = report.findings.iter().map(|finding| finding.object.as_str()).collect();
    assert_eq!(objects, [world.repo().display(&quarantined)]);
    // Nor is it needed any more where nothing tells that it was set aside.
    world.repo().remove(&quarantined).unwrap();
    let report = Base::check(&world, ReadData::None);
    assert!(report.is_sound() && is_named(&world, &report, &path), "{:#?}", report.findings);
    for (_, snapshot, source) in &base.snapshots {
        let restored = restores(&world, &store, snapshot).unwrap();
        for path in files(source) {
            assert!(same(source, &restored, &path), "{}", path.display());
        }
    }
}

/// The index answers for the chunks of a container without opening it, so it must notice that the file was cut.
#[test]
fn a_container_that_was_cut_is_named_by_the_next_backup_and_what_it_held_is_stored_again() {
    let base = base(8);
    let (_, _, source) = &base.snapshots[2];
    for name in containers(&base) {
        let path = name.path();
        let len = object_len(&base, &path);
        for cut in [0, len / 2, len - 1] {
            for cache in ["kept", "lost"] {
                let case = format!("{}: cut to {cut} of {len}, cache {cache}", path.display());
                let mut world = base.damaged(&path, &Damage::Truncate(cut));
                if cache == "lost" {
                    world = lose_cache(&world);
                }
                let store = world.open().unwrap();
                for round in ["first", "second"] {
                    let notes = Arc::new(Notes::default());
                    let ask = Ask { with_parent: true, monitor: Arc::<Notes>::clone(&notes), ..Ask::default() };
                    let outcome = world.backup(&store, source, &ask).unwrap();
                    let failures = notes.failures.lock().unwrap().clone();
                    let object = world.repo().display(&path);
                    let named = failures.iter().filter(|failure| failure.contains(&object)).count();
                    assert_eq!(named, 1, "{case}: {round} backup: {failures:?}");
                    let restored = restores(&world, &store, &outcome.report.snapshot).unwrap();
                    assert_eq!(source.diff(&restored), Vec::<String>::new(), "{case}: {round} backup");
                }
            }
        }
    }
}

/// Empties the host's cache.
pub(super) fn lose_cache(world: &World) -> World {
    let world = world.on(world.disk.fork());
    let _lost = world.disk.subdir("lost");
    world.disk.rename(Path::new("cache"), Path::new("lost/cache")).unwrap();
    world
}

/// Damages every region of a container, and nothing else of it.
fn damage_regions(world: &World, name: &ContainerName) {
    let reader = world.open().unwrap().open_container(name).unwrap();
    let file = world.repo().open(&name.path(), Access::ReadWrite).unwrap();
    for region in 0..u32::try_from(reader.directory.regions.len()).unwrap() {
        let (offset, _) = reader.region_range(region).unwrap();
        let mut byte = [0];
        file.read_at(offset, &mut byte).unwrap();
        file.write_at(offset, &[byte[0] ^ 1]).unwrap();
    }
}

#[test]
fn a_chunk_of_a_damaged_region_comes_from_another_container_that_has_it() {
    for kind in [ContainerKind::Data, ContainerKind::Metadata] {
        println!("seed 10, {kind:?}");
        let world = World::new(10);
        let store = world.create(SMALL).unwrap();
        let source = tree(FILES);
        let snapshot = world.backup(&store, &source, &Ask::default()).unwrap().report.snapshot;
        let listed = || -> Vec<ContainerName> {
            let names = container_names(&store).into_iter();
            names.filter(|name| name.kind == kind).collect()
        };
        // A second backup, which does not see one of the containers, stores what it holds once more.
        let (before, repo, hidden) = (listed(), world.repo(), Path::new("hidden"));
        repo.rename(&before[0].path(), hidden).unwrap();
        world.backup(&store, &source, &Ask::default()).unwrap();
        repo.rename(hidden, &before[0].path()).unwrap();
        assert_ne!(stored_twice(&store), []);
        damage_regions(&world, &before[0]);
        let (restored, report) = world.restore(&store, &snapshot).unwrap();
        assert_eq!(report.failures, 0);
        assert_eq!(report.chunks_recovered != 0, kind == ContainerKind::Data);
        for path in files(&source) {
            assert!(same(&source, &restored, &path), "{}", path.display());
            assert_eq!(dumped(&world, &store, &snapshot, &path), contents(&source, &path), "{}", path.display());
        }
        // With no sound copy left, it is told what is lost.
        listed().iter().filter(|name| !before.contains(name)).for_each(|name| damage_regions(&world, name));
        assert!(world.restore(&store, &snapshot).map_or(true, |(_, report)| 0 < report.failures));
    }
}

#[test]
fn chunks_whose_names_are_lost_are_reported_when_chunks_are_listed() {
    let world = World::new(11);
    let store = world.create(SMALL).unwrap();
    world.backup(&store, &tree(FILES), &Ask::default()).unwrap();
    let list = || {
        let mut count = 0;
        let unreadable = list_chunks(&store, &world.scratch(), &Silent, &mut |_, _| {
            count += 1;
            Ok(())
        });
        (unreadable.unwrap(), count)
    };
    let (unreadable, all) = list();
    assert!(unreadable.is_empty(), "{unreadable:?}");
    let name = container_names(&store)[0];
    damage_regions(&world, &name);
    // Behind the header the front directory begins, which alone has names.
    let file = world.repo().open(&name.path(), Access::ReadWrite).unwrap();
    file.write_at(128, &[0; 16]).unwrap();
    let (unreadable, listed) = list();
    assert_eq!(unreadable.len(), 1, "{unreadable:?}");
    let sentence = unreadable[0].to_string();
    assert!(sentence.contains(name.path().to_str().unwrap()) && sentence.contains("chunks"), "{sentence}");
    assert!(listed < all);
}

/// Returns the request of a check with little memory.
pub(super) fn check_request(world: &World, read: ReadData) -> CheckRequest {
    CheckRequest {
        snapshots: CheckedSnapshots::All,
        read,
        scratch: world.scratch(),
        memory_bytes: 16 << 20,
        driver: Driver::inline(1),
        seed: Some(1),
        heads: Some(heads_on(&world.cache())),
        accelerator: None,
    }
}

/// Returns what `dump` writes of a file, if it can.
fn dumped(world: &World, store: &Store, snapshot: &Snapshot, path: &Path) -> Option<Vec<u8>> {
    let (scratch, memory) = (world.scratch(), 16 << 20);
    let containers = store.list_containers(&scratch).unwrap();
    let mut reader = MetadataReader::open(store, &containers, &scratch, MetadataMemory::of(memory)).unwrap();
    let mut fetcher = Fetcher::new(store, &containers, &scratch, &Driver::inline(1), memory);
    let found = find_entry(&mut reader, snapshot.tree, path).unwrap().unwrap();
    let mut bytes = Vec::new();
    let outcome = dump(&mut reader, &mut fetcher, &found, &mut |more| {
        bytes.extend_from_slice(more);
        Ok(())
    });
    outcome.ok().map(|()| bytes)
}

#[test]
fn what_does_not_belong_there_is_told_and_is_no_damage() {
    let base = base(8);
    let world = base.world.on(base.world.disk.fork());
    let repo = world.repo();
    let session = base.snapshots[0].0;
    let unknown_files =
        ["lost+found", "keys/readme", "sessions/x", "commits/x", "gc/x", &format!("containers/{session}/d00.bad")]
            .map(str::to_owned);
    for path in &unknown_files {
        repo.create(Path::new(path)).unwrap();
    }
    repo.create(Path::new("tmp/leftover")).unwrap();
    let report = Base::check(&world, ReadData::All);
    assert!(report.is_sound(), "{:#?}", report.findings);
    let objects: BTreeSet<String> = report.findings.iter().map(|finding| finding.object.clone()).collect();
    assert_eq!(objects, unknown_files.iter().map(|path| repo.display(Path::new(path))).collect());
    assert_eq!(report.leftovers, 1);
}

#[test]
fn parts_make_up_the_whole_and_drivers_agree() {
    let base = base(9);
    let containers = containers(&base).len() as u64;
    let whole = Base::check(&base.world, ReadData::All);
    let parts: Vec<CheckReport> =
        (1..=3).map(|index| Base::check(&base.world, ReadData::Subset { index, of: 3 })).collect();
    assert_eq!(whole.containers, containers);
    assert!(parts.iter().all(|part| part.containers == containers && 0 < part.bytes_read));
    assert_eq!(parts.iter().map(|part| part.bytes_read).sum::<u64>(), whole.bytes_read);
    assert_eq!(parts.iter().map(|part| part.chunks_read).sum::<u64>(), whole.chunks_read);
    let half = Base::check(&base.world, ReadData::Percent(50.0));
    assert!(0 < half.bytes_read && half.bytes_read < whole.bytes_read);
    let store = base.world.open().unwrap();
    let request = CheckRequest {
        snapshots: CheckedSnapshots::All,
        read: ReadData::All,
        scratch: base.world.scratch(),
        memory_bytes: 16 << 20,
        driver: Driver::threads(3),
        seed: None,
        heads: None,
        accelerator: None,
    };
    let threaded = check(&store, &request, &Silent).unwrap();
    assert_eq!((threaded.findings, threaded.chunks_read), (whole.findings, whole.chunks_read));
}
