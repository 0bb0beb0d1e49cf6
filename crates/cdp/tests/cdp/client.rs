//! A client of the protocol, made for tests: it sends whatever a test wants.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use onefold_cdp::nbd::wire::option::{ContextRequest, InfoRequest, OptionHeader, code};
use onefold_cdp::nbd::wire::option_reply::{self, OptionReply, OptionReplyHeader};
use onefold_cdp::nbd::wire::reply::{self, ReplyChunk, ReplyHeader, StatusExtent};
use onefold_cdp::nbd::wire::request::{Request, command};
use onefold_cdp::nbd::wire::{self, Errno, handshake_flag};

/// A connection, with what it negotiated.
pub(crate) struct Client<S = UnixStream> {
    pub(crate) stream: S,
    pub(crate) size: u64,
    pub(crate) flags: u16,
}

/// A reply to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) outcome: Result<Content, Errno>,
}

/// The content of the chunks of a successful reply.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// Data by offset; a hole is zeros.
    pub(crate) data: Vec<(u64, Vec<u8>)>,
    /// Bytes of holes among the data.
    pub(crate) hole_bytes: u64,
    /// Extents by the number of their context.
    pub(crate) status: Vec<(u32, Vec<StatusExtent>)>,
}

/// A reply to an option: its type and its data.
pub(crate) type Answer = (u32, Vec<u8>);

impl Client<UnixStream> {
    /// Connects without negotiating anything.
    pub(crate) fn connect(socket: &Path) -> Self {
        Self::greet(UnixStream::connect(socket).unwrap())
    }

    /// Connects to an export with structured replies and all of its metadata contexts.
    pub(crate) fn open(socket: &Path, name: &str) -> Self {
        let mut client = Self::connect(socket);
        assert_eq!(client.option(code::STRUCTURED_REPLY, &[]), [(option_reply::kind::ACK, Vec::new())]);
        let mut data = Vec::new();
        ContextRequest::encode(name.as_bytes(), &[b"base:allocation", b"onefold:dirty"], &mut data);
        client.option(code::SET_META_CONTEXT, &data);
        client.go(name).unwrap();
        client
    }
}

impl<S: Read + Write> Client<S> {
    /// Answers the greeting of the server.
    pub(crate) fn greet(mut stream: S) -> Self {
        let mut greeting = [0; wire::GREETING_BYTES];
        stream.read_exact(&mut greeting).unwrap();
        let flags = wire::decode_greeting(&greeting).unwrap();
        assert_eq!(flags, handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        stream.write_all(&wire::encode_client_flags(flags)).unwrap();
        Self { stream, size: 0, flags: 0 }
    }

    pub(crate) fn send_option(&mut self, option: u32, data: &[u8]) {
        let header = OptionHeader { option, len: u32::try_from(data.len()).unwrap() };
        self.stream.write_all(&[&header.encode(), data].concat()).unwrap();
    }

    /// Sends an option and returns all replies to it.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Vec<Answer> {
        self.send_option(option, data);
        self.answers(option)
    }

    /// Returns all replies to an option.
    pub(crate) fn answers(&mut self, option: u32) -> Vec<Answer> {
        let mut answers = Vec::new();
        loop {
            let mut header = [0; option_reply::HEADER_BYTES];
            self.stream.read_exact(&mut header).unwrap();
            let header = OptionReplyHeader::decode(&header).unwrap();
            assert_eq!(header.option, option);
            let mut data = vec![0; header.len as usize];
            self.stream.read_exact(&mut data).unwrap();
            OptionReply::decode(header.kind, &data).unwrap();
            answers.push((header.kind, data));
            if header.kind == option_reply::kind::ACK || header.kind & option_reply::kind::ERROR != 0 {
                return answers;
            }
        }
    }

    /// Enters transmission; returns the type of the error if the server refuses.
    pub(crate) fn go(&mut self, name: &str) -> Result<(), u32> {
        let mut data = Vec::new();
        InfoRequest::encode(name.as_bytes(), &[option_reply::info::BLOCK_SIZE], &mut data);
        for (kind, data) in self.option(code::GO, &data) {
            match OptionReply::decode(kind, &data).unwrap() {
                OptionReply::Export { size, flags } => (self.size, self.flags) = (size, flags),
                OptionReply::Error { kind, .. } => return Err(kind),
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends a request without waiting for its reply.
    pub(crate) fn send(&mut self, request: Request, payload: &[u8]) {
        self.stream.write_all(&[&request.encode(), payload].concat()).unwrap();
    }

    /// Sends a request and waits for the reply.
    pub(crate) fn call(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        len: u32,
        payload: &[u8],
    ) -> Result<Content, Errno> {
        self.send(Request { flags, command, cookie: 77, offset, len }, payload);
        let reply = self.reply();
        assert_eq!(reply.cookie, 77);
        reply.outcome
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, payload: &[u8]) -> Result<(), Errno> {
        let len = u32::try_from(payload.len()).unwrap();
        self.call(command::WRITE, flags, offset, len, payload).map(|_| ())
    }

    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, Errno> {
        self.call(command::READ, 0, offset, len, &[]).map(|content| content.bytes(offset, len))
    }

    /// Receives one whole structured reply, or a simple one without data.
    pub(crate) fn reply(&mut self) -> Reply {
        let (mut content, mut error) = (Content::default(), None);
        loop {
            let mut message = vec![0; 4];
            self.stream.read_exact(&mut message).unwrap();
            let len = ReplyHeader::len_of(*message.first_chunk().unwrap()).unwrap();
            message.resize(len, 0);
            self.stream.read_exact(&mut message[4..]).unwrap();
            let header = match ReplyHeader::decode(&message).unwrap() {
                ReplyHeader::Simple(simple) => {
                    let outcome = simple.error.map_or(Ok(content), Err);
                    return Reply { cookie: simple.cookie, outcome };
                }
                ReplyHeader::Chunk(header) => header,
            };
            let mut payload = vec![0; header.len as usize];
            self.stream.read_exact(&mut payload).unwrap();
            match ReplyChunk::decode(header.kind, &payload).unwrap() {
                ReplyChunk::None => {}
                ReplyChunk::Data { offset, data } => content.data.push((offset, data.to_vec())),
                ReplyChunk::Hole { offset, len } => {
                    content.data.push((offset, vec![0; len as usize]));
                    content.hole_bytes += u64::from(len);
                }
                ReplyChunk::BlockStatus { context, extents } => {
                    content.status.push((context, reply::extents_of(extents).collect()));
                }
                ReplyChunk::Error { error: found, .. } => error = Some(found),
                ReplyChunk::OtherError => panic!("an unknown error"),
            }
            if header.is_last() {
                return Reply { cookie: header.cookie, outcome: error.map_or(Ok(content), Err) };
            }
        }
    }
}

impl Content {
    /// The data of a read, which the chunks must describe once.
    pub(crate) fn bytes(mut self, offset: u64, len: u32) -> Vec<u8> {
        self.data.sort();
        let mut bytes = Vec::new();
        for (at, data) in self.data {
            assert_eq!(at, offset + bytes.len() as u64);
            bytes.extend(data);
        }
        assert_eq!(bytes.len(), len as usize);
        bytes
    }
}
