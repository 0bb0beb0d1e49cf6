//! Entries in a cluster of Redis, which several hosts share.
//!
//! All hosts that back up into a repository enter their chunks under the same keys. A host that meets a container of another one
//! need not read its directory: the cluster answers for its chunks. A value names the container itself, because each host numbers
//! containers in its own order.
//!
//! Everything is a field of a hash. A batch is one command for each hash that it touches, which costs the nodes a fraction of a
//! command for each field.
//!
//! | Key | Field | Value |
//! |---|---|---|
//! | `e`, repository 12, group 2 | fingerprint 20 | entry: session 16, number of the container 4, log 4, position 8, CRC32C of field and value 4 |
//! | `c`, repository 12, group 2 | session 16, number 4 | mark of a container all of whose chunks were entered: state 8, length of its file 8 |
//! | `e`, likewise | none | state 8 |
//! | `e`, likewise | epoch of an index 8 | generation of its last checkpoint 8 |
//!
//! `repository` is the beginning of the BLAKE3 of its id, and it, groups and numbers in keys are hexadecimal digits. The other numbers are
//! little-endian. The group of an entry is the last byte of the fingerprint modulo `GROUPS`, that of a mark the exclusive or of the last byte of the session
//! and the first of the number, likewise.
//!
//! **State.** A node may come back empty, or as it was some time ago, or a replica that lacks the last writes may take its place. So each hash
//! of entries has the state, a random number that is the same in all, and for each index the generation of its last checkpoint. An index whose
//! checkpoint has another state, or a later generation than one of the hashes, records all containers again. Before that it writes a
//! new state if the hashes do not agree, or if its own entries are lost. A mark of another state proves nothing.
//!
//! **Loss.** A node that does not answer is a lost answer: the chunk is stored again. The store then reports that it is incomplete, and
//! neither marks nor saves anything.
//!
//! **Several hosts.** Each host stores no chunk twice that it has entered. Two backups at the same time may both store a chunk.
//!
//! The position is one of the arrival log of the host that made the entry. The log's number tells other hosts to pass over it.

mod cluster;

use std::collections::BTreeSet;
use std::mem::size_of;
use std::ops::RangeInclusive;
use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::Host;
use onefold_engine::kv::{
    Containers, Entry, EntryStore, KEY_LEN, Key, Lookup, OpenStore, Ordinal, Position, SealedReader, SealedWriter,
    StoreCounters, Surroundings,
};
use onefold_engine::types::{ContainerId, RepositoryId, SessionId};

use crate::buffer::{Buffer, bytes_of, entries_in};

use cluster::{Address, Cluster, Reply, Request};

/// The part of a checkpoint: the first bytes, then generation, epoch of the log and state of 8 bytes each, little-endian.
const MAGIC: [u8; 8] = *b"OFRDSST1";
const PART_BYTES: usize = 32;

/// Hashes over which entries, and marks, are spread. More would make commands smaller; with fewer, large clusters would be
/// unevenly filled.
const GROUPS: u8 = 64;

/// Bytes of an entry's value, without its checksum.
const ENTRY_BYTES: usize = 16 + 4 + 4 + 8;

/// Memory of a container that was entered: in a node of the set that is half full, and in the copy that is marked.
const ENTERED_BYTES: usize = 4 * size_of::<Ordinal>();

/// Requests of one call, at most, where there may be more.
const REQUESTS_MAX: usize = 2_048;

/// Place of the entries of a repository on servers.
#[derive(Clone, Debug)]
pub struct RedisSpec {
    address: Address,
    repository: String,
    buffered_max: usize,
}

impl RedisSpec {
    /// Describes the store of a repository by the address `redis://[USER:PASSWORD@]HOST:PORT[,HOST:PORT]...` of some of the
    /// nodes. Entries wait in `buffer_bytes` for the cluster. Fails if the address is not of this form. Does not connect.
    pub fn new(url: &str, repository: RepositoryId, buffer_bytes: usize) -> Result<Self> {
        let digits = blake3::hash(&repository.0).to_hex();
        Ok(Self {
            address: Address::parse(url)?,
            repository: digits[..12].to_owned(),
            buffered_max: entries_in(buffer_bytes),
        })
    }

    /// Returns the memory that a store takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        bytes_of(self.buffered_max) + Cluster::MEMORY_BYTES
    }

    fn store(&self, cluster: Cluster, epoch: u64, state: [u8; 8]) -> RedisStore {
        RedisStore {
            cluster,
            repository: self.repository.clone(),
            epoch,
            state,
            buffer: Buffer::new(self.buffered_max),
            buffered_max: self.buffered_max,
            entered: BTreeSet::new(),
            answers: None,
            failure: None,
            counters: StoreCounters::default(),
        }
    }
}

impl OpenStore for RedisSpec {
    fn parts(&self) -> &'static [&'static str] {
        &["server"]
    }

    fn create(&self, surroundings: Surroundings<'_>, epoch: u64) -> Result<Box<dyn EntryStore>> {
        let mut store = self.store(Cluster::connect(self.address.clone())?, epoch, [0; 8]);
        store.state = store.join(surroundings.host)?;
        Ok(Box::new(store))
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
        let field = |at: usize| *numbers[at..].first_chunk::<8>().expect("the part has three numbers");
        let damaged = |problem: &str| Err(Error::Damaged { object: "server".to_owned(), reason: problem.to_owned() });
        if magic != MAGIC || u64::from_le_bytes(field(0)) != generation {
            return damaged("is not that of this checkpoint");
        }
        let (epoch, state) = (u64::from_le_bytes(field(8)), field(16));
        let mut store = self.store(Cluster::connect(self.address.clone())?, epoch, state);
        let hashes = store.read_states();
        if hashes.iter().any(|hash| hash.state != state) {
            return damaged("belongs to another state than the cluster has");
        }
        if hashes.iter().any(|hash| hash.generation < generation) {
            // Other hosts must not rely on the marks of what is lost.
            store.renew(surroundings.host)?;
            return damaged("is newer than what the cluster has");
        }
        Ok((Box::new(store), epoch))
    }
}

/// State of the cluster, by a hash of entries.
#[derive(Clone, Copy, Debug)]
struct HashState {
    /// The state; 0 if there is none.
    state: [u8; 8],
    /// Generation of this index's last checkpoint; 0 if there is none.
    generation: u64,
}

/// A store on a cluster.
#[derive(Debug)]
struct RedisStore {
    cluster: Cluster,
    repository: String,
    /// Number of the arrival log that positions belong to.
    epoch: u64,
    state: [u8; 8],
    /// Entries that the cluster does not have.
    buffer: Buffer,
    buffered_max: usize,
    /// Containers with entries since the last checkpoint.
    entered: BTreeSet<Ordinal>,
    /// Answers of the lookup that was started.
    answers: Option<Vec<Lookup>>,
    /// The first failure, after which entries may be lost.
    failure: Option<Error>,
    counters: StoreCounters,
}

impl RedisStore {
    fn entries_key(&self, group: u8) -> Vec<u8> {
        format!("e{}{group:02x}", self.repository).into_bytes()
    }

    fn read_entry(&self, key: &Key) -> Request {
        Request::get(self.entries_key(key.0[KEY_LEN - 1] % GROUPS), key.0.to_vec())
    }

    fn mark(&self, container: ContainerId) -> Request {
        let group = (container.session.0[15] ^ container.ordinal.to_le_bytes()[0]) % GROUPS;
        let field = [&container.session.0[..], &container.ordinal.to_le_bytes()].concat();
        Request::get(format!("c{}{group:02x}", self.repository).into_bytes(), field)
    }

    /// Returns the number by which entries name this host's log.
    fn log(&self) -> [u8; 4] {
        *self.epoch.to_le_bytes().first_chunk().expect("four of eight bytes")
    }

    /// Carries requests out, and notes the first failure.
    fn call(&mut self, requests: &[Request]) -> Vec<Reply> {
        let replies = self.cluster.call(requests);
        if let Some(reason) = self.cluster.take_failure()
            && self.failure.is_none()
        {
            self.failure = Some(self.cluster.address.error(&reason));
        }
        replies
    }

    /// Fails if entries may be lost.
    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Returns what the hashes of entries say of the cluster, without those of nodes that do not answer.
    fn read_states(&mut self) -> Vec<HashState> {
        let epoch = self.epoch.to_le_bytes().to_vec();
        let of_group = |group| {
            let key = self.entries_key(group);
            [Request::get(key.clone(), Vec::new()), Request::get(key, epoch.clone())]
        };
        let requests: Vec<Request> = (0..GROUPS).flat_map(of_group).collect();
        let replies = self.call(&requests);
        let number = |reply: &Reply| match reply {
            Reply::Value(Some(value)) => Some(<[u8; 8]>::try_from(value.as_slice()).unwrap_or_default()),
            Reply::Value(None) => Some([0; 8]),
            Reply::Lost => None,
        };
        let hash = |pair: &[Reply]| match pair {
            [state, generation] => {
                Some(HashState { state: number(state)?, generation: u64::from_le_bytes(number(generation)?) })
            }
            _ => None,
        };
        replies.chunks_exact(2).filter_map(hash).collect()
    }

    /// Returns the state of the cluster, after writing a new one if it has none, or has lost a part of it.
    fn join(&mut self, host: &Arc<dyn Host>) -> Result<[u8; 8]> {
        let found: BTreeSet<[u8; 8]> = self.read_states().iter().map(|hash| hash.state).collect();
        if found.is_empty() {
            self.check()?;
        }
        match (found.len(), found.first()) {
            (1, Some(state)) if *state != [0; 8] => Ok(*state),
            _ => self.renew(host),
        }
    }

    /// Writes a new state.
    fn renew(&mut self, host: &Arc<dyn Host>) -> Result<[u8; 8]> {
        let mut state = [0; 8];
        host.random(&mut state)?;
        self.write_in_all(&[], &state);
        Ok(state)
    }

    /// Sets a field of each hash of entries.
    fn write_in_all(&mut self, field: &[u8], value: &[u8]) {
        let set =
            |group| Request { value: Some(value.to_vec()), ..Request::get(self.entries_key(group), field.to_vec()) };
        let requests: Vec<Request> = (0..GROUPS).map(set).collect();
        self.call(&requests);
    }

    fn encode(&self, key: &[u8], container: ContainerId, position: Position) -> Vec<u8> {
        let mut value = Vec::with_capacity(ENTRY_BYTES + 4);
        value.extend_from_slice(&container.session.0);
        value.extend_from_slice(&container.ordinal.to_le_bytes());
        value.extend_from_slice(&self.log());
        value.extend_from_slice(&position.0.to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(key), &value);
        value.extend_from_slice(&checksum.to_le_bytes());
        value
    }

    /// Decodes a value; `None` if it is damaged.
    fn decode(&self, key: &[u8], value: &[u8]) -> Option<(ContainerId, Position)> {
        let (fields, checksum) = value.split_at_checked(ENTRY_BYTES)?;
        let expected = crc32c::crc32c_append(crc32c::crc32c(key), fields).to_le_bytes();
        if checksum != expected {
            return None;
        }
        let (session, fields) = fields.split_first_chunk::<16>()?;
        let (number, fields) = fields.split_first_chunk::<4>()?;
        let (log, position) = fields.split_first_chunk::<4>()?;
        let position = u64::from_le_bytes(*position.first_chunk()?);
        let container = ContainerId { session: SessionId(*session), ordinal: u32::from_le_bytes(*number) };
        Some((container, if *log == self.log() { Position(position) } else { Position::NONE }))
    }

    /// Writes the buffered entries. The containers that they name are durable in the repository, so that they need not be synced.
    fn flush(&mut self, containers: &dyn Containers) -> Result<()> {
        self.check()?;
        for entries in self.buffer.sorted().chunks(REQUESTS_MAX) {
            let mut requests = Vec::with_capacity(entries.len());
            for Entry { key, ordinal, position } in entries {
                // A container without a number is not registered: its entries are of no use to anybody.
                if let Some(container) = containers.container(*ordinal) {
                    let value = self.encode(&key.0, container, *position);
                    self.counters.bytes_written += value.len() as u64;
                    requests.push(Request { value: Some(value), ..self.read_entry(key) });
                }
            }
            self.call(&requests);
            self.check()?;
        }
        self.buffer.clear();
        Ok(())
    }

    /// Marks the containers that were entered.
    fn mark_entered(&mut self, containers: &dyn Containers) -> Result<()> {
        let entered: Vec<Ordinal> = self.entered.iter().copied().collect();
        for ordinals in entered.chunks(REQUESTS_MAX) {
            let marked = |&ordinal: &Ordinal| {
                let container = containers.container(ordinal)?;
                let value = [self.state, containers.len_of(container)?.to_le_bytes()].concat();
                Some(Request { value: Some(value), ..self.mark(container) })
            };
            let requests: Vec<Request> = ordinals.iter().filter_map(marked).collect();
            self.call(&requests);
            self.check()?;
        }
        self.entered.clear();
        Ok(())
    }
}

impl EntryStore for RedisStore {
    fn look_up(&mut self, keys: &[Key], containers: &dyn Containers) -> Vec<Lookup> {
        let answer = |entry: Entry, found: fn(Entry) -> Lookup| {
            if containers.is_live(entry.ordinal) { found(entry) } else { Lookup::Dead }
        };
        let mut answers = Vec::with_capacity(keys.len());
        let (mut asked, mut requests) = (Vec::new(), Vec::new());
        for (index, &key) in keys.iter().enumerate() {
            let buffered = self.buffer.get(&key);
            answers.push(buffered.map_or(Lookup::Absent, |entry| answer(entry, Lookup::InMemory)));
            if buffered.is_none() {
                asked.push(index);
                requests.push(self.read_entry(&key));
            }
        }
        if requests.is_empty() {
            return answers;
        }
        let replies = self.call(&requests);
        self.counters.lookup_reads += 1;
        self.counters.lookup_pages += requests.len() as u64;
        self.counters.pages_needed += requests.len() as u64;
        for ((index, request), reply) in asked.into_iter().zip(&requests).zip(replies) {
            let Reply::Value(Some(value)) = reply else { continue };
            self.counters.bytes_read += value.len() as u64;
            let Some((container, position)) = self.decode(&request.field, &value) else { continue };
            let ordinal = containers.live_ordinal(container);
            answers[index] = ordinal
                .map_or(Lookup::Dead, |ordinal| answer(Entry { key: keys[index], ordinal, position }, Lookup::OnDisk));
        }
        answers
    }

    fn start_look_up(&mut self, keys: Vec<Key>, containers: &dyn Containers) {
        // Numbers of containers are this host's, and only the caller's thread has them.
        let answers = self.look_up(&keys, containers);
        self.answers = Some(answers);
    }

    fn finish_look_up(&mut self) -> Option<Vec<Lookup>> {
        self.answers.take()
    }

    fn insert(&mut self, entries: &[Entry]) -> usize {
        let inserted = self.buffer.insert(entries);
        // Entries come container by container.
        for run in entries[..inserted].chunk_by(|left, right| left.ordinal == right.ordinal) {
            self.entered.extend(run.first().map(|entry| entry.ordinal));
        }
        inserted
    }

    fn make_space(&mut self, containers: &mut dyn Containers) -> Result<()> {
        self.check()?;
        if self.buffer.is_full() { self.flush(containers) } else { Ok(()) }
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn shared(&mut self, containers: &[ContainerId]) -> Vec<Option<u64>> {
        let requests: Vec<Request> = containers.iter().map(|id| self.mark(*id)).collect();
        let replies = self.call(&requests);
        let len = |reply| {
            let Reply::Value(Some(value)) = reply else { return None };
            let (state, len) = value.split_first_chunk::<8>()?;
            (*state == self.state && len.len() == 8)
                .then(|| u64::from_le_bytes(*len.first_chunk().expect("eight bytes")))
        };
        replies.into_iter().map(len).collect()
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
        for group in 0..GROUPS {
            let name = self.entries_key(group);
            let mut cursor = 0;
            loop {
                let (fields, next) = self.cluster.fields(&name, cursor)?;
                let keys = fields.into_iter().filter_map(|field| <[u8; KEY_LEN]>::try_from(field).ok().map(Key));
                keys.filter(|key| heads.contains(&key.head())).for_each(|key| each(&key));
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    fn save(&mut self, generation: u64, containers: &mut dyn Containers, parts: &mut [SealedWriter]) -> Result<()> {
        self.flush(containers)?;
        self.mark_entered(containers)?;
        // Last: what a generation stands for is there when it is.
        self.write_in_all(&self.epoch.to_le_bytes(), &generation.to_le_bytes());
        self.check()?;
        let [part] = parts else { unreachable!("as many parts as the kind has") };
        for bytes in [MAGIC, generation.to_le_bytes(), self.epoch.to_le_bytes(), self.state] {
            part.write(&bytes)?;
        }
        Ok(())
    }

    fn saved(&mut self) {}

    fn memory_bytes(&self) -> usize {
        bytes_of(self.buffered_max) + Cluster::MEMORY_BYTES + self.entered.len() * ENTERED_BYTES
    }

    fn counters(&self) -> StoreCounters {
        self.counters
    }
}
