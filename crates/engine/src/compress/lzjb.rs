//! LZJB, the compressor of ZFS, with which DedupCDP was measured: fast, simple and weak.
//!
//! A stream has groups: a byte whose bits, from the lowest on, say which of the next eight items are copies, and those items. A literal is a
//! byte. A copy is two bytes, the higher first: six bits for its length less 3, and ten for its distance. The compressor looks for three
//! bytes at the one earlier position that a table of 1,024 positions has under their hash.
//!
//! Streams travel between machines and are measured. No repository has this format.

use crate::error::{Error, Result};

/// Bits of a copy's length.
const LEN_BITS: u32 = 6;
/// Bits of its distance.
const DISTANCE_BITS: u32 = 16 - LEN_BITS;
/// Shortest copy.
const COPY_MIN: usize = 3;
/// Longest.
const COPY_MAX: usize = (1 << LEN_BITS) - 1 + COPY_MIN;
/// Farthest.
const DISTANCE_MAX: usize = (1 << DISTANCE_BITS) - 1;
/// Positions in the table.
const POSITIONS: usize = 1024;
/// Items of a group.
const ITEMS: u32 = 8;

/// Appends the compressed form of some bytes.
pub fn compress(plain: &[u8], out: &mut Vec<u8>) {
    // Positions modulo 2^16, as the distance needs their lowest ten bits. A wrong one is noticed when the bytes are compared.
    let mut positions = [0_u16; POSITIONS];
    let (mut at, mut item, mut map_at) = (0, ITEMS, 0);
    while at < plain.len() {
        if item == ITEMS {
            (item, map_at) = (0, out.len());
            out.push(0);
        }
        if let Some((distance, len)) = copy_at(plain, at, &mut positions) {
            let word = ((len - COPY_MIN) << DISTANCE_BITS) | distance;
            out.extend_from_slice(&u16::try_from(word).expect("six and ten bits").to_be_bytes());
            out[map_at] |= 1 << item;
            at += len;
        } else {
            out.push(plain[at]);
            at += 1;
        }
        item += 1;
    }
}

/// Returns the distance and the length of an earlier copy of the bytes at a position, and notes the position.
fn copy_at(plain: &[u8], at: usize, positions: &mut [u16; POSITIONS]) -> Option<(usize, usize)> {
    // Near the end all bytes are literals, so that no comparison has to look for the end.
    let ahead = plain.get(at..at + COPY_MAX)?;
    let mut hash = (usize::from(ahead[0]) << 16) + (usize::from(ahead[1]) << 8) + usize::from(ahead[2]);
    hash += hash >> 9;
    hash += hash >> 5;
    let position = &mut positions[hash % POSITIONS];
    #[expect(clippy::cast_possible_truncation, reason = "modulo 2^16")]
    let here = at as u16;
    let distance = usize::from(here.wrapping_sub(*position)) & DISTANCE_MAX;
    *position = here;
    let from = at.checked_sub(distance).filter(|_| distance != 0)?;
    let behind = plain.get(from..from + COPY_MAX)?;
    if ahead[..COPY_MIN] != behind[..COPY_MIN] {
        return None;
    }
    let equal = ahead.iter().zip(behind).skip(COPY_MIN).take_while(|(one, other)| one == other).count();
    Some((distance, COPY_MIN + equal))
}

/// Appends the plain form of a stream, of `len` bytes. Fails if it has another length or is no stream.
pub fn decompress(stream: &[u8], len: usize, out: &mut Vec<u8>) -> Result<()> {
    let wrong = |reason: String| Error::damaged("stream of LZJB", reason);
    let start = out.len();
    let mut bytes = stream.iter().copied();
    while let Some(map) = bytes.next() {
        for item in 0..ITEMS {
            let Some(first) = bytes.next() else {
                if item == 0 {
                    return Err(wrong("a group without items".to_owned()));
                }
                break;
            };
            let done = out.len() - start;
            if len <= done {
                return Err(wrong(format!("more than {len} bytes")));
            }
            if map & 1 << item == 0 {
                out.push(first);
                continue;
            }
            let second = bytes.next().ok_or_else(|| wrong("half a copy".to_owned()))?;
            let word = usize::from(u16::from_be_bytes([first, second]));
            let (distance, copied) = (word & DISTANCE_MAX, (word >> DISTANCE_BITS) + COPY_MIN);
            if !(1..=done).contains(&distance) {
                return Err(wrong(format!("a copy of what is {distance} bytes before byte {done}")));
            }
            if len - done < copied {
                return Err(wrong(format!("more than {len} bytes")));
            }
            // A copy may reach into itself.
            for _ in 0..copied {
                let byte = out.get(out.len() - distance).copied();
                out.push(byte.expect("the distance was checked"));
            }
        }
    }
    let found = out.len() - start;
    if found == len { Ok(()) } else { Err(wrong(format!("{found} bytes and not {len}"))) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compressed(plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        compress(plain, &mut out);
        out
    }

    fn decompressed(stream: &[u8], len: usize) -> Result<Vec<u8>> {
        let mut out = vec![7];
        decompress(stream, len, &mut out)?;
        assert_eq!(out.remove(0), 7);
        Ok(out)
    }

    #[test]
    fn zeros_become_copies_of_66_bytes_and_the_last_66_bytes_are_literals() {
        // A literal, three copies of 66, the end.
        let plain = vec![0; 1 + 3 * COPY_MAX + 65];
        let stream = compressed(&plain);
        assert_eq!(stream[..2], [0b0000_1110, 0]);
        assert_eq!(stream[2..4], [0xfc, 1], "63 and 3, one byte before");
        assert_eq!(decompressed(&stream, plain.len()).unwrap(), plain);
        let noise: Vec<u8> =
            (0..4096_u32).flat_map(|at| blake3::hash(&at.to_le_bytes()).as_bytes()[..1].to_vec()).collect();
        assert!(noise.len() < compressed(&noise).len() && compressed(&noise).len() <= noise.len() * 9 / 8);
    }

    #[test]
    fn another_decoder_of_the_format_reads_our_streams_and_ours_reads_its_streams() {
        let text = include_bytes!("lzjb.rs");
        for len in [1, 2, 66, 67, 1000, text.len()] {
            let plain = &text[..len];
            // Its streams begin with the length plus one, in groups of seven bits, of which the last has its highest bit set.
            let mut size = vec![0x80 | u8::try_from((len + 1) % 128).unwrap()];
            (len + 1 >= 128).then(|| size.insert(0, u8::try_from((len + 1) / 128).unwrap()));
            let theirs = lzjb::compress(plain);
            assert_eq!(theirs[..size.len()], size, "{len}");
            assert_eq!(decompressed(&theirs[size.len()..], len).unwrap(), plain);
            let ours = [size, compressed(plain)].concat();
            assert_eq!(lzjb::try_decompress(&ours).unwrap(), plain, "{len}");
        }
    }

    #[test]
    fn what_is_no_stream_is_refused() {
        for (stream, len, wanted) in [
            (&[1_u8, 0][..], 3, "half a copy"),
            (&[1, 0, 1], 3, "a copy of what is 1 bytes before byte 0"),
            (&[2, 9, 0, 2], 4, "a copy of what is 2 bytes before byte 1"),
            (&[2, 9, 0, 0], 4, "a copy of what is 0 bytes"),
            (&[2, 9, 0xfc, 1], 66, "more than 66 bytes"),
            (&[0, 1, 2], 1, "more than 1 bytes"),
            (&[0, 1, 2], 3, "2 bytes and not 3"),
            (&[0, 1, 2, 3, 4, 5, 6, 7, 8, 0], 8, "a group without items"),
        ] {
            assert!(decompressed(stream, len).unwrap_err().to_string().contains(wanted), "{stream:?}");
        }
    }

    proptest! {
        #[test]
        fn bytes_come_back(parts in proptest::collection::vec((any::<u8>(), 1_usize..200, any::<bool>()), 0..60)) {
            let bytes = |(byte, len, is_run): &(u8, usize, bool)| (0..*len).map(|at| if *is_run { *byte } else { byte.wrapping_mul(u8::try_from(at).unwrap()) }).collect::<Vec<_>>();
            let plain: Vec<u8> = parts.iter().flat_map(bytes).collect();
            prop_assert_eq!(decompressed(&compressed(&plain), plain.len()).unwrap(), plain);
        }
    }
}
