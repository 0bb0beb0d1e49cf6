//! The passes of a restore: fill, link, set directories, verify.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Metadata, Omission, TargetTree};
use crate::monitor::Action;
use crate::restore::decide::{Decision, decide, is_comparable, may_be_linked_to};
use crate::restore::links::{Origin, SharedInode};
use crate::restore::partial::{make_partial, onto, publish};
use crate::restore::pending::FilePlan;
use crate::restore::policy::Overwrite;
use crate::restore::verify::compare_file;
use crate::restore::walk::{Levels, Run, Visitor};
use crate::restore::writing::is_fatal_at;
use crate::store::cursor::HintedEntry;
use crate::store::recipe_cursor::{FileExtent, RecipeCursor};
use crate::tree::{Content, Entry};

/// The first pass: creates and fills.
pub(super) struct Fill;

impl Visitor for Fill {
    fn is_first(&self) -> bool {
        true
    }

    fn enter(&mut self, run: &mut Run<'_>, levels: &mut Levels, path: &Path) -> Result<()> {
        if run.is_blocked(levels, path)? {
            run.skip(0);
            return Ok(());
        }
        run.create_above(levels, path)
    }

    fn entry(&mut self, run: &mut Run<'_>, levels: &mut Levels, path: &Path, hinted: HintedEntry) -> Result<()> {
        if run.is_blocked(levels, path)? {
            run.skip(hinted.entry.size());
            return Ok(());
        }
        run.create_above(levels, path)?;
        let is_fresh = levels.last().is_some_and(|level| level.state.is_fresh);
        let existing = if is_fresh { None } else { run.existing(path)? };
        let decision = decide(run.request.overwrite, run.request.trust, existing.as_ref(), &hinted.entry);
        let is_spared = existing
            .as_ref()
            .is_some_and(|existing| is_comparable(run.request.overwrite, run.request.trust, existing, &hinted.entry));
        let decision = if is_spared && run.is_restored(path, &hinted)? { Decision::Refresh } else { decision };
        let inode = SharedInode::of(&hinted.entry);
        if let Some(obstacle) = run.obstacle(path, decision)? {
            run.report.files_incomplete += u64::from(hinted.entry.kind == EntryKind::File);
            run.obstructed_names += u64::from(inode.is_some());
            return Err(obstacle);
        }
        let role = inode.map_or(Ok(Role::First), |inode| run.role(inode, decision, existing.as_ref(), &hinted))?;
        match (decision, role) {
            (Decision::Refuse, _) => return Err(Error::UntrustedDevice),
            (Decision::Create | Decision::Replace(_) | Decision::Refresh, Role::Link) => {
                run.has_links = true;
                return Ok(());
            }
            (Decision::Keep | Decision::Refresh, role) => {
                // What looks like the entry may be linked to: further names of its inode, which an interrupted restore did
                // not come to, become names of what stands, once its bytes are known to be right.
                let user = run.target.user();
                let may_be_linked_to =
                    existing.as_ref().is_some_and(|s| may_be_linked_to(decision, s, &hinted.entry, user));
                if let (Some(inode), Role::First, true) = (inode, role, may_be_linked_to) {
                    run.links.insert(inode, path, Origin::Target)?;
                }
                return run.keep_existing(path, decision, &hinted.entry);
            }
            (Decision::Create | Decision::Replace(_), Role::First | Role::Name) => {}
        }
        if let Some(inode) = inode {
            run.links.insert(inode, path, Origin::Snapshot)?;
        }
        if let Some(existing) = existing.filter(|existing| 1 < existing.links) {
            run.links.mark_unlinked(&existing)?;
        }
        let made = run.make(levels, path, decision, &hinted);
        if let (Err(_), Some(inode)) = (&made, inode) {
            run.links.mark_incomplete(inode)?;
        }
        made
    }
}

/// Relation of an entry to earlier names of its inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// None of them can be linked to.
    First,
    /// It exists, and stays as it is or is a name of the same file already.
    Name,
    /// It becomes another name of the first.
    Link,
}

/// The second pass, if inodes of the snapshot have several names: the names after the first become links, now that the first is
/// known to be whole.
pub(super) struct LinkNames;

impl Visitor for LinkNames {
    fn entry(&mut self, run: &mut Run<'_>, levels: &mut Levels, path: &Path, hinted: HintedEntry) -> Result<()> {
        let Some(inode) = SharedInode::of(&hinted.entry) else { return Ok(()) };
        // Those before it in the order of the walk were left as they stand.
        let Some((first, _)) = run.links.get(inode)?.filter(|(first, _)| first.as_path() < path) else { return Ok(()) };
        if run.is_blocked(levels, path)? {
            return Ok(());
        }
        let existing = run.target.metadata(path)?;
        let decision = decide(run.request.overwrite, run.request.trust, existing.as_ref(), &hinted.entry);
        if run.obstructed_names != 0 && run.obstacle(path, decision)?.is_some() {
            // The first pass has counted it.
            run.obstructed_names -= 1;
            return Ok(());
        }
        let is_incomplete = run.links.is_incomplete(inode)?;
        match decision {
            // The first pass has counted it.
            Decision::Keep | Decision::Refuse => return Ok(()),
            Decision::Refresh if run.is_name_of(&first, existing.as_ref())? => return Ok(()),
            // The only good one.
            Decision::Refresh if is_incomplete => return run.keep_existing(path, decision, &hinted.entry),
            Decision::Create | Decision::Replace(_) | Decision::Refresh => {}
        }
        let linked = if is_incomplete {
            Err(Error::FirstNameLost { first: run.target.display(&first) })
        } else {
            run.link(levels, &first, path, existing.as_ref())
        };
        match linked {
            Ok(()) => {
                run.report_entry(path, if existing.is_some() { Action::Changed } else { Action::New });
                run.request.monitor.advance(hinted.entry.size(), 1);
                run.report.others += 1;
                Ok(())
            }
            Err(error) if !is_incomplete && needs_copy(&error) => {
                run.report.omissions.add(Omission::HardLink, path);
                if decision == Decision::Refresh {
                    return run.keep_existing(path, decision, &hinted.entry);
                }
                run.make(levels, path, decision, &hinted)
            }
            Err(error) => {
                run.report.files_incomplete += u64::from(hinted.entry.kind == EntryKind::File);
                Err(error)
            }
        }
    }
}

/// Returns true if a file system refuses a further name of a file: it knows none, or the file has too many.
fn needs_copy(error: &Error) -> bool {
    error.is_refusal() || matches!(error.io_kind(), Some(ErrorKind::CrossesDevices | ErrorKind::TooManyLinks))
}

impl Run<'_> {
    fn report_entry(&self, path: &Path, action: Action) {
        self.request.monitor.entry(&Path::new("/").join(path), action);
    }

    /// Returns the existing entry at a path. It counts as one with several names if it had them before this restore replaced
    /// some: so the decision about the last name does not depend on the progress of the others.
    fn existing(&mut self, path: &Path) -> Result<Option<Metadata>> {
        let Some(mut existing) = self.target.metadata(path)? else { return Ok(None) };
        if existing.links == 1 && self.links.is_unlinked(&existing)? {
            existing.links = 2;
        }
        Ok(Some(existing))
    }

    /// Returns why a directory that would be replaced stays, if it does.
    fn obstacle(&self, path: &Path, decision: Decision) -> Result<Option<Error>> {
        if decision == Decision::Replace(EntryKind::Directory) { self.clearing.obstacle(path) } else { Ok(None) }
    }

    /// Returns the relation of an entry to the earlier names of its inode, given the decision about it.
    fn role(
        &mut self,
        inode: SharedInode,
        decision: Decision,
        existing: Option<&Metadata>,
        hinted: &HintedEntry,
    ) -> Result<Role> {
        let Some((first, origin)) = self.links.get(inode)? else { return Ok(Role::First) };
        match decision {
            Decision::Keep | Decision::Refuse => return Ok(Role::Name),
            Decision::Refresh if self.is_name_of(&first, existing)? => return Ok(Role::Name),
            Decision::Create | Decision::Replace(_) | Decision::Refresh => {}
        }
        if origin == Origin::Target {
            if !self.is_equal(&first, hinted)? {
                return Ok(Role::First);
            }
            self.links.insert(inode, &first, Origin::Snapshot)?;
        }
        Ok(Role::Link)
    }

    /// Returns true if an existing file has the contents of the snapshot. One that cannot be read has not.
    fn is_restored(&mut self, path: &Path, hinted: &HintedEntry) -> Result<bool> {
        let (keys, target) = (Arc::clone(&self.reader.store().keys), Arc::clone(&self.target));
        match compare_file(&keys, self.reader, &*target, path, hinted, &*self.request.monitor) {
            Err(error) if is_fatal_at(&*self.target, path, &error) => Err(error),
            compared => Ok(compared.is_ok_and(|difference| difference.is_none())),
        }
    }

    /// Returns true if the existing file at the first path of an inode has the bytes of the snapshot. A file that cannot be
    /// read is a failure; the name that would be linked to it is restored anyway.
    fn is_equal(&mut self, first: &Path, hinted: &HintedEntry) -> Result<bool> {
        let (keys, target) = (Arc::clone(&self.reader.store().keys), Arc::clone(&self.target));
        match compare_file(&keys, self.reader, &*target, first, hinted, &*self.request.monitor) {
            Ok(difference) => Ok(difference.is_none()),
            Err(error) if is_fatal_at(&*self.target, first, &error) => Err(error),
            Err(error) => {
                let error = error.context("cannot be compared with the snapshot, so that nothing is linked to it");
                self.fail(first, &error);
                Ok(false)
            }
        }
    }

    /// Returns true if an existing entry is a name of the one at `first`.
    fn is_name_of(&self, first: &Path, existing: Option<&Metadata>) -> Result<bool> {
        let Some(existing) = existing else { return Ok(false) };
        let same = |first: Metadata| (first.device, first.inode) == (existing.device, existing.inode);
        Ok(self.target.metadata(first)?.is_some_and(same))
    }

    /// Leaves an existing entry, and gives it the metadata of the snapshot if that was decided.
    fn keep_existing(&mut self, path: &Path, decision: Decision, entry: &Entry) -> Result<()> {
        if decision == Decision::Refresh {
            let unset = self.target.set_metadata(path, &entry.metadata(), &entry.xattrs, self.request.trust)?;
            self.take_unset(path, unset);
        }
        self.skip(entry.size());
        self.report_entry(path, Action::Unchanged);
        Ok(())
    }

    /// Makes an entry.
    fn make(&mut self, levels: &Levels, path: &Path, decision: Decision, hinted: &HintedEntry) -> Result<()> {
        let replaced = if let Decision::Replace(kind) = decision { Some(kind) } else { None };
        self.report_entry(path, if replaced.is_some() { Action::Changed } else { Action::New });
        match &hinted.entry.content {
            Content::File { .. } => self.fill_file(levels, path, replaced, hinted),
            Content::Symlink { target: points_to } => {
                let points_to = OsStr::from_bytes(points_to);
                self.make_other(levels, path, replaced, &hinted.entry, &|target, path| {
                    target.create_symlink(path, points_to)
                })
            }
            Content::Special { rdev } => self.make_other(levels, path, replaced, &hinted.entry, &|target, path| {
                target.create_special(path, hinted.entry.kind, *rdev)
            }),
            Content::Directory { .. } => unreachable!("the walk enters directories"),
        }
    }

    /// Makes what is neither a file nor a directory.
    fn make_other(
        &mut self,
        levels: &Levels,
        path: &Path,
        replaced: Option<EntryKind>,
        entry: &Entry,
        create: &dyn Fn(&dyn TargetTree, &Path) -> Result<()>,
    ) -> Result<()> {
        let (target, trust) = (Arc::clone(&self.target), self.request.trust);
        let make = |path: &Path| {
            create(&*target, path)?;
            let set = target.set_metadata(path, &entry.metadata(), &entry.xattrs, trust);
            // Without its metadata it does not stay. The reason is the first error.
            set.inspect_err(|_| drop(target.remove(path)))
        };
        let unset = match replaced {
            None => match make(path) {
                Err(error) if self.is_refused_only(levels, path, &error) => {
                    let is_link = entry.kind == EntryKind::Symlink;
                    self.report.omissions.add(if is_link { Omission::Symlink } else { Omission::Special }, path);
                    return Ok(());
                }
                made => made?,
            },
            Some(kind) => self.replace(levels, path, kind, make)?,
        };
        self.take_unset(path, unset);
        self.report.others += 1;
        Ok(())
    }

    /// Returns true if the target, or this process, cannot make an entry although it can make a file in its place.
    fn is_refused_only(&mut self, levels: &Levels, path: &Path, error: &Error) -> bool {
        if !error.is_refusal() {
            return false;
        }
        let Ok(partial) = self.partial(levels, path) else { return false };
        let target = &*self.target;
        let made = make_partial(target, path, partial, |path| target.create_file(path).map(drop));
        made.and_then(|((), path)| target.remove(&path)).is_ok()
    }

    /// Makes an entry under another name, then lets it replace the existing one.
    fn replace<T>(
        &mut self,
        levels: &Levels,
        path: &Path,
        replaced: EntryKind,
        make: impl FnMut(&Path) -> Result<T>,
    ) -> Result<T> {
        let target = Arc::clone(&self.target);
        let partial = self.partial(levels, path)?;
        let (made, partial) = make_partial(&*target, path, partial, make)?;
        let clear = || if replaced == EntryKind::Directory { self.clearing.clear(path) } else { Ok(()) };
        publish(&*target, &partial, path, onto(Some(replaced)), clear)?;
        Ok(made)
    }

    /// Gives an entry that was restored, or is known to be whole, a further name.
    fn link(&mut self, levels: &Levels, first: &Path, path: &Path, existing: Option<&Metadata>) -> Result<()> {
        let target = Arc::clone(&self.target);
        let Some(existing) = existing else { return target.hard_link(first, path) };
        if self.is_name_of(first, Some(existing))? {
            // Renaming one name of an entry to another does nothing.
            return Ok(());
        }
        if self.request.overwrite == Overwrite::Refuse {
            // Nothing stood in the target.
            return Err(Error::NameTaken);
        }
        self.replace(levels, path, existing.kind, |partial| target.hard_link(first, partial))
    }

    fn fill_file(
        &mut self,
        levels: &Levels,
        path: &Path,
        replaced: Option<EntryKind>,
        hinted: &HintedEntry,
    ) -> Result<()> {
        let entry = &hinted.entry;
        let partial = self.partial(levels, path);
        let partial = partial.inspect_err(|_| self.report.files_incomplete += 1)?;
        let Some(writer) = &mut self.writer else {
            if replaced == Some(EntryKind::Directory) {
                self.clearing.clear(path)?;
            }
            self.report.files += 1;
            self.report.bytes += entry.size();
            return Ok(());
        };
        let Content::File { recipe, .. } = &entry.content else { return Ok(()) };
        writer.begin(FilePlan {
            path: path.to_path_buf(),
            partial,
            replaced,
            metadata: entry.metadata(),
            xattrs: entry.xattrs.clone(),
            link: SharedInode::of(entry),
        });
        let mut cursor = RecipeCursor::new(recipe, &hinted.hints);
        let mut offset = 0;
        loop {
            match cursor.next(self.reader) {
                Ok(Some(FileExtent::Chunk(hinted))) => {
                    writer.chunk(offset, hinted)?;
                    offset += u64::from(hinted.chunk.len);
                }
                Ok(Some(FileExtent::Hole { len })) => {
                    writer.skip();
                    offset += len;
                }
                Ok(None) => break,
                Err(error) => {
                    writer.cut(offset, &error);
                    break;
                }
            }
        }
        writer.end()?;
        self.take_incomplete_links()
    }
}

/// The third pass: directories get their metadata, since nothing in them changes any more.
pub(super) struct SetDirectories;

impl Visitor for SetDirectories {
    fn entry(&mut self, _: &mut Run<'_>, levels: &mut Levels, _: &Path, _: HintedEntry) -> Result<()> {
        if let Some(level) = levels.last_mut() {
            level.state.is_wanted = true;
        }
        Ok(())
    }

    fn enter(&mut self, _: &mut Run<'_>, levels: &mut Levels, _: &Path) -> Result<()> {
        if let Some(level) = levels.last_mut() {
            level.state.is_wanted = true;
        }
        Ok(())
    }

    fn leave(&mut self, run: &mut Run<'_>, levels: &mut Levels, path: &Path) -> Result<()> {
        if run.is_blocked(levels, path)? {
            return Ok(());
        }
        let Some(entry) = levels.last().and_then(|level| level.state.entry.as_ref()) else { return Ok(()) };
        let unset = run.target.set_metadata(path, &entry.metadata(), &entry.xattrs, run.request.trust)?;
        run.take_unset(path, unset);
        Ok(())
    }
}

/// The last pass, if requested: it reads everything back.
pub(super) struct Verify;

impl Visitor for Verify {
    fn entry(&mut self, run: &mut Run<'_>, _: &mut Levels, path: &Path, hinted: HintedEntry) -> Result<()> {
        let target = Arc::clone(&run.target);
        if hinted.entry.kind == EntryKind::File {
            let keys = Arc::clone(&run.reader.store().keys);
            if let Some(difference) = compare_file(&keys, run.reader, &*target, path, &hinted, &*run.request.monitor)? {
                return Err(difference);
            }
            run.report.files_verified += 1;
        }
        Ok(())
    }
}
