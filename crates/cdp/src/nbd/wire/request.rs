//! Requests, which a client sends during transmission ("Request message").

use super::Malformed;
use super::bytes::Fields;

const MAGIC: u32 = 0x2560_9513;

/// Bytes of a request without its payload.
pub const HEADER_BYTES: usize = 28;

/// Numbers of commands ("Request types").
pub mod command {
    /// Reads data.
    pub const READ: u16 = 0;
    /// Writes the payload.
    pub const WRITE: u16 = 1;
    /// Ends the connection; has no reply.
    pub const DISC: u16 = 2;
    /// Makes writes durable.
    pub const FLUSH: u16 = 3;
    /// Discards data.
    pub const TRIM: u16 = 4;
    /// Announces reads.
    pub const CACHE: u16 = 5;
    /// Writes zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Describes extents.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a command ("Command flags").
pub mod flag {
    /// Reply when the data is durable.
    pub const FUA: u16 = 1 << 0;
    /// Allocate what is zeroed.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Reply with one chunk of data.
    pub const DF: u16 = 1 << 2;
    /// Reply with one extent of each metadata context.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail if zeroing is as slow as writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// A request without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// [`flag`]s, known or not.
    pub flags: u16,
    /// One of [`command`], or a number that this server does not know.
    pub command: u16,
    /// Chosen by the client, returned in each reply; the protocol document also calls it "handle".
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Request {
    /// Encodes the request.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut message = [0; HEADER_BYTES];
        message[..4].copy_from_slice(&MAGIC.to_be_bytes());
        message[4..6].copy_from_slice(&self.flags.to_be_bytes());
        message[6..8].copy_from_slice(&self.command.to_be_bytes());
        message[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        message[16..24].copy_from_slice(&self.offset.to_be_bytes());
        message[24..].copy_from_slice(&self.len.to_be_bytes());
        message
    }

    /// Decodes a request. Unknown commands and flags are no error here: the server answers them.
    pub fn decode(message: &[u8; HEADER_BYTES]) -> Result<Self, Malformed> {
        const MALFORMED: Malformed = Malformed::new("a request without its magic number");
        let mut fields = Fields::new(message);
        if fields.u32() != Some(MAGIC) {
            return Err(MALFORMED);
        }
        let mut request = || {
            let (flags, command) = (fields.u16()?, fields.u16()?);
            Some(Self { flags, command, cookie: fields.u64()?, offset: fields.u64()?, len: fields.u32()? })
        };
        request().ok_or(MALFORMED)
    }

    /// Bytes of payload that follow the request.
    pub fn payload_len(&self) -> u32 {
        if self.command == command::WRITE { self.len } else { 0 }
    }

    /// Returns true if all the flags are set.
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}
