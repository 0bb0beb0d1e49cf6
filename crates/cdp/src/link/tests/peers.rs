//! Peers that must be refused, and hostile ones.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use onefold_engine::random::SplitMix64;

use super::world::*;
use crate::journal::{Lsn, Op, Record};
use crate::link::stream::{Incoming, Outgoing};
use crate::link::wire::{Compare, Done, FrameMessage, HEADER_BYTES, Hello, Kind, Message, Welcome, decode_header};
use crate::link::{Codec, FRAME_COST, Peer, WINDOW_BYTES};
use crate::nbd::export::{Export, Fua};
use crate::nbd::transport::{Socket, Transport};
use crate::stored::VolumeSpec;
use crate::volume::ProtectedVolume;

fn hello() -> Hello {
    Hello { group: spec(), codecs: vec![Codec::Off, Codec::Zstd], first: Lsn(1), next: Lsn(100_000) }
}

fn records(list: &[Record<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in list {
        record.encode(&mut bytes);
    }
    bytes
}

fn frame(first: u64, records: u32, bytes: &[u8]) -> Message<'_> {
    Message::Frame(FrameMessage {
        first: Lsn(first),
        time: 1,
        records,
        codec: Codec::Off,
        plain_len: bytes.len(),
        bytes,
    })
}

/// A peer with a good certificate that sends what it wants.
struct Hostile {
    socket: Arc<Socket>,
    transport: Arc<dyn Transport>,
    outgoing: Outgoing,
    incoming: Incoming,
}

impl Hostile {
    fn connect(port: u16) -> Self {
        let peer = Peer { address: format!("127.0.0.1:{port}"), tls: sender_tls("sender", "ca") };
        let (socket, transport) = peer.connect().unwrap();
        let outgoing = Outgoing::new(Arc::clone(&transport), host());
        let incoming = Incoming::new(Arc::clone(&transport)).unwrap();
        Self { socket, transport, outgoing, incoming }
    }

    fn linked(port: u16) -> Self {
        let mut hostile = Self::connect(port);
        hostile.outgoing.send(&Message::Hello(hello())).unwrap();
        assert!(matches!(hostile.incoming.next(), Ok(Message::Welcome(_))));
        hostile
    }

    fn send_bytes(&self, bytes: &[u8]) {
        // The receiver may have cut already.
        let _ = self.transport.send(&mut [std::io::IoSlice::new(bytes)]);
    }

    /// Returns the sentence with which the receiver refuses; acknowledgements may come before.
    #[track_caller]
    fn refusal(mut self) -> String {
        loop {
            match self.incoming.next() {
                Ok(Message::Refused(sentence)) => return sentence.to_owned(),
                Ok(Message::Ack(..) | Message::Ping) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_sender_that_breaks_the_protocol_is_cut_off_with_a_sentence_and_a_line() {
    let (disk, lines) = (new_reception_disk(), Lines::default());
    let receiver = RunningReceiver::sized(&disk, lines.log());
    let port = receiver.address.port();
    let good = records(&[Record::write(0, 0, &[1; 512])]);
    let message = |message: &Message<'_>| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    };
    // Before the greeting, and instead of it.
    for bytes in [
        message(&Message::Ping),
        message(&frame(1, 1, &good)),
        vec![0; 64],
        vec![0xff; 64],
        [vec![4], vec![0xff; 7]].concat(),
    ] {
        let hostile = Hostile::connect(port);
        hostile.send_bytes(&bytes);
        let sentence = hostile.refusal();
        assert!(sentence.contains("no greeting") || sentence.contains("no message"), "{sentence}");
    }
    // After it: what comes is not in order, not sound, or beyond the volumes.
    let beyond = records(&[Record::write(0, VOLUME_BYTES - 4, &[1; 512])]);
    let odd_volume = records(&[Record::range(Op::Zero, 7, 0, 512)]);
    let wrong: [(Vec<u8>, &str); 12] = [
        (message(&frame(2, 1, &good)), "record 1 is the next one"),
        (message(&frame(u64::MAX - 5, 1, &good)), "record 1 is the next one"),
        (message(&frame(1, 2, &[good.clone(), vec![0; 24]].concat())), "not sound"),
        (message(&frame(1, 1, &beyond)), "beyond the end of volume"),
        (message(&frame(1, 1, &odd_volume)), "which is not in the group"),
        (message(&Message::Hello(hello())), "a second greeting"),
        (message(&Message::Ack(Lsn(1), Lsn(1))), "only receivers send"),
        (message(&Message::Done(Done::NothingNew)), "only receivers send"),
        (
            message(&Message::Welcome(Welcome { codec: Codec::Off, durable: Lsn(1), checksum: [0; 16] })),
            "only receivers send",
        ),
        (vec![77; 8], "no message"),
        ([vec![4, 0, 0, 0], u32::MAX.to_le_bytes().to_vec()].concat(), "no message"),
        (
            message(&Message::Frame(FrameMessage {
                first: Lsn(1),
                time: 1,
                records: 1,
                codec: Codec::Zstd,
                plain_len: good.len(),
                bytes: &[7; 30],
            })),
            "do not decompress",
        ),
    ];
    for (bytes, text) in wrong {
        let hostile = Hostile::linked(port);
        hostile.send_bytes(&bytes);
        let sentence = hostile.refusal();
        assert!(sentence.contains(text), "{sentence}");
        lines.wait_for(text);
    }
    assert_eq!(receiver.host.reception.status().last, Lsn(0), "nothing was appended");
}

#[test]
fn questions_at_the_wrong_time_and_messages_that_are_cut_end_a_connection_and_no_other() {
    let (disk, lines) = (new_reception_disk(), Lines::default());
    let receiver = RunningReceiver::sized(&disk, lines.log());
    let port = receiver.address.port();
    let good = records(&[Record::write(0, 0, &[1; 512])]);
    let mut message = Vec::new();
    frame(1, 1, &good).encode(&mut message);
    // A question for bytes that no volume has, and two at a time.
    let compare = Compare { at: Lsn(0), volume: 0, offset: VOLUME_BYTES, len: 4096, key: [0; 32] };
    let hostile = Hostile::linked(port);
    hostile.outgoing.send(&Message::Compare(compare)).unwrap();
    assert!(hostile.refusal().contains("no volume has"));
    let hostile = Hostile::linked(port);
    hostile.outgoing.send(&Message::Checkpoint(Lsn(50))).unwrap();
    hostile.outgoing.send(&Message::Checkpoint(Lsn(50))).unwrap();
    assert!(hostile.refusal().contains("before the last one was answered"));
    // A connection that ends within a message.
    let hostile = Hostile::linked(port);
    hostile.send_bytes(&message[..100]);
    hostile.socket.cut();
    lines.wait_for("ended within a message");
    assert_eq!(receiver.host.reception.status().last, Lsn(0), "nothing was appended");
    // A good sender is served after all that.
    let mut hostile = Hostile::linked(port);
    hostile.outgoing.send(&frame(1, 1, &good)).unwrap();
    assert!(matches!(hostile.incoming.next(), Ok(Message::Ack(Lsn(1), _))));
}

#[test]
fn a_sender_that_sends_more_than_the_window_is_cut_off() {
    let (disk, lines) = (new_reception_disk(), Lines::default());
    let size = crate::journal::JournalSize { segment_bytes: 4 << 20, segments_max: 3 };
    let receiver = RunningReceiver::start(&disk, size, lines.log());
    let hostile = Hostile::linked(receiver.address.port());
    let body = records(&[Record::write(0, 0, &vec![1; 1 << 20])]);
    // The journal takes 8 or 9 of them, and the window 7.
    let most = 9 + WINDOW_BYTES / (body.len() + FRAME_COST) + 2;
    for number in 0..most as u64 {
        if hostile.outgoing.send(&frame(1 + number, 1, &body)).is_err() {
            break;
        }
    }
    assert!(hostile.refusal().contains("than the window allows"));
    drop(receiver);
}

#[test]
fn groups_volumes_and_journals_that_do_not_fit_get_sentences() {
    let (disk, lines) = (new_reception_disk(), Lines::default());
    let receiver = RunningReceiver::sized(&disk, lines.log());
    let port = receiver.address.port();
    let mut hostile = Hostile::linked(port);
    let good = records(&[Record::write(0, 0, &[1; 512]); 9]);
    hostile.outgoing.send(&frame(1, 9, &good)).unwrap();
    assert!(matches!(hostile.incoming.next(), Ok(Message::Ack(Lsn(9), _))));
    drop(hostile);
    let refusal = |hello: Hello| {
        let hostile = Hostile::connect(port);
        hostile.outgoing.send(&Message::Hello(hello)).unwrap();
        hostile.refusal()
    };
    let other = |change: &dyn Fn(&mut Hello)| {
        let mut hello = hello();
        change(&mut hello);
        refusal(hello)
    };
    assert!(other(&|hello| hello.group.id.0[0] ^= 1).contains("another identity"));
    assert!(
        other(&|hello| hello.group.name = "db".into()).contains("receives the group group here, and not your group db")
    );
    assert!(other(&|hello| hello.group.volumes[0].size += 4096).contains("other names or sizes"));
    assert!(
        other(&|hello| hello.group.volumes.push(VolumeSpec { name: "b".into(), size: 4096 })).contains("other names")
    );
    assert!(other(&|hello| hello.next = Lsn(9)).contains("it is an older copy"));
    assert!(other(&|hello| hello.first = Lsn(11)).contains("those between are lost"));
    lines.wait_for("those between are lost");
    // Another version of the protocol.
    let mut bytes = Vec::new();
    Message::Hello(hello()).encode(&mut bytes);
    bytes[HEADER_BYTES + 8] = 2;
    let hostile = Hostile::connect(port);
    hostile.send_bytes(&bytes);
    assert!(hostile.refusal().contains("version 2 of the protocol, and this program knows 1"));
}

#[test]
fn strangers_and_nonsense_do_not_get_through_tls() {
    let (disk, lines) = (new_reception_disk(), Lines::default());
    let receiver = RunningReceiver::sized(&disk, lines.log());
    let mut stream = TcpStream::connect(receiver.address).unwrap();
    stream.write_all(&[0x20; 4000]).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    lines.wait_for("connection closed");
    let address = format!("127.0.0.1:{}", receiver.address.port());
    // A sender with the certificate of another authority, and one that trusts another authority.
    let group = open_group(&new_group_disk());
    for (certificate, authority) in [("stranger", "ca"), ("sender", "other")] {
        let of_sender = Lines::default();
        let tls = sender_tls(certificate, authority);
        let running = RunningSender::with(&group, spec(), (address.clone(), tls), (Codec::Zstd, of_sender.log()));
        of_sender.wait_for("no link to 127.0.0.1");
        let line = of_sender.all().join(" ");
        assert!(line.contains("certificate") || line.contains("UnknownCA"), "{line}");
        drop(running);
    }
    // A receiver that is not the one whose name was given: its certificate has no such name.
    let of_sender = Lines::default();
    let named = (format!("[::1]:{}", receiver.address.port()), sender_tls("sender", "ca"));
    let running = RunningSender::with(&group, spec(), named, (Codec::Zstd, of_sender.log()));
    of_sender.wait_for("no link to [::1]");
    drop(running);
    assert_eq!(receiver.host.reception.status().last, Lsn(0));
}

/// A receiver that answers each greeting with some bytes, and then listens, or ends the connection after an answer that is cut.
fn rogue(answers: Vec<(Vec<u8>, bool)>) -> (u16, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        for (answer, is_cut) in answers {
            let (stream, _) = listener.accept().unwrap();
            let socket = Arc::new(Socket::new(stream.into()));
            let transport: Arc<dyn Transport> = Arc::from(receiver_tls().start(Box::new(Arc::clone(&socket))).unwrap());
            let mut incoming = Incoming::new(Arc::clone(&transport)).unwrap();
            assert!(matches!(incoming.next(), Ok(Message::Hello(_))));
            let _ = transport.send(&mut [std::io::IoSlice::new(&answer)]);
            while !is_cut && incoming.next().is_ok() {}
            socket.cut();
        }
    });
    (port, thread)
}

#[test]
fn a_receiver_that_breaks_the_protocol_is_left_with_a_line() {
    let message = |message: Message<'_>| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    };
    let welcome =
        |durable: u64, codec| message(Message::Welcome(Welcome { codec, durable: Lsn(durable), checksum: [1; 16] }));
    let good = welcome(0, Codec::Zstd);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (message(Message::Ping), "its first message is no welcome"),
        (vec![3, 0, 0, 0, 9, 0, 0, 0, 1, 2], "ended within a message"),
        (vec![9; 20], "no message"),
        (message(Message::Refused("not today")), "refuses: not today"),
        (welcome(0, Codec::Lzjb), "a codec that was not offered"),
        (welcome(70, Codec::Zstd), "it is an older copy"),
        (welcome(1, Codec::Zstd), "is not the one of this journal"),
        ([good.clone(), message(Message::Ack(Lsn(99), Lsn(0)))].concat(), "it acknowledges record 99"),
        ([good.clone(), message(Message::Checkpoint(Lsn(1)))].concat(), "only senders send"),
        ([good, vec![0xee; 9]].concat(), "no message"),
    ];
    let group = open_group(&new_group_disk());
    let volume = ProtectedVolume::new(group.clone(), 0);
    volume.write(0, &[5; 4096], Fua::No).unwrap();
    volume.flush().unwrap();
    let (port, thread) = rogue(cases.iter().map(|(bytes, text)| (bytes.clone(), text.contains("within"))).collect());
    let lines = Lines::default();
    let running = RunningSender::start(&group, port, Codec::Zstd, lines.log());
    thread.join().unwrap();
    for (_, text) in &cases {
        lines.wait_for(text);
    }
    drop(running);
    assert_eq!(group.journal().status().first, Lsn(1), "nothing was given back");
}

#[test]
fn a_newer_connection_of_the_same_group_takes_over() {
    let (disk, lines) = (new_reception_disk(), Lines::default());
    let receiver = RunningReceiver::sized(&disk, lines.log());
    let port = receiver.address.port();
    let mut first = Hostile::linked(port);
    let mut second = Hostile::linked(port);
    assert!(first.incoming.next().is_err());
    let good = records(&[Record::write(0, 0, &[1; 512])]);
    second.outgoing.send(&frame(1, 1, &good)).unwrap();
    assert!(matches!(second.incoming.next(), Ok(Message::Ack(Lsn(1), _))));
    assert!(receiver.host.reception.status().is_connected);
    drop(second);
    wait_for("the end", || !receiver.host.reception.status().is_connected, || format!("{:?}", lines.all()));
    std::thread::sleep(Duration::from_millis(1));
}

#[test]
fn connections_that_say_nothing_keep_no_sender_out() {
    let (disk, lines) = (new_reception_disk(), Lines::default());
    let receiver = RunningReceiver::sized(&disk, lines.log());
    let port = receiver.address.port();
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(receiver.address).unwrap()).collect();
    drop(Hostile::linked(port));
    drop(idle);
}

#[test]
fn lengths_of_messages_are_limited_before_anything_is_allocated() {
    for code in 0..=u8::MAX {
        let header = |len: u32| [&[code, 0, 0, 0][..], &len.to_le_bytes()].concat().try_into().unwrap();
        if let Ok((kind, _)) = decode_header(header(0)) {
            let most = (0..23).map(|bit| 1_u32 << bit).take_while(|len| decode_header(header(*len)).is_ok()).last();
            assert!(most.unwrap_or(0) <= 1 << 20 && (most.is_some() || kind == Kind::Ping), "{kind:?}");
        }
        assert!(decode_header(header(2 << 20)).is_err());
    }
}

#[test]
fn no_mixture_of_messages_and_damage_harms_a_receiver() {
    let seed = std::env::var("ONEFOLD_SEED").map_or_else(|_| std::process::id().into(), |text| text.parse().unwrap());
    println!("ONEFOLD_SEED={seed}");
    let (disk, lines) = (new_reception_disk(), Lines::default());
    let receiver = RunningReceiver::sized(&disk, lines.log());
    let port = receiver.address.port();
    let mut random = SplitMix64::new(seed);
    let (mut appended, mut refused) = (0, 0);
    for _ in 0..150 {
        let mut hostile = Hostile::linked(port);
        let mut next = receiver.host.reception.status().durable.0 + 1;
        for _ in 0..=random.index(6) {
            let count = 1 + random.index(3);
            let body = records(&vec![Record::write(0, random.index(4000) as u64 * 200, &[7; 300]); count]);
            let message = match random.index(8) {
                0 => Message::Ping,
                1 => Message::Checkpoint(Lsn(random.index(40) as u64)),
                2 => Message::Compare(Compare { at: Lsn(next - 1), volume: 0, offset: 4096, len: 8192, key: [1; 32] }),
                _ => frame(next, u32::try_from(count).unwrap(), &body),
            };
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            next += if matches!(message, Message::Frame(_)) { count as u64 } else { 0 };
            if random.index(4) == 0 {
                // Not in a length: the receiver would wait for the rest.
                let at = [0, 1, 8 + random.index(bytes.len().saturating_sub(8).max(1))][random.index(3)];
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.index(8);
                }
            }
            hostile.send_bytes(&bytes);
        }
        // Whatever it was, the receiver answers within the rules or closes.
        let _ = hostile.outgoing.send(&Message::Hello(hello()));
        loop {
            match hostile.incoming.next() {
                Ok(Message::Refused(_)) => refused += 1,
                Ok(Message::Ack(..) | Message::Ping | Message::Done(_) | Message::Fingerprints(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(_) => break,
            }
        }
    }
    let mut hostile = Hostile::linked(port);
    let next = receiver.host.reception.status().durable.0 + 1;
    hostile.outgoing.send(&frame(next, 1, &records(&[Record::mark("end")]))).unwrap();
    assert!(matches!(hostile.incoming.next(), Ok(Message::Ack(Lsn(last), _)) if last == next));
    let mut frames = receiver.host.reception.journal().frames(Lsn(1));
    while frames
        .next_frame(&mut |entry| {
            appended += 1;
            assert_eq!(entry.lsn, Lsn(appended));
            Ok(())
        })
        .unwrap()
    {}
    assert_eq!(appended, next);
    println!("{appended} records were appended, {refused} of 150 connections were refused");
    assert!(100 < appended && 20 < refused);
}
