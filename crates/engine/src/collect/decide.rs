//! Decides what a collection may delete (step C8 of docs/protocol.md): finds the copies that [`settle`] asks for.
//!
//! The chunks of condemned containers are joined with what snapshots reach, and then with the chunks of the containers that
//! stay, by partitions: memory does not grow with chunks. The join proposes copies by eight bytes of a fingerprint. Each copy
//! that is relied upon is then compared with its whole fingerprint.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::collect::settle::{CondemnedContainer, Settled, settle};
use crate::collect::usage::{PREFIX_LEN, Prefix, REACHED_LEN, Reached, prefix_of};
use crate::collect::whole::whole_chunks;
use crate::compress::Compressor;
use crate::container::ContainerReader;
use crate::error::{Error, Result};
use crate::lru::Lru;
use crate::monitor::Monitor;
use crate::object::names::ContainerName;
use crate::pipeline::Driver;
use crate::spill::partition::{FilledPartitions, Partitions, SortedRecords};
use crate::store::base_reader::BaseReader;
use crate::store::container_ids::ContainerIds;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::store::directories::Directories;
use crate::store::metadata::Scratch;
use crate::store::{Session, Store};
use crate::types::{ContainerId, Fingerprint, SessionId};

/// Bytes of a chunk in a container: prefix, number of the container.
const PLACED_LEN: usize = PREFIX_LEN + 4;
/// Bytes of a copy: number of the condemned container, prefix, number of a container that may hold a copy.
const PROPOSED_LEN: usize = 4 + PREFIX_LEN + 4;
/// Number that stands for no container.
const NO_CONTAINER: u32 = u32::MAX;
/// Most copies of a chunk that are looked at.
const COPIES_MAX: usize = 8;
/// The least memory of a decision, in bytes: its smallest share is an eighth.
pub(super) const MEMORY_BYTES_MIN: usize = 8 * crate::spill::partition::PARTITIONS_BYTES_MIN;

type Placed = FilledPartitions<PLACED_LEN>;
type Proposed = FilledPartitions<PROPOSED_LEN>;

/// The input of a decision.
pub(super) struct Decision<'a> {
    pub(super) store: &'a Store,
    /// The collector's session. The chunks of its containers were compared with their names. Unless it is in doubt, its containers
    /// are durable.
    pub(super) session: &'a Session,
    pub(super) scratch: &'a Scratch,
    pub(super) memory_bytes: usize,
    /// Containers that exist, condemned ones included, without those that other collections delete.
    pub(super) containers: &'a Containers,
    /// Finds bases in `containers`.
    pub(super) bases: &'a BaseReader,
    /// Those of them that may be deleted or quarantined.
    pub(super) condemned: &'a Containers,
    /// Condemned containers that are quarantined: all that is whole in them counts as reached, and nothing else.
    pub(super) quarantined: &'a ContainerIds,
    /// Sessions whose containers are not known to be durable.
    pub(super) in_doubt: &'a BTreeSet<SessionId>,
    /// The chunks that snapshots reach, in any number of lists.
    pub(super) reached: &'a [&'a Reached],
    /// Relies on copies that this collection has not written without a look at their bytes.
    pub(super) trusts_copies: bool,
    /// Runs the tasks that read directories.
    pub(super) driver: &'a Driver,
    pub(super) monitor: &'a dyn Monitor,
    /// Takes what cannot be read. Condemned containers among it stay, and so do those whose copies are among it.
    pub(super) unreadable: &'a dyn Fn(ContainerId, &Error) -> Result<()>,
}

impl Decision<'_> {
    /// Decides. Numbers are those of `containers`.
    pub(super) fn settle(&self) -> Result<Settled> {
        let proposed = self.propose()?;
        let lookup = RefCell::new(Lookup::new(&proposed)?);
        let mut copies = Copies::new(self);
        let ordinary = self.condemned.without(self.quarantined);
        let mut opened = self.open(&ordinary);
        let is_quarantined = Cell::new(false);
        let mut condemned = self.condemned.iter().map(|(number, id)| {
            lookup.borrow_mut().enter(number)?;
            is_quarantined.set(self.quarantined.contains(id));
            let names = if is_quarantined.get() {
                self.whole_names(number)?
            } else {
                opened.next().expect("each of them is opened")?.1.map(|container| names_of(&container))
            };
            let names = match names {
                Ok(names) => names,
                Err(error) => {
                    (self.unreadable)(id, &error)?;
                    vec![None]
                }
            };
            Ok((number.0, names))
        });
        let mut condemned: Box<dyn Iterator<Item = Result<CondemnedContainer>>> = Box::new(&mut condemned);
        settle(
            &mut condemned,
            &mut |fingerprint| Ok(is_quarantined.get() || lookup.borrow().copies.contains_key(&prefix_of(fingerprint))),
            &mut |fingerprint| {
                let lookup = lookup.borrow();
                let proposed = lookup.copies.get(&prefix_of(fingerprint));
                copies.find(proposed.map_or(&[], Vec::as_slice), fingerprint)
            },
        )
    }

    /// Opens containers in the order of their numbers.
    fn open<'a>(
        &'a self,
        containers: &'a Containers,
    ) -> impl Iterator<Item = Result<(ContainerNumber, Result<ContainerReader>)>> + 'a {
        let opened = self.store.open_containers_ahead(self.driver, containers, containers.numbers());
        containers.numbers().zip(opened).map(|(number, opened)| {
            if self.monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            Ok((number, opened?.1))
        })
    }

    /// Returns the names of the chunks that are whole in a container that is quarantined.
    fn whole_names(&self, number: ContainerNumber) -> Result<Result<Vec<Option<Fingerprint>>>> {
        if self.monitor.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let whole = whole_chunks(self.store, &self.containers.name(number)?, self.bases);
        Ok(whole.map(|whole| whole.into_iter().map(|chunk| Some(chunk.fingerprint)).collect()))
    }

    fn locate(&self, containers: &Containers, name: &'static str) -> Result<Placed> {
        let mut placed: Partitions<PLACED_LEN> =
            self.scratch.partitions(&self.store.host, name, self.memory_bytes / 8)?;
        for opened in self.open(containers) {
            let (number, opened) = opened?;
            let container = match opened {
                Ok(container) => container,
                // What cannot be opened is neither kept nor deleted.
                Err(error) => {
                    (self.unreadable)(containers.name(number)?.id, &error)?;
                    continue;
                }
            };
            for fingerprint in names_of(&container).into_iter().flatten() {
                placed.push(&placed_record(prefix_of(&fingerprint), number.0))?;
            }
        }
        placed.finish()
    }

    /// Returns for each condemned container its reached chunks, each with containers that may hold a copy.
    fn propose(&self) -> Result<Proposed> {
        let host = &self.store.host;
        let ordinary = self.condemned.without(self.quarantined);
        let mut wanted = self.join_reached(&self.locate(&ordinary, "chunks of condemned containers")?)?;
        let mut proposed: Partitions<PROPOSED_LEN> =
            self.scratch.partitions(host, "copies of condemned chunks", self.memory_bytes / 8)?;
        let is_condemned = |id| self.condemned.contains(id);
        let own = self.containers.retain(|_, id| id.session == self.session.id && !is_condemned(id));
        let others = self.containers.retain(|_, id| id.session != self.session.id && !is_condemned(id));
        // Mostly, all copies are this collection's.
        for stays in [own, others] {
            if wanted.count() == 0 {
                break;
            }
            let placed = self.locate(&stays, "chunks of kept containers")?;
            let mut without: Partitions<PLACED_LEN> =
                self.scratch.partitions(host, "chunks without a copy", self.memory_bytes / 8)?;
            let mut copies = Groups::new(&placed)?;
            for record in wanted.sorted() {
                let (prefix, container) = read_placed(&record?);
                let found = copies.of(prefix)?;
                if found.is_empty() {
                    without.push(&placed_record(prefix, container))?;
                }
                for copy in found {
                    proposed.push(&proposed_record(container, prefix, *copy))?;
                }
            }
            wanted = without.finish()?;
        }
        for record in wanted.sorted() {
            let (prefix, container) = read_placed(&record?);
            proposed.push(&proposed_record(container, prefix, NO_CONTAINER))?;
        }
        proposed.finish()
    }

    /// Returns the chunks that a snapshot reaches, and all that are whole in containers that are quarantined.
    fn join_reached(&self, condemned: &Placed) -> Result<Placed> {
        let mut wanted: Partitions<PLACED_LEN> = self.scratch.partitions(
            &self.store.host,
            "reached chunks of condemned containers",
            self.memory_bytes / 8,
        )?;
        let mut reached: Vec<Prefixes<'_>> =
            self.reached.iter().map(|reached| Prefixes::new(reached)).collect::<Result<_>>()?;
        let mut last = None;
        for record in condemned.sorted() {
            let record = record?;
            let (prefix, _) = read_placed(&record);
            let mut is_reached = false;
            for list in &mut reached {
                is_reached |= list.contains(prefix)?;
            }
            // A container may hold a chunk twice.
            if is_reached && last.replace(record) != Some(record) {
                wanted.push(&record)?;
            }
        }
        for (number, id) in self.condemned.iter().filter(|(_, id)| self.quarantined.contains(*id)) {
            match self.whole_names(number)? {
                Ok(names) => {
                    for fingerprint in names.into_iter().flatten() {
                        wanted.push(&placed_record(prefix_of(&fingerprint), number.0))?;
                    }
                }
                // Without a copy for its chunks, it stays.
                Err(error) => (self.unreadable)(id, &error)?,
            }
        }
        wanted.finish()
    }
}

fn names_of(container: &ContainerReader) -> Vec<Option<Fingerprint>> {
    container.directory.chunks.iter().map(|chunk| chunk.fingerprint).collect()
}

fn placed_record(prefix: Prefix, container: u32) -> [u8; PLACED_LEN] {
    let mut record = [0; PLACED_LEN];
    let fields = prefix.into_iter().chain(container.to_be_bytes());
    record.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    record
}

fn read_placed(record: &[u8; PLACED_LEN]) -> (Prefix, u32) {
    let [p0, p1, p2, p3, p4, p5, p6, p7, container @ ..] = *record;
    ([p0, p1, p2, p3, p4, p5, p6, p7], u32::from_be_bytes(container))
}

fn proposed_record(container: u32, prefix: Prefix, copy: u32) -> [u8; PROPOSED_LEN] {
    let mut record = [0; PROPOSED_LEN];
    let fields = container.to_be_bytes().into_iter().chain(prefix).chain(copy.to_be_bytes());
    record.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    record
}

fn read_proposed(record: &[u8; PROPOSED_LEN]) -> (u32, Prefix, u32) {
    let [c0, c1, c2, c3, p0, p1, p2, p3, p4, p5, p6, p7, copy @ ..] = *record;
    (u32::from_be_bytes([c0, c1, c2, c3]), [p0, p1, p2, p3, p4, p5, p6, p7], u32::from_be_bytes(copy))
}

/// Cursor over what snapshots reach.
struct Prefixes<'a> {
    records: SortedRecords<'a, REACHED_LEN>,
    next: Option<[u8; REACHED_LEN]>,
}

impl<'a> Prefixes<'a> {
    fn new(reached: &'a Reached) -> Result<Self> {
        let mut records = reached.sorted();
        let next = records.next().transpose()?;
        Ok(Self { records, next })
    }

    /// Returns true if the list contains a prefix, which must not be below the one before.
    fn contains(&mut self, prefix: Prefix) -> Result<bool> {
        while self.next.is_some_and(|record| record.first_chunk() < Some(&prefix)) {
            self.next = self.records.next().transpose()?;
        }
        Ok(self.next.is_some_and(|record| record.starts_with(&prefix)))
    }
}

/// Cursor over the containers of each prefix.
struct Groups<'a> {
    records: SortedRecords<'a, PLACED_LEN>,
    next: Option<[u8; PLACED_LEN]>,
    /// The prefix that was asked for last, and its containers.
    prefix: Option<Prefix>,
    containers: Vec<u32>,
}

impl<'a> Groups<'a> {
    fn new(placed: &'a Placed) -> Result<Self> {
        let mut records = placed.sorted();
        let next = records.next().transpose()?;
        Ok(Self { records, next, prefix: None, containers: Vec::new() })
    }

    /// Returns at most [`COPIES_MAX`] containers of a prefix, which must not be below the one before.
    fn of(&mut self, prefix: Prefix) -> Result<&[u32]> {
        if self.prefix.replace(prefix) == Some(prefix) {
            return Ok(&self.containers);
        }
        self.containers.clear();
        while let Some((next, container)) = self.next.as_ref().map(read_placed) {
            if prefix < next {
                break;
            }
            if next == prefix && self.containers.len() < COPIES_MAX && self.containers.last() != Some(&container) {
                self.containers.push(container);
            }
            self.next = self.records.next().transpose()?;
        }
        Ok(&self.containers)
    }
}

/// The reached chunks of one condemned container after the other.
struct Lookup<'a> {
    records: SortedRecords<'a, PROPOSED_LEN>,
    next: Option<[u8; PROPOSED_LEN]>,
    /// The reached chunks of the current container: 60,000 at most.
    copies: BTreeMap<Prefix, Vec<u32>>,
}

impl<'a> Lookup<'a> {
    fn new(proposed: &'a Proposed) -> Result<Self> {
        let mut records = proposed.sorted();
        let next = records.next().transpose()?;
        Ok(Self { records, next, copies: BTreeMap::new() })
    }

    /// Goes on to a container, which must not be below the one before.
    fn enter(&mut self, number: ContainerNumber) -> Result<()> {
        self.copies.clear();
        while let Some((container, prefix, copy)) = self.next.as_ref().map(read_proposed) {
            if number.0 < container {
                break;
            }
            if container == number.0 {
                let copies = self.copies.entry(prefix).or_default();
                copies.extend((copy != NO_CONTAINER).then_some(copy));
            }
            self.next = self.records.next().transpose()?;
        }
        Ok(())
    }
}

/// Looks at copies before anybody relies on them.
struct Copies<'a> {
    decision: &'a Decision<'a>,
    directories: Directories,
    regions: Lru<(ContainerId, u32), Arc<Vec<u8>>>,
    compressor: Compressor,
    /// Containers of sessions in doubt: true if they were made durable.
    made_durable: BTreeMap<ContainerId, bool>,
}

impl<'a> Copies<'a> {
    fn new(decision: &'a Decision<'a>) -> Self {
        Self {
            decision,
            directories: Directories::new(decision.store, decision.containers, decision.memory_bytes / 8),
            regions: Lru::new(decision.memory_bytes / 8),
            compressor: Compressor::default(),
            made_durable: BTreeMap::new(),
        }
    }

    /// Returns the first of some containers that holds a sound copy of a chunk and is durable.
    fn find(&mut self, proposed: &[u32], fingerprint: &Fingerprint) -> Result<Option<u32>> {
        for number in proposed {
            if self.decision.monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let name = self.decision.containers.name(ContainerNumber(*number))?;
            match self.holds(&name, fingerprint) {
                Ok(true) if self.is_durable(name)? => return Ok(Some(*number)),
                Ok(_) => {}
                Err(error) => (self.decision.unreadable)(name.id, &error)?,
            }
        }
        Ok(None)
    }

    /// Returns true if a container holds a chunk.
    fn holds(&mut self, name: &ContainerName, fingerprint: &Fingerprint) -> Result<bool> {
        let decision = self.decision;
        let container = self.directories.get(name.id)?;
        let Some(number) = container.number_of(fingerprint, 0) else { return Ok(false) };
        let position = container.position(number);
        let has_bases = position.is_some_and(|position| !container.bases_of(position.region).is_empty());
        // What depends on other containers is never trusted: a session that was fenced may have written it too late for anybody
        // to keep its bases.
        if !has_bases && (decision.trusts_copies || name.id.session == decision.session.id) {
            return Ok(true);
        }
        let wrong = || Error::damaged(decision.store.display(name), format!("chunk {fingerprint} is not in its place"));
        let chunk = container.directory.chunks.get(number).map(|chunk| chunk.kind).zip(position);
        let (kind, position) = chunk.ok_or_else(wrong)?;
        let region = self.region(&container, position.region)?;
        let start = position.offset as usize;
        let stored = region.get(start..start.saturating_add(position.len as usize)).ok_or_else(wrong)?;
        let contents = stored.len().checked_sub(position.hints_len as usize).and_then(|len| stored.get(..len));
        let is_sound = |contents: &&[u8]| decision.store.keys.fingerprint(kind, contents) == *fingerprint;
        contents.filter(is_sound).map(|_| true).ok_or_else(wrong)
    }

    fn region(&mut self, container: &ContainerReader, region: u32) -> Result<Arc<Vec<u8>>> {
        let key = (container.name.id, region);
        if let Some(plain) = self.regions.get(&key) {
            return Ok(plain);
        }
        let plain =
            Arc::new(self.decision.store.read_region(container, region, self.decision.bases, &mut self.compressor)?);
        self.regions.insert(key, Arc::clone(&plain), plain.len());
        Ok(plain)
    }

    /// Returns true if a container is durable, after an attempt to make it so.
    fn is_durable(&mut self, name: ContainerName) -> Result<bool> {
        let decision = self.decision;
        let is_own = name.id.session == decision.session.id && !decision.session.is_in_doubt();
        if is_own || !decision.in_doubt.contains(&name.id.session) {
            return Ok(true);
        }
        if let Some(known) = self.made_durable.get(&name.id) {
            return Ok(*known);
        }
        let unusable = decision.session.make_durable(&[name], &|| decision.monitor.is_interrupted())?;
        self.made_durable.insert(name.id, unusable.is_empty());
        Ok(unusable.is_empty())
    }
}
