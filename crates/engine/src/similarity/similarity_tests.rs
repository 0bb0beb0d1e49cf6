//! Properties of the policy and of what a restore reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::choose::{BaseChunk, Candidate, Choice, Limits, PREFIX_BYTES_MAX, choose, propose};
use super::features::RegionFeatures;
use super::index::{AnchorIndex, Sampling, Vote};
use super::reading::{ALLOWANCE_BYTES, Reading, name_of};
use super::regions::{BASES_MAX, DEPTH_MAX, RegionNumber, Regions};
use super::saved::{SimilarRegions, SimilarRegionsLimits};
use super::search::{BaseSearch, OpenRegions};
use crate::backup::Budget;
use crate::error::Result;
use crate::random::{SplitMix64, mix64};
use crate::types::{Chunk, ContainerId, Fingerprint, RegionId, SessionId};

const REGION_LEN: u32 = 512 << 10;

fn id(session: u8, ordinal: u32, region: u32) -> RegionId {
    RegionId { container: ContainerId { session: SessionId([session; 16]), ordinal }, region }
}

/// Features with numbers for names, eight a chunk of 8 KiB.
fn features(numbers: impl IntoIterator<Item = u64>) -> RegionFeatures {
    let hashes: Vec<u64> = numbers.into_iter().map(|number| mix64(number + 1)).collect();
    RegionFeatures::new(hashes.chunks(8).map(|hashes| (hashes, 8192)))
}

fn candidate(number: u32, depth: u8, features: &RegionFeatures, cost: u64) -> Candidate<'_> {
    Candidate { region: RegionNumber(number), depth, features, cost, chain: 1 }
}

fn shared(one: &RegionFeatures, other: &RegionFeatures) -> BTreeSet<u64> {
    let other: BTreeSet<u64> = other.hashes().iter().copied().collect();
    one.hashes().iter().copied().filter(|hash| other.contains(hash)).collect()
}

#[test]
fn the_second_base_is_chosen_for_what_the_first_one_lacks() {
    let new = features(0..1000);
    let [most, twin, rest, few] = [features(0..600), features(0..590), features(600..800), features(970..1000)];
    let candidates =
        [candidate(1, 0, &most, 0), candidate(2, 0, &twin, 0), candidate(3, 0, &rest, 0), candidate(4, 0, &few, 0)];
    let regions = |numbers: &[u32]| Choice::Regions(numbers.iter().map(|number| RegionNumber(*number)).collect());
    assert_eq!(choose(&new, &candidates, &Limits::default(), 0), regions(&[3, 1]));
    assert_eq!(choose(&new, &candidates[..2], &Limits::default(), 0), regions(&[1]), "a twin adds nothing");
    assert_eq!(
        choose(&new, &candidates[3..], &Limits::default(), 0),
        Choice::None,
        "30 of 1,000 are less than 1 in 32"
    );
    let one = Limits { bases_max: 1, chunk_regions_max: 0, ..Limits::default() };
    assert_eq!(choose(&new, &candidates, &one, 0), regions(&[1]));
    let Choice::Chunks(_) = choose(&new, &candidates, &Limits { bases_max: 1, ..Limits::default() }, 0) else {
        panic!("chunks of three regions cover a third more than one region")
    };
    assert_eq!(choose(&features([]), &candidates, &Limits::default(), 0), Choice::None, "a region without features");
}

#[test]
fn scattered_edits_get_chunks_where_whole_regions_cover_little() {
    let new = features(0..96);
    let bases: Vec<RegionFeatures> =
        (0..12).map(|base| features((8 * base..8 * base + 6).chain(10_000 + 64 * base..10_050 + 64 * base))).collect();
    let candidates: Vec<_> = (0..).zip(&bases).map(|(number, features)| candidate(number, 0, features, 100)).collect();
    let limits = Limits { share_part: 8, ..Limits::default() };
    let Choice::Chunks(chunks) = choose(&new, &candidates, &limits, 1200) else { panic!("no chunks") };
    let expected: Vec<_> = (0..12).map(|number| BaseChunk { region: RegionNumber(number), chunk: 0 }).collect();
    assert_eq!(chunks, expected);
    let Choice::Chunks(fewer) = choose(&new, &candidates, &limits, 1000) else { panic!("no chunks") };
    assert_eq!(fewer.len(), 10, "as many regions as a restore may read");
    let long: Vec<_> = candidates.iter().map(|candidate| Candidate { chain: 2, ..*candidate }).collect();
    let Choice::Chunks(fewer) = choose(&new, &long, &limits, 1200) else { panic!("no chunks") };
    assert_eq!(fewer.len(), 8, "as many regions as a chain may have");
    let without = Limits { chunk_regions_max: 0, ..limits };
    assert_eq!(choose(&new, &candidates, &without, 1200), Choice::None, "only where the limits allow chunks");
    let whole = features(0..96);
    let all: Vec<_> = candidates.iter().copied().chain([candidate(99, 0, &whole, 0)]).collect();
    assert_eq!(choose(&new, &all, &limits, 1200), Choice::Regions(vec![RegionNumber(99)]));
}

/// Whatever the candidates are, what is chosen was offered, is within all limits, and is worth it.
#[test]
fn no_choice_breaks_a_limit() {
    let mut chosen = [0; 3];
    for seed in 0..3000 {
        let mut random = SplitMix64::new(seed);
        let universe = 50 + random.below(1500);
        let mut some = |count: u64| {
            let start = random.below(universe);
            features((0..=random.below(count)).map(|number| (start + number) % universe).collect::<BTreeSet<_>>())
        };
        let new = some(1024);
        let offered: Vec<RegionFeatures> = (0..12).map(|_| some(200)).collect();
        let mut random = SplitMix64::new(!seed);
        let candidates: Vec<_> = (0..)
            .zip(&offered)
            .map(|(number, features)| {
                candidate(number, u8::try_from(random.below(5)).unwrap(), features, random.below(1000))
            })
            .collect();
        let limits = Limits {
            bases_max: random.index(4),
            depth_max: u8::try_from(random.below(5)).unwrap(),
            share_part: 1 + random.index(64),
            chunk_regions_max: random.index(6),
            ..Limits::default()
        };
        let headroom = random.below(2000);
        let choice = choose(&new, &candidates, &limits, headroom);
        assert_eq!(choice, choose(&new, &candidates, &limits, headroom), "a pure function");
        let regions = choice.regions();
        let of = |region: &RegionNumber| candidates[region.0 as usize];
        assert!(regions.iter().map(|region| of(region).cost).sum::<u64>() <= headroom, "seed {seed}");
        assert!(regions.iter().all(|region| of(region).depth < limits.depth_max), "seed {seed}");
        let needed = new.hashes().len().div_ceil(limits.share_part);
        match &choice {
            Choice::None => chosen[0] += 1,
            Choice::Regions(bases) => {
                chosen[1] += 1;
                assert!((1..=limits.bases_max.min(BASES_MAX)).contains(&bases.len()), "seed {seed}");
                let mut seen = BTreeSet::new();
                for base in bases.iter().rev() {
                    let gain: BTreeSet<u64> = shared(&new, of(base).features).difference(&seen).copied().collect();
                    assert!(needed <= gain.len(), "seed {seed}: {} of {needed}", gain.len());
                    seen.extend(gain);
                }
            }
            Choice::Chunks(chunks) => {
                chosen[2] += 1;
                assert!(regions.len() <= limits.chunk_regions_max, "seed {seed}");
                assert!(chunks.is_sorted_by(|one, other| one < other), "seed {seed}");
                let bytes: u32 = chunks.iter().map(|it| of(&it.region).features.chunk_len(it.chunk)).sum();
                assert!(0 < bytes && bytes <= PREFIX_BYTES_MAX, "seed {seed}");
            }
        }
    }
    assert!(chosen.iter().all(|count| 100 < *count), "{chosen:?} of each kind");
}

#[test]
fn proposals_are_the_regions_with_most_votes_and_hints_break_ties() {
    let votes = [(7, 3), (9, 1), (4, 1), (2, 1)].map(|(region, count)| Vote { region: RegionNumber(region), count });
    let numbers =
        |regions: Vec<(u32, RegionNumber)>| regions.into_iter().map(|(_, region)| region.0).collect::<Vec<_>>();
    assert_eq!(numbers(propose(&votes, &[], 4)), [7, 9, 4, 2]);
    assert_eq!(numbers(propose(&votes, &[RegionNumber(2), RegionNumber(2), RegionNumber(5)], 5)), [7, 2, 9, 4, 5]);
    assert_eq!(propose(&votes, &[RegionNumber(9)], 2), [(6, RegionNumber(7)), (3, RegionNumber(9))]);
    assert_eq!(numbers(propose(&[], &[RegionNumber(5)], 4)), [5]);
    assert_eq!(propose(&votes, &[], 0), []);
}

#[test]
fn regions_between_and_behind_those_with_votes_are_proposed() {
    let mut search =
        BaseSearch::new(Regions::default(), AnchorIndex::new(Sampling::one_in(1), 1 << 20), Limits::default());
    let stored: Vec<_> = (0..30u64).map(|number| features(100 * number..100 * number + 100)).collect();
    for (number, features) in (0..).zip(&stored) {
        search.stored(id(0, number, 0), REGION_LEN, &[], features).unwrap();
    }
    search.begin_session();
    let ordinals = |proposed: Vec<(u32, RegionId)>| {
        let mut ordinals: Vec<_> = proposed.into_iter().map(|(_, id)| id.container.ordinal).collect();
        ordinals.sort_unstable();
        ordinals
    };
    let new = features((500..520).chain(800..820).chain(2000..2020));
    assert_eq!(
        ordinals(search.propose(&new, &[])),
        [5, 6, 7, 8, 20],
        "a region between two may be missed by the sample"
    );
    assert_eq!(
        ordinals(search.propose(&features(5000..5100), &[])),
        [20, 21, 22, 23, 24, 25],
        "what follows the region before"
    );
    search.begin_session();
    assert_eq!(ordinals(search.propose(&features(5000..5100), &[])), [0; 0]);
}

#[test]
fn a_base_whose_chunks_are_referred_to_later_is_not_read_besides() {
    let mut regions = Regions::default();
    let [base, other] = [0, 1].map(|number| regions.enter(id(0, number, 0), 100, (&[], 0)).unwrap());
    let chunk = |name: u8| Chunk { fingerprint: Fingerprint([name; 32]), len: 10 };
    let mut reading = Reading::default();
    for region in [base, other] {
        reading.read_as_base(&regions, region);
    }
    reading.watch(base, &[name_of(&chunk(1)), name_of(&chunk(2))]);
    reading.refer_to_chunk(&regions, &chunk(3));
    assert_eq!((reading.extra_bytes(), reading.cost(&regions, base)), (200, 0));
    reading.refer_to_chunk(&regions, &chunk(2));
    assert_eq!(reading.extra_bytes(), 100);
    reading.refer_to_part(&regions, other);
    reading.refer_to_part(&regions, other);
    assert_eq!((reading.own_bytes(), reading.extra_bytes()), (0, 0));
}

/// Counts what a restore reads by walking all chains.
fn counted(regions: &Regions, own: &BTreeSet<RegionNumber>) -> (u64, u64) {
    let mut all = own.clone();
    let mut open: Vec<_> = own.iter().copied().collect();
    while let Some(region) = open.pop() {
        open.extend(regions.bases(region).filter(|base| all.insert(*base)));
    }
    let bytes = |set: &BTreeSet<RegionNumber>| set.iter().map(|it| u64::from(regions.plain_len(*it))).sum::<u64>();
    (bytes(own), bytes(&all) - bytes(own))
}

#[derive(Default)]
struct Opened(Vec<Arc<RegionFeatures>>, usize);

impl OpenRegions for Opened {
    fn features(&mut self, number: RegionNumber, _: RegionId) -> Result<Option<Arc<RegionFeatures>>> {
        self.1 += 1;
        Ok(self.0.get(number.0 as usize).cloned())
    }
}

/// Sessions of random regions that resemble earlier ones: no choice lets a restore of the newest snapshot read more than half
/// besides, no chain is too deep, and the running count of what is read equals one by a walk.
#[test]
fn no_session_reads_more_than_half_of_its_own_in_bases() {
    let mut with_bases = 0;
    for seed in 0..40 {
        let mut random = SplitMix64::new(seed);
        let depth_max = u8::try_from(1 + random.below(u64::from(DEPTH_MAX))).unwrap();
        let limits = Limits { depth_max, ..Limits::default() };
        let index = AnchorIndex::new(Sampling::one_in(8), 1 << 20);
        let mut search = BaseSearch::new(Regions::default(), index, limits);
        let mut opened = Opened::default();
        for session in 0..4u8 {
            search.begin_session();
            let mut own = BTreeSet::new();
            for ordinal in 0..60 {
                // Stored chunks between the new ones refer to earlier regions.
                let known = u32::try_from(search.regions.count()).unwrap();
                for _ in 0..random.below(3).min(known.into()) {
                    let region = RegionNumber(u32::try_from(random.below(known.into())).unwrap());
                    search.refer(region);
                    own.insert(region);
                }
                let start = random.below(40) * 200;
                let new = features((start..start + 512).filter(|_| random.below(4) < 3).collect::<Vec<_>>());
                let headroom = search.reading.headroom(REGION_LEN);
                let before = search.reading.extra_bytes();
                let choice = search.find(&new, REGION_LEN, &[], &mut opened).unwrap();
                let number = search.stored(id(session, ordinal, 0), REGION_LEN, &choice.regions(), &new).unwrap();
                own.insert(number);
                opened.0.push(Arc::new(new));
                assert!(search.regions.depth(number).unwrap() <= depth_max, "seed {seed}");
                let (own_bytes, extra) = counted(&search.regions, &own);
                assert_eq!(
                    (search.reading.own_bytes(), search.reading.extra_bytes()),
                    (own_bytes, extra),
                    "seed {seed}"
                );
                assert!(extra <= before + headroom, "seed {seed}");
                if choice != Choice::None {
                    with_bases += 1;
                    // A base that costs nothing is free, however much older sessions cause to be read.
                    let allowed = (own_bytes / 2).max(ALLOWANCE_BYTES);
                    assert!(extra <= allowed.max(before), "seed {seed}: {extra} and {own_bytes}");
                }
            }
        }
    }
    assert!(1000 < with_bases, "{with_bases} regions with bases");
}

#[test]
fn a_base_that_is_referred_to_later_is_no_longer_read_for_others() {
    let mut regions = Regions::default();
    let base = regions.enter(id(1, 0, 0), 100, (&[], 0)).unwrap();
    let new = regions.enter(id(2, 0, 0), 60, (&[base], 1)).unwrap();
    let mut reading = Reading::default();
    assert_eq!(reading.cost(&regions, base), 100);
    reading.refer(&regions, new);
    assert_eq!((reading.own_bytes(), reading.extra_bytes(), reading.cost(&regions, base)), (60, 100, 0));
    reading.refer(&regions, base);
    reading.refer(&regions, base);
    assert_eq!((reading.own_bytes(), reading.extra_bytes()), (160, 0));
}

#[test]
fn regions_that_cannot_be_opened_cost_size_only() {
    let mut search =
        BaseSearch::new(Regions::default(), AnchorIndex::new(Sampling::one_in(1), 1 << 16), Limits::default());
    let new = features(0..100);
    search.stored(id(1, 0, 0), REGION_LEN, &[], &new).unwrap();
    let choice = search.find(&new, REGION_LEN, &[], &mut Opened::default()).unwrap();
    assert_eq!(choice, Choice::None);
    let mut opened = Opened(vec![Arc::new(new.clone())], 0);
    assert_eq!(search.find(&new, REGION_LEN, &[], &mut opened).unwrap(), Choice::Regions(vec![RegionNumber(0)]));
    assert_eq!(opened.1, 1, "opened once");
}

/// docs/manual/src/similar.md
#[test]
fn with_512_mib_of_memory_the_last_100_000_regions_are_found() {
    const REGIONS: u32 = 600_000;
    const LAST: u32 = 100_000;
    let threads = Budget::threads(512 << 20, 2);
    let bytes = Budget::of(512 << 20, threads).with_bases(512 << 20).similar_bytes;
    let mut similar = SimilarRegions::new(SimilarRegionsLimits { sampling: Sampling::default(), bytes });
    // Eight samples a region of 512 KiB: an anchor in 512 bytes, of which one in 128 is kept.
    let samples = |region: u32| {
        let mut random = SplitMix64::new(region.into());
        std::array::from_fn::<u64, 8, _>(|_| random.next_u64() / 128 * 128)
    };
    for region in 0..REGIONS {
        let container = ContainerId { session: SessionId([1; 16]), ordinal: region / 8 };
        let id = RegionId { container, region: region % 8 };
        let number = similar.regions.enter(id, 512 << 10, (&[], 0)).unwrap();
        similar.anchors.enter(number, &samples(region));
    }
    let is_found = |region: &u32| {
        let votes = similar.anchors.votes(&samples(*region));
        votes.iter().any(|vote| vote.region.0 == *region) && similar.regions.id(RegionNumber(*region)).is_some()
    };
    let found = |from: u32| (from..from + LAST).filter(is_found).count();
    let (last, first) = (found(REGIONS - LAST), found(0));
    assert!(LAST as usize * 99 / 100 < last, "{last} of the last {LAST} with {bytes} bytes");
    assert!(first < LAST as usize / 2, "{first} of the first {LAST}: the memory is no limit");
    let taken = similar.regions.memory_bytes() + similar.anchors.memory_bytes();
    assert!(taken <= bytes + bytes / 100, "{taken} of {bytes} bytes");
}
