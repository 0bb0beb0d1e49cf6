//! Versions through a repository with an index that is a model: what is referred to is stored, in order, and what is stored twice was
//! rewritten or missed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use onefold_engine::identify::{Counters, Identifier, Resolved, SequencedChunk, Unit, Verdict};
use onefold_engine::io::os::OsHost;
use onefold_engine::types::Sequence;

use super::*;
use crate::replay::{Drawn, Replay, Source};
use crate::stream::{Random, name};

/// An index that remembers everything, or forgets one of `forgets` chunks, and answers late and from the last chunk to the first.
#[derive(Debug, Default)]
struct Model {
    forgets: u64,
    contents: HashMap<u32, Vec<u64>>,
    newest: HashMap<u64, u32>,
    in_flight: HashMap<u64, Sequence>,
    live: HashSet<u32>,
    shunned: HashSet<u32>,
    waiting: Vec<SequencedChunk>,
}

impl Model {
    fn answer(&mut self, resolved: &mut Vec<Resolved>) {
        let mut answers = Vec::new();
        for SequencedChunk { sequence, chunk, .. } in self.waiting.drain(..) {
            let key = brief(&chunk.fingerprint);
            let is_usable = |container: &&u32| self.live.contains(container) && !self.shunned.contains(container);
            let stored = self.newest.get(&key).filter(is_usable);
            let verdict = match (self.in_flight.get(&key), stored) {
                (Some(first), _) => Verdict::SameAs(*first),
                (None, Some(ordinal)) if self.forgets == 0 || !sequence.0.is_multiple_of(self.forgets) => {
                    Verdict::Stored(container(*ordinal))
                }
                _ => {
                    self.in_flight.insert(key, sequence);
                    Verdict::Unique
                }
            };
            answers.push(Resolved { sequence, verdict });
        }
        resolved.extend(answers.into_iter().rev());
    }
}

impl Identifier for Model {
    fn submit(&mut self, chunks: &[SequencedChunk], resolved: &mut Vec<Resolved>) -> onefold_engine::Result<()> {
        for chunk in chunks {
            self.waiting.push(*chunk);
            if self.waiting.len() == 7 {
                self.answer(resolved);
            }
        }
        Ok(())
    }

    fn supersede(&mut self, chunk: &SequencedChunk) -> onefold_engine::Result<()> {
        self.in_flight.insert(brief(&chunk.chunk.fingerprint), chunk.sequence);
        Ok(())
    }

    fn shun(&mut self, containers: &[ContainerId]) -> onefold_engine::Result<()> {
        self.shunned = containers.iter().map(|container| container.ordinal).collect();
        Ok(())
    }

    fn is_exact(&self) -> bool {
        self.forgets == 0
    }

    fn drain(&mut self, resolved: &mut Vec<Resolved>) -> onefold_engine::Result<()> {
        self.answer(resolved);
        Ok(())
    }

    fn record(&mut self, unit: Unit<'_>) -> onefold_engine::Result<()> {
        let ordinal = unit.container.ordinal;
        let keys: Vec<_> = unit.chunks.iter().map(|chunk| brief(&chunk.fingerprint)).collect();
        for key in &keys {
            self.newest.insert(*key, ordinal);
            self.in_flight.remove(key);
        }
        self.live.insert(ordinal);
        assert!(self.contents.insert(ordinal, keys).is_none(), "container {ordinal} is recorded once");
        Ok(())
    }

    fn forget(&mut self, _containers: &[ContainerId]) -> onefold_engine::Result<()> {
        Ok(())
    }

    fn pending(&self) -> usize {
        self.waiting.len()
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// The chunks of a version, in files of five.
struct Listed<'a>(std::iter::Enumerate<std::slice::Iter<'a, u64>>);

impl Source for Listed<'_> {
    fn draw(&mut self) -> Result<Option<Drawn>> {
        Ok(self.0.next().map(|(at, number)| Drawn { begins_file: at % 5 == 0, is_new: None, ..drawn(*number) }))
    }
}

fn drawn(number: u64) -> Drawn {
    let len = 50 + u32::try_from(number % 100).unwrap();
    Drawn::inside(Chunk { fingerprint: name(number), len }, false)
}

/// Versions of a source of which parts are replaced and moved, with chunks that come twice.
fn versions(seed: u64) -> Vec<Vec<u64>> {
    let mut random = Random::new(seed);
    let (mut next, mut source, mut versions) = (400, (0..400).collect::<Vec<u64>>(), Vec::new());
    for _ in 0..9 {
        versions.push(source.clone());
        for _ in 0..12 {
            let at = usize::try_from(random.below(source.len() as u64 - 20)).unwrap();
            let new: Vec<u64> = (0..random.below(6)).map(|number| next + number).collect();
            next += new.len() as u64;
            let moved: Vec<u64> = source.splice(at..at + 5, new).collect();
            if random.below(2) == 0 {
                source.extend(moved);
            }
        }
        source.extend_from_within(10..14);
    }
    versions
}

struct Totals {
    index: Model,
    repository: Repository,
    again: StoredAgain,
    unique: u64,
    kept: Vec<Kept>,
}

/// Backs versions up; checks after each that all that is kept can be restored.
fn back_up(versions: &[Vec<u64>], plan: &str, keep_last: Option<u32>, forgets: u64) -> Totals {
    let scratch = tempfile::tempdir().unwrap();
    let restores = Cache::parse_list("lru:2,asm:3,opt:2").unwrap();
    let plan = Plan { rewrite: Rewrite::parse(plan).unwrap(), restores, keep_last, ..Plan::default() };
    let mut index = Model { forgets, ..Model::default() };
    let mut repository = Repository::with_versions(ContainerRule::of_bytes(2000), plan, scratch.path());
    let (mut again, mut unique, mut all) = (StoredAgain::default(), 0, Vec::new());
    for (number, version) in versions.iter().enumerate() {
        index.live = repository.live().into_iter().map(|container| container.ordinal).collect();
        index.in_flight.clear();
        let shunned = repository.shunned();
        index.shun(&shunned).unwrap();
        repository.begin_version().unwrap();
        let mut replay = Replay::new(index, Arc::new(OsHost::new()), repository);
        replay.advance(&mut Listed(version.iter().enumerate()), u64::MAX, true).unwrap();
        assert_eq!(replay.stored_again, 0);
        unique += replay.unique().chunks;
        (index, repository) = replay.finish().unwrap();
        again.add(&repository.again);
        all.push(repository.end_version().unwrap().unwrap());
        for (kept, version) in repository.versions.iter().rev().zip(versions[..=number].iter().rev()) {
            let referred: Vec<_> = references::read(&kept.references).unwrap().map(|it| it.unwrap()).collect();
            let expected = version.iter().map(|number| drawn(*number).chunk);
            let expected: Vec<_> = expected.map(|chunk| (brief(&chunk.fingerprint), chunk.len)).collect();
            let found: Vec<_> = referred.iter().map(|it| (it.fingerprint, it.len)).collect();
            assert_eq!(found, expected, "in the order of the stream");
            for Referred { container, fingerprint, .. } in referred {
                assert!(repository.containers.is_live(container));
                assert!(index.contents[&container].contains(&fingerprint), "container {container} has the chunk");
            }
        }
        let newest = repository.versions.last().unwrap();
        let shunned: HashSet<_> = shunned.into_iter().map(|container| container.ordinal).collect();
        assert!(newest.used.iter().all(|(container, _)| !shunned.contains(container)));
        let marked: BTreeSet<_> = repository
            .versions
            .iter()
            .flat_map(|version| version.used.iter().map(|(container, _)| *container))
            .collect();
        assert_eq!(repository.containers.live().collect::<BTreeSet<_>>(), marked, "no container without a mark");
        assert_eq!(all.last().unwrap().containers, marked.len() as u64);
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), repository.versions.len());
    Totals { index, repository, again, unique, kept: all }
}

#[test]
fn what_is_stored_twice_was_rewritten_and_every_version_can_be_restored() {
    for seed in 0..6 {
        let versions = versions(seed);
        let distinct = versions.iter().flatten().collect::<HashSet<_>>().len() as u64;
        for plan in ["none", "capping", "cbr", "cfl", "har", "har-paper", "har-paper+capping", "har+cbr", "har+cfl"] {
            let Totals { index, again, unique, kept, repository } = back_up(&versions, plan, None, 0);
            let stored = index.contents.values().map(Vec::len).sum::<usize>() as u64;
            assert_eq!((unique, again.missed_chunks), (distinct, 0), "{plan}");
            assert_eq!(stored, distinct + again.rewritten_chunks, "{plan}");
            assert_eq!(repository.containers.stored().0, stored, "{plan}");
            assert_eq!(again.rewritten_chunks != 0, plan != "none", "{plan}: {again:?}");
            let [lru, asm, opt] = kept.last().unwrap().reads[..] else { panic!("three caches") };
            assert!(opt <= lru && kept.last().unwrap().containers_used <= asm, "{plan}: {lru} {asm} {opt}");
        }
    }
}

#[test]
fn an_index_that_is_near_exact_misses_what_is_stored_twice() {
    let versions = versions(7);
    let distinct = versions.iter().flatten().collect::<HashSet<_>>().len() as u64;
    let Totals { index, again, unique, .. } = back_up(&versions, "none", None, 5);
    let stored = index.contents.values().map(Vec::len).sum::<usize>() as u64;
    assert_eq!((unique, again.rewritten_chunks), (distinct, 0));
    assert_eq!(stored, distinct + again.missed_chunks);
    assert!(distinct < stored);
}

#[test]
fn containers_that_no_kept_version_marks_are_reclaimed() {
    let versions = versions(8);
    for plan in ["none", "har-paper", "har-paper+capping"] {
        let all = back_up(&versions, plan, None, 0);
        let Totals { kept, repository, .. } = back_up(&versions, plan, Some(2), 0);
        assert_eq!(repository.versions.len(), 2, "{plan}");
        let reclaimed = kept.iter().map(|kept| kept.containers_reclaimed).sum::<u64>();
        let last = kept.last().unwrap();
        let is_less = reclaimed != 0 && last.containers < all.kept.last().unwrap().containers;
        // Without rewriting, each container has some chunk that the last versions have, too.
        assert_eq!(is_less, plan != "none", "{plan}");
        let bytes: u64 =
            versions.iter().rev().take(2).flatten().map(|number| u64::from(drawn(*number).chunk.len)).sum();
        assert_eq!(last.bytes, bytes, "{plan}");
    }
    // Nothing of the first version is in the second, and what was reclaimed is new in the third.
    let different = [(0..100).collect(), (100..200).collect(), (0..100).collect()];
    let Totals { kept, unique, .. } = back_up(&different, "capping", Some(1), 0);
    let counts: Vec<_> = kept.iter().map(|kept| (kept.containers, kept.containers_reclaimed)).collect();
    let containers = kept[0].containers;
    assert!(1 < containers && unique == 300, "{unique} in {counts:?}");
    assert_eq!(counts, [(containers, 0), (containers, containers), (containers, containers)]);
}

#[test]
fn containers_close_before_a_chunk_that_does_not_fit() {
    let chunk = |len| Chunk { fingerprint: name(1), len };
    let mut containers = Containers::new(Layout::Destor.rule(4 << 20));
    assert_eq!((containers.rule().bytes(), containers.rule().file_bytes()), ((4 << 20) - (32 << 10), 4 << 20));
    for _ in 0..1169 {
        assert!(containers.fits(1));
        assert_eq!(containers.push(chunk(1)).unwrap(), 0);
    }
    assert!(!containers.fits(1));
    containers.close();
    let mut containers = Containers::new(Layout::Chunks.rule(100));
    assert!(containers.fits(5000), "any chunk fits into an empty container");
    containers.push(chunk(60)).unwrap();
    assert!(containers.fits(40) && !containers.fits(41));
    containers.close();
    containers.push(chunk(7)).unwrap();
    assert_eq!((containers.next_number(), containers.stored()), (1, (1, 60)));
    containers.reclaim(0);
    assert_eq!((containers.live().count(), containers.is_live(0), containers.stored()), (0, false, (0, 0)));
}

#[test]
fn ways_and_caches_that_cannot_be_are_refused() {
    let caches = |text: &str| Cache::parse_list(text).map(|list| list.iter().map(Cache::to_string).collect::<Vec<_>>());
    assert_eq!(caches("lru:8, asm:1,opt:256").unwrap(), ["lru:8", "asm:1", "opt:256"]);
    for (text, said) in [
        ("lru:0", "a restore cache has at least one container"),
        ("lru", "lru takes a number of containers, as in lru:32"),
        ("asm:many", "asm takes a number of containers"),
        ("mru:3", "\"mru:3\" is no restore cache"),
        ("opt:3,opt:3", "opt:3 twice"),
        ("", "is no restore cache"),
    ] {
        let refused = caches(text).unwrap_err().to_string();
        assert!(refused.contains(said), "{refused}");
    }
    assert_eq!(Rewrite::parse("none").unwrap(), Rewrite::default());
    assert!(Rewrite::parse("har+capping").is_ok_and(|it| it.history.is_some()));
    for (text, said) in [
        ("none+har", "none stands alone"),
        ("har+har-paper", "one of har and har-paper"),
        ("cbr+capping", "one of cfl, cbr and capping"),
        ("hra", "\"hra\" is no way of rewriting"),
    ] {
        let refused = Rewrite::parse(text).unwrap_err().to_string();
        assert!(refused.contains(said), "{refused}");
    }
}
