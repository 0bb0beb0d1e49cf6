//! The exports of a server, and who is connected to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::export::{Context, Export};
use super::wire::export_flag;

/// A volume with its name.
#[derive(Debug)]
pub struct NamedExport {
    /// The name by which clients choose the export. The only export of a server is also the default one.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// The volume.
    pub export: Arc<dyn Export>,
}

/// An export with the number of its connections.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) named: NamedExport,
    connections: AtomicUsize,
}

impl Entry {
    /// Flags as clients see them.
    pub(crate) fn flags(&self, is_structured: bool) -> u16 {
        let more = if is_structured { export_flag::SEND_DF } else { 0 };
        self.named.export.flags() | export_flag::HAS_FLAGS | more
    }

    pub(crate) fn has_context(&self, context: Context) -> bool {
        self.named.export.has_context(context)
    }
}

/// All exports of a server.
#[derive(Debug)]
pub(crate) struct Catalog {
    entries: Vec<Arc<Entry>>,
    /// Most connections of one export.
    limit: usize,
}

impl Catalog {
    pub(crate) fn new(exports: Vec<NamedExport>, limit: usize) -> Self {
        let entry = |named| Arc::new(Entry { named, connections: AtomicUsize::new(0) });
        Self { entries: exports.into_iter().map(entry).collect(), limit }
    }

    pub(crate) fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<&Arc<Entry>> {
        match (&self.entries[..], name) {
            ([only], b"") => Some(only),
            (entries, _) => entries.iter().find(|entry| entry.named.name.as_bytes() == name),
        }
    }

    /// Counts a connection to an export; none if there are as many as the limit allows.
    pub(crate) fn connect(&self, entry: &Arc<Entry>) -> Option<Slot> {
        let below = |count: usize| (count < self.limit).then_some(count + 1);
        entry.connections.fetch_update(Ordering::AcqRel, Ordering::Acquire, below).ok()?;
        Some(Slot(Arc::clone(entry)))
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }
}

/// A connection to an export, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Entry>);

impl Slot {
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.0
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}
