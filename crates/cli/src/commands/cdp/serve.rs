//! `cdp serve`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_cdp::journal::{GroupId, JournalIdentity, Lsn};
use onefold_cdp::log::Log;
use onefold_cdp::nbd::NamedExport;
use onefold_cdp::nbd::export::Export;
use onefold_cdp::nbd::file::{Access, FileExport};
use onefold_cdp::nbd::serve::{Limits, Server};
use onefold_cdp::nbd::tls::{Certificates, Tls};
use onefold_cdp::view::{At, PointInTime, ViewOptions};
use onefold_cdp::volume::{Extent, Group, LastUse, Opened, ProtectedVolume, differing_blocks};
use onefold_engine::io::Disk;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::pipeline::Driver;
use onefold_engine::store::Store;
use serde_json::{Value, json};

use crate::args::cdp::ServeArgs;
use crate::commands::cdp::checkpoints::{self, Asking, Checkpoints};
use crate::commands::cdp::control::{self, Request};
use crate::commands::cdp::group_file::{self, GroupFile};
use crate::commands::cdp::{maintenance, sending, sockets};
use crate::files;
use crate::interrupt::Interrupt;
use crate::open::{OpenedCache, open};
use crate::output::Output;
use crate::settings::Settings;
use crate::sources::absolute;
use crate::text;

/// Name of the socket for clients, unless addresses are given.
const SOCKET: &str = "nbd";

/// Serves the volumes of a group until a signal comes.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, args: &ServeArgs) -> Result<()> {
    let policy = checkpoints::policy(&args.checkpoints.checkpoint, &args.checkpoints.checkpoint_max)?;
    let directory = absolute(&args.group.group)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::with_backend(directory.clone(), settings.io));
    let file = GroupFile::read(&*disk, &directory)?;
    ensure!(!file.received, "{}: the volumes are on another machine; `onefold cdp receive` takes their records", directory.display());
    if let Some(receiver) = &file.receiver {
        return sending::run(output, args, (&directory, &disk), (&file, receiver));
    }
    let opened = open(settings, output)?;
    let _lock = group_file::lock(&*disk, &directory)?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let mut checkpoints = Checkpoints::open(settings, &opened.store, &cache, file.spec()?)?;
    let log = super::log(output);
    let options = ViewOptions {
        scratch: cache.scratch(),
        driver: Driver::threads(settings.threads),
        memory_bytes: settings.memory_bytes / 2,
    };
    ensure!(
        file.repository == opened.store.config.repository.to_string(),
        "the group {} is backed up to repository {}, not to this one",
        file.name,
        file.repository
    );
    let identity = JournalIdentity {
        keys: (*opened.store.keys).clone(),
        repository: opened.store.config.repository,
        group: GroupId(file.id()?),
    };
    let InUse { group, origins, opened: last } = open_group(identity, &disk, &file, &log, output)?;
    if last.last == LastUse::PowerCut {
        // Volumes that no checkpoint has are stored below, as they are.
        let suspect = if checkpoints.last()?.is_some() { &last.suspect[..] } else { &[] };
        let blocks = compare(&opened.store, &options, &file, &group, suspect)?;
        output.note(&format!(
            "after a power cut, {} extents of the volumes were compared with the history; {blocks} blocks differed and were recorded",
            suspect.len()
        ));
    }
    if checkpoints.last()?.is_none() {
        output.note("the volumes are stored for the first time; they are served after that");
        checkpoints.initial(&origins, Lsn(group.journal().next().0 - 1))?;
    }
    let (server, left, addresses) = start_server(args, &directory, (&file, &group), log)?;
    let (asking, asked) = Asking::new();
    let asking = Arc::new(asking);
    let (answering, of_control) = (Arc::clone(&group), Arc::clone(&asking));
    let answer = move |request| answer(&answering, &of_control, request);
    let control = control::listen(&directory, Arc::new(answer))?;
    output.note(&format!("serving {} at {}", file.name, addresses.join(", ")));
    let (ending, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let group = &group;
        scope.spawn(move || checkpoints.run(&**group, &policy, &asked, output));
        scope.spawn(move || maintenance::run(group, &ended, output));
        sockets::serve_until(&interrupt, server, left);
        drop(control);
        drop(ending);
        asking.end();
    });
    group.close().context("close the group")?;
    Ok(())
}

/// Lets a server listen for clients of the volumes; returns its sockets and addresses, too.
pub(super) fn start_server(
    args: &ServeArgs,
    directory: &Path,
    (file, group): (&GroupFile, &Arc<Group>),
    log: Log,
) -> Result<(Server, Vec<PathBuf>, Vec<String>)> {
    let mut exports = Vec::with_capacity(file.volumes.len());
    for (number, volume) in (0..).zip(&file.volumes) {
        let export: Arc<dyn Export> = Arc::new(ProtectedVolume::new(Arc::clone(group), number));
        let description = volume.origin.display().to_string();
        exports.push(NamedExport { name: volume.name.clone(), description, export });
    }
    let mut server = Server::new(exports, Limits::default(), tls(args)?, log)?;
    let default = [format!("unix:{}", directory.join(SOCKET).display())];
    let addresses = if args.listen.is_empty() { &default[..] } else { &args.listen };
    let left = sockets::listen(&mut server, addresses)?;
    Ok((server, left, addresses.to_vec()))
}

/// A group, its volumes themselves, and how the last use had ended.
pub(super) struct InUse {
    pub(super) group: Arc<Group>,
    pub(super) origins: Vec<Arc<dyn Export>>,
    pub(super) opened: Opened,
}

/// Opens the group over its volumes, and says what had to be done for that.
pub(super) fn open_group(
    identity: JournalIdentity,
    disk: &Arc<dyn Disk>,
    file: &GroupFile,
    log: &Log,
    output: &Output,
) -> Result<InUse> {
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
    let host = Arc::new(OsHost::new());
    let (group, opened) = Group::open(disk, host, Path::new(""), identity, origins.clone(), file.options())?;
    if opened.applied != 0 {
        output.note(&format!("{} records of the journal were written to the volumes again", opened.applied));
    }
    Ok(InUse { group: Arc::new(group), origins, opened })
}

fn tls(args: &ServeArgs) -> Result<Option<Tls>> {
    let read = |path: &PathBuf| files::read_certificates(path);
    let (Some(chain), Some(key)) = (&args.tls_certificate, &args.tls_key) else { return Ok(None) };
    let (chain, key) = (read(chain)?, read(key)?);
    let authorities = args.tls_client_authority.as_ref().map(read).transpose()?;
    let certificates =
        Certificates { chain: &chain, key: &key, client_authorities: authorities.as_ref().map(|bytes| &bytes[..]) };
    Ok(Some(Tls::new(&certificates).context("the certificates of the server")?))
}

/// Compares extents of the volumes with the history up to the last record of the journal.
fn compare(store: &Store, options: &ViewOptions, file: &GroupFile, group: &Group, suspect: &[Extent]) -> Result<u64> {
    if suspect.is_empty() {
        return Ok(group.compare(suspect, &mut |_, _, _, _| Ok(()))?);
    }
    let id = GroupId(file.id()?);
    let view = PointInTime::open(store, options, (&file.name, Some(id)), &At::Latest, Some(group.journal()))?;
    let mut expected = Vec::new();
    Ok(group.compare(suspect, &mut |volume, offset, found, differing| {
        expected.resize(found.len(), 0);
        view.read(usize::from(volume), offset, &mut expected)?;
        differing_blocks(found, &expected, differing);
        Ok(())
    })?)
}

/// Answers a request of the control socket.
fn answer(group: &Group, asking: &Asking, request: Request) -> Result<Value> {
    match request {
        Request::Status => Ok(status(group)),
        Request::Checkpoint => asking.ask(),
        Request::Mark { name } => mark(group, &name),
    }
}

/// Returns the state of a group.
pub(super) fn status(group: &Group) -> Value {
    let status = group.journal().status();
    json!({
        "lsn": status.next.0 - 1,
        "durable_lsn": status.durable.0 - 1,
        "first_lsn": status.first.0,
        "journal_bytes": status.bytes,
        "journal_bytes_max": status.bytes_max,
        "behind_bytes": group.behind().bytes(),
        "failure": group.journal().failure().map(|error| error.to_string()),
    })
}

/// Names the present moment.
pub(super) fn mark(group: &Group, name: &str) -> Result<Value> {
    let is_good = (1..=255).contains(&name.len());
    ensure!(is_good, "a name has 1 to 255 bytes");
    let is_mark = matches!(At::parse(name), At::Mark(_)) && text::parse_time(name).is_err();
    ensure!(is_mark, "{name}: --at takes that for another moment; choose another name");
    Ok(json!({ "lsn": group.mark(name)?.0 }))
}
