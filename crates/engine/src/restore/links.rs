//! Which names of a snapshot share an inode: the first path restored of each.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::spill::SpillMap;
use crate::tree::Link;

/// Bytes of a path that one record holds; a longer path takes several.
const PART_LEN: usize = 4096;
/// Longest path that can be remembered, far more than a tree of the greatest depth makes.
const PATH_LEN_MAX: usize = 2 << 20;
/// Number of the record, after all parts of a path, that an inode has if its first path was not restored.
const INCOMPLETE: u64 = u64::MAX;

/// First paths of inodes with several names, in bounded memory.
#[derive(Debug)]
pub struct FirstPaths {
    parts: SpillMap,
}

impl FirstPaths {
    /// Remembers in this map.
    pub fn new(parts: SpillMap) -> Self {
        Self { parts }
    }

    /// Remembers a path, which must be the first of its inode. The last part is shorter than the others, so that the end
    /// shows.
    pub fn insert(&mut self, link: Link, path: &Path) -> Result<()> {
        let bytes = path.as_os_str().as_bytes();
        if PATH_LEN_MAX <= bytes.len() {
            return Err(Error::invalid(format!("a path of {} bytes is too long to be linked to", bytes.len())));
        }
        let mut rest = bytes;
        for part in 0.. {
            let (value, tail) = rest.split_at(PART_LEN.min(rest.len()));
            self.parts.insert(key(link, part), value)?;
            if value.len() < PART_LEN {
                break;
            }
            rest = tail;
        }
        Ok(())
    }

    /// Remembers that the first path of an inode was not restored.
    pub fn mark_incomplete(&mut self, link: Link) -> Result<()> {
        self.parts.insert(key(link, INCOMPLETE), &[])
    }

    /// Returns true if the first path of an inode was not restored.
    pub fn is_incomplete(&mut self, link: Link) -> Result<bool> {
        self.parts.contains(&key(link, INCOMPLETE))
    }

    /// Returns the first path of an inode, if one is remembered.
    pub fn get(&mut self, link: Link) -> Result<Option<PathBuf>> {
        let mut bytes = Vec::new();
        for part in 0.. {
            let Some(value) = self.parts.get(&key(link, part))? else { return Ok(None) };
            bytes.extend_from_slice(&value);
            if value.len() < PART_LEN || PATH_LEN_MAX <= bytes.len() {
                break;
            }
        }
        Ok(Some(PathBuf::from(OsString::from_vec(bytes))))
    }
}

fn key(link: Link, part: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (bytes, number) in key.chunks_exact_mut(8).zip([link.device, link.inode, part]) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    key
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::sim::SimHost;

    #[test]
    fn paths_of_any_length_are_remembered() {
        let map = SpillMap::new(None, PathBuf::new(), Arc::new(SimHost::new(1)), "links", 1 << 20).unwrap();
        let mut paths = FirstPaths::new(map);
        let link = |inode| Link { device: 7, inode, links: 2 };
        let path = |len: u64| PathBuf::from("x".repeat(usize::try_from(len).unwrap()));
        let lengths = [1, 4095, 4096, 4097, 8191, 8192, 8193, 100_000];
        for len in lengths {
            assert_eq!(paths.get(link(len)).unwrap(), None);
            paths.insert(link(len), &path(len)).unwrap();
        }
        for len in lengths {
            assert_eq!(paths.get(link(len)).unwrap(), Some(path(len)), "{len}");
        }
    }
}
