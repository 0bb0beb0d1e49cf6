//! Extended attributes of an entry by its name in an open directory.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `listxattrat`, in the part of the table that is the same on all of these architectures.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
const LISTXATTRAT: Option<c_long> = Some(465);
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))))]
const LISTXATTRAT: Option<c_long> = None;

/// `AT_SYMLINK_NOFOLLOW` of fcntl.h.
const NOT_FOLLOWED: c_uint = 0x100;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

/// Returns the length of the list of names of the extended attributes that an entry has, 0 if it has none: [`listxattrat(2)`] without a
/// buffer. A symbolic link is not followed.
///
/// [`listxattrat(2)`]: https://man7.org/linux/man-pages/man2/listxattr.2.html
///
/// # Errors
///
/// Those of the call. [`io::ErrorKind::Unsupported`] if the kernel is older than Linux 6.13, or on other architectures.
pub fn xattr_names_len(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<usize> {
    let number = LISTXATTRAT.ok_or_else(|| io::Error::from_raw_os_error(rustix::io::Errno::NOSYS.raw_os_error()))?;
    let fd: c_int = directory.as_raw_fd();
    let path: *const c_char = name.as_ptr();
    let (buffer, len): (*mut c_void, usize) = (std::ptr::null_mut(), 0);
    // SAFETY: the name ends with a zero, the handle is open, and with a length of 0 the kernel writes nothing.
    let outcome = unsafe { syscall(number, fd, path, NOT_FOLLOWED, buffer, len) };
    usize::try_from(outcome).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test prepares real files")]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::XattrFlags;

    use super::*;

    #[test]
    #[expect(clippy::print_stdout, reason = "a skipped test says so")]
    fn the_length_is_that_of_the_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"x").unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        let directory = std::fs::File::open(dir.path()).unwrap();
        let len = |name: &CStr| xattr_names_len(directory.as_fd(), name);
        match len(c"file") {
            Err(error) if matches!(error.raw_os_error(), Some(1 | 38)) => {
                println!("skipped: the kernel does not know the call");
                return;
            }
            found => assert_eq!(found.unwrap(), 0),
        }
        assert_eq!(len(c"missing").unwrap_err().kind(), io::ErrorKind::NotFound);
        if rustix::fs::lsetxattr(&path, "user.name", b"value", XattrFlags::empty()).is_err() {
            println!("skipped: the temporary directory has no attributes");
            return;
        }
        assert_eq!(len(c"file").unwrap(), "user.name".len() + 1);
        assert_eq!(len(c"link").unwrap(), 0);
    }
}
