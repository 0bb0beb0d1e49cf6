//! Reading and writing the primitive fields of the format.
//!
//! [`Reader`] never panics and never trusts a length: every count is checked against the bytes that are left before
//! anything is allocated. Integers are little-endian; `varint` is unsigned LEB128 in its shortest form.

use crate::error::Error;
use crate::types::{ContainerId, Fingerprint, SessionId, Timestamp};

/// Why bytes could not be decoded, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeError {
    /// Offset in the decoded bytes.
    pub offset: usize,
    /// What was wrong there.
    pub reason: &'static str,
}

impl DecodeError {
    /// Names the object that the bytes belong to.
    pub(crate) fn of(self, object: impl std::fmt::Display) -> Error {
        Error::damaged(object, format!("byte {}: {}", self.offset, self.reason))
    }
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "byte {}: {}", self.offset, self.reason)
    }
}

/// Result of a decoder.
pub type Decoded<T> = Result<T, DecodeError>;

/// Takes fields from the front of a byte string.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Returns how many bytes are left.
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// Returns how many bytes were taken.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Makes an error at the present position.
    pub fn error(&self, reason: &'static str) -> DecodeError {
        DecodeError { offset: self.offset, reason }
    }

    /// Takes the next `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Decoded<&'a [u8]> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let Some(taken) = rest.get(..len) else {
            return Err(self.error("ends too early"));
        };
        self.offset += len;
        Ok(taken)
    }

    /// Takes an array.
    pub fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let error = self.error("ends too early");
        self.bytes(N)?.try_into().map_err(|_| error)
    }

    /// Takes a byte.
    pub fn u8(&mut self) -> Decoded<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Takes a 16-bit integer.
    pub(crate) fn u16(&mut self) -> Decoded<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Takes a 32-bit integer.
    pub fn u32(&mut self) -> Decoded<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes a 64-bit integer.
    pub fn u64(&mut self) -> Decoded<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Takes a signed 64-bit integer.
    pub(crate) fn i64(&mut self) -> Decoded<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// Takes an unsigned LEB128 integer in its shortest form.
    pub fn varint(&mut self) -> Decoded<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let low = u64::from(byte & 0x7f);
            if shift == 63 && low > 1 {
                return Err(self.error("integer too large"));
            }
            value |= low << shift;
            if byte < 0x80 {
                if byte == 0 && shift > 0 {
                    return Err(self.error("integer not in shortest form"));
                }
                return Ok(value);
            }
        }
        Err(self.error("integer too long"))
    }

    /// Takes a varint that must fit 32 bits.
    pub fn varint32(&mut self) -> Decoded<u32> {
        let error = self.error("integer too large");
        u32::try_from(self.varint()?).map_err(|_| error)
    }

    /// Takes a signed integer, zigzag in a varint.
    pub(crate) fn zigzag(&mut self) -> Decoded<i64> {
        let value = self.varint()?;
        #[expect(clippy::cast_possible_wrap, reason = "zigzag maps the top bit on purpose")]
        let magnitude = (value >> 1) as i64;
        Ok(if value & 1 == 0 { magnitude } else { !magnitude })
    }

    /// Takes a count of things that need at least `bytes_each` bytes each, refusing more than can follow.
    pub fn count(&mut self, bytes_each: usize) -> Decoded<usize> {
        let value = self.varint()?;
        self.checked_count(value, bytes_each)
    }

    /// Takes a 32-bit count of things that need at least `bytes_each` bytes each, refusing more than can follow.
    pub(crate) fn count32(&mut self, bytes_each: usize) -> Decoded<usize> {
        let value = self.u32()?;
        self.checked_count(value.into(), bytes_each)
    }

    fn checked_count(&self, value: u64, bytes_each: usize) -> Decoded<usize> {
        let most = self.remaining() / bytes_each.max(1);
        match usize::try_from(value) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(self.error("count exceeds the bytes that follow")),
        }
    }

    /// Takes a byte string with its length in front, at most `len_max` long.
    pub fn string(&mut self, len_max: usize) -> Decoded<&'a [u8]> {
        let len = self.count(1)?;
        if len > len_max {
            return Err(self.error("string too long"));
        }
        self.bytes(len)
    }

    /// Takes a fingerprint.
    pub(crate) fn fingerprint(&mut self) -> Decoded<Fingerprint> {
        self.array().map(Fingerprint)
    }

    /// Takes a container's name.
    pub(crate) fn container_id(&mut self) -> Decoded<ContainerId> {
        Ok(ContainerId { session: SessionId(self.array()?), ordinal: self.u32()? })
    }

    /// Takes a time: zigzag seconds, varint nanoseconds.
    pub(crate) fn timestamp(&mut self) -> Decoded<Timestamp> {
        let seconds = self.zigzag()?;
        let nanoseconds = self.varint32()?;
        if nanoseconds >= 1_000_000_000 {
            return Err(self.error("nanoseconds out of range"));
        }
        Ok(Timestamp { seconds, nanoseconds })
    }

    /// Insists that nothing is left.
    pub fn finish(self) -> Decoded<()> {
        if self.remaining() == 0 { Ok(()) } else { Err(self.error("bytes after the end")) }
    }
}

/// Appends an unsigned LEB128 integer.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends a signed integer, zigzag in a varint.
pub(crate) fn put_zigzag(out: &mut Vec<u8>, value: i64) {
    #[expect(clippy::cast_sign_loss, reason = "zigzag maps the sign to the lowest bit on purpose")]
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends a byte string with its length in front.
pub fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a container's name.
pub(crate) fn put_container_id(out: &mut Vec<u8>, id: ContainerId) {
    out.extend_from_slice(&id.session.0);
    out.extend_from_slice(&id.ordinal.to_le_bytes());
}

/// Appends a time.
pub(crate) fn put_timestamp(out: &mut Vec<u8>, time: Timestamp) {
    put_zigzag(out, time.seconds);
    put_varint(out, time.nanoseconds.into());
}

/// Narrows a length that the caller has bounded already.
pub fn len_u32(len: usize) -> u32 {
    u32::try_from(len).expect("lengths in the format are bounded far below 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint(), Ok(value));
            reader.finish().unwrap();
        }
        for value in [0, 1, -1, i64::MAX, i64::MIN, -86_400] {
            let mut out = Vec::new();
            put_zigzag(&mut out, value);
            assert_eq!(Reader::new(&out).zigzag(), Ok(value));
        }
    }

    #[test]
    fn overlong_and_oversized_integers_are_refused() {
        assert!(Reader::new(&[0x80, 0x00]).varint().is_err());
        assert!(Reader::new(&[0xff; 11]).varint().is_err());
        let mut too_large = [0xff; 10];
        too_large[9] = 0x02;
        assert!(Reader::new(&too_large).varint().is_err());
    }

    #[test]
    fn counts_are_checked_before_anything_is_allocated() {
        let mut out = Vec::new();
        put_varint(&mut out, u64::MAX);
        assert!(Reader::new(&out).count(1).is_err());
        assert!(Reader::new(&[3, 0, 0, 0, 1, 2]).count32(1).is_err());
        assert_eq!(Reader::new(&[2, 0, 0, 0, 1, 2]).count32(1), Ok(2));
    }
}
