//! Rebuilding a host's index from the directories of the containers.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::identify::{Identifier, Index, IndexOptions};
use crate::monitor::{Items, Monitor};
use crate::object::names::ContainerName;
use crate::repo::backup::fitting_filter;
use crate::repo::cache::Cache;
use crate::repo::learning::record_directories;
use crate::snapshot::CommitKind;
use crate::store::Store;
use crate::store::metadata::Scratch;
use crate::types::SessionId;

use std::collections::BTreeSet;

/// Everything that rebuilding an index needs besides the repository.
#[derive(Debug)]
pub struct RebuildRequest<'a> {
    /// Directory of the index.
    pub cache: &'a Cache,
    /// Options of the index.
    pub index: IndexOptions,
    /// Directory of temporary files.
    pub scratch: Scratch,
    /// Receiver of progress reports and of containers that cannot be read.
    pub monitor: Arc<dyn Monitor>,
}

/// Outcome of rebuilding an index.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RebuiltIndex {
    /// Containers whose chunks it knows.
    pub containers: u64,
    /// Chunks in them. A chunk counts once for each container that holds it.
    pub chunks: u64,
    /// Containers that cannot be read, each reported to the monitor.
    pub unreadable: u64,
    /// Containers of sessions that have not ended with a snapshot. The next backup makes them durable and adds them.
    pub in_doubt: u64,
}

/// Removes this host's index and makes a new one from the directories of the containers. Nothing of the index that stands there
/// is read, and the repository is not written to.
///
/// Fails with [`crate::Error::IndexBusy`] if another process holds the index. After another error the next backup
/// rebuilds the index.
pub fn rebuild_index(store: &Store, request: &RebuildRequest<'_>) -> Result<RebuiltIndex> {
    let RebuildRequest { cache, index, scratch, monitor } = request;
    let options = IndexOptions { filter_bytes: fitting_filter(store, index.filter_bytes_max)?, ..index.clone() };
    let (disk, host) = (Arc::clone(&cache.disk), Arc::clone(&store.host));
    let mut index = Index::create(disk, host, &cache.dir.join("index"), store.config.repository, &options)?;
    // Commits before containers: those of a session that has ended with a snapshot are durable and all listed.
    let commits = store.read_commits()?;
    let ended = commits.commits.iter().filter(|commit| commit.body.kind == CommitKind::Snapshot);
    let ended: BTreeSet<SessionId> = ended.map(|commit| commit.session).collect();
    let absent = store.read_absent()?;
    let listed = store.list_containers(scratch)?;
    let live = absent.live(&listed);
    let durable = live.retain(|_, id| ended.contains(&id.session));
    monitor.stage(Items::Containers, durable.len() as u64);
    let _all = index.attach_numbered(durable.iter().map(|(number, id)| (number.0, id)));
    let (mut unreadable, mut found) = (BTreeSet::new(), Vec::new());
    let mut report = |name: &ContainerName, error: &Error| {
        found.push((*name, error.clone()));
        Ok(())
    };
    let recorded =
        record_directories(store, &mut index, (&durable, &listed), &mut unreadable, (&**monitor, &mut report))?;
    index.forget(&unreadable.into_iter().collect::<Vec<_>>())?;
    if !found.is_empty() {
        // Containers that a collection has deleted since they were listed are no damage, nor are those whose base went with them.
        let deleted = store.read_absent()?.containers;
        found.retain(|(name, error)| !error.is_missing_object() && !deleted.contains(name.id));
    }
    for (name, error) in &found {
        monitor.failure(Path::new(&store.display(name)), error);
    }
    let degraded = index.degraded();
    index.close()?;
    if let Some(reason) = degraded {
        return Err(Error::IndexDegraded { reason });
    }
    Ok(RebuiltIndex {
        containers: recorded.containers,
        chunks: recorded.chunks,
        unreadable: found.len() as u64,
        in_doubt: (live.len() - durable.len()) as u64,
    })
}
