//! Encoder and decoder of every message of the protocol.
//!
//! The functions here do no I/O. Decoders return [`Malformed`] for every input that the protocol does not allow, never panic,
//! and allocate nothing: what they return borrows from the input. All numbers are big-endian ("Conventions").

mod bytes;
pub mod option;
pub mod option_reply;
pub mod reply;
pub mod request;

use std::fmt;

/// Most bytes of the data of one option. Longer data is an error of the client, and the server closes the connection.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;

/// Most bytes of a name, a query or a message ("Conventions").
pub const NAME_BYTES_MAX: usize = 4096;

/// Most bytes that one read or write moves; announced as the maximum block size.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// A message violates the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// The violation, as a noun phrase.
    pub what: &'static str,
}

impl Malformed {
    /// Describes a violation.
    pub const fn new(what: &'static str) -> Self {
        Self { what }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }
}

impl std::error::Error for Malformed {}

/// Flags of the greeting ("Handshake flags") and of the client's answer to it ("Client flags").
pub mod handshake_flag {
    /// The fixed newstyle negotiation.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The reply to `EXPORT_NAME` ends without 124 zeros.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Properties of an export ("Transmission flags").
pub mod export_flag {
    /// The other flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is served.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The command flag `FUA` is served.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The medium prefers sequential access.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `TRIM` is served.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is served.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The command flag `DF` is served.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers all of them.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` is served.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The command flag `FAST_ZERO` is served.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of the extents of `base:allocation` ("Metadata contexts").
pub mod allocation_flag {
    /// Nothing is allocated for the extent.
    pub const HOLE: u32 = 1 << 0;
    /// The extent reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// Flags of the extents of `onefold:dirty`.
pub mod dirty_flag {
    /// The extent was written since the newest checkpoint.
    pub const DIRTY: u32 = 1 << 0;
}

/// The reason why a request failed ("Error values").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Errno {
    /// `EPERM`
    NotPermitted = 1,
    /// `EIO`
    Io = 5,
    /// `ENOMEM`
    NoMemory = 12,
    /// `EINVAL`
    Invalid = 22,
    /// `ENOSPC`
    NoSpace = 28,
    /// `EOVERFLOW`
    Overflow = 75,
    /// `ENOTSUP`
    NotSupported = 95,
    /// `ESHUTDOWN`
    Shutdown = 108,
}

impl Errno {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::NotPermitted,
        Self::Io,
        Self::NoMemory,
        Self::Invalid,
        Self::NoSpace,
        Self::Overflow,
        Self::NotSupported,
        Self::Shutdown,
    ];

    /// The number on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Decodes a number that is not 0; one that the protocol does not define counts as `EINVAL`, as the protocol demands.
    pub fn of_code(code: u32) -> Self {
        Self::ALL.into_iter().find(|errno| errno.code() == code).unwrap_or(Self::Invalid)
    }
}

/// The server's first message: two magic numbers and its flags ("Newstyle negotiation").
pub const GREETING_BYTES: usize = 18;

const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;

/// Encodes the server's first message.
pub fn encode_greeting(flags: u16) -> [u8; GREETING_BYTES] {
    let mut message = [0; GREETING_BYTES];
    message[..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
    message[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    message[16..].copy_from_slice(&flags.to_be_bytes());
    message
}

/// Decodes the server's first message to its flags.
pub fn decode_greeting(message: &[u8; GREETING_BYTES]) -> Result<u16, Malformed> {
    let mut rest = bytes::Fields::new(message);
    if rest.u64() != Some(INIT_MAGIC) || rest.u64() != Some(OPTION_MAGIC) {
        return Err(Malformed::new("a greeting of another protocol"));
    }
    rest.u16().ok_or(Malformed::new("a greeting without flags"))
}

/// Decodes the client's answer to the greeting. The server must not go on with a flag that it does not know.
pub fn decode_client_flags(message: [u8; 4]) -> Result<u16, Malformed> {
    let flags = u32::from_be_bytes(message);
    let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    match u16::try_from(flags) {
        Ok(flags) if flags & !known == 0 => Ok(flags),
        _ => Err(Malformed::new("unknown client flags")),
    }
}

/// Encodes the client's answer to the greeting.
pub fn encode_client_flags(flags: u16) -> [u8; 4] {
    u32::from(flags).to_be_bytes()
}

#[cfg(test)]
mod tests;
