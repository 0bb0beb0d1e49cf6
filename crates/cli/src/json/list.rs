//! JSON messages of `snapshots` and `ls`.

use onefold_engine::forget::{Candidate, Fate, GroupPlan};
use onefold_engine::repo::SnapshotId;
use onefold_engine::snapshot::{OwnerNames, Snapshot};
use onefold_engine::tree::{Content, Entry};
use onefold_engine::types::SessionId;

use crate::json::{Object, Value, counts, object, short_id};
use crate::text;

/// A snapshot as `snapshots` lists it.
pub(crate) fn snapshot(session: SessionId, snapshot: &Snapshot) -> Object {
    let listed = |texts: &[String]| (!texts.is_empty()).then(|| texts.to_vec());
    object! {
        time: snapshot.time,
        parent?: snapshot.parent.map(SnapshotId),
        original?: snapshot.original.map(SnapshotId),
        tree: snapshot.tree,
        paths: snapshot.paths.iter().map(|path| &path[..]).collect::<Vec<_>>(),
        hostname: &*snapshot.hostname,
        username: &*snapshot.username,
        snapshot { uid, gid },
        excludes?: listed(&snapshot.excludes),
        tags?: listed(&snapshot.tags),
        program_version: &*snapshot.program,
        index?: snapshot.index.as_ref().map(|index| &*index.preset),
        summary: counts(snapshot),
        id: SnapshotId(session),
        short_id: short_id(session),
    }
}

/// Values that the snapshots of a group share; a value that is no part of the grouping is empty, as in restic.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct GroupKey {
    pub(crate) hostname: String,
    pub(crate) paths: Option<Vec<String>>,
    pub(crate) tags: Option<Vec<String>>,
}

/// Snapshots that `snapshots --group-by` lists together.
pub(crate) fn group(key: Option<GroupKey>, snapshots: Vec<Object>) -> Object {
    let GroupKey { hostname, paths, tags } = key.unwrap_or_default();
    object! { group_key: object! { hostname, paths, tags, }, snapshots, }
}

/// A group of snapshots in `forget`. A list without items is null, as in restic.
pub(crate) fn forget_group(key: GroupKey, group: &GroupPlan<'_>, matches: impl Fn(&Fate) -> Vec<String>) -> Object {
    let one = |candidate: &Candidate<'_>| snapshot(candidate.id, candidate.snapshot);
    let of = |is_kept: bool| group.snapshots.iter().filter(move |(_, fate)| (*fate != Fate::Forgotten) == is_kept);
    let reasons = of(true).map(|(candidate, fate)| object! { snapshot: one(candidate), matches: matches(fate), });
    object! {
        tags: null_if_empty(key.tags.unwrap_or_default()),
        host: key.hostname,
        paths: key.paths,
        keep: null_if_empty(of(true).map(|(candidate, _)| one(candidate)).collect()),
        remove: null_if_empty(of(false).map(|(candidate, _)| one(candidate)).collect()),
        reasons: null_if_empty(reasons.collect()),
    }
}

fn null_if_empty<T: Into<Value>>(list: Vec<T>) -> Value {
    (!list.is_empty()).then_some(list).into()
}

/// The first message of `ls`.
pub(crate) fn listed_snapshot(session: SessionId, of: &Snapshot) -> Object {
    object! { message_type: "snapshot", ..snapshot(session, of), struct_type: "snapshot", }
}

/// Fields of an entry in every listing, with the names that its snapshot has for the owner.
pub(crate) fn fields_of(entry: &Entry, path: &[u8], owners: &OwnerNames) -> Object {
    let (size, ctime, inode) = match &entry.content {
        Content::File { ctime, inode, .. } => (Some(entry.size()), Some(*ctime), Some(*inode)),
        Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => (None, None, None),
    };
    object! {
        name: &entry.name[..],
        type: text::kind_name(entry.kind),
        path,
        entry { uid, gid },
        user?: owners.users.get(&entry.uid).map(|name| &**name),
        group?: owners.groups.get(&entry.gid).map(|name| &**name),
        size?: size,
        mode: text::go_mode(entry.kind, entry.mode),
        permissions: text::permissions(entry.kind, entry.mode),
        mtime: entry.mtime,
        // Time of the last change, unless the backup stored access times, as in restic.
        atime: entry.notes.atime.unwrap_or(entry.mtime),
        ctime?: ctime,
        inode?: inode.or(entry.link.map(|link| link.inode)),
    }
}

/// An entry as `ls` lists it.
pub(crate) fn node(entry: &Entry, path: &[u8], owners: &OwnerNames) -> Object {
    object! { message_type: "node", ..fields_of(entry, path, owners), struct_type: "node", }
}
