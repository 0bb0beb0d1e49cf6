//! Bytes of a simulated file, in shared pages: a copy costs nothing until one of the two is written.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are copied when a shared page is written.
const PAGE_BYTES: usize = 4096;
const PAGE: u64 = PAGE_BYTES as u64;
/// End of the last byte that can be written: a bound on the table of pages (32 MiB), far above any simulated workload.
const WRITTEN_BYTES_MAX: u64 = 16 << 30;

type Page = [u8; PAGE_BYTES];

/// Length and bytes of a file. What was never written is a hole and reads as zeros.
#[derive(Clone, Default)]
pub struct Contents {
    /// Bytes at and after `len` are zero; pages after the last are holes.
    pages: Arc<Vec<Option<Arc<Page>>>>,
    len: u64,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contents").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Contents {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.len).expect("contents in memory fit")];
        self.read(0, &mut bytes);
        bytes
    }

    /// Returns a number and the length. Contents that are alive and have both in common are the same; equal bytes may have
    /// different numbers.
    pub fn identity(&self) -> (usize, u64) {
        (Arc::as_ptr(&self.pages).addr(), self.len)
    }

    /// Fills the buffer; bytes after the end read as zeros, so that callers must have checked the length.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        let mut rest = buffer;
        let mut offset = offset;
        while !rest.is_empty() {
            let (page, within) = split(offset, rest.len());
            let (piece, after) = rest.split_at_mut(within.len());
            match self.page(page) {
                Some(bytes) => piece.copy_from_slice(&bytes[within.clone()]),
                None => piece.fill(0),
            }
            offset += within.len() as u64;
            rest = after;
        }
    }

    /// Writes all bytes, growing the length where needed.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = end_of(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let pages = Arc::make_mut(&mut self.pages);
        let needed = page_count(end);
        if pages.len() < needed {
            pages.resize(needed, None);
        }
        let mut rest = bytes;
        let mut offset = offset;
        while !rest.is_empty() {
            let (page, within) = split(offset, rest.len());
            let (piece, after) = rest.split_at(within.len());
            let target = pages[page].get_or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(target)[within].copy_from_slice(piece);
            offset += piece.len() as u64;
            rest = after;
        }
        self.len = self.len.max(end);
        Ok(())
    }

    /// Cuts, or grows by a hole.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len && len < self.pages.len() as u64 * PAGE {
            let pages = Arc::make_mut(&mut self.pages);
            pages.truncate(page_count(len));
            let (page, within) = split(len, PAGE_BYTES);
            if let Some(Some(last)) = pages.get_mut(page) {
                Arc::make_mut(last)[within].fill(0);
            }
        }
        self.len = len;
    }

    /// Says whether a write needs room that the file does not have yet: after its end or in a hole.
    pub(super) fn grows(&self, offset: u64, len: usize) -> io::Result<bool> {
        let end = end_of(offset, len)?;
        if len == 0 {
            return Ok(false);
        }
        let first = page_count(offset + 1) - 1;
        Ok(self.len < end || (first..page_count(end)).any(|page| self.page(page).is_none()))
    }

    fn page(&self, page: usize) -> Option<&Arc<Page>> {
        self.pages.get(page).and_then(Option::as_ref)
    }
}

/// Returns the page that holds `offset` and the part of it that the next `len` bytes cover.
fn split(offset: u64, len: usize) -> (usize, Range<usize>) {
    let page = usize::try_from(offset / PAGE).expect("offsets in memory fit");
    let start = usize::try_from(offset % PAGE).expect("below the page's size");
    (page, start..PAGE_BYTES.min(start + len))
}

fn page_count(len: u64) -> usize {
    usize::try_from(len.div_ceil(PAGE)).expect("lengths in memory fit")
}

fn end_of(offset: u64, len: usize) -> io::Result<u64> {
    let end = offset.checked_add(len as u64).filter(|end| *end <= WRITTEN_BYTES_MAX);
    end.ok_or_else(|| ErrorKind::FileTooLarge.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(contents: &Contents) -> Vec<u8> {
        let mut bytes = vec![0xee; usize::try_from(contents.len()).unwrap()];
        contents.read(0, &mut bytes);
        bytes
    }

    #[test]
    fn contents_behave_as_a_vector_of_bytes_under_random_writes_and_cuts() {
        let seed = 7;
        let mut random = crate::random::SplitMix64::new(seed);
        let (mut contents, mut model) = (Contents::default(), Vec::<u8>::new());
        for step in 0..2000_u32 {
            let offset = usize::try_from(random.below(20_000)).unwrap();
            let before = (contents.clone(), model.clone());
            if random.below(4) == 0 {
                contents.set_len(offset as u64);
                model.resize(offset, 0);
            } else {
                let bytes = vec![step.to_le_bytes()[0] | 1; usize::try_from(random.below(9000)).unwrap()];
                contents.write(offset as u64, &bytes).unwrap();
                if !bytes.is_empty() {
                    model.resize(model.len().max(offset + bytes.len()), 0);
                    model[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
            }
            assert!(all(&contents) == model, "seed {seed}, step {step}");
            assert!(all(&before.0) == before.1, "seed {seed}, step {step}: an earlier copy changed");
        }
    }

    #[test]
    fn holes_and_what_follows_the_end_need_room_and_the_rest_does_not() {
        let mut contents = Contents::default();
        contents.write(0, &[1; 100]).unwrap();
        contents.set_len(3 * PAGE);
        let grows = |offset, len| contents.grows(offset, len).unwrap();
        assert!(!grows(50, 1000));
        assert!(grows(PAGE - 1, 2));
        assert!(grows(3 * PAGE - 1, 2));
        assert!(!grows(5 * PAGE, 0));
        assert_eq!(contents.grows(u64::MAX, 2).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
