//! The request of a prune, and its report.

use std::time::Duration;

use crate::collect::copies::Copies;
use crate::collect::copy::Copied;
use crate::collect::moved::MovedCounts;
use crate::collect::plan::{PlanTotals, PruneOptions};
use crate::collect::wait::UnendedSession;
use crate::error::Error;
use crate::pipeline::Driver;
use crate::store::metadata::Scratch;
use crate::types::SessionId;

/// Most findings of a prune; `check` reports more.
const FINDINGS_MAX: usize = 100;

/// Request of a prune.
#[derive(Clone, Debug)]
pub struct PruneRequest {
    /// Limits of removing and copying.
    pub options: PruneOptions,
    /// Removes only containers that no manifest lists, and trusts manifests, if every snapshot has one that can be read. Every
    /// tenth collection is a full one.
    pub quick: bool,
    /// Time without a sign of life after which a session is fenced.
    pub fence_after: Duration,
    /// Time to wait for sessions that began before containers were condemned.
    pub wait: Duration,
    /// Time between the decision to delete containers and their deletion.
    pub keep_deleted: Duration,
    /// Time for which containers of a session that ended without a snapshot are left alone, since a later backup may use them.
    pub keep_unfinished: Duration,
    /// Relies on copies of chunks that this prune has not written without a look at their bytes.
    pub trust_copies: bool,
    /// Compression of what is copied.
    pub copies: Copies,
    /// Name of this host.
    pub hostname: String,
    /// Directory of temporary files.
    pub scratch: Scratch,
    /// Memory in bytes; a prune uses at least 8 MiB.
    pub memory_bytes: usize,
    /// Driver of the work queues.
    pub driver: Driver,
}

/// State in which a prune left a collection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum PruneState {
    /// Nothing is left to do.
    #[default]
    Done,
    /// Sessions may refer to condemned containers. A later prune goes on.
    Waiting(Vec<UnendedSession>),
    /// Containers are deleted when this time has passed. A later prune does it.
    Kept(Duration),
}

/// Report of a prune.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PruneReport {
    /// The last plan, in numbers.
    pub plan: PlanTotals,
    /// True if the last collection that this prune planned was a quick one.
    pub is_quick: bool,
    /// Snapshots that are kept.
    pub snapshots: u64,
    /// Containers deleted.
    pub deleted_containers: u64,
    /// Bytes of them.
    pub deleted_bytes: u64,
    /// Damaged containers that were quarantined.
    pub quarantined_containers: u64,
    /// Bytes of them.
    pub quarantined_bytes: u64,
    /// Containers that were condemned and stay, because a snapshot came to need them meanwhile.
    pub rescued_containers: u64,
    /// Chunks that were whole only in containers that are deleted now, or later, and that were copied.
    pub rescued_chunks: u64,
    /// Containers that copies were written to.
    pub written_containers: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// Bytes that the regions of the copied chunks took before, with their chunks that are not needed.
    pub copied_regions_bytes: u64,
    /// Bytes that the regions of the copies take.
    pub written_regions_bytes: u64,
    /// Copied regions that would have been stored again as they were, and are shorter because they were compressed again.
    pub recompressed_regions: u64,
    /// Deleted containers of which the last collection says where their chunks are now, since hints or manifests name them.
    pub moved: MovedCounts,
    /// Sessions that were fenced.
    pub fenced: Vec<SessionId>,
    /// Objects that cannot be read, in sentences. Containers among them stay.
    pub findings: Vec<String>,
    /// True if containers were left as they are because there was no space for copies.
    pub lacks_space: bool,
    /// Files of interrupted sessions and manifests of forgotten snapshots that were removed, and their bytes.
    pub leftovers: (u64, u64),
    /// State of the last collection.
    pub state: PruneState,
}

impl PruneReport {
    /// Adds what was copied.
    pub(super) fn count_copies(&mut self, copied: &Copied) {
        self.written_containers += copied.written_containers;
        self.written_bytes += copied.written_bytes;
        self.copied_regions_bytes += copied.copied_regions_bytes;
        self.written_regions_bytes += copied.written_regions_bytes;
        self.recompressed_regions += copied.regions_recompressed;
    }

    /// Adds something that cannot be read, once, up to [`FINDINGS_MAX`].
    pub(super) fn find(&mut self, error: &Error) {
        let finding = error.to_string();
        if self.findings.len() < FINDINGS_MAX && !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }
}
