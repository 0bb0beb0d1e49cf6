//! Byte streams between server and client.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

/// A byte stream to and from a client. Several threads may send; one receives at a time.
pub(crate) trait Transport: fmt::Debug + Send + Sync {
    /// Waits for bytes and receives some of them; 0 at the end of the stream.
    fn receive(&self, into: &mut [u8]) -> io::Result<usize>;

    /// Receives bytes that have arrived; none if there are none yet.
    fn try_receive(&self, into: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends all parts, with nothing of other calls between them. The parts are used up.
    fn send(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()>;

    /// Limits the time that [`Self::receive`] and [`Self::send`] wait.
    fn limit_waits(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Announces to the client that nothing else will be sent.
    fn end(&self);
}

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: OwnedFd,
    /// The right to send: one thread holds it at a time.
    sending: Mutex<()>,
    /// Calls that send, and their ends: odd while one waits for the client.
    sends: AtomicU64,
}

impl Socket {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor, sending: Mutex::new(()), sends: AtomicU64::new(0) }
    }

    /// Disables delays, and notices clients that are gone. Sockets that are not of TCP know neither.
    pub(crate) fn tune_tcp(&self) -> io::Result<()> {
        sockopt::set_tcp_nodelay(&self.descriptor, true)?;
        sockopt::set_socket_keepalive(&self.descriptor, true)?;
        Ok(())
    }

    /// Ends the stream from the client: a thread that waits for more returns.
    pub(crate) fn stop_receiving(&self) {
        // A client that is gone already is the only cause of an error.
        let _ = rustix::net::shutdown(&self.descriptor, Shutdown::Read);
    }

    /// Returns a number that is odd while a thread waits for the client to take bytes, and that differs once it has taken some.
    pub(crate) fn sends(&self) -> u64 {
        self.sends.load(Ordering::Relaxed)
    }

    /// Ends both streams: all threads that wait return.
    pub(crate) fn cut(&self) {
        let _ = rustix::net::shutdown(&self.descriptor, Shutdown::Both);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Transport for std::sync::Arc<Socket> {
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match retry_on_intr(|| rustix::net::recv(&self.descriptor, &mut *into, RecvFlags::empty())) {
            Ok((count, _)) => Ok(count),
            // The limit of `limit_waits`.
            Err(rustix::io::Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn try_receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match retry_on_intr(|| rustix::net::recv(&self.descriptor, &mut *into, RecvFlags::DONTWAIT)) {
            Ok((count, _)) => Ok(Some(count)),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn send(&self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let mut no_control = SendAncillaryBuffer::default();
            // No signal: the server decides what the end of a client means.
            self.sends.fetch_add(1, Ordering::Relaxed);
            let outcome =
                retry_on_intr(|| rustix::net::sendmsg(&self.descriptor, parts, &mut no_control, SendFlags::NOSIGNAL));
            self.sends.fetch_add(1, Ordering::Relaxed);
            match outcome {
                Ok(count) => IoSlice::advance_slices(&mut parts, count),
                Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn limit_waits(&self, limit: Option<Duration>) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.descriptor, Timeout::Recv, limit)?;
        sockopt::set_socket_timeout(&self.descriptor, Timeout::Send, limit)?;
        Ok(())
    }

    fn end(&self) {
        let _ = rustix::net::shutdown(&self.descriptor, Shutdown::Write);
    }
}
