//! Entry points for fuzzing: both phases of the protocol, and the decoders of clients, as functions of bytes.
//!
//! The fuzz targets in `fuzz/` and the tests call the same functions. Each returns for any input, without a panic and in bounded
//! memory. The server's replies must be replies of the protocol whatever the client sends.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::NamedExport;
use super::catalog::Catalog;
use super::connection::{Connection, ConnectionLimits, Host};
use super::export::{Context, Export, Fua, StatusExtents, ZeroOptions};
use super::input::Input;
use super::negotiate::{self, Negotiated};
use super::transport::Transport;
use super::wire::option::{OptionHeader, OptionRequest};
use super::wire::option_reply::{self, OptionReply, OptionReplyHeader};
use super::wire::reply::{ReplyChunk, ReplyHeader};
use super::wire::{self, Errno, allocation_flag, export_flag};
use crate::log::Log;

/// A function to be called with arbitrary bytes.
pub type Target = fn(&[u8]);

/// All targets by name. A name is also that of the fuzz target and of the directory of its corpus.
pub const TARGETS: &[(&str, Target)] =
    &[("nbd_negotiation", negotiation), ("nbd_transmission", transmission), ("nbd_replies", replies)];

/// Bytes of the volume of the targets.
const VOLUME_BYTES: u64 = 256 << 10;

/// Runs a target by name; false if there is none.
pub fn run(target: &str, bytes: &[u8]) -> bool {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    found.map(|(_, function)| function(bytes)).is_some()
}

/// Bytes that a client sends, from the first on.
fn negotiation(bytes: &[u8]) {
    let (transport, output) = memory(bytes);
    let mut input = Input::new();
    // The outcome is a value, an error included.
    let outcome = negotiate::negotiate(transport, &mut input, &catalog(), None);
    let output = std::mem::take(&mut *output.lock().unwrap_or_else(PoisonError::into_inner));
    let (greeting, rest) = output.split_first_chunk().expect("the server speaks first");
    wire::decode_greeting(greeting).expect("it is the server's");
    // The reply to EXPORT_NAME has no header, and is the last one.
    let has_data = matches!(&outcome, Ok(Some(_)));
    check_answers(rest, has_data);
}

fn check_answers(mut rest: &[u8], may_end_without_header: bool) {
    while let Some((header, behind)) = rest.split_first_chunk::<{ option_reply::HEADER_BYTES }>() {
        let Ok(header) = OptionReplyHeader::decode(header) else { break };
        let (data, behind) = behind.split_at(header.len as usize);
        OptionReply::decode(header.kind, data).expect("the server's replies are valid");
        rest = behind;
    }
    assert!(rest.is_empty() || may_end_without_header, "{} bytes are no reply", rest.len());
}

/// A byte of flags (1: structured replies, 2: read-only, 4 and 8: metadata contexts), then what a client sends during
/// transmission.
fn transmission(bytes: &[u8]) {
    let Some((flags, bytes)) = bytes.split_first() else { return };
    let is_structured = flags & 1 != 0;
    let catalog = catalog();
    let entry = &catalog.entries()[usize::from(flags & 2 != 0)];
    let slot = catalog.connect(entry).expect("it is the first connection");
    let (transport, output) = memory(bytes);
    let contexts = [is_structured && flags & 4 != 0, is_structured && flags & 8 != 0];
    let negotiated = Negotiated { transport, slot, is_structured, contexts };
    // One request at a time needs no other thread.
    let limits = ConnectionLimits { requests: 1, bytes: 0 };
    let log = (Log::none(), String::from("fuzzing"));
    Arc::new(Connection::new(negotiated, Input::new(), limits, Box::new(Alone), log)).serve();
    let output = std::mem::take(&mut *output.lock().unwrap_or_else(PoisonError::into_inner));
    // The data of a simple reply has the length that its request had.
    if is_structured {
        check_replies(&output).expect("the server's replies are valid");
    }
}

/// Bytes that a server sends to a client, as far as the decoders go: replies to options, then replies to requests.
fn replies(bytes: &[u8]) {
    if let Some((header, data)) = bytes.split_first_chunk() {
        let _ = OptionReplyHeader::decode(header).map(|header| OptionReply::decode(header.kind, data).is_ok());
        let _ = OptionHeader::decode(&header[..16].try_into().expect("it has 20 bytes"))
            .map(|header| OptionRequest::decode(header.option, data).is_ok());
    }
    let _ = check_replies(bytes);
}

fn check_replies(mut rest: &[u8]) -> Result<(), wire::Malformed> {
    const TRUNCATED: wire::Malformed = wire::Malformed::new("a truncated reply");
    while let Some(magic) = rest.first_chunk() {
        let (header, behind) = rest.split_at_checked(ReplyHeader::len_of(*magic)?).ok_or(TRUNCATED)?;
        rest = behind;
        if let ReplyHeader::Chunk(header) = ReplyHeader::decode(header)? {
            let (payload, behind) = rest.split_at_checked(header.len as usize).ok_or(TRUNCATED)?;
            ReplyChunk::decode(header.kind, payload)?;
            rest = behind;
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(TRUNCATED) }
}

/// Output of a stream in memory.
type Output = Arc<Mutex<Vec<u8>>>;

/// A stream whose client sends some bytes and nothing else.
fn memory(bytes: &[u8]) -> (Box<dyn Transport>, Output) {
    let output = Output::default();
    (Box::new(Memory { rest: Mutex::new(bytes.to_vec().into()), output: Arc::clone(&output) }), output)
}

#[derive(Debug)]
struct Memory {
    rest: Mutex<std::collections::VecDeque<u8>>,
    output: Output,
}

impl Transport for Memory {
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut *self.rest.lock().unwrap_or_else(PoisonError::into_inner), into)
    }

    fn try_receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive(into).map(Some)
    }

    fn send(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.extend(parts.iter().flat_map(|part| part.iter()));
        Ok(())
    }

    fn limit_waits(&self, _limit: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn end(&self) {}
}

/// A server with one connection.
#[derive(Debug)]
struct Alone;

impl Host for Alone {
    fn is_stopping(&self) -> bool {
        false
    }

    fn cut(&self) {}
}

fn catalog() -> Catalog {
    let named = |name: &str, flags| NamedExport {
        name: String::from(name),
        description: String::from("a volume"),
        export: Arc::new(Volume { flags }),
    };
    let all = export_flag::SEND_FLUSH
        | export_flag::SEND_FUA
        | export_flag::SEND_TRIM
        | export_flag::SEND_WRITE_ZEROES
        | export_flag::SEND_FAST_ZERO
        | export_flag::SEND_CACHE;
    Catalog::new(vec![named("a", all), named("b", all | export_flag::READ_ONLY)], 16)
}

/// A volume that checks what the server promises. Its second half is a hole.
#[derive(Debug)]
struct Volume {
    flags: u16,
}

impl Volume {
    fn check(&self, range: &Range<u64>, is_change: bool) -> Result<(), Errno> {
        assert!(range.start < range.end && range.end <= VOLUME_BYTES, "{range:?}");
        assert!(!is_change || self.flags & export_flag::READ_ONLY == 0, "a change of a read-only export");
        // Errors occur, too.
        if range.start % 11 == 5 { Err(Errno::Io) } else { Ok(()) }
    }
}

impl Export for Volume {
    fn size(&self) -> u64 {
        VOLUME_BYTES
    }

    fn flags(&self) -> u16 {
        self.flags
    }

    fn has_context(&self, _context: Context) -> bool {
        true
    }

    fn finds_holes_quickly(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        into.fill(7);
        self.check(&(offset..offset + into.len() as u64), false)
    }

    fn write(&self, offset: u64, data: &[u8], _fua: Fua) -> Result<(), Errno> {
        self.check(&(offset..offset + data.len() as u64), true)
    }

    fn write_zeroes(&self, range: Range<u64>, _options: ZeroOptions) -> Result<(), Errno> {
        self.check(&range, true)
    }

    fn trim(&self, range: Range<u64>, _fua: Fua) -> Result<(), Errno> {
        self.check(&range, true)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn cache(&self, range: Range<u64>) -> Result<(), Errno> {
        self.check(&range, false)
    }

    fn block_status(&self, range: Range<u64>, _context: Context, extents: &mut StatusExtents) -> Result<(), Errno> {
        self.check(&range, false)?;
        let half = (VOLUME_BYTES / 2).clamp(range.start, range.end);
        if extents.push(half - range.start, 0) {
            extents.push(range.end - half, allocation_flag::HOLE | allocation_flag::ZERO);
        }
        Ok(())
    }
}
