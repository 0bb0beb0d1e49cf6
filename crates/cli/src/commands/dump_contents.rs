//! The bytes of one file of a snapshot, to a writer.

use std::io::Write;

use anyhow::Result;
use onefold_engine::Error;
use onefold_engine::restore::dump;
use onefold_engine::restore::fetch::Fetcher;
use onefold_engine::restore::links::FirstPaths;
use onefold_engine::store::MetadataReader;
use onefold_engine::store::cursor::HintedEntry;

use crate::interrupt::Interrupt;

/// What is said of a writer that fails.
pub(super) const WRITING: &str = "write what is dumped";

/// What a dump reads from.
pub(super) struct Sources<'a> {
    /// Trees and recipes.
    pub(super) reader: &'a mut MetadataReader,
    /// Contents.
    pub(super) fetcher: &'a mut Fetcher,
    /// First names of inodes that have several.
    pub(super) links: FirstPaths,
}

/// Writes a file's bytes; returns how many.
pub(super) fn write_contents(
    out: &mut dyn Write,
    interrupt: &Interrupt,
    reader: &mut MetadataReader,
    fetcher: &mut Fetcher,
    file: &HintedEntry,
) -> Result<u64> {
    let (mut written, mut broken) = (0, None);
    let result = dump(reader, fetcher, file, &mut |bytes| {
        if interrupt.is_raised() {
            return Err(Error::Interrupted);
        }
        written += bytes.len() as u64;
        out.write_all(bytes).map_err(|error| {
            let text = error.to_string();
            broken = Some(error);
            Error::invalid(text)
        })
    });
    match broken {
        Some(error) => Err(anyhow::Error::new(error).context(WRITING)),
        None => Ok(result.map(|()| written)?),
    }
}
