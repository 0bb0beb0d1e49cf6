//! The order in which containers are read whole: those that depend on others come first, next to those with the same bases.
//!
//! A region that was read as a base of another one is compared with its names then, and not opened again when its own container
//! comes. Containers of several versions that depend on the same regions follow each other, so that these are still in the cache.

use crate::bitmap::Bitmap;
use crate::container::ContainerReader;
use crate::container::bases::DEPTH_MAX;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::pipeline::Driver;
use crate::store::Store;
use crate::store::container_set::{ContainerNumber, Containers};

/// A container whose regions have bases in others. Containers are their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Dependent {
    /// The container.
    number: u32,
    /// The one that holds most of its bases; of several, the first.
    holder: u32,
    /// The greatest depth of its regions.
    depth: u8,
}

impl Dependent {
    fn of(container: &ContainerReader, number: ContainerNumber, listed: &Containers) -> Option<Self> {
        let regions = &container.directory.regions;
        let depth = regions.iter().map(|region| region.bases.depth()).max().filter(|depth| *depth != 0)?;
        let bases = regions.iter().flat_map(|region| region.bases.iter());
        let mut holders: Vec<u32> =
            bases.filter_map(|base| listed.find(base.container)).map(|holder| holder.0).collect();
        holders.sort_unstable();
        let most = holders.chunk_by(PartialEq::eq).rev().max_by_key(|run| run.len())?;
        Some(Self { number: number.0, holder: *most.first()?, depth })
    }
}

/// Finds the containers among `numbers` that depend on others. One that cannot be opened shows when it is read.
pub(super) fn find_dependents(
    store: &Store,
    listed: &Containers,
    numbers: &Bitmap,
    (driver, monitor): (&Driver, &dyn Monitor),
) -> Result<Vec<Dependent>> {
    let mut dependents = Vec::new();
    let wanted = listed.numbers().filter(|number| numbers.contains(number.0));
    for opened in store.open_containers_ahead(driver, listed, wanted) {
        if monitor.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let (name, opened) = opened?;
        if let (Ok(container), Some(number)) = (opened, listed.find(name.id)) {
            dependents.extend(Dependent::of(&container, number, listed));
        }
    }
    Ok(dependents)
}

/// Returns containers that depend on others in the order in which to read them: by the container without bases that most of theirs lead
/// to, then the deepest first, so that the others are read as bases before they are read themselves.
pub(super) fn order(mut dependents: Vec<Dependent>) -> Vec<u32> {
    dependents.sort_by_key(|dependent| dependent.number);
    dependents.dedup_by_key(|dependent| dependent.number);
    let holder_of = |number: u32| {
        let found = dependents.binary_search_by_key(&number, |dependent| dependent.number).ok();
        found.and_then(|index| dependents.get(index)).map(|dependent| dependent.holder)
    };
    let root_of = |dependent: &Dependent| {
        // No chain is longer; in damaged directories one may lead back.
        (0..DEPTH_MAX)
            .try_fold(dependent.holder, |holder, _| holder_of(holder).ok_or(holder))
            .unwrap_or_else(|root| root)
    };
    let mut keyed: Vec<_> = dependents
        .iter()
        .map(|dependent| (root_of(dependent), std::cmp::Reverse(dependent.depth), dependent.number))
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(.., number)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    fn dependent(number: u32, holder: u32, depth: u8) -> Dependent {
        Dependent { number, holder, depth }
    }

    #[test]
    fn containers_of_all_versions_with_the_same_bases_follow_each_other_the_deepest_first() {
        // Containers 100 to 109 have no bases. Those of the second version are 0 to 4, of the third 200 to 204, of the fourth 50 to 54.
        let second = (0..5).map(|number| dependent(number, 100 + 2 * number, 1));
        let third = (0..5).map(|number| dependent(200 + number, number, 2));
        let fourth = (0..5).map(|number| dependent(50 + number, 101 + 2 * number, 1));
        let order = order(second.chain(third).chain(fourth).collect());
        let expected: Vec<u32> = (0..5).flat_map(|number| [200 + number, number, 50 + number]).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn each_container_comes_once_whatever_directories_say() {
        let mut random = SplitMix64::new(5);
        let mut below = |end: u64| u32::try_from(random.below(end)).unwrap();
        for _ in 0..300 {
            let count = 1 + below(20);
            let any: Vec<_> = (0..count)
                .map(|number| dependent(number, below(u64::from(count) + 3), 1 + u8::try_from(below(4)).unwrap()))
                .collect();
            let mut ordered = order(any);
            ordered.sort_unstable();
            assert_eq!(ordered, (0..count).collect::<Vec<_>>());
        }
        let circle = order(vec![dependent(0, 1, 1), dependent(1, 0, 1), dependent(1, 1, 1)]);
        assert_eq!(circle.len(), 2);
    }
}
