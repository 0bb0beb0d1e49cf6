//! The plan of a collection: which containers are removed, and which are copied first.
//!
//! A plan is a value: `--dry-run` prints it, and nothing has been read or written for it but directories. It proposes;
//! [`settle`](super::settle::settle) decides.

use std::cmp::Ordering;

use crate::bitmap::Bitmap;
use crate::object::names::ContainerKind;
use crate::store::container_ids::CONDEMNED_MAX;

/// Fewest small containers that are joined. Fewer, and each prune would copy the container that the last one made.
pub const JOINED_MIN: usize = 10;

/// Usage of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContainerUsage {
    /// Its number.
    pub number: u32,
    /// Its kind.
    pub kind: ContainerKind,
    /// Bytes of the object.
    pub stored_bytes: u32,
    /// Plaintext of live chunks whose copy is the one to keep, at most 4 GiB.
    pub live_bytes: u32,
    /// Plaintext of all other chunks, at most 4 GiB.
    pub dead_bytes: u32,
    /// Live chunks whose copy is the one to keep, at most 65,535.
    pub live_chunks: u16,
    /// All other chunks, at most 65,535.
    pub dead_chunks: u16,
    /// Number of the newest snapshot that reaches one of them; 0 is the newest of all.
    pub rank: u16,
}

impl ContainerUsage {
    /// Returns true if nothing in it is needed. A chunk may be empty, so bytes do not decide.
    pub fn is_dead(&self) -> bool {
        self.live_chunks == 0
    }

    /// Returns the number of its chunks.
    fn chunks(&self) -> u64 {
        u64::from(self.live_chunks) + u64::from(self.dead_chunks)
    }

    /// Returns the stored bytes that are not needed: the share of the plaintext, rounded up.
    pub fn unused_bytes(&self) -> u64 {
        let (stored, dead) = (u64::from(self.stored_bytes), u64::from(self.dead_bytes));
        let all = dead + u64::from(self.live_bytes);
        if self.is_dead() || all == 0 {
            return if self.is_dead() { stored } else { 0 };
        }
        // 32 bits times 32 bits.
        (stored * dead).div_ceil(all)
    }

    /// Returns the stored bytes that are needed.
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.stored_bytes) - self.unused_bytes()
    }

    /// Compares by what copying frees for each byte that it copies, the largest first. Then metadata comes first, whose
    /// copies have fresh hints; then older contents, which the next prune would rather not copy again.
    fn compare(&self, other: &Self) -> Ordering {
        let product = |dead: u32, live: u32| u64::from(dead) * u64::from(live);
        let is_data = |usage: &Self| usage.kind == ContainerKind::Data;
        product(other.dead_bytes, self.live_bytes)
            .cmp(&product(self.dead_bytes, other.live_bytes))
            .then(is_data(self).cmp(&is_data(other)))
            .then(other.rank.cmp(&self.rank))
            .then(self.number.cmp(&other.number))
    }
}

/// Unused bytes that may stay.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MaxUnused {
    /// So many percent of the used bytes.
    Percent(f64),
    /// So many bytes.
    Bytes(u64),
    /// Any number: nothing is copied for it.
    Unlimited,
}

impl MaxUnused {
    /// Returns true if nothing unused may stay.
    pub(super) fn is_nothing(self) -> bool {
        self.bytes(u64::MAX) == 0
    }

    /// Returns the limit in bytes.
    fn bytes(self, used: u64) -> u64 {
        match self {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a share, rounded; casts saturate, and what is no number is 0"
            )]
            Self::Percent(percent) => (used as f64 * percent / 100.0) as u64,
            Self::Bytes(bytes) => bytes,
            Self::Unlimited => u64::MAX,
        }
    }
}

/// Options of a prune.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PruneOptions {
    /// Unused bytes that may stay.
    pub max_unused: MaxUnused,
    /// Most stored bytes that are copied.
    pub max_repack_bytes: u64,
    /// Joins containers below this size, too.
    pub repack_below_bytes: u32,
}

/// What a plan does, in numbers. Stored bytes are estimated from shares of plaintext.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanTotals {
    /// Containers considered.
    pub containers: u64,
    /// Bytes of them.
    pub stored_bytes: u64,
    /// Chunks in them, as far as they are known.
    pub chunks: u64,
    /// Stored bytes that are not needed.
    pub unused_bytes: u64,
    /// Containers removed without copying.
    pub removed_containers: u64,
    /// Bytes of them.
    pub removed_bytes: u64,
    /// Chunks in them.
    pub removed_chunks: u64,
    /// Containers copied and then removed.
    pub copied_containers: u64,
    /// Those among them that are copied for their hints alone.
    pub refreshed_containers: u64,
    /// Stored bytes that are copied.
    pub copied_bytes: u64,
    /// Chunks in the containers that are copied.
    pub copied_chunks: u64,
    /// Those of them that are not needed.
    pub removed_by_copying_chunks: u64,
    /// Stored bytes that copying frees.
    pub freed_by_copying_bytes: u64,
    /// Stored bytes that are not needed and stay.
    pub left_unused_bytes: u64,
    /// Containers that stay because regions in others are compressed against theirs.
    pub bases_containers: u64,
    /// Stored bytes of them that are not needed otherwise.
    pub bases_bytes: u64,
    /// Containers that are copied without bases so that others, which hold these, can go.
    pub apart_containers: u64,
    /// Stored bytes by which what is copied grows without its bases, estimated.
    pub grown_bytes: u64,
    /// True if more containers would be condemned than one collection may.
    pub is_cut: bool,
}

impl PlanTotals {
    /// Returns the stored bytes that are freed, by those that copies grow less.
    pub fn freed_bytes(&self) -> u64 {
        (self.removed_bytes + self.freed_by_copying_bytes).saturating_sub(self.grown_bytes)
    }
}

/// What a collection does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PrunePlan {
    /// Containers without a needed chunk.
    pub remove: Vec<u32>,
    /// Containers whose needed chunks are copied, those that the newest snapshots reach first.
    pub copy: Vec<u32>,
    /// The plan in numbers.
    pub totals: PlanTotals,
}

impl PrunePlan {
    /// Plans a collection from the usage of all its candidates. Takes at most 25 MiB.
    pub fn new(usage: impl IntoIterator<Item = ContainerUsage>, options: &PruneOptions) -> Self {
        let mut plan = Self::default();
        let mut wasteful = Best::new(ContainerUsage::compare);
        let mut small = Best::new(|a, b| (a.stored_bytes, a.number).cmp(&(b.stored_bytes, b.number)));
        for container in usage {
            plan.totals.containers += 1;
            plan.totals.stored_bytes += u64::from(container.stored_bytes);
            plan.totals.chunks += container.chunks();
            plan.totals.unused_bytes += container.unused_bytes();
            if container.is_dead() {
                plan.remove(&container);
                continue;
            }
            if container.dead_bytes != 0 {
                wasteful.push(container);
            }
            if container.stored_bytes < options.repack_below_bytes {
                small.push(container);
            }
        }
        plan.totals.left_unused_bytes = plan.totals.unused_bytes - plan.totals.removed_bytes;
        let left_max = plan.left_max(options);
        let mut chosen = Vec::new();
        for container in wasteful.finish() {
            if plan.totals.left_unused_bytes <= left_max || !plan.copies(&container, options.max_repack_bytes) {
                break;
            }
            chosen.push(container);
        }
        let mut numbers: Vec<u32> = chosen.iter().map(|container| container.number).collect();
        numbers.sort_unstable();
        let mut small = small.finish();
        small.retain(|container| numbers.binary_search(&container.number).is_err());
        for kind in [ContainerKind::Metadata, ContainerKind::Data] {
            plan.join(small.iter().filter(|container| container.kind == kind), options, &mut chosen);
        }
        chosen.sort_unstable_by_key(|container| (container.rank, container.number));
        plan.copy = chosen.into_iter().map(|container| container.number).collect();
        plan
    }

    /// Gives further containers up whatever they waste: what is needed of them is copied last. Limits on copying do not hold.
    pub fn give_up(&mut self, containers: impl IntoIterator<Item = ContainerUsage>) {
        let mut copied = self.copy.clone();
        copied.sort_unstable();
        for container in containers {
            // Those without a needed chunk are removed in any case.
            if container.is_dead() || copied.binary_search(&container.number).is_ok() {
                continue;
            }
            if self.copies(&container, u64::MAX) {
                self.copy.push(container.number);
            }
        }
    }

    /// Copies further containers for their hints alone, last, unless nothing is to be copied.
    pub fn refresh(&mut self, containers: impl IntoIterator<Item = ContainerUsage>, options: &PruneOptions) {
        if options.max_unused == MaxUnused::Unlimited {
            return;
        }
        let mut copied = self.copy.clone();
        copied.sort_unstable();
        for container in containers {
            if container.is_dead() || copied.binary_search(&container.number).is_ok() {
                continue;
            }
            if !self.copies(&container, options.max_repack_bytes) {
                break;
            }
            self.copy.push(container.number);
            self.totals.refreshed_containers += 1;
        }
    }

    /// Takes containers out of the plan that others depend on.
    pub fn keep(&mut self, kept: impl IntoIterator<Item = ContainerUsage>) {
        let kept: Vec<ContainerUsage> = kept.into_iter().collect();
        self.totals.bases_containers += kept.len() as u64;
        self.totals.bases_bytes += kept.iter().map(ContainerUsage::unused_bytes).sum::<u64>();
        self.take_out(kept);
    }

    /// Takes containers out of the plan.
    pub(super) fn take_out(&mut self, containers: impl IntoIterator<Item = ContainerUsage>) {
        let mut numbers = Bitmap::default();
        for container in containers {
            numbers.insert(container.number);
            let totals = &mut self.totals;
            totals.left_unused_bytes += container.unused_bytes();
            if container.is_dead() {
                totals.removed_containers -= 1;
                totals.removed_bytes -= u64::from(container.stored_bytes);
                totals.removed_chunks -= container.chunks();
            } else {
                totals.copied_containers -= 1;
                totals.copied_bytes -= container.used_bytes();
                totals.freed_by_copying_bytes -= container.unused_bytes();
                totals.copied_chunks -= container.chunks();
                totals.removed_by_copying_chunks -= u64::from(container.dead_chunks);
            }
        }
        self.remove.retain(|number| !numbers.contains(*number));
        self.copy.retain(|number| !numbers.contains(*number));
        self.totals.refreshed_containers = self.totals.refreshed_containers.min(self.totals.copied_containers);
    }

    /// Gives up one more container, which the caller has weighed. It is removed or copied last.
    pub(super) fn give_up_one(&mut self, container: &ContainerUsage) {
        if container.is_dead() {
            self.remove(container);
            self.totals.left_unused_bytes -= container.unused_bytes();
        } else if self.copies(container, u64::MAX) {
            self.copy.push(container.number);
        }
    }

    /// Returns the unused bytes that may stay.
    pub(super) fn left_max(&self, options: &PruneOptions) -> u64 {
        options.max_unused.bytes(self.totals.stored_bytes - self.totals.unused_bytes)
    }

    /// Returns the numbers of all containers that are removed or copied.
    pub(super) fn given_up(&self) -> Bitmap {
        numbers(self.remove.iter().chain(&self.copy))
    }

    fn condemned(&self) -> usize {
        self.remove.len() + usize::try_from(self.totals.copied_containers).unwrap_or(usize::MAX)
    }

    fn remove(&mut self, container: &ContainerUsage) {
        if CONDEMNED_MAX <= self.remove.len() {
            self.totals.is_cut = true;
            return;
        }
        self.remove.push(container.number);
        self.totals.removed_containers += 1;
        self.totals.removed_bytes += u64::from(container.stored_bytes);
        self.totals.removed_chunks += container.chunks();
    }

    /// Adds a container that is copied to the totals; returns false if a limit forbids it.
    fn copies(&mut self, container: &ContainerUsage, max_repack_bytes: u64) -> bool {
        if CONDEMNED_MAX <= self.condemned() {
            self.totals.is_cut = true;
            return false;
        }
        let copied_bytes = self.totals.copied_bytes + container.used_bytes();
        if max_repack_bytes < copied_bytes {
            return false;
        }
        self.totals.copied_bytes = copied_bytes;
        self.totals.copied_containers += 1;
        self.totals.freed_by_copying_bytes += container.unused_bytes();
        self.totals.copied_chunks += container.chunks();
        self.totals.removed_by_copying_chunks += u64::from(container.dead_chunks);
        self.totals.left_unused_bytes -= container.unused_bytes();
        true
    }

    /// Joins small containers of one kind, the smallest first.
    fn join<'a>(
        &mut self,
        small: impl Iterator<Item = &'a ContainerUsage>,
        options: &PruneOptions,
        chosen: &mut Vec<ContainerUsage>,
    ) {
        let (before, start) = (self.totals, chosen.len());
        for container in small {
            if !self.copies(container, options.max_repack_bytes) {
                break;
            }
            chosen.push(*container);
        }
        if chosen.len() - start < JOINED_MIN {
            chosen.truncate(start);
            self.totals = before;
        }
    }
}

/// Returns a set of numbers.
pub(super) fn numbers<'a>(numbers: impl IntoIterator<Item = &'a u32>) -> Bitmap {
    let mut set = Bitmap::default();
    numbers.into_iter().for_each(|number| set.insert(*number));
    set
}

/// The best containers by an order, as many as a collection may condemn.
struct Best<F> {
    containers: Vec<ContainerUsage>,
    compare: F,
}

impl<F: Fn(&ContainerUsage, &ContainerUsage) -> Ordering> Best<F> {
    fn new(compare: F) -> Self {
        Self { containers: Vec::new(), compare }
    }

    fn push(&mut self, container: ContainerUsage) {
        if self.containers.len() == 2 * CONDEMNED_MAX {
            self.containers.select_nth_unstable_by(CONDEMNED_MAX, &self.compare);
            self.containers.truncate(CONDEMNED_MAX);
        }
        self.containers.push(container);
    }

    /// Returns them in order; perhaps some more.
    fn finish(mut self) -> Vec<ContainerUsage> {
        self.containers.sort_unstable_by(self.compare);
        self.containers
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::random::SplitMix64;

    const CONTAINER_BYTES: u32 = 1 << 20;

    fn options(max_unused: MaxUnused) -> PruneOptions {
        let max_repack_bytes = u64::MAX;
        PruneOptions { max_unused, max_repack_bytes, repack_below_bytes: 0 }
    }

    fn usage(number: u32, stored_bytes: u32, live_bytes: u32, dead_bytes: u32) -> ContainerUsage {
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

    fn random_number(random: &mut SplitMix64, below: u64) -> u32 {
        u32::try_from(random.below(below)).unwrap()
    }

    fn random_usage(random: &mut SplitMix64) -> Vec<ContainerUsage> {
        let count = random_number(random, 60);
        let plain = if random.coin() { 1 << 32 } else { 5 };
        let draw = |number| {
            let live_chunks = u16::try_from(random.below(4)).unwrap();
            ContainerUsage {
                number,
                kind: if random.coin() { ContainerKind::Data } else { ContainerKind::Metadata },
                stored_bytes: random_number(random, u64::from(CONTAINER_BYTES)),
                live_bytes: if live_chunks == 0 { 0 } else { random_number(random, plain) },
                dead_bytes: if random.coin() { 0 } else { random_number(random, plain) },
                live_chunks,
                dead_chunks: 0,
                rank: u16::try_from(random.below(5)).unwrap(),
            }
        };
        (0..count).map(draw).collect()
    }

    fn random_options(random: &mut SplitMix64) -> PruneOptions {
        let max_unused = match random.below(3) {
            0 => MaxUnused::Percent(f64::from(random_number(random, 50))),
            1 => MaxUnused::Bytes(random.below(8 << 20)),
            _ => MaxUnused::Unlimited,
        };
        let max_repack_bytes = if random.coin() { u64::MAX } else { random.below(16 << 20) };
        PruneOptions {
            max_repack_bytes,
            repack_below_bytes: if random.coin() { CONTAINER_BYTES / 2 } else { 0 },
            ..options(max_unused)
        }
    }

    #[test]
    fn a_plan_keeps_its_limits_and_removes_nothing_that_is_needed_without_copying_it() {
        for seed in 0..20_000 {
            let mut random = SplitMix64::new(seed);
            let (all, options) = (random_usage(&mut random), random_options(&mut random));
            let plan = PrunePlan::new(all.clone(), &options);
            let by_number: BTreeMap<u32, &ContainerUsage> = all.iter().map(|usage| (usage.number, usage)).collect();
            let dead: Vec<u32> = all.iter().filter(|usage| usage.live_chunks == 0).map(|usage| usage.number).collect();
            assert_eq!(plan.remove, dead, "seed {seed}");
            let copied: BTreeSet<u32> = plan.copy.iter().copied().collect();
            assert_eq!(copied.len(), plan.copy.len(), "seed {seed}: copied twice");
            assert!(plan.copy.iter().all(|number| 0 < by_number[number].live_chunks), "seed {seed}");
            assert!(plan.copy.is_sorted_by_key(|number| (by_number[number].rank, *number)), "seed {seed}");
            // The totals are those of the lists.
            let totals = plan.totals;
            let sum = |numbers: &[u32], bytes: &dyn Fn(&ContainerUsage) -> u64| -> u64 {
                numbers.iter().map(|number| bytes(by_number[number])).sum()
            };
            let stored = |usage: &ContainerUsage| u64::from(usage.stored_bytes);
            assert_eq!((totals.containers, totals.copied_containers), (all.len() as u64, plan.copy.len() as u64));
            assert_eq!(totals.removed_bytes, sum(&plan.remove, &stored), "seed {seed}");
            assert_eq!(totals.copied_bytes, sum(&plan.copy, &ContainerUsage::used_bytes), "seed {seed}");
            assert_eq!(totals.freed_by_copying_bytes, sum(&plan.copy, &ContainerUsage::unused_bytes), "seed {seed}");
            let unused: u64 = all.iter().map(ContainerUsage::unused_bytes).sum();
            assert_eq!(totals.freed_bytes() + totals.left_unused_bytes, unused, "seed {seed}");
            // The limits hold; only the limit on copying excuses unused bytes.
            assert!(totals.copied_bytes <= options.max_repack_bytes, "seed {seed}");
            let used: u64 = all.iter().map(ContainerUsage::used_bytes).sum();
            if options.max_repack_bytes == u64::MAX {
                assert!(totals.left_unused_bytes <= options.max_unused.bytes(used), "seed {seed}: {totals:?}");
            }
            if options.max_unused == MaxUnused::Unlimited && options.repack_below_bytes == 0 {
                assert!(plan.copy.is_empty(), "seed {seed}");
            }
            assert!(!totals.is_cut, "seed {seed}");
        }
    }

    #[test]
    fn a_laxer_limit_never_copies_more_and_a_larger_allowance_never_frees_less() {
        for seed in 0..20_000 {
            let mut random = SplitMix64::new(seed);
            let all = random_usage(&mut random);
            let options = PruneOptions { repack_below_bytes: 0, ..random_options(&mut random) };
            let [low, high] = {
                let limits = [random.below(8 << 20), random.below(8 << 20)];
                [limits[0].min(limits[1]), limits[0].max(limits[1])]
            };
            let copied = |options: PruneOptions| -> BTreeSet<u32> {
                PrunePlan::new(all.clone(), &options).copy.into_iter().collect()
            };
            let [strict, lax] =
                [low, high].map(|bytes| copied(PruneOptions { max_unused: MaxUnused::Bytes(bytes), ..options }));
            assert!(lax.is_subset(&strict), "seed {seed}: {low} and {high} bytes unused");
            let [less, more] = [low, high].map(|bytes| copied(PruneOptions { max_repack_bytes: bytes, ..options }));
            assert!(less.is_subset(&more), "seed {seed}: {low} and {high} bytes copied");
        }
    }

    #[test]
    fn containers_that_free_most_for_each_byte_come_first_and_metadata_at_equal_shares() {
        let metadata = ContainerUsage { kind: ContainerKind::Metadata, ..usage(4, 1000, 50, 50) };
        let older = ContainerUsage { rank: 3, ..usage(6, 1000, 50, 50) };
        let all = [usage(1, 1000, 90, 10), usage(2, 1000, 50, 50), usage(3, 1000, 10, 90), metadata, older];
        let copied = |max_repack_bytes| {
            let plan = PrunePlan::new(all, &PruneOptions { max_repack_bytes, ..options(MaxUnused::Bytes(0)) });
            plan.copy.into_iter().collect::<BTreeSet<u32>>()
        };
        let expected: [(u64, &[u32]); 6] = [
            (99, &[]),
            (100, &[3]),
            (600, &[3, 4]),
            (1100, &[3, 4, 6]),
            (1600, &[2, 3, 4, 6]),
            (2500, &[1, 2, 3, 4, 6]),
        ];
        for (limit, numbers) in expected {
            assert_eq!(copied(limit), numbers.iter().copied().collect(), "at most {limit} bytes");
        }
    }

    #[test]
    fn a_container_with_live_chunks_is_never_dead_and_counts_its_share() {
        let empty_chunk = ContainerUsage { live_chunks: 1, ..usage(1, 1000, 0, 70) };
        assert!(!empty_chunk.is_dead() && usage(1, 1000, 0, 70).is_dead());
        assert_eq!((empty_chunk.unused_bytes(), usage(1, 1000, 0, 0).unused_bytes()), (1000, 1000));
        assert_eq!(ContainerUsage { live_chunks: 1, ..usage(1, 1000, 0, 0) }.unused_bytes(), 0);
        assert_eq!((usage(1, 1000, 2, 1).unused_bytes(), usage(1, 1000, 2, 1).used_bytes()), (334, 666));
        assert_eq!(usage(1, u32::MAX, u32::MAX, u32::MAX).unused_bytes(), 1 << 31);
        let plan = PrunePlan::new([empty_chunk], &options(MaxUnused::Bytes(0)));
        assert_eq!((plan.remove.as_slice(), plan.copy.as_slice()), (&[][..], &[1][..]));
    }

    #[test]
    fn ten_small_containers_of_a_kind_are_joined_if_asked_for() {
        let small = |count: u32| (0..count).map(|number| usage(number, CONTAINER_BYTES / 2 - 1, 1, 0));
        let join = PruneOptions { repack_below_bytes: CONTAINER_BYTES / 2, ..options(MaxUnused::Unlimited) };
        assert_eq!(PrunePlan::new(small(10), &join).copy.len(), 10);
        assert_eq!(PrunePlan::new(small(9), &join).copy.len(), 0);
        assert_eq!(PrunePlan::new(small(9), &join).totals.copied_bytes, 0);
        assert_eq!(PrunePlan::new(small(10), &options(MaxUnused::Unlimited)).copy.len(), 0);
        let not_small = small(10).map(|container| ContainerUsage { stored_bytes: CONTAINER_BYTES / 2, ..container });
        assert_eq!(PrunePlan::new(not_small, &join).copy.len(), 0);
        let of_two_kinds = small(18).map(|container| {
            let kind = if container.number % 2 == 0 { ContainerKind::Data } else { ContainerKind::Metadata };
            ContainerUsage { kind, ..container }
        });
        assert_eq!(PrunePlan::new(of_two_kinds, &join).copy.len(), 0);
        // Nine of them would be too few.
        let max_repack_bytes = 10 * u64::from(CONTAINER_BYTES / 2 - 1) - 1;
        assert_eq!(PrunePlan::new(small(20), &PruneOptions { max_repack_bytes, ..join }).copy.len(), 0);
    }

    #[test]
    fn a_collection_condemns_no_more_than_it_may_and_takes_the_best() {
        let count = u32::try_from(3 * CONDEMNED_MAX).unwrap();
        // Shares that rise and fall.
        let all = || (0..count).map(|number| usage(number, 1000, 1000, 1 + number.wrapping_mul(7919) % 1000));
        let plan = PrunePlan::new(all(), &options(MaxUnused::Bytes(0)));
        assert!(plan.copy.len() == CONDEMNED_MAX && plan.totals.is_cut);
        let least = plan.copy.iter().map(|number| 1 + number.wrapping_mul(7919) % 1000).min().unwrap();
        assert!((660..675).contains(&least), "{least}");
        let plan = PrunePlan::new(
            all().map(|container| ContainerUsage { live_chunks: 0, ..container }),
            &options(MaxUnused::Bytes(0)),
        );
        assert!(plan.remove.len() == CONDEMNED_MAX && plan.totals.is_cut);
        assert_eq!(plan.totals.left_unused_bytes, 1000 * 2 * CONDEMNED_MAX as u64);
    }
}
