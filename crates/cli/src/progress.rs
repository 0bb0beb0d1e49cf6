//! Progress of a command: a bar on a terminal, status messages for programs, a line a minute otherwise, and a line for each
//! SIGUSR1.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use onefold_engine::Error;
use onefold_engine::backup::{Action, Monitor};
use onefold_engine::io::Host;
use onefold_engine::io::os::OsHost;
use onefold_engine::monitor::Items;

use crate::compat::Dialect;
use crate::interrupt::{Interrupt, take_status_request};
use crate::json;
use crate::json::status::Status;
use crate::output::{Output, escape};
use crate::settings::Verbosity;
use crate::text;

/// Interval between checks for signals, and between updates of bars and messages.
const TICK: Duration = Duration::from_millis(100);
/// Default interval between lines.
const LINE_INTERVAL: Duration = Duration::from_mins(1);
/// Longest time before a command that only writes lines counts its work: shorter commands need no total.
const SCAN_DELAY_MAX: Duration = Duration::from_secs(10);
/// The same for one that shows a bar. Counting takes as long as finding out that nothing has changed.
const BAR_SCAN_DELAY: Duration = Duration::from_millis(500);

/// Form of the progress reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Report {
    /// Not at all.
    Nothing,
    /// As a bar on a terminal.
    Bar,
    /// As messages for programs on standard output.
    Messages,
    /// As lines on standard error.
    Lines,
}

impl Report {
    /// Decides how, and how often.
    fn decide(output: &Output, is_terminal: bool) -> (Self, Duration) {
        let (report, usual) = match (output.json, is_terminal) {
            (true, _) => (Self::Messages, TICK),
            (false, true) => (Self::Bar, TICK),
            (false, false) => (Self::Lines, LINE_INTERVAL),
        };
        let interval = output.progress_interval.unwrap_or(usual);
        let is_silent = output.verbosity < Verbosity::Normal || interval.is_zero();
        (if is_silent { Self::Nothing } else { report }, interval)
    }
}

/// The part of a command that is under way.
#[derive(Clone, Copy, Debug)]
struct Stage {
    items: Items,
    start: Duration,
}

/// Activity that errors name.
#[derive(Clone, Debug)]
pub(crate) enum Activity {
    /// Files are read.
    Files,
    /// A stream is read, as the file at this path: if that fails there is nothing to make a snapshot of.
    Stream(PathBuf),
    /// Files are written.
    Restore,
    /// A repository is verified.
    Check,
    /// Space is given back.
    Prune,
    /// An index is rebuilt, or snapshots are repaired.
    Repair,
}

/// Monitor of a command that reports its progress.
#[derive(Debug)]
pub(crate) struct Progress {
    output: Arc<Output>,
    interrupt: Interrupt,
    activity: Activity,
    report: Report,
    interval: Duration,
    start: Duration,
    stage: Mutex<Stage>,
    bytes: AtomicU64,
    items: AtomicU64,
    failures: AtomicU64,
    total_bytes: AtomicU64,
    total_items: AtomicU64,
    is_total_known: AtomicBool,
    /// The file that is being read, and when that began.
    current: Mutex<Option<(PathBuf, Duration)>>,
    /// New bytes of the entry that is reported next.
    added: AtomicU64,
    /// Reason why a stream ended too early.
    broken: Mutex<Option<String>>,
    bar: ProgressBar,
    ended: Mutex<bool>,
    end: Condvar,
}

impl Progress {
    /// Starts to measure the progress of a command.
    pub(crate) fn new(output: &Arc<Output>, interrupt: &Interrupt, activity: Activity) -> Arc<Self> {
        // Hidden by itself where standard error is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let (report, interval) = Report::decide(output, !bar.is_hidden());
        let bar = if report == Report::Bar { bar } else { ProgressBar::hidden() };
        let start = OsHost::new().monotonic();
        bar.set_style(ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar()));
        Arc::new(Self {
            output: Arc::clone(output),
            interrupt: interrupt.clone(),
            activity,
            report,
            interval,
            start,
            stage: Mutex::new(Stage { items: Items::Files, start: Duration::ZERO }),
            bytes: AtomicU64::new(0),
            items: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            total_items: AtomicU64::new(0),
            is_total_known: AtomicBool::new(false),
            current: Mutex::new(None),
            added: AtomicU64::new(0),
            broken: Mutex::new(None),
            bar,
            ended: Mutex::new(false),
            end: Condvar::new(),
        })
    }

    /// Returns true if progress is reported, so that totals are useful.
    pub(crate) fn is_watched(&self) -> bool {
        self.report != Report::Nothing
    }

    /// Waits until totals are useful. Returns false if the command has ended by then.
    pub(crate) fn wait_for_scan(&self) -> bool {
        let delay = match self.report {
            Report::Lines => SCAN_DELAY_MAX.min(self.interval / 2),
            Report::Bar => BAR_SCAN_DELAY,
            Report::Nothing | Report::Messages => return true,
        };
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.end.wait_timeout_while(ended, delay, |ended| !*ended);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        OsHost::new().monotonic().saturating_sub(self.start)
    }

    /// Returns the number of failures.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Returns why the stream ended too early, if it did.
    pub(crate) fn broken(&self) -> Option<String> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the user has asked to stop.
    pub(crate) fn is_interrupt_raised(&self) -> bool {
        self.interrupt.is_raised()
    }

    /// Sets the totals.
    pub(crate) fn set_total(&self, files: u64, bytes: u64) {
        self.total_items.store(files, Ordering::Relaxed);
        self.total_bytes.store(bytes, Ordering::Relaxed);
        self.finish_count();
    }

    /// Adds a file to the totals.
    pub(crate) fn count_ahead(&self, bytes: u64) {
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.total_items.fetch_add(1, Ordering::Relaxed);
    }

    /// Marks the totals as complete.
    pub(crate) fn finish_count(&self) {
        self.is_total_known.store(true, Ordering::Relaxed);
    }

    /// Reports that the source has been counted.
    pub(crate) fn finish_scan(&self) {
        self.finish_count();
        if self.output.json && self.names_files() {
            let [bytes, files] =
                [&self.total_bytes, &self.total_items].map(|total| Some(total.load(Ordering::Relaxed)));
            let found = (Some(self.elapsed().as_secs_f64()), bytes, files);
            let message = json::outcome("scan_finished", Path::new(""), found, self.follows_restic());
            let _ignored = self.output.message(&message);
        }
    }

    /// Shows the state at intervals, on a thread of its own, until the returned handle is dropped.
    pub(crate) fn show(self: &Arc<Self>) -> Shown {
        let progress = Arc::clone(self);
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(move || progress.run());
        // Without the thread nothing is shown, which is no reason to stop.
        Shown { progress: Arc::clone(self), thread: thread.ok() }
    }

    fn run(&self) {
        let mut next = self.interval;
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            ended = self.end.wait_timeout(ended, TICK).unwrap_or_else(PoisonError::into_inner).0;
            if *ended {
                break;
            }
            if take_status_request() {
                self.answer();
            }
            if self.report != Report::Nothing && next <= self.elapsed() {
                self.draw();
                next = self.elapsed() + self.interval.saturating_sub(TICK / 2);
            }
        }
    }

    /// Answers a request for the progress, even with --quiet.
    fn answer(&self) {
        let status = self.status();
        match (self.output.json, &self.activity) {
            (true, Activity::Files | Activity::Stream(_) | Activity::Check | Activity::Prune | Activity::Repair) => {
                self.output.warn_message(&status);
            }
            (true, Activity::Restore) => self.output.warn_message(&status.of_restore()),
            (false, _) => self.bar.suspend(|| self.output.warn(&self.line(&status))),
        }
    }

    fn draw(&self) {
        let status = self.status();
        match self.report {
            Report::Nothing => {}
            Report::Lines => self.output.warn(&self.line(&status)),
            Report::Bar => {
                let current = status.current_files.first().map_or("", String::as_str);
                let current = String::from_utf8_lossy(&escape(current.as_bytes())).into_owned();
                self.bar.set_message(format!("{}\n{current}", self.line(&status)));
            }
            Report::Messages => {
                // A reader that has gone away shows when the summary is written.
                let _ignored = match &self.activity {
                    Activity::Files | Activity::Stream(_) | Activity::Check | Activity::Prune | Activity::Repair => {
                        self.output.message(&status)
                    }
                    Activity::Restore => self.output.message(&status.of_restore()),
                };
            }
        }
    }

    /// Writes the state for people.
    fn line(&self, status: &Status) -> String {
        let stage = *self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let one = match stage.items {
            Items::Files => "file",
            Items::Containers => "container",
            Items::Snapshots => "snapshot",
        };
        let mut parts = Vec::new();
        if self.is_total_known.load(Ordering::Relaxed) {
            parts.push(format!("{} of {}", status.files_done, text::count(status.total_files, one)));
            if 0 < status.total_bytes {
                parts.push(format!("{} of {}", text::bytes(status.bytes_done), text::bytes(status.total_bytes)));
            }
        } else {
            parts.push(text::count(status.files_done, one));
        }
        if 0 < status.bytes_done {
            if status.total_bytes == 0 {
                parts.push(text::bytes(status.bytes_done));
            }
            let seconds = self.elapsed().saturating_sub(stage.start).as_secs().max(1);
            parts.push(format!("{}/s", text::bytes(status.bytes_done / seconds)));
        }
        if let Some(seconds) = status.seconds_remaining {
            parts.push(format!("ETA {}", text::duration(Duration::from_secs(seconds))));
        }
        if 0 < status.error_count {
            parts.push(text::count(status.error_count, "error"));
        }
        let percent = if self.is_total_known.load(Ordering::Relaxed) {
            format!("{:5.1}%  ", status.percent_done * 100.0)
        } else {
            String::new()
        };
        format!("[{}] {percent}{}", text::duration(self.elapsed()), parts.join(", "))
    }

    fn status(&self) -> Status {
        let bytes_done = self.bytes.load(Ordering::Relaxed);
        let total_bytes = self.total_bytes.load(Ordering::Relaxed);
        let (items_done, total_items) = (self.items.load(Ordering::Relaxed), self.total_items.load(Ordering::Relaxed));
        let elapsed = self.elapsed();
        let stage = *self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        // Bytes take longer than files, where there are any.
        let (done, total) = if 0 < total_bytes { (bytes_done, total_bytes) } else { (items_done, total_items) };
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let percent_done = if total == 0 { 0.0 } else { (done as f64 / total as f64).min(1.0) };
        let is_total_known = self.is_total_known.load(Ordering::Relaxed);
        let seconds_remaining = (is_total_known && 0 < done).then(|| {
            let left = u128::from(total.saturating_sub(done));
            let elapsed = elapsed.saturating_sub(stage.start).as_millis();
            u64::try_from(elapsed * left / u128::from(done) / 1000).unwrap_or(u64::MAX)
        });
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Status {
            seconds_elapsed: elapsed.as_secs(),
            seconds_remaining,
            percent_done,
            total_files: total_items,
            files_done: items_done,
            total_bytes,
            bytes_done,
            error_count: self.failures(),
            current_files: current.iter().map(|(path, _)| path.to_string_lossy().into_owned()).collect(),
        }
    }

    fn item(&self, path: &Path, action: Action) {
        let added = self.added.swap(0, Ordering::Relaxed);
        if !self.names_files() {
            return;
        }
        let is_backup = match &self.activity {
            Activity::Files | Activity::Stream(_) => true,
            Activity::Restore | Activity::Check | Activity::Prune | Activity::Repair => false,
        };
        let word = match (&self.activity, action) {
            (Activity::Restore, Action::New | Action::Other) => "restored",
            (Activity::Restore, Action::Changed) => "updated",
            (
                Activity::Files | Activity::Stream(_) | Activity::Check | Activity::Prune | Activity::Repair,
                Action::New | Action::Other,
            ) => "new",
            (
                Activity::Files | Activity::Stream(_) | Activity::Check | Activity::Prune | Activity::Repair,
                Action::Changed,
            ) => "modified",
            (_, Action::Unchanged) => "unchanged",
        };
        let duration = is_backup.then(|| self.duration_of(path).as_secs_f64());
        self.report_item(path, word, duration, is_backup.then_some(added));
    }

    /// Returns true for a backup whose messages follow restic's.
    fn follows_restic(&self) -> bool {
        let is_backup = matches!(self.activity, Activity::Files | Activity::Stream(_));
        self.output.json && is_backup && self.output.dialect == Dialect::Restic
    }

    /// Returns true if each file is reported: restic does so with one -v.
    fn names_files(&self) -> bool {
        let from = if self.follows_restic() { Verbosity::Verbose } else { Verbosity::EveryFile };
        from <= self.output.verbosity
    }

    /// Returns the time for which a file was read; zero if it was not read.
    fn duration_of(&self, path: &Path) -> Duration {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some((reading, start)) if reading == path => self.elapsed().saturating_sub(*start),
            Some(_) | None => Duration::ZERO,
        }
    }

    /// Reports the outcome of an entry.
    fn report_item(&self, path: &Path, action: &'static str, duration: Option<f64>, data_size: Option<u64>) {
        if self.output.json {
            let follows_restic = self.follows_restic();
            let found = (duration, data_size, follows_restic.then_some(0));
            let _ignored = self.output.message(&json::outcome(action, path, found, follows_restic));
        } else {
            self.bar.suspend(|| self.output.note(&format!("{action:<9}  {}", path.display())));
        }
    }

    /// Reports a failure that does not end the command.
    pub(crate) fn fail(&self, during: &'static str, path: &Path, message: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if self.output.json {
            self.output.warn_message(&json::failure(during, path, message.to_owned()));
        } else {
            // Most errors name the path that they are about.
            let path = path.display().to_string();
            let named = if message.contains(&path) { String::new() } else { format!("{path}: ") };
            self.bar.suspend(|| self.output.warn(&format!("error: {named}{message}")));
        }
    }
}

impl Monitor for Progress {
    fn stage(&self, items: Items, count: u64) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = Stage { items, start: self.elapsed() };
        for (counter, value) in [(&self.bytes, 0), (&self.items, 0), (&self.total_bytes, 0), (&self.total_items, count)]
        {
            counter.store(value, Ordering::Relaxed);
        }
        self.finish_count();
    }

    fn begin(&self, path: &Path) {
        let begun = (path.to_path_buf(), self.elapsed());
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
    }

    fn advance(&self, bytes: u64, items: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.items.fetch_add(items, Ordering::Relaxed);
    }

    fn added(&self, bytes: u64) {
        self.added.store(bytes, Ordering::Relaxed);
    }

    fn entry(&self, path: &Path, action: Action) {
        self.item(path, action);
    }

    fn deleted(&self, path: &Path) {
        if Verbosity::EveryFile <= self.output.verbosity {
            self.report_item(path, "deleted", None, None);
        }
    }

    fn directory(&self, path: &Path, action: Action) {
        self.item(path, action);
    }

    fn failure(&self, path: &Path, error: &Error) {
        match &self.activity {
            Activity::Stream(stream) if stream == path => {
                *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
            Activity::Files | Activity::Stream(_) => self.fail("archival", path, &error.to_string()),
            Activity::Check => self.fail("check", path, &error.to_string()),
            Activity::Prune => self.fail("prune", path, &error.to_string()),
            Activity::Repair => self.fail("repair", path, &error.to_string()),
            Activity::Restore => self.fail("restore", path, &error.to_string()),
        }
    }

    fn note(&self, text: &str) {
        self.bar.suspend(|| self.output.note(text));
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_raised() || self.broken().is_some()
    }
}

/// Handle that shows a command's progress until it is dropped.
#[derive(Debug)]
pub(crate) struct Shown {
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        *self.progress.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.progress.end.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already said so.
            let _ignored = thread.join();
        }
        self.progress.bar.finish_and_clear();
    }
}
