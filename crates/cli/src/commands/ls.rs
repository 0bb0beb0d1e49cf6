//! `ls`.

use std::cell::Cell;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Result, bail, ensure};
use onefold_engine::snapshot::OwnerNames;
use onefold_engine::store::MetadataReader;
use onefold_engine::store::cursor::DirectoryCursor;
use onefold_engine::store::walk::{Event, TreeWalk};
use onefold_engine::tree::{Content, Entry};
use onefold_engine::types::Fingerprint;

use crate::args::list::{LsArgs, SortArg};
use crate::commands::ncdu;
use crate::compat::Dialect;
use crate::interrupt::Interrupt;
use crate::json::{list, short_id};
use crate::open::OpenedSnapshot;
use crate::output::Output;
use crate::settings::Settings;
use crate::text;

/// Lists what is in a snapshot.
pub(crate) fn run(settings: &Settings, output: &Output, args: &LsArgs) -> Result<()> {
    let found = OpenedSnapshot::open(settings, output, &args.snapshot, &args.selection)?;
    let (session, snapshot) = (found.session, &found.snapshot);
    let mut reader = found.reader(settings)?;
    let filters = args.directories.iter().map(|directory| Filter::parse(directory, args.recursive));
    let filters = filters.collect::<Result<Vec<_>>>()?;
    if output.json {
        output.message(&list::listed_snapshot(session, snapshot))?;
    } else if args.ncdu {
        ncdu::begin(output, session, snapshot)?;
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
    // To restic, a directory that was named with the snapshot is the root.
    let base = if settings.dialect == Dialect::Restic { Vec::new() } else { base };
    for filter in &filters {
        filter.note(&base);
    }
    let look = Look { long: args.long, human_readable: args.human_readable };
    let form = match (args.ncdu, args.sort, args.reverse) {
        (true, _, _) => Form::Ncdu,
        (false, SortArg::Name, false) => Form::AsWalked,
        (false, _, _) => Form::Sorted,
    };
    let owners = &snapshot.owners;
    let mut listing = Listing { output, owners, look, form, filters, interrupt: &found.interrupt, held: Vec::new() };
    let result = listing.walk(&mut reader, root, &base);
    if form == Form::Sorted {
        listing.show_sorted(args.sort, args.reverse)?;
    }
    if form == Form::Ncdu && result.is_ok() {
        ncdu::end(output)?;
    }
    output.flush()?;
    for error in reader.findings() {
        output.warn(&format!("error: {error}"));
    }
    result?;
    for (filter, directory) in listing.filters.iter().zip(&args.directories) {
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

    /// Returns true if an entry is shown: the directory itself, and its contents.
    fn shows(&self, path: &[u8]) -> bool {
        let below = path.strip_prefix(&self.path[..]);
        self.path.strip_suffix(b"/") == Some(path)
            || below.is_some_and(|below| self.recursive || !below.contains(&b'/'))
    }

    /// Returns true if a directory may hold entries to show.
    fn enters(&self, path: &[u8]) -> bool {
        let directory = [path, b"/"].concat();
        self.path.starts_with(&directory) || (self.recursive && directory.starts_with(&self.path))
    }
}

/// Format of an entry's line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Whether modes, owners, sizes and times are shown.
    pub(super) long: bool,
    /// Whether sizes have units.
    pub(super) human_readable: bool,
}

/// Form of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// Entry by entry in the order of the tree.
    AsWalked,
    /// After all of it was seen.
    Sorted,
    /// As ncdu imports it.
    Ncdu,
}

struct Listing<'a> {
    output: &'a Output,
    owners: &'a OwnerNames,
    look: Look,
    form: Form,
    filters: Vec<Filter>,
    interrupt: &'a Interrupt,
    /// The items to sort.
    held: Vec<(Vec<u8>, Entry)>,
}

impl Listing<'_> {
    /// Shows everything below a directory, a directory before what is in it.
    fn walk(&mut self, reader: &mut MetadataReader, root: Fingerprint, base: &[u8]) -> Result<()> {
        let mut walk = TreeWalk::new(root, base, ());
        while let Some(event) = walk.next(reader, self.interrupt)? {
            let depth = walk.levels().len();
            let hinted = match event {
                Event::Entry(hinted) => hinted,
                Event::Leave => {
                    if self.form == Form::Ncdu && 1 < depth {
                        ncdu::leave(self.output, depth - 1)?;
                    }
                    continue;
                }
                Event::Unreadable(error) => return Err(error.into()),
            };
            let path = walk.path();
            self.filters.iter().filter(|filter| !filter.is_found.get()).for_each(|filter| filter.note(path));
            let shows = self.filters.is_empty() || self.filters.iter().any(|filter| filter.shows(path));
            let enters = self.filters.is_empty() || self.filters.iter().any(|filter| filter.enters(path));
            let below = match hinted.entry.content {
                Content::Directory { node } if enters => Some(node),
                Content::Directory { .. }
                | Content::File { .. }
                | Content::Symlink { .. }
                | Content::Special { .. } => None,
            };
            match self.form {
                // The directories that lead to what is shown are part of ncdu's tree.
                Form::Ncdu if shows || below.is_some() => {
                    let opens = if below.is_some() { ncdu::Opens::Directory } else { ncdu::Opens::Nothing };
                    ncdu::show(self.output, &hinted.entry, depth, opens)?;
                }
                Form::AsWalked if shows => self.show(&hinted.entry, path)?,
                Form::Sorted if shows => self.held.push((path.to_vec(), hinted.entry)),
                Form::Ncdu | Form::AsWalked | Form::Sorted => {}
            }
            if let Some(node) = below {
                walk.enter(node, ())?;
            }
        }
        Ok(())
    }

    /// Shows what was held, in order; entries that are alike in what is sorted by are sorted by their paths.
    fn show_sorted(&mut self, by: SortArg, reverse: bool) -> Result<()> {
        let mut held = std::mem::take(&mut self.held);
        let changed = |entry: &Entry| match &entry.content {
            Content::File { ctime, .. } => *ctime,
            Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => entry.mtime,
        };
        let accessed = |entry: &Entry| entry.notes.atime.unwrap_or(entry.mtime);
        match by {
            // In the order of the tree, as without sorting.
            SortArg::Name => {}
            SortArg::Size => held.sort_by(|(p, a), (q, b)| (a.size(), p).cmp(&(b.size(), q))),
            SortArg::Mtime => held.sort_by(|(p, a), (q, b)| (a.mtime, p).cmp(&(b.mtime, q))),
            SortArg::Atime => held.sort_by(|(p, a), (q, b)| (accessed(a), p).cmp(&(accessed(b), q))),
            SortArg::Ctime => held.sort_by(|(p, a), (q, b)| (changed(a), p).cmp(&(changed(b), q))),
            SortArg::Extension => held.sort_by(|(p, _), (q, _)| (extension(p), p).cmp(&(extension(q), q))),
        }
        if reverse {
            held.reverse();
        }
        held.iter().try_for_each(|(path, entry)| self.show(entry, path))
    }

    fn show(&self, entry: &Entry, path: &[u8]) -> Result<()> {
        if self.output.json {
            // Not flushed one by one: there may be millions.
            self.output.line(serde_json::to_vec(&list::node(entry, path, self.owners))?)?;
            return Ok(());
        }
        self.output.line(entry_line(self.output, entry, path, self.look))?;
        Ok(())
    }
}

/// Returns the part of a path's last name from its last dot on.
fn extension(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.iter().rposition(|byte| *byte == b'.').and_then(|dot| name.get(dot..)).unwrap_or_default()
}

/// Returns the line that shows an entry to people.
pub(super) fn entry_line(output: &Output, entry: &Entry, path: &[u8], look: Look) -> Vec<u8> {
    let Look { long, human_readable } = look;
    let mut line = Vec::new();
    if long {
        let (mode, time) = (text::permissions(entry.kind, entry.mode), text::local_time(entry.mtime));
        let size = if human_readable { text::bytes(entry.size()) } else { entry.size().to_string() };
        line = format!("{mode} {:5} {:5} {size:>10} {time} ", entry.uid, entry.gid).into_bytes();
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
    fn an_extension_begins_at_the_last_dot_of_the_last_name() {
        for (path, expected) in [("/a.b/c", ""), ("/a/c.tar.gz", ".gz"), ("/.rc", ".rc"), ("/a.", "."), ("/", "")] {
            assert_eq!(extension(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }

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
