//! Containers whose bases nobody vouches for.
//!
//! A collection keeps the bases of every container that it lists before it decides (step C8 of docs/protocol.md). A session that
//! collections have fenced may publish containers after that. So a container of a session that is not known to have ended by itself is
//! referred to only if a snapshot refers to it already, or if all of its bases are there for this session. From then on a
//! collection finds it, and keeps them.
//!
//! Containers whose base is lost or damaged are not referred to either: their chunks are stored again.

use std::collections::BTreeSet;

use crate::bitmap::Bitmap;
use crate::error::{Error, Result};
use crate::object::names::ContainerName;
use crate::snapshot::CommitKind;
use crate::store::Store;
use crate::store::commits::Commits;
use crate::store::container_ids::ContainerIds;
use crate::store::container_set::{ContainerNumber, Containers, RunCursor};
use crate::types::{ContainerId, SessionId};

impl Store {
    /// Returns `live` without what may lack a base; see [`Store::lacking_bases`].
    pub(crate) fn without_lacking(
        &self,
        live: Containers,
        commits: &Commits,
        go_on: &mut dyn FnMut(),
    ) -> Result<Containers> {
        if !commits.may_have_bases(self.config.format) {
            return Ok(live);
        }
        let lacking = self.lacking_bases(&live, commits, go_on)?;
        Ok(if lacking.iter().next().is_none() { live } else { live.retain(|_, id| !lacking.contains(id)) })
    }

    /// Returns the containers among `live` that may lack a base, directly or over others. `live` are all that are listed
    /// and not absent; `commits` were read after they were listed. `go_on` is called for each container that is opened.
    ///
    /// A listing of commits that is too old makes a session one that has not ended, whose containers are looked at, too.
    pub(crate) fn lacking_bases(
        &self,
        live: &Containers,
        commits: &Commits,
        go_on: &mut dyn FnMut(),
    ) -> Result<ContainerIds> {
        let has_ended = |session: SessionId| {
            commits.commit_of(session).is_some_and(|commit| match commit.body.kind {
                CommitKind::Snapshot | CommitKind::Done | CommitKind::Durable => true,
                CommitKind::Fence => false,
            })
        };
        let mut of_session = (None, false);
        let unvouched = live.retain(|_, id| {
            if of_session.0 != Some(id.session) {
                of_session = (Some(id.session), has_ended(id.session));
            }
            !of_session.1
        });
        let left = self.without_referred(&unvouched, commits)?;
        let mut lacking = Vec::new();
        let mut take = |name: &ContainerName, _: &Error| {
            lacking.push(name.id);
            Ok(())
        };
        let mut go_on = || {
            go_on();
            Ok(())
        };
        self.lacking_among(&left, live, &BTreeSet::new(), &mut go_on, &mut take)?;
        Ok(lacking.into_iter().collect())
    }

    /// Calls `take` for those of some containers that lack a base, directly or over each other, and those that cannot be opened, with the
    /// reason. Bases are there if their containers are `listed`, and not `lost` all the same. `go_on` is called for each container that is
    /// opened.
    pub(crate) fn lacking_among(
        &self,
        among: &Containers,
        listed: &Containers,
        lost: &BTreeSet<ContainerId>,
        go_on: &mut dyn FnMut() -> Result<()>,
        take: &mut dyn FnMut(&ContainerName, &Error) -> Result<()>,
    ) -> Result<()> {
        let (mut lacking, mut alone) = (Bitmap::default(), Bitmap::default());
        loop {
            let mut has_found = false;
            let unknown = among.retain(|number, _| !lacking.contains(number.0) && !alone.contains(number.0));
            for (number, opened) in unknown.numbers().zip(self.open_containers(&unknown, unknown.numbers())) {
                go_on()?;
                let (name, opened) = opened?;
                let is_there = |id| {
                    !lost.contains(&id)
                        && listed.find(id).is_some_and(|base: ContainerNumber| !lacking.contains(base.0))
                };
                let has_bases = opened.and_then(|container| {
                    container.expect_bases_in(&is_there)?;
                    Ok(container.has_bases())
                });
                match has_bases {
                    Ok(true) => {}
                    Ok(false) => alone.insert(number.0),
                    Err(error) => {
                        lacking.insert(number.0);
                        has_found = true;
                        take(&name, &error)?;
                    }
                }
            }
            // A container that lacks nothing itself may have a base in one that does, and that comes after it.
            if !has_found {
                return Ok(());
            }
        }
    }

    /// Returns those of some containers that no manifest of a snapshot lists, of as many manifests as are worth reading: one costs
    /// what a directory costs. The newest come first, since they list most of what there is.
    fn without_referred(&self, containers: &Containers, commits: &Commits) -> Result<Containers> {
        let mut left = containers.clone();
        for (read, (session, _)) in commits.snapshots().into_iter().rev().enumerate() {
            if left.len() <= read {
                break;
            }
            let Some(checksum) = commits.commit_of(session).and_then(|commit| commit.body.manifest) else { continue };
            let (mut referred, mut near) = (Bitmap::default(), RunCursor::default());
            let read = self.read_manifest(session, &checksum, &mut |id, _| {
                if let Some(ContainerNumber(number)) = left.find_near(id, &mut near) {
                    referred.insert(number);
                }
                Ok(())
            });
            match read {
                Ok(()) => left = left.retain(|number, _| !referred.contains(number.0)),
                Err(error) if error.is_loss() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(left)
    }
}
