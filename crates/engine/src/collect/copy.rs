//! Copying forward: the live chunks of containers that a plan gives up move to new containers (step C5 of docs/protocol.md).
//!
//! Live chunks are sorted by the position of their container in the plan, in external memory. Each container is read once, on
//! the read pool; its regions are opened and compared with their fingerprints on the compute pool. A region that is mostly live
//! is *carried over*: its compressed bytes are sealed again, with its dead chunks unless the request forbids it; or its live chunks are compressed
//! again, if the request asks for that and they get shorter. Any other region is *taken apart*: its live chunks are compressed again, with chunks of the same kind and
//! [lifetime class](crate::collect::lifetime). All results are taken in order, so that the same input makes the same containers
//! with every driver.

mod budget;
mod order;
mod pack;
mod read;
mod refresh;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::collect::copies::Copies;
use crate::collect::lifetime::LifetimeClasses;
use crate::collect::usage::LiveChunk;
use crate::error::{Error, Result};
use crate::monitor::{Items, Monitor};
use crate::object::names::ContainerKind;
use crate::pipeline::driver::Pool;
use crate::pipeline::{Driver, TaskQueue};
use crate::store::base_reader::BaseReader;
use crate::store::container_ids::ContainerIds;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::store::metadata::Scratch;
use crate::store::{Session, Store};

pub use budget::CopyBudget;
use order::{CopiedContainer, LiveByContainer};
use pack::Packing;
use read::{OpenRegion, OpenedRegion, ReadContainer, ReadRegions};
pub(in crate::collect) use refresh::HintRefresher;

/// Request to copy containers.
#[derive(Debug)]
pub struct CopyRequest<'a> {
    /// The repository.
    pub store: &'a Store,
    /// The session of the collector, which owns the new containers. Without one, they are packed and counted, but neither
    /// sealed nor written.
    pub(crate) session: Option<&'a Arc<Session>>,
    /// The containers that numbers refer to.
    pub containers: &'a Containers,
    /// Finds the bases of regions in all containers.
    pub(crate) bases: &'a BaseReader,
    /// Numbers of the containers to copy, each once, in the order in which their chunks are to follow each other.
    pub copy: &'a [u32],
    /// The lifetime class of each rank.
    pub classes: &'a LifetimeClasses,
    /// Takes each region with a dead chunk apart, so that no dead chunk is copied.
    pub leaves_dead: bool,
    /// Compression of what is copied.
    pub copies: Copies,
    /// Division of the memory.
    pub budget: CopyBudget,
    /// Directory to which the list of chunks spills.
    pub scratch: &'a Scratch,
    /// Driver of the work queues.
    pub driver: &'a Driver,
    /// Receiver of progress, by containers, and of interruptions.
    pub monitor: &'a dyn Monitor,
}

/// Outcome of copying.
#[derive(Debug, Default)]
pub struct Copied {
    /// The new containers. All of them are durable.
    pub(crate) written: ContainerIds,
    /// Number of new containers.
    pub written_containers: u64,
    /// Bytes of the new containers.
    pub written_bytes: u64,
    /// Containers of which a live chunk could not be copied, by number, each with the first reason. They must be kept. Their
    /// other chunks may have been copied.
    pub not_copied: BTreeMap<u32, Error>,
    /// Live chunks copied.
    pub chunks: u64,
    /// Bytes of them, hints included.
    pub plain_bytes: u64,
    /// Dead chunks that were carried over with live ones.
    pub dead_chunks: u64,
    /// Bytes of the dead chunks.
    pub dead_bytes: u64,
    /// Regions stored again as they were compressed.
    pub regions_carried: u64,
    /// Regions that were compressed again as a whole, without their dead chunks.
    pub regions_recompressed: u64,
    /// Regions that were taken apart.
    pub regions_taken_apart: u64,
    /// Sealed bytes of the regions that were copied or taken apart, dead chunks included.
    pub copied_regions_bytes: u64,
    /// Sealed bytes of the new regions.
    pub written_regions_bytes: u64,
}

/// Copies the chunks of `live` that stand in the containers to be copied. Other chunks are passed over. `ordinals` is the
/// number of the session's next container.
///
/// Everything copied is durable when this returns. After an error some new containers may be durable; the others are given
/// up, and their temporary files are removed. A damaged container is no error: see [`Copied::not_copied`].
pub fn copy_forward(
    request: &CopyRequest<'_>,
    live: impl Iterator<Item = Result<LiveChunk>>,
    ordinals: &mut u32,
) -> Result<Copied> {
    copy_refreshed(request, live, ordinals, None)
}

/// Copies as [`copy_forward`] does, and writes today's hints into the metadata that it copies.
pub(super) fn copy_refreshed(
    request: &CopyRequest<'_>,
    live: impl Iterator<Item = Result<LiveChunk>>,
    ordinals: &mut u32,
    refresher: Option<&mut HintRefresher<'_>>,
) -> Result<Copied> {
    let is_data = |number: &u32| request.containers.kind(ContainerNumber(*number)) == ContainerKind::Data;
    // The hints of metadata name the copies of data.
    let (mut copy, metadata): (Vec<u32>, Vec<u32>) = request.copy.iter().partition(|number| is_data(number));
    copy.extend(&metadata);
    let refresher = refresher.filter(|_| !metadata.is_empty());
    let live = LiveByContainer::sort(request, &copy, live)?;
    let mut copier = Copier::new(request, &live, ordinals, refresher);
    request.monitor.stage(Items::Containers, request.copy.len() as u64);
    for container in live.containers()? {
        if request.monitor.is_interrupted() {
            return Err(Error::Interrupted);
        }
        if let Some(session) = request.session {
            session.beat();
        }
        let container = container?;
        if !is_data(&container.number) {
            copier.end_data()?;
        }
        copier.copy(container)?;
    }
    copier.finish()
}

/// The queues that containers, regions and chunks pass through.
struct Copier<'a, 'b> {
    request: &'a CopyRequest<'a>,
    read: TaskQueue<ReadContainer>,
    open: TaskQueue<OpenRegion>,
    packing: Packing<'a, 'b>,
    copied: Copied,
    /// True while data containers follow each other, and their copies must be known before metadata follows.
    awaits_data: bool,
}

impl<'a, 'b> Copier<'a, 'b> {
    fn new(
        request: &'a CopyRequest<'a>,
        live: &LiveByContainer,
        ordinals: &'a mut u32,
        refresher: Option<&'a mut HintRefresher<'b>>,
    ) -> Self {
        let refreshes = refresher.is_some();
        let CopyRequest { store, budget, driver, .. } = request;
        Self {
            request,
            read: driver.queue(ReadContainer::new(store), Pool::Read, budget.containers_reading),
            open: driver.queue(OpenRegion::new(request, refreshes), Pool::Compute, budget.regions_opening),
            packing: Packing::new(request, live.bytes(), ordinals, refresher),
            copied: Copied::default(),
            awaits_data: refreshes,
        }
    }

    /// Packs all data, so that the hints of the metadata that follows can name its containers.
    fn end_data(&mut self) -> Result<()> {
        if std::mem::take(&mut self.awaits_data) {
            self.drain()?;
            self.packing.end_regions()?;
        }
        Ok(())
    }

    fn copy(&mut self, container: CopiedContainer) -> Result<()> {
        let name = self.request.containers.name(ContainerNumber(container.number))?;
        match self.read.push((name, container)) {
            Some(regions) => self.take_container(regions),
            None => Ok(()),
        }
    }

    fn take_container(&mut self, read: ReadRegions) -> Result<()> {
        let ReadRegions { container, outcome } = read;
        match outcome {
            Ok(regions) => {
                for region in regions {
                    if let Some(opened) = self.open.push(region) {
                        self.take_region(opened)?;
                    }
                }
            }
            Err(error) => self.keep(container, error),
        }
        self.request.monitor.advance(0, 1);
        Ok(())
    }

    /// Notes that a container must be kept.
    fn keep(&mut self, container: u32, error: Error) {
        self.copied.not_copied.entry(container).or_insert(error);
    }

    fn take_region(&mut self, region: OpenedRegion) -> Result<()> {
        let OpenedRegion { container, outcome, error } = region;
        if let Some(error) = error {
            self.keep(container, error);
        }
        let Some(region) = outcome else { return Ok(()) };
        self.copied.count(&region);
        let bytes = region.live_bytes();
        self.packing.push(region)?;
        self.request.monitor.advance(bytes, 0);
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        while let Some(read) = self.read.pop() {
            self.take_container(read)?;
        }
        while let Some(opened) = self.open.pop() {
            self.take_region(opened)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Copied> {
        self.drain()?;
        let Self { packing, mut copied, .. } = self;
        packing.finish(&mut copied)?;
        Ok(copied)
    }
}
