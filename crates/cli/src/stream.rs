//! Streams that are backed up: standard input, and the output of a command.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt::Interrupt;

/// Interval between checks for signals while a pipe gives nothing.
const POLL_NANOSECONDS: i64 = 100_000_000;
/// Interval between checks of a command that was asked to end, and their most before it is killed: two seconds.
const END_POLL: Duration = Duration::from_millis(20);
const END_POLLS_MAX: u32 = 100;

/// Treatment of a stream without a byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Emptiness {
    /// It is backed up.
    Allowed,
    /// It is taken for a mistake.
    Refused,
}

/// A stream that must have something in it, unless that is allowed.
pub(crate) struct Checked<R> {
    reader: R,
    is_begun: bool,
    emptiness: Emptiness,
    found_empty: Arc<AtomicBool>,
}

impl<R: Read> Checked<R> {
    /// Reads from `reader`; `found_empty` becomes true if it is refused for being empty.
    pub(crate) fn new(reader: R, emptiness: Emptiness, found_empty: &Arc<AtomicBool>) -> Self {
        Self { reader, is_begun: false, emptiness, found_empty: Arc::clone(found_empty) }
    }
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.is_begun |= 0 < count || buffer.is_empty();
        if !self.is_begun && self.emptiness == Emptiness::Refused {
            self.found_empty.store(true, Ordering::Relaxed);
            return Err(io::Error::other("the stream is empty"));
        }
        Ok(count)
    }
}

/// Reads what a pipe has, and gives up once the user has asked to stop, even if nothing comes.
fn read_unless_raised(pipe: impl AsFd, buffer: &mut [u8], interrupt: &Interrupt) -> io::Result<usize> {
    loop {
        if interrupt.is_raised() {
            return Err(io::Error::other("interrupted"));
        }
        let mut polled = [PollFd::new(&pipe, PollFlags::IN)];
        match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: POLL_NANOSECONDS })) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(rustix::io::read(&pipe, &mut *buffer)?),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Standard input.
pub(crate) struct StandardInput {
    interrupt: Interrupt,
}

impl StandardInput {
    pub(crate) fn new(interrupt: &Interrupt) -> Self {
        Self { interrupt: interrupt.clone() }
    }
}

impl Read for StandardInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        read_unless_raised(io::stdin(), buffer, &self.interrupt)
    }
}

/// The output of a command, whose end counts only if the command succeeded.
pub(crate) struct CommandOutput {
    name: String,
    child: Child,
    output: ChildStdout,
    interrupt: Interrupt,
}

impl CommandOutput {
    /// Starts a command without standard input; it writes its errors where ours go.
    pub(crate) fn start(program: &OsString, arguments: &[OsString], interrupt: &Interrupt) -> Result<Self> {
        let name = program.display().to_string();
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().with_context(|| format!("start the command {name}"))?;
        let output = child.stdout.take().context("a pipe that was asked for")?;
        Ok(Self { name, child, output, interrupt: interrupt.clone() })
    }

    /// Waits for the command, which has closed its output.
    fn end(&mut self) -> io::Result<()> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                let name = &self.name;
                return if status.success() {
                    Ok(())
                } else {
                    Err(io::Error::other(format!("the command {name} failed: {status}")))
                };
            }
            if self.interrupt.is_raised() {
                return Err(io::Error::other("interrupted"));
            }
            std::thread::sleep(END_POLL);
        }
    }
}

impl Read for CommandOutput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = read_unless_raised(&self.output, buffer, &self.interrupt)?;
        if count == 0 && !buffer.is_empty() {
            self.end()?;
        }
        Ok(count)
    }
}

impl Drop for CommandOutput {
    /// Ends a command whose output nobody wants any more.
    fn drop(&mut self) {
        let is_running = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        if !is_running(&mut self.child) {
            return;
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let _asked = pid.map(|pid| kill_process(pid, Signal::TERM));
        for _ in 0..END_POLLS_MAX {
            if !is_running(&mut self.child) {
                return;
            }
            std::thread::sleep(END_POLL);
        }
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}
