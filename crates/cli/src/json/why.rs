//! JSON documents of `why`.

use onefold_engine::collect::ledger::Held;
use onefold_engine::collect::why::{ChunkHolders, ContainerHolders, ContainerState, PathHolders, RelatedContainer};
use onefold_engine::io::os::process_peak_rss_bytes;
use onefold_engine::object::names::ContainerKind;
use onefold_engine::repo::SnapshotId;
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::QuarantinedContainer;
use onefold_engine::types::{ChunkKind, SessionId};

use crate::json::{Object, object, short_id};
use crate::text;

/// Returns the fields of a snapshot of an answer.
pub(crate) fn snapshot(session: SessionId, snapshot: &Snapshot) -> Object {
    object! { id: SnapshotId(session), short_id: short_id(session), time: snapshot.time, hostname: &*snapshot.hostname, }
}

/// Snapshots of an answer, and those that would be forgotten, if that was asked.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) snapshot: &'a dyn Fn(SessionId) -> Object,
    pub(crate) forgotten: &'a [SessionId],
}

impl Asked<'_> {
    fn forgotten(self) -> Vec<SnapshotId> {
        self.forgotten.iter().copied().map(SnapshotId).collect()
    }

    /// Returns the effect of forgetting some snapshots: chunks that would be free, and those that others would hold.
    fn if_forgotten(self, all: &Held, freed: Option<&Held>) -> Option<Object> {
        freed.map(|freed| object! { snapshots: self.forgotten(), freed, left: &all.without(freed), })
    }
}

/// `why PATH`.
pub(crate) fn path(path: &[u8], found: &PathHolders, asked: Asked<'_>) -> Object {
    let rows = found.snapshots.iter().map(|row| {
        object! {
            ..(asked.snapshot)(row.session),
            type: text::kind_name(row.kind),
            // Counted from 1.
            contents: row.contents.saturating_add(1),
            unchanged?: row.is_unchanged,
            ..(&row.held).into(),
        }
    });
    object! {
        type: "path",
        path,
        snapshots: rows.collect::<Vec<_>>(),
        all: &found.all,
        only: &found.only,
        only_path: &found.only_path,
        shared: &found.shared,
        if_forgotten?: asked.if_forgotten(&found.all, found.freed.as_ref()),
        peak_rss_bytes?: process_peak_rss_bytes(),
    }
}

/// A container that is related to another by bases of regions. Without a size, it is not listed.
fn related(related: &RelatedContainer) -> Object {
    object! {
        id: related.id,
        container_size?: related.stored_bytes,
        regions: related.regions.count,
        uncompressed_size: related.regions.plain_bytes,
        size: related.regions.stored_bytes,
    }
}

/// `why CONTAINER`.
pub(crate) fn container(found: &ContainerHolders, asked: Asked<'_>) -> Object {
    let (state, prune) = match found.state {
        ContainerState::Live => ("live", None),
        ContainerState::Unended => ("unended", None),
        ContainerState::Condemned(number) => ("condemned", Some(number)),
        ContainerState::Decided(number) => ("decided", Some(number)),
    };
    let rows = found.snapshots.iter().map(|row| {
        object! { ..(asked.snapshot)(row.session), ..(&row.held).into(), only: &row.only, }
    });
    object! {
        type: "container",
        id: found.id,
        kind: kind_of_container(found.kind),
        state,
        prune?: prune,
        container_size: found.stored_bytes,
        found { regions },
        all: &found.all,
        held: &found.held,
        copied: &found.copied,
        unneeded: &found.unneeded,
        snapshots: rows.collect::<Vec<_>>(),
        unused: found.is_unused(),
        bases: found.bases.listed.iter().map(related).collect::<Vec<_>>(),
        bases_count: found.bases.count,
        dependents: found.dependents.listed.iter().map(related).collect::<Vec<_>>(),
        dependents_count: found.dependents.count,
        only_base: found.is_only_base(),
        if_forgotten?: asked.if_forgotten(&found.held, found.freed.as_ref()),
        peak_rss_bytes?: process_peak_rss_bytes(),
    }
}

/// `why CONTAINER` of a container that was set aside.
pub(crate) fn quarantined(container: &QuarantinedContainer) -> Object {
    object! { type: "container", id: container.name.id, state: "quarantined", container_size: container.len, }
}

/// `why CHUNK`.
pub(crate) fn chunk(found: &ChunkHolders, asked: Asked<'_>) -> Object {
    let copies = found.copies.iter().map(|copy| {
        object! {
            container: copy.container, uncompressed_size: copy.len, size: copy.stored_len, condemned: copy.is_condemned,
        }
    });
    let rows = found.snapshots.iter().map(|row| {
        let paths = row.paths.iter().map(|path| &path[..]);
        object! { ..(asked.snapshot)(row.session), paths: paths.collect::<Vec<_>>(), more_paths: row.has_more, }
    });
    object! {
        type: "chunk",
        id: found.fingerprint,
        kind: kind_of_chunk(found.kind),
        copies: copies.collect::<Vec<_>>(),
        found { copies_count },
        snapshots: rows.collect::<Vec<_>>(),
        // All snapshots that hold it.
        found { holders },
        if_forgotten?: found.kept_holders.map(|holders| {
            object! { snapshots: asked.forgotten(), freed: holders == 0, holders, }
        }),
        peak_rss_bytes?: process_peak_rss_bytes(),
    }
}

/// Returns a word for what a container holds.
pub(crate) fn kind_of_container(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Data => "data",
        ContainerKind::Metadata => "metadata",
    }
}

/// Returns a word for what a chunk holds.
pub(crate) fn kind_of_chunk(kind: ChunkKind) -> &'static str {
    match kind {
        ChunkKind::Data => "data",
        ChunkKind::Tree => "tree",
        ChunkKind::Recipe => "recipe",
    }
}
