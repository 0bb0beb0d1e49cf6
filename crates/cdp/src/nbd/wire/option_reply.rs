//! Replies to options ("Option reply types").

use super::bytes::Fields;
use super::{Malformed, OPTION_BYTES_MAX};

const MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Bytes of the header of a reply to an option.
pub const HEADER_BYTES: usize = 20;

/// Bytes of the reply to `EXPORT_NAME`, without the zeros.
pub const EXPORT_NAME_REPLY_BYTES: usize = 10;

/// Zeros at the end of the reply to `EXPORT_NAME`, unless the client declined them.
pub const EXPORT_NAME_ZEROES: usize = 124;

/// Types of replies.
pub mod kind {
    /// Success; the last reply.
    pub const ACK: u32 = 1;
    /// The name of an export.
    pub const SERVER: u32 = 2;
    /// A fact about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// All errors have this bit.
    pub const ERROR: u32 = 1 << 31;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = ERROR + 1;
    /// The server forbids the option.
    pub const ERR_POLICY: u32 = ERROR + 2;
    /// The option is malformed.
    pub const ERR_INVALID: u32 = ERROR + 3;
    /// The option needs TLS.
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    /// The server shuts down.
    pub const ERR_SHUTDOWN: u32 = ERROR + 7;
}

/// Types of facts about an export ("Info types").
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// The name.
    pub const NAME: u16 = 1;
    /// A text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Three block sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Header of a reply to an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionReplyHeader {
    /// Number of the option that is answered.
    pub option: u32,
    /// One of [`kind`].
    pub kind: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionReplyHeader {
    /// Encodes the header.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut message = [0; HEADER_BYTES];
        message[..8].copy_from_slice(&MAGIC.to_be_bytes());
        message[8..12].copy_from_slice(&self.option.to_be_bytes());
        message[12..16].copy_from_slice(&self.kind.to_be_bytes());
        message[16..].copy_from_slice(&self.len.to_be_bytes());
        message
    }

    /// Decodes a header. Data of more than [`OPTION_BYTES_MAX`] bytes is refused.
    pub fn decode(message: &[u8; HEADER_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields::new(message);
        if fields.u64() != Some(MAGIC) {
            return Err(Malformed::new("a reply to an option without its magic number"));
        }
        match (fields.u32(), fields.u32(), fields.u32()) {
            (Some(option), Some(kind), Some(len)) if len <= OPTION_BYTES_MAX => Ok(Self { option, kind, len }),
            _ => Err(Malformed::new("a reply to an option with more than 64 KiB of data")),
        }
    }
}

/// A reply to an option, with its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionReply<'a> {
    /// `ACK`: success; the last reply.
    Ack,
    /// `SERVER`: the name of an export, and a text about it.
    Server {
        /// The name.
        name: &'a [u8],
        /// A text for people, or nothing.
        description: &'a [u8],
    },
    /// `INFO` of type `EXPORT`: size and [`super::export_flag`]s.
    Export {
        /// Bytes of the export.
        size: u64,
        /// Properties.
        flags: u16,
    },
    /// `INFO` of type `NAME`: the name of the export.
    Name(&'a [u8]),
    /// `INFO` of type `DESCRIPTION`: a text for people.
    Description(&'a [u8]),
    /// `INFO` of type `BLOCK_SIZE`: the smallest, the preferred and the largest length of a request.
    BlockSize {
        /// The unit of offsets and lengths.
        minimum: u32,
        /// The length that is served best.
        preferred: u32,
        /// The longest payload.
        maximum: u32,
    },
    /// `INFO` of a type that this decoder does not know; clients ignore it.
    OtherInfo(u16),
    /// `META_CONTEXT`: a metadata context and its number.
    MetaContext {
        /// The number, valid for this connection; 0 in a list.
        id: u32,
        /// Name with its namespace, such as `base:allocation`.
        name: &'a [u8],
    },
    /// An error of [`kind`], with a text for people.
    Error {
        /// One of [`kind`].
        kind: u32,
        /// A text for people.
        message: &'a [u8],
    },
}

impl<'a> OptionReply<'a> {
    /// Appends the reply to an option, header included.
    pub fn encode(&self, option: u32, message: &mut Vec<u8>) {
        let start = message.len();
        message.extend([0; HEADER_BYTES]);
        let kind = self.encode_data(message);
        let len = u32::try_from(message.len() - start - HEADER_BYTES).expect("names and messages are short");
        let header = OptionReplyHeader { option, kind, len };
        message[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
    }

    /// Appends the data and returns the type of the reply.
    fn encode_data(&self, data: &mut Vec<u8>) -> u32 {
        match *self {
            Self::Ack => kind::ACK,
            Self::Server { name, description } => {
                data.extend(u32::try_from(name.len()).expect("names are short").to_be_bytes());
                data.extend(name);
                data.extend(description);
                kind::SERVER
            }
            Self::Export { size, flags } => {
                data.extend(info::EXPORT.to_be_bytes());
                data.extend(size.to_be_bytes());
                data.extend(flags.to_be_bytes());
                kind::INFO
            }
            Self::Name(name) => {
                data.extend(info::NAME.to_be_bytes());
                data.extend(name);
                kind::INFO
            }
            Self::Description(text) => {
                data.extend(info::DESCRIPTION.to_be_bytes());
                data.extend(text);
                kind::INFO
            }
            Self::BlockSize { minimum, preferred, maximum } => {
                data.extend(info::BLOCK_SIZE.to_be_bytes());
                data.extend([minimum, preferred, maximum].iter().flat_map(|size| size.to_be_bytes()));
                kind::INFO
            }
            Self::OtherInfo(info) => {
                data.extend(info.to_be_bytes());
                kind::INFO
            }
            Self::MetaContext { id, name } => {
                data.extend(id.to_be_bytes());
                data.extend(name);
                kind::META_CONTEXT
            }
            Self::Error { kind, message } => {
                data.extend(message);
                kind
            }
        }
    }

    /// Decodes the data of a reply.
    pub fn decode(kind: u32, data: &'a [u8]) -> Result<Self, Malformed> {
        const TRUNCATED: Malformed = Malformed::new("truncated data of a reply to an option");
        let mut fields = Fields::new(data);
        match kind {
            kind::ACK if data.is_empty() => Ok(Self::Ack),
            kind::ACK => Err(Malformed::new("data of an acknowledgement")),
            kind::SERVER => {
                let name = fields.counted().ok_or(TRUNCATED)?;
                Ok(Self::Server { name, description: fields.rest() })
            }
            kind::INFO => Self::decode_info(fields).ok_or(TRUNCATED),
            kind::META_CONTEXT => {
                let id = fields.u32().ok_or(TRUNCATED)?;
                Ok(Self::MetaContext { id, name: fields.rest() })
            }
            _ if kind & kind::ERROR != 0 => Ok(Self::Error { kind, message: data }),
            _ => Err(Malformed::new("an unknown type of reply to an option")),
        }
    }

    fn decode_info(mut fields: Fields<'a>) -> Option<Self> {
        let reply = match fields.u16()? {
            info::EXPORT => Self::Export { size: fields.u64()?, flags: fields.u16()? },
            info::NAME => return Some(Self::Name(fields.rest())),
            info::DESCRIPTION => return Some(Self::Description(fields.rest())),
            info::BLOCK_SIZE => {
                Self::BlockSize { minimum: fields.u32()?, preferred: fields.u32()?, maximum: fields.u32()? }
            }
            other => return Some(Self::OtherInfo(other)),
        };
        fields.is_empty().then_some(reply)
    }
}

/// Encodes the reply to `EXPORT_NAME`, which has no header.
pub fn encode_export_name_reply(size: u64, flags: u16) -> [u8; EXPORT_NAME_REPLY_BYTES] {
    let mut message = [0; EXPORT_NAME_REPLY_BYTES];
    message[..8].copy_from_slice(&size.to_be_bytes());
    message[8..].copy_from_slice(&flags.to_be_bytes());
    message
}

/// Decodes the reply to `EXPORT_NAME` to size and flags.
pub fn decode_export_name_reply(message: &[u8; EXPORT_NAME_REPLY_BYTES]) -> (u64, u16) {
    let [size @ .., high, low] = *message;
    (u64::from_be_bytes(size), u16::from_be_bytes([high, low]))
}
