//! Today's hints for the metadata that is copied. Contents and fingerprints do not change.

use crate::bitmap::Bitmap;
use crate::collect::moved::Hinted;
use crate::collect::stale::found_key;
use crate::collect::usage::prefix_of;
use crate::container::RegionChunk;
use crate::error::Result;
use crate::recipe::HintTable;
use crate::spill::SpillMap;
use crate::store::Store;
use crate::store::container_set::{ContainerNumber, Containers, RunCursor};
use crate::store::metadata::Scratch;
use crate::store::references::{LinkedNode, Reference};
use crate::store::view::{Near, View, ViewMemory};
use crate::types::{Chunk, ChunkKind, ContainerId, SessionId};

/// Writes the hints of metadata chunks again.
#[derive(Debug)]
pub(in crate::collect) struct HintRefresher<'a> {
    listed: Containers,
    /// Numbers of the containers that are given up.
    given_up: Bitmap,
    near: RunCursor,
    /// The session of the copies.
    session: SessionId,
    /// The ordinal of the new container of each data chunk that was copied.
    copied: SpillMap,
    /// Listed containers of chunks that hints do not find.
    found: Option<&'a mut SpillMap>,
    view: View,
    near_moved: Near,
    /// Takes the containers that hints name.
    hinted: &'a mut Hinted,
    /// The hints and the bytes of the last chunk.
    table: HintTable,
    bytes: Vec<u8>,
}

impl<'a> HintRefresher<'a> {
    /// Parts of the memory: for the copies, for opened directories, and for the map of moved chunks.
    const SHARES: usize = 3;
    /// The least memory, in bytes.
    pub(in crate::collect) const BYTES_MIN: usize = Self::SHARES * crate::spill::MEMORY_BYTES_MIN;

    /// Starts before any chunk was copied. Takes at most `memory_bytes`, which must be at least [`HintRefresher::BYTES_MIN`].
    pub(in crate::collect) fn new(
        (store, scratch, session): (&Store, &Scratch, SessionId),
        listed: &Containers,
        given_up: Bitmap,
        found: Option<&'a mut SpillMap>,
        hinted: &'a mut Hinted,
        memory_bytes: usize,
    ) -> Result<Self> {
        let share = memory_bytes / Self::SHARES;
        let memory = ViewMemory { directories: share, moved: share };
        Ok(Self {
            listed: listed.clone(),
            given_up,
            near: RunCursor::default(),
            session,
            copied: scratch.map(&store.host, "copied chunks", share)?,
            found,
            view: View::new(store, listed, scratch, memory).fixed(),
            near_moved: Near::default(),
            hinted,
            table: HintTable::default(),
            bytes: Vec::new(),
        })
    }

    /// Takes data chunks that were copied to a container.
    pub(super) fn copied(&mut self, container: ContainerId, chunks: &[RegionChunk]) -> Result<()> {
        for RegionChunk { chunk, kind, .. } in chunks {
            if *kind == ChunkKind::Data {
                self.copied.insert(chunk.fingerprint.0, &container.ordinal.to_be_bytes())?;
            }
        }
        Ok(())
    }

    /// Returns a metadata chunk with today's hints, and its bytes. The data chunks that it refers to were copied before it.
    pub(super) fn refresh<'b>(&'b mut self, chunk: RegionChunk, bytes: &'b [u8]) -> Result<(RegionChunk, &'b [u8])> {
        let contents_len = bytes.len().saturating_sub(chunk.hints_len as usize);
        let (contents, hints) = bytes.split_at(contents_len);
        // A reader passes over the hints of a node that does not decode.
        let Ok(node) = LinkedNode::decode(chunk.kind, contents, hints) else { return Ok((chunk, bytes)) };
        let mut table = std::mem::take(&mut self.table);
        table.clear();
        let mut has_changed = false;
        node.each_reference(&mut |reference| {
            if let Reference::Chunk(chunk, hint) = reference {
                let container = self.container_of(&chunk, hint)?;
                has_changed |= container != hint;
                table.push(container);
                container.map_or(Ok(()), |container| self.hinted.insert(container))?;
            }
            Ok(())
        })?;
        self.bytes.clear();
        self.bytes.extend_from_slice(contents);
        if has_changed {
            table.encode(&mut self.bytes);
        }
        self.table = table;
        // More hints than the old ones may be too long for a region.
        let len_max = self.view.store().config.region_bytes_limit() as usize;
        let Some(len) = u32::try_from(self.bytes.len()).ok().filter(|_| has_changed && self.bytes.len() <= len_max)
        else {
            return Ok((chunk, bytes));
        };
        let hints_len = u32::try_from(self.bytes.len() - contents_len).unwrap_or(0);
        Ok((RegionChunk { chunk: Chunk { len, ..chunk.chunk }, hints_len, ..chunk }, &self.bytes))
    }

    /// Returns the container in which a chunk is found after this collection, as far as that is known.
    fn container_of(&mut self, chunk: &Chunk, hint: Option<ContainerId>) -> Result<Option<ContainerId>> {
        let listed = hint.and_then(|id| self.listed.find_near(id, &mut self.near));
        if listed.is_some_and(|number| !self.given_up.contains(number.0)) {
            return Ok(hint);
        }
        if let Some(ordinal) = number(self.copied.get(&chunk.fingerprint.0)?) {
            return Ok(Some(ContainerId { session: self.session, ordinal }));
        }
        if listed.is_some() {
            // Another copy of the chunk is kept, or this container is after all.
            return Ok(hint);
        }
        if let Some((id, _)) = self.view.find_hinted(chunk, hint, &mut self.near_moved)? {
            return Ok(Some(id));
        }
        let Some(found) = &mut self.found else { return Ok(None) };
        let found = number(found.get(&found_key(prefix_of(&chunk.fingerprint)))?);
        found.map(|number| self.listed.name(ContainerNumber(number)).map(|name| name.id)).transpose()
    }
}

fn number(value: Option<Vec<u8>>) -> Option<u32> {
    value.and_then(|bytes| bytes.first_chunk().copied()).map(u32::from_be_bytes)
}
