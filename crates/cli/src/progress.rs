//! What is shown while a backup runs: a bar on a terminal, status messages for programs, otherwise nothing but errors.

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

use crate::interrupt::Interrupt;
use crate::json::{Failure, RestoreStatus, Status, VerboseStatus};
use crate::output::{Output, Verbosity};
use crate::text;

/// Ten times a second, as restic does.
const INTERVAL: Duration = Duration::from_millis(100);

/// What is being done; errors say so.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Activity {
    /// Files are read.
    Files,
    /// Standard input is read: if that fails there is nothing to make a snapshot of.
    Stream,
    /// Files are written.
    Restore,
    /// A repository is verified.
    Check,
}

/// Listens to a backup and tells of it.
#[derive(Debug)]
pub(crate) struct Progress {
    output: Arc<Output>,
    interrupt: Interrupt,
    activity: Activity,
    start: Duration,
    bytes: AtomicU64,
    files: AtomicU64,
    failures: AtomicU64,
    total_bytes: AtomicU64,
    total_files: AtomicU64,
    is_total_known: AtomicBool,
    /// The file that is being read, and when that began.
    current: Mutex<Option<(PathBuf, Duration)>>,
    /// New bytes of the entry that is told of next.
    added: AtomicU64,
    /// Why a stream cannot be gone on with.
    broken: Mutex<Option<String>>,
    bar: ProgressBar,
    ended: Mutex<bool>,
    end: Condvar,
}

impl Progress {
    /// Starts to listen.
    pub(crate) fn new(output: &Arc<Output>, interrupt: &Interrupt, activity: Activity) -> Arc<Self> {
        let shows_bar = !output.json && Verbosity::Normal <= output.verbosity;
        let bar = if shows_bar {
            // Hidden by itself where standard error is no terminal.
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        } else {
            ProgressBar::hidden()
        };
        bar.set_style(ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar()));
        Arc::new(Self {
            output: Arc::clone(output),
            interrupt: interrupt.clone(),
            activity,
            start: OsHost::new().monotonic(),
            bytes: AtomicU64::new(0),
            files: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            total_files: AtomicU64::new(0),
            is_total_known: AtomicBool::new(false),
            current: Mutex::new(None),
            added: AtomicU64::new(0),
            broken: Mutex::new(None),
            bar,
            ended: Mutex::new(false),
            end: Condvar::new(),
        })
    }

    /// Says whether anybody looks at what is shown, so that totals are worth counting.
    pub(crate) fn is_watched(&self) -> bool {
        Verbosity::Normal <= self.output.verbosity && (self.output.json || !self.bar.is_hidden())
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        OsHost::new().monotonic().saturating_sub(self.start)
    }

    /// Returns how many things could not be read.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Returns why the stream ended too early, if it did.
    pub(crate) fn broken(&self) -> Option<String> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says whether the user has asked to stop, whatever else may have happened.
    pub(crate) fn is_interrupt_raised(&self) -> bool {
        self.interrupt.is_raised()
    }

    /// Tells all that there is to do.
    pub(crate) fn set_total(&self, files: u64, bytes: u64) {
        self.total_files.store(files, Ordering::Relaxed);
        self.total_bytes.store(bytes, Ordering::Relaxed);
        self.finish_count();
    }

    /// Adds a file to what there is to do.
    pub(crate) fn count_ahead(&self, bytes: u64) {
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.total_files.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells that everything there is to do has been counted.
    pub(crate) fn finish_count(&self) {
        self.is_total_known.store(true, Ordering::Relaxed);
    }

    /// Tells that a source has been counted.
    pub(crate) fn finish_scan(&self) {
        self.finish_count();
        if self.output.json && Verbosity::EveryFile <= self.output.verbosity {
            let _ignored = self.output.message(&VerboseStatus {
                message_type: "verbose_status",
                action: "scan_finished",
                item: String::new(),
                duration: Some(self.elapsed().as_secs_f64()),
                data_size: Some(self.total_bytes.load(Ordering::Relaxed)),
                total_files: Some(self.total_files.load(Ordering::Relaxed)),
            });
        }
    }

    /// Shows the state at intervals, on a thread of its own, until the returned handle is dropped.
    pub(crate) fn show(self: &Arc<Self>) -> Shown {
        let thread = self.is_watched().then(|| {
            let progress = Arc::clone(self);
            std::thread::Builder::new().name("progress".to_owned()).spawn(move || progress.run()).ok()
        });
        Shown { progress: Arc::clone(self), thread: thread.flatten() }
    }

    fn run(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            ended = self.end.wait_timeout(ended, INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
            if !*ended {
                self.draw();
            }
        }
    }

    fn draw(&self) {
        let status = self.status();
        if self.output.json {
            // A reader that has gone away shows when the summary is written.
            let _ignored = match self.activity {
                Activity::Files | Activity::Stream | Activity::Check => self.output.message(&status),
                Activity::Restore => self.output.message(&RestoreStatus {
                    message_type: "status",
                    seconds_elapsed: status.seconds_elapsed,
                    percent_done: status.percent_done,
                    total_files: status.total_files,
                    files_restored: status.files_done,
                    total_bytes: status.total_bytes,
                    bytes_restored: status.bytes_done,
                }),
            };
            return;
        }
        let speed = status.bytes_done / self.elapsed().as_secs().max(1);
        let done = if self.is_total_known.load(Ordering::Relaxed) {
            let eta = status
                .seconds_remaining
                .map_or(String::new(), |seconds| format!("  ETA {}", text::duration(Duration::from_secs(seconds))));
            format!(
                "{:5.1}%  {} of {} files, {} of {}, {}/s{eta}",
                status.percent_done * 100.0,
                status.files_done,
                status.total_files,
                text::bytes(status.bytes_done),
                text::bytes(status.total_bytes),
                text::bytes(speed),
            )
        } else {
            format!("{} files, {}, {}/s", status.files_done, text::bytes(status.bytes_done), text::bytes(speed))
        };
        let errors = if 0 < status.error_count { format!(", {} errors", status.error_count) } else { String::new() };
        let current = status.current_files.first().map_or("", String::as_str);
        let current: String = current.chars().filter(|character| !character.is_control()).collect();
        self.bar.set_message(format!("[{}] {done}{errors}\n{current}", text::duration(self.elapsed())));
    }

    fn status(&self) -> Status {
        let bytes_done = self.bytes.load(Ordering::Relaxed);
        let total_bytes = self.total_bytes.load(Ordering::Relaxed);
        let elapsed = self.elapsed();
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let fraction = if total_bytes == 0 { 0.0 } else { (bytes_done as f64 / total_bytes as f64).min(1.0) };
        let is_total_known = self.is_total_known.load(Ordering::Relaxed);
        let seconds_remaining = (is_total_known && 0 < bytes_done).then(|| {
            let left = u128::from(total_bytes.saturating_sub(bytes_done));
            u64::try_from(elapsed.as_millis() * left / u128::from(bytes_done) / 1000).unwrap_or(u64::MAX)
        });
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Status {
            message_type: "status",
            seconds_elapsed: elapsed.as_secs(),
            seconds_remaining,
            percent_done: fraction,
            total_files: self.total_files.load(Ordering::Relaxed),
            files_done: self.files.load(Ordering::Relaxed),
            total_bytes,
            bytes_done,
            error_count: self.failures(),
            current_files: current.iter().map(|(path, _)| path.to_string_lossy().into_owned()).collect(),
        }
    }

    fn item(&self, path: &Path, action: Action) {
        let added = self.added.swap(0, Ordering::Relaxed);
        if self.output.verbosity < Verbosity::EveryFile {
            return;
        }
        let is_backup = match self.activity {
            Activity::Files | Activity::Stream => true,
            Activity::Restore | Activity::Check => false,
        };
        let word = match (self.activity, action) {
            (Activity::Restore, Action::New | Action::Other) => "restored",
            (Activity::Restore, Action::Changed) => "updated",
            (Activity::Files | Activity::Stream | Activity::Check, Action::New | Action::Other) => "new",
            (Activity::Files | Activity::Stream | Activity::Check, Action::Changed) => "modified",
            (_, Action::Unchanged) => "unchanged",
        };
        let duration = is_backup.then(|| self.duration_of(path).as_secs_f64());
        self.tell(path, word, duration, is_backup.then_some(added));
    }

    /// Returns how long a file was being read; nothing for what was not read.
    fn duration_of(&self, path: &Path) -> Duration {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some((reading, start)) if reading == path => self.elapsed().saturating_sub(*start),
            Some(_) | None => Duration::ZERO,
        }
    }

    /// Tells what became of an entry.
    fn tell(&self, path: &Path, action: &'static str, duration: Option<f64>, data_size: Option<u64>) {
        if self.output.json {
            let item = path.to_string_lossy().into_owned();
            let message_type = "verbose_status";
            let total_files = None;
            let status = VerboseStatus { message_type, action, item, duration, data_size, total_files };
            let _ignored = self.output.message(&status);
        } else {
            self.bar.suspend(|| self.output.note(&format!("{action:<9}  {}", path.display())));
        }
    }

    /// Tells of something that failed and does not end the backup.
    pub(crate) fn fail(&self, during: &'static str, path: &Path, message: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if self.output.json {
            self.output.warn_message(&Failure::new(during, path, message.to_owned()));
        } else {
            // Most errors name the path that they are about.
            let path = path.display().to_string();
            let named = if message.contains(&path) { String::new() } else { format!("{path}: ") };
            self.bar.suspend(|| self.output.warn(&format!("error: {named}{message}")));
        }
    }
}

impl Monitor for Progress {
    fn begin(&self, path: &Path) {
        let begun = (path.to_path_buf(), self.elapsed());
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
    }

    fn advance(&self, bytes: u64, files: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.files.fetch_add(files, Ordering::Relaxed);
    }

    fn added(&self, bytes: u64) {
        self.added.store(bytes, Ordering::Relaxed);
    }

    fn entry(&self, path: &Path, action: Action) {
        self.item(path, action);
    }

    fn deleted(&self, path: &Path) {
        if Verbosity::EveryFile <= self.output.verbosity {
            self.tell(path, "deleted", None, None);
        }
    }

    fn directory(&self, path: &Path, action: Action) {
        self.item(path, action);
    }

    fn failure(&self, path: &Path, error: &Error) {
        match self.activity {
            Activity::Files => self.fail("archival", path, &error.to_string()),
            Activity::Check => self.fail("check", path, &error.to_string()),
            Activity::Restore => self.fail("restore", path, &error.to_string()),
            Activity::Stream => {
                *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
        }
    }

    fn note(&self, text: &str) {
        self.bar.suspend(|| self.output.note(text));
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_raised() || self.broken().is_some()
    }
}

/// Shows a backup's progress as long as it lives.
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
