//! The real file system as a tree that is read.

use std::cell::RefCell;
use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::io::os_entry::{self, HANDLE_PATH_LEN_MAX, LastLink, PATH_LEN_MAX, handle_path, retry};
use crate::io::tree::{EntryKind, Metadata, SourceFile, SourceTree, Xattr};

/// The file system of this host. Relative paths start at the process's working directory.
///
/// Paths may be longer than `PATH_MAX`: they are walked piece by piece. Reading leaves access times alone where the
/// kernel allows it, that is for the owner of a file and for root.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsSource;

impl OsSource {
    /// Names the file system of this host; does nothing yet.
    pub fn new() -> Self {
        Self
    }
}

/// Where a path starts once its front has been walked: what is left fits one call.
#[derive(Debug)]
struct Place<'a> {
    directory: Option<OwnedFd>,
    rest: &'a Path,
}

impl<'a> Place<'a> {
    /// Walks the front of a path until the rest fits one call. Links in the front are followed, as the kernel would.
    fn of(path: &'a Path) -> Result<Self, Errno> {
        let mut place = Self { directory: None, rest: path };
        loop {
            let bytes = place.rest.as_os_str().as_bytes();
            // Calls that know no handle take the handle's own path before the rest.
            let len_max = if place.directory.is_some() { PATH_LEN_MAX - HANDLE_PATH_LEN_MAX } else { PATH_LEN_MAX };
            if bytes.len() <= len_max {
                break;
            }
            let (front, _) = bytes.split_at_checked(len_max).ok_or(Errno::NAMETOOLONG)?;
            // A first byte that is the only slash would be the root directory, and the name after it too long.
            let cut = front.iter().rposition(|byte| *byte == b'/').filter(|cut| 0 < *cut).ok_or(Errno::NAMETOOLONG)?;
            let (front, back) = bytes.split_at_checked(cut).ok_or(Errno::NAMETOOLONG)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = retry(|| rustix::fs::openat(place.fd(), front, flags, Mode::empty()))?;
            let skip = back.iter().take_while(|byte| **byte == b'/').count();
            let rest = back.get(skip..).unwrap_or_default();
            place = Self { directory: Some(directory), rest: Path::new(std::ffi::OsStr::from_bytes(rest)) };
        }
        Ok(place)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.directory.as_ref().map_or(CWD, AsFd::as_fd)
    }

    /// Opens for reading without touching the access time, if the kernel lets us.
    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |flags| retry(|| rustix::fs::openat(self.fd(), self.rest, flags, Mode::empty()));
        match open(flags | OFlags::NOATIME) {
            Err(Errno::PERM) => open(flags),
            outcome => outcome,
        }
    }

    fn metadata(&self) -> Result<Metadata, Errno> {
        let mut metadata = os_entry::stat(self.fd(), self.rest, AtFlags::empty())?;
        if metadata.kind == EntryKind::BlockDevice {
            // Without a medium or the right to open it, the capacity is unknown; the entry itself is still there.
            metadata.size = self
                .open(OFlags::empty())
                .and_then(|device| os_entry::stat_file(&device))
                .map_or(0, |opened| if opened.rdev == metadata.rdev { opened.size } else { 0 });
        }
        Ok(metadata)
    }

    fn xattrs(&self) -> Result<Vec<Xattr>, Errno> {
        match &self.directory {
            None => os_entry::xattrs(self.rest, LastLink::NotFollowed),
            Some(directory) => os_entry::xattrs(&handle_path(directory.as_fd(), self.rest), LastLink::NotFollowed),
        }
    }
}

/// Does something at a path and names the path if that fails.
fn at<'a, T>(
    operation: &'static str,
    path: &'a Path,
    action: impl FnOnce(&Place<'a>) -> Result<T, Errno>,
) -> Result<T> {
    Place::of(path).and_then(|place| action(&place)).map_err(|error| Error::io(operation, path, error.into()))
}

impl SourceTree for OsSource {
    fn metadata(&self, path: &Path) -> Result<Metadata> {
        at("read metadata of", path, Place::metadata)
    }

    fn list(&self, path: &Path) -> Result<Vec<OsString>> {
        at("list", path, |place| os_entry::list(place.open(OFlags::DIRECTORY)?))
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        let link = at("read link", path, |place| rustix::fs::readlinkat(place.fd(), place.rest, Vec::new()))?;
        Ok(PathBuf::from(OsString::from_vec(link.into_bytes())))
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<Xattr>> {
        at("read attributes of", path, Place::xattrs)
    }

    fn open(&self, path: &Path) -> Result<Box<dyn SourceFile>> {
        let file = at("open", path, |place| place.open(OFlags::empty()))?;
        let opened = os_entry::stat_opened(&file).map_err(|error| Error::io("read metadata of", path, error.into()));
        let (metadata, is_dense) = opened?;
        match metadata.kind {
            EntryKind::File | EntryKind::BlockDevice => {
                let dense_len = (is_dense && metadata.kind == EntryKind::File).then_some(metadata.size);
                let opened = RefCell::new(Some(metadata));
                Ok(Box::new(OsSourceFile { file, path: path.to_path_buf(), opened, dense_len }))
            }
            EntryKind::Directory | EntryKind::Symlink | EntryKind::Fifo | EntryKind::Socket | EntryKind::CharDevice => {
                Err(Error::invalid(format!("open {}: neither a regular file nor a block device", path.display())))
            }
        }
    }

    fn canonical(&self, path: &Path) -> Result<PathBuf> {
        at("resolve", path, |place| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let handle = retry(|| rustix::fs::openat(place.fd(), place.rest, flags, Mode::empty()))?;
            let link = rustix::fs::readlinkat(CWD, handle_path(handle.as_fd(), Path::new("")), Vec::new())?;
            Ok(PathBuf::from(OsString::from_vec(link.into_bytes())))
        })
    }
}

/// A regular file or block device, open for reading.
#[derive(Debug)]
struct OsSourceFile {
    file: OwnedFd,
    path: PathBuf,
    /// What was found out when the file was opened, for whoever asks first: that is asked for nearly always.
    opened: RefCell<Option<Metadata>>,
    /// The length when the file was opened, if it is one without holes.
    dense_len: Option<u64>,
}

impl OsSourceFile {
    fn seek(&self, to: SeekFrom) -> Result<u64, Errno> {
        retry(|| rustix::fs::seek(&self.file, to))
    }

    fn error(&self, operation: &'static str, error: Errno) -> Error {
        Error::io(operation, &self.path, error.into())
    }

    /// Everything up to the end is data, for all that is known.
    fn rest_as_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let len = self.metadata()?.size;
        Ok((offset < len).then_some(offset..len))
    }
}

impl SourceFile for OsSourceFile {
    fn metadata(&self) -> Result<Metadata> {
        if let Some(opened) = self.opened.take() {
            return Ok(opened);
        }
        os_entry::stat_file(&self.file).map_err(|error| self.error("read metadata of", error))
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        // Two calls less for each of the many small files. If it was cut meanwhile, reading shows it.
        if let Some(len) = self.dense_len.filter(|len| offset < *len) {
            return Ok(Some(offset..len));
        }
        let start = match self.seek(SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // Block devices and file systems without holes.
            Err(Errno::INVAL | Errno::NOTSUP | Errno::NOTTY) => return self.rest_as_data(offset),
            Err(error) => return Err(self.error("find data in", error)),
        };
        match self.seek(SeekFrom::Hole(start)) {
            Ok(end) if start < end => Ok(Some(start..end)),
            // The file was cut between the two calls, before or at `start`.
            Ok(_) | Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(self.error("find holes in", error)),
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        os_entry::read_at(&self.file, offset, buffer).map_err(|error| self.error("read", error))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests prepare real files")]
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{Timespec, Timestamps, XattrFlags};

    use super::*;
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
        assert_eq!(OsSource.read_link(&link).unwrap(), Path::new("file"));
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
        let missing = Path::new("/nowhere/at/all");
        let error = OsSource.metadata(missing).unwrap_err();
        assert_eq!(error.io_kind(), Some(std::io::ErrorKind::NotFound));
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
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
        assert_eq!(OsSource.xattrs(&path).unwrap(), []);
        // Larger than the first buffer; ext4 holds a block of them.
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
        let attributes = OsSource.xattrs(&path).unwrap();
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
            // Wherever a path is cut, what is left must fit every kind of call.
            for len in 1..=255 {
                let missing = path.join("m".repeat(len));
                let kinds = [OsSource.metadata(&missing).unwrap_err(), OsSource.xattrs(&missing).unwrap_err()]
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
        assert_eq!(OsSource.read_link(&path.join("link")).unwrap(), Path::new("target"));
        assert_eq!(OsSource.xattrs(&path.join("file")).unwrap(), []);
        let mut buffer = [0; 4];
        assert_eq!(OsSource.open(&path.join("file")).unwrap().read_at(0, &mut buffer).unwrap(), 4);
        assert_eq!(&buffer, b"deep");
        assert!(OsSource.metadata(Path::new(&"x".repeat(PATH_LEN_MAX + 1))).is_err());
    }

    #[test]
    fn a_file_that_does_not_belong_to_us_is_still_read() {
        // O_NOATIME is refused on files of others; for root it never is, so this shows it for normal users only.
        let mut buffer = [0; 1];
        let file = OsSource.open(Path::new("/etc/passwd")).unwrap();
        assert_eq!(file.read_at(0, &mut buffer).unwrap(), 1);
    }
}
