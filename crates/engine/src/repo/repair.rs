//! Repairing snapshots: each that has lost something gets a successor without it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::derive::confirm::{Missing, View, confirm};
use crate::derive::node_stage::NodeStage;
use crate::derive::rebuild::{Rebuild, RebuiltTree};
use crate::derive::without_lost::WithoutLost;
use crate::derive::{DeriveOptions, StoreOptions};
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::repo::derive::{
    Derived, Outcome, derived_from, exists, find_same, in_session, manifest_of, of_rebuilt, open_reader, root_of,
};
use crate::snapshot::{CommitKind, Snapshot, Summary};
use crate::store::{MetadataReader, Session, Store};
use crate::types::{Fingerprint, SessionId};

/// Times that the search for losses begins again because a collection has gone on meanwhile.
const SEARCHES_MAX: usize = 3;

/// Outcomes of repairing a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Repaired {
    /// A snapshot without what is lost was made. It is durable.
    Made(SessionId, Box<Snapshot>),
    /// This snapshot is the same already, and no other was made.
    Exists(SessionId),
    /// Nothing of the snapshot is lost.
    Sound,
    /// Nothing of the snapshot is left, and no other was made.
    Empty,
}

/// Losses of snapshots. Holds memory until it is dropped.
#[derive(Debug)]
pub struct Losses {
    reader: MetadataReader,
    missing: Missing,
}

/// Looks for what snapshots have lost, and writes nothing. Every container that the repository has counts, unless it may lack a base.
///
/// Fails if a container cannot be read for another reason than loss or damage, and while a collection is about to choose what
/// it deletes: what it may delete cannot be told from what is lost.
pub fn find_losses(store: &Store, options: &DeriveOptions, snapshots: &[&Snapshot]) -> Result<Losses> {
    let roots: Vec<Fingerprint> = snapshots.iter().map(|snapshot| snapshot.tree).collect();
    let mut searches = 1;
    loop {
        let absent = store.read_absent()?;
        refuse_if(absent.is_condemning)?;
        let live = absent.live(&store.list_sized_containers(&options.scratch)?);
        let live = store.without_lacking(live, &store.read_commits()?, &mut || ())?;
        let mut reader = open_reader(store, &live, options)?;
        let view = View { manifest: None, live, in_doubt: BTreeSet::new(), session: None };
        let missing = confirm(store, &view, &mut reader, &roots, options)?;
        // What a collection has deleted since the listing may stand in containers that it has made.
        let is_current = missing.count() == 0 || store.read_absent()?.containers == absent.containers;
        if is_current || SEARCHES_MAX <= searches {
            return Ok(Losses { reader, missing });
        }
        searches += 1;
    }
}

impl Losses {
    /// Returns true if no snapshot has lost anything.
    pub fn is_empty(&self) -> bool {
        self.missing.count() == 0
    }

    /// Returns true if a snapshot has lost something.
    pub fn hit(&mut self, snapshot: &Snapshot, options: &DeriveOptions) -> Result<bool> {
        let silent = Quiet(&*options.monitor);
        Ok(!self.is_empty() && self.rebuild(snapshot, &[], &silent)?.is_changed)
    }

    /// Returns what [`repair_snapshot`] would make of a snapshot, and writes nothing; `None` if nothing is lost, or nothing left.
    /// The monitor gets each path that has lost something.
    pub fn try_repair(
        &mut self,
        (id, snapshot): (SessionId, &Snapshot),
        suffix: &[u8],
        options: &DeriveOptions,
    ) -> Result<Option<Snapshot>> {
        let rebuilt = self.rebuild(snapshot, suffix, &*options.monitor)?;
        let is_made = rebuilt.is_changed && 0 < rebuilt.entries;
        Ok(is_made.then(|| of_rebuilt(derived_from(id, snapshot), &rebuilt)))
    }

    fn rebuild(&mut self, snapshot: &Snapshot, suffix: &[u8], monitor: &dyn Monitor) -> Result<RebuiltTree> {
        let mut edit = WithoutLost { missing: &mut self.missing, suffix, monitor };
        Rebuild::new(&mut self.reader, None).with(snapshot.tree, &mut edit, monitor)
    }
}

/// Reports nothing, and can be interrupted as another monitor is.
#[derive(Debug)]
struct Quiet<'a>(&'a dyn Monitor);

impl Monitor for Quiet<'_> {
    fn is_interrupted(&self) -> bool {
        self.0.is_interrupted()
    }
}

/// Makes a snapshot of another one without what is lost. Files keep their whole chunks, and their names get `suffix` if they are
/// shortened; directories keep the entries that can be read. The monitor gets each path that has lost something. The other
/// snapshot stays.
pub fn repair_snapshot(
    store: &Store,
    options: &DeriveOptions,
    storing: &StoreOptions,
    from: SessionId,
    suffix: &[u8],
) -> Result<Repaired> {
    let mut is_empty = false;
    let derived = in_session(store, options, &mut |session, commits| {
        is_empty = false;
        refuse_if(session.is_condemning)?;
        let original = root_of(store, commits, from)?;
        let Confirmed { mut reader, mut missing } = confirm_usable(store, session, options, original.tree)?;
        if missing.count() == 0 {
            return Ok(Outcome::Nothing(Derived::Unmodified));
        }
        let mut stage = NodeStage::new(store, session, options, storing)?;
        let mut edit = WithoutLost { missing: &mut missing, suffix, monitor: &*options.monitor };
        let rebuilt = Rebuild::new(&mut reader, Some(&mut stage)).with(original.tree, &mut edit, &*options.monitor)?;
        let mut snapshot = of_rebuilt(derived_from(from, original), &rebuilt);
        if rebuilt.entries == 0 {
            // A collection that has fenced the session may have deleted what is missing.
            if session.end()? == Some(CommitKind::Fence) {
                return Err(Error::Fenced { session: session.id });
            }
            is_empty = true;
            return Ok(Outcome::Nothing(Derived::Unmodified));
        }
        if let Some(same) = find_same(commits, &snapshot) {
            return exists(session, same);
        }
        // Everything the commit refers to is durable before it: see docs/durability.md, D1 to D5.
        let Summary { metadata_chunks, data_added, data_added_packed, .. } = stage.finish()?;
        snapshot.summary = Summary { metadata_chunks, data_added, data_added_packed, ..snapshot.summary };
        let manifest = manifest_of(store, session, options, snapshot.tree)?;
        Ok(Outcome::Commit(Box::new(snapshot), manifest))
    })?;
    Ok(match derived {
        Derived::Made(session, snapshot) => Repaired::Made(session, snapshot),
        Derived::Exists(session) => Repaired::Exists(session),
        Derived::Unmodified | Derived::Lost { .. } if is_empty => Repaired::Empty,
        Derived::Unmodified | Derived::Lost { .. } => Repaired::Sound,
    })
}

/// The chunks of a tree that are missing, and a reader of the containers that have the others.
struct Confirmed {
    reader: MetadataReader,
    missing: Missing,
}

/// Looks for all chunks of a tree in containers that are durable or can be made so.
fn confirm_usable(
    store: &Store,
    session: &Arc<Session>,
    options: &DeriveOptions,
    root: Fingerprint,
) -> Result<Confirmed> {
    let mut view = View::of(session);
    loop {
        let mut reader = open_reader(store, &view.live, options)?;
        let missing = confirm(store, &view, &mut reader, &[root], options)?;
        if missing.unusable().is_empty() {
            return Ok(Confirmed { reader, missing });
        }
        // The reader must not find nodes in them.
        view.live = view.live.retain(|_, id| !missing.unusable().contains(&id));
    }
}

fn refuse_if(is_condemning: bool) -> Result<()> {
    let reason = "a collection is about to choose what it deletes, which cannot be told from what is lost: \
                  repair the snapshots when it has ended";
    if is_condemning { Err(Error::invalid(reason)) } else { Ok(()) }
}
