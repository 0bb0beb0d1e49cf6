//! The chunks of a damaged container that are whole.

use std::io::ErrorKind;

use crate::compress::Compressor;
use crate::container::ContainerReader;
use crate::error::{Error, Result};
use crate::object::names::ContainerName;
use crate::store::Store;
use crate::store::base_reader::BaseReader;
use crate::types::Fingerprint;

/// A chunk of a damaged container that is what its name says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WholeChunk {
    /// Its name.
    pub(super) fingerprint: Fingerprint,
    /// Its position in the directory.
    pub(super) slot: u16,
    /// Its bytes, hints included.
    pub(super) len: u32,
}

/// Returns the chunks of a container that are what their names say. What is damaged is left out, up to all of them. Fails if
/// something cannot be read for another reason: it may be whole.
pub(super) fn whole_chunks(store: &Store, name: &ContainerName, bases: &BaseReader) -> Result<Vec<WholeChunk>> {
    let mut whole = Vec::new();
    let Some(container) = unless_damaged(store.open_container(name))? else { return Ok(whole) };
    let mut compressor = Compressor::default();
    for region in 0..u32::try_from(container.directory.regions.len()).unwrap_or(0) {
        if let Some(plain) = unless_damaged(store.read_region(&container, region, bases, &mut compressor))? {
            add_whole(store, &container, region, &plain, &mut whole);
        }
    }
    Ok(whole)
}

fn add_whole(store: &Store, container: &ContainerReader, region: u32, plain: &[u8], whole: &mut Vec<WholeChunk>) {
    let mut rest = plain;
    for number in container.chunks_of(region) {
        let Some(chunk) = container.directory.chunks.get(number) else { return };
        let Some((stored, tail)) = rest.split_at_checked(chunk.len as usize) else { return };
        rest = tail;
        let contents = stored.len().checked_sub(chunk.hints_len as usize).and_then(|len| stored.get(..len));
        let found = contents.map(|contents| store.keys.fingerprint(chunk.kind, contents));
        if let (Some(fingerprint), Ok(slot)) = (found, u16::try_from(number))
            && chunk.fingerprint == found
        {
            whole.push(WholeChunk { fingerprint, slot, len: chunk.len });
        }
    }
}

/// Returns `None` for damage. A container that is not there any more is not known to be damaged.
fn unless_damaged<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(read) => Ok(Some(read)),
        Err(error) => {
            if error.is_loss() && !is_gone(&error) {
                Ok(None)
            } else {
                Err(error)
            }
        }
    }
}

/// Returns true if an object does not exist.
pub(super) fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Missing { .. }) || error.io_kind() == Some(ErrorKind::NotFound)
}
