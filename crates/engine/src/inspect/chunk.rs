//! One chunk by its name alone.

use std::ops::ControlFlow;

use crate::compress::Compressor;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::object::names::ContainerName;
use crate::store::Store;
use crate::store::base_reader::BaseReader;
use crate::store::container_set::Containers;
use crate::store::metadata::Scratch;
use crate::store::view::open_each;
use crate::types::{ChunkKind, ContainerId, Fingerprint};

/// A chunk that was read and checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadChunk {
    /// Its contents.
    pub kind: ChunkKind,
    /// The container that it was read from.
    pub container: ContainerId,
    /// Its bytes, without hints.
    pub contents: Vec<u8>,
}

/// Finds a chunk in the containers' directories, all of which are read if need be, and returns it. Containers that cannot
/// be opened, or whose copy is damaged, are passed over; if no other has the chunk, the first such error is returned.
pub fn read_chunk(
    store: &Store,
    scratch: &Scratch,
    fingerprint: Fingerprint,
    monitor: &dyn Monitor,
) -> Result<ReadChunk> {
    let (mut found, mut failure) = (None, None);
    open_each(store, scratch, true, &mut |name, opened| {
        if monitor.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let read = opened.and_then(|container| match container.find(&fingerprint) {
            Some(_) => read_from((store, scratch), &name, &container, fingerprint).map(Some),
            None => Ok(None),
        });
        match read {
            Ok(Some(chunk)) => {
                found = Some(chunk);
                return Ok(ControlFlow::Break(()));
            }
            // A collection has deleted the container since it was opened.
            Ok(None) | Err(Error::Missing { .. }) => {}
            Err(error) => failure = failure.take().or(Some(error)),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if let Some(found) = found {
        return Ok(found);
    }
    Err(failure.unwrap_or(Error::MissingChunk { fingerprint: fingerprint.to_string() }))
}

/// Shows every chunk that the containers' directories name, in the order of the containers; one that several hold is
/// shown as often. Returns why containers could not be opened, and which have chunks whose names are lost.
pub fn list_chunks(
    store: &Store,
    scratch: &Scratch,
    monitor: &dyn Monitor,
    show: &mut dyn FnMut(Fingerprint, ChunkKind) -> Result<()>,
) -> Result<Vec<Error>> {
    let mut unreadable = Vec::new();
    open_each(store, scratch, false, &mut |name, opened| {
        if monitor.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let container = match opened {
            Ok(container) => container,
            Err(error) => {
                unreadable.push(error);
                return Ok(ControlFlow::Continue(()));
            }
        };
        let mut unnamed = 0;
        for chunk in &container.directory.chunks {
            match chunk.fingerprint {
                Some(fingerprint) => show(fingerprint, chunk.kind)?,
                None => unnamed += 1,
            }
        }
        if 0 < unnamed {
            let reason = format!("the names of {unnamed} chunks are lost with the front directory and a region");
            unreadable.push(Error::damaged(store.display(name), reason));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(unreadable)
}

/// Shows a container's bytes as they are stored, from the beginning, in parts of at most 1 MiB.
pub fn read_container(store: &Store, name: &ContainerName, show: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let (mut offset, len) = (0, store.container_len(name)?);
    let mut buffer = vec![0; PART_LEN];
    while offset < len {
        let part_len = usize::try_from(len - offset).map_or(PART_LEN, |left| left.min(PART_LEN));
        let part = buffer.get_mut(..part_len).expect("a part fits the buffer");
        store.objects.read_exact((*name).into(), offset, part)?;
        show(part)?;
        offset += part_len as u64;
    }
    Ok(())
}

/// Bytes of a container that are read at once.
const PART_LEN: usize = 1 << 20;

/// Memory for the bases of one region: those of the longest chain, with regions of the usual length.
const BASES_BYTES: usize = 16 << 20;

fn read_from(
    (store, scratch): (&Store, &Scratch),
    name: &ContainerName,
    container: &crate::container::ContainerReader,
    fingerprint: Fingerprint,
) -> Result<ReadChunk> {
    let wrong = || Error::damaged(store.display(name), format!("chunk {fingerprint} is not what its name says"));
    let position = container.find(&fingerprint).ok_or_else(wrong)?;
    let has_bases = !container.bases_of(position.region).is_empty();
    let listed = if has_bases { store.list_containers(scratch)? } else { Containers::default() };
    let bases = BaseReader::new(store, &listed, BASES_BYTES);
    let plain = store.read_region(container, position.region, &bases, &mut Compressor::default())?;
    let start = position.offset as usize;
    let end = (start + position.len as usize).checked_sub(position.hints_len as usize).ok_or_else(wrong)?;
    let contents = plain.get(start..end).ok_or_else(wrong)?;
    let kinds = [ChunkKind::Data, ChunkKind::Tree, ChunkKind::Recipe];
    let kind = kinds.into_iter().find(|kind| store.keys.fingerprint(*kind, contents) == fingerprint);
    Ok(ReadChunk { kind: kind.ok_or_else(wrong)?, container: name.id, contents: contents.to_vec() })
}
