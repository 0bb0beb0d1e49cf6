//! Which names of a snapshot share an inode: the first path restored of each.
//!
//! A device and a number do not name an inode over the time that a backup takes. A file is removed and its number goes to
//! another one, or a file changes after one of its names was read and before the next. The names then differ in the
//! snapshot, and each is restored as its own entry says.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Metadata};
use crate::spill::SpillMap;
use crate::tree::EntryNotes;
use crate::tree::{Content, Entry, Link};
use crate::types::Timestamp;

/// Bytes of a path that one record holds; a longer path takes several.
const PART_LEN: usize = 4096;
/// Longest path that can be remembered, far more than a tree of the greatest depth makes.
const PATH_LEN_MAX: usize = 2 << 20;
/// Number of the record, after all parts of a path, that an inode has if its first path was not restored.
const INCOMPLETE: u64 = u64::MAX;

/// Number of the record that an inode of the target has if it had several names and one of them made way.
const UNLINKED: u64 = u64::MAX - 1;
/// Bytes of a hash by which inodes are told apart.
const INODE_LEN: usize = 24;

/// An inode that several names of a snapshot may share: its number, and all that a restore makes of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SharedInode([u8; INODE_LEN]);

impl SharedInode {
    /// Returns the inode of an entry; `None` if the inode had one link, or is a symbolic link, which nothing is linked to.
    pub fn of(entry: &Entry) -> Option<Self> {
        let link = entry.link.filter(|_| entry.kind != EntryKind::Symlink)?;
        // The rest differs from name to name, or changes with every link that is made or removed.
        let content = match &entry.content {
            Content::File { recipe, .. } => {
                Content::File { ctime: Timestamp::default(), inode: 0, recipe: recipe.clone() }
            }
            other @ (Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. }) => other.clone(),
        };
        let link = Some(Link { links: 0, ..link });
        let common = Entry { name: Vec::new(), link, content, notes: EntryNotes::default(), ..entry.clone() };
        let mut bytes = Vec::new();
        common.encode(&mut bytes);
        let mut inode = [0; INODE_LEN];
        blake3::Hasher::new().update(&bytes).finalize_xof().fill(&mut inode);
        Some(Self(inode))
    }

    /// Returns the key of an inode of the target, which differs from all of the snapshot.
    fn of_target(metadata: &Metadata) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("onefold v1 inode of a restore's target");
        hasher.update(&metadata.device.to_le_bytes()).update(&metadata.inode.to_le_bytes());
        let mut inode = [0; INODE_LEN];
        hasher.finalize_xof().fill(&mut inode);
        Self(inode)
    }

    /// Returns the key of the numbered record of this inode.
    fn key(self, record: u64) -> [u8; 32] {
        let mut key = [0; 32];
        let (inode, number) = key.split_at_mut(INODE_LEN);
        inode.copy_from_slice(&self.0);
        number.copy_from_slice(&record.to_le_bytes());
        key
    }
}

/// Origin of the entry at the first path of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It is made from the snapshot, or has been compared with it.
    Snapshot,
    /// It existed in the target before, with the size and time of the entry. Its bytes may differ.
    Target,
}

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

    /// Remembers the path that other names of an inode are linked to, instead of an earlier one. The last part is shorter than
    /// the others, which marks the end.
    pub fn insert(&mut self, inode: SharedInode, path: &Path, origin: Origin) -> Result<()> {
        let path = path.as_os_str().as_bytes();
        if PATH_LEN_MAX <= path.len() {
            return Err(Error::PathTooLong { len: path.len(), undone: "linked to" });
        }
        let bytes = [&[u8::from(origin == Origin::Target)], path].concat();
        let mut rest = bytes.as_slice();
        for part in 0.. {
            let (value, tail) = rest.split_at(PART_LEN.min(rest.len()));
            self.parts.insert(inode.key(part), value)?;
            if value.len() < PART_LEN {
                break;
            }
            rest = tail;
        }
        Ok(())
    }

    /// Remembers that the first path of an inode was not restored.
    pub(crate) fn mark_incomplete(&mut self, inode: SharedInode) -> Result<()> {
        self.parts.insert(inode.key(INCOMPLETE), &[])
    }

    /// Returns true if the first path of an inode was not restored.
    pub(crate) fn is_incomplete(&mut self, inode: SharedInode) -> Result<bool> {
        self.parts.contains(&inode.key(INCOMPLETE))
    }

    /// Remembers that a name of an existing entry is replaced, so that its inode has one link less.
    pub(crate) fn mark_unlinked(&mut self, existing: &Metadata) -> Result<()> {
        self.parts.insert(SharedInode::of_target(existing).key(UNLINKED), &[])
    }

    /// Returns true if a name of an existing entry was replaced.
    pub(crate) fn is_unlinked(&mut self, existing: &Metadata) -> Result<bool> {
        self.parts.contains(&SharedInode::of_target(existing).key(UNLINKED))
    }

    /// Returns the first path of an inode, if one is remembered, and the origin of its entry.
    pub fn get(&mut self, inode: SharedInode) -> Result<Option<(PathBuf, Origin)>> {
        let mut bytes = Vec::new();
        for part in 0.. {
            let Some(value) = self.parts.get(&inode.key(part))? else { return Ok(None) };
            bytes.extend_from_slice(&value);
            if value.len() < PART_LEN || PATH_LEN_MAX <= bytes.len() {
                break;
            }
        }
        let Some((origin, path)) = bytes.split_first() else { return Ok(None) };
        let origin = if *origin == 0 { Origin::Snapshot } else { Origin::Target };
        Ok(Some((PathBuf::from(OsString::from_vec(path.to_vec())), origin)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::tree::Xattr;
    use crate::recipe::{Recipe, RecipeItem};
    use crate::testing::sim::SimHost;
    use crate::types::{Chunk, Fingerprint};

    fn entry(inode: u64) -> Entry {
        let items = vec![RecipeItem::Chunk(Chunk { fingerprint: Fingerprint([3; 32]), len: 77 })];
        let ctime = Timestamp { seconds: 9, nanoseconds: 9 };
        Entry {
            name: b"name".to_vec(),
            kind: EntryKind::File,
            mode: 0o640,
            uid: 1,
            gid: 2,
            mtime: Timestamp::default(),
            xattrs: Vec::new(),
            link: Some(Link { device: 7, inode, links: 2 }),
            content: Content::File { ctime, inode, recipe: Recipe { level: 0, items } },
            notes: EntryNotes::default(),
        }
    }

    type Change<'a> = &'a dyn Fn(&mut Entry);

    fn change_recipe(entry: &mut Entry, change: impl FnOnce(&mut Recipe)) {
        let Content::File { recipe, .. } = &mut entry.content else { unreachable!() };
        change(recipe);
    }

    #[test]
    fn names_with_one_number_share_an_inode_only_if_a_restore_makes_the_same_of_them() {
        let all = |changes: &[Change<'_>]| -> Vec<_> {
            changes
                .iter()
                .map(|change| {
                    let mut other = entry(5);
                    change(&mut other);
                    SharedInode::of(&other)
                })
                .collect()
        };
        let same: [Change<'_>; 4] = [
            &|entry| entry.name = b"other".to_vec(),
            &|entry| entry.link = Some(Link { device: 7, inode: 5, links: 3 }),
            &|entry| {
                let Content::File { ctime, .. } = &mut entry.content else { unreachable!() };
                ctime.seconds = 10;
            },
            &|_| {},
        ];
        assert_eq!(all(&same), [SharedInode::of(&entry(5)); 4]);
        let different: [Change<'_>; 13] = [
            &|entry| entry.link = Some(Link { device: 8, inode: 5, links: 2 }),
            &|entry| entry.link = Some(Link { device: 7, inode: 6, links: 2 }),
            &|entry| entry.mode = 0o600,
            &|entry| entry.uid = 3,
            &|entry| entry.gid = 3,
            &|entry| entry.mtime.nanoseconds = 1,
            &|entry| entry.xattrs.push(Xattr { name: "user.a".into(), value: Vec::new() }),
            &|entry| change_recipe(entry, |recipe| recipe.items.clear()),
            &|entry| {
                change_recipe(entry, |recipe| {
                    recipe.items[0] = RecipeItem::Chunk(Chunk { fingerprint: Fingerprint([4; 32]), len: 77 });
                });
            },
            &|entry| change_recipe(entry, |recipe| recipe.items.push(RecipeItem::Hole { len: 1 })),
            &|entry| (entry.kind, entry.content) = (EntryKind::Fifo, Content::Special { rdev: 0 }),
            &|entry| (entry.kind, entry.content) = (EntryKind::BlockDevice, Content::Special { rdev: 1 }),
            &|entry| (entry.kind, entry.content) = (EntryKind::BlockDevice, Content::Special { rdev: 2 }),
        ];
        let mut inodes = all(&different);
        inodes.push(SharedInode::of(&entry(5)));
        let distinct: std::collections::HashSet<_> = inodes.iter().collect();
        assert_eq!(distinct.len(), different.len() + 1);
        assert!(!inodes.contains(&None));
        assert_eq!(SharedInode::of(&Entry { link: None, ..entry(5) }), None);
        let content = Content::Symlink { target: b"to".to_vec() };
        assert_eq!(SharedInode::of(&Entry { kind: EntryKind::Symlink, content, ..entry(5) }), None);
    }

    #[test]
    fn paths_of_any_length_are_remembered() {
        let map = SpillMap::new(None, PathBuf::new(), Arc::new(SimHost::new(1)), "links", 1 << 20).unwrap();
        let mut paths = FirstPaths::new(map);
        let link = |number: u64| SharedInode::of(&entry(number)).unwrap();
        let path = |len: u64| PathBuf::from("x".repeat(usize::try_from(len).unwrap()));
        let lengths = [1, 4094, 4095, 4096, 4097, 8190, 8191, 8192, 8193, 100_000];
        for len in lengths {
            assert_eq!(paths.get(link(len)).unwrap(), None);
            paths.insert(link(len), &path(len), Origin::Target).unwrap();
        }
        for len in lengths {
            assert_eq!(paths.get(link(len)).unwrap(), Some((path(len), Origin::Target)), "{len}");
        }
        for (before, after) in lengths.iter().zip(lengths.iter().rev()) {
            paths.insert(link(*before), &path(*after), Origin::Snapshot).unwrap();
            assert_eq!(paths.get(link(*before)).unwrap(), Some((path(*after), Origin::Snapshot)), "{before}, {after}");
        }
    }
}
