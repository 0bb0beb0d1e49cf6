//! Checks the small objects: sessions, commits, what was forgotten, and the steps of collections.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::findings::{Findings, problem_of};
use crate::object::directory::quarantine::QUARANTINED;
use crate::object::names::{CollectionStep, ObjectName, Prefix};
use crate::object::store::{Detail, Listed};
use crate::snapshot::{CollectionItem, CommitKind, Head, Snapshot};
use crate::store::Store;
use crate::store::commits::Commit;
use crate::store::container_ids::ContainerIds;
use crate::types::SessionId;

const ADVICE_COMMIT: &str = "the snapshot cannot be listed or restored any more; the others can. Restore this object from a \
                             copy of the repository, or give the snapshot up with `onefold repair objects` and back up again";
const ADVICE_GONE: &str = "bring the object back from a copy of the repository, or give the snapshot up: `onefold forget` with its \
                           whole id, or --accept-rollback if only this host has seen it";
const ADVICE_REPAIR: &str = "no snapshot needs it: `onefold repair objects` mends it";
const ADVICE_FINAL: &str =
    "no snapshot needs it: `onefold prune` deletes what this collection has condemned, and ends it";
const ADVICE_CONDEMN: &str =
    "no snapshot needs it, but backups fail: `onefold repair objects` gives this collection up";
const ADVICE_BOTH: &str =
    "no snapshot needs it, but backups fail: when no prune is at work, move this collection out of the repository";
const ADVICE_SESSION: &str = "no snapshot needs it to be restored: `onefold repair objects` writes it again";
pub(super) const ADVICE_DIRECTORY: &str = "restore it from a copy of the repository, or check the file system";

/// Results of reading the small objects.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Commits that can be read.
    pub(super) commits: BTreeMap<SessionId, Commit>,
    /// Snapshots that were forgotten.
    pub(super) forgotten: BTreeSet<SessionId>,
    /// Names of all sessions that have begun, and of all that have ended.
    pub(super) begun: BTreeSet<SessionId>,
    /// Names of all sessions that have ended, commits that cannot be read among them.
    pub(super) ended: BTreeSet<SessionId>,
    /// Containers that collections have deleted or are about to delete: each `final` names some.
    pub(super) removed: ContainerIds,
    /// Numbers of the collections whose `final` was read.
    pub(super) finals: BTreeSet<u32>,
    /// Where the chunks of deleted containers are, as the newest `final` says.
    pub(super) moved: Option<MovedTargets>,
    /// Files left over in `tmp`.
    pub(super) leftovers: u64,
}

/// The containers that a `final` names in place of deleted ones.
#[derive(Debug)]
pub(super) struct MovedTargets {
    /// Number of its collection.
    pub(super) number: u32,
    /// The containers.
    pub(super) targets: ContainerIds,
}

impl History {
    /// Returns true if a session is known to have ended by itself.
    pub(super) fn has_ended_by_itself(&self, session: SessionId) -> bool {
        self.commits.get(&session).is_some_and(|commit| commit.body.kind != CommitKind::Fence)
    }

    /// Returns the snapshots that were not forgotten.
    pub(crate) fn snapshots(&self) -> impl Iterator<Item = (SessionId, &Snapshot)> {
        let kept = self.commits.iter().filter(|(session, _)| !self.forgotten.contains(session));
        kept.filter_map(|(session, commit)| Some((*session, commit.body.snapshot.as_ref()?)))
    }
}

/// Lists the objects under a prefix and reports names that are no object's. A prefix that cannot be listed is a finding.
pub(super) fn list(store: &Store, prefix: Prefix, problem: &str, findings: &mut Findings) -> Vec<ObjectName> {
    let mut names = Vec::new();
    let mut unknown = Vec::new();
    let listed = store.objects.list(prefix, Detail::Names, &mut |page| {
        for Listed { name, .. } in page {
            match name {
                Ok(name) => names.push(name),
                Err(name) => unknown.push(name),
            }
        }
        Ok(())
    });
    if let Err(error) = listed {
        findings.add_error(store.display(prefix), &error, ADVICE_DIRECTORY);
    }
    for name in unknown {
        let is_quarantined = name.ends_with(QUARANTINED);
        findings.unknown_file(store.display(name), if is_quarantined { "was set aside as damaged" } else { problem });
    }
    names
}

/// Checks all small objects, and the names in the repository's directory.
pub(super) fn check_objects(store: &Store, findings: &mut Findings) -> History {
    let mut history = History::default();
    list(store, Prefix::Root, "is no part of a repository", findings);
    match store.objects.leftovers(&|_| false) {
        Ok(leftovers) => history.leftovers = leftovers.kept,
        Err(error) => {
            findings.add_error(store.display(""), &error, ADVICE_DIRECTORY);
        }
    }
    history.begun = check_sessions(store, findings);
    history.ended = sessions(store, Prefix::Commits, findings);
    let mut unread = Vec::new();
    for session in &history.ended {
        match store.read_commit(*session) {
            Ok(commit) => {
                history.commits.insert(*session, commit);
            }
            Err(error) => unread.push((*session, error)),
        }
    }
    check_forgets(store, findings, &mut history);
    for (session, error) in unread {
        let object = store.display(ObjectName::Commit(session));
        let is_seen =
            history.commits.values().any(|commit| commit.body.heads.iter().any(|head| head.session == session));
        if !is_seen && store.never_began(session) {
            history.ended.remove(&session);
            findings.unknown_file(object, format!("{}; no session of this name ever began", problem_of(&error)));
        } else if history.forgotten.contains(&session) {
            findings.add_error(object, &error, ADVICE_REPAIR);
        } else {
            findings.add_error(object, &error, ADVICE_COMMIT);
        }
    }
    check_collections(store, findings, &mut history);
    check_sessions_begun(store, findings, &history);
    check_log(store, findings, &history);
    history.leftovers += count_orphans(store, findings, &history);
    history
}

fn check_forgets(store: &Store, findings: &mut Findings, history: &mut History) {
    for session in sessions(store, Prefix::Forget, findings) {
        match store.read_forget(session) {
            Ok(()) => {
                history.forgotten.insert(session);
            }
            Err(error) => {
                let advice = "the snapshot counts as there: `onefold repair objects` mends it";
                findings.add_error(store.display(ObjectName::Forget(session)), &error, advice);
            }
        }
    }
}

/// Finds sessions that have ended and have no object.
fn check_sessions_begun(store: &Store, findings: &mut Findings, history: &History) {
    for session in history.ended.difference(&history.begun).filter(|session| is_missing(store, **session)) {
        findings.add(
            store.display(ObjectName::Session(*session)),
            "missing, although the session has ended",
            ADVICE_SESSION,
        );
    }
}

/// Returns how many manifests there are of sessions that ended without a snapshot.
fn count_orphans(store: &Store, findings: &mut Findings, history: &History) -> u64 {
    let manifests = sessions(store, Prefix::Manifests, findings);
    let is_orphan = |session: &&SessionId| {
        let commit = history.commits.get(*session);
        commit.is_some_and(|commit| commit.body.kind != CommitKind::Snapshot)
    };
    manifests.iter().filter(is_orphan).count() as u64
}

/// Returns true if a session has no object. One that was not listed may have begun since.
fn is_missing(store: &Store, session: SessionId) -> bool {
    !matches!(store.objects.len(ObjectName::Session(session)), Ok(Some(_)))
}

/// Finds containers of sessions that never began.
pub(super) fn check_container_sessions(
    store: &Store,
    findings: &mut Findings,
    history: &History,
    sessions: &BTreeSet<SessionId>,
) {
    for session in sessions.difference(&history.begun).filter(|session| is_missing(store, **session)) {
        let object = store.display(ObjectName::Session(*session));
        findings.add(object, "missing, although there are containers of the session", ADVICE_SESSION);
    }
}

fn check_sessions(store: &Store, findings: &mut Findings) -> BTreeSet<SessionId> {
    let begun = sessions(store, Prefix::Sessions, findings);
    for session in &begun {
        if let Err(error) = store.read_session(*session) {
            findings.add_error(store.display(ObjectName::Session(*session)), &error, ADVICE_SESSION);
        }
    }
    begun
}

/// Follows the log: every head that a commit has seen is there, unless it was forgotten, and is the one it saw.
fn check_log(store: &Store, findings: &mut Findings, history: &History) {
    for (session, commit) in &history.commits {
        for head in &commit.body.heads {
            check_head(store, findings, history, head, &format!("seen by snapshot {session}"));
        }
    }
}

/// Checks a head that was seen.
pub(super) fn check_head(store: &Store, findings: &mut Findings, history: &History, head: &Head, seen: &str) -> bool {
    let object = store.display(ObjectName::Commit(head.session));
    match history.commits.get(&head.session) {
        Some(commit) if commit.checksum == head.checksum => true,
        // A collection fences the session of a forgotten snapshot.
        _ if history.forgotten.contains(&head.session) => true,
        Some(_) => {
            findings.add(object, format!("is not the snapshot {}, {seen}", head.session), ADVICE_GONE);
            false
        }
        // It was found already that it cannot be read.
        None if history.ended.contains(&head.session) => false,
        None => {
            findings.add(object, format!("snapshot {}, {seen}, is gone", head.session), ADVICE_GONE);
            false
        }
    }
}

fn check_collections(store: &Store, findings: &mut Findings, history: &mut History) {
    let mut moved: Option<MovedTargets> = None;
    let (mut damaged, mut ended, mut decided) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let names = list(store, Prefix::Collections, "is no step of a collection", findings);
    let given = store.list_collections();
    for name in names {
        let ObjectName::Collection(number, step) = name else { continue };
        if given.as_ref().is_ok_and(|given| !given.contains_key(&number)) {
            findings.unknown_file(store.display(name), "is of a collection that never began");
            continue;
        }
        if step == CollectionStep::Final {
            decided.insert(number);
        }
        let (mut removed, mut targets, mut has_moved) = (ContainerIds::default(), ContainerIds::default(), false);
        let mut take = |item: CollectionItem<'_>| {
            match item {
                CollectionItem::Container(id) if step == CollectionStep::Final => removed.push(id),
                CollectionItem::Moved(_, to) => {
                    has_moved = true;
                    for id in to {
                        targets.push(*id);
                    }
                }
                CollectionItem::Container(_) | CollectionItem::Quarantined(_) | CollectionItem::Marked(_) => {}
            }
            Ok(())
        };
        match store.read_collection(number, step, &mut take) {
            Ok(_) if step == CollectionStep::Final => {
                history.removed.append(removed);
                history.finals.insert(number);
            }
            Ok(_) if step == CollectionStep::Done => {
                ended.insert(number);
            }
            Ok(_) => {}
            Err(error) => {
                damaged.push((number, step, error));
                continue;
            }
        }
        if has_moved && moved.as_ref().is_none_or(|newest| newest.number < number) {
            targets.sort();
            moved = Some(MovedTargets { number, targets });
        }
    }
    for (number, step, error) in damaged {
        let object = store.display(ObjectName::Collection(number, step));
        if ended.contains(&number) || history.finals.contains(&number) {
            findings.add_needless(object, &error);
            // All that it has condemned is gone.
            if step == CollectionStep::Final
                && let Ok(removed) = store.read_ids(number, CollectionStep::Condemn)
            {
                history.removed.append(removed);
                history.finals.insert(number);
            }
            continue;
        }
        let advice = match step {
            CollectionStep::Final => ADVICE_FINAL,
            CollectionStep::Condemn if !decided.contains(&number) => ADVICE_CONDEMN,
            CollectionStep::Condemn => ADVICE_BOTH,
            CollectionStep::Begin | CollectionStep::Done => ADVICE_REPAIR,
        };
        findings.add_error(object, &error, advice);
    }
    history.removed.sort();
    history.moved = moved;
}

/// Lists the sessions that have an object under a prefix.
fn sessions(store: &Store, prefix: Prefix, findings: &mut Findings) -> BTreeSet<SessionId> {
    let names = list(store, prefix, "has no session's name", findings);
    names.iter().filter_map(ObjectName::session).collect()
}
