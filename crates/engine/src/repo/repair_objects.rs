//! Repairing small objects: what nothing needs is set aside, and what can be derived is written again.
//!
//! docs/protocol.md, "Damaged small objects", says why this is safe while other commands run. Nothing is deleted.

use std::collections::BTreeSet;

use crate::check::{read_config, read_slot, version_of};
use crate::collect;
use crate::derive::DeriveOptions;
use crate::error::{Error, Result};
use crate::forget::Forgetting;
use crate::object::names::{CollectionStep, ObjectCopy, ObjectName, Prefix};
use crate::object::sealed::SMALL_LEN_MAX;
use crate::object::{ObjectType, seal_small};
use crate::repo::repair::find_losses;
use crate::snapshot::{CommitBody, CommitKind, ForgetBody, SessionBody, SessionKind};
use crate::store::Store;
use crate::store::commits::Commits;
use crate::types::{SessionId, Timestamp};

/// Outcome of repairing small objects.
#[derive(Clone, Debug, Default)]
pub struct RepairedObjects {
    /// The objects that were mended, as the user knows them, each with what was done.
    pub mended: Vec<(String, &'static str)>,
    /// Errors of the others.
    pub left: Vec<Error>,
}

const COPIED: &str = "written again from its other copy";
const PASSWORD_LOST: &str = "set aside: its password is lost";
const FORGET_AGAIN: &str = "set aside: the snapshot counts as there; forget it again if you do not want it";
const FORGOTTEN: &str = "written again: the snapshot is forgotten, and something of it is gone";
const NEVER_BEGAN: &str = "set aside: no session of this name ever began";
const ENDED: &str = "set aside: its session stays ended, and its snapshot forgotten";
/// Treatment of the commit of a snapshot that is lost with it.
pub const GIVEN_UP: &str = "set aside: the snapshot is lost, and counts as forgotten; back up again";
const FENCED: &str = "ended: the object of its session is damaged; a backup that is at work starts again";
const SESSION: &str = "written again: the session has ended";
const MANIFEST: &str = "set aside: prunes read the snapshot in its place";
const STEP: &str = "set aside: it decides nothing";
const COLLECTION_GIVEN_UP: &str = "given up with its prune: nothing that it has condemned is deleted";

/// Mends the small objects of a repository that are damaged. An object that cannot be read for another reason than damage stays, and so
/// does one of a later program. `note` is stored with snapshots that are given up. A dry run changes nothing.
pub fn repair_objects(
    store: &Store,
    options: &DeriveOptions,
    note: &ForgetBody,
    is_dry_run: bool,
) -> Result<RepairedObjects> {
    let mut run = [0; 16];
    store.host.random(&mut run)?;
    let report = RepairedObjects::default();
    let mut repair = Repair { store, options, note, run: SessionId(run), is_dry_run, report };
    if !is_dry_run {
        store.objects.complete()?;
    }
    repair.copies()?;
    repair.forgets()?;
    let commits = store.read_commits()?;
    repair.commits(&commits)?;
    repair.sessions(&commits)?;
    repair.manifests(&commits)?;
    repair.collections()?;
    Ok(repair.report)
}

struct Repair<'a> {
    store: &'a Store,
    options: &'a DeriveOptions,
    note: &'a ForgetBody,
    /// Names temporary files.
    run: SessionId,
    is_dry_run: bool,
    report: RepairedObjects,
}

impl Repair<'_> {
    /// Returns true if an error shows that an object is damaged or gone. Notes it otherwise.
    fn is_damage(&mut self, name: ObjectName, error: &Error) -> bool {
        let is_damage = match error {
            // Damage can look like that, too.
            Error::NewerFormat { .. } => !self.is_intact(name),
            error => error.is_loss(),
        };
        if !is_damage {
            self.report.left.push(error.clone());
        }
        is_damage
    }

    /// Returns true if the checksum or authentication code at the end of an object is right.
    fn is_intact(&self, name: ObjectName) -> bool {
        let bytes = self.store.read(name, SMALL_LEN_MAX).unwrap_or_default();
        let is_right =
            |(body, code): (&[u8], &[u8; 32])| self.store.keys.mac(body) == *code || blake3::hash(body) == *code;
        bytes.split_last_chunk().is_some_and(is_right)
    }

    /// Sets an object aside, and gives its name to other bytes if there are some. The name stands at every moment then.
    fn mend(&mut self, name: ObjectName, replacement: Option<&[u8]>, how: &'static str) -> Result<()> {
        self.report.mended.push((self.store.display(name), how));
        let objects = &self.store.objects;
        match replacement {
            _ if self.is_dry_run => Ok(()),
            Some(bytes) if matches!(objects.len(name), Ok(None)) => objects.create(self.run, name, bytes).map(|_| ()),
            replacement => objects.quarantine_object(self.run, name, replacement),
        }
    }

    fn seal(&self, object_type: ObjectType, session: SessionId, body: &[u8]) -> Result<Vec<u8>> {
        let Store { keys, host, config, .. } = self.store;
        seal_small(keys, &**host, object_type.of(config.format), (config.repository, session, 0), body)
    }

    fn fence(&self, session: SessionId) -> Result<Vec<u8>> {
        let body = CommitBody::without_snapshot(CommitKind::Fence).encode();
        self.seal(ObjectType::Commit, session, &body)
    }

    /// Mends what opens the repository: each object has two copies.
    fn copies(&mut self) -> Result<()> {
        let store = self.store;
        self.pair(ObjectCopy::BOTH.map(ObjectName::Config), &|name| read_config(store, name), false)?;
        let slots: BTreeSet<[u8; 16]> = store
            .list(Prefix::Keys)?
            .into_iter()
            .filter_map(|name| if let ObjectName::Slot(id, _) = name { Some(id) } else { None })
            .collect();
        let names = |id: [u8; 16]| ObjectCopy::BOTH.map(|copy| ObjectName::Slot(id, copy));
        let opens = |id: &[u8; 16]| names(*id).into_iter().any(|name| read_slot(store, name, *id).is_ok());
        let has_another = store.config.clear_key.is_some() || slots.iter().any(opens);
        slots.iter().try_for_each(|id| self.pair(names(*id), &|name| read_slot(store, name, *id), has_another))
    }

    fn pair(
        &mut self,
        [first, second]: [ObjectName; 2],
        read: &dyn Fn(ObjectName) -> Result<Vec<u8>>,
        is_dispensable: bool,
    ) -> Result<()> {
        match (read(first), read(second)) {
            // An upgrade that was interrupted is run again.
            (Ok(one), Ok(other)) if one == other || version_of(&one) != version_of(&other) => Ok(()),
            (Ok(bytes), Ok(_)) => self.mend(second, Some(&bytes), COPIED),
            (Ok(bytes), Err(error)) if self.is_damage(second, &error) => self.mend(second, Some(&bytes), COPIED),
            (Err(error), Ok(bytes)) if self.is_damage(first, &error) => self.mend(first, Some(&bytes), COPIED),
            (Err(one), Err(other)) if self.is_damage(first, &one) && self.is_damage(second, &other) => {
                if !is_dispensable {
                    self.report.left.push(one);
                    return Ok(());
                }
                [first, second].into_iter().try_for_each(|name| self.mend(name, None, PASSWORD_LOST))
            }
            _ => Ok(()),
        }
    }

    /// A forget that cannot be read forgets nothing. It is written again only if a prune has taken something of the snapshot already.
    fn forgets(&mut self) -> Result<()> {
        for session in self.store.list_sessions(Prefix::Forget)? {
            let name = ObjectName::Forget(session);
            let Err(error) = self.store.read_forget(session) else { continue };
            if !self.is_damage(name, &error) {
                continue;
            }
            match self.is_whole(session) {
                Ok(true) => self.mend(name, None, FORGET_AGAIN)?,
                Ok(false) => {
                    let bytes = self.seal(ObjectType::Forget, session, &self.note.encode())?;
                    self.mend(name, Some(&bytes), FORGOTTEN)?;
                }
                Err(error) => self.report.left.push(error),
            }
        }
        Ok(())
    }

    /// Returns true if nothing of a snapshot is lost, or if its commit is gone.
    fn is_whole(&mut self, session: SessionId) -> Result<bool> {
        match self.store.read_commit(session) {
            Ok(commit) => match &commit.body.snapshot {
                Some(snapshot) => {
                    let mut losses = find_losses(self.store, self.options, &[snapshot])?;
                    Ok(!losses.hit(snapshot, self.options)?)
                }
                None => Ok(false),
            },
            Err(error) if error.is_missing_object() => Ok(true),
            Err(error) if error.is_loss() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A fence takes the place of a commit: the session has ended, and nothing proves that its containers are durable or have their bases.
    /// The snapshot counts as forgotten before that.
    fn commits(&mut self, commits: &Commits) -> Result<()> {
        for (session, error) in &commits.unknown {
            let name = ObjectName::Commit(*session);
            if self.is_damage(name, error) {
                self.mend(name, None, NEVER_BEGAN)?;
            }
        }
        for (session, error) in &commits.findings {
            let name = ObjectName::Commit(*session);
            if !self.is_damage(name, error) {
                continue;
            }
            let is_forgotten = commits.forgotten.contains(session);
            if !is_forgotten && !self.is_dry_run {
                Forgetting::begin(self.store, self.note)?.forget(*session)?;
            }
            let fence = self.fence(*session)?;
            self.mend(name, Some(&fence), if is_forgotten { ENDED } else { GIVEN_UP })?;
        }
        Ok(())
    }

    /// The object of a session that has ended tells when it began, and no more. One that has not ended is fenced first.
    fn sessions(&mut self, commits: &Commits) -> Result<()> {
        let mut sessions = self.store.list_sessions(Prefix::Sessions)?;
        sessions.extend(commits.commits.iter().map(|commit| commit.session));
        sessions.extend(commits.findings.iter().map(|(session, _)| *session));
        sessions.extend(self.store.list_containers(&self.options.scratch)?.sessions());
        for session in sessions {
            let name = ObjectName::Session(session);
            let Err(error) = self.store.read_session(session) else { continue };
            if !self.is_damage(name, &error) {
                continue;
            }
            if matches!(self.store.objects.len(ObjectName::Commit(session)), Ok(None)) {
                let fence = self.fence(session)?;
                self.mend(ObjectName::Commit(session), Some(&fence), FENCED)?;
            }
            let snapshot = commits.commit_of(session).and_then(|commit| commit.body.snapshot.as_ref());
            // Without a snapshot, the session counts as the oldest, as before.
            let time = snapshot.map_or(Timestamp::default(), |snapshot| snapshot.time);
            let (kind, hostname) = (SessionKind::Backup, String::new());
            let body = SessionBody { kind, collections_seen: 0, time, hostname, process: None };
            let bytes = self.seal(ObjectType::Session, session, &body.encode())?;
            self.mend(name, Some(&bytes), SESSION)?;
        }
        Ok(())
    }

    /// A commit names the checksum of its manifest, so that no other one can take its place.
    fn manifests(&mut self, commits: &Commits) -> Result<()> {
        for session in self.store.list_sessions(Prefix::Manifests)? {
            let name = ObjectName::Manifest(session);
            let Some(checksum) = commits.commit_of(session).and_then(|commit| commit.body.manifest) else { continue };
            if let Err(error) = self.store.read_manifest(session, &checksum, &mut |_, _| Ok(()))
                && self.is_damage(name, &error)
            {
                self.mend(name, None, MANIFEST)?;
            }
        }
        Ok(())
    }

    /// `begin` only takes a number, and a `done` that does not open ends nothing. What `condemn` and `final` decide stays for prunes.
    fn collections(&mut self) -> Result<()> {
        for (number, steps) in self.store.list_collections()? {
            let read = |step| self.store.read_collection(number, step, &mut |_| Ok(()));
            let failed = steps.iter().filter_map(|step| Some((*step, read(*step).err()?)));
            let failed: Vec<(CollectionStep, Error)> = failed.collect();
            let opens = |step: &CollectionStep| steps.contains(step) && failed.iter().all(|(other, _)| other != step);
            let is_decided = opens(&CollectionStep::Final) || opens(&CollectionStep::Done);
            let has_final = steps.contains(&CollectionStep::Final);
            for (step, error) in &failed {
                let name = ObjectName::Collection(number, *step);
                if !self.is_damage(name, error) {
                    continue;
                }
                match step {
                    CollectionStep::Begin | CollectionStep::Done => self.mend(name, None, STEP)?,
                    CollectionStep::Condemn | CollectionStep::Final if is_decided => {}
                    CollectionStep::Condemn if !has_final => {
                        if !self.is_dry_run && collect::give_up(self.store, &self.options.hostname)? != Some(number) {
                            self.report.left.push(error.clone());
                            continue;
                        }
                        self.report.mended.push((self.store.display(name), COLLECTION_GIVEN_UP));
                    }
                    CollectionStep::Condemn | CollectionStep::Final => {
                        self.report.left.push(error.clone().context("see what `onefold check` advises"));
                    }
                }
            }
        }
        Ok(())
    }
}
