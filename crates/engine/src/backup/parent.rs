//! The parent snapshot: what need not be read again.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::backup::live::LiveChunks;
use crate::io::tree::{EntryKind, Metadata};
use crate::snapshot::Snapshot;
use crate::store::MetadataReader;
use crate::store::cursor::{DirectoryCursor, HintedEntry};
use crate::store::manifests::{ManifestBuilder, UsedBytes};
use crate::store::view::View;
use crate::tree::{Content, Entry};
use crate::types::{ContainerId, Timestamp};

/// Which differences make a file be read again, besides its size and times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// Inode and ctime.
    Full,
    /// Inode, but not the ctime, which programs change that set attributes or make links.
    IgnoreCtime,
    /// Neither: some network file systems change the inode, and their ctime is meaningless.
    IgnoreInode,
}

/// Follows a walk through the tree of the parent.
#[derive(Debug)]
pub(crate) struct Parent {
    reader: MetadataReader,
    /// The containers that may be referred to.
    live: LiveChunks,
    /// When the parent's scan began, by the clock that stamps files.
    file_clock: Timestamp,
    comparison: Comparison,
    /// The directories entered, where the parent has them.
    stack: Vec<Option<DirectoryCursor>>,
    /// Takes the containers of files that are unchanged.
    manifest: Option<Arc<ManifestBuilder>>,
}

impl Parent {
    /// Starts at the root of a snapshot.
    pub(crate) fn new(
        snapshot: &Snapshot,
        reader: MetadataReader,
        view: View,
        comparison: Comparison,
        manifest: Option<Arc<ManifestBuilder>>,
    ) -> Self {
        Self {
            reader,
            live: LiveChunks::new(view),
            file_clock: snapshot.file_clock,
            comparison,
            stack: vec![Some(DirectoryCursor::new(snapshot.tree))],
            manifest,
        }
    }

    /// Has every file read again that has a chunk in one of these containers.
    pub(super) fn shunning(mut self, containers: &Arc<BTreeSet<ContainerId>>) -> Self {
        self.live.shun(containers);
        self
    }

    /// Returns what the parent has under a name in the current directory. Names must come in order. A part of the
    /// parent that cannot be read is as if it were not there: its files are read again.
    pub(crate) fn find(&mut self, name: &[u8]) -> Option<HintedEntry> {
        let top = self.stack.last_mut()?;
        let cursor = top.as_mut()?;
        cursor.find(name, &mut self.reader).unwrap_or_else(|_| {
            *top = None;
            None
        })
    }

    /// Enters a directory, which the parent has as `entry` or not at all.
    pub(crate) fn enter(&mut self, entry: Option<&Entry>) {
        let cursor = entry.and_then(|entry| match &entry.content {
            Content::Directory { node } => Some(DirectoryCursor::new(*node)),
            Content::File { .. } | Content::Symlink { .. } | Content::Special { .. } => None,
        });
        self.stack.push(cursor);
    }

    /// Leaves the directory entered last.
    pub(crate) fn leave(&mut self) {
        self.stack.pop();
    }

    /// Returns the containers of the chunks in a file's entry if the file is the parent's, so that its references can be used
    /// without reading it: the same in every attribute compared, its inode unchanged since before the parent's scan began, and
    /// every chunk in a live container. A chunk is in the container that its hint names if that is live; if a collection has
    /// deleted it, in one that the collection names in its place and whose directory has the chunk.
    pub(crate) fn unchanged(&mut self, metadata: &Metadata, parent: &HintedEntry) -> Option<Vec<Option<ContainerId>>> {
        let Content::File { ctime, inode, recipe } = &parent.entry.content else { return None };
        let same = metadata.kind == EntryKind::File
            && metadata.size == recipe.len()
            && metadata.mtime == parent.entry.mtime
            && (self.comparison != Comparison::Full || metadata.ctime == *ctime)
            && (self.comparison == Comparison::IgnoreInode || metadata.inode == *inode);
        // A file changed within the tick in which the scan began may have been read before the change. The parent's ctime is the
        // one that the file had then.
        let is_stable = if self.comparison == Comparison::Full { metadata.ctime } else { metadata.mtime.max(*ctime) };
        let is_stable = is_stable < self.file_clock;
        if !same || !is_stable {
            return None;
        }
        let mut used = UsedBytes::default();
        // The file has segments of its recipe, too.
        self.reader.used = Some(UsedBytes::default());
        let hints = self.live.containers_of(recipe, &parent.hints, &mut self.reader, &mut used, &|| {}).unwrap_or(None);
        let read = self.reader.used.take();
        if hints.is_some()
            && let Some(manifest) = &self.manifest
        {
            manifest.add_all(&mut used);
            if let Some(mut read) = read {
                manifest.add_all(&mut read);
            }
        }
        hints
    }
}
