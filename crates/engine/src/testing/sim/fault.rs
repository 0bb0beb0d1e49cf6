//! Faults at chosen calls, and the count of calls that choose them.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Message of the error that every call gets from a simulated process that died.
const CRASH_MESSAGE: &str = "simulated crash";

/// What goes wrong at a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The call fails and takes no effect. A sync also loses the unsynced changes of the file or directory for good.
    Error(ErrorKind),
    /// The call takes effect and answers with an error all the same, as over a network where the first answer was lost and
    /// the request was repeated.
    ErrorAfter(ErrorKind),
    /// A write fails after the first half of its bytes landed; any other call fails as with `Error`.
    ShortWrite(ErrorKind),
    /// From this call on, whatever needs room (a write after the end or into a hole, a longer length, a new name
    /// other than by renaming) fails with `StorageFull`, until the faults are cleared.
    DiskFull,
    /// The process dies: this call and all later ones fail with a "simulated crash" and take no effect.
    Die,
    /// The call takes effect, then the process dies; it never learns how the call ended.
    DieAfter,
}

/// One call as the trace shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// Number of the call, counted from 1.
    pub number: u64,
    /// What was called, as error messages put it.
    pub operation: &'static str,
    /// On which path.
    pub path: PathBuf,
}

/// What becomes of a call.
pub(super) enum CallOutcome {
    /// It takes effect, as far as there is room.
    Proceed,
    /// It fails.
    Fail(Injected),
    /// It takes effect and answers with an error.
    ProceedThenFail(ErrorKind),
    /// It takes effect; then the process dies.
    ProceedThenDie,
    /// It finds the process dead.
    Dead,
}

/// An error that a call was told to fail with.
#[derive(Clone, Copy)]
pub(super) struct Injected {
    pub(super) kind: ErrorKind,
    /// How much of a write lands before it.
    pub(super) landing: WriteLanding,
}

/// How much of a failing write lands.
#[derive(Clone, Copy)]
pub(super) enum WriteLanding {
    Nothing,
    FirstHalf,
}

/// Counter of calls, and the faults that wait for them.
#[derive(Default)]
pub(super) struct Faults {
    calls: u64,
    planned: BTreeMap<u64, Fault>,
    /// Planned faults whose call was made.
    struck: u64,
    disk_full: bool,
    dead: bool,
    trace: Option<Vec<TraceEntry>>,
}

impl Faults {
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    pub(super) fn struck(&self) -> u64 {
        self.struck
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead
    }

    pub(super) fn plan(&mut self, call_number: u64, fault: Fault) {
        self.planned.insert(call_number, fault);
    }

    /// Forgets the plan and frees the disk; the dead stay dead.
    pub(super) fn clear(&mut self) {
        self.planned.clear();
        self.disk_full = false;
    }

    pub(super) fn die(&mut self) {
        self.dead = true;
    }

    pub(super) fn record_trace(&mut self) {
        self.trace.get_or_insert_default();
    }

    pub(super) fn trace(&self) -> Vec<TraceEntry> {
        self.trace.clone().unwrap_or_default()
    }

    /// Counts a call and returns what goes wrong with it.
    pub(super) fn next_call(&mut self, operation: &'static str, path: &Path) -> CallOutcome {
        self.calls += 1;
        if let Some(trace) = &mut self.trace {
            trace.push(TraceEntry { number: self.calls, operation, path: path.to_path_buf() });
        }
        if self.dead {
            return CallOutcome::Dead;
        }
        let planned = self.planned.get(&self.calls);
        self.struck += u64::from(planned.is_some());
        match planned {
            None => CallOutcome::Proceed,
            Some(Fault::Error(kind)) => CallOutcome::Fail(Injected { kind: *kind, landing: WriteLanding::Nothing }),
            Some(Fault::ErrorAfter(kind)) => CallOutcome::ProceedThenFail(*kind),
            Some(Fault::ShortWrite(kind)) => {
                CallOutcome::Fail(Injected { kind: *kind, landing: WriteLanding::FirstHalf })
            }
            Some(Fault::DiskFull) => {
                self.disk_full = true;
                CallOutcome::Proceed
            }
            Some(Fault::Die) => {
                self.dead = true;
                CallOutcome::Dead
            }
            Some(Fault::DieAfter) => CallOutcome::ProceedThenDie,
        }
    }

    /// Fails if the disk is full: asked by whatever needs room.
    pub(super) fn free_space(&self) -> io::Result<()> {
        if self.disk_full { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// Returns the error that every call of a dead process gets.
pub fn crash_error() -> io::Error {
    io::Error::other(CRASH_MESSAGE)
}

/// Says whether an error is that of a simulated process that died.
pub(super) fn is_crash(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.to_string() == CRASH_MESSAGE)
}
