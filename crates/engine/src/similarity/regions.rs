//! The regions that can be bases, by number: four bytes instead of a container's name.

use std::collections::{HashMap, VecDeque};

use crate::error::Result;
use crate::types::{ContainerId, RegionId, SessionId};

pub use crate::container::bases::{BASE_REGIONS_MAX, BASES_MAX, DEPTH_MAX};
/// Numbers are below this: enough for 128 TiB of regions of 512 KiB. The index keeps them in 28 bits, one of which means none.
pub const REGIONS_MAX: usize = (1 << 28) - 1;

/// Number of a region in [`Regions`]: smaller ones are older.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionNumber(pub u32);

/// Record of a region. Takes 20 bytes, and 4 for each base: 0.4 for each of its 64 chunks of 8 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    session: u32,
    ordinal: u32,
    region: u16,
    depth: u8,
    base_count: u8,
    plain_len: u32,
    /// Position of its first base among those of all regions that were ever entered.
    bases_start: u32,
}

/// Length that a region counts with once it was forgotten: that of most.
pub const FORGOTTEN_LEN: u32 = 512 << 10;
/// Bytes of a region in a file, without its bases.
pub(super) const REGION_BYTES: usize = 16;

/// Regions in the order in which they were entered. Bases come before the regions that need them, so chains end. The oldest are
/// forgotten when there are more than the memory allows.
#[derive(Clone, Debug)]
pub struct Regions {
    sessions: Vec<SessionId>,
    /// Number of each session.
    numbers: HashMap<SessionId, u32>,
    /// Number of the oldest region that is known.
    first: u32,
    known: VecDeque<Known>,
    /// Bases of the known regions, in their order.
    bases: VecDeque<u32>,
    /// How many bases were forgotten, modulo 2^32.
    bases_first: u32,
    /// Number of the first known region of each container. Those of a container are entered one after the other.
    containers: HashMap<ContainerId, u32>,
    bytes_max: usize,
}

impl Default for Regions {
    fn default() -> Self {
        Self::within(usize::MAX)
    }
}

impl Regions {
    /// Starts with none. Takes at most `bytes_max` bytes, or one region, and 16 bytes for each session with more than it forgets.
    pub fn within(bytes_max: usize) -> Self {
        // All of the capacity at once: pages that are not written take no memory, and growing copies nothing.
        let count = if bytes_max == usize::MAX { 0 } else { bytes_max.div_ceil(size_of::<Known>()) };
        let (known, bases) = (VecDeque::with_capacity(count), VecDeque::new());
        Self {
            sessions: Vec::new(),
            numbers: HashMap::new(),
            first: 0,
            known,
            bases,
            bases_first: 0,
            containers: HashMap::new(),
            bytes_max,
        }
    }

    /// Enters a region with its depth and those of its bases that have numbers, at most [`BASE_REGIONS_MAX`]. `None`: there are no numbers
    /// left, or no region can be like that.
    pub fn enter(
        &mut self,
        id: RegionId,
        plain_len: u32,
        (bases, depth): (&[RegionNumber], u8),
    ) -> Option<RegionNumber> {
        let number = self.end().filter(|number| (*number as usize) < REGIONS_MAX)?;
        if DEPTH_MAX < depth || BASE_REGIONS_MAX < bases.len() {
            return None;
        }
        let region = u16::try_from(id.region).ok()?;
        let session = self.session_number(id.container.session)?;
        let ContainerId { ordinal, .. } = id.container;
        self.push((session, ordinal, region), (depth, plain_len), bases.iter().map(|base| base.0));
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
        self.known.get(number.0.checked_sub(self.first)? as usize)
    }

    /// Returns the number of the next region.
    fn end(&self) -> Option<u32> {
        u32::try_from(self.known.len()).ok()?.checked_add(self.first)
    }

    /// Returns the number of the oldest region that is known.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// Returns true if a region is known.
    pub(super) fn knows(&self, number: RegionNumber) -> bool {
        self.get(number).is_some()
    }

    /// Returns the sessions by their numbers.
    pub(super) fn sessions(&self) -> &[SessionId] {
        &self.sessions
    }

    /// Returns true if a session has a number.
    pub(super) fn has_session(&self, session: SessionId) -> bool {
        self.numbers.contains_key(&session)
    }

    /// Gives a session the next number.
    pub(super) fn add_session(&mut self, session: SessionId) {
        let _number = self.session_number(session);
    }

    /// Writes all that are known, numbered from 0.
    pub(super) fn write(&self, out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        for (number, known) in self.all().zip(&self.known) {
            let mut record = Vec::with_capacity(REGION_BYTES + 4 * BASE_REGIONS_MAX);
            let bases: Vec<u32> = self.bases(number).filter_map(|base| base.0.checked_sub(self.first)).collect();
            let Known { session, ordinal, region, depth, plain_len, .. } = *known;
            record.extend_from_slice(&session.to_le_bytes());
            record.extend_from_slice(&ordinal.to_le_bytes());
            record.extend_from_slice(&region.to_le_bytes());
            record.extend_from_slice(&[depth, u8::try_from(bases.len()).unwrap_or(u8::MAX)]);
            record.extend_from_slice(&plain_len.to_le_bytes());
            record.extend(bases.iter().flat_map(|base| base.to_le_bytes()));
            out(&record)?;
        }
        Ok(())
    }

    /// Appends a region that was written, whose bases `read` returns one after the other. Returns false, and appends nothing, if it
    /// is none.
    pub(super) fn read(&mut self, record: [u8; REGION_BYTES], read: &mut dyn FnMut() -> Result<u32>) -> Result<bool> {
        let [s0, s1, s2, s3, o0, o1, o2, o3, r0, r1, depth, base_count, l0, l1, l2, l3] = record;
        let session = u32::from_le_bytes([s0, s1, s2, s3]);
        let Some(end) = self.end().filter(|end| (*end as usize) < REGIONS_MAX) else { return Ok(false) };
        if self.sessions.len() <= session as usize || DEPTH_MAX < depth || BASE_REGIONS_MAX < usize::from(base_count) {
            return Ok(false);
        }
        let mut bases = Vec::with_capacity(BASE_REGIONS_MAX);
        for _ in 0..base_count {
            let base = read()?;
            if end <= base {
                return Ok(false);
            }
            bases.push(base);
        }
        let (ordinal, region) = (u32::from_le_bytes([o0, o1, o2, o3]), u16::from_le_bytes([r0, r1]));
        self.push((session, ordinal, region), (depth, u32::from_le_bytes([l0, l1, l2, l3])), bases.into_iter());
        Ok(true)
    }

    fn push(
        &mut self,
        (session, ordinal, region): (u32, u32, u16),
        (depth, plain_len): (u8, u32),
        bases: impl Iterator<Item = u32>,
    ) {
        let before = self.bases.len();
        let bases_start = self.bases_first.wrapping_add(u32::try_from(before).unwrap_or(u32::MAX));
        self.bases.extend(bases);
        let base_count = u8::try_from(self.bases.len() - before).unwrap_or(u8::MAX);
        if let (Some(end), Some(container)) = (self.end(), self.container(session, ordinal)) {
            self.containers.entry(container).or_insert(end);
        }
        self.known.push_back(Known { session, ordinal, region, depth, base_count, plain_len, bases_start });
        while 1 < self.known.len() && self.bytes_max < self.tables_bytes() {
            let Some(oldest) = self.known.pop_front() else { break };
            self.first += 1;
            if let Some(container) = self.container(oldest.session, oldest.ordinal) {
                let next =
                    self.known.front().filter(|next| (next.session, next.ordinal) == (oldest.session, oldest.ordinal));
                match next {
                    Some(_) => self.containers.insert(container, self.first),
                    None => self.containers.remove(&container),
                };
            }
            self.bases.drain(..usize::from(oldest.base_count));
            self.bases_first = self.bases_first.wrapping_add(oldest.base_count.into());
        }
    }

    fn container(&self, session: u32, ordinal: u32) -> Option<ContainerId> {
        Some(ContainerId { session: *self.sessions.get(session as usize)?, ordinal })
    }

    fn tables_bytes(&self) -> usize {
        // A map has a byte more for each entry, and fills up to 7/8.
        let container = (size_of::<(ContainerId, u32)>() + 1) * 8 / 7;
        self.known.len() * size_of::<Known>() + 4 * self.bases.len() + self.containers.len() * container
    }

    /// Returns the number of a region that is known.
    pub fn number_of(&self, id: RegionId) -> Option<RegionNumber> {
        let start = *self.containers.get(&id.container)?;
        let from = (start.max(self.first)..self.end()?).map(RegionNumber);
        let mut of_container = from.map_while(|number| {
            let region = self.id(number).filter(|found| found.container == id.container)?;
            Some((region.region, number))
        });
        of_container.find(|(region, _)| *region == id.region).map(|(_, number)| number)
    }

    /// Returns the numbers of all that are known, the oldest first.
    pub fn all(&self) -> impl Iterator<Item = RegionNumber> + use<> {
        (self.first..self.end().unwrap_or(self.first)).map(RegionNumber)
    }

    /// Returns how many are known.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// Returns the region's name.
    pub fn id(&self, number: RegionNumber) -> Option<RegionId> {
        let known = self.get(number)?;
        let session = *self.sessions.get(known.session as usize)?;
        Some(RegionId { container: ContainerId { session, ordinal: known.ordinal }, region: known.region.into() })
    }

    /// Returns the length of its longest chain of bases: 0 without any.
    pub fn depth(&self, number: RegionNumber) -> Option<u8> {
        self.get(number).map(|known| known.depth)
    }

    /// Returns the length of its plaintext in bytes; [`FORGOTTEN_LEN`] of one that was forgotten, 0 of one that was never entered.
    pub fn plain_len(&self, number: RegionNumber) -> u32 {
        let unknown = if number.0 < self.first { FORGOTTEN_LEN } else { 0 };
        self.get(number).map_or(unknown, |known| known.plain_len)
    }

    /// Returns its bases.
    pub fn bases(&self, number: RegionNumber) -> impl Iterator<Item = RegionNumber> + '_ {
        let known = self.get(number);
        let start = known.map_or(0, |known| known.bases_start.wrapping_sub(self.bases_first) as usize);
        let end = start + known.map_or(0, |known| usize::from(known.base_count));
        self.bases.range(start.min(self.bases.len())..end.min(self.bases.len())).copied().map(RegionNumber)
    }

    /// Returns how many regions are decoded for this one, itself included.
    pub fn chain_len(&self, number: RegionNumber) -> usize {
        let mut chain = Vec::new();
        self.chain(number, &mut chain);
        chain.len()
    }

    /// Appends the regions that a restore decodes for this one, itself included, without repetitions.
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
        self.tables_bytes() + self.sessions.capacity() * session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ordinal: u32, region: u32) -> RegionId {
        RegionId { container: ContainerId { session: SessionId([1; 16]), ordinal }, region }
    }

    #[test]
    fn chains_end_at_the_depth_that_a_format_allows() {
        let mut regions = Regions::default();
        let mut last = regions.enter(id(0, 0), 100, (&[], 0)).unwrap();
        let other = regions.enter(id(0, 1), 100, (&[], 0)).unwrap();
        for depth in 1..=DEPTH_MAX {
            last = regions.enter(id(depth.into(), 0), 100, (&[other, last], depth)).unwrap();
            assert_eq!(regions.depth(last), Some(depth));
            let mut chain = Vec::new();
            regions.chain(last, &mut chain);
            assert_eq!(chain.len(), 2 + usize::from(depth), "each once");
        }
        assert_eq!(regions.enter(id(9, 0), 100, (&[last], DEPTH_MAX + 1)), None, "too deep");
        assert_eq!(regions.enter(id(9, 0), 100, (&[other; BASE_REGIONS_MAX + 1], 1)), None, "too many bases");
        assert_eq!(regions.id(other), Some(id(0, 1)));
        assert_eq!((regions.id(RegionNumber(99)), regions.plain_len(RegionNumber(99))), (None, 0));
        assert_eq!(size_of::<Known>(), 20);
    }
}
