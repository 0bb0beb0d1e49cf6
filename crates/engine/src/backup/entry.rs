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
}

impl EntryRule {
    /// Entries take at most so many bytes.
    pub(super) fn new(entry_bytes_max: u32) -> Self {
        Self { entry_bytes_max: entry_bytes_max as usize }
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
        match file.xattrs() {
            Ok(xattrs) => self.attach(&mut entry, xattrs, path, block),
            Err(error) => block.push(Step::Failed(path.clone(), error)),
        }
        block.push(Step::File(Box::new(FileStart { path: path.clone(), entry, change: *change })));
        file
    }

    /// Sets the attributes of an entry. If they exceed what an entry can hold, reports that and leaves them out.
    pub(super) fn attach<B>(self, entry: &mut Entry, xattrs: Vec<Xattr>, path: &Path, block: &mut Block<B>) {
        let bytes: usize = xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len() + 8).sum();
        // Half for the attributes leaves the other half for name, link target and references.
        if self.entry_bytes_max / 2 < bytes {
            block.push(Step::Failed(path.to_path_buf(), Error::XattrsTooLong { bytes }));
        } else {
            entry.xattrs = xattrs;
        }
    }
}
