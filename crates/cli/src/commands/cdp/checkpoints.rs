//! The thread that makes checkpoints while a group is served.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use onefold_cdp::checkpoint::{
    CheckpointOptions, CheckpointOutcome, CheckpointPolicy, Checkpointer, JournalLoad, MadeCheckpoint,
};
use onefold_cdp::journal::{GroupId, Journal, Lsn};
use onefold_cdp::link::Reception;
use onefold_cdp::nbd::export::Export;
use onefold_cdp::retention::{Carried, KeepMoments, Thinner};
use onefold_cdp::stored::GroupSpec;
use onefold_cdp::volume::Group;
use onefold_engine::forget::Trust;
use onefold_engine::io::Host as _;
use onefold_engine::io::os::OsHost;
use onefold_engine::pipeline::Driver;
use onefold_engine::repo::WriteRequest;
use onefold_engine::store::Store;
use serde_json::{Value, json};

use crate::args::cdp::CheckpointArgs;
use crate::commands::cdp::progress::Progress;
use crate::commands::cdp::writing::{Needs, Writing};
use crate::commands::version::PROGRAM;
use crate::open::OpenedCache;
use crate::output::Output;
use crate::settings::Settings;
use crate::text;

/// How often the thread looks whether a checkpoint is due.
const PAUSE: Duration = Duration::from_secs(1);
/// How long it waits after a checkpoint that failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_mins(1);
/// How often history is thinned while a group is served, and for how long at a time: checkpoints must not wait for long.
const THINNING_INTERVAL: Duration = Duration::from_hours(1);
const THINNING_SLICE: Duration = Duration::from_secs(20);

/// Regions of the heap: each checkpoint starts threads. With 16 regions, as two processors have, a server held 436 MiB after 96 checkpoints with a
/// budget of 256 MiB.
const ARENAS: u8 = 2;

/// A journal whose records become checkpoints.
pub(super) trait Recorded: Sync {
    /// Returns the journal.
    fn journal(&self) -> &Journal;

    /// Makes it and the volumes durable, so that records can be given back; returns the record before which all are durable in the volumes.
    fn sync(&self) -> Result<Lsn>;

    /// Gives records back that are in a checkpoint.
    fn release(&self, before: Lsn);
}

impl Recorded for Group {
    fn journal(&self) -> &Journal {
        Self::journal(self)
    }

    fn sync(&self) -> Result<Lsn> {
        Self::sync(self).map_err(|errno| anyhow!("the volumes cannot be synced: {errno:?}"))?;
        Ok(self.synced())
    }

    fn release(&self, before: Lsn) {
        Self::release(self, before);
    }
}

impl Recorded for Reception {
    fn journal(&self) -> &Journal {
        Self::journal(self)
    }

    fn sync(&self) -> Result<Lsn> {
        Self::journal(self).sync()?;
        Ok(Self::journal(self).status().durable)
    }

    fn release(&self, before: Lsn) {
        Self::release(self, before);
    }
}

/// Makes checkpoints of a group.
pub(super) struct Checkpoints<'a> {
    writing: Writing<'a>,
    checkpointer: Checkpointer,
    thinning: Option<Thinning>,
}

/// Rules that are applied now and then.
struct Thinning {
    rules: KeepMoments,
    thinner: Thinner,
    /// Monotonic time of the next run.
    next: Duration,
}

impl<'a> Checkpoints<'a> {
    pub(super) fn open(
        settings: &'a Settings,
        store: &'a Store,
        cache: &'a OpenedCache,
        spec: GroupSpec,
        needs: Needs,
    ) -> Result<Self> {
        let writing = Writing::new(settings, store, cache, needs)?;
        let options = CheckpointOptions {
            limits: writing.limits(),
            scratch: cache.scratch(),
            memory_bytes: writing.reading_bytes(),
            program: PROGRAM.to_owned(),
        };
        let checkpointer = Checkpointer::open(store, spec, options, &Driver::threads(settings.threads))?;
        Ok(Self { writing, checkpointer, thinning: None })
    }

    /// Thins the history by rules from now on, at once and then every hour.
    pub(super) fn keep(&mut self, rules: KeepMoments, group: (&str, GroupId)) -> Result<()> {
        let thinner = self.writing.thinner((group.0, Some(group.1)), Trust::Compare)?;
        self.thinning = Some(Thinning { rules, thinner, next: Duration::ZERO });
        Ok(())
    }

    /// Returns the last record of the newest checkpoint; `None` before the first.
    pub(super) fn last(&self) -> Result<Option<Lsn>> {
        Ok(self.checkpointer.last()?)
    }

    fn with_request<T>(
        &mut self,
        work: impl FnOnce(&mut Checkpointer, &WriteRequest<'_>) -> onefold_engine::Result<T>,
    ) -> Result<T> {
        Ok(work(&mut self.checkpointer, &self.writing.request())?)
    }

    /// Stores the volumes for the first time. Nobody may write to them meanwhile.
    pub(super) fn initial(&mut self, origins: &[Arc<dyn Export>], last: Lsn) -> Result<()> {
        let made = self.with_request(|checkpointer, request| checkpointer.initial(origins, last, request))?;
        made.map(drop).context("a prune is at work; the volumes are stored for the first time after it")
    }

    /// Begins the history of volumes that are on another machine.
    pub(super) fn initial_empty(&mut self) -> Result<()> {
        let made = self.with_request(Checkpointer::initial_empty)?;
        made.map(drop).context("a prune is at work; the history begins after it")
    }

    /// Returns the first record that is in no checkpoint, and that of the journal if there is no checkpoint to ask.
    fn first_left(&self, group: &dyn Recorded) -> Lsn {
        self.last().ok().flatten().map_or_else(|| group.journal().status().first, |last| Lsn(last.0 + 1))
    }

    /// Makes checkpoints until the journal has no record that is in none.
    pub(super) fn catch_up(&mut self, group: &dyn Recorded) -> Result<Option<MadeCheckpoint>> {
        let mut newest = None;
        group.journal().check_files()?;
        loop {
            let synced = group.sync()?;
            let made =
                self.with_request(|checkpointer, request| checkpointer.checkpoint(group.journal(), synced, request))?;
            match made {
                CheckpointOutcome::Made(made) => {
                    group.release(Lsn(made.last.0 + 1));
                    newest = Some(made);
                    if !made.has_more {
                        return Ok(newest);
                    }
                }
                CheckpointOutcome::NothingNew => {
                    // A server that was killed may have left records that are in its last checkpoint, and others were not durable in the
                    // volumes when their checkpoint was made.
                    group.release(self.first_left(group));
                    return Ok(newest);
                }
                CheckpointOutcome::PruneInProgress => return Err(anyhow!("a prune is at work; try again after it")),
            }
        }
    }

    /// Thins the history if that is due. What fails is tried again an hour later.
    fn thin_if_due(&mut self, now: Duration, output: &Output) {
        let Self { writing, thinning: Some(thinning), .. } = self else { return };
        if now < thinning.next {
            return;
        }
        thinning.next = now + THINNING_INTERVAL;
        let Thinning { rules, thinner, next } = thinning;
        let host = OsHost::new();
        let mut stops = || now + THINNING_SLICE < host.monotonic();
        let carried = thinner
            .plan(rules, &text::utc_offset)
            .and_then(|plan| thinner.carry_out(&plan, &writing.request(), &writing.forget_note(), &mut stops));
        match carried {
            // The rest follows when no checkpoint is due.
            Ok(Carried { is_stopped: true, .. }) => *next = now,
            Ok(Carried { is_prune_in_progress: true, .. }) => {
                output.warn("the history was thinned in part only: a prune is at work; the next hour tries again");
            }
            Ok(Carried { thinned, forgotten, .. }) if thinned.is_empty() && forgotten.is_empty() => {}
            Ok(Carried { thinned, forgotten, .. }) => {
                let (thinned, forgotten) = (thinned.len() as u64, forgotten.len());
                let thinned = text::count(thinned, "checkpoint");
                output.note(&format!(
                    "thinned the history of {thinned}, and forgot {forgotten}; a prune gives the space back"
                ));
            }
            Err(error) => output.warn(&format!("the history was not thinned; the next hour tries again: {error}")),
        }
    }

    /// Makes checkpoints when they are due and when they are asked for, until the other end of `asked` is gone.
    pub(super) fn run(
        mut self,
        group: &dyn Recorded,
        policy: &CheckpointPolicy,
        asked: &Receiver<Asked>,
        progress: &Progress,
        output: &Output,
    ) {
        let host = OsHost::new();
        // A full journal takes no record before a checkpoint, so records of an earlier server count, too.
        let mut last = (host.monotonic(), self.first_left(group));
        let mut pause = PAUSE;
        loop {
            match asked.recv_timeout(pause) {
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(answer) => {
                    let outcome = self.catch_up(group);
                    progress.note(&outcome);
                    last = (host.monotonic(), self.first_left(group));
                    // Whoever asked may have gone.
                    let _ignored = answer.send(outcome.map(|made| made.map_or(Value::Null, |made| describe(&made))));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let status = group.journal().status();
                    let load = JournalLoad {
                        age: host.monotonic().saturating_sub(last.0),
                        records: status.next.0.saturating_sub(last.1.0),
                        bytes: status.bytes,
                        bytes_max: status.bytes_max,
                    };
                    let is_full_for_nothing = load.records == 0 && load.bytes_max / 2 <= load.bytes;
                    if policy.due(&load).is_none() && !is_full_for_nothing {
                        self.thin_if_due(host.monotonic(), output);
                        continue;
                    }
                    pause = PAUSE;
                    let outcome = self.catch_up(group);
                    progress.note(&outcome);
                    // What failed stays due: the next try follows after a pause.
                    let began = if outcome.is_ok() { host.monotonic() } else { last.0 };
                    match outcome {
                        Ok(Some(made)) => output.note(&format!(
                            "checkpoint {} up to LSN {}: {} versions of blocks",
                            made.snapshot, made.last, made.versions
                        )),
                        Ok(None) => {}
                        Err(error) => {
                            output.warn(&format!("no checkpoint was made: {error:#}"));
                            pause = PAUSE_AFTER_FAILURE;
                        }
                    }
                    last = (began, self.first_left(group));
                }
            }
        }
    }
}

fn describe(made: &MadeCheckpoint) -> Value {
    json!({
        "snapshot": made.snapshot.to_string(),
        "first_lsn": made.first.0,
        "last_lsn": made.last.0,
        "versions": made.versions,
    })
}

/// Receiver of the outcome of a checkpoint that was asked for.
pub(super) type Asked = Sender<Result<Value>>;

/// Asks the thread for a checkpoint.
#[derive(Debug)]
pub(super) struct Asking(Mutex<Option<Sender<Asked>>>);

impl Asking {
    /// Returns both ends.
    pub(super) fn new() -> (Self, Receiver<Asked>) {
        let (sender, receiver) = channel();
        (Self(Mutex::new(Some(sender))), receiver)
    }

    /// Asks, and waits for the outcome.
    pub(super) fn ask(&self) -> Result<Value> {
        let (answer, outcome) = channel();
        let ended = || anyhow!("the server is stopping");
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .with_context(ended)?
            .send(answer)
            .map_err(|_| ended())?;
        outcome.recv().map_err(|_| ended())?
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Keeps what the threads of checkpoints have freed from counting as memory of this process. To be called first.
pub(super) fn limit_heap() {
    onefold_sys::limit_arenas(ARENAS);
}

/// Returns the policy that options ask for.
pub(super) fn policy(args: &CheckpointArgs) -> Result<CheckpointPolicy> {
    let parse = |text: &Option<String>, default| text.as_deref().map_or(Ok(default), text::parse_duration);
    let default = CheckpointPolicy::DEFAULT;
    let interval = parse(&args.checkpoint, default.interval).context("--checkpoint")?;
    let longest = parse(&args.checkpoint_max, default.longest).context("--checkpoint-max")?;
    Ok(CheckpointPolicy { interval, longest, ..default })
}
