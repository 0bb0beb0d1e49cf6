//! One connection of a receiver: takes frames into a bounded queue, appends them to the journal, and acknowledges them when they are
//! durable.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onefold_engine::error::Error;
use onefold_engine::io::Host;

use crate::journal::{AppendError, Lsn};
use crate::link::compress::Decompressor;
use crate::link::failure::Failure;
use crate::link::host::ReceiverHost;
use crate::link::reception::Reception;
use crate::link::stream::{Incoming, Outgoing};
use crate::link::wire::{Compare, Done, FrameMessage, Hello, MESSAGE_BYTES_MAX, Message, Welcome};
use crate::link::{Codec, FRAME_COST, PING_INTERVAL, WINDOW_BYTES};
use crate::nbd::transport::Socket;

/// Memory of a connection: the queue twice, since all of it may be with the thread that appends, and a message in both directions with
/// its records.
pub const MEMORY_BYTES: usize = 2 * WINDOW_BYTES + 4 * MESSAGE_BYTES_MAX;
/// How long the thread that appends waits when the journal is full, before it looks again.
const FULL_WAIT: Duration = Duration::from_millis(50);

/// A frame that was received.
#[derive(Debug)]
struct Received {
    first: Lsn,
    time: u64,
    records: u32,
    body: Vec<u8>,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Received>,
    /// Bytes of the frames that are not appended yet.
    cost: usize,
    is_ended: bool,
    /// Why the thread that appends has ended.
    failure: Option<Failure>,
    is_answering: bool,
}

/// A connection that is served.
#[derive(Debug)]
pub(super) struct Connection {
    reception: Arc<Reception>,
    receiver: Arc<dyn ReceiverHost>,
    socket: Arc<Socket>,
    outgoing: Arc<Outgoing>,
    host: Arc<dyn Host>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Connection {
    pub(super) fn new(
        reception: Arc<Reception>,
        receiver: Arc<dyn ReceiverHost>,
        (socket, outgoing): (Arc<Socket>, Arc<Outgoing>),
        host: Arc<dyn Host>,
    ) -> Self {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        Self { reception, receiver, socket, outgoing, host, queue, changed }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the connection after its first message, until it ends.
    pub(super) fn serve(self: &Arc<Self>, hello: &Hello, mut incoming: Incoming) -> Failure {
        let next = match self.welcome(hello) {
            Ok(next) => next,
            Err(failure) => return failure,
        };
        if let Err(error) = incoming.be_patient() {
            return Failure::Io(error);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let failure = self.append_all();
                if let Err(failure) = failure {
                    self.lock().failure.get_or_insert(failure);
                    // The thread that receives returns.
                    self.socket.stop_receiving();
                }
            });
            let received = self.receive(&mut incoming, next);
            let mut queue = self.lock();
            queue.is_ended = true;
            self.changed.notify_all();
            queue.failure.take().unwrap_or(received)
        })
    }

    /// Answers the first message; returns the next record.
    fn welcome(&self, hello: &Hello) -> Result<Lsn, Failure> {
        let (durable, checksum) = self.reception.last().map_err(failed)?;
        // What the connection before has received counts, too.
        if let Some(sentence) = self.reception.refusal(hello) {
            return Err(Failure::Refusing(sentence));
        }
        // The strongest that both know; the sender offers only what it wants.
        let codec = hello.codecs.iter().copied().find(|codec| *codec != Codec::Off).unwrap_or(Codec::Off);
        self.outgoing.send(&Message::Welcome(Welcome { codec, durable, checksum }))?;
        Ok(Lsn(durable.0 + 1))
    }

    /// Takes messages until the connection ends.
    fn receive(self: &Arc<Self>, incoming: &mut Incoming, mut next: Lsn) -> Failure {
        let mut decompressor = Decompressor::default();
        loop {
            let outcome = match incoming.next() {
                Ok(Message::Frame(frame)) => self.take_frame(&frame, &mut decompressor, next).map(|after| next = after),
                Ok(Message::Ping) => Ok(()),
                Ok(Message::Checkpoint(last)) => self.answer(move |this| this.checkpoint(last)),
                Ok(Message::Compare(compare)) => self.answer(move |this| this.compare(&compare)),
                Ok(Message::Refused(sentence)) => Err(Failure::Refused(sentence.to_owned())),
                Ok(_) => Err(Failure::Protocol("a message that only receivers send, or a second greeting".to_owned())),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = outcome {
                return failure;
            }
        }
    }

    /// Checks a frame and puts it into the queue; returns the record after it.
    fn take_frame(&self, frame: &FrameMessage<'_>, decompressor: &mut Decompressor, next: Lsn) -> Result<Lsn, Failure> {
        let FrameMessage { first, time, records, codec, plain_len, bytes } = *frame;
        let wrong = |reason: String| Failure::Protocol(format!("frame of record {first}: {reason}"));
        if first != next {
            return Err(wrong(format!("record {next} is the next one")));
        }
        let cost = plain_len + FRAME_COST;
        if WINDOW_BYTES < self.lock().cost + cost {
            return Err(wrong("more is under way than the window allows".to_owned()));
        }
        let body = decompressor.decompress(codec, bytes, plain_len);
        let body = body.ok_or_else(|| wrong("its bytes do not decompress".to_owned()))?;
        if let Some(reason) = self.reception.refuse_records(first, time, records, &body) {
            return Err(wrong(reason));
        }
        let mut queue = self.lock();
        queue.cost += cost;
        queue.frames.push_back(Received { first, time, records, body });
        self.changed.notify_all();
        Ok(Lsn(first.0 + u64::from(records)))
    }

    /// Appends frames and acknowledges them, until the connection ends and the queue is empty.
    fn append_all(&self) -> Result<(), Failure> {
        let mut reported = (Lsn(0), Lsn(0));
        loop {
            let mut queue = self.lock();
            if queue.frames.is_empty() && !queue.is_ended {
                let waited = self.changed.wait_timeout(queue, PING_INTERVAL / 2);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            if queue.frames.is_empty() && queue.is_ended {
                return Ok(());
            }
            let frames = std::mem::take(&mut queue.frames);
            drop(queue);
            let is_new = !frames.is_empty();
            for frame in frames {
                self.append(&frame)?;
                self.lock().cost -= frame.body.len() + FRAME_COST;
            }
            if is_new {
                self.reception.journal().sync().map_err(failed)?;
            }
            let durable = Lsn(self.reception.journal().status().durable.0 - 1);
            let state = (durable, self.reception.checkpoint());
            let is_ended = self.lock().is_ended;
            if state != reported && !is_ended {
                self.outgoing.send(&Message::Ack(state.0, state.1))?;
                reported = state;
            } else if !is_ended {
                self.outgoing.ping_if_due()?;
            }
        }
    }

    /// Appends a frame, and waits for space in the journal while the connection lives.
    fn append(&self, frame: &Received) -> Result<(), Failure> {
        loop {
            match self.reception.append(frame.first, frame.time, frame.records, &frame.body) {
                Ok(()) => return Ok(()),
                Err(AppendError::Full) => {
                    if self.lock().is_ended || !self.reception.is_current(&self.socket) {
                        return Err(Failure::Ended);
                    }
                    self.outgoing.ping_if_due()?;
                    self.host.sleep(FULL_WAIT);
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Answers a question in a thread of its own, which may outlive the connection. One is answered at a time.
    fn answer(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<(), Failure> + Send + 'static,
    ) -> Result<(), Failure> {
        if std::mem::replace(&mut self.lock().is_answering, true) {
            return Err(Failure::Protocol("a question before the last one was answered".to_owned()));
        }
        let this = Arc::clone(self);
        let answer = move || {
            if let Err(failure) = work(&this) {
                this.lock().failure.get_or_insert(failure);
                this.socket.stop_receiving();
            }
        };
        let started = std::thread::Builder::new().name("link request".to_owned()).spawn(answer);
        started.map(drop).map_err(Failure::Io)
    }

    fn checkpoint(&self, last: Lsn) -> Result<(), Failure> {
        self.wait_durable(last)?;
        let done = self.receiver.checkpoint().unwrap_or_else(|error| Done::Failed(error.to_string()));
        self.lock().is_answering = false;
        Ok(self.outgoing.send(&Message::Done(done))?)
    }

    fn compare(&self, compare: &Compare) -> Result<(), Failure> {
        self.wait_durable(compare.at)?;
        let size = self.reception.spec().volumes.get(usize::from(compare.volume)).map_or(0, |volume| volume.size);
        if size < compare.offset + u64::from(compare.len) {
            return Err(Failure::Protocol("a question for bytes that no volume has".to_owned()));
        }
        let mut fingerprints = Vec::new();
        let outcome = self.receiver.fingerprints(compare, &mut fingerprints);
        self.lock().is_answering = false;
        let answer = match outcome {
            Ok(()) => Message::Fingerprints(&fingerprints),
            Err(error) => Message::Done(Done::Failed(error.to_string())),
        };
        Ok(self.outgoing.send(&answer)?)
    }

    /// Waits until a record is durable.
    fn wait_durable(&self, lsn: Lsn) -> Result<(), Failure> {
        let journal = self.reception.journal();
        while journal.wait_durable(lsn, FULL_WAIT) <= lsn {
            if self.lock().is_ended {
                return Err(Failure::Ended);
            }
            if let Some(error) = journal.failure() {
                return Err(Failure::Local(error));
            }
        }
        Ok(())
    }
}

fn failed(error: AppendError) -> Failure {
    match error {
        AppendError::Failed(error) => {
            Failure::Local(Error::invalid(format!("the journal of the receiver has failed: {error}")))
        }
        AppendError::Full => Failure::Local(Error::invalid(error.to_string())),
    }
}
