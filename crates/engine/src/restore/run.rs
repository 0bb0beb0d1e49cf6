//! Restoring a snapshot, or a part of it.
//!
//! First everything is created and filled; then directories get their metadata, deepest first, since creating what they
//! hold changes their times. Both passes read the tree, so that nothing about it has to be kept.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, TargetTree, Trust};
use crate::monitor::{Action, Monitor};
use crate::pipeline::Driver;
use crate::restore::fetch::Fetcher;
use crate::restore::files::{FileWriter, REFERENCE_BYTES, is_fatal};
use crate::restore::links::FirstPaths;
use crate::restore::passes::{Fill, SetDirectories, Verify};
use crate::restore::select::{Filter, find_entry};
use crate::spill::SpillMap;
use crate::store::cursor::{DirectoryCursor, HintedEntry};
use crate::store::metadata::{MetadataMemory, Scratch};
use crate::store::{MetadataReader, Store};
use crate::tree::{Content, Entry};
use crate::types::Fingerprint;

/// What happens to what stands in the target already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overwrite {
    /// Nothing may stand there: a target that is not empty is refused.
    Refuse,
    /// It is replaced.
    Always,
    /// Files of the same size and modification time are left as they are.
    IfChanged,
    /// Files that are not older are left as they are.
    IfNewer,
    /// Whatever stands there is left as it is.
    Never,
}

/// What to restore, where and how.
#[derive(Debug)]
pub struct RestoreRequest<'a> {
    /// Root of the snapshot's tree.
    pub tree: Fingerprint,
    /// Part of the tree: a directory whose contents, or a file which alone, is restored.
    pub path: &'a Path,
    /// What of it.
    pub filter: Filter,
    /// Where to; `None` only counts.
    pub target: Option<Arc<dyn TargetTree>>,
    /// What happens to what stands there.
    pub overwrite: Overwrite,
    /// Whether everything is read back and compared.
    pub verify: bool,
    /// Whether set-id bits, capabilities and devices come back.
    pub trust: Trust,
    /// Where spilled state may go.
    pub scratch: Scratch,
    /// Memory for reading.
    pub memory_bytes: usize,
    /// How stages run.
    pub driver: Driver,
    /// Who listens.
    pub monitor: Arc<dyn Monitor>,
}

/// What was restored.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RestoreReport {
    /// Regular files written.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links, hard links, FIFOs, sockets and devices.
    pub others: u64,
    /// Bytes of the files written.
    pub bytes: u64,
    /// Files left as they stood.
    pub files_skipped: u64,
    /// Bytes of those.
    pub bytes_skipped: u64,
    /// Files read back and found right.
    pub files_verified: u64,
    /// Regions read from the repository.
    pub regions_read: u64,
    /// Chunks that were read from another container since the copy in the first is damaged.
    pub chunks_recovered: u64,
    /// Things that went wrong.
    pub failures: u64,
}

/// References to chunks that are gathered before their regions are read, at least and at most.
const WINDOW_CHUNKS_MIN: usize = 1 << 12;
const WINDOW_CHUNKS_MAX: usize = 1 << 16;

/// Deepest tree that is restored, the same that is backed up.
const DEPTH_MAX: usize = 4096;

/// Restores.
pub fn restore(store: &Store, request: &RestoreRequest<'_>) -> Result<RestoreReport> {
    if let Some(target) = &request.target
        && request.overwrite == Overwrite::Refuse
        && !target.list(Path::new(""))?.is_empty()
    {
        return Err(Error::invalid(
            "the target directory is not empty; restore into an empty one, or say with --overwrite what is to happen",
        ));
    }
    let containers = Arc::new(store.list_containers()?);
    let share = request.memory_bytes / 4;
    let memory = MetadataMemory::of(share);
    let mut reader = MetadataReader::open(store, &containers, &request.scratch, memory)?;
    let fetcher = Fetcher::new(store, containers, &request.scratch, &request.driver, 2 * share);
    let host = Arc::clone(&store.host);
    // What refers to chunks waits in a quarter of the last share; what is linked to may spill.
    let window_chunks = (share / 4 / REFERENCE_BYTES).clamp(WINDOW_CHUNKS_MIN, WINDOW_CHUNKS_MAX);
    let (disk, dir) = (request.scratch.disk.clone(), request.scratch.dir.clone());
    let links = SpillMap::new(disk, dir, host, "hard links", share - share / 4)?;
    let links = FirstPaths::new(links);
    let found = find_entry(&mut reader, request.tree, request.path)?;
    let folds_case = match &request.target {
        Some(target) => target.folds_case()?,
        None => false,
    };
    let writer = request.target.as_ref().map(|target| {
        FileWriter::new(fetcher, Arc::clone(target), request.trust, window_chunks, Arc::clone(&request.monitor))
    });
    let mut run = Run { request, reader: &mut reader, writer, links, folds_case, report: RestoreReport::default() };
    let root = match found {
        None => Root::Directory(request.tree),
        Some(found) => match &found.entry.content {
            Content::Directory { node } => Root::Directory(*node),
            Content::File { .. } | Content::Symlink { .. } | Content::Special { .. } => Root::Single(Box::new(found)),
        },
    };
    run.fill(&root)?;
    run.set_directories(&root)?;
    if request.verify {
        run.verify(&root)?;
    }
    let mut report = run.report;
    report.failures += run.writer.as_ref().map_or(0, |writer| writer.failures);
    report.regions_read = run.writer.as_ref().map_or(0, FileWriter::regions_read);
    report.chunks_recovered = run.writer.as_ref().map_or(0, FileWriter::chunks_recovered);
    Ok(report)
}

enum Root {
    Directory(Fingerprint),
    Single(Box<HintedEntry>),
}

/// A restore under way.
pub(super) struct Run<'a> {
    pub(super) request: &'a RestoreRequest<'a>,
    pub(super) reader: &'a mut MetadataReader,
    pub(super) writer: Option<FileWriter>,
    /// First path restored of each inode that several names share.
    pub(super) links: FirstPaths,
    folds_case: bool,
    pub(super) report: RestoreReport,
}

/// A directory being walked.
pub(super) struct Level {
    cursor: DirectoryCursor,
    /// The directory's own entry; `None` at the root.
    entry: Option<Entry>,
    /// Whether it has been created, or found to hold something that is restored.
    pub(super) is_wanted: bool,
    /// Whether nothing stood in it before, so that there is nothing to look for.
    pub(super) is_fresh: bool,
    /// Names so far, in lower case, where the target cannot tell them apart.
    folded: std::collections::BTreeSet<String>,
}

impl Level {
    fn new(node: Fingerprint, entry: Option<Entry>, is_wanted: bool) -> Self {
        let folded = std::collections::BTreeSet::new();
        Self { cursor: DirectoryCursor::new(node), entry, is_wanted, is_fresh: false, folded }
    }
}

/// What a walk does with what it finds.
pub(super) trait Visitor {
    /// Whether no other pass goes before this one.
    fn is_first(&self) -> bool {
        false
    }
    /// Something other than a directory that is selected; the directories above it are `levels`.
    fn entry(&mut self, run: &mut Run<'_>, levels: &mut [Level], path: &Path, hinted: HintedEntry) -> Result<()>;
    /// A directory that is selected itself.
    fn enter(&mut self, run: &mut Run<'_>, levels: &mut [Level], path: &Path) -> Result<()>;
    /// The end of a directory that is wanted.
    fn leave(&mut self, run: &mut Run<'_>, path: &Path, entry: &Entry) -> Result<()>;
}

impl Run<'_> {
    pub(super) fn fail(&mut self, path: &Path, error: &Error) {
        self.report.failures += 1;
        self.request.monitor.failure(path, error);
    }

    /// Reports what every pass over the tree comes across, in the first one only.
    fn fail_once(&mut self, visitor: &dyn Visitor, path: &Path, error: &Error) {
        if visitor.is_first() {
            self.fail(&Path::new("/").join(path), error);
        }
    }

    fn fill(&mut self, root: &Root) -> Result<()> {
        match root {
            Root::Directory(node) => self.walk(*node, &mut Fill)?,
            Root::Single(hinted) => {
                let path = PathBuf::from(OsStr::from_bytes(&hinted.entry.name));
                Fill.entry(self, &mut [], &path, (**hinted).clone())?;
            }
        }
        match &mut self.writer {
            Some(writer) => writer.flush(),
            None => Ok(()),
        }
    }

    fn set_directories(&mut self, root: &Root) -> Result<()> {
        match root {
            Root::Directory(node) if self.request.target.is_some() => self.walk(*node, &mut SetDirectories),
            Root::Directory(_) | Root::Single(_) => Ok(()),
        }
    }

    fn verify(&mut self, root: &Root) -> Result<()> {
        match root {
            Root::Directory(node) => self.walk(*node, &mut Verify),
            Root::Single(hinted) => {
                let path = PathBuf::from(OsStr::from_bytes(&hinted.entry.name));
                Verify.entry(self, &mut [], &path, (**hinted).clone())
            }
        }
    }

    /// Walks a tree depth first, without recursion. Paths are relative to the target.
    fn walk(&mut self, root: Fingerprint, visitor: &mut dyn Visitor) -> Result<()> {
        let mut path = PathBuf::new();
        let mut levels = vec![Level::new(root, None, true)];
        if let (Some(top), true) = (levels.last_mut(), self.request.overwrite == Overwrite::Refuse) {
            top.is_fresh = true;
        }
        while let Some(level) = levels.last_mut() {
            if self.request.monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            match level.cursor.next(self.reader) {
                Ok(Some(hinted)) => self.step(&mut levels, &mut path, hinted, visitor)?,
                Ok(None) => self.ascend(&mut levels, &mut path, visitor)?,
                // A part of the directory's list is lost; the cursor is past it, and the other parts are not.
                Err(error) => self.fail_once(&*visitor, &path, &error),
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        levels: &mut Vec<Level>,
        path: &mut PathBuf,
        hinted: HintedEntry,
        visitor: &mut dyn Visitor,
    ) -> Result<()> {
        path.push(OsStr::from_bytes(&hinted.entry.name));
        let shown = Path::new("/").join(&*path);
        if self.folds_case && is_folded(levels, &hinted.entry) {
            let reason = "the target cannot tell this name from another one in its directory";
            self.fail_once(&*visitor, path, &Error::invalid(reason));
            path.pop();
            return Ok(());
        }
        let selected = self.request.filter.selects(&shown);
        if let Content::Directory { node } = &hinted.entry.content {
            let enters = self.request.filter.enters(&shown);
            if enters && DEPTH_MAX <= levels.len() {
                let reason = format!("directories more than {DEPTH_MAX} deep are not restored");
                self.fail_once(&*visitor, path, &Error::invalid(reason));
            } else if enters {
                levels.push(Level::new(*node, Some(hinted.entry.clone()), false));
                if selected {
                    return self.tolerate(path, |run| visitor.enter(run, levels, path));
                }
                return Ok(());
            }
        } else if selected {
            self.tolerate(path, |run| visitor.entry(run, levels, path, hinted))?;
        }
        path.pop();
        Ok(())
    }

    /// Reports what fails for one entry and goes on; what fails for all ends the restore.
    fn tolerate(&mut self, path: &Path, visit: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        match visit(self) {
            Err(error) if is_fatal(&error) => Err(error),
            Err(error) => {
                self.fail(&Path::new("/").join(path), &error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn ascend(&mut self, levels: &mut Vec<Level>, path: &mut PathBuf, visitor: &mut dyn Visitor) -> Result<()> {
        let Some(level) = levels.pop() else { return Ok(()) };
        if let (true, Some(entry)) = (level.is_wanted, &level.entry) {
            if let Some(above) = levels.last_mut() {
                above.is_wanted = true;
            }
            self.tolerate(path, |run| visitor.leave(run, path, entry))?;
        }
        path.pop();
        Ok(())
    }

    /// Says whether something that is to be left as it is stands where a directory would have to be: the directory at
    /// `path`, or one above it. Nothing below that can be restored then.
    pub(super) fn is_blocked(&self, path: &Path) -> Result<bool> {
        let Some(target) = self.request.target.as_ref().filter(|_| self.request.overwrite == Overwrite::Never) else {
            return Ok(false);
        };
        let mut directory = PathBuf::new();
        for name in path {
            directory.push(name);
            match target.metadata(&directory)? {
                None => return Ok(false),
                Some(standing) if standing.kind == EntryKind::Directory => {}
                Some(_) => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Counts something that is left as it stands, or for which there is no room because of that.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.report.files_skipped += 1;
        self.report.bytes_skipped += bytes;
        self.request.monitor.advance(bytes, 1);
    }

    /// Makes the directories above an entry, once something in them is restored.
    pub(super) fn create_above(&mut self, levels: &mut [Level], path: &Path) -> Result<()> {
        let mut in_fresh = false;
        for (at, level) in levels.iter_mut().enumerate() {
            if level.is_wanted {
                in_fresh = level.is_fresh;
                continue;
            }
            // The root is the target itself, so that level N is the first N names of the path.
            let directory: PathBuf = path.components().take(at).collect();
            if let Some(target) = &self.request.target {
                level.is_fresh = in_fresh || make_way(&**target, &directory, EntryKind::Directory)? == Way::Free;
                target.create_dir(&directory)?;
            }
            in_fresh = level.is_fresh;
            level.is_wanted = true;
            self.report.directories += 1;
            self.request.monitor.directory(&Path::new("/").join(&directory), Action::Other);
        }
        Ok(())
    }
}

/// Says whether a name was seen in its directory already, but for its case.
fn is_folded(levels: &mut [Level], entry: &Entry) -> bool {
    let folded = String::from_utf8_lossy(&entry.name).to_lowercase();
    levels.last_mut().is_some_and(|level| !level.folded.insert(folded))
}

/// What stands where something is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Nothing any more.
    Free,
    /// A directory that can be kept.
    Kept,
}

/// Removes what stands at a path unless it can be kept as it is: a directory for a directory.
pub(super) fn make_way(target: &dyn TargetTree, path: &Path, kind: EntryKind) -> Result<Way> {
    match target.metadata(path)? {
        None => Ok(Way::Free),
        Some(standing) if standing.kind == EntryKind::Directory && kind == EntryKind::Directory => Ok(Way::Kept),
        Some(_) => target.remove(path).map(|()| Way::Free),
    }
}
