//! Anchors: what a chunk has in common with another one that was edited.
//!
//! An anchor is the keyed hash of a window at a position that the content chooses. Two chunks with a common extent of a
//! few hundred bytes probably share one. The positions are those whose Gear hash, which also finds the candidates for
//! cuts, is below a larger threshold: one search finds both.
//!
//! Sources. Sampling by content: Manber, "Finding similar files in a large file system", USENIX 1994; Zou et al., "Odess",
//! ICDE 2021, which keeps the Gear hashes at such positions. Each sample counts here by itself, instead of a few maxima
//! over linear transforms (N-transform: Broder, "Identifying and filtering near-duplicate documents", CPM 2000;
//! Finesse: Zhang et al., FAST 2019), since a region is compared and not a chunk. The hash of a window is NH (Black et al.,
//! "UMAC", CRYPTO 1999, section 4) over six words, with the products added modulo 2^128.

use onefold_accel::boundary::Finder;

use crate::chunk::{GearTable, WINDOW};
use crate::random::mix64;

/// Mean distance of anchors in bytes.
///
/// At least 1/32 of a region's anchors must agree with a base: 32 of the 1,024 of a region of 512 KiB, which is far from noise.
pub const ANCHOR_DISTANCE: u32 = 512;
/// Bytes that an anchor stands for: those before its position.
pub const ANCHOR_WINDOW: usize = 48;
/// Bytes before its position that decide whether there is an anchor, and which: two windows of the Gear hash, since the
/// anchors in a run of candidates closer than one window are left out but for the first.
pub const ANCHOR_CONTEXT: usize = 2 * WINDOW;

/// Words of the key of windows: six for the words of a window, two for what their products add up to.
const KEY_WORDS: usize = 8;

/// An anchor of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// Offset of the byte after its window, counted as candidates are.
    pub end: u32,
    /// Hash of the window.
    pub hash: u64,
}

/// Result of one search.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Candidates for cuts, as [`GearTable::candidates`] finds them.
    pub candidates: Vec<u32>,
    /// Anchors whose context lies within the bytes that were searched, ascending.
    pub anchors: Vec<Anchor>,
}

/// Finds candidates for cuts and anchors in one pass.
///
/// The keys: the table of the Gear hash chooses positions, so it comes from the chunking key of the repository; the key of windows is
/// BLAKE3 keyed with the same key, over a label.
#[derive(Clone)]
pub struct AnchorFinder {
    search: Finder,
    candidates_below: u32,
    anchors_below: u32,
    key: [u64; KEY_WORDS],
}

impl std::fmt::Debug for AnchorFinder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnchorFinder").field("anchors_below", &self.anchors_below).finish_non_exhaustive()
    }
}

impl AnchorFinder {
    /// Prepares the search. `table` and `chunk_key` are those that the repository cuts with, `distance` is the mean
    /// distance of anchors in bytes, at least 1.
    pub fn new(table: &GearTable, chunk_key: &[u8; 32], distance: u32) -> Self {
        let (candidates_below, anchors_below) = (table.threshold(), u32::MAX / distance.max(1));
        let mut bytes = [0; 8 * KEY_WORDS];
        blake3::Hasher::new_keyed(chunk_key).update(b"onefold anchors").finalize_xof().fill(&mut bytes);
        let mut key = [0; KEY_WORDS];
        for (word, bytes) in key.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = word_of(bytes);
        }
        let search = Finder::new(table.words(), candidates_below.max(anchors_below));
        Self { search, candidates_below, anchors_below, key }
    }

    /// Appends what the positions after `halo` bytes hold. With a halo of 63 bytes or more, or of all of the stream that
    /// precedes, parts of a stream give what the whole stream gives.
    pub fn find(&self, bytes: &[u8], halo: usize, found: &mut Found) {
        let halo = halo.min(bytes.len());
        // Positions in the halo count where they are close to one after it.
        let origin = halo - halo.min(WINDOW - 1);
        let mut positions = Vec::new();
        self.search.candidates(bytes, origin, &mut positions);
        let mut last: Option<(usize, u32)> = None;
        for position in positions {
            let end = origin + position as usize;
            let (hash, is_first) = match last {
                Some((before, hash)) if end - before < WINDOW => (self.search.roll(hash, &bytes[before..end]), false),
                _ => (self.search.hash(&bytes[..end]), true),
            };
            last = Some((end, hash));
            let Ok(position) = u32::try_from(end.saturating_sub(halo)) else { break };
            if position == 0 {
                continue;
            }
            if hash < self.candidates_below {
                found.candidates.push(position);
            }
            if is_first && hash < self.anchors_below && ANCHOR_CONTEXT <= end {
                found.anchors.push(Anchor { end: position, hash: self.window_hash(&bytes[end - ANCHOR_WINDOW..end]) });
            }
        }
    }

    /// Appends the anchors of a chunk, a function of its bytes alone: those of any stream whose contexts lie within it.
    pub fn of_chunk(&self, chunk: &[u8], hashes: &mut Vec<u64>) {
        let mut found = Found::default();
        self.find(chunk, 0, &mut found);
        hashes.extend(found.anchors.iter().map(|anchor| anchor.hash));
    }

    /// Hashes a window. For two different ones the sums of products are equal for one key in 2^64.
    fn window_hash(&self, window: &[u8]) -> u64 {
        let mut sum = 0u128;
        for (words, key) in window.chunks_exact(16).zip(self.key.chunks_exact(2)) {
            let (first, second) = words.split_at(8);
            let [first, second] = [word_of(first).wrapping_add(key[0]), word_of(second).wrapping_add(key[1])];
            sum = sum.wrapping_add(u128::from(first) * u128::from(second));
        }
        #[expect(clippy::cast_possible_truncation, reason = "the halves of the sum")]
        let [low, high] = [sum as u64, (sum >> 64) as u64];
        let [.., first, second] = self.key;
        mix64(low.wrapping_add(mix64(high ^ first)) ^ second)
    }
}

/// Returns the anchors of a stream whose contexts lie within a chunk from `start` to `end`: those that
/// [`AnchorFinder::of_chunk`] finds in it.
pub fn anchors_within(anchors: &[Anchor], start: u32, end: u32) -> &[Anchor] {
    let context = u32::try_from(ANCHOR_CONTEXT).expect("a constant");
    let first = anchors.partition_point(|anchor| anchor.end < start.saturating_add(context));
    let last = anchors.partition_point(|anchor| anchor.end <= end);
    anchors.get(first..last).unwrap_or_default()
}

fn word_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::chunk::ChunkSizes;
    use crate::random::SplitMix64;

    const KEY: [u8; 32] = [7; 32];

    fn finder(distance: u32) -> (GearTable, AnchorFinder) {
        let table = GearTable::expand(&KEY, ChunkSizes::for_average(8192));
        let finder = AnchorFinder::new(&table, &KEY, distance);
        (table, finder)
    }

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut random = SplitMix64::new(seed);
        (0..len.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).take(len).collect()
    }

    /// Bytes with runs and short periods in them, where candidates are next to each other.
    fn with_runs(seed: u64) -> Vec<u8> {
        let mut random = SplitMix64::new(seed);
        let mut bytes = Vec::new();
        while bytes.len() < 200_000 {
            let period = noise(random.next_u64(), 1 + random.index(70));
            let len = 1 + random.index(3000);
            bytes.extend(period.iter().copied().cycle().take(len));
            let len = random.index(2000);
            bytes.extend(noise(random.next_u64(), len));
        }
        bytes
    }

    #[test]
    fn one_search_finds_the_candidates_of_the_chunker_at_any_density() {
        for distance in [64, 512, 4096, 100_000] {
            let (table, finder) = finder(distance);
            for bytes in [noise(1, 300_000), with_runs(2), vec![0; 100_000]] {
                for halo in [0, 5, 31, 63, 100] {
                    let (mut expected, mut found) = (Vec::new(), Found::default());
                    table.candidates(&bytes, halo, &mut expected);
                    finder.find(&bytes, halo, &mut found);
                    assert_eq!(found.candidates, expected, "distance {distance}, halo {halo}");
                }
            }
        }
    }

    /// docs/format.md, "Samples". Positions are offsets of the byte behind the hashed ones.
    #[test]
    fn anchors_are_those_of_the_definition_in_the_document() {
        // With short chunks, cuts have more candidates than there are anchors.
        for average in [512, 8192] {
            let table = GearTable::expand(&KEY, ChunkSizes::for_average(average));
            let finder = AnchorFinder::new(&table, &KEY, ANCHOR_DISTANCE);
            let chunk = with_runs(u64::from(average));
            let anchors_below = u32::MAX / 512;
            let below = anchors_below.max(table.threshold());
            let words = table.words();
            let gear = |bytes: &[u8]| {
                let roll = |hash: u32, byte: &u8| (hash << 1).wrapping_add(words[usize::from(*byte)]);
                bytes.iter().fold(0u32, roll)
            };
            let hashes: Vec<u32> = (0..=chunk.len()).map(|end| gear(&chunk[end.saturating_sub(32)..end])).collect();
            let is_close = |end: usize| (end - 31..end).any(|other| hashes[other] < below);
            let expected: Vec<u64> = (64..=chunk.len())
                .filter(|end| hashes[*end] < anchors_below && !is_close(*end))
                .map(|end| finder.window_hash(&chunk[end - 48..end]))
                .collect();
            let mut found = Vec::new();
            finder.of_chunk(&chunk, &mut found);
            assert!(100 < found.len(), "{} anchors", found.len());
            assert_eq!(found, expected, "chunks of {average} bytes");
        }
    }

    #[test]
    fn anchors_depend_neither_on_blocks_nor_on_cuts() {
        let (_, finder) = finder(512);
        for bytes in [noise(3, 150_000), with_runs(4)] {
            let mut whole = Found::default();
            finder.find(&bytes, 0, &mut whole);
            assert!(bytes.len() / 1500 < whole.anchors.len(), "{} anchors", whole.anchors.len());
            for block in [1000, 4099, 65_536] {
                let mut parts = Found::default();
                for start in (0..bytes.len()).step_by(block) {
                    let halo = start.min(ANCHOR_CONTEXT - 1);
                    let mut part = Found::default();
                    finder.find(&bytes[start - halo..bytes.len().min(start + block)], halo, &mut part);
                    let base = u32::try_from(start).unwrap();
                    parts.candidates.extend(part.candidates.iter().map(|at| base + at));
                    parts.anchors.extend(part.anchors.iter().map(|it| Anchor { end: base + it.end, hash: it.hash }));
                }
                assert_eq!(parts, whole, "blocks of {block}");
            }
            let mut random = SplitMix64::new(5);
            let mut start = 0;
            while start < bytes.len() {
                let end = bytes.len().min(start + 1 + random.index(20_000));
                let mut alone = Vec::new();
                finder.of_chunk(&bytes[start..end], &mut alone);
                let [from, to] = [start, end].map(|at| u32::try_from(at).unwrap());
                let within: Vec<u64> = anchors_within(&whole.anchors, from, to).iter().map(|it| it.hash).collect();
                assert_eq!(alone, within, "chunk {start}..{end}");
                start = end;
            }
        }
    }

    #[test]
    fn anchors_are_as_dense_as_asked_for_and_runs_hold_few() {
        for distance in [256, 512, 1024] {
            let (_, finder) = finder(distance);
            let mut hashes = Vec::new();
            finder.of_chunk(&noise(6, 1 << 21), &mut hashes);
            // Those within 32 bytes of the one before are left out: a share of 32 / distance.
            let expected = f64::from((1u32 << 21) / distance) * (1.0 - 32.0 / f64::from(distance));
            #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
            let ratio = hashes.len() as f64 / expected;
            assert!((0.9..1.1).contains(&ratio), "{ratio} at {distance}");
            for byte in 0..=255u8 {
                hashes.clear();
                finder.of_chunk(&[byte; 8192], &mut hashes);
                assert!(hashes.len() <= 1, "{} anchors in a run of {byte}", hashes.len());
            }
        }
    }

    #[test]
    fn another_key_gives_other_positions_and_hashes() {
        let bytes = noise(8, 100_000);
        let sets = [[1; 32], [2; 32]].map(|key| {
            let finder = AnchorFinder::new(&GearTable::expand(&key, ChunkSizes::for_average(8192)), &key, 512);
            let mut found = Found::default();
            finder.find(&bytes, 0, &mut found);
            found.anchors
        });
        let ends: BTreeSet<u32> = sets[0].iter().map(|anchor| anchor.end).collect();
        let common = sets[1].iter().filter(|anchor| ends.contains(&anchor.end)).count();
        assert!(common < sets[1].len() / 20, "{common} positions in common");
        let hashes: BTreeSet<u64> = sets[0].iter().map(|anchor| anchor.hash).collect();
        assert!(sets[1].iter().all(|anchor| !hashes.contains(&anchor.hash)));
    }

    /// An edit of one byte removes the anchors whose 64 bytes of context it hits. With an edit every d bytes the share
    /// that agrees is about (1 - 1/d)^64 for edits at random offsets.
    #[test]
    fn the_share_that_agrees_follows_from_the_distance_of_edits() {
        let (_, finder) = finder(512);
        let bytes = noise(9, 4 << 20);
        let set = |bytes: &[u8]| {
            let mut hashes = Vec::new();
            finder.of_chunk(bytes, &mut hashes);
            hashes.into_iter().collect::<BTreeSet<u64>>()
        };
        let before = set(&bytes);
        for distance in [12u32, 32, 64, 128, 512, 4096, 65_536] {
            let mut edited = bytes.clone();
            let mut random = SplitMix64::new(u64::from(distance));
            for _ in 0..bytes.len() / distance as usize {
                let at = random.index(edited.len());
                edited[at] = edited[at].wrapping_add(1 + random.next_u64().to_le_bytes()[0] % 255);
            }
            let after = set(&edited);
            #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
            let share = before.intersection(&after).count() as f64 / before.len() as f64;
            // Between the 48 bytes of the window and the 64 of the context.
            let survives = |bytes: i32| (1.0 - 1.0 / f64::from(distance)).powi(bytes);
            let (low, high) = (survives(64) - 0.03, survives(48) + 0.03);
            assert!((low..high).contains(&share), "{share} with an edit every {distance} bytes, not {low}..{high}");
            assert_eq!(1.0 / 32.0 < share, 32 <= distance, "an edit every {distance} bytes leaves {share}");
        }
        // Insertions shift all that follows: the anchors are the same.
        let shifted = [&noise(10, 12_345)[..], &bytes[..]].concat();
        assert!(before.is_subset(&set(&shifted)));
        assert_eq!(before.intersection(&set(&noise(11, 4 << 20))).count(), 0, "noise shares nothing");
    }
}
