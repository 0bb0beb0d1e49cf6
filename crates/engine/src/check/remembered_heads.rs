//! The ends of the log of snapshots as this host has seen them last.
//!
//! Every commit names the heads it saw, so that a commit that is taken away shows in a later one. No later commit names the
//! newest. The host's cache keeps what it saw, for each copy of the repository and each location by itself: `magic[4] version:u16 0:u16
//! repository[16] count:u32`, then for each copy, the one seen last first, `len:u32 location[len] count:u32` and for each head
//! `session[16] checksum[32]`, then BLAKE3-256 of everything before. Version 1 has one list of heads, `count:u32` and the heads, of
//! a location that it does not name. Losing the file loses only this.
//!
//! A copy is recognized by its heads: it is the one of which no head is gone. So copies may be used in turn at one location, as on disks with one
//! mount point. If heads of each copy at the location are gone, every command reports it, until the user accepts the loss, which makes it another
//! copy. A head that was forgotten (`forget/`) is not gone. At a location that the host sees for the first time, a copy may lack what the
//! host has seen elsewhere if it still stands there.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::{Decoded, Reader, len_u32};
use crate::error::{Error, Result};
use crate::io::{Disk, Host};
use crate::object::names::ObjectName;
use crate::snapshot::Head;
use crate::store::commits::Commits;
use crate::store::host_file::{checked, replace_file};
use crate::store::{Store, read_file};
use crate::types::{RepositoryId, SessionId};

/// Name of the file in the cache directory.
pub(crate) const HEADS: &str = "heads";
const MAGIC: [u8; 4] = *b"1FHD";
const VERSION: u16 = 2;
/// Version with a single list.
const VERSION_SINGLE: u16 = 1;
const HEAD_LEN: usize = 48;
/// Copies that are remembered.
const COPIES_MAX: usize = 64;
/// The longest location in bytes: a path of Linux.
const LOCATION_LEN_MAX: usize = 4096;
/// Heads of all copies that are remembered; each is the newest snapshot of a host that has not seen the others.
const HEADS_MAX: usize = 1 << 16;
const FILE_LEN_MAX: usize = 64 + HEADS_MAX * HEAD_LEN + COPIES_MAX * (8 + LOCATION_LEN_MAX);

/// Memory of one copy of a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RememberedCopy {
    /// Its directory. Empty: a version of the program that did not note it has seen the copy.
    location: PathBuf,
    /// Its heads.
    heads: Vec<Head>,
}

/// Returns the copies seen, the last one first; none if there is no file. A file that is damaged or of another repository is an error,
/// after which nothing is remembered.
pub(crate) fn read_copies(disk: &dyn Disk, dir: &Path, repository: RepositoryId) -> Result<Vec<RememberedCopy>> {
    let path = dir.join(HEADS);
    let bytes = match read_file(disk, &path, FILE_LEN_MAX) {
        Ok(bytes) => bytes,
        Err(Error::Missing { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let object = disk.display(&path);
    let (owner, copies) = decode(checked(&object, &bytes)?).map_err(|error| error.of(&object))?;
    if owner != repository {
        return Err(Error::damaged(object, "belongs to another repository"));
    }
    Ok(copies)
}

/// Returns the directories in which this host has seen a repository.
pub fn known_locations(disk: &dyn Disk, dir: &Path, repository: RepositoryId) -> Vec<PathBuf> {
    // Those who compare report an error.
    let copies = read_copies(disk, dir, repository).unwrap_or_default();
    copies.into_iter().map(|copy| copy.location).filter(|location| !location.as_os_str().is_empty()).collect()
}

fn decode(body: &[u8]) -> Decoded<(RepositoryId, Vec<RememberedCopy>)> {
    let mut reader = Reader::new(body);
    let (magic, version) = (reader.array()?, reader.u16()?);
    if magic != MAGIC || !matches!(version, VERSION_SINGLE | VERSION) || reader.u16()? != 0 {
        return Err(reader.error("not a list of heads"));
    }
    let repository = RepositoryId(reader.array()?);
    let count = if version == VERSION { reader.count32(8)? } else { 1 };
    let mut copies = Vec::new();
    for _ in 0..count {
        let len = if version == VERSION { reader.count32(1)? } else { 0 };
        let location = PathBuf::from(OsStr::from_bytes(reader.bytes(len)?));
        let count = reader.count32(HEAD_LEN)?;
        let mut heads = Vec::with_capacity(count);
        for _ in 0..count {
            heads.push(Head { session: SessionId(reader.array()?), checksum: reader.array()? });
        }
        copies.push(RememberedCopy { location, heads });
    }
    reader.finish()?;
    Ok((repository, copies))
}

/// Remembers copies instead of those before, all of them or none.
fn write_copies(
    heads_dir: &HeadsDir,
    host: &dyn Host,
    repository: RepositoryId,
    copies: &[RememberedCopy],
) -> Result<()> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&repository.0);
    bytes.extend_from_slice(&len_u32(copies.len()).to_le_bytes());
    let mut left = HEADS_MAX;
    for RememberedCopy { location, heads } in copies {
        let location = location.as_os_str().as_bytes();
        if LOCATION_LEN_MAX < location.len() {
            return Err(Error::PathTooLong { len: location.len(), undone: "remembered" });
        }
        bytes.extend_from_slice(&len_u32(location.len()).to_le_bytes());
        bytes.extend_from_slice(location);
        let heads = heads.get(..left).unwrap_or(heads);
        left -= heads.len();
        bytes.extend_from_slice(&len_u32(heads.len()).to_le_bytes());
        for head in heads {
            bytes.extend_from_slice(&head.session.0);
            bytes.extend_from_slice(&head.checksum);
        }
    }
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    replace_file(&*heads_dir.disk, host, &heads_dir.dir.join(HEADS), &bytes)
}

/// Treatment of heads that are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LostHeads {
    /// They stay remembered, and are reported the next time too.
    #[default]
    Report,
    /// The user accepts the loss: what is there now is remembered as another copy.
    Accept,
}

/// Access to the file of heads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HeadsAccess {
    /// They are written over those seen before.
    #[default]
    Update,
    /// Nothing is written; what was seen before counts.
    ReadOnly,
}

/// Directory in which a host remembers the heads it has seen.
#[derive(Clone, Debug)]
pub struct HeadsDir {
    /// The disk it is on.
    pub disk: Arc<dyn Disk>,
    /// The directory, which exists if it is written to.
    pub dir: PathBuf,
    /// The repository's directory, an absolute path.
    pub location: PathBuf,
    /// The disk that locations are on: a path without its first slash names an object of a copy.
    pub locations: Arc<dyn Disk>,
    /// Treatment of heads that are gone.
    pub lost: LostHeads,
    /// Access to it.
    pub access: HeadsAccess,
}

/// Another copy of a repository than the one that is there, and a head of it that is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherCopy {
    /// Its directory.
    pub location: PathBuf,
    /// The head.
    pub head: Head,
}

impl fmt::Display for OtherCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (location, snapshot) = (self.location.display(), self.head.session);
        write!(
            f,
            "this copy of the repository lacks snapshot {snapshot} of the copy that this host has seen last at {location}; the host \
             remembers each copy by itself; if you use one copy only, somebody has put an older state in its place"
        )
    }
}

/// Comparison of a repository with what this host remembers of it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ComparedHeads {
    /// Heads that this host has seen in this copy and that are gone.
    pub lost: Vec<Head>,
    /// The copy that this host has seen before, if it is not this one and has more.
    pub other: Option<OtherCopy>,
    /// Position of this copy among those remembered; `None`: it is new.
    known: Option<usize>,
}

/// The commits of a repository, compared with what this host remembers of them.
#[derive(Debug)]
pub struct ComparedCommits {
    /// The commits.
    pub commits: Commits,
    /// The comparison.
    pub heads: ComparedHeads,
    /// Errors of reading the heads seen before, or of remembering the present ones.
    pub problems: Vec<Error>,
}

/// Reads all commits, compares them with the heads that this host has seen, and remembers the present ones if that is wanted.
pub fn read_commits_compared(store: &Store, heads_dir: &HeadsDir) -> Result<ComparedCommits> {
    // Before the commits are listed: another command may remember a head that it commits meanwhile.
    let seen = read_copies(&*heads_dir.disk, &heads_dir.dir, store.config.repository);
    let commits = store.read_commits()?;
    let mut problems = Vec::new();
    let seen = seen.unwrap_or_else(|error| {
        problems.push(error);
        Vec::new()
    });
    let heads = compare(&seen, heads_dir, &commits);
    problems.extend(remember_heads(store, heads_dir, &commits).err());
    Ok(ComparedCommits { commits, heads, problems })
}

/// Compares the commits of a copy with the copies seen.
pub(crate) fn compare(seen: &[RememberedCopy], heads_dir: &HeadsDir, commits: &Commits) -> ComparedHeads {
    let present = commits.heads();
    let lost_of = |copy: &RememberedCopy| lost_heads(commits, &copy.heads);
    let is_here = |copy: &RememberedCopy| copy.location == heads_dir.location || copy.location.as_os_str().is_empty();
    let other_of = |copy: &RememberedCopy, head: &Head| {
        let location = if is_here(copy) { &heads_dir.location } else { &copy.location };
        OtherCopy { location: location.clone(), head: *head }
    };
    if let Some(last) = seen.iter().find(|copy| is_here(copy)) {
        // Several may have nothing that is gone: the copy is the one that shares the most heads.
        let whole = seen.iter().enumerate().filter(|(_, copy)| is_here(copy) && lost_of(copy).is_empty());
        let shared = |copy: &RememberedCopy| copy.heads.iter().filter(|head| present.contains(head)).count();
        let known = whole.rev().max_by_key(|(_, copy)| shared(copy)).map(|(at, _)| at);
        let lost = lost_of(last);
        return match known {
            Some(_) => ComparedHeads { known, other: lost.first().map(|head| other_of(last, head)), lost: Vec::new() },
            None => ComparedHeads { known, other: None, lost },
        };
    }
    if seen.iter().any(|copy| lost_of(copy).is_empty()) {
        return ComparedHeads::default();
    }
    // The name in the other copy is enough: this is about losses, not about whom to believe.
    let stands_in = |copy: &RememberedCopy, head: &Head| {
        let location = copy.location.strip_prefix("/").unwrap_or(&copy.location);
        heads_dir.locations.exists(&location.join(ObjectName::Commit(head.session).path())).unwrap_or(false)
    };
    let other = seen.iter().find_map(|copy| {
        let lost = lost_of(copy);
        lost.first().filter(|_| lost.iter().all(|head| stands_in(copy, head))).map(|head| other_of(copy, head))
    });
    let lost = if other.is_some() { Vec::new() } else { seen.first().map(lost_of).unwrap_or_default() };
    ComparedHeads { known: None, other, lost }
}

/// Returns the heads that were seen and are gone, or stand for another commit, without having been forgotten. A commit that
/// cannot be read is damaged, not gone.
pub(crate) fn lost_heads(commits: &Commits, seen: &[Head]) -> Vec<Head> {
    let is_damaged = |head: &Head| commits.findings.iter().any(|(session, _)| *session == head.session);
    seen.iter().filter(|head| commits.is_gone(head) && !is_damaged(head)).copied().collect()
}

/// Brings what is remembered up to date with the repository. Nothing changes while a head is gone without having been forgotten,
/// unless its loss is accepted.
pub(crate) fn remember_heads(store: &Store, heads_dir: &HeadsDir, commits: &Commits) -> Result<()> {
    if heads_dir.access == HeadsAccess::ReadOnly {
        return Ok(());
    }
    let repository = store.config.repository;
    // A file that cannot be read is forgotten: the repository is checked without it.
    let before = read_copies(&*heads_dir.disk, &heads_dir.dir, repository);
    let is_known = before.is_ok();
    let mut copies = before.clone().unwrap_or_default();
    let ComparedHeads { lost, known, .. } = compare(&copies, heads_dir, commits);
    if !lost.is_empty() && heads_dir.lost == LostHeads::Report {
        return Ok(());
    }
    let own = known.map(|at| copies.remove(at).heads).unwrap_or_default();
    // One that cannot be read stays remembered.
    let unread = own.into_iter().filter(|head| commits.is_gone(head));
    let mut heads: Vec<Head> = commits.heads().into_iter().chain(unread).collect();
    heads.sort_unstable();
    heads.dedup();
    if known.is_none() && heads.is_empty() && lost.is_empty() && is_known {
        return Ok(());
    }
    copies.insert(0, RememberedCopy { location: heads_dir.location.clone(), heads });
    copies.truncate(COPIES_MAX);
    if before.is_ok_and(|before| before == copies) {
        return Ok(());
    }
    write_copies(heads_dir, &*store.host, repository, &copies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Access;
    use crate::testing::sim::{SimDisk, SimHost};

    #[test]
    fn heads_come_back_and_any_flipped_bit_is_noticed() {
        let disk = SimDisk::new();
        let (dir, repository) = (Path::new(""), RepositoryId([7; 16]));
        let (lost, access) = (LostHeads::Report, HeadsAccess::Update);
        let locations = Arc::new(SimDisk::new());
        let location = PathBuf::from("/repository");
        let heads_dir =
            HeadsDir { disk: Arc::new(disk.clone()), dir: PathBuf::new(), location, locations, lost, access };
        assert_eq!(read_copies(&disk, dir, repository).unwrap(), Vec::new());
        for count in [3, 1] {
            let heads: Vec<Head> =
                (0..count).map(|at| Head { session: SessionId([at; 16]), checksum: [at; 32] }).collect();
            let copies = ["/repository", "/copy"]
                .map(|location| RememberedCopy { location: location.into(), heads: heads.clone() });
            write_copies(&heads_dir, &SimHost::new(1), repository, &copies).unwrap();
            assert_eq!(read_copies(&disk, dir, repository).unwrap(), copies);
        }
        assert!(read_copies(&disk, dir, RepositoryId([8; 16])).is_err());
        let file = disk.open(Path::new(HEADS), Access::ReadWrite).unwrap();
        for at in 0..file.len().unwrap() {
            let mut byte = [0];
            file.read_at(at, &mut byte).unwrap();
            file.write_at(at, &[byte[0] ^ 4]).unwrap();
            assert!(read_copies(&disk, dir, repository).is_err(), "byte {at}");
            file.write_at(at, &byte).unwrap();
        }
    }
}
