//! Candidates for cuts of all average lengths, by one search.
//!
//! A position is a candidate if its hash is below a threshold, which is the smaller the longer chunks are to be. Where all
//! lengths have the same table of hashes, candidates of one length are among those of the next shorter one, so that only the
//! shortest is searched for in all bytes, and the others by hashing one window for each candidate.

use onefold_engine::chunk::{ChunkSizes, GearTable, WINDOW};

use super::rules::AVERAGES;
use crate::chunkers::OPEN_KEY;

/// Candidates of each average length: offsets of the byte after the window.
pub type Candidates = [Vec<u32>; AVERAGES.len()];

/// Finds candidates as a recording without a repository does.
#[derive(Debug)]
pub struct Search {
    tables: [GearTable; AVERAGES.len()],
}

impl Default for Search {
    /// Makes the tables, which are the same but for their thresholds: a test compares.
    fn default() -> Self {
        Self { tables: AVERAGES.map(|average| GearTable::expand(&OPEN_KEY, ChunkSizes::for_average(average))) }
    }
}

impl Search {
    /// Returns the table of an average length, by its number.
    pub fn table(&self, number: usize) -> Option<&GearTable> {
        self.tables.get(number)
    }

    /// Returns the candidates after `halo` bytes, counted from there. The halo is shorter than a window.
    pub fn find(&self, bytes: &[u8], halo: usize) -> Candidates {
        let mut found = Candidates::default();
        let mut tables = self.tables.iter().zip(&mut found);
        let mut shorter: &[u32] = &[];
        if let Some((table, candidates)) = tables.next() {
            table.candidates(bytes, halo, candidates);
            shorter = candidates;
        }
        let mut hit = Vec::new();
        for (table, candidates) in tables {
            for candidate in shorter {
                let end = halo + *candidate as usize;
                let start = end.saturating_sub(WINDOW);
                hit.clear();
                table.candidates(bytes.get(start..end).unwrap_or_default(), end - start - 1, &mut hit);
                if !hit.is_empty() {
                    candidates.push(*candidate);
                }
            }
            shorter = candidates;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_search_finds_what_a_search_for_each_length_does() {
        let mut bytes = vec![0; 4 << 20];
        blake3::Hasher::new().update(b"advise").finalize_xof().fill(&mut bytes[..3 << 20]);
        let search = Search::default();
        for halo in [0, 5, WINDOW - 1] {
            let found = search.find(&bytes, halo);
            for (number, found) in found.iter().enumerate() {
                let mut expected = Vec::new();
                search.table(number).unwrap().candidates(&bytes, halo, &mut expected);
                assert_eq!(*found, expected, "average {}", AVERAGES[number]);
            }
            assert!(found[0].len() > 1000 && !found[5].is_empty());
        }
    }
}
