//! Trying whether listings show changes at once, which reclaiming space relies on.
//!
//! A writer creates its session, then lists collections; a collector creates `condemn`, then lists sessions. So one of them
//! sees the other, if a listing shows every name whose creation returned before the listing began, and none whose removal did.
//! A writer also makes containers with bases, then ends; the collector lists containers before it deletes bases.
//! A client that caches listings breaks this. Before each of these listings its client therefore makes a change of its own in the
//! directory. [`try_handshake`] tries the steps with two handles to a store.

use crate::error::Result;
use crate::object::names::Prefix;
use crate::object::store::{Handshake, ObjectStore};
use crate::types::SessionId;

/// A handle to a store, by which the handshake is tried. A probe is a name that listings of objects leave out.
pub(crate) trait ProbeHandle: ObjectStore {
    /// Creates the probe of a session under a prefix, as an object is created.
    fn create_probe(&self, prefix: Prefix, session: SessionId) -> Result<()>;
    /// Removes a probe durably. One that does not exist is fine.
    fn remove_probe(&self, prefix: Prefix, session: SessionId) -> Result<()>;
    /// Lists a prefix as for objects. Returns true if the listing has the probe.
    fn lists_probe(&self, prefix: Prefix, session: SessionId) -> Result<bool>;
}

/// Prefixes whose listings the protocol relies on.
const PROBED: [Prefix; 3] = [Prefix::Sessions, Prefix::Collections, Prefix::Containers];

/// Tries the handshake with each of two handles in the role of the writer. Removes its probes, also after an error.
pub(crate) fn try_handshake(
    first: &dyn ProbeHandle,
    second: &dyn ProbeHandle,
    session: SessionId,
) -> Result<Handshake> {
    for (writer, collector) in [(first, second), (second, first)] {
        let tried = try_roles(writer, collector, session);
        let removed = PROBED.map(|prefix| first.remove_probe(prefix, session));
        let handshake = tried?;
        removed.into_iter().collect::<Result<()>>()?;
        if handshake != Handshake::Passed {
            return Ok(handshake);
        }
    }
    Ok(Handshake::Passed)
}

fn try_roles(writer: &dyn ProbeHandle, collector: &dyn ProbeHandle, session: SessionId) -> Result<Handshake> {
    // From now on, a client that caches listings has old ones.
    for handle in [writer, collector] {
        for prefix in PROBED {
            handle.lists_probe(prefix, session)?;
        }
    }
    writer.create_probe(Prefix::Sessions, session)?;
    writer.create_probe(Prefix::Containers, session)?;
    collector.create_probe(Prefix::Collections, session)?;
    let shown = [(Prefix::Collections, writer), (Prefix::Sessions, collector), (Prefix::Containers, collector)];
    for (prefix, handle) in shown {
        if !shows(handle, prefix, session)? {
            return Ok(Handshake::CreatedMissed(prefix));
        }
    }
    collector.remove_probe(Prefix::Collections, session)?;
    writer.remove_probe(Prefix::Sessions, session)?;
    writer.remove_probe(Prefix::Containers, session)?;
    for (prefix, handle) in shown {
        if shows(handle, prefix, session)? {
            return Ok(Handshake::RemovedShown(prefix));
        }
    }
    Ok(Handshake::Passed)
}

/// Lists a prefix as steps W2, C7 and C8 do.
fn shows(handle: &dyn ProbeHandle, prefix: Prefix, session: SessionId) -> Result<bool> {
    match prefix {
        Prefix::Collections => handle.refresh_collections(session)?,
        Prefix::Sessions => handle.refresh_sessions(session)?,
        _ => handle.refresh_containers(session)?,
    }
    handle.lists_probe(prefix, session)
}
