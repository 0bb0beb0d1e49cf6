//! Buffered input from a client.

use std::io;
use std::time::{Duration, Instant};

use super::transport::Transport;

/// Bytes that are received ahead. Longer payloads go directly to their buffer.
pub(crate) const INPUT_BYTES: usize = 16 << 10;

/// Bytes of the client that nobody has asked for yet.
#[derive(Debug)]
pub(crate) struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The time until which the client must have sent what the server waits for.
    deadline: Option<Instant>,
}

/// Outcome of a read of a fixed number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// All of them.
    All,
    /// None of them: the client has ended the stream.
    Nothing,
    /// Some of them.
    Truncated,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; INPUT_BYTES].into_boxed_slice(), start: 0, end: 0, deadline: None }
    }

    /// Bytes received ahead.
    pub(crate) fn buffered(&self) -> usize {
        self.end - self.start
    }

    /// Forgets the bytes received ahead.
    pub(crate) fn discard(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Sets how long the client may take from now on; forever without a limit.
    pub(crate) fn set_limit(&mut self, transport: &dyn Transport, limit: Option<Duration>) -> io::Result<()> {
        self.deadline = limit.map(|limit| now() + limit);
        transport.limit_waits(limit)
    }

    /// Receives ahead what has arrived, and returns true if anything is there.
    pub(crate) fn try_fill(&mut self, transport: &dyn Transport) -> io::Result<bool> {
        if self.buffered() == 0 {
            self.discard();
            // The end of the stream is seen again by whoever waits for bytes.
            self.end = transport.try_receive(&mut self.buffer)?.unwrap_or(0);
        }
        Ok(self.buffered() != 0)
    }

    /// Fills `into`.
    pub(crate) fn read(&mut self, transport: &dyn Transport, into: &mut [u8]) -> io::Result<Received> {
        let len = into.len();
        let mut filled = self.take(into);
        while filled < len {
            let missing = &mut into[filled..];
            let count = if INPUT_BYTES <= missing.len() {
                self.receive(transport, missing)?
            } else {
                self.fill(transport)?;
                self.take(missing)
            };
            if count == 0 {
                return Ok(if filled == 0 { Received::Nothing } else { Received::Truncated });
            }
            filled += count;
        }
        Ok(Received::All)
    }

    /// Drops bytes that the client sends.
    pub(crate) fn skip(&mut self, transport: &dyn Transport, mut count: u64) -> io::Result<Received> {
        while count != 0 {
            if self.buffered() == 0 {
                self.fill(transport)?;
            }
            let skipped = usize::try_from(count).unwrap_or(usize::MAX).min(self.buffered());
            if skipped == 0 {
                return Ok(Received::Truncated);
            }
            self.start += skipped;
            count -= skipped as u64;
        }
        Ok(Received::All)
    }

    /// Moves bytes received ahead to `into`, and returns their number.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.buffered());
        into[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.start += count;
        count
    }

    /// Waits for bytes for the empty buffer.
    fn fill(&mut self, transport: &dyn Transport) -> io::Result<()> {
        self.discard();
        wait_until(self.deadline, transport)?;
        self.end = transport.receive(&mut self.buffer)?;
        Ok(())
    }

    fn receive(&mut self, transport: &dyn Transport, into: &mut [u8]) -> io::Result<usize> {
        wait_until(self.deadline, transport)?;
        transport.receive(into)
    }
}

/// Limits the next wait so that it ends at the deadline. Each byte of a slow client would begin a new wait.
fn wait_until(deadline: Option<Instant>, transport: &dyn Transport) -> io::Result<()> {
    let Some(deadline) = deadline else { return Ok(()) };
    let left = deadline.saturating_duration_since(now());
    // The system takes a limit of 0 for none.
    if left < Duration::from_millis(1) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    transport.limit_waits(Some(left))
}

#[expect(clippy::disallowed_methods, reason = "time that a client takes on a real network")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::super::transport::Socket;
    use super::*;

    fn connected() -> (UnixStream, Arc<Socket>) {
        let (client, server) = UnixStream::pair().unwrap();
        (client, Arc::new(Socket::new(server.into())))
    }

    #[test]
    fn bytes_arrive_in_order_whether_they_are_read_ahead_skipped_or_read_directly() {
        let (mut client, socket) = connected();
        let sent: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| client.write_all(&sent).unwrap());
            let mut input = Input::new();
            let mut at = 0;
            for (step, len) in [3, INPUT_BYTES + 1, 1, 5000, 40_000, INPUT_BYTES - 5, 10].into_iter().enumerate() {
                if step % 3 == 2 {
                    assert_eq!(input.skip(&socket, len as u64).unwrap(), Received::All);
                } else {
                    let mut read = vec![0; len];
                    assert_eq!(input.read(&socket, &mut read).unwrap(), Received::All);
                    assert!(read == sent[at..at + len], "{len} bytes from {at}");
                }
                at += len;
            }
        });
        drop(client);
        let mut input = Input::new();
        let mut rest = vec![0; sent.len()];
        assert_eq!(input.read(&socket, &mut rest).unwrap(), Received::Truncated);
        assert_eq!(input.read(&socket, &mut rest).unwrap(), Received::Nothing);
        assert_eq!(input.skip(&socket, 1).unwrap(), Received::Truncated);
    }

    #[test]
    fn a_client_that_sends_a_byte_now_and_then_meets_the_deadline() {
        let (mut client, socket) = connected();
        let mut input = Input::new();
        input.set_limit(&socket, Some(Duration::from_millis(100))).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Ends when the other side is closed.
                while client.write_all(&[1]).is_ok() {
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            let outcome = input.read(&socket, &mut vec![0; 100_000]);
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut);
            socket.cut();
        });
    }

    #[test]
    fn what_has_not_arrived_is_not_waited_for() {
        let (mut client, socket) = connected();
        let mut input = Input::new();
        assert!(!input.try_fill(&socket).unwrap());
        client.write_all(b"ab").unwrap();
        assert!(input.try_fill(&socket).unwrap());
        client.write_all(b"c").unwrap();
        let mut read = [0; 3];
        assert_eq!(input.read(&socket, &mut read).unwrap(), Received::All);
        assert_eq!(&read, b"abc");
    }
}
