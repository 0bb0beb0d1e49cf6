//! JSON messages of `find`, `diff`, `stats` and `cat`.

use onefold_engine::chunk::{ChunkSizes, Chunking};
use onefold_engine::crypto::slot::{Slot, hex};
use onefold_engine::inspect::{Change, Contents, DiffReport, Difference, RawStats, SideCounts};
use onefold_engine::object::Config;
use onefold_engine::recipe::RecipeItem;
use onefold_engine::repo::{LongRepositoryId, SnapshotId};
use onefold_engine::snapshot::{OwnerNames, Snapshot};
use onefold_engine::tree::{Content, Entry};
use onefold_engine::types::{Chunk, Fingerprint, SessionId};

use crate::json::list::fields_of;
use crate::json::{Object, object};

/// A use of a chunk that `find` found: in a file of the directory `tree`, or as a directory.
pub(crate) fn found_chunk(
    (session, snapshot): (SessionId, &Snapshot),
    fingerprint: &Fingerprint,
    path: &[u8],
    tree: Option<Fingerprint>,
) -> Object {
    object! {
        object_type: if tree.is_some() { "blob" } else { "tree" },
        id: *fingerprint,
        path,
        parent_tree?: tree,
        snapshot: SnapshotId(session),
        time: snapshot.time,
    }
}

/// An entry that `find` found.
pub(crate) fn found(entry: &Entry, path: &[u8], owners: &OwnerNames) -> Object {
    let is_directory = matches!(entry.content, Content::Directory { .. });
    let target = if let Content::Symlink { target } = &entry.content { Some(&target[..]) } else { None };
    object! {
        ..fields_of(entry, path, owners),
        device_id?: entry.link.map(|link| link.device),
        links?: (!is_directory).then_some(entry.link.map_or(1, |link| link.links)),
        linktarget?: target,
    }
}

/// An entry that differs.
pub(crate) fn change(change: &Change, path: &[u8]) -> Object {
    object! { message_type: "change", path, modifier: modifier(change.difference), }
}

/// Returns restic's letters for a difference.
pub(crate) fn modifier(difference: Difference) -> String {
    let (contents, metadata) = match difference {
        Difference::Added => return "+".to_owned(),
        Difference::Removed => return "-".to_owned(),
        Difference::Kind => return "T".to_owned(),
        Difference::Changed { contents, metadata } => (contents, metadata),
    };
    let contents = match contents {
        Contents::Same => "",
        Contents::Modified => "M",
        Contents::Suspicious => "M?",
    };
    format!("{contents}{}", if metadata { "U" } else { "" })
}

/// The end of a comparison.
pub(crate) fn compared(before: SessionId, after: SessionId, report: &DiffReport) -> Object {
    let side = |counts: &SideCounts| {
        object! {
            files: counts.files,
            dirs: counts.directories,
            others: counts.others,
            data_blobs: counts.data_chunks,
            tree_blobs: counts.tree_chunks,
            bytes: counts.bytes,
        }
    };
    object! {
        message_type: "statistics",
        source_snapshot: SnapshotId(before),
        target_snapshot: SnapshotId(after),
        changed_files: report.changed,
        added: side(&report.added),
        removed: side(&report.removed),
    }
}

/// Fields of `stats --mode raw-data` alone; `logical` is the size of the restored snapshots. Every chunk is stored by a version
/// that compresses.
pub(crate) fn raw_stats(raw: &RawStats, logical: u64) -> Object {
    let (plain, stored) = (raw.data_bytes + raw.metadata_bytes, raw.data_bytes_stored + raw.metadata_bytes_stored);
    object! {
        total_uncompressed_size: plain,
        compression_ratio: ratio(plain, stored),
        compression_progress: 100.0,
        compression_space_saving: 100.0 - 100.0 * ratio(stored, plain),
        total_blob_count: raw.data_chunks + raw.metadata_chunks,
        logical_size: logical,
        deduplication_ratio: ratio(logical, raw.data_bytes),
        total_ratio: ratio(logical, stored),
        raw { data_chunks },
        data_size: raw.data_bytes_stored,
        data_uncompressed_size: raw.data_bytes,
        raw { metadata_chunks },
        metadata_size: raw.metadata_bytes_stored,
        metadata_uncompressed_size: raw.metadata_bytes,
        raw { missing_chunks, other_chunks, containers },
        container_size: raw.container_bytes,
        raw { unreadable_containers, quarantined_containers },
        quarantined_size: raw.quarantined_bytes,
    }
}

/// Divides one number of bytes by another; returns 1 if the divisor is 0.
#[expect(clippy::cast_precision_loss, reason = "a ratio of which a few digits are shown")]
pub(crate) fn ratio(more: u64, less: u64) -> f64 {
    if less == 0 { 1.0 } else { more as f64 / less as f64 }
}

/// `cat config`: a repository's parameters, without its key.
pub(crate) fn config(config: &Config) -> Object {
    object! {
        version: config.format.number(),
        id: LongRepositoryId(config.repository),
        created: config.created,
        encrypted: config.clear_key.is_none(),
        chunking: match config.chunking {
            Chunking::Gear(ChunkSizes { min, target, max }) => {
                object! { method: "gear", min, average: min.saturating_add(target), max, }
            }
            Chunking::Fixed { bytes } => object! { method: "fixed", size: bytes, },
        },
        region_size: config.region_bytes,
        container_size: config.container_bytes,
        config { recipe_inline_max },
    }
}

/// `cat key`: the fields of a key slot that are not encrypted.
pub(crate) fn key(slot: &Slot) -> Object {
    let cost = slot.cost;
    object! {
        id: hex(&slot.id), created: slot.created, kdf: "argon2id", cost { memory_kib, passes, lanes }, salt: hex(&slot.salt),
    }
}

/// An entry of `cat tree`, with the values of its extended attributes in hexadecimal digits.
pub(crate) fn node(entry: &Entry, path: &[u8], owners: &OwnerNames) -> Object {
    let xattrs = entry.xattrs.iter().map(|xattr| {
        object! { name: xattr.name.to_string_lossy().into_owned(), value: hex(&xattr.value), }
    });
    let xattrs: Vec<_> = xattrs.collect();
    let (mut subtree, mut target, mut device, mut content) = (None, None, None, None);
    match &entry.content {
        Content::File { recipe, .. } => content = Some(recipe.items.iter().map(item).collect::<Vec<_>>()),
        Content::Directory { node } => subtree = Some(*node),
        Content::Symlink { target: path } => target = Some(&path[..]),
        Content::Special { rdev } => device = Some(*rdev),
    }
    object! {
        ..fields_of(entry, path, owners),
        subtree?: subtree,
        linktarget?: target,
        device?: device,
        links?: entry.link.map(|link| link.links),
        extended_attributes?: (!xattrs.is_empty()).then_some(xattrs),
        content?: content,
    }
}

/// An item of the recipe in a file's entry.
fn item(item: &RecipeItem) -> Object {
    match *item {
        RecipeItem::Chunk(Chunk { fingerprint, len }) => object! { type: "chunk", id: fingerprint, size: len, },
        RecipeItem::Hole { len } => object! { type: "hole", size: len, },
        RecipeItem::Segment { fingerprint, len } => object! { type: "segment", id: fingerprint, size: len, },
    }
}
