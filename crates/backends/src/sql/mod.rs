//! Entries in a table of MariaDB or MySQL.
//!
//! A store has a name. Its entries are the rows of the table `onefold_entries_NAME`, with the key as primary key. The table
//! `onefold_stores` has one row for each store, with its epoch and the generation of its last checkpoint.
//!
//! Everything inserted between two checkpoints is one transaction. It ends with the new generation, before the checkpoint is
//! written on the host. So a server or a host that dies leaves the state of a checkpoint. If the host dies between the commit
//! and its own checkpoint, the generations differ, and the index is made again from the containers.
//!
//! After a failure of the connection that writes, its transaction is gone. The store then takes no more entries, and the index
//! reports that it is incomplete. Lookups connect again, in several attempts. A lookup that fails finds nothing: chunks are
//! then stored again.
//!
//! Rows of containers that were deleted stay until their chunks are stored again. The connection is not encrypted: use a
//! socket, or a tunnel.

mod server;

use std::collections::HashMap;
use std::mem::size_of;
use std::ops::RangeInclusive;
use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::Host;
use onefold_engine::io::background::Background;
use onefold_engine::kv::{
    Containers, Entry, EntryStore, Key, Live, Lookup, OpenStore, Ordinal, SealedReader, SealedWriter, StoreCounters,
    Surroundings,
};

use crate::buffer::{Buffer, bytes_of, entries_in};

use server::{Connection, Server, State};

/// The part of a checkpoint: the first bytes, then generation and epoch of 8 bytes each, little-endian.
const MAGIC: [u8; 8] = *b"OFSQLST1";
const PART_BYTES: usize = 24;

/// Place of a store of the index on a server.
#[derive(Clone, Debug)]
pub struct SqlSpec {
    server: Server,
    buffered_max: usize,
}

impl SqlSpec {
    /// Describes a store by the address `mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE[?socket=PATH]` and its name, which has at
    /// most 40 letters `a` to `z`, digits and underscores. Each index needs a name of its own. Entries wait in `buffer_bytes`
    /// for the server. Fails if address or name are not of this form. Does not connect.
    pub fn new(url: &str, name: &str, buffer_bytes: usize) -> Result<Self> {
        Ok(Self { server: Server::new(url, name)?, buffered_max: entries_in(buffer_bytes) })
    }

    /// Returns the memory that a store takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        bytes_of(self.buffered_max)
    }

    fn connect(&self, surroundings: Surroundings<'_>, epoch: u64, writer: Connection) -> Result<Box<dyn EntryStore>> {
        Ok(Box::new(SqlStore {
            server: self.server.clone(),
            host: Arc::clone(surroundings.host),
            reader: Reader { server: self.server.clone(), connection: Some(self.server.connect()?), has_lost: false },
            writer,
            epoch,
            buffer: Buffer::new(self.buffered_max),
            buffered_max: self.buffered_max,
            lookup: None,
            failure: None,
            counters: StoreCounters::default(),
        }))
    }
}

impl OpenStore for SqlSpec {
    fn parts(&self) -> &'static [&'static str] {
        &["server"]
    }

    fn create(&self, surroundings: Surroundings<'_>, epoch: u64) -> Result<Box<dyn EntryStore>> {
        let mut writer = self.server.connect()?;
        writer.lock()?;
        writer.create(epoch)?;
        writer.begin()?;
        self.connect(surroundings, epoch, writer)
    }

    fn open(
        &self,
        surroundings: Surroundings<'_>,
        generation: u64,
        parts: Vec<SealedReader>,
    ) -> Result<(Box<dyn EntryStore>, u64)> {
        let [mut part] = <[SealedReader; 1]>::try_from(parts).expect("as many parts as the kind has");
        let mut bytes = [0; PART_BYTES];
        part.read(&mut bytes)?;
        part.finish()?;
        let (magic, numbers) = bytes.split_at(MAGIC.len());
        let number = |at: usize| u64::from_le_bytes(*numbers[at..].first_chunk().expect("the part has two numbers"));
        let expected = State { generation: number(0), epoch: number(8) };
        let damaged = |problem: &str| Err(Error::Damaged { object: "server".to_owned(), reason: problem.to_owned() });
        if magic != MAGIC || expected.generation != generation {
            return damaged("is not that of this checkpoint");
        }
        let mut writer = self.server.connect()?;
        writer.lock()?;
        if writer.state()? != Some(expected) {
            return damaged("belongs to another state than the server has");
        }
        writer.begin()?;
        Ok((self.connect(surroundings, expected.epoch, writer)?, expected.epoch))
    }
}

/// The connection for lookups.
#[derive(Debug)]
struct Reader {
    server: Server,
    connection: Option<Connection>,
    /// True if a connection has failed since this was asked last.
    has_lost: bool,
}

impl Reader {
    /// Looks keys up, after a failure once more on a new connection.
    fn look_up(&mut self, keys: &[Key]) -> Result<HashMap<Key, Entry>> {
        if let Some(connection) = &mut self.connection {
            if let Ok(found) = connection.look_up(keys) {
                return Ok(found);
            }
            (self.connection, self.has_lost) = (None, true);
        }
        let mut connection = self.server.connect()?;
        let found = connection.look_up(keys)?;
        self.connection = Some(connection);
        Ok(found)
    }
}

/// Answers of a lookup, and the reader.
type Answered = (Reader, Result<HashMap<Key, Entry>>);

/// A lookup that was started.
#[derive(Debug)]
struct StartedLookup {
    /// Answers from the buffer; `None` for keys that the server is asked for.
    answers: Vec<Option<Lookup>>,
    asked: Vec<Key>,
    live: LiveContainers,
    job: Background<Answered>,
}

/// Tells live containers.
struct LiveContainers(Live);

impl std::fmt::Debug for LiveContainers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LiveContainers")
    }
}

/// A store on a server.
#[derive(Debug)]
struct SqlStore {
    server: Server,
    host: Arc<dyn Host>,
    reader: Reader,
    writer: Connection,
    epoch: u64,
    /// Entries that the server does not have.
    buffer: Buffer,
    buffered_max: usize,
    lookup: Option<StartedLookup>,
    /// The first failure, after which entries may be lost.
    failure: Option<Error>,
    counters: StoreCounters,
}

impl SqlStore {
    /// Divides keys into answers from the buffer and keys to ask for.
    fn look_up_buffered(&self, keys: &[Key], is_live: &dyn Fn(Ordinal) -> bool) -> (Vec<Option<Lookup>>, Vec<Key>) {
        let answer = |key: &Key| {
            let entry = self.buffer.get(key)?;
            Some(if is_live(entry.ordinal) { Lookup::InMemory(entry) } else { Lookup::Dead })
        };
        let answers: Vec<_> = keys.iter().map(answer).collect();
        let asked = keys.iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(key, _)| *key).collect();
        (answers, asked)
    }

    /// Takes the answers of the server; keys are absent if it gave none.
    fn take(
        &mut self,
        (answers, asked): (Vec<Option<Lookup>>, &[Key]),
        found: Result<HashMap<Key, Entry>>,
        is_live: &dyn Fn(Ordinal) -> bool,
    ) -> Vec<Lookup> {
        if self.reader.has_lost {
            self.reader.has_lost = false;
            // The transaction of a writer that has lost its connection, too, is gone.
            if !self.writer.is_alive() {
                let lost =
                    self.server.error("the connection was lost, and with it the entries since the last checkpoint");
                self.failure.get_or_insert(lost);
            }
        }
        let found = found.unwrap_or_else(|error| {
            self.failure.get_or_insert(error);
            HashMap::new()
        });
        self.counters.lookup_reads += u64::from(!asked.is_empty());
        self.counters.lookup_pages += asked.len() as u64;
        self.counters.pages_needed += asked.len() as u64;
        self.counters.bytes_read += (found.len() * size_of::<Entry>()) as u64;
        let mut asked = asked.iter();
        let from_server = |key: &Key| match found.get(key) {
            None => Lookup::Absent,
            Some(entry) if is_live(entry.ordinal) => Lookup::OnDisk(*entry),
            Some(_) => Lookup::Dead,
        };
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| asked.next().map_or(Lookup::Absent, from_server)))
            .collect()
    }

    /// Fails if entries may be lost.
    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn flush(&mut self, containers: &mut dyn Containers) -> Result<()> {
        self.check()?;
        if self.buffer.len() == 0 {
            return Ok(());
        }
        // Containers before entries: a number on the server must mean the same container after a power cut.
        containers.begin_sync()?()?;
        let written = self.buffer.len() * size_of::<Entry>();
        self.flush_buffer()?;
        self.counters.bytes_written += written as u64;
        Ok(())
    }

    /// Writes the buffered entries. The numbers of their containers are durable.
    fn flush_buffer(&mut self) -> Result<()> {
        self.check()?;
        // The primary key orders the rows.
        let entries = self.buffer.sorted();
        self.writer.insert(&entries).inspect_err(|error| self.failure = Some(error.clone()))?;
        self.buffer.clear();
        Ok(())
    }
}

impl EntryStore for SqlStore {
    fn look_up(&mut self, keys: &[Key], containers: &dyn Containers) -> Vec<Lookup> {
        let is_live = |ordinal| containers.is_live(ordinal);
        let (answers, asked) = self.look_up_buffered(keys, &is_live);
        let found = if asked.is_empty() { Ok(HashMap::new()) } else { self.reader.look_up(&asked) };
        self.take((answers, &asked), found, &is_live)
    }

    fn start_look_up(&mut self, keys: Vec<Key>, containers: &dyn Containers) {
        assert!(self.lookup.is_none(), "the answers of a lookup are taken before the next starts");
        let live = containers.live();
        let (answers, asked) = self.look_up_buffered(&keys, &*live);
        let idle = Reader { server: self.server.clone(), connection: None, has_lost: false };
        let (mut reader, wanted) = (std::mem::replace(&mut self.reader, idle), asked.clone());
        let job = Background::start(&self.host, "lookup", move || {
            let found = if wanted.is_empty() { Ok(HashMap::new()) } else { reader.look_up(&wanted) };
            (reader, found)
        });
        self.lookup = Some(StartedLookup { answers, asked, live: LiveContainers(live), job });
    }

    fn finish_look_up(&mut self) -> Option<Vec<Lookup>> {
        let StartedLookup { answers, asked, live, job } = self.lookup.take()?;
        let found = match job.wait() {
            Ok((reader, found)) => {
                self.reader = reader;
                found
            }
            Err(error) => Err(error),
        };
        Some(self.take((answers, &asked), found, &*live.0))
    }

    fn insert(&mut self, entries: &[Entry]) -> usize {
        self.buffer.insert(entries)
    }

    fn make_space(&mut self, containers: &mut dyn Containers) -> Result<()> {
        self.check()?;
        if self.buffer.is_full() { self.flush(containers) } else { Ok(()) }
    }

    fn maintain(&mut self, _containers: &mut dyn Containers) -> Result<()> {
        self.check()
    }

    fn repair(&mut self, _containers: &mut dyn Containers) -> Result<Vec<RangeInclusive<u64>>> {
        self.check().map(|()| Vec::new())
    }

    fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    fn damage(&self) -> Vec<RangeInclusive<u64>> {
        self.failure.iter().map(|_| 0..=u64::MAX).collect()
    }

    fn keys_in(&mut self, heads: RangeInclusive<u64>, each: &mut dyn FnMut(&Key)) -> Result<()> {
        self.check()?;
        self.buffer.keys().filter(|key| heads.contains(&key.head())).for_each(&mut *each);
        self.writer.keys_in(&heads, each)
    }

    fn save(&mut self, generation: u64, _containers: &mut dyn Containers, parts: &mut [SealedWriter]) -> Result<()> {
        self.flush_buffer()?;
        let [part] = parts else { unreachable!("as many parts as the kind has") };
        for bytes in [MAGIC, generation.to_le_bytes(), self.epoch.to_le_bytes()] {
            part.write(&bytes)?;
        }
        self.writer.commit(generation).inspect_err(|error| self.failure = Some(error.clone()))
    }

    fn saved(&mut self) {}

    fn memory_bytes(&self) -> usize {
        bytes_of(self.buffered_max)
    }

    fn counters(&self) -> StoreCounters {
        self.counters
    }
}
