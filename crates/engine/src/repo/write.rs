//! Writing a snapshot as a program does it that has its chunks: the host's index brought up to date, one session, and a fresh
//! one after a fence.

use std::sync::Arc;

use crate::backup::{Writer, WriterOptions};
use crate::check::{ComparedHeads, HeadsDir};
use crate::error::Result;
use crate::identify::{Index, IndexOptions, IndexPreset, IndexState};
use crate::monitor::Monitor;
use crate::pipeline::Driver;
use crate::repo::backup::{IndexUse, with_index};
use crate::repo::cache::Cache;
use crate::repo::learning::bring_up_to_date;
use crate::repo::sessions::with_sessions;
use crate::snapshot::SessionKind;
use crate::store::{Session, Store};

/// Everything that writing needs besides the repository.
#[derive(Debug)]
pub struct WriteRequest<'a> {
    /// Directory of the index.
    pub cache: &'a Cache,
    /// Options of the index.
    pub index: IndexOptions,
    /// Preset of the index, which the host remembers.
    pub preset: IndexPreset,
    /// Host, as it is written into the session.
    pub hostname: &'a str,
    /// Options of the writer.
    pub options: WriterOptions,
    /// Driver of the work queues.
    pub driver: Driver,
    /// Receiver of notes, and of containers that cannot be read.
    pub monitor: Arc<dyn Monitor>,
    /// Directory in which this host remembers the newest snapshots; `None`: it does not.
    pub heads: Option<HeadsDir>,
}

/// Outcome of writing.
#[derive(Debug)]
pub struct WriteOutcome<T> {
    /// Value that the caller returned.
    pub value: T,
    /// In what state the index was found.
    pub index_state: IndexState,
    /// Error that makes the next session rebuild the index.
    pub index_degraded: Option<String>,
    /// Comparison with the newest snapshots that this host has seen.
    pub heads: ComparedHeads,
}

/// Opens the index of this host, which no other process may use meanwhile, begins a session, and lets `work` write in it. If a
/// collection has fenced the session, `work` is called again with a new one, three times in all. A session in which it has committed
/// no snapshot ends without one. The index is closed whatever happens.
///
/// # Errors
///
/// [`Error::IndexBusy`](crate::Error::IndexBusy) if another process uses the index, and the errors of `work`. After any error no
/// snapshot was made, unless `work` has committed one before it failed, and with the exception that [`Error::UnknownState`](crate::Error::UnknownState) explains.
pub fn write<T>(
    store: &Store,
    request: &WriteRequest<'_>,
    work: &mut dyn FnMut(&mut Writer<'_>) -> Result<T>,
) -> Result<WriteOutcome<T>> {
    let index_use = IndexUse {
        cache: request.cache,
        index: &request.index,
        preset: request.preset,
        pending_bytes: request.options.budget.pending_bytes,
        heads: request.heads.as_ref(),
        monitor: &*request.monitor,
    };
    let (value, index) = with_index(store, index_use, |index| {
        with_sessions(&*request.monitor, || write_once(store, request, index, work))
    })?;
    Ok(WriteOutcome { value, index_state: index.state, index_degraded: index.degraded, heads: index.heads })
}

fn write_once<T>(
    store: &Store,
    request: &WriteRequest<'_>,
    index: &mut Index,
    work: &mut dyn FnMut(&mut Writer<'_>) -> Result<T>,
) -> Result<T> {
    let options = &request.options;
    let mut session = Session::begin(store, &options.scratch, SessionKind::Backup, request.hostname)?;
    session.live = match bring_up_to_date(store, index, &session, &*request.monitor) {
        Ok(live) => live,
        Err(error) => return Err(session.abandon(error)),
    };
    let session = Arc::new(session);
    let mut writer = Writer::begin(store, &session, options, &request.driver, index);
    let worked = work(&mut writer);
    let is_committed = writer.is_committed();
    drop(writer);
    match worked {
        Err(error) if !is_committed => Err(session.abandon(error)),
        Ok(value) if !is_committed => {
            // A session that cannot be ended is fenced by a collection later.
            let _ended = session.end();
            Ok(value)
        }
        worked => worked,
    }
}
