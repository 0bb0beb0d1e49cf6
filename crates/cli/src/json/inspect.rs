//! JSON messages of `find`, `diff`, `stats` and `cat`.

use onefold_engine::chunk::{ChunkSizes, Chunking};
use onefold_engine::crypto::slot::{Slot, hex};
use onefold_engine::inspect::{Change, Contents, Difference, RawStats, SideCounts};
use onefold_engine::object::Config;
use onefold_engine::recipe::RecipeItem;
use onefold_engine::repo::{LongRepositoryId, SnapshotId};
use onefold_engine::snapshot::{OwnerNames, Snapshot};
use onefold_engine::tree::{Content, Entry};
use serde::Serialize;

use crate::json::NodeFields;
use crate::text;
use onefold_engine::types::{Chunk, Fingerprint, SessionId};

/// A use of a chunk that `find` found.
#[derive(Serialize)]
pub(crate) struct FoundObject {
    object_type: &'static str,
    id: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_tree: Option<String>,
    snapshot: String,
    time: String,
}

impl FoundObject {
    /// Takes the fields of a use in a file of the directory `tree`, or as a directory.
    pub(crate) fn of(
        session: SessionId,
        snapshot: &Snapshot,
        fingerprint: &Fingerprint,
        path: &[u8],
        tree: Option<Fingerprint>,
    ) -> Self {
        Self {
            object_type: if tree.is_some() { "blob" } else { "tree" },
            id: fingerprint.to_string(),
            path: String::from_utf8_lossy(path).into_owned(),
            parent_tree: tree.map(|tree| tree.to_string()),
            snapshot: SnapshotId(session).to_string(),
            time: text::rfc3339(snapshot.time),
        }
    }
}

/// An entry that `find` found.
#[derive(Serialize)]
pub(crate) struct FindMatch {
    #[serde(flatten)]
    fields: NodeFields,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    linktarget: Option<String>,
}

impl FindMatch {
    /// Takes the fields of an entry.
    pub(crate) fn of(entry: &Entry, path: &[u8], owners: &OwnerNames) -> Self {
        let is_directory = matches!(entry.content, Content::Directory { .. });
        let links = entry.link.map_or(1, |link| link.links);
        Self {
            fields: NodeFields::of(entry, path, owners),
            device_id: entry.link.map(|link| link.device),
            links: (!is_directory).then_some(links),
            linktarget: match &entry.content {
                Content::Symlink { target } => Some(String::from_utf8_lossy(target).into_owned()),
                Content::File { .. } | Content::Directory { .. } | Content::Special { .. } => None,
            },
        }
    }
}

/// An entry that differs.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "change")]
pub(crate) struct DiffChange {
    path: String,
    modifier: String,
}

impl DiffChange {
    /// Takes the path and the kind of the difference.
    pub(crate) fn of(change: &Change, path: &[u8]) -> Self {
        let path = String::from_utf8_lossy(path).into_owned();
        Self { path, modifier: modifier(change.difference) }
    }
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

/// Counts of entries that only one side has.
#[derive(Serialize)]
pub(crate) struct DiffStat {
    files: u64,
    dirs: u64,
    others: u64,
    data_blobs: u64,
    tree_blobs: u64,
    bytes: u64,
}

impl DiffStat {
    /// Takes the counts of one side.
    pub(crate) fn of(counts: &SideCounts) -> Self {
        Self {
            files: counts.files,
            dirs: counts.directories,
            others: counts.others,
            data_blobs: counts.data_chunks,
            tree_blobs: counts.tree_chunks,
            bytes: counts.bytes,
        }
    }
}

/// The end of a comparison.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "statistics")]
pub(crate) struct DiffStatistics {
    pub(crate) source_snapshot: String,
    pub(crate) target_snapshot: String,
    pub(crate) changed_files: u64,
    pub(crate) added: DiffStat,
    pub(crate) removed: DiffStat,
}

/// `stats`, with the fields that restic has in all modes.
#[derive(Serialize)]
pub(crate) struct Stats {
    pub(crate) total_size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total_file_count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total_blob_count: Option<u64>,
    pub(crate) snapshots_count: usize,
    #[serde(flatten)]
    pub(crate) raw: Option<StatsRaw>,
}

/// Fields of `stats --mode raw-data` alone.
#[derive(Serialize)]
pub(crate) struct StatsRaw {
    total_uncompressed_size: u64,
    compression_ratio: f64,
    /// Every chunk is stored by a version that compresses.
    compression_progress: f64,
    compression_space_saving: f64,
    total_blob_count: u64,
    logical_size: u64,
    deduplication_ratio: f64,
    total_ratio: f64,
    data_chunks: u64,
    data_size: u64,
    data_uncompressed_size: u64,
    metadata_chunks: u64,
    metadata_size: u64,
    metadata_uncompressed_size: u64,
    missing_chunks: u64,
    other_chunks: u64,
    containers: u64,
    container_size: u64,
    unreadable_containers: u64,
    quarantined_containers: u64,
    quarantined_size: u64,
}

impl StatsRaw {
    /// Takes the counts; `logical` is the size of the restored snapshots.
    pub(crate) fn of(raw: &RawStats, logical: u64) -> Self {
        let (plain, stored) = (raw.data_bytes + raw.metadata_bytes, raw.data_bytes_stored + raw.metadata_bytes_stored);
        Self {
            total_uncompressed_size: plain,
            compression_ratio: ratio(plain, stored),
            compression_progress: 100.0,
            compression_space_saving: 100.0 - 100.0 * ratio(stored, plain),
            total_blob_count: raw.data_chunks + raw.metadata_chunks,
            logical_size: logical,
            deduplication_ratio: ratio(logical, raw.data_bytes),
            total_ratio: ratio(logical, stored),
            data_chunks: raw.data_chunks,
            data_size: raw.data_bytes_stored,
            data_uncompressed_size: raw.data_bytes,
            metadata_chunks: raw.metadata_chunks,
            metadata_size: raw.metadata_bytes_stored,
            metadata_uncompressed_size: raw.metadata_bytes,
            missing_chunks: raw.missing_chunks,
            other_chunks: raw.other_chunks,
            containers: raw.containers,
            container_size: raw.container_bytes,
            unreadable_containers: raw.unreadable_containers,
            quarantined_containers: raw.quarantined_containers,
            quarantined_size: raw.quarantined_bytes,
        }
    }
}

/// Divides one number of bytes by another; returns 1 if the divisor is 0.
#[expect(clippy::cast_precision_loss, reason = "a ratio of which a few digits are shown")]
pub(crate) fn ratio(more: u64, less: u64) -> f64 {
    if less == 0 { 1.0 } else { more as f64 / less as f64 }
}

/// `cat config`.
#[derive(Serialize)]
pub(crate) struct CatConfig {
    version: u16,
    id: String,
    created: String,
    encrypted: bool,
    chunking: CatChunking,
    region_size: u32,
    container_size: u32,
    recipe_inline_max: u32,
}

/// Rule that cuts files into chunks.
#[derive(Serialize)]
#[serde(tag = "method", rename_all = "lowercase")]
enum CatChunking {
    Gear { min: u32, average: u32, max: u32 },
    Fixed { size: u32 },
}

impl CatConfig {
    /// Takes a repository's parameters, without its key.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            version: config.format.number(),
            id: LongRepositoryId(config.repository).to_string(),
            created: text::rfc3339(config.created),
            encrypted: config.clear_key.is_none(),
            chunking: match config.chunking {
                Chunking::Gear(ChunkSizes { min, target, max }) => {
                    CatChunking::Gear { min, average: min.saturating_add(target), max }
                }
                Chunking::Fixed { bytes } => CatChunking::Fixed { size: bytes },
            },
            region_size: config.region_bytes,
            container_size: config.container_bytes,
            recipe_inline_max: config.recipe_inline_max,
        }
    }
}

/// `cat key`.
#[derive(Serialize)]
pub(crate) struct CatKey {
    id: String,
    created: String,
    kdf: &'static str,
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: String,
}

impl CatKey {
    /// Takes the fields of a key slot that are not encrypted.
    pub(crate) fn of(slot: &Slot) -> Self {
        Self {
            id: hex(&slot.id),
            created: text::rfc3339(slot.created),
            kdf: "argon2id",
            memory_kib: slot.cost.memory_kib,
            passes: slot.cost.passes,
            lanes: slot.cost.lanes,
            salt: hex(&slot.salt),
        }
    }
}

/// An entry of `cat tree`.
#[derive(Serialize)]
pub(crate) struct CatNode {
    #[serde(flatten)]
    fields: NodeFields,
    #[serde(skip_serializing_if = "Option::is_none")]
    subtree: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    linktarget: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    extended_attributes: Vec<CatXattr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Vec<CatItem>>,
}

/// An extended attribute, its value in hexadecimal digits.
#[derive(Serialize)]
struct CatXattr {
    name: String,
    value: String,
}

/// Item of the recipe in a file's entry.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum CatItem {
    Chunk { id: String, size: u32 },
    Hole { size: u64 },
    Segment { id: String, size: u64 },
}

impl CatNode {
    /// Takes all fields of an entry.
    pub(crate) fn of(entry: &Entry, path: &[u8], owners: &OwnerNames) -> Self {
        let mut node = Self {
            fields: NodeFields::of(entry, path, owners),
            subtree: None,
            linktarget: None,
            device: None,
            links: entry.link.map(|link| link.links),
            extended_attributes: Vec::new(),
            content: None,
        };
        node.extended_attributes.extend(entry.xattrs.iter().map(|xattr| {
            let name = xattr.name.to_string_lossy().into_owned();
            CatXattr { name, value: hex(&xattr.value) }
        }));
        match &entry.content {
            Content::File { recipe, .. } => {
                node.content = Some(recipe.items.iter().map(CatItem::of).collect());
            }
            Content::Directory { node: subtree } => node.subtree = Some(subtree.to_string()),
            Content::Symlink { target } => node.linktarget = Some(String::from_utf8_lossy(target).into_owned()),
            Content::Special { rdev } => node.device = Some(*rdev),
        }
        node
    }
}

impl CatItem {
    fn of(item: &RecipeItem) -> Self {
        match item {
            RecipeItem::Chunk(Chunk { fingerprint, len }) => Self::Chunk { id: fingerprint.to_string(), size: *len },
            RecipeItem::Hole { len } => Self::Hole { size: *len },
            RecipeItem::Segment { fingerprint, len } => Self::Segment { id: fingerprint.to_string(), size: *len },
        }
    }
}
