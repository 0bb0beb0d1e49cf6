//! The passes of a restore: fill, set directories, verify.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Metadata, TargetTree, Trust};
use crate::monitor::Action;
use crate::restore::fetch::Wanted;
use crate::restore::files::FilePlan;
use crate::restore::run::{Level, Overwrite, Run, Visitor, make_way};
use crate::restore::verify::verify_file;
use crate::store::cursor::{HintedEntry, Piece, RecipeCursor};
use crate::tree::{Content, Entry};

/// The first pass: creates and fills.
pub(super) struct Fill;

impl Visitor for Fill {
    fn is_first(&self) -> bool {
        true
    }

    fn enter(&mut self, run: &mut Run<'_>, levels: &mut [Level], path: &Path) -> Result<()> {
        if run.is_blocked(path)? {
            run.skip(0);
            return Ok(());
        }
        run.create_above(levels, path)
    }

    fn leave(&mut self, _: &mut Run<'_>, _: &Path, _: &Entry) -> Result<()> {
        Ok(())
    }

    fn entry(&mut self, run: &mut Run<'_>, levels: &mut [Level], path: &Path, hinted: HintedEntry) -> Result<()> {
        if run.is_blocked(path.parent().unwrap_or(path))? {
            run.skip(hinted.entry.size());
            return Ok(());
        }
        run.create_above(levels, path)?;
        let Some(target) = run.request.target.clone() else {
            run.count(&hinted.entry);
            run.tell(path, Action::New);
            return Ok(());
        };
        let is_fresh = levels.last().is_some_and(|level| level.is_fresh);
        let standing = if is_fresh { None } else { target.metadata(path)? };
        if let Some(standing) = &standing
            && keeps(run.request.overwrite, standing, &hinted.entry)
        {
            run.skip(hinted.entry.size());
            run.tell(path, Action::Unchanged);
            return Ok(());
        }
        run.tell(path, if standing.is_some() { Action::Changed } else { Action::New });
        if run.links_to_earlier(&*target, path, standing.is_some(), &hinted.entry)? {
            run.report.others += 1;
            return Ok(());
        }
        match &hinted.entry.content {
            Content::File { .. } => run.fill_file(&*target, path, standing.as_ref(), &hinted),
            Content::Symlink { target: points_to } => {
                make_way(&*target, path, hinted.entry.kind)?;
                target.create_symlink(path, OsStr::from_bytes(points_to))?;
                run.finish_other(&*target, path, &hinted.entry)
            }
            Content::Special { rdev } => {
                let is_device = matches!(hinted.entry.kind, EntryKind::CharDevice | EntryKind::BlockDevice);
                if is_device && run.request.trust == Trust::Untrusted {
                    return Err(Error::invalid("a device is not restored from an untrusted repository"));
                }
                make_way(&*target, path, hinted.entry.kind)?;
                target.create_special(path, hinted.entry.kind, *rdev)?;
                run.finish_other(&*target, path, &hinted.entry)
            }
            Content::Directory { .. } => Err(Error::invalid("a directory where none can be")),
        }
    }
}

/// Says whether what stands in the target is left as it is.
fn keeps(overwrite: Overwrite, standing: &Metadata, entry: &Entry) -> bool {
    let both_files = standing.kind == EntryKind::File && entry.kind == EntryKind::File;
    match overwrite {
        Overwrite::Refuse | Overwrite::Always => false,
        Overwrite::Never => true,
        // A directory that is newer, too: making way for a file would take everything in it along.
        Overwrite::IfNewer => (both_files || standing.kind == EntryKind::Directory) && entry.mtime <= standing.mtime,
        Overwrite::IfChanged => both_files && standing.size == entry.size() && standing.mtime == entry.mtime,
    }
}

impl Run<'_> {
    fn tell(&self, path: &Path, action: Action) {
        self.request.monitor.entry(&Path::new("/").join(path), action);
    }

    fn count(&mut self, entry: &Entry) {
        if entry.kind == EntryKind::File {
            self.report.files += 1;
            self.report.bytes += entry.size();
        } else {
            self.report.others += 1;
        }
    }

    fn finish_other(&mut self, target: &dyn TargetTree, path: &Path, entry: &Entry) -> Result<()> {
        let refused = target.set_metadata(path, &entry.metadata(), &entry.xattrs, self.request.trust)?;
        for reason in refused {
            self.fail(&Path::new("/").join(path), &Error::invalid(reason));
        }
        self.report.others += 1;
        Ok(())
    }

    /// Makes a hard link where the entry's inode has been restored under another name.
    fn links_to_earlier(&mut self, target: &dyn TargetTree, path: &Path, stands: bool, entry: &Entry) -> Result<bool> {
        let Some(link) = entry.link.filter(|_| entry.kind != EntryKind::Symlink) else { return Ok(false) };
        let Some(first) = self.links.get(link)? else {
            self.links.insert(link, path)?;
            return Ok(false);
        };
        if stands {
            target.remove(path)?;
        }
        target.hard_link(&first, path)?;
        self.request.monitor.advance(entry.size(), 1);
        Ok(true)
    }

    fn fill_file(
        &mut self,
        target: &dyn TargetTree,
        path: &Path,
        standing: Option<&Metadata>,
        hinted: &HintedEntry,
    ) -> Result<()> {
        let size = hinted.entry.size();
        // A file that several names share is replaced, not written into: the other names are not ours to change.
        let in_place = standing.is_some_and(|standing| standing.kind == EntryKind::File && standing.links == 1);
        let file = if in_place {
            let file = target.open_file(path)?;
            file.set_len(0)?;
            file.set_len(size)?;
            Some(file)
        } else {
            if standing.is_some() {
                target.remove(path)?;
            }
            // What other names are linked to must be there when they come.
            if hinted.entry.link.is_some() { Some(target.create_file(path, size)?) } else { None }
        };
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let Content::File { recipe, .. } = &hinted.entry.content else { return Ok(()) };
        let (metadata, xattrs) = (hinted.entry.metadata(), hinted.entry.xattrs.clone());
        writer.begin(FilePlan { path: path.to_path_buf(), metadata, xattrs, file });
        let mut cursor = RecipeCursor::new(recipe, &hinted.hints);
        let mut offset = 0;
        loop {
            match cursor.next(self.reader) {
                Ok(Some(Piece::Chunk { fingerprint, len, hint })) => {
                    writer.chunk(offset, Wanted { fingerprint, len, hint })?;
                    offset += u64::from(len);
                }
                Ok(Some(Piece::Hole { len })) => {
                    writer.skip();
                    offset += len;
                }
                Ok(None) => break,
                Err(error) => {
                    let reason = format!("what follows byte {offset} is left empty: {error}");
                    writer.skip();
                    writer.end()?;
                    return Err(Error::invalid(reason));
                }
            }
        }
        self.report.files += 1;
        self.report.bytes += size;
        writer.end()
    }
}

/// The second pass: directories get their metadata once nothing in them changes any more.
pub(super) struct SetDirectories;

impl Visitor for SetDirectories {
    fn entry(&mut self, _: &mut Run<'_>, levels: &mut [Level], _: &Path, _: HintedEntry) -> Result<()> {
        if let Some(level) = levels.last_mut() {
            level.is_wanted = true;
        }
        Ok(())
    }

    fn enter(&mut self, _: &mut Run<'_>, levels: &mut [Level], _: &Path) -> Result<()> {
        if let Some(level) = levels.last_mut() {
            level.is_wanted = true;
        }
        Ok(())
    }

    fn leave(&mut self, run: &mut Run<'_>, path: &Path, entry: &Entry) -> Result<()> {
        let Some(target) = run.request.target.as_ref() else { return Ok(()) };
        if run.is_blocked(path)? {
            return Ok(());
        }
        let refused = target.set_metadata(path, &entry.metadata(), &entry.xattrs, run.request.trust)?;
        for reason in refused {
            run.fail(&Path::new("/").join(path), &Error::invalid(reason));
        }
        Ok(())
    }
}

/// The third pass, if asked for: everything is read back.
pub(super) struct Verify;

impl Visitor for Verify {
    fn enter(&mut self, _: &mut Run<'_>, _: &mut [Level], _: &Path) -> Result<()> {
        Ok(())
    }

    fn leave(&mut self, _: &mut Run<'_>, _: &Path, _: &Entry) -> Result<()> {
        Ok(())
    }

    fn entry(&mut self, run: &mut Run<'_>, _: &mut [Level], path: &Path, hinted: HintedEntry) -> Result<()> {
        let Some(target) = run.request.target.clone() else { return Ok(()) };
        if hinted.entry.kind == EntryKind::File {
            let keys = Arc::clone(&run.reader.store().keys);
            verify_file(&keys, run.reader, &*target, path, &hinted)?;
            run.report.files_verified += 1;
        }
        Ok(())
    }
}
