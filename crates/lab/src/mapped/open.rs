//! Opening of a fingerprint store: valid parts are kept, torn entries are dropped, and a store with other damage is replaced by an
//! empty one.
//!
//! In order: the first page and its regions; the list of containers, up to the first damaged record; the log, with all applied
//! entries and those that follow up to the first torn one; the table, whose slots past the log's end are cleared. Then entries that
//! are not applied are looked up in the table and inserted if they are missing. A crash may interrupt all of it; the next opening
//! repeats it.

use std::time::Duration;

use onefold_engine::Result;
use onefold_engine::kv::Ordinal;

use crate::mapped::cache::{CacheShape, NEIGHBORS};
use crate::mapped::containers::Containers;
use crate::mapped::cuckoo::{Near, Table};
use crate::mapped::filter::{Filter, FilterShape};
use crate::mapped::log::{BATCH_ENTRIES, Log, Name, State};
use crate::mapped::medium::{LINE_BYTES, Medium, WORD_BYTES};
use crate::mapped::meter::{Metered, TickClock};
use crate::mapped::order::Order;
use crate::mapped::segments::ENTRY_WORDS;
use crate::mapped::space::{Geometry, Space};

/// Choices and memory of an identifier on mapped memory.
///
/// In memory it has the filter, the cache, about 80 bytes for each container,
/// and less than 64 KiB for the rest.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MappedOptions {
    /// Order of filter, cache and table.
    pub order: Order,
    /// The filter; none is made for [`Order::None`].
    pub filter: FilterShape,
    /// The cache; none is made for [`Order::None`].
    pub cache: CacheShape,
    /// Latency added to each wait for the medium.
    pub injected: Duration,
    /// Whether the first accesses of 64 chunks at a time are prefetched. Otherwise every miss is waited for, as in the paper's
    /// model.
    pub prefetches: bool,
    /// Share of the table's slots in use at which it is doubled, 0 to 1.
    pub load_max: f64,
    /// Sizes of a medium that is used for the first time.
    pub geometry: Geometry,
}

impl Default for MappedOptions {
    /// Order chosen while running; 32 MiB of filter with 6 bits for a fingerprint, 16 MiB of read buffer with 50 neighbors; the
    /// table is doubled at 95%.
    fn default() -> Self {
        Self {
            order: Order::Auto,
            filter: FilterShape::Blocked { bytes: 32 << 20, hashes: 6 },
            cache: CacheShape::Fifo { bytes: 16 << 20, neighbors: NEIGHBORS },
            injected: Duration::ZERO,
            prefetches: true,
            load_max: 0.95,
            geometry: Geometry::default(),
        }
    }
}

/// State of a medium at opening.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MappedState {
    /// Empty: it is used for the first time.
    New,
    /// With a fingerprint store on it.
    Opened(Recovery),
    /// With other data or a damaged store on it, for this reason: it was replaced by an empty store.
    Rebuilt(String),
}

/// Result of opening a fingerprint store.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Recovery {
    /// Entries of the log.
    pub entries: u64,
    /// Entries that were declared unique and never recorded: those chunks are not stored.
    pub unrecorded: u64,
    /// Entries that a crash has torn, or that followed one: dropped.
    pub torn: u64,
    /// Entries that were durable and are damaged: those chunks are stored again.
    pub damaged: u64,
    /// Slots of the table that pointed to torn entries: cleared.
    pub slots_cleared: u64,
    /// Entries that the table lacked: inserted.
    pub slots_added: u64,
}

/// The structures on the medium.
#[derive(Debug)]
pub(super) struct Stored<M> {
    pub(super) space: Space<M>,
    pub(super) log: Log,
    pub(super) table: Table,
    pub(super) containers: Containers,
}

/// Opens the store on a medium, or makes an empty one; fills the filter with the fingerprints of the log.
pub(super) fn open<M: Medium>(
    medium: M,
    options: &MappedOptions,
    filter: &mut Filter,
) -> Result<(Stored<M>, MappedState)> {
    let metered = Metered::new(medium, options.injected, &TickClock::shared());
    if is_blank(&metered) {
        return Ok((create(metered, options)?, MappedState::New));
    }
    match read(metered, options) {
        Ok(mut stored) => {
            let recovery = stored.recover(filter)?;
            Ok((stored, MappedState::Opened(recovery)))
        }
        Err((metered, reason)) => Ok((create(metered, options)?, MappedState::Rebuilt(reason.to_owned()))),
    }
}

/// Returns true if nothing was ever stored in a medium's first line.
fn is_blank<M: Medium>(metered: &Metered<M>) -> bool {
    const LINE_WORDS: usize = LINE_BYTES / WORD_BYTES;
    metered.len() < LINE_BYTES as u64 || metered.again(0) == [0; LINE_WORDS]
}

fn create<M: Medium>(metered: Metered<M>, options: &MappedOptions) -> Result<Stored<M>> {
    let mut space = Space::create(metered, options.geometry)?;
    let log = Log::create(&mut space)?;
    let containers = Containers::create(&mut space)?;
    let table = Table::create(&mut space, options.load_max)?;
    space.seal()?;
    Ok(Stored { space, log, table, containers })
}

fn read<M: Medium>(
    metered: Metered<M>,
    options: &MappedOptions,
) -> std::result::Result<Stored<M>, (Metered<M>, &'static str)> {
    let mut space = Space::open(metered).map_err(|metered| (metered, "it has no first page of this version"))?;
    let parts = (Log::open(&space), Containers::open(&space), Table::open(&space, options.load_max));
    let (Some(log), Some(containers), Some(table)) = parts else {
        return Err((space.medium, "its first page is damaged"));
    };
    let regions = log.regions().chain(containers.regions()).chain([table.region()]).collect();
    if !space.claim(regions) {
        return Err((space.medium, "its parts do not fit where they are said to be"));
    }
    Ok(Stored { space, log, table, containers })
}

impl<M: Medium> Stored<M> {
    fn recover(&mut self, filter: &mut Filter) -> Result<Recovery> {
        let Self { space, log, containers, .. } = self;
        containers.load(space)?;
        let torn = log.adopt(space)?;
        let mut recovery = Recovery { entries: log.len(), torn, ..Recovery::default() };
        self.scan_log(filter, &mut recovery)?;
        let Self { space, log, table, .. } = self;
        recovery.slots_cleared = table.sweep(space, log)?;
        for position in log.applied()..log.len() {
            let entry = log.read(space, position);
            let Some(name) = Name::of_entry(&entry, position) else { continue };
            if table.find(space, log, &name, Near::Neither).is_none() {
                table.insert(space, log, &name, position, Near::Both)?;
                recovery.slots_added += 1;
            }
        }
        // This makes the inserted slots durable, and only then the record of it.
        space.medium.fence()?;
        log.note_applied(space)?;
        Ok(recovery)
    }

    /// Reads the whole log: fills the filter, and marks entries dead whose container is not in the list.
    fn scan_log(&mut self, filter: &mut Filter, recovery: &mut Recovery) -> Result<()> {
        let Self { space, log, containers, .. } = self;
        let mut entries = vec![0; BATCH_ENTRIES * ENTRY_WORDS];
        let mut names = Vec::with_capacity(BATCH_ENTRIES);
        let mut at = 0;
        while at < log.len() {
            let count = log.copy(space, at, &mut entries);
            names.clear();
            for (position, entry) in (at..).zip(entries.chunks_exact(ENTRY_WORDS).take(count)) {
                let Some(name) = Name::of_entry(entry, position) else {
                    recovery.damaged += 1;
                    continue;
                };
                let key = name.key();
                filter.prefetch(&key, &name);
                names.push((key, name));
                let is_known = |Ordinal(ordinal): Ordinal| u64::from(ordinal) < containers.count();
                let word = entry[ENTRY_WORDS - 1];
                match State::of(word, position) {
                    State::Recorded(ordinal) if is_known(ordinal) => {}
                    State::Dead if word == 0 => recovery.unrecorded += 1,
                    // Its number may be given to another container, or to another session.
                    State::Recorded(_) | State::Pending { .. } | State::Dead => {
                        recovery.unrecorded += 1;
                        log.set_state(space, position, State::Dead);
                        log.flush_entry(space, position);
                    }
                }
            }
            for (key, name) in &names {
                filter.test_and_set(key, name);
            }
            at += count as u64;
        }
        space.medium.fence()
    }
}
