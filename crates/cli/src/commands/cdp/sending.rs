//! `cdp serve` of a group whose records go to another machine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use onefold_cdp::journal::{GroupId, JournalIdentity, Lsn};
use onefold_cdp::link::wire::Done;
use onefold_cdp::link::{Codec, LinkCertificates, LinkStatus, Peer, Sender, SenderTls};
use onefold_cdp::volume::{FindDifferences, Group, LastUse};
use onefold_engine::crypto::{Keys, MasterKey};
use onefold_engine::io::os::OsHost;
use onefold_engine::io::{Access, Disk, Host};
use onefold_engine::types::RepositoryId;
use serde_json::{Value, json};

use crate::args::cdp::ServeArgs;
use crate::commands::cdp::control::{self, Request};
use crate::commands::cdp::group_file::{self, GroupFile, ReceiverFile};
use crate::commands::cdp::opening::{InUse, check_mark, open_with};
use crate::commands::cdp::progress::Progress;
use crate::commands::cdp::{maintenance, scan, sockets, status, volume_server};
use crate::files;
use crate::interrupt::Interrupt;
use crate::output::Output;

/// Name of the file with the key of the journal.
const KEY: &str = "key";
/// Bytes of the key.
const KEY_BYTES: usize = 32;
/// How often the journal gives back what the receiver has. A journal is never full for longer because of it.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(200);
/// How long a server waits for the receiver after a power cut, before it records extents again without comparing them.
const COMPARISON_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long a server that stops waits until the receiver has the last records.
const LAST_RECORDS_TIME_MAX: Duration = Duration::from_secs(5);

/// Makes the key of a group's journal: there is no repository whose key could seal it.
pub(super) fn create_key(disk: &dyn Disk) -> Result<()> {
    let mut key = MasterKey([0; KEY_BYTES]);
    OsHost::new().random(&mut key.0)?;
    let file = disk.create(Path::new(KEY))?;
    file.write_at(0, &key.0)?;
    Ok(file.sync()?)
}

fn identity(disk: &dyn Disk, directory: &Path, file: &GroupFile) -> Result<JournalIdentity> {
    let path = directory.join(KEY);
    let stored = disk.open(Path::new(KEY), Access::Read)?;
    ensure!(stored.len()? == KEY_BYTES as u64, "{}: no key of a journal", path.display());
    let mut key = MasterKey([0; KEY_BYTES]);
    stored.read_at(0, &mut key.0)?;
    let repository = u128::from_str_radix(&file.repository, 16).ok().filter(|_| file.repository.len() == 32);
    let repository = repository.with_context(|| format!("{}: no id of a repository", file.repository))?;
    let repository = RepositoryId(repository.to_be_bytes());
    Ok(JournalIdentity { keys: Keys::derive(&key, repository), repository, group: GroupId(file.id()?) })
}

/// Reads the certificates for a receiver.
pub(super) fn tls(receiver: &ReceiverFile) -> Result<SenderTls> {
    let chain = files::read_certificates(&receiver.certificate)?;
    let key = files::read_certificates(&receiver.key)?;
    let authorities = files::read_certificates(&receiver.authority)?;
    let certificates = LinkCertificates { chain: &chain, key: &key, authorities: &authorities };
    SenderTls::new(&certificates).context("the certificates for the receiver")
}

fn codec(receiver: &ReceiverFile) -> Result<Codec> {
    let found = Codec::ALL.into_iter().find(|codec| codec.name() == receiver.compression);
    found.with_context(|| format!("{}: no compression of records", receiver.compression))
}

/// Serves the volumes until a signal comes, and sends their records.
pub(super) fn run(
    output: &Arc<Output>,
    args: &ServeArgs,
    (directory, disk): (&Path, &Arc<dyn Disk>),
    (file, receiver): (&GroupFile, &ReceiverFile),
) -> Result<()> {
    ensure!(
        args.checkpoints.checkpoint.is_none() && args.checkpoints.checkpoint_max.is_none(),
        "the receiver of this group makes its checkpoints: give --checkpoint and --checkpoint-max to `onefold cdp receive`"
    );
    ensure!(!args.new_journal, "the receiver has records of this journal: create a new group, with another --name");
    let peer = Peer { address: receiver.address.clone(), tls: tls(receiver)? };
    let codec = codec(receiver)?;
    let _lock = group_file::lock(&**disk, directory)?;
    let interrupt = Interrupt::listen()?;
    let log = super::log(output);
    let identity = identity(&**disk, directory, file)?;
    let InUse { group, opened: last, .. } = open_with(identity, disk, file, &log, output)?;
    let sender = Sender::new(Arc::clone(&group), file.spec()?, (peer, codec), Arc::new(OsHost::new()), log.clone());
    let sender = Arc::new(sender);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| sender.run());
        scope.spawn(|| give_back(&sender, &is_done, output));
        let served = serve_volumes(output, args, directory, (file, &group, &sender), &interrupt, &last);
        is_done.store(true, Ordering::Release);
        sender.stop();
        served
    })
}

/// Lets the journal give records back that the receiver has, until the server stops.
fn give_back(sender: &Sender, is_done: &AtomicBool, output: &Output) {
    let host = OsHost::new();
    let mut has_failed = false;
    while !is_done.load(Ordering::Acquire) {
        host.sleep(MAINTENANCE_INTERVAL);
        let outcome = sender.maintain();
        if let (Err(errno), false) = (&outcome, has_failed) {
            output.warn(&format!("the volumes cannot be synced, and the journal keeps its records: {errno:?}"));
        }
        has_failed = outcome.is_err();
    }
}

/// Serves the volumes until a signal comes.
fn serve_volumes(
    output: &Arc<Output>,
    args: &ServeArgs,
    directory: &Path,
    (file, group, sender): (&GroupFile, &Arc<Group>, &Arc<Sender>),
    interrupt: &Interrupt,
    last: &onefold_cdp::volume::Opened,
) -> Result<()> {
    if last.last == LastUse::PowerCut && !compare(output, group, (sender, interrupt), last)? {
        return Ok(());
    }
    let (ending, ended) = std::sync::mpsc::channel();
    let (of_file, answering, asked) = (file.clone(), Arc::clone(group), Arc::clone(sender));
    let answer = move |request| answer(&of_file, &answering, &asked, request);
    let control = control::listen(directory, Arc::new(answer))?;
    let (server, left, addresses) = volume_server::start_server(args, directory, (file, group), super::log(output))?;
    output.note(&format!("serving {} at {}", file.name, addresses.join(", ")));
    std::thread::scope(|scope| {
        scope.spawn(move || maintenance::run(group, &ended, output));
        sockets::serve_group_until(interrupt, server, left, Some(group));
        drop(control);
        drop(ending);
    });
    group.close().context("close the group")?;
    if !sender.wait_acknowledged(group.journal().next(), LAST_RECORDS_TIME_MAX) {
        output.warn("the receiver does not have the last records yet; they are sent when the group is served again");
    }
    Ok(())
}

/// Compares extents of the volumes with the receiver's history after a power cut. Without the receiver, and while a gap is open in its
/// history, they are behind instead. Returns false if a signal came first.
fn compare(
    output: &Output,
    group: &Group,
    (sender, interrupt): (&Sender, &Interrupt),
    last: &onefold_cdp::volume::Opened,
) -> Result<bool> {
    let host = OsHost::new();
    let next = group.journal().next();
    let extents = last.suspect.len();
    let until = host.monotonic() + COMPARISON_WAIT_MAX;
    while extents != 0 && group.behind().is_empty() && host.monotonic() < until {
        if interrupt.is_raised() {
            return Ok(false);
        }
        if !sender.wait_acknowledged(next, MAINTENANCE_INTERVAL) {
            continue;
        }
        let compared = group.compare(&last.suspect, &mut |volume, offset, found, differing| {
            sender.find_differences(Lsn(next.0 - 1), (volume, offset), found, differing)
        });
        match compared {
            Ok(blocks) => {
                output.note(&format!(
                    "after a power cut, {extents} extents of the volumes were compared with the receiver's history; {blocks} blocks \
                     differed and were recorded"
                ));
                return Ok(true);
            }
            Err(error) => output.warn(&format!("the receiver's history cannot be compared: {error}")),
        }
    }
    group.skip_comparison(&last.suspect)?;
    if extents != 0 {
        output.note(&format!(
            "after a power cut, {extents} extents of the volumes are recorded again; until then, moments are missing"
        ));
    }
    Ok(true)
}

/// Answers a request of the control socket.
fn answer(file: &GroupFile, group: &Group, sender: &Sender, request: Request) -> Result<Value> {
    group.journal().check_files()?;
    match request {
        Request::Status => {
            let link = sender.status();
            let mut state = status::state(&file.name, group, &Progress::default());
            // Checkpoints are made by the receiver: the records that it lacks lag.
            state["lag_records"] = link.lag_records.into();
            state["lag_bytes"] = link.lag_bytes.into();
            state["lag_seconds"] = status::seconds(link.lag).into();
            state["link"] = describe(&link);
            Ok(state)
        }
        Request::Checkpoint => match sender.checkpoint()? {
            Done::Made { snapshot, first, last, versions } => Ok(json!({
                "snapshot": snapshot,
                "first_lsn": first.0,
                "last_lsn": last.0,
                "versions": versions,
            })),
            Done::NothingNew => Ok(Value::Null),
            Done::Failed(sentence) => bail!("the receiver has made no checkpoint: {sentence}"),
        },
        Request::Scan { record } => scan::scan_with(file, group, record, &mut || {
            // The receiver waits until it has this record.
            let at = Lsn(group.journal().next().0 - 1);
            let find: Box<FindDifferences<'_>> = Box::new(move |volume, offset, found, differing| {
                sender.find_differences(at, (volume, offset), found, differing)
            });
            Ok(find)
        }),
        Request::Mark { name } => {
            check_mark(&name)?;
            Ok(json!({ "lsn": group.mark(&name)?.0 }))
        }
    }
}

/// Returns the state of the link, for people and programs.
fn describe(status: &LinkStatus) -> Value {
    json!({
        "receiver": status.address,
        "connected": status.is_connected,
        "acknowledged_lsn": status.acknowledged.map(|lsn| lsn.0),
        "checkpoint_lsn": status.checkpoint.0,
        "compression": status.codec.map(Codec::name),
        "record_bytes": status.plain_bytes,
        "sent_bytes": status.sent_bytes,
        "losses": status.losses,
        "failure": status.failure,
    })
}
