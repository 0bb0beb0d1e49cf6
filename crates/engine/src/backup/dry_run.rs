//! A dry run of a backup: it writes no session, no container and no index. It reads what a backup would read.

use std::path::Path;
use std::sync::Arc;

use crate::backup::ingest::ChunkRule;
use crate::backup::parent::Parent;
use crate::backup::record::{RecordOptions, Recorded, record_changed};
use crate::backup::run::{BackupOptions, Listing, open_parent};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprinter;
use crate::inspect::list_chunks;
use crate::io::tree::SourceTree;
use crate::monitor::{Action, Monitor, Silent};
use crate::pipeline::driver::Driver;
use crate::snapshot::Summary;
use crate::source::walk::{Contents, Event, Item, Walk};
use crate::store::Store;
use crate::tree::Content;
use crate::types::Chunk;

/// The expected effect of a backup.
#[derive(Clone, Copy, Default, Debug)]
pub struct DryRun {
    /// Files, directories and bytes as a backup would count them, and the chunks of contents that the repository does not have. A directory that the parent
    /// has counts as unmodified: whether it changed shows only when it is read.
    pub summary: Summary,
    /// Bytes of the files that would be read.
    pub bytes_to_read: u64,
    /// Things that could not be looked at.
    pub(crate) failures: u64,
}

/// Walks a source, compares it with the parent and counts. Writes nothing into the repository.
pub fn dry_run(
    store: &Store,
    source: &Arc<dyn SourceTree>,
    options: &BackupOptions,
    driver: &Driver,
    monitor: &dyn Monitor,
) -> Result<DryRun> {
    let parent = parent(store, options)?;
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
                if item.contents == Contents::None {
                    monitor.entry(&item.path, Action::Other);
                } else {
                    state.file(&item);
                }
            }
        }
    }
    let mut found = state.found;
    if 0 < found.bytes_to_read {
        count_added(store, source, options, driver, (monitor, &mut found.summary))?;
    }
    Ok(found)
}

fn parent(store: &Store, options: &BackupOptions) -> Result<Option<Parent>> {
    match options.parent {
        None => Ok(None),
        Some(_) => open_parent(store, &store.list_containers(&options.scratch)?, Listing::Reader, options),
    }
}

/// Counts the chunks that no container has, in the files that a backup would read.
fn count_added(
    store: &Store,
    source: &Arc<dyn SourceTree>,
    options: &BackupOptions,
    driver: &Driver,
    (monitor, summary): (&dyn Monitor, &mut Summary),
) -> Result<()> {
    let mut known = options.scratch.map(&store.host, "chunks of the repository", options.budget.index_bytes)?;
    // Chunks of a container that cannot be opened count as new, as in a backup.
    list_chunks(store, &options.scratch, monitor, &mut |fingerprint, _| known.insert(fingerprint.0, &[]))?;
    let fingerprinter = Arc::clone(&store.keys) as Arc<dyn Fingerprinter>;
    let record = RecordOptions {
        roots: options.roots.clone(),
        excludes: Arc::clone(&options.excludes),
        rule: ChunkRule::new(store.config.chunking, store.keys.chunk(), fingerprinter),
        budget: options.budget,
        accelerator: options.accelerator.clone(),
    };
    record_changed(source, record, parent(store, options)?, driver, &Asked(monitor), &mut |recorded| {
        if let Recorded::Chunk(Chunk { fingerprint, len }, _) = recorded
            && known.insert_new(fingerprint.0, &[])?
        {
            summary.data_chunks += 1;
            summary.data_added += u64::from(len);
        }
        Ok(())
    })?;
    Ok(())
}

/// Monitor that asks another one whether the operation goes on, and tells it only what could not be read.
#[derive(Debug)]
struct Asked<'a>(&'a dyn Monitor);

impl Monitor for Asked<'_> {
    fn failure(&self, path: &Path, error: &Error) {
        self.0.failure(path, error);
    }

    fn is_interrupted(&self) -> bool {
        self.0.is_interrupted()
    }
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
