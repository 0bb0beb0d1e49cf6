//! Random inputs for tests.

/// A generator of numbers (Vigna, "An experimental exploration of Marsaglia's xorshift generators", 2014).
pub(crate) struct Random(u64);

impl Random {
    /// Starts from a seed, which is not 0.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[expect(clippy::print_stderr, reason = "a failed test shows its output")]
    /// Starts from the seed in `ONEFOLD_SEED`, or from another one each time.
    pub(crate) fn from_environment() -> Self {
        let seed = match std::env::var("ONEFOLD_SEED") {
            Ok(seed) => seed.parse().unwrap(),
            Err(_) => std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0) | 1,
        };
        eprintln!("ONEFOLD_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).unwrap()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        u8::try_from(self.next() >> 56).unwrap()
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    pub(crate) fn table(&mut self) -> [u32; 256] {
        std::array::from_fn(|_| self.word())
    }
}
