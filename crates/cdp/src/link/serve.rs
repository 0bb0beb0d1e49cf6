//! Listening for senders.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onefold_engine::io::Host;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::link::failure::Failure;
use crate::link::host::ReceiverHost;
use crate::link::receive::Connection;
use crate::link::stream::{Incoming, Outgoing};
use crate::link::wire::Message;
use crate::link::{OPENING_TIME_MAX, ReceiverTls};
use crate::log::Log;
use crate::nbd::transport::{Socket, Transport};

/// Most connections that are not linked yet.
const OPENING_MAX: usize = 64;
/// How often the listener looks whether it is to stop, and for connections that take too long to open.
const LISTEN_INTERVAL: Duration = Duration::from_millis(200);

/// Connections, by a number. `None` instead of a time: the connection is linked.
type Sockets = BTreeMap<u64, (Arc<Socket>, Option<Duration>)>;

/// Receives the records of a group.
#[derive(Debug)]
pub struct Receiver {
    program: Arc<dyn ReceiverHost>,
    tls: ReceiverTls,
    host: Arc<dyn Host>,
    log: Log,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sockets: Sockets,
    next: u64,
    is_stopping: bool,
    /// The last line about a connection that was not linked: a sender that is refused comes back every few seconds.
    reported: Option<(IpAddr, String)>,
}

impl Receiver {
    /// Prepares to receive. [`Receiver::run`] must run in a thread of its own.
    pub fn new(program: Arc<dyn ReceiverHost>, tls: ReceiverTls, host: Arc<dyn Host>, log: Log) -> Self {
        Self { program, tls, host, log, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts senders until [`Receiver::stop`], and returns when no connection is served any more.
    pub fn run(&self, listener: &TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        std::thread::scope(|scope| {
            loop {
                Self::wait(listener);
                if self.lock().is_stopping {
                    return Ok(());
                }
                self.cut_late();
                match listener.accept() {
                    Ok((stream, address)) => {
                        let socket = Arc::new(Socket::new(stream.into()));
                        self.begin(scope, socket, address);
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
                    Err(error) => {
                        self.log.line(&format!("no connection accepted: {error}"));
                        self.host.sleep(LISTEN_INTERVAL);
                    }
                }
            }
        })
    }

    /// Ends [`Receiver::run`], and all connections.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopping = true;
        state.sockets.values().for_each(|(socket, _)| socket.cut());
    }

    /// Waits for a sender, or for a while.
    fn wait(listener: &TcpListener) {
        let descriptor = listener.as_fd();
        let mut waits = [PollFd::new(&descriptor, PollFlags::IN)];
        let time = Timespec::try_from(LISTEN_INTERVAL).ok();
        // An interruption and a failure are both looked at again.
        let _ = poll(&mut waits, time.as_ref());
    }

    /// Cuts connections that take too long to open, however many bytes they send.
    fn cut_late(&self) {
        let now = self.host.monotonic();
        for (socket, since) in self.lock().sockets.values() {
            if since.is_some_and(|since| OPENING_TIME_MAX < now.saturating_sub(since)) {
                socket.cut();
            }
        }
    }

    fn begin<'scope, 'env>(
        &'env self,
        scope: &'scope std::thread::Scope<'scope, 'env>,
        socket: Arc<Socket>,
        address: SocketAddr,
    ) {
        let mut state = self.lock();
        if state.is_stopping {
            return;
        }
        let opening = || state.sockets.iter().filter(|(_, (_, since))| since.is_some()).map(|(number, _)| *number);
        // Connections that say nothing keep no sender out: the oldest makes room.
        let oldest = if OPENING_MAX <= opening().count() { opening().next() } else { None };
        if let Some((late, _)) = oldest.and_then(|oldest| state.sockets.remove(&oldest)) {
            late.cut();
        }
        let number = state.next;
        state.next += 1;
        state.sockets.insert(number, (Arc::clone(&socket), Some(self.host.monotonic())));
        drop(state);
        let serve = move || {
            let failure = self.serve(&socket, number, address);
            socket.cut();
            self.report(number, address, &failure.to_string());
        };
        let started = std::thread::Builder::new().name("link".to_owned()).spawn_scoped(scope, serve);
        if let Err(error) = started {
            self.lock().sockets.remove(&number);
            self.log.line(&format!("{address}: no thread for a connection: {error}"));
        }
    }

    /// Forgets a connection and reports its end, but not the same one over and over.
    fn report(&self, number: u64, address: SocketAddr, reason: &str) {
        let mut state = self.lock();
        let was_linked = state.sockets.remove(&number).is_some_and(|(_, since)| since.is_none());
        let reported = (!was_linked).then(|| (address.ip(), reason.to_owned()));
        let is_same = reported.is_some() && reported == state.reported;
        state.reported = reported;
        if state.is_stopping || is_same {
            return;
        }
        drop(state);
        self.log.line(&format!("{address}: connection closed: {reason}"));
    }

    /// Serves a connection from its handshake to its end.
    fn serve(&self, socket: &Arc<Socket>, number: u64, address: SocketAddr) -> Failure {
        let (outgoing, incoming) = match self.open(socket) {
            Ok(opened) => opened,
            Err(error) => return Failure::Io(error),
        };
        let outgoing = Arc::new(outgoing);
        let failure = self.link(&outgoing, incoming, (socket, number, address));
        // The other side gets to know what it did.
        match &failure {
            Failure::Protocol(reason) | Failure::Refusing(reason) => outgoing.refuse(reason),
            Failure::Local(error) => outgoing.refuse(&error.to_string()),
            _ => {}
        }
        failure
    }

    fn open(&self, socket: &Arc<Socket>) -> io::Result<(Outgoing, Incoming)> {
        socket.tune_tcp()?;
        socket.limit_waits(Some(OPENING_TIME_MAX))?;
        let transport: Arc<dyn Transport> = Arc::from(self.tls.start(Box::new(Arc::clone(socket)))?);
        let outgoing = Outgoing::new(Arc::clone(&transport), Arc::clone(&self.host));
        Ok((outgoing, Incoming::new(transport)?))
    }

    /// Serves a connection after its handshake.
    fn link(
        &self,
        outgoing: &Arc<Outgoing>,
        mut incoming: Incoming,
        (socket, number, address): (&Arc<Socket>, u64, SocketAddr),
    ) -> Failure {
        let hello = match incoming.next() {
            Ok(Message::Hello(hello)) => hello,
            Ok(_) => return Failure::Protocol("the first message is no greeting".to_owned()),
            Err(failure) => return failure,
        };
        let reception = match self.program.admit(&hello) {
            Ok(reception) => reception,
            Err(error) => return Failure::Refusing(error.to_string()),
        };
        if let Some(sentence) = reception.refusal(&hello) {
            return Failure::Refusing(sentence);
        }
        if let Some((_, since)) = self.lock().sockets.get_mut(&number) {
            *since = None;
        }
        let _serving = reception.take_over(socket);
        if !reception.is_current(socket) {
            return Failure::Replaced;
        }
        self.log.line(&format!(
            "{address}: receiving group {} from record {} on",
            hello.group.name,
            reception.status().durable.0 + 1
        ));
        let connection = Connection::new(
            Arc::clone(&reception),
            Arc::clone(&self.program),
            (Arc::clone(socket), Arc::clone(outgoing)),
            Arc::clone(&self.host),
        );
        Arc::new(connection).serve(&hello, incoming)
    }
}
