//! Fetching chunks: a window of references reads each of its regions once, several at a time, in the order of a plan.

use std::ops::Range;
use std::sync::Arc;

use crate::container::ContainerReader;
use crate::container::bases::BASES_MAX;
use crate::container::reader::ChunkPosition;
use crate::container::seal::Plaintext;
use crate::error::{Error, Result};
use crate::lru::Lru;
use crate::object::FormatVersion;
use crate::pipeline::driver::{Driver, Pool};
use crate::pipeline::{Task, TaskQueue};
use crate::restore::locate::Locator;
use crate::restore::plan::{Needed, Step, plan};
use crate::restore::region::{Located, OpenRegion, RegionDone, RegionJob, RegionKey, Source, Window};
use crate::restore::sink::{Failures, Sink};
use crate::store::Store;
use crate::store::base_reader::BaseReader;
use crate::store::container_set::Containers;
use crate::store::metadata::Scratch;
use crate::store::recipe_cursor::HintedChunk;
use crate::store::view::{Near, ViewMemory};
use crate::types::{ContainerId, RegionId};

/// Regions under way, where memory allows: enough that workers have something to do while the next window is put together.
const REGIONS_MAX: usize = 1024;
/// Shares of the memory in sixteenths, besides four for regions that workers have open, one for chunks that have moved, and one for chunks that are
/// looked for everywhere.
struct Shares {
    /// Directories.
    directories: usize,
    /// Regions of which later windows want more.
    regions: usize,
    /// Such regions before they are in the cache.
    kept: usize,
    /// Bases of regions, with directories of their containers.
    bases: usize,
    /// Chains of bases that are read.
    chains: usize,
}

const SHARES: Shares = Shares { directories: 4, regions: 4, kept: 2, bases: 0, chains: 0 };
/// In a repository whose regions may have bases.
const SHARES_WITH_BASES: Shares = Shares { directories: 3, regions: 4, kept: 1, bases: 2, chains: 1 };

/// Windows under way.
const WINDOWS_MAX: usize = 2;

/// Fetches data chunks.
pub struct Fetcher {
    locator: Locator,
    regions: Lru<RegionKey, Plaintext>,
    task: OpenRegion,
    queue: TaskQueue<OpenRegion>,
    /// Windows of which regions are under way.
    windows: usize,
    /// True if regions may have bases.
    has_bases: bool,
    /// Chunks whose first copy is damaged, and which were fetched from another container.
    pub(crate) chunks_recovered: u64,
}

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher").field("regions_read", &self.regions_read()).finish_non_exhaustive()
    }
}

impl Fetcher {
    /// Prepares to fetch from the listed containers within `memory_bytes`.
    pub fn new(
        store: &Store,
        containers: &Containers,
        scratch: &Scratch,
        driver: &Driver,
        memory_bytes: usize,
    ) -> Self {
        let has_bases = store.config.format != FormatVersion::V1;
        // Whoever works on a region holds it sealed and open, and in format 2 its bases.
        let copies = if has_bases { 2 + BASES_MAX } else { 2 };
        let opened = memory_bytes / 4 / (copies * store.config.region_bytes_limit() as usize);
        let depth = if driver.compute_count() <= opened { REGIONS_MAX } else { opened.max(2) };
        let shares = if has_bases { SHARES_WITH_BASES } else { SHARES };
        let bytes = |share: usize| memory_bytes / 16 * share;
        let chains = (bytes(shares.chains) / BaseReader::chain_bytes(store)).clamp(1, driver.compute_count());
        let bases = BaseReader::with_chains(store, containers, bytes(shares.bases), chains);
        let task = OpenRegion::new(store, bases.clone(), bytes(shares.kept));
        let memory = ViewMemory { directories: bytes(shares.directories), moved: bytes(1) };
        Self {
            locator: Locator::new(store, containers, scratch, memory, bytes(1)).with_bases(bases),
            regions: Lru::new(bytes(shares.regions)),
            queue: driver.queue(task.clone(), Pool::Compute, depth),
            task,
            windows: 0,
            has_bases,
            chunks_recovered: 0,
        }
    }

    /// Returns the number of directories of data containers that were read so far.
    pub(crate) fn directories_read(&self) -> u64 {
        self.locator.directories_read()
    }

    /// Returns the number of regions that were read so far, and how often each.
    pub(crate) fn regions_read(&self) -> u64 {
        self.task.regions_read()
    }

    /// Starts to fetch a window of chunks and hands each to the sink, now or later: regions of the window may still be
    /// under way when this returns, so that workers have something to do while the next window is put together.
    pub fn fetch(&mut self, wanted: Vec<HintedChunk>, sink: Arc<dyn Sink>) -> Result<()> {
        self.locator.open_hinted(&wanted)?;
        let mut located = self.locate(&wanted, &*sink);
        located.sort_unstable_by_key(|located| (located.key, located.number));
        let (window, located): (_, Arc<[Located]>) = (Arc::new(Window { wanted, sink }), located.into());
        while WINDOWS_MAX <= self.windows && self.wait() {}
        self.windows += usize::from(!located.is_empty());
        let (needed, ranges) = self.needed(&located);
        let steps = plan(&needed);
        let last = steps.last().map(|step| step.index);
        for Step { index, is_base } in steps {
            let (Some(Needed { region, .. }), Some(range)) = (needed.get(index), ranges.get(index)) else { continue };
            let (key, range) = ((region.container, region.region), range.clone());
            if window.sink.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let (window, is_last) = (Arc::clone(&window), Some(index) == last);
            match self.source(key, is_base) {
                Ok((container, source)) => {
                    let located = Arc::clone(&located);
                    self.submit(RegionJob { window, located, range, container, source, is_last });
                }
                Err(error) => {
                    let error = Error::RegionUnreadable { source: Box::new(error) };
                    let lost = located
                        .get(range)
                        .unwrap_or_default()
                        .iter()
                        .map(|located| (located.number, error.clone()))
                        .collect();
                    self.take_done(RegionDone {
                        window,
                        key,
                        plain: None,
                        kept_bytes: 0,
                        lost,
                        refused: Vec::new(),
                        is_last,
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns the regions of a window with what a plan needs to know of them, and the chunks of each.
    fn needed(&mut self, located: &[Located]) -> (Vec<Needed>, Vec<Range<usize>>) {
        let (mut needed, mut ranges) = (Vec::new(), Vec::new());
        let mut start = 0;
        for of_region in located.chunk_by(|before, after| before.key == after.key) {
            let range = start..start + of_region.len();
            start = range.end;
            let Some(Located { key: (container, region), number, .. }) = of_region.get(of_region.len() / 2) else {
                continue;
            };
            // One that cannot be opened shows when it is read.
            let opened = if self.has_bases { self.locator.container(*container).ok() } else { None };
            let bases = opened.map(|opened| opened.bases_of(*region)).unwrap_or_default();
            let region = RegionId { container: *container, region: *region };
            needed.push(Needed { region, position: *number, bases });
            ranges.push(range);
        }
        (needed, ranges)
    }

    /// Finds the chunks of a window. Those that are in none of the containers that are known are looked for again, together,
    /// after the containers were listed again.
    fn locate(&mut self, wanted: &[HintedChunk], sink: &dyn Sink) -> Vec<Located> {
        let mut located: Vec<Located> = Vec::with_capacity(wanted.len());
        let mut looked_for: Vec<usize> = (0..wanted.len()).collect();
        loop {
            let mut near = Near::default();
            let mut lost: Failures = Vec::new();
            for (number, chunk) in looked_for.iter().filter_map(|number| Some((*number, wanted.get(*number)?))) {
                match self.locator.find(chunk, &mut near) {
                    Ok((id, position)) => located.push(Located { key: (id, position.region), number, position }),
                    Err(error) => lost.push((number, error)),
                }
            }
            if lost.is_empty() {
                return located;
            }
            let Some(again) = self.look_again(lost, sink) else { return located };
            looked_for = again.into_iter().map(|(number, _)| number).collect();
        }
    }

    /// Returns chunks that were missed if they may be found now, after the containers were listed again; `None` after they
    /// were reported to the sink.
    fn look_again(&mut self, lost: Failures, sink: &dyn Sink) -> Option<Failures> {
        match self.locator.refresh() {
            Ok(true) => return Some(lost),
            Ok(false) => lose_all(sink, lost),
            // Whether they are missing is not known.
            Err(error) => lost.into_iter().for_each(|(number, _)| sink.lose(number, error.clone())),
        }
        None
    }

    /// Waits for everything under way.
    pub(crate) fn finish(&mut self) {
        while self.wait() {}
        self.windows = 0;
    }

    /// Waits for the region that has been under way for longest; false if there is none.
    fn wait(&mut self) -> bool {
        let Some(done) = self.queue.pop() else { return false };
        self.take_done(done);
        true
    }

    fn submit(&mut self, job: RegionJob) {
        let mut next = self.queue.push(job).or_else(|| self.queue.pop_done());
        while let Some(done) = next {
            self.take_done(done);
            next = self.queue.pop_done();
        }
    }

    /// Returns the origin of a region's bytes.
    fn source(&mut self, (id, region): RegionKey, is_base: bool) -> Result<(Arc<ContainerReader>, Source)> {
        let container = self.locator.container(id)?;
        if let Some(plain) = self.regions.get(&(id, region)) {
            return Ok((container, Source::Held(plain)));
        }
        if let Some((offset, len)) = container.region_range(region) {
            self.task.announce(container.name, offset..offset + u64::from(len));
        }
        Ok((container, if is_base { Source::Base } else { Source::Stored }))
    }

    fn take_done(&mut self, done: RegionDone) {
        let RegionDone { window, key, plain, kept_bytes, lost, refused, is_last } = done;
        self.cache(key, plain, kept_bytes);
        self.recover_all(&window, key.0, lost);
        lose_all(&*window.sink, refused);
        self.windows = self.windows.saturating_sub(usize::from(is_last));
    }

    /// Puts a region that was kept into the cache.
    fn cache(&mut self, key: RegionKey, plain: Option<Plaintext>, kept_bytes: usize) {
        self.task.release(kept_bytes);
        if let Some(plain) = plain {
            let bytes = plain.len();
            self.regions.insert(key, plain, bytes);
        }
    }

    /// Looks for sound copies of chunks that container `first` does not give back.
    fn recover_all(&mut self, window: &Arc<Window>, first: ContainerId, mut lost: Failures) {
        let mut tried: Vec<Vec<ContainerId>> = lost.iter().map(|_| vec![first]).collect();
        while !lost.is_empty() {
            let mut still = (Vec::new(), Vec::new());
            for ((number, error), mut tried) in lost.into_iter().zip(tried) {
                if !self.recover(window, number, &error, &mut tried) {
                    still.0.push((number, error));
                    still.1.push(tried);
                }
            }
            if still.0.is_empty() {
                return;
            }
            let Some(again) = self.look_again(still.0, &*window.sink) else { return };
            (lost, tried) = (again, still.1);
        }
    }

    /// Looks for a sound copy of a chunk in containers that were not tried; returns false if there is none.
    fn recover(&mut self, window: &Arc<Window>, number: usize, error: &Error, tried: &mut Vec<ContainerId>) -> bool {
        let Some(HintedChunk { chunk, hint }) = window.wanted.get(number).copied() else { return true };
        let hinted: Vec<ContainerId> = tried.first().copied().into_iter().chain(hint).collect();
        // If others cannot be listed, or are damaged, too, the error of the first one is reported.
        while let Ok(Some((id, position))) = self.locator.find_other(&chunk, &hinted, tried) {
            if let Ok(refused) = self.fetch_copy(window, number, id, position) {
                // A collection has deleted the first copy.
                self.chunks_recovered += u64::from(!error.is_missing_object());
                lose_all(&*window.sink, refused);
                return true;
            }
        }
        false
    }

    /// Fetches a chunk from one container, on this thread; returns what the sink did not take.
    fn fetch_copy(
        &mut self,
        window: &Arc<Window>,
        number: usize,
        id: ContainerId,
        position: ChunkPosition,
    ) -> Result<Failures> {
        let key = (id, position.region);
        let (container, source) = self.source(key, false)?;
        let located: Arc<[Located]> = Arc::from([Located { key, number, position }]);
        let window = Arc::clone(window);
        let job = RegionJob { window, located, range: 0..1, container, source, is_last: false };
        let RegionDone { plain, kept_bytes, mut lost, refused, .. } = self.task.run(job);
        // Its neighbors are likely to be looked for next.
        self.cache(key, plain, kept_bytes);
        lost.pop().map_or(Ok(refused), |(_, error)| Err(error))
    }
}

fn lose_all(sink: &dyn Sink, failures: Failures) {
    for (number, error) in failures {
        sink.lose(number, error);
    }
}
