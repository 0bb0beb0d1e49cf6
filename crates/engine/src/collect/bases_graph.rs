//! The graph of containers that depend on each other by bases of regions, in memory, and what regions grow by without their bases.

use crate::bitmap::Bitmap;
use crate::collect::plan::ContainerUsage;
use crate::container::ContainerReader;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::pipeline::Driver;
use crate::store::Store;
use crate::store::container_set::Containers;

/// Bytes of the sums of a container: four of its regions.
const SUMS_BYTES: usize = size_of::<Sums>();
/// Bytes of a pair of containers, in both orders.
const PAIR_BYTES: usize = 2 * size_of::<(u32, u32)>();

/// Sums over the regions of a container in bytes, saturating.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Plaintext and sealed bytes of regions without bases.
    free: (u32, u32),
    /// Plaintext and sealed bytes of regions with bases.
    based: (u32, u32),
}

/// Containers and their bases. A container is its number.
#[derive(Debug, Default)]
pub(super) struct BaseGraph {
    sums: Vec<Sums>,
    /// Pairs of a container and one that holds bases of it, sorted; then the same pairs by the holder.
    by_dependant: Vec<(u32, u32)>,
    by_holder: Vec<(u32, u32)>,
    /// Sums over regions without bases of all containers.
    all_free: (u64, u64),
}

impl BaseGraph {
    /// Reads the directories of all containers. Returns `None` if the graph takes more than `memory_bytes`: then nothing is
    /// weighed, and bases stay.
    ///
    /// A damaged container has no bases that still mean anything, and goes to `unreadable`. Fails if a directory cannot be read for
    /// another reason.
    pub(super) fn read(
        store: &Store,
        listed: &Containers,
        memory_bytes: usize,
        (driver, monitor): (&Driver, &dyn Monitor),
        unreadable: &mut dyn FnMut(&Error),
    ) -> Result<Option<Self>> {
        let Some(left) = memory_bytes.checked_sub(listed.numbers_end() as usize * SUMS_BYTES) else { return Ok(None) };
        // The list of pairs doubles as it grows.
        let pairs_max = left / PAIR_BYTES / 2;
        let mut graph = Self { sums: vec![Sums::default(); listed.numbers_end() as usize], ..Self::default() };
        for opened in store.open_containers_ahead(driver, listed, listed.numbers()) {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let container = match opened?.1 {
                Ok(container) => container,
                // Another collection has deleted it.
                Err(Error::Missing { .. }) => continue,
                Err(error) if error.is_loss() => {
                    unreadable(&error);
                    continue;
                }
                Err(error) => {
                    return Err(error.context("which containers others depend on is not known, so nothing is deleted"));
                }
            };
            graph.add(listed, &container);
            if pairs_max < graph.by_dependant.len() {
                return Ok(None);
            }
        }
        graph.finish();
        Ok(Some(graph))
    }

    fn add(&mut self, listed: &Containers, container: &ContainerReader) {
        let Some(number) = listed.find(container.name.id).map(|number| number.0) else { return };
        let mut holders = Vec::new();
        for region in &container.directory.regions {
            self.add_region(number, !region.bases.is_empty(), (region.plain_len, region.sealed_len));
            holders.extend(region.bases.iter().filter_map(|base| listed.find(base.container)).map(|holder| holder.0));
        }
        holders.sort_unstable();
        holders.dedup();
        self.by_dependant.extend(holders.into_iter().map(|holder| (number, holder)));
    }

    fn add_region(&mut self, number: u32, has_bases: bool, (plain, sealed): (u32, u32)) {
        let Some(sums) = self.sums.get_mut(number as usize) else { return };
        let sum = if has_bases { &mut sums.based } else { &mut sums.free };
        *sum = (sum.0.saturating_add(plain), sum.1.saturating_add(sealed));
        if !has_bases {
            self.all_free = (self.all_free.0 + u64::from(plain), self.all_free.1 + u64::from(sealed));
        }
    }

    fn finish(&mut self) {
        self.by_dependant.sort_unstable();
        self.by_holder = self.by_dependant.iter().map(|(dependant, holder)| (*holder, *dependant)).collect();
        self.by_holder.sort_unstable();
    }

    /// Returns the containers that hold bases of a container.
    pub(super) fn holders(&self, number: u32) -> impl Iterator<Item = u32> {
        second_of(&self.by_dependant, number)
    }

    /// Returns the containers that have bases in a container.
    pub(super) fn dependants(&self, number: u32) -> impl Iterator<Item = u32> {
        second_of(&self.by_holder, number)
    }

    /// Returns the containers among `given_up` that hold bases for one that stays, directly or over others that stay for this reason.
    pub(super) fn needed(&self, given_up: &Bitmap) -> Bitmap {
        let mut needed = Bitmap::default();
        let stays = |dependant: u32, needed: &Bitmap| !given_up.contains(dependant) || needed.contains(dependant);
        let mut found: Vec<u32> = Vec::new();
        for (dependant, holder) in &self.by_dependant {
            if stays(*dependant, &needed) && given_up.contains(*holder) && !needed.contains(*holder) {
                needed.insert(*holder);
                found.push(*holder);
            }
        }
        while let Some(number) = found.pop() {
            for holder in self.holders(number) {
                if given_up.contains(holder) && !needed.contains(holder) {
                    needed.insert(holder);
                    found.push(holder);
                }
            }
        }
        needed
    }

    /// Estimates the stored bytes by which the live chunks of a container grow if they are copied without bases. Takes for the
    /// regions with bases the ratio that regions without bases have in this container and in those that hold its bases, or, if
    /// there are none, in the repository.
    pub(super) fn growth(&self, usage: &ContainerUsage) -> u64 {
        let Some(sums) = self.sums.get(usage.number as usize).filter(|sums| sums.based.0 != 0) else { return 0 };
        let wide = |(plain, sealed): (u32, u32)| (u64::from(plain), u64::from(sealed));
        let mut free = wide(sums.free);
        for holder in self.holders(usage.number) {
            let (plain, sealed) = self.sums.get(holder as usize).map_or((0, 0), |sums| wide(sums.free));
            free = (free.0 + plain, free.1 + sealed);
        }
        if free.0 == 0 {
            free = self.all_free;
        }
        let (plain, sealed) = wide(sums.based);
        let without = if free.0 == 0 { plain } else { share(plain, free.1, free.0) };
        let growth = without.saturating_sub(sealed);
        let (live, dead) = (u64::from(usage.live_bytes), u64::from(usage.dead_bytes));
        if live + dead == 0 { growth } else { share(growth, live, live + dead) }
    }
}

/// Returns `value * part / whole`, rounded up, for a `whole` above 0.
fn share(value: u64, part: u64, whole: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(part)).div_ceil(u128::from(whole))).unwrap_or(u64::MAX)
}

fn second_of(pairs: &[(u32, u32)], first: u32) -> impl Iterator<Item = u32> {
    let start = pairs.partition_point(|pair| pair.0 < first);
    pairs.iter().skip(start).take_while(move |pair| pair.0 == first).map(|pair| pair.1)
}

#[cfg(test)]
impl BaseGraph {
    /// Makes a graph from pairs of a container and a holder of its bases, and regions: container, with bases, plaintext, sealed.
    pub(super) fn of(count: u32, pairs: &[(u32, u32)], regions: &[(u32, bool, u32, u32)]) -> Self {
        let mut graph = Self { sums: vec![Sums::default(); count as usize], ..Self::default() };
        for (number, has_bases, plain, sealed) in regions {
            graph.add_region(*number, *has_bases, (*plain, *sealed));
        }
        graph.by_dependant = pairs.to_vec();
        graph.finish();
        graph.by_dependant.dedup();
        graph.by_holder.dedup();
        graph
    }
}
