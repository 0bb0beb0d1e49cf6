//! Packing copies: an open region and an open container for each group of chunks.

use std::ops::Range;

use crate::collect::copies::Copies;
use crate::collect::copy::order::KindBytes;
use crate::collect::copy::read::{LiveRegion, Opened};
use crate::collect::copy::refresh::HintRefresher;
use crate::collect::copy::{Copied, CopyRequest};
use crate::collect::lifetime::{Grouping, LifetimeClass};
use crate::container::compress_region::{CompressRegion, tables_of};
use crate::container::seal::len_sealed;
use crate::container::{Assigned, CompressedRegion, ContainerBuilder, Packer, Region, RegionChunk};
use crate::crypto::TAG_LEN;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::object::FormatVersion;
use crate::object::names::ContainerKind;
use crate::pipeline::driver::Pool;
use crate::pipeline::{Task, TaskQueue};
use crate::similarity::anchors::AnchorFinder;
use crate::similarity::features::RegionFeatures;
use crate::similarity::samples::samples_of;
use crate::store::container_ids::ContainerIds;
use crate::store::container_writer::ContainerWriter;
use crate::types::SessionId;

/// A region on its way to a container.
enum PackInput {
    /// Compressed already.
    Carried(CompressedRegion),
    /// Compressed already, to be compressed again.
    Again(Box<Again>),
    /// Compressed again, and shorter than it was, with its dead chunks that were left out.
    Recompressed(CompressedRegion, Dead),
    /// New. True: samples are withheld.
    New(Region, bool),
}

/// A region that may be stored as it is, and its live chunks, which are stored alone if they are shorter compressed again.
struct Again {
    stored: CompressedRegion,
    live: Region,
    dead: Dead,
    is_withheld: bool,
}

/// Number and bytes of dead chunks.
#[derive(Clone, Copy, Default)]
struct Dead(u64, u64);

/// Compresses new regions and hands on the others, so that all of a group stay in order.
struct Compress {
    format: FormatVersion,
    task: CompressRegion,
    /// Finds the samples of regions, by which later ones find them.
    finder: Option<AnchorFinder>,
}

impl Compress {
    fn new(request: &CopyRequest<'_>, task: CompressRegion) -> Self {
        let &CopyRequest { store, .. } = request;
        let finder = store.uses_similarity().then(|| store.anchor_finder());
        Self { format: store.config.format, task, finder }
    }

    /// Compresses the live chunks of a region again. Returns what takes less.
    fn again(&self, Again { stored, mut live, dead, is_withheld }: Again) -> PackInput {
        if !is_withheld {
            self.sample(&mut live);
        }
        let again = CompressedRegion::of(self.task.run(live));
        if again.len_alone(self.format) < stored.len_alone(self.format) {
            PackInput::Recompressed(again, dead)
        } else {
            PackInput::Carried(stored)
        }
    }

    fn sample(&self, region: &mut Region) {
        if let Some(finder) = &self.finder {
            let lens = region.chunks.iter().map(|packed| packed.chunk.len);
            region.samples = samples_of(&RegionFeatures::of_region(finder, &region.plain, lens), region.kind());
        }
    }
}

impl Task for Compress {
    type In = (usize, PackInput);
    type Out = (usize, PackInput);

    fn run(&self, (group, input): Self::In) -> Self::Out {
        match input {
            PackInput::Carried(_) | PackInput::Recompressed(..) => (group, input),
            PackInput::Again(again) => (group, self.again(*again)),
            PackInput::New(mut region, is_withheld) => {
                if !is_withheld {
                    self.sample(&mut region);
                }
                (group, PackInput::New(self.task.run(region), is_withheld))
            }
        }
    }
}

/// The open region and the open container of a group.
struct Group {
    region: Region,
    /// Whether the region has a chunk from a container that withholds its samples.
    is_withheld: bool,
    packer: Packer,
}

/// Packs copies and writes containers.
pub(super) struct Packing<'a, 'b> {
    region_bytes: u32,
    /// Takes what is copied, and gives metadata today's hints.
    refresher: Option<&'a mut HintRefresher<'b>>,
    monitor: &'a dyn Monitor,
    data: Grouping,
    metadata: Grouping,
    /// Those of data first.
    groups: Vec<Group>,
    compress: TaskQueue<Compress>,
    /// The compressor of regions that are cut to fill a container.
    cut: CompressRegion,
    ordinals: &'a mut u32,
    /// None: containers are only counted.
    writer: Option<ContainerWriter>,
    written: ContainerIds,
    written_containers: u64,
    written_bytes: u64,
    written_regions_bytes: u64,
    regions_recompressed: u64,
    /// Dead chunks that were left out of these.
    left_out: Dead,
}

impl<'a, 'b> Packing<'a, 'b> {
    /// Starts with an empty group for each kind and class that holds at least a container of `bytes`.
    pub(super) fn new(
        request: &'a CopyRequest<'_>,
        bytes: &KindBytes,
        ordinals: &'a mut u32,
        refresher: Option<&'a mut HintRefresher<'b>>,
    ) -> Self {
        let &CopyRequest { store, session, copies: Copies { compression, .. }, budget, driver, monitor, .. } = request;
        let tables = tables_of(store.config.format);
        let compress = CompressRegion::new(compression).with_tables(tables).limited(budget.compressing);
        let container_bytes = store.config.container_bytes;
        let metadata = Grouping::new(&bytes.metadata, container_bytes.into(), budget.groups_max / 2);
        let data = Grouping::new(&bytes.data, container_bytes.into(), budget.groups_max.saturating_sub(metadata.len()));
        let owner = session.map_or(SessionId([0; 16]), |session| session.id);
        let group = |kind| Group {
            region: Region::default(),
            is_withheld: false,
            packer: Packer::new(owner, (store.config.format, kind), container_bytes, compression),
        };
        let kinds = [(ContainerKind::Data, data.len()), (ContainerKind::Metadata, metadata.len())];
        let groups = kinds.into_iter().flat_map(|(kind, count)| (0..count).map(move |_| kind));
        Self {
            region_bytes: store.config.region_bytes,
            refresher,
            monitor,
            data,
            metadata,
            groups: groups.map(group).collect(),
            cut: compress.clone(),
            compress: driver.queue(Compress::new(request, compress), Pool::Compute, budget.regions_opening),
            ordinals,
            writer: session.map(|session| ContainerWriter::new(store, session, driver, budget.writer_limits(), None)),
            written: ContainerIds::default(),
            written_containers: 0,
            written_bytes: 0,
            written_regions_bytes: 0,
            regions_recompressed: 0,
            left_out: Dead::default(),
        }
    }

    fn group_of(&self, kind: ContainerKind, class: LifetimeClass) -> usize {
        match kind {
            ContainerKind::Data => self.data.of(class),
            ContainerKind::Metadata => self.data.len() + self.metadata.of(class),
        }
    }

    fn group(&mut self, group: usize) -> &mut Group {
        self.groups.get_mut(group).expect("a group for each class")
    }

    /// Takes live chunks.
    pub(super) fn push(&mut self, LiveRegion { kind, opened, is_withheld, .. }: LiveRegion) -> Result<()> {
        match opened {
            Opened::Carried { region: stored, class, live, chunks, bytes } => {
                let dead = Dead((chunks.1 - chunks.0) as u64, bytes.1 - bytes.0);
                let input = match live {
                    Some(live) => PackInput::Again(Box::new(Again { stored, live: *live, dead, is_withheld })),
                    None => PackInput::Carried(stored),
                };
                self.push_region(self.group_of(kind, class), input)
            }
            Opened::TakenApart { chunks, plain } => {
                let mut rest: Range<usize> = 0..0;
                let mut refresher = if kind == ContainerKind::Metadata { self.refresher.take() } else { None };
                for (chunk, class) in chunks {
                    rest = rest.end..rest.end + chunk.chunk.len as usize;
                    let bytes = plain.get(rest.clone()).expect("the chunks add up to their bytes");
                    let (chunk, bytes) = match &mut refresher {
                        Some(refresher) => refresher.refresh(chunk, bytes)?,
                        None => (chunk, bytes),
                    };
                    self.push_chunk(self.group_of(kind, class), (chunk, is_withheld), bytes)?;
                }
                if kind == ContainerKind::Metadata {
                    self.refresher = refresher;
                }
                Ok(())
            }
        }
    }

    fn push_chunk(&mut self, number: usize, (chunk, is_withheld): (RegionChunk, bool), bytes: &[u8]) -> Result<()> {
        let filled = self.group(number).region.plain_len;
        if self.region_bytes < filled.saturating_add(chunk.chunk.len) {
            self.end_region(number)?;
        }
        let group = self.group(number);
        group.is_withheld |= is_withheld;
        group.region.push(chunk, bytes);
        Ok(())
    }

    /// Ends all open regions, and packs everything that was taken.
    pub(super) fn end_regions(&mut self) -> Result<()> {
        for number in 0..self.groups.len() {
            self.end_region(number)?;
        }
        while let Some((number, input)) = self.compress.pop() {
            self.pack(number, input)?;
        }
        Ok(())
    }

    fn end_region(&mut self, number: usize) -> Result<()> {
        let empty = Region::with_buffer(self.region_bytes);
        let group = self.group(number);
        let region = std::mem::replace(&mut group.region, empty);
        let is_withheld = std::mem::take(&mut group.is_withheld);
        if region.chunks.is_empty() { Ok(()) } else { self.push_region(number, PackInput::New(region, is_withheld)) }
    }

    fn push_region(&mut self, group: usize, input: PackInput) -> Result<()> {
        self.compress.push((group, input)).map_or(Ok(()), |(group, input)| self.pack(group, input))
    }

    fn pack(&mut self, number: usize, input: PackInput) -> Result<()> {
        let Self { groups, cut, ordinals, .. } = self;
        let packer = &mut groups.get_mut(number).expect("a group for each class").packer;
        let packed = match input {
            PackInput::Carried(region) => packer.push_compressed(region, ordinals),
            PackInput::Again(again) => packer.push_compressed(again.stored, ordinals),
            PackInput::Recompressed(region, Dead(chunks, bytes)) => {
                self.regions_recompressed += 1;
                self.left_out = Dead(self.left_out.0 + chunks, self.left_out.1 + bytes);
                packer.push_compressed(region, ordinals)
            }
            PackInput::New(region, _) => cut.with_compressor(|compressor| packer.push(region, compressor, ordinals)),
        };
        if let Some(refresher) = &mut self.refresher {
            for Assigned { container, chunks, .. } in packed.assigned {
                refresher.copied(container, &chunks)?;
            }
        }
        for builder in packed.full {
            if self.monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            self.close(builder)?;
        }
        Ok(())
    }

    fn close(&mut self, builder: ContainerBuilder) -> Result<()> {
        let regions = builder.regions.iter().map(|region| (region.stored().len() + TAG_LEN) as u64);
        self.written_regions_bytes += regions.sum::<u64>();
        if let Some(writer) = &mut self.writer {
            writer.close(builder)?;
            self.take_written();
        } else {
            self.written_containers += 1;
            self.written_bytes += len_sealed(&builder);
        }
        Ok(())
    }

    fn take_written(&mut self) {
        for unit in self.writer.iter_mut().flat_map(ContainerWriter::take_stored) {
            self.written.push(unit.container);
            self.written_containers += 1;
            self.written_bytes += unit.len;
        }
    }

    /// Closes all containers and makes them durable. Adds them to `copied`.
    pub(super) fn finish(mut self, copied: &mut Copied) -> Result<()> {
        self.end_regions()?;
        for number in 0..self.groups.len() {
            if let Some(builder) = self.group(number).packer.finish() {
                self.close(builder)?;
            }
        }
        if let Some(writer) = &mut self.writer {
            writer.finish()?;
        }
        self.take_written();
        let Self { mut written, written_containers, written_bytes, .. } = self;
        let Self { written_regions_bytes, regions_recompressed, left_out, .. } = self;
        written.sort();
        (copied.written, copied.written_containers, copied.written_bytes) =
            (written, written_containers, written_bytes);
        (copied.written_regions_bytes, copied.regions_recompressed) = (written_regions_bytes, regions_recompressed);
        copied.regions_carried -= regions_recompressed;
        copied.dead_chunks -= left_out.0;
        copied.dead_bytes -= left_out.1;
        Ok(())
    }
}

impl Copied {
    /// Counts what is copied of a region.
    pub(super) fn count(&mut self, region: &LiveRegion) {
        self.copied_regions_bytes += region.stored_bytes;
        match &region.opened {
            Opened::Carried { chunks: (live, all), bytes: (live_bytes, all_bytes), .. } => {
                self.regions_carried += 1;
                self.chunks += *live as u64;
                self.dead_chunks += (all - live) as u64;
                self.plain_bytes += live_bytes;
                self.dead_bytes += all_bytes - live_bytes;
            }
            Opened::TakenApart { chunks, plain } => {
                self.regions_taken_apart += 1;
                self.chunks += chunks.len() as u64;
                self.plain_bytes += plain.len() as u64;
            }
        }
    }
}
