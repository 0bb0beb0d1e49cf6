//! Crashes at every point of a run, and media with something else on them.

use std::collections::HashMap;

use onefold_engine::identify::{Identifier, Resolved, SequencedChunk, Unit, Verdict};
use onefold_engine::types::{Chunk, ContainerId, Fingerprint, Sequence};

use crate::mapped::identify_tests::{Caller, seeds, tiny};
use crate::mapped::recorder::{Event, Playback, Recorder};
use crate::mapped::{MappedIndex, MappedOptions, MappedState};
use crate::stream::{Random, name};

type Containers = HashMap<ContainerId, Vec<Fingerprint>>;

/// What was stored when a run had come to a mark. A container is stored before it is recorded, so that one is ahead.
#[derive(Clone, Debug, Default)]
struct Step {
    recorded: Containers,
    stored: Containers,
}

/// Runs a small workload that grows, moves slots, forgets and takes over; marks each step.
fn record_run(options: &MappedOptions, random: &mut Random) -> (Vec<Event>, Vec<Step>, u64) {
    let recorder = Recorder::default();
    let mut steps = vec![Step::default()];
    let (mut caller, _) = Caller::open(recorder.clone(), options, 0);
    let mut next_chunk = 0;
    for _ in 0..8 {
        let new = random.below(24) + 1;
        let start = random.below(next_chunk + 1);
        let numbers = (next_chunk..next_chunk + new).chain(start..(start + 10).min(next_chunk));
        next_chunk += new;
        caller.submit(&numbers.map(name).collect::<Vec<_>>());
        if random.below(4) == 0 {
            let victim = caller.containers.keys().min().copied();
            if let Some(victim) = victim {
                // It may be known or not while it is being forgotten; whoever forgets it deletes it afterward.
                let stored = caller.containers.clone();
                let recorded = stored.iter().filter(|(id, _)| **id != victim).map(|(id, chunks)| (*id, chunks.clone()));
                steps.push(Step { recorded: recorded.collect(), stored });
                recorder.mark(steps.len() - 1);
                caller.forget(victim);
                let containers = caller.containers.clone();
                steps.push(Step { recorded: containers.clone(), stored: containers });
                recorder.mark(steps.len() - 1);
            }
        }
        if random.below(4) != 0 {
            let before = caller.containers.clone();
            caller.pack(usize::try_from(random.below(40)).unwrap() + 1);
            // What is being recorded is stored already.
            if let Some(step) = steps.last_mut() {
                step.stored = caller.containers.clone();
                step.recorded = before;
            }
            let containers = caller.containers.clone();
            steps.push(Step { recorded: containers.clone(), stored: containers });
            recorder.mark(steps.len() - 1);
        }
    }
    (recorder.events(), steps, next_chunk)
}

/// Opens what a crash has left; what was recorded must be there, what is said to be stored must be, and all goes on.
fn check(words: Vec<u64>, options: &MappedOptions, step: &Step, chunks: u64) -> (MappedState, usize) {
    let recorder = Recorder::of(words);
    let (mut caller, state) = Caller::open(recorder.clone(), options, 100);
    let missing = caller.attach(step.stored.clone());
    assert!(missing.iter().all(|container| !step.recorded.contains_key(container)), "{missing:?} were recorded");
    // The caller checks each verdict: exact from here on, with the containers as they are.
    let all: Vec<_> = (0..chunks + 20).map(name).collect();
    caller.submit(&all);
    let stored: usize = step.stored.values().map(Vec::len).sum();
    assert_eq!(caller.packing.len() + stored, all.len());
    caller.pack(30);
    caller.pack(usize::MAX);
    caller.submit(&all);
    assert!(caller.packing.is_empty());
    let containers = std::mem::take(&mut caller.containers);
    drop(caller);
    let (mut caller, _) = Caller::open(recorder, options, 200);
    assert!(caller.attach(containers).is_empty());
    caller.submit(&all);
    assert!(caller.packing.is_empty());
    (state, missing.len())
}

#[test]
fn a_crash_at_any_store_flush_or_fence_loses_nothing_recorded_and_invents_nothing() {
    let mut seen: HashMap<&'static str, u64> = HashMap::new();
    for (seed, mut random) in seeds(0..8) {
        // The cache and the filter are in memory and cannot be torn: what differs here is what the table does.
        let options = MappedOptions { load_max: if seed % 2 == 0 { 1.0 } else { 0.9 }, ..tiny(seed) };
        let (events, steps, chunks) = record_run(&options, &mut random);
        let mut playback = Playback::default();
        let mut step = 0;
        for event in &events {
            playback.play(event);
            if let Event::Mark(mark) = event {
                step = *mark;
            }
            let mut images = vec![playback.with_prefix(0), playback.with_prefix(playback.unfenced())];
            if 1 < playback.unfenced() {
                images.push(playback.with_subset(&mut random));
                images.push(playback.with_subset(&mut random));
            }
            images.dedup();
            for words in images {
                let (state, missing) = check(words, &options, &steps[step], chunks);
                let mut add = |name: &'static str, count: u64| *seen.entry(name).or_insert(0) += u64::from(0 < count);
                match state {
                    MappedState::New => add("new", 1),
                    MappedState::Rebuilt(_) => {
                        assert_eq!(step, 0, "what was made once is not made anew");
                        add("unfinished", 1);
                    }
                    MappedState::Opened(recovery) => {
                        assert_eq!(recovery.damaged, 0, "a crash is no damage");
                        add("torn", recovery.torn);
                        add("cleared", recovery.slots_cleared);
                        add("added", recovery.slots_added);
                        add("unrecorded", recovery.unrecorded);
                    }
                }
                add("missing", missing as u64);
            }
        }
    }
    let all = ["new", "unfinished", "torn", "cleared", "added", "unrecorded", "missing"];
    assert!(all.iter().all(|name| 0 < seen[name]), "{seen:?}");
}

#[test]
fn every_prefix_of_the_stores_between_two_fences_is_a_state_that_opens() {
    for (seed, mut random) in seeds(100..103) {
        let options = tiny(seed);
        let (events, steps, chunks) = record_run(&options, &mut random);
        let mut playback = Playback::default();
        let mut step = 0;
        for event in &events {
            if *event == Event::Fence {
                for count in 0..=playback.unfenced() {
                    check(playback.with_prefix(count), &options, &steps[step], chunks);
                }
            }
            playback.play(event);
            if let Event::Mark(mark) = event {
                step = *mark;
            }
        }
    }
}

#[test]
fn a_crash_while_a_crash_is_recovered_from_changes_nothing() {
    for (seed, mut random) in seeds(200..204) {
        let options = tiny(seed);
        let (events, steps, chunks) = record_run(&options, &mut random);
        for _ in 0..20 {
            let until = usize::try_from(random.below(events.len() as u64)).unwrap();
            let mut playback = Playback::default();
            events[..until].iter().for_each(|event| playback.play(event));
            let marks = events[..until].iter().filter_map(|event| match event {
                Event::Mark(mark) => Some(*mark),
                _ => None,
            });
            let step = &steps[marks.max().unwrap_or(0)];
            let words = playback.with_subset(&mut random);
            let recorder = Recorder::of(words.clone());
            let (mut caller, _) = Caller::open(recorder.clone(), &options, 50);
            caller.attach(step.stored.clone());
            drop(caller);
            let mut playback = Playback::of(words);
            for event in recorder.events() {
                playback.play(&event);
                check(playback.with_subset(&mut random), &options, step, chunks);
            }
        }
    }
}

/// Opens a medium that may hold anything, and uses it; whatever it says is stored must be.
fn use_damaged(words: Vec<u64>, options: &MappedOptions, containers: &Containers, chunks: u64) -> MappedState {
    let (mut index, state) = MappedIndex::open(Recorder::of(words), options).unwrap();
    let mut live: Vec<_> = containers.keys().copied().collect();
    live.sort_unstable();
    let record = |index: &mut MappedIndex<Recorder>, container: ContainerId, chunks: &[Fingerprint]| {
        let chunk = |&fingerprint| Chunk { fingerprint, len: 8192 };
        let chunks: Vec<_> = chunks.iter().map(chunk).collect();
        index.record(Unit { container, len: 0, chunks: &chunks })
    };
    for container in index.attach(&live).unwrap() {
        // A table that damage has filled may have no place left: an error is an answer, a panic is none.
        if record(&mut index, container, &containers[&container]).is_err() {
            return state;
        }
    }
    let names: Vec<_> = (0..chunks + 20).map(name).collect();
    for round in 0..2 {
        let numbered = (round * names.len() as u64..).zip(&names);
        let batch: Vec<_> = numbered
            .map(|(number, &fingerprint)| SequencedChunk::data(Sequence(number), Chunk { fingerprint, len: 8192 }))
            .collect();
        let mut resolved = Vec::new();
        if index.submit(&batch, &mut resolved).is_err() {
            return state;
        }
        for (SequencedChunk { chunk, .. }, Resolved { verdict, .. }) in batch.iter().zip(resolved) {
            match verdict {
                Verdict::Unique => {}
                Verdict::SameAs(first) => {
                    let index = usize::try_from(first.0).unwrap() % names.len();
                    assert_eq!(names[index], chunk.fingerprint, "the same as another");
                }
                Verdict::Stored(container) => {
                    let holds = containers.get(&container).is_some_and(|chunks| chunks.contains(&chunk.fingerprint));
                    assert!(holds, "{container} does not hold {:?}", chunk.fingerprint);
                }
            }
        }
    }
    state
}

#[test]
fn random_bytes_are_no_store_and_never_panic() {
    for (seed, mut random) in seeds(0..200) {
        let words = (0..random.below(2_000)).map(|_| random.bits()).collect::<Vec<_>>();
        let is_empty = words.is_empty();
        let state = use_damaged(words, &tiny(seed), &Containers::new(), 50);
        assert!(is_empty || matches!(state, MappedState::Rebuilt(_)), "{state:?}");
    }
}

#[test]
fn damage_anywhere_on_the_medium_may_cost_duplicates_and_never_invents() {
    let mut seen: HashMap<&'static str, u64> = HashMap::new();
    for (seed, mut random) in seeds(300..312) {
        let options = tiny(seed);
        let (events, steps, chunks) = record_run(&options, &mut random);
        let mut playback = Playback::default();
        for event in &events {
            playback.play(event);
        }
        let whole = playback.with_prefix(playback.unfenced());
        let containers = &steps.last().unwrap().stored;
        for round in 0..400 {
            let mut words = whole.clone();
            let mut place = || usize::try_from(random.below(words.len() as u64)).unwrap();
            let places: Vec<_> = (0..=round % 8).map(|_| place()).collect();
            for place in places {
                // Most of the first page is empty: what it holds is hit more often than by chance.
                let place = if random.below(8) == 0 { [0, 1, 8, 16, 64, 65, 128, 129][place % 8] } else { place };
                match random.below(4) {
                    0 => words[place] ^= 1 << random.below(64),
                    1 => words[place] = random.bits(),
                    2 => words[place] = whole[usize::try_from(random.below(whole.len() as u64)).unwrap()],
                    _ => words[place] = 0,
                }
            }
            if random.below(16) == 0 {
                words.truncate(usize::try_from(random.below(whole.len() as u64)).unwrap());
            }
            let state = use_damaged(words, &options, containers, chunks);
            let name = match state {
                MappedState::New => "new",
                MappedState::Rebuilt(_) => "rebuilt",
                MappedState::Opened(recovery) if recovery.damaged + recovery.torn != 0 => "damaged",
                MappedState::Opened(_) => "opened",
            };
            *seen.entry(name).or_insert(0) += 1;
        }
    }
    for name in ["rebuilt", "damaged", "opened"] {
        assert!(0 < seen[name], "{seen:?}");
    }
}
