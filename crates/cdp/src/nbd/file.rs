//! A file or a block device as a volume, without history.

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::{Advice, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::{self, ReadWriteFlags, retry_on_intr};

use super::export::{Context, Export, Fua, StatusExtents, ZeroOptions};
use super::wire::{Errno, allocation_flag, export_flag};
use crate::log::Log;

/// Most messages of one export. A disk that fails would fill the log.
const MESSAGES_MAX: u32 = 100;

/// Bytes of zeros in one write.
const ZEROS_BYTES: usize = 1 << 20;

static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];

/// Rights of an export on its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Clients read only.
    ReadOnly,
    /// Clients read and write.
    ReadWrite,
}

/// A file or a block device as a volume. Writes go to the file, and a flush is `fdatasync`.
///
/// After a failed sync the file is read-only: the kernel may have dropped what it could not write, and another sync would
/// succeed without it.
pub struct FileExport {
    file: OwnedFd,
    path: PathBuf,
    size: u64,
    access: Access,
    log: Log,
    messages: AtomicU32,
    /// A sync has failed.
    is_failed: AtomicBool,
}

impl FileExport {
    /// Opens a file or a block device. With [`Access::ReadWrite`] it is locked (`flock`): another export of it is refused until this one is
    /// dropped.
    pub fn open(path: &Path, access: Access, log: Log) -> std::io::Result<Self> {
        let mode = if access == Access::ReadOnly { OFlags::RDONLY } else { OFlags::RDWR };
        let file = retry_on_intr(|| rustix::fs::open(path, mode | OFlags::CLOEXEC, Mode::empty()))?;
        // A history that does not know of the writes of another process is wrong. Some file systems know no locks.
        if access == Access::ReadWrite
            && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(io::Errno::WOULDBLOCK)
        {
            let reason = "it is in use as a volume already, or locked by another program: two writers would damage it";
            return Err(std::io::Error::new(std::io::ErrorKind::ResourceBusy, reason));
        }
        let stat = rustix::fs::fstat(&file)?;
        let size = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::BlockDevice => rustix::fs::seek(&file, SeekFrom::End(0))?,
            _ => {
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "neither a file nor a block device"));
            }
        };
        let path = path.to_owned();
        Ok(Self { file, path, size, access, log, messages: AtomicU32::new(0), is_failed: AtomicBool::new(false) })
    }

    fn report(&self, message: fmt::Arguments<'_>) {
        match self.messages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_add(1)) {
            Ok(count) if count < MESSAGES_MAX => self.log.line(&format!("{}: {message}", self.path.display())),
            Ok(MESSAGES_MAX) => self.log.line(&format!("{}: further errors are not reported", self.path.display())),
            _ => {}
        }
    }

    /// Reports an error and returns the reason for the client.
    fn failed(&self, what: &str, error: io::Errno) -> Errno {
        self.report(format_args!("{what} failed: {error}"));
        match error {
            io::Errno::NOSPC | io::Errno::DQUOT | io::Errno::FBIG => Errno::NoSpace,
            io::Errno::PERM | io::Errno::ACCESS | io::Errno::ROFS => Errno::NotPermitted,
            io::Errno::NOMEM => Errno::NoMemory,
            _ => Errno::Io,
        }
    }

    fn sync_failed(&self, error: io::Errno) -> Errno {
        self.is_failed.store(true, Ordering::Release);
        self.report(format_args!("a sync failed: {error}; nothing is written to it from now on"));
        Errno::Io
    }

    /// Refuses changes after a failed sync.
    fn check_sound(&self) -> Result<(), Errno> {
        if self.is_failed.load(Ordering::Acquire) { Err(Errno::Io) } else { Ok(()) }
    }

    /// Writes all slices of `data` in order. Slices may be longer than what one call takes.
    fn write_at(&self, mut offset: u64, mut data: &[u8], fua: Fua) -> Result<(), Errno> {
        while !data.is_empty() {
            let outcome = retry_on_intr(|| match fua {
                Fua::No => io::pwrite(&self.file, data, offset),
                Fua::Yes => io::pwritev2(&self.file, &[IoSlice::new(data)], offset, ReadWriteFlags::DSYNC),
            });
            let written = match outcome {
                // The error of a durable write may be that of its sync.
                Err(error) if fua == Fua::Yes && error == io::Errno::IO => return Err(self.sync_failed(error)),
                Err(error) => return Err(self.failed("a write", error)),
                Ok(0) => return Err(self.failed("a write", io::Errno::NOSPC)),
                Ok(written) => written,
            };
            data = &data[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Calls `fallocate`; false if the file system or the device cannot do it.
    fn allocate(&self, flags: FallocateFlags, range: &Range<u64>) -> Result<bool, Errno> {
        let flags = flags | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, range.start, range.end - range.start)) {
            Ok(()) => Ok(true),
            // Devices refuse ranges that are not multiples of their sectors with EINVAL.
            Err(io::Errno::OPNOTSUPP | io::Errno::NOSYS | io::Errno::INVAL | io::Errno::NODEV) => Ok(false),
            Err(error) => Err(self.failed("fallocate", error)),
        }
    }

    fn sync_if(&self, fua: Fua) -> Result<(), Errno> {
        if fua == Fua::Yes { self.flush() } else { Ok(()) }
    }

    /// Returns the start of the next data, or of the next hole, within the range; its end if there is none.
    fn seek(&self, from: SeekFrom, end: u64) -> Result<u64, Errno> {
        match rustix::fs::seek(&self.file, from) {
            Ok(found) => Ok(found.min(end)),
            // No data follows.
            Err(io::Errno::NXIO) => Ok(end),
            // A device that knows no holes: all is data.
            Err(io::Errno::INVAL) => Ok(if let SeekFrom::Data(from) = from { from } else { end }),
            Err(error) => Err(self.failed("a search for holes", error)),
        }
    }
}

impl fmt::Debug for FileExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileExport").field("path", &self.path).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Export for FileExport {
    fn size(&self) -> u64 {
        self.size
    }

    fn flags(&self) -> u16 {
        let common = export_flag::SEND_FLUSH | export_flag::CAN_MULTI_CONN | export_flag::SEND_CACHE;
        match self.access {
            Access::ReadOnly => common | export_flag::READ_ONLY,
            Access::ReadWrite => {
                let zeroes = export_flag::SEND_WRITE_ZEROES | export_flag::SEND_FAST_ZERO;
                common | export_flag::SEND_FUA | export_flag::SEND_TRIM | zeroes
            }
        }
    }

    fn has_context(&self, context: Context) -> bool {
        context == Context::Allocation
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < into.len() {
            match retry_on_intr(|| io::pread(&self.file, &mut into[done..], offset + done as u64)) {
                Ok(0) => {
                    let end = offset + done as u64;
                    self.report(format_args!("a read at {end} found the end: the file was {} bytes long", self.size));
                    return Err(Errno::Io);
                }
                Ok(count) => done += count,
                Err(error) => return Err(self.failed("a read", error)),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), Errno> {
        self.check_sound()?;
        self.write_at(offset, data, fua)
    }

    fn write_zeroes(&self, range: Range<u64>, options: ZeroOptions) -> Result<(), Errno> {
        self.check_sound()?;
        let is_punched = !options.allocate && self.allocate(FallocateFlags::PUNCH_HOLE, &range)?;
        if is_punched || self.allocate(FallocateFlags::ZERO_RANGE, &range)? {
            return self.sync_if(options.fua);
        }
        if options.fast {
            return Err(Errno::NotSupported);
        }
        for start in range.clone().step_by(ZEROS_BYTES) {
            let len = usize::try_from(range.end - start).unwrap_or(ZEROS_BYTES).min(ZEROS_BYTES);
            self.write_at(start, &ZEROS[..len], Fua::No)?;
        }
        self.sync_if(options.fua)
    }

    fn trim(&self, range: Range<u64>, fua: Fua) -> Result<(), Errno> {
        self.check_sound()?;
        self.allocate(FallocateFlags::PUNCH_HOLE, &range)?;
        self.sync_if(fua)
    }

    fn flush(&self) -> Result<(), Errno> {
        self.check_sound()?;
        retry_on_intr(|| rustix::fs::fdatasync(&self.file)).map_err(|error| self.sync_failed(error))
    }

    fn cache(&self, range: Range<u64>) -> Result<(), Errno> {
        let len = std::num::NonZeroU64::new(range.end - range.start);
        rustix::fs::fadvise(&self.file, range.start, len, Advice::WillNeed)
            .map_err(|error| self.failed("fadvise", error))
    }

    fn block_status(&self, range: Range<u64>, _context: Context, extents: &mut StatusExtents) -> Result<(), Errno> {
        let mut at = range.start;
        while at < range.end {
            let data = self.seek(SeekFrom::Data(at), range.end)?;
            // Another process may punch a hole between the two searches, at which the second one stops immediately.
            let hole = if data < range.end { self.seek(SeekFrom::Hole(data), range.end)?.max(data + 1) } else { data };
            let is_more = extents.push(data - at, allocation_flag::HOLE | allocation_flag::ZERO);
            if !is_more || !extents.push(hole - data, 0) {
                break;
            }
            at = hole;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
