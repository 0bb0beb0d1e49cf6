//! The stages that choose bases, one for each kind of container.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::backup::Budget;
use crate::backup::bases::{BaseStage, ChooseBases, StageSizes};
use crate::compress::Compression;
use crate::container::compress_region::CompressRegion;
use crate::container::seal::BasePlaintexts;
use crate::object::FormatVersion;
use crate::object::names::ContainerKind;
use crate::pipeline::Permits;
use crate::pipeline::driver::Driver;
use crate::store::base_reader::BaseReader;
use crate::store::container_writer::StoredUnit;
use crate::store::{Session, Store};
use crate::types::ContainerId;

/// Who chooses the bases of regions, for each kind of container; `None`: nobody.
///
/// A region of metadata that is compressed against data could not be read, nor the other way round: a proposal of the other kind is
/// dropped.
#[derive(Clone, Debug, Default)]
pub struct BaseChoices {
    /// For regions of data.
    pub data: Option<Arc<dyn ChooseBases>>,
    /// For regions of metadata.
    pub metadata: Option<Arc<dyn ChooseBases>>,
    /// Containers whose regions become no bases.
    pub shunned: Arc<BTreeSet<ContainerId>>,
}

impl BaseChoices {
    /// Returns these choices, and those of `other` where there is none.
    #[must_use]
    pub(crate) fn or(self, other: Self) -> Self {
        let (data, metadata) = (self.data.or(other.data), self.metadata.or(other.metadata));
        Self { data, metadata, shunned: self.shunned }
    }
}

/// Share of the memory for bases that is for features of regions that were opened: one of 4.
const FEATURES_SHARE: usize = 4;
/// Share of these that is for those of metadata: one of 8, since a hundredth of the regions are metadata.
const METADATA_FEATURES_SHARE: usize = 8;
/// Regions of metadata whose features are sought, and for which others are opened, at the same time: one of a hundred regions is metadata.
pub(super) const METADATA_DEPTH: usize = 1;
/// Regions of metadata that are compressed at the same time, each with the bytes of its bases, are one in so many of those of data, at
/// least one: a tree of small files gives a region of metadata for each eight of data.
pub(super) const METADATA_COMPRESSING_PART: usize = 4;

/// Chooses the bases of both kinds of regions. One reader, and one memory of what was read, serves both.
#[derive(Debug, Default)]
pub(super) struct BaseStages {
    reader: Option<BaseReader>,
    data: Option<BaseStage>,
    metadata: Option<BaseStage>,
}

impl BaseStages {
    /// Returns the stages of a session; none without a choice, for a repository of format 1, for a compression that knows no prefix, and
    /// if the budget has no memory for them.
    pub(super) fn new(
        (store, session, driver): (&Store, &Session, &Driver),
        choices: &BaseChoices,
        compression: Compression,
        budget: &Budget,
    ) -> Self {
        let is_possible = store.config.format != FormatVersion::V1
            && budget.bases_bytes != 0
            && matches!(compression, Compression::Zstd(_) | Compression::PaddedZstd(_));
        if !is_possible {
            return Self::default();
        }
        let features_bytes = budget.bases_bytes / FEATURES_SHARE;
        let of_metadata = features_bytes / METADATA_FEATURES_SHARE;
        let reader_bytes = budget.bases_bytes - features_bytes;
        let reader = BaseReader::with_chains(store, &session.live, reader_bytes, budget.base_chains);
        let stage = |choice: &Option<Arc<dyn ChooseBases>>, kind, sizes| {
            let choice = Arc::clone(choice.as_ref()?);
            let stage = BaseStage::new((session.id, driver), choice, reader.of_kind(kind), sizes);
            Some(stage.shunning(&choices.shunned))
        };
        let for_data = StageSizes {
            features_bytes: features_bytes - of_metadata,
            regions: budget.regions_in_flight,
            regions_opening: budget.regions_opening(),
        };
        let for_metadata =
            StageSizes { features_bytes: of_metadata, regions: METADATA_DEPTH, regions_opening: METADATA_DEPTH };
        let data = stage(&choices.data, ContainerKind::Data, for_data);
        let metadata = stage(&choices.metadata, ContainerKind::Metadata, for_metadata);
        let reader = (data.is_some() || metadata.is_some()).then_some(reader);
        Self { reader, data, metadata }
    }

    /// Returns the stage of a kind.
    pub(super) fn of(&mut self, kind: ContainerKind) -> Option<&mut BaseStage> {
        match kind {
            ContainerKind::Data => self.data.as_mut(),
            ContainerKind::Metadata => self.metadata.as_mut(),
        }
    }

    /// Returns the stage of a kind, to learn of references.
    pub(super) fn stage(&self, kind: ContainerKind) -> Option<&BaseStage> {
        match kind {
            ContainerKind::Data => self.data.as_ref(),
            ContainerKind::Metadata => self.metadata.as_ref(),
        }
    }

    /// Returns what reads the bases of both kinds, to verify containers.
    pub(super) fn reader(&self) -> Option<Arc<dyn BasePlaintexts>> {
        self.reader.clone().map(|reader| Arc::new(reader) as Arc<dyn BasePlaintexts>)
    }

    /// Returns what limits the chains of bases that are read at the same time.
    pub(super) fn chains(&self) -> Option<Arc<Permits>> {
        self.reader.as_ref().map(BaseReader::chains)
    }

    /// Returns the task of compressing regions of a kind against bases of that kind alone, and how many it takes at the same time.
    pub(super) fn compressing(
        &self,
        task: CompressRegion,
        kind: ContainerKind,
        (permits, budget): (&Arc<Permits>, &Budget),
    ) -> (CompressRegion, usize) {
        let depth = match kind {
            ContainerKind::Data => budget.regions_in_flight,
            ContainerKind::Metadata => budget.metadata_compressing(),
        };
        match self.reader.as_ref().filter(|_| self.stage(kind).is_some()) {
            Some(reader) => (task.with_bases(Arc::new(reader.of_kind(kind)), Arc::clone(permits)), depth),
            None => (task, budget.regions_in_flight),
        }
    }

    /// Takes containers that became durable.
    pub(super) fn durable(&self, units: &[StoredUnit]) {
        for unit in units {
            if let Some(reader) = &self.reader {
                reader.add(unit.name);
            }
            if let Some(stage) = self.stage(unit.name.kind) {
                stage.durable(unit.name.id);
            }
        }
    }
}
