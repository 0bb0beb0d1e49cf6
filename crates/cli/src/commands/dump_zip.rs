//! `dump --archive zip`: a directory of a snapshot as a stream that other programs unpack.
//!
//! The archive is written from front to back, so that it can go into a pipe; its directory, which comes last, is held in
//! memory until then, about 200 bytes and the name for each entry. Every file may be longer than 4 GiB. Names and
//! targets of links that are not UTF-8 are written with replacement characters and reported, a further name of an inode is
//! a file of its own, and devices, pipes, sockets, owners and extended attributes cannot be represented.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use onefold_engine::store::cursor::HintedEntry;
use onefold_engine::tree::{Content, Entry};
use onefold_engine::types::{Fingerprint, Timestamp};
use zip::write::{FullFileOptions, StreamWriter};
use zip::{CompressionMethod, DateTime, ZipWriter};

use crate::commands::dump_contents::{Sources, WRITING, walk, write_contents};

/// The field of an entry that holds its time in seconds since 1970 (Info-ZIP's extended timestamp).
const EXTENDED_TIMESTAMP: u16 = 0x5455;
/// The flag in it for the time of the last change.
const HAS_MTIME: u8 = 1;

/// Writes the contents of a directory, given by its root and its path in the snapshot.
pub(super) fn write(out: &mut dyn Write, sources: Sources<'_>, directory: (Fingerprint, &[u8])) -> Result<()> {
    let mut writer = ZipWriter::new_stream(out);
    walk(sources, directory, |sources, hinted, path| append(&mut writer, sources, hinted, path))?;
    writer.finish().context(WRITING)?;
    Ok(())
}

/// Writes one entry.
fn append(
    writer: &mut ZipWriter<StreamWriter<&mut dyn Write>>,
    sources: &mut Sources<'_>,
    hinted: &HintedEntry,
    path: &[u8],
) -> Result<()> {
    let entry = &hinted.entry;
    let name = String::from_utf8_lossy(path).into_owned();
    if name.as_bytes() != path {
        sources
            .output
            .warn(&format!("{name}: not UTF-8 in the snapshot; the archive has replacement characters in the name"));
    }
    let options = options_of(entry)?;
    match &entry.content {
        Content::Symlink { target } => {
            let written = String::from_utf8_lossy(target);
            if written.as_bytes() != target.as_slice() {
                sources.output.warn(&format!(
                    "{name}: its target is not UTF-8 in the snapshot; the archive has replacement characters in it"
                ));
            }
            writer.add_symlink(name, written, options).context(WRITING)
        }
        Content::Special { .. } => {
            sources
                .output
                .warn(&format!("{name}: left out, since the format knows only files, directories and symbolic links"));
            Ok(())
        }
        Content::Directory { .. } => writer.add_directory(name, options).context(WRITING),
        Content::File { .. } => {
            writer.start_file(name.as_str(), options).context(WRITING)?;
            let written = write_contents(writer, sources.interrupt, sources.reader, sources.fetcher, hinted)?;
            ensure!(written == entry.size(), "{name}: {written} bytes instead of {}", entry.size());
            Ok(())
        }
    }
}

fn options_of(entry: &Entry) -> Result<FullFileOptions<'static, 'static>> {
    let method = match entry.content {
        Content::File { .. } => CompressionMethod::Deflated,
        Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => CompressionMethod::Stored,
    };
    let mut options = FullFileOptions::default()
        .compression_method(method)
        .unix_permissions(entry.mode & 0o7777)
        .last_modified_time(dos_time(entry.mtime))
        // Lengths follow the data, but their width is chosen before it.
        .large_file(u64::from(u32::MAX) / 2 <= entry.size());
    if let Ok(seconds) = i32::try_from(entry.mtime.seconds) {
        let mut field = vec![HAS_MTIME];
        field.extend_from_slice(&seconds.to_le_bytes());
        options.add_extra_field(EXTENDED_TIMESTAMP, field, false).context("time of an entry")?;
    }
    Ok(options)
}

/// Returns the time in the format's first version: from 1980 to 2107, every other second, in UTC. Readers prefer the
/// extended timestamp, which has none of these limits up to 2038.
fn dos_time(time: Timestamp) -> DateTime {
    let civil = jiff::Timestamp::from_second(time.seconds).ok().map(|time| time.to_zoned(jiff::tz::TimeZone::UTC));
    let date_time = civil.and_then(|civil| {
        let small = |number: i8| u8::try_from(number).ok();
        let (month, day) = (small(civil.month())?, small(civil.day())?);
        let (hour, minute, second) = (small(civil.hour())?, small(civil.minute())?, small(civil.second())?);
        DateTime::from_date_and_time(u16::try_from(civil.year()).ok()?, month, day, hour, minute, second).ok()
    });
    date_time.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_those_of_the_format_are_replaced_by_its_first() {
        let at = |seconds| dos_time(Timestamp { seconds, nanoseconds: 0 });
        assert_eq!((at(1_700_000_000).year(), at(1_700_000_000).minute()), (2023, 13));
        assert_eq!(at(-1).year(), 1980);
        assert_eq!(at(i64::MAX).year(), 1980);
    }
}
