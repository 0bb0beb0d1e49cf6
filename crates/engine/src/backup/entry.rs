//! Entries of files that are opened.

use std::path::Path;

use crate::backup::block::{Block, FileStart, Step, entry_of};
use crate::backup::unread::Unread;
use crate::error::Error;
use crate::io::tree::{EntryKind, Metadata, SourceFile, Xattr};
use crate::recipe::Recipe;
use crate::tree::{Content, Entry};

/// Makes entries of what is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryRule {
    entry_bytes_max: usize,
    access_times: AccessTimes,
}

/// Whether entries have the time of their last access. With it, a directory changes in each backup after it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AccessTimes {
    /// They do not.
    #[default]
    LeftOut,
    /// They do.
    Stored,
}

impl EntryRule {
    /// Entries take at most so many bytes.
    pub(super) fn new(entry_bytes_max: u32, access_times: AccessTimes) -> Self {
        Self { entry_bytes_max: entry_bytes_max as usize, access_times }
    }

    /// Begins a file with the metadata of its open handle.
    pub(super) fn begin<B>(
        self,
        file: Box<dyn SourceFile>,
        unread: &Unread,
        block: &mut Block<B>,
    ) -> Box<dyn SourceFile> {
        let Unread { path, name, change, .. } = unread;
        let metadata = file.opened();
        let content = Content::File { ctime: metadata.ctime, inode: metadata.inode, recipe: Recipe::default() };
        let mut entry = entry_of(name.clone(), &Metadata { kind: EntryKind::File, ..metadata.clone() }, content);
        self.choose_notes(&mut entry);
        match file.xattrs() {
            Ok(xattrs) => self.attach(&mut entry, xattrs, path, block),
            Err(error) => block.push(Step::Failed(path.clone(), error)),
        }
        block.push(Step::File(Box::new(FileStart { path: path.clone(), entry, change: *change })));
        file
    }

    fn choose_notes(self, entry: &mut Entry) {
        entry.notes.atime = entry.notes.atime.filter(|_| self.access_times == AccessTimes::Stored);
    }

    /// Sets the attributes of an entry, and its access time if that is wanted. If they exceed what an entry can hold, reports that and leaves them out.
    pub(super) fn attach<B>(self, entry: &mut Entry, xattrs: Vec<Xattr>, path: &Path, block: &mut Block<B>) {
        self.choose_notes(entry);
        let bytes: usize = xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len() + 8).sum();
        // Half for the attributes leaves the other half for name, link target and references.
        if self.entry_bytes_max / 2 < bytes {
            block.push(Step::Failed(path.to_path_buf(), Error::XattrsTooLong { bytes }));
        } else {
            entry.xattrs = xattrs;
        }
    }
}
