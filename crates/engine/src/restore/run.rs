//! Restoring a snapshot, or a part of it.
//!
//! First everything is created and filled; then further names of files are linked to those that are whole; then directories
//! get their metadata, deepest first, since creating what they hold changes their times. Each pass reads the tree, so that
//! nothing about it has to be kept. A dry run walks the same passes over a target that only pretends.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::{TargetTree, Trust, Unprivileged, Unset};
use crate::monitor::Monitor;
use crate::pipeline::Driver;
use crate::restore::fetch::Fetcher;
use crate::restore::files::{FileWriter, REFERENCE_BYTES};
use crate::restore::links::FirstPaths;
use crate::restore::partial::PARTIAL_SUFFIX;
use crate::restore::passes::{Fill, LinkNames, SetDirectories, Verify};
use crate::restore::rehearsal::Rehearsal;
use crate::restore::removal::{Clearing, FullDirectories};
use crate::restore::select::{Filter, Root};
use crate::restore::writing::is_fatal_at;
use crate::spill::SpillMap;
use crate::store::cursor::HintedEntry;
use crate::store::metadata::{MetadataMemory, Scratch};
use crate::store::walk::{Event, Level, TreeWalk};
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

/// Whether a restore changes anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It restores.
    Write,
    /// It reports what it would restore, skip and refuse, and changes nothing.
    DryRun,
}

/// What to restore, where and how.
#[derive(Clone, Debug)]
pub struct RestoreRequest<'a> {
    /// Root of the snapshot's tree.
    pub tree: Fingerprint,
    /// Part of the tree: a directory whose contents, or a file which alone, is restored.
    pub path: &'a Path,
    /// What of it.
    pub filter: Filter,
    /// Where to.
    pub target: Arc<dyn TargetTree>,
    /// Whether anything is written there.
    pub effect: Effect,
    /// What happens to what stands there.
    pub overwrite: Overwrite,
    /// Treatment of a directory that is not empty and stands where the snapshot has something else.
    pub full_directories: FullDirectories,
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
    /// Regular files written whole.
    pub files: u64,
    /// Regular files that could not be restored whole. Their names are not touched; what could be read is in partial files.
    pub files_incomplete: u64,
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
    /// Entries that were in a directory that stood where the snapshot has something else, and are deleted.
    pub deleted: u64,
    /// Things that could not be set since this process is not root. No failures.
    pub unprivileged: Unprivileged,
    /// Things that went wrong.
    pub failures: u64,
}

/// References to chunks that are gathered before their regions are read, at least and at most.
const WINDOW_CHUNKS_MIN: usize = 1 << 12;
const WINDOW_CHUNKS_MAX: usize = 1 << 16;

/// Restores.
pub fn restore(store: &Store, request: &RestoreRequest<'_>) -> Result<RestoreReport> {
    let target: Arc<dyn TargetTree> = match request.effect {
        Effect::Write => Arc::clone(&request.target),
        Effect::DryRun => Arc::new(Rehearsal::of(Arc::clone(&request.target))),
    };
    if request.overwrite == Overwrite::Refuse && !target.list(Path::new(""))?.is_empty() {
        return Err(Error::invalid(
            "the target directory is not empty; restore into an empty one, or say with --overwrite what is to happen",
        ));
    }
    let containers = Arc::new(store.list_containers()?);
    let share = request.memory_bytes / 4;
    let memory = MetadataMemory::of(share);
    let mut reader = MetadataReader::open(store, &containers, &request.scratch, memory)?;
    let mut fetcher = Fetcher::new(store, containers, &request.scratch, &request.driver, 2 * share);
    fetcher.limit_files(target.open_files_max());
    let host = Arc::clone(&store.host);
    // What refers to chunks waits in a quarter of the last share; what is linked to may spill.
    let window_chunks = (share / 4 / REFERENCE_BYTES).clamp(WINDOW_CHUNKS_MIN, WINDOW_CHUNKS_MAX);
    let (disk, dir) = (request.scratch.disk.clone(), request.scratch.dir.clone());
    let links = SpillMap::new(disk, dir, host, "hard links", share - share / 4)?;
    let links = FirstPaths::new(links);
    let root = Root::find(&mut reader, request.tree, request.path)?;
    let folds_case = target.folds_case()?;
    let clearing = Arc::new(Clearing::new(
        Arc::clone(&target),
        request.effect,
        request.full_directories.clone(),
        request.filter.clone(),
        Arc::clone(&request.monitor),
    ));
    let writer = (request.effect == Effect::Write).then(|| {
        let (trust, monitor) = (request.trust, Arc::clone(&request.monitor));
        FileWriter::new(fetcher, Arc::clone(&target), Arc::clone(&clearing), trust, window_chunks, monitor)
    });
    let (reader, has_links, report) = (&mut reader, false, RestoreReport::default());
    let mut run =
        Run { request, target, reader, writer, links, has_links, folds_case, clearing, obstructed_names: 0, report };
    let passed = run.pass(&root);
    if passed.is_err() {
        run.abandon();
    }
    passed.map(|()| run.report())
}

/// A restore under way.
pub(super) struct Run<'a> {
    pub(super) request: &'a RestoreRequest<'a>,
    /// What the passes see as the target.
    pub(super) target: Arc<dyn TargetTree>,
    pub(super) reader: &'a mut MetadataReader,
    pub(super) writer: Option<FileWriter>,
    /// First path restored of each inode that several names share.
    pub(super) links: FirstPaths,
    /// Whether a further name of an inode is to be linked once all files are whole.
    pub(super) has_links: bool,
    folds_case: bool,
    pub(super) clearing: Arc<Clearing>,
    /// Names of shared inodes that a directory keeps from being restored.
    pub(super) obstructed_names: u64,
    pub(super) report: RestoreReport,
}

/// State of a directory on the path of the walk.
pub(super) struct Directory {
    pub(super) node: Fingerprint,
    /// The directory's own entry; `None` at the root.
    pub(super) entry: Option<Entry>,
    /// True if something that is left as it is stands in its place; `None`: not looked at.
    pub(super) is_blocked: Option<bool>,
    /// True if it has been created, or found to hold something that is restored.
    pub(super) is_wanted: bool,
    /// True if nothing stood in it before, so that there is nothing to look for.
    pub(super) is_fresh: bool,
    /// Names so far, in lower case, where the target cannot tell them apart.
    folded: BTreeSet<String>,
}

impl Directory {
    fn new(node: Fingerprint, entry: Option<Entry>) -> Self {
        let (is_wanted, is_fresh, folded) = (false, false, BTreeSet::new());
        Self { node, entry, is_blocked: None, is_wanted, is_fresh, folded }
    }

    /// Takes note of a name. Returns true if another one differs from it in its case only.
    fn is_folded(&mut self, entry: &Entry) -> bool {
        !self.folded.insert(String::from_utf8_lossy(&entry.name).to_lowercase())
    }
}

/// Directories from the root to the innermost.
pub(super) type Levels = [Level<Directory>];

/// What a walk does with what it finds.
pub(super) trait Visitor {
    /// Whether no other pass goes before this one.
    fn is_first(&self) -> bool {
        false
    }
    /// Something other than a directory that is selected; the directories above it are `levels`.
    fn entry(&mut self, run: &mut Run<'_>, levels: &mut Levels, path: &Path, hinted: HintedEntry) -> Result<()>;
    /// A directory that is selected itself.
    fn enter(&mut self, run: &mut Run<'_>, levels: &mut Levels, path: &Path) -> Result<()>;
    /// The end of a directory that is wanted and has an entry: the last of `levels`.
    fn leave(&mut self, run: &mut Run<'_>, levels: &mut Levels, path: &Path) -> Result<()>;
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

    /// Counts what could not be set, and reports what should have been.
    pub(super) fn take_unset(&mut self, path: &Path, unset: Unset) {
        self.report.unprivileged += unset.unprivileged;
        for reason in unset.failures {
            self.fail(&Path::new("/").join(path), &Error::MetadataUnset { reason });
        }
    }

    fn pass(&mut self, root: &Root) -> Result<()> {
        self.visit(root, &mut Fill)?;
        if let Some(writer) = &mut self.writer {
            writer.flush()?;
        }
        self.take_incomplete_links()?;
        if self.has_links {
            self.visit(root, &mut LinkNames)?;
        }
        if let Root::Directory { .. } = root {
            self.visit(root, &mut SetDirectories)?;
        }
        // A dry run has restored nothing that could be read back.
        if self.request.verify && self.request.effect == Effect::Write {
            self.visit(root, &mut Verify)?;
        }
        Ok(())
    }

    fn visit(&mut self, root: &Root, visitor: &mut dyn Visitor) -> Result<()> {
        match root {
            Root::Directory { node, entry } => self.walk(*node, entry.clone(), visitor),
            Root::Single(hinted) => {
                let path = PathBuf::from(OsStr::from_bytes(&hinted.entry.name));
                if !self.request.filter.selects(&Path::new("/").join(&path)) {
                    return Ok(());
                }
                self.tolerate(&path, |run| visitor.entry(run, &mut [], &path, (**hinted).clone()))
            }
        }
    }

    /// Remembers the files that turned out to be not whole and that other names share.
    pub(super) fn take_incomplete_links(&mut self) -> Result<()> {
        let links = self.writer.as_mut().map_or(Vec::new(), FileWriter::take_incomplete_links);
        links.into_iter().try_for_each(|link| self.links.mark_incomplete(link))
    }

    /// Ends the writing of files after an error, and reports what stays.
    fn abandon(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        writer.abandon();
        let partials = writer.partials();
        if partials != 0 {
            let stay = if partials == 1 { "1 partial file stays" } else { &format!("{partials} partial files stay") };
            self.request.monitor.note(&format!("{stay} in the target, under names that end in {PARTIAL_SUFFIX}"));
        }
    }

    fn report(&self) -> RestoreReport {
        let mut report = self.report;
        report.deleted = self.clearing.deleted();
        if let Some(writer) = &self.writer {
            let (files, bytes) = writer.restored();
            report.files += files;
            report.bytes += bytes;
            report.files_incomplete += writer.files_incomplete;
            report.failures += writer.failures;
            report.regions_read = writer.regions_read();
            report.chunks_recovered = writer.chunks_recovered();
            report.unprivileged += writer.unprivileged();
        }
        report
    }

    /// Walks a tree. Paths are relative to the target.
    fn walk(&mut self, root: Fingerprint, entry: Option<Entry>, visitor: &mut dyn Visitor) -> Result<()> {
        // The target itself stands. It gets the metadata of the directory that is restored into it if that, or something in
        // it, is selected.
        let is_wanted = visitor.is_first() || self.request.filter.selects(Path::new("/"));
        let is_fresh = self.request.overwrite == Overwrite::Refuse;
        let mut walk = TreeWalk::new(root, b"", Directory { is_wanted, is_fresh, ..Directory::new(root, entry) });
        while let Some(event) = walk.next(self.reader, &*self.request.monitor)? {
            match event {
                Event::Entry(hinted) => self.step(&mut walk, hinted, visitor)?,
                Event::Leave => self.leave(&mut walk, visitor)?,
                Event::Unreadable(error) => self.fail_once(&*visitor, walk.relative_path(), &error),
            }
        }
        Ok(())
    }

    fn step(&mut self, walk: &mut TreeWalk<Directory>, hinted: HintedEntry, visitor: &mut dyn Visitor) -> Result<()> {
        let path = &walk.relative_path().to_path_buf();
        let shown = Path::new("/").join(path);
        if self.folds_case && walk.state().is_some_and(|directory| directory.is_folded(&hinted.entry)) {
            self.fail_once(&*visitor, path, &Error::NameFolded);
            return Ok(());
        }
        let selected = self.request.filter.selects(&shown);
        match &hinted.entry.content {
            Content::Directory { node } => {
                if !self.request.filter.enters(&shown) {
                    return Ok(());
                }
                match walk.enter(*node, Directory::new(*node, Some(hinted.entry.clone()))) {
                    Ok(()) if selected => self.tolerate(path, |run| visitor.enter(run, walk.levels(), path))?,
                    Ok(()) => {}
                    Err(error) => self.fail_once(&*visitor, path, &error),
                }
            }
            Content::File { .. } | Content::Symlink { .. } | Content::Special { .. } => {
                if selected {
                    self.tolerate(path, |run| visitor.entry(run, walk.levels(), path, hinted))?;
                }
            }
        }
        Ok(())
    }

    /// Reports what fails for one entry and goes on; what fails for all ends the restore.
    fn tolerate(&mut self, path: &Path, visit: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        match visit(self) {
            Err(error) if is_fatal_at(&*self.target, path, &error) => Err(error),
            Err(error) => {
                self.fail(&Path::new("/").join(path), &error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn leave(&mut self, walk: &mut TreeWalk<Directory>, visitor: &mut dyn Visitor) -> Result<()> {
        let path = &walk.relative_path().to_path_buf();
        let levels = walk.levels();
        if levels.last().is_some_and(|level| level.state.is_wanted && level.state.entry.is_some()) {
            if let [.., above, _] = levels {
                above.state.is_wanted = true;
            }
            self.tolerate(path, |run| visitor.leave(run, levels, path))?;
        }
        Ok(())
    }

    /// Counts something that is left as it stands, or for which there is no room because of that.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.report.files_skipped += 1;
        self.report.bytes_skipped += bytes;
        self.request.monitor.advance(bytes, 1);
    }
}
