use std::sync::Arc;

use super::host_device::{Field, HostDevice, Mood, Script};
use super::{
    Batches, Check, Device, Fault, FaultKind, Frozen, Limits, NameHash, Pool, Range, Rule, Search, Span, TILE_BYTES,
    Wait,
};
use crate::boundary::{Finder, Kernel};
use crate::random::Random;

pub(super) const KEY: [u8; 32] = [0x3C; 32];
pub(super) const LIMITS: Limits = Limits { block_bytes: 2 * TILE_BYTES, blocks: 3, batches: 2, joined_bytes: 5000 };

/// Blocks of some streams, and what the processor says about them.
pub(super) struct Work {
    pub(super) rule: Rule,
    blocks: Vec<Vec<u8>>,
    ranges: Vec<Range>,
    spans: Vec<Span>,
    joined: Vec<u8>,
    expected: (Vec<Vec<u32>>, Vec<[u8; 32]>),
}

impl Work {
    /// Blocks that are full, or have several streams, or are empty; chunks from no byte to a whole block.
    pub(super) fn new(seed: u64, threshold: u32) -> Self {
        let mut random = Random::new(seed);
        let table = Box::new(random.table());
        let mut work = Self {
            rule: Rule { search: Some(Search { table, threshold }), hash: Some(NameHash::Blake3(KEY)) },
            blocks: vec![random.bytes(LIMITS.block_bytes), random.bytes(20_000), random.bytes(3)],
            ranges: Vec::new(),
            spans: Vec::new(),
            joined: random.bytes(4000),
            expected: Default::default(),
        };
        if let Some(part) = work.blocks[0].get_mut(3000..9000) {
            part.fill(0);
        }
        let range = |block, start, len, halo| Range { block, start, len, halo };
        let whole = u32::try_from(LIMITS.block_bytes).unwrap();
        work.ranges = vec![
            range(0, 31, whole - 31, 31),
            range(1, 0, 10, 0),
            range(1, 10, 9990, 0),
            range(1, 10_020, 9980, 20),
            range(2, 0, 3, 0),
        ];
        let mut at = 0;
        for len in [0, 1, 31, 1024, 1025, 4096, 2 * 1024 + 7, 16_000] {
            work.spans.push(Span { start: at, len });
            at += len;
        }
        let second = whole;
        work.spans.push(Span { start: second + 5, len: 19_995 });
        let joined = u32::try_from(LIMITS.area_bytes()).unwrap();
        work.spans.push(Span { start: joined, len: 3000 });
        work.spans.push(Span { start: joined + 3000, len: 1000 });
        work.spans.push(Span { start: 0, len: whole });
        work.expected = work.computed();
        work
    }

    fn computed(&self) -> (Vec<Vec<u32>>, Vec<[u8; 32]>) {
        let search = self.rule.search.as_ref().unwrap();
        let finder = Finder::with_kernel(&search.table, search.threshold, Kernel::Serial);
        let candidates = self.ranges.iter().map(|range| {
            let mut found = Vec::new();
            let bytes =
                &self.blocks[range.block][range.start - range.halo as usize..][..(range.halo + range.len) as usize];
            finder.candidates(bytes, range.halo as usize, &mut found);
            found
        });
        let names = self.spans.iter().map(|span| {
            let start = span.start as usize;
            let bytes = match start.checked_sub(LIMITS.area_bytes()) {
                Some(start) => &self.joined[start..],
                None => &self.blocks[start / LIMITS.block_bytes][start % LIMITS.block_bytes..],
            };
            *blake3::keyed_hash(&KEY, &bytes[..span.len as usize]).as_bytes()
        });
        (candidates.collect(), names.collect())
    }

    /// Does the work of two batches at the same time, and compares. Returns the number of compared results.
    pub(super) fn run(device: &Arc<dyn Device>, works: &[Self; 2], check: Check) -> Result<usize, Fault> {
        let namer: super::Namer =
            Arc::new(|chunks| chunks.iter().map(|chunk| *blake3::keyed_hash(&KEY, chunk).as_bytes()).collect());
        let mut batches = Batches::open(&**device, &works[0].rule, LIMITS, (namer, check, [1; 32]))?;
        let allocating = Arc::clone(device);
        let pool = Pool::new(LIMITS.block_bytes, 6, move |len| allocating.allocate(len));
        let freeze = |bytes: &Vec<u8>| -> Result<Arc<Frozen>, Fault> {
            let mut buffer = pool.take().ok_or_else(|| Fault::new(FaultKind::Lost, "no buffer"))?;
            buffer[..bytes.len()].copy_from_slice(bytes);
            Ok(buffer.freeze(bytes.len()))
        };
        let mut compared = 0;
        for round in 0..2 {
            let mut begun = Vec::new();
            // In the second round each has the other's memory.
            let works = if round == 0 { [&works[0], &works[1]] } else { [&works[1], &works[0]] };
            for work in works {
                begun.push(batches.begin(work.blocks.iter().map(freeze).collect::<Result<_, _>>()?)?);
            }
            assert!(!batches.has_free_position());
            for (work, batch) in works.into_iter().zip(&begun) {
                assert!(batches.candidates(*batch, &work.ranges)? == work.expected.0, "candidates");
                batches.name(*batch, work.spans.clone(), work.joined.clone())?;
                compared += work.ranges.len();
            }
            let mut left: Vec<_> = works.into_iter().zip(begun).collect();
            for questions in 0.. {
                let mut rest = Vec::new();
                for (work, batch) in left {
                    match batches.names(batch, if questions < 50 { Wait::No } else { Wait::Yes })? {
                        Some(names) => {
                            assert!(names == work.expected.1, "names");
                            compared += names.len();
                        }
                        None => rest.push((work, batch)),
                    }
                }
                left = rest;
                if left.is_empty() {
                    break;
                }
            }
        }
        Ok(compared)
    }
}

pub(super) fn works() -> [Work; 2] {
    let threshold = u32::MAX / 700;
    let mut works = [Work::new(1, threshold), Work::new(2, threshold)];
    // One queue has one rule.
    works[1].rule = works[0].rule.clone();
    works[1].expected = works[1].computed();
    works
}

#[test]
fn results_of_the_host_equal_those_of_the_specification_early_and_late() {
    for late in 0..6 {
        for check in [Check::Sample, Check::All] {
            let device: Arc<dyn Device> = Arc::new(HostDevice::new(Script { late, ..Script::default() }));
            assert_eq!(Work::run(&device, &works(), check).unwrap(), 2 * 2 * (5 + 12));
        }
    }
    // No candidates, and everywhere.
    for threshold in [0, u32::MAX] {
        let works = [0, 1].map(|_| Work::new(5, threshold));
        let device: Arc<dyn Device> = Arc::new(HostDevice::new(Script::default()));
        Work::run(&device, &works, Check::All).unwrap();
    }
}

#[test]
fn a_fault_at_any_call_is_returned_and_each_wrong_field_is_found() {
    let works = works();
    let device = Arc::new(HostDevice::new(Script::default()));
    Work::run(&(Arc::clone(&device) as Arc<dyn Device>), &works, Check::All).unwrap();
    let calls = device.calls();
    let moods = [Mood::Fail(FaultKind::Lost), Mood::Stale, Mood::Absent].into_iter().chain(Field::ALL.map(Mood::Lie));
    let (mut shown, mut faults) = (0, 0);
    for mood in moods {
        for at in 1..=calls {
            let device = Arc::new(HostDevice::new(Script { at, mood: Some(mood), late: 0 }));
            let outcome = Work::run(&(Arc::clone(&device) as Arc<dyn Device>), &works, Check::All);
            // A wrong candidate behind the end of a range is nobody's.
            let is_harmless = matches!(mood, Mood::Lie(Field::Count | Field::Candidate)) && outcome.is_ok();
            assert_eq!(outcome.is_err(), device.is_done() && !is_harmless, "{mood:?} at {at}");
            shown += usize::from(device.is_done());
            faults += usize::from(outcome.is_err());
            if let Err(fault) = outcome {
                let expected = if let Mood::Fail(kind) = mood { kind } else { FaultKind::Wrong };
                assert_eq!(fault.kind, expected, "{mood:?} at {at}: {fault}");
            }
        }
    }
    assert!(8 * calls / 2 < shown as u64 && shown - faults < 10, "{shown} shown, {faults} found");
}

#[test]
fn a_sample_finds_what_is_wrong_with_a_whole_batch() {
    let works = works();
    for at in 1..12 {
        for mood in [Mood::Stale, Mood::Absent] {
            let device = Arc::new(HostDevice::new(Script { at, mood: Some(mood), late: 0 }));
            let outcome = Work::run(&(Arc::clone(&device) as Arc<dyn Device>), &works, Check::Sample);
            assert_eq!(outcome.is_err(), device.is_done(), "{mood:?} at {at}");
        }
    }
}
