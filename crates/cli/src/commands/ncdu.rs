//! `ls --ncdu`: a snapshot's tree in the format that ncdu imports (version 1.2), a nested list of directories.

use std::io;

use anyhow::Result;
use onefold_engine::io::tree::EntryKind;
use onefold_engine::snapshot::Snapshot;
use onefold_engine::tree::{Content, Entry};
use onefold_engine::types::SessionId;

use crate::json::{Object, list, object};
use crate::output::Output;

/// Bytes that the size on disk is rounded up to.
const BLOCK_LEN: u64 = 512;

/// The part of the document that an entry begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Opens {
    /// A list of what is in it, which [`leave`] ends.
    Directory,
    /// Nothing.
    Nothing,
}

/// An entry as the format has it.
fn node(entry: &Entry) -> Object {
    let inode = match &entry.content {
        Content::File { inode, .. } => *inode,
        Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => 0,
    };
    object! {
        name: &entry.name[..],
        asize: entry.size(),
        dsize: entry.size().div_ceil(BLOCK_LEN).saturating_mul(BLOCK_LEN),
        dev: entry.link.map_or(0, |link| link.device),
        ino: entry.link.map_or(inode, |link| link.inode),
        nlink: entry.link.map_or(1, |link| link.links),
        notreg: !matches!(entry.kind, EntryKind::File | EntryKind::Directory),
        entry { uid, gid },
        mode: entry.mode & 0o7777,
        // The format knows no time before 1970.
        mtime: u64::try_from(entry.mtime.seconds).unwrap_or(0),
    }
}

/// Writes the head, and begins the root.
pub(super) fn begin(output: &Output, session: SessionId, snapshot: &Snapshot) -> Result<()> {
    let about = serde_json::to_string(&list::snapshot(session, snapshot))?;
    Ok(output.bytes(format!("[1, 2, {about},\n[{{\"name\":\"/\"}}").as_bytes())?)
}

/// Writes an entry at this depth.
pub(super) fn show(output: &Output, entry: &Entry, depth: usize, opens: Opens) -> Result<()> {
    let bracket = if opens == Opens::Directory { "[" } else { "" };
    output.bytes(format!(",\n{:indent$}{bracket}", "", indent = 2 * depth).as_bytes())?;
    Ok(output.bytes(&serde_json::to_vec(&node(entry))?)?)
}

/// Ends a directory at this depth.
pub(super) fn leave(output: &Output, depth: usize) -> io::Result<()> {
    output.bytes(format!("\n{:indent$}]", "", indent = 2 * depth).as_bytes())
}

/// Ends the root and the file.
pub(super) fn end(output: &Output) -> io::Result<()> {
    output.bytes(b"\n]\n]\n")
}
