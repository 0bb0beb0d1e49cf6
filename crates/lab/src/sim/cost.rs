//! What storage costs: prices, and the formula of Fu et al. (FAST 2015, sections 2.1 and 4.7).

use crate::counts::float;

/// Bytes of memory for each stored chunk of an exact index on a disk: those of its Bloom filter.
pub const FILTER_BYTES: f64 = 1.0;
/// Bytes of memory for each fingerprint of an index in memory.
pub const FINGERPRINT_BYTES: f64 = 32.0;

/// Prices.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prices {
    /// Dollars for a terabyte of disk.
    pub disk: f64,
    /// Dollars for a gigabyte of memory.
    pub memory: f64,
}

impl Prices {
    /// Prices of the paper: $60 for a disk of 1 TB, $80 for 8 GB of memory.
    pub const PAPER: Self = Self { disk: 60.0, memory: 10.0 };
    /// Later prices: $14 for a TB of disk, as Backblaze paid in 2022, and $3 for a GB of memory, which is an assumption.
    pub const TODAY: Self = Self { disk: 14.0, memory: 3.0 };

    /// Returns what chunks cost in dollars, with so many bytes of memory for each.
    pub fn of(&self, stored_bytes: u64, chunks: u64, memory_per_chunk: f64) -> f64 {
        self.disk * float(stored_bytes) / 1e12 + self.memory * float(chunks) * memory_per_chunk / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the cost of a terabyte of chunks of 4 KB.
    fn terabyte(memory_per_chunk: f64) -> f64 {
        Prices::PAPER.of(1_000_000_000_000, 250_000_000, memory_per_chunk)
    }

    #[test]
    fn a_terabyte_costs_what_the_paper_says() {
        let equal = |cost: f64, expected: f64| assert!((cost - expected).abs() < 1e-9, "{cost}, not {expected}");
        equal(terabyte(FINGERPRINT_BYTES), 140.0);
        equal(terabyte(FILTER_BYTES), 62.5);
        equal(terabyte(FINGERPRINT_BYTES / 128.0), 60.625);
    }
}
