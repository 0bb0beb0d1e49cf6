//! `cdp receive`: the machine that deduplicates and stores the history of a group that another one serves.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver as Queue};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use onefold_cdp::checkpoint::CheckpointPolicy;
use onefold_cdp::journal::{JournalIdentity, JournalSize, Lsn};
use onefold_cdp::link::wire::{Compare, Done, Hello, fingerprint_blocks};
use onefold_cdp::link::{LinkCertificates, Receiver, ReceiverHost, ReceiverTls, Reception};
use onefold_cdp::stored::{self, GroupSpec};
use onefold_cdp::view::{At, PointInTime, ViewOptions};
use onefold_engine::Error;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::pipeline::Driver;
use onefold_engine::source::exclude::parse_size;
use onefold_engine::store::Store;
use serde_json::{Value, json};

use crate::args::cdp::ReceiveArgs;
use crate::commands::cdp::checkpoints::{self, Asked, Asking, Checkpoints};
use crate::commands::cdp::control::{self, Request};
use crate::commands::cdp::create;
use crate::commands::cdp::group_file::{self, GroupFile, VolumeFile};
use crate::commands::cdp::progress::Progress;
use crate::commands::cdp::writing::{self, Needs};
use crate::files;
use crate::interrupt::Interrupt;
use crate::open::{OpenedCache, open};
use crate::output::Output;
use crate::settings::Settings;
use crate::sources::absolute;

/// How often the command looks for a signal.
const PAUSE: Duration = Duration::from_millis(100);
/// How long it waits before it tries again to store the initial images.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Receives a group until a signal comes.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, args: &ReceiveArgs) -> Result<()> {
    checkpoints::limit_heap();
    let policy = checkpoints::policy(&args.checkpoints)?;
    let size = JournalSize::of(parse_size(&args.journal_size).context("--journal-size")? as u64);
    let tls = tls(args)?;
    let opened = open(settings, output)?;
    let directory = absolute(&args.group.group)?;
    if !directory.exists() {
        files::create_new_directory(&directory).with_context(|| format!("create {}", directory.display()))?;
    }
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::with_backend(directory.clone(), settings.io));
    let _lock = group_file::lock(&*disk, &directory)?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let (announce, announced) = mpsc::channel();
    let (asking, asked) = Asking::new();
    let options = ViewOptions {
        scratch: cache.scratch(),
        driver: Driver::threads(settings.threads),
        memory_bytes: writing::view_bytes(settings),
    };
    let group = Arc::new(ReceivedGroup {
        directory: directory.clone(),
        disk,
        store: opened.store.clone(),
        options,
        size,
        asking,
        progress: Progress::default(),
        state: Mutex::new(State { reception: None, announce: Some(announce) }),
        admission: Mutex::new(()),
        view: Mutex::new(None),
    });
    group.open_if_created()?;
    let address = args.listen.strip_prefix("tcp:").with_context(|| format!("{}: not tcp:HOST:PORT", args.listen))?;
    let listener = TcpListener::bind(address).with_context(|| format!("listen at {}", args.listen))?;
    let bound = listener.local_addr().context("the address that is listened at")?;
    let of_link: Arc<dyn ReceiverHost> = Arc::clone(&group) as _;
    let receiver = Receiver::new(of_link, tls, Arc::new(OsHost::new()), super::log(output));
    let of_control = Arc::clone(&group);
    let control = control::listen(&directory, Arc::new(move |request| of_control.answer(&request)))?;
    output.note(&format!("receiving into {} at tcp:{bound}", directory.display()));
    std::thread::scope(|scope| {
        let making = Making {
            settings,
            output,
            store: &opened.store,
            cache: &cache,
            interrupt: &interrupt,
            progress: &group.progress,
        };
        scope.spawn(move || making.run(&announced, &asked, &policy));
        let listening = scope.spawn(|| receiver.run(&listener));
        let host = OsHost::new();
        while !interrupt.is_raised() && !listening.is_finished() {
            host.sleep(PAUSE);
        }
        receiver.stop();
        drop(control);
        group.lock().announce = None;
        group.asking.end();
        listening.join().map_err(|_| anyhow!("the thread that listens has failed"))?.context("accept connections")
    })
}

fn tls(args: &ReceiveArgs) -> Result<ReceiverTls> {
    let chain = files::read_certificates(&args.tls_certificate)?;
    let key = files::read_certificates(&args.tls_key)?;
    let authorities = files::read_certificates(&args.tls_client_authority)?;
    let certificates = LinkCertificates { chain: &chain, key: &key, authorities: &authorities };
    ReceiverTls::new(&certificates).context("the certificates of the receiver")
}

/// The group of a directory: none before the first sender.
#[derive(Debug)]
struct ReceivedGroup {
    directory: PathBuf,
    disk: Arc<dyn Disk>,
    store: Store,
    options: ViewOptions,
    size: JournalSize,
    asking: Asking,
    progress: Progress,
    state: Mutex<State>,
    /// Held while a sender is admitted: two may come at the same time.
    admission: Mutex<()>,
    /// The last view that was compared with, and its record.
    view: Mutex<Option<(Lsn, PointInTime)>>,
}

#[derive(Debug)]
struct State {
    reception: Option<Arc<Reception>>,
    /// Takes the reception to the thread that makes checkpoints.
    announce: Option<mpsc::Sender<Arc<Reception>>>,
}

impl ReceivedGroup {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the group if a sender has come before.
    fn open_if_created(&self) -> Result<()> {
        if !self.disk.exists(Path::new(group_file::FILE))? {
            return Ok(());
        }
        let file = GroupFile::read(&*self.disk, &self.directory)?;
        ensure!(file.received, "{}: the group is served here, not received", self.directory.display());
        ensure!(
            file.repository == self.store.config.repository.to_string(),
            "the group {} is backed up to repository {}, not to this one",
            file.name,
            file.repository
        );
        self.open(&file).map(drop)
    }

    fn open(&self, file: &GroupFile) -> Result<Arc<Reception>> {
        let spec = file.spec()?;
        let identity = JournalIdentity {
            keys: (*self.store.keys).clone(),
            repository: self.store.config.repository,
            group: spec.id,
        };
        let checkpoint = self.checkpoint_of(&spec)?.unwrap_or_default();
        let host = Arc::new(OsHost::new());
        let journal = (identity, file.size());
        let opened = Reception::open(&self.disk, host, Path::new(""), journal, (spec, checkpoint));
        let (reception, _) = opened.context("create a new group, with another --name, and another directory here")?;
        let reception = Arc::new(reception);
        let mut state = self.lock();
        state.reception = Some(Arc::clone(&reception));
        if let Some(announce) = &state.announce {
            // The thread that makes checkpoints lives as long as the command.
            let _ignored = announce.send(Arc::clone(&reception));
        }
        Ok(reception)
    }

    /// Returns the last record that is in a checkpoint; `None` if there is no checkpoint.
    fn checkpoint_of(&self, spec: &GroupSpec) -> Result<Option<Lsn>> {
        let checkpoints = stored::Checkpoints::read(&self.store, &spec.name, Some(spec.id))?;
        Ok(checkpoints.newest().map(stored::Checkpoint::last))
    }

    /// Creates the group of the first sender.
    fn create(&self, spec: &GroupSpec) -> Result<Arc<Reception>> {
        spec.validate()?;
        create::check_name("group", &spec.name)?;
        for volume in &spec.volumes {
            create::check_name("volume", &volume.name)?;
        }
        if let Some(last) = self.checkpoint_of(spec)? {
            bail!(
                "the repository has the records of group {} up to {last}, and the receiver's journal is gone: create a new group",
                spec.name
            );
        }
        let groups = stored::Checkpoints::groups(&self.store)?;
        ensure!(
            groups.iter().all(|(name, _)| *name != spec.name),
            "the repository has another group with the name {}: create the group with another --name",
            spec.name
        );
        let volume = |volume: &stored::VolumeSpec| VolumeFile {
            name: volume.name.clone(),
            origin: PathBuf::new(),
            size: volume.size,
        };
        let volumes = spec.volumes.iter().map(volume).collect();
        let repository = self.store.config.repository.to_string();
        let file = GroupFile::new(spec.id.0, spec.name.clone(), repository, volumes, self.size);
        Reception::create(&*self.disk, Path::new(""))?;
        let file = GroupFile { received: true, ..file };
        file.create(&*self.disk)?;
        self.open(&file)
    }

    /// Answers a request of the control socket.
    fn answer(&self, request: &Request) -> Result<Value> {
        let reception = self.lock().reception.clone();
        reception.as_ref().map_or(Ok(()), |reception| reception.journal().check_files())?;
        match request {
            Request::Status => {
                let Some(reception) = reception else {
                    return Ok(json!({ "received": true, "connected": false, "group": null }));
                };
                let (status, journal) = (reception.status(), reception.journal().status());
                Ok(json!({
                    "received": true,
                    "group": reception.spec().name,
                    "connected": status.is_connected,
                    "lsn": status.last.0,
                    "durable_lsn": status.durable.0,
                    "checkpoint_lsn": status.checkpoint.0,
                    "first_lsn": journal.first.0,
                    "received_bytes": status.received_bytes,
                    "checkpoint_error": self.progress.state().1,
                    "journal_bytes": journal.used,
                    "journal_bytes_max": journal.bytes_max,
                    "failure": reception.journal().failure().map(|error| error.to_string()),
                }))
            }
            Request::Checkpoint => {
                ensure!(reception.is_some(), "no sender has come yet");
                self.asking.ask()
            }
            Request::Scan { .. } => bail!("the volumes are on another machine"),
            Request::Mark { .. } => bail!("a moment gets its name where the volumes are served"),
        }
    }
}

/// Returns an error of the command as one of the engine.
fn invalid(error: &anyhow::Error) -> Error {
    Error::invalid(format!("{error:#}"))
}

impl ReceiverHost for ReceivedGroup {
    fn admit(&self, hello: &Hello) -> onefold_engine::Result<Arc<Reception>> {
        let _admitting = self.admission.lock().unwrap_or_else(PoisonError::into_inner);
        // An earlier attempt may have created the group, and failed after that.
        if self.lock().reception.is_none() {
            self.open_if_created().map_err(|error| invalid(&error))?;
        }
        let reception = self.lock().reception.clone();
        match reception {
            Some(reception) => Ok(reception),
            None => self.create(&hello.group).map_err(|error| invalid(&error)),
        }
    }

    fn checkpoint(&self) -> onefold_engine::Result<Done> {
        let made = self.asking.ask().map_err(|error| invalid(&error))?;
        if made.is_null() {
            return Ok(Done::NothingNew);
        }
        let number = |key: &str| made[key].as_u64().unwrap_or(0);
        Ok(Done::Made {
            snapshot: made["snapshot"].as_str().unwrap_or_default().to_owned(),
            first: Lsn(number("first_lsn")),
            last: Lsn(number("last_lsn")),
            versions: number("versions"),
        })
    }

    fn fingerprints(&self, compare: &Compare, out: &mut Vec<u8>) -> onefold_engine::Result<()> {
        let reception = self.lock().reception.clone().ok_or_else(|| Error::invalid("no group is received"))?;
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        if view.as_ref().is_none_or(|(at, _)| *at != compare.at) {
            *view = None;
            let (spec, at) = (reception.spec(), At::Lsn(compare.at));
            let group = (&*spec.name, Some(spec.id));
            let opened = PointInTime::open(&self.store, &self.options, group, &at, Some(reception.journal()))?;
            *view = Some((compare.at, opened));
        }
        let Some((_, view)) = &*view else { return Err(Error::invalid("no view")) };
        let mut range = vec![0; compare.len as usize];
        view.read(usize::from(compare.volume), compare.offset, &mut range)?;
        fingerprint_blocks(&compare.key, &range, out);
        Ok(())
    }
}

/// Makes the checkpoints.
struct Making<'a> {
    settings: &'a Settings,
    output: &'a Output,
    store: &'a Store,
    cache: &'a OpenedCache,
    interrupt: &'a Interrupt,
    progress: &'a Progress,
}

impl Making<'_> {
    /// Waits for the group, and makes checkpoints of it until the other end of `asked` is gone.
    fn run(&self, announced: &Queue<Arc<Reception>>, asked: &Queue<Asked>, policy: &CheckpointPolicy) {
        let Ok(reception) = announced.recv() else { return };
        let host = OsHost::new();
        while !self.interrupt.is_raised() {
            match self.begin(&reception) {
                Ok(checkpoints) => return checkpoints.run(&*reception, policy, asked, self.progress, self.output),
                Err(error) => {
                    self.output.warn(&format!("no checkpoint can be made yet: {error:#}"));
                    self.progress.note(&Err(error));
                    let until = host.monotonic() + PAUSE_AFTER_FAILURE;
                    while !self.interrupt.is_raised() && host.monotonic() < until {
                        host.sleep(PAUSE);
                    }
                }
            }
        }
    }

    /// Stores the initial images if there are none: the volumes are holes until their first records come.
    fn begin(&self, reception: &Reception) -> Result<Checkpoints<'_>> {
        let needs = Needs { views: true, ..Needs::default() };
        let spec = reception.spec().clone();
        let mut checkpoints = Checkpoints::open(self.settings, self.store, self.cache, spec, needs)?;
        if checkpoints.last()?.is_none() {
            checkpoints.initial_empty()?;
        }
        Ok(checkpoints)
    }
}
