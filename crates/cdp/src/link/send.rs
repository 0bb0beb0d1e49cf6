//! The side that serves the volumes: sends the durable frames of its journal.

use std::convert::Infallible;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::Host;

use crate::journal::codec::FRAME_BODY_MAX;
use crate::journal::{Lag, Lsn};
use crate::link::compress::Compressor;
use crate::link::failure::Failure;
use crate::link::frames::{check_continues, read_frame};
use crate::link::session::Peer;
use crate::link::stream::{Incoming, Outgoing};
use crate::link::window::{Sent, Window};
use crate::link::wire::{
    self, Compare, Done, FINGERPRINT_BYTES, FrameMessage, Hello, MESSAGE_BYTES_MAX, Message, Welcome,
};
use crate::link::{BLOCK_BYTES, Codec, PAUSE_MAX, PAUSE_MIN, PING_INTERVAL, SILENCE_MAX, SYNC_INTERVAL};
use crate::log::Log;
use crate::nbd::transport::Socket;
use crate::nbd::wire::Errno;
use crate::stored::GroupSpec;
use crate::volume::Group;

/// Memory of a sender: a frame of the journal as it is read, its records, their compressed form, the message, and a message that is
/// received.
pub const MEMORY_BYTES: usize = 5 * MESSAGE_BYTES_MAX;
/// Longest time until a sender notices that it is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(200);
/// Segments of the journal for which the volumes are not synced: the one that is written, and the one before, which it has left.
const SEGMENTS_KEPT: u32 = 2;
/// How long fingerprints may take: the receiver may have to sync and to open a view first.
const COMPARE_TIME_MAX: Duration = Duration::from_mins(5);

/// State of a link for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    /// The receiver.
    pub address: String,
    /// True if the receiver is connected.
    pub is_connected: bool,
    /// The last record that is durable at the receiver; `None` before the first connection.
    pub acknowledged: Option<Lsn>,
    /// The last record that is in a checkpoint there.
    pub checkpoint: Lsn,
    /// Records that are not acknowledged.
    pub lag_records: u64,
    /// Their bytes in the journal.
    pub lag_bytes: u64,
    /// Age of the oldest of them.
    pub lag: Duration,
    /// Codec of the frames.
    pub codec: Option<Codec>,
    /// Bytes of records that were sent by this process, and the bytes that passed for them.
    pub plain_bytes: u64,
    /// See `plain_bytes`.
    pub sent_bytes: u64,
    /// Connections that were lost.
    pub losses: u64,
    /// Why there is no connection.
    pub failure: Option<String>,
}

/// The current connection.
#[derive(Debug)]
struct Connected {
    number: u64,
    outgoing: Arc<Outgoing>,
    socket: Arc<Socket>,
    codec: Codec,
}

/// An answer of the receiver.
#[derive(Debug)]
enum Answer {
    Fingerprints(Vec<u8>),
    Done(Done),
}

#[derive(Debug, Default)]
struct State {
    connected: Option<Connected>,
    /// Numbers connections.
    next: u64,
    window: Window,
    is_known: bool,
    checkpoint: Lsn,
    answer: Option<Answer>,
    plain_bytes: u64,
    sent_bytes: u64,
    losses: u64,
    failure: Option<String>,
    is_stopping: bool,
}

/// Sends the journal of a group to a receiver.
#[derive(Debug)]
pub struct Sender {
    group: Arc<Group>,
    spec: GroupSpec,
    peer: Peer,
    codec: Codec,
    host: Arc<dyn Host>,
    log: Log,
    state: Mutex<State>,
    changed: Condvar,
    /// One request waits for its answer at a time.
    asking: Mutex<()>,
    /// First and longest pause between connections.
    pauses: (Duration, Duration),
}

impl Sender {
    /// Prepares to send. [`Sender::run`] must run in a thread of its own.
    pub fn new(
        group: Arc<Group>,
        spec: GroupSpec,
        (peer, codec): (Peer, Codec),
        host: Arc<dyn Host>,
        log: Log,
    ) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let (asking, pauses) = (Mutex::new(()), (PAUSE_MIN, PAUSE_MAX));
        Self { group, spec, peer, codec, host, log, state, changed, asking, pauses }
    }

    /// Pauses for other times between connections.
    #[cfg(test)]
    pub(super) fn with_pauses(self, first: Duration, longest: Duration) -> Self {
        Self { pauses: (first, longest), ..self }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Connects, sends, and connects again after each loss, until [`Sender::stop`].
    pub fn run(&self) {
        let mut pause = self.pauses.0;
        while !self.lock().is_stopping {
            let before = self.lock().next;
            let Err(failure) = self.session() else { return };
            let mut state = self.lock();
            if state.next != before {
                pause = self.pauses.0;
                state.losses += 1;
            }
            let reason = failure.to_string();
            if state.failure.as_ref() != Some(&reason) && !state.is_stopping {
                self.log.line(&format!("no link to {}: {reason}", self.peer.address));
                state.failure = Some(reason);
            }
            let until = self.host.monotonic() + pause;
            while !state.is_stopping && self.host.monotonic() < until {
                state = self.wait(state, until.saturating_sub(self.host.monotonic()));
            }
            pause = (2 * pause).min(self.pauses.1);
        }
    }

    /// Ends [`Sender::run`] within a second or, while it connects, within a few.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopping = true;
        if let Some(connected) = &state.connected {
            connected.socket.cut();
        }
        self.changed.notify_all();
    }

    /// One connection; returns only if the sender is to stop.
    fn session(&self) -> Result<(), Failure> {
        let (socket, transport) = self.peer.connect()?;
        let outgoing = Arc::new(Outgoing::new(Arc::clone(&transport), Arc::clone(&self.host)));
        let mut incoming = Incoming::new(transport)?;
        let welcome = self.open(&outgoing, &mut incoming)?;
        incoming.be_patient()?;
        let Welcome { codec, durable, .. } = welcome;
        let mut state = self.lock();
        let number = state.next + 1;
        (state.next, state.window, state.is_known) = (number, Window::begin(durable), true);
        (state.failure, state.answer) = (None, None);
        let (of_state, of_socket) = (Arc::clone(&outgoing), Arc::clone(&socket));
        state.connected = Some(Connected { number, outgoing: of_state, socket: of_socket, codec });
        let is_stopping = state.is_stopping;
        drop(state);
        self.changed.notify_all();
        self.log.line(&format!("linked to {}, which has the records up to {durable}", self.peer.address));
        self.group.release(durable);
        if is_stopping {
            socket.cut();
        }
        let (received, sent) = std::thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let failure = self.receive(&mut incoming);
                if let Failure::Protocol(reason) = &failure {
                    outgoing.refuse(reason);
                }
                self.disconnect(&socket);
                failure
            });
            let sent = self.send_frames(&outgoing, (durable, codec));
            if let Failure::Local(error) = &sent {
                outgoing.refuse(&error.to_string());
            }
            self.disconnect(&socket);
            (receiving.join().unwrap_or(Failure::Ended), sent)
        });
        if self.lock().is_stopping {
            return Ok(());
        }
        // Both notice that the stream broke, and the thread that receives knows why.
        Err(if matches!(sent, Failure::Local(_)) { sent } else { received })
    }

    fn disconnect(&self, socket: &Socket) {
        self.lock().connected = None;
        self.changed.notify_all();
        socket.cut();
    }

    /// Sends the first message and takes the answer.
    fn open(&self, outgoing: &Outgoing, incoming: &mut Incoming) -> Result<Welcome, Failure> {
        let status = self.group.journal().status();
        let codecs = if self.codec == Codec::Off { vec![Codec::Off] } else { vec![Codec::Off, self.codec] };
        let group = self.spec.clone();
        outgoing.send(&Message::Hello(Hello { group, codecs, first: status.first, next: status.durable }))?;
        let welcome = match incoming.next()? {
            Message::Welcome(welcome) => welcome,
            Message::Refused(sentence) => return Err(Failure::Refused(sentence.to_owned())),
            _ => return Err(Failure::Protocol("its first message is no welcome".to_owned())),
        };
        if welcome.codec != Codec::Off && welcome.codec != self.codec {
            return Err(Failure::Protocol("it chooses a codec that was not offered".to_owned()));
        }
        check_continues(self.group.journal(), &welcome).inspect_err(|failure| {
            if let Failure::Refusing(sentence) = failure {
                outgoing.refuse(sentence);
            }
        })?;
        Ok(welcome)
    }

    /// Sends frames as they become durable, until the connection ends.
    fn send_frames(&self, outgoing: &Outgoing, after: (Lsn, Codec)) -> Failure {
        match self.try_send_frames(outgoing, after) {
            Err(failure) => failure,
            Ok(never) => match never {},
        }
    }

    fn try_send_frames(&self, outgoing: &Outgoing, (from, codec): (Lsn, Codec)) -> Result<Infallible, Failure> {
        let journal = self.group.journal();
        let mut frames = journal.frames(Lsn(from.0 + 1));
        let (mut plain, mut bytes) = (Vec::with_capacity(FRAME_BODY_MAX), Vec::new());
        let mut compressor = Compressor::default();
        loop {
            self.check_connection()?;
            journal.follow(&mut frames);
            plain.clear();
            let Some((first, time, records)) = read_frame(&mut frames, &mut plain)? else {
                self.wait_for_records(frames.position())?;
                outgoing.ping_if_due()?;
                continue;
            };
            let used = compressor.compress(codec, &plain, &mut bytes);
            let last = Lsn(first.0 + u64::from(records) - 1);
            self.wait_for_space(plain.len(), outgoing)?;
            let mut state = self.lock();
            state.window.push(Sent { last, bytes: plain.len() });
            state.plain_bytes += plain.len() as u64;
            state.sent_bytes += bytes.len() as u64;
            drop(state);
            let message = FrameMessage { first, time, records, codec: used, plain_len: plain.len(), bytes: &bytes };
            outgoing.send(&Message::Frame(message))?;
        }
    }

    fn check_connection(&self) -> Result<(), Failure> {
        let state = self.lock();
        if state.connected.is_none() || state.is_stopping { Err(Failure::Ended) } else { Ok(()) }
    }

    /// Waits until a record may be durable, and syncs the journal if records wait for that.
    fn wait_for_records(&self, next: Lsn) -> Result<(), Failure> {
        let journal = self.group.journal();
        if next < journal.wait_durable(next, SYNC_INTERVAL.min(STOP_INTERVAL)) {
            return Ok(());
        }
        let failed = |error: crate::journal::AppendError| Failure::Local(Error::invalid(error.to_string()));
        if next < journal.next() { journal.sync().map_err(failed) } else { Ok(()) }
    }

    /// Waits until a frame with so many bytes may be sent.
    fn wait_for_space(&self, bytes: usize, outgoing: &Outgoing) -> Result<(), Failure> {
        let mut state = self.lock();
        while !state.window.has_space(bytes) {
            if state.connected.is_none() || state.is_stopping {
                return Err(Failure::Ended);
            }
            state = self.wait(state, PING_INTERVAL);
            drop(state);
            outgoing.ping_if_due()?;
            state = self.lock();
        }
        Ok(())
    }

    /// Takes the messages of the receiver until the connection ends.
    fn receive(&self, incoming: &mut Incoming) -> Failure {
        loop {
            let answer = match incoming.next() {
                Ok(Message::Ack(durable, checkpoint)) => {
                    let mut state = self.lock();
                    if !state.window.acknowledge(durable) {
                        return Failure::Protocol(format!("it acknowledges record {durable}, which it was not sent"));
                    }
                    state.checkpoint = checkpoint;
                    drop(state);
                    self.changed.notify_all();
                    // The last one stays, so that the next connection can compare it.
                    self.group.release(durable);
                    continue;
                }
                Ok(Message::Ping) => continue,
                Ok(Message::Fingerprints(bytes)) => Answer::Fingerprints(bytes.to_vec()),
                Ok(Message::Done(done)) => Answer::Done(done),
                Ok(Message::Refused(sentence)) => return Failure::Refused(sentence.to_owned()),
                Ok(_) => return Failure::Protocol("a message that only senders send".to_owned()),
                Err(failure) => return failure,
            };
            self.lock().answer = Some(answer);
            self.changed.notify_all();
        }
    }

    /// Asks the receiver for a checkpoint with all records up to now, and waits for it.
    pub fn checkpoint(&self) -> Result<Done> {
        let last = Lsn(self.group.journal().next().0 - 1);
        match self.ask(&Message::Checkpoint(last), None)? {
            Answer::Done(done) => Ok(done),
            Answer::Fingerprints(_) => Err(Error::invalid("the receiver answers another question")),
        }
    }

    /// Asks the receiver for the fingerprints of blocks as they are after a record, which it waits for. Appends the blocks of `found`
    /// that differ, as numbers from `offset` on.
    pub fn find_differences(
        &self,
        at: Lsn,
        (volume, offset): (u16, u64),
        found: &[u8],
        differing: &mut Vec<usize>,
    ) -> Result<()> {
        let mut key = [0; 32];
        self.host.random(&mut key)?;
        let len = u32::try_from(found.len()).map_err(|_| Error::invalid("a range that is too long to be compared"))?;
        let compare = Compare { at, volume, offset, len, key };
        let stored = match self.ask(&Message::Compare(compare), Some(COMPARE_TIME_MAX))? {
            Answer::Fingerprints(stored) => stored,
            Answer::Done(Done::Failed(sentence)) => {
                return Err(Error::invalid(format!("the receiver cannot compare: {sentence}")));
            }
            Answer::Done(_) => return Err(Error::invalid("the receiver answers another question")),
        };
        let mut expected = Vec::with_capacity(stored.len());
        wire::fingerprint_blocks(&key, found, &mut expected);
        if stored.len() != expected.len() || expected.len() != found.len().div_ceil(BLOCK_BYTES) * FINGERPRINT_BYTES {
            return Err(Error::invalid("the receiver has not compared all blocks"));
        }
        let pairs = expected.chunks(FINGERPRINT_BYTES).zip(stored.chunks(FINGERPRINT_BYTES)).enumerate();
        differing.extend(pairs.filter(|(_, (expected, stored))| expected != stored).map(|(number, _)| number));
        Ok(())
    }

    /// Sends a request and waits for its answer.
    fn ask(&self, message: &Message<'_>, patience: Option<Duration>) -> Result<Answer> {
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let connected = state.connected.as_ref().map(|connected| (connected.number, Arc::clone(&connected.outgoing)));
        let Some((number, outgoing)) = connected else {
            let reason = state.failure.clone().unwrap_or_else(|| "the link is being established".to_owned());
            return Err(Error::invalid(format!("no link to {}: {reason}", self.peer.address)));
        };
        state.answer = None;
        drop(state);
        outgoing.send(message).map_err(|error| Error::invalid(format!("no link to {}: {error}", self.peer.address)))?;
        let start = self.host.monotonic();
        let mut state = self.lock();
        loop {
            if let Some(answer) = state.answer.take() {
                return Ok(answer);
            }
            let is_same = state.connected.as_ref().is_some_and(|connected| connected.number == number);
            if !is_same || state.is_stopping {
                return Err(Error::invalid(format!("the link to {} was lost; ask again", self.peer.address)));
            }
            if patience.is_some_and(|patience| patience < self.host.monotonic().saturating_sub(start)) {
                // An answer that comes later must not be taken for that of the next question.
                if let Some(connected) = &state.connected {
                    connected.socket.cut();
                }
                return Err(Error::invalid(format!("{} does not answer", self.peer.address)));
            }
            state = self.wait(state, SILENCE_MAX);
        }
    }

    /// Waits until all records before one are durable at the receiver, at most for a time; returns true if they are.
    pub fn wait_acknowledged(&self, next: Lsn, patience: Duration) -> bool {
        let until = self.host.monotonic() + patience;
        let mut state = self.lock();
        loop {
            if state.is_known && next.0 <= state.window.acknowledged().0 + 1 {
                return true;
            }
            let left = until.saturating_sub(self.host.monotonic());
            if left.is_zero() || state.is_stopping {
                return false;
            }
            state = self.wait(state, left);
        }
    }

    /// Syncs the volumes if that lets the journal give records back that the receiver has. To be called every second, and more often while
    /// the journal is full.
    pub fn maintain(&self) -> Result<(), Errno> {
        let acknowledged = self.lock().window.acknowledged();
        let needs_sync = self.group.synced() <= acknowledged;
        let status = self.group.journal().status();
        // Extents that are behind are recorded only while half of the journal is free.
        let is_scarce = SEGMENTS_KEPT < status.segments || status.bytes_max <= 2 * status.used;
        if needs_sync && is_scarce {
            self.group.sync()?;
        }
        self.group.release(acknowledged);
        Ok(())
    }

    /// Returns the state.
    pub fn status(&self) -> LinkStatus {
        let journal = self.group.journal();
        let state = self.lock();
        let acknowledged = state.is_known.then(|| state.window.acknowledged());
        let status = LinkStatus {
            address: self.peer.address.clone(),
            is_connected: state.connected.is_some(),
            acknowledged,
            checkpoint: state.checkpoint,
            lag_records: 0,
            lag_bytes: 0,
            lag: Duration::ZERO,
            codec: state.connected.as_ref().map(|connected| connected.codec),
            plain_bytes: state.plain_bytes,
            sent_bytes: state.sent_bytes,
            losses: state.losses,
            failure: state.failure.clone(),
        };
        drop(state);
        let Lag { records, bytes, time } =
            journal.lag(acknowledged.map_or(journal.status().first, |last| Lsn(last.0 + 1)));
        let now = self.host.now();
        let now = Duration::new(u64::try_from(now.seconds).unwrap_or(0), now.nanoseconds);
        let lag = time.map_or(Duration::ZERO, |time| now.saturating_sub(Duration::from_nanos(time)));
        LinkStatus { lag_records: records, lag_bytes: bytes, lag, ..status }
    }
}
