//! The medium's first page, which locates everything else, and the space after it, which is allocated in regions.
//!
//! Every word of the page is replaced by one atomic store and carries its own check. So a crash leaves the old or the new word, and
//! damage is detected.
//!
//! | Bytes | Contents |
//! |---|---|
//! | 0..8 | magic; stored last when the page is made |
//! | 8..16 | sizes chosen at that time, [`Geometry`] |
//! | 64..72 | region of the cuckoo table |
//! | 128..136 | number of applied entries of the log: durable, and in the table |
//! | 512..1024 | regions of the log's segments |
//! | 1024..1536 | regions of the segments of the list of containers |
//!
//! Such a word has a check of 16 bits, then 6 and 42 bits of contents: for a region, the logarithm of its size and the number of its
//! first line.

use onefold_engine::random::mix64;
use onefold_engine::{Error, Result};

use crate::mapped::medium::{LINE_BYTES, Medium, WORD_BYTES};
use crate::mapped::meter::Metered;

/// Bytes of the first page.
pub const HEADER_BYTES: u64 = 4096;
/// Offset of the table's region.
pub const TABLE_AT: u64 = 64;
/// Offset of the number of applied entries.
pub const APPLIED_AT: u64 = 128;
/// Offset of the log's first region.
pub const LOG_AT: u64 = 512;
/// Offset of the first region of the list of containers.
pub const CONTAINERS_AT: u64 = 1024;
/// Most segments of a list: each has the size of all before it together.
pub const SEGMENTS_MAX: u64 = 64;

const MAGIC: u64 = u64::from_be_bytes(*b"OFMAPPD1");
const GEOMETRY_AT: u64 = 8;
const CHECK_SHIFT: u32 = 48;
const SIZE_SHIFT: u32 = 42;
const LINE_MASK: u64 = (1 << SIZE_SHIFT) - 1;
const SIZE_BITS_MAX: u32 = 63;
/// Words that are zeroed at a time.
const BATCH_WORDS: usize = 512;

/// Sizes chosen when the medium is first used; they never change. All are powers of two, given by their logarithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Entries of the log's first segment.
    pub log_bits: u32,
    /// Records of the first segment of the list of containers.
    pub containers_bits: u32,
    /// Entries between two records of the number of applied entries. After a crash, the entries that follow are looked up again.
    pub checkpoint_bits: u32,
    /// Buckets of the first table.
    pub table_bits: u32,
}

impl Default for Geometry {
    /// 32,768 entries (1 MiB), 4,096 containers, a record each 4,096 entries, 4,096 buckets (256 KiB).
    fn default() -> Self {
        Self { log_bits: 15, containers_bits: 12, checkpoint_bits: 12, table_bits: 12 }
    }
}

impl Geometry {
    const BITS_MAX: u32 = 40;

    fn encode(self) -> u64 {
        let Self { log_bits, containers_bits, checkpoint_bits, table_bits } = self;
        u64::from(log_bits)
            | u64::from(containers_bits) << 8
            | u64::from(checkpoint_bits) << 16
            | u64::from(table_bits) << 24
    }

    fn decode(word: u64) -> Option<Self> {
        let bits = |shift: u32| u32::try_from(word >> shift & 0xff).ok().filter(|bits| *bits <= Self::BITS_MAX);
        let geometry =
            Self { log_bits: bits(0)?, containers_bits: bits(8)?, checkpoint_bits: bits(16)?, table_bits: bits(24)? };
        (geometry.is_usable() && geometry.encode() == word).then_some(geometry)
    }

    /// Returns true if a medium can have these sizes: the first segments fill whole lines and are addressable.
    pub fn is_usable(self) -> bool {
        let all = [self.log_bits, self.containers_bits, self.checkpoint_bits, self.table_bits];
        all.iter().all(|bits| (1..=Self::BITS_MAX).contains(bits))
    }
}

/// A range of the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First byte, that of a line.
    pub offset: u64,
    /// Logarithm of its size, in entries, records or buckets.
    pub bits: u32,
}

fn check_of(at: u64, contents: u64) -> u64 {
    mix64(contents ^ mix64(at)) >> CHECK_SHIFT
}

/// Adds to contents of up to 48 bits the check for an offset.
fn sealed(at: u64, contents: u64) -> u64 {
    debug_assert!(contents >> CHECK_SHIFT == 0);
    check_of(at, contents) << CHECK_SHIFT | contents
}

fn opened(at: u64, word: u64) -> Option<u64> {
    let contents = word & ((1 << CHECK_SHIFT) - 1);
    (word != 0 && word >> CHECK_SHIFT == check_of(at, contents)).then_some(contents)
}

/// The medium, its first page and its allocated part.
#[derive(Debug)]
pub struct Space<M> {
    /// The medium.
    pub medium: Metered<M>,
    geometry: Geometry,
    /// First byte that was never allocated.
    end: u64,
    /// A crash may have left data from `end` up to here: it is zeroed before it is allocated.
    stained_end: u64,
}

impl<M: Medium> Space<M> {
    /// Makes an empty first page, which discards everything on the medium.
    pub fn create(medium: Metered<M>, geometry: Geometry) -> Result<Self> {
        if !geometry.is_usable() {
            return Err(Error::invalid(format!("no fingerprint store can have {geometry:?}")));
        }
        let mut space = Self { stained_end: medium.len(), medium, geometry, end: 0 };
        space.medium.grow(HEADER_BYTES)?;
        if space.stained_end != 0 {
            space.medium.store(0, 0);
            space.medium.flush(0, WORD_BYTES as u64);
            space.medium.fence()?;
        }
        space.allocate(HEADER_BYTES)?;
        space.medium.store(GEOMETRY_AT, sealed(GEOMETRY_AT, geometry.encode()));
        space.store_applied(0);
        space.medium.flush(0, HEADER_BYTES);
        space.medium.fence()?;
        Ok(space)
    }

    /// Completes the first page: from now on the medium holds a fingerprint store.
    pub fn seal(&mut self) -> Result<()> {
        self.medium.store(0, MAGIC);
        self.medium.flush(0, WORD_BYTES as u64);
        self.medium.fence()
    }

    /// Opens a medium that has a first page; `None` if it has none, or a damaged one. [`Space::claim`] comes next.
    pub fn open(medium: Metered<M>) -> std::result::Result<Self, Metered<M>> {
        if medium.len() < HEADER_BYTES {
            return Err(medium);
        }
        let [magic, word] = medium.again(0);
        let geometry = opened(GEOMETRY_AT, word).and_then(Geometry::decode);
        match geometry.filter(|_| magic == MAGIC) {
            Some(geometry) => {
                let stained_end = medium.len();
                Ok(Self { medium, geometry, end: stained_end, stained_end })
            }
            None => Err(medium),
        }
    }

    /// Returns the sizes that were chosen when the medium was first used.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Takes the regions in use, each with its bytes. Releases the gaps between them; the space after them is free. Returns true
    /// if they lie inside the medium and do not overlap.
    pub fn claim(&mut self, mut regions: Vec<(u64, u64)>) -> bool {
        regions.push((0, HEADER_BYTES));
        regions.sort_unstable();
        let mut end = 0;
        let mut gaps = Vec::new();
        for (offset, len) in regions {
            let Some(region_end) = offset.checked_add(len).filter(|_| end <= offset) else { return false };
            gaps.push((end, offset - end));
            end = region_end;
        }
        if self.medium.len() < end {
            return false;
        }
        gaps.into_iter().filter(|(_, len)| *len != 0).for_each(|(offset, len)| self.medium.release(offset, len));
        self.end = end;
        true
    }

    /// Allocates `len` bytes, zero now and after a crash.
    pub fn allocate(&mut self, len: u64) -> Result<u64> {
        let (offset, line) = (self.end, LINE_BYTES as u64);
        let end = len.checked_next_multiple_of(line).and_then(|len| offset.checked_add(len));
        let end = end.filter(|end| end / line <= LINE_MASK);
        let end = end.ok_or_else(|| Error::invalid("the fingerprint store has outgrown its addresses"))?;
        self.medium.grow(end)?;
        let stained = self.stained_end.min(end).saturating_sub(offset);
        if stained != 0 {
            self.zero(offset, stained);
            self.medium.fence()?;
        }
        self.end = end;
        Ok(offset)
    }

    /// Releases an unused region. Its addresses are not used again.
    pub fn release(&mut self, offset: u64, len: u64) {
        self.medium.release(offset, len);
    }

    /// Zeros a range, and flushes the words that change. A fence makes them durable.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let mut words = [0; BATCH_WORDS];
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let count = usize::try_from((end - at) / WORD_BYTES as u64).unwrap_or(BATCH_WORDS).min(BATCH_WORDS);
            let words = &mut words[..count];
            let bytes = (count * WORD_BYTES) as u64;
            self.medium.copy(at, words);
            if words.iter().any(|word| *word != 0) {
                words.fill(0);
                self.medium.write(at, words);
                self.medium.flush(at, bytes);
            }
            at += bytes;
        }
    }

    /// Returns the region recorded at an offset of the first page.
    pub fn region(&self, at: u64) -> Option<Region> {
        let [word] = self.medium.again(at);
        let contents = opened(at, word)?;
        let bits = u32::try_from(contents >> SIZE_SHIFT).ok().filter(|bits| *bits <= SIZE_BITS_MAX)?;
        Some(Region { offset: (contents & LINE_MASK) * LINE_BYTES as u64, bits })
    }

    /// Records a region at an offset of the first page, by one store, and makes it durable. The contents of the region must be
    /// durable before.
    pub fn put_region(&mut self, at: u64, region: Region) -> Result<()> {
        let line = region.offset / LINE_BYTES as u64;
        self.put(at, u64::from(region.bits) << SIZE_SHIFT | line);
        self.medium.fence()
    }

    fn put(&mut self, at: u64, contents: u64) {
        self.medium.store(at, sealed(at, contents));
        self.medium.flush(at, WORD_BYTES as u64);
    }

    /// Returns the recorded number of applied entries of the log.
    pub fn applied(&self) -> Option<u64> {
        let [word] = self.medium.again(APPLIED_AT);
        opened(APPLIED_AT, word)
    }

    /// Records the number of applied entries of the log. The next fence makes the record durable.
    pub fn store_applied(&mut self, entries: u64) {
        self.put(APPLIED_AT, entries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::meter::TickClock;
    use crate::mapped::recorder::Recorder;

    fn metered(recorder: &Recorder) -> Metered<Recorder> {
        Metered::new(recorder.clone(), std::time::Duration::ZERO, &TickClock::shared())
    }

    const GEOMETRY: Geometry = Geometry { log_bits: 3, containers_bits: 2, checkpoint_bits: 4, table_bits: 1 };

    #[test]
    fn a_page_without_its_last_store_is_none_and_one_that_is_whole_opens() {
        let recorder = Recorder::of(vec![u64::MAX; 1000]);
        let mut space = Space::create(metered(&recorder), GEOMETRY).unwrap();
        assert!(Space::open(metered(&recorder)).is_err());
        space.seal().unwrap();
        let mut space = Space::open(metered(&recorder)).unwrap();
        assert_eq!((space.geometry(), space.applied(), space.region(TABLE_AT)), (GEOMETRY, Some(0), None));
        assert!(space.claim(Vec::new()));
        let offset = space.allocate(100).unwrap();
        assert_eq!(offset, HEADER_BYTES);
        assert_eq!(space.medium.again(offset), [0; 13], "what stood there is gone");
        space.put_region(TABLE_AT, Region { offset, bits: 7 }).unwrap();
        assert_eq!(space.region(TABLE_AT), Some(Region { offset, bits: 7 }));
        assert_eq!(space.region(LOG_AT), None);
    }

    #[test]
    fn damage_in_a_word_of_the_page_shows() {
        let recorder = Recorder::default();
        let mut space = Space::create(metered(&recorder), GEOMETRY).unwrap();
        space.put_region(TABLE_AT, Region { offset: 4096, bits: 7 }).unwrap();
        space.store_applied(77);
        space.seal().unwrap();
        let words = recorder.words();
        for bit in 0..64 {
            let flipped = |at: u64| {
                let mut words = words.clone();
                words[usize::try_from(at).unwrap() / WORD_BYTES] ^= 1 << bit;
                Space::open(metered(&Recorder::of(words)))
            };
            assert!(flipped(0).is_err());
            assert!(flipped(GEOMETRY_AT).is_err());
            assert_eq!(flipped(TABLE_AT).unwrap().region(TABLE_AT), None);
            assert_eq!(flipped(APPLIED_AT).unwrap().applied(), None);
        }
    }

    #[test]
    fn regions_that_overlap_or_end_outside_are_refused_and_gaps_are_given_back() {
        let recorder = Recorder::default();
        let mut space = Space::create(metered(&recorder), GEOMETRY).unwrap();
        space.allocate(4096).unwrap();
        let len = recorder.len();
        for bad in [vec![(0, 64)], vec![(4096, 64), (4096, 64)], vec![(4096, len)], vec![(u64::MAX - 63, 64)]] {
            assert!(!space.claim(bad));
        }
        assert!(space.claim(vec![(4096 + 512, 64)]));
        assert_ne!(recorder.words()[512], 0, "the recorder leaves rubbish in what is given back");
        assert_eq!(space.allocate(64).unwrap(), 4096 + 512 + 64);
    }
}
