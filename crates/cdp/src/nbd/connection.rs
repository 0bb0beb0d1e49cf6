//! The second phase of a connection, in which the server executes requests ("Transmission").
//!
//! A connection has several threads. One at a time, the receiver, holds the input and receives a request. Then it either
//! executes the request and stays the receiver, or hands the input to another thread first. It stays while the client has one
//! request in flight and the export is prompt: a switch of threads takes longer than a write to the page cache. It hands over
//! as soon as another request arrives while one is executed. Threads start when they are needed, one for each request in
//! flight.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::admit::{Refusal, Terms};
use super::buffers::{Buffer, Buffers};
use super::catalog::Slot;
use super::export::Export;
use super::input::{Input, Received};
use super::negotiate::{Failure, Negotiated};
use super::respond::{Responder, Scratch};
use super::transport::Transport;
use super::wire::PAYLOAD_BYTES_MAX;
use super::wire::request::{self, Request, command, flag};
use crate::log::Log;

/// Bytes of the stack of a thread of a connection.
pub(crate) const STACK_BYTES: usize = 256 << 10;

/// Requests for which the input is handed over after two have been in flight.
const CONCURRENT_REQUESTS: u32 = 64;

/// Parts of the server that a connection needs.
pub(crate) trait Host: fmt::Debug + Send + Sync {
    /// Returns true if no other request may begin.
    fn is_stopping(&self) -> bool;

    /// Ends the connection immediately.
    fn cut(&self);
}

/// Limits of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Most requests in flight.
    pub(crate) requests: usize,
    /// Most bytes of payloads in flight.
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// The first field, because it is dropped first: the stream ends before the server forgets the connection.
    ending: Ending,
    receiving: Mutex<Receiving>,
    terms: Terms,
    slot: Slot,
    buffers: Buffers,
    limits: ConnectionLimits,
    /// Threads of the connection, and those among them that wait for the input.
    threads: AtomicUsize,
    waiting: AtomicUsize,
    /// Requests that are executed.
    executing: AtomicUsize,
    host: Box<dyn Host>,
    log: Log,
    /// Names the client in messages.
    client: String,
}

/// Ends the stream to the client when the connection is dropped.
#[derive(Debug)]
struct Ending(Box<dyn Transport>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// State of the receiver.
#[derive(Debug)]
struct Receiving {
    input: Input,
    has_ended: bool,
    /// Requests for which the input is still handed over.
    concurrent: u32,
}

/// A request that may be executed, or the reason why it may not.
struct Arrived<'a> {
    request: Request,
    admitted: Result<Buffer<'a>, Refusal>,
}

/// Cuts the connection if its thread panics. Otherwise the client waits forever for the reply.
struct CutOnPanic<'a>(&'a dyn Host);

impl Drop for CutOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cut();
        }
    }
}

/// Counts a thread or a request until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Connection {
    pub(crate) fn new(
        negotiated: Negotiated,
        input: Input,
        limits: ConnectionLimits,
        host: Box<dyn Host>,
        (log, client): (Log, String),
    ) -> Self {
        let Negotiated { transport, slot, is_structured, contexts } = negotiated;
        let size = slot.entry().named.export.size();
        let terms = Terms { size, flags: slot.entry().flags(is_structured), is_structured, contexts };
        Self {
            ending: Ending(transport),
            receiving: Mutex::new(Receiving { input, has_ended: false, concurrent: 0 }),
            terms,
            slot,
            buffers: Buffers::new(limits.bytes),
            limits,
            threads: AtomicUsize::new(1),
            waiting: AtomicUsize::new(0),
            executing: AtomicUsize::new(0),
            host,
            log,
            client,
        }
    }

    /// Receives and executes requests until the connection ends. The caller's thread is the first of the connection.
    pub(crate) fn serve(self: &Arc<Self>) {
        let _cut = CutOnPanic(&*self.host);
        let mut scratch = Scratch::default();
        while let Some(mut receiving) = self.wait_for_input() {
            // Executes requests as long as this thread stays the receiver.
            loop {
                let Some(arrived) = self.receive(&mut receiving) else {
                    receiving.has_ended = true;
                    return;
                };
                if self.hands_over(&arrived.request, &mut receiving) && self.has_successor() {
                    let _executing = Counted::new(&self.executing);
                    drop(receiving);
                    self.execute(arrived, &mut scratch, None);
                    break;
                }
                let _executing = Counted::new(&self.executing);
                self.execute(arrived, &mut scratch, Some(&mut receiving));
            }
        }
    }

    /// Becomes the receiver; none if nothing else will arrive.
    fn wait_for_input(&self) -> Option<MutexGuard<'_, Receiving>> {
        let _waiting = Counted::new(&self.waiting);
        let receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        (!receiving.has_ended).then_some(receiving)
    }

    /// Receives a request with its payload; none at the end.
    fn receive(&self, receiving: &mut Receiving) -> Option<Arrived<'_>> {
        if self.host.is_stopping() {
            return None;
        }
        match self.try_receive(&mut receiving.input) {
            Ok(arrived) => arrived.filter(|_| !self.host.is_stopping()),
            Err(failure) if failure.is_departure() => None,
            Err(failure) => {
                self.log.line(&format!("{}: connection closed: {failure}", self.client));
                None
            }
        }
    }

    fn try_receive(&self, input: &mut Input) -> Result<Option<Arrived<'_>>, Failure> {
        let mut message = [0; request::HEADER_BYTES];
        if input.read(self.transport(), &mut message)? != Received::All {
            return Ok(None);
        }
        let request = Request::decode(&message)?;
        if request.command == command::DISC {
            return Ok(None);
        }
        let admitted = self.terms.admit(&request);
        let payload = request.payload_len();
        if admitted.is_err() {
            let is_whole = input.skip(self.transport(), u64::from(payload))? == Received::All;
            let refusal = |refusal| Arrived { request, admitted: Err(refusal) };
            return Ok(admitted.err().map(refusal).filter(|_| is_whole));
        }
        // While there is no memory for it, nothing else is received.
        let has_data = matches!(request.command, command::READ | command::WRITE);
        let mut buffer = self.buffers.take(if has_data { request.len.min(PAYLOAD_BYTES_MAX) as usize } else { 0 });
        // A client that is cut off within a payload has written nothing.
        if payload != 0 && input.read(self.transport(), &mut buffer)? != Received::All {
            return Ok(None);
        }
        Ok(Some(Arrived { request, admitted: Ok(buffer) }))
    }

    /// Returns true if another thread shall receive while this one executes the request.
    fn hands_over(&self, request: &Request, receiving: &mut Receiving) -> bool {
        let is_concurrent = receiving.input.buffered() != 0 || self.executing.load(Ordering::Acquire) != 0;
        if is_concurrent {
            receiving.concurrent = CONCURRENT_REQUESTS;
        }
        let is_quick = matches!(request.command, command::READ | command::WRITE) && !request.has(flag::FUA);
        if receiving.concurrent == 0 {
            return !is_quick || !self.export().is_prompt();
        }
        receiving.concurrent -= 1;
        true
    }

    /// Returns true if a thread waits for the input, or has started to.
    fn has_successor(self: &Arc<Self>) -> bool {
        // This thread holds the input: one that waits goes on waiting.
        if self.waiting.load(Ordering::Acquire) != 0 {
            return true;
        }
        if self.limits.requests <= self.threads.load(Ordering::Acquire) {
            return false;
        }
        self.threads.fetch_add(1, Ordering::AcqRel);
        let connection = Arc::clone(self);
        let thread = std::thread::Builder::new().name(String::from("nbd")).stack_size(STACK_BYTES);
        let is_started = thread.spawn(move || connection.serve()).is_ok();
        if !is_started {
            self.threads.fetch_sub(1, Ordering::AcqRel);
        }
        is_started
    }

    /// Executes a request and sends the reply. A thread that stays the receiver looks for the next request in between.
    fn execute(&self, arrived: Arrived<'_>, scratch: &mut Scratch, receiving: Option<&mut Receiving>) {
        let Arrived { request, admitted } = arrived;
        let mut responder = Responder { request, terms: &self.terms, transport: self.transport(), scratch };
        let outcome = admitted.and_then(|mut buffer| {
            let prepared = responder.execute(self.export(), &mut buffer)?;
            Ok((prepared, buffer))
        });
        if let Some(receiving) = receiving
            && let Ok(true) = receiving.input.try_fill(self.transport())
        {
            // The client did not wait for the reply.
            receiving.concurrent = CONCURRENT_REQUESTS;
        }
        let sent = match outcome {
            Ok((prepared, buffer)) => responder.send(prepared, &buffer),
            Err(refusal) => responder.send_refusal(refusal),
        };
        if sent.is_err() {
            // The client is gone: the receiver finds out.
            self.host.cut();
        }
    }

    fn transport(&self) -> &dyn Transport {
        &*self.ending.0
    }

    fn export(&self) -> &dyn Export {
        &*self.slot.entry().named.export
    }
}
