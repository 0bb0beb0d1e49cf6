//! The few files that belong to the command itself and not to a repository or a source: lists that options name,
//! passwords, and the directories that repositories and caches are made in.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the command's own door for what options name"
)]

use std::ffi::{OsStr, OsString};
#[cfg(feature = "cdp")]
use std::fs::TryLockError;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
#[cfg(feature = "cdp")]
use std::os::unix::fs::{FileExt, FileTypeExt};
#[cfg(feature = "cdp")]
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use onefold_engine::io::Host;
use onefold_engine::io::os::OsHost;
use onefold_engine::source::exclude::CACHE_SIGNATURE;
use zeroize::Zeroizing;

/// Longest list that an option may name: millions of paths, and no device that never ends.
const LIST_BYTES_MAX: u64 = 1 << 30;
/// Most bytes of a file with certificates or a key.
#[cfg(feature = "cdp")]
const CERTIFICATE_BYTES_MAX: u64 = 1 << 20;
/// Bytes that are read of a file whose first line counts: a password, or the name of a repository.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Returns true if the process was started with a signal ignored.
pub(crate) fn is_signal_ignored(signal: i32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let bit = u32::try_from(signal - 1).ok().and_then(|bit| 1_u64.checked_shl(bit));
    bit.is_some_and(|bit| mask & bit != 0)
}

/// Removes a socket that nobody listens at. Other files stay.
#[cfg(feature = "cdp")]
pub(crate) fn remove_left_socket(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        remove_socket(path);
    }
}

/// Removes a socket of the command's own. One that is gone is fine.
#[cfg(feature = "cdp")]
pub(crate) fn remove_socket(path: &Path) {
    let _ignored = std::fs::remove_file(path);
}

/// Reads certificates or a key.
#[cfg(feature = "cdp")]
pub(crate) fn read_certificates(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::new());
    read_at_most(path, CERTIFICATE_BYTES_MAX, &mut bytes).with_context(|| format!("read {}", path.display()))?;
    Ok(bytes)
}

/// A file or block device that a volume is restored to.
#[cfg(feature = "cdp")]
#[derive(Debug)]
pub(crate) struct VolumeTarget(File);

#[cfg(feature = "cdp")]
impl VolumeTarget {
    /// Opens it; creates a file, and gives a file the volume's size.
    pub(crate) fn open(path: &Path, size: u64) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            let reason = "it is served as a volume, or locked by another program: stop that first";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
        }
        if file.metadata()?.is_file() {
            file.set_len(size)?;
        }
        Ok(Self(file))
    }

    /// Reads and compares bytes, and writes them if they differ; returns true if it wrote. `buffer` holds what was read.
    pub(crate) fn write_if_different(&self, bytes: &[u8], offset: u64, buffer: &mut Vec<u8>) -> io::Result<bool> {
        buffer.resize(bytes.len(), 0);
        self.0.read_exact_at(buffer, offset)?;
        let differs = buffer[..] != *bytes;
        if differs {
            self.0.write_all_at(bytes, offset)?;
        }
        Ok(differs)
    }

    /// Makes what was written durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

fn read_at_most(path: &Path, bytes_max: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    File::open(path)?.take(bytes_max).read_to_end(bytes).map(drop)
}

/// Reads a list that an option names; `-` is standard input.
pub(crate) fn read_list(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(LIST_BYTES_MAX + 1).read_to_end(&mut bytes).map(drop)
    } else {
        read_at_most(path, LIST_BYTES_MAX + 1, &mut bytes)
    };
    read.with_context(|| format!("read {}", path.display()))?;
    ensure!(bytes.len() as u64 <= LIST_BYTES_MAX, "{}: longer than a list may be", path.display());
    Ok(bytes)
}

/// Reads a list of lines that an option names, without a byte order mark. What is not UTF-8 in it are names, but no path has the NUL bytes
/// of UTF-16.
pub(crate) fn read_lines(path: &Path) -> Result<Vec<u8>> {
    let bytes = read_list(path)?;
    let is_utf16 = bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") || bytes.contains(&0);
    ensure!(
        !is_utf16,
        "{}: is in UTF-16 or has NUL bytes; a list must be in UTF-8, with one entry a line",
        path.display()
    );
    Ok(bytes.strip_prefix(b"\xef\xbb\xbf").map(<[u8]>::to_vec).unwrap_or(bytes))
}

/// Reads a file with a password.
pub(crate) fn read_password(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(4096));
    read_at_most(path, LINE_BYTES_MAX, &mut bytes).with_context(|| format!("read password file {}", path.display()))?;
    Ok(bytes)
}

/// Reads the location of a repository from the first line of a file, without spaces around it.
pub(crate) fn read_repository(path: &Path) -> Result<OsString> {
    let mut bytes = Vec::new();
    read_at_most(path, LINE_BYTES_MAX, &mut bytes)
        .with_context(|| format!("read repository file {}", path.display()))?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    ensure!(!line.is_empty(), "repository file {} names no repository", path.display());
    Ok(OsStr::from_bytes(line).to_owned())
}

/// Makes a directory for the owner alone, and those that lead to it. One that exists is kept as it is.
pub(crate) fn create_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes a directory that everybody may read, and those that lead to it. One that exists is kept as it is.
pub(crate) fn create_directories_for_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(path)
}

/// Writes a page of the manual, and replaces an earlier one.
pub(crate) fn write_page(path: &Path, bytes: &[u8]) -> io::Result<()> {
    File::create(path)?.write_all(bytes)
}

/// A file that is written whole or not at all: under another name until it is whole. Something other than a file, as a
/// pipe or a device, is written as it is.
#[derive(Debug)]
pub(crate) struct Target {
    writer: io::BufWriter<File>,
    /// The name that it is written under, and the one that it is to have.
    rename: Option<(PathBuf, PathBuf)>,
}

impl Target {
    /// Begins to write. The file is for its owner alone: it comes out of a backup.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Ok(Self { writer: io::BufWriter::new(File::options().write(true).open(path)?), rename: None });
        }
        let path = follow_links(path)?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut random = [0; 8];
        OsHost::new().random(&mut random).map_err(io::Error::other)?;
        let partial = path.with_file_name(partial_name(name, u64::from_be_bytes(random)));
        let file = File::options().write(true).create_new(true).mode(0o600).open(&partial)?;
        Ok(Self { writer: io::BufWriter::new(file), rename: Some((partial, path)) })
    }

    /// Gives the file its name. Nothing is left to write.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.writer.flush()?;
        onefold_sys::report_close(self.writer.get_ref().as_fd())?;
        if self.rename.is_some() {
            // Before the rename: a power cut must not take the earlier file along with this one.
            self.writer.get_ref().sync_all()?;
        }
        let Some((partial, path)) = self.rename.take() else { return Ok(()) };
        std::fs::rename(&partial, &path).inspect_err(|_| self.rename = Some((partial, path)))
    }
}

/// Longest name that a file system takes.
const NAME_LEN_MAX: usize = 255;
/// Most links that are followed one after the other, as in the kernel.
const LINKS_MAX: usize = 40;

/// Returns the name of a file that is not whole yet: so much of its own as fits, and a random number.
fn partial_name(name: &OsStr, random: u64) -> OsString {
    let suffix = format!(".partial-{random:016x}");
    let mut partial = name.as_bytes().to_vec();
    let mut end = partial.len().min(NAME_LEN_MAX - suffix.len());
    // Not within a character: some file systems take nothing but UTF-8.
    while partial.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) && 1 < end {
        end -= 1;
    }
    partial.truncate(end);
    partial.extend_from_slice(suffix.as_bytes());
    OsString::from_vec(partial)
}

/// Returns the path that symbolic links lead to, even if nothing exists there.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&path) {
            Ok(points_to) => path = path.parent().unwrap_or_else(|| Path::new("")).join(points_to),
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotFound) => {
                return Ok(path);
            }
            Err(error) => return Err(error),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some((partial, _)) = &self.rename {
            // It was not finished, for a reason that is reported.
            let _ignored = std::fs::remove_file(partial);
        }
    }
}

/// Returns true if the path exists.
#[cfg(feature = "lab")]
pub(crate) fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Makes a directory that must not exist yet.
pub(crate) fn create_new_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Writes a file that must not exist yet; one that does is left alone.
pub(crate) fn write_once(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match File::options().write(true).create_new(true).open(path) {
        Ok(mut file) => file.write_all(bytes),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Prefix of the files that `probe` creates.
const PROBE: &str = "probe-";

/// Returns an error if files cannot be created in a directory. Removes files that killed processes left behind.
pub(crate) fn probe(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(PROBE)) {
            remove_probe(&entry.path())?;
        }
    }
    let path = directory.join(format!("{PROBE}{}", std::process::id()));
    let created = File::create(&path);
    let removed = remove_probe(&path);
    created.and(removed)
}

fn remove_probe(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        // Another process has removed it, which may do that as well.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes a directory with all that is in it.
pub(crate) fn remove_all(directory: &Path) -> io::Result<()> {
    std::fs::remove_dir_all(directory)
}

/// Returns the names of the directories in a directory, with the second since 1970 at which an entry was last made in or
/// removed from each.
pub(crate) fn directories(directory: &Path) -> io::Result<Vec<(OsString, i64)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            found.push((entry.file_name(), metadata.mtime()));
        }
    }
    Ok(found)
}

/// Makes the directory of all caches.
pub(crate) fn prepare_cache(directory: &Path) -> io::Result<()> {
    create_directories(directory)?;
    let tag = [
        &CACHE_SIGNATURE[..],
        b"\n# This directory holds caches of onefold, which may be deleted when no command is running.\n\
          # See https://bford.info/cachedir/\n",
    ];
    write_once(&directory.join("CACHEDIR.TAG"), &tag.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_target_is_written_next_to_the_file_that_a_link_leads_to_and_follows_the_link() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        create_new_directory(&at("d")).unwrap();
        std::fs::write(at("d/old"), b"old").unwrap();
        for (link, points_to) in [("to-old", "d/old"), ("to-new", "d/new"), ("twice", "to-new")] {
            std::os::unix::fs::symlink(points_to, at(link)).unwrap();
        }
        for (link, file) in [("to-old", "d/old"), ("to-new", "d/new"), ("twice", "d/new")] {
            let mut target = Target::create(&at(link)).unwrap();
            target.write_all(link.as_bytes()).unwrap();
            target.finish().unwrap();
            assert_eq!(std::fs::read(at(file)).unwrap(), link.as_bytes());
            assert!(at(link).is_symlink());
        }
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        assert!(Target::create(&at("loop")).is_err());
        assert_eq!(names(&at("d")), ["new", "old"]);
    }

    #[test]
    fn a_target_that_a_killed_process_abandoned_does_not_block_another() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        // Of a process that had the same number.
        std::mem::forget(Target::create(&path).unwrap());
        let mut target = Target::create(&path).unwrap();
        target.write_all(b"whole").unwrap();
        target.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
    }

    #[test]
    fn a_target_may_have_the_longest_name() {
        let place = tempfile::tempdir().unwrap();
        for name in ["x".repeat(NAME_LEN_MAX), "\u{e9}".repeat(NAME_LEN_MAX / 2)] {
            assert!(partial_name(OsStr::new(&name), u64::MAX).to_str().is_some(), "cut within a character");
            let target = Target::create(&place.path().join(&name)).unwrap();
            target.finish().unwrap();
            assert!(place.path().join(&name).is_file());
        }
    }
}
