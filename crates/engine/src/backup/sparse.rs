//! The sparse containers of a backup: those of which its parent uses little, and whose chunks are stored again instead of referred to.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::backup::rewriting::History;
use crate::error::Result;
use crate::object::names::ContainerKind;
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::types::{ContainerId, SessionId};

/// Most directories that are read to learn how much containers hold.
const DIRECTORIES_MAX: usize = 256;

/// The containers that a backup refers to in no way.
#[derive(Clone, Default, Debug)]
pub(super) struct Shunned {
    /// Their names.
    pub(super) containers: Arc<BTreeSet<ContainerId>>,
    /// Why there are none, if the parent could not tell.
    pub(super) reason: Option<String>,
}

/// A container of which the parent may use little.
struct Candidate {
    number: ContainerNumber,
    id: ContainerId,
    /// Used part, in 1/255 of the file's bytes, or of the plaintext of its chunks.
    share: u8,
    is_of_plaintext: bool,
    /// Used bytes, if the plaintext is as long as the file.
    used: u64,
}

/// Finds the data containers of which the parent's manifest says that it uses little. A share that is noted of a compressed file is too
/// great for one of the plaintext, so that the directory of each candidate says how long that is. Fewest used bytes come first.
pub(super) fn find_sparse(
    store: &Store,
    live: &Containers,
    parent: Option<&(SessionId, Snapshot)>,
    history: History,
) -> Result<Shunned> {
    let none =
        |reason: &str| Ok(Shunned { reason: Some(format!("nothing is stored again: {reason}")), ..Shunned::default() });
    let Some((session, snapshot)) = parent else { return none("there is no parent snapshot") };
    let mut candidates = match read_candidates(store, live, *session, snapshot) {
        Ok(Some(candidates)) => candidates,
        Ok(None) => return none("the parent snapshot has no manifest"),
        Err(error) if error.is_loss() => return none(&format!("the manifest of the parent snapshot: {error}")),
        Err(error) => return Err(error),
    };
    candidates.sort_unstable_by_key(|candidate| (candidate.used, candidate.id));
    candidates.truncate(DIRECTORIES_MAX);
    let mut sparse = Vec::new();
    let opened = store.open_containers(live, candidates.iter().map(|candidate| candidate.number));
    for (candidate, opened) in candidates.iter().zip(opened) {
        // One that cannot be read is not known to be sparse. The index answers for its chunks.
        let Ok(container) = opened?.1 else { continue };
        let plain: u64 = container.directory.chunks.iter().map(|chunk| u64::from(chunk.len)).sum();
        let used = if candidate.is_of_plaintext { used_bytes(candidate.share, plain) } else { candidate.used };
        if history.is_sparse(used, plain) {
            sparse.push((candidate.id, used));
        }
    }
    let containers = history.within_limit(sparse, snapshot.summary.bytes_processed);
    Ok(Shunned { containers: Arc::new(containers.into_iter().collect()), reason: None })
}

/// Reads which live data containers the parent does not use as a whole; `None` if it has no manifest.
fn read_candidates(
    store: &Store,
    live: &Containers,
    session: SessionId,
    snapshot: &Snapshot,
) -> Result<Option<Vec<Candidate>>> {
    let Some(checksum) = store.read_commit(session)?.body.manifest else { return Ok(None) };
    // The manifest of a snapshot that was made from another one may have the shares of that one's own containers.
    let is_derived = snapshot.original.is_some();
    let mut candidates = Vec::new();
    store.read_manifest(session, &checksum, &mut |id, share| {
        let Some(number) = live.find(id).filter(|number| live.kind(*number) == ContainerKind::Data) else {
            return Ok(());
        };
        if share != u8::MAX {
            let used = used_bytes(share, live.sized(number)?.1);
            candidates.push(Candidate {
                number,
                id,
                share,
                is_of_plaintext: is_derived || id.session == session,
                used,
            });
        }
        Ok(())
    })?;
    Ok(Some(candidates))
}

fn used_bytes(share: u8, all: u64) -> u64 {
    (all * u64::from(share)).div_ceil(255)
}
