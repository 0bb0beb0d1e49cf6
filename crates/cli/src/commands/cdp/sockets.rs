//! Addresses that servers listen at.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use onefold_cdp::nbd::serve::Server;
use onefold_cdp::volume::Group;
use onefold_engine::io::Host;
use onefold_engine::io::os::OsHost;

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
pub(super) fn serve_until(interrupt: &Interrupt, server: Server, sockets: Vec<PathBuf>) {
    serve_group_until(interrupt, server, sockets, None);
}

/// Like [`serve_until`], for the server of a group whose writes may wait for space of the journal.
pub(super) fn serve_group_until(
    interrupt: &Interrupt,
    mut server: Server,
    sockets: Vec<PathBuf>,
    group: Option<&Group>,
) {
    while !interrupt.is_raised() {
        std::thread::sleep(PAUSE);
    }
    let is_stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let Some(group) = group {
            scope.spawn(|| end_waits(group, &is_stopped));
        }
        server.stop(PATIENCE);
        is_stopped.store(true, Ordering::Release);
    });
    drop(server);
    for socket in sockets {
        files::remove_socket(&socket);
    }
}

/// Lets writes fail that wait for space of the journal when their clients are cut off.
fn end_waits(group: &Group, is_stopped: &AtomicBool) {
    let host = OsHost::new();
    let until = host.monotonic() + PATIENCE;
    while !is_stopped.load(Ordering::Acquire) && host.monotonic() < until {
        host.sleep(PAUSE);
    }
    group.end_waits();
}
