//! Phase 2: minimum and maximum, applied to candidates in stream order.

use crate::chunk::Chunking;

/// Cuts one stream. Knows lengths only; the bytes stay with the caller.
#[derive(Clone, Debug)]
pub struct Cutter {
    chunking: Chunking,
    /// Bytes since the last cut, shorter than the longest chunk.
    open: u32,
}

impl Cutter {
    /// Starts a stream.
    pub fn new(chunking: Chunking) -> Self {
        Self { chunking, open: 0 }
    }

    /// Takes the next `len` bytes of the stream with their candidates and appends the cuts among them, as offsets after
    /// the cut byte, ascending. What follows the last cut stays open.
    pub fn advance(&mut self, len: u32, candidates: &[u32], cuts: &mut Vec<u32>) {
        match self.chunking {
            Chunking::Gear(sizes) => {
                let mut candidates = candidates.iter().copied().peekable();
                // `start` is the last cut's offset; before this block's first cut it lies `open` bytes back.
                let mut start = -i64::from(self.open);
                loop {
                    let earliest = start + i64::from(sizes.min);
                    while candidates.next_if(|&candidate| i64::from(candidate) < earliest).is_some() {}
                    let latest = start + i64::from(sizes.max);
                    let cut = match candidates.peek() {
                        Some(&candidate) if i64::from(candidate) <= latest => i64::from(candidate),
                        _ => latest,
                    };
                    if i64::from(len) < cut {
                        break;
                    }
                    cuts.push(u32::try_from(cut).expect("cuts lie inside the block"));
                    start = cut;
                }
                self.open = u32::try_from(i64::from(len) - start).expect("an open chunk is shorter than the longest");
            }
            Chunking::Fixed { bytes } => {
                let mut cut = bytes - self.open;
                while cut <= len {
                    cuts.push(cut);
                    cut += bytes;
                }
                self.open = bytes - (cut - len);
            }
        }
    }

    /// Ends the stream; the next bytes start another.
    pub fn finish(&mut self) {
        self.open = 0;
    }

    /// Returns the longest chunk in bytes.
    pub(crate) fn chunk_bytes_max(&self) -> u32 {
        self.chunking.chunk_bytes_max()
    }

    /// Returns how many bytes follow the last cut.
    pub fn open_len(&self) -> u32 {
        self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{ChunkSizes, GearTable, WINDOW};

    /// The specification: one pass, no blocks.
    fn serial(bytes: &[u8], sizes: ChunkSizes, table: &GearTable) -> Vec<u32> {
        let mut candidates = Vec::new();
        table.candidates(bytes, 0, &mut candidates);
        let (mut cuts, mut start) = (Vec::new(), 0);
        let len = u32::try_from(bytes.len()).unwrap();
        while start < len {
            let hit = candidates.iter().copied().find(|&c| start + sizes.min <= c && c <= start + sizes.max);
            let cut = hit.unwrap_or(start + sizes.max);
            if len < cut {
                break;
            }
            cuts.push(cut);
            start = cut;
        }
        cuts
    }

    #[test]
    fn blocks_of_any_length_give_the_serial_cuts() {
        let sizes = ChunkSizes::for_average(512);
        let table = GearTable::expand(&[1; 32], sizes);
        let mut bytes = vec![0; 60_000];
        blake3::Hasher::new().update(b"cut").finalize_xof().fill(&mut bytes[..40_000]);
        let expected = serial(&bytes, sizes, &table);
        for block in [1usize, 31, 100, 256, 5000, 60_000] {
            let mut cutter = Cutter::new(Chunking::Gear(sizes));
            let mut all = Vec::new();
            for start in (0..bytes.len()).step_by(block) {
                let (halo, end) = (start.min(WINDOW - 1), (start + block).min(bytes.len()));
                let (mut candidates, mut cuts) = (Vec::new(), Vec::new());
                table.candidates(&bytes[start - halo..end], halo, &mut candidates);
                cutter.advance(u32::try_from(end - start).unwrap(), &candidates, &mut cuts);
                all.extend(cuts.into_iter().map(|cut| cut + u32::try_from(start).unwrap()));
            }
            assert_eq!(all, expected, "blocks of {block}");
        }
        let lengths = expected.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(lengths.clone().all(|len| (sizes.min..=sizes.max).contains(&len)));
        assert!(lengths.clone().any(|len| len == sizes.max), "zeros are cut at the maximum");
    }

    #[test]
    fn fixed_chunks_are_of_one_length_whatever_the_blocks() {
        for block in [1u32, 3, 7, 8, 9, 64] {
            let mut cutter = Cutter::new(Chunking::Fixed { bytes: 8 });
            let mut all = Vec::new();
            for start in (0..64).step_by(block as usize) {
                let mut cuts = Vec::new();
                cutter.advance(block.min(64 - start), &[], &mut cuts);
                all.extend(cuts.into_iter().map(|cut| cut + start));
            }
            assert_eq!(all, [8, 16, 24, 32, 40, 48, 56, 64], "blocks of {block}");
            assert_eq!(cutter.open_len(), 0);
        }
    }
}
