//! The real file system as a source.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::io::os_directory::{Handle, OsDirectory};
use crate::io::os_entry::{PATH_LEN_MAX, handle_path, retry};
use crate::io::os_identity;
use crate::io::tree::{Links, SourceDirectory, SourceTree};

/// The file system of this host. Relative paths start at the process's working directory.
///
/// Paths may be longer than `PATH_MAX`: the source walks them in parts. Reading leaves access times unchanged where the
/// kernel allows it, which it does for the owner of a file and for root.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsSource;

impl OsSource {
    /// Returns the file system of this host, and accesses nothing.
    pub fn new() -> Self {
        Self
    }
}

/// The directory that the front of a path leads to, and the rest of the path, which fits in one call.
#[derive(Debug)]
struct Location<'a> {
    directory: Option<OwnedFd>,
    rest: &'a Path,
}

impl<'a> Location<'a> {
    /// Walks the front of a path until the rest fits in one call. The walk follows links in the front, as the kernel does.
    fn of(path: &'a Path) -> Result<Self, Errno> {
        let mut location = Self { directory: None, rest: path };
        loop {
            let bytes = location.rest.as_os_str().as_bytes();
            if bytes.len() <= PATH_LEN_MAX {
                break;
            }
            let (front, _) = bytes.split_at_checked(PATH_LEN_MAX).ok_or(Errno::NAMETOOLONG)?;
            // If the only slash is the first byte, the front is the root directory, and the name after it is too long.
            let cut = front.iter().rposition(|byte| *byte == b'/').filter(|cut| 0 < *cut).ok_or(Errno::NAMETOOLONG)?;
            let (front, back) = bytes.split_at_checked(cut).ok_or(Errno::NAMETOOLONG)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = retry(|| rustix::fs::openat(location.fd(), front, flags, Mode::empty()))?;
            let skip = back.iter().take_while(|byte| **byte == b'/').count();
            let rest = back.get(skip..).unwrap_or_default();
            location = Self { directory: Some(directory), rest: Path::new(std::ffi::OsStr::from_bytes(rest)) };
        }
        Ok(location)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.directory.as_ref().map_or(CWD, AsFd::as_fd)
    }
}

/// Performs an action at a path. An error names the path.
fn at<'a, T>(
    operation: &'static str,
    path: &'a Path,
    action: impl FnOnce(&Location<'a>) -> Result<T, Errno>,
) -> Result<T> {
    Location::of(path).and_then(|location| action(&location)).map_err(|error| Error::io(operation, path, error.into()))
}

impl SourceTree for OsSource {
    fn open_dir(&self, path: &Path) -> Result<Arc<dyn SourceDirectory>> {
        let handle = at("open", path, |location| Handle::open(location.fd(), location.rest, Links::Followed))?;
        Ok(Arc::new(OsDirectory::of(handle, path)?))
    }

    fn user_name(&self, uid: u32) -> Option<String> {
        os_identity::name_of_user(uid)
    }

    fn group_name(&self, gid: u32) -> Option<String> {
        os_identity::name_of_group(gid)
    }

    fn canonical(&self, path: &Path) -> Result<PathBuf> {
        at("resolve", path, |location| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let handle = retry(|| rustix::fs::openat(location.fd(), location.rest, flags, Mode::empty()))?;
            match rustix::fs::readlinkat(CWD, handle_path(handle.as_fd(), Path::new("")), Vec::new()) {
                Ok(link) => Ok(PathBuf::from(OsString::from_vec(link.into_bytes()))),
                // Without /proc.
                Err(Errno::NOENT) => Ok(os_identity::canonical(path)),
                Err(error) => Err(error),
            }
        })
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests prepare real files")]
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{AtFlags, Timespec, Timestamps, XattrFlags};

    use super::*;
    use crate::io::tree::{EntryKind, Xattr};
    use crate::testing::mem_tree;
    use crate::types::Timestamp;

    fn set_times(path: &Path, seconds: i64, nanoseconds: i64) {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }

    #[test]
    fn metadata_has_nanoseconds_and_times_before_1970() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("old");
        fs::write(&path, b"12345").unwrap();
        set_times(&path, -2, 250_000_001);
        let metadata = OsSource.metadata(&path).unwrap();
        assert_eq!(metadata.kind, EntryKind::File);
        assert_eq!(metadata.size, 5);
        assert_eq!(metadata.links, 1);
        assert_eq!(metadata.mtime, Timestamp { seconds: -2, nanoseconds: 250_000_001 });
        assert!(metadata.mtime < metadata.ctime);
        let other = OsSource.open(&path).unwrap().metadata().unwrap();
        assert_eq!(other, metadata);
    }

    #[test]
    fn names_come_sorted_by_bytes_whatever_their_encoding() {
        let dir = tempfile::tempdir().unwrap();
        for name in [b"b".as_slice(), b"a", b"B", b"\xff\xfe", b".hidden", "\u{e4}".as_bytes()] {
            fs::write(dir.path().join(std::ffi::OsStr::from_bytes(name)), b"").unwrap();
        }
        let names = OsSource.list(dir.path()).unwrap();
        let bytes: Vec<_> = names.iter().map(|name| name.as_bytes()).collect();
        assert_eq!(bytes, [b".hidden".as_slice(), b"B", b"a", b"b", "\u{e4}".as_bytes(), b"\xff\xfe"]);
    }

    #[test]
    fn links_are_read_and_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        fs::write(dir.path().join("file"), b"x").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert_eq!(OsSource.metadata(&link).unwrap().kind, EntryKind::Symlink);
        assert_eq!(mem_tree::read_link(&OsSource, &link).unwrap(), Path::new("file"));
        assert!(matches!(OsSource.open(&link), Err(Error::Io { .. })));
        assert!(OsSource.list(&link).is_err());
        let canonical = OsSource.canonical(&link).unwrap();
        assert_eq!(canonical, fs::canonicalize(dir.path().join("file")).unwrap());
    }

    #[test]
    fn a_pipe_is_refused_without_waiting_for_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(matches!(OsSource.open(&pipe), Err(Error::Invalid { .. })));
        assert!(matches!(OsSource.open(dir.path()), Err(Error::Invalid { .. })));
    }

    #[test]
    fn errors_name_the_path() {
        for (missing, named) in [("/nowhere/at/all", "/nowhere/at"), ("/nowhere", "/nowhere")] {
            let error = OsSource.metadata(Path::new(missing)).unwrap_err();
            assert_eq!(error.io_kind(), Some(std::io::ErrorKind::NotFound));
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn holes_are_found_and_what_lies_between_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let file = fs::File::create(&path).unwrap();
        file.write_all_at(&[7; 4096], 1 << 20).unwrap();
        file.set_len(3 << 20).unwrap();
        let open = OsSource.open(&path).unwrap();
        let mut data = 0;
        let mut offset = 0;
        while let Some(range) = open.next_data(offset).unwrap() {
            assert!(offset <= range.start && range.start < range.end);
            assert!(range.end <= 3 << 20);
            data += range.end - range.start;
            offset = range.end;
        }
        assert!((4096..=3 << 20).contains(&data));
        assert_eq!(open.next_data(3 << 20).unwrap(), None);
        assert_eq!(open.next_data(u64::MAX).unwrap(), None);
        let mut buffer = [1; 8];
        assert_eq!(open.read_at((1 << 20) - 4, &mut buffer).unwrap(), 8);
        assert_eq!(buffer, [0, 0, 0, 0, 7, 7, 7, 7]);
        assert_eq!(open.read_at((3 << 20) - 3, &mut buffer).unwrap(), 3);
        assert_eq!(open.read_at(4 << 20, &mut buffer).unwrap(), 0);
    }

    #[test]
    fn attributes_of_any_size_come_sorted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, b"").unwrap();
        assert_eq!(mem_tree::xattrs(&OsSource, &path).unwrap(), []);
        // The value is larger than the first buffer. ext4 stores up to a block of attributes.
        let large = vec![b'x'; 2000];
        let set = |name: &str, value: &[u8]| rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty());
        match set("user.large", &large) {
            Err(Errno::NOTSUP) => {
                println!("skipped: the temporary directory has no attributes");
                return;
            }
            outcome => outcome.unwrap(),
        }
        set("user.empty", b"").unwrap();
        let attributes = mem_tree::xattrs(&OsSource, &path).unwrap();
        let of = |name: &str, value: &[u8]| Xattr { name: name.into(), value: value.to_vec() };
        assert_eq!(attributes, [of("user.empty", b""), of("user.large", &large)]);
    }

    #[test]
    fn paths_longer_than_the_kernel_takes_are_walked() {
        let dir = tempfile::tempdir().unwrap();
        let name = "n".repeat(200);
        let mut path = dir.path().to_path_buf();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut handle = rustix::fs::openat(CWD, dir.path(), flags, Mode::empty()).unwrap();
        for _ in 0..50 {
            rustix::fs::mkdirat(&handle, &name, Mode::RWXU).unwrap();
            handle = rustix::fs::openat(&handle, &name, flags, Mode::empty()).unwrap();
            path.push(&name);
            // Every kind of call must accept the rest of the path, regardless of the position of the cut.
            for len in 1..=255 {
                let missing = path.join("m".repeat(len));
                let kinds =
                    [OsSource.metadata(&missing).unwrap_err(), mem_tree::xattrs(&OsSource, &missing).unwrap_err()]
                        .map(|error| error.io_kind());
                assert_eq!(kinds, [Some(std::io::ErrorKind::NotFound); 2], "{} bytes", missing.as_os_str().len());
            }
        }
        let file_flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&handle, "file", file_flags, Mode::RWXU).unwrap();
        rustix::io::write(&file, b"deep").unwrap();
        rustix::fs::symlinkat("target", &handle, "link").unwrap();
        assert!(2 * PATH_LEN_MAX < path.as_os_str().len());

        assert_eq!(OsSource.metadata(&path).unwrap().kind, EntryKind::Directory);
        assert_eq!(OsSource.list(&path).unwrap(), ["file", "link"]);
        assert_eq!(mem_tree::read_link(&OsSource, &path.join("link")).unwrap(), Path::new("target"));
        assert_eq!(mem_tree::xattrs(&OsSource, &path.join("file")).unwrap(), []);
        let mut buffer = [0; 4];
        assert_eq!(OsSource.open(&path.join("file")).unwrap().read_at(0, &mut buffer).unwrap(), 4);
        assert_eq!(&buffer, b"deep");
        assert!(OsSource.metadata(Path::new(&"x".repeat(PATH_LEN_MAX + 1))).is_err());
    }

    #[test]
    fn a_file_that_does_not_belong_to_us_is_still_read() {
        // The kernel refuses O_NOATIME on files of other users, except to root. The test covers the refusal for normal
        // users only.
        let mut buffer = [0; 1];
        let file = OsSource.open(Path::new("/etc/passwd")).unwrap();
        assert_eq!(file.read_at(0, &mut buffer).unwrap(), 1);
    }
}
