//! Addresses that servers listen at.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use onefold_cdp::nbd::serve::Server;

use crate::files;
use crate::interrupt::Interrupt;

/// How long requests may take to end when a server stops.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a server looks for a signal.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens at all addresses; returns the sockets to be removed in the end.
pub(super) fn listen(server: &mut Server, addresses: &[String]) -> Result<Vec<PathBuf>> {
    let mut sockets = Vec::new();
    for address in addresses {
        let context = || format!("listen at {address}");
        match address.split_once(':') {
            Some(("unix", path)) => {
                let path = PathBuf::from(path);
                files::remove_left_socket(&path);
                server.listen(UnixListener::bind(&path).with_context(context)?)?;
                sockets.push(path);
            }
            Some(("tcp", address)) => server.listen(TcpListener::bind(address).with_context(context)?)?,
            _ => bail!("{address}: an address is unix:PATH or tcp:HOST:PORT"),
        }
    }
    Ok(sockets)
}

/// Lets a server run until a signal comes, then stops it and removes its sockets.
pub(super) fn serve_until(interrupt: &Interrupt, mut server: Server, sockets: Vec<PathBuf>) {
    while !interrupt.is_raised() {
        std::thread::sleep(PAUSE);
    }
    server.stop(PATIENCE);
    drop(server);
    for socket in sockets {
        files::remove_socket(&socket);
    }
}
