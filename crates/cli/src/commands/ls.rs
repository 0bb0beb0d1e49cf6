//! `ls`.

use std::cell::Cell;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Result, bail, ensure};
use onefold_engine::store::MetadataReader;
use onefold_engine::store::cursor::{DirectoryCursor, HintedEntry};
use onefold_engine::tree::{Content, Entry};
use onefold_engine::types::Fingerprint;

use crate::args::LsArgs;
use crate::interrupt::Interrupt;
use crate::json::{LsNode, LsSnapshot, short_id};
use crate::open::OpenedSnapshot;
use crate::output::Output;
use crate::settings::Settings;
use crate::text;

/// Lists what is in a snapshot.
pub(crate) fn run(settings: &Settings, output: &Output, typed: &LsArgs) -> Result<()> {
    let found = OpenedSnapshot::open(settings, output, &typed.snapshot, &typed.selection)?;
    let (session, snapshot) = (found.session, &found.snapshot);
    let mut reader = found.reader(settings)?;
    let filters = typed.directories.iter().map(|directory| Filter::parse(directory, typed.recursive));
    let filters = filters.collect::<Result<Vec<_>>>()?;
    if output.json {
        output.message(&LsSnapshot::of(session, snapshot))?;
    } else {
        output.note(&format!(
            "snapshot {} of {} at {} by {}@{}",
            short_id(session),
            snapshot.paths.iter().map(|path| String::from_utf8_lossy(path)).collect::<Vec<_>>().join(", "),
            text::local_time(snapshot.time),
            snapshot.username,
            snapshot.hostname,
        ));
    }
    let (root, base) = descend(&mut reader, snapshot.tree, found.path.as_bytes())?;
    for filter in &filters {
        filter.note(&base);
    }
    let listing = Listing { output, long: typed.long, filters, interrupt: &found.interrupt };
    let result = listing.walk(&mut reader, root, base);
    output.flush()?;
    let findings: Vec<String> = reader.findings().iter().map(ToString::to_string).collect();
    for finding in findings {
        output.warn(&format!("error: {finding}"));
    }
    result?;
    for (filter, directory) in listing.filters.iter().zip(&typed.directories) {
        ensure!(filter.is_found.get(), "{}: not in the snapshot", directory.display());
    }
    Ok(())
}

/// Goes down from the root to the directory that a path names; returns its node and the path, without a last slash.
pub(super) fn descend(reader: &mut MetadataReader, root: Fingerprint, path: &[u8]) -> Result<(Fingerprint, Vec<u8>)> {
    let (mut node, mut base) = (root, Vec::new());
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let found = DirectoryCursor::new(node).find(name, reader)?;
        base.push(b'/');
        base.extend_from_slice(name);
        node = match found.map(|hinted| hinted.entry.content) {
            Some(Content::Directory { node }) => node,
            Some(Content::File { .. } | Content::Symlink { .. } | Content::Special { .. }) => {
                bail!("{}: not a directory in the snapshot", String::from_utf8_lossy(&base))
            }
            None => bail!("{}: not in the snapshot", String::from_utf8_lossy(&base)),
        };
    }
    Ok((node, base))
}

/// A directory whose contents are listed.
struct Filter {
    /// Its path with a slash behind it.
    path: Vec<u8>,
    recursive: bool,
    /// Whether there is such a directory.
    is_found: Cell<bool>,
}

impl Filter {
    fn parse(directory: &std::path::Path, recursive: bool) -> Result<Self> {
        ensure!(directory.is_absolute(), "{}: directories of a snapshot begin with /", directory.display());
        let mut path = Vec::new();
        for name in directory.as_os_str().as_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        path.push(b'/');
        Ok(Self { path, recursive, is_found: Cell::new(false) })
    }

    /// Notes that a path exists, which may be the directory, or in it.
    fn note(&self, path: &[u8]) {
        let is_here = self.path.strip_suffix(b"/") == Some(path) || [path, b"/"].concat().starts_with(&self.path);
        self.is_found.set(self.is_found.get() || is_here);
    }

    /// Says whether an entry is shown: the directory itself, and what is in it.
    fn shows(&self, path: &[u8]) -> bool {
        let below = path.strip_prefix(&self.path[..]);
        self.path.strip_suffix(b"/") == Some(path)
            || below.is_some_and(|below| self.recursive || !below.contains(&b'/'))
    }

    /// Says whether there may be something to show in a directory.
    fn enters(&self, path: &[u8]) -> bool {
        let directory = [path, b"/"].concat();
        self.path.starts_with(&directory) || (self.recursive && directory.starts_with(&self.path))
    }
}

struct Listing<'a> {
    output: &'a Output,
    long: bool,
    filters: Vec<Filter>,
    interrupt: &'a Interrupt,
}

impl Listing<'_> {
    /// Shows everything below a directory, a directory before what is in it.
    fn walk(&self, reader: &mut MetadataReader, root: Fingerprint, base: Vec<u8>) -> Result<()> {
        let mut stack = vec![(DirectoryCursor::new(root), base)];
        while let Some((cursor, base)) = stack.last_mut() {
            if self.interrupt.is_raised() {
                return Err(onefold_engine::Error::Interrupted.into());
            }
            let Some(hinted) = cursor.next(reader)? else {
                stack.pop();
                continue;
            };
            let path = [&base[..], b"/", &hinted.entry.name].concat();
            self.filters.iter().filter(|filter| !filter.is_found.get()).for_each(|filter| filter.note(&path));
            if self.filters.is_empty() || self.filters.iter().any(|filter| filter.shows(&path)) {
                self.show(&hinted, &path)?;
            }
            let enters = self.filters.is_empty() || self.filters.iter().any(|filter| filter.enters(&path));
            if let Content::Directory { node } = hinted.entry.content
                && enters
            {
                stack.push((DirectoryCursor::new(node), path));
            }
        }
        Ok(())
    }

    fn show(&self, hinted: &HintedEntry, path: &[u8]) -> Result<()> {
        if self.output.json {
            // Not flushed one by one: there may be millions.
            self.output.line(serde_json::to_vec(&LsNode::of(&hinted.entry, path))?)?;
            return Ok(());
        }
        self.output.line(entry_line(self.output, &hinted.entry, path, self.long))?;
        Ok(())
    }
}

/// Returns the line that shows an entry to people.
pub(super) fn entry_line(output: &Output, entry: &Entry, path: &[u8], long: bool) -> Vec<u8> {
    let mut line = Vec::new();
    if long {
        let (mode, time) = (text::permissions(entry.kind, entry.mode), text::local_time(entry.mtime));
        line = format!("{mode} {:5} {:5} {:10} {time} ", entry.uid, entry.gid, entry.size()).into_bytes();
    }
    line.extend(output.printable(path));
    if let (Content::Symlink { target }, true) = (&entry.content, long) {
        line.extend_from_slice(b" -> ");
        line.extend(output.printable(target));
    }
    line
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn filters_show_a_directory_and_what_is_in_it() {
        for (directory, recursive, path, shown, entered) in [
            ("/a/b", false, "/a", false, true),
            ("/a/b", false, "/a/b", true, true),
            ("/a/b", false, "/a/b/c", true, false),
            ("/a/b", false, "/a/b/c/d", false, false),
            ("/a/b", true, "/a/b/c/d", true, true),
            ("/a/b/", true, "/a/bc", false, false),
            ("/", false, "/a", true, false),
            ("/", true, "/a/b", true, true),
        ] {
            let filter = Filter::parse(Path::new(directory), recursive).unwrap();
            assert_eq!(filter.shows(path.as_bytes()), shown, "{directory} {recursive} shows {path}");
            assert_eq!(filter.enters(path.as_bytes()), entered, "{directory} {recursive} enters {path}");
        }
    }
}
