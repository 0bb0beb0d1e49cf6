//! Derived snapshots as programs make them: one session each, and another one after a fence.

use std::sync::Arc;

use crate::derive::confirm::{View, confirm};
use crate::derive::node_stage::NodeStage;
use crate::derive::rebuild::{Rebuild, RebuiltTree, Without};
use crate::derive::{DeriveOptions, Relabel, RewriteOptions, StoreOptions};
use crate::error::{Error, Result};
use crate::repo::long_id::SnapshotId;
use crate::repo::sessions::with_sessions;
use crate::snapshot::{CommitBody, CommitKind, ManifestEncoder, SessionKind, Snapshot, Summary};
use crate::store::commits::Commits;
use crate::store::container_set::Containers;
use crate::store::manifests::ManifestBuilder;
use crate::store::metadata::MetadataMemory;
use crate::store::{MetadataReader, Session, Store};
use crate::types::{Fingerprint, SessionId};

/// Outcomes of deriving a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Derived {
    /// A snapshot was made. It is durable.
    Made(SessionId, Box<Snapshot>),
    /// This snapshot is the same already, and no other was made. It is durable.
    Exists(SessionId),
    /// It would be the same as the one that it is derived from.
    Unmodified,
    /// Chunks are missing, and no snapshot was made. The monitor has the paths.
    Lost {
        /// Number of missing chunks.
        chunks: u64,
        /// Number of files, and of directories with a part, that need a missing chunk.
        paths: u64,
    },
}

/// Takes a forget back: makes a snapshot that is the same as a forgotten one, if all of its chunks are in containers that may
/// be referred to. `tags` replace its own.
pub fn recover(
    store: &Store,
    options: &DeriveOptions,
    forgotten: SessionId,
    tags: Option<&[String]>,
) -> Result<Derived> {
    in_session(store, options, &mut |session, commits| {
        let original = snapshot_of(store, commits, forgotten)?;
        if !commits.forgotten.contains(&forgotten) {
            return Err(Error::invalid(format!("snapshot {} is not forgotten", SnapshotId(forgotten))));
        }
        let tags = tags.map_or_else(|| original.tags.clone(), <[String]>::to_vec);
        let snapshot = Snapshot { tags, ..derived_from(forgotten, original) };
        snapshot.validate()?;
        if let Some(same) = find_same(commits, &snapshot) {
            return exists(session, same);
        }
        confirm_all(store, session, options, original).map(|confirmed| Outcome::commit(confirmed, snapshot))
    })
}

/// Makes a snapshot that is the same as another one except for its tags.
pub fn tag(store: &Store, options: &DeriveOptions, from: SessionId, tags: &[String]) -> Result<Derived> {
    let changes = Relabel { tags: Some(tags.to_vec()), ..Relabel::default() };
    in_session(store, options, &mut |session, commits| relabelled(store, session, options, commits, (from, &changes)))
}

fn relabelled(
    store: &Store,
    session: &Session,
    options: &DeriveOptions,
    commits: &Commits,
    (from, changes): (SessionId, &Relabel),
) -> Result<Outcome> {
    let original = root_of(store, commits, from)?;
    if changes.is_met(original) {
        return Ok(Outcome::Nothing(Derived::Unmodified));
    }
    let snapshot = changes.apply(derived_from(from, original));
    snapshot.validate()?;
    if let Some(same) = find_same(commits, &snapshot) {
        return exists(session, same);
    }
    let listed = commits.commit_of(from).and_then(|commit| commit.body.manifest);
    let confirmed = match take_over(store, session, options, original)? {
        // This one refers to the same chunks as the original. If collections have deleted containers that its manifest
        // lists, they have noted where the chunks are, and note it as long as a manifest lists them.
        Confirmed::Unseen => Confirmed::All(listed.and_then(|checksum| store.copy_manifest(from, &checksum).ok())),
        confirmed => confirmed,
    };
    Ok(Outcome::commit(confirmed, snapshot))
}

/// Makes a snapshot that is the same as another one except for the paths that are left out, and for what it says of itself.
pub fn rewrite(
    store: &Store,
    options: &DeriveOptions,
    storing: &StoreOptions,
    from: SessionId,
    changes: &RewriteOptions,
) -> Result<Derived> {
    in_session(store, options, &mut |session, commits| {
        let original = root_of(store, commits, from)?;
        if changes.keeps_tree() {
            return relabelled(store, session, options, commits, (from, &changes.relabel));
        }
        let snapshot = changes.relabel.apply(derived_from(from, original));
        let snapshot = Snapshot { excludes: excludes(original, changes), ..snapshot };
        snapshot.validate()?;
        if let Confirmed::Lost(lost) = take_over(store, session, options, original)? {
            return Ok(Outcome::Nothing(lost));
        }
        let mut reader = open_reader(store, &session.live, options)?;
        let mut stage = NodeStage::new(store, session, options, storing)?;
        let rebuilt = Rebuild::new(&mut reader, Some(&mut stage));
        let rebuilt = rebuilt.with(original.tree, &mut without(changes, options), &*options.monitor)?;
        if !is_other_tree(changes, &rebuilt) {
            return relabelled(store, session, options, commits, (from, &changes.relabel));
        }
        let mut snapshot = of_rebuilt(snapshot, &rebuilt);
        if let Some(same) = find_same(commits, &snapshot) {
            return exists(session, same);
        }
        // Everything the commit refers to is durable before it: see docs/durability.md, D1 to D5.
        let Summary { metadata_chunks, data_added, data_added_packed, .. } = stage.finish()?;
        snapshot.summary = Summary { metadata_chunks, data_added, data_added_packed, ..snapshot.summary };
        let manifest = manifest_of(store, session, options, snapshot.tree)?;
        Ok(Outcome::Commit(Box::new(snapshot), manifest))
    })
}

/// Returns what [`rewrite`] would make, and writes nothing; `None` if nothing would change.
pub fn try_rewrite(
    store: &Store,
    options: &DeriveOptions,
    (from, original): (SessionId, &Snapshot),
    changes: &RewriteOptions,
) -> Result<Option<Snapshot>> {
    let snapshot = changes.relabel.apply(derived_from(from, original));
    if !changes.keeps_tree() {
        let mut reader = open_reader(store, &store.list_sized_containers(&options.scratch)?, options)?;
        let rebuilt = Rebuild::new(&mut reader, None);
        let rebuilt = rebuilt.with(original.tree, &mut without(changes, options), &*options.monitor)?;
        if is_other_tree(changes, &rebuilt) {
            let snapshot = Snapshot { excludes: excludes(original, changes), ..snapshot };
            return Ok(Some(of_rebuilt(snapshot, &rebuilt)));
        }
    }
    Ok((!changes.relabel.is_met(original)).then_some(snapshot))
}

/// Returns true if a tree that was built again takes the place of the one before. If patterns to include match nothing, it does not.
fn is_other_tree(changes: &RewriteOptions, rebuilt: &RebuiltTree) -> bool {
    rebuilt.is_changed && (changes.only.is_empty() || 0 < rebuilt.entries)
}

fn without<'a>(changes: &'a RewriteOptions, options: &'a DeriveOptions) -> Without<'a> {
    Without { changes, monitor: &*options.monitor }
}

/// Returns the patterns of a snapshot and those that are added.
fn excludes(original: &Snapshot, changes: &RewriteOptions) -> Vec<String> {
    let mut excludes = original.excludes.clone();
    for text in &changes.texts {
        if !excludes.contains(text) {
            excludes.push(text.clone());
        }
    }
    excludes
}

/// Returns a snapshot with another tree.
pub(super) fn of_rebuilt(snapshot: Snapshot, rebuilt: &RebuiltTree) -> Snapshot {
    let &RebuiltTree { tree, files: files_processed, bytes: bytes_processed, .. } = rebuilt;
    let summary = Summary { files_processed, bytes_processed, ..snapshot.summary };
    Snapshot { tree, summary, is_incomplete: snapshot.is_incomplete || rebuilt.is_incomplete, ..snapshot }
}

/// End of a session that did not fail.
pub(super) enum Outcome {
    /// With a snapshot, and its manifest if it gets one.
    Commit(Box<Snapshot>, Option<ManifestEncoder>),
    /// Without.
    Nothing(Derived),
}

impl Outcome {
    fn commit(confirmed: Confirmed, snapshot: Snapshot) -> Self {
        match confirmed {
            Confirmed::Lost(lost) => Self::Nothing(lost),
            Confirmed::All(manifest) => Self::Commit(Box::new(snapshot), manifest),
            Confirmed::Unseen => Self::Commit(Box::new(snapshot), None),
        }
    }
}

/// Whether a session may refer to all chunks of a snapshot.
enum Confirmed {
    /// Yes: they were found in the containers that the manifest lists.
    All(Option<ManifestEncoder>),
    /// Yes, by the rule for unchanged files: nobody has looked.
    Unseen,
    /// No.
    Lost(Derived),
}

/// Works in a session, and ends it. `work` gets the commits as they are after the steps W1 to W3, and may be called again.
pub(super) fn in_session(
    store: &Store,
    options: &DeriveOptions,
    work: &mut dyn FnMut(&Arc<Session>, &Commits) -> Result<Outcome>,
) -> Result<Derived> {
    with_sessions(&*options.monitor, || {
        let session = Session::begin(store, &options.scratch, SessionKind::Backup, &options.hostname)?;
        let session = Arc::new(session);
        let worked = store.read_commits().and_then(|commits| work(&session, &commits));
        let ended = worked.and_then(|outcome| match outcome {
            Outcome::Commit(snapshot, manifest) => commit((store, &session), options, *snapshot, manifest),
            Outcome::Nothing(derived) => {
                // A session that cannot be ended is fenced by a collection later.
                let _ended = session.end();
                Ok(derived)
            }
        });
        ended.map_err(|error| session.abandon(error))
    })
}

fn commit(
    (store, session): (&Store, &Session),
    options: &DeriveOptions,
    snapshot: Snapshot,
    manifest: Option<ManifestEncoder>,
) -> Result<Derived> {
    if options.monitor.is_interrupted() {
        return Err(Error::Interrupted);
    }
    let body = CommitBody {
        kind: CommitKind::Snapshot,
        snapshot: Some(snapshot.clone()),
        heads: session.heads.clone(),
        manifest: session.put_manifest(store, manifest)?,
    };
    session.commit(&body)?;
    Ok(Derived::Made(session.id, Box::new(snapshot)))
}

/// Returns a snapshot, forgotten or not.
fn snapshot_of<'a>(store: &Store, commits: &'a Commits, id: SessionId) -> Result<&'a Snapshot> {
    let commit = commits.commit_of(id);
    let not_found = || Error::invalid(format!("snapshot {} not found", SnapshotId(id)));
    match commit {
        Some(commit) => commit.body.snapshot.as_ref().ok_or_else(not_found),
        // The reason why it cannot be read explains more.
        None => store.read_commit(id).and_then(|_| Err(not_found())),
    }
}

/// Returns a snapshot that is not forgotten.
pub(super) fn root_of<'a>(store: &Store, commits: &'a Commits, id: SessionId) -> Result<&'a Snapshot> {
    if commits.forgotten.contains(&id) {
        return Err(Error::invalid(format!("snapshot {} was forgotten meanwhile", SnapshotId(id))));
    }
    snapshot_of(store, commits, id)
}

/// Returns the snapshot that a session makes of another one without storing anything.
pub(super) fn derived_from(id: SessionId, original: &Snapshot) -> Snapshot {
    let summary = without_stored(original.summary);
    Snapshot { original: Some(id), summary, rewritten: None, ..original.clone() }
}

/// Returns a summary of a session that has stored nothing.
fn without_stored(summary: Summary) -> Summary {
    Summary { data_chunks: 0, metadata_chunks: 0, data_added: 0, data_added_packed: 0, ..summary }
}

/// Finds a snapshot that is not forgotten, that was derived from the same one, directly or not, and that is the same except for
/// what its session has stored.
pub(super) fn find_same(commits: &Commits, derived: &Snapshot) -> Option<SessionId> {
    let contents = |snapshot: &Snapshot| {
        let summary = without_stored(snapshot.summary);
        Snapshot { original: None, summary, ..snapshot.clone() }
    };
    let (originals, wanted) = (commits.originals(), contents(derived));
    let is_same = |snapshot: &Snapshot| {
        snapshot.tree == derived.tree
            && originals.of(snapshot).any(|(id, _)| Some(id) == derived.original)
            && contents(snapshot) == wanted
    };
    commits.snapshots().into_iter().find(|(_, snapshot)| is_same(snapshot)).map(|(id, _)| id)
}

/// Ends the work because the snapshot is there. The caller may forget the original once it is durable.
pub(super) fn exists(session: &Session, same: SessionId) -> Result<Outcome> {
    session.make_commit_durable(same)?;
    Ok(Outcome::Nothing(Derived::Exists(same)))
}

/// Takes over the references of a snapshot that is not forgotten, by the rule for unchanged files of docs/protocol.md. The
/// commits were read after the session has read what collections condemn. Looks for the chunks if the rule does
/// not hold.
fn take_over(store: &Store, session: &Session, options: &DeriveOptions, original: &Snapshot) -> Result<Confirmed> {
    if session.is_condemning { confirm_all(store, session, options, original) } else { Ok(Confirmed::Unseen) }
}

/// Looks for all chunks of a snapshot. Reports the paths that need missing ones.
fn confirm_all(store: &Store, session: &Session, options: &DeriveOptions, original: &Snapshot) -> Result<Confirmed> {
    let mut reader = open_reader(store, &session.live, options)?;
    let manifest = ManifestBuilder::new(session.id, &session.live);
    let view = View { manifest: Some(&manifest), ..View::of(session) };
    let mut missing = confirm(store, &view, &mut reader, &[original.tree], options)?;
    if missing.count() == 0 {
        return Ok(Confirmed::All(manifest.finish()?));
    }
    // A collection that has fenced the session may have deleted what is missing, and another session may do without it.
    if session.end()? == Some(CommitKind::Fence) {
        return Err(Error::Fenced { session: session.id });
    }
    if session.is_condemning {
        options.monitor.note("a prune has not ended: what it may delete counts as missing");
    }
    let monitor = &*options.monitor;
    let paths =
        missing.each_path(original.tree, &mut reader, monitor, &mut |path, error| monitor.failure(path, error))?;
    Ok(Confirmed::Lost(Derived::Lost { chunks: missing.count(), paths }))
}

/// Returns the manifest of a tree in what a session may refer to and what it has stored; `None` if chunks are missing, which the
/// tree had lost before. What the session has stored is durable.
pub(super) fn manifest_of(
    store: &Store,
    session: &Session,
    options: &DeriveOptions,
    tree: Fingerprint,
) -> Result<Option<ManifestEncoder>> {
    let listed = store.list_sized_containers(&options.scratch)?;
    let live = listed.retain(|_, id| id.session == session.id || session.live.contains(id));
    let manifest = ManifestBuilder::new(session.id, &live);
    let view = View { manifest: Some(&manifest), live: live.clone(), ..View::of(session) };
    let mut reader = open_reader(store, &live, options)?;
    let missing = confirm(store, &view, &mut reader, &[tree], options)?;
    if missing.count() == 0 { manifest.finish() } else { Ok(None) }
}

pub(super) fn open_reader(store: &Store, containers: &Containers, options: &DeriveOptions) -> Result<MetadataReader> {
    let memory = MetadataMemory::left_by(containers, options.budget.parent_bytes);
    MetadataReader::open_whole(store, containers, &options.scratch, memory)
}
