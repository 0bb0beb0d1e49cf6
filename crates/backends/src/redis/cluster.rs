//! The nodes of a cluster, and requests to those that own the keys.
//!
//! A node that does not answer is a lost answer, and no error of the others. The library's connection to a cluster fails a whole batch
//! then, so that batches are divided here.

use std::time::Duration;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::background::on_another_thread;
use redis::{
    Connection, ConnectionAddr, ConnectionInfo, ConnectionLike as _, IntoConnectionInfo as _, Pipeline, Value,
};

/// Slots of a cluster.
const SLOTS: usize = 16_384;
/// Slot without a node.
const NO_NODE: u16 = u16::MAX;

/// Requests of one pipeline to a node.
const PIPELINE_MAX: usize = 2_048;

/// Longest wait for a connection, and for an answer.
const CONNECT_MAX: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Calls after which a node that was lost is tried again: a replica may have taken its slots.
const CALLS_PER_RETRY: u32 = 64;

/// A request for one field of a hash.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Key of the hash.
    pub(super) key: Vec<u8>,
    pub(super) field: Vec<u8>,
    /// The value to set; `None` reads the value.
    pub(super) value: Option<Vec<u8>>,
}

impl Request {
    pub(super) fn get(key: Vec<u8>, field: Vec<u8>) -> Self {
        Self { key, field, value: None }
    }
}

/// Answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// The value; for a request that sets one, `None`.
    Value(Option<Vec<u8>>),
    /// The node did not answer, or refused.
    Lost,
}

/// Addresses of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Address {
    seeds: Vec<ConnectionInfo>,
    /// For messages, without user and password.
    text: String,
}

impl Address {
    /// Reads `redis://[USER:PASSWORD@]HOST:PORT[,HOST:PORT]...`.
    pub(super) fn parse(url: &str) -> Result<Self> {
        // The address may have a password, so that no message repeats it.
        let bad = || {
            Error::invalid(
                "address of a cluster: it is not of the form redis://[USER:PASSWORD@]HOST:PORT[,HOST:PORT]...",
            )
        };
        let rest = url.strip_prefix("redis://").ok_or_else(bad)?;
        let (login, hosts) = rest.rsplit_once('@').map_or(("", rest), |(login, hosts)| (login, hosts));
        let seed = |host: &str| {
            let at = if login.is_empty() { String::new() } else { format!("{login}@") };
            let host = host.trim_end_matches('/');
            let info = (!host.is_empty()).then(|| format!("redis://{at}{host}").into_connection_info());
            info.and_then(std::result::Result::ok).ok_or_else(bad)
        };
        let seeds = hosts.split(',').map(seed).collect::<Result<Vec<_>>>()?;
        Ok(Self { seeds, text: format!("redis://{hosts}") })
    }

    /// Returns the error for a request that failed.
    pub(super) fn error(&self, reason: &str) -> Error {
        Error::Server { address: self.text.clone(), reason: reason.to_owned() }
    }
}

/// A node, and the connection to it.
struct Node {
    info: ConnectionInfo,
    connection: Option<Connection>,
    /// Why it is not asked for a while.
    lost: Option<String>,
    /// Whether it was lost before this call.
    was_lost: bool,
}

impl Node {
    fn connect(&mut self) -> std::result::Result<&mut Connection, String> {
        if let Some(reason) = &self.lost {
            return Err(reason.clone());
        }
        if self.connection.as_ref().is_none_or(|connection| !connection.is_open()) {
            let connected = connect(&self.info).map_err(|reason| format!("{}: {reason}", self.info.addr()));
            match connected {
                Ok(connection) => self.connection = Some(connection),
                Err(reason) => {
                    self.lost = Some(reason.clone());
                    return Err(reason);
                }
            }
        }
        self.connection.as_mut().ok_or_else(|| "is not connected".to_owned())
    }

    fn lose(&mut self, reason: &str) -> String {
        let reason = format!("{}: {reason}", self.info.addr());
        (self.connection, self.lost) = (None, Some(reason.clone()));
        reason
    }
}

fn connect(info: &ConnectionInfo) -> std::result::Result<Connection, String> {
    let open = || {
        let connection = redis::Client::open(info.clone())?.get_connection_with_timeout(CONNECT_MAX)?;
        connection.set_read_timeout(Some(ANSWER_MAX))?;
        connection.set_write_timeout(Some(ANSWER_MAX))?;
        Ok(connection)
    };
    open().map_err(|error: redis::RedisError| error.to_string())
}

/// A cluster, or a single server, which owns all slots.
pub(super) struct Cluster {
    pub(super) address: Address,
    nodes: Vec<Node>,
    /// The node of each slot.
    owners: Vec<u16>,
    calls: u32,
    /// The last failure.
    failure: Option<String>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("address", &self.address.text).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Memory of the slots, and of one call's pipelines, in bytes.
    pub(super) const MEMORY_BYTES: usize = SLOTS * 2 + PIPELINE_MAX * 512;

    /// Connects to a cluster by the first address that answers.
    pub(super) fn connect(address: Address) -> Result<Self> {
        let mut cluster = Self { address, nodes: Vec::new(), owners: vec![NO_NODE; SLOTS], calls: 0, failure: None };
        on_another_thread(|| cluster.load_nodes()).map_err(|reason| cluster.address.error(&reason))?;
        Ok(cluster)
    }

    /// Asks for the owners of slots.
    fn load_nodes(&mut self) -> std::result::Result<(), String> {
        let known: Vec<ConnectionInfo> =
            self.nodes.iter().map(|node| node.info.clone()).chain(self.address.seeds.iter().cloned()).collect();
        let mut last = String::new();
        for info in known {
            let asked = connect(&info).and_then(|mut connection| {
                let slots = redis::cmd("CLUSTER").arg("SLOTS").query::<Value>(&mut connection);
                match slots {
                    Err(error) if error.to_string().contains("cluster support disabled") => Ok(None),
                    slots => slots.map(Some).map_err(|error| error.to_string()),
                }
            });
            match asked {
                Ok(slots) => {
                    let ranges = match &slots {
                        None => vec![(0, SLOTS - 1, info.clone())],
                        Some(slots) => ranges(slots, &info).ok_or("the list of its slots cannot be read")?,
                    };
                    self.take_nodes(ranges);
                    return Ok(());
                }
                Err(reason) => last = format!("{}: {reason}", info.addr()),
            }
        }
        Err(last)
    }

    fn take_nodes(&mut self, ranges: Vec<(usize, usize, ConnectionInfo)>) {
        self.owners.fill(NO_NODE);
        let mut before = std::mem::take(&mut self.nodes);
        for (first, last, info) in ranges {
            let same = |node: &Node| node.info.addr() == info.addr();
            let index = self.nodes.iter().position(same).unwrap_or_else(|| {
                let kept = before.iter().position(same).map(|index| before.swap_remove(index));
                self.nodes.push(kept.unwrap_or(Node {
                    info: info.clone(),
                    connection: None,
                    lost: None,
                    was_lost: false,
                }));
                self.nodes.len() - 1
            });
            let index = u16::try_from(index).unwrap_or(NO_NODE);
            if let Some(owners) = self.owners.get_mut(first..=last) {
                owners.fill(index);
            }
        }
    }

    /// Takes the last failure of a node.
    pub(super) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Carries requests out, those to all nodes at the same time; returns the replies in their order.
    pub(super) fn call(&mut self, requests: &[Request]) -> Vec<Reply> {
        on_another_thread(|| self.call_here(requests))
    }

    fn call_here(&mut self, requests: &[Request]) -> Vec<Reply> {
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS_PER_RETRY) && self.nodes.iter().any(|node| node.lost.is_some()) {
            self.nodes.iter_mut().for_each(|node| node.lost = None);
            // The nodes known before are asked as well as they can be.
            let _ = self.load_nodes();
        }
        let mut replies = vec![Reply::Lost; requests.len()];
        for (start, batch) in (0..).step_by(PIPELINE_MAX).zip(requests.chunks(PIPELINE_MAX)) {
            let all: Vec<usize> = (start..start + batch.len()).collect();
            self.nodes.iter_mut().for_each(|node| node.was_lost = node.lost.is_some());
            let Retry { indexes, reason } = self.call_batch(requests, &all, &mut replies);
            if indexes.is_empty() {
                continue;
            }
            // Slots have moved, or a node was lost whose replica has them now. A connection that broke is made again, once.
            if self.load_nodes().is_err() {
                self.failure = Some(reason);
                continue;
            }
            self.nodes.iter_mut().filter(|node| !node.was_lost).for_each(|node| node.lost = None);
            let left = self.call_batch(requests, &indexes, &mut replies);
            if !left.indexes.is_empty() {
                self.failure = Some(left.reason);
            }
        }
        replies
    }

    /// Carries requests out by their indexes. Returns those that may succeed once the owners are known again.
    fn call_batch(&mut self, requests: &[Request], indexes: &[usize], replies: &mut [Reply]) -> Retry {
        let mut of_nodes = vec![Vec::new(); self.nodes.len()];
        for &index in indexes {
            let owner = self.owners[slot(&requests[index].key)];
            match of_nodes.get_mut(usize::from(owner)) {
                Some(of_node) => of_node.push(index),
                None => self.failure = Some("some slots of the cluster have no node".to_owned()),
            }
        }
        let mut retry = Retry { indexes: Vec::new(), reason: "the slots of the cluster are moving".to_owned() };
        let mut sent = Vec::new();
        for (node, of_node) in self.nodes.iter_mut().zip(of_nodes).filter(|(_, of_node)| !of_node.is_empty()) {
            let commands = commands(requests, of_node);
            let mut pipeline = Pipeline::with_capacity(commands.len());
            for command in &commands {
                let &first = command.first().expect("a command has a request");
                let is_read = requests[first].value.is_none();
                pipeline.cmd(if is_read { "HMGET" } else { "HSET" }).arg(&requests[first].key);
                for &index in command {
                    let Request { field, value, .. } = &requests[index];
                    pipeline.arg(field);
                    if let Some(value) = value {
                        pipeline.arg(value);
                    }
                }
            }
            let outcome = node.connect().and_then(|connection| {
                connection.send_packed_command(&pipeline.get_packed_pipeline()).map_err(|error| error.to_string())
            });
            match outcome {
                Ok(()) => sent.push((node, commands)),
                Err(reason) if node.was_lost => self.failure = Some(reason),
                Err(reason) => {
                    retry.reason = if node.lost.is_some() { reason } else { node.lose(&reason) };
                    retry.indexes.extend(commands.into_iter().flatten());
                }
            }
        }
        for (node, commands) in sent {
            for (position, command) in commands.iter().enumerate() {
                let is_read = command.first().is_some_and(|index| requests[*index].value.is_none());
                match receive(node, command.len(), is_read) {
                    Ok(values) => {
                        command.iter().zip(values).for_each(|(index, value)| replies[*index] = Reply::Value(value));
                    }
                    Err(Refusal::Moved) => retry.indexes.extend(command),
                    Err(Refusal::Refused(reason)) => self.failure = Some(format!("{}: {reason}", node.info.addr())),
                    Err(Refusal::Broken(reason)) => {
                        retry.reason = node.lose(&reason);
                        retry.indexes.extend(commands[position..].iter().flatten());
                        break;
                    }
                }
            }
        }
        retry
    }

    /// Returns some fields of a hash, and where the next call goes on, which is 0 at the end. Begin with 0.
    pub(super) fn fields(&mut self, key: &[u8], cursor: u64) -> Result<(Vec<Vec<u8>>, u64)> {
        let owner = usize::from(self.owners[slot(key)]);
        let node = self.nodes.get_mut(owner).ok_or_else(|| "its slot has no node".to_owned());
        let scanned = node.and_then(|node| {
            on_another_thread(|| {
                let mut scan = redis::cmd("HSCAN");
                scan.arg(key).arg(cursor).arg("COUNT").arg(PIPELINE_MAX);
                let connection = node.connect()?;
                scan.query::<(u64, Vec<Vec<u8>>)>(connection).map_err(|error| error.to_string())
            })
        });
        let (next, found) = scanned.map_err(|reason| self.address.error(&reason))?;
        // Values follow their fields.
        Ok((found.into_iter().step_by(2).collect(), next))
    }
}

/// Divides requests, by their indexes, into commands: those of one hash.
fn commands(requests: &[Request], mut indexes: Vec<usize>) -> Vec<Vec<usize>> {
    // Of equal fields, the last value that is set counts: the sort is stable.
    indexes.sort_by(|left, right| requests[*left].key.cmp(&requests[*right].key));
    let of_one = |left: &usize, right: &usize| requests[*left].key == requests[*right].key;
    indexes.chunk_by(of_one).map(<[usize]>::to_vec).collect()
}

/// Requests that a node did not answer, and that another one may.
struct Retry {
    indexes: Vec<usize>,
    reason: String,
}

/// Why a node did not answer a request.
enum Refusal {
    /// Another node has the slot.
    Moved,
    /// This is the reason.
    Refused(String),
    /// The connection is of no use any more.
    Broken(String),
}

/// Receives the reply to a command of `count` requests.
fn receive(node: &mut Node, count: usize, is_read: bool) -> std::result::Result<Vec<Option<Vec<u8>>>, Refusal> {
    let Some(connection) = &mut node.connection else { return Err(Refusal::Broken("is not connected".to_owned())) };
    let value = |value| match value {
        Value::Nil => Some(None),
        Value::BulkString(bytes) => Some(Some(bytes)),
        _ => None,
    };
    let unexpected = || Refusal::Broken("sent an answer that was not expected".to_owned());
    match connection.recv_response().and_then(Value::extract_error) {
        Ok(Value::Array(values)) if is_read && values.len() == count => {
            values.into_iter().map(value).collect::<Option<_>>().ok_or_else(unexpected)
        }
        Ok(Value::Int(_)) if !is_read => Ok(vec![None; count]),
        Ok(_) => Err(unexpected()),
        Err(error) => match error.code() {
            Some("MOVED") => Err(Refusal::Moved),
            Some(_) if !error.is_unrecoverable_error() && !error.is_io_error() => {
                Err(Refusal::Refused(error.to_string()))
            }
            _ => Err(Refusal::Broken(error.to_string())),
        },
    }
}

/// Returns the slot of a key (Redis cluster specification): that of the part in the first pair of braces, if there is any.
fn slot(key: &[u8]) -> usize {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').map(|close| &rest[..close])
    });
    let key = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    usize::from(crc16::State::<crc16::XMODEM>::calculate(key)) % SLOTS
}

/// Reads an answer to `CLUSTER SLOTS`: ranges of slots with the address of their master. `asked` is the node that gave it.
fn ranges(slots: &Value, asked: &ConnectionInfo) -> Option<Vec<(usize, usize, ConnectionInfo)>> {
    let Value::Array(ranges) = slots else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => usize::try_from(*number).ok(),
        _ => None,
    };
    let mut all = Vec::new();
    for range in ranges {
        let Value::Array(fields) = range else { return None };
        let (first, last) = (number(fields.first()?)?, number(fields.get(1)?)?);
        let Value::Array(master) = fields.get(2)? else { return None };
        let host = match master.first()? {
            Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
            // It does not know its own address.
            _ => match asked.addr() {
                ConnectionAddr::Tcp(host, _) => host.clone(),
                _ => return None,
            },
        };
        let port = u16::try_from(number(master.get(1)?)?).ok()?;
        all.push((first, last, asked.clone().set_addr(ConnectionAddr::Tcp(host, port))));
    }
    all.iter().all(|(first, last, _)| first <= last && *last < SLOTS).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // The specification's example, and two that redis-cli prints.
        assert_eq!((slot(b"123456789"), slot(b"foo"), slot(b"hello")), (0x31c3, 12_182, 866));
        assert_eq!([&b"a{foo}b"[..], b"{foo}{hello}", b"x{{foo}"].map(slot), [12_182, 12_182, slot(b"{foo")]);
        assert_ne!(slot(b"{}foo"), slot(b""));
        assert_ne!(slot(b"}foo{"), slot(b"foo"));
    }

    #[test]
    fn addresses_are_read_and_passwords_not_repeated() {
        let address = Address::parse("redis://me:secret@a:1,b:2").unwrap();
        assert_eq!((address.seeds.len(), address.text.as_str()), (2, "redis://a:1,b:2"));
        assert_eq!(address.seeds[1].redis_settings().password(), Some("secret"));
        for bad in ["redis://", "mysql://me:secret@a/b", "redis://me:secret@", "redis://me:secret@a:1,"] {
            let error = Address::parse(bad).unwrap_err().to_string();
            assert!(error.contains("HOST:PORT") && !error.contains("secret"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_list_of_slots_that_is_none_is_refused() {
        let asked = "redis://a:1".into_connection_info().unwrap();
        let node = || Value::Array(vec![Value::BulkString(b"h".to_vec()), Value::Int(7)]);
        let range = |first, last| Value::Array(vec![Value::Array(vec![Value::Int(first), Value::Int(last), node()])]);
        assert_eq!(ranges(&range(0, 16_383), &asked).unwrap().len(), 1);
        for wrong in [range(5, 4), range(0, 16_384), range(-1, 4), Value::Nil, Value::Array(vec![Value::Nil])] {
            assert!(ranges(&wrong, &asked).is_none(), "{wrong:?}");
        }
    }
}
