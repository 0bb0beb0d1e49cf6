//! Random trees with every kind of entry come back with every attribute, from memory and from the real file system.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::backup::Budget;
use onefold_engine::crypto::slot::SlotLabel;
use onefold_engine::identify::Schedule;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::os_identity::user_ids;
use onefold_engine::io::os_source::OsSource;
use onefold_engine::io::os_target::OsTarget;
use onefold_engine::io::tree::{EntryKind, Metadata, SourceTree, TargetTree, Trust, Xattr};
use onefold_engine::io::{Disk, Host};
use onefold_engine::pipeline::Driver;
use onefold_engine::store::{CreateOptions, create};
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::Timestamp;

use crate::integration::support::{
    Ask, CHEAP, Draw, JobTotals, PASSWORD, SMALL, World, back_up, copy, directory_store, newest, noise, restore_to,
    stored_twice,
};

const SEEDS_IN_MEMORY: u64 = if cfg!(feature = "slow") { 200 } else { 40 };
const SEEDS_ON_DISK: u64 = if cfg!(feature = "slow") { 40 } else { 3 };

/// Entries of a tree.
const ENTRIES: usize = 90;

/// What the tree that is written into can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Memory,
    Disk,
}

/// Grows random trees.
struct Gardener<'a> {
    target: &'a dyn TargetTree,
    place: Place,
    draw: Draw,
    directories: Vec<PathBuf>,
    /// Everything else that can have several names, with its kind.
    others: Vec<(PathBuf, EntryKind)>,
    links: Vec<PathBuf>,
    /// What the target refused, as sentences.
    refused: Vec<String>,
}

/// Removes a directory with all that it holds.
fn remove_all(target: &dyn TargetTree, directory: &Path) {
    for name in target.list(directory).unwrap() {
        let path = directory.join(name);
        if target.metadata(&path).unwrap().unwrap().kind == EntryKind::Directory {
            remove_all(target, &path);
        } else {
            target.remove(&path).unwrap();
        }
    }
    target.remove(directory).unwrap();
}

impl<'a> Gardener<'a> {
    fn new(target: &'a dyn TargetTree, place: Place, seed: u64) -> Self {
        let root = PathBuf::from("d");
        target.create_dir(&root).unwrap();
        let directories = vec![root];
        Self {
            target,
            place,
            draw: Draw::new(seed),
            directories,
            others: Vec::new(),
            links: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// A name of 1 to 255 bytes, any but `/` and NUL among them.
    fn name(&mut self) -> OsString {
        let len = *self.draw.one_of(&[1, 1, 2, 3, 7, 8, 15, 31, 100, 254, 255]);
        let ascii = self.draw.once_in(2);
        let name = (0..len).map(|_| {
            loop {
                let byte = u8::try_from(self.draw.below(255) + 1).unwrap();
                if byte != b'/' && (!ascii || byte.is_ascii_graphic()) {
                    break byte;
                }
            }
        });
        let name: Vec<u8> = name.collect();
        OsString::from_vec(if name == b"." || name == b".." { b"...".to_vec() } else { name })
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.draw.below(6) {
            0 => 0,
            1 => 1,
            2 => self.draw.below(300),
            3 => 4096 * self.draw.below(4),
            4 => self.draw.below(9000),
            _ => self.draw.below(60_000),
        };
        match self.draw.below(4) {
            0 => vec![u8::try_from(self.draw.below(256)).unwrap(); len],
            // Few seeds, so that files share chunks.
            1 => noise(self.draw.next() % 3, len),
            _ => noise(self.draw.next(), len),
        }
    }

    /// Writes a file with holes and data in any order, either of which may come first and last.
    fn write_sparse(&mut self, path: &Path) {
        let stretches = 1 + self.draw.below(6);
        let (mut runs, mut len) = (Vec::new(), 0);
        for _ in 0..stretches {
            let step = match self.draw.below(4) {
                0 => 1 + self.draw.below(5000),
                1 => 4096 * (1 + self.draw.below(20)),
                2 => 1 << (12 + self.draw.below(20)),
                _ => 512 * (1 + self.draw.below(40)),
            } as u64;
            if self.draw.once_in(2) {
                len += step;
            } else {
                // Zeros that are stored are data, too.
                let bytes = if self.draw.once_in(4) { vec![0; 5000] } else { noise(self.draw.next(), 6000) };
                let bytes = bytes[..bytes.len().min(usize::try_from(step).unwrap())].to_vec();
                runs.push((len, bytes.clone()));
                len += bytes.len() as u64;
            }
        }
        let file = self.target.create_file(path).unwrap();
        file.set_len(len).unwrap();
        for (offset, bytes) in runs {
            file.write_at(offset, &bytes).unwrap();
        }
    }

    /// Adds one entry of a random kind.
    fn grow(&mut self) {
        let parent = self.draw.one_of(&self.directories).clone();
        let path = parent.join(self.name());
        if self.target.metadata(&path).unwrap().is_some() {
            return;
        }
        match self.draw.below(14) {
            0..=2 => {
                self.target.create_dir(&path).unwrap();
                self.directories.push(path);
            }
            3..=6 => {
                let bytes = self.bytes();
                let file = self.target.create_file(&path).unwrap();
                file.write_at(0, &bytes).unwrap();
                self.others.push((path, EntryKind::File));
            }
            7 | 8 => {
                self.write_sparse(&path);
                self.others.push((path, EntryKind::File));
            }
            9 => {
                let len = *self.draw.one_of(&[1, 9, 59, 60, 61, 300, 4095]);
                let to: Vec<u8> = (0..len).map(|_| u8::try_from(1 + self.draw.below(255)).unwrap()).collect();
                self.target.create_symlink(&path, OsStr::from_bytes(&to)).unwrap();
                self.links.push(path);
            }
            10 | 11 => {
                if !self.others.is_empty() {
                    let existing = self.draw.one_of(&self.others).0.clone();
                    self.target.hard_link(&existing, &path).unwrap();
                }
            }
            12 => self.special(&path, *self.draw.clone().one_of(&[EntryKind::Fifo, EntryKind::Socket])),
            _ => self.special(&path, *self.draw.clone().one_of(&[EntryKind::CharDevice, EntryKind::BlockDevice])),
        }
    }

    fn special(&mut self, path: &Path, kind: EntryKind) {
        // Numbers of devices that no driver has, so that nothing can come of opening one.
        let rdev = (250 << 8) | (self.draw.next() % 200) | ((self.draw.next() % 3) << 20);
        match self.target.create_special(path, kind, rdev) {
            Ok(()) => self.others.push((path.to_path_buf(), kind)),
            Err(error)
                if self.place == Place::Disk && error.io_kind() == Some(std::io::ErrorKind::PermissionDenied) =>
            {
                self.refused.push(error.to_string());
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Nests directories until their path is longer than the kernel takes in one call.
    fn dig(&mut self) {
        let mut path = self.directories[0].clone();
        for depth in 0..if self.draw.once_in(2) { 20 } else { 60 } {
            let letter = if depth % 2 == 0 { "x" } else { "\u{e9}" };
            path.push(letter.repeat(1 + self.draw.below(255 / letter.len())));
            self.target.create_dir(&path).unwrap();
            self.directories.push(path.clone());
        }
        let file = path.join("deep");
        if self.target.metadata(&file).unwrap().is_none() {
            let deep = self.target.create_file(&file).unwrap();
            deep.write_at(1, b"dep").unwrap();
            deep.set_len(5).unwrap();
            self.others.push((file, EntryKind::File));
        }
    }

    fn time(&mut self) -> Timestamp {
        let seconds = match (self.place, self.draw.below(5)) {
            (_, 0) => 0,
            (_, 1) => -1,
            // What every file system can hold.
            (_, 2) => i64::from(i32::from_le_bytes(self.draw.next().to_le_bytes()[..4].try_into().unwrap())),
            (Place::Disk, _) => 1_700_000_000,
            (Place::Memory, 3) => i64::MIN,
            (Place::Memory, _) => i64::MAX,
        };
        let nanoseconds = *self.draw.one_of(&[0, 1, 999_999_999, 123_456_789, 500_000_000]);
        Timestamp { seconds, nanoseconds }
    }

    fn xattrs(&mut self, kind: EntryKind) -> Vec<Xattr> {
        let mut xattrs = Vec::new();
        let mut add = |name: &str, value: Vec<u8>| xattrs.push(Xattr { name: name.into(), value });
        let holds_acl = matches!(kind, EntryKind::File | EntryKind::Directory);
        if kind == EntryKind::File && self.draw.once_in(6) {
            // CAP_NET_BIND_SERVICE, permitted, as revision 2 of the kernel's form.
            add("security.capability", [0x0200_0000, 1 << 10, 0, 0, 0].map(u32::to_le_bytes).concat());
        }
        if holds_acl && self.draw.once_in(4) {
            add("system.posix_acl_access", acl(&mut self.draw));
        }
        if kind == EntryKind::Directory && self.draw.once_in(4) {
            add("system.posix_acl_default", acl(&mut self.draw));
        }
        // Any entry can have these, but only root sees them.
        if self.draw.once_in(4) {
            let len = self.draw.below(100);
            add("trusted.onefold", noise(self.draw.next(), len));
        }
        if holds_acl {
            for number in 0..self.draw.below(4) {
                let len = *self.draw.one_of(&[0, 1, 20, 300]);
                add(&format!("user.note-{number}\u{1f512}"), noise(self.draw.next(), len));
            }
        }
        xattrs
    }

    /// Sets every attribute of every entry, directories last and from the bottom up.
    fn dress(&mut self) {
        let links = self.links.iter().map(|path| (path.clone(), EntryKind::Symlink));
        let mut all: Vec<(PathBuf, EntryKind)> = self.others.iter().cloned().chain(links).collect();
        let mut directories = self.directories.clone();
        directories.sort_unstable_by_key(|path| std::cmp::Reverse(path.components().count()));
        all.extend(directories.into_iter().map(|path| (path, EntryKind::Directory)));
        for (path, kind) in all {
            let Some(standing) = self.target.metadata(&path).unwrap() else { continue };
            let mode = u32::try_from(self.draw.below(0o10000)).unwrap();
            let uid = *self.draw.one_of(&[0, 1, 1000, 65_534, 65_536, 4_000_000_000]);
            let gid = *self.draw.one_of(&[0, 1, 1000, 65_534, 65_536, 4_000_000_000]);
            let metadata = Metadata { mode, uid, gid, mtime: self.time(), ..standing };
            let xattrs = self.xattrs(kind);
            self.refused.extend(self.target.set_metadata(&path, &metadata, &xattrs, Trust::Full).unwrap().failures);
        }
    }

    /// Changes what stands there: entries go, contents change, holes appear, attributes differ, new entries come.
    fn weed(&mut self) {
        for _ in 0..8 {
            if self.others.is_empty() {
                break;
            }
            let number = self.draw.below(self.others.len());
            let (path, kind) = self.others[number].clone();
            if self.target.metadata(&path).unwrap().is_none() {
                continue;
            }
            match (kind, self.draw.below(4)) {
                (_, 0) => self.target.remove(&path).unwrap(),
                (EntryKind::File, 1) => {
                    let bytes = self.bytes();
                    let file = self.target.open_file(&path).unwrap();
                    file.set_len(0).unwrap();
                    file.write_at(0, &bytes).unwrap();
                }
                (EntryKind::File, 2) => {
                    let file = self.target.open_file(&path).unwrap();
                    let len = file.len().unwrap();
                    // A hole, some bytes, and another hole.
                    file.set_len(len / 3).unwrap();
                    file.write_at(len / 2, &noise(self.draw.next(), 100)).unwrap();
                    file.set_len(len + 7000).unwrap();
                }
                (EntryKind::File, _) => {
                    let file = self.target.open_file(&path).unwrap();
                    let len = file.len().unwrap();
                    file.write_at(len / 2, &noise(self.draw.next(), 100)).unwrap();
                }
                (_, _) => {}
            }
        }
        if 3 < self.directories.len() && self.draw.once_in(2) {
            let number = 1 + self.draw.below(self.directories.len() - 1);
            let gone = self.directories[number].clone();
            remove_all(self.target, &gone);
            self.directories.retain(|path| !path.starts_with(&gone));
        }
        let stands = |path: &Path| self.target.metadata(path).is_ok_and(|standing| standing.is_some());
        self.others.retain(|(path, _)| stands(path));
        self.links.retain(|path| stands(path));
        for _ in 0..ENTRIES / 4 {
            self.grow();
        }
    }
}

/// A valid access-control list in the kernel's binary form, version 2: tag, permissions and id of each entry.
fn acl(draw: &mut Draw) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    let no_one = u32::MAX;
    for (tag, id) in
        [(0x01, no_one), (0x02, 1234), (0x02, 5678), (0x04, no_one), (0x08, 42), (0x10, no_one), (0x20, no_one)]
    {
        out.extend_from_slice(&u16::to_le_bytes(tag));
        out.extend_from_slice(&u16::try_from(draw.below(8)).unwrap().to_le_bytes());
        out.extend_from_slice(&u32::to_le_bytes(id));
    }
    out
}

/// Compares two trees. The roots are the user's own directories and not part of a snapshot.
fn differences(left: &MemTree, right: &MemTree) -> Vec<String> {
    left.diff(right).into_iter().filter(|difference| !difference.starts_with("/: ")).collect()
}

#[test]
fn random_trees_come_back_from_memory() {
    let schedules = [
        Schedule::Eager,
        Schedule::Lazy { threshold: 5 },
        Schedule::Exhaustive { threshold: 5 },
        Schedule::Pool { candidates: 4 },
        Schedule::Pool { candidates: 16 },
        Schedule::Adaptive,
    ];
    let mut jobs = JobTotals::default();
    for (seed, schedule) in (0..SEEDS_IN_MEMORY).zip(schedules.into_iter().cycle()) {
        println!("seed {seed}");
        let source = MemTree::new();
        let mut gardener = Gardener::new(&source, Place::Memory, seed);
        (0..ENTRIES).for_each(|_| gardener.grow());
        gardener.dig();
        gardener.dress();
        let world = World::new(seed);
        let store = world.create(SMALL).unwrap();
        let mut states = Vec::new();
        for session in 0..4 {
            let driver = if session == 2 { Driver::threads(2) } else { Driver::inline(seed) };
            let (filter_bytes, memtable_bytes) = (Some(1 << 10), Some(16 << 10));
            let budget = Budget { barrier_containers: 1, ..Ask::default().budget };
            // The last session reads every file again.
            let with_parent = [1, 2].contains(&session);
            let ask = Ask { driver, schedule, with_parent, filter_bytes, memtable_bytes, budget, ..Ask::default() };
            let report = world.backup(&store, &source, &ask).unwrap().report;
            assert_eq!(report.failures, 0, "seed {seed}");
            // Before the third session every entry was given new attributes.
            if session == 1 {
                assert!(report.snapshot.summary.files_unmodified > 0, "seed {seed}: the parent spared nothing");
            }
            states.push((report.snapshot, copy(&source)));
            gardener.weed();
            if session == 1 {
                gardener.dress();
            }
        }
        for (number, (snapshot, state)) in states.iter().enumerate() {
            let (restored, report) = world.restore(&store, snapshot).unwrap();
            let found = (report.failures, differences(state, &restored));
            assert_eq!(found, (0, Vec::new()), "seed {seed}, snapshot {number}");
        }
        assert_eq!(stored_twice(&store), Vec::new(), "seed {seed}");
        jobs.add(&world);
    }
    jobs.assert_overlapped("random trees");
}

/// Data ranges of a file, in order.
fn data_ranges(path: &Path) -> Vec<std::ops::Range<u64>> {
    let file = OsSource::new().open(path).unwrap();
    let (mut ranges, mut offset) = (Vec::new(), 0);
    while let Some(range) = file.next_data(offset).unwrap() {
        offset = range.end;
        ranges.push(range);
    }
    ranges
}

/// Holes come back as holes, up to the block in which data ends.
fn assert_as_sparse(original: &Path, restored: &Path, tree: &MemTree, case: &str) {
    const BLOCK: u64 = 4096;
    let mut todo = vec![PathBuf::new()];
    while let Some(at) = todo.pop() {
        match SourceTree::metadata(tree, &Path::new("/").join(&at)).unwrap().kind {
            EntryKind::Directory => {
                let names = SourceTree::list(tree, &Path::new("/").join(&at)).unwrap();
                todo.extend(names.into_iter().map(|name| at.join(name)));
            }
            EntryKind::File => {
                let before = data_ranges(&original.join(&at));
                for range in data_ranges(&restored.join(&at)) {
                    let mut offset = range.start;
                    for data in &before {
                        if data.start.saturating_sub(BLOCK) <= offset {
                            offset = offset.max(data.end + BLOCK);
                        }
                    }
                    assert!(range.end <= offset, "{case}: {}: {range:?} holds data, {before:?} did", at.display());
                }
            }
            _ => {}
        }
    }
}

#[test]
fn random_trees_come_back_from_the_file_system() {
    if user_ids().0 != 0 {
        println!("only root may set owners and make devices: random trees on the file system are not tried");
        return;
    }
    for seed in 0..SEEDS_ON_DISK {
        println!("seed {seed}");
        let directories = ["source", "repository", "cache", "target"].map(|_| tempfile::tempdir().unwrap());
        let [source, repository, cache, target] = directories.each_ref().map(tempfile::TempDir::path);
        let into = OsTarget::open(source).unwrap();
        let mut gardener = Gardener::new(&into, Place::Disk, 1000 + seed);
        (0..ENTRIES).for_each(|_| gardener.grow());
        gardener.dig();
        gardener.dress();
        println!("refused by this file system: {:?}", gardener.refused);

        let host: Arc<dyn Host> = Arc::new(OsHost::new());
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(repository.to_path_buf()));
        let cache: Arc<dyn Disk> = Arc::new(OsDisk::new(cache.to_path_buf()));
        let options =
            CreateOptions { password: Some(PASSWORD), cost: CHEAP, label: SlotLabel::default(), adjustments: SMALL };
        let store = create(&directory_store(disk), &host, &options).unwrap();
        for (session, driver) in [Driver::threads(2), Driver::inline(seed)].into_iter().enumerate() {
            let case = format!("seed {seed}, session {session}");
            let ask = Ask { driver, with_parent: session > 0, ..Ask::default() };
            let report = back_up(&store, &cache, Arc::new(OsSource::new()), source, &ask).unwrap().report;
            assert_eq!(report.failures, 0, "{case}");
            let (_, snapshot) = newest(&store).unwrap().unwrap();
            let out = target.join(format!("out-{session}"));
            let restored = Arc::new(OsTarget::create(&out).unwrap());
            let report = restore_to(&store, &cache, &snapshot, source, restored).unwrap();
            let before = MemTree::load(&OsSource::new(), source).unwrap();
            let after = MemTree::load(&OsSource::new(), &out).unwrap();
            assert_eq!((report.failures, differences(&before, &after)), (0, Vec::new()), "{case}");
            assert_as_sparse(source, &out, &before, &case);
            gardener.weed();
            gardener.dress();
        }
    }
}
