//! The choice of a plan among containers that hold bases: they stay, or what depends on them is taken apart so that they can go.
//!
//! A base that is not needed is freed only with everything that depends on it. What depends on it is copied without bases, and
//! grows. So a *group* is weighed as a whole: a container that the plan would give up, all that depend on it, directly or over
//! others, and all further containers that only these need. It is given up if that frees more than the copies grow, under the limits
//! by which any container is copied, the groups that free most for each byte written first.

use std::cmp::Reverse;

use crate::bitmap::Bitmap;
use crate::collect::bases_graph::BaseGraph;
use crate::collect::plan::{ContainerUsage, PruneOptions, PrunePlan};
use crate::store::container_ids::CONDEMNED_MAX;

/// Most visits of containers while groups are weighed: 2^26, about a second. Groups that are not reached stay.
const VISITS_MAX: usize = 1 << 26;

/// Usage of a container by its number; `None` if it may not be condemned or its usage is not known.
pub(super) type UsageByNumber<'a> = dyn FnMut(u32) -> Option<ContainerUsage> + 'a;

/// Containers that are given up together.
#[derive(Debug, Default)]
struct Group {
    members: Vec<ContainerUsage>,
    /// Stored bytes that are freed, by what the copies grow less.
    freed_bytes: u64,
    /// Stored bytes that are written.
    written_bytes: u64,
    /// Bytes that are not needed today.
    unused_bytes: u64,
}

impl Group {
    /// Returns the key by which groups are sorted: those that free most for each byte written first.
    #[expect(clippy::cast_precision_loss, reason = "a ratio that orders")]
    fn merit(&self) -> Reverse<u64> {
        // Ratios that are not negative have the order of their bits.
        Reverse((self.freed_bytes as f64 / (self.written_bytes as f64 + 1.0)).to_bits())
    }
}

impl PrunePlan {
    /// Makes a plan such that nothing that stays depends on what it gives up. `fixed` are the containers that are given up whatever
    /// they waste. If nothing unused may stay, everything that wastes something is given up, whatever the copies grow.
    pub(super) fn weigh_bases(
        &mut self,
        graph: &BaseGraph,
        usage: &mut UsageByNumber<'_>,
        fixed: &Bitmap,
        options: &PruneOptions,
    ) {
        let must_go = options.max_unused.is_nothing();
        let worthless: Vec<ContainerUsage> = (self.copy.iter())
            .filter(|number| !must_go && !fixed.contains(**number))
            .filter_map(|number| usage(*number))
            .filter(|container| container.unused_bytes() < graph.growth(container))
            .collect();
        self.take_out(worthless);
        let needed = graph.needed(&self.given_up());
        let kept: Vec<ContainerUsage> = self
            .remove
            .iter()
            .chain(&self.copy)
            .filter(|number| needed.contains(**number))
            .filter_map(|number| usage(*number))
            .collect();
        self.keep(kept.iter().copied());
        let mut weigher = Weigher { graph, usage, given_up: self.given_up(), kept: needed, visits: 0 };
        let mut groups: Vec<(Reverse<u64>, u32)> = Vec::new();
        for container in &kept {
            groups.extend(weigher.group(container.number).map(|group| (group.merit(), container.number)));
        }
        groups.sort_unstable();
        for (_, number) in groups {
            if self.totals.left_unused_bytes <= self.left_max(options) {
                break;
            }
            // Earlier ones may have made it smaller.
            if !weigher.given_up.contains(number)
                && let Some(group) = weigher.group(number)
            {
                self.give_up_group(group, &mut weigher, options);
            }
        }
        self.totals.grown_bytes = self
            .copy
            .iter()
            .filter_map(|number| (weigher.usage)(*number))
            .map(|container| graph.growth(&container))
            .sum();
    }

    /// Copies further containers for their hints alone, but none that holds bases for one that stays.
    pub(super) fn refresh_free(
        &mut self,
        stale: impl Iterator<Item = ContainerUsage>,
        graph: &BaseGraph,
        options: &PruneOptions,
    ) {
        let before = self.given_up();
        let stale: Vec<ContainerUsage> = stale.filter(|container| !before.contains(container.number)).collect();
        let mut all = before.clone();
        for container in &stale {
            all.insert(container.number);
        }
        let needed = graph.needed(&all);
        self.refresh(stale.iter().filter(|container| !needed.contains(container.number)).copied(), options);
        // Limits may have left a container out that depends on one which is copied.
        let (given_up, needed) = (self.given_up(), graph.needed(&self.given_up()));
        let (taken_out, copied): (Vec<ContainerUsage>, Vec<ContainerUsage>) = stale
            .into_iter()
            .filter(|container| given_up.contains(container.number))
            .partition(|container| needed.contains(container.number));
        self.totals.refreshed_containers -= taken_out.len() as u64;
        self.take_out(taken_out);
        self.totals.grown_bytes += copied.iter().map(|container| graph.growth(container)).sum::<u64>();
    }

    fn give_up_group(&mut self, group: Group, weigher: &mut Weigher<'_, '_>, options: &PruneOptions) {
        if group.freed_bytes == 0 && !options.max_unused.is_nothing()
            || options.max_repack_bytes < self.totals.copied_bytes.saturating_add(group.written_bytes)
        {
            return;
        }
        if CONDEMNED_MAX < self.remove.len() + self.copy.len() + group.members.len() {
            self.totals.is_cut = true;
            return;
        }
        let mut members = group.members;
        members.sort_unstable_by_key(|container| (container.rank, container.number));
        for container in members {
            weigher.given_up.insert(container.number);
            if weigher.kept.contains(container.number) {
                self.totals.bases_containers -= 1;
                self.totals.bases_bytes -= container.unused_bytes();
            } else {
                self.totals.apart_containers += 1;
            }
            self.give_up_one(&container);
        }
    }
}

/// Looks for groups.
struct Weigher<'a, 'b> {
    graph: &'a BaseGraph,
    usage: &'a mut UsageByNumber<'b>,
    given_up: Bitmap,
    /// Containers that the plan would have given up if nothing had bases in them.
    kept: Bitmap,
    visits: usize,
}

impl Weigher<'_, '_> {
    /// Returns the group of a container; `None` if a part of it may not be condemned, or the limit of visits is reached.
    fn group(&mut self, number: u32) -> Option<Group> {
        let mut found = Bitmap::default();
        found.insert(number);
        let (mut members, mut at) = (vec![number], 0);
        while let Some(member) = members.get(at).copied() {
            for dependant in self.graph.dependants(member) {
                self.visits += 1;
                if !self.given_up.contains(dependant) && !found.contains(dependant) {
                    found.insert(dependant);
                    members.push(dependant);
                }
            }
            self.visits += 1;
            if VISITS_MAX < self.visits || CONDEMNED_MAX < members.len() {
                return None;
            }
            at += 1;
        }
        self.add_unneeded(&mut found, &mut members);
        let mut group = Group::default();
        let mut growth = 0;
        for member in members {
            let container = (self.usage)(member)?;
            group.unused_bytes += container.unused_bytes();
            if !container.is_dead() {
                let grown = self.graph.growth(&container);
                growth += grown;
                group.written_bytes += container.used_bytes() + grown;
            }
            group.members.push(container);
        }
        group.freed_bytes = group.unused_bytes.saturating_sub(growth);
        Some(group)
    }

    /// Adds the containers that only members need.
    fn add_unneeded(&mut self, found: &mut Bitmap, members: &mut Vec<u32>) {
        let mut at = 0;
        while let Some(member) = members.get(at).copied() {
            for holder in self.graph.holders(member) {
                self.visits += 1;
                let is_open = self.kept.contains(holder) && !self.given_up.contains(holder) && !found.contains(holder);
                let (mut dependants, mut visits) = (self.graph.dependants(holder), 0);
                let mut is_free = |number: u32| {
                    visits += 1;
                    self.given_up.contains(number) || found.contains(number)
                };
                let goes = is_open && self.visits < VISITS_MAX && dependants.all(&mut is_free);
                self.visits += visits;
                if goes {
                    found.insert(holder);
                    members.push(holder);
                }
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::collect::plan::MaxUnused;
    use crate::object::names::ContainerKind;
    use crate::random::SplitMix64;

    fn options(max_unused: MaxUnused) -> PruneOptions {
        PruneOptions { max_unused, max_repack_bytes: u64::MAX, repack_below_bytes: 0 }
    }

    fn usage(number: u32, stored_bytes: u32, (live_bytes, dead_bytes): (u32, u32)) -> ContainerUsage {
        let live_chunks = u16::from(live_bytes != 0);
        ContainerUsage {
            number,
            kind: ContainerKind::Data,
            stored_bytes,
            live_bytes,
            dead_bytes,
            live_chunks,
            dead_chunks: 0,
            rank: 0,
        }
    }

    #[test]
    fn metadata_that_a_container_which_stays_depends_on_is_not_copied_for_its_hints_alone() {
        let graph = BaseGraph::of(4, &[(1, 0), (2, 1)], &[]);
        let all = [0, 1, 2, 3].map(|number| usage(number, 100, (50, 0)));
        let refreshed = |stale: &[u32], max_repack_bytes| {
            let options = PruneOptions { max_repack_bytes, ..options(MaxUnused::Bytes(0)) };
            let mut plan = PrunePlan::new(all, &options);
            plan.refresh_free(stale.iter().map(|number| all[*number as usize]), &graph, &options);
            let count = plan.copy.len() as u64;
            let totals = (plan.totals.copied_containers, plan.totals.refreshed_containers, plan.totals.copied_bytes);
            assert_eq!(totals, (count, count, 100 * count), "{stale:?}");
            plan.copy
        };
        assert_eq!(refreshed(&[0, 1, 3], u64::MAX), [3]);
        assert_eq!(refreshed(&[0, 1, 2, 3], u64::MAX), [0, 1, 2, 3]);
        // The limit leaves 2 out, which needs the others.
        assert_eq!(refreshed(&[0, 1, 2], 200), Vec::<u32>::new());
        assert_eq!(refreshed(&[2, 1, 0], 200), [2, 1]);
    }

    /// Usages of containers, and pairs of a container and a holder of its bases.
    struct World {
        usages: BTreeMap<u32, ContainerUsage>,
        pairs: Vec<(u32, u32)>,
        graph: BaseGraph,
    }

    impl World {
        fn new(usages: &[ContainerUsage], pairs: &[(u32, u32)], regions: &[(u32, bool, u32, u32)]) -> Self {
            let count = u32::try_from(usages.len()).unwrap();
            let usages = usages.iter().map(|usage| (usage.number, *usage)).collect();
            Self { usages, pairs: pairs.to_vec(), graph: BaseGraph::of(count, pairs, regions) }
        }

        /// A random graph in which a container depends on earlier ones only.
        fn random(random: &mut SplitMix64) -> Self {
            let count = 2 + u32::try_from(random.below(8)).unwrap();
            let (mut usages, mut pairs, mut regions) = (Vec::new(), Vec::new(), Vec::new());
            for number in 0..count {
                let plain = 1000 + u32::try_from(random.below(3000)).unwrap();
                let live = [0, plain, plain / 3, plain / 2][random.index(4)];
                let has_bases = number != 0 && random.coin();
                let stored = if has_bases { plain / 8 } else { plain / 2 };
                if has_bases {
                    let mut holders: Vec<u32> =
                        (0..=random.below(2)).map(|_| u32::try_from(random.below(number.into())).unwrap()).collect();
                    holders.sort_unstable();
                    holders.dedup();
                    pairs.extend(holders.into_iter().map(|holder| (number, holder)));
                }
                regions.push((number, has_bases, plain, stored));
                usages.push(usage(number, stored, (live, plain - live)));
            }
            Self::new(&usages, &pairs, &regions)
        }

        fn plan(&self, options: &PruneOptions) -> PrunePlan {
            let mut plan = PrunePlan::new(self.usages.values().copied(), options);
            plan.weigh_bases(&self.graph, &mut |number| self.usages.get(&number).copied(), &Bitmap::default(), options);
            plan
        }

        /// Returns what giving a set up frees, by what copies grow less; `None` if something that stays depends on it.
        fn freed(&self, given_up: &Bitmap) -> Option<i64> {
            let is_open = self.pairs.iter().any(|(of, base)| given_up.contains(*base) && !given_up.contains(*of));
            let of = |container: &ContainerUsage| {
                let grown = if container.is_dead() { 0 } else { self.graph.growth(container) };
                i64::try_from(container.unused_bytes()).unwrap() - i64::try_from(grown).unwrap()
            };
            let members = self.usages.values().filter(|container| given_up.contains(container.number));
            (!is_open).then(|| members.map(of).sum())
        }
    }

    #[test]
    fn nothing_that_stays_depends_on_what_is_given_up_and_weighing_never_frees_less() {
        let (mut apart, mut best, mut found) = (0, 0, 0);
        for seed in 0..3000 {
            let mut random = SplitMix64::new(seed);
            let world = World::random(&mut random);
            let max_unused = [MaxUnused::Bytes(1), MaxUnused::Percent(20.0), MaxUnused::Unlimited][random.index(3)];
            let max_repack_bytes = if random.coin() { u64::MAX } else { random.below(4000) };
            let options = PruneOptions { max_repack_bytes, ..options(max_unused) };
            let plan = world.plan(&options);
            let totals = plan.totals;
            let freed = world.freed(&plan.given_up()).unwrap_or_else(|| panic!("seed {seed}: {plan:?}"));
            assert_eq!(i64::try_from(totals.freed_bytes()).unwrap(), freed, "seed {seed}: {plan:?}");
            assert_eq!(
                totals.removed_bytes + totals.freed_by_copying_bytes + totals.left_unused_bytes,
                totals.unused_bytes,
                "seed {seed}"
            );
            assert!(plan.remove.iter().all(|number| world.usages[number].is_dead()), "seed {seed}");
            assert!(plan.copy.iter().all(|number| !world.usages[number].is_dead()), "seed {seed}");
            assert_eq!(plan.copy.len() as u64, totals.copied_containers, "seed {seed}");
            assert!(totals.copied_bytes <= max_repack_bytes, "seed {seed}");
            assert!(max_unused != MaxUnused::Unlimited || plan.copy.is_empty(), "seed {seed}");
            // As before groups were weighed: bases stay with all that depends on them.
            let mut kept = PrunePlan::new(world.usages.values().copied(), &options);
            let needed = world.graph.needed(&kept.given_up());
            kept.keep(needed_of(&world, &needed));
            // What copies grow by counts toward the limit on copying, which it did not before.
            if max_unused == MaxUnused::Bytes(1) && max_repack_bytes == u64::MAX {
                assert!(world.freed(&kept.given_up()).unwrap() <= freed, "seed {seed}: {plan:?} {kept:?}");
            }
            apart += totals.apart_containers;
            if max_unused == MaxUnused::Bytes(1) && max_repack_bytes == u64::MAX {
                let count = u32::try_from(world.usages.len()).unwrap();
                let sets = (0..1_u64 << count).map(|set| {
                    let mut given_up = Bitmap::default();
                    (0..count).filter(|number| set >> number & 1 == 1).for_each(|number| given_up.insert(number));
                    given_up
                });
                best += sets.filter_map(|set| world.freed(&set)).max().unwrap();
                found += freed;
            }
        }
        // No set that may go frees more than the best one; what the choice of groups leaves is small.
        assert!(300 < apart, "{apart}");
        assert!(best * 97 / 100 <= found && found <= best, "{found} of {best}");
    }

    #[test]
    fn nothing_unused_stays_where_none_may_whatever_copies_grow() {
        let mut grown = 0;
        for seed in 0..1000 {
            let world = World::random(&mut SplitMix64::new(seed));
            let plan = world.plan(&options(MaxUnused::Bytes(0)));
            let totals = plan.totals;
            assert_eq!((totals.left_unused_bytes, totals.bases_containers), (0, 0), "seed {seed}: {plan:?}");
            let freed = world.freed(&plan.given_up()).unwrap_or_else(|| panic!("seed {seed}: {plan:?}"));
            grown += u64::from(freed < 0);
        }
        assert!(10 < grown, "copies never grow by more than is freed: {grown}");
    }

    fn needed_of(world: &World, needed: &Bitmap) -> Vec<ContainerUsage> {
        world.usages.values().filter(|container| needed.contains(container.number)).copied().collect()
    }

    #[test]
    fn what_depends_on_bases_is_taken_apart_where_that_frees_more_than_it_grows() {
        // Four versions, each against the one before.
        let regions = [(0, false, 1000, 500), (1, true, 1000, 100), (2, true, 1000, 100), (3, true, 1000, 100)];
        let pairs = [(1, 0), (2, 1), (3, 2)];
        let plan_of = |dead: &[u32], max_unused| {
            let usages: Vec<_> = (0..4)
                .map(|number| {
                    let stored = if number == 0 { 500 } else { 100 };
                    usage(number, stored, if dead.contains(&number) { (0, 1000) } else { (1000, 0) })
                })
                .collect();
            World::new(&usages, &pairs, &regions).plan(&options(max_unused))
        };
        // 700 bytes for 400.
        let plan = plan_of(&[0, 1, 2], MaxUnused::Bytes(0));
        assert_eq!((plan.remove.len(), plan.copy.as_slice()), (3, &[3][..]));
        assert_eq!((plan.totals.apart_containers, plan.totals.grown_bytes, plan.totals.freed_bytes()), (1, 400, 300));
        assert_eq!((plan.totals.bases_containers, plan.totals.bases_bytes, plan.totals.left_unused_bytes), (0, 0, 0));
        // 500 bytes for 1200.
        let plan = plan_of(&[0], MaxUnused::Bytes(1));
        assert!(plan.remove.is_empty() && plan.copy.is_empty());
        assert_eq!((plan.totals.bases_containers, plan.totals.bases_bytes, plan.totals.freed_bytes()), (1, 500, 0));
        let plan = plan_of(&[0], MaxUnused::Bytes(0));
        assert_eq!((plan.remove.as_slice(), plan.copy.len(), plan.totals.grown_bytes), (&[0][..], 3, 1200));
        // So much may stay.
        assert!(plan_of(&[0, 1, 2], MaxUnused::Bytes(700)).remove.is_empty());
        assert!(plan_of(&[0, 1, 2], MaxUnused::Unlimited).copy.is_empty());
    }
}
