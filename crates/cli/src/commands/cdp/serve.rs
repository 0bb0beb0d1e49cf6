//! `cdp serve`.

use std::sync::Arc;

use anyhow::{Context, Result};
use onefold_cdp::journal::{GroupId, Lsn};
use onefold_cdp::stored::Checkpoints as Stored;
use onefold_cdp::view::ViewOptions;
use onefold_cdp::volume::Group;
use onefold_engine::io::Disk;
use onefold_engine::io::os::OsDisk;
use onefold_engine::pipeline::Driver;
use onefold_engine::store::Store;
use serde_json::{Value, json};

use crate::args::cdp::ServeArgs;
use crate::commands::cdp::checkpoints::{self, Asking, Checkpoints};
use crate::commands::cdp::control::{self, Request};
use crate::commands::cdp::group_file::{self, GroupFile};
use crate::commands::cdp::opening::{InUse, check_mark, compare_after_power_cut, differences, open_group};
use crate::commands::cdp::progress::Progress;
use crate::commands::cdp::volume_server::start_server;
use crate::commands::cdp::writing::{self, Needs};
use crate::commands::cdp::{maintenance, new_journal, scan, sending, sockets, status};
use crate::interrupt::Interrupt;
use crate::open::{OpenedCache, open};
use crate::output::Output;
use crate::settings::Settings;
use crate::sources::absolute;

/// Serves the volumes of a group until a signal comes.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, args: &ServeArgs) -> Result<()> {
    checkpoints::limit_heap();
    let policy = checkpoints::policy(&args.checkpoints)?;
    let directory = absolute(&args.group.group)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::with_backend(directory.clone(), settings.io));
    let file = GroupFile::read(&*disk, &directory)?;
    if let Some(receiver) = &file.receiver {
        return sending::run(output, args, (&directory, &disk), (&file, receiver));
    }
    let opened = open(settings, output)?;
    let _lock = group_file::lock(&*disk, &directory)?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let spec = file.spec()?;
    let needs = Needs { thins: file.keep.is_some(), ..Needs::of_volumes(&spec) };
    let mut checkpoints = Checkpoints::open(settings, &opened.store, &cache, spec, needs)?;
    if let Some(keep) = &file.keep {
        checkpoints.keep(keep.rules().context("group.json")?, (&file.name, GroupId(file.id()?)))?;
    }
    let log = super::log(output);
    let options = ViewOptions {
        scratch: cache.scratch(),
        driver: Driver::threads(settings.threads),
        memory_bytes: writing::view_bytes(settings),
    };
    let before_gap =
        if args.new_journal { new_journal::begin((&opened.store, &options), &disk, &file, output)? } else { None };
    let InUse { group, origins, opened: last } = open_group(&opened.store, &disk, &file, &log, output)?;
    if let Some(view) = before_gap {
        group.compare_behind(&mut *differences(view))?;
    }
    // Volumes that no checkpoint has are stored below, as they are.
    let is_stored = checkpoints.last()?.is_some();
    compare_after_power_cut((&opened.store, &options), &file, (&group, &last), is_stored, output)?;
    if checkpoints.last()?.is_none() {
        output.note("the volumes are stored for the first time; they are served after that");
        checkpoints.initial(&origins, Lsn(group.journal().next().0 - 1))?;
    }
    let (asking, asked) = Asking::new();
    let asking = Arc::new(asking);
    let progress = Arc::new(Progress::default());
    progress.note_stored(Stored::read(&opened.store, &file.name, Some(GroupId(file.id()?)))?.newest());
    let answering = Answering {
        group: Arc::clone(&group),
        asking: Arc::clone(&asking),
        store: opened.store.clone(),
        options,
        file: file.clone(),
        progress: Arc::clone(&progress),
    };
    let answer = move |request| answering.answer(request);
    let control = control::listen(&directory, Arc::new(answer))?;
    // Last: whoever can reach the volumes can ask for their state, too.
    let (server, left, addresses) = start_server(args, &directory, (&file, &group), log)?;
    output.note(&format!("serving {} at {}", file.name, addresses.join(", ")));
    let (ending, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (group, progress) = (&group, &*progress);
        scope.spawn(move || checkpoints.run(&**group, &policy, &asked, progress, output));
        scope.spawn(move || maintenance::run(group, &ended, output));
        sockets::serve_group_until(&interrupt, server, left, Some(group));
        drop(control);
        drop(ending);
        asking.end();
    });
    group.close().context("close the group")?;
    Ok(())
}

/// Parts that answer the requests of the control socket.
struct Answering {
    group: Arc<Group>,
    asking: Arc<Asking>,
    store: Store,
    options: ViewOptions,
    file: GroupFile,
    progress: Arc<Progress>,
}

impl Answering {
    fn answer(&self, request: Request) -> Result<Value> {
        let group = &self.group;
        group.journal().check_files()?;
        match request {
            Request::Status => Ok(status::state(&self.file.name, group, &self.progress)),
            Request::Checkpoint => self.asking.ask(),
            Request::Scan { record } => scan::scan((&self.store, &self.options), &self.file, group, record),
            Request::Mark { name } => {
                check_mark(&name)?;
                Ok(json!({ "lsn": group.mark(&name)?.0 }))
            }
        }
    }
}
