//! `cdp serve`.

use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use onefold_cdp::journal::{GroupId, JournalIdentity};
use onefold_cdp::log::Log;
use onefold_cdp::nbd::NamedExport;
use onefold_cdp::nbd::export::Export;
use onefold_cdp::nbd::file::{Access, FileExport};
use onefold_cdp::nbd::serve::{Limits, Server};
use onefold_cdp::nbd::tls::{Certificates, Tls};
use onefold_cdp::volume::{Group, ProtectedVolume};
use onefold_engine::io::Disk;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::store::Store;
use serde_json::{Value, json};

use crate::args::cdp::ServeArgs;
use crate::commands::cdp::control::{self, Request};
use crate::commands::cdp::group_file::{self, GroupFile};
use crate::interrupt::Interrupt;
use crate::open::open;
use crate::output::Output;
use crate::settings::Settings;
use crate::sources::absolute;

/// Name of the socket for clients, unless addresses are given.
const SOCKET: &str = "nbd";
/// How long requests may take to end when the server stops.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the server looks for a signal.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves the volumes of a group until a signal comes.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, args: &ServeArgs) -> Result<()> {
    let opened = open(settings, output)?;
    let directory = absolute(&args.group.group)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::with_backend(directory.clone(), settings.io));
    let file = GroupFile::read(&*disk, &directory)?;
    let _lock = group_file::lock(&*disk, &directory)?;
    let interrupt = Interrupt::listen()?;
    let log = log(output);
    let group = open_group(&opened.store, &disk, &file, &log, output)?;
    let mut exports = Vec::with_capacity(file.volumes.len());
    for (number, volume) in (0..).zip(&file.volumes) {
        let export: Arc<dyn Export> = Arc::new(ProtectedVolume::new(Arc::clone(&group), number));
        let description = volume.origin.display().to_string();
        exports.push(NamedExport { name: volume.name.clone(), description, export });
    }
    let mut server = Server::new(exports, Limits::default(), tls(args)?, log)?;
    let default = [format!("unix:{}", directory.join(SOCKET).display())];
    let addresses = if args.listen.is_empty() { &default[..] } else { &args.listen };
    let sockets = listen(&mut server, addresses)?;
    let answering = Arc::clone(&group);
    let control = control::listen(&directory, Arc::new(move |request| answer(&answering, request)))?;
    output.note(&format!("serving {} at {}", file.name, addresses.join(", ")));
    while !interrupt.is_raised() {
        std::thread::sleep(PAUSE);
    }
    drop(control);
    server.stop(PATIENCE);
    drop(server);
    for socket in sockets {
        let _ignored = std::fs::remove_file(socket);
    }
    group.close().context("close the group")?;
    Ok(())
}

fn log(output: &Arc<Output>) -> Log {
    let output = Arc::clone(output);
    Log::new(move |line| output.warn(line))
}

/// Opens the group over its volumes, and says what had to be done for that.
fn open_group(store: &Store, disk: &Arc<dyn Disk>, file: &GroupFile, log: &Log, output: &Output) -> Result<Arc<Group>> {
    ensure!(
        file.repository == store.config.repository.to_string(),
        "the group {} is backed up to repository {}, not to this one",
        file.name,
        file.repository
    );
    let mut origins: Vec<Arc<dyn Export>> = Vec::with_capacity(file.volumes.len());
    for volume in &file.volumes {
        let path = volume.origin.display();
        let origin =
            FileExport::open(&volume.origin, Access::ReadWrite, log.clone()).with_context(|| format!("open {path}"))?;
        ensure!(
            origin.size() == volume.size,
            "{path} has {} bytes, and had {} when the group was created",
            origin.size(),
            volume.size
        );
        origins.push(Arc::new(origin));
    }
    let identity = JournalIdentity {
        keys: (*store.keys).clone(),
        repository: store.config.repository,
        group: GroupId(file.id()?),
    };
    let host = Arc::new(OsHost::new());
    let (group, opened) = Group::open(disk, host, Path::new(""), identity, origins, file.options())?;
    if opened.applied != 0 {
        output.note(&format!("{} records of the journal were written to the volumes again", opened.applied));
    }
    ensure!(
        opened.suspect.is_empty(),
        "the volumes must be compared after a power cut: {} extents",
        opened.suspect.len()
    );
    Ok(Arc::new(group))
}

fn tls(args: &ServeArgs) -> Result<Option<Tls>> {
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("read {}", path.display()));
    let (Some(chain), Some(key)) = (&args.tls_certificate, &args.tls_key) else { return Ok(None) };
    let (chain, key) = (read(chain)?, read(key)?);
    let authorities = args.tls_client_authority.as_ref().map(read).transpose()?;
    let certificates = Certificates { chain: &chain, key: &key, client_authorities: authorities.as_deref() };
    Ok(Some(Tls::new(&certificates).context("the certificates of the server")?))
}

/// Listens at all addresses; returns the sockets to be removed in the end.
fn listen(server: &mut Server, addresses: &[String]) -> Result<Vec<PathBuf>> {
    let mut sockets = Vec::new();
    for address in addresses {
        let context = || format!("listen at {address}");
        match address.split_once(':') {
            Some(("unix", path)) => {
                let path = PathBuf::from(path);
                remove_left_socket(&path);
                server.listen(UnixListener::bind(&path).with_context(context)?)?;
                sockets.push(path);
            }
            Some(("tcp", address)) => server.listen(TcpListener::bind(address).with_context(context)?)?,
            _ => bail!("{address}: an address is unix:PATH or tcp:HOST:PORT"),
        }
    }
    Ok(sockets)
}

/// Removes a socket that a server has left behind: it refuses connections. Other files stay.
fn remove_left_socket(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ignored = std::fs::remove_file(path);
    }
}

/// Answers a request of the control socket.
fn answer(group: &Group, request: Request) -> Result<Value> {
    match request {
        Request::Status => {
            let status = group.journal().status();
            Ok(json!({
                "lsn": status.next.0 - 1,
                "durable_lsn": status.durable.0 - 1,
                "first_lsn": status.first.0,
                "journal_bytes": status.bytes,
                "journal_bytes_max": status.bytes / u64::from(status.segments.max(1)) * u64::from(status.segments_max),
                "failure": group.journal().failure().map(|error| error.to_string()),
            }))
        }
        Request::Mark { name } => {
            let is_good = (1..=255).contains(&name.len());
            ensure!(is_good, "a name has 1 to 255 bytes");
            Ok(json!({ "lsn": group.mark(&name)?.0 }))
        }
    }
}
