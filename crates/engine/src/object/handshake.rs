//! Trying whether listings show changes at once, which reclaiming space relies on.
//!
//! A writer creates its session, then lists collections; a collector creates `condemn`, then lists sessions. So one of them
//! sees the other, if a listing shows every name whose creation returned before the listing began, and none whose removal did.
//! A client that caches listings breaks this. Before either listing its client therefore makes a change of its own in the
//! directory. [`try_handshake`] tries the two steps with two handles to a store.

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

/// Tries the handshake with each of two handles in the role of the writer. Removes its probes, also after an error.
pub(crate) fn try_handshake(
    first: &dyn ProbeHandle,
    second: &dyn ProbeHandle,
    session: SessionId,
) -> Result<Handshake> {
    for (writer, collector) in [(first, second), (second, first)] {
        let tried = try_roles(writer, collector, session);
        let removed = [Prefix::Sessions, Prefix::Collections].map(|prefix| first.remove_probe(prefix, session));
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
        for prefix in [Prefix::Sessions, Prefix::Collections] {
            handle.lists_probe(prefix, session)?;
        }
    }
    writer.create_probe(Prefix::Sessions, session)?;
    collector.create_probe(Prefix::Collections, session)?;
    if !collections_show(writer, session)? {
        return Ok(Handshake::CreatedMissed(Prefix::Collections));
    }
    if !sessions_show(collector, session)? {
        return Ok(Handshake::CreatedMissed(Prefix::Sessions));
    }
    collector.remove_probe(Prefix::Collections, session)?;
    writer.remove_probe(Prefix::Sessions, session)?;
    if collections_show(writer, session)? {
        return Ok(Handshake::RemovedShown(Prefix::Collections));
    }
    if sessions_show(collector, session)? {
        return Ok(Handshake::RemovedShown(Prefix::Sessions));
    }
    Ok(Handshake::Passed)
}

/// Lists collections as step W2 does.
fn collections_show(handle: &dyn ProbeHandle, session: SessionId) -> Result<bool> {
    handle.refresh_collections(session)?;
    handle.lists_probe(Prefix::Collections, session)
}

/// Lists sessions as step C7 does.
fn sessions_show(handle: &dyn ProbeHandle, session: SessionId) -> Result<bool> {
    handle.refresh_sessions(session)?;
    handle.lists_probe(Prefix::Sessions, session)
}
