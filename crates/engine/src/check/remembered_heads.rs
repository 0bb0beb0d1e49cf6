//! The ends of the log of snapshots as this host has seen them last.
//!
//! Every commit names the heads it saw, so that a commit that is taken away shows in a later one. No later commit names the
//! newest. The host's cache keeps what it saw: `magic[4] version:u16 0:u16 repository[16] count:u32`, then for each head
//! `session[16] checksum[32]`, then BLAKE3-256 of everything before. Losing the file loses only this.
//!
//! A head that is gone stays in the file, so that every command reports it, until the user accepts the loss. One that was
//! forgotten (`forget/`) leaves the file without a report.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::{Decoded, Reader, len_u32};
use crate::error::{Error, Result};
use crate::io::{Disk, Host};
use crate::snapshot::Head;
use crate::store::commits::Commits;
use crate::store::host_file::{checked, replace_file};
use crate::store::{Store, read_file};
use crate::types::{RepositoryId, SessionId};

/// Name of the file in the cache directory.
pub(crate) const HEADS: &str = "heads";
const MAGIC: [u8; 4] = *b"1FHD";
const VERSION: u16 = 1;
const HEAD_LEN: usize = 48;
/// Heads that are remembered; each is the newest snapshot of a host that has not seen the others.
const HEADS_MAX: usize = 1 << 16;
const FILE_LEN_MAX: usize = 64 + HEADS_MAX * HEAD_LEN;

/// Returns the heads seen last; none if there is no file. A file that is damaged or of another repository is an error,
/// after which nothing is remembered.
pub(crate) fn read_heads(disk: &dyn Disk, dir: &Path, repository: RepositoryId) -> Result<Vec<Head>> {
    let path = dir.join(HEADS);
    let bytes = match read_file(disk, &path, FILE_LEN_MAX) {
        Ok(bytes) => bytes,
        Err(Error::Missing { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let object = disk.display(&path);
    let (owner, heads) = decode(checked(&object, &bytes)?).map_err(|error| error.of(&object))?;
    if owner != repository {
        return Err(Error::damaged(object, "belongs to another repository"));
    }
    Ok(heads)
}

fn decode(body: &[u8]) -> Decoded<(RepositoryId, Vec<Head>)> {
    let mut reader = Reader::new(body);
    if reader.array()? != MAGIC || reader.u16()? != VERSION || reader.u16()? != 0 {
        return Err(reader.error("not a list of heads"));
    }
    let repository = RepositoryId(reader.array()?);
    let count = reader.count32(HEAD_LEN)?;
    let mut heads = Vec::with_capacity(count);
    for _ in 0..count {
        heads.push(Head { session: SessionId(reader.array()?), checksum: reader.array()? });
    }
    reader.finish()?;
    Ok((repository, heads))
}

/// Remembers heads instead of those before, all of them or none.
pub(crate) fn write_heads(
    heads_dir: &HeadsDir,
    host: &dyn Host,
    repository: RepositoryId,
    heads: &[Head],
) -> Result<()> {
    let heads = heads.get(..HEADS_MAX).unwrap_or(heads);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&repository.0);
    bytes.extend_from_slice(&len_u32(heads.len()).to_le_bytes());
    for head in heads {
        bytes.extend_from_slice(&head.session.0);
        bytes.extend_from_slice(&head.checksum);
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
    /// The user accepts the loss: the present heads are remembered.
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
    /// Treatment of heads that are gone.
    pub lost: LostHeads,
    /// Access to it.
    pub access: HeadsAccess,
}

/// The commits of a repository, compared with what this host remembers of them.
#[derive(Debug)]
pub struct ComparedCommits {
    /// The commits.
    pub commits: Commits,
    /// Heads that this host has seen and that are gone.
    pub lost: Vec<Head>,
    /// Errors of reading the heads seen before, or of remembering the present ones.
    pub problems: Vec<Error>,
}

/// Reads all commits, compares them with the heads that this host has seen, and remembers the present ones if that is wanted.
pub fn read_commits_compared(store: &Store, heads_dir: &HeadsDir) -> Result<ComparedCommits> {
    // Before the commits are listed: another command may remember a head that it commits meanwhile.
    let seen = read_heads(&*heads_dir.disk, &heads_dir.dir, store.config.repository);
    let commits = store.read_commits()?;
    let mut problems = Vec::new();
    let seen = seen.unwrap_or_else(|error| {
        problems.push(error);
        Vec::new()
    });
    problems.extend(remember_heads(store, heads_dir, &commits).err());
    Ok(ComparedCommits { lost: lost_heads(&commits, &seen), commits, problems })
}

/// Returns the heads that were seen and are gone, or stand for another commit, without having been forgotten. A commit that
/// cannot be read is damaged, not gone.
pub(crate) fn lost_heads(commits: &Commits, seen: &[Head]) -> Vec<Head> {
    let is_damaged = |head: &Head| commits.findings.iter().any(|(session, _)| *session == head.session);
    seen.iter().filter(|head| commits.is_gone(head) && !is_damaged(head)).copied().collect()
}

/// Brings what is remembered up to date with the repository. A head that is gone without having been forgotten stays
/// remembered, unless its loss is accepted.
pub(crate) fn remember_heads(store: &Store, heads_dir: &HeadsDir, commits: &Commits) -> Result<()> {
    if heads_dir.access == HeadsAccess::ReadOnly {
        return Ok(());
    }
    let repository = store.config.repository;
    // A file that cannot be read is forgotten: the repository is checked without it.
    let before = read_heads(&*heads_dir.disk, &heads_dir.dir, repository);
    let is_known = before.is_ok();
    let before = before.unwrap_or_default();
    let lost = lost_heads(commits, &before);
    let kept = before.iter().filter(|head| commits.is_gone(head));
    let kept = kept.filter(|head| heads_dir.lost == LostHeads::Report || !lost.contains(head));
    let mut heads: Vec<Head> = commits.heads().into_iter().chain(kept.copied()).collect();
    heads.sort_unstable();
    heads.dedup();
    if is_known && heads == before {
        return Ok(());
    }
    write_heads(heads_dir, &*store.host, repository, &heads)
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
        let heads_dir = HeadsDir { disk: Arc::new(disk.clone()), dir: PathBuf::new(), lost, access };
        assert_eq!(read_heads(&disk, dir, repository).unwrap(), Vec::new());
        for count in [3, 1] {
            let heads: Vec<Head> =
                (0..count).map(|at| Head { session: SessionId([at; 16]), checksum: [at; 32] }).collect();
            write_heads(&heads_dir, &SimHost::new(1), repository, &heads).unwrap();
            assert_eq!(read_heads(&disk, dir, repository).unwrap(), heads);
        }
        assert!(read_heads(&disk, dir, RepositoryId([8; 16])).is_err());
        let file = disk.open(Path::new(HEADS), Access::ReadWrite).unwrap();
        for at in 0..file.len().unwrap() {
            let mut byte = [0];
            file.read_at(at, &mut byte).unwrap();
            file.write_at(at, &[byte[0] ^ 4]).unwrap();
            assert!(read_heads(&disk, dir, repository).is_err(), "byte {at}");
            file.write_at(at, &byte).unwrap();
        }
    }
}
