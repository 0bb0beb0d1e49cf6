//! Traces in files.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::files;
use crate::trace::block::Totals;
use crate::trace::foreign::csv::CsvTrace;
use crate::trace::foreign::destor::DestorTrace;
use crate::trace::foreign::fsl::FslTrace;
use crate::trace::foreign::raw::{Lengths, RawTrace};
use crate::trace::reader::TraceReader;
use crate::trace::writer::TraceWriter;
use crate::trace::{Event, Events};

/// Bytes that are read or written together.
const BUFFER_BYTES: usize = 256 << 10;

/// The formats of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Foreign {
    /// Hash files of the File systems and Storage Lab, versions 1 to 7.
    Fsl,
    /// Text of destor.
    Destor,
    /// Hashes of 20 bytes, of chunks of one length or with their lengths.
    Raw(Lengths),
    /// Lines of `hash,size`.
    Csv,
}

/// Events of a file, whose errors name it.
pub struct FileEvents {
    path: PathBuf,
    events: Box<dyn Events>,
}

impl std::fmt::Debug for FileEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileEvents").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Events for FileEvents {
    fn next_event(&mut self) -> Result<Option<Event>> {
        self.events.next_event().with_context(|| self.path.display().to_string())
    }
}

/// Opens a trace of our format; also returns its description.
pub fn open(path: &Path) -> Result<(String, FileEvents)> {
    let name = || path.display().to_string();
    let reader = TraceReader::new(files::open(path).with_context(name)?).with_context(name)?;
    let description = reader.description().to_owned();
    Ok((description, FileEvents { path: path.to_path_buf(), events: Box::new(reader) }))
}

/// Opens a trace of another format, to be a version of ours. Where the format has no streams it is one, of the file's name.
pub fn open_foreign(path: &Path, format: Foreign, version: u32) -> Result<FileEvents> {
    let context = || path.display().to_string();
    let input = BufReader::with_capacity(BUFFER_BYTES, File::open(path).with_context(context)?);
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let events: Box<dyn Events> = match format {
        Foreign::Fsl => Box::new(FslTrace::new(input, version).with_context(context)?),
        Foreign::Destor => Box::new(DestorTrace::new(input, version)),
        Foreign::Raw(lengths) => Box::new(RawTrace::new(input, name, version, lengths)),
        Foreign::Csv => Box::new(CsvTrace::new(input, name, version)),
    };
    Ok(FileEvents { path: path.to_path_buf(), events })
}

/// Writes a trace of all that some sources have, one after the other. A file that exists is not written over; after an
/// error there is none.
pub fn write(path: &Path, description: &str, sources: impl IntoIterator<Item = Result<FileEvents>>) -> Result<Totals> {
    write_with(path, description, |writer| sources.into_iter().try_for_each(|source| writer.push_all(&mut source?)))
}

/// Writes a trace of a source that is no file.
pub fn write_events(path: &Path, description: &str, events: &mut dyn Events) -> Result<Totals> {
    write_with(path, description, |writer| writer.push_all(events))
}

/// Writes what `push` hands to a writer, as [`write()`] does.
pub fn write_with(
    path: &Path,
    description: &str,
    push: impl FnOnce(&mut TraceWriter<BufWriter<File>>) -> Result<()>,
) -> Result<Totals> {
    let context = || format!("write {}", path.display());
    let file = OpenOptions::new().write(true).create_new(true).open(path).with_context(context)?;
    let written = TraceWriter::new(BufWriter::with_capacity(BUFFER_BYTES, file), description).and_then(|mut writer| {
        push(&mut writer)?;
        writer.finish()
    });
    // The rest of a trace that could not be written is useless. Failing to remove it is no second error.
    let (totals, _) = written.inspect_err(|_| drop(remove_file(path)))?;
    Ok(totals)
}
