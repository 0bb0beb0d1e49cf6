//! The regions that can be bases, by number: four bytes instead of a container's name.

use std::collections::HashMap;

use crate::types::{ContainerId, SessionId};

/// Most bases of a region. A third one gains nothing (decision 0045).
pub const BASES_MAX: usize = 2;
/// Longest chain of bases that a format may allow.
pub const DEPTH_MAX: u8 = 4;
/// Most regions with numbers: 128 TiB of regions of 512 KiB. The index keeps numbers in 28 bits, one of which means none.
pub const REGIONS_MAX: usize = (1 << 28) - 1;

/// Number of a region in [`Regions`]: smaller ones are older.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionNumber(pub u32);

/// Names a region for good.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionId {
    /// Its container.
    pub container: ContainerId,
    /// Its number there, below 4,096.
    pub region: u16,
}

/// Record of a region. Takes 24 bytes, 0.4 for each of its 64 chunks of 8 KiB.
#[derive(Clone, Copy, Debug)]
struct Known {
    session: u32,
    ordinal: u32,
    region: u16,
    depth: u8,
    plain_len: u32,
    bases: [u32; BASES_MAX],
}

/// Stands for no base.
const NO_BASE: u32 = u32::MAX;

/// Regions in the order in which they were entered. Bases come before the regions that need them, so chains end.
#[derive(Clone, Debug, Default)]
pub struct Regions {
    sessions: Vec<SessionId>,
    /// Number of each session.
    numbers: HashMap<SessionId, u32>,
    known: Vec<Known>,
}

impl Regions {
    /// Enters a region. `bases` are at most [`BASES_MAX`] regions, which must have been entered. `None`: there are
    /// [`REGIONS_MAX`] already, or the region could not be read within [`DEPTH_MAX`].
    pub fn enter(&mut self, id: RegionId, plain_len: u32, bases: &[RegionNumber]) -> Option<RegionNumber> {
        let number = u32::try_from(self.known.len()).ok().filter(|_| self.known.len() < REGIONS_MAX)?;
        let mut depth = 0;
        let mut kept = [NO_BASE; BASES_MAX];
        for (index, base) in bases.iter().enumerate() {
            depth = depth.max(self.get(*base)?.depth + 1);
            *kept.get_mut(index)? = base.0;
        }
        if DEPTH_MAX < depth {
            return None;
        }
        let session = self.session_number(id.container.session)?;
        let ContainerId { ordinal, .. } = id.container;
        self.known.push(Known { session, ordinal, region: id.region, depth, plain_len, bases: kept });
        Some(RegionNumber(number))
    }

    fn session_number(&mut self, session: SessionId) -> Option<u32> {
        if let Some(number) = self.numbers.get(&session) {
            return Some(*number);
        }
        let number = u32::try_from(self.sessions.len()).ok()?;
        self.sessions.push(session);
        self.numbers.insert(session, number);
        Some(number)
    }

    fn get(&self, number: RegionNumber) -> Option<&Known> {
        self.known.get(number.0 as usize)
    }

    /// Returns how many there are; numbers are below that.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// Returns the region's name.
    pub fn id(&self, number: RegionNumber) -> Option<RegionId> {
        let known = self.get(number)?;
        let session = *self.sessions.get(known.session as usize)?;
        Some(RegionId { container: ContainerId { session, ordinal: known.ordinal }, region: known.region })
    }

    /// Returns the length of its longest chain of bases: 0 without any.
    pub fn depth(&self, number: RegionNumber) -> Option<u8> {
        self.get(number).map(|known| known.depth)
    }

    /// Returns the length of its plaintext in bytes; 0 of one that was not entered.
    pub fn plain_len(&self, number: RegionNumber) -> u32 {
        self.get(number).map_or(0, |known| known.plain_len)
    }

    /// Returns its bases.
    pub fn bases(&self, number: RegionNumber) -> impl Iterator<Item = RegionNumber> + use<> {
        let bases = self.get(number).map_or([NO_BASE; BASES_MAX], |known| known.bases);
        bases.into_iter().filter(|base| *base != NO_BASE).map(RegionNumber)
    }

    /// Appends the regions that a restore decodes for this one, itself included, without repetitions: at most
    /// 2^5 - 1 of them.
    pub fn chain(&self, number: RegionNumber, out: &mut Vec<RegionNumber>) {
        let start = out.len();
        out.push(number);
        let mut next = start;
        while let Some(region) = out.get(next).copied() {
            for base in self.bases(region) {
                if out.get(start..).is_some_and(|chain| !chain.contains(&base)) {
                    out.push(base);
                }
            }
            next += 1;
        }
    }

    /// Returns the memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        // A session is there twice; the map has a byte more for each entry, and fills up to 7/8.
        let session = size_of::<SessionId>() + (size_of::<(SessionId, u32)>() + 1) * 8 / 7;
        self.known.capacity() * size_of::<Known>() + self.sessions.capacity() * session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ordinal: u32, region: u16) -> RegionId {
        RegionId { container: ContainerId { session: SessionId([1; 16]), ordinal }, region }
    }

    #[test]
    fn chains_end_at_the_depth_that_a_format_allows() {
        let mut regions = Regions::default();
        let mut last = regions.enter(id(0, 0), 100, &[]).unwrap();
        let other = regions.enter(id(0, 1), 100, &[]).unwrap();
        for depth in 1..=DEPTH_MAX {
            last = regions.enter(id(depth.into(), 0), 100, &[other, last]).unwrap();
            assert_eq!(regions.depth(last), Some(depth));
            let mut chain = Vec::new();
            regions.chain(last, &mut chain);
            assert_eq!(chain.len(), 2 + usize::from(depth), "each once");
        }
        assert_eq!(regions.enter(id(9, 0), 100, &[last]), None, "too deep");
        assert_eq!(regions.enter(id(9, 0), 100, &[RegionNumber(99)]), None, "a base that is not known");
        assert_eq!(regions.enter(id(9, 0), 100, &[other; 3]), None, "three bases");
        assert_eq!(regions.id(other), Some(id(0, 1)));
        assert_eq!((regions.id(RegionNumber(99)), regions.plain_len(RegionNumber(99))), (None, 0));
        assert_eq!(size_of::<Known>(), 24);
    }
}
