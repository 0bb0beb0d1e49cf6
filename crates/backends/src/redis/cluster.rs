//! The nodes of a cluster, and requests to those that own the keys.
//!
//! A node that does not answer is a lost answer, and no error of the others. The library's connection to a cluster fails a whole batch
//! then, so that batches are divided here.

use std::time::Duration;

use onefold_engine::error::{Error, Result};
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

/// A request for one key.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) key: Vec<u8>,
    /// The value to set; `None` reads the value.
    pub(super) value: Option<Vec<u8>>,
}

impl Request {
    pub(super) fn get(key: Vec<u8>) -> Self {
        Self { key, value: None }
    }

    pub(super) fn set(key: Vec<u8>, value: Vec<u8>) -> Self {
        Self { key, value: Some(value) }
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
        cluster.load_nodes().map_err(|reason| cluster.address.error(&reason))?;
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
            let mut pipeline = Pipeline::with_capacity(of_node.len());
            for &index in &of_node {
                let Request { key, value } = &requests[index];
                match value {
                    None => pipeline.cmd("GET").arg(key),
                    Some(value) => pipeline.cmd("SET").arg(key).arg(value).ignore(),
                };
            }
            let outcome = node.connect().and_then(|connection| {
                connection.send_packed_command(&pipeline.get_packed_pipeline()).map_err(|error| error.to_string())
            });
            match outcome {
                Ok(()) => sent.push((node, of_node)),
                Err(reason) if node.was_lost => self.failure = Some(reason),
                Err(reason) => {
                    retry.reason = if node.lost.is_some() { reason } else { node.lose(&reason) };
                    retry.indexes.extend(of_node);
                }
            }
        }
        for (node, of_node) in sent {
            for (position, &index) in of_node.iter().enumerate() {
                match receive(node) {
                    Ok(reply) => replies[index] = Reply::Value(reply),
                    Err(Refusal::Moved) => retry.indexes.push(index),
                    Err(Refusal::Refused(reason)) => self.failure = Some(format!("{}: {reason}", node.info.addr())),
                    Err(Refusal::Broken(reason)) => {
                        retry.reason = node.lose(&reason);
                        retry.indexes.extend(&of_node[position..]);
                        break;
                    }
                }
            }
        }
        retry
    }

    /// Calls `each` with all keys that begin with a text of letters and digits.
    pub(super) fn scan(&mut self, start: &str, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let Self { nodes, address, .. } = self;
        for node in nodes {
            let mut cursor = 0_u64;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(format!("{start}*")).arg("COUNT").arg(PIPELINE_MAX);
                let found = node.connect().and_then(|connection| {
                    scan.query::<(u64, Vec<Vec<u8>>)>(connection).map_err(|error| error.to_string())
                });
                let (next, keys) = found.map_err(|reason| address.error(&reason))?;
                for key in &keys {
                    each(key);
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
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

fn receive(node: &mut Node) -> std::result::Result<Option<Vec<u8>>, Refusal> {
    let Some(connection) = &mut node.connection else { return Err(Refusal::Broken("is not connected".to_owned())) };
    let reply = connection.recv_response().and_then(Value::extract_error);
    match reply {
        Ok(Value::Nil | Value::Okay) => Ok(None),
        Ok(Value::BulkString(bytes)) => Ok(Some(bytes)),
        Ok(other) => Err(Refusal::Broken(format!("the answer {other:?} was not expected"))),
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
