//! Regions that new regions are compressed against (format 2): who chooses them, and what carries the choice out.

use std::fmt::Debug;
use std::sync::Arc;

use crate::backup::Budget;
use crate::container::RegionChunk;
use crate::object::FormatVersion;
use crate::store::base_reader::BaseReader;
use crate::store::container_writer::StoredUnit;
use crate::store::{Session, Store};
use crate::types::{ContainerId, RegionId};

/// Chooses the bases of new regions. A policy: it proposes, and a proposal that cannot be carried out is dropped. All calls come
/// from one thread, at points that the stream alone decides.
pub trait ChooseBases: Debug + Send + Sync {
    /// Returns at most two regions that a new one may resemble, the best last: what is next to it is found best. `plain` are
    /// the bytes of `chunks`, one after the other. Regions of other sessions, and those of this one that are durable, may be named.
    fn choose(&self, chunks: &[RegionChunk], plain: &[u8]) -> Vec<RegionId>;

    /// Learns where chunks stand that were shown to [`ChooseBases::choose`]: a region may be stored in several parts.
    fn placed(&self, region: RegionId, chunks: &[RegionChunk]);

    /// Learns that the regions of a container of this session are durable.
    fn durable(&self, container: ContainerId);
}

/// Carries the choice of bases out, for data.
#[derive(Debug)]
pub(super) struct BaseStage {
    choice: Arc<dyn ChooseBases>,
    reader: BaseReader,
    /// The region that was placed last.
    last: Option<RegionId>,
}

impl BaseStage {
    /// Returns the stage of a session; `None` without a choice, for a repository of format 1, and if the budget has no memory for it.
    pub(super) fn new(
        store: &Store,
        session: &Session,
        choice: Option<&Arc<dyn ChooseBases>>,
        budget: &Budget,
    ) -> Option<Self> {
        let choice = choice.filter(|_| store.config.format != FormatVersion::V1 && budget.bases_bytes != 0)?;
        let reader = BaseReader::new(store, &session.live, budget.bases_bytes);
        Some(Self { choice: Arc::clone(choice), reader, last: None })
    }

    /// Returns what reads the bases.
    pub(super) fn reader(&self) -> BaseReader {
        self.reader.clone()
    }

    /// Chooses the bases of a region.
    pub(super) fn choose(&self, chunks: &[RegionChunk], plain: &[u8]) -> Vec<RegionId> {
        self.choice.choose(chunks, plain)
    }

    /// Takes the parts of a region in the order in which they were placed.
    pub(super) fn placed(&mut self, assigned: &[(ContainerId, Vec<RegionChunk>)]) {
        for (container, chunks) in assigned {
            let next = self.last.filter(|last| last.container == *container).map_or(0, |last| last.region + 1);
            let region = RegionId { container: *container, region: next };
            self.last = Some(region);
            self.choice.placed(region, chunks);
        }
    }

    /// Takes containers that became durable.
    pub(super) fn durable(&self, units: &[StoredUnit]) {
        for unit in units {
            self.reader.add(unit.name);
            self.choice.durable(unit.name.id);
        }
    }
}
