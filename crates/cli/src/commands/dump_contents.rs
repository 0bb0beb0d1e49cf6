//! The bytes of one file of a snapshot, to the output.

use anyhow::Result;
use onefold_engine::Error;
use onefold_engine::restore::dump;
use onefold_engine::restore::fetch::Fetcher;
use onefold_engine::store::MetadataReader;
use onefold_engine::store::cursor::HintedEntry;

use crate::interrupt::Interrupt;
use crate::output::Output;

/// Writes a file's bytes; returns how many.
pub(super) fn write_contents(
    output: &Output,
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
        output.bytes(bytes).map_err(|error| {
            let text = error.to_string();
            broken = Some(error);
            Error::invalid(text)
        })
    });
    match broken {
        Some(error) => Err(anyhow::Error::new(error).context("write to standard output")),
        None => Ok(result.map(|()| written)?),
    }
}
