//! Connecting to a receiver.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;

use crate::link::{OPENING_TIME_MAX, SenderTls};
use crate::nbd::transport::{Socket, Transport};

/// A receiver, as its sender knows it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Name or address of its machine, and its port: `HOST:PORT`. Its certificate must be for that name or address.
    pub address: String,
    /// Encrypts the connections.
    pub tls: SenderTls,
}

impl Peer {
    /// Returns the name or address without the port; `None` if the address is none.
    pub fn host(address: &str) -> Option<&str> {
        let (host, port) = address.rsplit_once(':')?;
        port.parse::<u16>().ok()?;
        let host = host.strip_prefix('[').map_or(Some(host), |host| host.strip_suffix(']'))?;
        (!host.is_empty()).then_some(host)
    }

    /// Connects, and does the handshake. Returns the socket too, with which the connection is cut.
    pub(super) fn connect(&self) -> io::Result<(Arc<Socket>, Arc<dyn Transport>)> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("{}: not HOST:PORT", self.address));
        let host = Self::host(&self.address).ok_or_else(wrong)?;
        let mut last = None;
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, OPENING_TIME_MAX) {
                Ok(stream) => {
                    let socket = Arc::new(Socket::new(stream.into()));
                    socket.tune_tcp()?;
                    socket.limit_waits(Some(OPENING_TIME_MAX))?;
                    let transport = self.tls.start(Box::new(Arc::clone(&socket)), host)?;
                    return Ok((socket, Arc::from(transport)));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name of the receiver has no address")))
    }
}
