//! `dump` of a directory as tar: a directory of a snapshot as a stream that other programs unpack.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use onefold_engine::io::tree::EntryKind;
use onefold_engine::restore::links::{Origin, SharedInode};
use onefold_engine::snapshot::OwnerNames;
use onefold_engine::store::cursor::HintedEntry;
use onefold_engine::tree::{Content, Entry};
use onefold_engine::types::Fingerprint;
use tar::{Builder, EntryType, Header};

use crate::commands::dump_contents::{Sources, WRITING, walk, write_contents};

/// Bytes that everything in the stream is filled up to.
const BLOCK_LEN: u64 = 512;

/// Longest target of a link that fits in a header.
const LINK_LEN_MAX: usize = 100;

/// Writes the contents of a directory, given by its root and its path in the snapshot.
pub(super) fn write(out: &mut dyn Write, sources: Sources<'_>, directory: (Fingerprint, &[u8])) -> Result<()> {
    let mut builder = Builder::new(out);
    walk(sources, directory, |sources, hinted, path| append(&mut builder, sources, hinted, path))?;
    builder.into_inner().context(WRITING)?;
    Ok(())
}

/// Writes one entry.
fn append(
    builder: &mut Builder<&mut dyn Write>,
    sources: &mut Sources<'_>,
    hinted: &HintedEntry,
    path: &[u8],
) -> Result<()> {
    let entry = &hinted.entry;
    let mut header = header_of(entry);
    let path = Path::new(OsStr::from_bytes(path));
    if entry.kind == EntryKind::Socket {
        // Before it could become what another name of it is linked to.
        sources.output.warn(&format!("{}: left out, since the format knows no sockets", path.display()));
        return Ok(());
    }
    if let Some(inode) = SharedInode::of(entry) {
        if let Some((first, _)) = sources.links.get(inode)? {
            header.set_entry_type(EntryType::Link);
            header.set_size(0);
            return builder.append_link(&mut header, path, &first).context(WRITING);
        }
        sources.links.insert(inode, path, Origin::Snapshot)?;
    }
    append_records(builder, sources.owners, entry, &mut header)?;
    match &entry.content {
        Content::Symlink { target } => {
            let written = if target.len() <= LINK_LEN_MAX {
                // As it is: the other way leaves out what does not change where it leads.
                header.set_link_name_literal(target)?;
                builder.append_data(&mut header, path, io::empty())
            } else {
                builder.append_link(&mut header, path, OsStr::from_bytes(target))
            };
            written.context(WRITING)
        }
        Content::Special { .. } => builder.append_data(&mut header, path, io::empty()).context(WRITING),
        Content::Directory { .. } => {
            // Readers that know no kinds tell a directory by its last slash.
            let mut name = path.as_os_str().to_owned();
            name.push("/");
            builder.append_data(&mut header, &name, io::empty()).context(WRITING)
        }
        Content::File { .. } => {
            // The header alone: the contents follow in pieces, as they are read.
            builder.append_data(&mut header, path, io::empty()).context(WRITING)?;
            let written =
                write_contents(builder.get_mut(), sources.interrupt, sources.reader, sources.fetcher, hinted)?;
            ensure!(written == entry.size(), "{}: {written} bytes instead of {}", path.display(), entry.size());
            let rest = usize::try_from(written.next_multiple_of(BLOCK_LEN) - written)?;
            let zeros = [0; 512];
            builder.get_mut().write_all(zeros.get(..rest).unwrap_or_default()).context(WRITING)
        }
    }
}

/// Longest name of an owner that fits in a header.
const OWNER_LEN_MAX: usize = 31;

/// Sets the names of the owner, and appends what does not fit in a header: longer names, and extended attributes.
fn append_records(
    builder: &mut Builder<&mut dyn Write>,
    owners: &OwnerNames,
    entry: &Entry,
    header: &mut Header,
) -> Result<()> {
    let mut records: Vec<(String, &[u8])> = Vec::new();
    let (user, group) = (owners.users.get(&entry.uid), owners.groups.get(&entry.gid));
    for (key, name) in [("uname", user), ("gname", group)] {
        match name {
            Some(name) if OWNER_LEN_MAX < name.len() => records.push((key.to_owned(), name.as_bytes())),
            Some(name) if key == "uname" => header.set_username(name)?,
            Some(name) => header.set_groupname(name)?,
            None => {}
        }
    }
    // The format knows no other names of attributes.
    let named = entry.xattrs.iter().filter_map(|xattr| Some((xattr.name.to_str()?, &*xattr.value)));
    let named = named.filter(|(name, _)| !name.contains('='));
    records.extend(named.map(|(name, value)| (format!("SCHILY.xattr.{name}"), value)));
    builder.append_pax_extensions(records.iter().map(|(key, value)| (&**key, *value))).context(WRITING)
}

/// Returns the header of an entry, without its name. It holds no times before 1970 and no fractions of a second.
fn header_of(entry: &Entry) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(match entry.kind {
        EntryKind::File | EntryKind::Socket => EntryType::Regular,
        EntryKind::Directory => EntryType::Directory,
        EntryKind::Symlink => EntryType::Symlink,
        EntryKind::Fifo => EntryType::Fifo,
        EntryKind::CharDevice => EntryType::Char,
        EntryKind::BlockDevice => EntryType::Block,
    });
    header.set_size(entry.size());
    header.set_mode(entry.mode);
    header.set_uid(entry.uid.into());
    header.set_gid(entry.gid.into());
    header.set_mtime(u64::try_from(entry.mtime.seconds).unwrap_or(0));
    if let Content::Special { rdev } = entry.content {
        let (major, minor) = device_numbers(rdev);
        // Both fit in GNU headers.
        let _fits = header.set_device_major(major).and_then(|()| header.set_device_minor(minor));
    }
    header
}

/// Takes a device number apart as the kernel puts it together for programs: 12 bits of each number, then the rest.
fn device_numbers(rdev: u64) -> (u32, u32) {
    let bits = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or(0);
    (bits(rdev >> 32 & 0xffff_f000 | rdev >> 8 & 0xfff), bits(rdev >> 12 & 0xffff_ff00 | rdev & 0xff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_taken_apart() {
        assert_eq!(device_numbers(0x0801), (8, 1));
        assert_eq!(device_numbers(0x0103), (1, 3));
        assert_eq!(device_numbers(0x0001_0002_3456_7889), (0x0001_0678, 0x0023_4589));
    }
}
