use proptest::prelude::*;

use super::option::{ContextRequest, InfoRequest, OptionHeader, OptionRequest, code};
use super::option_reply::{self, OptionReply, OptionReplyHeader};
use super::reply::{self, ChunkHeader, ReplyChunk, ReplyHeader, SimpleReply, StatusExtent};
use super::request::{Request, command, flag};
use super::*;

/// Bytes from hexadecimal digits; spaces are ignored.
fn hex(digits: &str) -> Vec<u8> {
    let digits: String = digits.split(' ').collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn array<const N: usize>(digits: &str) -> [u8; N] {
    hex(digits).try_into().unwrap()
}

#[test]
fn the_greeting_and_the_client_flags_have_the_bytes_of_the_protocol() {
    let greeting = array("4e42444d41474943 49484156454f5054 0003");
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    assert_eq!((encode_greeting(flags), decode_greeting(&greeting)), (greeting, Ok(flags)));
    assert!(decode_greeting(&array("4e42444d41474943 00420281861253 000003")).is_err(), "oldstyle");
    assert_eq!(encode_client_flags(flags), [0, 0, 0, 3]);
    assert_eq!(decode_client_flags([0, 0, 0, 1]), Ok(1));
    assert!(decode_client_flags([0, 0, 0, 4]).is_err());
    assert!(decode_client_flags([1, 0, 0, 1]).is_err());
}

#[test]
fn an_option_has_the_bytes_of_the_protocol() {
    let header = array("49484156454f5054 00000007 0000000c");
    let decoded = OptionHeader { option: code::GO, len: 12 };
    assert_eq!((decoded.encode(), OptionHeader::decode(&header)), (header, Ok(decoded)));
    assert!(OptionHeader::decode(&array("49484156454f5055 00000007 0000000c")).is_err());
    assert!(OptionHeader::decode(&array("49484156454f5054 00000007 00010000")).is_ok());
    assert!(OptionHeader::decode(&array("49484156454f5054 00000007 00010001")).is_err());

    let data = hex("00000003 766f6c 0002 0003 0001");
    let Ok(OptionRequest::Go(request)) = OptionRequest::decode(code::GO, &data) else { panic!("not GO") };
    assert_eq!((request.name, request.wanted().collect::<Vec<_>>()), (&b"vol"[..], vec![3, 1]));
    for len in 0..data.len() {
        assert!(OptionRequest::decode(code::GO, &data[..len]).is_err(), "{len} bytes");
    }
    assert!(OptionRequest::decode(code::INFO, &[&data[..], &[0]].concat()).is_err());

    let data = hex("00000001 61 00000002 00000005 626173653a 00000000");
    let decoded = OptionRequest::decode(code::LIST_META_CONTEXT, &data);
    let Ok(OptionRequest::ListMetaContext(request)) = decoded else { panic!("not LIST_META_CONTEXT") };
    assert_eq!((request.name, request.count), (&b"a"[..], 2));
    assert_eq!(request.queries().collect::<Vec<_>>(), [&b"base:"[..], b""]);
    for len in 0..data.len() {
        assert!(OptionRequest::decode(code::SET_META_CONTEXT, &data[..len]).is_err(), "{len} bytes");
    }
    let many = hex("00000000 ffffffff 00000000");
    assert!(OptionRequest::decode(code::SET_META_CONTEXT, &many).is_err());
    let long = hex("00000000 00000001 ffffffff");
    assert!(OptionRequest::decode(code::SET_META_CONTEXT, &long).is_err());
}

#[test]
fn names_have_4096_bytes_at_most_and_some_options_no_data() {
    let name = vec![b'n'; NAME_BYTES_MAX + 1];
    assert!(OptionRequest::decode(code::EXPORT_NAME, &name).is_err());
    assert_eq!(OptionRequest::decode(code::EXPORT_NAME, &name[1..]), Ok(OptionRequest::ExportName(&name[1..])));
    for (name, accepted) in [(&name[..], false), (&name[1..], true)] {
        let (mut info, mut contexts, mut query) = (Vec::new(), Vec::new(), Vec::new());
        InfoRequest::encode(name, &[], &mut info);
        ContextRequest::encode(name, &[], &mut contexts);
        ContextRequest::encode(b"", &[name], &mut query);
        assert_eq!(OptionRequest::decode(code::GO, &info).is_ok(), accepted);
        assert_eq!(OptionRequest::decode(code::SET_META_CONTEXT, &contexts).is_ok(), accepted);
        assert_eq!(OptionRequest::decode(code::SET_META_CONTEXT, &query).is_ok(), accepted);
    }
    for option in [code::LIST, code::STARTTLS, code::STRUCTURED_REPLY] {
        assert!(OptionRequest::decode(option, &[]).is_ok());
        assert!(OptionRequest::decode(option, &[0]).is_err());
    }
    assert_eq!(OptionRequest::decode(code::ABORT, &[0]), Ok(OptionRequest::Abort));
    for unknown in [0, 4, 11, u32::MAX] {
        assert_eq!(OptionRequest::decode(unknown, &[1, 2]), Ok(OptionRequest::Unknown));
    }
}

#[test]
fn a_reply_to_an_option_has_the_bytes_of_the_protocol() {
    let cases = [
        (OptionReply::Ack, "00000001 00000000"),
        (OptionReply::Server { name: b"a", description: b"" }, "00000002 00000005 00000001 61"),
        (OptionReply::Export { size: 0x1000, flags: 0x0bed }, "00000003 0000000c 0000 0000000000001000 0bed"),
        (OptionReply::Name(b"a"), "00000003 00000003 0001 61"),
        (OptionReply::Description(b"d"), "00000003 00000003 0002 64"),
        (
            OptionReply::BlockSize { minimum: 1, preferred: 4096, maximum: PAYLOAD_BYTES_MAX },
            "00000003 0000000e 0003 00000001 00001000 02000000",
        ),
        (OptionReply::MetaContext { id: 2, name: b"x:y" }, "00000004 00000007 00000002 783a79"),
        (OptionReply::Error { kind: option_reply::kind::ERR_TLS_REQD, message: b"" }, "80000005 00000000"),
    ];
    for (reply, digits) in cases {
        let expected = hex(&format!("0003e889045565a9 00000007 {digits}"));
        let mut message = Vec::new();
        reply.encode(code::GO, &mut message);
        assert_eq!(message, expected, "{reply:?}");
        let (header, data) = message.split_first_chunk().unwrap();
        let header = OptionReplyHeader::decode(header).unwrap();
        assert_eq!((header.option, header.len as usize), (code::GO, data.len()));
        assert_eq!(OptionReply::decode(header.kind, data), Ok(reply));
    }
    let reply = option_reply::encode_export_name_reply(0x0102, 0x0304);
    assert_eq!(reply, [0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    assert_eq!(option_reply::decode_export_name_reply(&reply), (0x0102, 0x0304));
}

#[test]
fn a_request_has_the_bytes_of_the_protocol() {
    let message = array("25609513 0001 0001 0102030405060708 0000000000001000 00000200");
    let request =
        Request { flags: flag::FUA, command: command::WRITE, cookie: 0x0102_0304_0506_0708, offset: 4096, len: 512 };
    assert_eq!((request.encode(), Request::decode(&message)), (message, Ok(request)));
    assert_eq!(request.payload_len(), 512);
    assert_eq!(Request { command: command::READ, ..request }.payload_len(), 0);
    assert!(request.has(flag::FUA) && !request.has(flag::FUA | flag::DF));
    let mut other = message;
    other[3] = 0x14;
    assert!(Request::decode(&other).is_err());
}

#[test]
fn replies_have_the_bytes_of_the_protocol() {
    let simple = SimpleReply { cookie: 9, error: Some(Errno::NoSpace) };
    let message = hex("67446698 0000001c 0000000000000009");
    assert_eq!(simple.encode()[..], message);
    assert_eq!(ReplyHeader::decode(&message), Ok(ReplyHeader::Simple(simple)));

    let extents = [StatusExtent { len: 4096, flags: 3 }, StatusExtent { len: 1, flags: 0 }];
    let encoded = extents.map(reply::encode_extent).concat();
    let cases = [
        (ReplyChunk::None, "0000 0000000000000009 00000000"),
        (ReplyChunk::Data { offset: 1, data: b"ab" }, "0001 0000000000000009 0000000a 0000000000000001 6162"),
        (ReplyChunk::Hole { offset: 1, len: 2 }, "0002 0000000000000009 0000000c 0000000000000001 00000002"),
        (
            ReplyChunk::BlockStatus { context: 1, extents: &encoded },
            "0005 0000000000000009 00000014 00000001 00001000 00000003 00000001 00000000",
        ),
        (
            ReplyChunk::Error { error: Errno::Io, message: b"x", offset: None },
            "8001 0000000000000009 00000007 00000005 0001 78",
        ),
        (
            ReplyChunk::Error { error: Errno::Io, message: b"", offset: Some(7) },
            "8002 0000000000000009 0000000e 00000005 0000 0000000000000007",
        ),
    ];
    for (chunk, digits) in cases {
        let mut message = Vec::new();
        chunk.encode(reply::chunk_flag::DONE, 9, &mut message);
        assert_eq!(message, hex(&format!("668e33ef 0001 {digits}")), "{chunk:?}");
        let (header, payload) = message.split_at(ReplyHeader::len_of(*message.first_chunk().unwrap()).unwrap());
        let Ok(ReplyHeader::Chunk(header)) = ReplyHeader::decode(header) else { panic!("not a chunk") };
        assert!(header.is_last() && header.len as usize == payload.len());
        assert_eq!(ReplyChunk::decode(header.kind, payload), Ok(chunk));
    }
    assert_eq!(reply::extents_of(&encoded).collect::<Vec<_>>(), extents);
}

#[test]
fn malformed_chunks_are_refused() {
    let cases = [
        (reply::kind::NONE, "00"),
        (reply::kind::OFFSET_DATA, "0000000000000001"),
        (reply::kind::OFFSET_HOLE, "0000000000000001 00000000"),
        (reply::kind::OFFSET_HOLE, "0000000000000001 00000001 00"),
        (reply::kind::BLOCK_STATUS, "00000001"),
        (reply::kind::BLOCK_STATUS, "00000001 00000001 000000"),
        (reply::kind::BLOCK_STATUS, "00000001 00000000 00000000"),
        (reply::kind::ERROR, "00000000 0000"),
        (reply::kind::ERROR, "00000005 0002 78"),
        (reply::kind::ERROR_OFFSET, "00000005 0000 00000000"),
        (7, ""),
    ];
    for (kind, digits) in cases {
        assert!(ReplyChunk::decode(kind, &hex(digits)).is_err(), "{kind}: {digits}");
    }
    assert_eq!(ReplyChunk::decode(0x8009, b"abc"), Ok(ReplyChunk::OtherError));
    let long = ChunkHeader { flags: 1, kind: 1, cookie: 0, len: reply::CHUNK_BYTES_MAX + 1 };
    assert!(ReplyHeader::decode(&long.encode()).is_err());
}

#[test]
fn error_numbers_are_those_of_the_protocol_and_unknown_ones_count_as_invalid() {
    let codes = Errno::ALL.map(Errno::code);
    assert_eq!(codes, [1, 5, 12, 22, 28, 75, 95, 108]);
    assert_eq!(codes.map(Errno::of_code), Errno::ALL);
    assert_eq!(Errno::of_code(11), Errno::Invalid);
}

proptest! {
    #[test]
    fn a_request_survives_its_encoding(
        flags: u16, command: u16, cookie: u64, offset: u64, len: u32,
    ) {
        let request = Request { flags, command, cookie, offset, len };
        prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
    }

    #[test]
    fn options_survive_their_encoding(
        name in prop::collection::vec(any::<u8>(), 0..100),
        wanted in prop::collection::vec(any::<u16>(), 0..20),
        queries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20),
    ) {
        let mut data = Vec::new();
        InfoRequest::encode(&name, &wanted, &mut data);
        let Ok(OptionRequest::Info(request)) = OptionRequest::decode(code::INFO, &data) else { panic!("not INFO") };
        prop_assert_eq!((request.name, request.wanted().collect::<Vec<_>>()), (&name[..], wanted));
        let mut data = Vec::new();
        let slices: Vec<&[u8]> = queries.iter().map(Vec::as_slice).collect();
        ContextRequest::encode(&name, &slices, &mut data);
        let decoded = OptionRequest::decode(code::SET_META_CONTEXT, &data);
        let Ok(OptionRequest::SetMetaContext(request)) = decoded else { panic!("not SET_META_CONTEXT") };
        prop_assert_eq!((request.name, request.queries().collect::<Vec<_>>()), (&name[..], slices));
    }

    #[test]
    fn chunks_survive_their_encoding(
        offset: u64, data in prop::collection::vec(any::<u8>(), 1..100), len in 1..u32::MAX, errno in 0..8_usize,
        extents in prop::collection::vec((1..u32::MAX, any::<u32>()), 1..20), context: u32, with_offset: bool,
    ) {
        let extents: Vec<u8> =
            extents.iter().flat_map(|(len, flags)| reply::encode_extent(StatusExtent { len: *len, flags: *flags })).collect();
        let error = Errno::ALL[errno];
        for chunk in [
            ReplyChunk::Data { offset, data: &data },
            ReplyChunk::Hole { offset, len },
            ReplyChunk::BlockStatus { context, extents: &extents },
            ReplyChunk::Error { error, message: &data, offset: with_offset.then_some(offset) },
        ] {
            let mut message = Vec::new();
            chunk.encode(0, 1, &mut message);
            let (header, payload) = message.split_at(reply::CHUNK_HEADER_BYTES);
            let Ok(ReplyHeader::Chunk(header)) = ReplyHeader::decode(header) else { panic!("not a chunk") };
            prop_assert_eq!(ReplyChunk::decode(header.kind, payload), Ok(chunk));
        }
    }

    #[test]
    fn whatever_decodes_encodes_to_the_same_bytes(
        option in 0..12_u32, kind in 0..6_u32, chunk in 0..8_u16, is_error: bool,
        bytes in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(4), any::<u8>()], 0..64),
    ) {
        match OptionRequest::decode(option, &bytes) {
            Ok(OptionRequest::Info(request) | OptionRequest::Go(request)) => {
                let mut data = Vec::new();
                InfoRequest::encode(request.name, &request.wanted().collect::<Vec<_>>(), &mut data);
                prop_assert_eq!(&data, &bytes);
            }
            Ok(OptionRequest::ListMetaContext(request) | OptionRequest::SetMetaContext(request)) => {
                let mut data = Vec::new();
                ContextRequest::encode(request.name, &request.queries().collect::<Vec<_>>(), &mut data);
                prop_assert_eq!(&data, &bytes);
            }
            _ => {}
        }
        let kind = if is_error { option_reply::kind::ERROR + kind } else { kind };
        match OptionReply::decode(kind, &bytes) {
            Ok(OptionReply::OtherInfo(_)) | Err(_) => {}
            Ok(reply) => {
                let mut message = Vec::new();
                reply.encode(1, &mut message);
                prop_assert_eq!(&message[option_reply::HEADER_BYTES..], &bytes);
            }
        }
        let kind = if is_error { reply::kind::ERROR_BIT + chunk } else { chunk };
        match ReplyChunk::decode(kind, &bytes) {
            // Error numbers that the protocol does not define become EINVAL.
            Ok(ReplyChunk::OtherError | ReplyChunk::Error { .. }) | Err(_) => {}
            Ok(reply) => {
                let mut message = Vec::new();
                reply.encode(0, 1, &mut message);
                prop_assert_eq!(&message[reply::CHUNK_HEADER_BYTES..], &bytes);
            }
        }
    }
}
