//! The ends of the log of snapshots as this host has seen them last.
//!
//! Every commit names the heads it saw, so that a commit that is taken away shows in a later one; nothing later tells
//! of the newest. The host's cache keeps what it saw: `magic[4] version:u16 0:u16 repository[16] count:u32`, then for
//! each head `session[16] checksum[32]`, then BLAKE3-256 of everything before. Losing the file loses only this.

use std::path::Path;

use crate::codec::{Decoded, Reader, len_u32};
use crate::error::{Error, Result};
use crate::io::Disk;
use crate::snapshot::Head;
use crate::store::Store;
use crate::store::commits::Commits;
use crate::store::read_object;
use crate::types::{RepositoryId, SessionId};

/// Name of the file in the cache directory.
pub const HEADS: &str = "heads";
const HEADS_NEW: &str = "heads.new";
const MAGIC: [u8; 4] = *b"1FHD";
const VERSION: u16 = 1;
const HEAD_LEN: usize = 48;
const CHECKSUM_LEN: usize = 32;
/// Heads that are remembered; each is the newest snapshot of a host that has not seen the others.
const HEADS_MAX: usize = 1 << 16;
const FILE_LEN_MAX: usize = 64 + HEADS_MAX * HEAD_LEN;

/// Returns the heads seen last; none if there is no file. A file that is damaged or of another repository is an error,
/// after which nothing is remembered.
pub fn read_heads(disk: &dyn Disk, dir: &Path, repository: RepositoryId) -> Result<Vec<Head>> {
    let path = dir.join(HEADS);
    let bytes = match read_object(disk, &path, FILE_LEN_MAX) {
        Ok(bytes) => bytes,
        Err(Error::Missing { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let object = disk.display(&path);
    let Some((body, checksum)) = bytes.split_last_chunk::<CHECKSUM_LEN>() else {
        return Err(Error::damaged(object, "ends too early"));
    };
    if blake3::hash(body) != *checksum {
        return Err(Error::damaged(object, "its checksum is wrong"));
    }
    let (owner, heads) = decode(body).map_err(|error| error.of(&object))?;
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
pub fn write_heads(disk: &dyn Disk, dir: &Path, repository: RepositoryId, heads: &[Head]) -> Result<()> {
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
    let (new, path) = (dir.join(HEADS_NEW), dir.join(HEADS));
    if disk.exists(&new)? {
        disk.remove(&new)?;
    }
    let file = disk.create(&new)?;
    file.write_at(0, &bytes)?;
    file.sync()?;
    disk.rename(&new, &path)?;
    disk.sync_dir(dir)
}

/// Brings what is remembered up to date with the repository. A head that is gone without having been forgotten stays
/// remembered, so that a check still tells of it.
pub fn remember_heads(store: &Store, disk: &dyn Disk, dir: &Path) -> Result<()> {
    let repository = store.config.repository;
    let commits = store.read_commits()?;
    let mut heads = commits.heads();
    // What cannot be read is forgotten: the file can only ever tell more than the repository does by itself.
    let before = read_heads(disk, dir, repository).unwrap_or_default();
    heads.extend(before.into_iter().filter(|head| is_gone(&commits, head)));
    heads.sort_unstable();
    heads.dedup();
    write_heads(disk, dir, repository, &heads)
}

fn is_gone(commits: &Commits, head: &Head) -> bool {
    let stands =
        commits.commits.iter().any(|commit| commit.session == head.session && commit.checksum == head.checksum);
    !stands && !commits.forgotten.contains(&head.session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Access;
    use crate::io::sim::SimDisk;

    #[test]
    fn heads_come_back_and_any_flipped_bit_is_noticed() {
        let disk = SimDisk::new();
        let (dir, repository) = (Path::new(""), RepositoryId([7; 16]));
        assert_eq!(read_heads(&disk, dir, repository).unwrap(), Vec::new());
        for count in [3, 1] {
            let heads: Vec<Head> =
                (0..count).map(|at| Head { session: SessionId([at; 16]), checksum: [at; 32] }).collect();
            write_heads(&disk, dir, repository, &heads).unwrap();
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
