//! Encrypted connections ("TLS support").
//!
//! A server with a certificate is in the mode FORCEDTLS: before a client has started TLS, it serves `STARTTLS` and `ABORT` only.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{Connection, RootCertStore, ServerConfig, ServerConnection};

use super::negotiate::StartTls;
use super::transport::Transport;

/// Bytes of encrypted data that are received at once.
const RECEIVED_BYTES: usize = 64 << 10;

/// Bytes of encrypted data that wait until they are sent.
const ENCRYPTED_BYTES_MAX: usize = 256 << 10;

/// Memory of one encrypted connection: both buffers, and what the library keeps of records in both directions.
pub(crate) const TLS_BYTES_MAX: usize = RECEIVED_BYTES + 2 * ENCRYPTED_BYTES_MAX + (128 << 10);

/// Certificates of a server, in the format PEM.
#[derive(Clone, Copy, Debug)]
pub struct Certificates<'a> {
    /// The server's certificate, and those between it and its authority.
    pub chain: &'a [u8],
    /// The private key of the first certificate.
    pub key: &'a [u8],
    /// Certificates of authorities. If there are any, a client needs a certificate of one of them.
    pub client_authorities: Option<&'a [u8]>,
}

/// Returns an error of files that are no certificates or keys.
pub(crate) fn invalid(what: &str, error: &dyn fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("invalid {what}: {error}"))
}

/// Reads certificates in the format PEM.
pub(crate) fn read_chain(pem: &[u8]) -> io::Result<Vec<CertificateDer<'static>>> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    chain.map_err(|error| invalid("certificate", &error))
}

/// Reads a private key in the format PEM.
pub(crate) fn read_key(pem: &[u8]) -> io::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| invalid("private key", &error))
}

/// Reads the certificates of authorities in the format PEM.
pub(crate) fn read_authorities(pem: &[u8]) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(pem) {
        let authority = authority.map_err(|error| invalid("certificate of an authority", &error))?;
        roots.add(authority).map_err(|error| invalid("certificate of an authority", &error))?;
    }
    Ok(roots)
}

/// Encrypts the connections of a server.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl Tls {
    /// Reads certificates. TLS 1.2 and 1.3 are offered: the protocol document demands the first.
    pub fn new(certificates: &Certificates<'_>) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let (chain, key) = (read_chain(certificates.chain)?, read_key(certificates.key)?);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| invalid("versions of TLS", &error))?;
        let builder = match certificates.client_authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let roots = read_authorities(authorities)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| invalid("authorities", &error))?)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(|error| invalid("certificate", &error))?;
        Ok(Self(Arc::new(config)))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl StartTls for Tls {
    fn start(&self, below: Box<dyn Transport>) -> io::Result<Box<dyn Transport>> {
        let session = ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)?;
        encrypt(below, session.into())
    }
}

/// Does one side's part of the handshake of TLS on a stream; returns the encrypted stream.
pub(crate) fn encrypt(below: Box<dyn Transport>, session: Connection) -> io::Result<Box<dyn Transport>> {
    let transport = TlsTransport {
        below,
        session: Mutex::new(session),
        received: Mutex::new(Received { bytes: vec![0; RECEIVED_BYTES], start: 0, end: 0 }),
        sending: Mutex::new(Vec::new()),
    };
    transport.complete_handshake()?;
    Ok(Box::new(transport))
}

/// An encrypted stream over another one.
///
/// A thread that sends locks `sending`, then `session`. A thread that receives locks `received`, then `session`, and never
/// holds `session` while it waits for the client.
#[derive(Debug)]
struct TlsTransport {
    below: Box<dyn Transport>,
    session: Mutex<Connection>,
    received: Mutex<Received>,
    /// Encrypted bytes of the thread that sends.
    sending: Mutex<Vec<u8>>,
}

/// Encrypted bytes that the session has not taken yet.
#[derive(Debug)]
struct Received {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl TlsTransport {
    fn session(&self) -> MutexGuard<'_, Connection> {
        lock(&self.session)
    }

    fn complete_handshake(&self) -> io::Result<()> {
        let mut received = lock(&self.received);
        loop {
            let outcome = self.advance(&mut received);
            // Tickets after a success, an alert after a failure.
            let sent = self.flush();
            outcome?;
            sent?;
            if !self.session().is_handshaking() {
                return Ok(());
            }
            if !received.refill(&*self.below)? {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the other side has left the handshake of TLS",
                ));
            }
        }
    }

    /// Gives the session all bytes that it takes during the handshake.
    fn advance(&self, received: &mut Received) -> io::Result<()> {
        let mut session = self.session();
        while session.is_handshaking() && received.supply(&mut session)? {}
        Ok(())
    }

    /// Decrypts bytes that have been received; none if there are too few.
    fn decrypt(&self, received: &mut Received, into: &mut [u8]) -> io::Result<Option<usize>> {
        let mut session = self.session();
        loop {
            match session.reader().read(into) {
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if !received.supply(&mut session)? {
                return Ok(None);
            }
        }
    }

    fn receive_by(&self, into: &mut [u8], refill: impl Fn(&mut Received) -> io::Result<Refill>) -> io::Result<Refill> {
        let mut received = lock(&self.received);
        loop {
            let outcome = self.decrypt(&mut received, into);
            // Answers to changes of keys, and alerts.
            if self.session().wants_write() {
                self.flush()?;
            }
            if let Some(count) = outcome? {
                return Ok(Refill::Bytes(count));
            }
            match refill(&mut received)? {
                Refill::Bytes(0) => return Ok(Refill::Bytes(0)),
                Refill::Bytes(_) => {}
                Refill::Nothing => return Ok(Refill::Nothing),
            }
        }
    }

    /// Sends what the session wants to send.
    fn flush(&self) -> io::Result<()> {
        self.send(&mut [])
    }

    /// Moves encrypted bytes out of the session, and sends them if there are many or if they are the last ones.
    fn send_encrypted(&self, sending: &mut Vec<u8>, is_last: bool) -> io::Result<()> {
        let mut session = self.session();
        while session.wants_write() {
            session.write_tls(sending)?;
        }
        drop(session);
        if !sending.is_empty() && (is_last || ENCRYPTED_BYTES_MAX <= sending.len()) {
            let sent = self.below.send(&mut [IoSlice::new(sending)]);
            sending.clear();
            sent?;
        }
        Ok(())
    }
}

/// Outcome of a step of receiving.
enum Refill {
    /// So many bytes; 0 at the end of the stream.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
}

impl Received {
    /// Gives bytes to the session; false if there are none.
    fn supply(&mut self, session: &mut Connection) -> io::Result<bool> {
        let mut rest = &self.bytes[self.start..self.end];
        if rest.is_empty() {
            return Ok(false);
        }
        let count = session.read_tls(&mut rest)?;
        self.start += count;
        session.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(count != 0)
    }

    /// Waits for bytes; false at the end of the stream.
    fn refill(&mut self, below: &dyn Transport) -> io::Result<bool> {
        (self.start, self.end) = (0, 0);
        self.end = below.receive(&mut self.bytes)?;
        Ok(self.end != 0)
    }
}

impl Transport for TlsTransport {
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let refill = |received: &mut Received| received.refill(&*self.below).map(|_| Refill::Bytes(received.end));
        match self.receive_by(into, refill)? {
            Refill::Bytes(count) => Ok(count),
            Refill::Nothing => unreachable!("the call waited for bytes"),
        }
    }

    fn try_receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let refill = |received: &mut Received| {
            (received.start, received.end) = (0, 0);
            let Some(count) = self.below.try_receive(&mut received.bytes)? else { return Ok(Refill::Nothing) };
            received.end = count;
            Ok(Refill::Bytes(count))
        };
        match self.receive_by(into, refill)? {
            Refill::Bytes(count) => Ok(Some(count)),
            Refill::Nothing => Ok(None),
        }
    }

    fn send(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut sending = lock(&self.sending);
        for part in parts {
            let mut rest = &part[..];
            while !rest.is_empty() {
                // The session takes as much as its own buffer has space for.
                let count = self.session().writer().write(rest)?;
                rest = &rest[count..];
                self.send_encrypted(&mut sending, false)?;
            }
        }
        self.send_encrypted(&mut sending, true)
    }

    fn limit_waits(&self, limit: Option<Duration>) -> io::Result<()> {
        self.below.limit_waits(limit)
    }

    fn end(&self) {
        self.session().send_close_notify();
        // A client that is gone needs no end.
        let _ = self.flush();
        self.below.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
