//! Which part of a snapshot is restored.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use crate::error::{Error, Result};
use crate::io::tree::{SelectAttributes, TargetTree};
use crate::source::exclude::Patterns;
use crate::store::MetadataReader;
use crate::store::cursor::{DirectoryCursor, HintedEntry};
use crate::tree::{Content, Entry};
use crate::types::Fingerprint;

/// Patterns over the paths of a snapshot, as of backups over those of a source.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Matches are restored, with all that they hold. If there are no patterns, everything is.
    pub include: Vec<Patterns>,
    /// Matches are left out.
    pub exclude: Vec<Patterns>,
}

impl Filter {
    /// Returns true if an entry itself is restored. An excluded directory is left out with all its entries.
    pub(crate) fn selects(&self, path: &Path, is_directory: bool) -> bool {
        let matches = |patterns: &Patterns| patterns.matches(path, is_directory);
        !self.exclude.iter().any(matches) && (self.include.is_empty() || self.include.iter().any(matches))
    }

    /// Returns true if an existing entry is selected, directory or not.
    pub(crate) fn selects_in_target(&self, path: &Path) -> bool {
        self.selects(path, false) && self.selects(path, true)
    }

    /// Returns true if a directory is entered.
    pub(crate) fn enters(&self, path: &Path) -> bool {
        !self.exclude.iter().any(|patterns| patterns.matches(path, true))
    }
}

/// Selects extended attributes by their names.
impl SelectAttributes for Filter {
    fn selects(&self, name: &OsStr) -> bool {
        Self::selects(self, Path::new(name), false)
    }
}

/// Which part of a tree is walked.
#[expect(clippy::large_enum_variant, reason = "one for each restore")]
pub(super) enum Root {
    /// A directory, of which the contents are restored.
    Directory {
        /// Root of its list.
        node: Fingerprint,
        /// Its own entry; the root of a snapshot has none.
        entry: Option<Entry>,
    },
    /// Anything else, alone.
    Single(Box<HintedEntry>),
}

impl Root {
    /// Finds the entry at a path of a snapshot's tree.
    pub(crate) fn find(
        reader: &mut MetadataReader,
        target: &dyn TargetTree,
        (tree, path): (Fingerprint, &Path),
    ) -> Result<Self> {
        let Some(mut found) = find_entry(reader, tree, path)? else {
            return Ok(Self::Directory { node: tree, entry: None });
        };
        localize(target, &mut found.entry);
        Ok(match &found.entry.content {
            Content::Directory { node } => Self::Directory { node: *node, entry: Some(found.entry) },
            Content::File { .. } | Content::Symlink { .. } | Content::Special { .. } => Self::Single(Box::new(found)),
        })
    }
}

/// Gives an entry the owner that its names have in a target.
pub(super) fn localize(target: &dyn TargetTree, entry: &mut Entry) {
    (entry.uid, entry.gid) = target.local_owner(entry.uid, entry.gid);
}

/// Finds the entry at a path of a snapshot's tree; `None` for the root itself.
pub fn find_entry(reader: &mut MetadataReader, tree: Fingerprint, path: &Path) -> Result<Option<HintedEntry>> {
    let mut node = tree;
    let mut found: Option<HintedEntry> = None;
    for component in path.components() {
        let name = match component {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => name,
            Component::ParentDir | Component::Prefix(_) => return Err(not_found(path, component.as_os_str())),
        };
        if let Some(above) = &found {
            match &above.entry.content {
                Content::Directory { node: below } => node = *below,
                Content::File { .. } | Content::Symlink { .. } | Content::Special { .. } => {
                    return Err(Error::invalid(format!("{}: not a directory in the snapshot", path.display())));
                }
            }
        }
        let entry = DirectoryCursor::new(node).find(name.as_bytes(), reader)?;
        found = Some(entry.ok_or_else(|| not_found(path, name))?);
    }
    Ok(found)
}

fn not_found(path: &Path, name: &OsStr) -> Error {
    Error::invalid(format!("{}: not in the snapshot (`{}` does not exist)", path.display(), name.display()))
}
