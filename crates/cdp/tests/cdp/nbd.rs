//! The server over sockets, with a client that also breaks rules.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use onefold_cdp::nbd::export::{Context, Export, Fua, StatusExtents, ZeroOptions};
use onefold_cdp::nbd::serve::Limits;
use onefold_cdp::nbd::wire::option::{ContextRequest, InfoRequest, OptionHeader, code};
use onefold_cdp::nbd::wire::option_reply::{self, OptionReply, info, kind};
use onefold_cdp::nbd::wire::reply::{SimpleReply, StatusExtent};
use onefold_cdp::nbd::wire::request::{Request, command, flag};
use onefold_cdp::nbd::wire::{Errno, PAYLOAD_BYTES_MAX, export_flag};

use crate::client::{Answer, Client};
use crate::fixture::{Fixture, wait_for};
use crate::memory::{BLOCK, MemoryExport};

const MIB: usize = 1 << 20;

fn decoded(answers: &[Answer]) -> Vec<OptionReply<'_>> {
    answers.iter().map(|(kind, data)| OptionReply::decode(*kind, data).unwrap()).collect()
}

/// An option, queries for metadata contexts, and the replies before the last one.
type ContextCase<'a> = (u32, &'a [&'a [u8]], Vec<OptionReply<'a>>);

fn contexts(client: &mut Client, option: u32, name: &str, queries: &[&[u8]]) -> Vec<Answer> {
    let mut data = Vec::new();
    ContextRequest::encode(name.as_bytes(), queries, &mut data);
    client.option(option, &data)
}

/// Returns true if the server has closed the connection, after whatever it still sent.
fn is_closed(client: &mut Client) -> bool {
    client.stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rest = Vec::new();
    match client.stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn two_exports() -> Fixture {
    let exports: Vec<(&str, Arc<dyn Export>)> =
        vec![("one", Arc::new(MemoryExport::new(MIB))), ("two", Arc::new(MemoryExport::new(2 * MIB)))];
    Fixture::of(exports, Limits::default())
}

#[test]
fn options_are_answered_and_unknown_ones_do_not_end_the_negotiation() {
    let fixture = two_exports();
    let mut client = Client::connect(&fixture.socket());
    for unknown in [0, 4, 11, 12, u32::MAX] {
        assert_eq!(client.option(unknown, &[7; 1000])[0].0, kind::ERR_UNSUP);
    }
    assert_eq!(client.option(code::STARTTLS, &[])[0].0, kind::ERR_POLICY);
    assert_eq!(client.option(code::LIST, &[1])[0].0, kind::ERR_INVALID);
    let list = client.option(code::LIST, &[]);
    let server = |name| OptionReply::Server { name, description: &list[0].1[7..] };
    assert_eq!(decoded(&list)[0], server(b"one"));
    assert_eq!(list.len(), 3);
    for name in ["", "three", "On"] {
        assert_eq!(client.go(name), Err(kind::ERR_UNKNOWN), "{name}");
    }
    let mut data = Vec::new();
    InfoRequest::encode(b"two", &[info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 99], &mut data);
    let facts = client.option(code::INFO, &data);
    let facts = decoded(&facts);
    assert!(matches!(facts[0], OptionReply::Export { size: 0x20_0000, flags } if flags & export_flag::SEND_DF == 0));
    assert_eq!(facts[1..3], [OptionReply::Name(b"two"), OptionReply::Description(b"two of a test")]);
    let sizes = OptionReply::BlockSize { minimum: 1, preferred: 4096, maximum: PAYLOAD_BYTES_MAX };
    assert_eq!(facts[3..], [sizes, OptionReply::Ack]);
    client.option(code::STRUCTURED_REPLY, &[]);
    client.go("two").unwrap();
    assert_eq!(client.size, 2 << 20);
    assert_ne!(client.flags & export_flag::SEND_DF, 0);
    client.write(0, 5, b"abc").unwrap();
    assert_eq!(client.read(4, 5).unwrap(), b"\0abc\0");
    assert_eq!(fixture.messages()[..], [""; 0]);
}

#[test]
fn an_abort_is_acknowledged_and_ends_the_connection() {
    let fixture = two_exports();
    let mut client = Client::connect(&fixture.socket());
    assert_eq!(client.option(code::ABORT, &[]), [(kind::ACK, Vec::new())]);
    assert!(is_closed(&mut client));
    fixture.wait_until_idle();
    assert_eq!(fixture.messages()[..], [""; 0]);
}

#[test]
fn metadata_contexts_need_structured_replies_and_belong_to_one_export() {
    let fixture = two_exports();
    let mut client = Client::connect(&fixture.socket());
    assert_eq!(contexts(&mut client, code::SET_META_CONTEXT, "one", &[b"base:allocation"])[0].0, kind::ERR_INVALID);
    client.option(code::STRUCTURED_REPLY, &[]);
    let allocation = |id| OptionReply::MetaContext { id, name: b"base:allocation" };
    let dirty = |id| OptionReply::MetaContext { id, name: b"onefold:dirty" };
    let cases: [ContextCase<'_>; 6] = [
        (code::LIST_META_CONTEXT, &[], vec![allocation(0), dirty(0)]),
        (code::LIST_META_CONTEXT, &[b"onefold:"], vec![dirty(0)]),
        (code::LIST_META_CONTEXT, &[b"base", b"x:y", b""], vec![]),
        (code::SET_META_CONTEXT, &[b"base:"], vec![]),
        (code::SET_META_CONTEXT, &[b"onefold:dirty", b"base:allocation"], vec![allocation(1), dirty(2)]),
        (code::SET_META_CONTEXT, &[], vec![]),
    ];
    for (option, queries, expected) in cases {
        let answers = contexts(&mut client, option, "one", queries);
        let mut answers = decoded(&answers);
        assert_eq!(answers.pop(), Some(OptionReply::Ack));
        assert_eq!(answers, expected, "{option} {queries:?}");
    }
    assert_eq!(contexts(&mut client, code::SET_META_CONTEXT, "three", &[])[0].0, kind::ERR_UNKNOWN);
    contexts(&mut client, code::SET_META_CONTEXT, "one", &[b"base:allocation"]);
    client.go("two").unwrap();
    assert_eq!(client.call(command::BLOCK_STATUS, 0, 0, 4096, &[]), Err(Errno::Invalid));
    client.write(0, 0, b"x").unwrap();
}

#[test]
fn extents_of_all_selected_contexts_are_described() {
    let export = Arc::new(MemoryExport::new(4 * BLOCK + 1));
    let fixture = Fixture::one(export);
    let mut client = Client::open(&fixture.socket(), "");
    client.write(0, BLOCK as u64, &[1; 2 * BLOCK]).unwrap();
    client.call(command::WRITE_ZEROES, 0, BLOCK as u64, 4096, &[]).unwrap();
    let extent = |blocks: usize, flags| StatusExtent { len: u32::try_from(blocks * BLOCK).unwrap(), flags };
    let status = client.call(command::BLOCK_STATUS, 0, 0, 4 * 4096 + 1, &[]).unwrap().status;
    let last = |flags| StatusExtent { len: 4096 + 1, flags };
    assert_eq!(status[0], (1, vec![extent(2, 3), extent(1, 0), last(3)]));
    assert_eq!(status[1], (2, vec![extent(1, 0), extent(2, 1), last(0)]));
    let status = client.call(command::BLOCK_STATUS, flag::REQ_ONE, 1, 4096, &[]).unwrap().status;
    assert_eq!(status[0].1, [StatusExtent { len: 4096, flags: 3 }]);
    assert_eq!(status[1].1, [StatusExtent { len: 4095, flags: 0 }]);
}

#[test]
fn long_reads_leave_holes_out_unless_the_client_wants_one_chunk() {
    let fixture = Fixture::one(Arc::new(MemoryExport::new(MIB)));
    let mut client = Client::open(&fixture.socket(), "");
    client.write(0, 3 * 4096, &[7; BLOCK]).unwrap();
    let content = client.call(command::READ, 0, 1, MIB as u32 - 1, &[]).unwrap();
    assert_eq!((content.data.len(), content.hole_bytes), (3, MIB as u64 - 1 - 4096));
    let bytes = content.bytes(1, MIB as u32 - 1);
    assert!((0..).zip(&bytes).all(|(at, byte)| *byte == if (at + 1) / BLOCK == 3 { 7 } else { 0 }));
    let content = client.call(command::READ, flag::DF, 1, MIB as u32 - 1, &[]).unwrap();
    assert_eq!((content.data.len(), content.hole_bytes), (1, 0));
    assert!(content.bytes(1, MIB as u32 - 1) == bytes);
}

#[test]
fn old_clients_get_simple_replies_and_zeros_behind_the_description() {
    let fixture = two_exports();
    for sends_zeros in [false, true] {
        let mut stream = UnixStream::connect(fixture.socket()).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&[0, 0, 0, if sends_zeros { 1 } else { 3 }]).unwrap();
        let mut client = Client { stream, size: 0, flags: 0 };
        client.send_option(code::EXPORT_NAME, b"two");
        let mut reply = [0; option_reply::EXPORT_NAME_REPLY_BYTES];
        client.stream.read_exact(&mut reply).unwrap();
        assert_eq!(option_reply::decode_export_name_reply(&reply).0, 2 << 20);
        let mut zeros = [1; 124];
        if sends_zeros {
            client.stream.read_exact(&mut zeros).unwrap();
            assert_eq!(zeros, [0; 124]);
        }
        client.write(flag::FUA, 0, b"data").unwrap();
        client.send(Request { flags: 0, command: command::READ, cookie: 9, offset: 0, len: 4 }, &[]);
        let mut reply = [0; 20];
        client.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..16], SimpleReply { cookie: 9, error: None }.encode());
        assert_eq!(&reply[16..], b"data");
        client.send(Request { flags: 0, command: command::READ, cookie: 9, offset: u64::MAX, len: 4 }, &[]);
        client.stream.read_exact(&mut reply[..16]).unwrap();
        assert_eq!(reply[..16], SimpleReply { cookie: 9, error: Some(Errno::Invalid) }.encode());
        client.send(Request { flags: 0, command: command::DISC, cookie: 0, offset: 0, len: 0 }, &[]);
        assert!(is_closed(&mut client));
    }
    let mut client = Client::connect(&fixture.socket());
    client.send_option(code::EXPORT_NAME, b"three");
    assert!(is_closed(&mut client));
    assert_eq!(fixture.messages().len(), 1);
}

#[test]
fn refused_requests_are_answered_after_their_payload_and_the_next_one_is_served() {
    let export = Arc::new(MemoryExport::new(MIB));
    let fixture = Fixture::one(export.clone());
    let mut client = Client::open(&fixture.socket(), "volume");
    let long = vec![0x25; PAYLOAD_BYTES_MAX as usize + 1];
    assert_eq!(client.write(0, 0, &long), Err(Errno::Invalid));
    assert_eq!(client.read(0, PAYLOAD_BYTES_MAX + 1), Err(Errno::Overflow));
    assert_eq!(client.write(0, MIB as u64 - 2, b"abc"), Err(Errno::NoSpace));
    assert_eq!(client.read(MIB as u64 - 2, 3), Err(Errno::Invalid));
    assert_eq!(client.write(1 << 9, 0, b"abc"), Err(Errno::Invalid));
    assert_eq!(client.call(command::WRITE_ZEROES, flag::FAST_ZERO, 0, 1, &[]), Err(Errno::Invalid));
    assert_eq!(client.call(99, 0, 0, 1, &[]), Err(Errno::Invalid));
    assert_eq!(client.read(0, 0), Err(Errno::Invalid));
    assert!(export.bytes.lock().unwrap().iter().all(|byte| *byte == 0));
    client.write(0, 0, b"abc").unwrap();
    for command in [command::FLUSH, command::TRIM, command::CACHE, command::WRITE_ZEROES] {
        client.call(command, flag::FUA, 8, u32::from(command != command::FLUSH), &[]).unwrap();
    }
    assert_eq!(client.read(0, 4).unwrap(), b"abc\0");
    assert_eq!(fixture.messages()[..], [""; 0]);
}

#[test]
fn demands_for_durability_and_allocation_reach_the_export() {
    let mut export = MemoryExport::new(MIB);
    export.flags |= export_flag::SEND_FAST_ZERO;
    let export = Arc::new(export);
    let fixture = Fixture::one(export.clone());
    let mut client = Client::open(&fixture.socket(), "");
    for flags in [0, flag::FUA] {
        client.write(flags, 0, b"x").unwrap();
        client.call(command::TRIM, flags, 0, 1, &[]).unwrap();
        for zero in [0, flag::NO_HOLE, flag::FAST_ZERO] {
            client.call(command::WRITE_ZEROES, flags | zero, 0, 1, &[]).unwrap();
        }
    }
    assert_eq!(export.durable.load(Ordering::SeqCst), 5);
    let zero = |fua, allocate, fast| ZeroOptions { fua, allocate, fast };
    let expected = [Fua::No, Fua::Yes]
        .map(|fua| [zero(fua, false, false), zero(fua, true, false), zero(fua, false, true)])
        .concat();
    assert_eq!(*export.zeros.lock().unwrap(), expected);
}

#[test]
fn a_read_only_export_refuses_changes() {
    let mut export = MemoryExport::new(MIB);
    export.flags |= export_flag::READ_ONLY;
    let fixture = Fixture::one(Arc::new(export));
    let mut client = Client::open(&fixture.socket(), "");
    assert_ne!(client.flags & export_flag::READ_ONLY, 0);
    assert_eq!(client.write(0, 0, &vec![1; 100_000]), Err(Errno::NotPermitted));
    for command in [command::TRIM, command::WRITE_ZEROES] {
        assert_eq!(client.call(command, 0, 0, 1, &[]), Err(Errno::NotPermitted));
    }
    assert_eq!(client.read(0, 2).unwrap(), [0, 0]);
}

#[test]
fn nonsense_closes_the_connection_with_one_line_in_the_log() {
    let fixture = two_exports();
    let mut client = Client::open(&fixture.socket(), "one");
    client.stream.write_all(&[0x77; 28]).unwrap();
    assert!(is_closed(&mut client));
    assert!(fixture.messages()[0].ends_with("connection closed: the client sent a request without its magic number"));
    let mut client = Client::connect(&fixture.socket());
    let header = OptionHeader { option: code::LIST, len: 64 << 10 | 1 };
    client.stream.write_all(&header.encode()).unwrap();
    assert!(is_closed(&mut client));
    let mut stream = UnixStream::connect(fixture.socket()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(is_closed(&mut Client { stream, size: 0, flags: 0 }));
    fixture.wait_until_idle();
    let messages = fixture.messages();
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert!(messages[1].ends_with("an option with more than 64 KiB of data"), "{messages:?}");
    assert!(messages[2].ends_with("unknown client flags"), "{messages:?}");
}

#[test]
fn a_write_whose_payload_is_cut_off_changes_nothing() {
    let export = Arc::new(MemoryExport::new(4 * MIB));
    let fixture = Fixture::one(export.clone());
    for sent in [0, 1, 4096, 100_000, MIB - 1] {
        let mut client = Client::open(&fixture.socket(), "");
        let request = Request { flags: 0, command: command::WRITE, cookie: 1, offset: 0, len: MIB as u32 };
        client.send(request, &vec![1; sent]);
        client.stream.shutdown(Shutdown::Both).unwrap();
        drop(client);
        fixture.wait_until_idle();
        assert!(export.bytes.lock().unwrap().iter().all(|byte| *byte == 0), "{sent} bytes were sent");
    }
    assert_eq!(export.most_running.load(Ordering::SeqCst), 0);
}

#[test]
fn requests_of_a_connection_run_at_the_same_time_up_to_a_limit() {
    let mut export = MemoryExport::new(MIB);
    export.is_prompt = false;
    let export = Arc::new(export);
    let limits = Limits { requests: 5, ..Limits::default() };
    let fixture = Fixture::of(vec![("volume", export.clone())], limits);
    let mut client = Client::open(&fixture.socket(), "");
    export.set_open(false);
    for cookie in 0..12 {
        client.send(Request { flags: 0, command: command::FLUSH, cookie, offset: 0, len: 0 }, &[]);
    }
    wait_for("five requests", || export.running.load(Ordering::SeqCst) == 5);
    std::thread::sleep(Duration::from_millis(50));
    export.set_open(true);
    let mut cookies: Vec<u64> = (0..12).map(|_| client.reply()).map(|reply| reply.cookie).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..12).collect::<Vec<_>>());
    assert_eq!(export.most_running.load(Ordering::SeqCst), 5);
}

#[test]
fn payloads_in_flight_are_limited() {
    let mut export = MemoryExport::new(32 * MIB);
    export.is_prompt = false;
    let export = Arc::new(export);
    let limits = Limits { payload_bytes: 0, ..Limits::default() };
    let fixture = Fixture::of(vec![("volume", export.clone())], limits);
    let mut client = Client::open(&fixture.socket(), "");
    export.set_open(false);
    for cookie in 0..6 {
        let request = Request { flags: flag::DF, command: command::READ, cookie, offset: 0, len: 8 << 20 };
        client.send(request, &[]);
    }
    wait_for("four requests", || export.running.load(Ordering::SeqCst) == 4);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(export.most_running.load(Ordering::SeqCst), 4, "32 MiB are the least limit");
    export.set_open(true);
    for _ in 0..6 {
        client.reply().outcome.unwrap();
    }
}

#[test]
fn an_export_that_was_prompt_and_becomes_slow_holds_up_one_request() {
    let export = Arc::new(MemoryExport::new(MIB));
    let fixture = Fixture::one(export.clone());
    let mut client = Client::open(&fixture.socket(), "");
    for _ in 0..3 {
        client.write(0, 0, b"one at a time").unwrap();
    }
    export.set_open(false);
    for cookie in 0..8 {
        client.send(Request { flags: 0, command: command::READ, cookie, offset: 0, len: 4 }, &[]);
    }
    wait_for("a request", || 1 <= export.running.load(Ordering::SeqCst));
    export.set_open(true);
    (0..8).for_each(|_| assert!(client.reply().outcome.is_ok()));
    // Now the connection has seen requests at the same time.
    export.set_open(false);
    for cookie in 0..8 {
        client.send(Request { flags: 0, command: command::READ, cookie, offset: 0, len: 4 }, &[]);
    }
    wait_for("all requests", || 8 == export.running.load(Ordering::SeqCst));
    export.set_open(true);
    (0..8).for_each(|_| assert!(client.reply().outcome.is_ok()));
}

#[test]
fn connections_of_an_export_are_limited_and_one_that_ends_makes_room() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let fixture = Fixture::of(vec![("volume", Arc::new(MemoryExport::new(MIB)))], limits);
    let first = Client::open(&fixture.socket(), "");
    let _second = Client::open(&fixture.socket(), "");
    let mut third = Client::connect(&fixture.socket());
    assert_eq!(third.go("volume"), Err(kind::ERR_POLICY));
    drop(first);
    wait_for("a free connection", || third.go("volume").is_ok());
    wait_for("the end of the first connection", || fixture.server.connections() == 2);
    assert!((2 * 64 * MIB..2 * (64 + 24) * MIB + 32 * MIB).contains(&fixture.server.memory_bytes()));
    let mut many: Vec<Client> = (0..16).map(|_| Client::connect(&fixture.socket())).collect();
    let _greeted = Client::connect(&fixture.socket());
    assert!(is_closed(&mut many[0]), "the one that has negotiated for longest makes room");
}

#[test]
fn stopping_sends_the_replies_of_requests_in_flight_and_closes_every_connection() {
    let mut export = MemoryExport::new(MIB);
    export.is_prompt = false;
    let export = Arc::new(export);
    let mut fixture = Fixture::one(export.clone());
    let mut idle = Client::open(&fixture.socket(), "");
    let mut negotiating = Client::connect(&fixture.socket());
    let mut client = Client::open(&fixture.socket(), "");
    let mut sending = Client::open(&fixture.socket(), "");
    sending.send(Request { flags: 0, command: command::WRITE, cookie: 1, offset: 0, len: 4096 }, &[1; 100]);
    export.set_open(false);
    for cookie in 0..3 {
        let request = Request { flags: 0, command: command::WRITE, cookie, offset: cookie * 4096, len: 4096 };
        client.send(request, &[2; 4096]);
    }
    wait_for("three requests", || export.running.load(Ordering::SeqCst) == 3);
    let socket = fixture.socket();
    std::thread::scope(|scope| {
        let server = &mut fixture.server;
        let stopping = scope.spawn(move || server.stop(Duration::from_mins(1)));
        assert!(is_closed(&mut idle) && is_closed(&mut negotiating) && is_closed(&mut sending));
        assert!(!stopping.is_finished());
        export.set_open(true);
        (0..3).for_each(|_| assert!(client.reply().outcome.is_ok()));
        assert!(is_closed(&mut client));
        stopping.join().unwrap();
    });
    assert!(UnixStream::connect(socket).is_err());
    assert_eq!(fixture.server.connections(), 0);
    let bytes = export.bytes.lock().unwrap();
    assert!(bytes[..3 * 4096].iter().all(|byte| *byte == 2));
}

#[test]
fn stopping_waits_only_so_long_for_a_client_that_takes_no_replies() {
    let mut fixture = Fixture::one(Arc::new(MemoryExport::new(MIB)));
    let mut client = Client::open(&fixture.socket(), "");
    for cookie in 0..20 {
        client.send(Request { flags: flag::DF, command: command::READ, cookie, offset: 0, len: MIB as u32 }, &[]);
    }
    // The first reply does not fit into the buffers of the socket.
    client.stream.read_exact(&mut [0; 4]).unwrap();
    let start = Instant::now();
    fixture.server.stop(Duration::from_millis(200));
    assert!((Duration::from_millis(200)..Duration::from_secs(30)).contains(&start.elapsed()));
    assert_eq!(fixture.server.connections(), 0);
}

/// A volume with a defect.
#[derive(Debug)]
struct Broken;
impl Export for Broken {
    fn size(&self) -> u64 {
        4096
    }
    fn flags(&self) -> u16 {
        export_flag::SEND_FLUSH
    }
    fn has_context(&self, _: Context) -> bool {
        false
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Errno> {
        panic!("a defect that a test expects")
    }
    fn write(&self, _: u64, _: &[u8], _: Fua) -> Result<(), Errno> {
        Ok(())
    }
    fn write_zeroes(&self, _: Range<u64>, _: ZeroOptions) -> Result<(), Errno> {
        Ok(())
    }
    fn trim(&self, _: Range<u64>, _: Fua) -> Result<(), Errno> {
        Ok(())
    }
    fn flush(&self) -> Result<(), Errno> {
        panic!("a defect that a test expects")
    }
    fn cache(&self, _: Range<u64>) -> Result<(), Errno> {
        Ok(())
    }
    fn block_status(&self, _: Range<u64>, _: Context, _: &mut StatusExtents) -> Result<(), Errno> {
        Ok(())
    }
}

#[test]
fn a_panic_of_the_export_ends_one_connection() {
    let fixture = Fixture::one(Arc::new(Broken));
    let mut other = Client::open(&fixture.socket(), "");
    for command in [command::READ, command::FLUSH] {
        let mut client = Client::open(&fixture.socket(), "");
        client.send(Request { flags: 0, command, cookie: 1, offset: 0, len: 1 }, &[]);
        assert!(is_closed(&mut client));
    }
    other.write(0, 0, b"x").unwrap();
    drop(other);
    fixture.wait_until_idle();
}
