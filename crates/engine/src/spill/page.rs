//! Pages of a run: sorted records, sealed as one message.
//!
//! A page's plaintext is [`PAGE_LEN`] bytes: the number of records (u16), the records from the front (key, value), and
//! from the back one u16 per record, where it ends. Integers are little-endian; the bytes between are zero.

use std::cmp::Ordering;

use crate::crypto::{Domain, ObjectKey, TAG_LEN};

/// Bytes of a page's plaintext.
pub(super) const PAGE_LEN: usize = 16 * 1024;
/// Bytes of a page in the file.
pub(super) const SEALED_LEN: usize = PAGE_LEN + TAG_LEN;
/// Bytes of a hashed key: 160 keyed bits, as in the bucket table. Two of 2^40 keys collide with a probability of 2^-81.
pub(crate) const KEY_LEN: usize = 20;
/// Longest value in bytes: a node of a tree or a page of a table, and a few fields.
pub(crate) const VALUE_LEN_MAX: usize = 4096 + 64;

const HEADER_LEN: usize = 2;
const END_LEN: usize = 2;
const _: () = assert!(HEADER_LEN + END_LEN + KEY_LEN + VALUE_LEN_MAX <= PAGE_LEN && PAGE_LEN <= u16::MAX as usize);
/// Most records of a page.
const RECORDS_MAX: usize = (PAGE_LEN - HEADER_LEN) / (KEY_LEN + END_LEN);

/// Returns the most pages that records of so many bytes need, including two bytes per record for its end.
pub(super) fn pages_max(bytes: usize) -> usize {
    // A page ends when a record does not fit, so at most the bytes of the largest record are free.
    bytes / (PAGE_LEN - HEADER_LEN - KEY_LEN - VALUE_LEN_MAX - END_LEN) + 1
}

/// Hashed key: uniform, whatever the caller's keys are.
pub(crate) type Key = [u8; KEY_LEN];

/// Returns the first 8 bytes of a key as an integer with the order of keys.
pub(super) fn prefix_of(key: &Key) -> u64 {
    u64::from_be_bytes(*key.first_chunk().expect("a key is longer than 8 bytes"))
}

/// Key under which the pages of one map are sealed.
pub(crate) struct Sealer {
    key: ObjectKey,
    /// Separates maps if a random generator repeats itself.
    name: &'static str,
    /// Counter of the next page. It only grows, so that no nonce is used twice; a page that failed to write leaves a gap.
    next_counter: u64,
}

impl Sealer {
    pub(crate) fn new(key: ObjectKey, name: &'static str) -> Self {
        Self { key, name, next_counter: 0 }
    }

    pub(super) fn next_counter(&self) -> u64 {
        self.next_counter
    }

    /// Seals a page in its buffer and appends the tag.
    pub(super) fn seal(&mut self, page: &mut Vec<u8>) {
        self.key.seal(Domain::Spill, self.next_counter, self.name.as_bytes(), page, 0);
        self.next_counter = self.next_counter.checked_add(1).expect("2^64 pages are never written");
    }

    /// Opens a page in its buffer; returns false if it was not sealed with this counter.
    pub(super) fn is_opened(&self, counter: u64, sealed: &mut [u8]) -> bool {
        self.key.open(Domain::Spill, counter, self.name.as_bytes(), sealed).is_ok()
    }
}

/// Builder of pages.
pub(super) struct PageBuilder {
    bytes: Vec<u8>,
    ends: Vec<u16>,
}

impl PageBuilder {
    /// Memory of a builder, in bytes.
    pub(super) const MEMORY_BYTES: usize = SEALED_LEN + RECORDS_MAX * size_of::<u16>();

    pub(crate) fn new() -> Self {
        let mut builder = Self { bytes: Vec::with_capacity(SEALED_LEN), ends: Vec::with_capacity(RECORDS_MAX) };
        builder.clear();
        builder
    }

    /// Empties the page.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(HEADER_LEN, 0);
        self.ends.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns true if a record with a value of this length fits.
    pub(super) fn fits(&self, value_len: usize) -> bool {
        self.bytes.len() + KEY_LEN + value_len + (self.ends.len() + 1) * END_LEN <= PAGE_LEN
    }

    /// Appends a record, which must fit and have a larger key than all before.
    pub(super) fn push(&mut self, key: &Key, value: &[u8]) {
        assert!(self.fits(value.len()), "callers ask first");
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.ends.push(u16::try_from(self.bytes.len()).expect("ends lie within the page"));
    }

    /// Seals the page; returns its bytes for the file.
    pub(super) fn seal(&mut self, sealer: &mut Sealer) -> &[u8] {
        let count = u16::try_from(self.ends.len()).expect("a page holds fewer records than bytes");
        self.bytes[..HEADER_LEN].copy_from_slice(&count.to_le_bytes());
        self.bytes.resize(PAGE_LEN - self.ends.len() * END_LEN, 0);
        for end in self.ends.iter().rev() {
            self.bytes.extend_from_slice(&end.to_le_bytes());
        }
        sealer.seal(&mut self.bytes);
        &self.bytes
    }
}

/// Position of a key relative to a page.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum PagePosition<'a> {
    /// On the page, with this value.
    Found(&'a [u8]),
    /// On a page before, if anywhere.
    Before,
    /// On a page after, if anywhere.
    After,
    /// Between two records of the page: nowhere.
    Absent,
}

/// Reason why a page is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BadPage(pub(super) &'static str);

/// Opened page, with a buffer that the next one reuses.
pub(super) struct Page {
    bytes: Vec<u8>,
    count: usize,
}

impl Page {
    /// Memory of the buffer, in bytes.
    pub(super) const MEMORY_BYTES: usize = SEALED_LEN;

    /// Makes a page without records.
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; SEALED_LEN], count: 0 }
    }

    /// Empties the page and returns its buffer, for a page from the file.
    pub(super) fn buffer(&mut self) -> &mut [u8] {
        self.count = 0;
        &mut self.bytes
    }

    /// Opens the page in the buffer. After an error the page has no records.
    pub(crate) fn open(&mut self, sealer: &Sealer, counter: u64) -> Result<(), BadPage> {
        if !sealer.is_opened(counter, &mut self.bytes) {
            return Err(BadPage("a page does not open"));
        }
        let count = self.u16_at(0).map_or(0, usize::from);
        if count == 0 || RECORDS_MAX < count {
            return Err(BadPage("a page with an impossible number of records"));
        }
        self.count = count;
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the key and the value of a record.
    pub(crate) fn record(&self, index: usize) -> Result<(&Key, &[u8]), BadPage> {
        self.record_or_none(index).ok_or(BadPage("a record lies outside its page"))
    }

    fn record_or_none(&self, index: usize) -> Option<(&Key, &[u8])> {
        let start = match index.checked_sub(1) {
            None => HEADER_LEN,
            Some(before) => self.end_of(before)?,
        };
        let record = self.bytes.get(start..self.end_of(index)?)?;
        record.split_first_chunk()
    }

    fn end_of(&self, index: usize) -> Option<usize> {
        let ends_start = PAGE_LEN.checked_sub(self.count.checked_mul(END_LEN)?)?;
        let position = PAGE_LEN.checked_sub(index.checked_add(1)?.checked_mul(END_LEN)?)?;
        let end = usize::from(self.u16_at(position)?);
        (ends_start <= position && end <= ends_start).then_some(end)
    }

    fn u16_at(&self, position: usize) -> Option<u16> {
        self.bytes.get(position..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
    }

    /// Searches for a key. The page must have records.
    pub(crate) fn find(&self, key: &Key) -> Result<PagePosition<'_>, BadPage> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            let (found, value) = self.record(middle)?;
            match found.cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(PagePosition::Found(value)),
            }
        }
        Ok(match low {
            0 => PagePosition::Before,
            _ if low == self.count => PagePosition::After,
            _ => PagePosition::Absent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer() -> Sealer {
        Sealer::new(ObjectKey::from_bytes(&[7; 32]), "test")
    }

    fn load(sealed: &[u8], counter: u64) -> Result<Page, BadPage> {
        let mut page = Page::new();
        page.buffer().copy_from_slice(sealed);
        page.open(&sealer(), counter)?;
        Ok(page)
    }

    #[test]
    fn records_are_found_and_other_keys_get_a_position() {
        let mut builder = PageBuilder::new();
        let mut sealer = sealer();
        for _ in 0..2 {
            builder.clear();
            builder.push(&[2; 20], b"two");
            builder.push(&[4; 20], b"");
            builder.push(&[6; 20], &[6; VALUE_LEN_MAX]);
            let counter = sealer.next_counter();
            let page = load(builder.seal(&mut sealer), counter).unwrap();
            assert_eq!(page.count(), 3);
            assert_eq!(page.find(&[2; 20]), Ok(PagePosition::Found(b"two")));
            assert_eq!(page.find(&[4; 20]), Ok(PagePosition::Found(b"")));
            assert_eq!(page.find(&[6; 20]), Ok(PagePosition::Found(&[6; VALUE_LEN_MAX])));
            assert_eq!(page.find(&[1; 20]), Ok(PagePosition::Before));
            assert_eq!(page.find(&[3; 20]), Ok(PagePosition::Absent));
            assert_eq!(page.find(&[7; 20]), Ok(PagePosition::After));
            assert!(page.record(3).is_err());
        }
    }

    #[test]
    fn a_page_is_filled_to_the_last_record_that_fits() {
        let mut builder = PageBuilder::new();
        for number in 0..RECORDS_MAX {
            assert!(builder.fits(0));
            let mut key = [0; 20];
            key[..8].copy_from_slice(&(number as u64).to_be_bytes());
            builder.push(&key, b"");
        }
        assert!(!builder.fits(0));
        assert!(builder.ends.capacity() == RECORDS_MAX);
        let page = load(builder.seal(&mut sealer()), 0).unwrap();
        assert_eq!(page.count(), RECORDS_MAX);
        assert!(page.record(RECORDS_MAX - 1).is_ok());
    }

    #[test]
    fn a_page_opens_only_with_its_counter_and_unchanged() {
        let mut builder = PageBuilder::new();
        builder.push(&[2; 20], b"two");
        let sealed = builder.seal(&mut sealer()).to_vec();
        assert!(load(&sealed, 0).is_ok());
        assert!(load(&sealed, 1).is_err());
        let mut damaged = sealed;
        damaged[5000] ^= 1;
        assert!(load(&damaged, 0).is_err());
    }

    #[test]
    fn impossible_pages_are_errors() {
        let seal = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut plain = vec![0; PAGE_LEN];
            change(&mut plain);
            sealer().seal(&mut plain);
            plain
        };
        assert!(load(&seal(&|_| ()), 0).is_err(), "no records");
        assert!(load(&seal(&|plain| plain[..2].fill(0xff)), 0).is_err(), "too many records");
        for end in [0_u16, 1, 21, 0xffff] {
            let page = load(
                &seal(&|plain| {
                    plain[0] = 1;
                    plain[PAGE_LEN - 2..].copy_from_slice(&end.to_le_bytes());
                }),
                0,
            );
            let page = page.unwrap();
            assert!(page.record(0).is_err() && page.find(&[1; 20]).is_err(), "end {end}");
        }
    }
}
