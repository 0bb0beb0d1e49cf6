//! A dry run of a backup: it writes no session, no container and no index.

use std::sync::Arc;

use crate::backup::parent::Parent;
use crate::backup::run::{BackupOptions, Listing, open_parent};
use crate::error::{Error, Result};
use crate::io::tree::SourceTree;
use crate::monitor::{Action, Monitor, Silent};
use crate::snapshot::Summary;
use crate::source::walk::{Contents, Event, Item, Walk};
use crate::store::Store;
use crate::tree::Content;

/// The expected effect of a backup.
#[derive(Clone, Copy, Default, Debug)]
pub struct DryRun {
    /// Files, directories and bytes as a backup would count them; nothing is known of chunks. A directory that the parent
    /// has counts as unmodified: whether it changed shows only when it is read.
    pub summary: Summary,
    /// Bytes of the files that would be read.
    pub bytes_to_read: u64,
    /// Things that could not be looked at.
    pub(crate) failures: u64,
}

/// Walks a source, compares it with the parent and counts. Reads no file and writes nothing into the repository.
pub fn dry_run(
    store: &Store,
    source: &Arc<dyn SourceTree>,
    options: &BackupOptions,
    monitor: &dyn Monitor,
) -> Result<DryRun> {
    let parent = match options.parent {
        None => None,
        Some(_) => open_parent(store, &store.list_containers(&options.scratch)?, Listing::Reader, options)?,
    };
    let walk =
        Walk::new(Arc::clone(source), &options.roots, Arc::clone(&options.excludes))?.with_pipes(Arc::new(Silent));
    let mut state = DryRunState { parent, found: DryRun::default(), monitor };
    for event in walk {
        if monitor.is_interrupted() {
            return Err(Error::Interrupted);
        }
        match event {
            Event::EnterDirectory(item) => state.enter(&item),
            Event::LeaveDirectory => state.leave(),
            Event::Error { path, error } => {
                state.found.failures += 1;
                monitor.failure(&path, &error);
            }
            Event::Entry(item) => {
                if item.contents != Contents::None {
                    state.file(&item);
                } else {
                    monitor.entry(&item.path, Action::Other);
                }
            }
        }
    }
    Ok(state.found)
}

struct DryRunState<'a> {
    parent: Option<Parent>,
    found: DryRun,
    monitor: &'a dyn Monitor,
}

impl DryRunState<'_> {
    fn enter(&mut self, item: &Item) {
        let found = self.parent.as_mut().and_then(|parent| parent.find(item.name.as_encoded_bytes()));
        if let Some(parent) = &mut self.parent {
            parent.enter(found.as_ref().map(|found| &found.entry));
        }
        let is_known = found.is_some_and(|found| matches!(found.entry.content, Content::Directory { .. }));
        let (count, action) = if is_known {
            (&mut self.found.summary.dirs_unmodified, Action::Unchanged)
        } else {
            (&mut self.found.summary.dirs_new, Action::New)
        };
        *count += 1;
        self.monitor.directory(&item.path, action);
    }

    fn leave(&mut self) {
        if let Some(parent) = &mut self.parent {
            parent.leave();
        }
    }

    fn file(&mut self, item: &Item) {
        if let Err(error) = item.location.claimed_xattrs() {
            self.found.failures += 1;
            self.monitor.failure(&item.path, &error);
        }
        let found = self.parent.as_mut().and_then(|parent| parent.find(item.name.as_encoded_bytes()));
        let is_unchanged = match (&mut self.parent, &found) {
            (Some(parent), Some(found)) => parent.unchanged(&item.metadata, found).is_some(),
            (Some(_), None) | (None, _) => false,
        };
        let summary = &mut self.found.summary;
        let (count, action) = match (is_unchanged, found.is_some()) {
            (true, _) => (&mut summary.files_unmodified, Action::Unchanged),
            (false, true) => (&mut summary.files_changed, Action::Changed),
            (false, false) => (&mut summary.files_new, Action::New),
        };
        *count += 1;
        summary.files_processed += 1;
        summary.bytes_processed += item.metadata.size;
        if !is_unchanged {
            self.found.bytes_to_read += item.metadata.size;
        }
        self.monitor.advance(item.metadata.size, 1);
        self.monitor.entry(&item.path, action);
    }
}
