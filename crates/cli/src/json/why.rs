//! JSON documents of `why`.

use onefold_engine::collect::why::{
    ChunkCopy, ChunkHolders, ChunkInSnapshot, ContainerHolders, ContainerInSnapshot, ContainerState, PathHolders,
    PathInSnapshot, RelatedContainer,
};
use onefold_engine::object::names::ContainerKind;
use onefold_engine::repo::SnapshotId;
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::QuarantinedContainer;
use onefold_engine::types::{ChunkKind, SessionId};
use serde::Serialize;

use crate::json::ledger::HeldObject;
use crate::json::short_id;
use crate::text;

/// A snapshot of an answer.
#[derive(Serialize)]
pub(crate) struct SnapshotFields {
    id: String,
    pub(crate) short_id: String,
    time: String,
    #[serde(skip)]
    pub(crate) local_time: String,
    pub(crate) hostname: String,
}

impl SnapshotFields {
    /// Takes the fields of a snapshot.
    pub(crate) fn of(session: SessionId, snapshot: &Snapshot) -> Self {
        Self {
            id: SnapshotId(session).to_string(),
            short_id: short_id(session),
            time: text::rfc3339(snapshot.time),
            local_time: text::local_time(snapshot.time),
            hostname: snapshot.hostname.clone(),
        }
    }
}

/// Effect of forgetting some snapshots on chunks.
#[derive(Serialize)]
pub(crate) struct IfForgotten {
    /// The snapshots.
    snapshots: Vec<String>,
    /// Chunks that would be free.
    pub(crate) freed: HeldObject,
    /// Chunks that other snapshots would hold.
    pub(crate) left: HeldObject,
}

/// Returns the ids of snapshots.
pub(crate) fn ids<'a>(sessions: impl IntoIterator<Item = &'a SessionId>) -> Vec<String> {
    sessions.into_iter().map(|session| SnapshotId(*session).to_string()).collect()
}

/// `why PATH`.
#[derive(Serialize)]
#[serde(tag = "type", rename = "path")]
pub(crate) struct WhyPath {
    path: String,
    pub(crate) snapshots: Vec<PathRow>,
    pub(crate) all: HeldObject,
    pub(crate) only: HeldObject,
    pub(crate) only_path: HeldObject,
    /// Chunks that other paths of the snapshots hold, too, and no other snapshot.
    #[serde(skip)]
    pub(crate) other_paths: HeldObject,
    pub(crate) shared: HeldObject,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) if_forgotten: Option<IfForgotten>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_rss_bytes: Option<u64>,
}

/// A snapshot with the path.
#[derive(Serialize)]
pub(crate) struct PathRow {
    #[serde(flatten)]
    pub(crate) snapshot: SnapshotFields,
    r#type: &'static str,
    /// Counted from 1.
    contents: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unchanged: Option<bool>,
    #[serde(flatten)]
    pub(crate) held: HeldObject,
}

impl PathRow {
    /// Takes the counts of a snapshot.
    pub(crate) fn of(row: &PathInSnapshot, snapshot: SnapshotFields) -> Self {
        Self {
            snapshot,
            r#type: text::kind_name(row.kind),
            contents: row.contents.saturating_add(1),
            unchanged: row.is_unchanged,
            held: HeldObject::of(&row.held),
        }
    }
}

impl WhyPath {
    /// Takes the counts. `forgotten` are the snapshots that would be forgotten, if that was asked.
    pub(crate) fn of(
        path: &[u8],
        found: &PathHolders,
        snapshots: Vec<PathRow>,
        forgotten: Vec<String>,
        peak_rss_bytes: Option<u64>,
    ) -> Self {
        Self {
            path: String::from_utf8_lossy(path).into_owned(),
            snapshots,
            all: HeldObject::of(&found.all),
            only: HeldObject::of(&found.only),
            only_path: HeldObject::of(&found.only_path),
            other_paths: HeldObject::of(&found.only.without(&found.only_path)),
            shared: HeldObject::of(&found.shared),
            if_forgotten: found.freed.map(|freed| IfForgotten {
                snapshots: forgotten,
                left: HeldObject::of(&found.all.without(&freed)),
                freed: HeldObject::of(&freed),
            }),
            peak_rss_bytes,
        }
    }
}

/// A container that is related to another by bases of regions.
#[derive(Serialize)]
pub(crate) struct RelatedRow {
    pub(crate) id: String,
    /// Left out if it is not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) container_size: Option<u64>,
    /// The regions that were compressed against bases.
    pub(crate) regions: u64,
    pub(crate) uncompressed_size: u64,
    pub(crate) size: u64,
}

impl RelatedRow {
    fn of(related: &RelatedContainer) -> Self {
        Self {
            id: related.id.to_string(),
            container_size: related.stored_bytes,
            regions: related.regions.count,
            uncompressed_size: related.regions.plain_bytes,
            size: related.regions.stored_bytes,
        }
    }
}

/// `why CONTAINER`.
#[derive(Serialize)]
#[serde(tag = "type", rename = "container")]
pub(crate) struct WhyContainer {
    pub(crate) id: String,
    pub(crate) kind: &'static str,
    state: &'static str,
    /// Number of the collection that gave it the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    prune: Option<u32>,
    pub(crate) container_size: u64,
    pub(crate) regions: u64,
    pub(crate) all: HeldObject,
    pub(crate) held: HeldObject,
    pub(crate) copied: HeldObject,
    pub(crate) unneeded: HeldObject,
    pub(crate) snapshots: Vec<ContainerRow>,
    /// True if no snapshot holds a chunk, after the given ones were forgotten.
    unused: bool,
    /// The containers that hold bases of its regions, and their number.
    pub(crate) bases: Vec<RelatedRow>,
    pub(crate) bases_count: u64,
    /// The containers with regions that have bases in it, and their number.
    pub(crate) dependents: Vec<RelatedRow>,
    pub(crate) dependents_count: u64,
    /// True if it is unused, and stays since others depend on it.
    only_base: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) if_forgotten: Option<IfForgotten>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_rss_bytes: Option<u64>,
}

/// A snapshot that holds chunks of the container.
#[derive(Serialize)]
pub(crate) struct ContainerRow {
    #[serde(flatten)]
    pub(crate) snapshot: SnapshotFields,
    #[serde(flatten)]
    pub(crate) held: HeldObject,
    pub(crate) only: HeldObject,
}

impl ContainerRow {
    /// Takes the counts of a snapshot.
    pub(crate) fn of(row: &ContainerInSnapshot, snapshot: SnapshotFields) -> Self {
        Self { snapshot, held: HeldObject::of(&row.held), only: HeldObject::of(&row.only) }
    }
}

impl WhyContainer {
    /// Takes the counts. `forgotten` are the snapshots that would be forgotten, if that was asked.
    pub(crate) fn of(
        found: &ContainerHolders,
        snapshots: Vec<ContainerRow>,
        forgotten: Vec<String>,
        peak_rss_bytes: Option<u64>,
    ) -> Self {
        let (state, prune) = match found.state {
            ContainerState::Live => ("live", None),
            ContainerState::Unended => ("unended", None),
            ContainerState::Condemned(number) => ("condemned", Some(number)),
            ContainerState::Decided(number) => ("decided", Some(number)),
        };
        Self {
            id: found.id.to_string(),
            kind: kind_of_container(found.kind),
            state,
            prune,
            container_size: found.stored_bytes,
            regions: found.regions,
            all: HeldObject::of(&found.all),
            held: HeldObject::of(&found.held),
            copied: HeldObject::of(&found.copied),
            unneeded: HeldObject::of(&found.unneeded),
            snapshots,
            unused: found.is_unused(),
            bases: found.bases.listed.iter().map(RelatedRow::of).collect(),
            bases_count: found.bases.count,
            dependents: found.dependents.listed.iter().map(RelatedRow::of).collect(),
            dependents_count: found.dependents.count,
            only_base: found.is_only_base(),
            if_forgotten: found.freed.map(|freed| IfForgotten {
                snapshots: forgotten,
                left: HeldObject::of(&found.held.without(&freed)),
                freed: HeldObject::of(&freed),
            }),
            peak_rss_bytes,
        }
    }
}

/// `why CONTAINER` of a container that was set aside.
#[derive(Serialize)]
#[serde(tag = "type", rename = "container")]
pub(crate) struct WhyQuarantined {
    id: String,
    state: &'static str,
    container_size: u64,
}

impl WhyQuarantined {
    /// Takes the name and the length.
    pub(crate) fn of(container: &QuarantinedContainer) -> Self {
        Self { id: container.name.id.to_string(), state: "quarantined", container_size: container.len }
    }
}

/// `why CHUNK`.
#[derive(Serialize)]
#[serde(tag = "type", rename = "chunk")]
pub(crate) struct WhyChunk {
    pub(crate) id: String,
    pub(crate) kind: &'static str,
    pub(crate) copies: Vec<CopyObject>,
    pub(crate) copies_count: u64,
    /// Snapshots that were asked for.
    pub(crate) snapshots: Vec<ChunkRow>,
    /// All snapshots that hold it.
    pub(crate) holders: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) if_forgotten: Option<ChunkIfForgotten>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_rss_bytes: Option<u64>,
}

/// A copy of the chunk.
#[derive(Serialize)]
pub(crate) struct CopyObject {
    container: String,
    uncompressed_size: u32,
    size: u32,
    condemned: bool,
}

/// A snapshot that holds the chunk.
#[derive(Serialize)]
pub(crate) struct ChunkRow {
    #[serde(flatten)]
    pub(crate) snapshot: SnapshotFields,
    paths: Vec<String>,
    more_paths: bool,
}

/// Effect of forgetting some snapshots on the chunk.
#[derive(Serialize)]
pub(crate) struct ChunkIfForgotten {
    snapshots: Vec<String>,
    pub(crate) freed: bool,
    pub(crate) holders: u64,
}

impl ChunkRow {
    /// Takes the paths in a snapshot.
    pub(crate) fn of(row: &ChunkInSnapshot, snapshot: SnapshotFields) -> Self {
        let paths = row.paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
        Self { snapshot, paths, more_paths: row.has_more }
    }
}

impl WhyChunk {
    /// Takes the copies and the snapshots. `forgotten` are those that would be forgotten, if that was asked.
    pub(crate) fn of(
        found: &ChunkHolders,
        snapshots: Vec<ChunkRow>,
        forgotten: Vec<String>,
        peak_rss_bytes: Option<u64>,
    ) -> Self {
        let copy = |copy: &ChunkCopy| CopyObject {
            container: copy.container.to_string(),
            uncompressed_size: copy.len,
            size: copy.stored_len,
            condemned: copy.is_condemned,
        };
        Self {
            id: found.fingerprint.to_string(),
            kind: kind_of_chunk(found.kind),
            copies: found.copies.iter().map(copy).collect(),
            copies_count: found.copies_count,
            snapshots,
            holders: found.holders,
            if_forgotten: found.kept_holders.map(|holders| ChunkIfForgotten {
                snapshots: forgotten,
                freed: holders == 0,
                holders,
            }),
            peak_rss_bytes,
        }
    }
}

/// Returns a word for what a container holds.
fn kind_of_container(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Data => "data",
        ContainerKind::Metadata => "metadata",
    }
}

/// Returns a word for what a chunk holds.
fn kind_of_chunk(kind: ChunkKind) -> &'static str {
    match kind {
        ChunkKind::Data => "data",
        ChunkKind::Tree => "tree",
        ChunkKind::Recipe => "recipe",
    }
}
