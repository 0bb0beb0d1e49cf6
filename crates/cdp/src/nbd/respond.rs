//! Executing a request and sending its reply.

use std::io::{self, IoSlice};
use std::ops::Range;

use super::admit::{Refusal, Terms};
use super::export::{Context, Export, Fua, STATUS_EXTENTS_MAX, StatusExtents, ZeroOptions};
use super::transport::Transport;
use super::wire::allocation_flag;
use super::wire::reply::{
    self, CHUNK_HEADER_BYTES, ChunkHeader, DATA_OFFSET_BYTES, EXTENT_BYTES, ReplyChunk, SimpleReply, chunk_flag, kind,
};
use super::wire::request::{Request, command, flag};

/// Shortest read for which the server looks for holes. Shorter ones are read faster than holes are found.
const SPARSE_READ_BYTES: u32 = 128 << 10;

/// Most extents of a read that are sent as chunks of their own; what follows them is read as data.
const READ_EXTENTS_MAX: usize = 64;

/// Most bytes that a thread keeps for replies: extents as the export describes them, and all contexts encoded.
pub(crate) const SCRATCH_BYTES_MAX: usize = STATUS_EXTENTS_MAX * size_of::<reply::StatusExtent>()
    + Context::ALL.len() * (CHUNK_HEADER_BYTES + 4 + STATUS_EXTENTS_MAX * EXTENT_BYTES);

/// Buffers of one thread for the parts of a reply that are not payload.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    encoded: Vec<u8>,
    extents: StatusExtents,
    /// Parts of a sparse read.
    parts: Vec<Part>,
}

/// A part of a sparse read, as a range of its buffer.
#[derive(Clone, Debug)]
struct Part {
    range: Range<usize>,
    is_hole: bool,
}

/// Reply to a request that has succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// A reply without data.
    Done,
    /// The buffer, as data.
    Data,
    /// The buffer, as the parts in the scratch.
    Parts,
    /// Chunks in the scratch.
    Encoded,
}

/// A request and the way to its client.
pub(crate) struct Responder<'a> {
    pub(crate) request: Request,
    pub(crate) terms: &'a Terms,
    pub(crate) transport: &'a dyn Transport,
    pub(crate) scratch: &'a mut Scratch,
}

impl Responder<'_> {
    /// Executes an admitted request. The buffer has the payload of a write, and the length of a read.
    pub(crate) fn execute(&mut self, export: &dyn Export, buffer: &mut [u8]) -> Result<Outcome, Refusal> {
        let Request { offset, len, .. } = self.request;
        let range = offset..offset.saturating_add(u64::from(len));
        let fua = if self.request.has(flag::FUA) { Fua::Yes } else { Fua::No };
        match self.request.command {
            command::READ => return self.read(export, buffer),
            command::BLOCK_STATUS => return self.block_status(export),
            command::WRITE => export.write(offset, buffer, fua)?,
            command::FLUSH => export.flush()?,
            command::TRIM => export.trim(range, fua)?,
            command::CACHE => export.cache(range)?,
            command::WRITE_ZEROES => {
                let (allocate, fast) = (self.request.has(flag::NO_HOLE), self.request.has(flag::FAST_ZERO));
                export.write_zeroes(range, ZeroOptions { fua, allocate, fast })?;
            }
            _ => unreachable!("the request was admitted"),
        }
        Ok(Outcome::Done)
    }

    fn read(&mut self, export: &dyn Export, buffer: &mut [u8]) -> Result<Outcome, Refusal> {
        let Request { offset, len, .. } = self.request;
        let is_sparse = self.terms.is_structured
            && SPARSE_READ_BYTES <= len
            && !self.request.has(flag::DF)
            && export.finds_holes_quickly()
            && export.has_context(Context::Allocation)
            && self.find_holes(export)?;
        if !is_sparse {
            export.read(offset, buffer)?;
            return Ok(Outcome::Data);
        }
        for part in self.scratch.parts.iter().filter(|part| !part.is_hole) {
            export.read(offset + part.range.start as u64, &mut buffer[part.range.clone()])?;
        }
        Ok(Outcome::Parts)
    }

    /// Divides a read into holes and data; false if there are no holes.
    fn find_holes(&mut self, export: &dyn Export) -> Result<bool, Refusal> {
        let Request { offset, len, .. } = self.request;
        let Scratch { extents, parts, .. } = &mut *self.scratch;
        extents.begin(len, READ_EXTENTS_MAX);
        export.block_status(offset..offset + u64::from(len), Context::Allocation, extents)?;
        parts.clear();
        let mut at = 0;
        for extent in extents.as_slice() {
            let range = at..at + extent.len as usize;
            at = range.end;
            let is_hole = extent.flags & allocation_flag::ZERO != 0;
            match parts.last_mut() {
                Some(last) if last.is_hole == is_hole => last.range.end = at,
                _ => parts.push(Part { range, is_hole }),
            }
        }
        if at < len as usize {
            parts.push(Part { range: at..len as usize, is_hole: false });
        }
        Ok(parts.iter().any(|part| part.is_hole))
    }

    /// Encodes the extents of all selected contexts.
    fn block_status(&mut self, export: &dyn Export) -> Result<Outcome, Refusal> {
        let Request { offset, len, cookie, .. } = self.request;
        let limit = if self.request.has(flag::REQ_ONE) { 1 } else { STATUS_EXTENTS_MAX };
        let selected = Context::ALL.into_iter().zip(self.terms.contexts);
        let mut selected = selected.filter_map(|(context, is_selected)| is_selected.then_some(context)).peekable();
        let Scratch { encoded, extents, .. } = &mut *self.scratch;
        encoded.clear();
        while let Some(context) = selected.next() {
            extents.begin(len, limit);
            export.block_status(offset..offset + u64::from(len), context, extents)?;
            let count = extents.as_slice().len();
            let flags = if selected.peek().is_none() { chunk_flag::DONE } else { 0 };
            let bytes = u32::try_from(4 + count * EXTENT_BYTES).expect("the number of extents is limited");
            encoded.extend(ChunkHeader { flags, kind: kind::BLOCK_STATUS, cookie, len: bytes }.encode());
            encoded.extend(context.id().to_be_bytes());
            encoded.extend(extents.as_slice().iter().flat_map(|extent| reply::encode_extent(*extent)));
        }
        Ok(Outcome::Encoded)
    }

    /// Sends the reply of a request that has succeeded.
    pub(crate) fn send(&mut self, outcome: Outcome, buffer: &[u8]) -> io::Result<()> {
        let Request { cookie, offset, .. } = self.request;
        let simple = SimpleReply { cookie, error: None }.encode();
        match outcome {
            Outcome::Done => self.transport.send(&mut [IoSlice::new(&simple)]),
            Outcome::Encoded => self.transport.send(&mut [IoSlice::new(&self.scratch.encoded)]),
            Outcome::Data if self.terms.is_structured => {
                let header = data_header(cookie, offset, buffer.len(), chunk_flag::DONE);
                self.transport.send(&mut [IoSlice::new(&header), IoSlice::new(buffer)])
            }
            Outcome::Data => self.transport.send(&mut [IoSlice::new(&simple), IoSlice::new(buffer)]),
            Outcome::Parts => self.send_parts(buffer),
        }
    }

    fn send_parts(&mut self, buffer: &[u8]) -> io::Result<()> {
        let Request { cookie, offset, .. } = self.request;
        let Scratch { encoded, parts, .. } = &mut *self.scratch;
        encoded.clear();
        let count = parts.len();
        for (at, Part { range, is_hole }) in (1..).zip(&*parts) {
            let flags = if at == count { chunk_flag::DONE } else { 0 };
            let offset = offset + range.start as u64;
            if *is_hole {
                let len = u32::try_from(range.len()).expect("reads are shorter than 4 GiB");
                ReplyChunk::Hole { offset, len }.encode(flags, cookie, encoded);
            } else {
                encoded.extend(data_header(cookie, offset, range.len(), flags));
            }
        }
        let mut headers = &encoded[..];
        let mut slices = Vec::with_capacity(2 * count);
        for Part { range, is_hole } in &*parts {
            let (header, rest) = headers.split_at(if *is_hole { HOLE_BYTES } else { DATA_HEADER_BYTES });
            headers = rest;
            slices.push(IoSlice::new(header));
            if !is_hole {
                slices.push(IoSlice::new(&buffer[range.clone()]));
            }
        }
        self.transport.send(&mut slices)
    }

    /// Sends the reply of a request that has failed.
    pub(crate) fn send_refusal(&mut self, refusal: Refusal) -> io::Result<()> {
        let Request { cookie, command, .. } = self.request;
        let Refusal { error, message } = refusal;
        // A simple reply to a read would be malformed, and one to other requests has no message.
        if self.terms.is_structured && (command == command::READ || !message.is_empty()) {
            let chunk = ReplyChunk::Error { error, message: message.as_bytes(), offset: None };
            self.scratch.encoded.clear();
            chunk.encode(chunk_flag::DONE, cookie, &mut self.scratch.encoded);
            return self.transport.send(&mut [IoSlice::new(&self.scratch.encoded)]);
        }
        self.transport.send(&mut [IoSlice::new(&SimpleReply { cookie, error: Some(error) }.encode())])
    }
}

/// Bytes of a chunk `OFFSET_DATA` without its data, and of a chunk `OFFSET_HOLE`.
const DATA_HEADER_BYTES: usize = CHUNK_HEADER_BYTES + DATA_OFFSET_BYTES;
const HOLE_BYTES: usize = CHUNK_HEADER_BYTES + 12;

fn data_header(cookie: u64, offset: u64, len: usize, flags: u16) -> [u8; DATA_HEADER_BYTES] {
    let len = u32::try_from(len + DATA_OFFSET_BYTES).expect("reads are limited to 32 MiB");
    let mut header = [0; DATA_HEADER_BYTES];
    header[..CHUNK_HEADER_BYTES].copy_from_slice(&ChunkHeader { flags, kind: kind::OFFSET_DATA, cookie, len }.encode());
    header[CHUNK_HEADER_BYTES..].copy_from_slice(&offset.to_be_bytes());
    header
}
