//! A checkpoint: the whole state, in frames with checksums.
//!
//! A header with the sizes of all that follows, then descriptors in the order of their addresses, then the address of each entry in
//! the order of the image. Reference counts and free blocks follow from these; the counts are stored all the same, so that a check
//! compares them.

use onefold_engine::codec::{DecodeError, Decoded, Reader, put_varint};

use super::state::{Added, Blocks, State};

const MAGIC: [u8; 8] = *b"1fimage\n";
const VERSION: u32 = 1;
/// Bytes of the header with its checksum.
pub(super) const HEADER_BYTES: usize = 92;
/// Bytes of a frame, except the last one.
const FRAME_BYTES: usize = 64 << 10;
/// Bytes of a frame's length and checksum.
const FRAME_HEADER_BYTES: usize = 8;
/// Bytes of a descriptor: distance of its address, level, references, name.
const DESCRIPTOR_BYTES_MIN: u64 = 1 + 1 + 1 + 16;
/// Bytes of an entry.
const ENTRY_BYTES: u64 = 4;

/// The sizes of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// The number of the checkpoint.
    pub(super) number: u64,
    /// The key of names.
    pub(super) key: [u8; 32],
    pub(super) image_len: u64,
    pub(super) level_min: u8,
    pub(super) descriptors: u64,
    pub(super) entries: u64,
    /// Bytes behind the header.
    pub(super) body_len: u64,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.key);
        for number in [self.image_len, self.descriptors, self.entries, self.body_len] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&u32::from(self.level_min).to_le_bytes());
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        if reader.array()? != MAGIC {
            return Err(reader.error("no checkpoint of an image"));
        }
        if reader.u32()? != VERSION {
            return Err(reader.error("a version that this program does not know"));
        }
        let (number, key) = (reader.u64()?, reader.array()?);
        let [image_len, descriptors, entries, body_len] = [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
        let level_min = u8::try_from(reader.u32()?).unwrap_or(u8::MAX);
        let end = reader.offset();
        let checksum = crc32c::crc32c(bytes.get(..end).unwrap_or_default());
        if reader.u32()? != checksum {
            return Err(reader.error("the header has a wrong checksum"));
        }
        let header = Self { number, key, image_len, level_min, descriptors, entries, body_len };
        if usize::from(level_min) >= crate::image::block::LEVELS || State::units_of(image_len, level_min).is_none() {
            return Err(reader.error("no such image"));
        }
        Ok(header)
    }

    /// Returns true if a body of so many bytes can have so many descriptors and entries.
    pub(super) fn is_possible(&self) -> bool {
        let descriptors = self.descriptors.checked_mul(DESCRIPTOR_BYTES_MIN);
        let least = descriptors.and_then(|bytes| bytes.checked_add(self.entries.checked_mul(ENTRY_BYTES)?));
        least.is_some_and(|least| least <= self.body_len)
    }
}

/// Encodes the contents of a state.
pub(super) fn encode_contents(state: &State) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = 0;
    for (address, descriptor) in &state.descriptors {
        put_varint(&mut out, u64::from(address - before));
        out.push(descriptor.level);
        put_varint(&mut out, descriptor.references.into());
        out.extend_from_slice(&descriptor.name);
        before = *address;
    }
    state.index.values().for_each(|address| out.extend_from_slice(&address.to_le_bytes()));
    out
}

/// Encodes contents as frames.
pub(super) fn encode_body(contents: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(contents.len() + (contents.len() / FRAME_BYTES + 1) * FRAME_HEADER_BYTES);
    for (number, frame) in (0_u32..).zip(contents.chunks(FRAME_BYTES)) {
        out.extend_from_slice(&u32::try_from(frame.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&checksum(number, frame).to_le_bytes());
        out.extend_from_slice(frame);
    }
    out
}

/// Returns the checksum of a frame, which differs for each number.
fn checksum(number: u32, frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), frame)
}

/// Verifies the frames of a body, and takes their headers out. Reuses the memory of the body.
pub(super) fn contents_of(mut body: Vec<u8>) -> Decoded<Vec<u8>> {
    let (mut from, mut to) = (0, 0);
    for number in 0_u32.. {
        if from == body.len() {
            break;
        }
        let error = |reason| DecodeError { offset: from, reason };
        let header = body.get(from..from + FRAME_HEADER_BYTES).ok_or(error("ends too early"))?;
        let mut reader = Reader::new(header);
        let (len, sum) = (reader.u32()? as usize, reader.u32()?);
        let start = from + FRAME_HEADER_BYTES;
        let frame = body.get(start..start.saturating_add(len)).ok_or(error("ends too early"))?;
        if len == 0 || FRAME_BYTES < len || checksum(number, frame) != sum {
            return Err(error("a frame has a wrong checksum"));
        }
        body.copy_within(start..start + len, to);
        (from, to) = (start + len, to + len);
    }
    body.truncate(to);
    Ok(body)
}

/// Decodes the contents of a state.
pub(super) fn decode_contents(header: &Header, contents: &[u8]) -> Decoded<State> {
    let mut state = State::new(header.image_len, header.level_min);
    let mut reader = Reader::new(contents);
    let (mut address, mut references) = (0_u32, Vec::new());
    for number in 0..header.descriptors {
        let distance = reader.varint32()?;
        address = address.checked_add(distance).ok_or_else(|| reader.error("an address is too large"))?;
        if number != 0 && distance == 0 {
            return Err(reader.error("two blocks have the same address"));
        }
        let level = reader.u8()?;
        references.push(reader.varint32()?);
        let name = reader.array()?;
        state.add(Added { address, level, name }, Blocks::Free).map_err(|reason| reader.error(reason))?;
    }
    let mut unit = 0;
    for _ in 0..header.entries {
        let address = reader.u32()?;
        unit = state.push(unit, address).map_err(|reason| reader.error(reason))?;
    }
    if unit != state.units() {
        return Err(reader.error("the index ends before the image"));
    }
    let counted = state.descriptors.values().map(|descriptor| descriptor.references);
    if !counted.eq(references) || state.descriptors.values().any(|descriptor| descriptor.references == 0) {
        return Err(reader.error("a block has a wrong number of references"));
    }
    reader.finish()?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::store::state::{Change, zeros_at};

    fn state() -> State {
        let mut state = State::new(1 << 20, 0);
        for top in 0..8 {
            state.push(top << 7, zeros_at(7)).unwrap();
        }
        for top in 0..2 {
            let blocks = (0..64).map(|at| Added {
                address: 100 * top + 2 * at,
                level: 1,
                name: [top, at, 5, 5].map(u32::to_le_bytes).as_flattened().try_into().unwrap(),
            });
            let added: Vec<Added> = blocks.collect();
            let entries = added.iter().map(|added| added.address).collect();
            state.apply(&Change { start: 512 + 128 * top, added, entries }, Blocks::Free).unwrap_or_default();
        }
        state
    }

    fn header(state: &State, body_len: usize) -> Header {
        Header {
            number: 3,
            key: [4; 32],
            image_len: state.image_len,
            level_min: state.level_min,
            descriptors: state.descriptors.len() as u64,
            entries: state.index.len() as u64,
            body_len: body_len as u64,
        }
    }

    #[test]
    fn a_state_comes_back() {
        let state = state();
        assert!(64 <= state.descriptors.len());
        let contents = encode_contents(&state);
        let body = encode_body(&contents);
        let header = header(&state, body.len());
        assert_eq!(Header::decode(&header.encode().try_into().unwrap()).unwrap(), header);
        assert!(header.is_possible());
        assert_eq!(contents_of(body).unwrap(), contents);
        let again = decode_contents(&header, &contents).unwrap();
        assert_eq!((again.index, again.descriptors), (state.index, state.descriptors));
        assert_eq!(again.zeros, state.zeros);
        assert!(!Header { entries: 1 << 60, ..header }.is_possible());
    }

    #[test]
    fn damage_is_found_at_every_bit() {
        let state = state();
        let body = encode_body(&encode_contents(&state));
        let header = header(&state, body.len()).encode();
        for bit in 0..header.len() * 8 {
            let mut damaged = header.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged.try_into().unwrap()).is_err(), "bit {bit}");
        }
        for bit in 0..body.len() * 8 {
            let mut damaged = body.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(contents_of(damaged).is_err(), "bit {bit}");
        }
        (1..body.len()).for_each(|len| assert!(contents_of(body[..len].to_vec()).is_err(), "{len}"));
    }
}
