//! The host's index of similar regions, brought up to date for a backup.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backup::similar::SimilarBases;
use crate::backup::{BackupOptions, BaseChoices};
use crate::container::ContainerReader;
use crate::error::{Error, Result};
use crate::io::{Access, Disk, Host};
use crate::kv::sealed::{Seal, SealedReader, SealedWriter};
use crate::monitor::Monitor;
use crate::object::names::ContainerKind;
use crate::pipeline::Driver;
use crate::repo::cache::Cache;
use crate::similarity::choose::Limits;
use crate::similarity::regions::RegionNumber;
use crate::similarity::samples::sampling_of;
use crate::similarity::saved::{SimilarRegions, SimilarRegionsLimits};
use crate::store::Store;
use crate::store::container_set::Containers;
use crate::store::host_file::replace_file_with;
use crate::types::{RegionId, RepositoryId};

/// Share of the memory for similar regions that is for those of metadata: one of 16. A hundredth of the regions are metadata, with
/// eight times as many samples each.
const METADATA_SHARE: usize = 16;

/// The indexes of similar regions of a host, one for each kind of container, while it backs up.
pub(super) struct SimilarIndexes<'a>([SimilarIndex<'a>; 2]);

/// The policies of a session.
pub(super) type SessionBases = [Arc<SimilarBases>; 2];

impl<'a> SimilarIndexes<'a> {
    /// Reads the indexes of this host. `None`: the repository or the options have no use for them.
    pub(super) fn open(store: &'a Store, cache: &'a Cache, options: &BackupOptions) -> Option<Self> {
        let bytes = options.budget.similar_bytes;
        let is_possible = store.uses_similarity() && bytes != 0;
        let choice_limits = options.similarity.filter(|_| is_possible)?;
        let index = |kind| {
            let limits = SimilarRegionsLimits {
                sampling: sampling_of(kind),
                bytes: match kind {
                    ContainerKind::Data => bytes - bytes / METADATA_SHARE,
                    ContainerKind::Metadata => bytes / METADATA_SHARE,
                },
            };
            SimilarIndex { store, cache, kind, limits, choice_limits, regions: None }
        };
        Some(Self([ContainerKind::Data, ContainerKind::Metadata].map(index)))
    }

    /// Returns the policies of a session with these containers.
    pub(super) fn begin(&mut self, live: &Containers, driver: &Driver, monitor: &dyn Monitor) -> Result<SessionBases> {
        let Self([data, metadata]) = self;
        Ok([data.begin(live, driver, monitor)?, metadata.begin(live, driver, monitor)?])
    }

    /// Takes the regions back after a session.
    pub(super) fn end(&mut self, bases: &SessionBases) {
        self.0.iter_mut().zip(bases).for_each(|(index, bases)| index.end(bases));
    }

    /// Keeps the indexes for the next backup. An error costs that one time.
    pub(super) fn close(self, monitor: &dyn Monitor) {
        self.0.into_iter().for_each(|index| index.close(monitor));
    }
}

/// Returns the choices of the policies of a session.
pub(super) fn choices(bases: Option<&SessionBases>) -> BaseChoices {
    let Some([data, metadata]) = bases else { return BaseChoices::default() };
    BaseChoices {
        data: Some(Arc::<SimilarBases>::clone(data)),
        metadata: Some(Arc::<SimilarBases>::clone(metadata)),
        ..BaseChoices::default()
    }
}

/// The index of similar regions of one kind.
struct SimilarIndex<'a> {
    store: &'a Store,
    cache: &'a Cache,
    kind: ContainerKind,
    limits: SimilarRegionsLimits,
    choice_limits: Limits,
    /// The regions, between sessions.
    regions: Option<SimilarRegions>,
}

impl SimilarIndex<'_> {
    fn path(&self) -> PathBuf {
        self.cache.dir.join(match self.kind {
            ContainerKind::Data => "similar",
            ContainerKind::Metadata => "similar-metadata",
        })
    }

    fn begin(&mut self, live: &Containers, driver: &Driver, monitor: &dyn Monitor) -> Result<Arc<SimilarBases>> {
        let (disk, repository) = (&*self.cache.disk, self.store.config.repository);
        let (path, limits) = (self.path(), self.limits);
        let load = || load(disk, &path, repository, limits);
        let mut similar = match self.regions.take().map_or_else(load, Ok) {
            Ok(similar) => similar,
            Err(error) => {
                if !matches!(error, Error::Missing { .. }) {
                    monitor.note(&format!("the index of similar regions is rebuilt: {error}"));
                }
                SimilarRegions::new(self.limits)
            }
        };
        similar.retain(|id| live.contains(id));
        self.catch_up(&mut similar, live, (driver, monitor))?;
        Ok(Arc::new(SimilarBases::new(self.store, self.kind, similar, self.choice_limits)))
    }

    /// Takes the regions of containers that are not known yet. Those that cannot be read are left out: others report them.
    fn catch_up(
        &self,
        similar: &mut SimilarRegions,
        live: &Containers,
        (driver, monitor): (&Driver, &dyn Monitor),
    ) -> Result<()> {
        let is_new = |id| !similar.taken.contains(id);
        let new = live.retain(|number, id| live.kind(number) == self.kind && is_new(id));
        for opened in self.store.open_containers_ahead(driver, &new, new.numbers()) {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let (name, Ok(container)) = opened? else { continue };
            enter(similar, &container, self.choice_limits.depth_max);
            similar.taken.insert(name.id);
        }
        Ok(())
    }

    fn end(&mut self, bases: &SimilarBases) {
        let least = SimilarRegionsLimits { bytes: 0, ..self.limits };
        self.regions = Some(bases.take_similar(SimilarRegions::new(least)));
    }

    fn close(self, monitor: &dyn Monitor) {
        let Some(regions) = &self.regions else { return };
        let (disk, host) = (&*self.cache.disk, &*self.store.host);
        let saved = save(regions, disk, host, &self.path(), self.store.config.repository);
        if let Err(error) = saved {
            monitor.note(&format!("the index of similar regions will be rebuilt next time: {error}"));
        }
    }
}

/// Bytes of the checksum at the end of the file.
const SUM_LEN: usize = 32;

/// Replaces the file by one of these regions.
fn save(
    regions: &SimilarRegions,
    disk: &dyn Disk,
    host: &dyn Host,
    path: &Path,
    repository: RepositoryId,
) -> Result<()> {
    replace_file_with(disk, host, path, &mut |file| {
        let mut out = SealedWriter::create(Arc::clone(file))?;
        regions.write(&mut out, repository)?;
        let Seal { len, checksum } = out.finish()?;
        file.write_at(len, &checksum)
    })
}

/// Reads the file. [`Error::Missing`]: there is none.
fn load(
    disk: &dyn Disk,
    path: &Path,
    repository: RepositoryId,
    limits: SimilarRegionsLimits,
) -> Result<SimilarRegions> {
    let object = disk.display(path);
    let file = disk.open(path, Access::Read).map_err(|error| match error.io_kind() {
        Some(ErrorKind::NotFound) => Error::Missing { object: object.clone() },
        _ => error,
    })?;
    let len = file.len()?.checked_sub(SUM_LEN as u64).ok_or_else(|| Error::damaged(&object, "ends early"))?;
    let mut checksum = [0; SUM_LEN];
    file.read_at(len, &mut checksum)?;
    let mut reader = SealedReader::front_of(file, path.to_owned(), Seal { len, checksum });
    let regions = SimilarRegions::read(&mut reader, &object, repository, limits)?;
    reader.finish()?;
    Ok(regions)
}

/// Takes the regions of a container. Those without samples are found by the chunks next to new ones alone.
fn enter(similar: &mut SimilarRegions, container: &ContainerReader, depth_max: u8) {
    for (region, entry) in (0u32..).zip(&container.directory.regions) {
        let id = RegionId { container: container.name.id, region };
        let bases: Vec<RegionNumber> = entry.bases.iter().filter_map(|base| similar.regions.number_of(base)).collect();
        let depth = entry.bases.depth();
        let Some(number) = similar.regions.enter(id, entry.plain_len, (&bases, depth)) else { continue };
        if depth < depth_max {
            let hashes: Vec<u64> = container.samples_of(region).collect();
            similar.anchors.enter(number, &hashes);
        }
    }
}
