//! Containers whose bases nobody vouches for.
//!
//! A collection keeps the bases of every container that it lists before it decides (step C8 of docs/protocol.md). A session that
//! collections have fenced may publish containers after that. So a container of a session that is not known to have ended by itself is
//! referred to only if a snapshot refers to it already, or if all of its bases are there for this session. From then on a
//! collection finds it, and keeps them.

use crate::bitmap::Bitmap;
use crate::error::Result;
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
        let mut lacking = Bitmap::default();
        loop {
            let before = lacking.count();
            let unknown = left.retain(|number, _| !lacking.contains(number.0));
            for (number, opened) in unknown.numbers().zip(self.open_containers(&unknown, unknown.numbers())) {
                go_on();
                let is_there = |id: ContainerId| live.find(id).is_some_and(|base| !lacking.contains(base.0));
                let has_all = opened?.1.is_ok_and(|container| {
                    container
                        .directory
                        .regions
                        .iter()
                        .flat_map(|region| region.bases.iter())
                        .all(|base| is_there(base.container))
                });
                if !has_all {
                    lacking.insert(number.0);
                }
            }
            // A container that lacks nothing itself may have a base in one that does, and that comes after it.
            if lacking.count() == before {
                return Ok(left.iter().filter(|(number, _)| lacking.contains(number.0)).map(|(_, id)| id).collect());
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
