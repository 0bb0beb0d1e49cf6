//! JSON messages of `snapshots` and `ls`.

use onefold_engine::repo::SnapshotId;
use onefold_engine::snapshot::{OwnerNames, Snapshot};
use onefold_engine::tree::{Content, Entry};
use onefold_engine::types::SessionId;
use serde::Serialize;

use crate::json::{SnapshotSummary, short_id};
use crate::text;

/// A snapshot as `snapshots` lists it.
#[derive(Serialize)]
pub(crate) struct SnapshotObject {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original: Option<String>,
    tree: String,
    paths: Vec<String>,
    hostname: String,
    username: String,
    uid: u32,
    gid: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    excludes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    program_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<String>,
    summary: SnapshotSummary,
    id: String,
    short_id: String,
}

impl SnapshotObject {
    /// Takes the fields of a snapshot.
    pub(crate) fn of(session: SessionId, snapshot: &Snapshot) -> Self {
        Self {
            time: text::rfc3339(snapshot.time),
            parent: snapshot.parent.map(|parent| SnapshotId(parent).to_string()),
            original: snapshot.original.map(|original| SnapshotId(original).to_string()),
            tree: snapshot.tree.to_string(),
            paths: snapshot.paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect(),
            hostname: snapshot.hostname.clone(),
            username: snapshot.username.clone(),
            uid: snapshot.uid,
            gid: snapshot.gid,
            excludes: snapshot.excludes.clone(),
            tags: snapshot.tags.clone(),
            program_version: snapshot.program.clone(),
            index: snapshot.index.as_ref().map(|index| index.preset.clone()),
            summary: SnapshotSummary::of(snapshot),
            id: SnapshotId(session).to_string(),
            short_id: short_id(session),
        }
    }
}

/// Snapshots that `snapshots --group-by` lists together.
#[derive(Serialize)]
pub(crate) struct SnapshotGroup {
    pub(crate) group_key: GroupKey,
    pub(crate) snapshots: Vec<SnapshotObject>,
}

/// Values that the snapshots of a group share; a value that is no part of the grouping is empty, as in restic.
#[derive(Serialize, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct GroupKey {
    pub(crate) hostname: String,
    pub(crate) paths: Option<Vec<String>>,
    pub(crate) tags: Option<Vec<String>>,
}

/// A group of snapshots in `forget`. A list without items is null, as in restic.
#[derive(Serialize)]
pub(crate) struct ForgetGroup {
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) host: String,
    pub(crate) paths: Option<Vec<String>>,
    pub(crate) keep: Option<Vec<SnapshotObject>>,
    pub(crate) remove: Option<Vec<SnapshotObject>>,
    pub(crate) reasons: Option<Vec<KeepReason>>,
}

/// Why `forget` keeps a snapshot.
#[derive(Serialize)]
pub(crate) struct KeepReason {
    pub(crate) snapshot: SnapshotObject,
    pub(crate) matches: Vec<String>,
}

/// The first message of `ls`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "snapshot")]
pub(crate) struct LsSnapshot {
    #[serde(flatten)]
    snapshot: SnapshotObject,
    struct_type: &'static str,
}

impl LsSnapshot {
    /// Takes the fields of the snapshot that is listed.
    pub(crate) fn of(session: SessionId, snapshot: &Snapshot) -> Self {
        let snapshot = SnapshotObject::of(session, snapshot);
        Self { snapshot, struct_type: "snapshot" }
    }
}

/// Fields of an entry in every listing.
#[derive(Serialize)]
pub(crate) struct NodeFields {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    uid: u32,
    gid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    mode: u32,
    permissions: String,
    mtime: String,
    /// Time of the last change, unless the backup stored access times, as in restic.
    atime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ctime: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
}

impl NodeFields {
    /// Takes the fields of an entry, and the names that its snapshot has for the owner.
    pub(crate) fn of(entry: &Entry, path: &[u8], owners: &OwnerNames) -> Self {
        let (size, ctime, inode) = match &entry.content {
            Content::File { ctime, inode, .. } => (Some(entry.size()), Some(text::rfc3339(*ctime)), Some(*inode)),
            Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => (None, None, None),
        };
        Self {
            name: String::from_utf8_lossy(&entry.name).into_owned(),
            kind: text::kind_name(entry.kind),
            path: String::from_utf8_lossy(path).into_owned(),
            uid: entry.uid,
            gid: entry.gid,
            user: owners.users.get(&entry.uid).cloned(),
            group: owners.groups.get(&entry.gid).cloned(),
            size,
            mode: text::go_mode(entry.kind, entry.mode),
            permissions: text::permissions(entry.kind, entry.mode),
            mtime: text::rfc3339(entry.mtime),
            atime: text::rfc3339(entry.notes.atime.unwrap_or(entry.mtime)),
            ctime,
            inode: inode.or(entry.link.map(|link| link.inode)),
        }
    }
}

/// An entry as `ls` lists it.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "node")]
pub(crate) struct LsNode {
    #[serde(flatten)]
    fields: NodeFields,
    struct_type: &'static str,
}

impl LsNode {
    /// Takes the fields of an entry.
    pub(crate) fn of(entry: &Entry, path: &[u8], owners: &OwnerNames) -> Self {
        Self { fields: NodeFields::of(entry, path, owners), struct_type: "node" }
    }
}
