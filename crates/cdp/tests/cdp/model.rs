//! Random requests over several connections, compared with a map of bytes.

use std::sync::Arc;
use std::thread;

use onefold_cdp::log::Log;
use onefold_cdp::nbd::export::Export;
use onefold_cdp::nbd::file::{Access, FileExport};
use onefold_cdp::nbd::wire::Errno;
use onefold_cdp::nbd::wire::request::{Request, command, flag};

use crate::client::Client;
use crate::fixture::Fixture;
use crate::memory::MemoryExport;

/// Bytes of the volume for each connection. Each writes its own part, so that the order of writes is known.
const PART: usize = 2 << 20;
const CONNECTIONS: u64 = 4;

/// Requests of all connections, unless `ONEFOLD_NBD_REQUESTS` states another number.
const REQUESTS: u64 = 8000;

/// Most requests in flight.
const DEPTH: u64 = 8;

/// Numbers of the generator `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Mostly short lengths, some long ones.
    fn len(&mut self) -> usize {
        let limit = [64, 4096, 20_000, 300_000][self.below(4)];
        1 + self.below(limit)
    }
}

/// Effect of a request in flight on the model, or the bytes that it must return.
enum Expected {
    Nothing,
    Bytes(u64, Vec<u8>),
    Error(Errno),
    /// Extents that describe so many bytes.
    Extents(u32),
}

/// One client, which knows each byte of its part.
struct Actor {
    client: Client,
    socket: std::path::PathBuf,
    random: Random,
    base: u64,
    model: Vec<u8>,
}

impl Actor {
    /// Sends some requests at once, and compares all replies.
    fn burst(&mut self) -> u64 {
        let count = 1 + self.random.next() % DEPTH;
        let mut expected = Vec::new();
        // Requests in flight are executed in any order: their ranges must not overlap.
        let share = PART / DEPTH as usize;
        for cookie in 0..count {
            let start = cookie as usize * share;
            let len = self.random.len().min(share / 2);
            let at = start + self.random.below(share - len);
            expected.push(self.send(cookie, at, len));
        }
        for _ in 0..count {
            let reply = self.client.reply();
            let wanted = std::mem::replace(&mut expected[reply.cookie as usize], Expected::Error(Errno::Shutdown));
            match (wanted, reply.outcome) {
                (Expected::Nothing, Ok(content)) => assert!(content.data.is_empty()),
                (Expected::Bytes(offset, bytes), Ok(content)) => {
                    assert!(content.bytes(offset, bytes.len() as u32) == bytes, "bytes at {offset}");
                }
                (Expected::Extents(len), Ok(content)) => {
                    let described: u32 = content.status[0].1.iter().map(|extent| extent.len).sum();
                    assert!((1..=len).contains(&described));
                }
                (Expected::Error(error), Err(found)) => assert_eq!(error, found),
                (_, outcome) => panic!("an unexpected reply: {:?}", outcome.err()),
            }
        }
        count
    }

    fn send(&mut self, cookie: u64, at: usize, len: usize) -> Expected {
        let offset = self.base + at as u64;
        let range = at..at + len;
        let fua = if self.random.below(20) == 0 { flag::FUA } else { 0 };
        let kind = self.random.below(16);
        let mut payload = Vec::new();
        let (command, flags, expected) = match kind {
            0..=5 => {
                payload = vec![0; len];
                let seed = self.random.next();
                (0..).zip(&mut payload).for_each(|(at, byte)| *byte = ((seed >> (at % 57)) ^ at) as u8);
                self.model[range].copy_from_slice(&payload);
                (command::WRITE, fua, Expected::Nothing)
            }
            6..=10 => {
                let flags = if self.random.below(2) == 0 { flag::DF } else { 0 };
                (command::READ, flags, Expected::Bytes(offset, self.model[range].to_vec()))
            }
            11 => {
                self.model[range].fill(0);
                let flags = if self.random.below(2) == 0 { flag::NO_HOLE } else { 0 };
                (command::WRITE_ZEROES, flags | fua, Expected::Nothing)
            }
            12 => {
                // Exports of these tests read what is trimmed as zeros.
                self.model[range].fill(0);
                (command::TRIM, fua, Expected::Nothing)
            }
            13 => (command::FLUSH, 0, Expected::Nothing),
            14 => (command::BLOCK_STATUS, 0, Expected::Extents(len as u32)),
            _ => {
                let request = Request { flags: 0, command: command::READ, cookie, offset: u64::MAX - 3, len: 9 };
                self.client.send(request, &[]);
                return Expected::Error(Errno::Invalid);
            }
        };
        self.client.send(Request { flags, command, cookie, offset, len: len as u32 }, &payload);
        expected
    }

    /// Cuts the connection: between requests, or within a write, which must not happen.
    fn disconnect(&mut self) {
        if self.random.below(2) == 0 {
            let len = self.random.len();
            let at = self.random.below(PART - len);
            let request = Request {
                flags: 0,
                command: command::WRITE,
                cookie: 0,
                offset: self.base + at as u64,
                len: len as u32,
            };
            let sent = self.random.below(len);
            self.client.send(request, &vec![0xee; sent]);
        }
        self.client = Client::open(&self.socket, "");
    }
}

fn run(export: Arc<dyn Export>, seed: u64, requests: u64) {
    let fixture = Fixture::one(export);
    thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let socket = fixture.socket();
            scope.spawn(move || {
                let client = Client::open(&socket, "");
                let base = number * PART as u64;
                let random = Random(seed.wrapping_mul(CONNECTIONS).wrapping_add(number));
                let mut actor = Actor { client, socket, random, base, model: vec![0; PART] };
                let mut done = 0;
                while done < requests / CONNECTIONS {
                    done += actor.burst();
                    if actor.random.below(50) == 0 {
                        actor.disconnect();
                    }
                }
                let all = actor.client.read(base, PART as u32).unwrap();
                assert!(all == actor.model, "the part of connection {number}");
            });
        }
    });
    fixture.wait_until_idle();
    assert_eq!(fixture.messages()[..], [""; 0]);
}

/// The seed and the number of requests.
fn parameters() -> (u64, u64) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("ONEFOLD_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let requests = number("ONEFOLD_NBD_REQUESTS").unwrap_or(REQUESTS);
    println!("ONEFOLD_SEED={seed} ONEFOLD_NBD_REQUESTS={requests}");
    (seed, requests)
}

#[test]
fn random_requests_over_four_connections_equal_a_map_of_bytes_in_memory() {
    let (seed, requests) = parameters();
    let mut export = MemoryExport::new(PART * CONNECTIONS as usize);
    export.is_prompt = seed.is_multiple_of(2);
    run(Arc::new(export), seed, requests);
}

#[test]
fn random_requests_over_four_connections_equal_a_map_of_bytes_in_a_file() {
    let (seed, requests) = parameters();
    let origin = tempfile::NamedTempFile::new().unwrap();
    origin.as_file().set_len(PART as u64 * CONNECTIONS).unwrap();
    let export = FileExport::open(origin.path(), Access::ReadWrite, Log::none()).unwrap();
    run(Arc::new(export), seed, requests);
}
