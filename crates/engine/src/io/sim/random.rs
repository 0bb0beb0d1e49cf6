//! Seeded choices of the simulation.

/// `SplitMix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub(super) struct SplitMix {
    state: u64,
}

impl SplitMix {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which is not 0; the bias is below 2^-32 for the small bounds used here.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    pub(super) fn coin(&mut self) -> bool {
        self.draw() >> 63 == 1
    }
}
