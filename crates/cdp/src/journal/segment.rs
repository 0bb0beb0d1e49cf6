//! Files of segments: their names, how they come into being, and how they are used again.
//!
//! A segment is filled with zeros and synced before its first use, so that a later write changes no metadata of the file system. One
//! that is not needed any more becomes free, and gets the next segment's name when that begins. Old frames in it do not open under the
//! new segment's key.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::crypto::journal::JournalKey;
use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Access, Disk, DiskFile, Host};

use crate::journal::codec::{BLOCK_BYTES, SegmentHeader, SegmentStart, TAG_BYTES};
use crate::journal::{JournalIdentity, JournalSize, Lsn};

/// Bytes that one write of zeros takes.
const ZEROS_BYTES: usize = 1 << 20;
/// Beginnings of names: of a segment, of a free file, and of one that is not filled yet.
const SEGMENT: &str = "segment-";
const FREE: &str = "free-";
const NEW: &str = "new-";
/// Beginning of the name of a segment that was set aside: records before it are gone.
const LOST: &str = "lost-";

/// Link from the last frame before a point to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chain {
    /// Number of the next frame.
    pub(super) frame: u64,
    /// Its first record.
    pub(super) lsn: Lsn,
    /// Tag of the frame before; zeros before the first.
    pub(super) tag: [u8; TAG_BYTES],
}

impl Chain {
    /// The beginning of a journal.
    pub(super) const FIRST: Self = Self { frame: 1, lsn: Lsn(1), tag: [0; TAG_BYTES] };
}

/// A segment with its key.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) key: Arc<JournalKey>,
    pub(super) number: u64,
    /// The link that its first frame continues.
    pub(super) start: Chain,
}

/// Files found in the directory of a journal.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Numbers of the segments, ascending.
    pub(super) segments: Vec<u64>,
    /// Numbers of the free files.
    pub(super) free: Vec<u64>,
    /// Files that were not filled.
    pub(super) unfilled: Vec<PathBuf>,
}

/// The directory of a journal.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) identity: Arc<JournalIdentity>,
    pub(super) size: JournalSize,
}

impl Directory {
    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{SEGMENT}{number:016x}"))
    }

    /// Returns the header in the first block of a file, if one is there.
    fn header(&self, file: &dyn DiskFile, path: &Path) -> Result<SegmentStart> {
        let len = file.len()?;
        if len != self.size.segment_bytes {
            let reason = format!("it has {len} bytes instead of {}: records are gone", self.size.segment_bytes);
            return Err(Error::damaged(self.disk.display(path), reason));
        }
        let mut block = [0; BLOCK_BYTES];
        file.read_at(0, &mut block)?;
        Ok(SegmentHeader::decode(&block))
    }

    /// Removes names of files that are segments under another name: a power cut after a failed sync of the directory may leave a
    /// file the name that it had before, too. Such a file must not be used again.
    pub(super) fn remove_second_names(&self, listing: &mut Listing) -> Result<()> {
        let mut salts = Vec::new();
        for number in &listing.segments {
            let path = self.path(*number);
            let file = self.disk.open(&path, Access::Read)?;
            if let SegmentStart::Header(header) = self.header(&*file, &path)? {
                salts.push((*number, header.number, header.salt));
            }
        }
        let is_segment = |salt: &[u8; 32]| salts.iter().any(|(name, number, of)| name == number && of == salt);
        let mut removed = false;
        for (name, number, salt) in &salts {
            if name != number && is_segment(salt) {
                self.disk.remove(&self.path(*name))?;
                listing.segments.retain(|segment| segment != name);
                removed = true;
            }
        }
        let mut free = Vec::with_capacity(listing.free.len());
        for number in &listing.free {
            let path = self.free_path(*number);
            let file = self.disk.open(&path, Access::Read)?;
            match self.header(&*file, &path) {
                Ok(SegmentStart::Header(header)) if !is_segment(&header.salt) => free.push(*number),
                Ok(SegmentStart::Zero | SegmentStart::Newer(_) | SegmentStart::Damaged) => free.push(*number),
                Ok(SegmentStart::Header(_)) | Err(Error::Damaged { .. }) => {
                    self.disk.remove(&path)?;
                    removed = true;
                }
                Err(error) => return Err(error),
            }
        }
        listing.free = free;
        if removed { self.disk.sync_dir(&self.dir) } else { Ok(()) }
    }

    fn free_path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{FREE}{number:016x}"))
    }

    /// Lists the files. Others in the directory are left alone.
    pub(super) fn list(&self) -> Result<Listing> {
        let mut listing = Listing::default();
        for entry in self.disk.list(&self.dir)? {
            let name = entry.name;
            let number = |beginning: &str| {
                let digits = name.strip_prefix(beginning).filter(|digits| digits.len() == 16)?;
                u64::from_str_radix(digits, 16).ok()
            };
            if let Some(number) = number(SEGMENT) {
                listing.segments.push(number);
            } else if let Some(number) = number(FREE) {
                listing.free.push(number);
            } else if name.starts_with(NEW) {
                listing.unfilled.push(self.dir.join(&name));
            }
        }
        listing.segments.sort_unstable();
        Ok(listing)
    }

    /// Makes a free file: filled with zeros and durable.
    pub(super) fn fill(&self, number: u64) -> Result<()> {
        let path = self.dir.join(format!("{NEW}{number:016x}"));
        let file = self.disk.create(&path)?;
        let zeros = vec![0; ZEROS_BYTES];
        let mut offset = 0;
        while offset < self.size.segment_bytes {
            let left = usize::try_from(self.size.segment_bytes - offset).unwrap_or(ZEROS_BYTES).min(ZEROS_BYTES);
            file.write_at(offset, zeros.get(..left).unwrap_or_default())?;
            offset += left as u64;
        }
        file.sync()?;
        self.disk.rename(&path, &self.free_path(number))?;
        self.disk.sync_dir(&self.dir)
    }

    /// Makes the file of a segment a free file with a number that no other has. Its records are gone.
    pub(super) fn free(&self, number: u64, free: u64) -> Result<()> {
        self.disk.rename(&self.path(number), &self.free_path(free))
    }

    /// Sets a segment aside, under a name that nobody reads.
    pub(super) fn quarantine(&self, number: u64) -> Result<()> {
        let name = |again: u32| self.dir.join(format!("{LOST}{number:016x}-{again}"));
        let mut again = 0;
        while self.disk.exists(&name(again))? {
            again += 1;
        }
        self.disk.rename(&self.path(number), &name(again))
    }

    /// Begins a segment in a free file. The header is durable with the first frame that is.
    pub(super) fn begin(&self, host: &dyn Host, free: u64, number: u64, start: Chain) -> Result<Segment> {
        let path = self.path(number);
        self.disk.rename(&self.free_path(free), &path)?;
        self.disk.sync_dir(&self.dir)?;
        let file = self.disk.open(&path, Access::ReadWrite)?;
        let mut random = [0; 32];
        host.random(&mut random)?;
        // A machine that was copied may draw the same numbers, but not at the same time.
        let mut hasher = blake3::Hasher::new();
        let now = host.now();
        hasher.update(&random).update(&now.seconds.to_le_bytes()).update(&now.nanoseconds.to_le_bytes());
        hasher.update(&number.to_le_bytes());
        let salt = *hasher.finalize().as_bytes();
        let key = JournalKey::derive(&self.identity.keys, &salt, self.identity.repository);
        let header = SegmentHeader {
            repository: self.identity.repository,
            group: self.identity.group,
            number,
            first_frame: start.frame,
            first_lsn: start.lsn,
            salt,
            commitment: key.commitment(),
            previous_tag: start.tag,
        };
        file.write_at(0, &header.encode())?;
        Ok(Segment { file, key: Arc::new(key), number, start })
    }

    /// Opens a segment; `None` if it was not begun: its header is that of an earlier use, or zeros.
    pub(super) fn open(&self, number: u64) -> Result<Option<Segment>> {
        let path = self.path(number);
        let file = self.disk.open(&path, Access::ReadWrite)?;
        let damaged = |reason: String| Error::damaged(self.disk.display(&path), reason);
        let header = match self.header(&*file, &path)? {
            SegmentStart::Zero => return Ok(None),
            SegmentStart::Header(header) if header.number < number => return Ok(None),
            SegmentStart::Header(header) => header,
            SegmentStart::Newer(version) => {
                return Err(damaged(format!("version {version} is newer than this program reads")));
            }
            SegmentStart::Damaged => return Err(damaged("its header is wrong".to_owned())),
        };
        let JournalIdentity { keys, repository, group } = &*self.identity;
        if header.repository != *repository {
            return Err(damaged(format!("belongs to repository {}", header.repository)));
        }
        if header.group != *group {
            return Err(damaged("belongs to another consistency group".to_owned()));
        }
        if header.number != number {
            return Err(damaged(format!("its header has number {:#x}", header.number)));
        }
        let key = JournalKey::derive(keys, &header.salt, *repository);
        if !key.is_committed(&header.commitment) {
            return Err(damaged("the key of this repository does not open it".to_owned()));
        }
        let start = Chain { frame: header.first_frame, lsn: header.first_lsn, tag: header.previous_tag };
        Ok(Some(Segment { file, key: Arc::new(key), number, start }))
    }
}
