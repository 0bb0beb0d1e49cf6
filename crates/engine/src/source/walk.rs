//! Walks what is backed up, depth first, each directory sorted by the bytes of its names.
//!
//! A pull iterator with a stack of its own: no call frame per level, and one path that grows and shrinks, so that
//! memory follows the widest directories on the way and not the depth.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::{Metadata, SourceDirectory, SourceTree};
use crate::monitor::Monitor;
use crate::pipeline::Driver;
use crate::source::ahead::{Ahead, Around, Entered, Found, Next, Share, Shares};
use crate::source::exclude::Excludes;
pub use crate::source::item::{Contents, Item, Location};
use crate::source::roots::{self, Node, RootTree};
use crate::source::survey::{Listing, Opened, Subject, Survey, Visit};

/// Directories on one path. Trees are restored to the same depth.
pub(crate) const DEPTH_MAX: usize = 4096;

/// What a walk comes across. Entries of the snapshot's root come first and last without a directory around them.
#[derive(Debug)]
pub enum Event {
    /// A directory; what is in it follows up to its [`Event::LeaveDirectory`].
    EnterDirectory(Item),
    /// Anything but a directory.
    Entry(Item),
    /// The end of the directory entered last and not left yet.
    LeaveDirectory,
    /// Something cannot be read. It is left out, or, if it is a directory that cannot be listed or an entry's
    /// attributes, comes without them.
    Error {
        /// Where.
        path: PathBuf,
        /// Why.
        error: Error,
    },
}

/// A walk over several roots merged into one tree. Nothing but a malformed request ends it early.
#[derive(Debug)]
pub struct Walk {
    source: Arc<dyn SourceTree>,
    survey: Survey,
    working_directory: PathBuf,
    /// Directories entered, below the snapshot's root.
    frames: Vec<Frame>,
    /// Directories that entries at the top are found in; a few: `/`, `.`, `..` and those above.
    origins: BTreeMap<PathBuf, Arc<dyn SourceDirectory>>,
    /// Where the source has the directory that was entered last, or the entry that is looked at.
    path: PathBuf,
    /// The same from the root of the file system, for patterns.
    absolute: PathBuf,
    events: VecDeque<Event>,
    /// Outcomes of the entries of `/`, `.` or `..`, of which each can be named as a whole.
    tops: BTreeMap<PathBuf, Tally>,
    /// Which of these the current entry at the top belongs to.
    top: Option<PathBuf>,
    /// What looking ahead takes; `None` if the walk looks at each entry itself.
    shares: Option<Shares>,
    positions: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Frame {
    /// `None` at the top, where each entry has its own.
    directory: Option<Arc<dyn SourceDirectory>>,
    /// Names that were not looked at.
    names: std::vec::IntoIter<OsString>,
    /// Names that lead to roots, or are some.
    nodes: BTreeMap<OsString, Node>,
    /// Device that entries must be on, where only one may be read.
    device: Option<u64>,
    /// Looks at names ahead, in a directory without roots in it.
    ahead: Option<Ahead>,
    /// Whether the user named the directory.
    is_named: bool,
    tally: Tally,
}

/// Outcomes of the entries below a directory.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    /// Some were left out, as the user wants it.
    left_out: bool,
    /// A mark left out all but its file.
    is_marked: bool,
    /// Some are stored, besides directories and the files of marks, or reported.
    has_entry: bool,
}

impl Tally {
    /// Returns true if nothing but directories was found, since the rest is left out.
    fn is_empty(self) -> bool {
        self.left_out && !self.has_entry
    }
}

impl Frame {
    /// Enters a directory that has these names, and others that lead to roots.
    fn new(
        directory: Arc<dyn SourceDirectory>,
        mut names: Vec<OsString>,
        mut nodes: BTreeMap<OsString, Node>,
        device: Option<u64>,
    ) -> Self {
        if !nodes.is_empty() {
            for (name, child) in &mut nodes {
                // What leads to a root is backed up whole if it also lies inside another one.
                child.whole |= names.binary_search(name).is_ok();
            }
            names.extend(nodes.keys().cloned());
            names.sort_unstable();
            names.dedup();
        }
        let (names, tally) = (names.into_iter(), Tally::default());
        Self { directory: Some(directory), names, nodes, device, ahead: None, is_named: false, tally }
    }

    fn next(&mut self, shares: Option<&Shares>) -> Option<Next> {
        match (&mut self.ahead, shares) {
            (Some(ahead), Some(shares)) => ahead.next(&mut self.names, shares),
            _ => self.names.next().map(|name| Next::Name(name, None)),
        }
    }
}

impl Walk {
    /// Prepares a walk over the roots, mapped into one tree as restic maps them.
    ///
    /// Fails on an empty path and if relative roots are given but the working directory is gone.
    pub fn new(source: Arc<dyn SourceTree>, roots: &[PathBuf], excludes: Arc<Excludes>) -> Result<Self> {
        let working_directory = if roots.iter().all(|root| root.is_absolute()) {
            PathBuf::from("/")
        } else {
            source.canonical(Path::new("."))?
        };
        let mut errors = Vec::new();
        let mut tops = BTreeMap::new();
        let RootTree { top: nodes, positions } =
            roots::build(&*source, roots, &excludes, &mut errors, &mut |origin, is_marked| {
                let _replaced = tops.insert(origin, Tally { left_out: is_marked, is_marked, has_entry: false });
            })?;
        let names = nodes.keys().cloned().collect::<Vec<_>>().into_iter();
        let (is_named, tally) = (false, Tally::default());
        let top = Frame { directory: None, names, nodes, device: None, ahead: None, is_named, tally };
        Ok(Self {
            source,
            survey: Survey { excludes, depth_max: DEPTH_MAX, reads_file_xattrs: false, pipes: None },
            working_directory,
            frames: vec![top],
            origins: BTreeMap::new(),
            path: PathBuf::new(),
            absolute: PathBuf::new(),
            events: errors.into_iter().map(|(path, error)| Event::Error { path, error }).collect(),
            tops,
            top: None,
            shares: None,
            positions,
        })
    }

    /// Returns the paths in the tree that the roots stand at, without those inside another one. The empty path is the top.
    pub(crate) fn positions(&self) -> &[Vec<u8>] {
        &self.positions
    }

    /// Reads pipes that the user named. The monitor interrupts the wait for them.
    pub(crate) fn with_pipes(mut self, monitor: Arc<dyn Monitor>) -> Self {
        self.survey.pipes = Some(monitor);
        self
    }

    /// Looks at the attributes of files with their metadata.
    pub(crate) fn with_file_xattrs(mut self) -> Self {
        self.survey.reads_file_xattrs = true;
        self
    }

    /// Looks at directories ahead on the driver's workers. What was found and not taken yet has at most `shares` times
    /// [`SHARE_BYTES`](crate::source::ahead::SHARE_BYTES).
    pub(crate) fn look_ahead(&mut self, driver: &Driver, shares: usize) {
        self.shares = Some(Shares::new(driver.clone(), self.survey.clone(), shares));
    }

    /// Returns how many shares nothing holds.
    #[cfg(test)]
    pub(crate) fn shares_free(&self) -> usize {
        self.shares.as_ref().map_or(0, Shares::free)
    }

    /// Looks at one name of the current directory.
    fn step(&mut self, name: OsString, known: Option<Metadata>) {
        let frame = self.frames.last_mut();
        let node = frame.and_then(|frame| frame.nodes.remove(&name)).unwrap_or_else(Node::listed);
        if self.frames.len() == 1 {
            self.path.clone_from(&node.path);
            self.absolute = roots::absolute(&self.working_directory, &self.path);
            self.top = (!node.explicit && node.whole).then(|| node.origin().to_path_buf());
        } else {
            self.path.push(&name);
            self.absolute.push(&name);
        }
        let located = self.locate(&name, &node);
        let mut look = || located.clone().and_then(|location| location.metadata());
        let visit = if self.survey.is_excluded(&self.absolute, &node, &mut look) {
            Visit::Excluded
        } else {
            match located {
                Ok(location) => {
                    let device = self.frames.last().and_then(|frame| frame.device);
                    let (path, depth) = (self.path.clone(), self.frames.len());
                    self.survey.visit(Subject { path, name, location, node: &node, device, depth, known })
                }
                Err(error) => Visit::Failed(self.path.clone(), error),
            }
        };
        match self.take(visit) {
            Some(entrance) => {
                let is_named = node.explicit;
                self.descend(entrance, None, node.children, (VecDeque::new(), None));
                self.frames.iter_mut().last().into_iter().for_each(|frame| frame.is_named = is_named);
            }
            None => self.ascend(),
        }
    }

    /// Returns what became of the entries around the current one; `None` for what the user named at the top.
    fn tally(&mut self) -> Option<&mut Tally> {
        match self.frames.len() {
            0 | 1 => self.top.as_ref().and_then(|origin| self.tops.get_mut(origin)),
            _ => self.frames.last_mut().map(|frame| &mut frame.tally),
        }
    }

    /// Leaves a directory.
    fn leave(&mut self, Frame { is_named, tally, .. }: Frame) {
        if is_named && tally.is_empty() {
            self.report_empty(self.path.clone());
        }
        if let Some(around) = self.tally() {
            around.left_out |= tally.left_out;
            around.has_entry |= tally.has_entry && !around.is_marked;
        }
        self.ascend();
        self.events.push_back(Event::LeaveDirectory);
    }

    fn report_empty(&mut self, path: PathBuf) {
        let all = "all that is in it is left out, by the patterns and other options that exclude something";
        let error = Error::invalid(format!("{}: {all}", path.display()));
        self.report(path, error);
    }

    /// Takes what was found ahead.
    fn take_found(&mut self, Entered { visit, listing, found }: Entered, share: Option<Arc<Share>>) {
        if let Some(entrance) = self.take(visit) {
            self.path.push(&entrance.name);
            self.absolute.push(&entrance.name);
            self.descend(entrance, listing, BTreeMap::new(), (found, share));
        }
    }

    /// Enters the directory at the current path.
    fn descend(
        &mut self,
        Entrance { directory, device, is_whole, is_foreign, .. }: Entrance,
        listing: Option<Listing>,
        nodes: BTreeMap<OsString, Node>,
        found: (VecDeque<Found>, Option<Arc<Share>>),
    ) {
        let list = || if is_whole { self.survey.list(&*directory, &self.path) } else { Listing::default() };
        let Listing { names, errors, is_marked } = listing.unwrap_or_else(list);
        let has_entry = !errors.is_empty();
        for (path, error) in errors {
            self.report(path, error);
        }
        let mut frame = Frame::new(directory, names, nodes, device);
        // A root in it counts, as its mark then does.
        let only_mark = is_marked && frame.nodes.is_empty();
        frame.tally = Tally { left_out: is_marked || is_foreign, is_marked: only_mark, has_entry };
        if frame.nodes.is_empty() {
            frame.ahead = self.ahead_of(&frame, found);
        }
        self.frames.push(frame);
    }

    /// Starts to look ahead in a directory that is entered.
    fn ahead_of(&self, frame: &Frame, (found, share): (VecDeque<Found>, Option<Arc<Share>>)) -> Option<Ahead> {
        let directory = frame.directory.as_ref().filter(|_| self.shares.is_some())?;
        let (path, absolute) = (self.path.clone(), self.absolute.clone());
        let (directory, device, depth) = (Arc::clone(directory), frame.device, self.frames.len() + 1);
        Some(Ahead::new(Around { directory, path, absolute, device, depth }, found, share))
    }

    /// Makes events of a visit. Returns the directory if it is one.
    fn take(&mut self, visit: Visit) -> Option<Entrance> {
        if let Some(tally) = self.tally() {
            tally.left_out |= matches!(visit, Visit::Excluded);
            tally.has_entry |= matches!(visit, Visit::Failed(..) | Visit::Entry(..)) && !tally.is_marked;
        }
        match visit {
            Visit::Excluded => {}
            Visit::Failed(path, error) => self.report(path, error),
            Visit::Entry(item, error) => self.push(item, error, Event::Entry),
            Visit::Directory(opened) => {
                let Opened { item, error, directory, device, is_whole, is_foreign } = *opened;
                let name = item.name.clone();
                self.push(item, error, Event::EnterDirectory);
                return Some(Entrance { name, directory, device, is_whole, is_foreign });
            }
        }
        None
    }

    fn push(&mut self, item: Item, error: Option<Error>, event: impl FnOnce(Item) -> Event) {
        if let Some(error) = error {
            self.report(item.path.clone(), error);
        }
        self.events.push_back(event(item));
    }

    /// Goes back to the directory around the current entry. At the top there is none, and each entry starts anew.
    fn ascend(&mut self) {
        self.path.pop();
        self.absolute.pop();
    }

    /// Returns where the current entry is, as a name in the directory around it.
    fn locate(&mut self, name: &OsStr, node: &Node) -> Result<Location> {
        if let Some(directory) = self.frames.last().and_then(|frame| frame.directory.as_ref()) {
            return Ok(Location::new(Arc::clone(directory), name));
        }
        let name = self.path.file_name().expect("roots end with a name").to_os_string();
        let origin = node.origin();
        let directory = match self.origins.get(origin) {
            Some(directory) => Arc::clone(directory),
            None => self.source.open_dir(origin)?,
        };
        self.origins.insert(origin.to_path_buf(), Arc::clone(&directory));
        Ok(Location::new(directory, &name))
    }

    fn report(&mut self, path: PathBuf, error: Error) {
        self.events.push_back(Event::Error { path, error });
    }
}

/// A directory that is entered, once its item is an event.
struct Entrance {
    name: OsString,
    directory: Arc<dyn SourceDirectory>,
    device: Option<u64>,
    is_whole: bool,
    is_foreign: bool,
}

impl Iterator for Walk {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let frame = self.frames.last_mut()?;
            match frame.next(self.shares.as_ref()) {
                Some(Next::Name(name, known)) => self.step(name, known),
                Some(Next::Found(found, share)) => self.take_found(found, share),
                None => {
                    let left = self.frames.pop()?;
                    if !self.frames.is_empty() {
                        self.leave(left);
                        continue;
                    }
                    for (origin, tally) in std::mem::take(&mut self.tops) {
                        if tally.is_empty() {
                            self.report_empty(origin);
                        }
                    }
                    return self.events.pop_front();
                }
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test prepares real files")]
mod tests {
    use super::*;
    use crate::io::os_source::OsSource;
    use crate::io::tree::EntryKind;
    use crate::source::exclude::{CACHE_SIGNATURE, Case, Patterns, Tag};
    use crate::testing::mem_tree::MemTree;

    /// Renders a walk as lines: `name/`, what is in it, indented, `name -> target`, `! path`. All drivers must give the same.
    fn walk(source: &(impl SourceTree + Clone + 'static), roots: &[&str], excludes: &Excludes) -> Vec<String> {
        let roots: Vec<PathBuf> = roots.iter().map(PathBuf::from).collect();
        let start = || Walk::new(Arc::new(source.clone()), &roots, Arc::new(excludes.clone())).unwrap();
        let lines = render(start());
        for (driver, shares) in [(Driver::inline(1), 64), (Driver::inline(2), 3), (Driver::threads(3), 9)] {
            let mut ahead = start().with_file_xattrs();
            ahead.look_ahead(&driver, shares);
            assert_eq!(render(ahead), lines, "{shares} shares");
        }
        lines
    }

    fn render(walk: Walk) -> Vec<String> {
        let mut lines = Vec::new();
        let mut indent = String::new();
        for event in walk {
            match event {
                Event::EnterDirectory(item) => {
                    assert_eq!(item.metadata.kind, EntryKind::Directory);
                    lines.push(format!("{indent}{}/", item.name.display()));
                    indent.push(' ');
                }
                Event::Entry(item) => lines.push(match item.link_target {
                    Some(target) => format!("{indent}{} -> {}", item.name.display(), target.display()),
                    None => format!("{indent}{}", item.name.display()),
                }),
                Event::LeaveDirectory => assert_eq!(indent.pop(), Some(' ')),
                Event::Error { path, .. } => lines.push(format!("! {}", path.display())),
            }
        }
        assert_eq!(indent, "");
        lines
    }

    fn tree(files: &[&str]) -> MemTree {
        let tree = MemTree::new();
        for file in files {
            match file.strip_suffix('/') {
                Some(directory) => tree.put_dir(Path::new(directory)),
                None => tree.put_file(Path::new(file), file.as_bytes()),
            }
        }
        tree
    }

    fn patterns(patterns: &[&str]) -> Excludes {
        let patterns = Patterns::parse(patterns.iter().map(|pattern| pattern.as_bytes()), Case::Sensitive).unwrap();
        Excludes { patterns: vec![patterns], ..Excludes::default() }
    }

    #[test]
    fn absolute_roots_keep_their_positions_and_are_merged() {
        let tree = tree(&["/home/u/b", "/home/u/a/x", "/home/v/y", "/etc/conf", "/var/z"]);
        tree.edit(Path::new("/home"), |metadata| metadata.mode = 0o751);
        let nothing = Excludes::default();
        let lines = walk(&tree, &["/home/u", "/etc/conf", "/home/v/y"], &nothing);
        assert_eq!(lines, ["etc/", " conf", "home/", " u/", "  a/", "   x", "  b", " v/", "  y"]);
        let roots = [PathBuf::from("/home/u")];
        let mut events = Walk::new(Arc::new(tree.clone()), &roots, Arc::new(nothing.clone())).unwrap();
        let Some(Event::EnterDirectory(home)) = events.next() else { panic!("home comes first") };
        assert_eq!((home.metadata.mode, home.path), (0o751, PathBuf::from("/home")));
    }

    #[test]
    fn overlapping_roots_give_every_entry_once() {
        let tree = tree(&["/a/b/c/d", "/a/b/e", "/a/f"]);
        let all = ["a/", " b/", "  c/", "   d", "  e", " f"];
        let nothing = Excludes::default();
        for roots in [
            &["/a"][..],
            &["/a", "/a/"],
            &["/a", "/a/b/c"],
            &["/a/b/c/d", "/a"],
            &["/a/b", "/a", "/a/./b/../b/c"],
            &["/", "/a/b"],
            &["/a/b", "/"],
        ] {
            assert_eq!(walk(&tree, roots, &nothing), all, "{roots:?}");
        }
    }

    #[test]
    fn relative_roots_are_kept_as_given() {
        let tree = tree(&["/w/d/a/x", "/w/d/y", "/w/foo/z", "/w/d/foo/q", "/foo/top"]);
        tree.set_working_directory(Path::new("/w/d"));
        let nothing = Excludes::default();
        assert_eq!(walk(&tree, &["."], &nothing), ["a/", " x", "foo/", " q", "y"]);
        assert_eq!(walk(&tree, &["a/x", "./y"], &nothing), ["a/", " x", "y"]);
        assert_eq!(walk(&tree, &["../foo"], &nothing), ["foo/", " z"]);
        assert_eq!(walk(&tree, &[".."], &nothing), ["d/", " a/", "  x", " foo/", "  q", " y", "foo/", " z"]);
        // Equal names of different places are told apart.
        let lines = walk(&tree, &["foo", "../foo", "/foo"], &nothing);
        assert_eq!(lines, ["foo/", " q", "foo-1/", " z", "foo-2/", " top"]);
        let roots = [PathBuf::from("foo"), PathBuf::from("../foo")];
        let paths =
            Walk::new(Arc::new(tree.clone()), &roots, Arc::new(nothing.clone())).unwrap().filter_map(
                |event| match event {
                    Event::Entry(item) => Some(item.path),
                    _ => None,
                },
            );
        assert_eq!(paths.collect::<Vec<_>>(), [Path::new("foo/q"), Path::new("../foo/z")]);
    }

    #[test]
    fn names_are_sorted_by_bytes_and_not_by_path() {
        let tree = tree(&["/a/b/1", "/a/b.c", "/a/b-", "/a/B", "/a/\u{e4}"]);
        let lines = walk(&tree, &["/a"], &Excludes::default());
        assert_eq!(lines, ["a/", " B", " b/", "  1", " b-", " b.c", " \u{e4}"]);
    }

    #[test]
    fn what_cannot_be_read_is_reported_and_passed() {
        let tree = tree(&["/a/1", "/a/2", "/a/d/x", "/a/z"]);
        tree.put_symlink(Path::new("/a/l"), OsStr::new("nowhere"));
        let denied = std::io::ErrorKind::PermissionDenied;
        tree.fail_metadata(Path::new("/a/1"), denied);
        tree.fail_open(Path::new("/a/d"), denied);
        let lines = walk(&tree, &["/a", "/missing", "/a/2/below"], &Excludes::default());
        // Attributes of `d` cannot be read either: it comes with two errors, empty, but it comes.
        assert_eq!(lines, ["a/", "! /a/1", "! /a/2", "! /a/d", " d/", "! /a/d", " l -> nowhere", " z", "! /missing"]);
    }

    #[test]
    fn links_on_the_way_to_a_root_are_followed_and_others_are_not() {
        let tree = tree(&["/data/u/x"]);
        tree.put_symlink(Path::new("/home"), OsStr::new("data"));
        tree.edit(Path::new("/data"), |metadata| metadata.mode = 0o711);
        let nothing = Excludes::default();
        assert_eq!(walk(&tree, &["/home/u"], &nothing), ["home/", " u/", "  x"]);
        assert_eq!(walk(&tree, &["/home"], &nothing), ["home -> data"]);
        assert_eq!(walk(&tree, &["/"], &nothing), ["data/", " u/", "  x", "home -> data"]);
    }

    #[test]
    fn patterns_exclude_everything_but_the_roots_themselves() {
        let tree = tree(&["/a/b/x.c", "/a/b/x.h", "/a/skip/y", "/a/s"]);
        assert_eq!(walk(&tree, &["/a"], &patterns(&["*.c", "skip"])), ["a/", " b/", "  x.h", " s"]);
        assert_eq!(walk(&tree, &["/a"], &patterns(&["/a/b"])), ["a/", " s", " skip/", "  y"]);
        assert_eq!(walk(&tree, &["/a/b/x.c"], &patterns(&["*.c"])), ["a/", " b/", "  x.c"]);
        assert_eq!(walk(&tree, &["/a/b"], &patterns(&["b"])), ["a/", " b/", "! /a/b"]);
        assert_eq!(
            walk(&tree, &["/a", "/a/skip/y"], &patterns(&["skip"])),
            ["a/", " b/", "  x.c", "  x.h", " s", " skip/", "  y"]
        );
        // Patterns see absolute paths, also of relative roots, and entries that `.` stands for are no roots.
        tree.set_working_directory(Path::new("/a"));
        assert_eq!(walk(&tree, &["."], &patterns(&["/a/b", "s"])), ["skip/", " y"]);
    }

    #[test]
    fn marked_directories_keep_only_their_mark() {
        let tree =
            tree(&["/a/cache/x", "/a/cache/d/y", "/a/fake/CACHEDIR.TAG", "/a/fake/z", "/a/no/.nobackup", "/a/no/w"]);
        tree.put_file(Path::new("/a/cache/CACHEDIR.TAG"), CACHE_SIGNATURE);
        let caches = Excludes { tags: vec![Tag::cache_directory()], ..Excludes::default() };
        let lines = walk(&tree, &["/a"], &caches);
        assert_eq!(
            lines,
            ["a/", " cache/", "  CACHEDIR.TAG", " fake/", "  CACHEDIR.TAG", "  z", " no/", "  .nobackup", "  w"]
        );
        let present = Excludes { tags: vec![Tag::parse(OsStr::new(".nobackup")).unwrap()], ..Excludes::default() };
        assert_eq!(walk(&tree, &["/a/no"], &present), ["a/", " no/", "  .nobackup", "! /a/no"]);
        assert_eq!(walk(&tree, &["/a/no", "/a/no/w"], &present), ["a/", " no/", "  .nobackup", "  w"]);
        tree.set_working_directory(Path::new("/a/no"));
        assert_eq!(walk(&tree, &["."], &present), [".nobackup", "! ."]);
    }

    #[test]
    fn large_files_are_left_out_and_nothing_else() {
        let tree = tree(&["/a/small", "/a/large", "/a/named"]);
        tree.put_file(Path::new("/a/large"), &[1; 101]);
        tree.put_file(Path::new("/a/small"), &[1; 100]);
        tree.put_file(Path::new("/a/named"), &[1; 101]);
        tree.edit(Path::new("/a"), |metadata| metadata.size = 4096);
        let excludes = Excludes { file_bytes_max: Some(100), ..Excludes::default() };
        assert_eq!(walk(&tree, &["/a", "/a/named"], &excludes), ["a/", " named", " small"]);
    }

    #[test]
    fn other_file_systems_are_left_out_but_their_mount_points() {
        let tree = tree(&["/a/mnt/", "/a/x", "/a/bind", "/b/"]);
        for (path, device) in [("/a/mnt", 2), ("/a/bind", 3), ("/b", 2)] {
            tree.edit(Path::new(path), |metadata| metadata.device = device);
        }
        tree.put_file(Path::new("/a/mnt/inside/y"), b"");
        tree.put_file(Path::new("/b/z"), b"");
        let one = Excludes { one_file_system: true, ..Excludes::default() };
        assert_eq!(walk(&tree, &["/a", "/b"], &one), ["a/", " mnt/", " x", "b/", " z"]);
        assert_eq!(walk(&tree, &["/"], &one), ["a/", " mnt/", " x", "b/"]);
        // A root inside the other file system counts for what is below it.
        let lines = walk(&tree, &["/a", "/a/mnt/inside", "/a/bind"], &one);
        assert_eq!(lines, ["a/", " bind", " mnt/", "  inside/", "   y", " x"]);
        tree.set_working_directory(Path::new("/a"));
        assert_eq!(walk(&tree, &["."], &one), ["mnt/", "x"]);
    }

    #[test]
    fn the_repository_is_not_backed_up_into_itself() {
        let tree = tree(&["/a/repo/containers/1", "/a/x"]);
        let repo = SourceTree::metadata(&tree, Path::new("/a/repo")).unwrap();
        let excludes = Excludes { skip: [(repo.device, repo.inode)].into(), ..Excludes::default() };
        assert_eq!(walk(&tree, &["/a"], &excludes), ["a/", " x"]);
        assert_eq!(walk(&tree, &["/a", "/a/repo"], &excludes), ["a/", "! /a/repo", " x"]);
    }

    #[test]
    fn directories_too_deep_are_reported_and_passed() {
        let tree = tree(&["/a/b/c/d/e", "/a/b/c/f", "/a/b/c/g/", "/a/h"]);
        let roots = [PathBuf::from("/a")];
        let nothing = Excludes::default();
        let mut walk = Walk::new(Arc::new(tree.clone()), &roots, Arc::new(nothing.clone())).unwrap();
        assert_eq!(walk.survey.depth_max, 4096);
        walk.survey.depth_max = 3;
        assert_eq!(render(walk), ["a/", " b/", "  c/", "! /a/b/c/d", "   f", "! /a/b/c/g", " h"]);
    }

    #[test]
    fn impossible_requests_are_refused() {
        let tree = tree(&["/a"]);
        assert!(Walk::new(Arc::new(tree.clone()), &[PathBuf::new()], Arc::default()).is_err());
        tree.set_working_directory(Path::new("/gone"));
        assert!(Walk::new(Arc::new(tree.clone()), &[PathBuf::from("a")], Arc::default()).is_err());
        assert_eq!(walk(&tree, &[], &Excludes::default()), Vec::<String>::new());
    }

    #[test]
    fn a_real_directory_walks_like_its_double() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path();
        for path in ["r/a/x", "r/b/y.c", "r/b.c", "r/.hidden/z"] {
            std::fs::create_dir_all(base.join(path).parent().unwrap()).unwrap();
            std::fs::write(base.join(path), path).unwrap();
        }
        std::os::unix::fs::symlink("b", base.join("r/link")).unwrap();
        let root = base.join("r");
        let double = MemTree::load(&OsSource, &root).unwrap();
        let excludes = patterns(&["*.c"]);
        let real = walk(&OsSource, &[root.to_str().unwrap()], &excludes);
        let below = base.components().count() - 1;
        let prefix = " ".repeat(below + 1);
        let real: Vec<&str> = real.iter().filter_map(|line| line.strip_prefix(&prefix)).collect();
        assert_eq!(real, walk(&double, &["/"], &excludes));
        assert_eq!(real, [".hidden/", " z", "a/", " x", "b/", "link -> b"]);
    }

    #[test]
    fn a_named_directory_of_which_all_files_are_left_out_is_reported_and_others_are_not() {
        let source = tree(&["/a/x.o", "/a/b/y.o", "/c/z", "/c/d/v.o", "/e/CACHEDIR.TAG", "/e/w"]);
        source.put_file(Path::new("/e/CACHEDIR.TAG"), CACHE_SIGNATURE);
        source.set_working_directory(Path::new("/a"));
        let patterns = Patterns::parse([b"*.o".as_slice()], Case::Sensitive).unwrap();
        let excludes = Excludes { patterns: vec![patterns], tags: vec![Tag::cache_directory()], ..Excludes::default() };
        for (roots, reported) in [
            (&["/a"][..], &["! /a"][..]),
            (&["/c", "/a"], &["! /a"]),
            (&["/c/d", "/c"], &["! /c/d"]),
            (&["/a", "/a/b/y.o"], &[]),
            (&["."], &["! ."]),
            (&["/"], &[]),
            (&["/e"], &["! /e"]),
            (&["../e/.", "b"], &["! b", "! ../e"]),
        ] {
            let lines = walk(&source, roots, &excludes);
            let errors: Vec<&String> = lines.iter().filter(|line| line.starts_with('!')).collect();
            assert_eq!(errors, reported, "{roots:?}");
        }
    }
}
