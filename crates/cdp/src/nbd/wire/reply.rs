//! Replies to requests ("Simple reply message", "Structured reply chunk message").

use super::bytes::Fields;
use super::{Errno, Malformed, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX};

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;

/// Bytes of a simple reply, without the data of a read.
pub const SIMPLE_BYTES: usize = 16;

/// Bytes of the header of a chunk of a structured reply.
pub const CHUNK_HEADER_BYTES: usize = 20;

/// Bytes before the data of a chunk `OFFSET_DATA`.
pub const DATA_OFFSET_BYTES: usize = 8;

/// Bytes of an extent in a chunk `BLOCK_STATUS`.
pub const EXTENT_BYTES: usize = 8;

/// Most bytes after the header of a chunk.
pub const CHUNK_BYTES_MAX: u32 = PAYLOAD_BYTES_MAX + 8;

/// Flags of a chunk ("Structured reply flags").
pub mod chunk_flag {
    /// The last chunk of the reply.
    pub const DONE: u16 = 1 << 0;
}

/// Types of chunks ("Structured reply types").
pub mod kind {
    /// Nothing, as the end of a reply.
    pub const NONE: u16 = 0;
    /// Data of a read.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros of a read.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// All errors have this bit.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error.
    pub const ERROR: u16 = ERROR_BIT + 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = ERROR_BIT + 2;
}

/// A simple reply, which the data of a successful read follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimpleReply {
    /// Cookie of the request.
    pub cookie: u64,
    /// The reason if the request failed.
    pub error: Option<Errno>,
}

impl SimpleReply {
    /// Encodes the reply.
    pub fn encode(self) -> [u8; SIMPLE_BYTES] {
        let mut message = [0; SIMPLE_BYTES];
        message[..4].copy_from_slice(&SIMPLE_MAGIC.to_be_bytes());
        message[4..8].copy_from_slice(&self.error.map_or(0, Errno::code).to_be_bytes());
        message[8..].copy_from_slice(&self.cookie.to_be_bytes());
        message
    }
}

/// Header of a chunk of a structured reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHeader {
    /// [`chunk_flag`]s.
    pub flags: u16,
    /// One of [`kind`].
    pub kind: u16,
    /// Cookie of the request.
    pub cookie: u64,
    /// Bytes that follow.
    pub len: u32,
}

impl ChunkHeader {
    /// Encodes the header.
    pub fn encode(self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut message = [0; CHUNK_HEADER_BYTES];
        message[..4].copy_from_slice(&STRUCTURED_MAGIC.to_be_bytes());
        message[4..6].copy_from_slice(&self.flags.to_be_bytes());
        message[6..8].copy_from_slice(&self.kind.to_be_bytes());
        message[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        message[16..].copy_from_slice(&self.len.to_be_bytes());
        message
    }

    /// Returns true if no other chunk of the reply follows.
    pub fn is_last(self) -> bool {
        self.flags & chunk_flag::DONE != 0
    }
}

/// The beginning of any reply to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyHeader {
    /// A simple reply.
    Simple(SimpleReply),
    /// A chunk of a structured reply.
    Chunk(ChunkHeader),
}

impl ReplyHeader {
    /// Bytes of the header that begins with these four.
    pub fn len_of(magic: [u8; 4]) -> Result<usize, Malformed> {
        match u32::from_be_bytes(magic) {
            SIMPLE_MAGIC => Ok(SIMPLE_BYTES),
            STRUCTURED_MAGIC => Ok(CHUNK_HEADER_BYTES),
            _ => Err(Malformed::new("a reply without its magic number")),
        }
    }

    /// Decodes a header of [`Self::len_of`] bytes. A chunk of more than [`CHUNK_BYTES_MAX`] bytes is refused.
    pub fn decode(message: &[u8]) -> Result<Self, Malformed> {
        const TRUNCATED: Malformed = Malformed::new("a truncated reply");
        let mut fields = Fields::new(message);
        match fields.u32().ok_or(TRUNCATED)? {
            SIMPLE_MAGIC => {
                let code = fields.u32().ok_or(TRUNCATED)?;
                let cookie = fields.u64().ok_or(TRUNCATED)?;
                let error = (code != 0).then(|| Errno::of_code(code));
                Ok(Self::Simple(SimpleReply { cookie, error }))
            }
            STRUCTURED_MAGIC => {
                let mut header = || {
                    let (flags, kind) = (fields.u16()?, fields.u16()?);
                    Some(ChunkHeader { flags, kind, cookie: fields.u64()?, len: fields.u32()? })
                };
                let header = header().ok_or(TRUNCATED)?;
                if CHUNK_BYTES_MAX < header.len {
                    return Err(Malformed::new("a chunk of more than 32 MiB"));
                }
                Ok(Self::Chunk(header))
            }
            _ => Err(Malformed::new("a reply without its magic number")),
        }
    }
}

/// Consecutive bytes with equal flags in a metadata context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusExtent {
    /// Bytes; not 0.
    pub len: u32,
    /// Flags that the context defines.
    pub flags: u32,
}

/// A chunk of a structured reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyChunk<'a> {
    /// `NONE`: the end of a reply.
    None,
    /// `OFFSET_DATA`: data of a read.
    Data {
        /// First byte.
        offset: u64,
        /// The data; not empty.
        data: &'a [u8],
    },
    /// `OFFSET_HOLE`: zeros of a read.
    Hole {
        /// First byte.
        offset: u64,
        /// Bytes; not 0.
        len: u32,
    },
    /// `BLOCK_STATUS`: extents of one metadata context.
    BlockStatus {
        /// Number of the context.
        context: u32,
        /// Extents of [`EXTENT_BYTES`] bytes each; not empty.
        extents: &'a [u8],
    },
    /// `ERROR` or `ERROR_OFFSET`.
    Error {
        /// The reason.
        error: Errno,
        /// A text for people.
        message: &'a [u8],
        /// Offset of the failure, if it is known.
        offset: Option<u64>,
    },
    /// An error of a type that this decoder does not know.
    OtherError,
}

impl<'a> ReplyChunk<'a> {
    /// Decodes what follows the header of a chunk.
    pub fn decode(kind: u16, payload: &'a [u8]) -> Result<Self, Malformed> {
        const MALFORMED: Malformed = Malformed::new("a malformed chunk of a reply");
        let mut fields = Fields::new(payload);
        match kind {
            kind::NONE if payload.is_empty() => Ok(Self::None),
            kind::OFFSET_DATA => {
                let offset = fields.u64().ok_or(MALFORMED)?;
                if fields.is_empty() { Err(MALFORMED) } else { Ok(Self::Data { offset, data: fields.rest() }) }
            }
            kind::OFFSET_HOLE => match (fields.u64(), fields.u32()) {
                (Some(offset), Some(len)) if len != 0 && fields.is_empty() => Ok(Self::Hole { offset, len }),
                _ => Err(MALFORMED),
            },
            kind::BLOCK_STATUS => {
                let context = fields.u32().ok_or(MALFORMED)?;
                let extents = fields.rest();
                let whole = !extents.is_empty() && extents.len().is_multiple_of(EXTENT_BYTES);
                let reply = Self::BlockStatus { context, extents };
                if whole && extents_of(extents).all(|extent| extent.len != 0) { Ok(reply) } else { Err(MALFORMED) }
            }
            kind::ERROR | kind::ERROR_OFFSET => Self::decode_error(kind, fields).ok_or(MALFORMED),
            _ if kind & kind::ERROR_BIT != 0 => Ok(Self::OtherError),
            _ => Err(Malformed::new("an unknown type of chunk")),
        }
    }

    fn decode_error(kind: u16, mut fields: Fields<'a>) -> Option<Self> {
        let error = Errno::of_code(fields.u32().filter(|code| *code != 0)?);
        let len = usize::from(fields.u16()?);
        let message = fields.take(len).filter(|message| message.len() <= NAME_BYTES_MAX)?;
        let offset = if kind == kind::ERROR_OFFSET { Some(fields.u64()?) } else { None };
        fields.is_empty().then_some(Self::Error { error, message, offset })
    }

    /// Appends the chunk, header included.
    ///
    /// # Panics
    ///
    /// If the chunk is longer than [`CHUNK_BYTES_MAX`], or its message longer than [`NAME_BYTES_MAX`].
    pub fn encode(&self, flags: u16, cookie: u64, message: &mut Vec<u8>) {
        let start = message.len();
        message.extend([0; CHUNK_HEADER_BYTES]);
        let kind = self.encode_payload(message);
        let len = u32::try_from(message.len() - start - CHUNK_HEADER_BYTES).unwrap_or(u32::MAX);
        assert!(len <= CHUNK_BYTES_MAX, "a chunk of {len} bytes");
        let header = ChunkHeader { flags, kind, cookie, len };
        message[start..start + CHUNK_HEADER_BYTES].copy_from_slice(&header.encode());
    }

    fn encode_payload(&self, payload: &mut Vec<u8>) -> u16 {
        match *self {
            Self::None => kind::NONE,
            Self::Data { offset, data } => {
                payload.extend(offset.to_be_bytes());
                payload.extend(data);
                kind::OFFSET_DATA
            }
            Self::Hole { offset, len } => {
                payload.extend(offset.to_be_bytes());
                payload.extend(len.to_be_bytes());
                kind::OFFSET_HOLE
            }
            Self::BlockStatus { context, extents } => {
                payload.extend(context.to_be_bytes());
                payload.extend(extents);
                kind::BLOCK_STATUS
            }
            Self::Error { error, message, offset } => {
                assert!(message.len() <= NAME_BYTES_MAX, "messages are short");
                payload.extend(error.code().to_be_bytes());
                payload.extend(u16::try_from(message.len()).expect("checked above").to_be_bytes());
                payload.extend(message);
                payload.extend(offset.iter().flat_map(|offset| offset.to_be_bytes()));
                if offset.is_some() { kind::ERROR_OFFSET } else { kind::ERROR }
            }
            Self::OtherError => kind::ERROR_BIT,
        }
    }
}

/// Encodes an extent of a chunk `BLOCK_STATUS`.
pub fn encode_extent(extent: StatusExtent) -> [u8; EXTENT_BYTES] {
    let mut bytes = [0; EXTENT_BYTES];
    bytes[..4].copy_from_slice(&extent.len.to_be_bytes());
    bytes[4..].copy_from_slice(&extent.flags.to_be_bytes());
    bytes
}

/// Decodes the extents of a chunk `BLOCK_STATUS`.
pub fn extents_of(extents: &[u8]) -> impl Iterator<Item = StatusExtent> {
    extents.as_chunks::<EXTENT_BYTES>().0.iter().map(|bytes| {
        let [len @ .., a, b, c, d] = *bytes;
        StatusExtent { len: u32::from_be_bytes(len), flags: u32::from_be_bytes([a, b, c, d]) }
    })
}
