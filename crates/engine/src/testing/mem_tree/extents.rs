//! The bytes of a file with holes.

use std::collections::BTreeMap;
use std::ops::Range;

/// Runs of bytes by where they start, none touching the next; what lies between is a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extents(BTreeMap<u64, Vec<u8>>);

impl Extents {
    /// Writes bytes, joined with those they touch.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len() as u64;
        self.punch(offset..end);
        let mut run = bytes.to_vec();
        let mut start = offset;
        if let Some((before, before_bytes)) = self.0.range(..offset).next_back()
            && before + before_bytes.len() as u64 == offset
        {
            start = *before;
        }
        if start != offset
            && let Some(mut joined) = self.0.remove(&start)
        {
            joined.append(&mut run);
            run = joined;
        }
        if let Some(mut after) = self.0.remove(&end) {
            run.append(&mut after);
        }
        self.0.insert(start, run);
    }

    /// Turns a range into a hole.
    pub(super) fn punch(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let touched: Vec<u64> = self.overlapping(&range).map(|(start, _)| start).collect();
        for start in touched {
            let bytes = self.0.remove(&start).expect("the run was just listed");
            let end = start + bytes.len() as u64;
            if start < range.start {
                self.0.insert(start, bytes[..index(range.start - start)].to_vec());
            }
            if range.end < end {
                self.0.insert(range.end, bytes[index(range.end - start)..].to_vec());
            }
        }
    }

    /// Copies what lies at `offset` into the buffer, zeros where there is a hole.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        buffer.fill(0);
        let range = offset..offset + buffer.len() as u64;
        for (start, bytes) in self.overlapping(&range) {
            let from = start.max(range.start);
            let to = (start + bytes.len() as u64).min(range.end);
            buffer[index(from - range.start)..index(to - range.start)]
                .copy_from_slice(&bytes[index(from - start)..index(to - start)]);
        }
    }

    /// Returns the first run that ends after `offset`, cut to start there.
    pub(super) fn next(&self, offset: u64) -> Option<Range<u64>> {
        let (start, bytes) = self.overlapping(&(offset..u64::MAX)).next()?;
        Some(start.max(offset)..start + bytes.len() as u64)
    }

    /// Returns all runs in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.0.iter().map(|(start, bytes)| (*start, bytes.as_slice()))
    }

    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &[u8])> {
        let first = self.0.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let from = range.start;
        self.0
            .range(first..range.end.max(first))
            .filter(move |(start, bytes)| from < **start + bytes.len() as u64)
            .map(|(start, bytes)| (*start, bytes.as_slice()))
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("runs are held in memory")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn extents_hold_what_a_plain_buffer_holds(
            steps in proptest::collection::vec((any::<bool>(), 0..60_u64, 0..20_usize, 1..=255_u8), 0..40),
        ) {
            let mut plain = [0_u8; 128];
            let mut extents = Extents::default();
            for (write, offset, len, byte) in steps {
                let range = index(offset)..index(offset) + len;
                if write {
                    plain[range].fill(byte);
                    extents.write(offset, &vec![byte; len]);
                } else {
                    plain[range].fill(0);
                    extents.punch(offset..offset + len as u64);
                }
                let mut read = [9; 128];
                extents.read(0, &mut read);
                prop_assert_eq!(read, plain);
                let mut offset = 0;
                let mut data = Vec::new();
                while let Some(range) = extents.next(offset) {
                    data.extend(range.clone());
                    prop_assert!(offset < range.start || offset == 0);
                    offset = range.end;
                }
                let written: Vec<u64> = (0..128).filter(|at| plain[index(*at)] != 0).collect();
                prop_assert_eq!(data, written);
            }
        }
    }
}
