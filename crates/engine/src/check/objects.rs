//! Checks the small objects: sessions, commits, what was forgotten, and the steps of collections.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::check::findings::Findings;
use crate::error::Result;
use crate::io::DiskEntry;
use crate::object::ObjectType;
use crate::object::names::{self, COMMITS, CONFIG, CONFIG_COPY, DIRECTORIES, FORGET, GC, SESSIONS, TMP};
use crate::object::sealed::{SMALL_LEN_MAX, open_small};
use crate::snapshot::{CollectionStep, Head, SessionBody, Snapshot};
use crate::store::Store;
use crate::store::commits::Commit;
use crate::types::{ContainerId, SessionId, parse_hex};

const ADVICE_COMMIT: &str = "the snapshot cannot be listed or restored any more; the others can. Run backup again, or \
                             restore this object from a copy of the repository";
const ADVICE_SESSION: &str = "no snapshot needs it to be restored, but a collection could take the session for none \
                              that ever ran: restore this object from a copy of the repository";
const ADVICE_DIRECTORY: &str = "restore it from a copy of the repository, or check the file system";

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
    /// Containers that running collections have condemned.
    pub(super) condemned: BTreeSet<ContainerId>,
    /// True if a collection ever ran: then containers may be missing for a good reason.
    pub(super) is_collected: bool,
    /// Files left over in `tmp`.
    pub(super) leftovers: u64,
}

impl History {
    /// Returns the snapshots that were not forgotten.
    pub(crate) fn snapshots(&self) -> impl Iterator<Item = (SessionId, &Snapshot)> {
        let kept = self.commits.iter().filter(|(session, _)| !self.forgotten.contains(session));
        kept.filter_map(|(session, commit)| Some((*session, commit.body.snapshot.as_ref()?)))
    }
}

/// Lists a directory of the repository; one that cannot be listed is a finding, and empty.
pub(super) fn list(store: &Store, path: &Path, findings: &mut Findings) -> Vec<DiskEntry> {
    // These are empty for most of a repository's life, and programs that copy repositories leave such directories out.
    let may_be_absent = [FORGET, GC, TMP].iter().any(|name| path == Path::new(name));
    let listed = if may_be_absent { store.list_if_there(path) } else { store.disk.list(path) };
    match listed {
        Ok(entries) => entries,
        Err(error) => {
            findings.add_error(store.display(path), &error, ADVICE_DIRECTORY);
            Vec::new()
        }
    }
}

/// Checks all small objects, and the names in the repository's directory.
pub(super) fn check_objects(store: &Store, findings: &mut Findings) -> History {
    let mut history = History::default();
    for entry in list(store, Path::new(""), findings) {
        let name = entry.name.as_str();
        if name != CONFIG && name != CONFIG_COPY && !DIRECTORIES.contains(&name) {
            findings.unknown_file(store.display(Path::new(name)), "is no part of a repository");
        }
    }
    history.leftovers = list(store, Path::new(TMP), findings).len() as u64;
    history.begun = check_sessions(store, findings);
    history.ended = parsed(store, COMMITS, findings);
    for session in &history.ended {
        match store.read_commit(*session) {
            Ok(commit) => {
                history.commits.insert(*session, commit);
            }
            Err(error) => {
                findings.add_error(store.display(&names::commit(*session)), &error, ADVICE_COMMIT);
            }
        }
    }
    for session in parsed(store, FORGET, findings) {
        let path = Path::new(FORGET).join(session.to_string());
        match store.read_forget(session) {
            Ok(()) => {
                history.forgotten.insert(session);
            }
            Err(error) => {
                let advice =
                    "the snapshot counts as there, and can be restored: move this object out of the repository";
                findings.add_error(store.display(&path), &error, advice);
            }
        }
    }
    check_collections(store, findings, &mut history);
    for session in history.ended.difference(&history.begun) {
        findings.add(
            store.display(&names::session(*session)),
            "missing, although the session has ended",
            ADVICE_SESSION,
        );
    }
    check_log(store, findings, &history);
    history
}

/// Finds containers of sessions that never began.
pub(super) fn check_container_sessions(
    store: &Store,
    findings: &mut Findings,
    history: &History,
    sessions: &BTreeSet<SessionId>,
) {
    for session in sessions.difference(&history.begun) {
        let object = store.display(&names::session(*session));
        findings.add(object, "missing, although there are containers of the session", ADVICE_SESSION);
    }
}

fn check_sessions(store: &Store, findings: &mut Findings) -> BTreeSet<SessionId> {
    let sessions = parsed(store, SESSIONS, findings);
    for session in &sessions {
        let path = names::session(*session);
        let opened = open(store, &path, ObjectType::Session, Some(*session))
            .and_then(|body| SessionBody::decode(&body).map_err(|error| error.of(store.display(&path))));
        if let Err(error) = opened {
            findings.add_error(store.display(&path), &error, ADVICE_SESSION);
        }
    }
    sessions
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
    let object = store.display(&names::commit(head.session));
    match history.commits.get(&head.session) {
        Some(commit) if commit.checksum == head.checksum => true,
        Some(_) => {
            findings.add(object, format!("is not the snapshot {}, {seen}", head.session), ADVICE_COMMIT);
            false
        }
        None if history.forgotten.contains(&head.session) => true,
        // It was found already that it cannot be read.
        None if history.ended.contains(&head.session) => false,
        None => {
            findings.add(object, format!("snapshot {}, {seen}, is gone", head.session), ADVICE_COMMIT);
            false
        }
    }
}

fn check_collections(store: &Store, findings: &mut Findings, history: &mut History) {
    for entry in list(store, Path::new(GC), findings) {
        let directory = Path::new(GC).join(&entry.name);
        let number = parse_hex(&entry.name).map(u32::from_be_bytes).filter(|_| entry.is_dir);
        let Some(number) = number else {
            findings.unknown_file(store.display(&directory), "is no collection");
            continue;
        };
        history.is_collected = true;
        let mut is_done = false;
        let mut condemned = Vec::new();
        for file in list(store, &directory, findings) {
            let path = directory.join(&file.name);
            let Some(step) = step_of(&file.name) else {
                findings.unknown_file(store.display(&path), "is no step of a collection");
                continue;
            };
            match store.read_collection(&entry.name, number, step) {
                Ok(Some(_)) if step == CollectionStep::Done => is_done = true,
                Ok(Some(body)) if step == CollectionStep::Condemn => condemned = body.containers,
                Ok(_) => {}
                Err(error) => {
                    let advice = "no snapshot needs it: move this collection out of the repository, and check again";
                    findings.add_error(store.display(&path), &error, advice);
                }
            }
        }
        if !is_done {
            history.condemned.extend(condemned);
        }
    }
}

fn step_of(name: &str) -> Option<CollectionStep> {
    match name {
        "begin" => Some(CollectionStep::Begin),
        "condemn" => Some(CollectionStep::Condemn),
        "final" => Some(CollectionStep::Final),
        "done" => Some(CollectionStep::Done),
        _ => None,
    }
}

/// Lists the sessions that a directory has objects of.
fn parsed(store: &Store, directory: &str, findings: &mut Findings) -> BTreeSet<SessionId> {
    let mut sessions = BTreeSet::new();
    for entry in list(store, Path::new(directory), findings) {
        match SessionId::parse(&entry.name) {
            Some(session) if !entry.is_dir => {
                sessions.insert(session);
            }
            _ => {
                let object = store.display(&Path::new(directory).join(&entry.name));
                findings.unknown_file(object, "has no session's name");
            }
        }
    }
    sessions
}

fn open(store: &Store, path: &Path, object_type: ObjectType, session: Option<SessionId>) -> Result<Vec<u8>> {
    let bytes = store.read(path, SMALL_LEN_MAX)?;
    let identity = (store.config.repository, session);
    Ok(open_small(&store.keys, &store.display(path), object_type, identity, bytes)?.1)
}
