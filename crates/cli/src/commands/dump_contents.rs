//! Contents of a dump: the bytes of one file of a snapshot, or every entry below a directory.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result};
use onefold_engine::Error;
use onefold_engine::restore::dump;
use onefold_engine::restore::fetch::Fetcher;
use onefold_engine::restore::links::FirstPaths;
use onefold_engine::snapshot::OwnerNames;
use onefold_engine::store::MetadataReader;
use onefold_engine::store::cursor::HintedEntry;
use onefold_engine::store::walk::{Event, TreeWalk};
use onefold_engine::tree::Content;
use onefold_engine::types::Fingerprint;

use crate::interrupt::Interrupt;
use crate::output::{Output, WriteFailure};

/// Context of an error of the writer.
pub(super) const WRITING: &str = "write what is dumped";

/// Sources that a dump reads from.
pub(super) struct Sources<'a> {
    /// Receives warnings.
    pub(super) output: &'a Output,
    pub(super) interrupt: &'a Interrupt,
    /// Trees and recipes.
    pub(super) reader: &'a mut MetadataReader,
    /// Contents.
    pub(super) fetcher: &'a mut Fetcher,
    /// First names of inodes that have several.
    pub(super) links: FirstPaths,
    /// Names of owners.
    pub(super) owners: &'a OwnerNames,
}

/// Appends every entry below a directory, whose path in the snapshot is `base`, to an archive: a directory before its
/// contents. Names begin with `base`, without a first slash.
pub(super) fn walk(
    mut sources: Sources<'_>,
    (root, base): (Fingerprint, &[u8]),
    mut append: impl FnMut(&mut Sources<'_>, &HintedEntry, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut walk = TreeWalk::new(root, base, ());
    while let Some(event) = walk.next(sources.reader, sources.interrupt)? {
        match event {
            Event::Entry(hinted) => {
                append(&mut sources, &hinted, walk.relative_path().as_os_str().as_bytes())?;
                if let Content::Directory { node } = hinted.entry.content {
                    walk.enter(node, ())?;
                }
            }
            Event::Leave => {}
            Event::Unreadable(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes a file's bytes; returns how many.
pub(super) fn write_contents(
    out: &mut dyn Write,
    interrupt: &Interrupt,
    reader: &mut MetadataReader,
    fetcher: &mut Fetcher,
    file: &HintedEntry,
) -> Result<u64> {
    let (mut written, mut failure) = (0, WriteFailure::default());
    let result = dump(reader, fetcher, file, &mut |bytes| {
        if interrupt.is_raised() {
            return Err(Error::Interrupted);
        }
        written += bytes.len() as u64;
        failure.keep(out.write_all(bytes).context(WRITING))
    });
    failure.or(result.map(|()| written))
}
