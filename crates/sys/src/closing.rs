//! Errors that a file system reports when a file is closed.

use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd};

use rustix::io::Errno;

/// Returns the error that [`close(2)`] would return for an open file, and leaves the file open.
///
/// A network file system may accept a `write` and notice only during the close that the server is full or unreachable.
/// Each close of a duplicate handle reports such errors. This is no sync: a local file system does nothing here. If the
/// process has no free handle for a duplicate, the function syncs the file, which reports the same errors.
///
/// [`close(2)`]: https://man7.org/linux/man-pages/man2/close.2.html
///
/// # Errors
///
/// The error that the file system has deferred.
pub fn report_close(file: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        let duplicate = match rustix::io::fcntl_dupfd_cloexec(file, 0) {
            Ok(duplicate) => duplicate.into_raw_fd(),
            Err(Errno::MFILE | Errno::NFILE) => return Ok(rustix::fs::fdatasync(file)?),
            Err(error) => return Err(error.into()),
        };
        // SAFETY: `into_raw_fd` gave up this handle, and no other code knows its number. It is not used again: Linux
        // closes a handle even if it reports an error.
        match unsafe { rustix::io::try_close(duplicate) } {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_file_stays_open() {
        let mut file = tempfile::tempfile().unwrap();
        for _ in 0..3 {
            report_close(file.as_fd()).unwrap();
            file.write_all(b"more").unwrap();
        }
        assert_eq!(file.metadata().unwrap().len(), 12);
    }
}
