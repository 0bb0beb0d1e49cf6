//! A list on the medium that grows without moving: segments, each as long as all before it together.
//!
//! Entry i is found by arithmetic. The first page records the regions of segments; an entry is four words, half a line.

use onefold_engine::{Error, Result};

use crate::mapped::medium::Medium;
use crate::mapped::space::{Region, SEGMENTS_MAX, Space};

/// Words of an entry.
pub const ENTRY_WORDS: usize = 4;
/// Bytes of an entry: two fill a line, and none straddles two.
pub const ENTRY_BYTES: u64 = 32;

/// The list's segments; in memory 8 bytes for each of up to [`SEGMENTS_MAX`].
#[derive(Debug)]
pub struct Segments {
    directory: u64,
    first_bits: u32,
    offsets: Vec<u64>,
}

impl Segments {
    /// Makes a list with its first segment. Its regions are recorded from an offset of the first page on.
    pub fn create<M: Medium>(space: &mut Space<M>, directory: u64, first_bits: u32) -> Result<Self> {
        let mut segments = Self { directory, first_bits, offsets: Vec::new() };
        segments.add(space)?;
        Ok(segments)
    }

    /// Reads a list's regions; `None` if they are damaged.
    pub fn open<M: Medium>(space: &Space<M>, directory: u64, first_bits: u32) -> Option<Self> {
        let mut segments = Self { directory, first_bits, offsets: Vec::new() };
        while let Some(Region { offset, bits }) = space.region(segments.next_region_at()) {
            if bits != segments.next_bits() || segments.offsets.len() as u64 == SEGMENTS_MAX {
                return None;
            }
            segments.offsets.push(offset);
        }
        // The word after the last region is 0, or a damaged region.
        let [word] = space.medium.again(segments.next_region_at());
        (word == 0 && !segments.offsets.is_empty()).then_some(segments)
    }

    fn next_region_at(&self) -> u64 {
        self.directory + 8 * self.offsets.len() as u64
    }

    fn bits_of(&self, segment: usize) -> u32 {
        // The first two have the same size.
        self.first_bits + u32::try_from(segment).expect("few segments").saturating_sub(1)
    }

    fn next_bits(&self) -> u32 {
        self.bits_of(self.offsets.len())
    }

    /// Returns the regions with their bytes.
    pub fn regions(&self) -> impl Iterator<Item = (u64, u64)> {
        self.offsets
            .iter()
            .enumerate()
            .map(|(segment, offset)| (*offset, ENTRY_BYTES.saturating_mul(1 << self.bits_of(segment))))
    }

    /// Returns the number of entries that fit.
    pub fn capacity(&self) -> u64 {
        1 << self.next_bits()
    }

    /// Adds a segment.
    pub fn add<M: Medium>(&mut self, space: &mut Space<M>) -> Result<()> {
        if self.offsets.len() as u64 + 1 == SEGMENTS_MAX {
            return Err(Error::invalid("the fingerprint store has no space for more entries"));
        }
        let bits = self.next_bits();
        let offset = space.allocate(ENTRY_BYTES << bits)?;
        space.put_region(self.next_region_at(), Region { offset, bits })?;
        self.offsets.push(offset);
        Ok(())
    }

    /// Returns the offset of an entry below the capacity.
    #[inline]
    pub fn offset_of(&self, index: u64) -> u64 {
        let segment = (u64::BITS - (index >> self.first_bits).leading_zeros()) as usize;
        let start = if segment == 0 { 0 } else { 1 << self.bits_of(segment) };
        self.offsets[segment] + (index - start) * ENTRY_BYTES
    }

    /// Splits `count` entries from an index on into contiguous extents: offset and number of entries.
    pub fn extents(&self, index: u64, count: u64) -> impl Iterator<Item = (u64, u64)> {
        let end = index + count;
        let mut at = index;
        std::iter::from_fn(move || {
            let segment = (u64::BITS - (at >> self.first_bits).leading_zeros()) as usize;
            let segment_end = 1 << (self.bits_of(segment) + u32::from(segment != 0));
            let (start, stop) = (at, end.min(segment_end));
            at = stop;
            (start < stop).then(|| (self.offset_of(start), stop - start))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::meter::{Metered, TickClock};
    use crate::mapped::recorder::Recorder;
    use crate::mapped::space::{Geometry, LOG_AT};

    #[test]
    fn entries_have_places_of_their_own_and_stretches_cover_them_in_order() {
        let recorder = Recorder::default();
        let metered = || Metered::new(recorder.clone(), std::time::Duration::ZERO, &TickClock::shared());
        let mut space = Space::create(metered(), Geometry::default()).unwrap();
        let mut segments = Segments::create(&mut space, LOG_AT, 2).unwrap();
        assert_eq!(segments.capacity(), 4);
        for capacity in [8, 16, 32] {
            segments.add(&mut space).unwrap();
            assert_eq!(segments.capacity(), capacity);
        }
        let offsets: Vec<_> = (0..32).map(|index| segments.offset_of(index)).collect();
        let mut sorted = offsets.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 32);
        for (index, count) in [(0, 32), (3, 2), (4, 4), (5, 20), (31, 1), (7, 0)] {
            let covered: Vec<_> = segments
                .extents(index, count)
                .flat_map(|(offset, count)| (0..count).map(move |entry| offset + entry * ENTRY_BYTES))
                .collect();
            let (index, end) = (usize::try_from(index).unwrap(), usize::try_from(index + count).unwrap());
            assert_eq!(covered, offsets[index..end]);
        }
        space.seal().unwrap();
        let space = Space::open(metered()).unwrap();
        let opened = Segments::open(&space, LOG_AT, 2).unwrap();
        assert_eq!(opened.offsets, segments.offsets);
        assert!(opened.regions().eq(segments.regions()));
        assert!(Segments::open(&space, LOG_AT, 3).is_none(), "sizes must be as they were chosen");
        for word in 0..5 {
            let mut words = recorder.words();
            words[64 + word] ^= 1;
            let space = Space::open(Metered::new(Recorder::of(words), std::time::Duration::ZERO, &TickClock::shared()));
            assert!(Segments::open(&space.unwrap(), LOG_AT, 2).is_none(), "damage in word {word}");
        }
    }
}
