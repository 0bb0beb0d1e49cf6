//! The server: listeners, connections and their limits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, PipeReader, PipeWriter};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::catalog::{Catalog, NamedExport};
use super::connection::{Connection, ConnectionLimits, Host, STACK_BYTES};
use super::input::{INPUT_BYTES, Input};
use super::negotiate::{self, StartTls};
use super::respond::SCRATCH_BYTES_MAX;
use super::tls::{TLS_BYTES_MAX, Tls};
use super::transport::{Socket, Transport};
use super::wire::{OPTION_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::log::Log;

/// Most connections that negotiate, in addition to those that may transmit.
pub const NEGOTIATIONS_MAX: usize = 16;

/// How long a client of a server that stops may take nothing of a reply.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(2);

/// Pause after a failure to accept a connection, such as a shortage of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most connections of one export.
    pub connections: usize,
    /// Most requests in flight on one connection; so many threads it has at most.
    pub requests: usize,
    /// Most bytes of payloads in flight on one connection, 32 MiB at least. Then nothing is received.
    pub payload_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 16, requests: 64, payload_bytes: 64 << 20 }
    }
}

impl Limits {
    /// Most bytes of memory of a server with so many exports, encryption and stacks of threads included.
    pub fn memory_bytes(&self, exports: usize) -> usize {
        let requests = self.requests.max(1) * (STACK_BYTES + SCRATCH_BYTES_MAX);
        let payloads = self.payload_bytes.max(PAYLOAD_BYTES_MAX as usize);
        let connection = requests + payloads + INPUT_BYTES + TLS_BYTES_MAX;
        let negotiation = STACK_BYTES + INPUT_BYTES + TLS_BYTES_MAX + 2 * OPTION_BYTES_MAX as usize;
        exports * self.connections * connection + NEGOTIATIONS_MAX * negotiation
    }
}

/// A socket on which a server waits for clients.
#[derive(Debug)]
pub enum Listener {
    /// A socket in the file system.
    Unix(UnixListener),
    /// A socket of the network.
    Tcp(TcpListener),
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl Listener {
    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(listener) => listener.set_nonblocking(true),
            Self::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }

    /// Accepts a connection and names its client.
    fn accept(&self) -> io::Result<(Socket, String)> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                Ok((Socket::new(stream.into()), String::from("client of the local socket")))
            }
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                let socket = Socket::new(stream.into());
                socket.tune_tcp()?;
                Ok((socket, format!("client {address}")))
            }
        }
    }
}

/// A server for network block devices. It stops when it is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<JoinHandle<()>>,
    /// Its end reaches the listeners when the server stops and drops it.
    running: Option<PipeWriter>,
    stopped: PipeReader,
}

/// State that all threads of a server share.
#[derive(Debug)]
struct Shared {
    catalog: Catalog,
    limits: Limits,
    tls: Option<Tls>,
    log: Log,
    is_stopping: AtomicBool,
    connections: Mutex<Connections>,
    /// A connection has ended.
    ended: Condvar,
}

/// Sockets of all connections, by a number.
#[derive(Debug, Default)]
struct Connections {
    next: u64,
    sockets: BTreeMap<u64, Arc<Socket>>,
    /// Those that negotiate.
    negotiating: BTreeSet<u64>,
}

impl Server {
    /// Makes a server that listens nowhere yet. With certificates, it serves encrypted connections only.
    pub fn new(exports: Vec<NamedExport>, limits: Limits, tls: Option<Tls>, log: Log) -> io::Result<Self> {
        let shared = Shared {
            catalog: Catalog::new(exports, limits.connections),
            limits,
            tls,
            log,
            is_stopping: AtomicBool::new(false),
            connections: Mutex::default(),
            ended: Condvar::new(),
        };
        let (stopped, running) = io::pipe()?;
        Ok(Self { shared: Arc::new(shared), listeners: Vec::new(), running: Some(running), stopped })
    }

    /// Accepts clients from a socket, on a thread of its own. Several sockets may be listened to.
    pub fn listen(&mut self, listener: impl Into<Listener>) -> io::Result<()> {
        let listener = listener.into();
        listener.set_nonblocking()?;
        let (shared, stopped) = (Arc::clone(&self.shared), self.stopped.try_clone()?);
        let thread = std::thread::Builder::new().name(String::from("nbd listener")).stack_size(STACK_BYTES);
        self.listeners.push(thread.spawn(move || shared.listen(&listener, &stopped))?);
        Ok(())
    }

    /// Most bytes of memory of this server, encryption and stacks of threads included.
    pub fn memory_bytes(&self) -> usize {
        self.shared.limits.memory_bytes(self.shared.catalog.entries().len())
    }

    /// Number of connections, those that negotiate included.
    pub fn connections(&self) -> usize {
        self.shared.lock().sockets.len()
    }

    /// Stops: accepts no other client, begins no other request, sends the replies of those in flight, and closes all
    /// connections. Connections that are open after `patience` are cut off, and earlier those whose clients take nothing of a reply. Returns
    /// when no method of an export runs any more.
    pub fn stop(&mut self, patience: Duration) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        self.running = None;
        for listener in self.listeners.drain(..) {
            // A panic of the thread was reported when it happened.
            let _ = listener.join();
        }
        let mut connections = self.shared.lock();
        connections.sockets.values().for_each(|socket| socket.stop_receiving());
        let is_open = |connections: &mut Connections| !connections.sockets.is_empty();
        let (mut left, mut before) = (patience, BTreeMap::new());
        while is_open(&mut connections) && left != Duration::ZERO {
            for (number, socket) in &connections.sockets {
                let sends = socket.sends();
                if before.insert(*number, sends) == Some(sends) && sends % 2 == 1 {
                    socket.cut();
                }
            }
            let pause = left.min(UNREAD_TIME_MAX);
            left -= pause;
            let waited = self.shared.ended.wait_timeout_while(connections, pause, is_open);
            (connections, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        connections.sockets.values().for_each(|socket| socket.cut());
        drop(self.shared.ended.wait_while(connections, is_open));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(self: &Arc<Self>, listener: &Listener, stopped: &PipeReader) {
        while self.wait(listener, stopped) {
            match listener.accept() {
                Ok((socket, client)) => self.begin(socket, client),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    self.log.line(&format!("no connection accepted: {error}"));
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Waits for a client; false if the server stops.
    fn wait(&self, listener: &Listener, stopped: &PipeReader) -> bool {
        let descriptor = listener.descriptor();
        let mut waits = [PollFd::new(&descriptor, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        let forever: Option<&Timespec> = None;
        // An interruption and a failure are both looked at again.
        let _ = poll(&mut waits, forever);
        !self.is_stopping.load(Ordering::SeqCst)
    }

    /// Starts the thread of a connection.
    fn begin(self: &Arc<Self>, socket: Socket, client: String) {
        let Some(registered) = self.register(socket) else {
            self.log.line(&format!("{client}: connection closed: there are too many"));
            return;
        };
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name(String::from("nbd")).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || shared.serve(registered, client)) {
            self.log.line(&format!("no thread for a connection: {error}"));
        }
    }

    fn register(self: &Arc<Self>, socket: Socket) -> Option<Registered> {
        let socket = Arc::new(socket);
        let mut connections = self.lock();
        let limit = self.catalog.entries().len() * self.limits.connections + NEGOTIATIONS_MAX;
        if limit <= connections.sockets.len() {
            // Clients that say nothing keep no other out: the one that has negotiated for longest makes room.
            let oldest = connections.negotiating.pop_first()?;
            connections.sockets.get(&oldest)?.cut();
        }
        let number = connections.next;
        connections.next += 1;
        connections.sockets.insert(number, Arc::clone(&socket));
        connections.negotiating.insert(number);
        drop(connections);
        Some(Registered { shared: Arc::clone(self), number, socket })
    }

    /// Serves a connection from its negotiation to its end.
    fn serve(&self, registered: Registered, client: String) {
        let transport: Box<dyn Transport> = Box::new(Arc::clone(&registered.socket));
        let mut input = Input::new();
        let tls = self.tls.as_ref().map(|tls| tls as &dyn StartTls);
        match negotiate::negotiate(transport, &mut input, &self.catalog, tls) {
            Ok(Some(negotiated)) => {
                self.lock().negotiating.remove(&registered.number);
                let limits = ConnectionLimits { requests: self.limits.requests, bytes: self.limits.payload_bytes };
                let (host, log) = (Box::new(registered), self.log.clone());
                Arc::new(Connection::new(negotiated, input, limits, host, (log, client))).serve();
            }
            Ok(None) => {}
            Err(failure) if failure.is_departure() => {}
            Err(failure) => self.log.line(&format!("{client}: connection closed: {failure}")),
        }
    }
}

/// A connection that the server knows until this is dropped.
struct Registered {
    shared: Arc<Shared>,
    number: u64,
    socket: Arc<Socket>,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Host for Registered {
    fn is_stopping(&self) -> bool {
        self.shared.is_stopping.load(Ordering::Acquire)
    }

    fn cut(&self) {
        self.socket.cut();
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut connections = self.shared.lock();
        connections.sockets.remove(&self.number);
        connections.negotiating.remove(&self.number);
        drop(connections);
        self.shared.ended.notify_all();
    }
}
