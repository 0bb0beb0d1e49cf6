//! The fields of a body: a tag, and a string of bytes.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::{Decoded, Reader, put_string};

pub(super) fn field(out: &mut Vec<u8>, tag: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let mut value = Vec::new();
    write(&mut value);
    out.push(tag);
    put_string(out, &value);
}

pub(super) fn text(value: &mut Reader<'_>) -> Decoded<String> {
    let error = value.error("text that is not UTF-8");
    let bytes = value.bytes(value.remaining())?;
    String::from_utf8(bytes.to_vec()).map_err(|_| error)
}
