//! Pseudo-random numbers for simulation, tests and the laboratory.
//!
//! `SplitMix64` passes statistical tests and fits in 64 bits of state, but everybody can predict it. Keys, nonces and names come
//! from [`Host::random`](crate::io::Host::random). (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
//! OOPSLA 2014; the constants of `mix64` are Stafford's variant 13.)

/// The increment of the state: 2^64 over the golden ratio, made odd.
pub(crate) const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A permutation of 64-bit words: each bit of the input changes each bit of the output with a chance of one half.
pub fn mix64(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// A generator whose sequence its seed decides.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Starts at a seed.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        mix64(self.state)
    }

    /// Returns a number below `bound`, which is not 0. The bias is at most `bound` / 2^64.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Returns an index into a slice of `len` elements, which is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a length in memory")
    }

    /// Returns true with a chance of one half.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_sequence() {
        // The first outputs of Vigna's reference implementation (prng.di.unimi.it/splitmix64.c) for this seed.
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!([(); 5].map(|()| random.next_u64()), expected);
    }
}
