//! Instructions that hashing and encryption may use.
//!
//! AWS-LC asks the processor for its features when it is first used, and takes those away that a variable of the environment names. So
//! one program measures its code with and without them, each in a process of its own.

use serde::{Deserialize, Serialize};

/// The variable that AWS-LC reads: two numbers of 64 bits, of which a tilde before it makes one to be taken away. The first has the registers EDX
/// and ECX of leaf 1 of CPUID, the second EBX and ECX of leaf 7.
pub const VARIABLE: &str = "OPENSSL_ia32cap";

const fn high(bits: &[u32]) -> u64 {
    low(bits) << 32
}

const fn low(bits: &[u32]) -> u64 {
    let (mut word, mut at) = (0, 0);
    while at < bits.len() {
        word |= 1 << bits[at];
        at += 1;
    }
    word
}

// Leaf 1, ECX.
const PCLMUL: u32 = 1;
const SSSE3: u32 = 9;
const FMA: u32 = 12;
const SSE4_1: u32 = 19;
const SSE4_2: u32 = 20;
const MOVBE: u32 = 22;
const AES: u32 = 25;
const AVX: u32 = 28;
// Leaf 7, EBX and ECX.
const SHA: u32 = 29;
const VAES: u32 = 9;
const VPCLMUL: u32 = 10;

/// Instructions that code may use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// All instructions of the processor: the coprocessor of today.
    Instructions,
    /// Those for vectors, but none for AES, SHA or products without carry.
    Vectors,
    /// Those that every x86-64 has, which the paper's Xeon has, too.
    Baseline,
}

impl Code {
    /// All, from the fastest on.
    pub const ALL: [Self; 3] = [Self::Instructions, Self::Vectors, Self::Baseline];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Vectors => "vectors",
            Self::Baseline => "baseline",
        }
    }

    /// Returns the value of [`VARIABLE`]; none if nothing is taken away. Both parts are always there: a value without a second part would take
    /// away all that the second one names.
    pub fn mask(self) -> Option<String> {
        let [first, second] = match self {
            Self::Instructions => return None,
            Self::Vectors => [high(&[PCLMUL, AES]), low(&[SHA]) | high(&[VAES, VPCLMUL])],
            Self::Baseline => [high(&[PCLMUL, SSSE3, FMA, SSE4_1, SSE4_2, MOVBE, AES, AVX]), u64::MAX],
        };
        Some(format!("~{first:#x}:~{second:#x}"))
    }
}

/// Instructions for hashing and encryption that the processor has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Features {
    /// SHA-1 and SHA-256.
    pub sha: bool,
    /// AES.
    pub aes: bool,
    /// Whether they can be taken away.
    pub can_be_masked: bool,
}

impl Features {
    /// Asks this processor.
    pub fn of_this_machine() -> Self {
        #[cfg(target_arch = "x86_64")]
        let found = Self {
            sha: std::is_x86_feature_detected!("sha"),
            aes: std::is_x86_feature_detected!("aes"),
            can_be_masked: true,
        };
        // The library knows no such variable elsewhere.
        #[cfg(not(target_arch = "x86_64"))]
        let found = Self::default();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_two_parts_and_take_away_what_they_name() {
        assert_eq!(Code::Instructions.mask(), None);
        // Bits 57 and 33 of the first number, 29, 41 and 42 of the second.
        assert_eq!(Code::Vectors.mask().unwrap(), "~0x200000200000000:~0x60020000000");
        assert_eq!(Code::Baseline.mask().unwrap(), "~0x1258120200000000:~0xffffffffffffffff");
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
        }
    }
}
