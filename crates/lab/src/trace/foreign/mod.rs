//! Traces in the formats of others.
//!
//! Their hashes become names of 20 bytes: longer ones are cut; shorter ones are hashed again together with the chunk's length
//! (SHA-1), so that all bytes of a name are uniform. What two different chunks have in common stays in common: with 48 bits
//! a hash, as in the FSL sets of home directories, false matches are to be expected among more than 2^24 chunks.

pub mod csv;
pub mod destor;
#[cfg(test)]
mod foreign_tests;
pub mod fsl;
pub mod raw;

use sha1::{Digest, Sha1};

use crate::trace::{HASH_LEN, TraceChunk};

/// Longest hash that a foreign trace may have, in bytes.
pub const FOREIGN_HASH_LEN_MAX: usize = 64;

/// Returns the chunk with a foreign hash, of at least one byte.
pub fn chunk_of(hash: &[u8], len: u32) -> TraceChunk {
    let hash = match hash.first_chunk::<HASH_LEN>() {
        Some(cut) => *cut,
        None => Sha1::new().chain_update(hash).chain_update(u64::from(len).to_le_bytes()).finalize().into(),
    };
    TraceChunk { hash, len }
}

/// Reads hexadecimal digits of either case; `None` if there are others, none, or more than a hash has.
pub fn hash_of_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.is_empty() || !rest.is_empty() || FOREIGN_HASH_LEN_MAX < pairs.len() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Reads a decimal number of a chunk's length.
pub fn len_of_decimal(digits: &[u8]) -> Option<u32> {
    let is_plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_plain)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_hashes_are_cut_and_short_ones_hashed_with_their_length() {
        let long: Vec<u8> = (0..32).collect();
        assert_eq!(chunk_of(&long, 5).hash, long[..20]);
        assert_eq!(chunk_of(&long[..20], 5).hash, long[..20]);
        // printf '\001\002\003\004\005\006\000\020\000\000\000\000\000\000' | sha1sum
        let short = chunk_of(&[1, 2, 3, 4, 5, 6], 4096);
        assert_eq!(Some(short.hash.to_vec()), hash_of_hex(b"456aff39f95354c69af56fdf341b3d2c2927c507"));
        assert_ne!(short.hash, chunk_of(&[1, 2, 3, 4, 5, 6], 4097).hash);
    }

    #[test]
    fn digits_of_both_cases_are_read_and_nothing_else() {
        assert_eq!(hash_of_hex(b"00fFa9"), Some(vec![0, 0xff, 0xa9]));
        for wrong in [&b""[..], b"0", b"0g", b"+1", &[b'0'; 2 * FOREIGN_HASH_LEN_MAX + 2]] {
            assert_eq!(hash_of_hex(wrong), None);
        }
        assert_eq!(len_of_decimal(b"4294967295"), Some(u32::MAX));
        for wrong in [&b""[..], b"+1", b"-1", b" 1", b"4294967296"] {
            assert_eq!(len_of_decimal(wrong), None);
        }
    }
}
