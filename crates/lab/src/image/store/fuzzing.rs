//! Entry points for fuzzing: the decoders of a checkpoint and of a journal.

use onefold_engine::codec::Reader;

use super::checkpoint::{self, HEADER_BYTES, Header};
use super::state::{Added, Blocks, Change, State, zeros_at};
use super::{journal, open};

/// Frames that the target makes of an input: two bytes become a sector.
const FRAMES_MAX: u64 = 64;
/// Memory that a state may take, for any input.
const MEMORY: u64 = 1 << 20;
/// Units of the image that changes are applied to.
const UNITS: u32 = 256;

/// A whole checkpoint. One that can be decoded is consistent and is encoded as it was.
pub fn checkpoint(bytes: &[u8]) {
    let mut all = bytes.to_vec();
    if let Ok((header, state)) = open::decode(&mut all, MEMORY) {
        assert_eq!(state.inconsistency(), None, "a state that was decoded");
        let body = checkpoint::encode_body(&checkpoint::encode_contents(&state));
        assert_eq!([header.encode(), body].concat(), bytes, "a checkpoint comes back");
    }
}

/// The contents of a checkpoint: a byte for the smallest level, two for the units of the image, two each for the number of
/// descriptors and of entries, then these. The target adds what somebody could write who means ill.
pub fn contents(bytes: &[u8]) {
    let Some(([level, numbers @ ..], contents)) = bytes.split_first_chunk::<7>() else { return };
    let [units, descriptors, entries] =
        [0, 2, 4].map(|at| u64::from(u16::from_le_bytes([numbers[at], numbers[at + 1]])));
    let body = checkpoint::encode_body(contents);
    let header = Header {
        number: 1,
        key: [0; 32],
        image_len: units << 10,
        level_min: level % 8,
        descriptors,
        entries,
        body_len: body.len() as u64,
    };
    let mut all = [header.encode(), body].concat();
    assert!(HEADER_BYTES <= all.len());
    if let Ok((_, state)) = open::decode(&mut all, MEMORY) {
        assert_eq!(state.inconsistency(), None, "a state that was decoded");
    }
}

/// A journal: two bytes for the length of each frame, then its changes, or, for a length of 65,535, all the rest as it is. They are
/// applied to an image of zeros.
pub fn journal(bytes: &[u8]) {
    let (mut frames, mut rest, mut sequence) = (Vec::new(), bytes, 0);
    while sequence < FRAMES_MAX
        && let Some((len, behind)) = rest.split_first_chunk::<2>()
    {
        let len = u16::from_le_bytes(*len);
        if len == u16::MAX {
            frames.extend_from_slice(behind);
            break;
        }
        let (changes, behind) = behind.split_at(usize::from(len).min(behind.len()));
        frames.extend_from_slice(&journal::encode_frame(1, sequence, changes));
        (rest, sequence) = (behind, sequence + 1);
    }
    let mut state = State::new(u64::from(UNITS) << 10, 0);
    for start in [0, 128] {
        state.push(start, zeros_at(7)).expect("an image of zeros");
    }
    let read = journal::read(&frames, 1, |change| {
        if MEMORY < state.memory() { Err("too little memory") } else { state.apply(&change, Blocks::Free) }
    });
    if let Ok(read) = read {
        assert!(read.len <= frames.len() as u64, "no more than there is");
        assert_eq!(state.inconsistency(), None, "changes lead from one state to another");
    }
    // One change, which comes back.
    let mut reader = Reader::new(bytes);
    if let Ok(change) = journal::decode_change(&mut reader) {
        let mut again = Vec::new();
        journal::encode_change(&change, &mut again);
        assert_eq!(bytes.get(..reader.offset()), Some(&again[..]), "a change comes back");
    }
}

/// Returns valid inputs of the targets: the target, a name, and the bytes.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut state = State::new(u64::from(UNITS) << 10, 0);
    for start in [0, 128] {
        state.push(start, zeros_at(7)).expect("an image of zeros");
    }
    let empty = state.clone();
    let added =
        [(0, 6, 1), (64, 5, 2), (96, 0, 3)].map(|(address, level, byte)| Added { address, level, name: [byte; 16] });
    let entries = vec![0, 64, 64, 96, 96, zeros_at(1), zeros_at(2), zeros_at(3), zeros_at(4)];
    // 64 + 32 units, then 32 + 1 + 1 + 2 + 4 + 8 + 16 of the second half.
    let one = Change { start: 0, added: added[..2].to_vec(), entries: entries[..3].to_vec() };
    let other = Change {
        start: 128,
        added: added[2..].to_vec(),
        entries: [&[zeros_at(6), zeros_at(5)], &entries[3..]].concat(),
    };
    let mut frames = Vec::new();
    for change in [&one, &other] {
        state.apply(change, Blocks::Free).expect("changes that fit");
        let mut changes = Vec::new();
        journal::encode_change(change, &mut changes);
        frames.extend_from_slice(&u16::try_from(changes.len()).unwrap_or_default().to_le_bytes());
        frames.extend_from_slice(&changes);
    }
    let header = |state: &State, body_len: usize| Header {
        number: 7,
        key: [9; 32],
        image_len: state.image_len,
        level_min: 0,
        descriptors: state.descriptors.len() as u64,
        entries: state.index.len() as u64,
        body_len: body_len as u64,
    };
    let whole = |state: &State| {
        let body = checkpoint::encode_body(&checkpoint::encode_contents(state));
        [header(state, body.len()).encode(), body].concat()
    };
    let parts = |state: &State| {
        let numbers = [UNITS as usize, state.descriptors.len(), state.index.len()];
        let numbers = numbers.map(|number| u16::try_from(number).unwrap_or_default().to_le_bytes());
        [&[0], numbers.as_flattened(), &checkpoint::encode_contents(state)].concat()
    };
    vec![
        ("image_checkpoint", "zeros", whole(&empty)),
        ("image_checkpoint", "blocks", whole(&state)),
        ("image_contents", "zeros", parts(&empty)),
        ("image_contents", "blocks", parts(&state)),
        ("image_journal", "changes", frames),
        ("image_journal", "bare", [&[0xff, 0xff][..], &journal::encode_frame(1, 0, &[])].concat()),
    ]
}
