//! The order in which the regions of a window are read: a pure function of what they depend on.
//!
//! A region that was compressed against others is opened with these. Read in the order of containers, all regions of one version
//! come before those of the next, and the bases have left the cache by then. Read in the order of the stream, a region comes
//! next to its bases, since what is similar stands at similar positions.

use crate::container::bases::Bases;
use crate::types::RegionId;

/// A region that a window needs.
#[derive(Clone, Debug)]
pub(super) struct Needed {
    pub(super) region: RegionId,
    /// Number in the window of the chunk in the middle of those that are wanted of it. The first one may be far from the others, if it
    /// is a chunk that comes often.
    pub(super) position: usize,
    pub(super) bases: Bases,
}

/// A step of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// Index of the region.
    pub(super) index: usize,
    /// True if other regions of the window depend on it.
    pub(super) is_base: bool,
}

/// Returns the order in which to read these regions, which ascend: each once. Those that neither depend on others nor are bases come
/// first, in the order of their containers. The others follow in the order of the stream, each behind those of its bases that the
/// window needs, too.
pub(super) fn plan(needed: &[Needed]) -> Vec<Step> {
    let find = |base: RegionId| needed.binary_search_by_key(&base, |needed| needed.region).ok();
    let mut is_base = vec![false; needed.len()];
    for base in needed.iter().flat_map(|needed| needed.bases.iter()) {
        if let Some(is_base) = find(base).and_then(|index| is_base.get_mut(index)) {
            *is_base = true;
        }
    }
    let is_base = |index: usize| is_base.get(index).copied().unwrap_or_default();
    let stands_alone = |(index, needed): &(usize, &Needed)| needed.bases.is_empty() && !is_base(*index);
    let (alone, mut related): (Vec<_>, Vec<_>) = needed.iter().enumerate().partition(stands_alone);
    related.sort_by_key(|(_, needed)| needed.position);
    let mut steps: Vec<Step> = alone.into_iter().map(|(index, _)| Step { index, is_base: false }).collect();
    // A base that is begun and not read yet is one that depends on itself, which is damage: it fails when it is read.
    let mut begun = vec![false; needed.len()];
    let mut begin = |index: usize| begun.get_mut(index).is_some_and(|begun| !std::mem::replace(begun, true));
    let mut waiting: Vec<usize> = Vec::new();
    for (index, _) in related {
        if begin(index) {
            waiting.push(index);
        }
        while let Some(&last) = waiting.last() {
            let mut bases = needed.get(last).into_iter().flat_map(|needed| needed.bases.iter()).filter_map(find);
            if let Some(base) = bases.find(|base| begin(*base)) {
                waiting.push(base);
            } else {
                steps.push(Step { index: last, is_base: is_base(last) });
                waiting.pop();
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::SplitMix64;
    use crate::types::{ContainerId, SessionId};

    /// Regions of a container.
    const REGIONS: u32 = 8;

    /// The region with this number in a version. Sessions have random names, so that versions have any order.
    fn region(version: u8, number: u32) -> RegionId {
        let session = SessionId([version.wrapping_mul(151).wrapping_add(30); 16]);
        RegionId { container: ContainerId { session, ordinal: number / REGIONS }, region: number % REGIONS }
    }

    fn needed(region: RegionId, position: usize, bases: &[RegionId], depth: u8) -> Needed {
        Needed { region, position, bases: Bases::new(bases, depth).unwrap() }
    }

    fn planned(mut regions: Vec<Needed>) -> (Vec<Needed>, Vec<Step>) {
        regions.sort_by_key(|needed| needed.region);
        let steps = plan(&regions);
        let mut indices: Vec<usize> = steps.iter().map(|step| step.index).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..regions.len()).collect::<Vec<_>>(), "each region once");
        (regions, steps)
    }

    /// Versions of which each region depends on the one at the same position of the version before, and the one behind that.
    fn versions(count: u8, len: u32) -> Vec<Needed> {
        let of = |version: u8, number: u32| {
            let position = number as usize * 100 + usize::from(version);
            let next = (number + 1).min(len - 1);
            let bases: &[RegionId] = match version {
                0 => &[],
                _ if next == number => &[region(version - 1, number)],
                _ => &[region(version - 1, number), region(version - 1, next)],
            };
            needed(region(version, number), position, bases, version)
        };
        (0..count).flat_map(|version| (0..len).map(move |number| of(version, number))).collect()
    }

    #[test]
    fn without_bases_the_order_is_that_of_containers() {
        let mut random = SplitMix64::new(1);
        let position = |random: &mut SplitMix64| usize::try_from(random.below(1000)).unwrap();
        let regions = (0..100).map(|number| needed(region(0, number), position(&mut random), &[], 0)).collect();
        let (_, steps) = planned(regions);
        assert!(steps.iter().enumerate().all(|(at, step)| *step == Step { index: at, is_base: false }));
        assert_eq!(plan(&[]), []);
    }

    #[test]
    fn bases_stand_close_before_what_depends_on_them_however_long_versions_are() {
        for (count, len) in [(2, 10), (3, 400), (5, 2_000)] {
            let (regions, steps) = planned(versions(count, len));
            let at: BTreeMap<RegionId, usize> =
                steps.iter().enumerate().map(|(at, step)| (regions[step.index].region, at)).collect();
            let mut farthest = 0;
            for Needed { region, bases, .. } in &regions {
                for base in bases.iter() {
                    assert!(at[&base] < at[region], "{base} is read before {region}");
                    assert!(steps[at[&base]].is_base);
                    farthest = farthest.max(at[region] - at[&base]);
                }
            }
            assert!(farthest <= 3 * usize::from(count), "{farthest} steps with {count} versions of {len} regions");
            let newest = steps
                .iter()
                .filter(|step| regions[step.index].region.container.session == region(count - 1, 0).container.session);
            assert!({ newest }.all(|step| !step.is_base));
        }
    }

    #[test]
    fn what_stands_alone_is_read_first_and_bases_that_the_window_does_not_need_are_left_out() {
        let mut regions = versions(2, 50);
        // The window needs every other region of the first version.
        regions.retain(|needed| needed.bases.depth() != 0 || needed.region.region % 2 == 0);
        let alone = region(7, 3);
        regions.push(needed(alone, 10, &[], 0));
        let (regions, steps) = planned(regions);
        assert_eq!(regions[steps[0].index].region, alone);
        assert_eq!(steps.iter().filter(|step| step.is_base).count(), 25, "every other one of 50");
    }

    #[test]
    fn damaged_directories_change_the_order_only() {
        let mut random = SplitMix64::new(3);
        for round in 0..200u32 {
            let len = 1 + random.below(40);
            let any = |random: &mut SplitMix64| {
                let (version, number) = (random.below(4), random.below(len + 3));
                region(u8::try_from(version).unwrap(), u32::try_from(number).unwrap())
            };
            let mut regions: BTreeMap<RegionId, Needed> = BTreeMap::new();
            for _ in 0..len {
                // Bases of bases that lead back, and regions that name themselves.
                let (own, mut bases) = (any(&mut random), vec![any(&mut random), any(&mut random)]);
                bases.dedup();
                let position = usize::try_from(random.below(50)).unwrap();
                regions.insert(own, needed(own, position, &bases, 1));
            }
            let count = regions.len();
            let (_, steps) = planned(regions.into_values().collect());
            assert_eq!(steps.len(), count, "round {round}");
        }
        let circle: Vec<Needed> =
            (0..50).map(|number| needed(region(0, number), 0, &[region(0, (number + 1) % 50)], 1)).collect();
        let (_, steps) = planned(circle);
        assert!(steps.iter().all(|step| step.is_base));
    }
}
