//! Entry points for fuzzing: the decoders of the link, and a receiver that an authenticated peer talks to.

use crate::journal::codec::FRAME_BODY_MAX;
use crate::link::Codec;
use crate::link::compress::{Compressor, Decompressor};
use crate::link::wire::{HEADER_BYTES, Message, decode_header};

/// A function to be called with arbitrary bytes.
pub type Target = fn(&[u8]);

/// All targets by name. A name is also that of the fuzz target and of the directory of its corpus.
pub const TARGETS: &[(&str, Target)] = &[("link_messages", messages), ("link_frame", frame)];

/// Runs a target by name; false if there is none.
pub fn run(target: &str, bytes: &[u8]) -> bool {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    found.map(|(_, function)| function(bytes)).is_some()
}

/// Returns records as a sender compresses them.
pub fn compress(codec: Codec, plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    assert_eq!(Compressor::default().compress(codec, plain, &mut out), codec);
    out
}

/// Messages one after the other. What decodes is encoded to the same bytes.
fn messages(mut bytes: &[u8]) {
    let mut again = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let Ok((kind, len)) = decode_header(*header) else { return };
        let Some((body, rest)) = rest.split_at_checked(len) else { return };
        if let Ok(message) = Message::decode(kind, body) {
            message.encode(&mut again);
            // Bits of codecs that this version does not know are dropped.
            if !matches!(message, Message::Hello(_)) {
                assert_eq!(again.get(..HEADER_BYTES), Some(&header[..]));
                assert_eq!(again.get(HEADER_BYTES..), Some(body));
            }
        }
        bytes = rest;
    }
}

/// A byte for the codec, three for the length of the records, then their compressed form.
fn frame(bytes: &[u8]) {
    let Some(([codec, a, b, c], bytes)) = bytes.split_first_chunk() else { return };
    let Some(codec) = Codec::of((*codec).into()) else { return };
    let len = (u32::from_le_bytes([*a, *b, *c, 0]) as usize).min(FRAME_BODY_MAX);
    let plain = Decompressor::default().decompress(codec, bytes, len);
    assert!(plain.is_none_or(|plain| plain.len() == len));
}
