//! Options, which a client sends while it negotiates ("Option types").

use super::bytes::Fields;
use super::{Malformed, NAME_BYTES_MAX, OPTION_BYTES_MAX, OPTION_MAGIC};

/// Bytes of the header of an option.
pub const HEADER_BYTES: usize = 16;

/// Numbers of options.
pub mod code {
    /// Enters transmission, or closes the connection.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the negotiation.
    pub const ABORT: u32 = 2;
    /// Lists exports.
    pub const LIST: u32 = 3;
    /// Starts TLS.
    pub const STARTTLS: u32 = 5;
    /// Describes an export.
    pub const INFO: u32 = 6;
    /// Describes an export and enters transmission.
    pub const GO: u32 = 7;
    /// Switches to structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Selects metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Header of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionHeader {
    /// Number of the option, known or not.
    pub option: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Encodes the header.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut message = [0; HEADER_BYTES];
        message[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        message[8..12].copy_from_slice(&self.option.to_be_bytes());
        message[12..].copy_from_slice(&self.len.to_be_bytes());
        message
    }

    /// Decodes a header. Data of more than [`OPTION_BYTES_MAX`] bytes is refused.
    pub fn decode(message: &[u8; HEADER_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields::new(message);
        if fields.u64() != Some(OPTION_MAGIC) {
            return Err(Malformed::new("an option without its magic number"));
        }
        match (fields.u32(), fields.u32()) {
            (Some(option), Some(len)) if len <= OPTION_BYTES_MAX => Ok(Self { option, len }),
            _ => Err(Malformed::new("an option with more than 64 KiB of data")),
        }
    }
}

/// An option with its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionRequest<'a> {
    /// `EXPORT_NAME`: enter transmission with the export of this name.
    ExportName(&'a [u8]),
    /// `ABORT`: end the negotiation.
    Abort,
    /// `LIST`: list the exports.
    List,
    /// `STARTTLS`: start TLS.
    StartTls,
    /// `INFO`: describe an export.
    Info(InfoRequest<'a>),
    /// `GO`: describe an export and enter transmission.
    Go(InfoRequest<'a>),
    /// `STRUCTURED_REPLY`: switch to structured replies.
    StructuredReply,
    /// `LIST_META_CONTEXT`: list the metadata contexts that the queries match.
    ListMetaContext(ContextRequest<'a>),
    /// `SET_META_CONTEXT`: select the metadata contexts with these names.
    SetMetaContext(ContextRequest<'a>),
    /// An option that this server does not know.
    Unknown,
}

impl<'a> OptionRequest<'a> {
    /// Decodes the data of an option.
    pub fn decode(option: u32, data: &'a [u8]) -> Result<Self, Malformed> {
        let without_data = |request| match data {
            [] => Ok(request),
            _ => Err(Malformed::new("data of an option that has none")),
        };
        match option {
            code::EXPORT_NAME => checked_name(data).map(Self::ExportName),
            // "ABORT": the server may ignore data.
            code::ABORT => Ok(Self::Abort),
            code::LIST => without_data(Self::List),
            code::STARTTLS => without_data(Self::StartTls),
            code::INFO => InfoRequest::decode(data).map(Self::Info),
            code::GO => InfoRequest::decode(data).map(Self::Go),
            code::STRUCTURED_REPLY => without_data(Self::StructuredReply),
            code::LIST_META_CONTEXT => ContextRequest::decode(data).map(Self::ListMetaContext),
            code::SET_META_CONTEXT => ContextRequest::decode(data).map(Self::SetMetaContext),
            _ => Ok(Self::Unknown),
        }
    }
}

fn checked_name(name: &[u8]) -> Result<&[u8], Malformed> {
    if NAME_BYTES_MAX < name.len() {
        return Err(Malformed::new("a name of more than 4,096 bytes"));
    }
    Ok(name)
}

/// Data of `INFO` and `GO`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InfoRequest<'a> {
    /// Name of the export; empty for the default one.
    pub name: &'a [u8],
    /// Numbers of the wanted facts, two bytes each: [`super::option_reply::info`].
    wanted: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    fn decode(data: &'a [u8]) -> Result<Self, Malformed> {
        const TRUNCATED: Malformed = Malformed::new("truncated data of INFO or GO");
        let mut fields = Fields::new(data);
        let name = checked_name(fields.counted().ok_or(TRUNCATED)?)?;
        let count = usize::from(fields.u16().ok_or(TRUNCATED)?);
        let wanted = fields.rest();
        if wanted.len() != 2 * count {
            return Err(Malformed::new("a wrong number of requests in INFO or GO"));
        }
        Ok(Self { name, wanted })
    }

    /// Numbers of the wanted facts, known or not.
    pub fn wanted(&self) -> impl Iterator<Item = u16> + 'a {
        self.wanted.as_chunks().0.iter().map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// Appends the data of `INFO` or `GO`.
    pub fn encode(name: &[u8], wanted: &[u16], data: &mut Vec<u8>) {
        put_counted(name, data);
        data.extend(count_u16(wanted.len()).to_be_bytes());
        data.extend(wanted.iter().flat_map(|wanted| wanted.to_be_bytes()));
    }
}

/// Data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextRequest<'a> {
    /// Name of the export; empty for the default one.
    pub name: &'a [u8],
    /// Number of queries.
    pub count: u32,
    /// Queries that [`Self::decode`] has checked.
    queries: &'a [u8],
}

impl<'a> ContextRequest<'a> {
    fn decode(data: &'a [u8]) -> Result<Self, Malformed> {
        const TRUNCATED: Malformed = Malformed::new("truncated data of a metadata context option");
        let mut fields = Fields::new(data);
        let name = checked_name(fields.counted().ok_or(TRUNCATED)?)?;
        let count = fields.u32().ok_or(TRUNCATED)?;
        let queries = fields.rest();
        let mut fields = Fields::new(queries);
        // The data limits the number of turns: each query takes four bytes at least.
        for _ in 0..count {
            checked_name(fields.counted().ok_or(TRUNCATED)?)?;
        }
        if !fields.is_empty() {
            return Err(Malformed::new("data behind the last query for metadata contexts"));
        }
        Ok(Self { name, count, queries })
    }

    /// The queries, such as `base:` or `base:allocation`.
    pub fn queries(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut fields = Fields::new(self.queries);
        std::iter::from_fn(move || fields.counted())
    }

    /// Appends the data of `LIST_META_CONTEXT` or `SET_META_CONTEXT`.
    pub fn encode(name: &[u8], queries: &[&[u8]], data: &mut Vec<u8>) {
        put_counted(name, data);
        data.extend(count_u32(queries.len()).to_be_bytes());
        for query in queries {
            put_counted(query, data);
        }
    }
}

fn put_counted(bytes: &[u8], data: &mut Vec<u8>) {
    data.extend(count_u32(bytes.len()).to_be_bytes());
    data.extend(bytes);
}

fn count_u16(count: usize) -> u16 {
    u16::try_from(count).expect("an encoder is given few requests")
}

fn count_u32(count: usize) -> u32 {
    u32::try_from(count).expect("an encoder is given short data")
}
