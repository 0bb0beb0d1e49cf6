//! A pipe that the user named, open for reading.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::monitor::Monitor;

/// Interval between looks at the user's wish to stop, while a pipe gives nothing.
const POLL_NANOSECONDS: i64 = 100_000_000;
/// Intervals after which the user is told of a pipe that no process has opened for writing: two seconds.
const POLLS_BEFORE_NOTE: u32 = 20;
/// Intervals after which such a pipe counts as unreadable: a minute.
const POLLS_MAX: u32 = 600;

/// Reads a pipe, opened without waiting for its writer, until its last writer has closed it.
pub(super) struct PipeReader {
    pipe: OwnedFd,
    path: PathBuf,
    monitor: Arc<dyn Monitor>,
    /// Whether a process was seen that writes.
    has_writer: bool,
    polls: u32,
}

impl PipeReader {
    /// Reads a pipe that is open.
    pub(super) fn new(pipe: OwnedFd, path: PathBuf, monitor: Arc<dyn Monitor>) -> Self {
        Self { pipe, path, monitor, has_writer: false, polls: 0 }
    }

    /// Waits for the first writer, once more.
    fn wait(&mut self) -> io::Result<()> {
        self.polls += 1;
        if self.polls == POLLS_BEFORE_NOTE {
            self.monitor.note(&format!("{}: waiting for a process that writes to it", self.path.display()));
        }
        if self.polls < POLLS_MAX { Ok(()) } else { Err(io::Error::other("no process has opened it for writing")) }
    }
}

impl Read for PipeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.monitor.is_interrupted() {
                return Err(io::Error::other("interrupted"));
            }
            let mut polled = [PollFd::new(&self.pipe, PollFlags::IN)];
            let ready = match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: POLL_NANOSECONDS })) {
                Err(Errno::INTR) => continue,
                ready => ready?,
            };
            match rustix::io::read(&self.pipe, &mut *buffer) {
                // Neither ready nor at its end: no process has opened it.
                Ok(0) if ready == 0 && !self.has_writer => self.wait()?,
                Ok(count) => {
                    self.has_writer = true;
                    return Ok(count);
                }
                Err(Errno::AGAIN) => self.has_writer = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "a test prepares a real pipe")]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, OFlags};

    use super::*;
    use crate::monitor::Silent;

    #[test]
    fn a_pipe_without_a_writer_is_given_up_and_one_that_was_written_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let open = || {
            let pipe = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
            PipeReader::new(pipe, path.clone(), Arc::new(Silent))
        };
        let error = PipeReader { polls: POLLS_MAX - 2, ..open() }.read(&mut [0]).unwrap_err();
        assert!(error.to_string().contains("opened it for writing"), "{error}");
        let mut reader = open();
        std::fs::write(&path, b"bytes").unwrap();
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"bytes");
        // A writer without a byte.
        let mut reader = open();
        drop(std::fs::File::options().write(true).open(&path).unwrap());
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
