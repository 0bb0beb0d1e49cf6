//! Messages on an encrypted stream.

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onefold_engine::io::Host;

use crate::link::failure::Failure;
use crate::link::wire::{self, HEADER_BYTES, Message};
use crate::link::{OPENING_TIME_MAX, PING_INTERVAL, SILENCE_MAX};
use crate::nbd::input::{Input, Received};
use crate::nbd::transport::Transport;

/// The half that receives. One thread has it.
#[derive(Debug)]
pub(super) struct Incoming {
    transport: Arc<dyn Transport>,
    input: Input,
    body: Vec<u8>,
}

impl Incoming {
    /// Begins to receive. The first message must come within [`OPENING_TIME_MAX`].
    pub(super) fn new(transport: Arc<dyn Transport>) -> io::Result<Self> {
        let mut input = Input::new();
        input.set_limit(&*transport, Some(OPENING_TIME_MAX))?;
        Ok(Self { transport, input, body: Vec::new() })
    }

    /// From now on, the other side may take as long as it wants if it shows that it is there.
    pub(super) fn be_patient(&mut self) -> io::Result<()> {
        self.input.set_limit(&*self.transport, None)?;
        self.transport.limit_waits(Some(SILENCE_MAX))
    }

    /// Waits for a message.
    pub(super) fn next(&mut self) -> Result<Message<'_>, Failure> {
        let Self { transport, input, body } = self;
        let mut header = [0; HEADER_BYTES];
        match input.read(&**transport, &mut header)? {
            Received::All => {}
            Received::Nothing => return Err(Failure::Ended),
            Received::Truncated => return Err(truncated()),
        }
        let wrong = |error: wire::WireError| Failure::Protocol(error.to_string());
        let (kind, len) = wire::decode_header(header).map_err(wrong)?;
        body.resize(len, 0);
        match input.read(&**transport, body)? {
            Received::All => Message::decode(kind, body).map_err(wrong),
            Received::Nothing | Received::Truncated => Err(truncated()),
        }
    }
}

fn truncated() -> Failure {
    Failure::Io(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended within a message"))
}

/// The half that sends. Any thread may use it.
#[derive(Debug)]
pub(super) struct Outgoing {
    transport: Arc<dyn Transport>,
    host: Arc<dyn Host>,
    state: Mutex<Sending>,
}

#[derive(Debug)]
struct Sending {
    buffer: Vec<u8>,
    /// When the last message was sent.
    last: Duration,
}

impl Outgoing {
    pub(super) fn new(transport: Arc<dyn Transport>, host: Arc<dyn Host>) -> Self {
        let state = Mutex::new(Sending { buffer: Vec::new(), last: host.monotonic() });
        Self { transport, host, state }
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &Message<'_>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        message.encode(&mut state.buffer);
        self.transport.send(&mut [IoSlice::new(&state.buffer)])?;
        state.last = self.host.monotonic();
        Ok(())
    }

    /// Shows that this side is there, if it has sent nothing for a while.
    pub(super) fn ping_if_due(&self) -> io::Result<()> {
        let last = self.state.lock().unwrap_or_else(PoisonError::into_inner).last;
        if self.host.monotonic().saturating_sub(last) < PING_INTERVAL {
            return Ok(());
        }
        self.send(&Message::Ping)
    }

    /// Sends a last sentence. The other side may be gone.
    pub(super) fn refuse(&self, sentence: &str) {
        let _ = self.send(&Message::Refused(sentence));
        self.transport.end();
    }
}
