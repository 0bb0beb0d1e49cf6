//! Messages of the link: bytes and their meaning, without any input or output. Decoders check every field, never panic, and allocate
//! no more than a message is long.

use crate::checkpoint::MadeCheckpoint;
use crate::journal::codec::{FRAME_BODY_MAX, RECORD_HEADER_BYTES};
use crate::journal::{GroupId, Lsn};
use crate::link::{BLOCK_BYTES, COMPARED_BYTES_MAX, Codec};
use crate::stored::{GroupSpec, VolumeSpec};

/// Version of the protocol.
pub const VERSION: u32 = 1;
/// Bytes before the body of a message: its kind, three zeros, and the length of the body.
pub const HEADER_BYTES: usize = 8;
/// Most volumes of a group that a link serves.
pub const VOLUMES_MAX: usize = 1024;
/// Longest name of a group or volume in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest sentence in bytes; a longer one is cut.
pub const SENTENCE_BYTES_MAX: usize = 1024;
/// Bytes of a fingerprint.
pub const FINGERPRINT_BYTES: usize = 16;
/// Most fingerprints of a message.
pub const FINGERPRINTS_MAX: usize = COMPARED_BYTES_MAX as usize / BLOCK_BYTES;

const MAGIC: [u8; 8] = *b"onefoldl";
/// Bytes of the first message without names: magic, version, codecs, group, two records, counts.
const HELLO_FIELDS: usize = 8 + 4 + 4 + 16 + 8 + 8 + 2 + 2;
/// Bytes of a frame before its records.
const FRAME_FIELDS: usize = 8 + 8 + 4 + 4 + 4;

/// Kinds of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The first of the sender.
    Hello,
    /// The first of the receiver.
    Welcome,
    /// A sentence, then the end.
    Refused,
    /// Records.
    Frame,
    /// Records that are durable.
    Ack,
    /// A question for fingerprints.
    Compare,
    /// The answer.
    Fingerprints,
    /// A request for a checkpoint.
    Checkpoint,
    /// The answer.
    Done,
    /// Nothing but life.
    Ping,
}

/// All kinds with their numbers and the most bytes of their bodies.
const KINDS: [(Kind, u8, usize); 10] = [
    (Kind::Hello, 1, HELLO_FIELDS + NAME_BYTES_MAX + VOLUMES_MAX * (2 + NAME_BYTES_MAX + 8)),
    (Kind::Welcome, 2, 4 + 4 + 8 + FINGERPRINT_BYTES),
    (Kind::Refused, 3, SENTENCE_BYTES_MAX),
    (Kind::Frame, 4, FRAME_FIELDS + FRAME_BODY_MAX),
    (Kind::Ack, 5, 8 + 8),
    (Kind::Compare, 6, 8 + 2 + 2 + 4 + 8 + 32),
    (Kind::Fingerprints, 7, FINGERPRINTS_MAX * FINGERPRINT_BYTES),
    (Kind::Checkpoint, 8, 8),
    (Kind::Done, 9, 1 + 3 * 8 + SENTENCE_BYTES_MAX),
    (Kind::Ping, 10, 0),
];

/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + FRAME_FIELDS + FRAME_BODY_MAX;

/// Bytes that are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// No message has such a kind, or such a length.
    Header,
    /// The fields of a message do not agree.
    Body(Kind),
    /// The first message is of another version of the protocol.
    Version(u32),
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header => f.write_str("bytes that are no message"),
            Self::Body(kind) => write!(f, "a message with wrong fields: {kind:?}"),
            Self::Version(version) => write!(f, "version {version} of the protocol, and this program knows {VERSION}"),
        }
    }
}

/// Decodes the header of a message: its kind, and the bytes of its body, which are not more than the kind may have.
pub fn decode_header(header: [u8; HEADER_BYTES]) -> Result<(Kind, usize), WireError> {
    let [code, zeros @ .., a, b, c, d] = header;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    let found = KINDS.iter().find(|(_, of, most)| *of == code && len <= *most);
    found.filter(|_| zeros == [0; 3]).map(|(kind, ..)| (*kind, len)).ok_or(WireError::Header)
}

/// The first message of the sender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its group.
    pub group: GroupSpec,
    /// Codecs that it can use.
    pub codecs: Vec<Codec>,
    /// The first record of its journal.
    pub first: Lsn,
    /// The record after the last one that is durable there.
    pub next: Lsn,
}

/// The answer of the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Codec of the frames, unless one does not become shorter.
    pub codec: Codec,
    /// The last record that is durable at the receiver; 0 before the first.
    pub durable: Lsn,
    /// Checksum of that record, see [`checksum`]; zeros before the first.
    pub checksum: [u8; FINGERPRINT_BYTES],
}

/// Records of a frame of the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameMessage<'a> {
    /// The first record.
    pub first: Lsn,
    /// Wall clock of the frame, in nanoseconds since 1970-01-01 00:00:00 UTC.
    pub time: u64,
    /// Number of records.
    pub records: u32,
    /// Codec of `bytes`.
    pub codec: Codec,
    /// Bytes of the records when they are decompressed.
    pub plain_len: usize,
    /// The records.
    pub bytes: &'a [u8],
}

/// A question for the fingerprints of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compare {
    /// The record after which the volume is meant.
    pub at: Lsn,
    /// Number of the volume.
    pub volume: u16,
    /// First byte: a multiple of [`BLOCK_BYTES`].
    pub offset: u64,
    /// Bytes: a multiple of [`BLOCK_BYTES`], at most [`COMPARED_BYTES_MAX`].
    pub len: u32,
    /// Key of the fingerprints.
    pub key: [u8; 32],
}

/// Outcome of a checkpoint that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Done {
    /// It was made.
    Made {
        /// Its snapshot.
        snapshot: String,
        /// Its first record.
        first: Lsn,
        /// Its last record.
        last: Lsn,
        /// Versions of blocks.
        versions: u64,
    },
    /// There was no record that is in no checkpoint.
    NothingNew,
    /// It was not made, and why.
    Failed(String),
}

impl From<&MadeCheckpoint> for Done {
    fn from(made: &MadeCheckpoint) -> Self {
        let MadeCheckpoint { snapshot, first, last, versions, .. } = made;
        Self::Made { snapshot: snapshot.to_string(), first: *first, last: *last, versions: *versions }
    }
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// The first of the sender.
    Hello(Hello),
    /// The first of the receiver.
    Welcome(Welcome),
    /// Why there is no link, or none any more.
    Refused(&'a str),
    /// Records.
    Frame(FrameMessage<'a>),
    /// All records up to the first are durable, and those up to the second are in a checkpoint.
    Ack(Lsn, Lsn),
    /// A question for fingerprints.
    Compare(Compare),
    /// Fingerprints of the blocks that were asked for.
    Fingerprints(&'a [u8]),
    /// A request for a checkpoint with all records up to one.
    Checkpoint(Lsn),
    /// The outcome.
    Done(Done),
    /// Nothing but life.
    Ping,
}

impl<'a> Message<'a> {
    fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Welcome(_) => Kind::Welcome,
            Self::Refused(_) => Kind::Refused,
            Self::Frame(_) => Kind::Frame,
            Self::Ack(..) => Kind::Ack,
            Self::Compare(_) => Kind::Compare,
            Self::Fingerprints(_) => Kind::Fingerprints,
            Self::Checkpoint(_) => Kind::Checkpoint,
            Self::Done(_) => Kind::Done,
            Self::Ping => Kind::Ping,
        }
    }

    /// Replaces `out` by the bytes of the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        match self {
            Self::Hello(hello) => hello.encode(out),
            Self::Welcome(welcome) => welcome.encode(out),
            Self::Refused(sentence) => out.extend_from_slice(cut(sentence).as_bytes()),
            Self::Frame(frame) => frame.encode(out),
            Self::Ack(durable, checkpoint) => {
                out.extend_from_slice(&durable.0.to_le_bytes());
                out.extend_from_slice(&checkpoint.0.to_le_bytes());
            }
            Self::Compare(compare) => compare.encode(out),
            Self::Fingerprints(bytes) => out.extend_from_slice(bytes),
            Self::Checkpoint(last) => out.extend_from_slice(&last.0.to_le_bytes()),
            Self::Done(done) => done.encode(out),
            Self::Ping => {}
        }
        let (_, code, most) = KINDS.iter().find(|(kind, ..)| *kind == self.kind()).expect("all kinds are there");
        let len = out.len() - HEADER_BYTES;
        assert!(len <= *most, "{len} bytes of {:?}", self.kind());
        out[0] = *code;
        out[4..HEADER_BYTES].copy_from_slice(&u32::try_from(len).expect("messages are short").to_le_bytes());
    }

    /// Decodes a body whose header had this kind.
    pub fn decode(kind: Kind, body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields(body);
        let decoded = match kind {
            Kind::Hello => return Hello::decode(body).map(Self::Hello),
            Kind::Welcome => Welcome::decode(&mut fields).map(Self::Welcome),
            Kind::Refused => fields.text(body.len()).map(Self::Refused),
            Kind::Frame => FrameMessage::decode(&mut fields).map(Self::Frame),
            Kind::Ack => fields.lsn().and_then(|durable| Some(Self::Ack(durable, fields.lsn()?))),
            Kind::Compare => Compare::decode(&mut fields).map(Self::Compare),
            Kind::Fingerprints => fields.bytes(body.len()).map(Self::Fingerprints),
            Kind::Checkpoint => fields.lsn().map(Self::Checkpoint),
            Kind::Done => Done::decode(&mut fields).map(Self::Done),
            Kind::Ping => Some(Self::Ping),
        };
        decoded.filter(|_| fields.0.is_empty()).ok_or(WireError::Body(kind))
    }
}

/// Returns the beginning of a sentence that fits into a message.
fn cut(sentence: &str) -> &str {
    let end = (0..=SENTENCE_BYTES_MAX.min(sentence.len())).rev().find(|end| sentence.is_char_boundary(*end));
    &sentence[..end.unwrap_or(0)]
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&u16::try_from(text.len()).expect("names are short").to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl Hello {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let codecs = self.codecs.iter().fold(0_u32, |bits, codec| bits | 1 << codec.code());
        out.extend_from_slice(&codecs.to_le_bytes());
        out.extend_from_slice(&self.group.id.0);
        out.extend_from_slice(&self.first.0.to_le_bytes());
        out.extend_from_slice(&self.next.0.to_le_bytes());
        put_text(&self.group.name, out);
        out.extend_from_slice(&u16::try_from(self.group.volumes.len()).expect("1,024 at most").to_le_bytes());
        for VolumeSpec { name, size } in &self.group.volumes {
            put_text(name, out);
            out.extend_from_slice(&size.to_le_bytes());
        }
    }

    fn decode(body: &[u8]) -> Result<Self, WireError> {
        let wrong = WireError::Body(Kind::Hello);
        let mut fields = Fields(body);
        let (magic, version) = (fields.array::<8>(), fields.u32());
        let version = version.filter(|_| magic == Some(MAGIC)).ok_or(wrong)?;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let hello = Self::fields(&mut fields).filter(|_| fields.0.is_empty()).ok_or(wrong)?;
        hello.group.validate().map_err(|_| wrong)?;
        Ok(hello)
    }

    fn fields(fields: &mut Fields<'_>) -> Option<Self> {
        let bits = fields.u32()?;
        let codecs = Codec::ALL.into_iter().filter(|codec| bits & 1 << codec.code() != 0).collect();
        let id = GroupId(fields.array()?);
        let (first, next) = (fields.lsn()?, fields.lsn()?);
        let name = fields.name()?;
        let count = usize::from(fields.u16()?);
        let mut volumes = Vec::with_capacity(count.min(VOLUMES_MAX));
        for _ in 0..Some(count).filter(|count| *count <= VOLUMES_MAX)? {
            volumes.push(VolumeSpec { name: fields.name()?, size: fields.u64()? });
        }
        let is_sound = first.0 != 0 && first <= next;
        is_sound.then_some(Self { group: GroupSpec { name, id, volumes }, codecs, first, next })
    }
}

impl Welcome {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.codec.code().to_le_bytes());
        out.extend_from_slice(&self.durable.0.to_le_bytes());
        out.extend_from_slice(&self.checksum);
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        let version = fields.u32()?;
        let welcome = Self { codec: Codec::of(fields.u32()?)?, durable: fields.lsn()?, checksum: fields.array()? };
        (version == VERSION && welcome.durable.0 != u64::MAX).then_some(welcome)
    }
}

impl<'a> FrameMessage<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first.0.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&self.records.to_le_bytes());
        out.extend_from_slice(&self.codec.code().to_le_bytes());
        out.extend_from_slice(&u32::try_from(self.plain_len).expect("frames are short").to_le_bytes());
        out.extend_from_slice(self.bytes);
    }

    fn decode(fields: &mut Fields<'a>) -> Option<Self> {
        let (first, time, records) = (fields.lsn()?, fields.u64()?, fields.u32()?);
        let (codec, plain_len) = (Codec::of(fields.u32()?)?, fields.u32()? as usize);
        let bytes = fields.bytes(fields.0.len())?;
        let is_sound = first.0 != 0
            && first.0.checked_add(records.into()).is_some_and(|next| next != u64::MAX)
            && records != 0
            && plain_len <= FRAME_BODY_MAX
            && records as usize <= plain_len / RECORD_HEADER_BYTES
            && bytes.len() <= plain_len
            && (codec != Codec::Off || bytes.len() == plain_len);
        is_sound.then_some(Self { first, time, records, codec, plain_len, bytes })
    }
}

impl Compare {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.at.0.to_le_bytes());
        out.extend_from_slice(&self.volume.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.key);
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        let (at, volume, zero, len) = (fields.lsn()?, fields.u16()?, fields.u16()?, fields.u32()?);
        let (offset, key) = (fields.u64()?, fields.array()?);
        let is_sound = zero == 0
            && len != 0
            && len <= COMPARED_BYTES_MAX
            && (len as usize).is_multiple_of(BLOCK_BYTES)
            && offset.is_multiple_of(BLOCK_BYTES as u64)
            && offset.checked_add(len.into()).is_some();
        is_sound.then_some(Self { at, volume, offset, len, key })
    }
}

impl Done {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Made { snapshot, first, last, versions } => {
                out.push(1);
                for number in [first.0, last.0, *versions] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                out.extend_from_slice(cut(snapshot).as_bytes());
            }
            Self::NothingNew => out.push(2),
            Self::Failed(sentence) => {
                out.push(3);
                out.extend_from_slice(cut(sentence).as_bytes());
            }
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        let [kind] = fields.array()?;
        match kind {
            1 => {
                let (first, last, versions) = (fields.lsn()?, fields.lsn()?, fields.u64()?);
                Some(Self::Made { snapshot: fields.text(fields.0.len())?.to_owned(), first, last, versions })
            }
            2 => Some(Self::NothingNew),
            3 => Some(Self::Failed(fields.text(fields.0.len())?.to_owned())),
            _ => None,
        }
    }
}

/// Returns the checksum of a record as two machines compare it: its number, the time of its frame, and its bytes.
pub fn checksum(lsn: Lsn, time: u64, record: &[u8]) -> [u8; FINGERPRINT_BYTES] {
    let mut hasher = blake3::Hasher::new_derive_key("onefold v1 link record");
    hasher.update(&lsn.0.to_le_bytes()).update(&time.to_le_bytes()).update(record);
    first_bytes(&hasher.finalize())
}

/// Appends the fingerprints of all blocks of a range.
pub fn fingerprint_blocks(key: &[u8; 32], range: &[u8], out: &mut Vec<u8>) {
    for block in range.chunks(BLOCK_BYTES) {
        out.extend_from_slice(&first_bytes(&blake3::keyed_hash(key, block)));
    }
}

fn first_bytes(hash: &blake3::Hash) -> [u8; FINGERPRINT_BYTES] {
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}

/// Takes fields from the front of bytes.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, back) = self.0.split_first_chunk::<N>()?;
        self.0 = back;
        Some(*front)
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, back) = self.0.split_at_checked(count)?;
        self.0 = back;
        Some(front)
    }

    fn text(&mut self, count: usize) -> Option<&'a str> {
        std::str::from_utf8(self.bytes(count)?).ok()
    }

    fn name(&mut self) -> Option<String> {
        let count = usize::from(self.u16()?);
        let name = self.text(count).filter(|name| name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control))?;
        Some(name.to_owned())
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn lsn(&mut self) -> Option<Lsn> {
        self.u64().map(Lsn)
    }
}
