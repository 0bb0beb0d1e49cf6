//! Every container, and every chunk that is in one.

mod gone;
mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::bitmap::Bitmap;
use crate::check::CheckRequest;
use crate::check::compared::Compared;
use crate::check::comparing::{self, CompareNames};
use crate::check::condition::{Conditions, Judged};
use crate::check::findings::Findings;
use crate::check::listing::list_containers;

use crate::check::objects::{History, MovedTargets};
use crate::check::sample::Sample;
use crate::check::verify::{Examined, FoundChunk, Inspect, ReadWhole, Verify};
use crate::container::DirectoryChunk;
use crate::error::{Error, Result};
use crate::monitor::{Items, Monitor};
use crate::object::FormatVersion;
use crate::object::names::{CollectionStep, ContainerKind, ContainerName, ObjectName, Prefix};
use crate::pipeline::driver::Pool;
use crate::pipeline::{Ordered, Task};
use crate::spill::SpillMap;
use crate::store::Store;
use crate::store::base_reader::{BaseReader, ObserveBases};
use crate::store::container_ids::ContainerIds;
use crate::store::container_set::Containers;
use crate::store::view::{View, ViewMemory};
use crate::types::{Chunk, ContainerId, Fingerprint, SessionId};

const ADVICE_CONTAINER: &str = "set it aside with `onefold repair containers --quarantine` and run backup again: what is still \
                                in the source is stored again and heals the snapshots that had it; restore what you \
                                need from snapshots that are not affected";
const ADVICE_LOST: &str = "run backup again: what is still in the source is stored again and heals the snapshots that \
                           had it; restore what you need from snapshots that are not affected, or bring the container \
                           back from a copy of the repository";
/// Containers that are inspected at a time; the directories of each take up to 8 MiB.
const INSPECTED_IN_FLIGHT: usize = 4;
/// Copies of a container that reading it takes: its bytes, the sealed and the opened region, its directories.
const COPIES: usize = 3;
/// Shares of the memory: one of 4 keeps bases, and one of 16 holds the chains of those that are read. Containers that are read whole and
/// references are not followed at the same time, so that all shares fit.
const BASES_SHARE: usize = 4;
const CHAINS_SHARE: usize = 16;
/// Number that stands for a container that was not there at first.
const NO_CONTAINER: u32 = u32::MAX;

/// Counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) containers: u64,
    pub(super) bytes_read: u64,
    pub(super) chunks: u64,
    pub(super) chunks_read: u64,
    /// Those aside that were opened as bases.
    regions_read: u64,
}

/// The chunks that can be restored, and the findings about others.
pub(super) struct Inventory<'a> {
    pub(super) store: &'a Store,
    pub(super) findings: &'a mut Findings,
    /// Containers that may be read: those that no `final` names.
    pub(super) live: Containers,
    /// Containers that a `final` names.
    removed: ContainerIds,
    /// Numbers of the collections whose `final` was read.
    finals: BTreeSet<u32>,
    /// The listing, which is taken again when something is missed.
    view: View,
    /// Finds and reads the bases of regions.
    bases: BaseReader,
    /// Regions that were compared when they were read as bases; `None` in a repository without bases.
    compared: Option<Arc<Compared>>,
    /// Containers that were gone when they were to be examined.
    vanished: Vec<ContainerName>,
    pub(super) counts: Counts,
    /// Containers that were there at first, whose numbers are spilled.
    pub(super) listed: Containers,
    /// Length and number of a container by chunk, of all that are in a container whose directory can be read and that are not known to be damaged.
    chunks: SpillMap,
    /// Number of the finding by chunk, of those that are known to be lost.
    lost: SpillMap,
    conditions: Conditions,
    /// Findings by which metadata may be lost whose names are not known.
    suspects: BTreeSet<usize>,
    sessions: BTreeMap<SessionId, Extent>,
    /// Findings of containers that are gone.
    gone: Vec<usize>,
    /// Sessions that are not known to have ended by themselves. No backup refers to what lacks a base there.
    unvouched: BTreeSet<SessionId>,
    /// Findings of containers of these that lack bases, and nothing else.
    late: Vec<(usize, ContainerId)>,
    /// Containers whose bytes are damaged.
    pub(super) damaged: BTreeSet<ContainerId>,
    /// Containers that could not be read for another reason.
    pub(super) unreadable: BTreeSet<ContainerId>,
    /// Number of quarantined containers.
    pub(super) quarantined: u64,
}

/// Containers of a session.
#[derive(Debug, Default)]
struct Extent {
    bytes: u64,
    /// Numbers of the quarantined ones.
    quarantined: BTreeSet<u32>,
    /// One of them does not have the length it had.
    is_cut: bool,
}

impl<'a> Inventory<'a> {
    /// Lists the containers.
    pub(super) fn list(
        store: &'a Store,
        request: &CheckRequest,
        history: &History,
        findings: &'a mut Findings,
    ) -> Result<(Self, Containers)> {
        let map = |name, share| request.scratch.map(&store.host, name, request.memory_bytes / share);
        let mut quarantined = BTreeMap::new();
        let listed = list_containers(store, request, findings, &mut quarantined)?;
        let mut sessions: BTreeSet<SessionId> = listed.sessions().collect();
        sessions.extend(quarantined.keys().map(|name| name.id.session));
        crate::check::objects::check_container_sessions(store, findings, history, &sessions);
        let has_bases = store.config.format != FormatVersion::V1;
        let compared = has_bases.then(|| Arc::new(Compared::new(store, &listed)));
        let observer = compared.clone().map(|compared| compared as Arc<dyn ObserveBases>);
        let chains = request.memory_bytes / CHAINS_SHARE / BaseReader::chain_bytes(store);
        let chains = chains.clamp(1, request.driver.compute_count());
        let mut inventory = Self {
            store,
            findings,
            live: listed.without(&history.removed),
            removed: history.removed.clone(),
            finals: history.finals.clone(),
            view: View::new(store, &listed, &request.scratch, ViewMemory { directories: 0, moved: 0 }),
            bases: BaseReader::with_chains(store, &listed, request.memory_bytes / BASES_SHARE, chains)
                .observed_by(observer),
            compared,
            vanished: Vec::new(),
            counts: Counts::default(),
            listed: listed.without(&history.removed),
            conditions: Conditions::new(request.memory_bytes / 16),
            chunks: map("chunks", 8)?,
            lost: map("lost chunks", 16)?,
            suspects: BTreeSet::new(),
            sessions: BTreeMap::new(),
            gone: Vec::new(),
            unvouched: sessions.into_iter().filter(|session| !history.has_ended_by_itself(*session)).collect(),
            late: Vec::new(),
            damaged: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            quarantined: quarantined.len() as u64,
        };
        for (name, number) in &quarantined {
            let extent = inventory.sessions.entry(name.id.session).or_default();
            extent.is_cut = true;
            extent.quarantined.insert(name.id.ordinal);
            inventory.blame(name, *number);
        }
        Ok((inventory, listed))
    }

    /// Looks at every container, at those of the sample and of `whole` byte by byte.
    pub(super) fn examine(
        &mut self,
        request: &CheckRequest,
        whole: &BTreeSet<ContainerId>,
        listed: &Containers,
        monitor: &dyn Monitor,
    ) -> Result<()> {
        let store = self.store;
        let (work, pool, for_device) = comparing::prepare(request.accelerator.as_ref(), &store.keys);
        let bytes = (request.memory_bytes / 4).saturating_sub(for_device);
        let in_flight = bytes / (COPIES * store.config.container_bytes as usize);
        let depth = (in_flight / 2).clamp(1, 16);
        let driver = &request.driver;
        let bases = self.bases.clone();
        let mut inspect =
            driver.queue(Inspect { store: store.clone(), bases: bases.clone() }, Pool::Wait, INSPECTED_IN_FLIGHT);
        let mut read = driver.queue(ReadWhole { store: store.clone() }, Pool::Wait, depth);
        let task = Verify { store: store.clone(), bases, pool, compared: self.compared.clone() };
        let queue = driver.queue(task, Pool::Compute, depth);
        let mut verify = CompareNames::new(queue, Arc::clone(&store.keys), work);
        let mut sample = Sample::new(request, &*store.host, listed.len(), store.config.container_bytes)?;
        monitor.stage(Items::Containers, listed.len() as u64);
        let (mut last, mut later) = (None, Bitmap::default());
        for number in listed.numbers() {
            let name = listed.name(number)?;
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            if last.replace(name.id) == Some(name.id) {
                self.findings.add(store.display(name), "is not the only container of its number", ADVICE_CONTAINER);
                self.conditions.fault(name.id);
            }
            // The sample counts all of them.
            let is_whole = sample.takes(name.id) || whole.contains(&name.id);
            let examined = if !is_whole {
                inspect.push(name)
            } else if self.compared.is_none() {
                read.push(name).and_then(|whole| verify.push(whole))
            } else {
                later.insert(number.0);
                None
            };
            if let Some(examined) = examined {
                self.take(examined, monitor)?;
            }
        }
        self.read_by_bases((listed, later), (&mut read, &mut verify), (driver, monitor))?;
        for whole in read.drain() {
            if let Some(examined) = verify.push(whole) {
                self.take(examined, monitor)?;
            }
        }
        while let Some(examined) = verify.pop() {
            self.take(examined, monitor)?;
        }
        for examined in inspect.drain() {
            self.take(examined, monitor)?;
        }
        if let Some(accelerator) = &request.accelerator {
            accelerator.report(monitor);
        }
        self.explain_vanished(monitor)?;
        self.counts.chunks = self.chunks.compact()?;
        Ok(())
    }

    /// Reports containers that have vanished since they were listed, except those that a collection has deleted meanwhile.
    fn explain_vanished(&mut self, monitor: &dyn Monitor) -> Result<()> {
        while self.vanished.iter().any(|name| !self.removed.contains(name.id)) && self.refresh(monitor)? {}
        for name in std::mem::take(&mut self.vanished) {
            if !self.removed.contains(name.id) {
                let error = Error::Missing { object: self.store.display(name) };
                let number = self.findings.add_error(self.store.display(name), &error, ADVICE_CONTAINER);
                self.blame(&name, number);
            }
        }
        Ok(())
    }

    /// Lists the containers again after something was missed. Returns true if it may be found now: in containers that have
    /// appeared, of which the directories are examined.
    fn refresh(&mut self, monitor: &dyn Monitor) -> Result<bool> {
        let known = self.view.containers().clone();
        if !self.view.refresh()? {
            return Ok(false);
        }
        // One that cannot be read was reported, or appeared just now.
        self.read_finals()?;
        self.live = self.view.containers().without(&self.removed);
        self.bases.set_containers(self.view.containers());
        let new = self.live.retain(|_, id| !known.contains(id));
        for name in new.names() {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let examined = Inspect { store: self.store.clone(), bases: self.bases.clone() }.run(name?);
            self.take(examined, monitor)?;
        }
        Ok(true)
    }

    /// Reads each `final` that has appeared. Returns true if all were read.
    fn read_finals(&mut self) -> Result<bool> {
        let mut all = true;
        for (number, steps) in self.store.list_collections()? {
            if !steps.contains(&CollectionStep::Final) || self.finals.contains(&number) {
                continue;
            }
            match self.store.read_ids(number, CollectionStep::Final) {
                Ok(removed) => {
                    self.removed.append(removed);
                    self.finals.insert(number);
                }
                Err(_) => all = false,
            }
        }
        self.removed.sort();
        Ok(all)
    }

    /// Reports containers that the newest `final` names in place of deleted ones and that are not there.
    pub(super) fn check_moved(&mut self, history: &History) -> Result<()> {
        let Some(MovedTargets { number, targets }) = &history.moved else { return Ok(()) };
        let absent = targets.iter().filter(|id| !self.view.containers().contains(*id)).count();
        // A collection since may have deleted them, and says where their chunks are.
        let is_newest = || {
            Ok(self
                .store
                .list_collections()?
                .into_iter()
                .all(|(later, steps)| later <= *number || !steps.contains(&CollectionStep::Final)))
        };
        if absent != 0 && is_newest()? {
            let object = self.store.display(ObjectName::Collection(*number, CollectionStep::Final));
            let problem = format!("names {absent} containers in place of deleted ones that are not there");
            self.findings.add_slow(object, problem);
        }
        Ok(())
    }

    fn take(&mut self, Examined { name, contents }: Examined, monitor: &dyn Monitor) -> Result<()> {
        self.counts.containers += 1;
        monitor.advance(0, 1);
        let object = || self.store.display(name);
        let extent = self.sessions.entry(name.id.session).or_default();
        let is_live = self.live.contains(name.id);
        let contents = match contents {
            Ok(contents) => contents,
            Err(Error::Missing { .. }) => {
                extent.is_cut = true;
                self.vanished.push(name);
                return Ok(());
            }
            Err(error) => {
                extent.is_cut = true;
                // Bytes that cannot be read now are not known to be damaged.
                let of_its_kind = if error.is_loss() { &mut self.damaged } else { &mut self.unreadable };
                of_its_kind.insert(name.id);
                let number = self.findings.add_error(object(), &error, ADVICE_CONTAINER);
                self.blame(&name, number);
                return Ok(());
            }
        };
        // A collection deletes a container together with those that hold its bases.
        if contents.bases_lacked != 0 && self.read_finals()? && self.removed.contains(name.id) {
            self.vanished.push(name);
            return Ok(());
        }
        let extent = self.sessions.entry(name.id.session).or_default();
        extent.bytes += contents.len;
        self.counts.bytes_read += contents.bytes_read;
        self.counts.chunks_read += contents.chunks_read;
        self.counts.regions_read += contents.regions_read;
        monitor.advance(contents.bytes_read, 0);
        let (mut number, known) = (None, self.findings.len());
        for problem in &contents.problems {
            // It may be its length that is wrong.
            extent.is_cut = true;
            self.conditions.fault(name.id);
            self.damaged.insert(name.id);
            number = Some(self.findings.add(object(), problem, ADVICE_CONTAINER));
        }
        if number == Some(known)
            && contents.bases_lacked == contents.problems.len()
            && self.unvouched.contains(&name.id.session)
        {
            self.late.push((known, name.id));
        }
        if let Some(number) = number
            && contents.is_incomplete
        {
            self.blame(&name, number);
        }
        if is_live && number.is_none() && name.kind == ContainerKind::Data {
            self.conditions.keep(name.id, contents.chunks.iter().map(|found| found.chunk));
        }
        let container = self.listed.find(name.id).map_or(NO_CONTAINER, |number| number.0).to_le_bytes();
        for FoundChunk { chunk, is_sound } in contents.chunks.iter().filter(|_| is_live) {
            match number {
                Some(number) if !is_sound => self.lost.insert(chunk.fingerprint.0, &spilled(number))?,
                // Whether it is there already is not asked: that would read a page of the map for each chunk.
                _ => self.chunks.insert(chunk.fingerprint.0, &[chunk.len.to_le_bytes(), container].concat())?,
            }
        }
        Ok(())
    }

    /// Remembers that what a container held is lost by a finding.
    fn blame(&mut self, name: &ContainerName, number: usize) {
        self.conditions.lose(name.id, number);
        if name.kind == ContainerKind::Metadata {
            self.suspects.insert(number);
        }
    }

    /// Returns where a referenced data chunk is, or the finding by which it cannot be restored.
    pub(super) fn judge(
        &mut self,
        Chunk { fingerprint, len }: Chunk,
        hint: Option<ContainerId>,
        monitor: &dyn Monitor,
    ) -> Result<Judged> {
        if let Some(id) = hint
            && self.conditions.find(id, &fingerprint, || open_again(self.store, &self.live, id)) == Some(len)
        {
            return Ok(Judged::Found(self.listed.find(id).map(|number| number.0)));
        }
        if let Some(id) = hint
            && self.removed.has_session(id.session)
            && !self.view.containers().contains(id)
            && !self.removed.contains(id)
            && self.conditions.lost_by(id).is_none()
            && !self.refresh(monitor)?
        {
            let number = self.add_missing(id);
            self.gone.push(number);
            self.conditions.lose(id, number);
        }
        // Collections may have moved it since the containers were listed.
        while !self.chunks.contains(&fingerprint.0)? && self.lost(fingerprint)?.is_none() && self.refresh(monitor)? {}
        if let Some(stored) = self.chunks.get(&fingerprint.0)? {
            if let Some(container) = stored.strip_prefix(&len.to_le_bytes()) {
                let number = container.first_chunk().map(|number| u32::from_le_bytes(*number));
                return Ok(Judged::Found(number.filter(|number| *number != NO_CONTAINER)));
            }
            let advice = "restore what you need from other snapshots, and report this: a program has written it so";
            return Ok(Judged::Lost(self.findings.add(
                format!("chunk {fingerprint}"),
                "is not as long as what refers to it says",
                advice,
            )));
        }
        if let Some(number) = self.lost(fingerprint)? {
            return Ok(Judged::Lost(number));
        }
        let number = match hint {
            None => self.findings.add(
                self.store.display(Prefix::Containers),
                "chunks that snapshots refer to are in none of the containers that can be read",
                ADVICE_LOST,
            ),
            Some(id) => match (self.conditions.lost_by(id), self.live.find(id)) {
                (Some(number), _) => number,
                (None, Some(number)) => self.findings.add(
                    self.store.display(self.live.name(number)?),
                    "does not hold chunks that snapshots expect there or elsewhere",
                    ADVICE_LOST,
                ),
                (None, None) => {
                    let number = self.add_missing(id);
                    self.conditions.lose(id, number);
                    number
                }
            },
        };
        self.lose(fingerprint, number)?;
        Ok(Judged::Lost(number))
    }

    /// Returns the finding by which a chunk is known to be lost.
    pub(super) fn lost(&mut self, fingerprint: Fingerprint) -> Result<Option<usize>> {
        let number = self.lost.get(&fingerprint.0)?;
        let number = number.and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        Ok(number.and_then(|number| usize::try_from(number).ok()))
    }

    /// Notes that a chunk is lost by a finding.
    pub(super) fn lose(&mut self, fingerprint: Fingerprint, number: usize) -> Result<()> {
        self.lost.insert(fingerprint.0, &spilled(number))
    }

    fn add_missing(&mut self, id: ContainerId) -> usize {
        let object = self.store.display(format_args!("{}/{id}", Prefix::Containers));
        self.findings.add(object, "missing", ADVICE_LOST)
    }

    /// Returns the finding by which metadata that is in no container is lost.
    pub(super) fn blame_for_metadata(&mut self) -> usize {
        let mut suspects = self.suspects.iter();
        match (suspects.next(), suspects.next()) {
            (Some(only), None) => *only,
            _ => self.findings.add(
                self.store.display(Prefix::Containers),
                "trees or recipes that snapshots refer to are in none of the containers that can be read",
                ADVICE_LOST,
            ),
        }
    }
}

/// Returns what a container names that was examined before. One that cannot be opened was found out then.
fn open_again(store: &Store, live: &Containers, id: ContainerId) -> Option<Vec<Chunk>> {
    let name = live.name(live.find(id)?).ok()?;
    let container = store.open_container(&name).ok()?;
    Some(container.directory.chunks.iter().filter_map(DirectoryChunk::chunk).collect())
}

/// Returns a finding's number as it is spilled.
fn spilled(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}
