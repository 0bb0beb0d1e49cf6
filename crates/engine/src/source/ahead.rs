//! Looking at directories ahead of the walk, on workers.
//!
//! The walk takes what was found strictly in its own order, so the order in which workers look does not show. A task looks at some names of
//! a directory, or at a directory and small ones in it. What is found and not taken yet is bounded: a task starts with a share of
//! memory, which is free again when the walk has taken the last entry of it. Without a free share, the walk looks itself.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::io::tree::{EntryKind, Metadata, SourceDirectory, name_bytes};
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{Task, TaskQueue};
use crate::source::item::{Item, Location};
use crate::source::roots::Node;
use crate::source::survey::{Listing, Subject, Survey, Visit};

/// Entries that a task looks at: two calls each make 200 microseconds from the page cache, ten times what handing a task over takes.
const ENTRIES_MAX: usize = 128;
/// A task enters another directory if it may look at this many entries more.
const ENTRIES_LEFT_MIN: usize = 32;
/// Directories in each other that a task enters.
const LEVELS_MAX: usize = 8;
/// Memory of the entries that a task finds. A single entry may have more, with attributes that are longer.
const FOUND_BYTES_MAX: usize = 64 << 10;
/// Memory of the names that a task lists. The walk itself lists a directory that has more.
const LISTED_BYTES_MAX: usize = 64 << 10;
/// Memory of one share.
pub(crate) const SHARE_BYTES: usize = FOUND_BYTES_MAX + LISTED_BYTES_MAX;
/// Shares of one directory and of those in it, at most: they keep eight workers busy, and leave shares to the directories below.
const SHARES_EACH_MAX: usize = 8;
/// How many of these are for its names, at most: as many are left for the directories among them.
const LOOKS_MAX: usize = SHARES_EACH_MAX / 2;
/// An entry that was found, without its name, its path and its attributes: what it takes in the list and in two allocations.
const ENTRY_BYTES: usize = size_of::<Found>() + 32;

/// A directory whose entries are looked at, and what counts for all of them.
#[derive(Clone, Debug)]
pub(super) struct Around {
    pub(super) directory: Arc<dyn SourceDirectory>,
    /// Where the source has it.
    pub(super) path: PathBuf,
    /// The same from the root of the file system.
    pub(super) absolute: PathBuf,
    /// Device that counts in it.
    pub(super) device: Option<u64>,
    /// Directories around its entries in the snapshot, and the snapshot's root.
    pub(super) depth: usize,
}

/// What was found under a name.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are entries, and a box would take each an allocation")]
pub(super) enum Found {
    /// An entry, or why there is none.
    Visited(Visit),
    /// A directory, which was not opened.
    Directory(OsString, Metadata),
    /// A directory, and what is in it.
    Entered(Box<Entered>),
    /// A directory, which a task opens.
    Entering,
    /// Nothing yet: the task has found enough.
    Name(OsString),
}

/// What was found under a name, and in the directory that was found there.
#[derive(Debug)]
pub(super) struct Entered {
    /// The entry, or why there is none.
    pub(super) visit: Visit,
    /// Names in it that were not looked at; `None` if they are not listed yet.
    pub(super) listing: Option<Listing>,
    /// What was found under the names before these.
    pub(super) found: VecDeque<Found>,
}

impl From<Visit> for Entered {
    fn from(visit: Visit) -> Self {
        Self { visit, listing: None, found: VecDeque::new() }
    }
}

/// What a task may still find.
#[derive(Debug)]
struct Quota {
    entries: usize,
    found_bytes: usize,
    listed_bytes: usize,
    levels: usize,
}

impl Quota {
    const TASK: Self =
        Self { entries: ENTRIES_MAX, found_bytes: FOUND_BYTES_MAX, listed_bytes: LISTED_BYTES_MAX, levels: LEVELS_MAX };

    /// Takes an entry. False: it is one too many.
    fn take_entry(&mut self) -> bool {
        let is_granted = 0 < self.entries && 0 < self.found_bytes;
        self.entries -= usize::from(is_granted);
        is_granted
    }

    fn has_directory(&self) -> bool {
        ENTRIES_LEFT_MIN <= self.entries && 0 < self.found_bytes && 0 < self.levels
    }
}

impl Survey {
    /// Looks at a name that no root leads to.
    fn find(&self, around: &Around, node: &Node, name: OsString) -> Found {
        let mut look = || around.directory.metadata_of(&name);
        if !self.excludes.patterns.is_empty() && self.is_excluded(&around.absolute.join(&name), node, &mut look) {
            return Found::Visited(Visit::Excluded);
        }
        let visit = match around.directory.metadata_of(&name) {
            Ok(metadata) if metadata.kind == EntryKind::Directory => return Found::Directory(name, metadata),
            Ok(metadata) => self.visit(around.subject(node, name, Some(metadata))),
            Err(error) => Visit::Failed(around.path.join(&name), error),
        };
        match visit {
            // It took the place of something else.
            Visit::Directory(opened) => Found::Directory(opened.item.name, opened.item.metadata),
            visit => Found::Visited(visit),
        }
    }

    /// Looks at names, and then at the directories among them.
    fn find_all(&self, around: &Around, names: impl Iterator<Item = OsString>, quota: &mut Quota) -> VecDeque<Found> {
        let node = Node::listed();
        let find = |name| {
            if !quota.take_entry() {
                return Found::Name(name);
            }
            let found = self.find(around, &node, name);
            quota.found_bytes = quota.found_bytes.saturating_sub(found.memory_bytes());
            found
        };
        let mut all: VecDeque<Found> = names.map(find).collect();
        for found in &mut all {
            if !quota.has_directory() {
                break;
            }
            if matches!(found, Found::Directory(..))
                && let Found::Directory(name, metadata) = std::mem::replace(found, Found::Entering)
            {
                quota.levels -= 1;
                *found = Found::Entered(Box::new(self.enter(around, name, metadata, quota)));
                quota.levels += 1;
            }
        }
        all
    }

    /// Opens a directory and looks at its first names. Calls itself through [`Survey::find_all`], at most [`LEVELS_MAX`] times.
    fn enter(&self, around: &Around, name: OsString, metadata: Metadata, quota: &mut Quota) -> Entered {
        let absolute = around.absolute.join(&name);
        let node = Node::listed();
        let mut entered = Entered::from(self.visit(around.subject(&node, name, Some(metadata))));
        let Visit::Directory(opened) = &entered.visit else { return entered };
        let path = opened.item.path.clone();
        let listing = if opened.is_whole {
            self.list_within(quota.listed_bytes, &*opened.directory, &path)
        } else {
            Some(Listing::default())
        };
        let Some(Listing { mut names, errors, is_marked }) = listing else { return entered };
        quota.listed_bytes = quota.listed_bytes.saturating_sub(names.iter().map(name_bytes).sum());
        let (directory, device) = (Arc::clone(&opened.directory), opened.device);
        let inside = Around { directory, path, absolute, device, depth: around.depth + 1 };
        let first = names.drain(..names.len().min(quota.entries));
        entered.found = self.find_all(&inside, first, quota);
        entered.listing = Some(Listing { names, errors, is_marked });
        entered
    }
}

impl Around {
    /// Returns an entry that no root leads to.
    fn subject<'a>(&self, node: &'a Node, name: OsString, known: Option<Metadata>) -> Subject<'a> {
        let location = Location::new(Arc::clone(&self.directory), &name);
        let (device, depth) = (self.device, self.depth);
        Subject { path: self.path.join(&name), name, location, node, device, depth, known }
    }
}

impl Found {
    /// Returns the memory of an entry, without that of what was found in it.
    fn memory_bytes(&self) -> usize {
        ENTRY_BYTES
            + match self {
                Self::Visited(Visit::Entry(item, _)) => item_bytes(item),
                Self::Visited(Visit::Failed(path, _)) => 2 * path.as_os_str().len(),
                Self::Directory(name, _) | Self::Name(name) => name.len(),
                Self::Visited(Visit::Directory(_) | Visit::Excluded) | Self::Entered(_) | Self::Entering => 0,
            }
    }
}

fn item_bytes(item: &Item) -> usize {
    let xattrs = item.xattrs.iter().chain(item.file_xattrs.iter().flatten());
    let xattrs: usize = xattrs.map(|xattr| size_of_val(xattr) + xattr.name.len() + xattr.value.len()).sum();
    let target = item.link_target.as_ref().map_or(0, |target| target.as_os_str().len());
    item.path.as_os_str().len() + 2 * item.name.len() + target + xattrs
}

/// Opens a directory and looks at what is in it.
#[derive(Debug)]
struct Enter(Survey);

impl Task for Enter {
    type In = (Arc<Around>, OsString, Metadata, Share);
    type Out = (Entered, Share);

    fn run(&self, (around, name, metadata, share): Self::In) -> Self::Out {
        (self.0.enter(&around, name, metadata, &mut { Quota::TASK }), share)
    }
}

/// Looks at some names of a directory.
#[derive(Debug)]
struct Look(Survey);

impl Task for Look {
    type In = (Arc<Around>, Vec<OsString>, Share);
    type Out = (VecDeque<Found>, Share);

    fn run(&self, (around, names, share): Self::In) -> Self::Out {
        (self.0.find_all(&around, names.into_iter(), &mut { Quota::TASK }), share)
    }
}

/// A share of memory, which becomes free when it is dropped.
#[derive(Debug)]
pub(super) struct Share(Arc<AtomicUsize>);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// What all directories share that are looked at ahead.
#[derive(Debug)]
pub(super) struct Shares {
    driver: Driver,
    survey: Survey,
    free: Arc<AtomicUsize>,
}

impl Shares {
    pub(super) fn new(driver: Driver, survey: Survey, count: usize) -> Self {
        Self { driver, survey, free: Arc::new(AtomicUsize::new(count)) }
    }

    /// Returns how many are free.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    /// Takes a share for a directory that has some already. It leaves more to others than it has, so that those below get some.
    fn take(&self, held: usize) -> Option<Share> {
        // One thread takes; others only give back.
        let is_granted = held < SHARES_EACH_MAX && held < self.free.load(Ordering::Relaxed);
        is_granted.then(|| {
            self.free.fetch_sub(1, Ordering::Relaxed);
            Share(Arc::clone(&self.free))
        })
    }
}

/// Looks at the entries of one directory ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    around: Arc<Around>,
    /// What was found under the next names.
    found: VecDeque<Found>,
    /// Memory of that.
    share: Option<Arc<Share>>,
    /// How many of these were looked through for directories.
    scanned: usize,
    /// What is found under the names after these.
    looking: Option<TaskQueue<Look>>,
    looks: usize,
    /// What is found of the directories that are [`Found::Entering`].
    entering: Option<TaskQueue<Enter>>,
    enters: usize,
}

/// What a directory has next.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are entries, and a box would take each an allocation")]
pub(super) enum Next {
    /// What was found there, and the memory of what was found in it.
    Found(Entered, Option<Arc<Share>>),
    /// A name, and its metadata if it was asked for already.
    Name(OsString, Option<Metadata>),
}

impl Ahead {
    /// Starts with what was found under the first names.
    pub(super) fn new(around: Around, found: VecDeque<Found>, share: Option<Arc<Share>>) -> Self {
        let share = share.filter(|_| !found.is_empty());
        let around = Arc::new(around);
        Self { around, found, share, scanned: 0, looking: None, looks: 0, entering: None, enters: 0 }
    }

    /// Returns what is next, and has workers look at what comes after that. `names` follow after what was found.
    pub(super) fn next(&mut self, names: &mut std::vec::IntoIter<OsString>, shares: &Shares) -> Option<Next> {
        self.look(names, shares);
        if self.found.is_empty() {
            self.refill();
        }
        self.enter(shares);
        let Some(found) = self.found.pop_front() else {
            return names.next().map(|name| Next::Name(name, None));
        };
        self.scanned = self.scanned.saturating_sub(1);
        let share = self.share.clone();
        if self.found.is_empty() {
            self.share = None;
        }
        Some(match found {
            Found::Visited(visit) => Next::Found(Entered::from(visit), None),
            Found::Entered(entered) => Next::Found(*entered, share),
            Found::Directory(name, metadata) => Next::Name(name, Some(metadata)),
            Found::Name(name) => Next::Name(name, None),
            Found::Entering => {
                let (entered, share) =
                    self.entering.as_mut().and_then(TaskQueue::pop).expect("each such directory has its task");
                self.enters -= 1;
                Next::Found(entered, Some(Arc::new(share)))
            }
        })
    }

    /// Takes what the oldest task found.
    fn refill(&mut self) {
        if let Some((found, share)) = self.looking.as_mut().and_then(TaskQueue::pop) {
            self.looks -= 1;
            (self.found, self.share, self.scanned) = (found, Some(Arc::new(share)), 0);
        }
    }

    fn held(&self) -> usize {
        self.looks + self.enters + usize::from(self.share.is_some())
    }

    /// Hands names over to workers.
    fn look(&mut self, names: &mut std::vec::IntoIter<OsString>, shares: &Shares) {
        while self.looks < LOOKS_MAX
            && !names.as_slice().is_empty()
            && let Some(share) = shares.take(self.held())
        {
            self.looks += 1;
            let input = (Arc::clone(&self.around), names.by_ref().take(ENTRIES_MAX).collect(), share);
            push(&mut self.looking, shares, Look, input);
        }
    }

    /// Hands directories over to workers.
    fn enter(&mut self, shares: &Shares) {
        while let Some(found) = self.found.get(self.scanned) {
            if matches!(found, Found::Directory(..)) {
                let Some(share) = shares.take(self.held()) else { break };
                let found = self.found.get_mut(self.scanned).map(|found| std::mem::replace(found, Found::Entering));
                if let Some(Found::Directory(name, metadata)) = found {
                    self.enters += 1;
                    push(&mut self.entering, shares, Enter, (Arc::clone(&self.around), name, metadata, share));
                }
            }
            self.scanned += 1;
        }
    }
}

/// Adds a task to a queue, which begins with it.
fn push<W: Task>(queue: &mut Option<TaskQueue<W>>, shares: &Shares, task: impl FnOnce(Survey) -> W, input: W::In) {
    let start = || shares.driver.queue(task(shares.survey.clone()), Pool::Read, SHARES_EACH_MAX);
    let none = queue.get_or_insert_with(start).push(input);
    assert!(none.is_none(), "a queue is as deep as a directory has shares");
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;

    use super::*;
    use crate::io::tree::{SourceTree, Xattr};
    use crate::source::exclude::{Case, Excludes, Patterns};
    use crate::source::walk::{Event, Walk};
    use crate::testing::mem_tree::MemTree;

    const SHARES: [usize; 5] = [0, 1, 2, 5, 64];

    fn drivers() -> Vec<Driver> {
        (0..4).map(Driver::inline).chain([Driver::threads(1), Driver::threads(4)]).collect()
    }

    fn start(tree: &MemTree) -> Walk {
        let patterns = Patterns::parse([b"*.skip".as_slice()], Case::Sensitive).unwrap();
        let excludes = Excludes { patterns: vec![patterns], ..Excludes::default() };
        Walk::new(Arc::new(tree.clone()), &[PathBuf::from("/r")], Arc::new(excludes)).unwrap().with_file_xattrs()
    }

    /// Returns the walk as lines, each with everything that is found out.
    fn lines(walk: impl Iterator<Item = Event>) -> Vec<String> {
        let line = |item: Item| {
            let Item { path, name, location, metadata, contents, xattrs, file_xattrs, link_target } = item;
            let found = format!("{metadata:?} {contents:?} {xattrs:?} {file_xattrs:?} {link_target:?}");
            format!("{path:?} {name:?} {:?} {found}", location.name)
        };
        let mut depth = 0_usize;
        let lines = walk
            .map(|event| match event {
                Event::EnterDirectory(item) => {
                    depth += 1;
                    format!("enter {}", line(item))
                }
                Event::Entry(item) => line(item),
                Event::LeaveDirectory => {
                    depth -= 1;
                    "leave".to_owned()
                }
                Event::Error { path, error } => format!("! {path:?} {error}"),
            })
            .collect();
        assert_eq!(depth, 0);
        lines
    }

    /// Walks with every driver and every number of shares. Each must find what the walk alone finds, and give every share back.
    fn check(tree: &MemTree) -> Vec<String> {
        let alone = lines(start(tree));
        for driver in drivers() {
            for count in SHARES {
                let mut walk = start(tree);
                walk.look_ahead(&driver, count);
                let free = walk.shares_free();
                assert!(lines(walk.by_ref()) == alone, "{driver:?}, {count} shares");
                assert_eq!((free, walk.shares_free()), (count, count), "{driver:?}");
            }
        }
        alone
    }

    fn put(tree: &MemTree, path: &str) {
        tree.put_file(Path::new(path), path.as_bytes());
    }

    #[test]
    fn trees_of_any_shape_come_in_order_from_every_driver() {
        let tree = MemTree::new();
        for number in 0..3000 {
            put(&tree, &format!("/r/huge/with-a-name-of-some-length-{number}"));
        }
        for number in 0..700 {
            put(&tree, &format!("/r/wide/{number}"));
            if number % 9 == 0 {
                put(&tree, &format!("/r/wide/d{number}/file"));
                put(&tree, &format!("/r/wide/d{number}/d/file.skip"));
            }
        }
        let mut deep = String::from("/r/deep");
        for number in 0..60 {
            for name in ["a", "y", "z/leaf"] {
                put(&tree, &format!("{deep}/{name}{number}"));
            }
            deep += "/next";
        }
        tree.put_dir(Path::new("/r/empty"));
        tree.put_symlink(Path::new("/r/link"), OsStr::new("huge"));
        let alone = check(&tree);
        assert!(3000 + 700 < alone.len());
        // The names of one directory take more than a share, and it is listed by the walk itself.
        let huge = tree.open_dir(Path::new("/r/huge")).unwrap();
        assert_eq!(huge.list_within(LISTED_BYTES_MAX).unwrap(), None);
        assert_eq!(huge.list_within(1 << 20).unwrap(), Some(huge.list().unwrap()));
    }

    #[test]
    fn what_cannot_be_looked_at_is_reported_at_its_turn() {
        let tree = MemTree::new();
        for directory in 0..20 {
            for file in 0..20 {
                put(&tree, &format!("/r/d{directory}/f{file}"));
            }
        }
        let denied = std::io::ErrorKind::PermissionDenied;
        for path in ["/r/d0/f0", "/r/d3/f19", "/r/d4", "/r/d19/f7"] {
            tree.fail_metadata(Path::new(path), denied);
        }
        for path in ["/r/d5", "/r/d6/f1"] {
            tree.fail_open(Path::new(path), denied);
        }
        let alone = check(&tree);
        // Attributes and names of d5; attributes of d6/f1 are read again when they are needed.
        assert_eq!(alone.iter().filter(|line| line.starts_with('!')).count(), 4 + 2);
    }

    #[test]
    fn a_task_stops_at_long_attributes() {
        let tree = MemTree::new();
        let long = [Xattr { name: "user.long".into(), value: vec![7; 10_000] }];
        for number in 0..100 {
            let path = PathBuf::from(format!("/r/d/{number}"));
            put(&tree, path.to_str().unwrap());
            tree.set_xattrs(&path, &long);
        }
        check(&tree);
        let survey = Survey { excludes: Arc::default(), depth_max: 9, reads_file_xattrs: true, pipes: None };
        let directory = tree.open_dir(Path::new("/r/d")).unwrap();
        let names = directory.list().unwrap();
        let (path, absolute) = (PathBuf::from("/r/d"), PathBuf::from("/r/d"));
        let around = Around { directory, path, absolute, device: None, depth: 1 };
        let found = survey.find_all(&around, names.into_iter(), &mut { Quota::TASK });
        let looked_at = found.iter().filter(|found| matches!(found, Found::Visited(_))).count();
        assert_eq!((looked_at, found.len()), (FOUND_BYTES_MAX / 10_000 + 1, 100));
    }

    /// Something else stands at a path from some call on, or nothing: what is found there is what stood there before, or what stands
    /// there now, or an error that names it. Everything else is found as ever.
    #[test]
    fn a_source_may_change_at_every_call() {
        let build = || {
            let tree = MemTree::new();
            for path in ["/r/a/1", "/r/a/2", "/r/b/c/3", "/r/b/odd/4", "/r/b/z", "/r/f"] {
                put(&tree, path);
            }
            tree
        };
        let changes: [fn(&MemTree); 3] = [
            |tree| tree.remove(Path::new("r/b/odd")).unwrap(),
            |tree| {
                tree.remove(Path::new("r/b/odd")).unwrap();
                put(tree, "/r/b/odd");
            },
            |tree| {
                tree.remove(Path::new("r/b/odd")).unwrap();
                tree.put_symlink(Path::new("/r/b/odd"), OsStr::new("c"));
            },
        ];
        let paths = |walk: Walk| {
            let mut paths = Vec::new();
            let mut depth = 0;
            for event in walk {
                match event {
                    Event::EnterDirectory(item) => {
                        depth += 1;
                        paths.push(item.path);
                    }
                    Event::Entry(item) => paths.push(item.path),
                    Event::LeaveDirectory => depth -= 1,
                    Event::Error { path, .. } => paths.push(path),
                }
            }
            assert_eq!(depth, 0);
            paths
        };
        let others = |paths: &[PathBuf]| -> Vec<PathBuf> {
            paths.iter().filter(|path| !path.starts_with("/r/b/odd")).cloned().collect()
        };
        let tree = build();
        let expected = others(&paths(start(&tree)));
        let calls = tree.calls();
        assert!(20 < calls);
        for change in changes {
            for call in 1..=calls {
                for seed in 0..4 {
                    let tree = build();
                    let mut walk = start(&tree);
                    walk.look_ahead(&Driver::inline(seed), 5);
                    tree.mutate_on_call(call, change);
                    let found = paths(walk);
                    assert_eq!(others(&found), expected, "call {call}, seed {seed}");
                    let odd = found.iter().filter(|path| path.starts_with("/r/b/odd")).count();
                    assert!(odd <= 3, "call {call}, seed {seed}: {found:?}");
                }
            }
        }
    }
}
