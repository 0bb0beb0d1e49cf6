//! LZJB, the compression of ZFS by Jeff Bonwick: a bit for each of eight items says if it is a byte or a reference to 3 to 66 bytes at
//! most 1,023 before. It is fast, simple and weak; the paper on `DedupCDP` measured with it.

const MATCH_BITS: u32 = 6;
const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = (1 << MATCH_BITS) + MATCH_MIN - 1;
const OFFSET_MASK: usize = (1 << (16 - MATCH_BITS)) - 1;
const TABLE_LEN: usize = 1024;

/// Replaces `out` by the compressed form of `plain`; returns false if it would not be shorter.
pub(super) fn compress(plain: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    let mut last_seen = [0_usize; TABLE_LEN];
    let (mut at, mut map_at, mut bit) = (0, 0, 0_u8);
    while at < plain.len() {
        bit = bit.wrapping_shl(1);
        if at == 0 || bit == 0 {
            (bit, map_at) = (1, out.len());
            out.push(0);
        }
        if plain.len() <= out.len() {
            return false;
        }
        let found = find(plain, at, &mut last_seen);
        let Some((len, offset)) = found else {
            out.push(plain[at]);
            at += 1;
            continue;
        };
        out[map_at] |= bit;
        let reference = ((len - MATCH_MIN) << (16 - MATCH_BITS)) | offset;
        out.extend_from_slice(&u16::try_from(reference).expect("six bits and ten").to_be_bytes());
        at += len;
    }
    out.len() < plain.len()
}

/// Finds bytes before a position that are equal to those from it on: length and distance.
fn find(plain: &[u8], at: usize, last_seen: &mut [usize; TABLE_LEN]) -> Option<(usize, usize)> {
    // As the original, which does not look for references near the end.
    if plain.len() < at + MATCH_MAX {
        return None;
    }
    let mut hash = usize::from(plain[at]) << 16 | usize::from(plain[at + 1]) << 8 | usize::from(plain[at + 2]);
    hash += hash >> 9;
    hash += hash >> 5;
    let seen = std::mem::replace(&mut last_seen[hash % TABLE_LEN], at);
    let offset = (at - seen) & OFFSET_MASK;
    let start = at.checked_sub(offset).filter(|_| offset != 0)?;
    let len = (0..MATCH_MAX).take_while(|step| plain[at + step] == plain[start + step]).count();
    (MATCH_MIN <= len).then_some((len, offset))
}

/// Fills `out` with the bytes that were compressed; `None` if `bytes` is not their compressed form.
pub(super) fn decompress(bytes: &[u8], out: &mut [u8]) -> Option<()> {
    let mut bytes = bytes.iter().copied();
    let (mut filled, mut map, mut left) = (0, 0_u8, 0);
    while filled < out.len() {
        if left == 0 {
            (map, left) = (bytes.next()?, 8);
        }
        let is_reference = map & 1 != 0;
        (map, left) = (map >> 1, left - 1);
        if !is_reference {
            *out.get_mut(filled)? = bytes.next()?;
            filled += 1;
            continue;
        }
        let reference = usize::from(u16::from_be_bytes([bytes.next()?, bytes.next()?]));
        let (len, offset) = ((reference >> (16 - MATCH_BITS)) + MATCH_MIN, reference & OFFSET_MASK);
        let start = filled.checked_sub(offset).filter(|_| offset != 0)?;
        // A reference may reach into what it writes. At the end it may be longer than what is missing, as in the original.
        for step in 0..len.min(out.len() - filled) {
            *out.get_mut(filled + step)? = *out.get(start + step)?;
        }
        filled += len.min(out.len() - filled);
    }
    bytes.next().is_none().then_some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_original() {
        // 80 equal bytes: one as it is, then a reference of 66 bytes at distance 1 would reach the last 66, which are not searched:
        // from position 1 to 14 references are possible, and the first one takes 66 bytes. 13 bytes follow.
        let mut out = Vec::new();
        assert!(compress(&[b'a'; 80], &mut out));
        let expected = [&[0b10, b'a', 0xfc, 1][..], &[b'a'; 6], &[0], &[b'a'; 7]].concat();
        assert_eq!(out, expected);
        let mut plain = [0; 80];
        decompress(&out, &mut plain).unwrap();
        assert_eq!(plain, [b'a'; 80]);
    }

    #[test]
    fn references_before_the_start_and_bytes_that_are_missing_or_left_are_refused() {
        let mut out = [0; 10];
        for wrong in [&[][..], &[1], &[1, 0], &[1, 0, 1], &[2, 5, 0, 0], &[2, 5, 0, 2], &[0, 1, 2, 3]] {
            assert_eq!(decompress(wrong, &mut out), None, "{wrong:?}");
        }
        assert_eq!(decompress(&[2, 5, 0xfc, 1], &mut out), Some(()));
        assert_eq!(decompress(&[2, 5, 0xfc, 1, 0], &mut out), None);
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(
            runs in proptest::collection::vec((proptest::collection::vec(0_u8..4, 1..40), 1_usize..60), 0..40)
        ) {
            let plain: Vec<u8> = runs.iter().flat_map(|(bytes, count)| bytes.repeat(*count)).collect();
            let mut out = Vec::new();
            if compress(&plain, &mut out) {
                let mut back = vec![9; plain.len()];
                prop_assert_eq!(decompress(&out, &mut back), Some(()));
                prop_assert!(back == plain);
            } else {
                prop_assert!(plain.len() < 200 || plain.len() <= out.len());
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), len in 0_usize..2000) {
            let mut out = vec![0; len];
            let _ = decompress(&bytes, &mut out);
        }
    }
}
